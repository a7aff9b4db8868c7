"""A sweep that was begun before its ``iter``, while the workers of the preceding one finished.

Only datasets over the memory of `feedline.shared` are read like that, as they are known not to change, and only in the
loader's own order. Nothing is drawn from the program's generators: the seed is the one that ``iter`` would take if it
came now. When it does come, it takes the sweep over if everything is as expected, and else begins anew.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from feedline.feed.loader.batches import PlannedBatches
from feedline.feed.loader.executors import Executor, RemainingBatches
from feedline.feed.loader.options import LoaderOptions
from feedline.feed.loader.state import ResumePoint

if TYPE_CHECKING:
    from feedline.feed.sharing.shared_snapshot import SharedSnapshot
    from feedline.feed.workers import Pool


class BegunSweep(NamedTuple):
    """A sweep, and what it was begun for.

    Attributes:
        batches, partition, place: as of an `Epoch`.
        snapshot: the dataset and ``collate_fn``.
        pool: workers that make its first batches.
        executor: returns them.
        remaining: the other batches.
    """

    batches: PlannedBatches
    partition: tuple[int, int]
    place: ResumePoint
    snapshot: SharedSnapshot
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
            and self.snapshot.is_of(options.dataset, options.collate_fn)
        )

    def close(self) -> None:
        """Drop what was read. Persistent workers stay."""
        self.executor.close()
        if not self.batches.options.persistent_workers:
            self.pool.close()


def snapshot_of(options: LoaderOptions) -> SharedSnapshot | None:
    """Return what has to be the same when the sweep begins. None if a later sweep cannot be begun before its ``iter``:
    the dataset may change without a trace, or workers have other effects."""
    if options.kind != "process" or options.worker_init_fn is not None:
        return None
    if sys.modules.get("feedline.feed.sharing.shared_records") is None:  # nothing is shared
        return None
    from feedline.feed.sharing.shared_snapshot import SharedSnapshot

    try:
        return SharedSnapshot(options.dataset, options.collate_fn)
    except Exception:  # what pickle calls may raise anything
        return None
