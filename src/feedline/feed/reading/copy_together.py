"""Minibatches planned together, and copied together if they are small.

A minibatch costs little for its bytes, and much for the calls that plan and make it. Planning is a pure function of
the cursor, so the next minibatches of the same size are known. After a minibatch, the next ones in the same segment
are cut at once. Small ones are also copied at once, into one array per stream and column, and delivered as views of
that array. Larger ones are copied one by one: when they are requested or, from `AHEAD_BYTES` on, ahead by a native
thread. Any other request (another size, another partition, a seek) drops what is left.

This reads nothing. It stops where such minibatches could differ from minibatches made one by one: at the ends of
segments, and so of windows and sweeps, at unreadable sequences, and if there are several ranks. Numbers begin at
multiples of 64 bytes in both cases, so that linear algebra on them gives the same bits.

Memory: `MAX_BYTES` at a time, and up to 64 bytes more for each array. A minibatch that the program keeps also keeps
the array that it is a view of. Of larger ones, `DEPTH` copies.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from feedline import _native
from feedline.data import Minibatch, Position, Schema, Value
from feedline.data.minibatch import Origins, whole_minibatch
from feedline.feed.assembly import ChunkSet
from feedline.feed.packing.axis import Axis, Cursor, SegmentSlice
from feedline.feed.protocol import Ints
from feedline.feed.reading.copy_ahead import AHEAD_BYTES, DEPTH
from feedline.feed.reading.reader import Reader, Slots, Staging
from feedline.feed.timeline.elements import ended_parts

#: Limit of the bytes that are copied together. The second cache of a core holds them with room to spare.
MAX_BYTES = 128 << 10

# Limits of the number of minibatches: fewer are not worth the effort, more gain nothing.
_MIN_COUNT, _MAX_COUNT = 4, 64

# Limits of minibatches that are planned together and copied one by one: their number, which bounds how long it takes to
# notice that data has left the page cache, and their bytes.
_MAX_PLANNED, _MAX_PLANNED_BYTES = 16, 16 << 20

# Bypasses NamedTuple.__new__, which is a Python function.
_tuple: Callable[..., Any] = tuple.__new__


class CopyTogether:
    """The minibatches planned together, in order.

    Args:
        axis: axis of the minibatches, which `Whole` plans for one rank.
        chunks, reader: chunks to copy from.
        schema: streams of minibatches.
        sources: function from ids to the number of the corpus of each sequence. None if there is only one corpus.
        budget_bytes: bytes that may be copied before they are requested. 0: nothing is.

    Attributes:
        cursor: cursor at which the next minibatch begins. None if there is none.
        size: budget in samples that the minibatches were planned for.
        copies_singly: whether the minibatches are copied one by one.
        used: number of minibatches taken.
    """

    def __init__(
        self,
        axis: Axis,
        *,
        chunks: ChunkSet,
        reader: Reader,
        schema: Schema,
        sources: Callable[..., Any] | None,
        budget_bytes: int,
    ) -> None:
        self._axis, self._chunks, self._reader = axis, chunks, reader
        self._staging = reader if isinstance(reader, Staging) else None
        self._schema, self._sources, self._budget_bytes = schema, sources, budget_bytes
        self._queued: Iterator[tuple[Any, ...]] = iter(())
        self._size_before = self._pause = 0
        self._sweep = 0
        self._end: Cursor | None = None
        self._picks: Iterator[tuple[Slots, Ints]] = iter(())  # of the minibatches whose copies have not begun
        self._begun: deque[_native.Copy] = deque()
        self._depth = 0  # copies to begin ahead
        self.cursor: Cursor | None = None
        self.copies_singly = False
        self.size = self.used = 0

    @property
    def is_empty(self) -> bool:
        """Whether no minibatch is left."""
        return self.cursor is None

    def drop(self) -> None:
        """Drop the remaining minibatches: the position has jumped, or the request has changed."""
        self.cursor, self._size_before = None, 0
        self._picks = self._queued = iter(())  # last, as freeing arrays may run other code
        self._begun = deque()

    def take(self, label_samples: int) -> tuple[Minibatch, Cursor] | None:
        """Return the minibatch at `cursor`, whose position carries ``label_samples``, and the cursor after it.

        Return None if it cannot be copied: it has to be made by itself, which raises the error or skips sequences.
        """
        # Cleared first: after an interrupt the rest is dropped and planned again. If the cursor stayed, a call after an
        # interrupt that follows `next` would skip the minibatch that was taken.
        self.cursor = None
        place, samples, values, ids, count, after = next(self._queued)
        if values is None:
            values = self._copy_next()
            if values is None:
                self.drop()
                return None
        self.cursor = None if after is self._end else after
        self.used += 1
        position = _tuple(Position, (self._sweep, place, samples, label_samples, None))
        minibatch = whole_minibatch(self._schema, values, ids, count, position)
        if self._sources is not None:
            after_it = self._sweep, place + len(ids)
            sweep_ends = functools.partial(ended_parts, self._axis.timeline, position[:2], after_it)
            minibatch._origins = Origins(self._sources, sweep_ends)
        return minibatch, after

    def refill(self, cursor: Cursor, size: int, sequences: int) -> None:
        """Plan the minibatches after ``cursor``, and copy them if they are small.

        Args:
            cursor: cursor at the end of a minibatch that is about to be delivered.
            size: budget of that minibatch in samples.
            sequences: number of its sequences.
        """
        before, self._size_before = self._size_before, size
        self.cursor = None
        # If a caller changes the size with each call, every plan would be dropped.
        if size != before or (self._staging is not None and self._staging.stages):
            return
        if self._pause:
            self._pause -= 1
            return
        each = sequences * self._chunks.sequence_bytes
        singly = not self._budget_bytes or each * _MIN_COUNT > MAX_BYTES
        limit, most = (_MAX_PLANNED_BYTES, _MAX_PLANNED) if singly else (MAX_BYTES, _MAX_COUNT)
        if each * most > limit:
            most = int(limit / each)
            if most < _MIN_COUNT:
                return
        stops = self._stops(cursor, size, most)
        if len(stops) <= (1 if singly else _MIN_COUNT):
            return
        values: list[dict[str, Value]] | list[None] | None
        try:
            part = SegmentSlice(cursor.segment, stops[0], stops[-1])
            values = self._plan_copies(part, stops, each) if singly else self._copy(part, np.asarray(stops))
        except Exception:
            values = None  # the error is raised when its sequence is requested, after the sequences before it
        if values is None:
            self._pause = _MAX_PLANNED if singly else 0
            return
        self._enqueue(cursor, stops, values)
        self.size, self.cursor, self.copies_singly = size, cursor, singly

    def _stops(self, cursor: Cursor, size: int, most: int) -> list[int]:
        """Return the index of the cursor in its segment, and the indices at which the next minibatches end.

        There are at most ``most``, and all end before the segment, the sweep, the axis, or the next break does.
        """
        segment, k = cursor.segment, cursor.k
        last = min(segment.n, segment.plan.count - segment.start)
        if segment.closing is not None:
            last = min(last, segment.closing - segment.start)
        if self._axis.max_samples is not None:
            last = min(last, self._axis.limit(cursor))
        if segment.breaks is not None and (at := bisect_right(segment.breaks, k)) < len(segment.breaks):
            last = min(last, segment.breaks[at])
        if segment.ends is None:
            return list(range(k, last, size))[: most + 1]
        if k >= last:
            return [k]
        stops = _native.run_ends(segment.ends, k, last, size, max_runs=most)
        return [k, *(stops if stops[-1] < last else stops[:-1])]

    def _copy(self, part: SegmentSlice, stops: Ints) -> list[dict[str, Value]] | None:
        """Return the values of the sequences between each of ``stops`` and the next.

        Return None if some sequences cannot be read, or are not in memory yet.
        """
        found = self._take_slots(part)
        return None if found is None else self._chunks.gather_parts(*found, stops - stops[0])

    def _plan_copies(self, part: SegmentSlice, stops: list[int], each: float) -> list[None] | None:
        """Begin the first copies of the sequences between each of ``stops`` and the next, of about ``each`` bytes.

        Return None for each, or as `_copy` does.
        """
        found = self._take_slots(part)
        if found is None or (self._staging is not None and self._staging.stages):
            return None
        slots, index = found
        first = stops[0]
        self._picks = iter([(slots[a - first : b - first], index[a - first : b - first]) for a, b in pairwise(stops)])
        self._depth = min(DEPTH, int(self._budget_bytes / max(each, 1))) if each >= AHEAD_BYTES else 0
        self._begun = deque()
        self._begin_copies()
        return [None] * (len(stops) - 1)

    def _take_slots(self, part: SegmentSlice) -> tuple[Slots, Ints] | None:
        """Return slot and index of each sequence of ``part``, or None as `_copy` does."""
        reader, parts = self._reader, (part,)
        if not reader.holds(part.segment.plan) or not reader.ready(parts):
            return None
        slots, index = reader.take(parts)
        return None if self._chunks.errors(slots, index) else (slots, index)

    def _begin_copies(self) -> None:
        begun = self._begun
        while len(begun) < self._depth and (picks := self._next_picks()) is not None:
            begun.append(self._chunks.start(*picks))

    def _next_picks(self) -> tuple[Slots, Ints] | None:
        """Return slots and indices of the next minibatch to copy, or None if there is none, or it should be staged."""
        picks, staging = next(self._picks, None), self._staging
        if picks is not None and staging is not None:
            staging.watch(*picks)
            if staging.stages:
                self._picks = iter(())
                return None
        return picks

    def _copy_next(self) -> dict[str, Value] | None:
        """Return the values of the next minibatch, or None if it has to be made by itself."""
        try:
            if not self._depth:
                picks = self._next_picks()
                return None if picks is None else self._chunks.gather(*picks)
            if not self._begun:
                return None
            values = self._chunks.finish(self._begun.popleft())
            self._begin_copies()
            return values
        except Exception:
            return None  # it is raised again when the minibatch is made by itself

    def _enqueue(self, cursor: Cursor, stops: list[int], values: list[dict[str, Value]] | list[None]) -> None:
        """Queue the values, one minibatch between each stop and the next."""
        segment, begun, fingerprint = cursor.segment, cursor.samples, cursor.fingerprint
        samples = stops if segment.ends is None else segment.ends[stops].tolist()
        self._sweep, first = segment.plan.sweep, segment.plan.first + segment.start
        cursors = [_tuple(Cursor, (segment, stop, begun, fingerprint, ())) for stop in stops[1:]]
        self._end = cursors[-1]
        columns: list[list[Any]] = [
            [first + stop for stop in stops[:-1]],
            [begun + count for count in samples[:-1]],
            values,
            [segment.ordinals[a:b] for a, b in pairwise(stops)],
            [b - a for a, b in pairwise(samples)],
            cursors,
        ]
        self._queued = zip(*columns, strict=True)
