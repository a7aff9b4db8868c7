"""Rank and number of ranks by launchers other than torchrun: Ray Train, mpiexec and srun.

Ray Train has a context, which has precedence: its workers inherit the variables of the process that started Ray. Then
follows torchrun's ``RANK``, as torch.distributed reads it, then the others' variables.

- Open MPI sets ``OMPI_COMM_WORLD_RANK`` and ``OMPI_COMM_WORLD_SIZE``.
- MPICH, Intel MPI, Microsoft MPI and Cray's set ``PMI_RANK`` and ``PMI_SIZE``.
- Slurm sets ``SLURM_PROCID`` and ``SLURM_STEP_NUM_TASKS`` (``SLURM_NTASKS`` as well) for the tasks of a step of srun. A
  batch script and an interactive shell have ``SLURM_PROCID`` and ``SLURM_NTASKS``, too, but are one process: they have
  no ``SLURM_STEP_ID``, or one of the numbers that Slurm reserves. An mpiexec whose helpers srun has started passes on
  their ``SLURM_*``, so its own variables have precedence.

The child processes of a rank inherit its variables, and count as that rank.
"""

from __future__ import annotations

import os
import sys

#: Variables of MPI, by launcher: rank and number of ranks.
_MPI = {"Open MPI's mpiexec": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), "mpiexec": ("PMI_RANK", "PMI_SIZE")}
#: Slurm reserves numbers of steps from here on: for the batch script, an interactive shell, and external processes.
_RESERVED_STEPS = 0xFFFFFFF0
_ALONE = "Set RANK=0 WORLD_SIZE=1 if this program runs by itself"


def launcher_rank() -> tuple[int, int] | None:
    """Return rank and number of ranks from Ray Train, mpiexec or srun. None without them, with one rank, or if ``RANK``
    is set outside of Ray Train.

    Raises:
        RuntimeError: the variables are incomplete, or contradict each other.
    """
    share = _ray_rank()
    if share is not None:
        return share if share[1] > 1 else None
    if "RANK" in os.environ:
        return None
    by_mpi = {who: _read(who, *names) for who, names in _MPI.items() if any(name in os.environ for name in names)}
    several = {who: share for who, share in by_mpi.items() if share[1] > 1}
    if len(set(several.values())) > 1:
        claims = ", but ".join(f"{index} of {count} by {_MPI[who][0]}" for who, (index, count) in several.items())
        raise RuntimeError(f"expected one rank of this process, got {claims}: unset one launcher's variables. {_ALONE}")
    if by_mpi:
        return next(iter(several.values()), None)
    if not _in_step():
        return None
    count = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in os.environ else "SLURM_NTASKS"
    share = _read("srun", "SLURM_PROCID", count)
    return share if share[1] > 1 else None


def where_to_meet() -> tuple[str, str]:
    """Return ``MASTER_ADDR`` and ``MASTER_PORT``, where `launcher_rank` ranks meet.

    Raises:
        RuntimeError: they are not set.
    """
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if address and port:
        return address, port
    index, count = launcher_rank() or (0, 1)
    raise RuntimeError(
        f"expected an address where the {count} ranks meet, of which this is rank {index}, got none: set MASTER_ADDR "
        "to rank 0's machine and MASTER_PORT to a free port there, the same for all ranks, as by\n"
        "  mpiexec -x MASTER_ADDR=127.0.0.1 -x MASTER_PORT=29500 -n 2 python script.py  (Open MPI, one machine)\n"
        "  mpiexec -genv MASTER_ADDR 127.0.0.1 -genv MASTER_PORT 29500 -n 2 python script.py  (MPICH, Intel MPI)\n"
        "  MASTER_ADDR=$(hostname) MASTER_PORT=29500 srun python script.py  (from rank 0's machine)\n"
        f"  or use torchrun. {_ALONE}"
    )


def _ray_rank() -> tuple[int, int] | None:
    """Return rank and number of ranks of this process in Ray Train, or None if it is none of its workers."""
    train = sys.modules.get("ray.train")
    if train is None:
        return None
    try:
        context = train.get_context()
        return int(context.get_world_rank()), int(context.get_world_size())
    except (RuntimeError, DeprecationWarning):  # not a worker, or one of Ray Tune
        return None


def _in_step() -> bool:
    step = os.environ.get("SLURM_STEP_ID", os.environ.get("SLURM_STEPID", ""))
    return step.isdecimal() and int(step) < _RESERVED_STEPS


def _read(who: str, rank: str, size: str) -> tuple[int, int]:
    settings = {name: os.environ.get(name) for name in (rank, size)}
    shown = ", ".join(f"{name}={value}" if value is not None else f"no {name}" for name, value in settings.items())
    index, count = (int(value) if value and value.isdecimal() else -1 for value in settings.values())
    if not 0 <= index < count:
        raise RuntimeError(f"expected a rank below the number of ranks from {who}, got {shown}. {_ALONE}")
    return index, count
