"""Law of jumps: a source delivers the order without the places that are jumped over."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline as fl
from feedline.testing import sequences_of
from tests.laws.corpora import CountedCorpus, whole_order, worlds
from tests.laws.test_damaged_states import Unsized

SWEEPS = 3


@st.composite
def jumped_worlds(draw):
    """A world, and ranges of places on its axis of three sweeps, from none to whole sweeps."""
    world = draw(worlds())
    most = SWEEPS * world.total
    bounds = draw(st.lists(st.tuples(st.integers(0, most), st.integers(1, world.total + 5)), max_size=3))
    return world, [(a, a + n) for a, n in bounds]


def left_of(world, jumps):
    """Ordinal and sweep of each delivered sequence, in order."""
    order = whole_order(world, SWEEPS)
    delivered = [k for k in range(len(order)) if not any(a <= k < b for a, b in jumps)]
    return [(order[k], k // world.total) for k in delivered]


def ids(minibatches):
    return [i for m in minibatches for i in m.ids.tolist()]


@given(jumped_worlds(), st.integers(1, 40))
def test_what_is_jumped_over_is_as_if_it_were_not_there(case, size):
    world, jumps = case
    expected = left_of(world, jumps)
    samples = [world.lengths[o] for o, _ in expected]
    with world.source(max_sweeps=SWEEPS, jumps=jumps) as source:
        count = sum(1 for _ in source.plan(size))
        assert len(source.minibatches(size)) == count
        minibatches = list(source.minibatches(size))
        assert len(minibatches) == count
        assert ids(minibatches) == [o for o, _ in expected]
        assert source.position.samples == sum(samples)
        ends = [k for k, (_, sweep) in enumerate(expected) if k + 1 == len(expected) or expected[k + 1][1] > sweep]
        bounds = [0, *itertools.accumulate(m.num_sequences for m in minibatches)]
        found = [any(a <= k < b for k in ends) for a, b in itertools.pairwise(bounds)]
        assert [m.sweep_end for m in minibatches] == found


@given(jumped_worlds(), st.integers(1, 20), st.integers(0, 9), st.booleans())
def test_a_state_holds_its_jumps(case, size, stop, given_again):
    """Restored with or without its jumps, a source continues in the same way, also when it verifies."""
    world, jumps = case
    with world.source(max_sweeps=SWEEPS, jumps=jumps) as source:
        list(itertools.islice(source.minibatches(size), stop))
        state = json.loads(json.dumps(source.state_dict()))
        remaining = sequences_of(source.minibatches(size))
        end = source.state_dict()
    with world.source(max_sweeps=SWEEPS, jumps=jumps if given_again else ()) as restored:
        restored.load_state_dict(state, verify=True)
        assert restored.state_dict() == state
        assert sequences_of(restored.minibatches(size)) == remaining
        assert restored.state_dict() == end


@given(worlds(), st.integers(1, 20), st.integers(0, 9), st.integers(0, 20), st.integers(1, 50))
def test_a_jump_may_be_declared_later(world, size, stop, ahead, count):
    """A state from before the jump continues and jumps. A state from after it is refused, and moves nothing."""
    with world.source(max_sweeps=SWEEPS) as source:
        delivered = ids(itertools.islice(source.minibatches(size), stop))
        state = source.state_dict()
    start = len(delivered) + ahead
    jumps = [(start, start + count)]
    ordinals = [o for o, _ in left_of(world, jumps)]
    with world.source(max_sweeps=SWEEPS, jumps=jumps) as later:
        later.load_state_dict(state)
        assert ids(later.minibatches(size)) == ordinals[len(delivered) :]
    if delivered:
        with world.source(max_sweeps=SWEEPS, jumps=[(len(delivered) - 1, start + 1)]) as late:
            before = late.state_dict()
            with pytest.raises(fl.StateError, match="jumped over"):
                late.load_state_dict(state)
            assert late.state_dict() == before


@given(jumped_worlds(), st.integers(0, 150))
def test_seeking_by_samples_does_not_count_what_is_jumped_over(case, samples):
    world, jumps = case
    with world.source(jumps=jumps) as source:
        source.seek(samples=samples)
        first_ids = source.next_minibatch(1).ids.tolist()
        assert source.position.samples >= samples
    with world.source(jumps=jumps) as source:
        order, starts, total = [], [], 0
        while total <= samples + 20:
            for o in source.next_minibatch(1).ids.tolist():
                order.append(o)
                starts.append(total)
                total += world.lengths[o]
    at = next(k for k, start in enumerate(starts) if start >= samples)
    # Sequences without samples start at the same sample as the next one.
    assert set(first_ids) & {order[k] for k in range(at, len(order)) if starts[k] == starts[at]}


@pytest.mark.parametrize("length", [4, 7])
@given(case=jumped_worlds())
def test_lanes_hold_what_is_left(case, length):
    world, jumps = case
    if world.settings["order"] == "cntk":
        return
    with world.source(max_sweeps=SWEEPS, jumps=jumps, truncation_length=length) as source:
        begun = [i for m in source.minibatches(3 * length) for i, b in zip(m.ids.tolist(), m.begins, strict=True) if b]
    assert sorted(begun) == sorted(o for o, _ in left_of(world, jumps) if world.lengths[o])


@given(jumped_worlds(), st.integers(1, 3), st.sampled_from(["global", "cntk"]))
def test_ranks_jump_together(case, count, filling):
    """All ranks together deliver the remaining sequences, with both kinds of filling."""
    world, jumps = case
    delivered = []
    for rank in range(count):
        with world.source(max_sweeps=SWEEPS, jumps=jumps, filling=filling, partition=(rank, count)) as source:
            delivered += ids(source.minibatches(9))
    assert sorted(delivered) == sorted(o for o, _ in left_of(world, jumps))


@pytest.mark.parametrize("shuffle", [True, False, fl.Window(chunks=2)])
def test_jumps_in_a_mapped_store(shuffle, tmp_path):
    fl.convert(fl.ArrayDeserializer(x=np.arange(60), chunk_sequences=9), tmp_path / "store")

    def source(**options):
        corpus = fl.StoreDeserializer(tmp_path / "store")
        return fl.MinibatchSource(corpus, shuffle=shuffle, max_sweeps=2, seed=3, **options)

    order = ids(source().minibatches(7))
    with source(jumps=[(5, 48), (70, 71), (100, 200)]) as jumping:
        assert ids(jumping.minibatches(7)) == [*order[:5], *order[48:70], *order[71:100]]


def test_lanes_end_a_sweep_before_a_jump():
    source = fl.MinibatchSource(CountedCorpus([1] * 10, [10]), truncation_length=1, max_sweeps=2, jumps=[(7, 10)])
    assert [k for k, m in enumerate(source.minibatches(1)) if m.sweep_end] == [6, 16]


@pytest.mark.parametrize(("rank", "ends"), [(0, [3, 8]), (1, [2, 7])])
def test_own_lanes_of_workers_end_a_sweep_before_a_jump(rank, ends):
    """Also in a worker's part of a segment: worker 0 has sequences 0, 2, 4 and 6, the last before the jump."""
    corpus, how = CountedCorpus([1] * 10, [10]), {"filling": "cntk", "partition": (rank, 2), "truncation_length": 1}
    source = fl.MinibatchSource(corpus, shuffle=False, max_sweeps=2, jumps=[(7, 10)], **how)
    assert [k for k, m in enumerate(source.minibatches(2)) if m.sweep_end] == ends


def test_a_jump_at_the_start_is_verified():
    source = fl.MinibatchSource(CountedCorpus([1] * 10, [10]), jumps=[(0, 4)])
    source.load_state_dict(source.state_dict(), verify=True)
    assert len(source.next_minibatch(6).ids) == 6


def test_windows_jumped_over_are_not_read():
    corpus = CountedCorpus([1] * 60, [10] * 6)
    with fl.MinibatchSource(corpus, shuffle=fl.Window(chunks=1), max_sweeps=1, jumps=[(8, 53)]) as source:
        assert len(ids(source.minibatches(4))) == 15
        assert source.stats().held_bytes < 3 * source.stats().peak_bytes / 2
    assert len(corpus.reads) == 2


def test_positions_and_mixtures():
    """A jump between the positions of two minibatches passes over the minibatches between them."""

    def source(**options):
        parts = {k: fl.ArrayDeserializer(x=list(range(40))) for k in ("a", "b")}
        return fl.MinibatchSource(fl.Mixture(parts), seed=4, **options)

    plain = list(itertools.islice(source().minibatches(10), 9))
    jumps = [(plain[2].position, plain[5].position), (plain[7].position, 80)]
    minibatches = list(itertools.islice(source(jumps=jumps).minibatches(10), 5))
    assert ids(minibatches) == ids([*plain[:2], *plain[5:7], plain[8]])


@pytest.mark.parametrize(
    ("jumps", "error", "message"),
    [
        ([(5, 5)], ValueError, "later one"),
        ([(5, 2**62 + 1)], ValueError, "2\\*\\*62"),
        ([(-1, 3)], ValueError, "at least 0"),
        ([(1, 2, 3)], TypeError, r"\(start, stop\)"),
        ([1.5], TypeError, r"\(start, stop\)"),
        (fl.Position(), TypeError, "list"),
        ([("a", 3)], TypeError, "int"),
    ],
)
def test_what_is_no_jump_is_an_error(jumps, error, message):
    with pytest.raises(error, match=message):
        fl.MinibatchSource(CountedCorpus([1] * 9, [9]), jumps=jumps)


@pytest.mark.parametrize("jumps", [3, [3], [[3]], [[3, 3]], [[5, 9], [1, 3]], [[1, 3], [3, 4]], [[0, "4"]], [[-1, 2]]])
def test_a_state_with_damaged_jumps_is_refused(jumps):
    source = fl.MinibatchSource(CountedCorpus([1] * 9, [9]))
    with pytest.raises(fl.StateError, match="damaged"):
        source.load_state_dict({**source.state_dict(), "jumps": jumps})


def test_a_corpus_of_unknown_sizes_has_no_places():
    with pytest.raises(ValueError, match="for jumps"):
        fl.MinibatchSource(Unsized(), jumps=[(1, 2)])
