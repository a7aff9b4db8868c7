"""Boundaries between buckets of lengths that leave the least padding."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from feedline.feed.protocol import Ints
from feedline.feed.unique import distinct

# Limit of lengths that may become a boundary. If there are more, quantiles are taken, with equally many sequences
# between them.
_MAX_CANDIDATES = 1024


def count_lengths(lengths: Iterable[Ints]) -> tuple[Ints, Ints]:
    """Return the different lengths, ascending, and the number of sequences of each, int64 (n,)."""
    unique, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    for part in lengths:
        new, often = np.unique(part, return_counts=True)
        unique, where = np.unique(np.concatenate([unique, new]), return_inverse=True)
        counts = np.bincount(where, weights=np.concatenate([counts, often]), minlength=len(unique)).astype(np.int64)
    return unique, counts


def least_padding(lengths: Ints, counts: Ints, buckets: int) -> list[int]:
    """Return ascending boundaries of at most ``buckets`` buckets. The last one is the greatest length.

    If every sequence is padded to the boundary of its bucket, no other boundaries among the candidates need fewer
    samples. Dynamic programming over the candidates costs O(buckets * candidates**2).

    Args:
        lengths: int64 (n,), different lengths, ascending.
        counts: int64 (n,), sequences of each.
        buckets: at least 1.
    """
    total = np.cumsum(counts)
    if len(lengths) > _MAX_CANDIDATES:
        targets = (np.arange(1, _MAX_CANDIDATES + 1) * (int(total[-1]) / _MAX_CANDIDATES)).astype(np.int64)
        at = distinct(np.minimum(np.searchsorted(total, targets), len(lengths) - 1))
        at[-1] = len(lengths) - 1
    else:
        at = np.arange(len(lengths))
    ends, before = lengths[at].astype(np.float64), total[at].astype(np.float64)
    n = len(at)
    # cost[j]: samples of all sequences up to candidate j, with the buckets so far. predecessors[b][j]: the boundary
    # before it.
    cost = ends * before
    predecessors = []
    for _ in range(min(buckets, n) - 1):
        through = cost[:, None] + ends[None, :] * (before[None, :] - before[:, None])
        through[np.tril_indices(n)] = np.inf
        best = np.argmin(through, axis=0)
        least = through[best, np.arange(n)]
        predecessors.append(np.where(least < cost, best, -1))
        cost = np.minimum(cost, least)
    boundaries = [n - 1]
    for previous in reversed(predecessors):
        if previous[boundaries[-1]] >= 0:
            boundaries.append(int(previous[boundaries[-1]]))
    return [int(lengths[at[j]]) for j in reversed(boundaries)]
