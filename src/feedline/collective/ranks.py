"""The ranks of a program: their numbers, and exchanges of numbers and JSON values.

A program of one process has one rank, 0. Several ranks are connected by the `Communicator` of a strategy, or by one
that is created at first use and closed by `Ranks.close`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from feedline.collective.communicator import Communicator
from feedline.collective.heartbeat import Heartbeat
from feedline.errors import StateError
from feedline.interop.launchers import launcher_rank

T = TypeVar("T")
#: Seconds to wait for other ranks unless a strategy sets another time, as in torch.distributed's groups.
TIMEOUT_S = 1800.0


def rank() -> int:
    """Return the rank of this process in torch.distributed, 0 without it.

    Raises:
        RuntimeError: see `Ranks.count`.
    """
    return int(torch.distributed.get_rank()) if _initialised() else 0


class Ranks:
    """The ranks of a program.

    Args:
        connect: function that returns a communicator of the ranks, which it may connect at the first call. None means a
            new one for the ranks of torch.distributed.
    """

    def __init__(self, connect: Callable[[], Communicator] | None = None) -> None:
        self._connect = connect
        self._created: Communicator | None = None

    @property
    def rank(self) -> int:
        """Rank of this process. Rank 0 makes decisions that only one rank may make."""
        return rank() if self._connect is None else self._connect().rank

    @property
    def count(self) -> int:
        """Number of ranks.

        Raises:
            RuntimeError: mpiexec, srun or Ray has started several, and torch.distributed does not connect them.
        """
        if self._connect is not None:
            return self._connect().count
        return int(torch.distributed.get_world_size()) if _initialised() else 1

    @property
    def alone(self) -> bool:
        """Whether this is the only rank."""
        return self._connect is None and self.count == 1

    @property
    def heartbeat(self) -> Heartbeat | None:
        """Heartbeat of this rank. None if it is alone, or not connected."""
        if self._connect is not None:
            return self._connect().heartbeat
        return None if self._created is None else self._created.heartbeat

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """Gather equally many ``numbers`` from every rank, by rank. A collective call."""
        return [list(numbers)] if self.alone else self._communicator().gather(numbers)

    def gather_json(self, value: Any) -> list[Any]:
        """Gather a value in JSON types from every rank, by rank. A collective call."""
        text = json.dumps(value)
        if self.alone:
            return [json.loads(text)]
        return [json.loads(encoded) for encoded in self._communicator().gather_bytes(text.encode())]

    def on_rank_0(self, action: Callable[[], T]) -> T | None:
        """Run ``action`` on rank 0 alone, and return its result there, None on other ranks. A collective call.

        Raises:
            Exception: on rank 0, the exception of ``action``.
            StateError: on other ranks, with the text of that exception.
        """
        result, error = None, None
        if self.rank == 0:
            try:
                result = action()
            except Exception as raised:
                error = raised
        self.check(error)
        return result

    def check(self, error: Exception | None) -> None:
        """Raise an error on all ranks if one has failed. A collective call.

        Raises:
            Exception: ``error``, if this rank has one.
            StateError: another rank has an error. The message contains its text.
        """
        errors = self.gather_json(None if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        for r, text in enumerate(errors):
            if text is not None:
                raise StateError(f"expected success on rank {r}, got {text}")

    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        """Overwrite ``tensors`` with the tensors of rank 0. A collective call."""
        if tensors and not self.alone:
            self._communicator().broadcast(tensors)

    def close(self) -> None:
        """Close the connections that this object created. A strategy's connections stay open."""
        if self._created is not None:
            self._created.close()
            self._created = None

    def _communicator(self) -> Communicator:
        if self._connect is not None:
            return self._connect()
        if self._created is None:
            self._created = Communicator(timeout_s=TIMEOUT_S)
        return self._created


def _initialised() -> bool:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return True
    launch = launcher_rank()
    if launch is not None:
        raise RuntimeError(
            f"expected torch.distributed to connect the {launch[1]} ranks that mpiexec, srun or Ray has started, of "
            f'which this is rank {launch[0]}: call torch.distributed.init_process_group("gloo", rank={launch[0]}, '
            f"world_size={launch[1]}) first, or set RANK=0 WORLD_SIZE=1 if each trains by itself"
        )
    return False
