"""The same pool with threads: for user code that releases the GIL, and where processes are not wanted.

All threads share the one task object: `Task.start` is called once in each, and what belongs to a thread must lie in a
``threading.local``. Results are passed as they are.

An idle thread sleeps on a queue of its own rather than on a condition, because the garbage collector may run anywhere,
also in one of these threads while it holds the lock: closing from there must not need a lock, and
`queue.SimpleQueue.put` needs none.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from queue import SimpleQueue
from typing import Any

from feedline.feed.workers.interrupts import at_rest
from feedline.feed.workers.results import Failed, LocalOutcome, Outcome, WorkerStats


class _Shared:
    """What the threads and the pool have in common; threads keep no pool alive."""

    def __init__(self, task: Any, workers: int) -> None:
        self.task, self.workers = task, workers
        self.lock = threading.RLock()  # for signal handlers and finalisers that call the pool inside of its own calls
        self.came = threading.Condition(self.lock)
        self.idle: set[int] = set()
        self.bells: list[SimpleQueue[None]] = [SimpleQueue() for _ in range(workers)]
        self.queue: deque[tuple[int, Any]] = deque()
        self.own: list[deque[tuple[int, Any]]] = [deque() for _ in range(workers)]
        self.outcomes: deque[tuple[int, Outcome]] = deque()
        self.wanted: set[int] = set()
        self.closed = False
        self.figures = [WorkerStats(index=i, pid=os.getpid()) for i in range(workers)]

    def wake(self, worker: int | None = None) -> None:
        """Under the lock: make ``worker``, or any other that is idle, look for a unit; a busy one looks by itself."""
        if worker is None:
            worker = next(iter(self.idle), None)
        if worker in self.idle:
            self.bells[worker].put(None)  # first: one that hears the bell twice has lost nothing
            self.idle.discard(worker)

    def end(self) -> None:
        """Let all threads end with the unit that they run. Takes no lock."""
        self.closed = True
        for bell in self.bells:
            bell.put(None)


class ThreadPool:
    """See the module.

    Args:
        task: what the threads run.
        workers: how many.
    """

    restarts = 0

    def __init__(self, task: Any, workers: int) -> None:
        self._shared, self._pid = _Shared(task, workers), os.getpid()
        self._threads = [
            threading.Thread(target=_work, args=(self._shared, i), name=f"feedline-worker-{i}", daemon=True)
            for i in range(workers)
        ]

    def start(self) -> None:
        """Start the threads."""
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
            (shared.queue if worker is None else shared.own[worker]).append((ticket, unit))
            shared.wake(worker)

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

    def at_rest(self) -> bool:
        """Whether `cancel` would neither wait nor change what another call is changing; for finalisers."""
        return at_rest(self._shared.lock)

    def close(self, grace: float = 5.0) -> None:
        """End the threads, which end with the unit they run; ``grace`` seconds are waited for that.

        As a finaliser it may be called in any thread: one of the pool's own does not wait for the others, which may
        want a lock that it holds.
        """
        shared = self._shared
        if os.getpid() != self._pid:
            return  # forked: the threads are the parent's
        shared.end()
        if threading.current_thread() in self._threads:
            return
        with shared.lock:
            shared.came.notify_all()
        deadline = time.monotonic() + grace
        for thread in self._threads:
            if thread.ident is not None:
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
            if shared.closed:
                return
            queue = own or shared.queue
            found = queue.popleft() if queue else None
            if found is None:
                shared.idle.add(index)
            elif found[0] not in shared.wanted:
                continue
        if found is None:
            shared.bells[index].get()
            continue
        ticket, unit = found
        began = time.perf_counter()
        outcome: Outcome
        try:
            outcome = broken if broken is not None else LocalOutcome(shared.task.run(unit))
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
        del outcome, unit, found


def _noted(error: BaseException, index: int) -> BaseException:
    error.add_note(f"raised in DataLoader worker thread {index}")
    return error
