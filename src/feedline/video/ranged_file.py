"""Files as FFmpeg reads them: objects in stores by ranges, and MP4 files without the bytes of their media."""

from __future__ import annotations

import os
from typing import BinaryIO

from feedline.feed.files.paths import open_regular
from feedline.feed.files.remote import pread, remote_of

_HEAD_BYTES = 16
_BOXES = {b"ftyp", b"styp", b"moov", b"mdat", b"free", b"skip", b"wide", b"uuid", b"pdin", b"moof", b"sidx"}
_MOST_BOXES = 1 << 16


class RangedFile:
    """A file that reads no byte that is not requested: it reads nothing ahead.

    Args:
        path: path of a file, or of the placeholder of an object.

    Attributes:
        size: bytes of the file.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """

    def __init__(self, path: str) -> None:
        self._file: BinaryIO = open_regular(path, 0)
        self._remote = remote_of(self._file)
        self.size = os.fstat(self._file.fileno()).st_size if self._remote is None else self._remote.size
        self._at = 0

    def read_range(self, begin: int, size: int) -> bytes:
        """Return at most ``size`` bytes from ``begin`` on. There are fewer at the end."""
        size = max(0, min(size, self.size - begin))
        if self._remote is None:
            return pread(self._file, size, begin)
        data = bytearray(size)
        if size:
            self._remote.read(begin, memoryview(data))
        return bytes(data)

    def fetch(self, begin: int, end: int) -> None:
        """Fetch bytes of an object in one request, if they are not in the cache.

        Raises:
            DataError: they cannot be fetched.
        """
        if self._remote is not None:
            self._remote.hold(begin, min(end, self.size)).release()

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, at most ``size``."""
        data = self.read_range(self._at, self.size if size < 0 else size)
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position, and return it."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __del__(self) -> None:
        file = getattr(self, "_file", None)  # missing if it could not be opened
        if file is not None:
            file.close()


class TablesOfFile(RangedFile):
    """An MP4 file whose media read as zeros, so that only its tables are read.

    Attributes:
        is_mp4: whether the file consists of boxes, as MP4 and QuickTime files do. All bytes of other files are read.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        try:
            media = self._find_media()
        except BaseException:
            self.close()
            raise
        self.is_mp4 = media is not None
        self._media = media or []

    def _find_media(self) -> list[tuple[int, int]] | None:
        """Return begin and end of the content of each ``mdat`` box, or None if the file does not consist of boxes."""
        media: list[tuple[int, int]] = []
        at = 0
        for _ in range(_MOST_BOXES):
            if at >= self.size:
                return media
            head = super().read_range(at, _HEAD_BYTES)
            size, kind, begin = int.from_bytes(head[:4], "big"), head[4:8], 8
            if size == 1:
                size, begin = int.from_bytes(head[8:16], "big"), 16
            elif size == 0:
                size = self.size - at
            if size < begin or (kind not in _BOXES and not media):
                return None
            if kind == b"mdat":
                media.append((at + begin, min(at + size, self.size)))
            at += size
        return None

    def read_range(self, begin: int, size: int) -> bytes:
        """Return bytes, and zeros in place of media."""
        end = min(begin + max(0, size), self.size)
        parts, at = [], begin
        for low, high in self._media:
            if high <= at or low >= end:
                continue
            if at < low:
                parts.append(super().read_range(at, low - at))
            at = min(high, end)
            parts.append(bytes(at - max(low, begin)))
        if at < end:
            parts.append(super().read_range(at, end - at))
        return b"".join(parts)
