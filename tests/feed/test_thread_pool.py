"""Jobs of threads: done once, in order. Interrupted anywhere, forked or dropped, no thread waits forever."""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import subprocess
import sys
import threading
import weakref

import pytest

from feedline import concurrency
from feedline.concurrency import thread_pool
from feedline.concurrency.thread_pool import CancelledError, Job, Threads
from feedline.feed.files.lru import LruCache
from tests.moments import AtLine


def test_jobs_are_done_in_order_and_keep_what_they_raise():
    threads, seen = Threads(1), []
    jobs = [threads.submit(lambda i=i: seen.append(i) or 10 // (i - 3)) for i in range(6)]
    assert [job.result() for job in jobs if job is not jobs[3]] == [-4, -5, -10, 10, 5]
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            jobs[3].result()
    assert jobs[3].failed
    assert seen == list(range(6))
    threads.close()
    threads.close()


def test_no_more_threads_than_asked_for_and_none_after_the_end():
    threads, inside, most, lock = Threads(3), [], [], threading.Lock()

    def work():
        with lock:
            inside.append(threading.get_ident())
            most.append(len(set(inside)))
        threading.Event().wait(0.001)

    for job in [threads.submit(work) for _ in range(60)]:
        job.result()
    assert max(most) <= 3
    before = len(os.listdir("/proc/self/task"))
    threads.close()
    while len(os.listdir("/proc/self/task")) > before - 3:
        threading.Event().wait(0.01)


def test_one_thread_does_the_work_where_the_system_starts_no_more():
    program = """
import resource, threading
from feedline.concurrency.thread_pool import Threads
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
threading.stack_size(1 << 30)
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30) + (256 << 20),) * 2)
threads = Threads(4)
print(sum(job.result() for job in [threads.submit(lambda i=i: i) for i in range(8)]))
try:
    Threads(1).submit(int)
except RuntimeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "28\ncan't start new thread\n", done.stderr


def test_closing_cancels_what_has_not_begun():
    threads, go = Threads(1), threading.Event()
    running, waiting = threads.submit(go.wait), threads.submit(lambda: 1)
    while not running.begun:
        threading.Event().wait(0.001)
    threading.Timer(0.05, go.set).start()
    threads.close()
    assert running.result() is True
    with pytest.raises(CancelledError):
        waiting.result()


def test_threads_that_are_dropped_end():
    threads = Threads(2)
    job = threads.submit(lambda: os.listdir("/proc/self/task"))
    seen = weakref.ref(threads)
    before = len(job.result())
    del threads
    gc.collect()
    assert seen() is None
    while len(os.listdir("/proc/self/task")) >= before:
        threading.Event().wait(0.01)


def test_the_interpreter_waits_for_a_running_job():
    program = (
        "import time\nfrom feedline.concurrency.thread_pool import Threads\nthreads = Threads(2)\n"
        "threads.submit(lambda: (time.sleep(0.3), print('through')))\ntime.sleep(0.1)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "through\n", "")


def stop():
    raise KeyboardInterrupt


def work(threads, results):
    results.append([threads.submit(lambda k=k: k).result() for k in range(4)])


def test_interrupted_at_any_moment_nothing_waits_for_ever():
    """Ctrl-C before every line of submitting and waiting, of the standard library too: the next calls go through."""
    moment, reached = 0, True
    while reached:
        threads = Threads(2)
        with contextlib.suppress(KeyboardInterrupt), AtLine(moment, stop, concurrency, threading, queue) as at:
            threads.submit(lambda: 1).result()
        reached = at.reached
        # Called in another thread, which does not own a lock that the first one may have left locked.
        results = []
        other = threading.Thread(target=work, args=(threads, results))
        other.start()
        other.join(60)
        assert results == [[0, 1, 2, 3]], moment
        threads.close()
        moment += 1
    assert moment > 10


def test_what_is_kept_is_made_again_when_the_first_was_interrupted():
    calls = []

    def make(key):
        calls.append(key)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return key + 1

    kept = LruCache(make, lambda item: 1, 2)
    with pytest.raises(KeyboardInterrupt):
        kept.get(4)
    assert [kept.get(4), kept.get(4), calls] == [5, 5, [4, 4]]


def test_all_who_wait_for_a_job_are_woken(monkeypatch):
    """Immediately: the periodic check is only for interrupts."""
    monkeypatch.setattr(thread_pool, "_PATIENCE_S", 3600.0)
    go, seen = threading.Event(), []
    job = Job(lambda: go.wait(60))
    waiting = [threading.Thread(target=lambda: seen.append(job.result())) for _ in range(8)]
    for thread in waiting:
        thread.start()
    threading.Timer(0.1, go.set).start()
    job.run()
    for thread in waiting:
        thread.join(60)
    assert seen == [True] * 8


def test_a_job_that_was_not_taken_on_is_anybodys():
    job = Job(lambda: 5)
    assert not job.begun
    job.run()
    assert job.result() == 5


def test_closing_that_was_interrupted_anywhere_can_be_done_again():
    def stop():
        raise KeyboardInterrupt

    moment, reached = 0, True
    while reached:
        threads = Threads(2)
        for job in [threads.submit(lambda: 1) for _ in range(2)]:
            job.result()
        with contextlib.suppress(KeyboardInterrupt), AtLine(moment, stop, concurrency) as at:
            threads.close()
        reached = at.reached
        again = threading.Thread(target=threads.close, daemon=True)
        again.start()
        again.join(60)
        assert not again.is_alive(), moment
        moment += 1
    assert moment > 5
