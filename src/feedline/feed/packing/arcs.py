"""Shares of minibatches by arc: part r of w takes what stands in the arcs r, r + w, r + 2w, ... (see `timeline.arcs`).

Every rank plans the same global minibatch, as with shares by place; but what a rank takes of it lies in the windows of
its own arcs, so that it reads nothing else. Cost: one pass over each segment to find what a part takes of it, then two
binary searches per minibatch.
"""

from __future__ import annotations

import numpy as np

from feedline.feed.packing.axis import SegmentSlice
from feedline.feed.packing.local import Owned
from feedline.feed.timeline import Segment


class ArcShares:
    """The `Sharing` of an order in arcs.

    Args:
        arcs: number of arcs.
    """

    def __init__(self, arcs: int) -> None:
        self._arcs = arcs
        self._last: tuple[Segment, int, int, Owned] | None = None

    def share(self, parts: tuple[SegmentSlice, ...], samples: int, index: int, count: int) -> tuple[SegmentSlice, ...]:
        """See `Sharing.share`."""
        if count == 1:
            return parts
        mine = []
        for segment, a, b in parts:
            owned = self._of(segment, index, count)
            low, high = owned.before(a), owned.before(b)
            if low < high:
                mine.append(SegmentSlice(owned.segment, low, high))
        return tuple(mine)

    def held(self, segment: Segment, index: int, count: int) -> Segment:
        """See `Sharing.held`."""
        return self._of(segment, index, count).segment

    def _of(self, segment: Segment, index: int, count: int) -> Owned:
        """Return what part ``index`` of ``count`` takes of a segment; keeps the last one."""
        if count == 1:
            return Owned(segment)
        last = self._last
        if last is not None and last[0] is segment and last[1:3] == (index, count):
            return last[3]
        places = segment.plan.first + segment.start + np.arange(segment.n)
        which = np.flatnonzero(places % self._arcs % count == index)
        owned = Owned(segment.take(which).within(segment.plan.part(index, count)), which)
        self._last = (segment, index, count, owned)
        return owned
