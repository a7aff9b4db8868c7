"""Archives that are read in place: the common part of tar and RecordIO.

Guarantees and cost: the first opening reads the headers, natively, to index the samples (24 bytes each, see
`file_index`). Later ones read O(chunks). A chunk is a view of the mapped file, or of bytes that were fetched ahead. A
compressed archive is decompressed once to index it, one block at a time. Then a chunk is decompressed from the nearest
point before it.
"""

from __future__ import annotations

import fnmatch
import mmap
import os
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline import system
from feedline.data import Chunk
from feedline.errors import DataError
from feedline.feed.files.compressed_text import Unpacker
from feedline.feed.files.lru import LruCache
from feedline.feed.files.paths import PathLike, list_files, looking
from feedline.feed.files.remote import by_ranges, within_reach
from feedline.feed.files.truncation_guard import map_whole
from feedline.feed.formats.indexed.file_index import Cache
from feedline.feed.formats.indexed.indexed_corpus import (
    ChunkPlace,
    IndexedCorpus,
    Ordinals,
    check_memory,
    merge_reads,
)
from feedline.feed.formats.indexed.indexed_file import Hole, IndexedFile
from feedline.feed.protocol import Deserializer, Extent, Fetchable, Ints, Piece, Unread

SKIP = 'pass on_error="skip" to the source to skip such samples and list them'

_HEADERS = 1 << 16  # that are indexed between two checks for Ctrl-C
_PACKED_HEADERS = 1 << 8  # of a compressed archive, whose data is read, too
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
        make_indexer: type of a native indexer of headers, such as `_native.TarIndexer`. For archives that may be
            compressed it takes blocks, too.
    """

    def scan(
        progress: HeaderScan, archive: BinaryIO, path: Path, size: int, unpacker: Unpacker | None
    ) -> Iterator[tuple[NDArray[np.uint8], int]]:
        if unpacker is None:
            headers, count = make_indexer(archive.fileno(), size, within_reach(archive)), _HEADERS
        else:
            parts = unpacker.parts(archive, path, size)
            headers, count = make_indexer(parts), _PACKED_HEADERS
        while not headers.done:
            entries = headers.next(count)
            progress.error = headers.error
            if unpacker is not None and headers.error is not None:
                deque(parts, maxlen=0)  # damage of the compressed file shows at its end, and is the cause
            if headers.error_number:
                raise DataError(
                    f"expected readable bytes, got: {os.strerror(headers.error_number)}",
                    path=str(path),
                    byte=None if headers.error is None else headers.error[1],
                )
            yield entries, headers.bytes if unpacker is None else unpacker.done

    return scan


class ArchivePart(NamedTuple):
    """Samples in memory, mapped or read.

    Attributes:
        memory: the bytes, uint8.
        begin, size: first bytes of the samples in memory, and their sizes, int64.
        entries: their `ENTRY` records in the index.
        ordinals: their ordinals in the corpus.
        path: path of the file.
    """

    memory: NDArray[np.uint8]
    begin: Ints
    size: Ints
    entries: NDArray[Any]
    ordinals: Ordinals
    path: str

    def error(self, sample: int, what: str, byte: int, stream: str | None) -> DataError:
        """Return the error for a sample, by its number and a byte in memory."""
        byte += int(self.entries["offset"][sample]) - int(self.begin[sample])
        sequence = int(self.ordinals[sample])
        return DataError(what, path=self.path, byte=byte, sequence=sequence, stream=stream, hint=SKIP)


class MappedCorpus(IndexedCorpus, Fetchable):
    """Indexed archives whose chunks are views of mapped files. For arguments see `IndexedCorpus`."""

    _unit = "sample"

    def __init__(
        self, path: PathLike | Sequence[PathLike], *, chunk_size: int, cache: Cache, memory_bytes: int, **options: Any
    ) -> None:
        super().__init__(path, chunk_size=chunk_size, cache=cache, memory_bytes=memory_bytes, **options)
        self._maps = LruCache(self._map, lambda _: 1, _MAX_MAPS)

    def read(self, chunk: int) -> Chunk:
        """Return the samples of a chunk: bytes and texts are views of the mapped file, or of decompressed bytes.

        Raises:
            DataError: the file has changed since it was indexed, or the decoded chunk would exceed ``memory``.
        """
        place = self._place(chunk)
        file, begin, size = place.file, place.begin, place.size
        if file.is_packed or by_ranges(file.path):
            return self._read_around(place)
        with file.open() as archive:
            file.compare(archive)
        mapped, seals = self._maps.get(place.number)
        try:
            system.populate(mapped, begin, begin + size)
        except OSError:
            return self._read_around(place)
        memory = np.frombuffer(mapped, np.uint8, size, begin)
        return self._chunk(self._part(place, memory), seals)

    def extents(self, chunk: int) -> list[Extent]:
        """Return the part of the archive with the chunk."""
        place = self._place(chunk)
        first, end = place.file.extent(place.begin, place.size)
        return [Extent(str(place.file.path), first, end - first)]

    def read_fetched(self, chunk: int, pieces: Sequence[Piece]) -> Chunk:
        """See `Fetchable.read_fetched`."""
        (piece,) = pieces
        place = self._place(chunk)
        if isinstance(piece, Unread):
            return self._read_around(place)
        file = place.file
        with file.open() as archive:
            file.compare(archive)
        memory, holes = np.frombuffer(piece, np.uint8), list[Hole]()
        if file.is_packed:
            packed, memory = memory, self._memory_for(place.size, file)
            first, _ = file.extent(place.begin, place.size)
            holes = file.unpack(packed, first, memory, place.begin)
        return self._mark(self._part(place, memory), holes, file)

    def _read_around(self, place: ChunkPlace) -> Chunk:
        """Return the samples of a chunk, with errors for samples that the disk cannot read."""
        file, memory = place.file, self._memory_for(place.size, place.file)
        with file.open() as archive:
            holes = file.fill(archive, memory, place.begin)
            file.compare(archive)
        return self._mark(self._part(place, memory), holes, file)

    def _memory_for(self, size: int, file: IndexedFile) -> NDArray[np.uint8]:
        """Return memory for a part of an archive.

        Raises:
            DataError: its decompressed bytes exceed the memory.
        """
        if file.is_packed:
            check_memory(size, self._memory_bytes, str(file.source))
        return np.empty(size, np.uint8)

    def _mark(self, part: ArchivePart, holes: Sequence[Hole], file: IndexedFile) -> Chunk:
        """Return the samples of a part, with errors for samples in holes."""
        chunk = self._chunk(part)
        assert isinstance(chunk.errors, dict)
        begin = part.entries["offset"].astype(np.int64)
        for low, high, reason in holes:
            for i in np.flatnonzero((begin < high) & (begin + part.size > low)).tolist():
                chunk.errors[i] = file.hole_error(low, reason, int(part.ordinals[i]), None)
        return chunk

    def _map(self, number: int) -> tuple[mmap.mmap, list[NDArray[np.uint8]]]:
        file = self._files[number]
        with file.open() as archive:
            file.compare(archive)
            return map_whole(archive, file.path, file.index.header.file_size)

    def _part(self, place: ChunkPlace, memory: NDArray[np.uint8]) -> ArchivePart:
        file = place.file
        entries = file.read_index(lambda index: index.entries(place.local))
        begin = entries["offset"].astype(np.int64) - place.begin
        sizes = entries["size"].astype(np.int64)
        return ArchivePart(memory, begin, sizes, entries, self._ordinals(place), path=str(file.source))

    def select(self, ordinals: Ints) -> Chunk:
        """Return the sequences ``ordinals``, in that order, of compressed files by the spans that hold them.

        Raises:
            IndexError: an ordinal is outside the corpus.
            DataError: as for `read`.
        """
        if any(file.is_packed for file in self._files):
            return super().select(ordinals)
        return Deserializer.select(self, ordinals)  # a map of the chunk costs nothing

    def _select_in(self, number: int, local: Ints) -> Chunk:
        file = self._files[number]
        entries = file.entries_at(local)
        lows, highs, places, position = merge_reads(entries)
        memory, holes = self._memory_for(int(places[-1]), file), list[Hole]()
        with file.open() as archive:
            for low, high, place in zip(lows.tolist(), highs.tolist(), places.tolist(), strict=False):
                holes += file.fill(archive, memory[place : place + high - low], low)
            file.compare(archive)
        sizes, ordinals = entries["size"].astype(np.int64), local + self._starts[number]
        return self._mark(ArchivePart(memory, position, sizes, entries, ordinals, path=str(file.source)), holes, file)

    @abstractmethod
    def _chunk(self, part: ArchivePart, seals: Sequence[NDArray[np.uint8]] = ()) -> Chunk:
        """Return the samples of a part, whose memory is mapped if there are seals."""

    def close(self) -> None:
        """Release the maps. Chunks that were returned keep theirs."""
        self._maps.clear()


def archives_at(path: PathLike | Sequence[PathLike], *suffixes: str) -> list[Path]:
    """Return the archives at a path, or those in a folder by patterns of their suffixes, such as ``".tar"``."""
    if not isinstance(path, (str, os.PathLike)):
        return [
            file
            for entry in list_files(path)
            for file in (archives_at(entry, *suffixes) if entry.is_dir() else [entry])
        ]
    with looking(path):
        if not os.path.isdir(path):
            return list_files(path)
        archives = [f for f in list_files(path) if any(fnmatch.fnmatchcase(f.name, f"*{end}") for end in suffixes)]
    if not archives:
        raise DataError(f"expected files *{', *'.join(suffixes)} in the folder, got none", path=os.fspath(path))
    return archives
