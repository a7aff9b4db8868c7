"""Processor time and memory of a process and all that descend from it.

Memory is anonymous and shared pages, each counted once. Pages of mapped files, which the kernel takes back at will, are
not included.
"""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
_PR_SET_CHILD_SUBREAPER = 36


def adopt() -> None:
    """Become the parent of descendants whose own parent ends, so that `descendants` still finds them."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int) -> list[int]:
    """Return the processes that descend from ``pid``, without it, in no order."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, next_ones = [], [pid]
    while next_ones:
        below = children.get(next_ones.pop(), [])
        found += below
        next_ones += below
    return found


def cpu_seconds(pid: int) -> float:
    """Return the processor time so far of a process and all that descend from it, ended ones included."""
    ticks = 0
    for each in (pid, *descendants(pid)):
        if fields := _stat(each):
            ticks += sum(map(int, fields[11:15]))
    return ticks / TICKS


def private_bytes(pid: int) -> int:
    """Anonymous and shared memory of a process and all that descend from it."""
    kilobytes = 0
    for each in (pid, *descendants(pid)):
        try:
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue  # it has ended
        kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
    return kilobytes * 1024


def end(pid: int) -> None:
    """Kill what descends from a process."""
    for each in descendants(pid):
        try:
            os.kill(each, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _stat(pid: int) -> list[str]:
    """Return the fields of a process from its state on. None if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
