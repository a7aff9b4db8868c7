"""What the operating system says about processes: processor time, waits for a processor, page faults, swap and disk.

Linux counts all of it in /proc. Elsewhere, and where a file may not be read, the figures are 0.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from feedline.concurrency.control_groups import throttled_seconds, usable_cores

_TICKS = os.sysconf("SC_CLK_TCK")
# Numbers of system calls of Linux in which a thread waits, by machine: for a lock, or for a file.
_LOCKS = {"x86_64": (202, 73, 72), "aarch64": (98, 32, 25)}.get(os.uname().machine, ())
_FILES = {"x86_64": (0, 2, 17, 19, 257, 262, 332), "aarch64": (63, 65, 67, 56, 79, 291)}.get(os.uname().machine, ())


@dataclass(slots=True)
class Conditions:
    """Conditions under which processes have run so far.

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
    cpu_seconds: float = 0.0
    system_seconds: float = 0.0
    queued_seconds: float = 0.0
    loop_queued_seconds: float = 0.0
    worker_queued_seconds: float = 0.0
    major_faults: int = 0
    swapped_bytes: int = 0
    read_bytes: int = 0
    asked_bytes: int = 0
    read_calls: int = 0
    throttled_seconds: float = 0.0
    available_bytes: int = 0
    hook: str = ""

    def since(self, start: Conditions) -> Conditions:
        """Return the conditions between ``start`` and now. What is not a sum is as it is now."""
        return replace(self, **{name: max(0, getattr(self, name) - getattr(start, name)) for name in _SUMS})

    def plus(self, addend: Conditions) -> Conditions:
        """Return the sums of the conditions of two processes on a machine."""
        sums = {name: getattr(self, name) + getattr(addend, name) for name in _SUMS}
        return replace(self, **sums, swapped_bytes=self.swapped_bytes + addend.swapped_bytes)

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
    conditions = Conditions()
    try:
        words = _words(f"/proc/{pid}/stat", after=")")
        user, system = int(words[11]) / _TICKS, int(words[12]) / _TICKS
        if words[0] in "ZX":
            return None
    except (OSError, ValueError, IndexError):
        return None
    conditions.cpu_seconds, conditions.system_seconds, conditions.major_faults = user + system, system, int(words[9])
    with contextlib.suppress(OSError):
        conditions.queued_seconds = sum(_queued_s(pid, thread) for thread in os.listdir(f"/proc/{pid}/task"))
    if pid == os.getpid():
        conditions.loop_queued_seconds = _queued_s(pid, pid)
    else:
        conditions.worker_queued_seconds = conditions.queued_seconds
    if conditions.major_faults:
        conditions.swapped_bytes = 1024 * _numbers(f"/proc/{pid}/status").get("VmSwap", 0)
    return conditions.plus(io_conditions(f"/proc/{pid}"))


def io_conditions(folder: str) -> Conditions:
    """Return only what a process or thread has read, from its folder in /proc."""
    counts = _numbers(f"{folder}/io")
    return Conditions(
        read_bytes=counts.get("read_bytes", 0), asked_bytes=counts.get("rchar", 0), read_calls=counts.get("syscr", 0)
    )


def machine_conditions() -> Conditions:
    """Return the conditions of the machine and of the control group of this process."""
    return Conditions(
        cores=usable_cores(),
        throttled_seconds=throttled_seconds(),
        available_bytes=1024 * _numbers("/proc/meminfo").get("MemAvailable", 0),
    )


def activity_of(pid: int) -> str:
    """Return what the main thread of a process does at this moment.

    Returns:
        ``"running"``, ``"disk"`` (waits for one), ``"lock"``, ``"file"`` (in a system call that opens or reads one),
        ``"waiting"`` (for something else), or empty if it has ended.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        state = _words(f"/proc/{pid}/stat", after=")")[0]
        if state == "D":
            return "disk"
        call = _words(f"/proc/{pid}/syscall")[0]
        number = int(call) if call.lstrip("-").isdigit() else -1
        if number in _FILES:
            return "file"
        if state == "R":
            return "running"
        return "lock" if number in _LOCKS else "waiting"
    return ""


def _queued_s(pid: int, thread: int | str) -> float:
    """Return the seconds that a thread has waited for a processor. 0 if it has ended."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(_words(f"/proc/{pid}/task/{thread}/schedstat")[1]) / 1e9
    return 0.0


def _words(path: str, after: str = "") -> list[str]:
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    return text[text.rindex(after) + len(after) :].split() if after else text.split()


def _numbers(path: str) -> dict[str, int]:
    """Return the numbers of a file with lines such as ``VmSwap:  0 kB``. Empty if it cannot be read."""
    numbers = {}
    with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:
        for line in file:
            name, _, value = line.partition(":")
            number = value.split()[:1]
            if number and number[0].isdigit():
                numbers[name] = int(number[0])
    return numbers
