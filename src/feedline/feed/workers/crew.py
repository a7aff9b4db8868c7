"""The worker processes as the parent sees them: starting, hearing, burying and replacing them.

A unit belongs to a job until its result is committed. When a worker dies, the unit it had in hand is run once more
by another worker, a new process takes the dead one's place, and a unit that kills twice fails with a `WorkerError`.
There is no thread: everything happens in the calls of whoever waits for results, and the workers meanwhile feed
themselves from the queue.
"""

from __future__ import annotations

import array
import contextlib
import os
import pickle
import select
import signal
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any

from feedline.errors import WorkerError
from feedline.feed.workers import memory, process, start
from feedline.feed.workers.control import SIZE, Control
from feedline.feed.workers.memory import Piece, Segment
from feedline.feed.workers.message import decode
from feedline.feed.workers.outcome import Failed, Outcome, WorkerStats
from feedline.feed.workers.process import Message
from feedline.feed.workers.queue import Record, UnitQueue

_WORDS = array.array("i").itemsize
_MAX_FDS = 250


class _Job:
    """A unit until its result is there."""

    __slots__ = ("deaths", "record", "unit", "worker")

    def __init__(self, unit: Any, record: Record, worker: int | None) -> None:
        self.unit, self.record, self.worker, self.deaths = unit, record, worker, 0


class _Worker:
    """One process, from its start to its end."""

    def __init__(self, index: int, child: Any, channel: socket.socket, control: Control, stderr: int) -> None:
        self.index, self.process, self.channel, self.control, self.stderr = index, child, channel, control, stderr
        self.pid: int = child.pid
        self.segments: dict[int, Segment] = {}
        self.partial: list[bytes] = []
        self.backlog: deque[Record] = deque()
        self.ready = self.gone = False
        self.stages: dict[str, float] = {}
        try:
            self.ended = os.pidfd_open(self.pid)
        except ProcessLookupError:
            self.ended = os.dup(child.sentinel)
        except OSError as error:
            if error.errno in (24, 23):
                raise memory.descriptors_short(error) from error
            self.ended = os.dup(child.sentinel)

    def release(self) -> None:
        """Let the descriptors go; in this process."""
        if self.gone:
            return
        self.gone = True
        self.channel.close()
        for fd in (self.ended, self.stderr):
            os.close(fd)


class Arrived:
    """A result as it lies in shared memory."""

    __slots__ = ("_pieces", "_segments", "_text", "_windows")

    def __init__(self, segments: dict[int, Segment], pieces: list[Piece], text: bytes | Piece) -> None:
        self._segments, self._pieces, self._text = segments, pieces, text
        self._windows: dict[int, memoryview] = {}

    def take(self) -> Any:
        """The tree, whose arrays are views of the memory, and keep it when this object is gone."""
        # Interrupted, it is taken once more: the windows stay here until then.
        windows = self._windows
        for number in list(self._segments):
            windows[number] = self._segments[number].window()
            del self._segments[number]
        buffers = [windows[number][offset : offset + nbytes] for number, offset, nbytes in self._pieces]
        text = self._text
        return decode(text if isinstance(text, bytes) else windows[text[0]][text[1] : text[1] + text[2]], buffers)

    def drop(self) -> None:
        """Give the memory back."""
        segments, self._segments = self._segments, {}
        for segment in segments.values():
            segment.give_back()


class ProcessCrew:
    """See the module.

    Args:
        task: sent to every worker.
        workers: how many.
        method: a start method, a multiprocessing context, or None for forkserver.
        depth: free segments that each worker keeps.
        shared_memory: whether results travel in shared memory.
    """

    def __init__(self, task: Any, workers: int, method: Any, depth: int, shared_memory: bool) -> None:
        self._parcel, self._count = process.Parcel(task), workers
        self._context = start.context(method)
        self._depth, self._shared_memory = depth, shared_memory
        self._lock = threading.RLock()
        self._jobs: dict[int, _Job] = {}
        self._backlog: deque[Record] = deque()
        self._broken: WorkerError | None = None
        self.outcomes: deque[tuple[int, Outcome]] = deque()
        self._deaths_in_row = 0
        self._torn = False
        self._buffer = bytearray(process.FRAGMENT + 64)
        self.restarts = 0
        self.figures = [WorkerStats(index=i) for i in range(workers)]
        self._stages: dict[str, float] = {}  # of the dead
        self._workers: list[_Worker] = []
        self._by_fd: dict[int, _Worker] = {}
        self._poller = select.poll()
        self._queue = UnitQueue()
        start.prepare(self._context)
        _crews.add(self)  # first: forked workers shall not keep copies of each other's descriptors
        try:
            for index in range(workers):
                self._workers.append(self._start(index))
        except BaseException:
            self.close(0.0)
            raise

    # ---- for the pool ----------------------------------------------------------------------------------

    @property
    def pids(self) -> list[int]:
        """Of the processes, by worker."""
        return [worker.pid for worker in self._workers]

    @property
    def stages(self) -> dict[str, float]:
        """Seconds by stage, summed over all workers there were."""
        total = dict(self._stages)
        for worker in self._workers:
            _add(total, worker.stages)
        return total

    def put(self, ticket: int, unit: Any, worker: int | None) -> None:
        """Queue a unit; does not block."""
        text = pickle.dumps(unit, 5)
        with self._lock:
            record = self._queue.write(ticket, text)
            self._jobs[ticket] = _Job(unit, record, worker)
            (self._backlog if worker is None else self._workers[worker].backlog).append(record)
            self._flush()

    def poll(self, timeout: float | None) -> bool:
        """Put what has come in into ``outcomes``, waiting up to ``timeout`` seconds for something to happen."""
        with self._lock:
            if self._torn:
                self._mend()
            if self._broken is not None:
                self._fail_all()
            if self.outcomes:
                return True
        events = self._poller.poll(None if timeout is None else max(timeout, 0.0) * 1000)
        if not events:
            return False
        with self._lock:
            ended = []
            self._torn = True  # until it is done: an interrupt in here may lose what was received
            for fd, _ in events:
                worker = self._by_fd.get(fd)
                if worker is None:
                    continue
                if fd == worker.ended:
                    ended.append(worker)
                else:
                    self._receive(worker)
            for worker in ended:
                self._bury(worker)
            self._flush()
            self._torn = False
            return bool(self.outcomes)

    def cancel(self, tickets: Iterable[int]) -> None:
        """Forget units; those that run end for nothing."""
        with self._lock:
            for ticket in tickets:
                job = self._jobs.pop(ticket, None)
                if job is not None:
                    self._queue.erase(job.record)
            # Those not yet in the pipe need not go there.
            for backlog in (self._backlog, *(worker.backlog for worker in self._workers)):
                kept = [record for record in backlog if record.ticket in self._jobs]
                backlog.clear()
                backlog.extend(kept)

    def close(self, grace: float = process.GRACE) -> None:
        """End the workers: idle ones at once, running ones with their unit or after ``grace`` seconds."""
        with self._lock:
            _crews.discard(self)
            workers, self._workers = self._workers, []
            self._by_fd.clear()
            self._jobs.clear()
            while self.outcomes:
                self.outcomes.popleft()[1].drop()
            for worker in workers:
                with contextlib.suppress(OSError):
                    worker.channel.shutdown(socket.SHUT_RDWR)
            waiting = select.poll()
            left = {worker.ended: worker for worker in workers if not worker.gone}
            for fd in left:
                waiting.register(fd, select.POLLIN)
            deadline = time.monotonic() + grace
            while left and (seconds := deadline - time.monotonic()) > 0:
                for fd, _ in waiting.poll(seconds * 1000):
                    waiting.unregister(fd)
                    self._end(left.pop(fd))
            for worker in left.values():
                worker.process.kill()
            for worker in left.values():
                self._end(worker)
            self._queue.close()

    def abandon(self) -> None:
        """In a forked child: let go of the copies of the descriptors, and of nothing else."""
        for worker in self._workers:
            worker.release()
        self._queue.close()
        self._workers, self._jobs = [], {}
        self._by_fd.clear()

    # ---- within ----------------------------------------------------------------------------------------

    def _start(self, index: int) -> _Worker:
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            try:
                channel, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                ours.callback(channel.close)
                theirs.callback(end.close)
                reading, writing = os.pipe()
                ours.callback(os.close, reading)
                theirs.callback(os.close, writing)
                shared = memory.create(SIZE, "feedline-control")
                theirs.callback(os.close, shared)
                control = Control(shared)
                forks = self._context.get_start_method() == "fork"
                foreign = (channel.fileno(), reading, writing, shared) if forks else ()
                options = process.Options(index, self._count, os.getpid(), self._depth, self._shared_memory, foreign)
                child = start.launch(self._context, (end, self._parcel, options))
            except OSError as error:
                raise memory.descriptors_short(error) from error
            ours.callback(child.kill)
            fds = [self._queue.reader, self._queue.store, shared, reading, writing]
            with contextlib.suppress(ConnectionError):  # it is dead already; its end will tell
                socket.send_fds(channel, [b"descriptors"], fds)
            channel.setblocking(False)
            os.set_blocking(reading, False)
            worker = _Worker(index, child, channel, control, reading)
            ours.pop_all()
        for fd in (worker.channel.fileno(), worker.ended):
            self._by_fd[fd] = worker
            self._poller.register(fd, select.POLLIN)
        return worker

    def _flush(self) -> None:
        while self._backlog and self._queue.push(self._backlog[0]):
            self._backlog.popleft()
        for worker in self._workers:
            while worker.backlog:
                try:
                    worker.channel.send(worker.backlog[0].pack())
                except BlockingIOError:
                    break
                except OSError:
                    break  # it is dying; its units go to the next one
                worker.backlog.popleft()

    def _receive(self, worker: _Worker) -> bool:
        """Take in one packet; False: there is none."""
        try:
            size, control, _, _ = worker.channel.recvmsg_into(
                [self._buffer], socket.CMSG_SPACE(_MAX_FDS * _WORDS), socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return False
        except OSError:
            size, control = 0, []
        if size == 0:
            # It shut its end; should it still live, it cannot be heard any more.
            self._forget_fd(worker.channel.fileno())
            worker.process.kill()
            return False
        fds = array.array("i")
        for _, _, data in control:
            fds.frombytes(data[: len(data) - len(data) % _WORDS])
        last = self._buffer[0] == process.LAST[0]
        worker.partial.append(bytes(memoryview(self._buffer)[1:size]))
        if last:
            text = worker.partial[0] if len(worker.partial) == 1 else b"".join(worker.partial)
            worker.partial.clear()
            self._commit(worker, Message(*pickle.loads(text)), fds.tolist())
        return True

    def _commit(self, worker: _Worker, said: Message, fds: list[int]) -> None:
        if said.kind == process.READY:
            worker.ready = True
            return
        for number in said.retired:
            del worker.segments[number]
        try:
            if len(fds) != len(said.fresh):
                raise memory.descriptors_short(OSError(24, os.strerror(24)))
            for (number, size), fd in zip(said.fresh, fds, strict=True):
                worker.segments[number] = Segment(number, fd, size, worker.control.flags)
        finally:
            for fd in fds:
                os.close(fd)
        self._deaths_in_row = 0
        figures = self.figures[worker.index]
        figures.units += 1
        figures.seconds += said.seconds
        figures.bytes += said.nbytes
        if said.stages is not None:
            worker.stages = said.stages
        segments = {number: worker.segments[number] for number in said.segments}
        for number in said.segments:
            if number >= memory.SEGMENTS:
                del worker.segments[number]
        job = self._jobs.pop(said.ticket, None)
        if said.kind == process.FAILURE:
            assert isinstance(said.text, bytes)
            outcome: Outcome = Failed(pickle.loads(said.text))
        else:
            outcome = Arrived(segments, said.pieces, said.text)
        if job is None:
            outcome.drop()
            return
        self._queue.erase(job.record)
        self.outcomes.append((said.ticket, outcome))

    # ---- death -----------------------------------------------------------------------------------------

    def _bury(self, worker: _Worker) -> None:
        """Take over what a dead worker leaves, and put another in its place."""
        while self._receive(worker):
            pass  # what it sent before it died is good
        running = worker.control.running
        exitcode, tail = self._end(worker)
        _add(self._stages, worker.stages)
        self._deaths_in_row += 1
        job = None if running is None else self._jobs.get(running)
        if job is not None:
            job.deaths += 1
            if job.deaths >= 2:
                assert running is not None
                del self._jobs[running]
                self._queue.erase(job.record)
                error = self._error(worker, exitcode, tail, f"twice while it ran unit {_short(job.unit)}")
                error.unit = job.unit
                self.outcomes.append((running, Failed(error)))
        if not worker.ready and exitcode >= 0:
            hint = (
                "before it was ready; what it wrote to stderr says why. If the main module starts it outside of "
                "`if __name__ == '__main__':`, put that line there: forkserver and spawn import the main module again"
            )
            self._broken = self._error(worker, exitcode, tail, hint)
        elif self._deaths_in_row > 2 * self._count + 3:
            words = f"the last of {self._deaths_in_row} workers that died without finishing a unit in between"
            self._broken = self._error(worker, exitcode, tail, words)
        if self._broken is not None:
            self._fail_all()
            return
        self.restarts += 1
        self.figures[worker.index].restarts += 1
        try:
            self._workers[worker.index] = self._start(worker.index)
        except OSError as error:
            self._broken = self._error(worker, exitcode, tail, f"and another cannot be started: {error}")
            self._fail_all()
            return
        self._requeue(worker.index)

    def _requeue(self, index: int) -> None:
        """Send all units again that only the dead worker ``index`` can have known of, in the order of tickets."""
        # One may have died between taking a record and saying so. Taking back those that nobody has taken shows
        # which are missing; a unit that a living worker is just taking is run twice then, and its second result
        # is dropped.
        queued = self._queue.drain() | {record.ticket for record in self._backlog}
        held = {worker.control.running for worker in self._workers}
        self._backlog.clear()
        again = self._workers[index].backlog
        for ticket, job in sorted(self._jobs.items()):
            if job.worker == index:
                again.append(job.record)
            elif job.worker is None and (ticket in queued or ticket not in held):
                self._backlog.append(job.record)

    def _mend(self) -> None:
        """An interrupt may have lost a message: whoever could have sent it is replaced, and its units run again."""
        self._torn = False
        for worker in list(self._workers):
            worker.process.kill()
        for worker in list(self._workers):
            self._jobs_survive(worker)
            self._bury(worker)

    def _jobs_survive(self, worker: _Worker) -> None:
        running = worker.control.running
        if running in self._jobs:
            self._jobs[running].deaths -= 1  # not the unit's doing

    def _end(self, worker: _Worker) -> tuple[int, str]:
        """Wait for a worker that has died, pass on the rest of its stderr; its exit code and the last lines."""
        for fd in (worker.channel.fileno(), worker.ended):
            self._forget_fd(fd)
        worker.process.join()
        with contextlib.suppress(OSError):  # nothing left, or nobody to pass it on to
            while text := os.read(worker.stderr, 1 << 16):
                worker.control.write(text)
                os.write(2, text)
        worker.release()
        return worker.process.exitcode or 0, worker.control.tail

    def _forget_fd(self, fd: int) -> None:
        if self._by_fd.pop(fd, None) is not None:
            self._poller.unregister(fd)

    def _fail_all(self) -> None:
        assert self._broken is not None
        for ticket, job in self._jobs.items():
            self._queue.erase(job.record)
            self.outcomes.append((ticket, Failed(self._broken)))
        self._jobs.clear()

    def _error(self, worker: _Worker, exitcode: int, tail: str, words: str) -> WorkerError:
        how = f"exit code {exitcode}"
        if exitcode < 0:
            how = f"signal {-exitcode}"
            with contextlib.suppress(ValueError):  # real-time signals have no names
                how = f"signal {signal.Signals(-exitcode).name}"
            if exitcode == -signal.SIGKILL:
                how += " (often the kernel's, when memory ran out)"
        text = f"DataLoader worker (pid(s) {worker.pid}) exited unexpectedly with {how}, {words}"
        text += f"\n  worker {worker.index} of {self._count}"
        if tail:
            text += "\n  last lines of its stderr:\n    " + "\n    ".join(tail.splitlines()[-40:])
        error = WorkerError(text)
        error.exitcode, error.stderr = exitcode, tail
        return error


def _short(unit: Any) -> str:
    text = repr(unit)
    return text if len(text) <= 200 else text[:200] + "..."


def _add(total: dict[str, float], more: dict[str, float]) -> None:
    for name, seconds in more.items():
        total[name] = total.get(name, 0.0) + seconds


_crews: weakref.WeakSet[ProcessCrew] = weakref.WeakSet()


def _forked() -> None:
    for crew in list(_crews):
        crew.abandon()


os.register_at_fork(after_in_child=_forked)
