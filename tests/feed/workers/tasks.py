"""Tasks for worker processes, and functions that find their leftovers."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
import time

import numpy as np

from feedline.feed.workers import Pool, empty
from tests.forked import die

_own = threading.local()  # threads share one task


class Task:
    """A task that carries out its units."""

    def start(self, worker, workers):
        _own.worker, _own.workers, _own.counted = worker, workers, 0

    def run(self, unit):
        return getattr(self, unit[0])(*unit[1:])

    # ---- actions of units

    def echo(self, value):
        return value

    def fill(self, value, shape=(64, 64), dtype="float32"):
        array = empty(shape, dtype)
        array[...] = value
        return array

    def copied(self, value, shape=(64, 64)):
        return np.full(shape, value, np.float32)

    def who(self):
        return _own.worker, _own.workers, os.getpid()

    def sleep(self, seconds, value=None):
        time.sleep(seconds)
        return value

    def hold(self, began, until, value=None):
        """Create one file, and wait for the other."""
        open(began, "w").close()
        while not os.path.exists(until):
            time.sleep(0.005)
        return value

    def fail(self, error, *args):
        raise error(*args)

    def die(self, how, mark=None, words="dying"):
        """Die, but only the first time if ``mark`` is a path to leave a note at."""
        if mark is not None:
            try:
                os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return "alive"
        if words:
            os.write(2, words.encode() + b"\n")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "segfault":
            ctypes.string_at(0)
        elif how == "exit":
            die(7)
        elif how == "SystemExit":
            raise SystemExit(3)
        return None

    def count(self):
        _own.counted += 1
        return _own.worker, _own.counted

    def evaluate(self, code):
        return eval(code, {"os": os, "sys": sys, "np": np, "time": time, "_link": _link})


def _link(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


class BrokenStart(Task):
    def start(self, worker, workers):
        raise ZeroDivisionError("no start")


class BrokenPickle:
    def start(self, worker, workers):
        pass

    def run(self, unit):
        return unit

    def __reduce__(self):
        return _refuse, ()


def _refuse():
    raise LookupError("cannot be unpickled here")


class DiesAtStart(Task):
    def start(self, worker, workers):
        print("no way to start", file=sys.stderr, flush=True)
        die(5)


class Gate:
    """Units that run until they are let go."""

    def __init__(self, folder):
        self._folder, self._units, self._open = folder, 0, folder / "open"

    def unit(self, value=None):
        self._units += 1
        return ("hold", str(self._folder / str(self._units)), str(self._open), value)

    def held(self):
        """Wait until all run."""
        assert eventually(lambda: all((self._folder / str(i + 1)).exists() for i in range(self._units)))

    def let_go(self):
        self._open.touch()


def segments() -> int:
    """Pieces of feedline's shared memory that this process maps."""
    with open("/proc/self/maps") as file:
        return sum("/feedline-" in line or "memfd:feedline" in line for line in file)


def alive(pid: int) -> bool:
    """Whether a process runs (zombies do not)."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def descriptors() -> list[str]:
    """Return the open descriptors of this process, without multiprocessing's servers."""
    return sorted(filter(None, map(_link, os.listdir("/proc/self/fd"))))


def eventually(condition, seconds=120.0):
    """Whether a condition becomes true within a generous time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        gc.collect()
        time.sleep(0.01)
    return True


def restarts(pool):
    """Return how often workers died and were replaced."""
    return sum(worker.restarts for worker in pool.figures)


def results(pool: Pool, units):
    """The results of units, in order."""
    return [pool.result(ticket) for ticket in [pool.submit(unit) for unit in units]]
