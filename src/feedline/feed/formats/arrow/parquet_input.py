"""A file-like object for Arrow: some bytes of a Parquet file are in memory, others are read on demand.

Arrow gets views of the bytes in memory. Whatever it requests, nothing outside of them and the file is touched.
"""

from __future__ import annotations

import errno
import io
import mmap
from typing import BinaryIO

from feedline.feed.files import remote
from feedline.feed.files.paths import status_of
from feedline.feed.protocol import Unread

_LARGE_BYTES = 64 << 10  # from this size on a block has a mapping of its own


class Pages(io.RawIOBase):
    """The file-like object that `pyarrow.parquet.ParquetFile` reads from.

    Args:
        file: the open file.
        held: parts that are in memory: (offset, bytes).

    Attributes:
        unread: why a read failed; None: none did.
    """

    mode = "rb"

    def __init__(self, file: BinaryIO, held: list[tuple[int, memoryview]]) -> None:
        self._file, self._held = file, held
        self._size = status_of(file).st_size
        self._position = 0
        self.unread: Unread | None = None

    def at(self, offset: int, size: int) -> memoryview:
        """Return up to ``size`` bytes from ``offset`` on, fewer at the end of the file.

        Raises:
            OSError: the disk fails.
        """
        for begin, data in self._held:
            if begin <= offset and offset + size <= begin + len(data):
                return data[offset - begin : offset - begin + size]
        size, done = max(0, min(size, self._size - offset)), 0
        # Large blocks return to the system as soon as Arrow has decoded them: `malloc` keeps what threads free.
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
        found = self.at(self._position, self._size - self._position if size < 0 else size)
        self._position += len(found)
        return found

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:  # noqa: D102
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def readable(self) -> bool:  # noqa: D102
        return True

    def seekable(self) -> bool:  # noqa: D102
        return True

    def close(self) -> None:
        """Do nothing: whoever opened the file closes it."""
