"""Small minibatches copied together.

A small minibatch costs little for its bytes, and much for the calls that plan and make it. Planning is a pure function
of the cursor, so the next minibatches of the same size are known. After a minibatch, the next ones in the same segment
are cut and copied at once, into one array per stream and column, and delivered as views of that array. Any other
request (another size, another partition, a seek) drops the rest.

This reads nothing. It stops where minibatches copied together could differ from minibatches copied one by one: at the
ends of segments, and so of windows and sweeps, at unreadable sequences, and if there are several ranks. Numbers begin
at multiples of 64 bytes in both cases, so that linear algebra on them gives the same bits.

Memory: `MAX_BYTES` at a time, and up to 64 bytes more for each array. A minibatch that the program keeps also keeps
the array that it is a view of.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.data import Minibatch, Position, Schema, Value
from feedline.data.minibatch import Origins, whole_minibatch
from feedline.feed.assembly import ChunkSet
from feedline.feed.packing.axis import Axis, Cursor, SegmentSlice
from feedline.feed.reading.reader import Reader, Staging
from feedline.feed.timeline.elements import ended_parts

#: Limit of the bytes that are copied together. The second cache of a core holds them with room to spare.
MAX_BYTES = 128 << 10

# Limits of the number of minibatches: fewer are not worth the effort, more gain nothing.
_MIN_COUNT, _MAX_COUNT = 4, 64

# Bypasses NamedTuple.__new__, which is a Python function.
_tuple: Callable[..., Any] = tuple.__new__


class CopyTogether:
    """The minibatches copied together, in order.

    Args:
        axis: axis of the minibatches, which `Whole` plans for one rank.
        chunks, reader: chunks to copy from.
        schema: streams of minibatches.
        sources: function from ids to the number of the corpus of each sequence. None if there is only one corpus.

    Attributes:
        cursor: cursor at which the next minibatch begins. None if there is none.
        size: budget in samples that the minibatches were planned for.
        used: number of minibatches taken.
    """

    def __init__(
        self, axis: Axis, *, chunks: ChunkSet, reader: Reader, schema: Schema, sources: Callable[..., Any] | None
    ) -> None:
        self._axis, self._chunks, self._reader = axis, chunks, reader
        self._staging = reader if isinstance(reader, Staging) else None
        self._schema, self._sources = schema, sources
        self._queued: Iterator[tuple[Any, ...]] = iter(())
        self._size_before = 0
        self._sweep = 0
        self._end: Cursor | None = None
        self.cursor: Cursor | None = None
        self.size = self.used = 0

    @property
    def is_empty(self) -> bool:
        """Whether no minibatch is left."""
        return self.cursor is None

    def drop(self) -> None:
        """Drop the remaining minibatches: the position has jumped, or the request has changed."""
        self.cursor, self._size_before = None, 0
        self._queued = iter(())  # last, as freeing arrays may run other code

    def take(self, label_samples: int) -> tuple[Minibatch, Cursor]:
        """Return the minibatch at `cursor`, whose position carries ``label_samples``, and the cursor after it."""
        # Cleared first: after an interrupt the rest is dropped and planned again. If the cursor stayed, a call after an
        # interrupt that follows `next` would skip the minibatch that was taken.
        self.cursor = None
        place, samples, values, ids, count, after = next(self._queued)
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
        """Plan and copy the minibatches after ``cursor``.

        Args:
            cursor: cursor at the end of a minibatch that is about to be delivered.
            size: budget of that minibatch in samples.
            sequences: number of its sequences.
        """
        before, self._size_before = self._size_before, size
        each = sequences * self._chunks.sequence_bytes
        # If a caller changes the size with each call, every copy would be dropped.
        if size != before or each * _MIN_COUNT > MAX_BYTES or (self._staging is not None and self._staging.stages):
            self.cursor = None
            return
        most = _MAX_COUNT if each * _MAX_COUNT <= MAX_BYTES else int(MAX_BYTES / each)
        stops = self._stops(cursor, size, most)
        if len(stops) <= _MIN_COUNT:
            self.cursor = None
            return
        try:
            values = self._copy(SegmentSlice(cursor.segment, stops[0], stops[-1]), np.asarray(stops))
        except Exception:
            values = None  # the error is raised when its sequence is requested, after the sequences before it
        if values is None:
            self.cursor = None
            return
        self._enqueue(cursor, stops, values)
        self.size, self.cursor = size, cursor

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

    def _copy(self, part: SegmentSlice, stops: NDArray[np.int64]) -> list[dict[str, Value]] | None:
        """Return the values of the sequences between each of ``stops`` and the next.

        Return None if some sequences cannot be read, or are not in memory yet.
        """
        reader, parts = self._reader, (part,)
        if not reader.holds(part.segment.plan) or not reader.ready(parts):
            return None
        slots, index = reader.take(parts)
        if self._chunks.errors(slots, index):
            return None
        return self._chunks.gather_parts(slots, index, stops - stops[0])

    def _enqueue(self, cursor: Cursor, stops: list[int], values: list[dict[str, Value]]) -> None:
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
