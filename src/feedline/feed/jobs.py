"""Thread jobs that Ctrl-C can interrupt at any moment without deadlock.

The standard library's futures, semaphores and events are written in Python: an interrupt while one of their conditions
is being entered leaves it locked forever, and the next call hangs. Locks and `queue.SimpleQueue` are acquired and
released within one C call, which a signal handler cannot interrupt.
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

#: Name of the threads in the operating system.
NAME = "feedline-read"

_PATIENCE_S = 0.5  # poll interval: an interrupt may leave the lock taken by another waiter


class Job(Generic[Result]):
    """The outcome of a call.

    Attributes:
        begun: whether the call has begun.
        done: whether it has an outcome.
        error: the exception it raised.
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
        """Make the call, unless it has begun or was cancelled, and store the outcome."""
        if self.begun:
            return
        self.begun = True  # atomic with the test: there is no call in between
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
        """Skip the call if it has not begun."""
        self.cancelled = True

    @property
    def failed(self) -> bool:
        """Whether it is done, and raised or was cancelled."""
        return self.done and self.error is not None

    def result(self) -> Result:
        """Wait for the call and return its result.

        Raises:
            BaseException: what the call raised; CancelledError if it was cancelled.
        """
        while not self.done:
            if self._lock.acquire(timeout=_PATIENCE_S):
                self._lock.release()  # others may wait too
        if self.error is not None:
            raise self.error
        return cast(Result, self._value)


class Threads:
    """Up to ``count`` threads that run jobs in order of submission."""

    def __init__(self, count: int) -> None:
        self._queue: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self._count = count
        self._ends: list[Job[None]] = []  # one per thread, done when the thread ends
        self._pid = os.getpid()
        self._closed = False
        weakref.finalize(self, self._queue.put, None).atexit = False
        _open.add(self)

    def submit(self, call: Callable[[], Result]) -> Job[Result]:
        """Queue ``call()`` for a thread."""
        job = Job(call)
        self._queue.put(job)
        if len(self._ends) < self._count:
            jobs = self._queue
            end = Job(lambda: _work(jobs))
            _thread.start_new_thread(end.run, ())
            self._ends.append(end)
        return job

    def close(self) -> None:
        """Cancel the jobs that have not begun, and wait for the others. Idempotent."""
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
            end.result()
        self._closed = True


def _work(jobs: queue.SimpleQueue[Job[Any] | None]) -> None:
    # The system knows these threads by name; `threading` does not know them at all.
    with contextlib.suppress(OSError), open(f"/proc/self/task/{_thread.get_native_id()}/comm", "wb") as name:
        name.write(NAME.encode())
    while (job := jobs.get()) is not None:
        job.run()
        del job  # else its outcome would live until the next job
    jobs.put(None)  # for the other threads


_open: weakref.WeakSet[Threads] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    # A thread still running at interpreter exit would be stopped at an arbitrary point.
    for threads in list(_open):
        threads.close()
