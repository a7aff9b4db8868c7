"""A stream as an Arrow column, chosen so that Arrow's buffers are the arrays that a gather takes.

==========================  ====================================================
stream                      column
==========================  ====================================================
dense, shape ()             ``T``
dense, other shapes         ``FixedSizeList<T>[size]``, rows flattened
sparse                      ``LargeList<Struct<index: int32, value: T>>``
with sequences              ``LargeList<...>`` of the column above
==========================  ====================================================

Nothing is nullable. Bools are stored as ``uint8``, since Arrow packs bools into bits. The declaration of a
stream stands in the metadata of its field under the key ``feedline``, and survives other Arrow-based formats.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.data import Stream, Value
from feedline.data.value import DenseValue, SparseValue
from feedline.errors import SchemaError

METADATA_KEY = b"feedline"
_DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
_SPARSE_DTYPES = ("float32", "float64")


def stored_stream(name: str, stream: Stream) -> Stream:
    """``stream`` as a store declares it: native byte order, no field.

    Raises:
        SchemaError: a dtype that Arrow has no column for.
    """
    if stream.dtype.name not in _DTYPES:
        raise SchemaError(
            f"expected a dtype of {', '.join(_DTYPES)} for stream `{name}`, got {stream.dtype.name}; "
            f"convert it first, e.g. a complex number to two floats"
        )
    if stream.sparse and stream.dtype.name not in _SPARSE_DTYPES:
        raise SchemaError(f"expected float32 or float64 for sparse stream `{name}`, got {stream.dtype.name}")
    return Stream(stream.shape, stream.dtype.newbyteorder("="), stream.sparse, defines_size=stream.defines_size)


def describe(stream: Stream) -> dict[str, Any]:
    """A stream's declaration in JSON types."""
    return {
        "shape": list(stream.shape),
        "dtype": stream.dtype.name,
        "sparse": stream.sparse,
        "defines_size": stream.defines_size,
    }


def parse(row: Any) -> Stream:
    """The stream that `describe` described.

    Raises:
        ValueError: anything else than what `describe` writes.
    """
    if not isinstance(row, dict):
        raise ValueError(f"expected an object that declares a stream, got {row!r}")
    shape, dtype = row.get("shape"), row.get("dtype")
    sparse, defines_size = row.get("sparse"), row.get("defines_size")
    if not isinstance(shape, list) or any(type(d) is not int or not 0 <= d < 2**31 for d in shape):
        raise ValueError(f"expected a list of dimensions as shape, got {shape!r}")
    if len(shape) > 32:
        raise ValueError(f"expected at most 32 dimensions, got {len(shape)}")
    if (
        dtype not in (_SPARSE_DTYPES if sparse is True else _DTYPES)
        or type(sparse) is not bool
        or type(defines_size) is not bool
    ):
        raise ValueError(f"expected a dtype and two flags, got {dtype!r}, {sparse!r}, {defines_size!r}")
    stream = Stream(tuple(shape), dtype, sparse, defines_size=defines_size)
    if not sparse and stream.size * stream.dtype.itemsize >= 2**31:
        raise ValueError(f"expected a sample of less than 2 GiB, got shape {stream.shape}")
    return stream


def field(name: str, stream: Stream, ragged: bool) -> Any:
    """The Arrow field of a stream; ``ragged`` gives it a level for sequences."""
    import pyarrow as pa

    element = pa.uint8() if stream.dtype == np.bool_ else pa.from_numpy_dtype(stream.dtype)
    if stream.sparse:
        entry = pa.struct([pa.field("index", pa.int32(), False), pa.field("value", element, False)])
        kind = pa.large_list(pa.field("item", entry, False))
    elif stream.shape:
        kind = pa.list_(pa.field("item", element, False), stream.size)
    else:
        kind = element
    if ragged:
        kind = pa.large_list(pa.field("item", kind, False))
    return pa.field(name, kind, False, metadata={METADATA_KEY: json.dumps(describe(stream)).encode()})


def encode(value: Value, kind: Any, ragged: bool) -> Any:
    """A value as an Arrow array of type ``kind`` over the value's memory, where that is contiguous."""
    import pyarrow as pa

    def plain(arrow: Any, array: NDArray[Any]) -> Any:
        return pa.Array.from_buffers(arrow, len(array), [None, pa.py_buffer(np.ascontiguousarray(array))])

    inner = kind.value_type if ragged else kind
    n = value.num_samples
    if isinstance(value, SparseValue):
        entry = inner.value_type
        children = [
            plain(entry.field(0).type, value.indices),
            plain(entry.field(1).type, _as_stored(value.values)),
        ]
        entries = pa.Array.from_buffers(entry, len(value.indices), [None], children=children)
        indptr = pa.py_buffer(np.ascontiguousarray(value.indptr, np.int64))
        rows = pa.Array.from_buffers(inner, n, [None, indptr], children=[entries])
    else:
        assert isinstance(value, DenseValue)
        flat = np.ascontiguousarray(_as_stored(value.rows)).reshape(-1)
        if value.shape:
            rows = pa.Array.from_buffers(inner, n, [None], children=[plain(inner.value_type, flat)])
        else:
            rows = plain(inner, flat)
    if not ragged:
        return rows
    offsets = pa.py_buffer(np.ascontiguousarray(value.offsets, np.int64))
    return pa.Array.from_buffers(kind, value.num_sequences, [None, offsets], children=[rows])


def _as_stored(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype == np.bool_:
        return array.view(np.uint8)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


class Region:
    """Bytes of a map that a column must lie in.

    Args:
        data: Arrow buffer over these bytes of the map.
    """

    def __init__(self, data: Any) -> None:
        self._start, self._stop = data.address, data.address + data.size

    def view(self, buffer: Any, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
        """An array of ``count`` elements over an Arrow buffer.

        Raises:
            ValueError: the buffer is too small for that, misaligned, or not in the region (compressed data).
        """
        if count == 0:
            return np.empty(0, dtype)
        size = 0 if buffer is None else buffer.size
        if count < 0 or count * dtype.itemsize > size:
            raise ValueError(f"expected {count} elements of {dtype.name} in a buffer of {size} bytes")
        if not (self._start <= buffer.address and buffer.address + size <= self._stop):
            raise ValueError("expected buffers as they are in the file, got compressed or foreign ones")
        if buffer.address % dtype.itemsize:
            raise ValueError(f"expected {dtype.name} at a multiple of {dtype.itemsize} bytes")
        return np.frombuffer(buffer, dtype, count)


def decode(column: Any, stream: Stream, ragged: bool, region: Region) -> Value:
    """The value that `encode` encoded, over the same bytes.

    Offsets are checked whole: O(sequences), and O(samples) for sparse streams.

    Raises:
        ValueError: sizes and offsets that contradict each other.
    """
    if column.null_count:
        raise ValueError(f"expected no nulls, got {column.null_count}")
    # Buffers come in depth-first order, for each level its validity first.
    buffers = column.buffers()
    at, rows = 0, len(column)
    offsets = None
    if ragged:
        offsets = _bounds(region.view(buffers[1], np.dtype(np.int64), rows + 1), "offsets")
        at, rows = 2, int(offsets[-1])
    stored = np.dtype(np.uint8) if stream.dtype == np.bool_ else stream.dtype
    if stream.sparse:
        indptr = _bounds(region.view(buffers[at + 1], np.dtype(np.int64), rows + 1), "row bounds")
        entries = int(indptr[-1])
        indices = region.view(buffers[at + 4], np.dtype(np.int32), entries)
        values = region.view(buffers[at + 6], stored, entries)
        return SparseValue(indptr, indices, values.view(stream.dtype), stream.shape[0], offsets)
    data = buffers[at + 2] if stream.shape else buffers[at + 1]
    flat = region.view(data, stored, rows * stream.size).view(stream.dtype)
    return DenseValue(flat.reshape(rows, *stream.shape), offsets)


def _bounds(bounds: NDArray[np.int64], what: str) -> NDArray[np.int64]:
    if bounds[0] != 0:
        raise ValueError(f"expected {what} from 0, got {bounds[0]}")
    falls = np.flatnonzero(bounds[1:] < bounds[:-1])
    if len(falls):
        i = int(falls[0])
        raise ValueError(f"expected {what} that never fall, got {bounds[i]} before {bounds[i + 1]} at entry {i}")
    return bounds
