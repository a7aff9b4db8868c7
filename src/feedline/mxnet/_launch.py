"""Scripts started by MXNet's ``launch.py``: its variables, in terms of torch's.

``launch.py`` starts as many servers and workers as it is told, and one scheduler, all with the same script. Stores here
need neither servers nor a scheduler: these roles end quietly. Workers get torch's variables for a rendezvous at the
root's address, unless these are set. (Source: ps-lite's and dmlc-core's documentation of ``DMLC_*``.)
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping

from feedline.errors import CompatError

# In this order; the tracker of several machines sets the first, that of one the second.
_NUMBERS = ("DMLC_WORKER_ID", "DMLC_TASK_ID")


def launched(environment: MutableMapping[str, str] | None = None) -> None:
    """Take part as ``DMLC_ROLE`` says; without it do nothing.

    Args:
        environment: variables to read and extend; None: the process's.

    Raises:
        SystemExit: a server or the scheduler, with the exit code 0.
        CompatError: a worker whose variables do not say which one it is, or where workers meet.
    """
    env = os.environ if environment is None else environment
    role = env.get("DMLC_ROLE")
    if role in ("server", "scheduler"):
        sys.exit(0)
    if role != "worker" or "RANK" in env:
        return
    count = _whole(env, ("DMLC_NUM_WORKER",), 1)
    if count == 1:
        return
    rank = _whole(env, _NUMBERS, None)
    if rank >= count:
        raise CompatError(
            f"expected a worker's number below DMLC_NUM_WORKER={count}, got {rank}: list workers before servers, as "
            "launch.py --launcher local does, or use torchrun"
        )
    root, port = env.get("DMLC_PS_ROOT_URI"), _whole(env, ("DMLC_PS_ROOT_PORT",), None)
    if not root:
        raise CompatError("expected DMLC_PS_ROOT_URI, the address where workers meet, got none: use launch.py")
    env.update(RANK=str(rank), WORLD_SIZE=str(count), MASTER_ADDR=root, MASTER_PORT=str(port))


def _whole(env: MutableMapping[str, str], names: tuple[str, ...], otherwise: int | None) -> int:
    for name in names:
        if name in env:
            try:
                found = int(env[name])
            except ValueError:
                found = -1
            if found < 0:
                raise CompatError(f"expected {name} to be a whole number from 0, got {env[name]!r}")
            return found
    if otherwise is None:
        raise CompatError(
            f"expected {' or '.join(names)} of a worker, got none: use launch.py --launcher local, or "
            "torchrun --no-python feedline run --as mxnet SCRIPT"
        )
    return otherwise
