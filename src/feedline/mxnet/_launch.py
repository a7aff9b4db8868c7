"""Scripts started by MXNet's ``launch.py``: its variables, in terms of torch's.

``launch.py`` starts servers, workers and one scheduler, all with the same script. Stores here need neither servers nor
a scheduler: these roles end quietly. Workers get torch's variables for a rendezvous at the root's address, unless these
are set. (Source: ps-lite's and dmlc-core's documentation of ``DMLC_*``.)
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping

from feedline.errors import CompatError

# In this order: the tracker for several machines sets the first, the tracker for one machine the second.
_NUMBERS = ("DMLC_WORKER_ID", "DMLC_TASK_ID")


def set_torch_variables(environment: MutableMapping[str, str] | None = None) -> None:
    """Take the role in ``DMLC_ROLE``, or do nothing if it is not set.

    Args:
        environment: variables to read and extend. None means the variables of this process.

    Raises:
        SystemExit: a server or the scheduler, with the exit code 0.
        CompatError: the variables of a worker lack its number, or the address where workers meet.
    """
    env = os.environ if environment is None else environment
    role = env.get("DMLC_ROLE")
    if role in ("server", "scheduler"):
        sys.exit(0)
    if role != "worker" or "RANK" in env:
        return
    count = _number(env, ("DMLC_NUM_WORKER",), 1)
    if count == 1:
        return
    rank = _number(env, _NUMBERS, None)
    if rank >= count:
        raise CompatError(
            f"expected a worker's number below DMLC_NUM_WORKER={count}, got {rank}: list workers before servers, as "
            "launch.py --launcher local does, or use torchrun"
        )
    root, port = env.get("DMLC_PS_ROOT_URI"), _number(env, ("DMLC_PS_ROOT_PORT",), None)
    if not root:
        raise CompatError("expected DMLC_PS_ROOT_URI, the address where workers meet, got none: use launch.py")
    env.update(RANK=str(rank), WORLD_SIZE=str(count), MASTER_ADDR=root, MASTER_PORT=str(port))


def _number(env: MutableMapping[str, str], names: tuple[str, ...], otherwise: int | None) -> int:
    for name in names:
        if name in env:
            try:
                number = int(env[name])
            except ValueError:
                number = -1
            if number < 0:
                raise CompatError(f"expected {name} to be a whole number from 0, got {env[name]!r}")
            return number
    if otherwise is None:
        raise CompatError(
            f"expected {' or '.join(names)} of a worker, got none: use launch.py --launcher local, or "
            "torchrun --no-python feedline run --as mxnet SCRIPT"
        )
    return otherwise
