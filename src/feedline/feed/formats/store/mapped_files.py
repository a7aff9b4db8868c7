"""Open and map the files of a store.

Only regular files in the folder itself are opened. Links are not followed. If a mapped file is truncated, a read of a
lost page kills the process (SIGBUS). So only native code reads mappings, and reports the truncation instead:
`StoreMap.copy`, and a gather, which also checks the `seal` afterwards.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import stat
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.errors import DataError
from feedline.feed.files.paths import kind_of, open_regular, reading, size_of, status_of
from feedline.feed.files.remote import object_at
from feedline.feed.files.truncation_guard import note_file

ADVICE = {"random": mmap.MADV_RANDOM, "sequential": mmap.MADV_SEQUENTIAL, "willneed": mmap.MADV_WILLNEED}
_CHANGED = "the file was truncated or changed after it was written; write the store again"


@contextlib.contextmanager
def open_inside(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading, without following links or waiting for pipes.

    Raises:
        DataError: it is not a regular file, or cannot be opened.
    """
    try:
        file = open_regular(path, 0, links=False)
    except OSError as error:
        # Each mapping keeps a descriptor open, with which Python looks up the size.
        full = error.errno == errno.EMFILE
        hint = "raise the limit (ulimit -n) or write the store with larger part_bytes" if full else None
        if path.is_symlink():
            raise not_a_file(path, stat.S_IFLNK) from error
        raise DataError(f"expected a readable file: {error.strerror}", path=str(path), hint=hint) from error
    with file:
        yield file


def not_a_file(path: Path, mode: int) -> DataError:
    """Return the error for something that is not a file in the place of a store's file."""
    if stat.S_ISLNK(mode):
        return DataError(
            "expected a file in the store's own folder, got a link",
            path=str(path),
            hint="a store reads nothing outside its folder; copy the file there",
        )
    return DataError(f"expected a readable file: it is {kind_of(mode)}", path=str(path))


def check_size(path: Path, size: int) -> None:
    """Compare a file's size with the recorded one, without opening it.

    Raises:
        DataError: they differ, or it is not a regular file.
    """
    try:
        status = path.lstat()
    except OSError as error:
        raise DataError(f"expected a file of {size} bytes: {error.strerror}", path=str(path)) from error
    if not stat.S_ISREG(status.st_mode):
        raise not_a_file(path, status.st_mode)
    _compare(str(path), size_of(path), size)


def _compare(path: str, got: int, size: int) -> None:
    if got != size:
        raise DataError(f"expected a file of {size} bytes, got {got}", path=path, hint=_CHANGED)


class FileMap:
    """A read-only mapping of a whole file, a `MappedFile`.

    Args:
        file: the open file.
        path: path of the file.
        size: expected size in bytes.

    Attributes:
        path, size: path and size of the file.
        first: first mapped byte.
        address: address of the mapping.
        identity: (device, inode).
        bytes: uint8 (size,).

    Raises:
        DataError: the file has another size, or cannot be mapped.
    """

    first = 0

    def __init__(self, file: BinaryIO, path: str, size: int) -> None:
        self.path, self.size = path, size
        status = status_of(file)
        self._compare(status.st_size)
        self.identity = (status.st_dev, status.st_ino)
        try:
            self._map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            few = isinstance(error, OSError) and error.errno == errno.EMFILE
            raise DataError(
                f"expected a file of {size} bytes that can be mapped: {error}",
                path=path,
                hint="raise the limit of open files (ulimit -n)" if few else None,
            ) from error
        note_file(self._map, path)
        self.bytes = np.frombuffer(self._map, np.uint8)
        self.address: int = self.bytes.__array_interface__["data"][0]

    def check(self) -> None:
        """Compare the size of the file with its size when it was mapped.

        Raises:
            DataError: they differ.
        """
        with reading(self.path):
            size = self._map.size()
        self._compare(size)

    def _compare(self, got: int) -> None:
        if got != self.size:
            raise DataError(f"expected {self.size} bytes, as when the file was opened, got {got}", path=self.path)

    def advise(self, advice: str, start: int = 0, length: int | None = None) -> None:
        """Advise the kernel how ``length`` bytes from ``start`` on will be used, by a key of `ADVICE`."""
        first = start - start % mmap.PAGESIZE
        last = self.size if length is None else min(start + length, self.size)
        self._map.madvise(ADVICE[advice], first, last - first)


class StoreMap(FileMap):
    """A mapped file of a store.

    Args:
        path: path of the file.
        size: its recorded size in bytes, at least 8.

    Attributes:
        seal: the last 8 bytes, uint8 (8,).

    Raises:
        DataError: the file is missing, unreadable, not a regular file, or has another size.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._remote = object_at(path)
        self._reachable: dict[int, int] = {}  # ranges of bytes that `view` may read: first byte to end
        with open_inside(path) as file:
            super().__init__(file, str(path), size)
        self.seal = self.bytes[size - 8 :]

    def _compare(self, got: int) -> None:
        _compare(self.path, got, self.size)

    def view(self, dtype: np.dtype[Any], count: int, byte: int) -> NDArray[Any]:
        """Return ``count`` elements from ``byte`` on, as a view of the mapping."""
        return np.frombuffer(self._map, dtype, count, byte)

    def hold(self, byte: int = 0, count: int | None = None) -> None:
        """If the file is remote, fetch ``count`` bytes from ``byte`` on, or all, and keep them readable by `view`."""
        if self._remote is not None:
            end = self.size if count is None else byte + count
            # The bytes are released with the map.
            weakref.finalize(self._map, self._remote.hold(byte, end).release).atexit = False
            self._reachable[byte] = max(end, self._reachable.get(byte, 0))

    def copy(self, count: int, byte: int) -> NDArray[np.uint8]:
        """Return a copy of ``count`` bytes from ``byte`` on.

        Raises:
            DataError: the file was truncated, or its disk fails.
        """
        if self._remote is not None and self._reachable.get(byte, 0) < byte + count:
            data = np.empty(count, np.uint8)
            self._remote.read(byte, data.data)
            return data
        return _native.copied(self.view(np.dtype(np.uint8), count, byte))
