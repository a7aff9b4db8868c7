"""Decide what a bounded cache of objects keeps, in the order in which chunks are read.

Decisions depend on the order and on what was kept before, never on which bytes have arrived by now. So a run makes them
chunk by chunk, and a plan makes the same ones without reading anything (see `fetch_plan`): what is planned is what is
fetched. A chunk is kept if there is room, or if enough is kept that is needed later than this chunk is again; else
nothing is dropped for it. That is Belady's rule with bypass, by windows.

Cost: a byte for each page of the objects that were read, some microseconds for each chunk, and what `NextUses` costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.feed.reading.next_uses import NextUses
from feedline.feed.remote.cache import CachedObject

Range = tuple[CachedObject, int, int]
"""Pages of an object, first and end."""

Mask = NDArray[np.bool_]


class KeepDecision(NamedTuple):
    """What becomes of a chunk.

    Attributes:
        missing: runs of pages that have to be fetched.
        keeps: whether they are kept.
        drops: runs of pages that are dropped for them.
    """

    missing: list[Range]
    keeps: bool
    drops: list[Range]

    @property
    def pages(self) -> int:
        """Number of pages to fetch."""
        return sum(end - first for _, first, end in self.missing)


class Keeping:
    """What is kept after each decision.

    Args:
        budget_pages: most pages that are kept.
        ranges_of: function that returns the pages of a chunk, as `remote.cache.together` does.
        kept: pages that are kept at the beginning, by key of their object.
        held: those of them that are not dropped.

    Attributes:
        count: number of pages that are kept.
        most: the largest that ``count`` was.
    """

    def __init__(
        self,
        budget_pages: int,
        ranges_of: Callable[[int], Sequence[Range]],
        kept: dict[str, Mask] | None = None,
        held: Mapping[str, Mask] | None = None,
    ) -> None:
        self._budget, self._ranges_of = budget_pages, ranges_of
        self._tables: dict[str, Mask] = {} if kept is None else kept
        self._held: Mapping[str, Mask] = {} if held is None else held
        for key, table in self._held.items():
            self._tables[key] = self._tables[key] | table if key in self._tables else table.copy()
        self.count = self.most = sum(int(np.count_nonzero(table)) for table in self._tables.values())

    def begin(self, chunk: int, uses: NextUses, *, must: bool = False) -> KeepDecision:
        """Decide about a chunk that is about to be read.

        Args:
            chunk: its number.
            uses: when chunks are needed next; counts this use as past.
            must: whether to drop what is needed sooner, too, as others on this machine will want this chunk.
        """
        uses.begin(chunk)
        ranges = self._ranges_of(chunk)
        missing = [
            (one, first + a, first + b) for one, first, end in ranges for a, b in runs(~self._table(one)[first:end])
        ]
        decision = KeepDecision(missing, False, [])
        wanted = decision.pages
        if not wanted or wanted > self._budget:
            return decision
        short, drops = self.count + wanted - self._budget, []
        if short > 0:
            drops = self._found(chunk, ranges, short, uses, must=must)
            if not drops:
                return decision
        for one, first, end in drops:
            self._table(one)[first:end] = False
            self.count -= end - first
        for one, first, end in missing:
            self._table(one)[first:end] = True
            self.count += end - first
        self.most = max(self.most, self.count)
        return decision._replace(keeps=True, drops=drops)

    def _found(self, chunk: int, mine: Sequence[Range], short: int, uses: NextUses, *, must: bool) -> list[Range]:
        """Return at least ``short`` pages that may be dropped for a chunk; none if there are not as many."""
        found: list[Range] = []
        taken: list[int] = []
        for victim in uses.needed_later_than(chunk, all_of_them=must):
            taken.append(victim)
            for run in self._droppable(victim, [*mine, *found]):
                found.append(run)
                short -= run[2] - run[1]
            if short <= 0:
                return found
        uses.put_back(taken)
        return []

    def _droppable(self, chunk: int, without: Sequence[Range]) -> list[Range]:
        found = []
        for one, first, end in self._ranges_of(chunk):
            table = self._table(one)
            # Pages at both ends may belong to neighbours, too: they stay as long as those do.
            if first < end - 1 and first > 0 and table[first - 1]:
                first += 1
            if first < end - 1 and end < len(table) and table[end]:
                end -= 1
            there = table[first:end].copy()
            if one.key in self._held:
                there &= ~self._held[one.key][first:end]
            for other, a, b in without:
                if other is one:
                    there[max(0, a - first) : max(0, b - first)] = False
            found += [(one, first + a, first + b) for a, b in runs(there)]
        return found

    def _table(self, one: CachedObject) -> Mask:
        table = self._tables.get(one.key)
        if table is None:
            table = self._tables[one.key] = np.zeros(one.pages, np.bool_)
        return table


def runs(mask: Mask) -> list[tuple[int, int]]:
    """Return the runs of true entries of a mask, as (first, end)."""
    if not mask.any():
        return []
    if mask.all():
        return [(0, len(mask))]
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]
