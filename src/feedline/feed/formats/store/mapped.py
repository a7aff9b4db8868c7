"""A file mapped for reading, whose size is checked again before each use.

A map of a file that became shorter kills the process on access (SIGBUS); checking the size before handing out
views turns nearly all such accidents into a `DataError`.
"""

from __future__ import annotations

import errno
import mmap
from typing import Any

from feedline.errors import DataError
from feedline.feed.formats.files import open_regular

ADVICE = {
    "random": mmap.MADV_RANDOM,
    "sequential": mmap.MADV_SEQUENTIAL,
    "willneed": mmap.MADV_WILLNEED,
}


class MappedFile:
    """A read-only map of a whole file.

    Args:
        path: the file.
        size: its size in bytes, as recorded; at least 1.

    Raises:
        DataError: the file is missing, unreadable, or has another size.
    """

    def __init__(self, path: str, size: int) -> None:
        import pyarrow as pa

        self.path, self.size = path, size
        try:
            with open_regular(path) as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            # One descriptor stays open for each map: Python needs it to ask for the size.
            many = isinstance(error, OSError) and error.errno == errno.EMFILE
            hint = "raise the limit (ulimit -n) or write the store with larger part_bytes" if many else None
            raise DataError(f"expected a readable file of {size} bytes: {error}", path=path, hint=hint) from error
        self.check()
        self.buffer: Any = pa.py_buffer(self._map)

    def check(self) -> None:
        """Compare the file's size with the recorded one.

        Raises:
            DataError: they differ.
        """
        now = self._map.size()
        if now != self.size:
            raise DataError(
                f"expected a file of {self.size} bytes, got {now}",
                path=self.path,
                hint="the file was cut or changed after it was written; write the store again",
            )

    def advise(self, advice: str, start: int = 0, length: int | None = None) -> None:
        """Tell the kernel how bytes ``start`` and following will be used: a key of `ADVICE`."""
        first = start - start % mmap.PAGESIZE
        last = self.size if length is None else min(start + length, self.size)
        self._map.madvise(ADVICE[advice], first, last - first)
