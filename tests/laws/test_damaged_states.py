"""The law of states: a state is valid, or a StateError is raised before anything has moved."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from tests.effort import examples
from tests.feed.test_user_source import Classified
from tests.junk import changes
from tests.laws.corpora import CountedCorpus

LENGTHS, CHUNKS = [1, 2, 3, 4] * 15, [20, 20, 20]


class Unsized(fl.UserDeserializer):
    """Chunks whose size is known only when they are read."""

    schema = fl.Schema({"x": fl.Stream(2)})

    def num_chunks(self):
        return 3

    def get_chunk(self, chunk):
        return {"x": [np.full((1 + i % 3, 2), 20 * chunk + i, "f4") for i in range(20)]}


class Careful(Classified):
    """A user-defined source that checks its own state, as nothing else can."""

    def restore_from_checkpoint(self, state):
        if type(state["next"]) is not int or not 0 <= state["next"] <= 12:
            raise ValueError(f"expected a place from 0 to 12, got {state['next']!r:.40}")
        super().restore_from_checkpoint(state)


def over(make, **options):
    return lambda: fl.MinibatchSource(make(), seed=3, **options)


def corpus():
    return CountedCorpus(LENGTHS, CHUNKS)


FEEDS = {
    "arrays": over(lambda: fl.ArrayDeserializer(x=np.arange(60))),
    "windows": over(corpus, shuffle=fl.Window(chunks=2)),
    "cntk's order": over(corpus, order="cntk", filling="cntk"),
    "lanes": over(corpus, truncation_length=3, shuffle=fl.Window(chunks=1)),
    "cntk's lanes": over(corpus, truncation_length=3, order="cntk", filling="cntk"),
    "unsized": over(Unsized),
    "unsized lanes": over(Unsized, truncation_length=2),
    "a user's": Careful,
}


def ids(minibatch):
    return minibatch.ids.tolist()


@pytest.mark.parametrize("kind", FEEDS)
@settings(max_examples=examples(30))
@given(data=st.data())
def test_a_damaged_state_is_refused_before_anything_moves_or_is_a_state(kind, data):
    """A source continues from an accepted state as from any other, and can save and load its state again."""
    feed = FEEDS[kind]()
    for _ in range(7):
        feed.next_minibatch(9)
    state = json.loads(json.dumps(feed.state_dict()))
    other = FEEDS[kind]()
    other.next_minibatch(9)
    before = other.state_dict()
    try:
        other.load_state_dict(data.draw(changes(state)).of(state))
    except fl.StateError:
        assert other.state_dict() == before
        return
    again = FEEDS[kind]()
    try:
        again.load_state_dict(json.loads(json.dumps(other.state_dict())))
        minibatch = other.next_minibatch(9)
    except fl.StateError as error:
        # If windows are known only after reading, a position may turn out not to exist.
        assert kind.startswith("unsized"), error  # noqa: PT017
        return
    assert ids(again.next_minibatch(9)) == ids(minibatch)
    assert again.state_dict() == other.state_dict()


@pytest.mark.parametrize("kind", FEEDS)
def test_the_largest_counts_go_on(kind):
    """Counts in a state may be up to 2**62, which leaves room to continue from it."""
    feed = FEEDS[kind]()
    state = feed.state_dict()
    for key in ("sweep", "samples", "label_samples"):
        if kind == "a user's" and key == "sweep":
            continue  # the source reports its own position
        feed.load_state_dict({**state, key: 2**62})
        assert feed.next_minibatch(9)
        feed.count_label_samples(9)
        assert json.loads(json.dumps(feed.state_dict()))[key] >= 2**62
        with pytest.raises(fl.StateError, match=rf"`{key}` to be an int from 0 to 2\*\*62"):
            feed.load_state_dict({**state, key: 2**62 + 1})


@pytest.mark.parametrize("kind", [kind for kind in FEEDS if kind != "a user's"])
@pytest.mark.parametrize("place", [{"sweep": 2**63}, {"samples": 2**63}, {"label_samples": 10**400}])
def test_a_seek_goes_no_further_either(kind, place):
    feed = FEEDS[kind]()
    with pytest.raises(IndexError):
        feed.seek(feed.position._replace(**place))
    if not kind.startswith("unsized"):
        with pytest.raises(IndexError):
            feed.seek(samples=2**63)
    assert feed.next_minibatch(9)


@pytest.mark.parametrize(
    "fingerprint",
    ["-1", "f" * 15, "f" * 17, " 12 ", "0x10", "1_0", "F" * 16, "f" * 16 + "\n", "\uff11" * 16, 12, b"f" * 16],
)
def test_a_fingerprint_is_16_digits(fingerprint):
    source = FEEDS["arrays"]()
    with pytest.raises(fl.StateError, match="16 hex digits"):
        source.load_state_dict({**source.state_dict(), "fingerprint": fingerprint})


def test_lanes_are_looked_up_before_anything_moves():
    """And not with the next minibatch, when the source has already moved."""
    source = FEEDS["lanes"]()
    for _ in range(5):
        source.next_minibatch(9)
    state = source.state_dict()
    before = source.position
    sweep, _, count, _ = state["lanes"][0][0]
    for entry in ([sweep, 60, count, 0], [sweep, 10**9, 1, 0], [sweep, 19, 2, 0], [sweep, 0, 1, 4], [0, 0, 2**63, 0]):
        with pytest.raises(fl.StateError):
            source.load_state_dict({**state, "lanes": [[entry]]})
        assert source.position == before
    assert source.next_minibatch(9)
