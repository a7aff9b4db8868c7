"""Progress of a sweep of a loader, for people: ``DataLoader(..., progress=True)``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

from feedline.feed.loader.stats import LoaderStats
from feedline.feed.showing import Progress, Report, showing


class ShownSweep:
    """What is called with the number of batches that a sweep has delivered; a bar is gone when it ends, or is dropped.

    Args:
        progress: as `DataLoader` takes it.
        stats: of the loader, for the share of time spent waiting.
        length: function that returns the number of batches; None: unknown.

    Raises:
        ModuleNotFoundError: a bar on a terminal, and rich is not installed.
        TypeError: another ``progress``.
    """

    def __init__(self, progress: Progress, stats: LoaderStats, length: Callable[[], int] | None) -> None:
        self._open = contextlib.ExitStack()
        # Not a method: the bar would keep this object, which is to take it away when the iterator is dropped.
        remark = partial(_waiting, stats, stats.waiting, stats.consuming)
        self._report: Report | None = self._open.enter_context(showing(progress, "loading", "batches", remark=remark))
        self._length, self._total = length, 0

    def __call__(self, done: int) -> None:
        """Show that so many batches have been delivered."""
        if self._report is None:
            return
        if not self._total and self._length is not None:
            self._total = self._length()
        self._report(done, self._total)

    def close(self) -> None:
        """Take the bar away."""
        self._report = None
        self._open.close()

    def __del__(self) -> None:
        self.close()


def _waiting(stats: LoaderStats, waited_s: float, consumed_s: float) -> str:
    """Return the share of time spent waiting since the given seconds of waiting and of the loop."""
    waited_s, consumed_s = stats.waiting - waited_s, stats.consuming - consumed_s
    return f"waiting {waited_s / (waited_s + consumed_s):.0%}" if waited_s + consumed_s > 0 else ""
