"""The same pool with threads, for user code that releases the GIL or must not run in other processes.

All threads share one task object: `Task.start` is called once in each, and per-thread state belongs in a
``threading.local``. Results are passed by reference.

An idle thread waits on its own `queue.SimpleQueue` rather than on a condition. The garbage collector may run at any
point, also in one of these threads while it holds the lock, so closing must not need a lock. `SimpleQueue.put` needs
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

from feedline.concurrency.named_threads import NamedThread
from feedline.feed.workers import limits
from feedline.feed.workers.results import Failed, LocalOutcome, Outcome, WorkerStats


class ThreadPool:
    """A pool of threads. `Pool` documents the semantics. The threads refer to this, not to the `Pool`, which can be
    freed.

    Args:
        task: object whose units the threads run.
        workers: number of threads.

    Attributes:
        threads: all of them, idle or not.
        lock: a finaliser calls `cancel` only while nobody holds it.
        outcomes: finished units that have not been collected.
        wanted: tickets of units that are not finished.
        figures: counts and times, by thread.
        pids: this process, once for each thread.
        processes: none.
    """

    def __init__(self, task: Any, workers: int) -> None:
        self._task, self._workers, self._pid = task, workers, os.getpid()
        self.lock = threading.RLock()  # reentrant: signal handlers and finalisers may call in from within a call
        self._arrived = threading.Condition(self.lock)
        self._idle: set[int] = set()
        self._bells: list[SimpleQueue[None]] = [SimpleQueue() for _ in range(workers)]
        self._queue: deque[tuple[int, Any]] = deque()
        self._own: list[deque[tuple[int, Any]]] = [deque() for _ in range(workers)]
        self.outcomes: deque[tuple[int, Outcome]] = deque()
        self.wanted: set[int] = set()
        self._closed = False
        self.pids, self.processes = [self._pid] * workers, ()
        self.figures = [WorkerStats(index=i, pid=self._pid) for i in range(workers)]
        self.threads = [NamedThread(f"worker-{i}", functools.partial(self._work, i)) for i in range(workers)]

    def start(self) -> None:
        """Start the threads."""
        for thread in self.threads:
            thread.start()

    def put(self, ticket: int, unit: Any, worker: int | None) -> None:
        """Queue a unit."""
        with self.lock:
            self.wanted.add(ticket)
            (self._queue if worker is None else self._own[worker]).append((ticket, unit))
            # Busy threads look for units by themselves.
            if worker is None:
                worker = next(iter(self._idle), None)
            if worker in self._idle:
                self._bells[worker].put(None)  # first, as a spurious wake-up is harmless
                self._idle.discard(worker)

    def poll(self, timeout_s: float | None) -> bool:
        """Wait up to ``timeout_s`` seconds for outcomes. Return whether there are any."""
        with self.lock:
            if not self.outcomes and not self._closed and timeout_s != 0:
                self._arrived.wait(timeout_s)
            return bool(self.outcomes)

    def cancel(self, tickets: Iterable[int]) -> None:
        """Forget units. The results of running ones are dropped."""
        with self.lock:
            self.wanted.difference_update(tickets)

    def leave(self, wait_s: float) -> bool:
        """Let the threads exit after their current units. Return whether all have within ``wait_s`` seconds.

        As a finaliser this may run in any thread. In one of the pool's own it does not wait: the others may need a lock
        that this thread holds.
        """
        if os.getpid() != self._pid:
            return True  # forked: the threads are the parent's
        self._closed = True
        for bell in self._bells:
            bell.put(None)
        if threading.current_thread() in self.threads:
            return True
        with self.lock:
            self._arrived.notify_all()
        deadline_s = time.monotonic() + wait_s
        for thread in self.threads:
            if thread.ident is not None:
                thread.join(max(deadline_s - time.monotonic(), 0.0))
        return not any(thread.is_alive() for thread in self.threads)

    def close(self, grace_s: float = limits.GRACE_S) -> None:
        """Let the threads exit, and wait up to ``grace_s`` seconds for that. Nothing can end them earlier."""
        self.leave(grace_s)

    def _work(self, index: int) -> None:
        broken: Failed | None = None
        try:
            self._task.start(index, self._workers)
        except BaseException as error:
            broken = Failed(_add_note(error, index))
        own_queue = self._own[index]
        while True:
            with self.lock:
                if self._closed:
                    return
                queue = own_queue or self._queue
                job = queue.popleft() if queue else None
                if job is None:
                    self._idle.add(index)
                elif job[0] not in self.wanted:
                    continue
            if job is None:
                self._bells[index].get()
                continue
            ticket, unit = job
            began = time.perf_counter()
            outcome: Outcome
            try:
                outcome = broken if broken is not None else LocalOutcome(self._task.run(unit))
            except BaseException as error:
                outcome = Failed(_add_note(error, index))
            seconds = time.perf_counter() - began
            with self.lock:
                figures = self.figures[index]  # looked up now, as a loader replaces it after the thread has begun
                figures.units += 1
                figures.seconds += seconds
                if ticket in self.wanted:
                    self.wanted.discard(ticket)
                    self.outcomes.append((ticket, outcome))
                    self._arrived.notify()
            # Do not keep the delivered result alive.
            del outcome, unit, job


def _add_note(error: BaseException, index: int) -> BaseException:
    error.add_note(f"raised in DataLoader worker thread {index}")
    return error
