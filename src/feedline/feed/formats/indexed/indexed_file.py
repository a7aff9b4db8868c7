"""A file, compressed or not, with an index of its sequences.

Guarantees: a damaged index is rebuilt. A file that changes while it is open is an error, never a crash or wrong data. A
compressed file is decompressed from the nearest point before the text that is read (see `files.compressed_text`).
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray

from feedline.concurrency.fork_local import PerProcess
from feedline.errors import DataError
from feedline.feed.files.compressed_text import LargeFrameError, Points, find_unpacked, packing_of, unpack
from feedline.feed.files.paths import open_file, read_at, status_of
from feedline.feed.files.read_into import read_most
from feedline.feed.formats import unreadable
from feedline.feed.formats.indexed.file_index import Cache, DamagedIndexError, IndexKind, TextIndex, open_index
from feedline.feed.progress_bar import Progress
from feedline.feed.protocol import Ints, Unread

UNPACK_BYTES = 64 << 30
"""Bytes of disk that the decompressed text of a large frame of Zstandard may take, by default."""

SKIP = 'pass on_error="skip" to the source to skip such sequences and list them'

Hole = tuple[int, int, Unread | str]
"""A part of a text that could not be read: first byte, end, and the reason."""

_log = logging.getLogger("feedline")
_T = TypeVar("_T")


def packing_of_text(text: BinaryIO) -> str | None:
    """Return the compression of a text, or None if it is not compressed."""
    return packing_of(read_at(text, 4, 0))


class IndexedFile:
    """A file, compressed or not, and its index.

    Args:
        path: path of the file.
        kind: how it is indexed.
        cache: where to keep the index.
        progress: see `open_index`.
        unpack_bytes: bytes of disk that the text of a large frame of Zstandard may take.

    Attributes:
        path: path of the file that is read.
        source: path of the original file, which differs from ``path`` if the text was unpacked to a cache.
        index: the index.
    """

    def __init__(
        self, path: Path, kind: IndexKind, cache: Cache, progress: Progress, unpack_bytes: int = UNPACK_BYTES
    ) -> None:
        self.source, self._kind, self._cache = path, kind, cache
        self._lock = PerProcess(Lock)
        with open_file(path) as file:
            self.path = find_unpacked(path, file, cache) or path
        try:
            self.index = open_index(self.path, kind, cache, progress)
        except LargeFrameError:
            with open_file(path) as file:
                self.path = unpack(path, file, cache, unpack_bytes)
            self.index = open_index(self.path, kind, cache, progress)

    @functools.cached_property
    def _points(self) -> Points | None:
        if not self.is_packed:
            return None
        with open_file(self.path) as file:  # once, and not before the file is read
            return Points(self._kind.packing(file) or "gzip", self.index.points)

    @property
    def is_packed(self) -> bool:
        """Whether the file is compressed, so that its text is not in the file."""
        return len(self.index.points) > 0

    def sizes(self) -> list[tuple[int, int, int]]:
        """Return sequences, samples and bytes of every chunk."""
        table = self.index.table
        return list(zip(*(table[k].tolist() for k in ("sequences", "samples", "bytes")), strict=True))

    def read_index(self, get: Callable[[TextIndex], _T]) -> _T:
        """Return ``get(index)``. A damaged index is rebuilt first."""
        try:
            return get(self.index)
        except DamagedIndexError as damage:
            with self._lock.get():
                _log.warning("the index of %s is damaged (%s); rebuilding it", self.path, damage)
                fresh = open_index(self.path, self._kind, self._cache, rebuild=True)
                if not np.array_equal(fresh.table, self.index.table):
                    raise self._change_error() from damage
                self.index = fresh
        return get(self.index)

    def ship(self, to: BinaryIO) -> None:
        """Write the index to a file as one that can be copied with the text.

        A shipped index is not written again: the text is scanned, as it may have changed where no excerpt shows it.
        """
        index = self.index
        if index.is_shipped:
            index = open_index(self.path, self._kind, self._cache, rebuild=True)
        index.ship(to)

    def entries_at(self, ordinals: Ints, field: str | None = None) -> NDArray[Any]:
        """Return the checked index entries of sequences, or one field of them. See `TextIndex.at`."""
        return self.read_index(lambda index: index.at(ordinals, field))

    def open(self) -> BinaryIO:
        """Open the file."""
        return open_file(self.path)

    def compare(self, file: BinaryIO) -> None:
        """Check, after reading, that the file has not changed since it was indexed."""
        now, then = status_of(file), self.index.header
        if (now.st_size, now.st_mtime_ns) != (then.file_size, self.index.modified_ns):
            raise self._change_error()

    @contextlib.contextmanager
    def index_errors(self) -> Iterator[None]:
        """Return a context in which native code reads text by index entries. Its ValueError, for impossible entries,
        becomes a DataError."""
        try:
            yield
        except ValueError as error:
            # Text and entries were checked, so this happens only if the index file is being changed.
            raise DataError(
                f"expected an unchanging index, got one that was modified after it was checked: {error}",
                path=str(self.source),
                hint="open it again",
            ) from error

    def _change_error(self) -> DataError:
        return DataError(
            "expected the file as it was when it was opened, got one that has changed since",
            path=str(self.path),
            hint="open it again; its sequences and their order may have changed",
        )

    def extent(self, begin: int, size: int) -> tuple[int, int]:
        """Return first byte and end of the part of the file with a part of the text."""
        if self._points is None:
            return begin, begin + size
        spans, packed = self._points.spans(begin, begin + size), self._points.table["packed"]
        return int(packed[spans.start]), int(packed[spans.stop])

    def fill(self, file: BinaryIO, into: NDArray[np.uint8], begin: int) -> list[Hole]:
        """Fill ``into`` with text from byte ``begin`` on, with blanks where the disk fails or the file is damaged."""
        if self._points is None:
            return [(low, high, Unread(error, low)) for low, high, error in read_most(file, into, begin, self.path)]
        first, end = self.extent(begin, len(into))
        packed = np.empty(end - first, np.uint8)
        return self.unpack(packed, first, into, begin, read_most(file, packed, first, self.path))

    def unpack(
        self,
        packed: NDArray[np.uint8],
        first: int,
        into: NDArray[np.uint8],
        begin: int,
        gaps: Sequence[tuple[int, int, int]] = (),
    ) -> list[Hole]:
        """Fill ``into`` with text from byte ``begin`` on, from the bytes of the file from byte ``first`` on.

        Args:
            packed: bytes of the file.
            first: offset of ``packed`` in the file.
            into: memory for the text.
            begin: offset of ``into`` in the text.
            gaps: parts of the file that the disk did not deliver, see `read_most`.
        """
        if self._points is None:
            into[:] = packed
            return []
        holes: list[Hole] = []
        table = self._points.table
        for number in self._points.spans(begin, begin + len(into)):
            packed_begin, packed_end = (int(table["packed"][k]) - first for k in (number, number + 1))
            text_begin, text_end = int(table["text"][number]), int(table["text"][number + 1])
            low, high = max(begin, text_begin), min(begin + len(into), text_end)
            if low >= high:
                continue
            gap = next((gap for gap in gaps if gap[0] < first + packed_end and gap[1] > first + packed_begin), None)
            if gap is not None:
                into[low - begin : high - begin] = ord(" ")
                holes.append((low, high, Unread(gap[2], max(gap[0], first + packed_begin))))
                continue
            window = self.read_index(lambda index, number=number: index.window(number))  # type: ignore[misc]
            try:
                text = self._points.span(number, packed[packed_begin:packed_end], window)
                into[low - begin : high - begin] = text[low - text_begin : high - text_begin]
            except ValueError as error:
                into[low - begin : high - begin] = ord(" ")
                holes.append((low, high, str(error)))
        return holes

    def hole_error(self, byte: int, reason: Unread | str, sequence: int, line: int | None) -> DataError:
        """Return the error for a row in a hole."""
        if isinstance(reason, Unread):
            return unreadable.read_error(reason, str(self.source), sequence)
        assert self._points is not None
        span = int(np.searchsorted(self._points.table["text"], byte, side="right")) - 1
        return DataError(
            f"expected intact {self._points.packing}, got: {reason}",
            path=str(self.source),
            byte=int(self._points.table["packed"][span]),
            line=line,
            sequence=sequence,
            hint=f"restore the file; {SKIP}",
        )
