"""The laws of order, clock, cover and error over `DataLoader`, for any workers, batch sizes and shares."""

from __future__ import annotations

import functools
import itertools
import json
import operator
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from tests.effort import examples
from tests.laws.items import Augmented, Killing, Plain, Rare, content

sizes = st.integers(1, 12)


@st.composite
def loaders(draw):
    """(number of items, arguments that decide the order)."""
    n = draw(st.integers(1, 50))
    kind = draw(st.sampled_from(["shuffle", "order", "weights"]))
    arguments = {"seed": draw(st.integers(0, 2**64 - 1))}
    if kind == "weights":
        arguments["sampler"] = fl.Weighted(draw(st.lists(st.floats(0, 5), min_size=n, max_size=n).filter(any)))
    elif kind == "shuffle":
        arguments["shuffle"] = True
    return n, arguments


def sweeps(n, arguments, count=3):
    """The items of some sweeps, read in batches of 7."""
    loader = fl.DataLoader(Plain(n), batch_size=7, **arguments)
    return [content(loader) for _ in range(count)]


@given(loaders(), sizes, st.integers(0, 20), sizes)
def test_resumes_from_every_point(world, size, stop, other):
    """Stop after some batches of one size, and continue with another: the same items follow, also in later sweeps."""
    n, arguments = world
    expected = functools.reduce(operator.iadd, sweeps(n, arguments, 5), [])
    loader = fl.DataLoader(Plain(n), batch_size=size, **arguments)
    got, iterator = [], iter(loader)
    for _ in range(stop):
        batch = next(iterator, None)
        if batch is None:
            iterator = iter(loader)
            continue
        got += content([batch])
        if len(got) >= 3 * n:
            break
    state = json.loads(json.dumps(loader.state_dict()))
    restored = fl.DataLoader(Plain(n), batch_size=other, **arguments)
    restored.load_state_dict(state)
    assert restored.state_dict() == state
    got += content(restored)
    got += content(restored)
    assert got == expected[: len(got)]
    assert len(got) % n == 0


@given(loaders(), sizes, sizes, st.lists(st.integers(0, 4), min_size=1, max_size=4))
def test_each_iter_is_the_next_sweep(world, size, other, lengths):
    """Also after a break, and with other iterators in use."""
    n, arguments = world
    loader = fl.DataLoader(Plain(n), batch_size=size, **arguments)
    expected = sweeps(n, arguments, len(lengths))
    alive = []
    for sweep, length in enumerate(lengths):
        iterator = iter(loader)
        alive.append(iterator)
        got = content(itertools.islice(iterator, length))
        assert got == expected[sweep][: len(got)]
    assert content(alive[0]) == expected[0][lengths[0] * size :]


@given(loaders(), sizes, st.integers(1, 6), st.booleans())
def test_parts_in_rank_order_are_the_global_batch(world, size, count, drop_last):
    """Parts are disjoint, complete and in order. All ranks step equally often and have one state."""
    n, arguments = world
    how = {**arguments, "drop_last": drop_last}
    unpartitioned = fl.DataLoader(Plain(n), batch_size=size * count, **how)
    ranks = [fl.DataLoader(Plain(n), batch_size=size, partition=(i, count), **how) for i in range(count)]
    assert {len(rank) for rank in ranks} == {len(unpartitioned)}
    for batches in itertools.zip_longest(unpartitioned, *ranks):
        expected, *parts = batches
        assert content([expected]) == content(parts)
        total = len(expected)
        owners = [o * count // total for o in range(total)]
        assert [len(part) for part in parts] == [owners.count(rank) for rank in range(count)]
        assert [rank.state_dict() for rank in ranks] == [unpartitioned.state_dict()] * count


@given(loaders(), st.lists(st.tuples(sizes, st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=4))
def test_world_size_changed_in_mid_run(world, legs):
    """Each part of the run restores the state with another world and batch size. They equal one run."""
    n, arguments = world
    expected = functools.reduce(operator.iadd, sweeps(n, arguments, 14), [])
    state, got = fl.DataLoader(Plain(n), **arguments).state_dict(), []
    for size, count, steps in legs:
        ranks = [fl.DataLoader(Plain(n), batch_size=size, partition=(i, count), **arguments) for i in range(count)]
        for rank in ranks:
            rank.load_state_dict(state)
        for parts in itertools.islice(zip(*ranks, strict=True), steps):
            got += content(parts)
        state = ranks[0].state_dict()
    assert got == expected[: len(got)]


@given(loaders(), sizes, st.integers(1, 3), st.data())
def test_an_item_passed_over_shifts_nothing(tmp_path_factory, world, size, count, data):
    """States and all other items are as with undamaged data, and each bad item is listed."""
    n, arguments = world
    bad = data.draw(st.sets(st.integers(0, n - 1), max_size=max(n // 2, 1)))
    listed = tmp_path_factory.mktemp("q") / "bad.jsonl"
    unpartitioned = fl.DataLoader(Plain(n), batch_size=size * count, **arguments)
    skipping = fl.DataLoader(Plain(n, bad), batch_size=size * count, on_error=fl.Quarantine(listed), **arguments)
    good = [c for c in content(unpartitioned) if np.frombuffer(c[0], np.int64)[0] not in bad]
    assert content(skipping) == good
    assert skipping.state_dict() == unpartitioned.state_dict()
    listed_sequences = (
        {json.loads(line)["sequence"] for line in listed.read_text().splitlines()} if listed.exists() else set()
    )
    delivered = {np.frombuffer(c[0], np.int64)[0] for c in sweeps(n, arguments, 1)[0]}
    assert listed_sequences == bad & delivered


@given(st.integers(1, 40), st.integers(0, 2**64 - 1), st.integers(1, 30), st.integers(1, 4), st.data())
def test_a_budget_in_samples(n, seed, budget, count, data):
    """As many items as fit, never more, or one longer item alone. Ranks divide batches as in `MinibatchSource`."""
    lengths = data.draw(st.lists(st.integers(0, 9), min_size=n, max_size=n).filter(any))
    items = [(np.full((length, 2), i), i) for i, length in enumerate(lengths)]
    by_length = fl.BatchByLength(budget, lengths)
    how = {"batch_sampler": by_length, "shuffle": True, "seed": seed, "collate_fn": list}
    ranks = [fl.DataLoader(items, partition=(i, count), **how) for i in range(count)]
    source = fl.MinibatchSource(
        fl.ArrayDeserializer(x=[np.zeros((length, 1)) for length in lengths], chunk_sequences=10**6),
        seed=seed,
        max_sweeps=1,
    )
    for parts in zip(*ranks, strict=True):
        together = [index for part in parts for _, index in part]
        assert sum(lengths[i] for i in together) <= budget * count or len(together) == 1
        planned = [source.next_minibatch(budget * count, partition=(0, 1))]
        assert together == planned[0].ids.tolist()
    assert not source.next_minibatch(1)


SCHEDULES = [(1, "process"), (2, "process"), (3, "process"), (1, "thread"), (2, "thread"), (3, "thread")]


@pytest.mark.parametrize("dataset", [Augmented(61), Rare(130)], ids=["augmented", "rare"])
@pytest.mark.parametrize(("workers", "kind"), SCHEDULES)
def test_schedule_freedom(dataset, workers, kind):
    """The same bytes for any workers, augmentation included, in every sweep, and from a state saved in between."""
    expected = fl.DataLoader(dataset, batch_size=8, shuffle=True, seed=5)
    loader = fl.DataLoader(dataset, batch_size=8, shuffle=True, seed=5, num_workers=workers, workers=kind)
    for _ in range(3):
        assert content(loader) == content(expected)
    iterator, other = iter(loader), iter(expected)
    assert content(itertools.islice(iterator, 3)) == content(itertools.islice(other, 3))
    restored = fl.DataLoader(dataset, batch_size=5, shuffle=True, seed=5, num_workers=workers, workers=kind)
    restored.load_state_dict(expected.state_dict())
    assert loader.state_dict() == expected.state_dict()
    assert content(restored) == content(other)


def test_a_killed_worker_changes_nothing(tmp_path):
    """After SIGKILL of a worker in mid-sweep come the same items in the same order, with the same random numbers."""
    expected = content(fl.DataLoader(Augmented(64), batch_size=4, shuffle=True, seed=2))
    data = Killing(64, 33, tmp_path / "killed")
    loader = fl.DataLoader(data, batch_size=4, shuffle=True, seed=2, num_workers=2)
    assert content(loader) == expected
    assert data.marker.exists()
    assert loader.stats().workers[0].restarts + loader.stats().workers[1].restarts == 1


class Late(Plain):
    """One item is read only once `released` is set."""

    def __init__(self, count, late):
        super().__init__(count)
        self._late, self.released = late, threading.Event()

    def __getitem__(self, index):
        if index == self._late:
            assert self.released.wait(60)
        return super().__getitem__(index)


@settings(max_examples=examples(5))
@given(st.integers(0, 2**64 - 1), st.integers(5, 7))
def test_out_of_order_loses_nothing(seed, stop):
    """A batch delivered out of order is in the state, and is not delivered again."""
    order = sweeps(40, {"seed": seed, "shuffle": True}, 1)[0]
    late = order[12]  # in the fifth batch, as the first is read alone, to observe its draws
    data = Late(40, int.from_bytes(late[0], "little"))
    loader = fl.DataLoader(data, batch_size=3, shuffle=True, seed=seed, num_workers=2, workers="thread", in_order=False)
    batches = iter(loader)
    got = content(itertools.islice(batches, stop))
    state = json.loads(json.dumps(loader.state_dict()))
    data.released.set()
    assert late not in got
    restored = fl.DataLoader(Plain(40), batch_size=7, shuffle=True, seed=seed)
    restored.load_state_dict(state)
    got += content(restored)
    assert sorted(got) == sorted(order)
