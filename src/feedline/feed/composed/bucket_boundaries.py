"""Boundaries between buckets of lengths that leave the least padding."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from feedline.feed.unique import distinct

Ints = NDArray[np.int64]

# Lengths that may become a boundary, at most. Where there are more, those that as many sequences lie between are taken.
_MOST_CANDIDATES = 1024


def counted(lengths: Iterable[Ints]) -> tuple[Ints, Ints]:
    """Return the different lengths among all of these, ascending, and how often each occurs, int64 (n,)."""
    found, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    for some in lengths:
        new, often = np.unique(some, return_counts=True)
        found, where = np.unique(np.concatenate([found, new]), return_inverse=True)
        counts = np.bincount(where, weights=np.concatenate([counts, often]), minlength=len(found)).astype(np.int64)
    return found, counts


def least_padding(lengths: Ints, counts: Ints, buckets: int) -> list[int]:
    """Return boundaries of at most so many buckets, ascending, the last of which is the greatest length.

    If every sequence is padded to the boundary of its bucket, no other boundaries among the candidates need fewer
    samples. Found by dynamic programming over them: O(buckets * candidates**2).

    Args:
        lengths: int64 (n,), different lengths, ascending.
        counts: int64 (n,), sequences of each.
        buckets: at least 1.
    """
    total = np.cumsum(counts)
    if len(lengths) > _MOST_CANDIDATES:
        wanted = (np.arange(1, _MOST_CANDIDATES + 1) * (int(total[-1]) / _MOST_CANDIDATES)).astype(np.int64)
        at = distinct(np.minimum(np.searchsorted(total, wanted), len(lengths) - 1))
        at[-1] = len(lengths) - 1
    else:
        at = np.arange(len(lengths))
    ends, before = lengths[at].astype(np.float64), total[at].astype(np.float64)
    n = len(at)
    # cost[j]: samples of all sequences up to candidate j, with the buckets so far; came[b][j]: the boundary before it.
    cost = ends * before
    came = []
    for _ in range(min(buckets, n) - 1):
        through = cost[:, None] + ends[None, :] * (before[None, :] - before[:, None])
        through[np.tril_indices(n)] = np.inf
        best = np.argmin(through, axis=0)
        least = through[best, np.arange(n)]
        came.append(np.where(least < cost, best, -1))
        cost = np.minimum(cost, least)
    found = [n - 1]
    for previous in reversed(came):
        if previous[found[-1]] >= 0:
            found.append(int(previous[found[-1]]))
    return [int(lengths[at[j]]) for j in reversed(found)]
