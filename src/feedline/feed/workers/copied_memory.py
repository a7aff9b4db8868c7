"""How much memory do forked workers copy because they write to it?

A forked worker shares the memory of its parent until one of them writes to a page, and reading a Python object writes
its reference count. So a worker that reads a large list has a copy of it in the end. What a worker copies, and does not
allocate for itself, becomes private where it was shared, in page faults of its own.

Looking at a worker takes a millisecond or more, as the kernel walks through its page tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from feedline import system
from feedline.feed.workers.results import WorkerStats

#: Seconds from the first result to the first look, in which workers fill their caches.
FIRST_LOOK_S = 1.0
#: Share of the time that looks may take.
SHARE_OF_LOOKS = 0.01
#: Copied bytes of a worker from which on there is advice. Interpreter and libraries copy less.
MUCH = 32 << 20


class PageCounts(NamedTuple):
    """The memory of a process at one moment, in bytes.

    Attributes:
        private: of pages that no other process has.
        shared: of pages of no file that another process has, too.
        faulted: of pages that it has been given so far.
    """

    private: int
    shared: int
    faulted: int

    @classmethod
    def of(cls, pid: int) -> PageCounts | None:
        """Return the memory of a process. None if it has ended, or the system does not say."""
        counts = system.copied_counts(pid)
        return None if counts is None else cls(*counts)


class CopiedMemory:
    """What the workers of a pool have copied, in looks that are seconds apart."""

    def __init__(self) -> None:
        self._first: dict[int, PageCounts] = {}  # by process id
        self._due_s: float | None = None

    def look(self, workers: Callable[[], Iterable[tuple[int, WorkerStats]]]) -> None:
        """Update `WorkerStats.copied_bytes`, if a look is due. The first one finds what a worker has copied to start,
        which does not count.

        Args:
            workers: function that returns process id and statistics of each worker that has started.
        """
        began = time.monotonic()
        if self._due_s is None:
            self._due_s = began + FIRST_LOOK_S
        if began < self._due_s:
            return
        for pid, worker in workers():
            if (counts := PageCounts.of(pid)) is not None:
                worker.copied_bytes = max(worker.copied_bytes, _copied(self._first.setdefault(pid, counts), counts))
        ended = time.monotonic()
        self._due_s = ended + (ended - began) / SHARE_OF_LOOKS


def _copied(first: PageCounts, now: PageCounts) -> int:
    return max(0, min(now.private - first.private, first.shared - now.shared, now.faulted - first.faulted))


def advice_on(copied_bytes: int) -> str:
    """Return what to do about a worker that has copied as much. Empty if it is not worth a sentence."""
    if copied_bytes < MUCH:
        return ""
    return (
        f"A worker has copied {copied_bytes / 1e6:.0f} MB of this process's memory. Reading Python objects does that, "
        "as it writes their reference counts: pass fl.shared(dataset), which has its lists and dictionaries once for "
        "all workers."
    )
