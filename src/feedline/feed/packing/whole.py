"""The default rule: whole sequences up to a budget in samples, divided between ranks.

Every rank computes the same global minibatch and takes its part, so all ranks take the same number of steps. A sequence
that starts at sample o of a global minibatch of S samples belongs to rank ``o * count // S``. A sequence without
samples at the very end belongs to the last rank. The parts in rank order are the global minibatch. In orders of arcs, a
rank takes the sequences of the arcs that it owns, so that it reads nothing else. With a `Balance` it takes sequences by
their work. Cost: one binary search per minibatch and segment.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.feed.equal_work import by_position
from feedline.feed.packing.axis import Axis, Cursor, SegmentSlice
from feedline.feed.packing.balance import Balance
from feedline.feed.packing.ownership import Ownership
from feedline.feed.packing.packer import Plan, nothing_left
from feedline.feed.timeline import Segment

Ints = NDArray[np.int64]


class Whole:
    """The `Packer` of ``filling="global"``. A minibatch never exceeds the size, unless it is a single longer sequence.

    Args:
        arcs: number of arcs, of which part r of w takes the sequences of r, r + w, r + 2w, ... (see `timeline.arcs`).
            None if each part takes a run of neighbours.
        balance: rule by which parts have equal work. None: equal numbers of samples.
    """

    def __init__(self, arcs: int | None = None, balance: Balance | None = None) -> None:
        self._ownership = None if arcs is None else Ownership(arcs)
        self._balance = balance

    def plan(self, axis: Axis, cursor: Cursor, size: int, index: int, count: int) -> Plan:
        """See `Packer`. Minibatches cross sweeps."""
        start = axis.advance_if_at_end(cursor)
        if start is None:
            return nothing_left(cursor)
        current = start
        parts: list[SegmentSlice] = []
        total, sweep_end = 0, False
        while True:
            segment, k = current.segment, current.k
            limit = segment.n if axis.max_samples is None else axis.limit(current)
            end = None if segment.breaks is None else _next(segment.breaks, k)
            if end is not None:
                limit = min(limit, end)
            stop = fit(segment, k, limit, size - total, first=not parts)
            if stop > k:
                part = SegmentSlice(segment, k, stop)
                parts.append(part)
                total += part.samples
                current = Cursor(segment, stop, current.samples, current.fingerprint)
            if stop < segment.n:
                break
            ended = stop > k and axis.ends_sweep(part)
            sweep_end = sweep_end or ended
            if total >= size or stop == end:
                break
            if ended and total == 0 and segment.plan.sweep >= axis.first_whole_sweep(start):
                break  # a whole sweep without a sample: the minibatch would never be full
            following = axis.advance_if_at_end(current)
            if following is None:
                break
            current = following
        needed = None
        if count == 1:
            mine = tuple(parts)
        elif self._balance is not None:
            mine = self._balance.take(parts, index, count)
        elif self._ownership is None:
            mine = _by_place(parts, total, index, count)
        else:
            slices = []
            for segment, a, b in parts:
                owned = self._ownership.of(segment, index, count)
                low, high = owned.before(a), owned.before(b)
                if low < high:
                    slices.append(SegmentSlice(owned.segment, low, high))
            mine = tuple(slices)
            needed = None if mine else self._ownership.of(start.segment, index, count).segment
        sizes = None if count == 1 else partial(self._share_sizes, parts, total, count)
        return Plan(start, mine, total, sweep_end, current, held=needed, share_sizes=sizes)

    def _share_sizes(self, parts: Sequence[SegmentSlice], samples: int, count: int) -> Ints:
        """Return the number of sequences of each share."""
        if self._balance is not None:
            return np.bincount(self._balance.owners(self._balance.work(parts), count), minlength=count)
        if self._ownership is not None:
            return self._ownership.sizes(parts, count)
        if all(segment.ends is None for segment, _, _ in parts):
            return by_position(samples, count)
        starts = _all_starts(parts)
        borders = np.searchsorted(starts, -(-np.arange(count, dtype=np.int64) * samples // count))
        return np.diff(borders, append=len(starts))


def _next(breaks: list[int], k: int) -> int | None:
    """Return the first of ``breaks`` after index ``k``, or None if there is none."""
    at = bisect_right(breaks, k)
    return breaks[at] if at < len(breaks) else None


def fit(segment: Segment, k: int, limit: int, room: int, first: bool) -> int:
    """Return the end of the run of sequences from index ``k`` that fits ``room`` samples. Stops once ``room`` is full.

    Args:
        segment: segment of the sequences.
        k: index of the first sequence.
        limit: index to stop at in any case, at least ``k``.
        room: number of samples.
        first: whether to take one sequence even if it is longer than ``room``.
    """
    if segment.ends is not None:
        return _native.run_ends(segment.ends, k, limit, max(room, 0), first)[0]
    return min(k + max(room, int(first)), limit)


def _by_place(parts: Sequence[SegmentSlice], samples: int, index: int, count: int) -> tuple[SegmentSlice, ...]:
    """Return the sequences of part ``index`` of ``count`` of a minibatch of ``samples`` samples: a run of
    neighbours."""
    starts = _all_starts(parts)
    lo = int(np.searchsorted(starts, -(-index * samples // count), side="left"))
    hi = len(starts)
    if index + 1 < count:
        hi = int(np.searchsorted(starts, -(-(index + 1) * samples // count), side="left"))
    mine, at = [], 0
    for part in parts:
        size = part.b - part.a
        a, b = max(lo - at, 0), min(hi - at, size)
        if a < b:
            mine.append(SegmentSlice(part.segment, part.a + a, part.a + b))
        at += size
    return tuple(mine)


def _all_starts(parts: Sequence[SegmentSlice]) -> Ints:
    """Return the sample at which each sequence starts, counted from the first one."""
    if len(parts) == 1:
        return _starts(parts[0])
    widths = [part.samples for part in parts]  # _starts counts from the part's own first sequence
    befores = np.repeat(np.cumsum([0, *widths[:-1]]), [part.b - part.a for part in parts])
    starts: Ints = np.concatenate([_starts(part) for part in parts]) + befores
    return starts


def _starts(part: SegmentSlice) -> Ints:
    ends = part.segment.ends
    if ends is None:
        return np.arange(part.b - part.a, dtype=np.int64)
    starts: Ints = ends[part.a : part.b] - ends[part.a]
    return starts
