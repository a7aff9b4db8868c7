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

from feedline import _native
from feedline.data import Stream, Value
from feedline.data.value import DenseValue, SparseValue
from feedline.errors import SchemaError
from feedline.feed.formats.store.batch import Batch

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


def decode(column: Any, stream: Stream, lengths: NDArray[np.int32] | None, ragged: bool, batch: Batch) -> Value:
    """The value that `encode` encoded, over the same bytes.

    Offsets are checked whole: O(sequences), and O(samples) for sparse streams. What is parted by them is not: sparse
    indices, and bytes of bools, are checked where they are copied.

    Args:
        column: of the batch.
        stream: its declaration.
        lengths: samples of each sequence; None: one each.
        ragged: the column has a level for sequences.
        batch: what the column is one of.

    Raises:
        ValueError: sizes and offsets that contradict each other or ``lengths``.
        DataError: the file was cut, or its disk fails.
    """
    # Buffers come in depth-first order, for each level its validity first.
    buffers = column.buffers()
    validity = [0, *([2] if ragged else [])]
    at, rows = 0, len(column)
    offsets = None
    if ragged:
        offsets = batch.bounds(buffers[1], rows + 1)
        at, rows = 2, _native.bounds_end(offsets, "offsets")
        _compare_lengths(np.diff(_native.copied(offsets)), lengths)
    elif lengths is not None:
        _compare_lengths(np.ones(rows, np.int64), lengths)
    stored = np.dtype(np.uint8) if stream.dtype == np.bool_ else stream.dtype
    value: Value
    if stream.sparse:
        validity += [at + 2, at + 3, at + 5]
        indptr = batch.bounds(buffers[at + 1], rows + 1)
        entries = _native.bounds_end(indptr, "row bounds")
        indices = batch.view(buffers[at + 4], np.dtype(np.int32), entries)
        values = batch.view(buffers[at + 6], stored, entries)
        value = SparseValue(indptr, indices, values.view(stream.dtype), stream.shape[0], offsets)
    else:
        if stream.shape:
            validity.append(at + 1)
        data = buffers[at + 2] if stream.shape else buffers[at + 1]
        flat = batch.view(data, stored, rows * stream.size).view(stream.dtype)
        value = DenseValue(flat.reshape(rows, *stream.shape), offsets)
    if any(buffers[place] is not None for place in validity):
        raise ValueError("expected no nulls, got a column that has some")
    return value


def _compare_lengths(found: NDArray[np.int64], lengths: NDArray[np.int32] | None) -> None:
    if lengths is None or np.array_equal(found, lengths):
        return
    i = int(np.flatnonzero(found != lengths)[0])
    raise ValueError(f"expected {lengths[i]} samples in sequence {i} of the chunk, got {found[i]}")
