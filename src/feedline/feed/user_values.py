"""Convert users' data to values: arrays, matrices and lists, checked against the stream's declaration.

Data that fits is not copied. Numbers are converted to the declared dtype if only precision can be lost. Anything else
that does not fit is a `SchemaError` that names sequence and stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.data import Schema, Stream, Value
from feedline.data.value import unmasked
from feedline.errors import SchemaError
from feedline.feed.byte_strings import strings


def convert_values(schema: Schema, data: Mapping[str, Any], where: str) -> dict[str, Value]:
    """Return one value per stream of ``schema``.

    Args:
        schema: the declared streams.
        data: data by stream name, see `convert_value`.
        where: source of the data, for errors.

        Raises:
            SchemaError: a stream is missing, unknown or not as declared, or streams disagree on the number of
                sequences.
    """
    if not isinstance(data, Mapping):
        raise SchemaError(f"expected a mapping from stream name to data from {where}, got {type(data).__name__}")
    if set(data) != set(schema):
        raise SchemaError(f"expected the streams {', '.join(schema)} from {where}, got {', '.join(data) or 'none'}")
    values = {name: convert_value(name, stream, data[name], where) for name, stream in schema.items()}
    counts = {name: value.num_sequences for name, value in values.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"`{name}` has {count}" for name, count in counts.items())
        raise SchemaError(f"expected the same number of sequences in all streams from {where}, got: {listed}")
    return values


def convert_value(name: str, stream: Stream, data: Any, where: str) -> Value:
    """Return the data of one stream as a value.

    Args:
        name: name of the stream.
        stream: its declaration.
        data: an array ``(N, *shape)`` or SciPy sparse matrix ``(N, size)`` of N sequences of one sample, a list with an
            array ``(length, *shape)`` or sparse matrix ``(length, size)`` per sequence, or a `Value`. For byte strings:
            a list, NumPy array or Arrow array with one per sequence, or a list of these.
        where: source of the data, for errors.
    """
    try:
        value = _value(stream, data)
        value.check(name, stream)
    except (TypeError, ValueError, RuntimeError, SchemaError) as error:  # RuntimeError: a tensor that requires grad
        raise SchemaError(f"{error} (stream `{name}` from {where})") from error
    return value


def _value(stream: Stream, data: Any) -> Value:
    if isinstance(data, Value):
        return data
    if stream.is_bytes:
        return strings(data, stream.is_text)
    if hasattr(data, "tocsr"):
        return Value.from_scipy(_cast(data.tocsr(), stream.dtype))
    if not isinstance(data, (list, tuple)):
        return Value.from_dense(np.ascontiguousarray(_cast(unmasked(data), stream.dtype)))
    if len(data) == 0:
        return Value.empty(stream)
    if hasattr(data[0], "tocsr"):
        return Value.from_sequences([_cast(matrix.tocsr(), stream.dtype) for matrix in data], stream.dtype)
    arrays = [_cast(unmasked(item), stream.dtype) for item in data]
    if all(array.ndim == 0 for array in arrays):
        return Value.from_dense(np.array(arrays, stream.dtype))
    for i, array in enumerate(arrays):
        if array.shape[1:] != stream.shape or array.ndim == 0:
            shape = ", ".join(["length", *map(str, stream.shape)])
            raise ValueError(f"expected an array ({shape}) for every sequence, got {array.shape} for sequence {i}")
    return Value.from_sequences(arrays)


def _cast(data: Any, dtype: np.dtype[Any]) -> Any:
    """Return ``data`` (an array or a CSR matrix) in ``dtype``. Floats do not become integers, and integers must fit."""
    if data.dtype == dtype:
        return data
    if dtype.kind in "iu" and data.dtype.kind in "iu":
        _check_range(data.data if hasattr(data, "tocsr") else data, dtype)
    elif not np.can_cast(data.dtype, dtype, "same_kind"):
        raise TypeError(f"expected numbers that can become {dtype.name}, got {data.dtype.name}")
    return data.astype(dtype)


def _check_range(numbers: NDArray[Any], dtype: np.dtype[Any]) -> None:
    if numbers.size:
        low, high, limits = int(numbers.min()), int(numbers.max()), np.iinfo(dtype)
        if low < limits.min or high > limits.max:
            raise ValueError(f"expected {limits.min} to {limits.max} for {dtype.name}, got {low} to {high}")
