"""One worker process as the parent sees it, from its start to its end."""

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

# Descriptors of this process: for each worker its channel, its stderr, its pidfd and up to three of multiprocessing's;
# and the queue's, with those that are open while a worker starts.
FDS_EACH, FDS_ONCE = 6, 14

_INT = array.array("i").itemsize
_MAX_FDS = 250


class Terms(NamedTuple):
    """What all workers of a pool have in common."""

    context: Any
    parcel: process.Parcel
    workers: int
    depth: int
    shared_memory: bool
    queue: UnitQueue


class WorkerHandle:
    """A started worker.

    Args:
        terms: of the pool.
        index: which of them.

    Attributes:
        index, pid: the worker, its process.
        backlog: records of units for this worker alone that have not been sent.
        ready: it has started the task.
        gone: it is dead and `end` has been called; there are no descriptors then.
        stages: seconds by stage, as it said last.
        exitcode, tail: how it ended, and the last lines of its stderr; known when it is gone.

    Raises:
        OSError: processes or descriptors cannot be had, with the limit.
    """

    def __init__(self, terms: Terms, index: int) -> None:
        self.index, self._workers = index, terms.workers
        self.backlog: deque[Record] = deque()
        self.ready = self.gone = False
        self.stages: dict[str, float] = {}
        self.exitcode, self.tail = 0, ""
        self._segments: dict[int, SharedSegment] = {}
        self._partial: list[bytes] = []
        try:
            self._start(terms)
        except OSError as error:
            raise limits.descriptors_short(error) from error
        self.pid: int = self._child.pid

    def fileno(self) -> int:
        """Readable when it has said something or shut its end; -1 when it is gone."""
        return self._channel.fileno()

    @property
    def ended(self) -> int:
        """A descriptor that is readable when the process has ended; -1 when it is gone."""
        return -1 if self.gone else self._ended

    @property
    def running(self) -> int | None:
        """The ticket of the unit that it has in hand."""
        return self._control.running

    def send(self) -> None:
        """Send of the backlog what it takes without waiting."""
        while self.backlog:
            try:
                self._channel.send(self.backlog[0].pack())
            except OSError:
                return  # it has enough for now, or is dying, and its units go to the next one
            self.backlog.popleft()

    def hear(self, buffer: bytearray) -> tuple[WorkerMessage, dict[int, SharedSegment]] | None:
        """The next message about a unit and the segments that the unit had; None: something else was said.

        Raises:
            BlockingIOError: it has said nothing.
            EOFError: it can say nothing any more.
            OSError: no descriptor is left to receive its memory with.
        """
        try:
            size, control, _, _ = self._channel.recvmsg_into(
                [buffer], socket.CMSG_SPACE(_MAX_FDS * _INT), socket.MSG_CMSG_CLOEXEC
            )
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
        """End it at once."""
        self._child.kill()

    def shut(self) -> None:
        """Ask it to end when its unit has; it can say nothing any more."""
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Wait for its end, pass on the rest of its stderr, and let the descriptors go."""
        if self.gone:
            return
        self._child.join()
        with contextlib.suppress(OSError):  # nothing left, or nobody to pass it on to
            while text := os.read(self._stderr, 1 << 16):
                self._control.write(text)
                os.write(2, text)
        self.exitcode, self.tail = self._child.exitcode or 0, self._control.tail
        self.release()

    def release(self) -> None:
        """Let the descriptors go, in this process."""
        if not self.gone:
            self.gone = True
            self._channel.close()
            os.close(self._ended)
            os.close(self._stderr)

    def error(self, words: str) -> WorkerError:
        """What to raise about its death; ``words`` say when it was."""
        how = f"exit code {self.exitcode}"
        if self.exitcode < 0:
            how = f"signal {-self.exitcode}"
            with contextlib.suppress(ValueError):  # real-time signals have no names
                how = f"signal {signal.Signals(-self.exitcode).name}"
            if self.exitcode == -signal.SIGKILL:
                how += " (often the kernel's, when memory ran out)"
        text = f"DataLoader worker (pid(s) {self.pid}) exited unexpectedly with {how}, {words}"
        text += f"\n  worker {self.index} of {self._workers}"
        if self.tail:
            text += "\n  last lines of its stderr:\n    " + "\n    ".join(self.tail.splitlines()[-40:])
        error = WorkerError(text)
        error.exitcode, error.stderr = self.exitcode, self.tail
        return error

    # ---- within ----------------------------------------------------------------------------------------

    def _start(self, terms: Terms) -> None:
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
            options = process.Options(self.index, terms.workers, os.getpid(), terms.depth, terms.shared_memory, foreign)
            self._child = start.launch(terms.context, (end, terms.parcel, options))
            ours.callback(self._child.kill)
            fds = [terms.queue.reader, terms.queue.store, shared, self._stderr, writing]
            # The worker's stderr is this process's, not what was the fork server's when it started.
            fds += [2] if _is_open(2) else []
            with contextlib.suppress(ConnectionError):  # it is dead already; its end will tell
                socket.send_fds(self._channel, [b"descriptors"], fds)
            self._channel.setblocking(False)
            os.set_blocking(self._stderr, False)
            self._ended = _end_of(self._child)
            ours.pop_all()

    def _understand(self, said: WorkerMessage, fds: list[int]) -> tuple[WorkerMessage, dict[int, SharedSegment]] | None:
        if said.kind == process.READY:
            self.ready = True
            return None
        for number in said.retired:
            del self._segments[number]
        if len(fds) != len(said.fresh):
            raise limits.descriptors_short(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
        for (number, size), fd in zip(said.fresh, fds, strict=True):
            self._segments[number] = SharedSegment(number, fd, size, self._control.mapping, FLAGS)
        if said.stages is not None:
            self.stages = said.stages
        segments = {number: self._segments[number] for number in said.segments}
        for number in said.segments:
            if number >= memory.SEGMENTS:
                del self._segments[number]
        return said, segments


def _end_of(child: Any) -> int:
    """A descriptor that is readable when a process has ended.

    multiprocessing's own is a pipe, which stays open as long as any process that the worker forked; a pidfd knows only
    the worker.
    """
    try:
        return os.pidfd_open(child.pid)
    except ProcessLookupError:
        return os.dup(child.sentinel)  # it has ended already
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
    """Which of ``fds`` have something to read within some time."""
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return [fd for fd, _ in poller.poll(seconds * 1000)]
