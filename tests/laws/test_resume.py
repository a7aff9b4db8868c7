"""Law 2, one clock: from every point a source continues as if it had never stopped, and reads at most one window."""

from __future__ import annotations

import functools
import itertools
import json
import operator
import pickle
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline.testing import assert_resumes, sequences_of
from tests.effort import examples
from tests.laws.corpora import CountedCorpus, chunks_of_windows, worlds


def run(source, size, count):
    """``count`` minibatches as sequences."""
    return sequences_of(itertools.islice(source.minibatches(size), count))


@given(worlds(), st.integers(1, 25), st.integers(0, 30), st.integers(1, 25))
def test_resumes_from_every_point(world, size, stop, other):
    """Stop after ``stop`` minibatches of one size, and continue with another: the same sequences follow."""
    source = world.source()
    run(source, size, stop)
    state = json.loads(json.dumps(source.state_dict()))
    expected = run(source, other, 8)
    restored = world.source()
    restored.load_state_dict(state, verify=True)
    assert restored.position == fl.Position(*restored.position)
    assert restored.state_dict() == state
    assert run(restored, other, 8) == expected
    assert restored.state_dict() == source.state_dict()


@given(worlds(order="feedline"), st.integers(1, 25), st.integers(0, 40))
def test_restoring_reads_at_most_one_window(world, size, stop):
    """Loading a state reads nothing. The next sequence reads one window, at any position."""
    source = world.source()
    run(source, size, stop)
    state = source.state_dict()
    restored = world.source(read_ahead=0)
    restored.load_state_dict(state)
    assert restored.corpus.reads == []
    minibatch = restored.next_minibatch(1)
    # A window of blocks may have only sequences without samples. The next sample then needs the next window, too.
    assert len(restored.corpus.reads) <= chunks_of_windows(source, len(minibatch.ids))


@settings(max_examples=examples(8))
@given(worlds())
def test_public_assert(world):
    """The public law holds for our own source."""
    assert_resumes(lambda: world.source(), sizes=(1, 5, 30), minibatches=2)


def test_public_assert_catches_defects():
    """A feed that is off by one after a restore, loses its tail, or ignores its state violates the law."""

    class OffByOne(fl.MinibatchSource):
        def load_state_dict(self, state, *, verify=False):
            super().load_state_dict({**state, "sequence": max(0, state["sequence"] - 1)})

    class LostTail(fl.MinibatchSource):
        def next_minibatch(self, size, partition=None):
            minibatch = super().next_minibatch(size, partition)
            return super().next_minibatch(size, partition) if minibatch.sweep_end else minibatch

    class Forgets(fl.MinibatchSource):
        def load_state_dict(self, state, *, verify=False):
            pass

    for broken in (OffByOne, LostTail, Forgets):
        with pytest.raises(AssertionError):
            corpus = CountedCorpus([1, 2, 3, 2, 1] * 8, [10] * 4)
            assert_resumes(lambda broken=broken, corpus=corpus: broken(corpus), sizes=(1, 4, 9), minibatches=12)


@given(worlds(), st.integers(1, 25), st.integers(1, 12), st.integers(0, 2))
def test_seeking_backwards_and_forwards(world, size, steps, ahead):
    """A seek can return to an earlier position. A seek to a count of samples finds the sequence that starts there."""
    source = world.source()
    positions, parts = [], []
    for _ in range(steps + ahead):
        positions.append(source.position)
        parts.append(run(source, size, 1))
    for place, expected in zip(positions, parts, strict=True):
        source.seek(place)
        assert source.state_dict()["fingerprint"] is None
        assert run(source, size, 1) == expected
        source.seek(samples=place.samples)
        # Sequences without samples start at the same sample as the next one.
        assert source.position.samples == place.samples
        if 0 not in world.lengths:
            assert source.position == place
            assert run(source, size, 1) == expected


@given(worlds(), st.integers(1, 12), st.integers(0, 10), st.integers(1, 40), st.integers(1, 40))
def test_changes_while_something_is_prefetched_lose_nothing(world, first, stop, second, third):
    """Size and partition may change at every call, with and without prefetching."""
    source, plain = world.source(read_ahead=1 << 20), world.source(read_ahead=0, threads=1)
    got = [sequences_of([source.next_minibatch(first)]) for _ in range(stop)]
    for size in (second, third, first):
        state = source.state_dict()
        parts = []
        for rank in range(3):
            source.load_state_dict(state)
            parts.append(sequences_of([source.next_minibatch(size, partition=(rank, 3))]))
        got.append(functools.reduce(operator.iadd, parts, []))
    expected = [sequences_of([plain.next_minibatch(size)]) for size in [first] * stop + [second, third, first]]
    assert got == expected


def test_state_is_small_and_json():
    """A state of 10^6 sequences is a few hundred bytes."""
    source = fl.MinibatchSource(CountedCorpus([1] * 1000, [100] * 10), seed=2**64 - 1)
    run(source, 7, 30)
    text = json.dumps(source.state_dict())
    assert len(text) < 500
    assert json.loads(text) == source.state_dict()


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        ({"seed": 4}, "seed=3"),
        ({"shuffle": fl.Window(chunks=3)}, r"shuffle=fl\.Window\(chunks=2\)"),
        ({"shuffle": False}, r"shuffle=fl\.Window\(chunks=2\)"),
        ({"order": "cntk", "shuffle": True}, "order='feedline-1', .*shuffle="),
        ({"filling": "cntk"}, "filling='global'"),
    ],
)
def test_a_state_of_other_settings_is_refused(change, advice):
    """Seed, window and order are part of the state. The error shows the saved and the current ones."""
    lengths, chunks = [1, 2, 3] * 20, [20, 20, 20]
    source = fl.MinibatchSource(CountedCorpus(lengths, chunks), seed=3, shuffle=fl.Window(chunks=2))
    run(source, 7, 3)
    changed = fl.MinibatchSource(
        CountedCorpus(lengths, chunks), **{"seed": 3, "shuffle": fl.Window(chunks=2), **change}
    )
    before = changed.state_dict()
    with pytest.raises(fl.StateError, match=r"saved:[\s\S]*current:") as caught:
        changed.load_state_dict(source.state_dict())
    assert caught.value.saved != caught.value.current
    assert re.search(advice, caught.value.hint)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert changed.state_dict() == before


def test_a_state_of_grown_data_is_refused():
    """Another corpus is another order, even when the first chunks are the same."""
    source = fl.MinibatchSource(CountedCorpus([1] * 20, [10, 10]))
    grown = fl.MinibatchSource(CountedCorpus([1] * 30, [10, 10, 10]))
    with pytest.raises(fl.StateError, match="corpus"):
        grown.load_state_dict(source.state_dict())


@given(st.data())
def test_a_damaged_state_is_refused_or_right(data):
    """A changed state is a StateError, or leads to the position in it."""
    source = fl.MinibatchSource(CountedCorpus([1, 2, 3] * 20, [20, 20, 20]), seed=3)
    run(source, 5, 9)
    state = source.state_dict()
    key = data.draw(st.sampled_from(sorted(state)))
    values = st.one_of(st.none(), st.integers(-5, 10**6), st.text(max_size=5), st.lists(st.integers()), st.booleans())
    damaged = {**state, key: data.draw(values)}
    another_source = fl.MinibatchSource(CountedCorpus([1, 2, 3] * 20, [20, 20, 20]), seed=3)
    try:
        another_source.load_state_dict(damaged)
    except fl.StateError:
        assert another_source.position == fl.Position()
    else:
        p = another_source.position
        assert (p.sweep, p.sequence, p.samples, p.label_samples) == tuple(
            damaged[k] for k in ("sweep", "sequence", "samples", "label_samples")
        )


@pytest.mark.parametrize(
    ("change", "what"),
    [({"sequence": None}, "`sequence`"), ({"sequence": 60}, "sequence < 60"), ({"samples": "3"}, "`samples` .*'3'")],
)
def test_the_error_names_the_damaged_entry(change, what):
    """The error has one line for one wrong entry, not the whole state."""
    source = fl.MinibatchSource(CountedCorpus([1, 2, 3] * 20, [20, 20, 20]))
    state = {key: value for key, value in {**source.state_dict(), **change}.items() if value is not None}
    with pytest.raises(fl.StateError, match=f"damaged: .*{what}.*\n.*another checkpoint") as caught:
        source.load_state_dict(state)
    assert "current:" not in str(caught.value)


def test_a_state_inside_a_checkpoint_is_pointed_at():
    """The error finds the most common mistake: the whole checkpoint instead of its part."""
    source = fl.MinibatchSource(CountedCorpus([1] * 20, [20]))
    with pytest.raises(fl.StateError, match=r"\['feed'\] looks like one"):
        source.load_state_dict({"model": {}, "feed": source.state_dict()})


def test_verify_notices_a_wrong_order():
    """With verify=True a fingerprint of another order is refused."""
    source = fl.MinibatchSource(CountedCorpus([1, 2, 3] * 20, [20, 20, 20]), seed=3)
    run(source, 5, 9)
    state = source.state_dict()
    wrong = {**state, "fingerprint": f"{int(state['fingerprint'], 16) ^ 1:016x}"}
    source.load_state_dict(wrong)  # not verified
    with pytest.raises(fl.StateError, match="fingerprint"):
        source.load_state_dict(wrong, verify=True)
    with pytest.raises(fl.StateError, match="samples"):
        source.load_state_dict({**state, "samples": state["samples"] + 1}, verify=True)


def test_fingerprint_is_the_recipe():
    """h = mix64(h ^ mix64(ordinal + 1)) over the global order, as documented."""
    from tests.oracles import order as slow

    source = fl.MinibatchSource(CountedCorpus([2] * 40, [10] * 4), seed=11)
    ids = np.concatenate([m.ids for m in itertools.islice(source.minibatches(7), 11)])
    h = 0
    for ordinal in ids.tolist():
        h = slow.mix64(h ^ slow.mix64(ordinal + 1))
    assert source.state_dict()["fingerprint"] == f"{h:016x}"
