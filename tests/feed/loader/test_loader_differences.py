"""Where our DataLoader deliberately differs from torch's: the difference, shown on both where both can show it."""

from __future__ import annotations

import os
import re
import signal

import numpy as np
import pytest

import feedline as fl
from tests.feed.loader.swapped import (
    TORCH,
    Function,
    Numbers,
    both,
    draw,
    flat,
    same,
    torch,
    workers,
)

# ---- order and random numbers do not depend on workers --------------------------------------------------------


def drawn(make, **options) -> list:
    torch.manual_seed(5)
    loader = make(Function(draw, 12), batch_size=4, shuffle=True, **options)
    return [torch.stack(batch).tolist() for _ in range(2) for batch in loader]


def test_the_same_for_any_workers():
    """Shuffled and augmented, two sweeps."""
    expected = drawn(fl.DataLoader)
    for options in ({"num_workers": 1}, {"num_workers": 2}, {"num_workers": 2, "workers": "thread"}):
        assert drawn(fl.DataLoader, **options) == expected
    assert drawn(TORCH, num_workers=1) != drawn(TORCH, num_workers=2)


def test_each_iter_is_the_next_sweep():
    """Also where the global generator is set back, and where the loop before was left."""
    loader = fl.DataLoader(Numbers(30), batch_size=30, shuffle=True, seed=4)
    sweeps = []
    for _ in range(3):
        torch.manual_seed(0)
        sweeps.append(flat([next(iter(loader))]))
    assert sweeps[0] != sweeps[1] != sweeps[2] != sweeps[0]
    again = fl.DataLoader(Numbers(30), batch_size=30, shuffle=True, seed=4)
    assert [flat(again) for _ in range(3)] == sweeps

    loader = TORCH(Numbers(30), batch_size=30, shuffle=True)
    sweeps = []
    for _ in range(2):
        torch.manual_seed(0)
        sweeps.append(flat(loader))
    assert sweeps[0] == sweeps[1]


def test_the_seed_decides_whatever_the_global_generator_says():
    orders = []
    for seed in (4, 4, 5):
        torch.seed()
        orders.append(flat(fl.DataLoader(Numbers(30), shuffle=True, seed=seed)))
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


def test_the_batch_size_leaves_the_order_alone():
    orders = [flat(fl.DataLoader(Numbers(30), batch_size=size, shuffle=True, seed=1)) for size in (1, 7, 30)]
    assert orders[0] == orders[1] == orders[2]


# ---- workers ------------------------------------------------------------------------------------------------


class DiesOnce(Numbers):
    """A worker dies at sample 5, the first time that it is read."""

    def __init__(self, marker, how) -> None:
        super().__init__(12)
        self.marker, self.how = marker, how

    def __getitem__(self, index):
        if index == 5 and not self.marker.exists():
            self.marker.touch()
            os._exit(1) if self.how == "exit" else os.kill(os.getpid(), self.how)
        return index


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV, "exit"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_worker_that_dies_once_is_no_matter(tmp_path, how, count):
    """torch ends the run."""
    data = DiesOnce(tmp_path / "ours", how)
    assert flat(fl.DataLoader(data, batch_size=2, num_workers=count)) == list(range(12))
    assert data.marker.exists()
    # Whether torch sees the death first or the broken connection is a matter of luck.
    with pytest.raises((RuntimeError, ConnectionError, EOFError)):
        list(TORCH(DiesOnce(tmp_path / "torch", how), batch_size=2, num_workers=count))


def dies_talking(index):
    if index == 5:
        os.write(2, b"the last words\n")
        os.kill(os.getpid(), signal.SIGKILL)
    return index


def test_a_worker_that_dies_twice_says_all_it_knows():
    """The error names sample, signal and last output; earlier batches are delivered."""
    iterator = iter(fl.DataLoader(Function(dies_talking), batch_size=2, num_workers=2))
    assert flat([next(iterator), next(iterator)]) == [0, 1, 2, 3]
    with pytest.raises(fl.WorkerError) as caught:
        list(iterator)
    told = str(caught.value)
    assert re.search(r"SIGKILL|signal 9", told)
    assert re.search(r"\b[45]\b", told)
    assert "the last words" in told


# ---- errors -------------------------------------------------------------------------------------------------


class TwoArguments(Exception):
    """Cannot be made from a message alone."""

    def __init__(self, code, where) -> None:
        super().__init__(code, where)
        self.code, self.where = code, where


def two_arguments(index):
    raise TwoArguments(404, {"index": index})


def test_an_error_with_several_arguments_keeps_them():
    """torch makes a RuntimeError of it."""
    with pytest.raises(TwoArguments) as caught:
        list(fl.DataLoader(Function(two_arguments), num_workers=1))
    assert (caught.value.code, caught.value.where) == (404, {"index": 0})
    with pytest.raises(RuntimeError, match="TwoArguments"):
        list(TORCH(Function(two_arguments), num_workers=1))


def stop_iteration(index):
    if index == 3:
        return next(iter(()))
    return index


@workers
def test_stop_iteration_in_a_sample_does_not_end_the_data(workers):
    """torch takes it as the end, and the rest is lost silently."""
    assert flat(TORCH(Function(stop_iteration), num_workers=workers)) == [0, 1, 2]
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(fl.DataLoader(Function(stop_iteration), num_workers=workers))


# ---- state --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (2, 1)])
def test_goes_on_with_other_workers_and_another_batch_size(before, after):
    def loader(size, count):
        return fl.DataLoader(Numbers(50), batch_size=size, shuffle=True, seed=2, num_workers=count)

    first = loader(4, before)
    iterator = iter(first)
    read = flat(next(iterator) for _ in range(3))
    second = loader(7, after)
    second.load_state_dict(first.state_dict())
    assert read + flat(second) == flat(loader(50, 0))


@both
def test_ranks(Loader):
    """A partition: parts of the same minibatches. torch needs a DistributedSampler, and pads."""
    if Loader is TORCH:
        with pytest.raises(TypeError, match="partition"):
            Loader(Numbers(10), partition=(0, 2))
        return
    parts = [Loader(Numbers(11), batch_size=2, shuffle=True, seed=1, partition=(rank, 2)) for rank in range(2)]
    whole = Loader(Numbers(11), batch_size=4, shuffle=True, seed=1)
    read = [list(part) for part in parts]
    assert [len(part) for part in read] == [3, 3]
    for a, b, expected in zip(*read, whole, strict=True):
        assert flat([a, b]) == expected.tolist()


def test_nothing_pads_and_nothing_is_lost_over_ranks():
    parts = [fl.DataLoader(Numbers(13), batch_size=2, partition=(rank, 3), collate_fn=same) for rank in range(3)]
    read = [[sample for batch in part for sample in batch] for part in parts]
    assert sorted(sum(read, [])) == list(range(13))
    assert len({len(part) for part in parts}) == 1


@pytest.mark.parametrize("options", [{"sampler": [1, 2]}, {"batch_sampler": [[1], [2]]}])
def test_a_partition_parts_our_order_only(options):
    with pytest.raises(ValueError, match="partition"):
        fl.DataLoader(Numbers(10), partition=(0, 2), **options)


def test_a_warning_about_arguments_points_to_the_call():
    def call():
        return fl.DataLoader([1, 2, 3], num_workers=1000, workers="process")

    with pytest.warns(UserWarning, match="1000 workers") as caught:
        call()
    assert (caught[0].filename, caught[0].lineno) == (__file__, call.__code__.co_firstlineno + 1)


def test_batches_of_a_corpus_are_trees_without_a_collate_fn():
    loader = fl.DataLoader(fl.ArrayDeserializer({"x": np.arange(8).reshape(4, 2)}), batch_size=4)
    (before,) = loader
    loader.collate_fn = None
    (after,) = loader
    assert np.array_equal(before["x"], after["x"])
