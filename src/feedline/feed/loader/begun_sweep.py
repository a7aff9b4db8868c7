"""A sweep that was begun before its ``iter``, while persistent workers finish the preceding one.

Persistent workers keep the dataset and the functions that they started with, as in torch, so what the program changes
in its own copies does not reach them. Data that all processes see could still change. So only datasets over the memory
of `feedline.shared` are read like that, and only in the loader's own order. Nothing is drawn from the program's
generators: the seed is the one that ``iter`` would take if it came now. When it does come, it takes the sweep over if
the order is as expected, and else begins anew. Workers that are not persistent end with their sweep: a program may
count on that.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from feedline.feed.loader.batches import PlannedBatches
from feedline.feed.loader.executors import Executor, RemainingBatches
from feedline.feed.loader.options import LoaderOptions
from feedline.feed.loader.state import ResumePoint

if TYPE_CHECKING:
    from feedline.feed.workers import Pool


class BegunSweep(NamedTuple):
    """A sweep, and what it was begun for.

    Attributes:
        batches, partition, place: as of an `Epoch`.
        pool: the workers.
        executor: returns its first batches.
        remaining: the batches after them.
    """

    batches: PlannedBatches
    partition: tuple[int, int]
    place: ResumePoint
    pool: Pool
    executor: Executor
    remaining: RemainingBatches

    def is_for(self, batches: PlannedBatches, partition: tuple[int, int], place: ResumePoint) -> bool:
        """Return whether it is the sweep that would begin now."""
        ours, options = self.batches, batches.options
        return (
            ours.options is options
            and ours.places == batches.places
            and ours.key(place.sweep) == batches.key(place.sweep)
            and (self.partition, self.place) == (partition, place)
        )

    def close(self) -> None:
        """Drop what was read. The workers stay."""
        self.executor.close()


def may_begin_early(options: LoaderOptions) -> bool:
    """Return whether a later sweep of these workers may be begun before its ``iter``."""
    if options.kind != "process" or not options.persistent_workers:
        return False
    if "feedline.feed.sharing.shared_records" not in sys.modules:  # nothing is shared
        return False
    from feedline.feed.sharing.shared_dataset import reads_shared_memory

    return reads_shared_memory(options.dataset)
