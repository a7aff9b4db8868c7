"""Values in shared memory: written by one process, read in place by others.

The memory begins with a table of int64, two numbers for each array of the schema in order: its offset, -1 if the value
has no such array, and its length. The arrays follow. Types and shapes are those of the schema, which both sides know.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.data import Schema, Stream, Value
from feedline.data.chunk import makers, values_of
from feedline.data.value import as_arrays
from feedline.feed.workers.memory import ALIGNMENT

Arrays = list[NDArray[Any] | None]


class _ArrayKind(NamedTuple):
    """Type of an array, and its shape after the first axis."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()


_INT64, _INT32, _UINT8 = (_ArrayKind(np.dtype(name)) for name in ("int64", "int32", "uint8"))


class ValueMemory:
    """Writes and reads the values of a schema.

    Args:
        schema: their streams.
    """

    def __init__(self, schema: Schema) -> None:
        self._makers = makers(schema)
        self._kinds = [_kinds_of(stream) for stream in schema.values()]
        self._table_bytes = 16 * sum(map(len, self._kinds))

    def arrays(self, values: Mapping[str, Value]) -> Arrays | None:
        """Return the arrays of ``values``, or None if some are not as the schema says, such as tensors on a device."""
        arrays: Arrays = []
        for (name, _), kinds in zip(self._makers, self._kinds, strict=True):
            for array, kind in zip(as_arrays(values[name]), kinds, strict=True):
                if array is not None and not (
                    isinstance(array, np.ndarray) and array.dtype == kind.dtype and array.shape[1:] == kind.shape
                ):
                    return None
                arrays.append(array)
        return arrays

    def size(self, arrays: Arrays) -> int:
        """Return the bytes of memory that arrays take."""
        return self._layout(arrays)[1]

    def write(self, arrays: Arrays, memory: memoryview) -> None:
        """Copy arrays into memory of at least their `size`."""
        table, _ = self._layout(arrays)
        np.ndarray(table.shape, np.int64, memory)[:] = table
        for array, (offset, _) in zip(arrays, table.tolist(), strict=True):
            if array is not None and array.size:
                np.copyto(np.ndarray(array.shape, array.dtype, memory, offset), array)

    def read(self, memory: memoryview) -> dict[str, Value]:
        """Return the values in ``memory``, as views of it.

        Raises:
            TypeError, ValueError: the memory is too small for what its table says.
        """
        entries = iter(np.ndarray((self._table_bytes // 16, 2), np.int64, memory).tolist())
        arrays = []
        for kinds in self._kinds:
            parts = []
            for kind in kinds:
                offset, length = next(entries)
                parts.append(None if offset < 0 else np.ndarray((length, *kind.shape), kind.dtype, memory, offset))
            arrays.append(tuple(parts))
        return values_of(self._makers, arrays)

    def _layout(self, arrays: Arrays) -> tuple[NDArray[np.int64], int]:
        """Return the table, and the bytes of all."""
        end, table = _aligned(self._table_bytes), []
        for array in arrays:
            table.append((-1, 0) if array is None else (end, len(array)))
            end += 0 if array is None else _aligned(array.itemsize * math.prod(array.shape))
        return np.array(table, np.int64), end


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _kinds_of(stream: Stream) -> list[_ArrayKind]:
    """Return the kinds of the arrays of a stream's values, in the order of `as_arrays`."""
    if stream.is_bytes:
        return [_INT64, _UINT8, _INT64]
    if stream.sparse:
        return [_INT64, _INT32, _ArrayKind(stream.dtype), _INT64]
    return [_ArrayKind(stream.dtype, stream.shape), _INT64]
