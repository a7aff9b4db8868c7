"""Thread jobs that Ctrl-C can interrupt at any moment without deadlock.

The standard library's futures, semaphores and events are written in Python: an interrupt while one of their conditions
is being entered leaves it locked forever, and the next call hangs. Locks and `queue.SimpleQueue` are acquired and
released within one C call, which a signal handler cannot interrupt.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import functools
import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar, cast

from feedline import system

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Name of the threads in the operating system.
NAME = "feedline-read"

_PATIENCE_S = 0.5  # poll interval: an interrupt may leave the lock taken by another waiter


_thread_local = threading.local()


class CancelledError(Exception):
    """The job was cancelled before it began."""


class Job(Generic[Result]):
    """The outcome of a call.

    Attributes:
        begun: whether the call has begun.
        done: whether it has an outcome.
        error: the exception it raised.
    """

    __slots__ = ("_call", "_lock", "_stop", "_value", "begun", "cancelled", "done", "error")

    def __init__(self, call: Callable[[], Result]) -> None:
        self._call: Callable[[], Result] | None = call
        self._stop: Callable[[], None] | None = None
        self._lock = _thread.allocate_lock()
        self._lock.acquire()
        self._value: Result | None = None
        self.error: BaseException | None = None
        self.begun = self.done = self.cancelled = False

    def run(self) -> None:
        """Make the call, unless it has begun or was cancelled, and store the outcome."""
        if self.begun:
            return
        self.begun = True  # atomic with the test: there is no call in between
        try:
            if self.cancelled or self._call is None:
                raise CancelledError
            _thread_local.job = self
            self._value = self._call()
        except BaseException as error:
            self.error = error
        finally:
            _thread_local.job = None
            self.done = True
            self._call = None
            self._lock.release()

    def cancel(self) -> None:
        """Skip the call if it has not begun, and end its wait if it is inside `ended_by`."""
        self.cancelled = True
        if (stop := self._stop) is not None:
            stop()

    @property
    def failed(self) -> bool:
        """Whether it is done, and raised or was cancelled."""
        return self.done and self.error is not None

    def result(self) -> Result:
        """Wait for the call and return its result.

        Raises:
            BaseException: exception of the call, or CancelledError if it was cancelled.
        """
        while not self.done:
            self.wait()
        if self.error is not None:
            raise self.error
        return cast(Result, self._value)

    def wait(self) -> None:
        """Wait until the call is done, or for a short time."""
        if self._lock.acquire(timeout=_PATIENCE_S):
            self._lock.release()  # for other waiters


@contextlib.contextmanager
def ended_by(stop: Callable[[], None]) -> Iterator[None]:
    """Open a block in which cancelling the job of this thread, if any, calls ``stop``, from another thread."""
    job: Job[Any] | None = getattr(_thread_local, "job", None)
    if job is None:
        yield
        return
    job._stop = stop
    try:
        if job.cancelled:
            stop()
        yield
    finally:
        job._stop = None


def call_each(call: Callable[[Item], Result], items: Iterable[Item], count: int) -> list[Result]:
    """Call a function for each item, in up to ``count`` threads, and return the results.

    An error or an interrupt ends it at once: calls that have not begun are skipped, and waits that `ended_by` marks
    are ended.

    Raises:
        BaseException: exception of a call.
    """
    threads = Threads(count)
    jobs: list[Job[Result]] = []
    try:
        jobs.extend(threads.submit(functools.partial(call, item)) for item in items)
        return [job.result() for job in jobs]
    finally:
        for job in jobs:
            job.cancel()
        threads.close()


def start(call: Callable[[], None]) -> None:
    """Call a function that may block forever in a new thread. The process does not wait for it at its end."""
    _thread.start_new_thread(call, ())


class Threads:
    """Up to ``count`` threads that run jobs in order of submission."""

    def __init__(self, count: int) -> None:
        self._queue: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self._count = count
        self._ends: list[Job[None]] = []  # one per thread, done when the thread ends
        self._running: set[Job[Any]] = set()
        self._pid = os.getpid()
        self._closed = False
        weakref.finalize(self, self._queue.put, None).atexit = False
        _open.add(self)

    def submit(self, call: Callable[[], Result]) -> Job[Result]:
        """Queue ``call()`` for a thread.

        Raises:
            RuntimeError: the system starts no thread. If there is one already, it does all the work.
        """
        job = Job(call)
        if len(self._ends) < self._count:
            jobs, running = self._queue, self._running
            end = Job(lambda: _work(jobs, running))
            try:
                _thread.start_new_thread(end.run, ())
            except RuntimeError:
                if not self._ends:
                    raise
            else:
                self._ends.append(end)
        self._queue.put(job)
        return job

    def close(self) -> None:
        """Cancel the jobs, and wait for the ones that have begun, whose waits in `ended_by` end at once. Idempotent."""
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
            while not end.done:
                for job in list(self._running):  # again, as a thread may just have taken another
                    job.cancel()
                end.wait()
        self._closed = True


def _work(jobs: queue.SimpleQueue[Job[Any] | None], running: set[Job[Any]]) -> None:
    system.name_thread(NAME)  # `threading` does not know these threads at all
    while (job := jobs.get()) is not None:
        running.add(job)
        job.run()
        running.discard(job)
        del job  # otherwise its outcome would live until the next job
    jobs.put(None)  # for the other threads


_open: weakref.WeakSet[Threads] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    # A thread still running at interpreter exit would be stopped at an arbitrary point.
    for threads in list(_open):
        threads.close()
