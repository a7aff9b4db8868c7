"""Arguments of the constructor, errors and attributes: both torch's DataLoader and ours."""

from __future__ import annotations

import math

import pytest

from tests.feed.loader.swapped import Numbers, Stream, both, same, torch

pytestmark = both

from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler  # noqa: E402


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"num_workers": -1}, ValueError, "num_workers"),
        ({"timeout": -1}, ValueError, "timeout option should be non-negative"),
        ({"prefetch_factor": 2}, ValueError, "prefetch_factor option could only be specified in multiprocessing"),
        ({"prefetch_factor": -1, "num_workers": 1}, ValueError, "prefetch_factor"),
        ({"persistent_workers": True}, ValueError, "persistent_workers option needs num_workers > 0"),
        *(
            ({"batch_size": size}, ValueError, f"batch_size should be a positive integer value.* batch_size='?{size}")
            for size in (0, -3, 1.5, True, "4")
        ),
        ({"batch_size": None, "drop_last": True}, ValueError, "batch_size=None option .* exclusive with drop_last"),
        ({"drop_last": "yes"}, ValueError, "drop_last"),
        ({"multiprocessing_context": "fork"}, ValueError, "can only be used with .*num_workers > 0.* num_workers=0"),
        (
            {"multiprocessing_context": "knife", "num_workers": 1},
            ValueError,
            "multiprocessing_context option should specify a valid start method .*'knife'",
        ),
        (
            {"multiprocessing_context": 3, "num_workers": 1},
            TypeError,
            "multiprocessing_context option should be a valid context object or .*=3",
        ),
        ({"sampler": [0, 1], "shuffle": True}, ValueError, "sampler option is mutually exclusive with shuffle"),
        *(
            ({"batch_sampler": [[0, 1]], **more}, ValueError, f"batch_sampler option is mutually exclusive .*{name}")
            for more in ({"batch_size": 2}, {"shuffle": True}, {"sampler": [0]}, {"drop_last": True})
            for name in more
        ),
        ({"no_such_option": 1}, TypeError, "no_such_option"),
    ],
)
def test_refused(Loader, options, error, says):
    with pytest.raises(error, match=f"(?s){says}"):
        Loader(Numbers(), **options)


@pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": [0, 1]}, {"batch_sampler": [[0], [1]]}])
def test_an_iterable_has_its_own_order(Loader, options):
    (name,) = options
    with pytest.raises(ValueError, match=f"IterableDataset: expected unspecified {name} option, but got {name}="):
        Loader(Stream(), **options)


@pytest.mark.parametrize("shuffle", [False, None])
def test_an_iterable_may_be_set_not_to_shuffle(Loader, shuffle):
    assert len(list(Loader(Stream(4), shuffle=shuffle))) == 4


def test_only_dataset_and_seven_more_go_by_position(Loader):
    """In torch's order: dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn, ..."""
    loader = Loader(Numbers(), 4, False, None, None, 0, same, False, True)
    assert list(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_defaults(Loader):
    data = Numbers()
    loader = Loader(data)
    assert loader.dataset is data
    assert (loader.batch_size, loader.num_workers, loader.drop_last) == (1, 0, False)
    assert (loader.timeout, loader.pin_memory, loader.persistent_workers, loader.in_order) == (0, False, False, True)
    assert loader.prefetch_factor is None
    assert loader.worker_init_fn is None
    assert loader.generator is None
    assert loader.multiprocessing_context is None
    assert callable(loader.collate_fn)
    assert list(loader.sampler) == list(range(10))
    assert list(loader.batch_sampler) == [[i] for i in range(10)]


def test_given_is_kept(Loader):
    generator, sampler = torch.Generator(), SequentialSampler(range(10))
    loader = Loader(Numbers(), 3, sampler=sampler, collate_fn=same, generator=generator, timeout=5, num_workers=1)
    assert loader.sampler is sampler
    assert loader.collate_fn is same
    assert loader.generator is generator
    assert (loader.batch_size, loader.timeout, loader.num_workers, loader.prefetch_factor) == (3, 5, 1, 2)
    batches = BatchSampler(sampler, 4, False)
    loader = Loader(Numbers(), batch_sampler=batches)
    assert loader.batch_sampler is batches
    assert loader.batch_size is None
    assert loader.drop_last is False


def test_batching_switched_off(Loader):
    loader = Loader(Numbers(), batch_size=None)
    assert loader.batch_size is None
    assert loader.batch_sampler is None


@pytest.mark.parametrize(
    "name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_what_decides_the_batches_stays(Loader, name):
    loader = Loader(Numbers())
    with pytest.raises(ValueError, match=name):
        setattr(loader, name, getattr(loader, name))


def test_the_start_method_may_be_set_later_and_is_checked(Loader):
    loader = Loader(Numbers(), num_workers=1)
    loader.multiprocessing_context = "spawn"
    assert loader.multiprocessing_context.get_start_method() == "spawn"
    with pytest.raises(ValueError, match="multiprocessing_context"):
        loader.multiprocessing_context = "knife"


def test_a_subclass_may_set_attributes_before_the_constructor(Loader):
    class Mine(Loader):
        def __init__(self, *args, **options) -> None:
            self.batch_size = 99
            self.mine = 1
            super().__init__(*args, **options)

    loader = Mine(Numbers(), batch_size=5)
    assert (loader.mine, loader.batch_size, len(list(loader))) == (1, 5, 2)


@pytest.mark.parametrize("size", [1, 3, 10, 11])
@pytest.mark.parametrize("drop_last", [False, True])
def test_length_in_batches(Loader, size, drop_last):
    loader = Loader(Numbers(10), batch_size=size, drop_last=drop_last)
    assert len(loader) == (10 // size if drop_last else math.ceil(10 / size))
    assert len(list(loader)) == len(loader)


def test_length_without_batching(Loader):
    assert len(Loader(Numbers(10), batch_size=None)) == 10


def test_length_matches_the_sampler(Loader):
    assert len(Loader(Numbers(10), batch_size=2, sampler=[1, 2, 3])) == 2
    assert len(Loader(Numbers(10), batch_sampler=[[1], [2, 3], [4], [5]])) == 4
    longer = RandomSampler(Numbers(10), num_samples=25, replacement=True)
    assert len(Loader(Numbers(10), batch_size=2, sampler=longer)) == 13


def test_length_of_an_iterable(Loader):
    assert len(Loader(Stream(10, length=10), batch_size=3)) == 4
    assert len(Loader(Stream(10, length=10), batch_size=3, drop_last=True)) == 3
    assert len(Loader(Stream(10, length=10), batch_size=None)) == 10
    with pytest.raises(TypeError):
        len(Loader(Stream(10), batch_size=3))


def test_nothing_in_no_batches(Loader):
    loader = Loader(Numbers(0))
    assert len(loader) == 0
    assert list(loader) == []


def test_nothing_cannot_be_shuffled(Loader):
    with pytest.raises(ValueError, match="num_samples should be a positive integer value"):
        Loader(Numbers(0), shuffle=True)


def test_more_workers_than_cores_is_reported(Loader, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    with pytest.warns(UserWarning, match="2 worker.*excessive worker creation"):
        Loader(Numbers(), num_workers=2)
