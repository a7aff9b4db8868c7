"""Convert users' and Arrow's byte strings and texts to values.

Arrow's arrays keep their bytes: ``large_binary`` and ``large_string`` are used as they are, ``binary`` and ``string``
get offsets of 8 bytes. Views, dictionaries and Python's lists are packed into one buffer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.data.value import BytesValue, strings_from_list
from feedline.feed.joined_values import join_values


class TooLargeError(Exception):
    """A dictionary decodes to more bytes than it may. The argument is their number."""


_CONTAINERS = "expected a list, a NumPy array of dtype S, U or object, or an Arrow array of bytes or str"


def strings(data: Any, text: bool) -> BytesValue:
    """Return data of a user as a value of byte strings, one sample per sequence or a list of samples per sequence.

    Raises:
        TypeError: ``data`` is something else, or has texts in place of bytes, or the other way round.
        ValueError: ``data`` has a null, or a text that UTF-8 cannot represent.
    """
    if is_arrow(data):
        value = whole_arrow(data)
    elif isinstance(data, np.ndarray) and data.dtype.kind in "SUO":
        value = from_array(data)
    elif isinstance(data, (list, tuple)):
        return strings_from_list(data, text)
    else:
        raise TypeError(f"{_CONTAINERS}, got {getattr(data, 'dtype', type(data).__name__)}")
    if value.text != text and value.num_samples:
        raise TypeError(f"expected {'str' if text else 'bytes'} samples, got {value.kind}")
    return BytesValue(value.bounds, value.data, value._offsets, text=text)


def is_arrow(data: Any) -> bool:
    """Return whether ``data`` is an Arrow array of byte strings, without importing pyarrow."""
    return type(data).__module__.partition(".")[0] == "pyarrow" and kind_of(data.type) is not None


def whole_arrow(data: Any) -> BytesValue:
    """Return an Arrow array of byte strings, chunked or not, as a value.

    Raises:
        ValueError: it has a null.
    """
    arrays = getattr(data, "chunks", [data])
    if not arrays:
        return strings_from_list([], kind_of(data.type) == "str")
    nulls = np.flatnonzero(np.concatenate([nulls_of(array) for array in arrays]))
    if len(nulls):
        raise ValueError(f"expected no null, got one at index {nulls[0]}; drop_null() or fill_null(...) removes it")
    value = join_values([from_arrow(array) for array in arrays])
    assert isinstance(value, BytesValue)
    return value


def nulls_of(array: Any) -> NDArray[np.bool_]:
    """Return a mask of an Arrow array's nulls. An index of a null in its dictionary is a null, too."""
    nulls: NDArray[np.bool_] = np.zeros(len(array), np.bool_)
    if array.null_count:
        nulls = _null_flags(array)
    entries = getattr(array, "dictionary", None)
    if entries is not None and entries.null_count:
        nulls = nulls | entries.is_null().take(array.indices).fill_null(True).to_numpy(zero_copy_only=False)
    return nulls


def _null_flags(array: Any) -> NDArray[np.bool_]:
    """Return a mask of the nulls of an Arrow array that has some: several times as fast as its ``is_null``."""
    validity = array.buffers()[0]
    flags: NDArray[np.bool_]
    if validity is None:  # of the type null
        flags = array.is_null().to_numpy(zero_copy_only=False)
        return flags
    begin, first = divmod(array.offset, 8)
    count = first + len(array)
    bits = np.frombuffer(validity, np.uint8)[begin : begin + (count + 7) // 8]
    flags = np.unpackbits(~bits, bitorder="little", count=count)[first:].view(np.bool_)
    return flags


def kind_of(arrow: Any) -> str | None:
    """Return ``"bytes"`` or ``"str"`` for an Arrow type whose arrays are byte strings, else None."""
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(arrow):
        return kind_of(arrow.value_type)
    if types.is_string(arrow) or types.is_large_string(arrow) or types.is_string_view(arrow):
        return "str"
    if types.is_binary(arrow) or types.is_large_binary(arrow) or types.is_binary_view(arrow):
        return "bytes"
    return "bytes" if types.is_fixed_size_binary(arrow) else None


def from_arrow(array: Any, memory_bytes: int | None = None) -> BytesValue:
    """Return an Arrow array of byte strings as a value. The bytes of a null are undefined.

    Args:
        array: the array.
        memory_bytes: bytes that decoding a dictionary may take. None: any number.

    Raises:
        pyarrow.ArrowException: a dictionary's index is out of range.
        TooLargeError: decoding it takes more than ``memory_bytes``.
    """
    import pyarrow as pa

    kind, text = array.type, kind_of(array.type) == "str"
    wide = pa.large_string() if text else pa.large_binary()
    if pa.types.is_dictionary(kind):
        # Widened before it is decoded: a small dictionary may decode to 2 GiB of text.
        entries = array.dictionary.cast(wide)
        if memory_bytes is not None and len(array):
            total = _take_bytes(from_arrow(entries).sizes, array.indices)
            if total > memory_bytes:
                raise TooLargeError(total)
        array = entries.take(array.indices)
    elif pa.types.is_fixed_size_binary(kind) or pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        array = array.cast(wide)
    narrow = pa.types.is_string(array.type) or pa.types.is_binary(array.type)
    if len(array) == 0:
        return BytesValue(np.zeros(1, np.int64), np.empty(0, np.uint8), None, text=text)
    _, offsets, data = array.buffers()
    ends: NDArray[Any] = np.frombuffer(offsets, np.int32 if narrow else np.int64)
    ends = ends[array.offset : array.offset + len(array) + 1]
    first, last = int(ends[0]), int(ends[-1])
    flat = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)[first:last]
    bounds = ends if not narrow and first == 0 else ends.astype(np.int64) - first
    return BytesValue(bounds, flat, None, text=text)


def _take_bytes(sizes: NDArray[np.int64], indices: Any) -> int:
    counts = np.bincount(indices.drop_null().to_numpy().astype(np.int64), minlength=len(sizes))
    # As floats: a small dictionary may claim to decode to more than 2^63 bytes.
    return int((counts[: len(sizes)].astype(np.float64) * sizes).sum())


def from_array(array: NDArray[Any]) -> BytesValue:
    """Return a value over a NumPy array (N,) of dtype S, U or object, one sample per sequence.

    Bytes of a fixed width are copied without the NULs at their end, which NumPy cannot distinguish from padding.

    Raises:
        TypeError, ValueError: as `Value.from_bytes`, or another number of dimensions.
    """
    if array.ndim != 1:
        raise ValueError(f"expected one sample per sequence, an array (N,) of {array.dtype}, got shape {array.shape}")
    if array.dtype.kind != "S" or array.dtype.itemsize == 0:
        value = strings_from_list(array.tolist())
        # An empty array of texts has no sample that shows its kind.
        return BytesValue(value.bounds, value.data, None, text=value.text or array.dtype.kind == "U")
    rows = np.ascontiguousarray(array).view(np.uint8).reshape(len(array), array.dtype.itemsize)
    sizes = array.dtype.itemsize - np.argmax(rows[:, ::-1] != 0, axis=1)
    sizes[~rows.any(axis=1)] = 0
    bounds = np.zeros(len(array) + 1, np.int64)
    np.cumsum(sizes, out=bounds[1:])
    return BytesValue(bounds, rows[np.arange(rows.shape[1]) < sizes[:, None]], None, text=False)
