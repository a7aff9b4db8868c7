"""Keeps a Ray of our own for as long as its parent lives: ``python -P ray_supervisor.py`` with one JSON argument.

Argument: ``folder`` (0700, ours, deleted at the end), ``memory`` (bytes of Ray's object store). One line of JSON comes
back on stdout: ``address``, or ``error``. When stdin closes, or the parent is gone, Ray is shut down, every process
that came from this one is ended, and the folder is deleted. So a driver that is killed leaves nothing behind.

Ray listens on loopback alone if it finds no other address of this host; it does not take one that it is given. That is
its way on systems other than Linux, and the variable that chooses it is in
`feedline.kvstore.parameter_server.ray_cluster`, which starts this file by its path: without feedline's imports it is
small.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
#: Seconds between looks at whether the parent is there.
LOOK = 1.0


def main() -> None:
    """Start, wait, end."""
    parent = os.getppid()
    given = json.loads(sys.argv[1])
    # Whatever loses its parent among Ray's processes becomes our child, and so can be found.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        try:
            answer = {"address": start(Path(given["folder"]), given["memory"])}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
        while "address" in answer and os.getppid() == parent:
            if select.select([sys.stdin], [], [], LOOK)[0] and not sys.stdin.read(1):
                break
    finally:
        end()
        shutil.rmtree(given["folder"], ignore_errors=True)


def start(folder: Path, memory: int) -> str:
    """Start Ray; returns its address."""
    import ray

    ray.init(
        address="local",
        num_cpus=1,
        num_gpus=0,
        object_store_memory=memory,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        _temp_dir=str(folder / "ray"),
    )
    return str(ray.get_runtime_context().gcs_address)


def end() -> None:
    """Shut Ray down, and end what is left of it."""
    if "ray" in sys.modules:
        with contextlib.suppress(Exception):
            sys.modules["ray"].shutdown()
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + 3
        while left := descendants(os.getpid()):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            if time.monotonic() > until:
                break
            time.sleep(0.05)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def descendants(pid: int) -> list[int]:
    """Processes that came from this one; those that lost their parents are our children by now."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name, in parentheses, may hold anything.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = list(children.get(pid, []))
    for one in found:  # grows
        found += children.get(one, [])
    return found


if __name__ == "__main__":
    main()
