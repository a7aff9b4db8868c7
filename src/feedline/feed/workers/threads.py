"""The same pool with threads, for user code that releases the GIL or must not run in other processes.

All threads share one task object: `Task.start` is called once in each, and per-thread state belongs in a
``threading.local``. Results are passed by reference.

An idle thread waits on its own `queue.SimpleQueue` rather than on a condition. The garbage collector may run at any
point, also in one of these threads while it holds the lock, so closing must not need a lock; `SimpleQueue.put` needs
none.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from queue import SimpleQueue
from typing import Any

from feedline.concurrency.threads import NamedThread
from feedline.feed.workers.results import Failed, LocalOutcome, Outcome, WorkerStats


class _Shared:
    """State shared by the threads and the pool. Threads hold this rather than the pool, so that the pool can die."""

    def __init__(self, task: Any, workers: int) -> None:
        self.task, self.workers = task, workers
        self.lock = threading.RLock()  # reentrant: signal handlers and finalisers may call in from within a call
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
        """Wake ``worker``, or any idle one, to look for a unit; the lock is held. Busy workers look by themselves."""
        if worker is None:
            worker = next(iter(self.idle), None)
        if worker in self.idle:
            self.bells[worker].put(None)  # first: a spurious wake-up is harmless
            self.idle.discard(worker)

    def end(self) -> None:
        """Let every thread exit after its current unit. Takes no lock."""
        self.closed = True
        for bell in self.bells:
            bell.put(None)


class ThreadPool:
    """A pool of threads; `Pool` documents the semantics.

    Args:
        task: object whose units the threads run.
        workers: number of threads.

    Attributes:
        threads: all of them, idle or not.
        lock: a finaliser calls `cancel` only while nobody holds it.
        outcomes: finished units that have not been collected.
        figures: counts and times, by thread.
        pids: this process, once for each thread.
    """

    def __init__(self, task: Any, workers: int) -> None:
        shared = _Shared(task, workers)
        self._shared, self._pid = shared, os.getpid()
        self.lock, self.outcomes, self.figures = shared.lock, shared.outcomes, shared.figures
        self.pids = [self._pid] * workers
        self.threads = [NamedThread(f"worker-{i}", functools.partial(_work, self._shared, i)) for i in range(workers)]

    def start(self) -> None:
        """Start the threads."""
        for thread in self.threads:
            thread.start()

    def put(self, ticket: int, unit: Any, worker: int | None) -> None:
        """Queue a unit."""
        shared = self._shared
        with shared.lock:
            shared.wanted.add(ticket)
            (shared.queue if worker is None else shared.own[worker]).append((ticket, unit))
            shared.wake(worker)

    def poll(self, timeout_s: float | None) -> bool:
        """Wait up to ``timeout_s`` seconds for outcomes; return whether there are any."""
        shared = self._shared
        with shared.lock:
            if not shared.outcomes and not shared.closed and timeout_s != 0:
                shared.came.wait(timeout_s)
            return bool(shared.outcomes)

    def cancel(self, tickets: Iterable[int]) -> None:
        """Forget units; the results of running ones are dropped."""
        shared = self._shared
        with shared.lock:
            shared.wanted.difference_update(tickets)

    def close(self, grace_s: float = 5.0) -> None:
        """Let the threads exit after their current units, and wait up to ``grace_s`` seconds for that.

        As a finaliser this may run in any thread. In one of the pool's own it does not wait: the others may need a lock
        that this thread holds.
        """
        shared = self._shared
        if os.getpid() != self._pid:
            return  # forked: the threads are the parent's
        shared.end()
        if threading.current_thread() in self.threads:
            return
        with shared.lock:
            shared.came.notify_all()
        deadline_s = time.monotonic() + grace_s
        for thread in self.threads:
            if thread.ident is not None:
                thread.join(max(deadline_s - time.monotonic(), 0.0))


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
        # Do not keep alive what has been handed over.
        del outcome, unit, found


def _noted(error: BaseException, index: int) -> BaseException:
    error.add_note(f"raised in DataLoader worker thread {index}")
    return error
