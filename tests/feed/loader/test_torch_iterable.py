"""Iterable datasets: both torch's DataLoader and ours."""

from __future__ import annotations

import warnings

import pytest

from tests.feed.loader.swapped import (
    Endless,
    Stream,
    Whole,
    both,
    flat,
    get_worker_info,
    same,
    torch,
    wait_until,
    workers,
)

pytestmark = both

from torch.utils.data import ChainDataset, IterableDataset  # noqa: E402


@pytest.mark.parametrize("drop_last", [False, True])
def test_batches(Loader, drop_last):
    loader = Loader(Stream(10), batch_size=4, drop_last=drop_last)
    for _ in range(2):
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]][: 2 if drop_last else 3]


@workers
def test_without_batching(Loader, workers):
    got = list(Loader(Stream(5), batch_size=None, num_workers=workers))
    assert got == [0, 1, 2, 3, 4]
    assert all(type(sample) is int for sample in got)


def test_workers_take_turns(Loader):
    """Each batch is of one worker, and they take turns."""
    loader = Loader(Stream(10), batch_size=2, num_workers=2)
    for _ in range(2):
        assert [batch.tolist() for batch in loader] == [[0, 2], [1, 3], [4, 6], [5, 7], [8], [9]]


class Uneven(IterableDataset):
    """7 samples in worker 0, 4 in worker 1, numbered apart."""

    def __iter__(self):
        worker = get_worker_info().id
        return iter(range(100 * worker, 100 * worker + (7, 4)[worker]))


def test_each_worker_ends_by_itself(Loader):
    loader = Loader(Uneven(), batch_size=3, num_workers=2)
    got = [batch.tolist() for batch in loader]
    assert got == [[0, 1, 2], [100, 101, 102], [3, 4, 5], [103], [6]]


def test_each_worker_drops_its_own_last(Loader):
    loader = Loader(Uneven(), batch_size=3, num_workers=2, drop_last=True)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2], [100, 101, 102], [3, 4, 5]]


class OnlySecond(IterableDataset):
    """Nothing in worker 0."""

    def __iter__(self):
        return iter(range(5) if get_worker_info().id else ())


def test_a_worker_may_have_nothing(Loader):
    assert flat(Loader(OnlySecond(), batch_size=2, num_workers=2)) == [0, 1, 2, 3, 4]


def test_a_dataset_that_does_not_share_comes_as_often_as_there_are_workers(Loader):
    assert sorted(flat(Loader(Whole(3), num_workers=2))) == [0, 0, 1, 1, 2, 2]


@workers
def test_nothing(Loader, workers):
    assert list(Loader(Stream(0), num_workers=workers)) == []


@pytest.mark.parametrize("persistent", [False, True])
def test_each_epoch_begins_from_the_start(Loader, persistent):
    loader = Loader(Stream(7), batch_size=2, num_workers=2, persistent_workers=persistent)
    epochs = [[batch.tolist() for batch in loader] for _ in range(3)]
    assert epochs[0] == epochs[1] == epochs[2] == [[0, 2], [1, 3], [4, 6], [5]]


@workers
def test_the_first_of_endlessly_many(Loader, workers):
    iterator = iter(Loader(Endless(), batch_size=2, num_workers=min(workers, 1)))
    assert [next(iterator).tolist() for _ in range(50)] == [[2 * i, 2 * i + 1] for i in range(50)]


def split(worker):
    info = get_worker_info()
    info.dataset.offset = 1000 * (worker + 1)


class Offset(IterableDataset):
    offset = 0

    def __iter__(self):
        return iter(range(self.offset, self.offset + 3))


def test_worker_init_fn_can_share_out(Loader):
    assert flat(Loader(Offset(), batch_size=3, num_workers=2, worker_init_fn=split)) == [
        *range(1000, 1003),
        *range(2000, 2003),
    ]
    assert flat(Loader(Offset(), batch_size=3)) == [0, 1, 2]


def test_one_that_is_its_own_iterator(Loader):
    """As in torch, `iter` is called once per epoch, so an exhausted iterator stays exhausted."""

    class Once(IterableDataset):
        def __init__(self):
            self.left = iter(range(4))

        def __iter__(self):
            return self.left

    loader = Loader(Once(), batch_size=3)
    assert flat(loader) == [0, 1, 2, 3]
    assert flat(loader) == []


def strings(samples):
    return "".join(map(str, samples))


@workers
def test_a_collate_fn(Loader, workers):
    got = list(Loader(Stream(6), batch_size=3, collate_fn=strings, num_workers=workers))
    assert got == (["024", "135"] if workers else ["012", "345"])


# ---- length -------------------------------------------------------------------------------------------------


@workers
def test_more_than_declared_is_a_warning(Loader, workers):
    loader = Loader(Stream(11, length=10), batch_size=None, num_workers=workers)
    assert len(loader) == 10
    says = r"Length of IterableDataset.* reported to be 10.*, but 11 samples have been fetched\."
    with pytest.warns(UserWarning, match=says + (" For multiprocessing data-loading, this" if workers else "")):
        assert len(list(loader)) == 11


@workers
def test_a_length_that_nobody_asked_for_is_no_warning(Loader, workers):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Length of IterableDataset")
        assert len(list(Loader(Stream(11, length=10), batch_size=None, num_workers=workers))) == 11


@workers
def test_fewer_than_declared_is_no_warning(Loader, workers):
    loader = Loader(Stream(9, length=10), batch_size=None, num_workers=workers)
    assert len(loader) == 10
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Length of IterableDataset")
        assert len(list(loader)) == 9


# ---- several datasets ---------------------------------------------------------------------------------------


@workers
def test_chains(Loader, workers):
    chained = ChainDataset([Stream(4), Stream(3)])
    assert sorted(flat(Loader(chained, batch_size=2, num_workers=workers))) == [0, 0, 1, 1, 2, 2, 3]
    assert flat(Loader(Stream(2) + Stream(3), batch_size=2)) == [0, 1, 0, 1, 2]
    assert len(Loader(ChainDataset([Stream(4, 4), Stream(3, 3)]), batch_size=2)) == 4


# ---- order --------------------------------------------------------------------------------------------------


class Waits(IterableDataset):
    """Worker 0 has nothing before a file is there."""

    def __init__(self, file) -> None:
        self.file = file

    def __iter__(self):
        if get_worker_info().id == 0:
            assert wait_until(self.file.exists)
            yield from range(3)
        else:
            yield from (100, 200, 300)


@pytest.mark.parametrize("in_order", [False, True])
def test_in_order_or_as_they_come(Loader, in_order, tmp_path):
    file = tmp_path / "go"
    loader = Loader(Waits(file), batch_size=None, num_workers=2, prefetch_factor=4, in_order=in_order)
    if in_order:
        file.touch()
        assert list(loader) == [0, 100, 1, 200, 2, 300]
    else:
        batches = iter(loader)
        assert [next(batches), next(batches)] == [100, 200]
        file.touch()
        assert sorted(batches) == [0, 1, 2, 300]


def test_tensors_of_an_iterable(Loader):
    class Rows(IterableDataset):
        def __iter__(self):
            return ({"x": torch.full((2,), i), "name": str(i)} for i in range(4))

    batches = list(Loader(Rows(), batch_size=2))
    assert [batch["x"].tolist() for batch in batches] == [[[0, 0], [1, 1]], [[2, 2], [3, 3]]]
    assert [batch["name"] for batch in batches] == [["0", "1"], ["2", "3"]]
    assert len(next(iter(Loader(Rows(), batch_size=3, collate_fn=same)))) == 3
