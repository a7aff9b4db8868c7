"""`cntk.train.distributed`: distributed learners and the communicator, over torch.distributed.

Workers are the processes that torchrun, mpiexec, srun, or another launcher that sets torchrun's variables has started.
Without a launcher there is one worker.
"""

from __future__ import annotations

import socket
from typing import NamedTuple

import torch

from feedline.cntk._names import absent_members, names_of
from feedline.cntk.learners import Learner
from feedline.collective.communicator import Communicator as Connections
from feedline.collective.rendezvous import under_launcher
from feedline.interop.launchers import launcher_rank
from feedline.train import block_momentum, data_parallel, quantized

__all__, __getattr__ = names_of(__name__)


@absent_members("cntk.train.distributed")
class WorkerDescriptor(NamedTuple):
    """A worker.

    Attributes:
        global_rank: rank of the worker, from 0.
        host_id: name of its machine.
    """

    global_rank: int
    host_id: str


@absent_members("cntk.train.distributed")
class Communicator:
    """The connection of the workers. See `mpi_communicator`."""

    _ranks: Connections | None = None

    def workers(self) -> list[WorkerDescriptor]:
        """Return all workers. A collective call."""
        hosts = _ranks().gather_bytes(socket.gethostname().encode())
        return [WorkerDescriptor(rank, host.decode()) for rank, host in enumerate(hosts)]

    def current_worker(self) -> WorkerDescriptor:
        """Return this worker."""
        return WorkerDescriptor(self.rank(), socket.gethostname())

    def barrier(self) -> None:
        """Wait until every worker has arrived.

        Raises:
            StoreError: a worker is missing. The error names it.
        """
        _ranks().barrier()

    def is_main(self) -> bool:
        """Return whether this is worker 0."""
        return self.rank() == 0

    @staticmethod
    def finalize() -> None:
        """Close the connections. Every worker calls it at the end of a script."""
        if Communicator._ranks is not None:
            Communicator._ranks.close()
            Communicator._ranks = None
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    @staticmethod
    def num_workers() -> int:
        """Return the number of workers."""
        return _ranks().count

    @staticmethod
    def rank() -> int:
        """Return the rank of this worker, from 0."""
        return _ranks().rank


@absent_members("cntk.train.distributed")
class DistributedLearner(Learner):
    """A learner of several workers, each of which has a learner over equal parameters."""

    def __init__(self, learner: Learner) -> None:
        super().__init__(learner.modern, learner._size, learner._momentum, learner._reports)

    def communicator(self) -> Communicator:
        """Return the communicator of the workers."""
        return Communicator()

    @property
    def total_number_of_samples_seen(self) -> int:  # type: ignore[override]  # a method of plain learners, as in CNTK
        """Number of samples that all workers have learned from."""
        return self.modern.samples


def data_parallel_distributed_learner(
    learner: Learner,
    distributed_after: int = 0,
    num_quantization_bits: int = 32,
    use_async_buffered_parameter_update: bool = False,
) -> DistributedLearner:
    """Let all workers train on one minibatch, of which each has a part.

    Args:
        learner: learner to distribute.
        distributed_after: number of samples until which every worker trains on whole minibatches.
        num_quantization_bits: bits of a gradient's element when sent: 1 to 16, or 32 without quantization.
        use_async_buffered_parameter_update: not supported.

    Raises:
        RuntimeError: asynchronous updates.
        ValueError: another number of bits.
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
    """Let workers train separately, and agree once a block.

    Args:
        learner: learner to distribute.
        block_size: samples of all workers between two agreements.
        block_momentum_as_time_constant: time constant in samples of all workers. None means that it is derived from the
            block size.
        use_nestrov_momentum: whether to use Nesterov momentum.
        reset_sgd_momentum_after_aggregation: whether to reset learners' states after each block.
        block_learning_rate: factor of the change in a block.
        distributed_after: number of samples until which every worker trains on whole minibatches.

    Raises:
        ValueError: a block of fewer samples than workers, or another number out of its range.
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
    """Return the communicator of the workers, which uses torch.distributed instead of MPI."""
    return Communicator()


def _begin() -> None:
    if not torch.distributed.is_initialized():
        if under_launcher():
            rank, count = launcher_rank() or (-1, -1)  # of torchrun's variables
            torch.distributed.init_process_group("gloo", rank=rank, world_size=count)
        else:
            torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)


def _ranks() -> Connections:
    if Communicator._ranks is None:
        _begin()
        Communicator._ranks = Connections()
    return Communicator._ranks
