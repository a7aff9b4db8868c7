"""Calls that threads make, and waiting for them, that Ctrl-C can interrupt at any moment.

The standard library's futures, semaphores and events are written in Python: an interrupt that comes while one of their
conditions is being entered leaves it locked for ever, and the next call hangs. Locks and `queue.SimpleQueue` are taken
and released within one call of C, which a signal's handler cannot come between.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import queue
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any, Generic, TypeVar, cast

Result = TypeVar("Result")

#: What the system calls the threads.
NAME = "feedline-read"

_PATIENCE_S = 0.5  # between looks, for when an interrupt came between taking a lock and releasing it


class Job(Generic[Result]):
    """The outcome of a call.

    Attributes:
        begun: somebody makes the call, or has.
        done: it has an outcome.
        error: what was raised.
    """

    __slots__ = ("_call", "_lock", "_value", "begun", "cancelled", "done", "error")

    def __init__(self, call: Callable[[], Result]) -> None:
        self._call: Callable[[], Result] | None = call
        self._lock = _thread.allocate_lock()
        self._lock.acquire()
        self._value: Result | None = None
        self.error: BaseException | None = None
        self.begun = self.done = self.cancelled = False

    def run(self) -> None:
        """Make the call, unless somebody has taken that on or it was cancelled, and keep what comes of it."""
        if self.begun:
            return
        self.begun = True  # no call in between, so no other thread, nor an interrupt
        try:
            if self.cancelled or self._call is None:
                raise CancelledError
            self._value = self._call()
        except BaseException as error:
            self.error = error
        finally:
            self.done = True
            self._call = None
            self._lock.release()

    def cancel(self) -> None:
        """Let it be done without a call, if that has not begun."""
        self.cancelled = True

    @property
    def failed(self) -> bool:
        """Whether it is done, and raised or was cancelled."""
        return self.done and self.error is not None

    def result(self) -> Result:
        """What the call returned, once it is done.

        Raises:
            BaseException: what it raised; CancelledError if it was cancelled.
        """
        while not self.done:
            if self._lock.acquire(timeout=_PATIENCE_S):
                self._lock.release()  # others may wait too
        if self.error is not None:
            raise self.error
        return cast(Result, self._value)


class Threads:
    """Up to ``count`` threads that run jobs in the order in which they were submitted."""

    def __init__(self, count: int) -> None:
        self._queue: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self._count = count
        self._ends: list[Any] = []  # a lock for each thread, which it holds
        self._pid = os.getpid()
        self._closed = False
        weakref.finalize(self, self._queue.put, None).atexit = False
        _open.add(self)

    def submit(self, call: Callable[[], Result]) -> Job[Result]:
        """Have ``call()`` made."""
        job = Job(call)
        self._queue.put(job)
        if len(self._ends) < self._count:
            end = _thread.allocate_lock()
            end.acquire()
            _thread.start_new_thread(_work, (self._queue, end))
            self._ends.append(end)
        return job

    def close(self) -> None:
        """Drop what has not begun, and wait for what has."""
        if self._closed or self._pid != os.getpid():
            return
        try:
            while True:
                job = self._queue.get_nowait()
                if job is not None:
                    job.cancel()
                    job.run()
        except queue.Empty:
            pass
        self._queue.put(None)
        for end in self._ends:
            while not end.acquire(timeout=_PATIENCE_S):
                pass
            end.release()
        self._closed = True


def _work(jobs: queue.SimpleQueue[Job[Any] | None], end: Any) -> None:
    try:
        # `threading` does not know of these threads; top and profilers do.
        with contextlib.suppress(OSError), open(f"/proc/self/task/{_thread.get_native_id()}/comm", "wb") as name:
            name.write(NAME.encode())
        while (job := jobs.get()) is not None:
            job.run()
            del job  # or its outcome would live until the next one comes
        jobs.put(None)  # for the other threads
    finally:
        end.release()


_open: weakref.WeakSet[Threads] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    # A thread that still runs when the interpreter goes would be stopped anywhere.
    for threads in list(_open):
        threads.close()
