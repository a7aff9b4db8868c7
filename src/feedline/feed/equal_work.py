"""The work of sequences, and their assignment to ranks by it: functions of a minibatch, the same on every rank."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feedline import _native

Ints = NDArray[np.int64]

#: Work of sequences, (n,), by their lengths in samples, int64 (n,).
WorkRule = Callable[[Ints], ArrayLike]

_WORK_BITS = 40


def squares(lengths: Ints) -> NDArray[np.float64]:
    """Return the work of attention: the squares of lengths."""
    return np.square(lengths, dtype=np.float64)


def work_of(rule: WorkRule, lengths: Ints) -> NDArray[np.float64]:
    """Return the work of sequences, float64 (n,).

    Raises:
        ValueError: the rule does not return a finite number of at least 0 for each length.
    """
    work = np.asarray(rule(lengths), np.float64)
    if work.shape != lengths.shape:
        raise ValueError(f"expected work (n,) for n = {len(lengths)} lengths from {rule!r}, got shape {work.shape}")
    bad = np.flatnonzero(~(work >= 0) | np.isinf(work))
    if len(bad):
        at = int(bad[0])
        raise ValueError(f"expected finite work of at least 0 from {rule!r}, got {work[at]} for length {lengths[at]}")
    return work


def assign(work: NDArray[np.float64], count: int, counts: Ints | None = None) -> NDArray[np.int32]:
    """Return the rank of each sequence, int32 (n,): the longest first, each to the rank with the least work.

    Args:
        work: float64 (n,), finite and at least 0.
        count: number of ranks.
        counts: int64 (count,), number of sequences of each rank. None if any numbers will do.
    """
    # Compared as integers of up to 40 bits, so that every machine gets the same sums.
    largest = float(work.max(initial=0.0))
    if (work != np.floor(work)).any() or largest >= 1 << _WORK_BITS:
        work = np.floor(np.ldexp(work, _WORK_BITS - math.frexp(largest)[1]))
    return _native.balance(work.astype(np.int64), count, counts)


def by_position(n: int, count: int) -> Ints:
    """Return the number of sequences of each rank by position, int64 (count,): sequence o belongs to rank
    ``o * count // n``."""
    bounds = -(-np.arange(count + 1, dtype=np.int64) * n // count)
    return np.diff(bounds)
