"""Check how much memory and how many descriptors are left before using them, and limit torch's threads.

It considers the available memory of the machine, the limits of this process's memory control groups, and its limit on
descriptors. These bound anonymous shared memory. The size of ``/dev/shm`` does not.
"""

from __future__ import annotations

import errno
import os
import resource
import sys

from feedline import system

GRACE_S = 5.0
"""Seconds for a running unit to finish once its result is not needed, before the worker is killed."""

LAST_GRACE_S = 0.5
"""The same at the end of the program, and after Ctrl-C."""

_SLACK_BYTES = 64 << 20  # bytes to leave free for the kernel and other processes

_limited = False  # torch, in this process


def require_memory(size: int) -> None:
    """Check that ``size`` bytes of memory can be allocated.

    Raises:
        MemoryError: they cannot.
    """
    if size < 1 << 20:
        return  # reading the figures costs more than this much memory
    free = available()
    if free is not None and free < size + _SLACK_BYTES:
        raise MemoryError(
            f"expected room for {figure(size)} of shared memory for the results of a worker; {situation()}\n"
            "  use smaller batches, fewer workers or less prefetching, or release batches sooner"
        )


def available() -> int | None:
    """Return the bytes that can still be allocated on the machine and in the control groups, or None if unknown."""
    figures = [limit - used for _, limit, used in system.memory_groups()]
    machine = system.available_bytes()
    return min(figures if machine is None else [machine, *figures], default=None)


def give_back() -> None:
    """Let Arrow's memory pool return this thread's freed memory to the system."""
    arrow = sys.modules.get("pyarrow")
    if arrow is not None:
        arrow.default_memory_pool().release_unused()


def fits_page_cache(size: int) -> bool:
    """Return whether data of this size may stay in the page cache, because it takes at most half of the available
    memory."""
    return size <= (available() or 0) // 2


def situation() -> str:
    """Describe how much memory is free, for error messages."""
    machine = system.available_bytes()
    words = [f"{figure(machine)} free on the machine"] if machine is not None else []
    groups = system.memory_groups()
    words += [f"control group {name}: {figure(used)} of {figure(limit)} used" for name, limit, used in groups]
    return "; ".join(words) or "free memory is unknown"


def figure(size: int) -> str:
    """Format a number of bytes."""
    return f"{size / (1 << 20):,.1f} MiB" if size < 1 << 30 else f"{size / (1 << 30):,.2f} GiB"


def require_descriptors(count: int) -> None:
    """Check that ``count`` more descriptors can be opened.

    Raises:
        OSError: they cannot. The message states the limit.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and system.open_descriptors() + count > soft:
        raise descriptors_short(OSError(errno.EMFILE, os.strerror(errno.EMFILE)), count)


def descriptors_short(error: OSError, count: int | None = None) -> OSError:
    """Return ``error`` with the descriptor limit added to its text if that is the cause, else unchanged."""
    if error.errno not in (errno.EMFILE, errno.ENFILE):
        return error
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = "more" if count is None else f"{count} more"
    return OSError(
        error.errno,
        f"{error.strerror}: expected to open {need} for worker processes, but {system.open_descriptors()} of at "
        f"most {soft} (hard limit {hard}) are open. Use fewer workers, or raise the limit with `ulimit -n` or "
        "resource.setrlimit",
    )


def limit_torch() -> None:
    """Let torch use one thread in this worker process, if it is imported.

    Many workers, each with a separate thread pool, would oversubscribe the cores.
    """
    global _limited
    if not _limited and (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
        _limited = True
