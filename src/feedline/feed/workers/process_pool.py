"""The worker processes as the parent sees them: starting, hearing, burying and replacing them.

A unit belongs to a job until its result is committed. When a worker dies, the unit it had in hand is run once more
by another worker, a new process takes the dead one's place, and a unit that kills twice fails with a `WorkerError`.
There is no thread: everything happens in the calls of whoever waits for results, and the workers meanwhile feed
themselves from the queue.
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
from feedline.feed.workers.interrupts import Undisturbed, at_rest
from feedline.feed.workers.memory import SharedSegment
from feedline.feed.workers.queue import Record, UnitQueue
from feedline.feed.workers.results import Arrived, Failed, Outcome, WorkerStats
from feedline.feed.workers.worker_handle import FDS_EACH, FDS_ONCE, Terms, WorkerHandle, readable
from feedline.feed.workers.worker_process import WorkerMessage


class _PendingUnit:
    """A unit until its result is there."""

    __slots__ = ("deaths", "record", "unit", "worker")

    def __init__(self, unit: Any, record: Record, worker: int | None) -> None:
        self.unit, self.record, self.worker, self.deaths = unit, record, worker, 0


class ProcessPool:
    """See the module.

    Args:
        task: sent to every worker.
        workers: how many.
        method: a start method, a multiprocessing context, or None for forkserver.
        depth: units outstanding for each worker, about.
        shared_memory: whether results travel in shared memory.
    """

    def __init__(self, task: Any, workers: int, method: Any, depth: int, shared_memory: bool) -> None:
        self._context = start.context(method)
        self._task, self._count, self._depth, self._shared_memory = task, workers, depth, shared_memory
        self._lock, self._pid = threading.RLock(), os.getpid()
        self._started = self._closed = False
        self._jobs: dict[int, _PendingUnit] = {}
        self._backlog: deque[Record] = deque()
        self._broken: WorkerError | None = None
        self.outcomes: deque[tuple[int, Outcome]] = deque()
        self._deaths_in_row = 0
        self._torn = False
        self._buffer = bytearray(process.FRAGMENT + 64)
        self.restarts = 0
        self.figures = [WorkerStats(index=i) for i in range(workers)]
        self._stages: dict[str, float] = {}  # of the dead
        self._members: list[WorkerHandle] = []
        self._by_fd: dict[int, WorkerHandle] = {}
        self._poller = select.poll()

    def start(self) -> None:
        """Start the workers. Whatever this raises, `close` ends those that were started."""
        limits.require_descriptors(FDS_EACH * self._count + FDS_ONCE)
        with Undisturbed():
            self._queue = UnitQueue()
            self._started = True
        self._terms = Terms(
            self._context, process.Parcel(self._task), self._count, self._depth, self._shared_memory, self._queue
        )
        start.prepare(self._context)
        _pools.add(self)  # first: forked workers shall not keep copies of each other's descriptors
        for index in range(self._count):
            with Undisturbed():
                self._members.append(self._start(index))

    # ---- for the pool ----------------------------------------------------------------------------------

    @property
    def pids(self) -> list[int]:
        """Of the processes, by worker."""
        return [member.pid for member in self._members]

    @property
    def stages(self) -> dict[str, float]:
        """Seconds by stage, summed over all workers there were."""
        total = dict(self._stages)
        for member in self._members:
            _add(total, member.stages)
        return total

    def put(self, ticket: int, unit: Any, worker: int | None) -> None:
        """Queue a unit; does not block."""
        text = pickle.dumps(unit, 5)
        with Undisturbed(), self._lock:
            record = self._queue.write(ticket, text)
            self._jobs[ticket] = _PendingUnit(unit, record, worker)
            (self._backlog if worker is None else self._members[worker].backlog).append(record)
            self._flush()

    def poll(self, timeout: float | None) -> bool:
        """Put what has come in into ``outcomes``, waiting up to ``timeout`` seconds for something to happen."""
        if self._torn:
            with Undisturbed(), self._lock:
                self._mend()
        with self._lock:
            if self._broken is not None:
                self._fail_all()
            if self.outcomes:
                return True
        events = self._poller.poll(None if timeout is None else max(timeout, 0.0) * 1000)
        if not events:
            return False
        with Undisturbed(), self._lock:
            ended = []
            self._torn = True  # until it is done: an exception in here may lose what was received
            for fd, _ in events:
                member = self._by_fd.get(fd)
                if member is None:
                    continue
                if fd == member.ended:
                    ended.append(member)
                else:
                    self._receive(member)
            for member in ended:
                self._bury(member)
            self._flush()
            self._torn = False
            return bool(self.outcomes)

    def cancel(self, tickets: Iterable[int]) -> None:
        """Forget units; those that run end for nothing."""
        with Undisturbed(), self._lock:
            for ticket in tickets:
                job = self._jobs.pop(ticket, None)
                if job is not None:
                    self._queue.erase(job.record)
            # Those not yet in the pipe need not go there.
            for backlog in (self._backlog, *(member.backlog for member in self._members)):
                kept = [record for record in backlog if record.ticket in self._jobs]
                backlog.clear()
                backlog.extend(kept)

    def at_rest(self) -> bool:
        """Whether `cancel` would neither wait nor change what another call is changing; for finalisers."""
        return at_rest(self._lock)

    def close(self, grace: float = process.GRACE) -> None:
        """End the workers: idle ones at once, running ones with their unit or after ``grace`` seconds.

        Again is as once. Only where the pool was made: a forked child has let go of it in `abandon`.
        """
        if self._closed or not self._started or os.getpid() != self._pid:
            return
        self._closed = True
        with self._lock:
            _pools.discard(self)
            left = {member for member in (*self._by_fd.values(), *self._members) if not member.gone}
            self._members = []
            self._by_fd.clear()
            self._jobs.clear()
            while self.outcomes:
                self.outcomes.popleft()[1].drop()
            for member in left:
                member.shut()
            deadline = time.monotonic() + grace
            try:
                while left and (seconds := deadline - time.monotonic()) > 0:
                    ended = readable([member.ended for member in left], seconds)
                    for member in [member for member in left if member.ended in ended]:
                        member.end()
                        left.discard(member)
            finally:
                with Undisturbed():
                    for member in left:
                        member.kill()
                    for member in left:
                        member.end()
                    self._queue.close()

    def abandon(self) -> None:
        """In a forked child: let go of the copies of the descriptors, and of nothing else."""
        for member in self._members:
            member.release()
        self._queue.close()
        self._members, self._jobs = [], {}
        self._by_fd.clear()

    # ---- within ----------------------------------------------------------------------------------------

    def _start(self, index: int) -> WorkerHandle:
        member = WorkerHandle(self._terms, index)
        for fd in (member.fileno(), member.ended):
            self._by_fd[fd] = member
            self._poller.register(fd, select.POLLIN)
        return member

    def _flush(self) -> None:
        while self._backlog and self._queue.push(self._backlog[0]):
            self._backlog.popleft()
        for member in self._members:
            if member.backlog:
                torn, self._torn = self._torn, True  # a worker must not run a unit of its own twice
                member.send()
                self._torn = torn

    def _receive(self, member: WorkerHandle) -> bool:
        """Take in one packet; False: there is none."""
        try:
            heard = member.hear(self._buffer)
        except BlockingIOError:
            return False
        except EOFError:
            # Should it still live, it cannot be heard any more.
            self._ignore(member.fileno())
            member.kill()
            return False
        if heard is not None:
            self._commit(member, *heard)
        return True

    def _commit(self, member: WorkerHandle, said: WorkerMessage, segments: dict[int, SharedSegment]) -> None:
        self._deaths_in_row = 0
        figures = self.figures[member.index]
        figures.units += 1
        figures.seconds += said.seconds
        figures.bytes += said.nbytes
        if said.kind == process.FAILURE:
            assert isinstance(said.text, bytes)
            outcome: Outcome = Failed(pickle.loads(said.text))
        else:
            outcome = Arrived(segments, said.pieces, said.text)
        if said.ticket in self._jobs:
            self._settle(said.ticket, outcome)
        else:
            outcome.drop()

    def _settle(self, ticket: int, outcome: Outcome) -> None:
        # Whatever interrupts this, an outcome is never lost; it may come twice.
        self.outcomes.append((ticket, outcome))
        self._queue.erase(self._jobs.pop(ticket).record)

    # ---- death -----------------------------------------------------------------------------------------

    def _bury(self, member: WorkerHandle, hear: bool = True) -> None:
        """Take over what a dead worker leaves, and put another in its place."""
        while hear and self._receive(member):
            pass  # what it sent before it died is good
        running = member.running
        if not member.gone:
            self._end(member)
            _add(self._stages, member.stages)
        self._deaths_in_row += 1
        job = None if running is None else self._jobs.get(running)
        if job is not None:
            job.deaths += 1
            if job.deaths >= 2:
                assert running is not None
                error = member.error(f"twice while it ran unit {_short(job.unit)}")
                error.unit = job.unit
                self._settle(running, Failed(error))
        if not member.ready and member.exitcode >= 0:
            hint = (
                "before it was ready; what it wrote to stderr says why. If the main module starts it outside of "
                "`if __name__ == '__main__':`, put that line there: forkserver and spawn import the main module again"
            )
            self._broken = member.error(hint)
        elif self._deaths_in_row > 2 * self._terms.workers + 3:
            words = f"the last of {self._deaths_in_row} workers that died without finishing a unit in between"
            self._broken = member.error(words)
        if self._broken is not None:
            self._fail_all()
            return
        self.restarts += 1
        self.figures[member.index].restarts += 1
        try:
            self._members[member.index] = self._start(member.index)
        except OSError as error:
            self._broken = member.error(f"and another cannot be started: {error}")
            self._fail_all()
            return
        self._requeue(member.index)

    def _requeue(self, index: int) -> None:
        """Send all units again that only the dead worker ``index`` can have known of, in the order of tickets."""
        # One may have died between taking a record and saying so. Taking back those that nobody has taken shows
        # which are missing; a unit that a living worker is just taking is run twice then, and its second result
        # is dropped.
        queued = self._queue.drain() | {record.ticket for record in self._backlog}
        held = {member.running for member in self._members}
        self._backlog.clear()
        again = self._members[index].backlog
        for ticket, job in sorted(self._jobs.items()):
            if job.worker == index:
                again.append(job.record)
            elif job.worker is None and (ticket in queued or ticket not in held):
                self._backlog.append(job.record)

    def _mend(self) -> None:
        """An exception may have lost a message: whoever could have sent it is replaced, and its units run again."""
        strays = set(self._by_fd.values()).difference(self._members)
        for member in (*strays, *self._members):
            member.kill()
        for member in strays:
            self._end(member)
        for member in list(self._members):
            running = member.running
            if running in self._jobs:
                self._jobs[running].deaths -= 1  # not the unit's doing
            self._deaths_in_row = 0
            # What it still has to say may build on what was lost.
            self._bury(member, hear=False)
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
            self._settle(ticket, Failed(self._broken))


def _short(unit: Any) -> str:
    text = repr(unit)
    return text if len(text) <= 200 else text[:200] + "..."


def _add(total: dict[str, float], more: dict[str, float]) -> None:
    for name, seconds in more.items():
        total[name] = total.get(name, 0.0) + seconds


_pools: weakref.WeakSet[ProcessPool] = weakref.WeakSet()


def _forked() -> None:
    for pool in list(_pools):
        pool.abandon()


os.register_at_fork(after_in_child=_forked)
