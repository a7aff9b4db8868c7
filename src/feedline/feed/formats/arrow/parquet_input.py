"""A file-like object for Arrow. Some bytes of a Parquet file are in memory, the others are read on demand.

Arrow gets views of the bytes in memory, and can touch no memory outside of them.
"""

from __future__ import annotations

import errno
import io
import mmap
from typing import BinaryIO

from feedline.feed.files import remote
from feedline.feed.files.paths import status_of
from feedline.feed.protocol import Unread

_LARGE_BYTES = 64 << 10  # blocks of at least this size get a mapping each


class Pages(io.RawIOBase):
    """The file-like object that `pyarrow.parquet.ParquetFile` reads from.

    Args:
        file: the open file.
        blocks: the parts in memory, as (offset, bytes).

    Attributes:
        unread: the failure of a read, or None if no read failed.
    """

    mode = "rb"

    def __init__(self, file: BinaryIO, blocks: list[tuple[int, memoryview]]) -> None:
        self._file, self._blocks = file, blocks
        self._size = status_of(file).st_size
        self._position = 0
        self.unread: Unread | None = None

    def at(self, offset: int, size: int) -> memoryview:
        """Return up to ``size`` bytes from ``offset`` on, fewer at the end of the file.

        Raises:
            OSError: the disk fails.
        """
        for begin, data in self._blocks:
            if begin <= offset and offset + size <= begin + len(data):
                return data[offset - begin : offset - begin + size]
        size, done = max(0, min(size, self._size - offset)), 0
        # The memory of large blocks returns to the system once Arrow has decoded them. `malloc` would keep it.
        data = memoryview(bytearray(size) if size < _LARGE_BYTES else mmap.mmap(-1, size))
        try:
            while done < size and (count := remote.preadv(self._file, data[done:], offset + done)):
                done += count
        except OSError as error:
            self.unread = Unread(error.errno or errno.EIO, offset + done)
            raise
        return data[:done]

    # ---- called by Arrow --------------------------------------------------------------------------

    def read(self, size: int = -1) -> memoryview:  # noqa: D102
        data = self.at(self._position, self._size - self._position if size < 0 else size)
        self._position += len(data)
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:  # noqa: D102
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def readable(self) -> bool:  # noqa: D102
        return True

    def seekable(self) -> bool:  # noqa: D102
        return True

    def close(self) -> None:
        """Do nothing: the caller that opened the file closes it."""
