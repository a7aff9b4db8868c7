"""Stages: which weights hold from where on, what has been given before, and where sources end.

The items of every source are numbered through all stages, so that a change of weights neither loses nor repeats any.
Within a stage, sources are shuffled in blocks of places, counted from its beginning; the last block of a stage may be
shorter. All of it is a pure function of weights, limits and seed; nothing here knows what an item is.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from feedline.feed.composed.schedule import Ints, PeriodicSchedule, Sources, last_at_most, schedule_of
from feedline.feed.composed.weights import quotas_of

# Places of a mixture, at most: native code counts in 64 bits.
LAST_PLACE = 2**62


class Declared(NamedTuple):
    """A stage as somebody declared it.

    Attributes:
        start: place at which it begins.
        weights: weight of each source.
        changed: whether it was added in the run.
    """

    start: int
    weights: tuple[Fraction, ...]
    changed: bool = False


class Stage(NamedTuple):
    """A run of places with one schedule.

    Attributes:
        start, stop: its places; None: it does not end. The start keys its shuffle.
        schedule: who stands where, counted from ``start``.
        before: items of each source before it.
    """

    start: int
    stop: int | None
    schedule: PeriodicSchedule
    before: tuple[int, ...]


class Places(abc.ABC):
    """Which source stands at which place, and with which of its items.

    Attributes:
        block: places that are shuffled together; 1: none.
        length: number of places; None: no end.
        ended_by: the source whose items ended the mixture; None: it has no end, or all have.
        totals: items of each source, if there is an end.
    """

    block: int
    length: int | None
    ended_by: int | None
    totals: tuple[int, ...]

    @abc.abstractmethod
    def at(self, n: int) -> Stage:
        """Return the stage of place ``n``."""

    @abc.abstractmethod
    def items(self, first: int, count: int) -> tuple[Sources, Ints]:
        """Return the source of places ``first`` to ``first + count - 1``, uint16 (n,), and which of its items stands
        there, int64 (n,)."""

    @abc.abstractmethod
    def counts(self, n: int) -> list[int]:
        """Return how many items of each source stand before place ``n``."""

    @abc.abstractmethod
    def block_of(self, stage: Stage, k: int, item: int) -> int | None:
        """Return the block of a stage that holds an item of source ``k``; None if it comes in a later one, or never."""

    def block_bounds(self, stage: Stage, block: int) -> tuple[int, int]:
        """Return the first place of a block of a stage, and the one after its last."""
        a = stage.start + block * self.block
        b = a + self.block
        return a, b if stage.stop is None else min(b, stage.stop)

    def block_around(self, n: int) -> tuple[int, int]:
        """Return the first place of the block that holds place ``n``, and the one after its last."""
        stage = self.at(n)
        return self.block_bounds(stage, (n - stage.start) // self.block)


class Stages(Places):
    """All stages of a mixture.

    Args:
        declared: stages by ascending start, the first at 0.
        limits: items that each source has; None: no limit.
        dropping: whether a mixture goes on without a source that has no more items, until none has; otherwise it ends
            at the first place that would need one.
        seed: seed of the shuffle.
        block: places that are shuffled together; 1: none.

    Attributes:
        stages: the stages, split where a source is dropped.
    """

    def __init__(
        self, declared: Sequence[Declared], limits: Sequence[int | None], *, dropping: bool, seed: int, block: int
    ) -> None:
        self._seed, self.block = seed, block
        self.stages: list[Stage] = []
        self.length = self.ended_by = None
        before = [0] * len(limits)
        gone: set[int] = set()
        for i, one in enumerate(declared):
            start, stop = one.start, declared[i + 1].start if i + 1 < len(declared) else None
            while stop is None or start < stop:
                left = [Fraction(0) if k in gone else weight for k, weight in enumerate(one.weights)]
                if not any(left):
                    self.length = start
                    break
                schedule = schedule_of(tuple(quotas_of(left)))
                ends = [
                    (start + place, k)
                    for k, limit in enumerate(limits)
                    if limit is not None and (place := schedule.where(k, limit - before[k])) is not None
                ]
                end, empty = min(ends, default=(None, None))
                if end is None or (stop is not None and end >= stop):
                    end, empty = stop, None
                if end is None or end > start:
                    self.stages.append(Stage(start, end, schedule, tuple(before)))
                if end is None:
                    break
                before = (schedule.counts(end - start) + before).tolist()
                start = end
                if empty is not None and not dropping:
                    self.length, self.ended_by = end, empty
                    break
                if dropping:
                    gone |= {k for k, limit in enumerate(limits) if limit is not None and before[k] >= limit}
            if self.length is not None:
                break
        self._starts = [stage.start for stage in self.stages]
        self.totals = tuple(before)  # items of each source, if it has an end

    def at(self, n: int) -> Stage:
        """See `Places.at`."""
        return self.stages[last_at_most(self._starts, n)]

    def items(self, first: int, count: int) -> tuple[Sources, Ints]:
        """See `Places.items`."""
        sources, items = [], []
        stop = first + count
        while first < stop:
            stage = self.at(first)
            end = stop if stage.stop is None else min(stop, stage.stop)
            source, item = self._of_stage(stage, first, end)
            sources.append(source)
            items.append(item + np.array(stage.before, np.int64)[source])
            first = end
        if len(items) == 1:
            return sources[0], items[0]
        return np.concatenate([np.empty(0, np.uint16), *sources]), np.concatenate([np.empty(0, np.int64), *items])

    def _of_stage(self, stage: Stage, first: int, stop: int) -> tuple[Sources, Ints]:
        """Return source and item, counted from the beginning of the stage, of some of its places."""
        return stage.schedule.items(
            first - stage.start,
            stop - first,
            seed=self._seed,
            stage=stage.start,
            block=self.block,
            length=None if stage.stop is None else stage.stop - stage.start,
        )

    def counts(self, n: int) -> list[int]:
        """See `Places.counts`."""
        stage = self.at(max(n - 1, 0))
        a = stage.start + (n - stage.start) // self.block * self.block
        if stage.stop is not None and n == stage.stop:
            a = n
        counts = stage.schedule.counts(a - stage.start)
        counts += stage.before
        if a < n:
            source, _ = self._of_stage(stage, a, n)
            counts += np.bincount(source, minlength=len(counts))
        found: list[int] = counts.tolist()
        return found

    def where(self, k: int, item: int) -> int | None:
        """Return the place of an item of source ``k``; None: it is never given."""
        for stage, after in zip(self.stages, [*self.stages[1:], None], strict=True):
            if after is not None and item >= after.before[k]:
                continue
            if item < stage.before[k] or (after is None and self.length is not None and item >= self.totals[k]):
                return None
            even = stage.schedule.where(k, item - stage.before[k])
            if even is None:
                return None
            a, b = self.block_bounds(stage, even // self.block)
            source, items = self._of_stage(stage, a, b)
            return a + int(np.flatnonzero((source == k) & (items == item - stage.before[k]))[0])
        return None

    def block_of(self, stage: Stage, k: int, item: int) -> int | None:
        """See `Places.block_of`."""
        even = stage.schedule.where(k, item - stage.before[k])
        if even is None or (stage.stop is not None and stage.start + even >= stage.stop):
            return None
        return even // self.block
