"""What surrounds a program: slow disks, swap, object stores, and other programs that compete with it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from tests.forked import die
from tests.torture.arena import die_with_parent

_GROUPS = Path("/sys/fs/cgroup/blkio")
_SWAP_BYTES = 256 << 20


def in_child(call: Callable[[], object]) -> None:
    """Call in a forked process, whose work and threads are then not part of the program."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            call()
            code = 0
        finally:
            die(code)
    if os.waitpid(pid, 0)[1]:
        raise RuntimeError("expected the data to be written, got an error in the process that writes it")


class Others:
    """Measures what the rest of the machine does while a context runs programs and waits for their ends.

    Attributes:
        share: share of the processors' time, 0 to 1, that other programs or other machines took.
    """

    def __init__(self) -> None:
        self.share = 0.0

    def __enter__(self) -> Self:
        self._own, self._idle, self._total = _child_ticks(), *_machine_ticks()
        return self

    def __exit__(self, *_: object) -> None:
        own, (idle, total) = _child_ticks(), _machine_ticks()
        passed = max(1.0, total - self._total)
        self.share = max(0.0, 1 - (idle - self._idle + own - self._own) / passed)


def _machine_ticks() -> tuple[float, float]:
    """Return the time in which processors were idle, and all of it, in clock ticks."""
    numbers = list(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]))
    return float(numbers[3] + numbers[4]), float(sum(numbers))


def _child_ticks() -> float:
    """Return the processor time of children that have ended, and of theirs, in clock ticks."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (usage.ru_utime + usage.ru_stime) * os.sysconf("SC_CLK_TCK")


def lacks_object_store() -> str | None:
    """Return what is missing to read objects."""
    return None if importlib.util.find_spec("obstore") else "the package obstore"


@contextlib.contextmanager
def serve(
    folder: Path, before: Callable[[Any], tuple[int, dict[str, str]] | None] | None = None, pause_s: float = 0.0
) -> Iterator[list[str]]:
    """Serve the Parquet files of a folder from a process of its own. Yield their addresses.

    Args:
        folder: folder of the files.
        before: see `WebServer`.
        pause_s: pause after each 32 KiB.
    """
    parts = sorted(folder.glob("*.parquet"))
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            die_with_parent()
            from tests.servers.web import WebServer

            web = WebServer({f"/{path.name}": path.read_bytes() for path in parts})
            web.etag = False  # hashing all of an object for each request would be the limit
            web.before = before or web.before
            web.piece, web.pause_s = 32 << 10, pause_s
            os.write(writing, web.url.encode() + b"\n")
            signal.pause()
        finally:
            die(1)
    os.close(writing)
    try:
        with open(reading, "rb") as pipe:
            url = pipe.readline().decode().strip()
            yield [f"{url}/{path.name}" for path in parts]
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def evict(folder: Path) -> None:
    """Have the page cache drop the files of a folder, at any depth."""
    os.sync()  # dirty pages would stay
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def lacks_limits() -> str | None:
    """Return what is missing to slow down the disk for a process."""
    return None if os.access(_GROUPS / "cgroup.procs", os.W_OK) else "control groups for disks that it may change"


class Slowness:
    """A context in which this process reads slowly from a disk, once it `begin`s.

    Args:
        folder: any folder on the disk.
        operations: reads a second. 0: no limit.
        bytes_: bytes a second. 0: no limit.
    """

    def __init__(self, folder: Path, operations: int = 0, bytes_: int = 0) -> None:
        self._folder, self._limits = folder, {"iops": operations, "bps": bytes_}
        self._group = _GROUPS / f"feedline-torture-{os.getpid()}"

    def __enter__(self) -> Self:
        self._group.mkdir()
        return self

    def begin(self) -> None:
        """Limit the reads of this process."""
        device = os.stat(self._folder).st_dev
        for name, limit in self._limits.items():
            if limit:
                path = self._group / f"blkio.throttle.read_{name}_device"
                path.write_text(f"{os.major(device)}:{os.minor(device)} {limit}")
        (self._group / "cgroup.procs").write_text(str(os.getpid()))

    def __exit__(self, *_: object) -> None:
        (_GROUPS / "cgroup.procs").write_text(str(os.getpid()))
        self._group.rmdir()


def lacks_swap() -> str | None:
    """Return what is missing to use swap."""
    return None if os.geteuid() == 0 and shutil.which("mkswap") else "the right to add swap"


@contextlib.contextmanager
def swap(folder: Path) -> Iterator[None]:
    """A context with some more swap, in a file of a folder on a disk."""
    path = folder / "swap"
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, _SWAP_BYTES)
    path.chmod(0o600)
    subprocess.run(["mkswap", str(path)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        subprocess.run(["swapon", str(path)], check=True, stderr=subprocess.DEVNULL)
        yield
    finally:
        subprocess.run(["swapoff", str(path)], check=False, stderr=subprocess.DEVNULL)
        path.unlink()


@contextlib.contextmanager
def neighbours(count: int) -> Iterator[None]:
    """A context in which other processes keep processors busy."""
    pids = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            die_with_parent()
            while True:
                pass
        pids.append(pid)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
