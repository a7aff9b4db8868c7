"""Stages whose places stand for whole batches, each of one source.

All that stages say of a place is said here of a batch: which source it is of, and, counted in batches, which of its
items. So counts are as close to the weights as they are there, in batches.
"""

from __future__ import annotations

import numpy as np

from feedline.feed.composed.schedule import Ints, Sources
from feedline.feed.composed.stages import Places, Stage, Stages


def check_place(start: int, batch: int) -> None:
    """Check that a stage may begin at a place.

    Raises:
        ValueError: that is in the middle of a batch.
    """
    if start % batch:
        raise ValueError(f"expected stages at multiples of {batch}, the sequences of a batch, got place {start}")


class OneSourceStages(Places):
    """Stages in which ``batch`` consecutive places are of one source, and hold consecutive items of it.

    Args:
        within: the stages of batches.
        batch: places of a batch, at least 1.
    """

    def __init__(self, within: Stages, batch: int) -> None:
        self._within, self._batch = within, batch
        self.block = within.block * batch
        self.length = None if within.length is None else within.length * batch
        self.ended_by = within.ended_by
        self.totals = tuple(total * batch for total in within.totals)

    def at(self, n: int) -> Stage:
        """See `Places.at`."""
        stage, size = self._within.at(n // self._batch), self._batch
        return Stage(
            stage.start * size,
            None if stage.stop is None else stage.stop * size,
            stage.schedule,
            tuple(before * size for before in stage.before),
        )

    def items(self, first: int, count: int) -> tuple[Sources, Ints]:
        """See `Places.items`."""
        low, high = first // self._batch, -(-(first + count) // self._batch)
        source, item = self._within.items(low, high - low)
        places = np.arange(first, first + count)
        of = places // self._batch - low
        return source[of], item[of] * self._batch + places % self._batch

    def counts(self, n: int) -> list[int]:
        """See `Places.counts`."""
        batches, rest = divmod(n, self._batch)
        found = [count * self._batch for count in self._within.counts(batches)]
        if rest:
            found[int(self._within.items(batches, 1)[0][0])] += rest
        return found

    def block_of(self, stage: Stage, k: int, item: int) -> int | None:
        """See `Places.block_of`."""
        return self._within.block_of(self._within.at(stage.start // self._batch), k, item // self._batch)
