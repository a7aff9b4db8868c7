"""`set_epoch` between ``iter`` and the first batch: Lightning announces the epoch only then."""

from __future__ import annotations

import warnings

import pytest

import feedline as fl
from tests.feed.loader.datasets import Plain

torch = pytest.importorskip("torch")

ITEMS, BATCH, SWEEPS = 10, 4, 4
KINDS = ("shuffle", "partition", "sampler", "batch sampler")


class Both(Plain):
    """Items and what an augmentation draws, so that sweeps of one order differ."""

    def __getitem__(self, index):
        return torch.tensor([index, fl.sample_rng().random()], dtype=torch.float64)


def loader_of(kind, workers=0):
    how = {"batch_size": BATCH, "shuffle": True}
    if kind == "partition":
        how["partition"] = (1, 2)
    elif kind != "shuffle":
        sampler = torch.utils.data.DistributedSampler(range(ITEMS), num_replicas=1, rank=0)
        how = {"batch_size": BATCH, "sampler": sampler}
    if kind == "batch sampler":
        how = {"batch_sampler": torch.utils.data.BatchSampler(sampler, BATCH, False)}
    return fl.DataLoader(Both(ITEMS), seed=2, num_workers=workers, workers="thread", **how)


def tell(loader, epoch):
    """As Lightning does."""
    inside = loader.sampler if loader.batch_size is not None else loader.batch_sampler.sampler
    inside.set_epoch(epoch)


def listed(batches):
    return [batch.tolist() for batch in batches]


def indices(batches):
    return [[item[0] for item in batch] for batch in batches]


def sweeps_of(kind):
    """Return the first sweeps, each announced before its ``iter``."""
    loader, found = loader_of(kind), []
    for epoch in range(SWEEPS):
        tell(loader, epoch)
        found.append(listed(loader))
    assert len({str(sweep) for sweep in found}) == SWEEPS
    return found


each_kind = pytest.mark.parametrize("kind", KINDS)
each_number = pytest.mark.parametrize("workers", [0, 2])


@each_kind
@each_number
@pytest.mark.parametrize("epoch", [0, 2])
def test_an_unused_iterator_begins_with_the_epoch_that_is_set(kind, workers, epoch):
    sweeps, loader, resumed = sweeps_of(kind), loader_of(kind, workers), loader_of(kind, workers)
    iterator = iter(loader)
    tell(loader, 1)
    tell(loader, epoch)
    resumed.load_state_dict(loader.state_dict())
    tell(resumed, epoch)
    assert listed(resumed) == sweeps[epoch]
    assert listed(iterator) == sweeps[epoch]
    assert list(iterator) == []
    tell(loader, epoch + 1)
    assert listed(loader) == sweeps[epoch + 1]


@each_kind
@each_number
@pytest.mark.parametrize("taken", [1, 2, 3])
def test_an_iterator_of_a_state_goes_on_in_its_epoch_and_begins_a_later_one(kind, workers, taken):
    sweeps, loader = sweeps_of(kind), loader_of(kind)
    for epoch in (0, 1):
        tell(loader, epoch)
        iterator = iter(loader)
        if epoch == 0:
            list(iterator)
    taken = min(taken, len(sweeps[1]))
    for _ in range(taken):
        next(iterator)
    state = loader.state_dict()
    for epochs, expected, following in (
        ([], sweeps[1][taken:], 2),
        ([1], sweeps[1][taken:], 2),
        ([2], sweeps[2], 3),
        ([1, 2], sweeps[2], 3),
    ):
        resumed = loader_of(kind, workers)
        resumed.load_state_dict(state)
        rest = iter(resumed)
        for epoch in epochs:
            tell(resumed, epoch)
        assert listed(rest) == expected
        tell(resumed, following)
        assert listed(resumed) == sweeps[following]


def after_the_last_batch(kind, sweeps):
    """A loader that has begun the rest of the first sweep, of which nothing is left, and was not asked for it."""
    loader, resumed = loader_of(kind), loader_of(kind)
    iterator = iter(loader)
    for _ in sweeps[0]:
        next(iterator)
    resumed.load_state_dict(loader.state_dict())
    iter(resumed)
    return resumed


@each_kind
def test_after_the_last_batch_an_epoch_that_is_set_twice_comes_once(kind):
    """A checkpoint after validation: the rest of its epoch is begun, and never asked for."""
    sweeps = sweeps_of(kind)
    resumed = after_the_last_batch(kind, sweeps)
    tell(resumed, 0)
    tell(resumed, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert listed(resumed) == sweeps[1]


@each_kind
def test_a_sweep_that_lightning_leaves_out_is_warned_of(kind):
    sweeps = sweeps_of(kind)
    resumed = after_the_last_batch(kind, sweeps)
    tell(resumed, 1)
    tell(resumed, 2)
    with pytest.warns(UserWarning, match="sweep 1 is skipped"):
        iterator = iter(resumed)
    assert indices(listed(iterator)) == indices(sweeps[2])


@pytest.mark.parametrize("kind", ["shuffle", "partition"])
def test_only_the_newest_iterator_follows(kind):
    sweeps, loader = sweeps_of(kind), loader_of(kind)
    older, newer = iter(loader), iter(loader)
    tell(loader, 3)
    assert (listed(older), listed(newer)) == (sweeps[0], sweeps[3])
