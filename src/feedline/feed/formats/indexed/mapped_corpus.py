"""Archives that are read in place: the common part of tar and RecordIO.

Guarantees and cost: the first opening reads the headers, natively, to index the samples (24 bytes each, see
`file_index`). Later ones read O(chunks). A chunk is a view of the mapped file, or of bytes that were fetched ahead.
"""

from __future__ import annotations

import glob
import mmap
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.data import Chunk
from feedline.errors import DataError
from feedline.feed.files.compressed_text import Unpacker
from feedline.feed.files.lru import LruCache
from feedline.feed.files.paths import PathLike, list_files, looking
from feedline.feed.files.read_into import read_most
from feedline.feed.files.remote import by_ranges, within_reach
from feedline.feed.files.truncation_guard import map_whole
from feedline.feed.formats.indexed.file_index import Cache
from feedline.feed.formats.indexed.indexed_corpus import ChunkPlace, IndexedCorpus, IndexedFile
from feedline.feed.formats.unreadable import mark_gaps, populate
from feedline.feed.protocol import Deserializer, Extent, Fetchable, Ints, Piece, Unread

SKIP = 'pass on_error="skip" to the source to skip such samples and list them'

_HEADERS = 1 << 16  # that are indexed between two checks for Ctrl-C
_MAX_MAPS = 256  # that are kept, in addition to maps of chunks in use


class HeaderScan:
    """The attributes of an indexer that building an index needs."""

    error: tuple[int, int] | None = None
    has_ids = True
    lines = 0


def scan_headers(
    make_indexer: Callable[..., Any],
) -> Callable[[HeaderScan, BinaryIO, Path, int, Unpacker | None], Iterator[tuple[NDArray[np.uint8], int]]]:
    """Return a `scan` for `IndexKind` that reads headers and skips data.

    Args:
        make_indexer: type of a native indexer of headers, such as `_native.TarIndexer`.
    """

    def scan(
        progress: HeaderScan, archive: BinaryIO, path: Path, size: int, _: Unpacker | None
    ) -> Iterator[tuple[NDArray[np.uint8], int]]:
        headers = make_indexer(archive.fileno(), size, within_reach(archive))
        while not headers.done:
            entries = headers.next(_HEADERS)
            progress.error = headers.error
            if headers.error_number:
                raise DataError(
                    f"expected readable bytes, got: {os.strerror(headers.error_number)}",
                    path=str(path),
                    byte=None if headers.error is None else headers.error[1],
                )
            yield entries, headers.bytes

    return scan


class ArchivePart(NamedTuple):
    """Samples in memory, mapped or read.

    Attributes:
        memory: the bytes, uint8.
        base: byte of the file at which memory begins.
        begin, size: first bytes of the samples in memory, and their sizes, int64.
        entries: their `ENTRY` records in the index.
        first: ordinal of the first sample.
        path: path of the file.
    """

    memory: NDArray[np.uint8]
    base: int
    begin: Ints
    size: Ints
    entries: NDArray[Any]
    first: int
    path: str

    def error(self, sample: int, what: str, byte: int, stream: str | None) -> DataError:
        """Return the error for a sample, by its number and a byte in memory."""
        byte += self.base
        return DataError(what, path=self.path, byte=byte, sequence=self.first + sample, stream=stream, hint=SKIP)


class MappedCorpus(IndexedCorpus[IndexedFile], Fetchable):
    """Indexed archives whose chunks are views of mapped files. For arguments see `IndexedCorpus`."""

    _unit = "sample"

    def __init__(
        self, path: PathLike | Sequence[PathLike], *, chunk_size: int, cache: Cache, memory_bytes: int, **options: Any
    ) -> None:
        super().__init__(path, chunk_size=chunk_size, cache=cache, memory_bytes=memory_bytes, **options)
        self._maps = LruCache(self._map, lambda _: 1, _MAX_MAPS)

    def read(self, chunk: int) -> Chunk:
        """Return the samples of a chunk: bytes and texts are views of the mapped file.

        Raises:
            DataError: the file has changed since it was indexed, or the decoded chunk would exceed ``memory``.
        """
        place = self._place(chunk)
        file, begin, size = place.file, place.begin, place.size
        if by_ranges(file.path):
            return self._read_around(place)
        with file.open() as archive:
            file.compare(archive)
        mapped, seals = self._maps.get(place.number)
        try:
            populate(mapped, begin, begin + size)
        except OSError:
            return self._read_around(place)
        memory = np.frombuffer(mapped, np.uint8, size, begin)
        return self._chunk(self._part(place, memory), seals)

    def extents(self, chunk: int) -> list[Extent]:
        """Return the part of the archive with the chunk."""
        place = self._place(chunk)
        return [Extent(str(place.file.path), place.begin, place.size)]

    def read_fetched(self, chunk: int, pieces: Sequence[Piece]) -> Chunk:
        """See `Fetchable.read_fetched`."""
        (piece,) = pieces
        place = self._place(chunk)
        if isinstance(piece, Unread):
            return self._read_around(place)
        with place.file.open() as archive:
            place.file.compare(archive)
        return self._chunk(self._part(place, np.frombuffer(piece, np.uint8)))

    def _read_around(self, place: ChunkPlace[IndexedFile]) -> Chunk:
        """Return the samples of a chunk, with errors for samples that the disk cannot read."""
        memory = np.empty(place.size, np.uint8)
        with place.file.open() as archive:
            gaps = read_most(archive, memory, place.begin, place.file.path)
            place.file.compare(archive)
        part = self._part(place, memory)
        begin = part.begin + place.begin
        return mark_gaps(self._chunk(part), gaps, begin, begin + part.size, path=part.path, first=part.first)

    def _map(self, number: int) -> tuple[mmap.mmap, list[NDArray[np.uint8]]]:
        file = self._files[number]
        with file.open() as archive:
            file.compare(archive)
            return map_whole(archive, file.path, file.index.header.file_size)

    def _part(self, place: ChunkPlace[IndexedFile], memory: NDArray[np.uint8]) -> ArchivePart:
        file = place.file
        entries = file.read_index(lambda index: index.entries(place.local))
        begin = entries["offset"].astype(np.int64) - place.begin
        first = int(self._starts[place.number] + file.index.first[place.local])
        sizes = entries["size"].astype(np.int64)
        return ArchivePart(memory, place.begin, begin, sizes, entries, first=first, path=str(file.path))

    select = Deserializer.select  # a map of the chunk costs nothing

    @abstractmethod
    def _chunk(self, part: ArchivePart, seals: Sequence[NDArray[np.uint8]] = ()) -> Chunk:
        """Return the samples of a part, whose memory is mapped if there are seals."""

    def close(self) -> None:
        """Release the maps. Chunks that were returned keep theirs."""
        self._maps.clear()


def archives_at(path: PathLike | Sequence[PathLike], suffix: str) -> list[Path]:
    """Return the archives at a path, or those in a folder by their suffix, such as ``".tar"``."""
    if not isinstance(path, (str, os.PathLike)):
        return [
            file for entry in list_files(path) for file in (archives_at(entry, suffix) if entry.is_dir() else [entry])
        ]
    with looking(path):
        if os.path.isdir(path):
            return list_files(os.path.join(glob.escape(os.fspath(path)), f"*{suffix}"))
    return list_files(path)
