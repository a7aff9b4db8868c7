"""The parent's handle of one worker process, from start to exit."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from feedline import system
from feedline.errors import WorkerError
from feedline.feed.workers import limits, memory
from feedline.feed.workers import start_methods as start
from feedline.feed.workers import worker_process as process
from feedline.feed.workers.channel import MessageReceiver, channel_pair, send
from feedline.feed.workers.control_block import FLAGS, SIZE, Control
from feedline.feed.workers.memory import SharedSegment
from feedline.feed.workers.queue import Record, UnitQueue
from feedline.feed.workers.worker_process import WorkerMessage

# Descriptors in this process. For each worker: its channel, its stderr, the pipe that tells it to end, the descriptor
# of its end, and up to three of multiprocessing's.
# Once: the queue's descriptors, and the descriptors that are open while a worker starts.
FDS_EACH, FDS_ONCE = 7, 15


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
        self._life: int | None = None
        self._record = b""  # the part of a record that did not fit into the channel
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

    @property
    def has_died(self) -> bool:
        """Whether the process has exited, where descriptors may not show it (`system.LOOK_S`). False elsewhere."""
        return system.LOOK_S is not None and not self.gone and self.process.exitcode is not None

    @property
    def waits_for_room(self) -> bool:
        """Whether `send` has something to send."""
        return bool(self.backlog or self._record)

    def send(self) -> None:
        """Send as much of the backlog as fits without blocking."""
        while self.waits_for_room:
            if not self._record:
                self._record = self.backlog.popleft().pack()
            try:
                self._record = self._record[self._channel.send(self._record) :]
            except OSError:
                return  # its buffer is full, or it is dying and its successor gets its units

    def receive(self) -> tuple[WorkerMessage, dict[int, SharedSegment]] | None:
        """Receive a message. Return a unit's message and the segments it names, or None after any other message.

        Raises:
            BlockingIOError: no complete message is waiting.
            EOFError: the channel is closed.
            OSError: no descriptor is left for the segments it sent.
        """
        text, fds = self._receiver.receive()
        try:
            return self._understand(WorkerMessage(*pickle.loads(text)), fds)
        finally:
            for fd in fds:
                os.close(fd)

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()

    def shut(self) -> None:
        """Shut down its channel. It exits after its current unit, whose result is lost."""
        self._close_life()
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
            self._receiver.close()
            self._channel.close()
            self._close_life()
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

    def _close_life(self) -> None:
        life, self._life = self._life, None
        if life is not None:
            os.close(life)

    def _start(self, terms: Terms, queue: UnitQueue) -> None:
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            self._channel, end = channel_pair()
            ours.callback(self._channel.close)
            theirs.callback(end.close)
            self._receiver = MessageReceiver(self._channel)
            self._stderr, writing = os.pipe()
            ours.callback(os.close, self._stderr)
            theirs.callback(os.close, writing)
            # Nothing is written to this pipe. It closes when this process wants the worker to end, and when it dies.
            life, self._life = os.pipe()
            ours.callback(self._close_life)
            theirs.callback(os.close, life)
            shared = memory.create(SIZE, "feedline-control")
            theirs.callback(os.close, shared)
            self._control = Control(shared)
            forks = terms.context.get_start_method() == "fork"
            foreign = (self._channel.fileno(), self._stderr, writing, shared, life, self._life) if forks else ()
            options = terms.options._replace(worker=self.index, foreign=foreign)
            self.process = start.launch(terms.context, (end, terms.parcel, options))
            ours.callback(self.process.kill)
            fds = [queue.reader, queue.store, shared, self._stderr, writing, life]
            # Its stderr becomes this process's, not the one that the fork server was started with.
            fds += [2] if _is_open(2) else []
            with contextlib.suppress(ConnectionError):  # already dead, which its end will show
                send(self._channel, b"", fds)
            self._channel.setblocking(False)
            os.set_blocking(self._stderr, False)
            self._ended = system.end_of_process(self.process)
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


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def poll(poller: select.poll, members: Iterable[WorkerHandle], timeout_s: float | None) -> list[int]:
    """Return the descriptors of ``poller`` that become readable, and `ended` of members that have died by then.

    Args:
        poller: object with their descriptors.
        members: workers whose death ends the waiting.
        timeout_s: seconds to wait. None: until something happens.
    """
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        left_s = None if deadline_s is None else max(deadline_s - time.monotonic(), 0.0)
        wait_s = min((seconds for seconds in (left_s, system.LOOK_S) if seconds is not None), default=None)
        fds = [fd for fd, _ in poller.poll(None if wait_s is None else wait_s * 1000)]
        if not fds:
            fds = [member.ended for member in members if member.has_died]
        if fds or (wait_s is not None and wait_s == left_s):
            return fds


def first_ends(members: Iterable[WorkerHandle], timeout_s: float) -> list[int]:
    """Return `ended` of the members that exit first within ``timeout_s`` seconds."""
    poller = select.poll()
    for member in members:
        poller.register(member.ended, select.POLLIN)
    return poll(poller, members, timeout_s)
