"""Turns of contenders: each in a fresh process, watched from here, ended when its time is over.

A turn that fails or does not end is a result, too. The table shows its last message.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.peers.contender import Contender
from benchmarks.peers.tree import end, private_bytes

ROOT = Path(__file__).resolve().parent.parent.parent
#: Between two looks at a turn's memory.
LOOK_S = 0.3
#: For a turn, with its imports and the check.
PATIENCE_S = 90.0


class TurnError(Exception):
    """A turn failed, or was ended. The message is its last one."""


def turn(arguments: list[str], limit_s: float = PATIENCE_S) -> dict[str, Any]:
    """Run `benchmarks.peers.run` with arguments. Return its output, and ``private``: bytes of memory at its peak.

    Raises:
        TurnError: it failed, or did not end in time.
    """
    command = [sys.executable, "-m", "benchmarks.peers.run", *arguments]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        private, until = 0, time.monotonic() + limit_s
        try:
            while process.poll() is None and time.monotonic() < until:
                private = max(private, private_bytes(process.pid))
                time.sleep(LOOK_S)
        finally:
            ended = process.poll() is not None
            if not ended:
                end(process.pid)
                process.kill()
            process.wait()
            # A process that was started while the others were ended is still in the group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        out.seek(0)
        errors.seek(0)
        said = errors.read().strip().splitlines()
        if not ended:
            raise TurnError(f"ended after {limit_s:g} s")
        if process.returncode != 0:
            raise TurnError(next((line for line in reversed(said) if line.strip()), f"exit {process.returncode}")[:300])
        found: dict[str, Any] = json.loads(out.read().strip().splitlines()[-1])
    return found | {"private": private}


def environment() -> dict[str, str]:
    """Return variables for one thread a process for arithmetic. Nothing is fetched, reported or shown."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "RAY_ADDRESS": "local",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "DISABLE_LITDATA_VERSION_CHECK": "1",
    }


def command_of(contender: Contender, workload: str, workers: int, data: Path, scratch: Path) -> list[str]:
    """The arguments that every turn of a contender has."""
    return [contender.name, workload, "--workers", str(workers), "--data", str(data), "--scratch", str(scratch)]
