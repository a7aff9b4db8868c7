"""Map arrays in files, and find arrays that lie in mapped files: NumPy's memory maps and views of them, tensors over
them, `mmap` objects."""

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
from feedline.feed.files.truncation_guard import base_of

# Minimum bytes of foreign memory, such as a tensor's, to be looked up: that takes a millisecond.
_WORTH_A_LOOK_BYTES = 256 << 20

# Bytes at the end of a file that seals are looked for in.
_END_BYTES = 128 << 10

# Maps of files of which parts may be missing: the object, and the address at which its byte 0 is mapped, or would be.
_maps: weakref.WeakKeyDictionary[mmap.mmap, tuple[RemoteObject, int]] = weakref.WeakKeyDictionary()


def map_file(
    path: str | os.PathLike[str], dtype: np.dtype[Any], byte: int = 0, shape: tuple[int, ...] | None = None
) -> NDArray[Any]:
    """Return a read-only map of numbers in a file; parts of a remote one may be missing.

    Args:
        path: path of the file.
        dtype: of the numbers.
        byte: where they begin.
        shape: of the array; None: ``(n,)``, all numbers up to the end of the file.

    Raises:
        ValueError, OSError, OverflowError: there are none, no whole number of them, or they cannot be mapped.
    """
    return (
        np.memmap(path, dtype, "r", byte, shape) if object_at(path) is None else _map_object(path, dtype, byte, shape)
    )


def map_npy(path: str | os.PathLike[str]) -> NDArray[Any]:
    """Return a read-only map of the array in a ``.npy`` file; parts of a remote one may be missing.

    Arrays other than of numbers are loaded where they are remote, as they are read to be understood.

    Raises:
        ValueError, OSError, EOFError: it is not such a file, or cannot be mapped.
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
            # Of a file, NumPy would read the descriptor.
            loaded: NDArray[Any] = np.lib.format.read_array(io.BytesIO(file.read()), allow_pickle=False)
            return loaded
        at = file.tell()
    return _map_object(path, dtype, at, shape, "F" if fortran else "C")


def _map_object(path: str | os.PathLike[str], dtype: np.dtype[Any], *how: Any) -> NDArray[Any]:
    found = object_at(path)
    assert found is not None
    with open_regular(path, 0) as file:
        array: NDArray[Any] = np.memmap(file, dtype, "r", *how)
    found.mapped = True
    base = base_of(array)
    byte = how[0] if how else 0
    _maps[base] = found, array.ctypes.data - byte
    # Rows that are not contiguous lie all over the file.
    held = found.hold(max(0, found.size - _END_BYTES) if array.flags.c_contiguous else 0, found.size)
    weakref.finalize(base, held.release).atexit = False
    return array


@contextlib.contextmanager
def in_reach(array: NDArray[Any]) -> Iterator[None]:
    """A context in which the bytes of an array are in memory or in its file, also if parts of that were missing.

    Raises:
        DataError: they cannot be had.
    """
    held, base = None, base_of(array) if array.nbytes and _maps else None
    if isinstance(base, mmap.mmap) and base in _maps:
        found, address = _maps[base]
        low, high = np.lib.array_utils.byte_bounds(array)
        held = found.hold(low - address, high - address)
    try:
        yield
    finally:
        if held is not None:
            held.release()


def mapped_ranges(arrays: Iterable[NDArray[Any]]) -> list[MappedRange]:
    """Return the mapped files that some of ``arrays`` lie in, each once; only contiguous arrays count."""
    foreign = [array for array in arrays if array.nbytes and array.flags.c_contiguous and may_be_mapped(array)]
    if not foreign:
        return []
    maps = Maps(shared=True)
    found = (maps.range_at(array.ctypes.data, array.nbytes) for array in foreign)
    return list(dict.fromkeys(one for one in found if one is not None))


def may_be_mapped(array: Any) -> bool:
    """Return whether an array may lie in a file, so that it is worth looking up."""
    size = array.nbytes
    while isinstance(array, np.ndarray):
        if array.flags.owndata:
            return False
        array = array.base
    if isinstance(array, memoryview):
        array = array.obj
    return isinstance(array, mmap.mmap) or (size >= _WORTH_A_LOOK_BYTES and not isinstance(array, bytes))
