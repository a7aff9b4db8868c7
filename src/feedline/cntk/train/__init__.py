"""`cntk.train`: what its modules offer."""

from typing import Any

from feedline.cntk._names import explain
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
    "CrossValidationConfig",
    "DataUnit",
    "TestConfig",
    "Trainer",
    "TrainingSession",
    "minibatch_size_schedule",
    "training_session",
]


def __getattr__(name: str) -> Any:
    raise explain("cntk.train", name)
