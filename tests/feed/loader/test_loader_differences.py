"""Where our DataLoader deliberately differs from torch's: the difference, shown on both where both can show it.

`DIFFERENCES` names the test of each row of the table in ``docs/how-to/from-torch-dataloader.md``.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path

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
from tests.forked import die

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


def test_the_seed_decides_not_the_global_generator():
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
            die(1) if self.how == "exit" else os.kill(os.getpid(), self.how)
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


def test_a_worker_that_dies_twice_is_an_error_with_details():
    """The error names sample, signal and last output. Earlier batches are delivered."""
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


# ---- the rest of the table ----------------------------------------------------------------------------------


def test_a_partition_draws_its_seed_once():
    """So that no rank waits for another at each ``iter``. The order continues from there."""
    loader = fl.DataLoader(Numbers(30), shuffle=True, partition=(0, 1))
    sweeps = []
    for _ in range(2):
        torch.manual_seed(3)
        sweeps.append(flat(loader))
    assert sweeps[0] != sweeps[1]
    seed = int(loader.state_dict()["seed"], 16)
    again = fl.DataLoader(Numbers(30), shuffle=True, seed=seed)
    assert [flat(again), flat(again)] == sweeps


def test_samples_made_here_leave_the_generators_alone():
    after = []
    for make in (fl.DataLoader, TORCH):
        torch.manual_seed(3)
        list(make(Function(draw, 4)))
        after.append(torch.rand(()).item())
    torch.manual_seed(3)
    list(TORCH(Numbers(4)))
    assert after[0] == torch.rand(()).item() != after[1]


class Waiting(Numbers):
    """One sample comes once the last one was read."""

    def __init__(self, n, slow=None) -> None:
        super().__init__(n)
        self.slow, self.last = slow, threading.Event()

    def __getitem__(self, index):
        if index == self.n - 1:
            self.last.set()
        if index == self.slow:
            assert self.last.wait(60)
        return index


def test_a_slow_sample_delays_no_other():
    """torch would have the last one read by the worker that waits for it."""
    loader = fl.DataLoader(Waiting(9, slow=4), num_workers=2, workers="thread", prefetch_factor=4)
    assert flat(loader) == list(range(9))


def test_small_batches_are_made_further_ahead():
    """The last of 12 is read when the first was delivered. torch has requested 3 by then."""
    data = Waiting(12)
    loader = fl.DataLoader(data, num_workers=1, workers="thread")
    iterator = iter(loader)
    next(iterator)
    assert data.last.wait(60)
    assert len(list(iterator)) == 11


def test_arrays_are_gathered_in_this_process():
    x = torch.zeros(4)
    ours, theirs = (
        make(torch.utils.data.TensorDataset(x), num_workers=1, persistent_workers=True)
        for make in (fl.DataLoader, TORCH)
    )
    for loader in (ours, theirs):
        list(loader)
    x += 1
    assert [value.item() for (value,) in ours] == 4 * [1]
    assert [value.item() for (value,) in theirs] == 4 * [0]
    assert ours.pids == []


def test_set_epoch_after_iter_is_followed_with_workers():
    found = []
    for make in (fl.DataLoader, TORCH):
        sampler = torch.utils.data.DistributedSampler(range(20), num_replicas=1, rank=0)
        loader = make(Numbers(20), sampler=sampler, num_workers=1)
        iterator = iter(loader)
        sampler.set_epoch(1)
        found.append(flat(iterator))
        sampler.set_epoch(0 if make is TORCH else 1)
        assert list(sampler) == found[-1]
    assert found[0] != found[1]


class Counting:
    """A batch sampler that counts how often it is begun."""

    begun = 0

    def __iter__(self):
        self.begun += 1
        return iter([[0, 1], [2]])

    def __len__(self):
        return 2


def test_a_batch_sampler_is_begun_once():
    begun = []
    for make in (fl.DataLoader, TORCH):
        sampler = Counting()
        assert flat(make(Numbers(3), batch_sampler=sampler, num_workers=1)) == [0, 1, 2]
        begun.append(sampler.begun)
    assert begun == [1, 2]


def test_each_iterator_over_persistent_workers_goes_on():
    found = []
    for make in (fl.DataLoader, TORCH):
        loader = make(Numbers(4), num_workers=1, persistent_workers=True)
        first = iter(loader)
        next(first)
        second = iter(loader)
        found.append((flat(second), flat(first)))
    assert found == [([0, 1, 2, 3], [1, 2, 3]), ([0, 1, 2, 3], [])]


def doubled(samples):
    return [2 * sample for sample in samples]


def test_an_attribute_set_under_persistent_workers_is_seen():
    found = []
    for make in (fl.DataLoader, TORCH):
        loader = make(Numbers(2), num_workers=1, persistent_workers=True, collate_fn=same)
        list(loader)
        loader.collate_fn = doubled
        found.append(list(loader))
    assert found == [[[0], [2]], [[0], [1]]]


def test_a_generator_or_shuffle_that_is_set_later_decides_the_order():
    found = []
    for make in (fl.DataLoader, TORCH):
        loader, fresh = (
            make(Numbers(20), shuffle=True, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)
        )
        flat(loader)
        loader.generator = torch.Generator().manual_seed(2)
        order = flat(loader) == flat(fresh)
        loader.shuffle = False
        found.append((order, flat(loader) == list(range(20))))
    assert found == [(True, True), (False, False)]


DIFFERENCES = {
    "`shuffle=True`": test_the_batch_size_leaves_the_order_alone,
    "with `seed=`": test_each_iter_is_the_next_sweep,
    "without `seed`, but with a `partition` or over a `Mixture`": test_a_partition_draws_its_seed_once,
    "random numbers in samples": test_the_same_for_any_workers,
    "samples made without workers": test_samples_made_here_leave_the_generators_alone,
    "who reads the next batch": test_a_slow_sample_delays_no_other,
    "`prefetch_factor` left out": test_small_batches_are_made_further_ahead,
    "arrays and `TensorDataset`": test_arrays_are_gathered_in_this_process,
    "`set_epoch` between `iter` and the first batch": test_set_epoch_after_iter_is_followed_with_workers,
    "`__iter__` of a batch sampler": test_a_batch_sampler_is_begun_once,
    "several iterators over persistent workers": test_each_iterator_over_persistent_workers_goes_on,
    "attributes set under persistent workers": test_an_attribute_set_under_persistent_workers_is_seen,
    "`generator` or `shuffle` set later": test_a_generator_or_shuffle_that_is_set_later_decides_the_order,
    "a worker dies": test_a_worker_that_dies_once_is_no_matter,
    "`StopIteration` in a sample": test_stop_iteration_in_a_sample_does_not_end_the_data,
    "exceptions in workers whose constructor takes several arguments": test_an_error_with_several_arguments_keeps_them,
    "middle of an epoch": test_goes_on_with_other_workers_and_another_batch_size,
    "several ranks": test_ranks,
}


def test_each_row_of_the_table_has_a_test():
    page = Path(__file__).parents[3] / "docs/how-to/from-torch-dataloader.md"
    table = page.read_text(encoding="utf-8").split("## What differs, and why")[1].split("## ")[0]
    rows = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("|")]
    assert rows[2:] == list(DIFFERENCES)
