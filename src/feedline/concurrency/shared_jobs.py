"""Jobs that threads share, begun ahead of need, whose last thread does what remains."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from feedline.concurrency.named_threads import NamedThread

_Job = TypeVar("_Job")


class SharedJobs(Generic[_Job]):
    """Jobs for several threads: `begin` them, `wait` for them, or `cancel` them.

    Args:
        name: purpose of the threads.
        jobs: the jobs.
        run: function of a job that does it. An exception ends the work, and `wait` raises it.
        finish: function that the thread of the last job calls once all are done. Without jobs, `begin` calls it.

    Attributes:
        begun: whether it has begun.
        threads: the threads that were started.
        seconds: time that the jobs took, summed over threads.
    """

    def __init__(
        self, name: str, jobs: Iterable[_Job], run: Callable[[_Job], None], finish: Callable[[], None] | None = None
    ) -> None:
        self._name, self._run, self._finish = name, run, finish
        self._jobs = list(jobs)
        self._waiting = iter(self._jobs)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._working = 0  # number of threads that still have jobs
        self._cancelled = False
        self._failure: BaseException | None = None
        self.begun = False
        self.threads: list[NamedThread] = []
        self.seconds = 0.0

    @property
    def is_lost(self) -> bool:
        """Whether it will never be done: it was cancelled, or a forked child lacks the threads of its parent."""
        return self._cancelled or self._pid != os.getpid()

    def begin(self, threads: int, *, take_part: bool = False) -> None:
        """Begin in up to ``threads`` threads. With ``take_part``, the calling thread is one of them."""
        self.begun = True
        if not self._jobs:
            self._end()
            return
        helpers = min(threads, len(self._jobs)) - take_part
        self._working = helpers + take_part
        for _ in range(helpers):
            # A daemon, as a program that ends does not wait for what it no longer needs.
            thread = NamedThread(self._name, self._work)
            self.threads.append(thread)
            thread.start()
        if take_part:
            self._work()

    def wait(self, threads: int) -> None:
        """Wait until all is done. If it has not begun, begin it, and take part.

        Raises:
            BaseException: exception of a job, or an interrupt, which cancels the work.
        """
        try:
            if not self.begun:
                self.begin(threads, take_part=True)
            for thread in self.threads:
                thread.join()
        except BaseException:
            self.cancel()
            raise
        self._release()
        if self._failure is not None:
            raise self._failure

    def cancel(self) -> None:
        """End the work after the jobs that have begun."""
        self._cancelled = True
        self._release()

    def _release(self) -> None:
        # They are methods of the owner of this object, which would live on in a cycle.
        self._run, self._finish = _do_nothing, None

    def _work(self) -> None:
        began = time.perf_counter()
        try:
            while not self._cancelled and self._failure is None:
                with self._lock:
                    job = next(self._waiting, None)
                if job is None:
                    break
                self._run(job)
            with self._lock:
                self.seconds += time.perf_counter() - began
                self._working -= 1
                last = self._working == 0
            if last and not self._cancelled and self._failure is None:
                self._end()
        except BaseException as error:  # raised by `wait`
            self._failure = error

    def _end(self) -> None:
        if self._finish is not None:
            self._finish()


def _do_nothing(job: object) -> None:
    """Do nothing, in place of a cancelled job."""
