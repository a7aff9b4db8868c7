"""A plan lists the sequences that will be delivered, and reads nothing."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline as fl
from feedline.feed.protocol import Unsized
from tests.laws.corpora import CountedCorpus


@st.composite
def corpora(draw):
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    longest = draw(st.sampled_from([1, 7]))
    lengths = [draw(st.integers(1, longest)) for _ in range(sum(sizes))]
    return lengths, sizes


def facts(m):
    return (m.position[:3], m.ids.tolist(), m.num_samples, m.global_samples, m.sweep_end)


@given(
    corpus=corpora(),
    size=st.integers(1, 20),
    passed=st.integers(0, 5),
    partition=st.sampled_from([None, (0, 2), (1, 2), (2, 3)]),
    window=st.sampled_from([True, False, fl.Window(chunks=2), fl.Window(samples=9)]),
    seed=st.integers(0, 3),
)
def test_plan_equals_delivery(corpus, size, passed, partition, window, seed):
    made = CountedCorpus(*corpus)
    source = fl.MinibatchSource(made, seed=seed, shuffle=window, max_sweeps=3, partition=partition, read_ahead=0)
    for _ in range(passed):
        source.next_minibatch(3)
    reads = len(made.reads)
    before = source.state_dict()
    plan = list(source.plan(size))
    assert len(made.reads) == reads
    assert source.state_dict() == before
    assert [facts(m) for m in plan] == [facts(m) for m in source.minibatches(size)]
    assert [m.step for m in plan] == list(range(len(plan)))


@given(corpus=corpora(), length=st.integers(1, 5), lanes=st.integers(1, 3), filling=st.sampled_from(["global", "cntk"]))
def test_plan_equals_delivery_in_lanes(corpus, length, lanes, filling):
    source = fl.MinibatchSource(
        CountedCorpus(*corpus), max_sweeps=2, truncation_length=length, filling=filling, partition=(0, 1)
    )
    source.next_minibatch(length * lanes)
    plan = list(source.plan(length * lanes))
    assert [facts(m) for m in plan] == [facts(m) for m in source.minibatches(length * lanes)]


def test_plan_from_a_given_position():
    source = fl.MinibatchSource(CountedCorpus([2] * 30, [10, 10, 10]), seed=5)
    first = list(itertools.islice(source.plan(8), 6))
    again = list(itertools.islice(source.plan(8, start=first[4].position), 2))
    assert [facts(m) for m in again] == [facts(m) for m in first[4:]]
    assert [m.step for m in again] == [0, 1]
    assert source.position == fl.Position()
    with pytest.raises(IndexError):
        source.plan(8, start=fl.Position(0, 30))


def test_parts_are_the_global_minibatch():
    source = fl.MinibatchSource(CountedCorpus([3] * 40, [8] * 5), seed=1, max_sweeps=1)
    whole = list(source.plan(20))
    parts = [list(source.plan(20, partition=(i, 3))) for i in range(3)]
    for step, minibatch in enumerate(whole):
        got = np.concatenate([part[step].ids for part in parts])
        assert got.tolist() == minibatch.ids.tolist()
        assert sum(part[step].num_samples for part in parts) == minibatch.global_samples


def test_unknown_sizes_cannot_be_planned():
    class Hidden(CountedCorpus, Unsized):
        def num_chunks(self):
            return len(self._starts) - 1

    source = fl.MinibatchSource(Hidden([1] * 6, [3, 3]))
    with pytest.raises(ValueError, match="without chunk_info"):
        source.plan(2)
    with pytest.raises(ValueError, match="minibatch size of at least 1"):
        fl.MinibatchSource(CountedCorpus([1], [1])).plan(0)
