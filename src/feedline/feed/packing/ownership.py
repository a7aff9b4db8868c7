"""The sequences of a segment that a rank owns. Chunks, sequences or arcs belong to the ranks in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.feed.packing.axis import SegmentSlice
from feedline.feed.timeline import Segment

Ints = NDArray[np.int64]


class Owned(NamedTuple):
    """The sequences of a segment that one rank owns.

    Attributes:
        segment: a segment with only these sequences.
        which: int64 (n,), their indices in the whole segment, ascending. None: all of them.
    """

    segment: Segment
    which: Ints | None = None

    def before(self, k: int) -> int:
        """Return how many owned sequences precede index ``k`` of the whole segment."""
        return k if self.which is None else int(np.searchsorted(self.which, k))

    def whole(self, i: int) -> int:
        """Return the index of owned sequence ``i`` in the whole segment."""
        return i if self.which is None else int(self.which[i])


class Ownership:
    """Determines which sequences a rank owns: the number of a sequence, modulo the number of ranks, is its rank.

    The number is the place in the sweep (in the window, if chunk sizes are unknown before reading). In an order of arcs
    it is the number of the arc, and with ``by_chunk`` the place of the chunk in the sweep. Caches the last segment.

    Args:
        arcs: number of arcs. None if there are none.
    """

    def __init__(self, arcs: int | None = None) -> None:
        self._arcs = arcs
        self._last: tuple[Segment, int, int, Owned] | None = None

    def of(self, segment: Segment, index: int, count: int, *, by_chunk: bool = False) -> Owned:
        """Return the part of ``segment`` that rank ``index`` of ``count`` owns."""
        if count == 1:
            return Owned(segment)
        last = self._last
        if last is not None and last[0] is segment and last[1:3] == (index, count):
            return last[3]
        if by_chunk:
            numbers = segment.plan.position + segment.place.astype(np.int64)
        else:
            numbers = self._numbers(segment, 0, segment.n)
        which = np.flatnonzero(numbers % count == index)
        mine, part = segment.take(which), segment.plan.part(index, count)
        mine.place, mine.plan = part.renumber(mine.place), part  # a plan with only the chunks that it needs
        owned = Owned(mine, which)
        self._last = (segment, index, count, owned)
        return owned

    def sizes(self, parts: Sequence[SegmentSlice], count: int) -> Ints:
        """Return how many sequences of ``parts`` each of ``count`` ranks owns, int64 (count,)."""
        numbers = np.concatenate([self._numbers(*part) for part in parts])
        return np.bincount(numbers % count, minlength=count)

    def _numbers(self, segment: Segment, a: int, b: int) -> Ints:
        """Return the numbers of the sequences ``a:b`` by which ranks own them."""
        numbers = segment.plan.first + segment.start + np.arange(a, b)
        return numbers if self._arcs is None else numbers % self._arcs
