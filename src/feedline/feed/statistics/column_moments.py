"""Count, mean, spread and limits of numbers, merged exactly in a fixed order."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline import _native


class Moments(NamedTuple):
    """Moments of some numbers. NaN is counted, and in nothing else.

    Attributes:
        size: how many numbers there are, without NaN.
        nan: how many are NaN.
        mean: their mean. 0 if there are none.
        squares: sum of their squared differences from the mean.
        low, high: the least and the greatest, in the type of the numbers.
    """

    size: int = 0
    nan: int = 0
    mean: float = 0.0
    squares: float = 0.0
    low: Any = None
    high: Any = None

    @property
    def deviation(self) -> float:
        """Standard deviation of all numbers, divided by their count as by NumPy's default. NaN without numbers."""
        return math.sqrt(self.squares / self.size) if self.size else math.nan

    def merged(self, following: Moments) -> Moments:
        """Return the moments of both."""
        if not (self.size and following.size):
            some = self if self.size else following
            return some._replace(nan=self.nan + following.nan)
        size = self.size + following.size
        difference = following.mean - self.mean
        mean = self.mean + difference * (following.size / size)
        if not (math.isfinite(self.mean) and math.isfinite(following.mean)):
            mean = self.mean + following.mean  # infinite, or NaN for infinities of both signs
        return Moments(
            size,
            self.nan + following.nan,
            mean=mean,
            squares=self.squares + following.squares + difference**2 * (self.size * (following.size / size)),
            low=min(self.low, following.low),
            high=max(self.high, following.high),
        )


def moments_of(rows: NDArray[Any], present: NDArray[Any] | None) -> list[Moments]:
    """Return the moments of each column.

    Args:
        rows: (n, width), C-contiguous, integers, float32 or float64.
        present: uint8 (n,), 0 for rows to leave out. None: none is.
    """
    return [_moments(_native.moments(rows, column, present)) for column in range(rows.shape[1])]


def moments_of_lengths(bounds: NDArray[np.int64], present: NDArray[Any] | None) -> Moments:
    """Return the moments of the differences of neighbouring bounds."""
    return _moments(_native.length_moments(bounds, present))


def _moments(row: tuple[int, int, float, float, Any, Any]) -> Moments:
    return Moments(*row) if row[0] else Moments(nan=row[1])
