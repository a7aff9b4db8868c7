"""Laws of cover and budget: ranks divide each global minibatch exactly, and a minibatch never exceeds its budget."""

from __future__ import annotations

import functools
import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline as fl
from feedline.testing import sequences_of
from tests.laws.corpora import CountedCorpus, worlds


@given(worlds(), st.integers(1, 60), st.integers(1, 7))
def test_parts_in_rank_order_are_the_global_minibatch(world, size, count):
    """Parts are disjoint, complete and in order, by the rule ``o * count // S``. All ranks step equally often."""
    unpartitioned = world.source(max_sweeps=2)
    ranks = [world.source(max_sweeps=2, partition=(i, count)) for i in range(count)]
    while True:
        expected = unpartitioned.next_minibatch(size)
        parts = [rank.next_minibatch(size) for rank in ranks]
        assert [bool(part) for part in parts] == [bool(expected)] * count
        if not expected:
            break
        assert functools.reduce(operator.iadd, (sequences_of([part]) for part in parts), []) == sequences_of([expected])
        starts = np.cumsum([0, *(world.lengths[i] for i in expected.ids)])[:-1]
        total = expected.num_samples
        # A sequence without samples at the very end belongs to the last rank.
        owner = [min(int(s) * count // total, count - 1) if total else count - 1 for s in starts]
        at = 0
        for rank, part in enumerate(parts):
            assert (part.position, part.sweep_end) == (expected.position, expected.sweep_end)
            assert part.global_samples == expected.num_samples
            for _ in range(part.num_sequences):
                assert owner[at] == rank
                at += 1
    states = [rank.state_dict() for rank in ranks]
    assert states == [unpartitioned.state_dict()] * count


@given(worlds(), st.lists(st.tuples(st.integers(1, 30), st.integers(1, 5), st.integers(1, 4)), min_size=1, max_size=5))
def test_world_size_changed_in_mid_run(world, legs):
    """Each part of the run restores the state with another world size and minibatch size. They equal one run."""
    plain = world.source()
    state = plain.state_dict()
    for size, count, steps in legs:
        ranks = [world.source(partition=(i, count)) for i in range(count)]
        for rank in ranks:
            rank.load_state_dict(state)
        for _ in range(steps):
            got = functools.reduce(operator.iadd, (sequences_of([rank.next_minibatch(size)]) for rank in ranks), [])
            assert got == sequences_of([plain.next_minibatch(size)])
        states = [rank.state_dict() for rank in ranks]
        assert all(s == states[0] for s in states)
        state = states[0]


@given(worlds(), st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_budget(world, sizes):
    """As many whole sequences as fit, never more than the budget, except one longer sequence alone."""
    source = world.source(max_sweeps=2)
    samples = 0
    lengths = dict(enumerate(world.lengths))
    planned = np.concatenate([m.ids for m in world.source(max_sweeps=2).minibatches(7)]).tolist()
    at = 0
    while True:
        for size in sizes:
            minibatch = source.next_minibatch(size)
            if not minibatch:
                assert at == len(planned)
                return
            total = sum(lengths[i] for i in minibatch.ids.tolist())
            assert minibatch.num_samples == total == minibatch["x"].num_samples
            assert total <= size or minibatch.num_sequences == 1
            at += minibatch.num_sequences
            if at < len(planned):
                assert total + lengths[planned[at]] > size or total == size
            assert minibatch.position.samples == samples
            samples += total
            assert minibatch.sweep_end == any(
                k % world.total == 0 for k in range(at - minibatch.num_sequences + 1, at + 1)
            )


@given(worlds(), st.integers(1, 20), st.integers(1, 150))
def test_max_samples_is_checked_before_each_sequence(world, size, limit):
    """The source ends with the sequence that reaches the limit, for any minibatch size."""
    ids = np.concatenate([[], *(m.ids for m in world.source(max_samples=limit).minibatches(size))])
    endless = world.source()
    expected, total = [], 0
    while total < limit:
        (minibatch,) = [endless.next_minibatch(1)]
        expected += minibatch.ids.tolist()
        total += minibatch.num_samples
    assert ids.tolist() == expected


def test_limits_count_from_the_start_of_the_axis():
    """A restored source ends where the first would have ended."""

    def source(**limits):
        return fl.MinibatchSource(CountedCorpus([2] * 10, [5, 5]), **limits)

    first = source(max_sweeps=1)
    first.next_minibatch(6)
    again = source(max_sweeps=2)
    again.load_state_dict(first.state_dict())
    assert sum(m.num_sequences for m in again.minibatches(6)) == 17
    limited = source(max_samples=10)
    limited.load_state_dict(first.state_dict())
    assert sum(m.num_sequences for m in limited.minibatches(6)) == 2
    ended = source(max_sweeps=1)
    ended.load_state_dict(again.state_dict())
    assert not ended.next_minibatch(5)


def test_empty_parts_are_true_and_typed():
    """With more ranks than sequences, empty parts have all streams, in the right shapes, and torch accepts them."""
    source = fl.MinibatchSource(CountedCorpus([3, 3], [2]), partition=(1, 8), max_sweeps=1)
    part = source.next_minibatch(3)
    assert part
    assert part.num_sequences == part.num_samples == 0
    assert part["x"].padded().shape == (0, 0, 2)
    assert part["y"].to_scipy().shape == (0, 7)


def test_sequences_without_samples():
    """A corpus of empty sequences is delivered sweep by sweep, and an endless one does not hang."""
    source = fl.MinibatchSource(CountedCorpus([0] * 6, [3, 3]), shuffle=False)
    for _ in range(3):
        minibatch = source.next_minibatch(4)
        assert (minibatch.ids.tolist(), minibatch.num_samples, minibatch.sweep_end) == (list(range(6)), 0, True)

    original, filling, cut = (
        fl.MinibatchSource(CountedCorpus([0] * 6, [3, 3]), shuffle=False, **how)
        for how in ({}, {"filling": "cntk"}, {"truncation_length": 2})
    )
    for sweep in range(3):
        assert original.next_minibatch(4) == filling.next_minibatch(4)
        minibatch = cut.next_minibatch(4)
        assert (minibatch.num_sequences, minibatch.sweep_end, cut.position.sweep) == (0, True, sweep + 1)
    with pytest.raises(IndexError, match="no sequence has any"):
        original.seek(samples=1)


def test_the_rest_of_a_sweep_without_samples_ends_no_minibatch():
    """As many sequences as fit. If the last ones of a sweep have no samples, sequences of the next sweep follow."""
    source = fl.MinibatchSource(CountedCorpus([2, 0], [2]), shuffle=False)
    assert [source.next_minibatch(2).ids.tolist() for _ in range(3)] == [[0], [1, 0], [1, 0]]


@given(
    worlds(),
    st.sampled_from(["samples", "squares"]),
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3), st.booleans()), min_size=1, max_size=6),
    st.integers(1, 30),
)
def test_ranks_that_come_and_go_in_mid_run(world, balance, legs, size):
    """Sources go on as other ranks of another number. A step that was not completed is delivered again, to them."""
    plain = world.source(max_sweeps=3)
    sources = [world.source(max_sweeps=3, partition=fl.Partition((i, 5), balance=balance)) for i in range(5)]
    active = []
    for count, steps, lost in legs:
        state = active[0].state_dict() if active else plain.state_dict()
        active = sources[:count]
        for i, source in enumerate(active):
            source.repartition((i, count))
            if source.state_dict() != state:  # it joins
                source.load_state_dict(state)
        for _ in range(steps):
            got = [one for source in active for one in sequences_of([source.next_minibatch(size)])]
            expected = sequences_of([plain.next_minibatch(size)])
            assert (got if balance == "samples" else sorted(got)) == (
                expected if balance == "samples" else sorted(expected)
            )
        state = active[0].state_dict()
        assert all(source.state_dict() == state for source in active)
        if lost:
            for source in active:
                source.next_minibatch(size)
                source.load_state_dict(state)


def test_another_balance_is_refused_in_mid_run():
    source = fl.MinibatchSource(fl.ArrayDeserializer(x=np.arange(8.0)), partition=(0, 2))
    with pytest.raises(ValueError, match=r"expected the balance of the feed, 'samples', got 'squares'"):
        source.repartition(fl.Partition((0, 2), balance="squares"))
    assert source.next_minibatch(4).num_samples == 2
    source.repartition((1, 4))
    assert source.next_minibatch(4).num_samples == 1


def test_a_step_that_is_taken_back_reads_no_chunk_again():
    """Windows hold four minibatches. The last one of a window leaves it."""
    corpus = CountedCorpus([1] * 80, [5] * 16)
    source, plain = (fl.MinibatchSource(corpus, shuffle=fl.Window(chunks=4), max_sweeps=1) for _ in range(2))
    expected = [m.ids.tolist() for m in plain.minibatches(5)]
    corpus.reads.clear()
    got = []
    for number in range(16):
        if number % 4 < 3:
            state = source.state_dict()
            source.repartition((1, 2))
            source.next_minibatch(5)
            source.load_state_dict(state)
            source.repartition((0, 1))
        got.append(source.next_minibatch(5).ids.tolist())
    assert got == expected
    assert sorted(corpus.reads) == list(range(16))
