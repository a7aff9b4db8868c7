"""A loader whose sampler iterates another loader's: its state has the sweep of the inner one."""

from __future__ import annotations

import json
from itertools import chain, islice

import pytest

import feedline as fl
from tests.feed.loader.swapped import flat, torch

ITEMS = list(range(23))


class Wrapper:
    """An iterable over another one, as frameworks' samplers are."""

    def __init__(self, inner) -> None:
        self.inner = inner

    def __iter__(self):
        yield from self.inner

    def __len__(self) -> int:
        return len(self.inner)


class Twice(Wrapper):
    """Two sweeps of the inner sampler for each sweep."""

    def __iter__(self):
        return chain.from_iterable(self.inner for _ in range(2))


def of_indices(seed):
    return fl.DataLoader(ITEMS, batch_size=3, sampler=Wrapper(shuffled(seed).sampler))


def of_batches(seed):
    return fl.DataLoader(ITEMS, batch_sampler=Wrapper(shuffled(seed).batch_sampler))


def of_torchs_batches(seed):
    batches = torch.utils.data.BatchSampler(shuffled(seed).sampler, 4, False)
    return fl.DataLoader(ITEMS, batch_sampler=batches)


def of_two_sweeps(seed):
    return fl.DataLoader(ITEMS, batch_size=5, sampler=Twice(shuffled(seed).sampler))


def of_drawn_seeds(seed):
    inner = shuffled(seed)
    inner.sampler.generator = torch.Generator().manual_seed(seed)
    return fl.DataLoader(ITEMS, batch_sampler=Wrapper(inner.batch_sampler))


def shuffled(seed):
    torch.manual_seed(seed)
    return fl.DataLoader(ITEMS, batch_size=4, shuffle=True)


nested = pytest.mark.parametrize(
    "make", [of_indices, of_batches, of_torchs_batches, of_two_sweeps, of_drawn_seeds], ids=lambda make: make.__name__
)


@nested
@pytest.mark.parametrize("batches", [1, 3, 6])
@pytest.mark.parametrize("sweeps", [0, 2])
def test_resumed_under_another_seed(make, sweeps, batches):
    loader = make(1)
    for _ in range(sweeps):
        list(loader)
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = flat(iterator)
    again = make(2)
    again.load_state_dict(state)
    assert flat(again) == rest
    if make is not of_drawn_seeds:  # whose next sweep is up to its generator
        assert seeded_flat(again) == seeded_flat(loader)


def seeded_flat(batches):
    """The samples of a sweep that follows from a seed which the program sets."""
    torch.manual_seed(9)
    return flat(batches)


@pytest.mark.parametrize("make", [of_indices, of_batches, of_torchs_batches], ids=lambda make: make.__name__)
def test_resumed_between_sweeps(make):
    loader = make(1)
    list(loader)
    state = json.loads(json.dumps(loader.state_dict()))
    again = make(2)
    again.load_state_dict(state)
    assert seeded_flat(again) == seeded_flat(loader)


@pytest.mark.parametrize("batches", [3, 8])
def test_resumed_where_a_framework_iterates_the_batch_sampler(batches):
    """As accelerate does. After 8 batches it is between two sweeps."""
    loader, again = of_indices(1), of_indices(2)
    iterator = iter(loader.batch_sampler)
    list(islice(iterator, batches if batches < 8 else None))
    state = json.loads(json.dumps(loader.state_dict()))
    again.load_state_dict(state)
    if batches < 8:
        assert flat(again.batch_sampler) == flat(iterator)
    for _ in range(2):
        assert seeded_flat(again.batch_sampler) == seeded_flat(loader.batch_sampler)


def test_a_seed_that_was_given_has_to_be_the_same():
    def make(seed):
        return fl.DataLoader(ITEMS, sampler=Wrapper(fl.DataLoader(ITEMS, shuffle=True, seed=seed).sampler), seed=0)

    loader = make(1)
    next(iter(loader))
    again = make(2)
    again.load_state_dict(loader.state_dict())
    with pytest.raises(fl.StateError, match="pass seed=1 to that loader"):
        next(iter(again))


@pytest.mark.parametrize("orders", [3, [3], [[3, 0]], [["x" * 16, 0]], [["0" * 16, -1]], [["0" * 16]]])
def test_damaged(orders):
    loader = of_indices(1)
    next(iter(loader))
    state = loader.state_dict()
    state["memo"]["orders"] = orders
    with pytest.raises(fl.StateError, match="damaged"):
        loader.load_state_dict(state)
