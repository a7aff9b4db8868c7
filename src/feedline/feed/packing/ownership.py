"""The sequences of a segment that a worker owns: they belong to its share of chunks, sequences or arcs, in turn."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.feed.timeline import Segment

Ints = NDArray[np.int64]


class Owned(NamedTuple):
    """The sequences of a segment that one worker owns.

    Attributes:
        segment: segment of only these sequences.
        which: int64 (n,), their indices in the whole segment, ascending. None: all of them.
    """

    segment: Segment
    which: Ints | None = None

    def before(self, k: int) -> int:
        """Return how many of them precede index ``k`` of the whole segment."""
        return k if self.which is None else int(np.searchsorted(self.which, k))

    def whole(self, i: int) -> int:
        """Return the index in the whole segment of number ``i`` of them."""
        return i if self.which is None else int(self.which[i])


class Ownership:
    """Determines which sequences a worker owns: their number, modulo the number of workers, is its rank.

    A sequence is numbered in the sweep (in its window, if chunk sizes are unknown before reading), or has the number of
    its arc in an order of arcs, or of its chunk in the order of the sweep. Caches the last segment.

    Args:
        arcs: number of arcs. None: there are none.
    """

    def __init__(self, arcs: int | None = None) -> None:
        self._arcs = arcs
        self._last: tuple[Segment, int, int, Owned] | None = None

    def of(self, segment: Segment, index: int, count: int, *, by_chunk: bool = False) -> Owned:
        """Return the part of ``segment`` that worker ``index`` of ``count`` owns."""
        if count == 1:
            return Owned(segment)
        last = self._last
        if last is not None and last[0] is segment and last[1:3] == (index, count):
            return last[3]
        if by_chunk:
            numbers = segment.plan.position + segment.place.astype(np.int64)
        else:
            numbers = segment.plan.first + segment.start + np.arange(segment.n)
        if self._arcs is not None:
            numbers %= self._arcs
        which = np.flatnonzero(numbers % count == index)
        mine, part = segment.take(which), segment.plan.part(index, count)
        mine.place, mine.plan = part.renumbered(mine.place), part  # a plan with only the chunks that it needs
        owned = Owned(mine, which)
        self._last = (segment, index, count, owned)
        return owned
