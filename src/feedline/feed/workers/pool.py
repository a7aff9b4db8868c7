"""The pool: units go in, tickets come back, results come out by ticket.

Any idle worker takes the next unit. A pool lives until it is closed, is no longer referenced, or the interpreter
ends; nothing is left of it then: no process, no descriptor, no shared memory but what the caller's arrays hold. A
process forked from this one has no part in it.

The workers are held by the pool's finaliser (`weakref.finalize`), not by the pool alone. So when a pool is garbage, in
whatever cycle and with whatever else, its workers, their descriptors and their memory are not: they can be ended in
order.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Literal, Protocol

from feedline.feed.workers.interrupts import Undisturbed, at_rest
from feedline.feed.workers.process_pool import ProcessPool
from feedline.feed.workers.results import Outcome, PoolStats
from feedline.feed.workers.threads import ThreadPool


class Task(Protocol):
    """What workers do. It is pickled once for each worker process; threads share it.

    A task may also have ``seconds() -> dict[str, float]``: time by stage since it started, summed into
    `Pool.stats`.
    """

    def start(self, worker: int, workers: int) -> None:
        """Called once in every worker before its first unit; what it raises, every unit of the worker raises."""

    def run(self, unit: Any) -> Any:
        """The result of one unit: any tree of tuples, lists, dicts, arrays, tensors and picklable objects."""


class Pool:
    """Workers that run one task.

    Args:
        task: see `Task`. A worker that is replaced gets the task as it is then.
        workers: how many, at least 1.
        kind: processes or threads.
        method: how processes start: a method's name, a multiprocessing context, or None for forkserver.
        depth: units outstanding for each worker, about: how long memory that was not needed is kept goes by it.
        timeout: seconds without any result after which `result` raises; 0: never.
        shared_memory: whether large results travel in shared memory or through a socket.

    Raises:
        ValueError: an argument has no meaning.
        OSError: processes or descriptors cannot be had, with the limit.
    """

    def __init__(
        self,
        task: Task,
        workers: int,
        *,
        kind: Literal["process", "thread"] = "process",
        method: Any = None,
        depth: int = 2,
        timeout: float = 0.0,
        shared_memory: bool = True,
    ) -> None:
        if workers < 1:
            raise ValueError(f"expected at least 1 worker, got {workers}")
        if timeout < 0:
            raise ValueError(f"expected a timeout of at least 0 seconds, got {timeout}")
        if kind not in ("process", "thread"):
            raise ValueError(f"expected kind to be 'process' or 'thread', got {kind!r}")
        self.timeout = timeout
        self._count, self._pid, self._next = workers, os.getpid(), 0
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._leader: int | None = None  # the thread that listens
        self._waited: set[int] = set()
        self._done: dict[int, Outcome] = {}
        self._orphans: deque[int] = deque()  # abandoned tickets that wait to be cancelled
        self._backend: ProcessPool | ThreadPool = (
            ThreadPool(task, workers)
            if kind == "thread"
            else ProcessPool(task, workers, method, max(depth, 1), shared_memory)
        )
        self._end = weakref.finalize(self, self._backend.close)
        self._end.atexit = False  # `_close_all` comes before multiprocessing ends its children
        try:
            self._backend.start()
            _pools.add(self)
        except BaseException:
            self._end.detach()
            self._backend.close(0.0)
            raise

    @property
    def workers(self) -> int:
        """How many."""
        return self._count

    @property
    def pids(self) -> list[int]:
        """The processes, by worker."""
        return self._backend.pids

    def submit(self, unit: Any, worker: int | None = None) -> int:
        """Queue ``unit`` and return its ticket: 0, 1, 2, ... Does not block.

        Args:
            unit: something small that can be pickled.
            worker: the only one that may run it, in the order of submission; None: whichever is idle.

        Raises:
            RuntimeError: the pool is closed or belongs to another process.
        """
        self._check()
        if worker is not None and not 0 <= worker < self._count:
            raise ValueError(f"expected a worker from 0 to {self._count - 1}, got {worker}")
        ticket = -1
        try:
            with self._lock:
                ticket = self._next
                self._next = ticket + 1
                self._waited.add(ticket)
                self._backend.put(ticket, unit, worker)
            return ticket
        except BaseException:  # also an interrupt when all is done: nobody is told of the ticket
            self.cancel([ticket])
            raise

    def result(self, ticket: int) -> Any:
        """The result of a unit, waiting for it; its ticket is used up.

        Arrays and tensors are writable views of memory that is the caller's until the last of them dies.

        Raises:
            Exception: what `Task.run` raised, with its type.
            WorkerError: workers died twice over this unit.
            RuntimeError: no worker had a result for ``timeout`` seconds; the pool is closed or another process's.
            ValueError: no such ticket, or its result has been taken.
        """
        self._wait(lambda: ticket in self._done, (ticket,))
        outcome = self._done[ticket]
        try:
            try:
                return outcome.take()
            finally:
                self._forget(ticket)
        except BaseException as error:
            if not isinstance(error, Exception) and error is not outcome.why:
                # Of a signal, not of the unit: the caller may ask again.
                self._waited.add(ticket)
                self._done[ticket] = outcome
            raise

    def ready(self, ticket: int) -> bool:
        """Whether `result` would not wait."""
        self._check((ticket,))
        if ticket not in self._done:
            self._listen(0.0, lambda: ticket in self._done)
        return ticket in self._done

    def any_of(self, tickets: Iterable[int]) -> int:
        """The first of ``tickets`` whose result is there, waiting for one; raises as `result` does for timeouts."""
        tickets = list(tickets)
        if not tickets:
            raise ValueError("expected at least one ticket to wait for, got none")
        self._wait(lambda: not self._done.keys().isdisjoint(tickets), tickets)
        return next(ticket for ticket in tickets if ticket in self._done)

    def cancel(self, tickets: Iterable[int] | None = None) -> None:
        """Throw away the results of ``tickets``, or all: those there are, queued or running.

        Unknown tickets and used ones are passed over.
        """
        if self._closed or os.getpid() != self._pid:
            return
        with self._lock:
            gone = list(self._waited) if tickets is None else [t for t in tickets if t in self._waited]
            self._backend.cancel(gone)
            self._drop(gone)

    def abandon(self, tickets: Iterable[int]) -> None:
        """Cancel ``tickets`` from a finaliser, which may run anywhere: now if no call is under way that this would
        have to wait for, or come in the middle of; else with the next call."""
        self._orphans.extend(tickets)
        if self._closed or os.getpid() != self._pid:
            return
        with Undisturbed():  # what is raised here reaches nobody, and may leave a lock behind
            if at_rest(self._lock) and self._backend.at_rest():
                self._settle()

    def stats(self) -> PoolStats:
        """What has been done so far."""
        workers = [replace(f, pid=pid) for f, pid in zip(self._backend.figures, self._backend.pids, strict=False)]
        return PoolStats(workers or list(self._backend.figures), self._backend.restarts, self._backend.stages)

    def close(self) -> None:
        """End the workers and drop what nobody took; units that run get a few seconds. Closing twice is fine."""
        if self._closed or os.getpid() != self._pid:
            return
        self._end()
        self._drop(list(self._waited))

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"pids {self.pids}"
        return f"Pool({self._count} workers, {len(self._waited)} outstanding, {state})"

    # ---- within ----------------------------------------------------------------------------------------

    @property
    def _closed(self) -> bool:
        return not self._end.alive

    def _check(self, tickets: Iterable[int] = ()) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"this pool of workers belongs to process {self._pid}, and this is process {os.getpid()}, forked from "
                "it: make a new loader here"
            )
        if self._closed:
            raise RuntimeError("this pool of workers is closed")
        if self._orphans:
            self._settle()
        for ticket in tickets:
            if ticket not in self._waited:
                raise ValueError(f"ticket {ticket} is unknown, cancelled, or its result has been taken")

    def _settle(self) -> None:
        """Cancel what was abandoned."""
        gone = []
        while self._orphans:  # finalisers may add to them at any moment
            gone.append(self._orphans.popleft())
        self.cancel(gone)

    def _drop(self, tickets: Iterable[int]) -> None:
        """Nobody will ask for these any more."""
        for ticket in tickets:
            self._waited.discard(ticket)
            outcome = self._done.pop(ticket, None)
            if outcome is not None:
                outcome.drop()

    def _wait(self, there: Callable[[], bool], tickets: Iterable[int]) -> None:
        self._check(tickets)
        deadline = time.monotonic() + self.timeout if self.timeout else None
        while not there():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise RuntimeError(f"DataLoader timed out after {self.timeout} seconds")
            if self._listen(left, there) and self.timeout:
                deadline = time.monotonic() + self.timeout
            self._check(tickets)

    def _listen(self, timeout: float | None, there: Callable[[], bool]) -> bool:
        """Wait until something comes in, unless what is waited for is ``there``; whether anything came."""
        me = threading.get_ident()
        with self._lock:
            if there():
                return True
            # One thread listens, the others hear from it. Should it be this one by its own word, then an interrupt
            # came between that word and the listening.
            if self._leader is not None and self._leader != me:
                return timeout != 0 and self._changed.wait(timeout)
            self._leader = me
        try:
            return self._backend.poll(timeout)
        finally:
            with self._lock:
                # Whatever interrupts this, a result is in one place at least.
                arrived = self._backend.outcomes
                while arrived:
                    ticket, outcome = arrived[0]
                    if ticket in self._waited:
                        self._done[ticket] = outcome
                    else:
                        outcome.drop()
                    arrived.popleft()
                self._leader = None
                self._changed.notify_all()

    def _forget(self, ticket: int) -> None:
        with self._lock:
            self._done.pop(ticket, None)
            self._waited.discard(ticket)


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_pools):
        pool.close()
