"""Values put together from pieces, for formats that read or write in other units than chunks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from feedline.data import Value
from feedline.data.value import DenseValue, SparseValue


def copied(value: Value) -> Value:
    """A value over memory of its own."""
    if isinstance(value, SparseValue):
        offsets = None if value.one_sample_each else value.offsets.copy()
        return SparseValue(value.indptr.copy(), value.indices.copy(), value.values.copy(), value.classes, offsets)
    assert isinstance(value, DenseValue)
    return DenseValue(value.rows.copy(), None if value.one_sample_each else value.offsets.copy())


def joined(values: list[Value]) -> Value:
    """One value with the sequences of all; ragged if any of them is."""
    if len(values) == 1:
        return values[0]
    offsets = None
    if not all(value.one_sample_each for value in values):
        offsets = _stitch([value.offsets for value in values])
    first = values[0]
    if isinstance(first, SparseValue):
        parts = [value for value in values if isinstance(value, SparseValue)]
        return SparseValue(
            _stitch([value.indptr for value in parts]),
            np.concatenate([value.indices for value in parts]),
            np.concatenate([value.values for value in parts]),
            first.classes,
            offsets,
        )
    return DenseValue(np.concatenate([value.rows for value in values if isinstance(value, DenseValue)]), offsets)


def _stitch(bounds: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(np.concatenate([np.diff(part) for part in bounds]))]).astype(np.int64)
