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
from feedline.feed.formats.store.batch import Buffers

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


def decode(column: Any, stream: Stream, lengths: NDArray[np.int32] | None, ragged: bool, batch: Buffers) -> Value:
    """The value that `encode` encoded, over the same bytes.

    Offsets are checked whole: O(sequences), and O(samples) for sparse streams. What is parted by them is not: sparse
    indices, and bytes of bools, are checked where they are copied.

    Args:
        column: of the batch.
        stream: its declaration.
        lengths: samples of each sequence, perhaps a view of a map; None: one each.
        ragged: the column has a level for sequences.
        batch: what the column is one of.

    Raises:
        ValueError: sizes and offsets that contradict each other or ``lengths``.
        DataError: the file was cut, or its disk fails.
    """
    buffers, inner = _buffers(column, stream, ragged)
    rows, offsets = len(column), None
    if ragged:
        offsets = batch.bounds(buffers[1], rows + 1)
        rows = _native.bounds_end(offsets, "offsets")
        _compare_lengths(offsets, lengths)
    elif lengths is not None:
        _compare_lengths(np.arange(rows + 1, dtype=np.int64), lengths)
    if not stream.sparse:
        return DenseValue(_dense(inner, stream, batch, 0, rows), offsets)
    indptr = batch.bounds(inner[1], rows + 1)
    return SparseValue(indptr, *_sparse(inner, stream, batch, 0, _native.bounds_end(indptr, "row bounds")), offsets)


def decode_slice(
    column: Any,
    stream: Stream,
    lengths: NDArray[np.int32] | None,
    ragged: bool,
    batch: Buffers,
    start: int,
    stop: int,
) -> Value:
    """The sequences ``start:stop`` of what `decode` returns, reading and checking no more than their offsets.

    The value has offsets of its own; ``lengths`` are those of these sequences.

    Raises:
        ValueError, DataError: as `decode`.
    """
    buffers, inner = _buffers(column, stream, ragged)
    first, last, offsets = start, stop, None
    if ragged:
        offsets = _native.copied(batch.view(buffers[1], _INT64, len(column) + 1)[start : stop + 1])
        first, last = int(offsets[0]), int(offsets[-1])
        offsets -= first
    if lengths is not None:
        _compare_lengths(np.arange(stop - start + 1, dtype=np.int64) if offsets is None else offsets, lengths)
    if not stream.sparse:
        return DenseValue(_dense(inner, stream, batch, first, last), offsets)
    if first < 0:
        raise ValueError(f"expected offsets from 0, got {first}")
    indptr = _native.copied(batch.view(inner[1], _INT64, last + 1)[first:])
    low = int(indptr[0])
    indptr -= low
    high = low + _native.bounds_end(indptr, "row bounds")
    return SparseValue(indptr, *_sparse(inner, stream, batch, low, high), offsets)


_INT64 = np.dtype(np.int64)


def _buffers(column: Any, stream: Stream, ragged: bool) -> tuple[list[Any], list[Any]]:
    """The buffers of a column, and those below its level for sequences.

    Raises:
        ValueError: one of them says which items are null.
    """
    # They come in depth-first order, for each level its validity first.
    buffers = column.buffers()
    inner = buffers[2:] if ragged else buffers
    validity = [buffers[0], inner[0]]
    if stream.sparse:
        validity += [inner[2], inner[3], inner[5]]
    elif stream.shape:
        validity.append(inner[1])
    if any(bitmap is not None for bitmap in validity):
        raise ValueError("expected no nulls, got a column that has some")
    return buffers, inner


def _dense(inner: list[Any], stream: Stream, batch: Buffers, first: int, last: int) -> NDArray[Any]:
    """Rows ``first:last``."""
    stored = np.dtype(np.uint8) if stream.dtype == np.bool_ else stream.dtype
    if not 0 <= first <= last:
        raise ValueError(f"expected offsets that never fall, got {first} then {last}")
    flat: NDArray[Any] = batch.view(inner[2] if stream.shape else inner[1], stored, last * stream.size)[
        first * stream.size :
    ]
    return flat.view(stream.dtype).reshape(last - first, *stream.shape)


def _sparse(inner: list[Any], stream: Stream, batch: Buffers, low: int, high: int) -> tuple[Any, Any, int]:
    """Indices and values of the entries ``low:high``, and the number of classes."""
    if low < 0:
        raise ValueError(f"expected row bounds from 0, got {low}")
    indices = batch.view(inner[4], np.dtype(np.int32), high)[low:]
    return indices, batch.view(inner[6], stream.dtype, high)[low:], stream.shape[0]


def _compare_lengths(offsets: NDArray[np.int64], lengths: NDArray[np.int32] | None) -> None:
    i = -1 if lengths is None else _native.first_uneven(offsets, lengths)
    if lengths is not None and i >= 0:
        (wanted,), (a, b) = (_native.copied(array).tolist() for array in (lengths[i : i + 1], offsets[i : i + 2]))
        raise ValueError(f"expected {wanted} samples in sequence {i} of those read, got {b - a}")
