"""Which files are mapped where, looked up in the kernel's table of this process's maps.

So it is known for any map, the user's too, whoever made it. A look costs some tenths of a millisecond; nothing is kept.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import NamedTuple

_ESCAPED = (("\\012", "\n"), ("\\134", "\\"))  # in the kernel's table
_DELETED = " (deleted)"


class MappedByte(NamedTuple):
    """A byte of a mapped file."""

    path: str
    byte: int


class MappedRange(NamedTuple):
    """The part of a file that is mapped in one piece, shared with everybody who maps or reads the file.

    Attributes:
        path: where the file is.
        size: where the mapped part ends; its whole size if it is mapped to its end.
        first: the byte with which the mapped part begins.
        address: where byte 0 is mapped, or would be.
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
        shared: look at those alone whose memory is shared with the file, of which a process has few.
    """

    def __init__(self, shared: bool = False) -> None:
        self._entries: list[_MapsLine] = []
        with (
            contextlib.suppress(OSError),  # nobody can tell, then
            open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file,
        ):
            for line in file:
                # first-last permissions offset device inode path
                if shared and line[line.index(" ") + 4] != "s":
                    continue
                fields = line.rstrip("\n").split(maxsplit=5)
                if len(fields) == 6 and fields[5].startswith("/"):
                    first, last = (int(bound, 16) for bound in fields[0].split("-"))
                    self._entries.append(
                        _MapsLine(first, last, fields[1].endswith("s"), int(fields[2], 16), _unescaped(fields[5]))
                    )

    def locate(self, address: int) -> MappedByte | None:
        """The byte of a file that is mapped at ``address``; None where none is, or nobody can tell."""
        for entry in self._entries:
            if entry.first <= address < entry.last:
                return MappedByte(entry.path, entry.offset + address - entry.first)
        return None

    def range_at(self, address: int, count: int) -> MappedRange | None:
        """The mapped part of a regular file that holds ``count`` bytes at ``address``.

        Returns:
            None where there is none: the memory is in no file, its file was deleted or cannot be looked at, or it is
            the process's own copy, whose bytes need not be those of the file.
        """
        found = [entry for entry in self._entries if entry.first <= address < entry.last]
        if not found or not found[0].shared or found[0].path.endswith(_DELETED):
            return None
        entry = found[0]
        base = entry.first - entry.offset
        # One map may stand in the table in parts, as advice was given for some of it.
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


def _unescaped(path: str) -> str:
    for written, meant in _ESCAPED if "\\" in path else ():
        path = path.replace(written, meant)
    return path
