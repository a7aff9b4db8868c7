"""Statistics of a loader: what was delivered, where the time went, and what a perfect loader would gain."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feedline.feed.workers import WorkerStats


@dataclass(slots=True)
class LoaderStats:
    """Statistics of a `DataLoader` in this process, over all its iterators.

    Attributes:
        batches, items: number delivered.
        skipped: number of unreadable items skipped.
        waiting: seconds spent in ``next``, in total: how long the loop waited for data.
        reading: seconds in the dataset, summed over workers.
        collating: seconds in ``collate_fn``, summed over workers.
        transfer: seconds in which ``next`` pinned memory or copied batches to a device.
        consuming: seconds between the delivery of a batch and the next call of ``next``: the loop's own time.
        workers: units, seconds of work and restarts by worker; empty without workers.
    """

    batches: int = 0
    items: int = 0
    skipped: int = 0
    waiting: float = 0.0
    reading: float = 0.0
    collating: float = 0.0
    transfer: float = 0.0
    consuming: float = 0.0
    workers: list[WorkerStats] = field(default_factory=list)

    @property
    def gain(self) -> float:
        """Speed-up of the loop if data never had to be waited for; 1.0: nothing to gain."""
        return (self.waiting + self.consuming) / self.consuming if self.consuming else 1.0

    def brief(self) -> dict[str, str]:
        """Return the figures for a progress bar: ``bar.set_postfix(loader.stats().brief())`` of tqdm."""
        total = self.waiting + self.consuming
        return {
            "batches": str(self.batches),
            "waiting": f"{self.waiting / total:.0%}" if total else "0%",
            "perfect": f"{self.gain:.2f}x",
        }

    def to_json(self) -> dict[str, Any]:
        """Return all figures by name, in JSON types."""
        return {**asdict(self), "gain": self.gain}

    def __repr__(self) -> str:
        busy = ", ".join(f"{w.seconds:.3f} s" for w in self.workers)
        return (
            f"LoaderStats({self.batches} batches, {self.items} items; waited {self.waiting:.3f} s, "
            f"loop {self.consuming:.3f} s; reading {self.reading:.3f} s, collating {self.collating:.3f} s, "
            f"transfer {self.transfer:.3f} s{f'; workers busy {busy}' if busy else ''}; {self.skipped} skipped; "
            f"a perfect loader would be {self.gain:.2f} times as fast)"
        )
