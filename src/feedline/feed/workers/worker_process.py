"""The worker process: takes units, runs them, sends results, and exits when its channel is shut down or its parent
dies.

A worker takes a record from its own channel or from the shared queue, runs the unit, and sends one message back. It
ignores SIGINT, which is for the parent. It exits when its channel is shut down, and within seconds of its parent's
death. Its stderr is forwarded to the parent's, and the last lines remain readable after its death.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import os
import pickle
import select
import signal
import socket
import sys
import time
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

from feedline.concurrency.named_threads import begin
from feedline.feed.workers import limits, message, queue
from feedline.feed.workers.control_block import Control
from feedline.feed.workers.failure import Failure
from feedline.feed.workers.memory import Arena, SharedSpan

READY, RESULT, FAILURE = range(3)
"""Kinds of messages."""

FRAGMENT_BYTES = 60 << 10  # several packets must fit into the socket's buffer
MORE, LAST = b"+", b"."
_PATIENCE_UNITS = 16  # unused memory is released after this many times `depth` units

WAYS_OUT = 'pass workers="thread" or multiprocessing_context="fork"'
"""How to start workers that need not import what they run."""


class Parcel:
    """A task on its way to a worker process.

    It is pickled while the process is being started, as multiprocessing's locks and queues require, and unpickled
    within `main`, which can report errors. A forked worker inherits it unpickled.
    """

    def __init__(self, task: Any) -> None:
        self._task, self._text = task, b""

    def __getstate__(self) -> bytes:
        return bytes(ForkingPickler.dumps(self._task, 5))

    def __setstate__(self, text: bytes) -> None:
        self._text = text

    def open(self) -> Any:
        """Return the task."""
        if not self._text:
            return self._task
        try:
            return pickle.loads(self._text)
        except (AttributeError, ImportError) as error:  # as for a class of a notebook's cell
            error.add_note(
                "Expected dataset, collate_fn and worker_init_fn from modules that workers can import. Define them at "
                f"the top level of a module, or {WAYS_OUT}"
            )
            raise


class Options(NamedTuple):
    """Settings of one worker."""

    workers: int
    parent: int
    depth: int
    worker: int = 0
    foreign: tuple[int, ...] = ()  # descriptors of the parent that a forked worker closes


class WorkerMessage(NamedTuple):
    """A message from a worker to the parent."""

    kind: int
    ticket: int = -1
    seconds: float = 0.0
    fresh: list[tuple[int, int]] = []  # noqa: RUF012  # never changed
    retired: list[int] = []  # noqa: RUF012
    segments: list[int] = []  # noqa: RUF012
    pieces: list[SharedSpan] = []  # noqa: RUF012
    text: bytes | SharedSpan = b""
    nbytes: int = 0


def main(channel: socket.socket, parcel: Parcel, options: Options) -> None:
    """Run units until the channel is shut down."""
    gc.freeze()  # a collection would write to all objects of the program, and so copy their memory
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for fd in options.foreign:
        os.close(fd)
    _, fds, _, _ = socket.recv_fds(channel, 16, 6)
    if len(fds) < 5:
        return  # the parent has died or closed the pool already
    records, store, shared, reading, writing, *target = fds
    control = Control(shared)
    os.close(shared)
    forwarded = target[0] if target else os.dup(2)
    _watch(channel, control, parent=options.parent, reading=reading, writing=writing, target=forwarded)
    # A forked worker may have another sys.stderr, and handlers that the parent installed over faulthandler's.
    faulthandler.disable()
    faulthandler.enable(2)
    _Worker(channel, control, options, records, store).run(parcel)
    sys.stderr.flush()


class _Worker:
    def __init__(self, channel: socket.socket, control: Control, options: Options, records: int, store: int) -> None:
        self._channel, self._control, self._options = channel, control, options
        self._records, self._store = records, store
        self._arena = Arena(control.flags, _PATIENCE_UNITS * options.depth)
        message.set_arena(self._arena)
        self._encoder = message.Encoder(self._arena)
        self._where = f"in DataLoader worker process {options.worker}"
        channel.setblocking(True)
        self._poller = select.epoll()
        self._poller.register(channel, select.EPOLLIN | select.EPOLLRDHUP)
        # Exclusive: a record wakes one idle worker, not all of them.
        self._poller.register(records, select.EPOLLIN | select.EPOLLEXCLUSIVE)

    def run(self, parcel: Parcel) -> None:
        """Start the task and run units."""
        task: Any = None
        broken: Failure | None = None
        try:
            task = parcel.open()
            limits.limit_torch()
            task.start(self._options.worker, self._options.workers)
        except Exception as error:
            # As in torch, the units fail, so that the error is raised where results are requested.
            broken = Failure(error, self._where)
        del parcel
        if not self._send(WorkerMessage(READY), []):
            return
        while (record := self._next()) is not None:
            ticket, text = queue.read(self._store, record)
            if text is None:
                continue
            self._control.running = ticket
            sent = self._send(*self._unit(task, ticket, text, broken))
            self._control.running = None
            if not sent:
                return

    def _unit(self, task: Any, ticket: int, text: bytes, broken: Failure | None) -> tuple[WorkerMessage, list[int]]:
        """Run one unit. Return its result or failure, and the descriptors to send with it."""
        began = time.perf_counter()
        failure = broken
        if failure is None:
            try:
                return self._result(task.run(pickle.loads(text)), ticket, began)
            except Exception as error:
                failure = Failure(error, self._where)
                # Its frames refer to the unit's objects, partly in memory that is reclaimed now.
                error.__traceback__ = None
                self._arena.drop()
        return WorkerMessage(FAILURE, ticket, time.perf_counter() - began, text=pickle.dumps(failure, 5)), []

    def _result(self, tree: Any, ticket: int, began: float) -> tuple[WorkerMessage, list[int]]:
        limits.limit_torch()
        pieces, text, nbytes = self._encoder.encode(tree)
        fresh, fds, retired = self._arena.announce()
        return WorkerMessage(
            RESULT,
            ticket,
            seconds=time.perf_counter() - began,
            fresh=fresh,
            retired=retired,
            segments=self._arena.taken(),
            pieces=pieces,
            text=text,
            nbytes=nbytes,
        ), fds

    def _next(self) -> bytes | None:
        """Wait for the next record. Return None if the channel is shut down."""
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
                # The parent has closed the queue, and the channel follows.
                self._poller.unregister(self._records)
            except BlockingIOError:
                pass
            self._poller.poll()

    def _send(self, say: WorkerMessage, fds: list[int]) -> bool:
        text = pickle.dumps(tuple(say), 5)
        try:
            at = 0
            while len(text) - at > FRAGMENT_BYTES:
                self._channel.send(MORE + text[at : at + FRAGMENT_BYTES])
                at += FRAGMENT_BYTES
            last = LAST + text[at:] if at else LAST + text
            if fds:
                socket.send_fds(self._channel, [last], fds)
            else:
                self._channel.send(last)
        except ConnectionError:
            return False
        if say.kind == RESULT:
            self._arena.sent()
        return True


def _watch(channel: socket.socket, control: Control, *, parent: int, reading: int, writing: int, target: int) -> None:
    """Start a thread that forwards stderr to ``target``, and kills this process when the parent has died."""
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
        pass  # an old kernel, where the channel still closes when the parent dies
    # The socket itself is the worker's, which may close it.
    closed = channel.fileno()
    # Text that this thread has consumed would be lost if the process crashed, so it forwards a copy (tee(2)) before
    # consuming the original. A crash in between prints lines twice rather than not at all.
    duplicate = ctypes.CDLL(None, use_errno=True).tee

    def tee() -> None:
        deadline_s: float | None = None
        copied, copying = os.pipe()
        while True:
            wait_ms = None if deadline_s is None else max(deadline_s - time.monotonic(), 0.0) * 1000
            ready = [fd for fd, _ in poller.poll(wait_ms)]
            if reading in ready:
                size = duplicate(reading, copying, 1 << 16, 0)
                if size > 0:
                    text = os.read(copied, size)
                    with contextlib.suppress(OSError):  # the parent's stderr is closed, but the tail is still kept
                        at = 0
                        while at < size:
                            at += os.write(target, text[at:])
                    control.write(text)
                    os.read(reading, size)
                else:
                    poller.unregister(reading)  # the user's code has closed stderr
            if watched in ready or (deadline_s is not None and time.monotonic() >= deadline_s):
                os.kill(os.getpid(), signal.SIGKILL)
            if closed in ready:
                deadline_s = time.monotonic() + limits.GRACE_S
                poller.unregister(closed)

    begin("stderr", tee)
