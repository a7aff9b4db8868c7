"""What the operating system says about processes: processor time, waits for a processor, page faults, swap and disk.

Linux counts all of it. On other systems, most figures are None, and none is known of other processes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from feedline import system


@dataclass(slots=True)
class Conditions:
    """Conditions under which processes have run so far. A figure that the system does not tell is None.

    Attributes:
        cores: processors that they may use.
        cpu_seconds, system_seconds: processor time, and the part of it in the kernel.
        queued_seconds: time that threads were ready to run and waited for a processor.
        loop_queued_seconds: part of it of the main thread of this process, which usually runs the loop.
        worker_queued_seconds: part of it of worker processes.
        major_faults: accesses to memory that waited for a disk.
        swapped_bytes: bytes of memory in swap now. In a record, the most that were seen.
        read_bytes: bytes that were read from a disk.
        asked_bytes, read_calls: bytes that system calls read, from a disk or memory, and number of these calls.
        throttled_seconds: time that the control group was not let run, as it had used its quota.
        available_bytes: memory that is free on the machine, or could be freed.
        hook: debugger or profiler that is installed. Empty without one.
    """

    cores: int = 1
    cpu_seconds: float | None = 0.0
    system_seconds: float | None = 0.0
    queued_seconds: float | None = 0.0
    loop_queued_seconds: float | None = 0.0
    worker_queued_seconds: float | None = 0.0
    major_faults: int | None = 0
    swapped_bytes: int | None = 0
    read_bytes: int | None = 0
    asked_bytes: int | None = 0
    read_calls: int | None = 0
    throttled_seconds: float | None = 0.0
    available_bytes: int | None = 0
    hook: str = ""

    def since(self, start: Conditions) -> Conditions:
        """Return the conditions between ``start`` and now. What is not a sum is as it is now."""
        changes: dict[str, Any] = {}
        for name in _SUMS:
            now, then = getattr(self, name), getattr(start, name)
            changes[name] = None if now is None or then is None else max(0, now - then)
        return replace(self, **changes)

    def plus(self, addend: Conditions) -> Conditions:
        """Return the sums of the conditions of two processes on a machine."""
        sums: dict[str, Any] = {}
        for name in (*_SUMS, "swapped_bytes"):
            terms = getattr(self, name), getattr(addend, name)
            sums[name] = None if None in terms else sum(terms)
        return replace(self, **sums)

    def to_json(self) -> dict[str, Any]:
        """Return the figures by name."""
        return asdict(self)


_SUMS = [
    entry.name
    for entry in fields(Conditions)
    if entry.name not in ("cores", "swapped_bytes", "available_bytes", "hook")
]


def process_conditions(pid: int) -> Conditions | None:
    """Return the conditions of a process. None if it has ended, or is another user's."""
    figures = system.process_figures(pid)
    return None if figures is None else Conditions(**figures)


def thread_conditions() -> Conditions:
    """Return only what this thread has read."""
    return Conditions(**system.thread_reads())


def machine_conditions() -> Conditions:
    """Return the conditions of the machine and of the control group of this process."""
    return Conditions(
        cores=system.usable_cores(),
        throttled_seconds=system.throttled_seconds(),
        available_bytes=system.available_bytes(),
    )
