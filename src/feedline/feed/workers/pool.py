"""A pool of workers: submit a unit, get a ticket, collect the result by ticket.

Any idle worker takes the next unit. A pool lives until it is closed, is no longer referenced, or the interpreter exits.
It then leaves no process, no descriptor, and no shared memory except under arrays that the caller still holds. A forked
child cannot use its parent's pool.

The pool's finaliser (`weakref.finalize`) keeps the workers alive. Even if a pool becomes garbage as part of a cycle,
its workers, descriptors and memory are still there to be shut down in order.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, Protocol

from feedline.feed.workers import limits
from feedline.feed.workers.interrupts import SigintDeferred, at_rest, handles_interrupt
from feedline.feed.workers.results import Outcome, Taken

if TYPE_CHECKING:
    from feedline.feed.workers.process_pool import ProcessPool
    from feedline.feed.workers.ray_pool import RayPool
    from feedline.feed.workers.thread_workers import ThreadPool


class Task(Protocol):
    """The task of the workers. Pickled once for each worker process, shared by threads."""

    def start(self, worker: int, workers: int) -> None:
        """Called once in every worker before its first unit. If it raises, every unit of that worker raises the
        same."""

    def run(self, unit: Any) -> Any:
        """Return the result of one unit: any tree of tuples, lists, dicts, arrays, tensors and picklable objects."""


class Backend(Protocol):
    """The processes, threads or actors of a pool."""

    def leave(self, wait_s: float) -> bool:
        """Let the workers exit after their unit. Return whether all have within ``wait_s`` seconds. Idempotent."""

    def close(self, grace_s: float = ...) -> None:
        """The same, and end those that are busy after ``grace_s`` seconds. Idempotent."""


class Pool:
    """Workers that run one task.

    Args:
        task: the `Task` to run. A replacement worker gets the task in its state at that time.
        workers: number of workers, at least 1.
        kind: processes, threads, or actors of Ray, on any machine of its cluster.
        method: start method for processes: its name, a multiprocessing context, or None for multiprocessing's default.
        depth: approximate number of units in flight per worker. Sets how long unused memory is kept.
        timeout_s: seconds without any result after which `result` raises. 0: never.
        budget_bytes: bytes of results that may wait to be taken, with Ray. None: 256 MiB.

    Attributes:
        backend: the processes, threads or actors.
        workers, timeout_s: see above.
        figures: counts and times by worker, updated as results arrive.
        taken: how long results took to be taken.

    Raises:
        ValueError: an argument is invalid.
        ModuleNotFoundError: Ray is not installed.
        OSError: processes or descriptors are exhausted. The message states the limit.
    """

    def __init__(
        self,
        task: Task,
        workers: int,
        *,
        kind: Literal["process", "thread", "ray"] = "process",
        method: Any = None,
        depth: int = 2,
        timeout_s: float = 0.0,
        budget_bytes: int | None = None,
    ) -> None:
        if workers < 1:
            raise ValueError(f"expected at least 1 worker, got {workers}")
        if timeout_s < 0:
            raise ValueError(f"expected a timeout of at least 0 seconds, got {timeout_s}")
        if kind not in ("process", "thread", "ray"):
            raise ValueError(f"expected kind to be 'process', 'thread' or 'ray', got {kind!r}")
        self.timeout_s = timeout_s
        self.workers, self._pid, self._next = workers, os.getpid(), 0
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._leader: int | None = None  # the thread that polls the backend for all
        self._waited: set[int] = set()
        self._done: dict[int, Outcome] = {}
        self._orphans: deque[int] = deque()  # abandoned tickets, to be cancelled by the next call
        self.backend: ProcessPool | ThreadPool | RayPool
        # Each kind is imported on demand: most programs need one, or none.
        if kind == "ray":
            from feedline.feed.workers.ray_pool import RayPool

            self.backend = RayPool(task, workers, budget_bytes)
        elif kind == "thread":
            from feedline.feed.workers.thread_workers import ThreadPool

            self.backend = ThreadPool(task, workers)
        else:
            from feedline.feed.workers.process_pool import ProcessPool

            self.backend = ProcessPool(task, workers, method, max(depth, 1))
        self.figures, self.taken = self.backend.figures, Taken()
        self._end = weakref.finalize(self, _drop, self.backend)
        self._end.atexit = False  # `_close_all` runs before multiprocessing terminates its children
        try:
            _end_dropped()
            self.backend.start()
            _pools.add(self)
        except BaseException:
            self._end.detach()
            self.backend.close(0.0)
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids, by worker."""
        return list(self.backend.pids)

    @property
    def processes(self) -> list[Any]:
        """Processes of `multiprocessing`, by worker. Empty for threads and actors, and once the pool is closed."""
        return list(self.backend.processes)

    def submit(self, unit: Any, worker: int | None = None) -> int:
        """Queue ``unit`` and return its ticket: 0, 1, 2, ... Never blocks.

        Args:
            unit: a small picklable object.
            worker: the only worker that may run it, in order of submission. None: any idle worker.

        Raises:
            RuntimeError: the pool is closed or belongs to another process.
        """
        self._check()
        if worker is not None and not 0 <= worker < self.workers:
            raise ValueError(f"expected a worker from 0 to {self.workers - 1}, got {worker}")
        ticket = -1
        try:
            with self._lock:
                ticket = self._next
                self._next = ticket + 1
                self._waited.add(ticket)
                self.backend.put(ticket, unit, worker)
            return ticket
        except BaseException:  # even if it was queued, as the caller never learns its ticket
            self.cancel([ticket])
            raise

    def result(self, ticket: int) -> Any:
        """Wait for the result of a unit and return it. A ticket can be redeemed once.

        Arrays and tensors are writable views of memory that the caller owns until the last of them is gone.

        Raises:
            Exception: the exception that `Task.run` raised, with its type.
            WorkerError: two workers died running this unit.
            RuntimeError: no worker returned a result for ``timeout_s`` seconds, or the pool is closed or belongs to
                another process.
            ValueError: the ticket is unknown, or its result has been taken.
        """
        self._wait(lambda: ticket in self._done, (ticket,))
        outcome, began = self._done[ticket], perf_counter()
        try:
            try:
                return outcome.take()
            finally:
                self.taken.add(perf_counter() - began, len(self._done), len(self._waited))
                with self._lock:
                    self._done.pop(ticket, None)
                    self._waited.discard(ticket)
        except BaseException as error:
            if not isinstance(error, Exception) and error is not outcome.why:
                # Raised by a signal handler, not by the unit: the caller may ask again.
                self._waited.add(ticket)
                self._done[ticket] = outcome
            raise

    def ready(self, ticket: int) -> bool:
        """Return whether `result` would return at once."""
        self._check((ticket,))
        if ticket not in self._done:
            self._listen(0.0, lambda: ticket in self._done)
        return ticket in self._done

    def any_of(self, tickets: Iterable[int]) -> int:
        """Wait for any of ``tickets`` and return the first that has a result. Raises as `result` does on a timeout."""
        tickets = list(tickets)
        if not tickets:
            raise ValueError("expected at least one ticket to wait for, got none")
        self._wait(lambda: not self._done.keys().isdisjoint(tickets), tickets)
        return next(ticket for ticket in tickets if ticket in self._done)

    def cancel(self, tickets: Iterable[int] | None = None) -> None:
        """Discard ``tickets``, or all: finished, queued or running. Unknown and used tickets are ignored."""
        if self._closed or os.getpid() != self._pid:
            return
        with self._lock:
            gone = list(self._waited) if tickets is None else [t for t in tickets if t in self._waited]
            self.backend.cancel(gone)
            self._drop(gone)

    def abandon(self, tickets: Iterable[int]) -> None:
        """Cancel ``tickets`` from a finaliser, which may run at any point: at once if that cannot block or interrupt
        another call, else within the next call."""
        self._orphans.extend(tickets)
        if self._closed or os.getpid() != self._pid:
            return
        with SigintDeferred():  # an exception raised in a finaliser is lost, and could leave a lock held
            if at_rest(self._lock) and at_rest(self.backend.lock):
                self._cancel_abandoned()

    def close(self) -> None:
        """Shut the workers down and discard untaken results. Idempotent.

        Running units get a few seconds to finish, and half a second after Ctrl-C and at the end of the program.
        """
        if self._closed or os.getpid() != self._pid:
            return
        self._end.detach()
        self.backend.close(limits.LAST_GRACE_S if handles_interrupt() else limits.GRACE_S)
        self._drop(list(self._waited))

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"pids {self.pids}"
        return f"Pool({self.workers} workers, {len(self._waited)} outstanding, {state})"

    # ---- internals ---------------------------------------------------------------------------------------

    @property
    def _closed(self) -> bool:
        return not self._end.alive

    def _check(self, tickets: Iterable[int] = ()) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"this pool of workers belongs to process {self._pid}, but this is process {os.getpid()}, forked from "
                "it: create a new loader here"
            )
        if self._closed:
            raise RuntimeError("this pool of workers is closed")
        if self._orphans:
            self._cancel_abandoned()
        for ticket in tickets:
            if ticket not in self._waited:
                raise ValueError(f"ticket {ticket} is unknown, cancelled, or its result has been taken")

    def _cancel_abandoned(self) -> None:
        """Cancel abandoned tickets."""
        gone = []
        while self._orphans:  # finalisers may append at any moment
            gone.append(self._orphans.popleft())
        self.cancel(gone)

    def _drop(self, tickets: Iterable[int]) -> None:
        """Discard tickets and their results."""
        for ticket in tickets:
            self._waited.discard(ticket)
            outcome = self._done.pop(ticket, None)
            if outcome is not None:
                outcome.drop()

    def _wait(self, done: Callable[[], bool], tickets: Iterable[int]) -> None:
        self._check(tickets)
        deadline_s = time.monotonic() + self.timeout_s if self.timeout_s else None
        while not done():
            remaining_s = None if deadline_s is None else deadline_s - time.monotonic()
            if remaining_s is not None and remaining_s <= 0:
                raise RuntimeError(f"DataLoader timed out after {self.timeout_s} seconds")
            if self._listen(remaining_s, done) and self.timeout_s:
                deadline_s = time.monotonic() + self.timeout_s
            self._check(tickets)

    def _listen(self, timeout_s: float | None, done: Callable[[], bool]) -> bool:
        """Poll for results unless ``done()``. Return whether any arrived."""
        me = threading.get_ident()
        with self._lock:
            if done():
                return True
            # One thread polls, the others wait for it. If that thread is already this one, an interrupt came between
            # setting `_leader` and polling.
            if self._leader is not None and self._leader != me:
                return timeout_s != 0 and self._changed.wait(timeout_s)
            self._leader = me
        try:
            return self.backend.poll(timeout_s)
        finally:
            with self._lock:
                # At every point at which this may be interrupted, a result is in at least one of the two containers.
                arrived = self.backend.outcomes
                while arrived:
                    ticket, outcome = arrived[0]
                    if ticket in self._waited:
                        self._done[ticket] = outcome
                    else:
                        outcome.drop()
                    arrived.popleft()
                self._leader = None
                self._changed.notify_all()


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
_dropped: set[Backend] = set()  # whose workers still run a unit that nobody waits for


def _drop(backend: Backend) -> None:
    """Let the workers of a pool exit that is no longer referenced, maybe as Ctrl-C has ended its loop.

    Python shows finalisers no exception, so they do not wait for busy workers. The next pool does, and the end of the
    program.
    """
    _dropped.add(backend)
    if backend.leave(limits.LAST_GRACE_S):
        backend.close()
        _dropped.discard(backend)


def _end_dropped() -> None:
    for backend in list(_dropped):
        backend.close()
        _dropped.discard(backend)


@atexit.register
def _close_all() -> None:
    pools = list(_pools)
    for pool in pools:
        pool.backend.leave(0.0)
    for backend in list(_dropped):  # their workers have had that time already
        backend.close(0.0)
    deadline_s = time.monotonic() + limits.LAST_GRACE_S
    for pool in pools:
        pool.backend.close(max(deadline_s - time.monotonic(), 0.0))
