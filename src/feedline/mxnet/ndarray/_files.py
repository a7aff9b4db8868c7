"""Files of arrays in MXNet's format (``.params``), written and read as MXNet does.

Layout, little endian:

- the number 0x112 and a reserved 0, both uint64
- the count of arrays, uint64, and the arrays
- the count of names, uint64, and for each name its length, uint64, and its bytes

Layout of an array:

- the number 0xF993FAC9, uint32
- its storage type, int32, 0 for dense
- the number of axes, uint32 (int32 since 1.5, the same bytes), and the lengths, int64
- its device's kind and number, int32 each
- its element type, int32
- its elements

Files of MXNet before 0.12 (number 0xF993FAC8, without a storage type) are read, too. (Source: `NDArray::Save` and
`NDArray::Load` of MXNet 1.9.1, src/ndarray/ndarray.cc.)
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from feedline.errors import CompatError
from feedline.feed.files.atomic import atomic_file
from feedline.mxnet.base import MXNetError
from feedline.mxnet.context import cpu
from feedline.mxnet.ndarray._dense import NDArray

_LIST, _V1, _V2, _V3 = 0x112, 0xF993FAC8, 0xF993FAC9, 0xF993FACA
# Numbers of element types.
_TYPES = {"float32": 0, "float64": 1, "float16": 2, "uint8": 3, "int32": 4, "int8": 5, "int64": 6, "bool": 7}
_NAMES = {number: name for name, number in _TYPES.items()}


def save(fname: str | os.PathLike[str], data: Any) -> None:
    """Write arrays to a file in MXNet's format, which is replaced at once.

    Args:
        fname: path of the file.
        data: an array, a list of arrays, or a dictionary of arrays by name.

    Raises:
        TypeError: other data.
        CompatError: a sparse array.
    """
    if hasattr(data, "stype"):
        data = [data]
    named = isinstance(data, Mapping)
    arrays = list(data.values()) if named else list(data) if isinstance(data, (list, tuple)) else None
    if arrays is None or not all(hasattr(array, "stype") for array in arrays):
        raise TypeError("expected an NDArray, a list of them, or a dictionary of them by name")
    parts = [struct.pack("<QQQ", _LIST, 0, len(arrays))]
    parts += [part for array in arrays for part in _write(array)]
    names = [str(name).encode() for name in data] if named else []
    parts.append(struct.pack("<Q", len(names)))
    for name in names:
        parts += [struct.pack("<Q", len(name)), name]
    with atomic_file(Path(fname)) as file:
        for part in parts:
            file.write(part)


def _write(array: Any) -> list[bytes]:
    if array.stype != "default":
        raise CompatError(f"expected dense arrays to save, got {array.stype}: save array.tostype('default')")
    elements = np.ascontiguousarray(array.asnumpy())
    name = elements.dtype.name
    if name not in _TYPES:
        raise CompatError(f"expected an element type of {', '.join(_TYPES)}, got {name}: use astype")
    head = struct.pack(f"<IiI{elements.ndim}q", _V2, 0, elements.ndim, *elements.shape)
    return [head, struct.pack("<iii", 1, 0, _TYPES[name]), elements.astype(elements.dtype.newbyteorder("<")).tobytes()]


def load(fname: str | os.PathLike[str]) -> Any:
    """Read arrays from a file of MXNet: a list, or a dictionary if they have names.

    Raises:
        MXNetError: the file is not one of arrays, or is cut off.
        CompatError: it has a sparse array.
    """
    with open(fname, "rb") as file:
        return load_frombuffer(file.read(), str(fname))


def load_frombuffer(buf: bytes, path: str = "the buffer") -> Any:
    """Read arrays from the bytes of a file, see `load`."""
    reader = _Reader(buf, path)
    magic, _, count = reader.take("<QQQ")
    if magic != _LIST:
        raise MXNetError(f"expected a file of arrays of MXNet, which begins with {_LIST:#x}, got {magic:#x} in {path}")
    arrays = [_read(reader) for _ in range(reader.check_count(count))]
    names = [reader.bytes(reader.take("<Q")[0]).decode() for _ in range(reader.check_count(reader.take("<Q")[0]))]
    if names and len(names) != len(arrays):
        raise MXNetError(f"expected a name for each of {len(arrays)} arrays, got {len(names)} in {path}")
    return dict(zip(names, arrays, strict=True)) if names else arrays


class _Reader:
    """Bytes, and a position in them."""

    def __init__(self, data: bytes, path: str) -> None:
        self.data, self.path, self.at = data, path, 0

    def bytes(self, count: int) -> bytes:
        if not 0 <= count <= len(self.data) - self.at:
            raise MXNetError(f"expected {count} bytes at byte {self.at} of {self.path}, got {len(self.data) - self.at}")
        self.at += count
        return self.data[self.at - count : self.at]

    def take(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(form, self.bytes(struct.calcsize(form)))

    def check_count(self, count: int) -> int:
        """Return a count of entries of at least four bytes, if the remaining bytes can contain as many."""
        if count > (len(self.data) - self.at) // 4:
            raise MXNetError(f"expected fewer than {count} entries at byte {self.at} of {self.path}: it is damaged")
        return int(count)


def _read(reader: _Reader) -> NDArray:
    at = reader.at
    (magic,) = reader.take("<I")
    if magic not in (_V1, _V2, _V3):
        raise MXNetError(f"expected an array at byte {at} of {reader.path}, got the number {magic:#x}")
    if magic != _V1 and (kind := reader.take("<i")[0]) != 0:
        raise CompatError(f"expected dense arrays in {reader.path}, got the storage type {kind} at byte {at}")
    (rank,) = reader.take("<i")
    if not 0 <= rank <= 32:
        raise MXNetError(f"expected at most 32 axes at byte {at} of {reader.path}, got {rank}")
    shape = reader.take(f"<{rank}q")
    reader.take("<ii")  # the device
    (number,) = reader.take("<i")
    if number not in _NAMES or any(n < 0 for n in shape):
        raise MXNetError(f"expected an element type and lengths at byte {at} of {reader.path}, got {number}, {shape}")
    kind = np.dtype(_NAMES[number]).newbyteorder("<")
    elements = np.frombuffer(reader.bytes(int(np.prod(shape, dtype=object)) * kind.itemsize), kind)
    return NDArray(torch.from_numpy(elements.astype(kind.newbyteorder("=")).reshape(shape)), cpu())
