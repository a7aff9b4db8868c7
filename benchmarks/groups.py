"""Processes in a memory control group of their own, for who may make one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Group(NamedTuple):
    """A control group that limits memory, page cache included.

    Attributes:
        folder: where it is.
        second: of version 2.
    """

    folder: Path
    second: bool

    def enter(self) -> None:
        """Move this process there."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def page_cache(self) -> int:
        """Bytes of files that are held in memory on this group's account."""
        name = "file" if self.second else "cache"
        for line in (self.folder / "memory.stat").read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
        return 0

    def peak(self) -> int:
        """Bytes of memory, page cache included, at most."""
        name = "memory.peak" if self.second else "memory.max_usage_in_bytes"
        return int((self.folder / name).read_text())


@contextlib.contextmanager
def limited(limit: int) -> Iterator[Group | None]:
    """A fresh group of at most ``limit`` bytes inside this process's own; None where that is not allowed."""
    group = None
    for parent, second in _parents():
        folder = parent / f"feedline-bench-{os.getpid()}-{limit}"
        try:
            folder.mkdir()
            name = "memory.max" if second else "memory.limit_in_bytes"
            (folder / name).write_text(str(limit))
            group = Group(folder, second)
            break
        except OSError:
            with contextlib.suppress(OSError):
                folder.rmdir()
    try:
        yield group
    finally:
        if group is not None:
            with contextlib.suppress(OSError):
                group.folder.rmdir()


def _parents() -> list[tuple[Path, bool]]:
    """This process's groups that may limit memory, and whether they are of version 2."""
    found = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(","):
                found.append((Path("/sys/fs/cgroup/memory") / path.lstrip("/"), False))
            elif controllers == "":
                found.append((Path("/sys/fs/cgroup") / path.lstrip("/"), True))
    return [(folder, second) for folder, second in found if folder.is_dir()]
