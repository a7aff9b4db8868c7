"""Seals of mapped files: bytes near the end that show, when read again, whether a file was truncated.

Pages beyond the new end of a file cannot be read, which a native copy notices. The rest of the page with the new end
reads as zeros. So the last nonzero byte of the file is checked after a copy. If the file was truncated at or before
that byte, the byte is gone or zero. If it was truncated after the byte, all bytes that were read are right.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from feedline import _native, system
from feedline.errors import DataError
from feedline.feed.files.remote import object_at

_SEAL_BYTES = 8
# More than the last page, as tar archives end in up to 10 KiB of zeros. A seal of zeros costs a look at the maps of the
# process each time that it is checked.
_LOOKED_BACK_BYTES = 64 << 10


def map_whole(file: BinaryIO, path: Path, size: int) -> tuple[mmap.mmap, list[NDArray[np.uint8]]]:
    """Return a map of an open file of ``size`` bytes, and its seals.

    Raises:
        DataError: the file cannot be mapped, or is truncated already.
    """
    try:
        mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise DataError(f"expected a file that can be mapped: {error}", path=str(path)) from error
    note_file(mapped, path)
    return mapped, seals_of([np.frombuffer(mapped, np.uint8)])


def seals_of(arrays: Iterable[NDArray[Any]]) -> list[NDArray[np.uint8]]:
    """Return a seal, uint8 (8,), of every read-only mapping that some of the arrays are views of.

    Writable mappings have no seal, as their owner may change the last byte.

    Raises:
        DataError: a file is truncated already.
    """
    maps = {}
    for array in arrays:
        base = noted_base_of(array)
        if isinstance(base, mmap.mmap) and memoryview(base).readonly and len(base) >= _SEAL_BYTES:
            maps[id(base)] = base
    return [seal_of(np.frombuffer(base, np.uint8)) for base in maps.values()]


def base_of(array: Any) -> Any:
    """Return the object that owns the memory of an array."""
    while isinstance(array, (np.ndarray, memoryview)):
        array = array.obj if isinstance(array, memoryview) else array.base
    return array


def noted_base_of(array: Any) -> Any:
    """Return `base_of` an array, after noting its file if it is a memory map of NumPy or a view of one."""
    base = base_of(array)
    while isinstance(base, mmap.mmap) and isinstance(array, (np.ndarray, memoryview)):
        under: Any = array.obj if isinstance(array, memoryview) else array.base
        if under is base and isinstance(array, np.memmap):
            first = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
            note_file(base, array.filename, first, shared=array.mode != "c")
        array = under
    return base


def note_file(mapped: mmap.mmap, path: str | Path | None, first: int = 0, shared: bool = True) -> None:
    """Note the file of a map, see `system.note_map`. Of a remote file, that is a file in the cache."""
    remote = None if path is None else object_at(path)
    system.note_map(mapped, path if remote is None else remote.place(), first, shared)


def seal_of(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the seal, uint8 (8,), of a file that is mapped as ``data``, which has at least 8 bytes.

    Raises:
        DataError: the file is truncated already.
    """
    page = (len(data) - 1) // mmap.PAGESIZE * mmap.PAGESIZE
    used = np.flatnonzero(_native.copied(data[page:]))
    low = max(0, page - _LOOKED_BACK_BYTES)
    if not len(used) and low < page:
        page, used = low, np.flatnonzero(_native.copied(data[low:page]))
    last = page + int(used[-1]) if len(used) else len(data) - 1
    start = max(0, min(last, len(data) - _SEAL_BYTES))
    return data[start : start + _SEAL_BYTES]
