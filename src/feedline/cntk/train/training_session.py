"""`cntk.train.training_session`: the unit of frequencies."""

from __future__ import annotations

import enum

__all__ = ["DataUnit"]


class DataUnit(enum.IntEnum):
    """What a frequency such as ``(2, DataUnit.sweep)`` counts."""

    sweep = 0
    sample = 1
    minibatch = 2
