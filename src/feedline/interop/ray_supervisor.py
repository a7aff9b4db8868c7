"""Run a private Ray while the parent process lives: ``python -P ray_supervisor.py`` with one JSON argument.

The argument has ``folder`` (mode 0700, owned by this user, deleted at the end), ``memory`` (bytes of Ray's object
store) and ``cpus`` (CPUs in Ray's count). One line of JSON is written to stdout: ``address``, or
``error``. When stdin closes or the parent dies, Ray is shut down, all descendants of this process are killed, and the
folder is deleted, so that nothing remains of a killed driver.

Ray cannot be told to listen on loopback, but does so if it finds no other address of this host, which is its behaviour
on systems other than Linux. `feedline.interop.private_ray` sets the variable that selects it, and runs
this file by its path, without feedline's imports, to keep the process small.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import select
import shutil
import signal
import sys
import time
from pathlib import Path

#: Seconds between checks that the parent lives.
LOOK_S = 1.0
_SYSTEM = runpy.run_path(str(Path(__file__).resolve().parents[1] / "system" / "descendants.py"))


def main() -> None:
    """Start Ray, wait for the parent to end, and clean up."""
    parent = os.getppid()
    settings = json.loads(sys.argv[1])
    # Orphans among Ray's processes become children of this one, so that they can be found.
    _SYSTEM["adopt_orphans"]()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        try:
            answer = {"address": start(Path(settings["folder"]), settings["memory"], settings["cpus"])}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
        while "address" in answer and os.getppid() == parent:
            if select.select([sys.stdin], [], [], LOOK_S)[0] and not sys.stdin.read(1):
                break
    finally:
        end()
        shutil.rmtree(settings["folder"], ignore_errors=True)


def start(folder: Path, memory_bytes: int, cpus: int) -> str:
    """Start Ray. Return its address."""
    import ray

    ray.init(
        address="local",
        num_cpus=cpus,
        num_gpus=0,
        object_store_memory=memory_bytes,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        _temp_dir=str(folder / "ray"),
    )
    return str(ray.get_runtime_context().gcs_address)


def end() -> None:
    """Shut Ray down, and end its remaining processes."""
    descendants = _SYSTEM["descendants"]
    descendants(os.getpid())  # as some become orphans now
    if "ray" in sys.modules:
        with contextlib.suppress(Exception):
            sys.modules["ray"].shutdown()
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + 3
        while remaining := descendants(os.getpid()):
            for pid in remaining:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            if time.monotonic() > until:
                break
            time.sleep(0.05)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


if __name__ == "__main__":
    main()
