"""The state of a source: a few numbers in JSON types, and the checks that it fits a source.

A state names the data, the order and a place on the axis. Nothing in it depends on minibatch sizes, ranks or machines.
A state that does not fit is refused before anything changes, with saved and current values side by side. Cost:
O(chunks) once for the identity. Checking a place reads no data.
"""

from __future__ import annotations

import hashlib
import operator
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from feedline.data import Position
from feedline.errors import StateError, shown
from feedline.feed.argument_errors import damage_error, expect_same, expect_state
from feedline.feed.arguments import Arcs
from feedline.feed.packing import lanes
from feedline.feed.packing.axis import Axis
from feedline.feed.packing.jumps import Jumps
from feedline.feed.protocol import Deserializer, Growing
from feedline.feed.timeline import ORDERS, ChunkTable, GrownOrder, Timeline, UnsizedOrder, Window
from feedline.feed.timeline.feedline import FeedlineOrder
from feedline.feed.timeline.grown import grown_order

STATE_VERSION = 1
#: Upper bound of counts in a state, so that a feed can continue from it: native code, and other JSON readers, count in
# 64 bits.
LARGEST = 2**62
_FINGERPRINT = re.compile("[0-9a-f]{16}")


class SavedPlace(NamedTuple):
    """The part of a state that is not its identity.

    Attributes:
        position: position of the next sequence, with the counters.
        fingerprint: fingerprint of all sequences before it. None: after a bare seek.
        lanes: for truncated BPTT, the undelivered content of each lane, in the format of `lanes.to_json`.
        timeline: the order that the place is in. None: the current one.
        jumps: places of the axis that are passed over. None: as they are.
    """

    position: Position
    fingerprint: int | None
    lanes: list[list[list[int]]]
    timeline: Timeline | None = None
    jumps: Jumps | None = None


class Identity:
    """The part of a state that must match: the order, and the data it orders."""

    def __init__(self, corpus: Deserializer, timeline: Timeline, filling: str) -> None:
        self._corpus, self._timeline, self._filling = corpus, timeline, filling
        self._digests: tuple[str, str] | None = None  # of the corpus, and with its chunk table

    def to_json(self) -> dict[str, Any]:
        """Return order, seed, window, filling, streams, data and, if there are any, arcs."""
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
        } | ({} if timeline.arcs is None else {"arcs": timeline.arcs})

    def corpus_digest(self) -> str:
        """Return 32 hex digits that identify content and chunk table. Computed once."""
        return self._own_digests()[1]

    def _own_digests(self) -> tuple[str, str]:
        if self._digests is None:
            digest = self._corpus.digest()
            self._digests = digest, _with_table(digest, self._timeline.chunk_table)
        return self._digests

    def length_to_json(self) -> dict[str, int]:
        """Return the number of sequences, if the corpus may grow. With it, a later one finds its first chunks at
        once."""
        grows = isinstance(self._timeline, FeedlineOrder) and self._corpus.capability(Growing) is not None
        return {"sequences": self._timeline.chunk_table.total_sequences} if grows else {}

    def earlier(self, lengths: Mapping[str, int | None]) -> dict[str, ChunkTable]:
        """Return the chunk tables of earlier corpora by digest, as far as they are first sequences of this corpus.

        Args:
            lengths: number of sequences by digest. None: unknown, as states once did not name it. Then each end of a
                file is tried.
        """
        growing, table = self._corpus.capability(Growing), self._timeline.chunk_table
        tables: dict[str, ChunkTable] = {}
        ends = [] if growing is None else list(growing.digests())
        # A corpus made of one that grows may forward its ability, and have another digest.
        if growing is None or ends[-1][1] != self._own_digests()[0]:
            return tables
        known = {length for length in lengths.values() if length is not None}
        tries_all = None in lengths.values()
        # Data mostly grows by a little.
        for chunks, digest in reversed(ends):
            if len(tables) == len(lengths):
                return tables
            if tries_all or int(table.starts[chunks]) in known:
                first = table.first(chunks)
                if (with_table := _with_table(digest, first)) in lengths:
                    tables.setdefault(with_table, first)
        for length in known - {kept.total_sequences for kept in tables.values()}:
            for corpus in growing.shorter(length) if 0 < length < table.total_sequences else ():
                first = ChunkTable(corpus.chunks())
                if (digest := _with_table(corpus.digest(), first)) in lengths:
                    tables[digest] = first
                    break
        return tables


def _with_table(digest: str, table: ChunkTable) -> str:
    """Return a digest of a digest and the sizes of chunks."""
    h = hashlib.blake2b(digest.encode(), digest_size=16)
    for column in (table.sequences, table.samples, table.bytes):
        h.update(np.ascontiguousarray(column, "<i8").tobytes())
    return h.hexdigest()


def to_json(identity: Identity, place: SavedPlace, axis: Axis, truncated: bool) -> dict[str, Any]:
    """Return a state of a place on an axis. If ``truncated``, it has lanes, even if they are empty."""
    p = place.position
    where: dict[str, Any] = {"sweep": p.sweep, "sequence": p.sequence}
    if p.window is not None:
        where["window"] = p.window
    state = {
        "feedline": STATE_VERSION,
        **identity.to_json(),
        **identity.length_to_json(),
        **axis.timeline.to_json(),
        **where,
        "samples": p.samples,
        "label_samples": p.label_samples,
        "fingerprint": None if place.fingerprint is None else f"{place.fingerprint:016x}",
    }
    if truncated:
        state["lanes"] = place.lanes
    if axis.jumps:
        state["jumps"] = axis.jumps.to_json()
    return state


def from_json(
    state: Mapping[str, Any], identity: Identity, timeline: Timeline, truncated: bool, declared: Jumps
) -> SavedPlace:
    """Return the place that a state names, with its jumps and the jumps ``declared`` since.

    Raises:
        StateError: ``state`` is no state, is damaged, does not fit, or has lanes although the source is not
            ``truncated``.
    """
    expect_state(state, "MinibatchSource")
    if type(state["feedline"]) is not int or state["feedline"] != STATE_VERSION:
        raise StateError(
            "this state has another format version",
            saved={"feedline": state["feedline"]},
            current={"feedline": STATE_VERSION},
            hint="load it with the version of feedline that saved it",
        )
    current = identity.to_json()
    newest = timeline.newest if isinstance(timeline, GrownOrder) else timeline
    try:
        grown = grown_order(state, current["corpus"], identity.earlier, newest)
    except (KeyError, TypeError, ValueError) as error:
        raise damage_error(error) from error
    timeline = newest if grown is None else grown
    if grown is not None:
        state = {**state, "corpus": current["corpus"]}
    if "arcs" in state:  # which most orders do not have
        current = {"arcs": None, **current}
    what = "this state was taken from other data, another order or other settings"
    expect_same(state, current, what, partial(_how_to_open, {key: state.get(key) for key in current}))
    try:
        fingerprint = _fingerprint(state["fingerprint"])
        sweep, sequence, samples, labels = (
            counter(state, key) for key in ("sweep", "sequence", "samples", "label_samples")
        )
        window = None if state.get("window") is None else counter(state, "window")
        position = Position(sweep, sequence, samples, labels, window)
        timeline = timeline.from_json(state, sweep, sequence)
        check_position(timeline, position)
        windows = timeline.windows if isinstance(timeline, UnsizedOrder) else None
        jumps = Jumps.from_json(state.get("jumps", []))
        if jumps and isinstance(timeline, UnsizedOrder):
            raise ValueError("expected no `jumps` where chunk sizes are unknown")
        if isinstance(timeline, GrownOrder) and (jumps or declared):
            raise StateError(
                "this state is of data that has grown since, in which places cannot be jumped over",
                hint="load it over the data that it was taken from, or without jumps",
            )
        unfinished = lanes.check_json(state.get("lanes", []), position, windows)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise damage_error(error) from error
    if unfinished and not truncated:
        raise StateError(
            "this state holds partly delivered sequences: load it with truncation_length",
            saved={"lanes": unfinished},
            current={"lanes": None},
        )
    delivered = timeline.before(sweep) + sequence if declared else 0
    if not declared.within(jumps, delivered):
        raise StateError(
            "this state was taken after sequences had been delivered that are to be jumped over",
            saved={"place": delivered, "jumps": jumps.to_json()},
            current={"jumps": declared.to_json()},
            hint="load a state from before these jumps, or leave them out",
        )
    return SavedPlace(position, fingerprint, unfinished, timeline, jumps.join(declared))


def integer(what: str, value: Any) -> int:
    """Return a caller's integer as an ``int``, which JSON can represent.

    Raises:
        TypeError: it is not an integer.
    """
    if isinstance(value, (bool, str)):
        raise TypeError(f"expected {what} as an int, got {value!r}")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"expected {what} as an int, got {shown(value, 80)}") from None


def add_label_samples(position: Position, label_samples: Any) -> Position:
    """Return the position with ``label_samples`` added to its clock.

    Raises:
        TypeError, ValueError: it is not a valid count.
    """
    total = position.label_samples + integer("a count of label samples", label_samples)
    if not position.label_samples <= total < 2**63:
        raise ValueError(f"expected a count of label samples of at least 0, up to 2**63 - 1 in all, got {total}")
    return position._replace(label_samples=total)


def check_fields(position: Any) -> Position:
    """Return a caller's position with its fields as ``int``.

    Raises:
        TypeError: it is not a position.
    """
    if not isinstance(position, Position):
        raise TypeError(f"expected a Position, got {shown(position, 80)}")
    fields = position._asdict()
    integers = {name: integer(name, value) for name, value in fields.items() if (name, value) != ("window", None)}
    return Position(**integers)


def check_position(timeline: Timeline, p: Position) -> None:
    """Check that ``p`` is a position in the order.

    Raises:
        IndexError: it is not.
    """
    unsized = isinstance(timeline, UnsizedOrder)
    if min(p[:4]) < 0 or max(p[:4]) > LARGEST or (p.window is None) is unsized:
        raise IndexError(f"expected a position of this source, got {p!r}")
    if isinstance(timeline, UnsizedOrder):
        windows = timeline.windows(p.sweep)
        if p.sequence < 0 or p.window is None or not 0 <= p.window < windows:
            raise IndexError(f"expected 0 <= window < {windows} in sweep {p.sweep}, got {p!r}")
    elif timeline.sweep_length is None:
        if p.sweep:
            raise IndexError(f"expected sweep 0 of an order without end, got {p.sweep}")
    elif not 0 <= p.sequence < (length := timeline.before(p.sweep + 1) - timeline.before(p.sweep)):
        raise IndexError(f"expected 0 <= sequence < {length} in a sweep, got {p.sequence}")


def verify(axis: Axis, place: SavedPlace) -> None:
    """Walk an unlimited axis from its start to the place, and compare counters and fingerprint.

    Raises:
        StateError: they differ, or cannot be computed.
    """
    position = place.position
    if place.fingerprint is None:
        raise StateError("this state has no fingerprint to verify: it was taken after a bare seek")
    if isinstance(axis.timeline, UnsizedOrder):
        raise StateError("a corpus without chunk_info cannot be verified: its order is known only once it is read")
    cursor, target = axis.at(Position(), 0), position[:2]
    while True:
        segment = cursor.segment
        plan, stop = segment.plan, segment.start + segment.n
        end = axis.timeline.position_of(plan, stop)[:2]
        if end >= target:
            k = segment.n if end == target else max(0, position.sequence - plan.first - segment.start)
            cursor = cursor._replace(k=k)
            break
        following = axis.advance_if_at_end(cursor._replace(k=segment.n))
        assert following is not None  # an unlimited axis does not end
        cursor = following
    computed = {"samples": axis.samples(cursor), "fingerprint": f"{axis.fingerprint(cursor):016x}"}
    saved = {"samples": position.samples, "fingerprint": f"{place.fingerprint:016x}"}
    if computed != saved:
        raise StateError("the order up to this state is not the one it was saved with", saved=saved, current=computed)


def _how_to_open(saved: Mapping[str, Any], differing: list[str]) -> str:
    """Return how to open a source that fits, as far as the state shows it."""
    settings, actions = [], []
    try:
        if "order" in differing or "arcs" in differing:
            settings.append(f"order={_order(saved)}")
        if "seed" in differing:
            settings.append(f"seed={int(saved['seed'], 16)}")
        if "shuffle" in differing:
            settings.append(f"shuffle={_shuffle(saved['shuffle'])}")
        if "filling" in differing:
            settings.append(f"filling={str(saved['filling'])!r}")
    except (IndexError, TypeError, ValueError, RecursionError):
        return "load another checkpoint, or this one with the version of feedline that saved it"
    if "schema" in differing:
        actions.append("declare the same streams, in the same order")
    if "corpus" in differing:
        actions.append(
            "open the same files with the same chunk_size; a source over the files alone also takes new ones behind "
            "them. Rows that were replaced or removed do not fit: restore them, or begin a new run"
        )
    if settings:
        actions.insert(0, f"pass {', '.join(settings)}")
    return "to continue: " + "; ".join(actions)


def _order(saved: Mapping[str, Any]) -> str:
    """Return the ``order`` argument that corresponds to a state."""
    names = [name for name, order in ORDERS.items() if order.name == saved["order"]]
    if re.fullmatch(r"feedline-1-(unsized|swept|unsized-swept)", str(saved["order"])):
        names = ["feedline-1"]  # of corpora that do not know their sizes, or whose sweeps differ
    arcs = saved.get("arcs")
    return repr(names[0]) if arcs is None else f"fl.{Arcs(arcs, int(names[0][-1]))!r}"


def _shuffle(value: object) -> str:
    """Return the ``shuffle`` argument that corresponds to a state's entry."""
    if isinstance(value, Mapping):
        return f"fl.{Window(**value)!r}"
    return '"whole"' if value == "all" else str(bool(value))


def counter(state: Mapping[str, Any], key: str) -> int:
    """Return a count in a state.

    Raises:
        KeyError: it is missing.
        TypeError: it is not an int, is negative, or exceeds `LARGEST`.
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
