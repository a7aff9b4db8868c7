"""Worker processes, managed by the parent: starting, polling, and replacing them when they die.

A unit is pending until its result is in. When a worker dies, another one runs its unit once more and a new process
takes its place. A unit that kills two workers fails with `WorkerError`. The parent has no thread for this: all of it
happens inside the calls that wait for results, while the workers take units from the queue by themselves.
"""

from __future__ import annotations

import os
import pickle
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any

from feedline.errors import WorkerError
from feedline.feed.workers import limits
from feedline.feed.workers import start_methods as start
from feedline.feed.workers import worker_process as process
from feedline.feed.workers.copied_memory import CopiedMemory
from feedline.feed.workers.interrupts import SigintDeferred
from feedline.feed.workers.memory import SharedSegment
from feedline.feed.workers.queue import Record, UnitQueue
from feedline.feed.workers.results import Arrived, Failed, Outcome, WorkerStats, short
from feedline.feed.workers.worker_handle import FDS_EACH, FDS_ONCE, Terms, WorkerHandle, first_ends, poll
from feedline.feed.workers.worker_process import WorkerMessage


class _PendingUnit:
    """A unit without a result."""

    __slots__ = ("deaths", "record", "unit", "worker")

    def __init__(self, unit: Any, record: Record, worker: int | None) -> None:
        self.unit, self.record, self.worker, self.deaths = unit, record, worker, 0


class ProcessPool:
    """A pool of worker processes. `Pool` documents the semantics.

    Args:
        task: object sent to every worker.
        workers: number of workers.
        method: start method, multiprocessing context, or None for multiprocessing's default.
        depth: approximate number of units in flight per worker.

    Attributes:
        lock: a finaliser calls `cancel` only while nobody holds it.
        outcomes: finished units that have not been collected.
        figures: counts and times, by worker.
    """

    def __init__(self, task: Any, workers: int, method: Any, depth: int) -> None:
        options = process.Options(workers, parent=os.getpid(), depth=depth)
        self._terms = Terms(start.context(method), process.Parcel(task), options)
        self.lock, self._pid = threading.RLock(), os.getpid()
        self._started = self._closed = False
        self._jobs: dict[int, _PendingUnit] = {}
        self._backlog: deque[Record] = deque()
        self._broken: WorkerError | None = None
        self.outcomes: deque[tuple[int, Outcome]] = deque()
        self._deaths_in_row = 0
        self._torn = False
        self.figures = [WorkerStats(index=i) for i in range(workers)]
        self._copied = CopiedMemory()
        self._members: list[WorkerHandle] = []
        self._leaving: set[WorkerHandle] = set()
        self._by_fd: dict[int, WorkerHandle] = {}
        self._poller = select.poll()

    def start(self) -> None:
        """Start the workers. If this raises, `close` stops those already started."""
        workers = self._terms.options.workers
        limits.require_descriptors(FDS_EACH * workers + FDS_ONCE)
        with SigintDeferred():
            self._queue = UnitQueue()
            self._started = True
        start.prepare(self._terms.context)
        _pools.add(self)  # first, so that forked workers close their copies of each other's descriptors
        for index in range(workers):
            with SigintDeferred():
                self._members.append(self._start(index))

    # ---- called by Pool --------------------------------------------------------------------------------

    @property
    def pids(self) -> list[int]:
        """Process ids, by worker."""
        return [member.pid for member in self._members]

    @property
    def processes(self) -> list[Any]:
        """Processes of `multiprocessing`, by worker. Empty once the pool is closed."""
        return [member.process for member in self._members]

    def put(self, ticket: int, unit: Any, worker: int | None) -> None:
        """Queue a unit. Never blocks."""
        text = pickle.dumps(unit, 5)
        with SigintDeferred(), self.lock:
            record = self._queue.write(ticket, text)
            self._jobs[ticket] = _PendingUnit(unit, record, worker)
            (self._backlog if worker is None else self._members[worker].backlog).append(record)
            self._flush()

    def poll(self, timeout_s: float | None) -> bool:
        """Append finished units to ``outcomes``, waiting up to ``timeout_s`` seconds for an event."""
        if self._torn:
            with SigintDeferred(), self.lock:
                self._recover()
        with self.lock:
            if self._broken is not None:
                self._fail_all()
            if self.outcomes:
                return True
        fds = poll(self._poller, self._members, None if timeout_s is None else max(timeout_s, 0.0))
        if not fds:
            return False
        with SigintDeferred(), self.lock:
            ended = []
            self._torn = True  # until done, as an exception in here may lose a received message
            for fd in fds:
                member = self._by_fd.get(fd)
                if member is None:
                    continue
                if fd == member.ended:
                    ended.append(member)
                else:
                    self._receive(member)
            for member in ended:
                self._replace_dead(member)
            self._flush()
            self._torn = False
        self._copied.look(self._started_workers)
        return bool(self.outcomes)

    def cancel(self, tickets: Iterable[int]) -> None:
        """Forget units. The results of running ones are dropped."""
        with SigintDeferred(), self.lock:
            for ticket in tickets:
                job = self._jobs.pop(ticket, None)
                if job is not None:
                    self._queue.erase(job.record)
            # Records that are not in the pipe yet can simply be removed.
            for backlog in (self._backlog, *(member.backlog for member in self._members)):
                records = [record for record in backlog if record.ticket in self._jobs]
                backlog.clear()
                backlog.extend(records)

    def leave(self, wait_s: float) -> bool:
        """Let the workers exit: idle ones at once, busy ones after their unit or `GRACE_S` seconds.

        Idempotent. Return whether all have exited within ``wait_s`` seconds. Does nothing in a forked child, where
        `abandon` has closed the descriptors.
        """
        if not self._started or os.getpid() != self._pid:
            return True
        with self.lock:
            if not self._closed:
                self._closed = True
                self._leaving = {member for member in (*self._by_fd.values(), *self._members) if not member.gone}
                self._members = []
                self._by_fd.clear()
                self._jobs.clear()
                while self.outcomes:
                    self.outcomes.popleft()[1].drop()
                for member in self._leaving:
                    member.shut()
            deadline_s = time.monotonic() + wait_s
            while self._leaving and (seconds := deadline_s - time.monotonic()) > 0:
                ended = first_ends(self._leaving, seconds)
                self._forget([member for member in self._leaving if member.ended in ended])
            return not self._leaving

    def close(self, grace_s: float = limits.GRACE_S) -> None:
        """Let the workers exit, and kill those that are busy after ``grace_s`` seconds. Idempotent."""
        try:
            self.leave(grace_s)
        finally:
            if os.getpid() == self._pid:
                with SigintDeferred(), self.lock:
                    # Asked with the lock held: a finaliser may close the pool in another thread.
                    if self._started:
                        for member in self._leaving:
                            member.kill()
                        self._forget(list(self._leaving))
                        _pools.discard(self)
                        self._started = False
                        self._queue.close()

    def abandon(self) -> None:
        """In a forked child: close the inherited descriptors, and nothing else. Not idempotent."""
        for member in (*self._members, *self._leaving):
            member.release()
        self._queue.close()
        self._members, self._jobs, self._leaving = [], {}, set()
        self._by_fd.clear()

    # ---- internals -------------------------------------------------------------------------------------

    def _start(self, index: int) -> WorkerHandle:
        member = WorkerHandle(self._terms, self._queue, index)
        for fd in (member.fileno(), member.ended):
            self._by_fd[fd] = member
            self._poller.register(fd, select.POLLIN)
        return member

    def _forget(self, members: list[WorkerHandle]) -> None:
        """Forget workers that have left, once they have exited."""
        for member in members:
            member.end()
            self._leaving.discard(member)

    def _started_workers(self) -> list[tuple[int, WorkerStats]]:
        return [(member.pid, self.figures[member.index]) for member in self._members if member.ready]

    def _flush(self) -> None:
        while self._backlog and self._queue.push(self._backlog[0]):
            self._backlog.popleft()
        for member in self._members:
            if member.waits_for_room:
                torn, self._torn = self._torn, True  # a worker must not get a unit pinned to it twice
                member.send()
                self._torn = torn

    def _receive(self, member: WorkerHandle) -> bool:
        """Receive a message. Return False if there is none."""
        try:
            received = member.receive()
        except BlockingIOError:
            return False
        except EOFError:
            # If it is still alive, it can no longer be reached.
            self._ignore(member.fileno())
            member.kill()
            return False
        if received is not None:
            self._commit(member, *received)
        return True

    def _commit(self, member: WorkerHandle, message: WorkerMessage, segments: dict[int, SharedSegment]) -> None:
        self._deaths_in_row = 0
        figures = self.figures[member.index]
        figures.pid = member.pid
        figures.units += 1
        figures.seconds += message.seconds
        figures.bytes += message.nbytes
        if message.kind == process.FAILURE:
            assert isinstance(message.text, bytes)
            outcome: Outcome = Failed(pickle.loads(message.text))
        else:
            outcome = Arrived(segments, message.pieces, message.text)
        if message.ticket in self._jobs:
            self._put_outcome(message.ticket, outcome)
        else:
            outcome.drop()

    def _put_outcome(self, ticket: int, outcome: Outcome) -> None:
        # Safe to interrupt: an outcome is never lost, though it may be delivered twice.
        self.outcomes.append((ticket, outcome))
        self._queue.erase(self._jobs.pop(ticket).record)

    # ---- dead workers ----------------------------------------------------------------------------------

    def _replace_dead(self, member: WorkerHandle, receive: bool = True) -> None:
        """Collect a dead worker's last results and start another in its place."""
        while receive and self._receive(member):
            pass  # messages that it sent before it died are valid
        running = member.running
        if not member.gone:
            self._end(member)
        self._deaths_in_row += 1
        job = None if running is None else self._jobs.get(running)
        if job is not None:
            job.deaths += 1
            if job.deaths >= 2:
                assert running is not None
                error = member.error(f"twice while it ran unit {short(job.unit)}")
                error.unit = job.unit
                self._put_outcome(running, Failed(error))
        if not member.ready and member.exitcode >= 0:
            method = self._terms.context.get_start_method()
            hint = "before it was ready; its stderr says why"
            if member.exitcode == start.UNGUARDED:
                hint = (
                    f"as the main module starts workers when it is imported, and start method {method!r} imports it in "
                    f"each worker. Put what starts them under `if __name__ == '__main__':`, or {process.WAYS_OUT}"
                )
            self._broken = member.error(hint)
        elif self._deaths_in_row > 2 * self._terms.options.workers + 3:
            words = f"the last of {self._deaths_in_row} workers in a row that died without finishing a unit"
            self._broken = member.error(words)
        if self._broken is not None:
            self._fail_all()
            return
        self.figures[member.index].restarts += 1
        try:
            self._members[member.index] = self._start(member.index)
        except OSError as error:
            self._broken = member.error(f"and its replacement could not be started: {error}")
            self._fail_all()
            return
        self._requeue(member.index)

    def _requeue(self, index: int) -> None:
        """Queue again, in ticket order, all units that only the dead worker ``index`` can have taken."""
        # It may have died between taking a record and noting its ticket. Draining the queue shows which records are
        # missing. A unit that a live worker is taking at this moment then runs twice, and its second result is dropped.
        queued = self._queue.drain() | {record.ticket for record in self._backlog}
        running = {member.running for member in self._members}
        self._backlog.clear()
        again = self._members[index].backlog
        for ticket, job in sorted(self._jobs.items()):
            if job.worker == index:
                again.append(job.record)
            elif job.worker is None and (ticket in queued or ticket not in running):
                self._backlog.append(job.record)

    def _recover(self) -> None:
        """Recover from an exception that may have lost a message: replace every worker and run its unit again."""
        strays = set(self._by_fd.values()).difference(self._members)
        for member in (*strays, *self._members):
            member.kill()
        for member in strays:
            self._end(member)
        for member in list(self._members):
            running = member.running
            if running in self._jobs:
                self._jobs[running].deaths -= 1  # not the unit's fault
            self._deaths_in_row = 0
            # Its remaining messages may refer to a lost one.
            self._replace_dead(member, receive=False)
        self._torn = False

    def _end(self, member: WorkerHandle) -> None:
        for fd in (member.fileno(), member.ended):
            self._ignore(fd)
        member.end()

    def _ignore(self, fd: int) -> None:
        if self._by_fd.pop(fd, None) is not None:
            self._poller.unregister(fd)

    def _fail_all(self) -> None:
        assert self._broken is not None
        for ticket in list(self._jobs):
            self._put_outcome(ticket, Failed(self._broken))


_pools: weakref.WeakSet[ProcessPool] = weakref.WeakSet()


def _after_fork() -> None:
    for pool in list(_pools):
        pool.abandon()
    # The child may reuse these descriptors' numbers, which its own forks must leave alone.
    _pools.clear()


os.register_at_fork(after_in_child=_after_fork)
