"""The parent's handle of one worker process, from start to exit."""

from __future__ import annotations

import array
import contextlib
import errno
import os
import pickle
import select
import signal
import socket
from collections import deque
from typing import Any, NamedTuple

from feedline.errors import WorkerError
from feedline.feed.workers import limits, memory
from feedline.feed.workers import start_methods as start
from feedline.feed.workers import worker_process as process
from feedline.feed.workers.control_block import FLAGS, SIZE, Control
from feedline.feed.workers.memory import SharedSegment
from feedline.feed.workers.queue import Record, UnitQueue
from feedline.feed.workers.worker_process import WorkerMessage

# Descriptors in this process. For each worker: its channel, its stderr, its pidfd and up to three of multiprocessing's.
# Once: the queue's descriptors, and the descriptors that are open while a worker starts.
FDS_EACH, FDS_ONCE = 6, 14

_INT = array.array("i").itemsize
_CONTROL_BYTES = socket.CMSG_SPACE(250 * _INT)  # of at most 250 descriptors


class Terms(NamedTuple):
    """Settings that all workers of a pool share."""

    context: Any
    parcel: process.Parcel
    options: process.Options


class WorkerHandle:
    """A started worker process.

    Args:
        terms: settings of the pool.
        queue: its queue.
        index: number of this worker.

    Attributes:
        index, pid: number of the worker, and its process id.
        process: the process, as `multiprocessing` represents it.
        backlog: unsent records of units pinned to this worker.
        ready: whether it has started the task.
        gone: whether it is dead and `end` has run, which closes its descriptors.
        exitcode, tail: exit code, and the last lines of its stderr, set once it is gone.

    Raises:
        OSError: processes or descriptors are exhausted. The message states the limit.
    """

    def __init__(self, terms: Terms, queue: UnitQueue, index: int) -> None:
        self.index, self._workers = index, terms.options.workers
        self.backlog: deque[Record] = deque()
        self.ready = self.gone = False
        self.exitcode, self.tail = 0, ""
        self._segments: dict[int, SharedSegment] = {}
        self._partial: list[bytes] = []
        try:
            self._start(terms, queue)
        except OSError as error:
            raise limits.descriptors_short(error) from error
        self.pid: int = self.process.pid

    def fileno(self) -> int:
        """A descriptor that becomes readable when it has sent a message or closed its channel. -1 when it is gone."""
        return self._channel.fileno()

    @property
    def ended(self) -> int:
        """A descriptor that becomes readable when the process has exited. -1 when it is gone."""
        return -1 if self.gone else self._ended

    @property
    def running(self) -> int | None:
        """The ticket of the unit it is running."""
        return self._control.running

    def send(self) -> None:
        """Send as much of the backlog as fits without blocking."""
        while self.backlog:
            try:
                self._channel.send(self.backlog[0].pack())
            except OSError:
                return  # its buffer is full, or it is dying and its successor gets its units
            self.backlog.popleft()

    def receive(self, buffer: bytearray) -> tuple[WorkerMessage, dict[int, SharedSegment]] | None:
        """Receive a message. Return a unit's message and the segments it names, or None after any other packet.

        Raises:
            BlockingIOError: no message is waiting.
            EOFError: the channel is closed.
            OSError: no descriptor is left for the segments it sent.
        """
        try:
            size, control, _, _ = self._channel.recvmsg_into([buffer], _CONTROL_BYTES, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            raise
        except OSError as error:
            raise EOFError from error
        if size == 0:
            raise EOFError
        fds = array.array("i")
        for _, _, data in control:
            fds.frombytes(data[: len(data) - len(data) % _INT])
        try:
            self._partial.append(bytes(memoryview(buffer)[1:size]))
            if buffer[0] != process.LAST[0]:
                return None
            text = self._partial[0] if len(self._partial) == 1 else b"".join(self._partial)
            self._partial.clear()
            return self._understand(WorkerMessage(*pickle.loads(text)), fds.tolist())
        finally:
            for fd in fds:
                os.close(fd)

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()

    def shut(self) -> None:
        """Shut down its channel. It exits after its current unit, whose result is lost."""
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Wait for its exit, forward the rest of its stderr, and close the descriptors. Idempotent."""
        if self.gone:
            return
        self.process.join()
        with contextlib.suppress(OSError):  # nothing left, or our own stderr is closed
            while text := os.read(self._stderr, 1 << 16):
                self._control.write(text)
                os.write(2, text)
        self.exitcode, self.tail = self.process.exitcode or 0, self._control.tail
        self.release()

    def release(self) -> None:
        """Close the descriptors, in this process only. Idempotent."""
        if not self.gone:
            self.gone = True
            self._channel.close()
            os.close(self._ended)
            os.close(self._stderr)

    def error(self, words: str) -> WorkerError:
        """Return the error to raise about its death. ``words`` complete the sentence with the circumstances."""
        how = f" with exit code {self.exitcode}"
        if self.exitcode < 0:
            named = f"signal {-self.exitcode}"
            with contextlib.suppress(ValueError):  # real-time signals have no names
                named = f"signal {signal.Signals(-self.exitcode).name}"
            if self.exitcode == -signal.SIGKILL:
                named += ", often sent by the kernel when memory runs out"
            # torch's words, which programs look for.
            how = f": it is killed by signal: {signal.strsignal(-self.exitcode)} ({named})"
        text = f"DataLoader worker (pid(s) {self.pid}) exited unexpectedly{how}, {words}"
        text += f"\n  worker {self.index} of {self._workers}"
        if self.tail:
            # Of a crash, the first lines show the place.
            crash = self.tail.rfind("Fatal Python error")
            lines = self.tail.splitlines()[-40:] if crash < 0 else self.tail[crash:].splitlines()[:40]
            text += "\n  last lines of its stderr:\n    " + "\n    ".join(lines)
        error = WorkerError(text)
        error.exitcode, error.stderr = self.exitcode, self.tail
        return error

    # ---- internals -------------------------------------------------------------------------------------

    def _start(self, terms: Terms, queue: UnitQueue) -> None:
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            self._channel, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.callback(self._channel.close)
            theirs.callback(end.close)
            self._stderr, writing = os.pipe()
            ours.callback(os.close, self._stderr)
            theirs.callback(os.close, writing)
            shared = memory.create(SIZE, "feedline-control")
            theirs.callback(os.close, shared)
            self._control = Control(shared)
            forks = terms.context.get_start_method() == "fork"
            foreign = (self._channel.fileno(), self._stderr, writing, shared) if forks else ()
            options = terms.options._replace(worker=self.index, foreign=foreign)
            self.process = start.launch(terms.context, (end, terms.parcel, options))
            ours.callback(self.process.kill)
            fds = [queue.reader, queue.store, shared, self._stderr, writing]
            # Its stderr becomes this process's, not the one that the fork server was started with.
            fds += [2] if _is_open(2) else []
            with contextlib.suppress(ConnectionError):  # already dead, which its pidfd will show
                socket.send_fds(self._channel, [b"descriptors"], fds)
            self._channel.setblocking(False)
            os.set_blocking(self._stderr, False)
            self._ended = _end_of(self.process)
            ours.pop_all()

    def _understand(self, sent: WorkerMessage, fds: list[int]) -> tuple[WorkerMessage, dict[int, SharedSegment]] | None:
        if sent.kind == process.READY:
            self.ready = True
            return None
        for number in sent.retired:
            del self._segments[number]
        if len(fds) != len(sent.fresh):
            raise limits.descriptors_short(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
        for (number, size), fd in zip(sent.fresh, fds, strict=True):
            self._segments[number] = SharedSegment(number, fd, size, self._control.mapping, FLAGS)
        segments = {number: self._segments[number] for number in sent.segments}
        for number in sent.segments:
            if number >= memory.SEGMENTS:
                del self._segments[number]
        return sent, segments


def _end_of(child: Any) -> int:
    """Return a descriptor that becomes readable when a process has exited.

    multiprocessing's sentinel is a pipe, which stays open as long as any process that the worker forked. A pidfd
    concerns the worker only.
    """
    try:
        return os.pidfd_open(child.pid)
    except ProcessLookupError:
        return os.dup(child.sentinel)  # it has exited already
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):  # an old kernel, or a sandbox
            return os.dup(child.sentinel)
        raise


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def readable(fds: list[int], seconds: float) -> list[int]:
    """Return the descriptors in ``fds`` that become readable within ``seconds``."""
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return [fd for fd, _ in poller.poll(seconds * 1000)]
