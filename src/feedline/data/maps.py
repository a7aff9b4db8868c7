"""Mapped files and their addresses, from the system's table of this process's maps.

On Linux the table covers every map, including the user's. Elsewhere it covers those that feedline has made, and memory
maps of NumPy that were passed to it. A look-up costs a few tenths of a millisecond. Nothing is cached.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from feedline import system

_DELETED = " (deleted)"


class MappedByte(NamedTuple):
    """A byte of a mapped file."""

    path: str
    byte: int


class MappedRange(NamedTuple):
    """The part of a file that is mapped in one piece, shared with every process that maps or reads the file.

    Attributes:
        path: path of the file.
        size: end of the mapped part: the file's size if it is mapped to its end.
        first: first mapped byte.
        address: address at which byte 0 is mapped, or would be.
        identity: (device, inode).
    """

    path: str
    size: int
    first: int
    address: int
    identity: tuple[int, int]


class _MapsLine(NamedTuple):
    first: int
    last: int
    shared: bool
    offset: int
    path: str


class Maps:
    """The files that are mapped now.

    Args:
        shared: consider only maps that share memory with the file, of which a process has few.
    """

    def __init__(self, shared: bool = False) -> None:
        self._entries = [_MapsLine(*entry) for entry in system.file_maps(shared)]

    def locate(self, address: int) -> MappedByte | None:
        """Return the byte of a file that is mapped at ``address``. None if there is none, or it is unknown."""
        for entry in self._entries:
            if entry.first <= address < entry.last:
                return MappedByte(entry.path, entry.offset + address - entry.first)
        return None

    def range_at(self, address: int, count: int) -> MappedRange | None:
        """Return the mapped part of a regular file that holds ``count`` bytes at ``address``.

        Returns:
            None where there is none: the memory belongs to no file, its file was deleted or cannot be inspected, or it
            is the process's private copy, whose bytes may differ from the file's.
        """
        entries = [entry for entry in self._entries if entry.first <= address < entry.last]
        if not entries or not entries[0].shared or entries[0].path.endswith(_DELETED):
            return None
        entry = entries[0]
        base = entry.first - entry.offset
        # The table may list one map in parts, after madvise on some of it.
        same = [e for e in self._entries if e.path == entry.path and e.first - e.offset == base and e.shared]
        same.sort()
        at = same.index(entry)
        low = high = at
        while low > 0 and same[low - 1].last == same[low].first:
            low -= 1
        while high + 1 < len(same) and same[high].last == same[high + 1].first:
            high += 1
        try:
            about = os.stat(entry.path)
        except OSError:
            return None
        if not stat.S_ISREG(about.st_mode):
            return None
        size = min(same[high].last - base, about.st_size)
        if address + count > base + size:
            return None
        return MappedRange(entry.path, size, same[low].offset, base, (about.st_dev, about.st_ino))
