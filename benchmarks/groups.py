"""Processes with little memory, page cache included: in a control group, or next to a locked ballast."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# Locks a number of bytes and prints that it did. Exits when its standard input closes, and is the first to be killed
# when memory is short.
_BALLAST = """
import ctypes, mmap, pathlib, sys
pathlib.Path("/proc/self/oom_score_adj").write_text("1000")
held = mmap.mmap(-1, int(sys.argv[1]))
address = ctypes.addressof(ctypes.c_char.from_buffer(held))
libc = ctypes.CDLL(None, use_errno=True)
libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
if libc.mlock(address, len(held)):
    sys.exit(f"mlock: {ctypes.get_errno()}")
print("locked", flush=True)
sys.stdin.read()
"""


class Group(NamedTuple):
    """A limit of the memory of a process, page cache included.

    Attributes:
        version: of the control group, 1 or 2. 0: none, a ballast leaves little memory to all processes.
        folder: folder of the group.
    """

    version: int
    folder: Path = Path()

    @property
    def kind(self) -> str:
        """In words."""
        return f"memory control group (version {self.version})" if self.version else "locked ballast that leaves memory"

    def enter(self) -> None:
        """Move this process there."""
        if self.version:
            (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def page_cache(self) -> int:
        """Return the bytes of files that this group keeps in memory. With a ballast, all processes count."""
        if not self.version:
            return _meminfo("Cached")
        name = "file" if self.version == 2 else "cache"
        for line in (self.folder / "memory.stat").read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
        return 0

    def arguments(self) -> tuple[str, str]:
        """For a process that is to enter."""
        return str(self.version), str(self.folder)


@contextlib.contextmanager
def limited(limit: int) -> Iterator[Group | None]:
    """Make a fresh group of at most ``limit`` bytes inside this process's own. None where that is not permitted."""
    group = None
    for parent, version in _parents():
        folder = parent / f"feedline-bench-{os.getpid()}-{limit}"
        try:
            folder.mkdir()
            name = "memory.max" if version == 2 else "memory.limit_in_bytes"
            (folder / name).write_text(str(limit))
            group = Group(version, folder)
            break
        except OSError:
            with contextlib.suppress(OSError):
                folder.rmdir()
    if group is None:
        with ballast(_meminfo("MemAvailable") - limit) as locked:
            yield Group(0) if locked else None
        return
    try:
        yield group
    finally:
        with contextlib.suppress(OSError):
            group.folder.rmdir()


@contextlib.contextmanager
def ballast(nbytes: int) -> Iterator[bool]:
    """Run another process that locks a number of bytes. Yields False where that is not permitted."""
    command = [sys.executable, "-c", _BALLAST, str(max(1, nbytes))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process.stdout.readline() == b"locked\n"
        finally:
            process.kill()


def _meminfo(key: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    return 0


def _parents() -> list[tuple[Path, int]]:
    """This process's groups that may limit memory, and their versions."""
    found = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(","):
                found.append((Path("/sys/fs/cgroup/memory") / path.lstrip("/"), 1))
            elif controllers == "":
                found.append((Path("/sys/fs/cgroup") / path.lstrip("/"), 2))
    return [(folder, version) for folder, version in found if folder.is_dir()]
