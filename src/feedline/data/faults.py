"""Faults in the memory that sequences are copied from, as errors that name the file.

Copies run natively and report three faults, by address: memory that cannot be read, because the file that it is mapped
from was truncated or its disk fails; bounds that have changed since they were checked; and entries that no stream can
hold. The file of an address is looked up in the table of this process's maps. That works for any map, including the
user's, and costs nothing until something is wrong.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from feedline.data.maps import Maps, Place
from feedline.errors import DataError

_RESTORE = "restore the file or write it again, then go on from the last state"


def locate(address: int) -> Place | None:
    """The byte of a file that is mapped at ``address``; None where none is, or nobody can tell."""
    return Maps().locate(address)


def unreadable(address: int) -> DataError:
    """Return the error for memory that could not be read: a page no longer in its file, or lost by its disk."""
    place = locate(address)
    if place is None:
        return DataError(
            f"expected memory that can be read, got a bus error at {address:#x}: a file that was mapped there was cut, "
            "its disk failed, or a memory file system is full",
            hint="restore the file, or give the data to feedline as an array of its own",
        )
    size = _size(place.path)
    if size is not None and place.byte < -(-size // _PAGE) * _PAGE:
        return DataError(
            f"expected a mapped file that can be read, got a bus error where its size of {size} bytes is right: "
            "the disk failed, or the file was cut for a moment",
            path=place.path,
            byte=place.byte,
            hint="look for I/O errors in the system's log (dmesg); " + _RESTORE,
        )
    return cut(address)


def cut(address: int) -> DataError:
    """Return the error for memory that its file no longer holds."""
    place = locate(address)
    what = "expected a file that stays as it is while it is mapped"
    if place is None:
        return DataError(f"{what}, got one that was cut", hint=_RESTORE)
    size = _size(place.path)
    if size is None:
        what = f"{what}, got one that was cut, and is gone"
    elif size <= place.byte:
        what = f"{what}, got one that was cut to {size} bytes"
    else:
        what = f"{what}, got one that was written to or cut"
    return DataError(what, path=place.path, byte=place.byte, hint=_RESTORE)


def changed(address: int) -> DataError:
    """Return the error for bounds that decrease or exceed the end, and did not when their chunk was read."""
    place = locate(address)
    what = (
        "expected offsets as they were when their chunk was read, and less than 2**63 rows in all; "
        "got an impossible range"
    )
    if place is None:
        return DataError(what, hint="if the array is written to while it is in use, give a copy of it to feedline")
    return DataError(
        f"{what}: the file was written to while it was mapped", path=place.path, byte=place.byte, hint=_RESTORE
    )


class BadEntry(NamedTuple):
    """An entry that its stream cannot hold.

    Attributes:
        place: place of its sequence among those copied.
        stream: number of the stream.
        entry: the entry.
        classes: number of classes, which limits indices of a sparse stream; None: a byte of a stream of bools.
        address: address that it was copied from.
    """

    place: int
    stream: int
    entry: int
    classes: int | None
    address: int

    def __str__(self) -> str:
        what = "bools of 0 or 1" if self.classes is None else f"indices in [0, {self.classes})"
        return f"expected {what}, got {self.entry}"


class BadEntriesError(DataError):
    """The copied sequences hold invalid entries.

    Attributes:
        arrays: the copy as requested, with 0 in place of every such entry.
        entries: the first invalid entry of each sequence and stream.
    """

    def __init__(self, arrays: list[tuple[Any, ...]], entries: Iterable[tuple[Any, ...]]) -> None:
        self.arrays = arrays
        self.entries = sorted(BadEntry(*entry) for entry in entries)
        at = locate(self.entries[0].address)
        super().__init__(
            str(self.entries[0]),
            path=None if at is None else at.path,
            byte=None if at is None else at.byte,
            hint="the data is damaged; write it again",
        )

    def errors(self, names: Sequence[str], ordinals: Sequence[int] | None, path: str | None) -> dict[int, DataError]:
        """Return why sequences cannot be used, by their place among those copied.

        Args:
            names: names of the streams.
            ordinals: index in the corpus of each sequence, where it is known.
            path: name for entries that are in no file.
        """
        maps, found = Maps(), dict[int, DataError]()
        for entry in self.entries:
            if entry.place in found:
                continue
            at = maps.locate(entry.address)
            found[entry.place] = DataError(
                str(entry),
                path=path if at is None else at.path,
                byte=None if at is None else at.byte,
                sequence=None if ordinals is None else ordinals[entry.place],
                stream=names[entry.stream],
                hint='the data is damaged: write it again, or pass on_error="skip" to the source to go on without such '
                "sequences and list them",
            )
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.arrays, [tuple(entry) for entry in self.entries])


_PAGE = os.sysconf("SC_PAGESIZE")


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:  # deleted, but still mapped
        return None
