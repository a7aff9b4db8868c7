"""The same pool with threads: for user code that releases the GIL, and where processes are not wanted.

All threads share the one task object: `Task.start` is called once in each, and what belongs to a thread must lie in a
``threading.local``. Results are passed as they are.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from feedline.feed.workers.outcome import Failed, Outcome, Value, WorkerStats


class _Shared:
    """What the threads and the crew have in common; threads keep no crew alive."""

    def __init__(self, task: Any, workers: int) -> None:
        self.task, self.workers = task, workers
        self.lock = threading.Lock()
        self.work, self.came = threading.Condition(self.lock), threading.Condition(self.lock)
        self.queue: deque[tuple[int, Any]] = deque()
        self.own: list[deque[tuple[int, Any]]] = [deque() for _ in range(workers)]
        self.outcomes: deque[tuple[int, Outcome]] = deque()
        self.wanted: set[int] = set()
        self.closed = False
        self.figures = [WorkerStats(index=i, pid=os.getpid()) for i in range(workers)]


class ThreadCrew:
    """See the module.

    Args:
        task: what the threads run.
        workers: how many.
    """

    restarts = 0

    def __init__(self, task: Any, workers: int) -> None:
        self._shared = _Shared(task, workers)
        self._threads = [
            threading.Thread(target=_work, args=(self._shared, i), name=f"feedline-worker-{i}", daemon=True)
            for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pids(self) -> list[int]:
        """This process, once for each thread."""
        return [os.getpid()] * self._shared.workers

    @property
    def figures(self) -> list[WorkerStats]:
        """What each thread has done."""
        return self._shared.figures

    @property
    def stages(self) -> dict[str, float]:
        """Seconds by stage."""
        seconds = getattr(self._shared.task, "seconds", None)
        return dict(seconds()) if seconds is not None else {}

    def put(self, ticket: int, unit: Any, worker: int | None) -> None:
        """Queue a unit."""
        shared = self._shared
        with shared.lock:
            shared.wanted.add(ticket)
            if worker is None:
                shared.queue.append((ticket, unit))
                shared.work.notify()
            else:
                shared.own[worker].append((ticket, unit))
                shared.work.notify_all()

    @property
    def outcomes(self) -> deque[tuple[int, Outcome]]:
        """What has come in."""
        return self._shared.outcomes

    def poll(self, timeout: float | None) -> bool:
        """Wait up to ``timeout`` seconds for something to come in; whether there is something."""
        shared = self._shared
        with shared.lock:
            if not shared.outcomes and not shared.closed and timeout != 0:
                shared.came.wait(timeout)
            return bool(shared.outcomes)

    def cancel(self, tickets: Iterable[int]) -> None:
        """Forget units; those that run end for nothing."""
        shared = self._shared
        with shared.lock:
            shared.wanted.difference_update(tickets)

    def close(self, grace: float = 5.0) -> None:
        """End the threads, which end with the unit they run; ``grace`` seconds are waited for that."""
        shared = self._shared
        with shared.lock:
            shared.closed = True
            shared.wanted.clear()
            shared.work.notify_all()
            shared.came.notify_all()
        deadline = time.monotonic() + grace
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(deadline - time.monotonic(), 0.0))

    def abandon(self) -> None:
        """In a forked child there are no threads."""


def _work(shared: _Shared, index: int) -> None:
    broken: Failed | None = None
    try:
        shared.task.start(index, shared.workers)
    except BaseException as error:
        broken = Failed(_noted(error, index))
    own, figures = shared.own[index], shared.figures[index]
    while True:
        with shared.lock:
            while not own and not shared.queue and not shared.closed:
                shared.work.wait()
            if shared.closed:
                return
            ticket, unit = own.popleft() if own else shared.queue.popleft()
            if ticket not in shared.wanted:
                continue
        began = time.perf_counter()
        outcome: Outcome
        try:
            outcome = broken if broken is not None else Value(shared.task.run(unit))
        except BaseException as error:
            outcome = Failed(_noted(error, index))
        seconds = time.perf_counter() - began
        with shared.lock:
            figures.units += 1
            figures.seconds += seconds
            if ticket in shared.wanted:
                shared.wanted.discard(ticket)
                shared.outcomes.append((ticket, outcome))
                shared.came.notify()
        # What has been handed over is not this thread's to keep alive.
        del outcome, unit


def _noted(error: BaseException, index: int) -> BaseException:
    error.add_note(f"raised in DataLoader worker thread {index}")
    return error
