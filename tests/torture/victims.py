"""Processes that are killed, stopped and interrupted, at instants that follow from the case's random numbers.

An instant is a time, or a number of file operations: the victim kills itself when it opens, renames, removes or maps
its n-th file, which is exact to the operation and the same at every repetition. Or it is a number of lines of some
module's code, in whatever thread: between two statements that belong together there is hardly a moment to hit by time.
"""

from __future__ import annotations

import faulthandler
import json
import mmap
import os
import random
import select
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.forked import die
from tests.torture.arena import STACKS, children, die_with_parent, signal_name, stacks, tail
from tests.torture.case import Case, told

_FILE_OPERATIONS = {
    *("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink"),
    *("os.chmod", "os.listdir", "os.scandir", "shutil.rmtree", "mmap.__new__", "tempfile.mkstemp", "os.utime"),
}


@dataclass(frozen=True)
class Instant:
    """When and how a victim is interfered with.

    Attributes:
        signum: the signal.
        seconds: after its start, or
        operation: at its file operation of this number, from 1.
        lines_of: part of the path of modules. ``operation`` then counts the executed lines of these modules.
        everybody: its worker processes get the signal too, as from a terminal.
        pause: seconds for which it is stopped before.
    """

    signum: signal.Signals
    seconds: float | None = None
    operation: int | None = None
    everybody: bool = False
    pause: float | None = None
    lines_of: str | None = None

    def __str__(self) -> str:
        what = "file operation" if self.lines_of is None else f"line of {self.lines_of},"
        when = f"after {self.seconds:.4f} s" if self.operation is None else f"at {what} {self.operation}"
        paused = "" if self.pause is None else f", stopped for {self.pause:.3f} s before"
        return f"{self.signum.name} {when}{' to all' if self.everybody else ''}{paused}"


def draw(rng: random.Random, seconds: float, operations: int = 60) -> Instant:
    """Draw an instant within a victim's duration: ``seconds``, or a number of file ``operations``."""
    signum = rng.choice([signal.SIGKILL] * 6 + [signal.SIGTERM, signal.SIGINT, signal.SIGINT])
    if rng.random() < 0.4:
        return Instant(signum, operation=rng.randint(1, max(1, operations)))
    pause = rng.random() * 0.05 if rng.random() < 0.2 else None
    return Instant(signum, rng.random() * seconds, everybody=rng.random() < 0.3, pause=pause)


@dataclass(frozen=True)
class Ended:
    """How a victim ended.

    Attributes:
        code: exit code, or minus the signal.
        result: result of its program, if it returned.
        error: the exception of its program, in words.
        promised: whether that was an exception of feedline.
        kind: its class.
        hit: the interference came before the end.
        seconds: its duration.
        operations: number of its file operations.
    """

    code: int
    result: Any
    error: str | None
    promised: bool | None
    kind: str | None
    hit: bool
    seconds: float
    operations: int


class Victim:
    """A program in a forked process.

    Args:
        case: the case that reports it.
        program: called with ``arguments``. Returns JSON.
        arguments: of the program.
        instant: instant of the interference. None: it is left alone.
    """

    def __init__(
        self, case: Case, program: Callable[..., Any], *arguments: Any, instant: Instant | None = None
    ) -> None:
        self._case, self._instant = case, instant
        self._counted = mmap.mmap(-1, 8)
        self._reading, writing = os.pipe()
        self._began = time.monotonic()
        # Until the victim can report the interrupt. Otherwise it would go on as this process does.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._reading)
            self._child(program, arguments, writing, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(writing)

    def _child(
        self, program: Callable[..., Any], arguments: tuple[Any, ...], writing: int, unblocked: set[signal.Signals]
    ) -> None:
        """Does not return."""
        try:
            os.setpgid(0, 0)
            die_with_parent()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            faulthandler.register(STACKS, 2, all_threads=True)
            self._count_operations()
            try:
                signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
                answer = {"result": program(*arguments)}
            except KeyboardInterrupt:
                answer = {"error": "KeyboardInterrupt", "promised": True, "kind": "KeyboardInterrupt"}
            except BaseException as error:
                from feedline.errors import FeedlineError

                answer = {
                    "error": told(error),
                    "promised": isinstance(error, FeedlineError),
                    "kind": type(error).__name__,
                }
            with os.fdopen(writing, "w") as file:
                json.dump(answer, file)
        finally:
            die(0)

    def _count_operations(self) -> None:
        me, at = os.getpid(), None if self._instant is None else self._instant.operation
        signum = None if self._instant is None else self._instant.signum
        modules = None if self._instant is None else self._instant.lines_of

        counting = threading.RLock()

        def count() -> None:
            with counting:
                n = struct.unpack("q", self._counted[:])[0] + 1
                self._counted[:] = struct.pack("q", n)
                if n == at:
                    os.kill(me, signum)

        def heard(event: str, _: Any) -> None:
            if event in _FILE_OPERATIONS and os.getpid() == me:
                count()

        def line(_: Any, event: str, __: Any) -> Any:
            if event == "line":
                count()
            return line

        def called(frame: Any, _: str, __: Any) -> Any:
            return line if modules in frame.f_code.co_filename else None

        if modules is None:
            sys.addaudithook(heard)
        else:
            threading.settrace(called)
            sys.settrace(called)

    # ---- from outside -------------------------------------------------------------------------------

    def signal(self, signum: signal.Signals, everybody: bool = False) -> None:
        """Send a signal, if it still lives."""
        try:
            if everybody:
                os.killpg(self.pid, signum)
            else:
                os.kill(self.pid, signum)
        except (ProcessLookupError, PermissionError):
            pass

    def wait(self, seconds: float = 45.0) -> Ended:
        """Interfere at the instant, wait for the end, and count what cannot be."""
        instant, hit = self._instant, False
        over = os.pidfd_open(self.pid)
        if instant is not None and instant.seconds is not None:
            left = self._began + instant.seconds - time.monotonic()
            if not select.select([over], [], [], max(0.0, left))[0]:
                hit = True
                if instant.pause is not None:
                    self.signal(signal.SIGSTOP, instant.everybody)
                    time.sleep(instant.pause)
                    if instant.signum != signal.SIGKILL:
                        self.signal(signal.SIGCONT, instant.everybody)
                self.signal(instant.signum, instant.everybody)
        answer: dict[str, Any] = {}
        # Read before waiting: an answer may be longer than a pipe is.
        answered, text = self._answer(seconds)
        if not select.select([over], [], [], seconds if answered else 0.0)[0]:
            found = stacks(self.pid, self._case.folder.parent / "stderr")
            self._case.fail("hangs", f"{self.told()} did not end within {seconds:g} s\n{found}")
            for child in children(self.pid):
                os.kill(child, signal.SIGKILL)
            os.kill(self.pid, signal.SIGKILL)
        os.close(over)
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        took = time.monotonic() - self._began
        try:
            answer = json.loads(text) if text else {}
        except ValueError:
            answer = {}
        operations = struct.unpack("q", self._counted[:])[0]
        if instant is not None and instant.operation is not None:
            hit = operations >= instant.operation
        allowed = {0} if instant is None or not hit else {0, -instant.signum, -signal.SIGKILL}
        if code not in allowed:
            log = tail(self._case.folder.parent / "stderr")
            self._case.fail("crashes", f"{self.told()} ended with {signal_name(code)}\n{log}")
        told_ = (answer.get(key) for key in ("result", "error", "promised", "kind"))
        return Ended(code, *told_, hit, took, operations)

    def _answer(self, seconds: float) -> tuple[bool, bytes]:
        """Return its output until it, or the holder of its pipe, ends, and whether that was in time."""
        found, until = b"", time.monotonic() + seconds
        over = os.pidfd_open(self.pid)
        try:
            while True:
                ready = select.select([self._reading, over], [], [], max(0.0, until - time.monotonic()))[0]
                if self._reading in ready:
                    block = os.read(self._reading, 1 << 16)
                    found += block
                    if not block:
                        return True, found
                elif ready:
                    return True, found
                else:
                    return False, found
        finally:
            os.close(over)
            os.close(self._reading)

    def told(self) -> str:
        """Which one, for people."""
        return "a victim" if self._instant is None else f"a victim of {self._instant}"


def run(case: Case, what: str, program: Callable[..., Any], *arguments: Any, seconds: float = 45.0) -> Ended:
    """A program left alone, which has to end well."""
    ended = Victim(case, program, *arguments).wait(seconds)
    if ended.error is not None:
        case.fail("lost" if ended.promised else "foreign", f"{what} cannot be done: {ended.error}")
    return ended
