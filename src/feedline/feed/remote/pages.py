"""The file of an object: sparse, with a table of the pages that are in it and their checksums.

A page is in the file once its checksum is in the table. The checksum is entered after the page was written, so a
process that is killed at any moment leaves no incomplete page that looks complete. Dropping works in the opposite
order. Pages that were written before a restart of the machine, or by another process, are compared with their checksums
before they are first read.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feedline import _native, system
from feedline.errors import DataError
from feedline.feed.files.atomic import atomic_file

PAGE_BYTES = 16 << 10
"""Bytes of a page. Complete pages are fetched, kept and dropped, except for the end of an object."""

MIN_CACHE_BYTES = 64 << 20
"""Bytes of the smallest cache. Opening a corpus reads bytes that need room."""


def pages_of(begin: int, end: int) -> tuple[int, int]:
    """Return the pages that contain bytes, as first and end."""
    return begin // PAGE_BYTES, -(-end // PAGE_BYTES)


def allocate(descriptor: int, size: int) -> None:
    """Set the size of a file before it is mapped, and allocate all of its space, as a lack of space later would kill
    the process.

    Raises:
        OSError: there is no space.
    """
    if os.fstat(descriptor).st_size > size:
        os.ftruncate(descriptor, size)
    system.allocate(descriptor, size)


def open_own(path: Path) -> int:
    """Return the descriptor of a file of the cache, created if necessary.

    Raises:
        OSError: the file cannot be opened, or is a link, which may lead out of the cache.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


class ObjectPages:
    """The file and the table of one object. See the module.

    Args:
        folder: folder of the object in the cache, created if necessary.
        size: size of the object in bytes.
        about: description of the object, stored next to it for people.

    Attributes:
        size: size of the object in bytes.
        count: number of pages.
        path: path of the file, where it may no longer be.
        descriptor: descriptor of the file.
        users: number of users that need the file to stay open.

    Raises:
        OSError: the folder is not writable, or full.
    """

    def __init__(self, folder: Path, size: int, about: dict[str, object]) -> None:
        self.size, self.count = size, -(-size // PAGE_BYTES)
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.is_symlink():
            raise NotADirectoryError(errno.ENOTDIR, "a link", str(folder))
        if not (folder / "object.json").exists():
            with atomic_file(folder / "object.json", 0o600) as file:
                file.write(json.dumps(about).encode())
        self.path = folder / "data"
        self.descriptor = open_own(self.path)
        try:
            self._table_file = open_own(folder / "pages")
        except BaseException:
            os.close(self.descriptor)
            raise
        if os.fstat(self.descriptor).st_size != size:
            os.ftruncate(self.descriptor, size)
        allocate(self._table_file, 4 * self.count)
        self.table: NDArray[np.uint32] = np.empty(0, np.uint32)
        if self.count:
            self.table = np.frombuffer(mmap.mmap(self._table_file, 4 * self.count), np.uint32)
        self._trusted = np.zeros(self.count, np.bool_)  # written or compared by this process
        self.users = 0

    def close(self) -> None:
        """Close the files. Maps and descriptors of other users stay valid."""
        for descriptor in (self.descriptor, self._table_file):
            if descriptor >= 0:
                os.close(descriptor)
        self.descriptor = self._table_file = -1
        self.table = self.table.copy()  # unmaps it

    def has(self, first: int, end: int) -> bool:
        """Return whether all pages of a range are in the file."""
        return bool(self.table[first:end].all())

    def missing(self, first: int, end: int) -> list[tuple[int, int]]:
        """Return the runs of pages of a range that are not in the file, as (first, end)."""
        lacking = self.table[first:end] == 0
        return [(first + a, first + b) for a, b in _runs_of(lacking)] if lacking.any() else []

    def bytes_of(self, first: int, end: int) -> int:
        """Return the number of bytes of pages. The last page of an object may be shorter."""
        return max(0, min(end * PAGE_BYTES, self.size) - first * PAGE_BYTES)

    def write(self, first: int, data: memoryview) -> None:
        """Write complete pages that are not in the file yet.

        Raises:
            OSError: the disk is full, or fails.
        """
        done, at = 0, first * PAGE_BYTES
        while done < len(data):
            done += os.pwrite(self.descriptor, data[done:], at + done)

    def mark(self, first: int, sums: NDArray[np.uint32]) -> None:
        """Enter pages that were written in the table, with their `checksums`."""
        end = first + len(sums)
        self.table[first:end] = sums
        self._trusted[first:end] = True

    def part_of(self, data: memoryview | None, start: int, first: int, end: int) -> memoryview | None:
        """Return the pages ``first:end`` of memory that begins with page ``start``."""
        if data is None:
            return None
        at = (first - start) * PAGE_BYTES
        return data[at : at + self.bytes_of(first, end)]

    def read(self, first: int, end: int, into: memoryview | None) -> list[int]:
        """Read pages into memory, unless it is None, and return the `damaged` ones."""
        done, at = 0, first * PAGE_BYTES
        while into is not None and done < len(into):
            got = os.preadv(self.descriptor, [into[done:]], at + done)
            if got == 0:
                break
            done += got
        return self.damaged(first, end, into)

    def damaged(self, first: int, end: int, data: memoryview | None = None) -> list[int]:
        """Return the damaged pages. Pages that this process has written or compared before count as undamaged.

        Args:
            first: the first page.
            end: the page after the last one.
            data: the bytes of these pages, if they were read.
        """
        wrong = []
        unknown = np.flatnonzero(~self._trusted[first:end] & (self.table[first:end] != 0)) + first
        for page in unknown.tolist():
            at = page * PAGE_BYTES
            length = min(PAGE_BYTES, self.size - at)
            if data is None:
                content: bytes | memoryview = os.pread(self.descriptor, length, at)
            else:
                content = data[at - first * PAGE_BYTES :][:length]
            if len(content) == length and (_native.crc32c(content) or 1) == int(self.table[page]):
                self._trusted[page] = True
            else:
                wrong.append(page)
        return wrong

    def drop(self, first: int, end: int) -> int:
        """Remove pages from the table and the file, and return how many there were.

        Raises:
            DataError: the file system cannot free a part of a file.
        """
        dropped = int((self.table[first:end] != 0).sum())
        self.table[first:end] = 0
        self._trusted[first:end] = False
        self.punch(first, end)
        return dropped

    def punch(self, first: int, end: int) -> None:
        """Free the space of pages that are not in the table."""
        at, length = first * PAGE_BYTES, (end - first) * PAGE_BYTES
        if length > 0 and not system.free_range(self.descriptor, at, length):
            raise DataError(
                "expected a file system that frees parts of files (ext4, xfs, btrfs, tmpfs, APFS), got another one",
                path=str(self.path),
                hint="pass cache=<a folder on a local disk>",
            )

    def sweep(self) -> int:
        """Free pages that were written but not entered, such as by a killed process. Return the number of pages in the
        table."""
        at = 0
        while at < self.size:
            try:
                begin = os.lseek(self.descriptor, at, os.SEEK_DATA)
            except OSError:  # no more data
                break
            at = os.lseek(self.descriptor, begin, os.SEEK_HOLE)
            for first, end in self.missing(*pages_of(begin, min(at, self.size))):
                self.punch(first, end)
        return self.kept

    @property
    def kept(self) -> int:
        """Number of pages in the table."""
        return int(np.count_nonzero(self.table))

    def try_lock(self, first: int, end: int) -> bool:
        """Lock pages against other processes that would fetch them, and return whether that succeeded."""
        return system.lock_range(self._table_file, first, max(1, end - first))

    def unlock(self, first: int, end: int) -> None:
        """Release a lock."""
        system.unlock_range(self._table_file, first, max(1, end - first))

    def runs(self) -> list[tuple[int, int]]:
        """Return the runs of pages that are in the file, as (first, end)."""
        return _runs_of(self.table != 0)


def _runs_of(which: NDArray[np.bool_]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], which, [False]]).astype(np.int8)))
    return [(a, b) for a, b in edges.reshape(-1, 2).tolist()]


def checksums(data: memoryview) -> NDArray[np.uint32]:
    """Return the checksum of each page. It is never 0, which marks a missing page."""
    sums = [_native.crc32c(data[at : at + PAGE_BYTES]) or 1 for at in range(0, len(data), PAGE_BYTES)]
    return np.array(sums, np.uint32)
