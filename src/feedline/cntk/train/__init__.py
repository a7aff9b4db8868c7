"""`cntk.train`: what its modules offer, and `distributed`."""

from typing import Any

from feedline.cntk._names import explain
from feedline.cntk.train import distributed
from feedline.cntk.train.distributed import (
    Communicator,
    DistributedLearner,
    WorkerDescriptor,
    block_momentum_distributed_learner,
    data_parallel_distributed_learner,
    mpi_communicator,
)
from feedline.cntk.train.trainer import Trainer
from feedline.cntk.train.training_session import (
    CheckpointConfig,
    CrossValidationConfig,
    DataUnit,
    TestConfig,
    TrainingSession,
    minibatch_size_schedule,
    training_session,
)

__all__ = [
    "CheckpointConfig",
    "Communicator",
    "CrossValidationConfig",
    "DataUnit",
    "DistributedLearner",
    "TestConfig",
    "Trainer",
    "TrainingSession",
    "WorkerDescriptor",
    "block_momentum_distributed_learner",
    "data_parallel_distributed_learner",
    "distributed",
    "minibatch_size_schedule",
    "mpi_communicator",
    "training_session",
]


def __getattr__(name: str) -> Any:
    raise explain("cntk.train", name)
