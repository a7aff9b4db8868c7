"""Map arrays in files, and find the mapped files of arrays: memory maps of NumPy, views of them, tensors over them, and
`mmap` objects."""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.data.maps import MappedRange, Maps
from feedline.feed.files.paths import open_regular
from feedline.feed.files.remote import RemoteObject, object_at
from feedline.feed.files.truncation_guard import base_of, noted_base_of

# Foreign memory, such as the memory of a tensor, is looked up from this size on, as a look-up takes a millisecond.
_WORTH_A_LOOK_BYTES = 256 << 20

# Number of bytes at the end of a file that are searched for a seal.
_END_BYTES = 128 << 10

# Maps of files, parts of which may be missing: the object, and the address where its byte 0 is mapped, or would be.
_maps: weakref.WeakKeyDictionary[mmap.mmap, tuple[RemoteObject, int]] = weakref.WeakKeyDictionary()


def map_file(
    path: str | os.PathLike[str], dtype: np.dtype[Any], byte: int = 0, shape: tuple[int, ...] | None = None
) -> NDArray[Any]:
    """Return a read-only map of numbers in a file. Parts of a remote one may be missing.

    Args:
        path: path of the file.
        dtype: dtype of the numbers.
        byte: offset of the first number.
        shape: shape of the array. None: ``(n,)``, all numbers up to the end of the file.

    Raises:
        ValueError, OSError, OverflowError: the file has no numbers or ends within one, or it cannot be mapped.
    """
    return (
        np.memmap(path, dtype, "r", byte, shape) if object_at(path) is None else _map_object(path, dtype, byte, shape)
    )


def map_npy(path: str | os.PathLike[str]) -> NDArray[Any]:
    """Return a read-only map of the array in a ``.npy`` file. Parts of a remote one may be missing.

    Remote arrays of types other than numbers are loaded, as decoding reads all of them.

    Raises:
        ValueError, OSError, EOFError: the file is not a ``.npy`` file, or cannot be mapped.
    """
    if object_at(path) is None:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        return array
    with open_regular(path, -1) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
        if dtype.kind not in "biufc" or 0 in shape:
            file.seek(0)
            # NumPy would read from the descriptor of a file.
            loaded: NDArray[Any] = np.lib.format.read_array(io.BytesIO(file.read()), allow_pickle=False)
            return loaded
        at = file.tell()
    return _map_object(path, dtype, at, shape, "F" if fortran else "C")


def _map_object(path: str | os.PathLike[str], dtype: np.dtype[Any], *how: Any) -> NDArray[Any]:
    remote_object = object_at(path)
    assert remote_object is not None
    with open_regular(path, 0) as file:
        array: NDArray[Any] = np.memmap(file, dtype, "r", *how)
    remote_object.mapped = True
    base, byte = noted_base_of(array), how[0] if how else 0
    _maps[base] = remote_object, array.ctypes.data - byte
    # Rows that are not contiguous may be anywhere in the file.
    begin = max(0, remote_object.size - _END_BYTES) if array.flags.c_contiguous else 0
    lease = remote_object.hold(begin, remote_object.size)
    weakref.finalize(base, lease.release).atexit = False
    return array


@contextlib.contextmanager
def in_reach(array: NDArray[Any]) -> Iterator[None]:
    """A context in which all bytes of an array are in memory or in its file, even if parts of the file were missing.

    Raises:
        DataError: the missing bytes cannot be fetched.
    """
    lease, base = None, base_of(array) if array.nbytes and _maps else None
    if isinstance(base, mmap.mmap) and base in _maps:
        remote_object, address = _maps[base]
        low, high = np.lib.array_utils.byte_bounds(array)
        lease = remote_object.hold(low - address, high - address)
    try:
        yield
    finally:
        if lease is not None:
            lease.release()


def mapped_ranges(arrays: Iterable[NDArray[Any]]) -> list[MappedRange]:
    """Return the mapped files of ``arrays``, each once. Only contiguous arrays count."""
    foreign = [array for array in arrays if array.nbytes and array.flags.c_contiguous and may_be_mapped(array)]
    if not foreign:
        return []
    for array in foreign:
        noted_base_of(array)
    maps = Maps(shared=True)
    ranges = (maps.range_at(array.ctypes.data, array.nbytes) for array in foreign)
    return list(dict.fromkeys(mapped_range for mapped_range in ranges if mapped_range is not None))


def may_be_mapped(array: Any) -> bool:
    """Return whether the memory of an array may be a mapped file, so that it is worth looking up."""
    size = array.nbytes
    while isinstance(array, np.ndarray):
        if array.flags.owndata:
            return False
        array = array.base
    if isinstance(array, memoryview):
        array = array.obj
    return isinstance(array, mmap.mmap) or (size >= _WORTH_A_LOOK_BYTES and not isinstance(array, bytes))
