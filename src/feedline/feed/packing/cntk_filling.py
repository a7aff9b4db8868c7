"""The filling of CNTK: each rank packs its own sequences by itself. For parity with CNTK 2.7, not for new work.

All ranks walk the same order, but each takes only its own sequences and fills its own share of the size. So they are at
different places between minibatches, and a state belongs to one rank. All ranks together deliver every sequence once. A
rank may end earlier than another. A rank that owns nothing ends with the axis or, if the axis is endless, delivers one
empty minibatch per sweep. Cost: one pass over each segment to find the sequences of the rank, then a few binary
searches per minibatch.
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
        """See `Packer`. Takes the first sequence even if it is longer than the size, unless a sweep has ended before
        it."""
        start = axis.advance_if_at_end(cursor)
        if start is None:
            return nothing_left(cursor)
        room = share_of(size, index, count)
        current, barren = start, axis.first_whole_sweep(start)
        parts: list[SegmentSlice] = []
        total, sweep_end = 0, False
        while parts or current.segment.plan.sweep <= barren:
            segment = current.segment
            owned = self._ownership.of(segment, index, count, by_chunk=axis.timeline.shuffle)
            mine, limit = owned.segment, axis.limit(current)
            a, b = owned.before(current.k), owned.before(limit)
            stop = fit(mine, a, b, room - total, first=not parts and not sweep_end)
            if stop > a:
                parts.append(SegmentSlice(mine, a, stop))
                total += mine.before(stop) - mine.before(a)
            # Skip the sequences of the other ranks, up to the next own sequence that does not fit or to the end of the
            # sweep. Without randomization, CNTK stops after a full minibatch.
            full = total >= room
            k = owned.whole(stop) if stop < b else limit
            if full and not axis.timeline.shuffle:
                k = owned.whole(stop - 1) + 1
            current = current._replace(k=k)
            at_end = axis.ends_sweep(SegmentSlice(segment, 0, k))
            sweep_end = sweep_end or at_end
            if stop < b or (full and (at_end or not axis.timeline.shuffle)):
                break
            if at_end and parts and total == 0 and segment.plan.sweep >= barren:
                break  # a whole sweep without a sample: the minibatch would never be full
            following = axis.advance_if_at_end(current)
            if following is None:
                if not parts:
                    return nothing_left(current)
                break
            current = following
        passed = axis.samples(current) - axis.samples(start)
        return Plan(start, tuple(parts), passed, sweep_end, current)


def share_of(size: int, index: int, count: int) -> int:
    """Return how many samples of ``size`` rank ``index`` fills: an equal share. The first ranks share the remainder."""
    share = size // count + (index < size % count)
    if share == 0:
        warnings.warn(
            f"a minibatch of {size} samples leaves none for rank {index} of {count}; it takes 1",
            RuntimeWarning,
            stacklevel=5,
        )
    return max(1, share)
