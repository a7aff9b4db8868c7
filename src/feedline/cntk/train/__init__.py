"""`cntk.train`: what its modules offer."""

from typing import Any

from feedline.cntk._names import explain
from feedline.cntk.train.training_session import DataUnit

__all__ = ["DataUnit"]


def __getattr__(name: str) -> Any:
    raise explain("cntk.train", name)
