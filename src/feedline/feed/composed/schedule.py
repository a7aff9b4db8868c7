"""The source of every place under one vector of weights: a period that repeats without end.

It follows Tijdeman's theorem (1980, "The chairman assignment problem"): the items of a source before any place n differ
from n times its weight by at most 1 - 1/(2K - 2), for K sources, and no schedule does better for all weights. Building
a period takes a few milliseconds. Everything else is arithmetic.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.feed.protocol import Ints

Sources = NDArray[np.uint16]


class PeriodicSchedule:
    """Place n holds item ``rank`` of a source, for every n >= 0.

    Attributes:
        quotas: places of each source in a period.
        period: places in a period.
    """

    __slots__ = ("_bases", "_bounds", "_places", "_quotas", "_rank", "_source", "period", "quotas")

    def __init__(self, quotas: tuple[int, ...]) -> None:
        self.quotas, self.period = quotas, sum(quotas)
        self._quotas = np.array(quotas, np.int64)
        self._source, self._rank = _native.mixture_schedule(self._quotas)
        # The places of source k are _places[_bounds[k]:_bounds[k + 1]], ascending, each with k * period added.
        self._bounds: Ints = np.concatenate([[0], np.cumsum(self._quotas)])
        places = np.argsort(self._source, kind="stable").astype(np.int64)
        self._bases: Ints = np.arange(len(quotas), dtype=np.int64) * self.period
        self._places: Ints = places + np.repeat(self._bases, self._quotas)

    def items(
        self, first: int, count: int, *, seed: int, stage: int, block: int, length: int | None
    ) -> tuple[Sources, Ints]:
        """Return the source of places ``first`` to ``first + count - 1``, uint16 (n,), and the number of its item,
        int64 (n,).

        Args:
            first, count: the places.
            seed, stage: keys of the shuffle of sources within blocks. The items of a source stay in order.
            block: places in a block. 1: not shuffled.
            length: number of all places, where the last block ends. None: no end.
        """
        return _native.mixture_items(
            self._quotas,
            self._source,
            self._rank,
            seed=seed,
            stage=stage,
            block=block,
            length=length,
            first=first,
            count=count,
        )

    def counts(self, n: int) -> Ints:
        """Return the number of items of each source before place ``n``, int64 (sources,)."""
        period, r = divmod(n, self.period)
        counts: Ints = self._places.searchsorted(self._bases + r)
        counts -= self._bounds[:-1]
        counts += period * self._quotas
        return counts

    def where(self, k: int, item: int) -> int | None:
        """Return the place of an item of source ``k``, or None if the source has no places."""
        if not self.quotas[k]:
            return None
        period, r = divmod(item, self.quotas[k])
        return period * self.period + int(self._places[self._bounds[k] + r] - self._bases[k])


@lru_cache(64)
def schedule_of(quotas: tuple[int, ...]) -> PeriodicSchedule:
    """Return the schedule of these quotas."""
    return PeriodicSchedule(quotas)


def last_at_most(starts: list[int], n: int) -> int:
    """Return the index of the last of the ascending ``starts`` that is at most ``n``."""
    return bisect_left(starts, n + 1) - 1
