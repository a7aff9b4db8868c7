"""Decide which pages of objects a bounded cache keeps, chunk by chunk, in the order in which chunks are read.

A decision depends on the order and on earlier decisions, never on which bytes have arrived. So `fetch_plan` can make
the same decisions without reading, and predicts exactly which bytes a run fetches. A chunk is kept if there is room, or
if enough pages in the cache are needed later than this chunk is needed again. Otherwise nothing is dropped for it. This
is Belady's rule with bypass, in units of windows.

Cost: a byte for each page of the objects that were read, a few microseconds for each chunk, and the cost of `NextUses`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from feedline.feed.reading.next_uses import NextUses
from feedline.feed.remote.object_cache import CachedObject, KeepDecision, PageRange

Mask = NDArray[np.bool_]


class CachePolicy:
    """The rule of a cache, and the pages that it keeps.

    Args:
        budget_pages: maximum of pages that are kept.
        ranges_of: function that returns the pages of a chunk, as `object_cache.coalesce_extents` does.
        pages_kept: pages that are kept at the beginning, by key of their object.
        pages_held: pages that are never dropped, by key of their object.

    Attributes:
        count: number of pages that are kept.
        peak: the largest value of ``count`` so far.
    """

    def __init__(
        self,
        budget_pages: int,
        ranges_of: Callable[[int], Sequence[PageRange]],
        pages_kept: dict[str, Mask] | None = None,
        pages_held: Mapping[str, Mask] | None = None,
    ) -> None:
        self._budget, self._ranges_of = budget_pages, ranges_of
        self._tables: dict[str, Mask] = {} if pages_kept is None else pages_kept
        self._held: Mapping[str, Mask] = {} if pages_held is None else pages_held
        for key, table in self._held.items():
            self._tables[key] = self._tables[key] | table if key in self._tables else table.copy()
        self.count = self.peak = sum(int(np.count_nonzero(table)) for table in self._tables.values())

    def decide(self, chunk: int, uses: NextUses, *, must: bool = False) -> KeepDecision:
        """Decide about a chunk that is about to be read.

        Args:
            chunk: number of the chunk.
            uses: the next use of each chunk. The present use of this chunk counts as past from now on.
            must: whether pages that are needed sooner may be dropped, too, because other processes of this machine need
                the chunk.
        """
        uses.begin(chunk)
        ranges = self._ranges_of(chunk)
        missing = [
            (cached, first + a, first + b)
            for cached, first, end in ranges
            for a, b in runs(~self._table(cached)[first:end])
        ]
        decision = KeepDecision(missing, False, [])
        count = decision.pages
        if not count or count > self._budget:
            return decision
        short, drops = self.count + count - self._budget, []
        if short > 0:
            drops = self._to_drop(chunk, ranges, short, uses, must=must)
            if not drops:
                return decision
        for cached, first, end in drops:
            self._table(cached)[first:end] = False
            self.count -= end - first
        for cached, first, end in missing:
            self._table(cached)[first:end] = True
            self.count += end - first
        self.peak = max(self.peak, self.count)
        return decision._replace(keeps=True, drops=drops)

    def _to_drop(
        self, chunk: int, mine: Sequence[PageRange], short: int, uses: NextUses, *, must: bool
    ) -> list[PageRange]:
        """Return at least ``short`` pages that may be dropped for a chunk, or no pages if there are too few."""
        drops: list[PageRange] = []
        taken: list[int] = []
        for victim in uses.needed_later_than(chunk, all_of_them=must):
            taken.append(victim)
            for run in self._droppable(victim, [*mine, *drops]):
                drops.append(run)
                short -= run[2] - run[1]
            if short <= 0:
                return drops
        uses.put_back(taken)
        return []

    def _droppable(self, chunk: int, without: Sequence[PageRange]) -> list[PageRange]:
        ranges = []
        for cached, first, end in self._ranges_of(chunk):
            table = self._table(cached)
            # Pages at both ends may belong to neighbours, too, and stay as long as the neighbours do.
            if first < end - 1 and first > 0 and table[first - 1]:
                first += 1
            if first < end - 1 and end < len(table) and table[end]:
                end -= 1
            droppable = table[first:end].copy()
            if cached.key in self._held:
                droppable &= ~self._held[cached.key][first:end]
            for excluded, a, b in without:
                if excluded is cached:
                    droppable[max(0, a - first) : max(0, b - first)] = False
            ranges += [(cached, first + a, first + b) for a, b in runs(droppable)]
        return ranges

    def _table(self, cached: CachedObject) -> Mask:
        table = self._tables.get(cached.key)
        if table is None:
            table = self._tables[cached.key] = np.zeros(cached.pages, np.bool_)
        return table


def runs(mask: Mask) -> list[tuple[int, int]]:
    """Return the runs of true entries of a mask, as (first, end)."""
    if not mask.any():
        return []
    if mask.all():
        return [(0, len(mask))]
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]
