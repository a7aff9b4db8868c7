"""Places of the axis that are passed over, such as the steps at which a loss diverged.

A place is counted in sequences from the start of the axis. A sequence that is passed over is not delivered, and counts
neither as samples nor in the fingerprint, as if it were not on the axis.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

from feedline.data import Position
from feedline.feed.protocol import whole_number

_MAX_PLACE = 2**62

Range = tuple[int, int]


class Jumps:
    """Ranges of places, ``(start, stop)``. A range includes its start, and not its stop.

    Args:
        ranges: ranges in any order. Ranges that overlap or touch become one.

    Attributes:
        ranges: disjoint ranges, ascending.
    """

    __slots__ = ("_starts", "ranges")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        merged: list[Range] = []
        for start, stop in sorted(ranges):
            if merged and start <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(merged[-1][1], stop)
            else:
                merged.append((start, stop))
        self.ranges = tuple(merged)
        self._starts = [start for start, _ in merged]

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def skip(self, place: int) -> int:
        """Return the first place from ``place`` on that is not passed over."""
        k = bisect_right(self._starts, place) - 1
        return max(place, self.ranges[k][1]) if k >= 0 else place

    def room(self, place: int, most: int) -> int:
        """Return how many places follow ``place`` before the next jump, at most ``most``."""
        k = bisect_right(self._starts, place)
        return min(most, self._starts[k] - place) if k < len(self._starts) else most

    def between(self, start: int, stop: int) -> int:
        """Return how many places from ``start`` to before ``stop`` are passed over."""
        return sum(max(0, min(b, stop) - max(a, start)) for a, b in self.ranges)

    def within(self, jumps: Jumps, stop: int) -> bool:
        """Return whether every place before ``stop`` that is passed over here is also passed over in ``jumps``."""
        return all(jumps.between(a, min(b, stop)) == min(b, stop) - a for a, b in self.ranges if a < stop)

    def join(self, jumps: Jumps) -> Jumps:
        """Return the ranges of both."""
        return Jumps((*self.ranges, *jumps.ranges))

    def to_json(self) -> list[list[int]]:
        """Return the ranges in JSON types."""
        return [list(pair) for pair in self.ranges]

    @classmethod
    def from_json(cls, value: Any) -> Jumps:
        """Return the ranges of a state.

        Raises:
            TypeError, ValueError: ``value`` has no valid ranges.
        """
        if not isinstance(value, list) or any(not isinstance(pair, list) for pair in value):
            raise TypeError("expected `jumps` as lists of two places")
        jumps = cls(_range(pair) for pair in value)
        if jumps.to_json() != value:
            raise ValueError("expected `jumps` that are ascending and do not touch")
        return jumps


def read_jumps(jumps: Any, length: int | None) -> Jumps:
    """Return a caller's ranges of places or positions, on an axis with sweeps of ``length`` sequences.

    Raises:
        TypeError, ValueError: ``jumps`` is not a list of ranges of places.
    """
    if isinstance(jumps, (str, Position)) or not isinstance(jumps, Sequence):
        raise TypeError(f"expected jumps as a list of (start, stop), got {jumps!r}")
    return Jumps(_range(pair, length) for pair in jumps)


def _range(pair: Any, length: int | None = None) -> Range:
    if isinstance(pair, Position) or not isinstance(pair, (list, tuple)) or len(pair) != 2:
        raise TypeError(f"expected a jump as (start, stop), got {pair!r}")
    start, stop = (
        end.sweep * (length or 0) + end.sequence if isinstance(end, Position) else whole_number("a place", end, 0)
        for end in pair
    )
    if not start < stop <= _MAX_PLACE:
        raise ValueError(f"expected a jump from a place to a later one, up to 2**62, got {start} to {stop}")
    return start, stop
