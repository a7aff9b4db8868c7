"""Laws of ``filling="cntk"``: workers fill minibatches independently, and together deliver every sequence once."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline.testing import assert_resumes, sequences_of
from tests.effort import examples
from tests.laws.corpora import CountedCorpus, axis_of, whole_order, worlds
from tests.oracles.packing import local_minibatches

pytestmark = pytest.mark.filterwarnings("ignore:a minibatch of .* samples leaves none:RuntimeWarning")


@given(worlds(), st.integers(1, 40), st.integers(1, 5))
def test_workers_deliver_every_sequence_once_in_the_order(world, size, count):
    """Each worker's sequences are a part of the one order. The parts of a sweep are disjoint and complete."""
    order = whole_order(world, 2)
    n = world.total
    delivered = []
    for rank in range(count):
        source = world.source(max_sweeps=2, filling="cntk", partition=(rank, count))
        ids = [o for m in source.minibatches(size) for o in m.ids.tolist()]
        remaining = iter(order)
        assert all(o in remaining for o in ids), "not in the order of the axis"
        assert source.position.samples == 2 * sum(world.lengths)
        delivered += ids
    assert sorted(delivered) == sorted(2 * list(range(n)))


@given(worlds(), st.integers(1, 40), st.integers(1, 4), st.data())
def test_minibatches_equal_the_oracle(world, size, count, data):
    """Ids, samples passed and sweep ends of every minibatch."""
    rank = data.draw(st.integers(0, count - 1))
    source = world.source(max_sweeps=3, filling="cntk", partition=(rank, count))
    got = [(m.ids.tolist(), m.global_samples, m.sweep_end) for m in source.minibatches(size)]
    order = whole_order(world, 3)
    axis = axis_of(world, source, order, rank, count)
    room = max(1, size // count + (rank < size % count))
    assert got == list(local_minibatches(axis, room, world.settings["shuffle"] is not False))


@settings(max_examples=examples(20))
@given(worlds(), st.integers(1, 4), st.data())
def test_resumes(world, count, data):
    """From every minibatch, under another size too."""
    rank = data.draw(st.integers(0, count - 1))
    assert_resumes(
        lambda: world.source(filling="cntk", partition=(rank, count), max_sweeps=3), sizes=(1, 9), minibatches=3
    )


@given(worlds(), st.integers(1, 40))
def test_one_worker_fills_as_the_global_rule(world, size):
    """With one worker both fillings are the same."""
    minibatches = list(world.source(max_sweeps=2).minibatches(size))
    two = list(world.source(max_sweeps=2, filling="cntk").minibatches(size))
    assert minibatches == two


def test_owning_nothing_ends_nothing():
    """One chunk, three workers: two of them get an empty minibatch per sweep, and end at the end of the axis."""

    def source(**limits):
        corpus = CountedCorpus([2, 3, 1], [3])
        return fl.MinibatchSource(corpus, partition=(1, 3), filling="cntk", order="cntk", **limits)

    endless = source()
    for sweep in range(1, 4):
        minibatch = endless.next_minibatch(6)
        assert minibatch
        assert (minibatch.num_sequences, minibatch.sweep_end, minibatch.global_samples) == (0, True, 6)
        assert endless.position == fl.Position(sweep, 0, 6 * sweep)
    limited = source(max_sweeps=2)
    assert [bool(limited.next_minibatch(6)) for _ in range(3)] == [True, False, False]
    assert limited.position == fl.Position(2, 0, 12)


def test_a_longer_sequence_is_not_taken_after_the_end_of_a_sweep():
    """By CNTK's rule, after a sweep's end a minibatch takes only sequences that fit, even if none does."""
    corpus = CountedCorpus([9, 1, 1, 1], [4])
    source = fl.MinibatchSource(corpus, shuffle=False, partition=(0, 2), filling="cntk", max_sweeps=2)
    got = [(m.ids.tolist(), m.sweep_end, m.global_samples) for m in source.minibatches(2)]
    assert got == [([0], False, 9), ([2], False, 2), ([], True, 1), ([0], False, 9), ([2], False, 2)]


def test_a_size_too_small_for_all_workers_warns():
    source = fl.MinibatchSource(CountedCorpus([1] * 9, [3] * 3), partition=(2, 3), filling="cntk", shuffle=False)
    with pytest.warns(RuntimeWarning, match="2 samples leaves none for rank 2 of 3"):
        assert source.next_minibatch(2).ids.tolist() == [2]


def test_filling_is_in_the_state():
    """A state of a rank's own filling does not fit a source that fills globally, and the reverse."""
    ours = fl.MinibatchSource(CountedCorpus([1] * 9, [3] * 3))
    theirs = fl.MinibatchSource(CountedCorpus([1] * 9, [3] * 3), filling="cntk")
    for one, two in itertools.permutations((ours, theirs)):
        with pytest.raises(fl.StateError, match="filling"):
            one.load_state_dict(json.loads(json.dumps(two.state_dict())))


def test_a_skipped_sequence_shifts_nothing(tmp_path):
    """A bad sequence keeps its place in its owner's minibatch."""
    corpus, damaged = (CountedCorpus([1, 2, 3] * 4, [3] * 4, bad=bad) for bad in ((), (4,)))
    settings = {"filling": "cntk", "shuffle": False, "partition": (0, 2), "max_sweeps": 2}
    good = fl.MinibatchSource(corpus, **settings)
    bad = fl.MinibatchSource(damaged, on_error=fl.Quarantine(tmp_path / "q"), **settings)
    for expected, got in zip(good.minibatches(8), bad.minibatches(8), strict=True):
        assert sequences_of([got]) == [s for s in sequences_of([expected]) if s[0] != 4]
        assert got.position == expected.position


@pytest.mark.parametrize("wrong", [{"filling": "local"}, {"truncation_length": 0}, {"max_samples": 0}])
def test_wrong_arguments(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        fl.MinibatchSource(CountedCorpus([1] * 3, [3]), **wrong)
