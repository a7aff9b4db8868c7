"""`cntk.train`: what its modules offer, and `distributed`."""

from typing import Any

from feedline.cntk._names import explain
from feedline.cntk.train import distributed
from feedline.cntk.train import training_session as _sessions
from feedline.cntk.train.distributed import *
from feedline.cntk.train.trainer import Trainer
from feedline.cntk.train.training_session import *

__all__ = [*_sessions.__all__, *distributed.__all__, "Trainer", "distributed"]


def __getattr__(name: str) -> Any:
    raise explain("cntk.train", name)
