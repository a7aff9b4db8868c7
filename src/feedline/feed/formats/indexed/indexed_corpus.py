"""A `Deserializer` over several files with an index of their sequences, see `indexed_file`."""

from __future__ import annotations

import functools
import hashlib
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.data import Chunk, Stream
from feedline.errors import DataError
from feedline.feed.assembly import ChunkSet
from feedline.feed.files.paths import PathLike, list_files, name_of, read_at, size_of
from feedline.feed.formats.indexed.file_index import Cache, IndexKind, fetch_shipped
from feedline.feed.formats.indexed.indexed_file import UNPACK_BYTES, IndexedFile
from feedline.feed.progress_bar import Progress
from feedline.feed.protocol import ChunkInfo, Deserializer, Growing, Indexed, Ints, whole_number
from feedline.feed.unique import distinct

MAX_AT_ONCE = 1000
"""Errors of a chunk that are described when it is read. If there are more, each is described on access."""

_GAP_BYTES = 64 << 10  # gaps up to this size are read rather than skipped
_LINES_BLOCK = 1 << 20

_log = logging.getLogger("feedline")
Ordinals = Sequence[int] | Ints
"""Ordinals of sequences. A range for a whole chunk, as an array could take as much memory as its decoded values."""


class ChunkPlace(NamedTuple):
    """The place of a chunk.

    Attributes:
        file: file of the chunk.
        number: number of the file in the corpus.
        local: number of the chunk in the file.
        begin, size: first byte and size of the chunk in the file, or in the text of a compressed file.
    """

    file: IndexedFile
    number: int
    local: int
    begin: int
    size: int


class IndexedCorpus(Deserializer, Growing, Indexed):
    """A corpus of indexed files, one after the other.

    Subclasses set ``schema``, and call `_index`.

    Args:
        path: a file, a list of files, a folder or a glob pattern.
        chunk_size: maximum bytes of a chunk.
        cache: where to keep the index.
        memory_bytes: bytes that a decoded chunk may take.
        options: further arguments of the subclass's constructor, after path and streams.
    """

    _unit = "sequence"
    _files: list[IndexedFile]

    def __init__(
        self, path: PathLike | Sequence[PathLike], *, chunk_size: int, cache: Cache, memory_bytes: int, **options: Any
    ) -> None:
        self._chunk_size = whole_number("chunk_size", chunk_size, 1)
        self._memory_bytes = whole_number("memory", memory_bytes, 1)
        self._paths = list_files(path)
        self.name = name_of(self._paths)
        self._arguments = {**options, "chunk_size": self._chunk_size, "cache": cache, "memory": self._memory_bytes}

    def _index(self, kind: IndexKind, progress: Progress) -> None:
        """Open the files. ``progress`` is called with the bytes of all files.

        Raises:
            DataError: the files have no sequence.
        """
        fetch_shipped(self._paths, kind, self._arguments["cache"])
        parts = _progress_of_each(self._paths, progress)
        files = [self._open(path, kind, part) for path, part in zip(self._paths, parts, strict=True)]
        self._files = files
        self._infos = [ChunkInfo(*row) for file in files for row in file.sizes()]
        # First sequence and first chunk of each file.
        self._starts = offsets_of(file.index.header.sequences for file in files)
        self._chunk_starts = offsets_of(len(file.index.table) for file in files)
        if not self._infos:
            raise self._empty_error()

    def _open(self, path: Path, kind: IndexKind, progress: Progress) -> IndexedFile:
        """Return a file with its index."""
        unpack_bytes = self._arguments.get("unpack", UNPACK_BYTES)
        return IndexedFile(path, kind, self._arguments["cache"], progress, unpack_bytes)

    def _empty_error(self) -> DataError:
        return DataError(f"expected at least one {self._unit}, got none", path=self.name)

    def chunks(self) -> list[ChunkInfo]:
        """Return the size of every chunk: sequences, samples by the index, and stored bytes."""
        return self._infos

    def digest(self) -> str:
        """Return 32 hex digits over settings, and the files' sizes, excerpts, chunk tables and fields of headers."""
        return list(self.digests())[-1][1]

    def digests(self) -> Iterator[tuple[int, str]]:
        """Yield the digest after each file, see `Growing.digests`."""
        identity, *fields = self._content_identity()
        content = hashlib.blake2b(identity.encode(), digest_size=16)
        for file, end in zip(self._files, self._chunk_starts[1:].tolist(), strict=True):
            head = file.index.header
            values = (getattr(head, field) for field in ("file_size", "sample", "sequences", *fields))
            content.update(repr(tuple(values)).encode())
            content.update(file.index.table.tobytes())
            content.update(self._file_identity(file))
            yield end, content.hexdigest()

    def indexes(self) -> Iterator[tuple[str, Callable[[BinaryIO], None]]]:
        """See `Indexed.indexes`."""
        for file in self._files:
            if file.path != file.source:
                raise DataError(
                    "expected Zstandard with access points, got a large frame, which each machine has to unpack",
                    path=str(file.source),
                    hint="compress it again in frames: zstd --seekable, or pzstd",
                )
            yield str(file.source), file.ship

    @abstractmethod
    def _content_identity(self) -> tuple[str, ...]:
        """Return a text of the settings that decide about the content, and names of fields of headers that do."""

    def _file_identity(self, file: IndexedFile) -> bytes:
        """Return what a file adds to the digest: nothing."""
        return b""

    def paths(self) -> list[str]:
        """Return the paths of the files."""
        return [str(file.source) for file in self._files]

    def lengths(self, ordinals: Ints) -> Ints | None:
        """Return the samples of sequences, int64 (n,), or None if each has one."""
        if all(file.index.single for file in self._files):
            return None
        return self._entries(ordinals, "samples").astype(np.int64, copy=False)

    def _entries(self, ordinals: Ints, field: str) -> NDArray[Any]:
        """Return a field of the checked index entries of sequences."""
        places = by_file(np.asarray(ordinals, np.int64), self._starts)
        parts = [(at, self._files[number].entries_at(local, field)) for number, at, local in places]
        if len(parts) == 1:
            return parts[0][1]
        values = np.empty(len(ordinals), parts[0][1].dtype if parts else np.uint64)
        for at, part in parts:
            values[at] = part
        return values

    def _place(self, chunk: int) -> ChunkPlace:
        """Return the place of a chunk.

        Raises:
            IndexError: there is no chunk of this number.
        """
        if not 0 <= chunk < len(self._infos):
            raise IndexError(f"expected a chunk from 0 to {len(self._infos) - 1}, got {chunk}")
        number = int(np.searchsorted(self._chunk_starts, chunk, side="right")) - 1
        file, local = self._files[number], chunk - int(self._chunk_starts[number])
        row = file.index.table[local]
        return ChunkPlace(file, number, local, int(row["offset"]), int(row["bytes"]))

    def _ordinals(self, place: ChunkPlace) -> range:
        """Return the ordinals of a chunk's sequences in the corpus."""
        return range(*(place.file.index.first[place.local : place.local + 2] + self._starts[place.number]).tolist())

    def select(self, ordinals: Ints) -> Chunk:
        """Return the sequences ``ordinals``, in that order, reading only their bytes, or the spans of a compressed file
        that hold them.

        Raises:
            IndexError: an ordinal is outside the corpus.
            DataError: as for `read`.
        """
        parts = ChunkSet(self.schema)
        slots, rows = np.empty(len(ordinals), np.uint32), np.empty(len(ordinals), np.int64)
        errors: dict[int, DataError] = {}
        for number, at, local in by_file(np.asarray(ordinals, np.int64), self._starts):
            once, inverse = np.unique(local, return_inverse=True)
            part = self._select_in(number, once)
            if len(once) == len(ordinals) and np.array_equal(once, local):
                return part
            slots[at], rows[at] = parts.add(part), inverse
            if part.errors:
                places = zip(at.tolist(), inverse.tolist(), strict=True)
                errors |= {i: part.errors[k] for i, k in places if k in part.errors}
        return Chunk(self.schema, parts.gather(slots, rows), errors)

    def _select_in(self, number: int, local: Ints) -> Chunk:
        """Return sequences of one file. ``local`` are their numbers there, ascending."""
        raise NotImplementedError

    def _declarations(self) -> dict[str, Stream]:
        """Return the streams as they were declared, or inferred."""
        return dict(self.schema.streams)

    def __reduce__(self) -> tuple[Any, ...]:
        # Each process opens the files for itself.
        kind: Callable[..., Any] = type(self)
        return functools.partial(kind, self.paths(), self._declarations(), **self._arguments), ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}: {self._starts[-1]} {self._unit}s, {len(self._infos)} chunks)"


def _progress_of_each(paths: list[Path], progress: Progress) -> list[Progress]:
    """Return a progress function for each file. ``progress`` is then called with the bytes of all files."""
    if not callable(progress):
        return [progress] * len(paths)  # None, or a bar for each file
    sizes = [size_of(path) if path.exists() else 0 for path in paths]
    total = sum(sizes)
    return [lambda n, _, before=before: progress(before + n, total) for before in offsets_of(sizes).tolist()[:-1]]  # type: ignore[misc]


def by_file(ordinals: Ints, starts: Ints) -> Iterator[tuple[int, Ints, Ints]]:
    """Yield (number of the file, places in ``ordinals``, ordinals within the file) for each file with any of them.

    Args:
        ordinals: ordinals in the corpus.
        starts: first ordinal of each file, and the number of sequences.

    Raises:
        IndexError: an ordinal is outside the corpus.
    """
    if len(ordinals) and (ordinals.min() < 0 or ordinals.max() >= starts[-1]):
        raise IndexError(f"expected ordinals from 0 to {starts[-1] - 1}, got {ordinals.min()} to {ordinals.max()}")
    if len(starts) == 2 and len(ordinals):
        yield 0, np.arange(len(ordinals)), ordinals
        return
    file_of = np.searchsorted(starts, ordinals, side="right") - 1
    for number in distinct(file_of).tolist():
        at = np.flatnonzero(file_of == number)
        yield number, at, ordinals[at] - starts[number]


def merge_reads(entries: NDArray[Any]) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the ranges of bytes to read for index entries, in the order of the file. Neighbours share one read.

    Returns:
        First byte and end of each read, the cumulative sizes of the reads, from 0, and the place of each entry in the
        bytes that are read.
    """
    begin = entries["offset"].astype(np.int64)
    end = begin + entries["size"]
    heads = np.flatnonzero(np.concatenate([[True], begin[1:] - end[:-1] > _GAP_BYTES]))
    lows, highs = begin[heads], end[np.append(heads[1:] - 1, len(end) - 1)]
    places = offsets_of(highs - lows)
    return lows, highs, places, begin - np.repeat(lows - places[:-1], np.diff(np.append(heads, len(begin))))


def check_memory(needed: int, max_bytes: int, path: str, cut: str = "chunk_size") -> None:
    """Check the memory of sequences that are decoded at once. ``cut`` is the option that makes chunks smaller.

    Raises:
        DataError: they need more than ``max_bytes``.
    """
    if needed > max_bytes:
        raise DataError(
            f"expected at most {max_bytes} bytes decoded at once (memory), got {needed}",
            path=path,
            hint=f"raise memory=, or lower {cut}=",
        )


def offsets_of(sizes: Iterable[int]) -> Ints:
    """Return the cumulative sums from 0, int64 (n + 1,)."""
    return np.concatenate([[0], np.cumsum(np.fromiter(sizes, np.int64))])


def line_of(file: BinaryIO, byte: int, near: tuple[int, int] = (0, 1)) -> int:
    """Return the number, from 1, of the line with ``byte``.

    Args:
        file: the text.
        byte: offset from its start.
        near: an offset before ``byte`` and its line number, from which lines are counted.
    """
    at, line = near
    while at < byte:
        block = read_at(file, min(_LINES_BLOCK, byte - at), at)
        if not block:
            break
        line += block.count(b"\n")
        at += len(block)
    return line
