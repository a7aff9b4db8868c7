"""A sample of the numbers of a stream, for its quantiles: those of the rows with the lowest hashes.

The hash of a row depends on its place in the corpus alone. So the sample of two parts of a corpus has the lowest hashes
of both samples, and no merge, thread or restart changes it. Up to `SIZE` numbers it has all of them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIZE = 1 << 15
"""Numbers that are kept."""

ALL = (1 << 64) - 1
"""Threshold of hashes below which all rows are."""

_PERMILLE = 3.29  # standard deviations that a normal variable exceeds once in a thousand times

_PERCENTS = np.linspace(0.0, 1.0, 101)


class RowSample:
    """The numbers of a sample.

    Args:
        dtype: their dtype.
    """

    def __init__(self, dtype: Any) -> None:
        self._hashes = [np.empty(0, np.uint64)]
        self._numbers = [np.empty(0, dtype)]
        self._waiting = 0
        self.threshold = ALL
        """Hash from which on no row can enter the sample."""

    def add(self, hashes: NDArray[np.uint64], numbers: NDArray[Any]) -> None:
        """Add numbers, without NaN, with the hashes of their rows."""
        self._hashes.append(hashes)
        self._numbers.append(numbers)
        self._waiting += len(hashes)
        if self._waiting > 3 * SIZE:
            self.cut()

    def cut(self) -> tuple[NDArray[np.uint64], NDArray[Any]]:
        """Drop what is not of the sample. Return hashes and numbers."""
        hashes, numbers = np.concatenate(self._hashes), np.concatenate(self._numbers)
        if len(hashes) > SIZE:
            lowest = np.argpartition(hashes, SIZE - 1)[:SIZE]
            hashes, numbers = hashes[lowest], numbers[lowest]
        if len(hashes) == SIZE:
            self.threshold = int(hashes.max())
        self._hashes, self._numbers, self._waiting = [hashes], [numbers], 0
        return hashes, numbers

    def merge(self, following: RowSample) -> None:
        """Add the sample of following rows."""
        for hashes, numbers in zip(following._hashes, following._numbers, strict=True):
            self.add(hashes, numbers)

    def percentiles(self, low: float, high: float) -> list[float]:
        """Return the quantiles 0.00, 0.01 to 1.00. The first and the last are exact. None without numbers."""
        _, numbers = self.cut()
        if not len(numbers):
            return []
        numbers = np.sort(numbers)
        part, lower = np.modf(_PERCENTS * (len(numbers) - 1))
        places = lower.astype(np.int64)
        before, after = (numbers[np.minimum(places + i, len(numbers) - 1)].astype(np.float64) for i in (0, 1))
        with np.errstate(invalid="ignore", over="ignore"):
            step = after - before
            quantiles = np.where(part < 0.5, before + step * part, after - step * (1 - part))  # the bits of np.quantile
        quantiles = np.where(np.isfinite(quantiles), quantiles, before)  # to infinity, or between numbers too far apart
        return [float(low), *quantiles[1:-1].tolist(), float(high)]

    def rank_error(self, count: int) -> float:
        """Return how far the rank of a quantile of the sample may be from its rank among ``count`` numbers, as a part
        of them. It is exceeded once in a thousand times. 0: the sample has all of them."""
        kept = len(self.cut()[1])
        return 0.0 if kept == count else _PERMILLE * 0.5 / math.sqrt(max(kept, 1))
