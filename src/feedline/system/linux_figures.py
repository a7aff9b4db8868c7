"""Figures that Linux counts in ``/proc``. `feedline.system` says what each of them is for."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from feedline.system import control_groups

_TICKS = os.sysconf("SC_CLK_TCK")
# Numbers of system calls in which a thread waits, by machine: for a lock, or for a file.
_LOCKS = {"x86_64": (202, 73, 72), "aarch64": (98, 32, 25)}.get(os.uname().machine, ())
_FILES = {"x86_64": (0, 2, 17, 19, 257, 262, 332), "aarch64": (63, 65, 67, 56, 79, 291)}.get(os.uname().machine, ())
_ESCAPED = (("\\012", "\n"), ("\\134", "\\"))  # in the kernel's table of maps

# ---- processors and memory --------------------------------------------------------------------------------------


def allowed_cores() -> int:
    """Return the number of processors that this process may run on."""
    return control_groups.allowed_cores()


def usable_cores() -> int:
    """Return the number of processors that this process may use. A quota of processor time counts, rounded up."""
    return control_groups.usable_cores()


def throttled_seconds() -> float | None:
    """Return the seconds in which this process was stopped so far, as its container had used up its quota. None:
    unknown."""
    return control_groups.throttled_seconds()


def available_bytes() -> int | None:
    """Return the bytes of memory that are free on the machine, or could be freed. None: unknown."""
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo", "rb") as file:
        for line in file:
            if line.startswith(b"MemAvailable:"):
                return int(line.split()[1]) << 10
    return None


def memory_groups() -> list[tuple[str, int, int]]:
    """Return path, limit and usage in bytes of the memory control groups of this process that have a limit."""
    return control_groups.memory_groups()


def resident_bytes() -> tuple[int, int] | None:
    """Return the bytes of this process in memory: those that must stay there, and those of mapped files. None:
    unknown."""
    status = Path("/proc/self/status").read_text()
    sizes = {name: int(kib) << 10 for name, kib in re.findall(r"^(Rss\w+):\s+(\d+) kB$", status, re.MULTILINE)}
    return sizes["RssAnon"] + sizes["RssShmem"], sizes["RssFile"]


def processor_name() -> str:
    """Return the model of the processor. Empty if it is unknown."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return ""


# ---- processes --------------------------------------------------------------------------------------------------


def process_figures(pid: int) -> dict[str, Any] | None:
    """Return figures of a process so far, by the names of `concurrency.conditions.Conditions`. A figure that is not
    known is None. None instead of all: the process has ended, or is another user's."""
    try:
        words = _words(f"/proc/{pid}/stat", after=")")
        user, system = int(words[11]) / _TICKS, int(words[12]) / _TICKS
        faults = int(words[9])
        if words[0] in "ZX":
            return None
    except (OSError, ValueError, IndexError):
        return None
    queued_s = 0.0
    with contextlib.suppress(OSError):
        queued_s = sum(_queued_s(pid, thread) for thread in os.listdir(f"/proc/{pid}/task"))
    here = pid == os.getpid()
    return {
        "cpu_seconds": user + system,
        "system_seconds": system,
        "queued_seconds": queued_s,
        "loop_queued_seconds": _queued_s(pid, pid) if here else 0.0,
        "worker_queued_seconds": 0.0 if here else queued_s,
        "major_faults": faults,
        "swapped_bytes": 1024 * _numbers(f"/proc/{pid}/status").get("VmSwap", 0) if faults else 0,
        **_reads(f"/proc/{pid}"),
    }


def thread_reads() -> dict[str, Any]:
    """Return what this thread has read so far, by the names of `concurrency.conditions.Conditions`."""
    return _reads("/proc/thread-self")


def activity_of(pid: int) -> str:
    """Return what the main thread of a process does at this moment.

    Returns:
        ``"running"``, ``"disk"`` (waits for one), ``"lock"``, ``"file"`` (in a system call that opens or reads one),
        ``"waiting"`` (for something else), or empty if it has ended or that is unknown.
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


def copied_counts(pid: int) -> tuple[int, int, int] | None:
    """Return bytes of a process: in pages that no other process has, in shared pages of no file, and in all pages that
    it was given so far. None if it has ended, or that is unknown."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        faults = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])
    except (OSError, ValueError, IndexError):
        return None
    kib = {name: int(size.split()[0]) for name, _, size in (line.partition(":") for line in lines)}
    private = kib.get("Private_Clean", 0) + kib.get("Private_Dirty", 0)
    return 1024 * private, 1024 * kib.get("Shared_Dirty", 0), mmap.PAGESIZE * faults


def file_maps(shared: bool) -> Iterator[tuple[int, int, bool, int, str]]:
    """Yield the files that this process maps: first address, end, whether it shares memory with the file, offset in
    the file, and path, which ends in `` (deleted)`` if the file is gone.

    Args:
        shared: leave out maps that do not share memory with the file. Few do.
    """
    with (
        contextlib.suppress(OSError),  # without the table, no file is known
        open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file,
    ):
        for line in file:
            # first-last permissions offset device inode path
            if shared and line[line.index(" ") + 4] != "s":
                continue
            fields = line.rstrip("\n").split(maxsplit=5)
            if len(fields) == 6 and fields[5].startswith("/"):
                first, last = (int(bound, 16) for bound in fields[0].split("-"))
                yield first, last, fields[1].endswith("s"), int(fields[2], 16), _unescape(fields[5])


def _unescape(path: str) -> str:
    for written, meant in _ESCAPED if "\\" in path else ():
        path = path.replace(written, meant)
    return path


def _reads(folder: str) -> dict[str, Any]:
    counts = _numbers(f"{folder}/io")
    return {
        "read_bytes": counts.get("read_bytes", 0),
        "asked_bytes": counts.get("rchar", 0),
        "read_calls": counts.get("syscr", 0),
    }


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
