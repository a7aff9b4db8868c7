"""`cntk.train.distributed`: learners of several workers, and the communicator, on torch.distributed.

Workers are the processes that torchrun, or another launcher that sets its variables, has started; without one there is
one worker.
"""

from __future__ import annotations

import socket
from typing import Any, NamedTuple

import torch

from feedline.cntk._names import explain
from feedline.cntk.learners import Learner
from feedline.collective.communicator import Communicator as Connections
from feedline.collective.rendezvous import under_launcher
from feedline.train import block_momentum, data_parallel, quantized

__all__ = [
    "Communicator",
    "DistributedLearner",
    "WorkerDescriptor",
    "block_momentum_distributed_learner",
    "data_parallel_distributed_learner",
    "mpi_communicator",
]


class WorkerDescriptor(NamedTuple):
    """A worker.

    Attributes:
        global_rank: its number, from 0.
        host_id: name of its machine.
    """

    global_rank: int
    host_id: str


class Communicator:
    """Connects the workers; see `mpi_communicator`."""

    _ranks: Connections | None = None

    def workers(self) -> list[WorkerDescriptor]:
        """All of them; every worker has to ask."""
        hosts = _ranks().gather_bytes(socket.gethostname().encode())
        return [WorkerDescriptor(rank, host.decode()) for rank, host in enumerate(hosts)]

    def current_worker(self) -> WorkerDescriptor:
        """This one."""
        return WorkerDescriptor(self.rank(), socket.gethostname())

    def barrier(self) -> None:
        """Wait until every worker has come here.

        Raises:
            StoreError: one is missing; names it.
        """
        _ranks().barrier()

    def is_main(self) -> bool:
        """Whether this is worker 0."""
        return self.rank() == 0

    @staticmethod
    def finalize() -> None:
        """Let go of the connections; at the end of a script, by every worker."""
        if Communicator._ranks is not None:
            Communicator._ranks.close()
            Communicator._ranks = None
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    @staticmethod
    def num_workers() -> int:
        """How many there are."""
        return _ranks().count

    @staticmethod
    def rank() -> int:
        """Number of this one, from 0."""
        return _ranks().rank


class DistributedLearner(Learner):
    """A learner that several workers have; all of them have one over equal parameters."""

    def __init__(self, learner: Learner) -> None:
        super().__init__(learner.modern, learner._size, learner._momentum, learner._reports)

    def communicator(self) -> Communicator:
        """Connects the workers."""
        return Communicator()

    @property
    def total_number_of_samples_seen(self) -> int:  # type: ignore[override]  # a method of plain learners, as in CNTK
        """Samples that all workers have learned from."""
        return self.modern.samples


def data_parallel_distributed_learner(
    learner: Learner,
    distributed_after: int = 0,
    num_quantization_bits: int = 32,
    use_async_buffered_parameter_update: bool = False,
) -> DistributedLearner:
    """Let all workers learn from one minibatch, of which each has a part.

    Args:
        learner: what updates.
        distributed_after: samples until which every worker learns from all of each minibatch.
        num_quantization_bits: of a gradient's element on its way; 1 to 16, or 32: as it is.
        use_async_buffered_parameter_update: not there.

    Raises:
        RuntimeError: asynchronous updates.
        ValueError: other bits.
    """
    if use_async_buffered_parameter_update:
        raise RuntimeError("expected no asynchronous updates: CNTK 2.7 refuses them, too")
    _begin()
    if num_quantization_bits == 32:
        data_parallel(learner.modern, distributed_after=distributed_after)
    else:
        quantized(learner.modern, num_quantization_bits, distributed_after=distributed_after)
    return DistributedLearner(learner)


def block_momentum_distributed_learner(
    learner: Learner,
    block_size: int,
    block_momentum_as_time_constant: float | None = None,
    use_nestrov_momentum: bool = True,
    reset_sgd_momentum_after_aggregation: bool = True,
    block_learning_rate: float = 1.0,
    distributed_after: int = 0,
) -> DistributedLearner:
    """Let each worker learn by itself, and all agree once a block.

    Args:
        learner: what updates between.
        block_size: samples of all workers between two agreements.
        block_momentum_as_time_constant: in samples of all workers; None: follows from the block.
        use_nestrov_momentum: whether the momentum looks ahead.
        reset_sgd_momentum_after_aggregation: whether learners' states begin anew behind each block.
        block_learning_rate: factor on what was learned in a block.
        distributed_after: samples until which every worker learns from all of each minibatch.

    Raises:
        ValueError: a block with less than a sample for each worker, or another number out of its range.
    """
    _begin()
    if block_size // _ranks().count == 0:
        raise ValueError("Sync period is too small.")
    block_momentum(
        learner.modern,
        block_size,
        time_constant=block_momentum_as_time_constant,
        nesterov=use_nestrov_momentum,
        reset=reset_sgd_momentum_after_aggregation,
        learning_rate=block_learning_rate,
        distributed_after=distributed_after,
    )
    return DistributedLearner(learner)


def mpi_communicator() -> Communicator:
    """What connects the workers; not MPI, but torch.distributed."""
    return Communicator()


def _begin() -> None:
    if not torch.distributed.is_initialized():
        if under_launcher():
            torch.distributed.init_process_group("gloo")
        else:
            torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)


def _ranks() -> Connections:
    if Communicator._ranks is None:
        _begin()
        Communicator._ranks = Connections()
    return Communicator._ranks


def __getattr__(name: str) -> Any:
    raise explain("cntk.train.distributed", name)
