"""Statistics of a loader: batches delivered, where the time went, and how much faster a perfect loader would be."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from feedline.concurrency.control_groups import usable_cores
from feedline.feed.loader.figures.remedies import remedy
from feedline.feed.progress_bar import Progress, Report, showing

if TYPE_CHECKING:
    from feedline.feed.workers import WorkerStats


@dataclass(slots=True)
class LoaderStats:
    """Statistics of a `DataLoader` in this process, over all its iterators.

    Attributes:
        batches, items: number delivered.
        skipped: number of unreadable items skipped.
        waiting: seconds spent in ``next``, in total: how long the loop waited for data.
        starting: seconds of ``waiting`` for the first batch of each iterator.
        reading: seconds in the dataset, summed over workers.
        collating: seconds in ``collate_fn``, summed over workers.
        computing: seconds of CPU time of both. 0 if batches are copied from arrays or files without Python.
        transfer: seconds in which ``next`` pinned memory or copied batches to a device.
        consuming: seconds between the delivery of a batch and the next call of ``next``: the loop's own time.
        workers: units, seconds of work, copied memory and restarts by worker. Empty without workers.
    """

    batches: int = 0
    items: int = 0
    skipped: int = 0
    waiting: float = 0.0
    starting: float = 0.0
    reading: float = 0.0
    collating: float = 0.0
    computing: float = 0.0
    transfer: float = 0.0
    consuming: float = 0.0
    workers: list[WorkerStats] = field(default_factory=list)

    @property
    def gain(self) -> float:
        """Speed-up of the loop if it never had to wait for data. 1.0: nothing to gain."""
        return (self.waiting + self.consuming) / self.consuming if self.consuming else 1.0

    @property
    def advice(self) -> str:
        """What limits the loop on this machine, and what to change, in sentences."""
        return remedy(self, usable_cores())

    @property
    def memory_advice(self) -> str:
        """What to do about workers that copy the memory of this process, in a sentence. Empty if they do not."""
        copied_bytes = max((worker.copied_bytes for worker in self.workers), default=0)
        if not copied_bytes:
            return ""
        from feedline.feed.workers.copied_memory import advice_on  # there are workers, so it is imported

        return advice_on(copied_bytes)

    def brief(self) -> dict[str, str]:
        """Return the figures for a progress bar: ``bar.set_postfix(loader.stats().brief())`` of tqdm."""
        total = self.waiting + self.consuming
        waiting = self.waiting / total if total else 0
        return {"batches": str(self.batches), "waiting": f"{waiting:.0%}", "perfect": f"{self.gain:.2f}x"}

    def to_json(self) -> dict[str, Any]:
        """Return all figures by name, in JSON types."""
        advice = {"advice": self.advice, "memory_advice": self.memory_advice}
        return {**asdict(self), "gain": self.gain, **advice}

    def __repr__(self) -> str:
        busy = ", ".join(f"{w.seconds:.3f} s" for w in self.workers)
        return (
            f"LoaderStats({self.batches} batches, {self.items} items; waited {self.waiting:.3f} s, "
            f"loop {self.consuming:.3f} s; reading {self.reading:.3f} s, collating {self.collating:.3f} s, "
            f"transfer {self.transfer:.3f} s{f'; workers busy {busy}' if busy else ''}; {self.skipped} skipped; "
            f"a perfect loader would be {self.gain:.2f} times as fast). {self.advice}"
            f"{f' {self.memory_advice}' if self.memory_advice else ''}"
        )


class ShownSweep:
    """Shows the number of batches that a sweep has delivered. A bar disappears when the sweep ends or is dropped.

    Args:
        progress: as `DataLoader` takes it.
        stats: statistics of the loader, for the share of time spent waiting.
        length: function that returns the number of batches. None if unknown.

    Raises:
        ModuleNotFoundError: a bar on a terminal needs rich, which is not installed.
        TypeError: ``progress`` is something else.
    """

    def __init__(self, progress: Progress, stats: LoaderStats, length: Callable[[], int] | None) -> None:
        self._open = contextlib.ExitStack()
        # Not a method: the bar would keep this object alive, which removes the bar when the iterator is dropped.
        remark = partial(_waiting, stats, stats.waiting, stats.consuming)
        self._report: Report | None = self._open.enter_context(showing(progress, "loading", "batches", remark=remark))
        self._length, self._total = length, 0

    def __call__(self, done: int) -> None:
        """Show that ``done`` batches have been delivered."""
        if self._report is None:
            return
        if not self._total and self._length is not None:
            self._total = self._length()
        self._report(done, self._total)

    def close(self) -> None:
        """Remove the bar."""
        self._report = None
        self._open.close()

    def __del__(self) -> None:
        self.close()


def _waiting(stats: LoaderStats, waited_s: float, consumed_s: float) -> str:
    """Return the share of time spent waiting since the totals were ``waited_s`` and ``consumed_s``."""
    waited_s, consumed_s = stats.waiting - waited_s, stats.consuming - consumed_s
    return f"waiting {waited_s / (waited_s + consumed_s):.0%}" if waited_s + consumed_s > 0 else ""
