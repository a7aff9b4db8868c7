"""Check the heaps in which HDF5 keeps strings and vectors before the library reads them.

A row of such a dataset is a reference: a length, the address of a heap collection, and the index of an object in it.
The HDF5 library (2.0.0) steps over the objects of a collection by their sizes, and never ends if damage makes a size
zero. So this module takes the same steps first, and stops at such a size.
"""

from __future__ import annotations

import os
import struct
import zlib
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DataError
from feedline.feed.files.paths import open_file
from feedline.feed.files.remote import pread
from feedline.feed.unique import distinct

_REFERENCE = np.dtype([("count", "<u4"), ("address", "<u8"), ("index", "<u4")])
_HEAD = struct.Struct("<4sB3xQ")  # signature, version, size of the collection including this head
_OBJECT = struct.Struct("<HHIQ")  # index, references, reserved, size. Index 0 is the free space at the end
_AT_ONCE = 1 << 20  # largest collection that is read at once. Larger ones have few objects
_GZIP, _SHUFFLE = 1, 2


def check_heaps(dataset: Any, path: str, start: int, stop: int) -> None:
    """Check the collections with the rows ``start:stop`` of a dataset in the file at ``path``.

    Raises:
        DataError: a collection is damaged.
    """
    references = _references(dataset, path, start, stop)
    if references is None:
        return
    base = int(dataset.file.userblock_size)
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        for address in distinct(references["address"][references["count"] > 0]).tolist():
            at = address + base
            if not _is_sound(file, at, size):
                raise DataError("expected a heap of strings or vectors, got a damaged one", path=path, byte=at)


def _is_sound(file: BinaryIO, at: int, file_size: int) -> bool:
    """Return whether stepping over the objects of a collection ends."""
    if at + _HEAD.size > file_size:
        return False
    magic, version, size = _HEAD.unpack(pread(file, _HEAD.size, at))
    if magic != b"GCOL" or version != 1 or not _HEAD.size <= size <= file_size - at:
        return False
    collection = pread(file, size, at) if size <= _AT_ONCE else None
    place = _HEAD.size
    while place + _OBJECT.size <= size:
        head = pread(file, _OBJECT.size, at + place) if collection is None else collection[place : place + _OBJECT.size]
        if len(head) < _OBJECT.size:
            return False
        index, _, _, object_size = _OBJECT.unpack(head)
        step = object_size if index == 0 else _OBJECT.size + (object_size + 7) // 8 * 8
        if step < _OBJECT.size or place + step > size:
            return False
        place += step
    return True


def _references(dataset: Any, path: str, start: int, stop: int) -> NDArray[Any] | None:
    """Return the references of rows, or None if there are none, or they have filters that this module lacks."""
    import h5py

    stored, layout = dataset.id, dataset.id.get_create_plist()
    if layout.get_layout() == h5py.h5d.CONTIGUOUS:
        place = stored.get_offset() if stored.get_storage_size() else None
        if place is None:
            return None
        with open_file(path) as file:
            data = pread(file, (stop - start) * _REFERENCE.itemsize, place + start * _REFERENCE.itemsize)
        return _as_references(data)
    if layout.get_layout() != h5py.h5d.CHUNKED:
        return None
    rows, parts = int(dataset.chunks[0]), []
    filters = [layout.get_filter(i)[0] for i in range(layout.get_nfilters())]
    if not set(filters) <= {_GZIP, _SHUFFLE}:
        return None
    for first in range(start // rows * rows, stop, rows):
        if stored.get_chunk_info_by_coord((first,)).byte_offset is None:
            continue  # never written
        mask, data = stored.read_direct_chunk((first,))
        parts.append(_as_references(_undo_filters(data, filters, mask, rows * _REFERENCE.itemsize)))
    return np.concatenate(parts) if parts else None


def _undo_filters(data: bytes, filters: list[int], mask: int, size: int) -> bytes:
    for i, code in reversed(list(enumerate(filters))):
        if mask & (1 << i):
            continue
        if code == _GZIP:
            data = zlib.decompressobj().decompress(data, size)
        else:
            count = len(data) // _REFERENCE.itemsize
            planes = np.frombuffer(data, np.uint8, count * _REFERENCE.itemsize)
            data = planes.reshape(_REFERENCE.itemsize, count).T.tobytes()
    return data


def _as_references(data: bytes) -> NDArray[Any]:
    return np.frombuffer(data, _REFERENCE, len(data) // _REFERENCE.itemsize)
