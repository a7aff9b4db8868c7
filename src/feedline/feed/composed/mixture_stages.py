"""Stages: the weights that hold for a run of places, the items before it, and the ends of sources.

The items of every source are numbered through all stages, so that a change of weights neither loses nor repeats any.
Within a stage, sources are shuffled in blocks of places, counted from its beginning. The last block of a stage may be
shorter. All of it is a pure function of weights, limits and seed, for items of any kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from feedline.feed.composed.schedule import PeriodicSchedule, Sources, last_at_most, schedule_of
from feedline.feed.composed.weights import quotas_of
from feedline.feed.protocol import Ints

# Limit of places in a mixture: native code counts in 64 bits.
LAST_PLACE = 2**62


class Declared(NamedTuple):
    """A declared stage.

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
        start, stop: first place, and end of its places. None: no end. The start keys the shuffle.
        schedule: source of each place, counted from ``start``.
        before: items of each source before this stage.
    """

    start: int
    stop: int | None
    schedule: PeriodicSchedule
    before: tuple[int, ...]


class Stages:
    """The source of every place of a mixture, and the number of its item.

    In a mixture whose batches are of one source each, ``batch`` consecutive places hold consecutive items of one
    source, and stages schedule batches instead of places. So batches are as close to the weights as places are
    otherwise.

    Args:
        declared: stages by ascending start, the first at 0, and all at multiples of ``batch``.
        limits: number of items of each source. None: no limit.
        dropping: whether a mixture goes on without a source that has no more items, until none has any. Otherwise it
            ends at the first place that would need one.
        seed: seed of the shuffle.
        block: places, or batches, that are shuffled together. 1: no shuffle.
        batch: places of a batch of one source. 1: sources alternate place by place.

    Attributes:
        stages: the stages, split where a source is dropped.
        block: places that are shuffled together.
        length: number of places. None: no end.
        ended_by: the source whose items ended the mixture. None if the mixture has no end, or all sources ended.
        totals: number of items of each source, if the mixture has an end.
    """

    def __init__(
        self,
        declared: Sequence[Declared],
        limits: Sequence[int | None],
        *,
        dropping: bool,
        seed: int,
        block: int,
        batch: int = 1,
    ) -> None:
        self._seed, self._shuffled, self._batch, self.block = seed, block, batch, block * batch
        self.stages: list[Stage] = []
        self.length: int | None = None
        self.ended_by: int | None = None
        # In this function, places and items are counted in batches.
        most = [None if limit is None else limit // batch for limit in limits]
        starts = [declaration.start // batch for declaration in declared]
        before = [0] * len(most)
        gone: set[int] = set()
        for declaration, start, stop in zip(declared, starts, [*starts[1:], None], strict=True):
            while stop is None or start < stop:
                weights = [Fraction(0) if k in gone else weight for k, weight in enumerate(declaration.weights)]
                if not any(weights):
                    self.length = start * batch
                    break
                schedule = schedule_of(tuple(quotas_of(weights)))
                ends = [
                    (start + place, k)
                    for k, limit in enumerate(most)
                    if limit is not None and (place := schedule.where(k, limit - before[k])) is not None
                ]
                end, empty = min(ends, default=(None, None))
                if end is None or (stop is not None and end >= stop):
                    end, empty = stop, None
                if end is None or end > start:
                    places = start * batch, None if end is None else end * batch
                    self.stages.append(Stage(*places, schedule, tuple(count * batch for count in before)))
                if end is None:
                    break
                before = (schedule.counts(end - start) + before).tolist()
                start = end
                if empty is not None and not dropping:
                    self.length, self.ended_by = end * batch, empty
                    break
                if dropping:
                    gone |= {k for k, limit in enumerate(most) if limit is not None and before[k] >= limit}
            if self.length is not None:
                break
        self._starts = [stage.start for stage in self.stages]
        self.totals = tuple(count * batch for count in before)

    def at(self, n: int) -> Stage:
        """Return the stage of place ``n``."""
        return self.stages[last_at_most(self._starts, n)]

    def items(self, first: int, count: int) -> tuple[Sources, Ints]:
        """Return the source of places ``first`` to ``first + count - 1``, uint16 (n,), and the number of its item,
        int64 (n,)."""
        sources, items = [], []
        stop = first + count
        while first < stop:
            stage = self.at(first)
            end = stop if stage.stop is None else min(stop, stage.stop)
            source, item = self._batches(stage, first, end)
            if self._batch > 1:
                places = np.arange(first, end) - stage.start
                of = places // self._batch - places[0] // self._batch
                source, item = source[of], item[of] * self._batch + places % self._batch
            sources.append(source)
            items.append(item + np.array(stage.before, np.int64)[source])
            first = end
        if len(items) == 1:
            return sources[0], items[0]
        return np.concatenate([np.empty(0, np.uint16), *sources]), np.concatenate([np.empty(0, np.int64), *items])

    def _batches(self, stage: Stage, first: int, stop: int) -> tuple[Sources, Ints]:
        """Return the sources of the batches ``first`` to ``stop - 1`` of a stage, and their numbers, counted within the
        stage."""
        low, batch = (first - stage.start) // self._batch, self._batch
        return stage.schedule.items(
            low,
            -((stage.start - stop) // batch) - low,
            seed=self._seed,
            stage=stage.start // batch,
            block=self._shuffled,
            length=None if stage.stop is None else (stage.stop - stage.start) // batch,
        )

    def counts(self, n: int) -> list[int]:
        """Return the number of items of each source before place ``n``."""
        stage = self.at(max(n - 1, 0))
        a = stage.start + (n - stage.start) // self.block * self.block
        if stage.stop is not None and n == stage.stop:
            a = n
        counts = stage.schedule.counts((a - stage.start) // self._batch)
        if a < n:
            source, _ = self._batches(stage, a, n)
            counts += np.bincount(source, minlength=len(counts))
        counts *= self._batch
        counts += stage.before
        if a < n:
            counts[source[-1]] -= (stage.start - n) % self._batch  # the rest of the last batch
        per_source: list[int] = counts.tolist()
        return per_source

    def block_of(self, stage: Stage, k: int, item: int) -> int | None:
        """Return the block of a stage that holds an item of source ``k``. None if a later stage holds it, or none."""
        even = stage.schedule.where(k, (item - stage.before[k]) // self._batch)
        if even is None or (stage.stop is not None and stage.start + even * self._batch >= stage.stop):
            return None
        return even // self._shuffled

    def block_bounds(self, stage: Stage, block: int) -> tuple[int, int]:
        """Return the first place of a block of a stage, and the one after its last."""
        a = stage.start + block * self.block
        b = a + self.block
        return a, b if stage.stop is None else min(b, stage.stop)

    def block_around(self, n: int) -> tuple[int, int]:
        """Return the first place of the block that holds place ``n``, and the one after its last."""
        stage = self.at(n)
        return self.block_bounds(stage, (n - stage.start) // self.block)


def check_place(start: int, batch: int) -> None:
    """Check that a stage may begin at a place.

    Raises:
        ValueError: the place is in the middle of a batch.
    """
    if start % batch:
        raise ValueError(f"expected stages at multiples of {batch}, the sequences of a batch, got place {start}")
