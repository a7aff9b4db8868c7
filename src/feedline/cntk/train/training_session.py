"""`cntk.train.training_session`: the unit of frequencies."""

from __future__ import annotations

import enum
from typing import Any

from feedline.cntk._names import explain

__all__ = ["DataUnit"]


class DataUnit(enum.IntEnum):
    """What a frequency such as ``(2, DataUnit.sweep)`` counts."""

    sweep = 0
    sample = 1
    minibatch = 2


def __getattr__(name: str) -> Any:
    raise explain("cntk.train.training_session", name)
