"""The worker process: what runs in it, and how it ends.

A worker takes a record from its own channel or from the queue that all share, runs the unit, sends one message back.
It ignores SIGINT, which is the parent's; it ends when its channel is shut, and within seconds when the parent has died.
What it writes to stderr goes on to the parent's, and the last lines of it stay readable when it dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

from feedline.feed.workers import message, queue
from feedline.feed.workers.control_block import Control
from feedline.feed.workers.failure import Failure
from feedline.feed.workers.memory import Arena, SharedSpan

READY, RESULT, FAILURE = range(3)
"""Kinds of messages."""

FRAGMENT = 60 << 10  # a packet must fit the socket's buffer several times
MORE, LAST = b"+", b"."
_PATIENCE = 16  # times as many units as are outstanding go by before memory that none of them needed is let go

GRACE = 5.0
"""Seconds that a unit has to end in once its result is not wanted any more; then the worker is killed."""


class Parcel:
    """A task on its way to a worker process.

    It is pickled when the process is started, as multiprocessing's locks and queues in it need, and unpickled under
    the eyes of `main`, which can report what goes wrong. A forked worker inherits it as it is.
    """

    def __init__(self, task: Any) -> None:
        self._task, self._text = task, b""

    def __reduce__(self) -> tuple[Any, ...]:
        return _parcel, (bytes(ForkingPickler.dumps(self._task, 5)),)

    def open(self) -> Any:
        """The task."""
        return pickle.loads(self._text) if self._text else self._task


def _parcel(text: bytes) -> Parcel:
    parcel = Parcel(None)
    parcel._text = text
    return parcel


class Options(NamedTuple):
    """What a worker is told when it starts."""

    worker: int
    workers: int
    parent: int
    depth: int
    shared_memory: bool
    foreign: tuple[int, ...]  # the parent's descriptors that a forked worker has copies of


class WorkerMessage(NamedTuple):
    """What a worker says to the parent."""

    kind: int
    ticket: int = -1
    seconds: float = 0.0
    stages: dict[str, float] | None = None
    fresh: list[tuple[int, int]] = []  # noqa: RUF012  # never changed
    retired: list[int] = []  # noqa: RUF012
    segments: list[int] = []  # noqa: RUF012
    pieces: list[SharedSpan] = []  # noqa: RUF012
    text: bytes | SharedSpan = b""
    nbytes: int = 0


def main(channel: socket.socket, parcel: Parcel, options: Options) -> None:
    """Run units until the channel is shut."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for fd in options.foreign:
        os.close(fd)
    _, fds, _, _ = socket.recv_fds(channel, 16, 6)
    if len(fds) < 5:
        return  # the parent is gone already, or closed the pool at once
    records, store, shared, reading, writing, *target = fds
    control = Control(shared)
    os.close(shared)
    _watch(channel, control, options.parent, reading, writing, target[0] if target else os.dup(2))
    faulthandler.enable()
    arena = None
    if options.shared_memory:
        arena = Arena(control.flags, _PATIENCE * options.depth)
        message.set_arena(arena)
    _Worker(channel, control, arena, options, records, store).run(parcel)
    sys.stderr.flush()


class _Worker:
    def __init__(
        self, channel: socket.socket, control: Control, arena: Arena | None, options: Options, records: int, store: int
    ) -> None:
        self._channel, self._control, self._arena, self._options = channel, control, arena, options
        self._records, self._store = records, store
        self._encoder = message.Encoder(arena)
        self._where = f"in DataLoader worker process {options.worker}"
        self._torch_limited = False
        channel.setblocking(True)
        self._poller = select.epoll()
        self._poller.register(channel, select.EPOLLIN | select.EPOLLRDHUP)
        # Exclusive: a record wakes one idle worker, not all of them.
        self._poller.register(records, select.EPOLLIN | select.EPOLLEXCLUSIVE)

    def run(self, parcel: Parcel) -> None:
        """Begin the task and run units."""
        task: Any = None
        broken: Failure | None = None
        try:
            task = parcel.open()
            self._limit_torch()
            task.start(self._options.worker, self._options.workers)
        except Exception as error:
            # As in torch it is the units that fail, so that it is raised where results are asked for.
            broken = Failure(error, self._where)
        del parcel
        stages = getattr(task, "seconds", None)
        if not self._send(WorkerMessage(READY), []):
            return
        while (record := self._next()) is not None:
            ticket, text = queue.read(self._store, record)
            if text is None:
                continue
            self._control.running = ticket
            began = time.perf_counter()
            sent = self._unit(task, ticket, text, broken, stages, began)
            self._control.running = None
            if not sent:
                return

    def _unit(self, task: Any, ticket: int, text: bytes, broken: Failure | None, stages: Any, began: float) -> bool:
        """Run one unit and send what came of it; False: nobody listens any more."""
        arena = self._arena
        fds: list[int] = []
        try:
            if broken is None:
                say, fds = self._result(task.run(pickle.loads(text)), ticket, stages, began)
            else:
                say = self._failure(broken, ticket, began)
        except Exception as error:
            say = self._failure(Failure(error, self._where), ticket, began)
            # Its frames hold what the unit had made, some of it in memory that is taken back now.
            error.__traceback__ = None
            if arena is not None:
                arena.drop()
        return self._send(say, fds)

    def _result(self, tree: Any, ticket: int, stages: Any, began: float) -> tuple[WorkerMessage, list[int]]:
        arena = self._arena
        self._limit_torch()
        pieces, text, nbytes = self._encoder.encode(tree)
        spent = stages() if stages is not None else None
        seconds = time.perf_counter() - began
        if arena is None:
            return WorkerMessage(RESULT, ticket, seconds, spent, text=text, nbytes=nbytes), []
        fresh, fds, retired = arena.announce()
        return WorkerMessage(RESULT, ticket, seconds, spent, fresh, retired, arena.taken(), pieces, text, nbytes), fds

    def _failure(self, failure: Failure, ticket: int, began: float) -> WorkerMessage:
        return WorkerMessage(FAILURE, ticket, time.perf_counter() - began, text=pickle.dumps(failure, 5))

    def _next(self) -> bytes | None:
        """The next record; None: the channel is shut."""
        while True:
            try:
                record = self._channel.recv(queue.RECORD.size, socket.MSG_DONTWAIT)
                return record or None
            except BlockingIOError:
                pass
            except ConnectionError:
                return None
            try:
                record = os.read(self._records, queue.RECORD.size)
                if record:
                    return record
                # The parent has let the queue go; the channel says the rest.
                self._poller.unregister(self._records)
            except BlockingIOError:
                pass
            self._poller.poll()

    def _send(self, say: WorkerMessage, fds: list[int]) -> bool:
        text = pickle.dumps(tuple(say), 5)
        try:
            at = 0
            while len(text) - at > FRAGMENT:
                self._channel.send(MORE + text[at : at + FRAGMENT])
                at += FRAGMENT
            last = LAST + text[at:] if at else LAST + text
            if fds:
                socket.send_fds(self._channel, [last], fds)
            else:
                self._channel.send(last)
        except ConnectionError:
            return False
        if say.kind == RESULT and self._arena is not None:
            self._arena.sent()
        return True

    def _limit_torch(self) -> None:
        # Workers are many; each with a pool of threads of its own would be too many.
        if not self._torch_limited and (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(1)
            self._torch_limited = True


def _watch(channel: socket.socket, control: Control, parent: int, reading: int, writing: int, target: int) -> None:
    """Put a thread between stderr and ``target``, which also ends this process when the parent has died."""
    os.dup2(writing, 2)
    os.close(writing)
    poller = select.poll()
    poller.register(reading, select.POLLIN)
    poller.register(channel, select.POLLRDHUP)
    watched = -1
    try:
        watched = os.pidfd_open(parent)
        poller.register(watched, select.POLLIN)
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGKILL)
    except OSError:
        pass  # an old kernel; the channel shuts too when the parent dies
    thread = threading.Thread(
        target=_tee,
        args=(poller, control, channel.fileno(), watched, reading, target),
        name="feedline-stderr",
        daemon=True,
    )
    thread.start()


def _tee(poller: Any, control: Control, channel: int, watched: int, reading: int, target: int) -> None:
    deadline: float | None = None
    # What this thread has read dies with it, so it looks at a copy first, and takes the lines when they are safe. A
    # crash in between shows them twice then, rather than not at all.
    duplicate = ctypes.CDLL(None, use_errno=True).tee
    copied, copying = os.pipe()
    while True:
        wait = None if deadline is None else max(deadline - time.monotonic(), 0.0) * 1000
        ready = [fd for fd, _ in poller.poll(wait)]
        if reading in ready:
            size = duplicate(reading, copying, 1 << 16, 0)
            if size > 0:
                text = os.read(copied, size)
                with contextlib.suppress(OSError):  # nobody reads stderr any more; the last lines are kept all the same
                    at = 0
                    while at < size:
                        at += os.write(target, text[at:])
                control.write(text)
                os.read(reading, size)
            else:
                poller.unregister(reading)  # the user's code has closed stderr
        if watched in ready or (deadline is not None and time.monotonic() >= deadline):
            os.kill(os.getpid(), signal.SIGKILL)
        if channel in ready:
            deadline = time.monotonic() + GRACE
            poller.unregister(channel)
