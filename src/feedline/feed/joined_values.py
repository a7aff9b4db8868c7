"""Copy, concatenate and split values, for formats that read or write in other units than chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline._native import recycled
from feedline.data import Value
from feedline.data.value import BytesValue, DenseValue, SparseValue
from feedline.data.windowed import WindowedRows


def copy_value(value: Value) -> Value:
    """Return a copy of a value in its own memory."""
    return map_arrays(value, lambda array: array.copy())


def map_arrays(value: Value, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Value:
    """Return a value with each of its arrays changed."""
    return _rebuilt(value, change, None if value.one_sample_each else change(value.offsets))


def in_sequences(value: Value, offsets: NDArray[np.int64] | None) -> Value:
    """Return a value over the same arrays with other offsets of sequences. None if each sample is one sequence."""
    if isinstance(value, WindowedRows):
        return value.in_sequences(offsets)
    return _rebuilt(value, lambda array: array, offsets)


def _rebuilt(value: Value, change: Callable[[NDArray[Any]], NDArray[Any]], offsets: NDArray[np.int64] | None) -> Value:
    if isinstance(value, SparseValue):
        arrays = change(value.indptr), change(value.indices), change(value.values)
        return SparseValue(*arrays, value.classes, offsets)
    if isinstance(value, BytesValue):
        return BytesValue(change(value.bounds), change(value.data), offsets, text=value.text)
    assert isinstance(value, DenseValue)
    return DenseValue(change(value.rows), offsets)


def join_values(values: list[Value]) -> Value:
    """Return one value with the sequences of all, ragged if any of them is."""
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
            recycled.concatenate([value.indices for value in parts]),
            recycled.concatenate([value.values for value in parts]),
            first.classes,
            offsets,
        )
    if isinstance(first, BytesValue):
        strings = [value for value in values if isinstance(value, BytesValue)]
        data = recycled.concatenate([value.data for value in strings])
        return BytesValue(_stitch([value.bounds for value in strings]), data, offsets, text=first.text)
    assert isinstance(first, DenseValue)
    return first.joined_with([value for value in values[1:] if isinstance(value, DenseValue)], offsets)


def _stitch(bounds: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(np.concatenate([np.diff(part) for part in bounds]))]).astype(np.int64)
