"""The law of cover over loaders whose ranks come and go: each batch of all ranks is that of a single process."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from tests.effort import examples
from tests.laws.items import Augmented, Plain, content

#: Numbers of ranks that divide each other's batches.
COUNTS = (1, 2, 3, 4, 6, 12)

legs = st.lists(st.tuples(st.sampled_from(COUNTS), st.integers(0, 4), st.booleans()), min_size=1, max_size=6)


class Group:
    """The ranks of a job, as loaders of one process. Those that join go on from the state of the others.

    Args:
        make: function that returns the loader of (index, count) with a size per rank.
        size: items of a batch of all ranks.
        most: largest number of ranks.
    """

    def __init__(self, make, size, most=12):
        self.loaders = [make(size // most, (i, most)) for i in range(most)]
        self.iterators = [None] * most
        self.active = range(0)
        self.state = None

    def repartition(self, count):
        """Go on as ``count`` ranks."""
        state = self.loaders[0].state_dict() if self.active else None
        for i in range(count):
            self.loaders[i].repartition((i, count))
            if state is not None and i not in self.active:
                self.loaders[i].load_state_dict(state)
                self.iterators[i] = None
        self.active = range(count)

    def step(self):
        """Return the parts of the next batch, or None at the end of a sweep, which all ranks reach together."""
        self.state = self.loaders[0].state_dict()
        for i in self.active:
            if self.iterators[i] is None:
                self.iterators[i] = iter(self.loaders[i])
        parts = [next(self.iterators[i], None) for i in self.active]
        assert len({part is None for part in parts}) == 1
        if parts[0] is None:
            self.iterators = [None] * len(self.iterators)
            return None
        return parts

    def take_back(self):
        """Load the state from before the last batch."""
        for i in self.active:
            self.loaders[i].load_state_dict(self.state)
            self.iterators[i] = None

    def states(self):
        return [self.loaders[i].state_dict() for i in self.active]


def follow(group, single, legs, listed):
    """Compare the steps of a group with those of a loader that has batches of the same size."""
    batches = itertools.chain.from_iterable(itertools.chain(iter(single), [None]) for _ in itertools.count())
    for count, steps, is_lost in legs:
        group.repartition(count)
        for _ in range(steps):
            expected, parts = next(batches), group.step()
            if is_lost and parts is not None:
                group.take_back()
                parts = group.step()
            if expected is None:
                assert parts is None
                continue
            assert listed(parts) == listed([expected])
            total = len(listed([expected]))
            owners = [o * count // total for o in range(total)]
            assert [len(listed([part])) for part in parts] == [owners.count(rank) for rank in range(count)]
            assert group.states() == [single.state_dict()] * count
            assert {len(group.loaders[i]) for i in group.active} == {len(single)}
    return json.loads(json.dumps(single.state_dict()))


@st.composite
def orders(draw):
    """(number of items, arguments that decide the order)."""
    n = draw(st.integers(1, 60))
    arguments = {"seed": draw(st.integers(0, 2**64 - 1))}
    kind = draw(st.sampled_from(["shuffle", "order", "weights"]))
    if kind == "weights":
        arguments["sampler"] = fl.Weighted([1.0 + i % 3 for i in range(n)])
    return n, {**arguments, "shuffle": True} if kind == "shuffle" else arguments


@given(orders(), st.integers(1, 2), st.booleans(), legs, st.integers(1, 5))
def test_datasets(world, times, drop_last, legs, other):
    """Also items with random numbers. The state fits a loader of any partition."""
    n, arguments = world

    def make(size, partition):
        return fl.DataLoader(Augmented(n), size, partition=partition, drop_last=drop_last, **arguments)

    size = 12 * times
    state = follow(Group(make, size), single := make(size, (0, 1)), legs, content)
    ranks = [make(3, (i, other)) for i in range(other)]
    whole = make(3 * other, (0, 1))
    for loader in [*ranks, whole]:
        loader.load_state_dict(state)
    assert single.state_dict() == state
    for expected, *parts in zip(whole, *ranks, strict=True):
        assert content(parts) == content([expected])


@pytest.mark.parametrize(
    ("workers", "persistent_workers"), [("process", False), ("process", True), ("thread", False), ("thread", True)]
)
@settings(max_examples=examples(2))
@given(world=orders(), legs=legs)
def test_workers(workers, persistent_workers, world, legs):
    n, arguments = world

    def make(size, partition):
        how = {"num_workers": 2, "workers": workers, "persistent_workers": persistent_workers}
        return fl.DataLoader(Augmented(n), size, partition=partition, **how, **arguments)

    legs = [(min(count, 3), steps, is_lost) for count, steps, is_lost in legs]
    group, single = Group(make, 6, most=3), fl.DataLoader(Augmented(n), 6, **arguments)
    try:
        follow(group, single, legs, content)
    finally:
        for loader in group.loaders:
            loader.close()


@settings(max_examples=examples(10))
@given(st.integers(1, 60), st.integers(1, 9), st.sampled_from([False, True, 1, 3]), legs, st.integers(0, 2**64 - 1))
def test_corpora(n, chunk, shuffle, legs, seed):
    """In windows of one chunk or several, as a whole, or in order."""
    shuffle = fl.Window(chunks=shuffle) if type(shuffle) is int else shuffle

    def make(size, partition):
        corpus = fl.ArrayDeserializer(i=np.arange(n), chunk_sequences=chunk)
        return fl.DataLoader(corpus, size, shuffle=shuffle, seed=seed, partition=partition)

    def listed(parts):
        return [i for part in parts for i in part["i"].tolist()]

    legs = [(min(count, 6), steps, is_lost) for count, steps, is_lost in legs]
    follow(Group(make, 12, most=6), make(12, (0, 1)), legs, listed)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40).filter(any), legs, st.booleans())
def test_batches_by_length(lengths, legs, balanced):
    """Batches of all ranks hold as many samples as before, or as many items, and shares keep their balance."""
    items = [(np.full((length, 2), i), i) for i, length in enumerate(lengths)]

    def make(size, partition):
        by_length = fl.BatchByLength(None if balanced else size, lengths)
        how = {"partition": fl.Partition(partition, balance="squares" if balanced else "samples")}
        if balanced:
            how["batch_size"] = size
        return fl.DataLoader(items, batch_sampler=by_length, shuffle=True, seed=5, collate_fn=list, **how)

    group, single = Group(make, 24), make(24, (0, 1))
    batches = iter(single)
    for count, steps, _ in legs:
        group.repartition(count)
        for _ in range(steps):
            expected, parts = next(batches, None), group.step()
            if expected is None:
                return
            got = [i for part in parts for _, i in part]
            assert (sorted(got) if balanced else got) == sorted_if(balanced, [i for _, i in expected])
            assert group.states() == [single.state_dict()] * count


def sorted_if(condition, numbers):
    return sorted(numbers) if condition else numbers


def test_workers_stay():
    """Those of a sweep, and those of all sweeps."""
    loader = fl.DataLoader(
        Plain(48), 2, partition=(0, 3), num_workers=2, workers="process", persistent_workers=True, seed=0
    )
    with loader:
        batches = iter(loader)
        next(batches)
        pids = loader.pids
        loader.repartition((0, 2))
        assert next(batches).tolist() == [6, 7, 8]
        assert loader.pids == pids
        rest = list(batches)
        assert len(rest) == 6
        loader.repartition((1, 2))
        assert next(iter(loader)).tolist() == [3, 4, 5]
        assert loader.pids == pids


def test_windows_of_a_corpus_stay():
    """Each chunk is read once."""
    reads = []

    class Noting(fl.ArrayDeserializer):
        def read(self, chunk):
            reads.append(chunk)
            return super().read(chunk)

    loader = fl.DataLoader(Noting(i=np.arange(64), chunk_sequences=8), 8, partition=(0, 2), shuffle=True, seed=1)
    for number, _ in enumerate(loader):
        loader.repartition((0, 1 + number % 2))
    assert len(reads) == len(set(reads))


def test_a_count_that_does_not_divide_the_batch_is_refused():
    loader = fl.DataLoader(range(100), 4, partition=(0, 2), seed=0)
    batches = iter(loader)
    next(batches)
    with pytest.raises(ValueError, match=r"divides the 8 items of a batch of all ranks \(4 for each of 2\), got 3.*24"):
        loader.repartition((0, 3))
    assert (loader.batch_size, loader.partition) == (4, (0, 2))
    assert next(batches).tolist() == [8, 9, 10, 11]
    loader.repartition((1, 4))
    assert (loader.batch_size, next(batches).tolist(), len(loader)) == (2, [18, 19], 13)
    by_length = fl.BatchByLength(4, [1] * 100)
    with pytest.raises(ValueError, match=r"the 4 samples of a batch of all ranks"):
        fl.DataLoader([np.zeros(1)] * 100, batch_sampler=by_length, partition=(0, 1)).repartition((0, 3))


def test_loaders_without_a_global_place_are_refused():
    def refused(match, dataset, **how):
        with pytest.raises(ValueError, match=match):
            fl.DataLoader(dataset, **how).repartition((0, 2))

    refused("map-style datasets only", iter(range(9)))
    refused("its own order|loader's own order", range(9), sampler=range(9))
    refused("in_order=True", range(9), batch_size=2, in_order=False)
    refused("a seed with partition=", range(9), batch_size=2, shuffle=True)
    refused("a batch_size with a partition", range(9), batch_size=None)


def test_after_a_batch_that_failed_at_one_rank_the_place_is_not_that_of_all():
    loader = fl.DataLoader(Plain(20, {4}), 2, partition=(0, 2), seed=0)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    with pytest.raises(ValueError, match="planted"):
        next(batches)
    next(batches)
    loader.repartition((0, 1))
    with pytest.raises(ValueError, match=r"from 4, as one of them failed.*load the state from before it"):
        next(batches)
    loader.dataset.bad = frozenset()
    loader.load_state_dict(state)
    assert next(iter(loader)).tolist() == [4, 5, 6, 7]
