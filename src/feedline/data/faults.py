"""Faults in the memory that sequences are copied from, as errors that name the file.

Copies run natively and report three faults, by address: memory that cannot be read, because the file that it is mapped
from was truncated or its disk fails, bounds that have changed since they were checked, and entries that no stream can
hold. The file of an address is looked up in the table of this process's maps. That works for any map, including the
user's, and costs nothing until something is wrong.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.data.maps import MappedByte, Maps
from feedline.errors import DataError

_RESTORE = "restore the file or write it again, then continue from the last state"


def locate(address: int) -> MappedByte | None:
    """Return the byte of a file that is mapped at ``address``. None if there is none, or it is unknown."""
    return Maps().locate(address)


def unreadable(address: int) -> DataError:
    """Return the error for memory that could not be read: a page no longer in its file, or lost by its disk."""
    place = locate(address)
    if place is None:
        return DataError(
            f"expected readable memory, got a bus error at {address:#x}: the file mapped there was truncated, "
            "its disk failed, or a memory file system is full",
            hint="restore the file, or pass the data to feedline as an array that is not mapped",
        )
    size = _size(place.path)
    if size is not None and place.byte < -(-size // _PAGE_BYTES) * _PAGE_BYTES:
        return DataError(
            f"expected a readable mapped file, got a bus error within its size of {size} bytes: "
            "the disk failed, or the file was truncated for a moment",
            path=place.path,
            byte=place.byte,
            hint="check the system's log for I/O errors (dmesg); " + _RESTORE,
        )
    return cut(address)


def cut(address: int) -> DataError:
    """Return the error for memory that its file no longer holds."""
    place = locate(address)
    what = "expected a mapped file to stay unchanged"
    if place is None:
        return DataError(f"{what}, got one that was truncated", hint=_RESTORE)
    size = _size(place.path)
    if size is None:
        what = f"{what}, got one that was truncated, and is gone"
    elif size <= place.byte:
        what = f"{what}, got one that was truncated to {size} bytes"
    else:
        what = f"{what}, got one that was modified or truncated"
    return DataError(what, path=place.path, byte=place.byte, hint=_RESTORE)


def check_seals(seals: Iterable[NDArray[np.uint8]]) -> None:
    """Check that mapped files still hold the bytes of their seals.

    A seal of zeros may be the end of its file, or the remains of a truncated one. Only then is the file looked up.

    Raises:
        DataError: a file was truncated, or its disk fails.
    """
    for seal in seals:
        if any(_native.copied(seal).tobytes()):
            continue
        place = locate(address := seal.ctypes.data)
        size = None if place is None else _size(place.path)
        if place is not None and size is not None and size < place.byte + seal.nbytes:
            raise cut(address)


def changed(address: int) -> DataError:
    """Return the error for bounds that decrease or exceed the end, although they did not when their chunk was read."""
    place = locate(address)
    what = "expected offsets as they were when their chunk was read, and under 2**63 rows in all; got impossible ones"
    if place is None:
        return DataError(what, hint="if the array is modified while in use, pass a copy of it to feedline")
    return DataError(f"{what}: the file was modified while mapped", path=place.path, byte=place.byte, hint=_RESTORE)


class BadEntry(NamedTuple):
    """An entry that its stream cannot hold.

    Attributes:
        place: place of its sequence among the copied ones.
        stream: number of the stream.
        entry: the entry, or the first byte of a text that violates UTF-8.
        classes: number of classes, which limits indices of a sparse stream. ``"str"`` for a stream of texts. None for a
            byte of a stream of bools.
        address: address of the memory that it was copied from.
    """

    place: int
    stream: int
    entry: int
    classes: int | str | None
    address: int

    def __str__(self) -> str:
        if self.classes == "str":
            return f"expected text in UTF-8, got the byte 0x{self.entry:02x}"
        what = "bools of 0 or 1" if self.classes is None else f"indices in [0, {self.classes})"
        return f"expected {what}, got {self.entry}"


class BadEntriesError(DataError):
    """The copied sequences hold invalid entries.

    Attributes:
        arrays: the copy as requested, with 0 in place of every such entry, and of every byte of such a text.
        entries: the first invalid entry of each sequence and stream.
    """

    def __init__(self, arrays: list[tuple[Any, ...]], entries: Iterable[tuple[Any, ...]]) -> None:
        self.arrays = arrays
        self.entries = sorted(BadEntry(*entry) for entry in entries)
        path, byte = locate(self.entries[0].address) or (None, None)
        super().__init__(str(self.entries[0]), path=path, byte=byte, hint="the data is damaged; write it again")

    def errors(self, names: Sequence[str], ordinals: Sequence[int] | None, path: str | None) -> dict[int, DataError]:
        """Return the errors of unusable sequences, by their place among the copied ones.

        Args:
            names: names of the streams.
            ordinals: index in the corpus of each sequence, where it is known.
            path: name for entries that are in no file.
        """
        maps, errors = Maps(), dict[int, DataError]()
        for entry in self.entries:
            if entry.place in errors:
                continue
            place, byte = maps.locate(entry.address) or (path, None)
            errors[entry.place] = DataError(
                str(entry),
                path=place,
                byte=byte,
                sequence=None if ordinals is None else ordinals[entry.place],
                stream=names[entry.stream],
                hint='the data is damaged: write it again, or pass on_error="skip" to the source to skip such '
                "sequences and list them",
            )
        return errors

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.arrays, [tuple(entry) for entry in self.entries])


_PAGE_BYTES = os.sysconf("SC_PAGESIZE")


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:  # deleted, but still mapped
        return None
