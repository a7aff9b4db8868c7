"""The same figures as in `linux_figures`, as far as POSIX and Python have them. Unknown ones are None."""

from __future__ import annotations

import os
import platform
import resource
from typing import Any

_READS = ("read_bytes", "asked_bytes", "read_calls")
_OTHERS = ("queued_seconds", "loop_queued_seconds", "worker_queued_seconds", "swapped_bytes", *_READS)


def allowed_cores() -> int:
    """Return the number of processors of the machine."""
    return os.cpu_count() or 1


def usable_cores() -> int:
    """Return the number of processors of the machine."""
    return allowed_cores()


def throttled_seconds() -> float | None:
    """Return None: quotas are unknown."""


def available_bytes() -> int | None:
    """Return None: free memory is unknown."""


def memory_groups() -> list[tuple[str, int, int]]:
    """Return an empty list: there are no control groups."""
    return []


def resident_bytes() -> tuple[int, int] | None:
    """Return None: only the most bytes that a process has had are known."""


def processor_name() -> str:
    """Return the processor's name. Empty if it is unknown."""
    return platform.processor()


def process_figures(pid: int) -> dict[str, Any] | None:
    """Return figures of a process so far: of this one its processor time and page faults, of others nothing."""
    figures: dict[str, Any] = dict.fromkeys(("cpu_seconds", "system_seconds", "major_faults", *_OTHERS))
    if pid == os.getpid():
        used = resource.getrusage(resource.RUSAGE_SELF)
        figures["cpu_seconds"] = used.ru_utime + used.ru_stime
        figures["system_seconds"], figures["major_faults"] = used.ru_stime, used.ru_majflt
        return figures
    try:
        os.kill(pid, 0)
    except OSError:
        return None
    return figures


def thread_reads() -> dict[str, Any]:
    """Return the figures of reads, which are unknown."""
    return dict.fromkeys(_READS)


def activity_of(pid: int) -> str:
    """Return an empty text: it is unknown what a process does."""
    return ""


def copied_counts(pid: int) -> tuple[int, int, int] | None:
    """Return None: a process does not know its pages."""
