"""The processes that a process has started, directly and through others, so that they can be ended.

This file imports nothing of feedline: `interop/ray_supervisor.py`, a small process, runs it by its path.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_LINUX = sys.platform == "linux" and os.environ.get("FEEDLINE_PORTABLE") != "1"
_seen: set[int] = set()


def adopt_orphans() -> None:
    """Have orphans among the descendants of this process become its children. Only Linux can do that."""
    if _LINUX:
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int) -> list[int]:
    """Return the ids of all descendants of a process. On Linux it has adopted the orphans. Elsewhere orphans that an
    earlier call has returned are among them."""
    children: dict[int, list[int]] = {}
    for child, parent in _from_proc() if _LINUX else _from_ps():
        children.setdefault(parent, []).append(child)
    pids = list(children.get(pid, []))
    for child in pids:  # grows
        pids += children.get(child, [])
    if not _LINUX:
        living = {child for group in children.values() for child in group}
        pids += (_seen & living).difference(pids)
        _seen.update(pids)
    return pids


def _from_proc() -> Iterable[tuple[int, int]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name, in parentheses, may contain any character.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                yield int(entry.name), int(fields[1])


def _from_ps() -> Iterable[tuple[int, int]]:
    with subprocess.Popen(["ps", "-A", "-o", "pid=,ppid="], stdout=subprocess.PIPE, text=True) as ps:
        lines = ps.communicate()[0].splitlines()
    for line in lines:
        pid, parent = map(int, line.split())
        if pid != ps.pid:
            yield pid, parent
