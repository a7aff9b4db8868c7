"""Data pipes, shuffled, seeded and sharded by the loader: both torch's DataLoader and ours."""

from __future__ import annotations

import json
import sys

import pytest

import feedline as fl
from tests import ranks
from tests.feed.loader.swapped import both, flat, torch, workers

from torch.utils.data.datapipes.iter import IterableWrapper  # isort: skip
from torch.utils.data.datapipes.map import SequenceWrapper  # isort: skip

COUNT = 20


def shared(count=COUNT):
    """A pipe that is shuffled, then sharded, and mapped."""
    return IterableWrapper(list(range(count))).shuffle().sharding_filter().map(int)


@both
@workers
@pytest.mark.parametrize("shuffle", [None, True])
def test_shuffled_once_over_all_workers(Loader, workers, shuffle):
    loader = Loader(shared(), batch_size=3, shuffle=shuffle, num_workers=workers)
    first, second = flat(loader), flat(loader)
    assert sorted(first) == sorted(second) == list(range(COUNT))
    assert len({tuple(first), tuple(second), tuple(range(COUNT))}) == 3


@both
@workers
def test_shuffling_switched_off(Loader, workers):
    loader = Loader(shared(), batch_size=None, shuffle=False, num_workers=workers)
    assert flat(loader) == flat(loader) == list(range(COUNT))


@both
@workers
def test_a_seed_decides_the_order(Loader, workers):
    def read():
        torch.manual_seed(8)
        return flat(Loader(shared(), batch_size=2, shuffle=True, num_workers=workers))

    assert read() == read()


@both
@workers
def test_pipes_of_maps(Loader, workers):
    assert flat(Loader(SequenceWrapper(list(range(8))).map(float), num_workers=workers)) == list(range(8))
    mapped = flat(Loader(SequenceWrapper(list(range(8))).map(float), shuffle=True, num_workers=workers))
    assert sorted(mapped) == list(range(8)) != mapped
    iterable = SequenceWrapper(list(range(8))).shuffle().sharding_filter()
    assert sorted(flat(Loader(iterable, shuffle=True, num_workers=workers))) == list(range(8))


def shares_anew(worker):
    info = torch.utils.data.get_worker_info()
    torch.utils.data.graph_settings.apply_sharding(info.dataset, info.num_workers, 1 - worker)


@both
def test_worker_init_fn_has_the_last_word(Loader):
    pipe = IterableWrapper(list(range(6))).sharding_filter()
    assert flat(Loader(pipe, num_workers=2, worker_init_fn=shares_anew)) == [1, 0, 3, 2, 5, 4]


def test_the_same_order_for_any_kind_of_workers():
    def read(**options):
        return flat(fl.DataLoader(shared(), batch_size=None, shuffle=True, seed=3, **options))

    assert read() == read(num_workers=2) == read(num_workers=2, workers="thread")


def test_shuffle_without_a_shuffler_adds_one():
    with pytest.warns(UserWarning, match="Shuffler"):
        loader = fl.DataLoader(IterableWrapper(list(range(COUNT))), shuffle=True)
    assert sorted(flat(loader)) == list(range(COUNT)) != flat(loader)


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.filterwarnings("ignore:.*has no state_dict")
def test_resumed(count):
    def make():
        return fl.DataLoader(shared(), batch_size=3, shuffle=True, num_workers=count)

    loader = make()
    list(loader)
    iterator = iter(loader)
    next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = flat(iterator)
    again = make()
    again.load_state_dict(state)
    assert flat(again) == rest
    following = []
    for each in (again, loader):
        torch.manual_seed(3)  # without a seed of the loader it decides the next sweep
        following.append(flat(each))
    assert following[0] == following[1]


def two_sweeps(rank, options):
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(rank)  # the order of rank 0
    loader = fl.DataLoader(shared(), batch_size=None, shuffle=True, **options)
    told = [flat(loader) for _ in range(2)]
    torch.distributed.destroy_process_group()
    return told


@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "workers": "thread"}])
def test_ranks_share(options):
    told = ranks.run(two_sweeps, 2, options=options)
    for sweep in zip(*told, strict=True):
        assert sorted(i for each in sweep for i in each) == list(range(COUNT))
    assert told[0][0] != told[0][1]


def test_threads_share_a_pipe_out_one_after_the_other():
    """torch looks through pipes by hooks that all threads share."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            assert sorted(flat(fl.DataLoader(shared(), batch_size=None, num_workers=4, workers="thread"))) == list(
                range(COUNT)
            )
    finally:
        sys.setswitchinterval(interval)
