"""The worker process: takes units, runs them, sends results, and exits when its channel is shut down or its parent
dies.

A worker takes a record from its own channel or from the shared queue, runs the unit, and sends one message back. It
ignores SIGINT, which is for the parent. It exits when its channel is shut down, and within seconds of its parent's
death. Its stderr is forwarded to the parent's, and the last lines remain readable after its death.
"""

from __future__ import annotations

import contextlib
import errno
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

from feedline import system
from feedline.concurrency.named_threads import begin
from feedline.feed.workers import limits, message, queue
from feedline.feed.workers.channel import MessageReceiver, send
from feedline.feed.workers.control_block import Control
from feedline.feed.workers.failure import Failure
from feedline.feed.workers.memory import Arena, SharedSpan

READY, RESULT, FAILURE = range(3)
"""Kinds of messages."""

_LOOK_S = 1.0  # seconds between looks at the parent, where no descriptor shows its end
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
    try:
        _, fds = MessageReceiver(channel).receive()
    except EOFError:
        return  # the parent has died or closed the pool already
    if len(fds) < 6:
        raise OSError(errno.EMFILE, f"expected 6 descriptors from the parent, got {len(fds)}: too many are open")
    records, store, shared, reading, writing, life, *target = fds
    control = Control(shared)
    os.close(shared)
    forwarded = target[0] if target else os.dup(2)
    _watch(control, parent=options.parent, life=life, reading=reading, writing=writing, target=forwarded)
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
        self._poller = system.work_poller(channel.fileno(), records)
        self._record = b""  # the part of a record that has come through the channel

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
                while part := self._channel.recv(queue.RECORD.size - len(self._record), socket.MSG_DONTWAIT):
                    self._record += part
                    if len(self._record) == queue.RECORD.size:
                        record, self._record = self._record, b""
                        return record
                return None
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
        try:
            send(self._channel, pickle.dumps(tuple(say), 5), fds)
        except ConnectionError:
            return False
        if say.kind == RESULT:
            self._arena.sent()
        return True


def _watch(control: Control, *, parent: int, life: int, reading: int, writing: int, target: int) -> None:
    """Start a thread that forwards stderr to ``target``, and kills this process when the parent has died, or some time
    after the pipe ``life`` was closed."""
    above = os.getppid()  # of a forked worker the parent, else the fork server, which ends with the parent
    os.dup2(writing, 2)
    os.close(writing)
    poller = select.poll()
    poller.register(reading, select.POLLIN)
    poller.register(life, select.POLLIN)
    watched = None
    try:
        watched = system.end_of_parent(parent)
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGKILL)
    if watched is not None:
        poller.register(watched, select.POLLIN)
    forward = system.forwarder(reading, 1 << 16)

    def take(text: bytes) -> None:
        control.write(text)
        with contextlib.suppress(OSError):  # the parent's stderr is closed
            at = 0
            while at < len(text):
                at += os.write(target, text[at:])

    def watch() -> None:
        deadline_s: float | None = None
        while True:
            wait_s = _LOOK_S if watched is None else None
            if deadline_s is not None:
                wait_s = max(deadline_s - time.monotonic(), 0.0)
            ready = [fd for fd, _ in poller.poll(None if wait_s is None else wait_s * 1000)]
            if reading in ready and not forward(take):
                poller.unregister(reading)  # the user's code has closed stderr
            late = deadline_s is not None and time.monotonic() >= deadline_s
            if watched in ready or late or (watched is None and os.getppid() != above):
                os.kill(os.getpid(), signal.SIGKILL)
            if life in ready:
                deadline_s = time.monotonic() + limits.GRACE_S
                poller.unregister(life)

    begin("stderr", watch)
