"""CNTK's filling: each worker packs its own sequences by itself. For parity with CNTK 2.7, not for new work.

All workers walk the same order, but each takes only its own sequences and fills its own share of the size. So they are
at different places between minibatches, and a state belongs to one rank. The union over workers is every sequence once.
A worker may end earlier than another, or own nothing at all: then it ends with the axis or, if the axis is endless,
delivers one empty minibatch per sweep. Cost: one pass over each segment to find the worker's sequences, then a few
binary searches per minibatch.
"""

from __future__ import annotations

import warnings

from feedline.feed.packing.axis import Axis, Cursor, SegmentSlice
from feedline.feed.packing.ownership import Ownership
from feedline.feed.packing.packer import Plan, nothing_left
from feedline.feed.packing.whole import fit


class Local:
    """The `Packer` of ``filling="cntk"``."""

    def __init__(self) -> None:
        self._ownership = Ownership()

    def plan(self, axis: Axis, cursor: Cursor, size: int, index: int, count: int) -> Plan:
        """See `Packer`. The first sequence is taken even if it is longer, unless a sweep has ended before it."""
        settled = axis.settle(cursor)
        if settled is None:
            return nothing_left(cursor)
        room = share_of(size, index, count)
        start, barren = settled, axis.first_whole_sweep(settled)
        parts: list[SegmentSlice] = []
        total, sweep_end = 0, False
        while parts or settled.segment.plan.sweep <= barren:
            segment = settled.segment
            owned = self._ownership.of(segment, index, count, by_chunk=axis.timeline.shuffle)
            mine, limit = owned.segment, axis.limit(settled)
            a, b = owned.before(settled.k), owned.before(limit)
            stop = fit(mine, a, b, room - total, first=not parts and not sweep_end)
            if stop > a:
                parts.append(SegmentSlice(mine, a, stop))
                total += mine.before(stop) - mine.before(a)
            # Skip the other workers' sequences, up to the next own sequence that does not fit or to the end of the
            # sweep. Without randomization, CNTK stops after a full minibatch.
            full = total >= room
            k = owned.whole(stop) if stop < b else limit
            if full and not axis.timeline.shuffle:
                k = owned.whole(stop - 1) + 1
            settled = settled._replace(k=k)
            at_end = axis.ends_sweep(SegmentSlice(segment, 0, k))
            sweep_end = sweep_end or at_end
            if stop < b or (full and (at_end or not axis.timeline.shuffle)):
                break
            if at_end and parts and total == 0 and segment.plan.sweep >= barren:
                break  # a whole sweep without a sample: the minibatch would never be full
            following = axis.settle(settled)
            if following is None:
                if not parts:
                    return nothing_left(settled)
                break
            settled = following
        passed = axis.samples(settled) - axis.samples(start)
        return Plan(start, tuple(parts), passed, sweep_end, settled)


def share_of(size: int, index: int, count: int) -> int:
    """Return how many samples of ``size`` worker ``index`` fills: an equal share, and the remainder for the first
    workers."""
    share = size // count + (index < size % count)
    if share == 0:
        warnings.warn(
            f"a minibatch of {size} samples leaves none for worker {index} of {count}; it takes 1",
            RuntimeWarning,
            stacklevel=5,
        )
    return max(1, share)
