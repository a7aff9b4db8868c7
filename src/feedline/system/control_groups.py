"""Control groups of this process, by which containers limit memory and processors on Linux."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

_SYSTEM = Path("/")


def folders(controller: str, version: int, system: Path = _SYSTEM) -> Iterator[Path]:
    """Yield the folders of this process's group for a controller, and of the groups around it.

    Args:
        controller: name of the controller, such as ``"memory"``.
        version: version of control groups, 1 or 2.
        system: folder with ``proc`` and ``sys``.
    """
    try:
        lines = (system / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    root = system / "sys/fs/cgroup"
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if version == 2 and controllers == "":
            top = root
        elif version == 1 and controller in controllers.split(","):
            top = root / controller
        else:
            continue
        folder = top / path.lstrip("/")
        # In a container the path is often the host's, and the container's own group is the root.
        for place in dict.fromkeys([folder, *folder.parents, top]):
            if top in (place, *place.parents):
                yield place


def allowed_cores() -> int:
    """Return the number of processors that this process may run on."""
    return len(os.sched_getaffinity(0))


def usable_cores(system: Path = _SYSTEM) -> int:
    """Return the number of processors that this process may use.

    A quota of processor time of its control groups counts, rounded up.
    """
    quotas = [_quota(place / "cpu.max") for place in folders("cpu", 2, system)]
    quotas += [_quota(place / "cpu.cfs_quota_us", place / "cpu.cfs_period_us") for place in folders("cpu", 1, system)]
    return math.ceil(min([allowed_cores(), *quotas]))


def throttled_seconds(system: Path = _SYSTEM) -> float:
    """Return the seconds in which this process's control group was stopped so far, as it had used up its quota."""
    seconds = [0.0]
    for version, key, unit in ((2, "throttled_usec", 1e-6), (1, "throttled_time", 1e-9)):
        for place in folders("cpu", version, system):  # a group around it may have the quota
            with contextlib.suppress(OSError, ValueError, IndexError):
                words = (place / "cpu.stat").read_text().split()
                seconds.append(int(words[words.index(key) + 1]) * unit)
    return max(seconds)


def _quota(*paths: Path) -> float:
    """Return a quota in processors, infinity if there is none, from files with the time and the period."""
    try:
        quota, period = " ".join(path.read_text() for path in paths).split()
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    except (OSError, ValueError, ZeroDivisionError):  # no such file, or "max"
        return math.inf


def memory_groups() -> list[tuple[str, int, int]]:
    """Return path, limit and usage of the memory control groups (v1 or v2) of this process that have a limit."""
    groups: list[tuple[str, int, int]] = []
    for place in folders("memory", 1):
        groups += _memory_of(place, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
    for place in folders("memory", 2):
        groups += _memory_of(place, "memory.max", "memory.current", "")
    return groups


def _memory_of(place: Path, limit_name: str, used_name: str, prefix: str) -> list[tuple[str, int, int]]:
    try:
        text = (place / limit_name).read_text().strip()
        if text == "max" or int(text) >= 1 << 62:
            return []
        used = int((place / used_name).read_text())
        for line in (place / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name in (f"{prefix}inactive_file", f"{prefix}active_file"):
                used -= int(value)  # the kernel reclaims page cache before it kills
        return [(str(place), int(text), max(used, 0))]
    except (OSError, ValueError):
        return []
