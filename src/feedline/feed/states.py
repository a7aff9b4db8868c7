"""States: where a source stands as a few JSON numbers, and whether such numbers fit a source.

A state names the data, the order and a place on the axis; nothing in it depends on minibatch sizes, ranks or machines.
Guarantees: what does not fit is refused with saved and current side by side, before anything has changed. Costs:
O(chunks) once for the identity; checking a place reads nothing.
"""

from __future__ import annotations

import hashlib
import operator
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from feedline.data import Position
from feedline.errors import StateError, shown
from feedline.feed.packing import lanes
from feedline.feed.packing.axis import Axis
from feedline.feed.protocol import Deserializer
from feedline.feed.timeline import ORDERS, Timeline, UnsizedOrder, Window

STATE_VERSION = 1
#: Counts of a state are at most this, so that a feed can go on from it: native code, and other people's JSON, count in
#: 64 bits.
LARGEST = 2**62
_FINGERPRINT = re.compile("[0-9a-f]{16}")


class SavedPlace(NamedTuple):
    """What a state says besides what it fits.

    Attributes:
        position: of the next sequence, and the counters.
        fingerprint: of all sequences before it; None after a bare seek.
        lanes: what has entered each lane of truncated BPTT and is not delivered, as `lanes.to_json` has it.
    """

    position: Position
    fingerprint: int | None
    lanes: list[list[list[int]]]


class Identity:
    """What must be equal for a state to fit: the order and what it orders."""

    def __init__(self, corpus: Deserializer, timeline: Timeline, filling: str) -> None:
        self._corpus, self._timeline, self._filling = corpus, timeline, filling
        self._digest: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Order, seed, window, filling, streams and data."""
        timeline = self._timeline
        shuffle: Any = False
        if timeline.shuffle:
            shuffle = "all" if timeline.window is None else timeline.window.to_json()
        return {
            "order": timeline.name,
            "seed": f"{timeline.seed:016x}",
            "shuffle": shuffle,
            "filling": self._filling,
            "schema": self._corpus.schema.digest,
            "corpus": self.corpus_digest(),
        }

    def corpus_digest(self) -> str:
        """32 hex digits for the content and the chunk table; computed once."""
        if self._digest is None:
            h = hashlib.blake2b(self._corpus.digest().encode(), digest_size=16)
            table = self._timeline.chunk_table
            for column in (table.sequences, table.samples, table.bytes):
                h.update(np.ascontiguousarray(column, "<i8").tobytes())
            self._digest = h.hexdigest()
        return self._digest


def to_json(identity: Identity, place: SavedPlace, truncated: bool) -> dict[str, Any]:
    """A state; ``truncated``: with lanes, even if they are empty."""
    p = place.position
    where: dict[str, Any] = {"sweep": p.sweep, "sequence": p.ordinal}
    if p.window is not None:
        where["window"] = p.window
    state = {
        "feedline": STATE_VERSION,
        **identity.to_json(),
        **where,
        "samples": p.samples,
        "label_samples": p.label_samples,
        "fingerprint": None if place.fingerprint is None else f"{place.fingerprint:016x}",
    }
    if truncated:
        state["lanes"] = place.lanes
    return state


def from_json(state: Mapping[str, Any], identity: Identity, timeline: Timeline, truncated: bool) -> SavedPlace:
    """The place that a state names.

    Raises:
        StateError: it is no state, is damaged, does not fit, or has lanes and the source (not ``truncated``) has none.
    """
    if not isinstance(state, Mapping) or "feedline" not in state:
        raise StateError(
            f"expected a state of a feedline source, got {type(state).__name__} {shown(state, 80)}", hint=_inside(state)
        )
    if type(state["feedline"]) is not int or state["feedline"] != STATE_VERSION:
        raise StateError(
            "this state has another format version",
            saved={"feedline": state["feedline"]},
            current={"feedline": STATE_VERSION},
            hint="load it with the version of feedline that saved it",
        )
    current = identity.to_json()
    saved = {key: state.get(key) for key in current}
    differing = [key for key in current if saved[key] != current[key]]
    if differing:
        raise StateError(
            "this state was taken from other data, another order or other settings",
            saved={key: saved[key] for key in differing},
            current={key: current[key] for key in differing},
            hint=_opened_as(saved, differing),
        )
    try:
        fingerprint = _fingerprint(state["fingerprint"])
        sweep, ordinal, samples, labels = (
            counter(state, key) for key in ("sweep", "sequence", "samples", "label_samples")
        )
        window = None if state.get("window") is None else counter(state, "window")
        position = Position(sweep, ordinal, samples, labels, window)
        check_position(timeline, position)
        windows = timeline.windows if isinstance(timeline, UnsizedOrder) else None
        unfinished = lanes.check_json(state.get("lanes", []), position, windows)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        what = f"expected `{error.args[0]}`, got none" if isinstance(error, KeyError) else str(error)
        raise StateError(f"this state is damaged: {what}", hint="load another checkpoint") from error
    if unfinished and not truncated:
        raise StateError(
            "this state holds sequences that were delivered in part: load it with truncation_length",
            saved={"lanes": unfinished},
            current={"lanes": None},
        )
    return SavedPlace(position, fingerprint, unfinished)


def integer(what: str, value: Any) -> int:
    """An integer of the caller's as Python's own, which JSON can say.

    Raises:
        TypeError: it is none.
    """
    if isinstance(value, (bool, str)):
        raise TypeError(f"expected {what} as an int, got {value!r}")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"expected {what} as an int, got {shown(value, 80)}") from None


def counted(position: Position, label_samples: Any) -> Position:
    """The position with so many label samples more on its clock.

    Raises:
        TypeError, ValueError: that is no count.
    """
    total = position.label_samples + integer("a count of label samples", label_samples)
    if not position.label_samples <= total < 2**63:
        raise ValueError(f"expected a count of label samples of at least 0, up to 2**63 - 1 in all, got {total}")
    return position._replace(label_samples=total)


def given_position(position: Any) -> Position:
    """A position of the caller's, its fields in Python's integers.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(position, Position):
        raise TypeError(f"expected a Position, got {shown(position, 80)}")
    fields = position._asdict()
    given = {name: integer(name, value) for name, value in fields.items() if (name, value) != ("window", None)}
    return Position(**given)


def check_position(timeline: Timeline, p: Position) -> None:
    """Whether a sequence of the order can stand at ``p``.

    Raises:
        IndexError: none can.
    """
    unsized = isinstance(timeline, UnsizedOrder)
    if min(p[:4]) < 0 or max(p[:4]) > LARGEST or (p.window is None) is unsized:
        raise IndexError(f"expected a position of this source, got {p!r}")
    if isinstance(timeline, UnsizedOrder):
        if p.ordinal < 0 or p.window is None or not 0 <= p.window < timeline.windows:
            raise IndexError(f"expected 0 <= window < {timeline.windows} in a sweep, got {p!r}")
    elif not 0 <= p.ordinal < timeline.table.total_sequences:
        raise IndexError(f"expected 0 <= sequence < {timeline.table.total_sequences} in a sweep, got {p.ordinal}")


def verify(axis: Axis, place: SavedPlace) -> None:
    """Walk from the start of the axis, which has no limits, to the place, and compare counters and fingerprints.

    Raises:
        StateError: they differ, or cannot be computed.
    """
    position = place.position
    if place.fingerprint is None:
        raise StateError("this state has no fingerprint to verify: it was taken after a bare seek")
    if isinstance(axis.timeline, UnsizedOrder):
        raise StateError("a corpus without chunk_info cannot be verified: laying out its order reads it")
    cursor, target = axis.at(Position(), 0), position[:2]
    while True:
        segment = cursor.segment
        plan, stop = segment.plan, segment.start + segment.n
        end = axis.timeline.position_of(plan, stop)[:2]
        if end >= target:
            k = segment.n if end == target else position.ordinal - plan.first - segment.start
            cursor = cursor._replace(k=k)
            break
        following = axis.settle(cursor._replace(k=segment.n))
        assert following is not None  # an axis without limits does not end
        cursor = following
    found = {"samples": axis.samples(cursor), "fingerprint": f"{axis.fingerprint(cursor):016x}"}
    saved = {"samples": position.samples, "fingerprint": f"{place.fingerprint:016x}"}
    if found != saved:
        raise StateError("the order up to this state is not the one it was saved with", saved=saved, current=found)


def _inside(state: object) -> str | None:
    """Where in a checkpoint the state probably is."""
    if isinstance(state, Mapping):
        for key, value in state.items():
            if isinstance(value, Mapping) and "feedline" in value:
                return f"[{key!r}] looks like one"
    return None


def _opened_as(saved: Mapping[str, Any], differing: list[str]) -> str:
    """How a source that fits is opened, as far as the state says."""
    settings, others = [], []
    for key in differing:
        value = saved[key]
        try:
            if key == "order":
                names = [name for name, order in ORDERS.items() if order.name == value]
                settings.append(f"order={names[0]!r}")
            elif key == "seed":
                settings.append(f"seed={int(value, 16)}")
            elif key == "shuffle":
                settings.append(f"shuffle={_shuffle(value)}")
            elif key == "filling":
                settings.append(f"filling={str(value)!r}")
        except (IndexError, TypeError, ValueError, RecursionError):
            return "load another checkpoint, or this one with the version of feedline that saved it"
    if "schema" in differing:
        others.append("declare the same streams, in the same order")
    if "corpus" in differing:
        others.append("open the same files with the same chunk_size; data that has changed or grown is other data")
    if settings:
        others.insert(0, f"pass {', '.join(settings)}")
    return "to go on: " + "; ".join(others)


def _shuffle(value: object) -> str:
    """The argument that a state's ``shuffle`` was made of."""
    if isinstance(value, Mapping):
        return f"fl.{Window(**value)!r}"
    return '"whole"' if value == "all" else str(bool(value))


def counter(state: Mapping[str, Any], key: str) -> int:
    """A count in a state.

    Raises:
        KeyError: there is none.
        TypeError: it is no int, negative, or larger than a count can be.
    """
    value = state[key]
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise TypeError(f"expected `{key}` to be an int from 0 to 2**62, got {shown(value, 40)}")
    return value


def _fingerprint(text: Any) -> int | None:
    if text is None:
        return None
    if not isinstance(text, str) or not _FINGERPRINT.fullmatch(text):
        raise TypeError(f"expected `fingerprint` to be 16 hex digits in lower case, got {shown(text, 40)}")
    return int(text, 16)
