"""Run a command with a part of the machine's processors, as if it were slow or busy.

usage: throttle.py CORES COMMAND ...

A control group (version 2 or 1) sets the limit, for the command and all that it starts. Where groups cannot be
made, other processes compute at the same time, enough to leave that share for `WORKERS` processes that compute, too.
"""

import contextlib
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

PERIOD_US = 100_000
WORKERS = 4  # of the tests, see the Makefile


def group(cores: float) -> Path | None:
    """Make a control group with a limit. None: it is not allowed."""
    two, one = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/cpu")
    folder = (one if one.is_dir() else two) / f"feedline-{os.getpid()}"
    quota = round(cores * PERIOD_US)
    try:
        folder.mkdir()
    except OSError:
        return None
    try:
        if one.is_dir():
            (folder / "cpu.cfs_period_us").write_text(f"{PERIOD_US}")
            (folder / "cpu.cfs_quota_us").write_text(f"{quota}")
        else:
            (folder / "cpu.max").write_text(f"{quota} {PERIOD_US}")
    except OSError:
        folder.rmdir()
        return None
    return folder


def remove(folder: Path) -> None:
    """Remove a control group. Processes that the command left in it go on without the limit."""
    for _ in range(50):
        for pid in (folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (folder.parent / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.1)


@contextlib.contextmanager
def busy(cores: float) -> Iterator[None]:
    """Let processes compute while the context runs."""
    processors = len(os.sched_getaffinity(0))
    count = max(0, math.ceil(WORKERS * (processors / cores - 1)))
    parent = f"import os\nwhile os.getppid() == {os.getpid()}:\n    sum(range(100000))"
    loops = [subprocess.Popen([sys.executable, "-c", parent]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main() -> None:
    """Run the command, exit with its status."""
    cores, command = float(sys.argv[1]), sys.argv[2:]
    folder = group(cores)
    if folder is None:
        print("no control group can be made here: processes compute beside the command", flush=True)
        with busy(cores):
            sys.exit(subprocess.call(command))
    print(f"with {cores:g} cores, by the control group {folder}", flush=True)
    try:
        status = subprocess.call(command, preexec_fn=lambda: (folder / "cgroup.procs").write_text(f"{os.getpid()}"))
    finally:
        remove(folder)
    sys.exit(status)


if __name__ == "__main__":
    main()
