"""Execution of cases: each in a forked child with its own folder, watched, and cleaned up afterwards.

A runner adopts orphans of its cases (it is the subreaper of their processes), so no process is lost. As root it has
its own /dev/shm, empty at the start, so any file there afterwards is ours.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import faulthandler
import json
import os
import select
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.forked import die
from tests.torture.case import Case, told

if TYPE_CHECKING:
    from tests.torture.scenario import Scenario

GRACE = 10.0
"""Seconds for processes to notice that their parent has ended."""

STACKS = signal.SIGUSR2
"""Signal that writes the stacks of all threads to standard error."""

_libc = ctypes.CDLL(None, use_errno=True)
_SUBREAPER, _DEATH_SIGNAL = 36, 1
_NEW_MOUNTS, _PRIVATE, _RECURSIVE, _REMOUNT = 0x20000, 1 << 18, 1 << 14, 1 << 5


@dataclass
class Outcome:
    """How a case ended.

    Attributes:
        name: ``scenario/number``.
        seconds: its duration.
        failures: (counter, description).
        tallies: the completed work, in figures.
    """

    name: str
    seconds: float = 0.0
    failures: list[tuple[str, str]] = field(default_factory=list)
    tallies: collections.Counter[str] = field(default_factory=collections.Counter)


class Arena:
    """Runs cases, one after the other.

    Args:
        work: folder for the cases' folders.
        data: corpora for everybody.
        seed: of the suite.
        keep: leave the folders of cases that failed.
    """

    def __init__(self, work: Path, data: Path, seed: int, keep: bool = False) -> None:
        self.work, self.data, self.seed, self.keep = work / str(os.getpid()), data, seed, keep
        self.work.mkdir()
        _libc.prctl(_SUBREAPER, 1, 0, 0, 0)
        self.private = own_mounts() and mount_memory(Path("/dev/shm"), "256m")
        if self.private and not keep:
            mount_memory(self.work, "1g")  # files are not needed after the case, and a disk would be slow

    def run(self, scenario: Scenario, number: int) -> Outcome:
        """Run one case, to its end or the end of its time."""
        name = f"{scenario.name}/{number}"
        folder = Path(tempfile.mkdtemp(prefix=f"{scenario.name}-{number}-", dir=self.work))
        for inner in ("tmp", "cache", "here"):
            (folder / inner).mkdir()
        shared_before = _shared()
        reading, writing = os.pipe()
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            self._child(scenario, number, name, folder, writing)
        os.close(writing)
        outcome = Outcome(name)
        doing = self._watch(scenario, pid, folder, reading, began, outcome)
        self._left_processes(outcome, doing)
        outcome.seconds = time.monotonic() - began
        if self.private and (left := _shared() - shared_before):
            outcome.failures.append(("left over", f"in /dev/shm: {sorted(left)[:5]}"))
            for entry in left:
                (Path("/dev/shm") / entry).unlink(missing_ok=True)
        left_files = sorted(path.name for path in (folder / "tmp").iterdir())
        if left := [name for name in left_files if not any(fnmatch(name, one) for one in scenario.leaves)]:
            outcome.failures.append(("left over", f"temporary files: {left[:5]}"))
        if not (self.keep and outcome.failures):
            shutil.rmtree(folder, ignore_errors=True)
        return outcome

    # ---- the child ----------------------------------------------------------------------------------

    def _child(self, scenario: Scenario, number: int, name: str, folder: Path, report: int) -> None:
        """Run the case in this process. Does not return."""
        try:
            os.setsid()
            die_with_parent()
            log = os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            faulthandler.enable(2)
            faulthandler.register(STACKS, 2, all_threads=True)
            os.environ |= {"TMPDIR": str(folder / "tmp"), "XDG_CACHE_HOME": str(folder / "cache")}
            tempfile.tempdir = None
            tempfile.gettempdir()  # tests a folder by creating a file, which a kill would leave
            os.chdir(folder / "here")
            case = Case(name, number, self.seed, folder / "here", self.data, report)
            try:
                scenario.run(case)
            except BaseException as error:
                case.fail("foreign", f"nobody expected {told(error)}")
        finally:
            die(0)

    # ---- watching -----------------------------------------------------------------------------------

    def _watch(self, scenario: Scenario, pid: int, folder: Path, reading: int, began: float, outcome: Outcome) -> str:
        """Listen until the case ends, return its last action."""
        doing, buffer = "", b""
        ended = os.pidfd_open(pid)
        hung, listening, log = False, [reading], ""
        while True:
            left = began + scenario.seconds - time.monotonic()
            if left <= 0:
                hung = True
                log = stacks(pid, folder / "stderr")
                kill_tree(pid)
                break
            ready, _, _ = select.select([*listening, ended], [], [], left)
            if reading in ready:
                block = os.read(reading, 1 << 16)
                if not block:
                    listening = []
                buffer += block
                *lines, buffer = buffer.split(b"\n")
                doing = _take(lines, outcome) or doing
            elif ended in ready:
                break
        os.close(ended)
        _, status = os.waitpid(pid, 0)
        # The rest of the pipe. Other processes may hold its other end open.
        os.set_blocking(reading, False)
        with contextlib.suppress(BlockingIOError):
            while block := os.read(reading, 1 << 16):
                buffer += block
        os.close(reading)
        doing = _take(buffer.split(b"\n"), outcome) or doing
        log = log or tail(folder / "stderr")
        code = os.waitstatus_to_exitcode(status)
        if hung:
            outcome.failures.append(("hangs", f"no end within {scenario.seconds:g} s, doing: {doing}\n{log}"))
        elif code:
            outcome.failures.append(("crashes", f"ended with {signal_name(code)}, doing: {doing}\n{log}"))
        return doing

    def _left_processes(self, outcome: Outcome, doing: str) -> None:
        until = time.monotonic() + GRACE
        left = children(os.getpid())
        while left and time.monotonic() < until:
            _reap()
            left = children(os.getpid())
            if left:
                time.sleep(0.005)
        if not left:
            return
        commands = [command(pid) for pid in left]
        outcome.failures.append(("left over", f"{len(left)} processes: {commands[:3]}; last doing: {doing}"))
        while left := children(os.getpid()):
            for pid in left:
                kill_tree(pid)
            _reap()


def _take(lines: list[bytes], outcome: Outcome) -> str:
    """Record a report of a case, return its current action."""
    doing = ""
    for line in lines:
        if not line:
            continue
        try:
            told_: dict[str, Any] = json.loads(line)
        except ValueError:
            continue  # torn by a kill
        if "fail" in told_:
            outcome.failures.append((told_["fail"], told_["what"]))
        elif "tally" in told_:
            outcome.tallies[told_["tally"]] += told_["count"]
        else:
            doing = told_["doing"]
    return doing


def tail(path: Path, size: int = 3000) -> str:
    """Return the end of a log, without lines that every process writes."""
    return path.read_bytes()[-size:].decode("utf-8", "replace").strip() if path.exists() else ""


def signal_name(code: int) -> str:
    """Describe an exit code."""
    return f"exit code {code}" if code >= 0 else f"signal {-code} ({signal.Signals(-code).name})"


# ---- processes ------------------------------------------------------------------------------------------


def die_with_parent() -> None:
    """Be killed when the parent ends."""
    _libc.prctl(_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)


def children(pid: int) -> list[int]:
    """Processes whose parent is ``pid``, zombies too."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        return [int(n) for t in tasks for n in Path(f"/proc/{pid}/task/{t}/children").read_text().split()]
    except (OSError, ValueError):
        return []


def command(pid: int) -> str:
    """Describe the program of a process."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "gone"
    return f"{name}: {words[:120]}"


def stacks(pid: int, log: Path | None = None) -> str:
    """Ask a process and its forks for the stacks of their threads. Return some of each, in order of arrival."""
    found = []
    for one in [pid, *children(pid)][:4]:
        size = log.stat().st_size if log is not None and log.exists() else 0
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGCONT)
            os.kill(one, STACKS)
        time.sleep(0.5)
        if log is not None and log.exists():
            found.append(f"process {one}:\n{log.read_bytes()[size : size + 2500].decode('utf-8', 'replace')}")
    return "\n".join(found)


def kill_tree(pid: int) -> None:
    """Kill a process and its descendants. The runner adopts any that start meanwhile."""
    below = children(pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    for child in below:
        kill_tree(child)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _shared() -> set[str]:
    try:
        return set(os.listdir("/dev/shm"))
    except OSError:
        return set()


# ---- mounts ---------------------------------------------------------------------------------------------


def own_mounts() -> bool:
    """Give this process private mounts, return False if that is not permitted."""
    return (
        os.geteuid() == 0
        and _libc.unshare(_NEW_MOUNTS) == 0
        and _libc.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None) == 0
    )


def mount_memory(place: Path, size: str) -> bool:
    """Mount a memory file system of ``size`` (as mount(8) takes it) at ``place``. False where that is not permitted."""
    options = f"size={size},mode=1777".encode()
    return _libc.mount(b"tmpfs", os.fsencode(place), b"tmpfs", 0, options) == 0


def resize_memory(place: Path, size: int) -> None:
    """Resize a mounted memory file system. Its files stay."""
    if _libc.mount(b"tmpfs", os.fsencode(place), b"tmpfs", _REMOUNT, f"size={max(size, 4096)}".encode()) != 0:
        raise OSError(ctypes.get_errno(), f"cannot give {place} {size} bytes")


def unmount(place: Path) -> None:
    """Undo `mount_memory`, now or when it is no longer in use."""
    _libc.umount2(os.fsencode(place), 2)
