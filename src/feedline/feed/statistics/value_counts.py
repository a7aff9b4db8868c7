"""How many distinct integers or texts a stream has, and which are the most frequent."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.data.value import BytesValue

CAPACITY = 1 << 15
"""Values that are kept of streams with twice as many or more."""

Present = NDArray[np.uint8] | None


def value_table(*, texts: bool) -> _native.ValueTable:
    """Return an empty table of counts."""
    return _native.ValueTable(texts, CAPACITY)


def add_texts(table: _native.ValueTable, value: BytesValue, present: Present) -> None:
    """Count byte strings."""
    table.add_texts(value.bounds, np.ascontiguousarray(value.data), present)


def distinct_values(table: _native.ValueTable) -> tuple[int, float]:
    """Return the number of distinct values, and its standard error as a part of it: 0 if it is exact."""
    if not table.error:
        return len(table), 0.0
    registers = np.frombuffer(table.registers, np.uint8).astype(np.float64)
    size = len(registers)
    bias = 0.7213 / (1 + 1.079 / size)  # Flajolet et al., 2007
    return round(bias * size * size / float(np.exp2(-registers).sum())), 1.04 / math.sqrt(size)
