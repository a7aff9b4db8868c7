"""Streams as Arrow columns, of types whose buffers are the arrays that a gather uses.

==========================  ====================================================
stream                      column
==========================  ====================================================
dense, shape ()             ``T``
dense, other shapes         ``FixedSizeList<T>[size]``, rows flattened
sparse                      ``LargeList<Struct<index: int32, value: T>>``
bytes, str                  ``LargeBinary``, ``LargeUtf8``
ragged                      ``LargeList<...>`` of the column above
==========================  ====================================================

Nothing is nullable. Bools are stored as ``uint8``, since Arrow packs bools into bits. The declaration of a stream is
stored in the metadata of its field under the key ``feedline``, and survives other Arrow-based formats.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.data import Stream, Value
from feedline.data.value import BytesValue, DenseValue, SparseValue
from feedline.errors import SchemaError
from feedline.feed.formats.store.batch import Buffers

METADATA_KEY = b"feedline"
_DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
_SPARSE_DTYPES = ("float32", "float64")
_STRING_DTYPES = ("bytes", "str")
_MAX_UNIT = 1 << 10


def stored_stream(name: str, stream: Stream) -> Stream:
    """Return ``stream`` as a store declares it: native byte order, no field.

    Raises:
        SchemaError: Arrow has no column for the dtype.
    """
    if stream.is_bytes:
        return Stream(dtype=stream.kind, defines_size=stream.defines_size)
    if stream.dtype.name not in _DTYPES:
        raise SchemaError(
            f"expected a dtype of {', '.join(_DTYPES)} for stream `{name}`, got {stream.dtype.name}; "
            f"convert it first, e.g. a complex number to two floats"
        )
    if stream.sparse and stream.dtype.name not in _SPARSE_DTYPES:
        raise SchemaError(f"expected float32 or float64 for sparse stream `{name}`, got {stream.dtype.name}")
    return replace(stream, dtype=stream.dtype.newbyteorder("="), field=None)


def describe(stream: Stream) -> dict[str, Any]:
    """Return a stream's declaration in JSON types."""
    return {
        "shape": list(stream.shape),
        "dtype": stream.dtype.name,
        "sparse": stream.sparse,
        "defines_size": stream.defines_size,
        **({"unit": stream.unit} if stream.unit is not None else {}),
    }


def parse(row: Any, strings: bool = True) -> Stream:
    """Return the stream of a description by `describe`.

    Args:
        row: the description.
        strings: whether streams of byte strings are allowed.

    Raises:
        ValueError: ``row`` is no description.
    """
    if not isinstance(row, dict):
        raise ValueError(f"expected an object that declares a stream, got {row!r}")
    shape, dtype = row.get("shape"), row.get("dtype")
    sparse, defines_size = row.get("sparse"), row.get("defines_size")
    if not isinstance(shape, list) or any(type(d) is not int or not 0 <= d < 2**31 for d in shape):
        raise ValueError(f"expected a list of dimensions as shape, got {shape!r}")
    if len(shape) > 32:
        raise ValueError(f"expected at most 32 dimensions, got {len(shape)}")
    dtypes: tuple[str, ...] = _SPARSE_DTYPES if sparse is True else _DTYPES
    if strings and not sparse and shape == []:
        dtypes += _STRING_DTYPES
    if dtype not in dtypes or type(sparse) is not bool or type(defines_size) is not bool:
        raise ValueError(f"expected a dtype and two flags, got {dtype!r}, {sparse!r}, {defines_size!r}")
    unit = row.get("unit")
    if unit is not None and (not isinstance(unit, str) or len(unit) > _MAX_UNIT or dtype in _STRING_DTYPES):
        raise ValueError(f"expected a unit of numbers, got {unit!r:.100}")
    stream = Stream(tuple(shape), dtype, sparse, defines_size=defines_size, unit=unit)
    if not sparse and stream.size * stream.dtype.itemsize >= 2**31:
        raise ValueError(f"expected a sample of less than 2 GiB, got shape {stream.shape}")
    return stream


def field(name: str, stream: Stream, ragged: bool) -> Any:
    """Return the Arrow field of a stream, with a list level for sequences if ``ragged``."""
    import pyarrow as pa

    if stream.is_bytes:
        element = pa.large_string() if stream.is_text else pa.large_binary()
    else:
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
    """Return a value as an Arrow array of type ``kind``. It shares the memory of the value if that is contiguous."""
    import pyarrow as pa

    def plain(arrow: Any, array: NDArray[Any]) -> Any:
        return pa.Array.from_buffers(arrow, len(array), [None, pa.py_buffer(np.ascontiguousarray(array))])

    inner = kind.value_type if ragged else kind
    n = value.num_samples
    if isinstance(value, SparseValue):
        entry = inner.value_type
        children = [plain(entry.field(0).type, value.indices), plain(entry.field(1).type, _as_stored(value.values))]
        entries = pa.Array.from_buffers(entry, len(value.indices), [None], children=children)
        indptr = pa.py_buffer(np.ascontiguousarray(value.indptr, np.int64))
        rows = pa.Array.from_buffers(inner, n, [None, indptr], children=[entries])
    elif isinstance(value, BytesValue):
        arrays = np.ascontiguousarray(value.bounds, np.int64), np.ascontiguousarray(value.data)
        rows = pa.Array.from_buffers(inner, n, [None, *map(pa.py_buffer, arrays)])
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


def decode(
    column: Any,
    stream: Stream,
    lengths: NDArray[np.int32] | None,
    ragged: bool,
    batch: Buffers,
    *,
    start: int = 0,
    stop: int | None = None,
) -> Value:
    """Return the value that `encode` encoded, or its sequences ``start:stop``, over the same bytes.

    Offsets are checked completely: O(sequences), and O(samples) for sparse streams. Offsets of a part are copied, and
    no others are read. Sparse indices, bytes of bools and texts are not checked here, but when they are copied.

    Args:
        column: column of the batch.
        stream: declaration of the column.
        lengths: samples of each sequence, possibly a view of a mapping, or None if each has one.
        ragged: whether the column has a list level for sequences.
        batch: batch of the column.
        start, stop: range of sequences, by default all.

    Raises:
        ValueError: sizes and offsets contradict each other or ``lengths``.
        DataError: the file was truncated, or its disk fails.
    """
    buffers, inner = _buffers(column, stream, ragged)
    complete = stop is None
    first, last, offsets = start, len(column) if stop is None else stop, None
    if lengths is not None and not ragged:
        _compare_lengths(np.arange(last - first + 1, dtype=np.int64), lengths)
    if ragged:
        first, last, offsets = _bounds(batch, buffers[1], first, last, what="offsets", complete=complete)
        if lengths is not None:
            _compare_lengths(offsets, lengths)
    if not (stream.sparse or stream.is_bytes):
        return DenseValue(_dense(inner, stream, batch, first, last), offsets)
    what = "bounds of samples" if stream.is_bytes else "row bounds"
    low, high, indptr = _bounds(batch, inner[1], first, last, what=what, complete=complete)
    if stream.is_bytes:
        return BytesValue(indptr, batch.view(inner[2], _UINT8, high)[low:], offsets, text=stream.is_text)
    indices = batch.view(inner[4], np.dtype(np.int32), high)[low:]
    values = batch.view(inner[6], stream.dtype, high)[low:]
    return SparseValue(indptr, indices, values, stream.shape[0], offsets)


def _bounds(
    batch: Buffers, buffer: Any, first: int, last: int, *, what: str, complete: bool
) -> tuple[int, int, NDArray[np.int64]]:
    """Return begin and end of the items ``first:last``, and their bounds, as a view if ``complete``, else as a copy."""
    if complete:
        bounds = batch.bounds(buffer, last + 1)
        return 0, _native.bounds_end(bounds, what), bounds
    bounds = _native.copied(batch.view(buffer, _INT64, last + 1)[first:])
    low = int(bounds[0])
    if low < 0:
        raise ValueError(f"expected {what} from 0, got {low}")
    bounds -= low
    return low, low + _native.bounds_end(bounds, what), bounds


def bounds_of(column: Any, stream: Stream, ragged: bool) -> list[Any]:
    """Return the buffers of a column with the bounds of sequences and samples.

    Raises:
        ValueError: a buffer marks items as null.
    """
    buffers, inner = _buffers(column, stream, ragged)
    return ([buffers[1]] if ragged else []) + ([inner[1]] if stream.sparse or stream.is_bytes else [])


_INT64, _UINT8 = np.dtype(np.int64), np.dtype(np.uint8)


def _buffers(column: Any, stream: Stream, ragged: bool) -> tuple[list[Any], list[Any]]:
    """Return the buffers of a column, and the buffers below its list level for sequences.

    Raises:
        ValueError: a buffer marks items as null.
    """
    # Buffers come depth-first, and at each level the validity bitmap comes first.
    buffers = column.buffers()
    inner = buffers[2:] if ragged else buffers
    validity = [buffers[0], inner[0]]
    if stream.sparse:
        validity += [inner[2], inner[3], inner[5]]
    elif stream.shape:
        validity.append(inner[1])
    if any(bitmap is not None for bitmap in validity):
        raise ValueError("expected no nulls, got a column with nulls")
    return buffers, inner


def _dense(inner: list[Any], stream: Stream, batch: Buffers, first: int, last: int) -> NDArray[Any]:
    """Return the rows ``first:last``."""
    stored = np.dtype(np.uint8) if stream.dtype == np.bool_ else stream.dtype
    if not 0 <= first <= last:
        raise ValueError(f"expected ascending offsets, got {first} then {last}")
    data = inner[2] if stream.shape else inner[1]
    flat: NDArray[Any] = batch.view(data, stored, last * stream.size)[first * stream.size :]
    return flat.view(stream.dtype).reshape(last - first, *stream.shape)


def _compare_lengths(offsets: NDArray[np.int64], lengths: NDArray[np.int32]) -> None:
    i = _native.first_uneven(offsets, lengths)
    if i >= 0:
        (expected,), (a, b) = (_native.copied(array).tolist() for array in (lengths[i : i + 1], offsets[i : i + 2]))
        raise ValueError(f"expected {expected} samples in sequence {i} of those read, got {b - a}")
