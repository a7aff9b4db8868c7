"""CNTK text format (CTF): a `Deserializer` for one or several text files.

Guarantees: CNTK's grammar and chunks; numbers are rounded correctly; no value is invented unless `fill_missing` asks
for it; an unreadable sequence keeps its place and reports why; nothing outside the declared streams is parsed; text is
read with pread, never mapped, and a file that changes while open is an error, not a crash. Cost: the first opening
reads the files once to index them (see `ctf_index`), later ones read O(chunks); reading a chunk costs its text, its
columns, and about 1 ns per byte of text. Reading releases the GIL.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.data import Chunk, Schema, Stream, Value
from feedline.data.chunk import LazyErrors
from feedline.data.value import DenseValue, SparseValue
from feedline.errors import DataError, SchemaError
from feedline.feed.assembly import ChunkSet
from feedline.feed.distinct import distinct
from feedline.feed.files.buffers import ReadBuffers
from feedline.feed.files.paths import PathLike, list_files, name_of, open_file, size_of, status_of
from feedline.feed.files.reading import read_exactly, read_most
from feedline.feed.formats import unreadable
from feedline.feed.formats.ctf_errors import FATAL, NAMES, RECORD, describe, line_of
from feedline.feed.formats.ctf_index import Cache, CtfIndex, DamagedIndexError, IndexOptions, open_index
from feedline.feed.per_process import PerProcess
from feedline.feed.protocol import (
    CHUNK_MEMORY,
    ChunkInfo,
    Deserializer,
    Extent,
    Piece,
    Unread,
    declared_streams,
    whole_number,
)
from feedline.feed.showing import Progress

_PAD_BYTES = 64  # bytes that the native parser may load on either side of the text
_GAP_BYTES = 64 << 10  # gaps up to this many bytes are read rather than skipped
_UNLIMITED = 1 << 62
MOST_AT_ONCE = 1000  # errors of a chunk that are described at once

_log = logging.getLogger("feedline")
_T = TypeVar("_T")
Ints = NDArray[np.int64]


class CTFDeserializer(Deserializer):
    """Sequences of CTF files.

    Args:
        path: a file, a list of files (read as their concatenation), a folder or a glob pattern (sorted by path).
        streams: stream name to `Stream`; also given as keyword arguments. ``field`` is the name in the file, by default
            the stream's own; ``shape`` determines the number of values of a dense sample, or of indices of a sparse
            one; dtype float32 or float64. Fields without a stream are skipped.
        skip_sequence_ids: whether every line is its own sequence, with or without an id.
        lenient: whether to accept blank lines and the numbers ``.5``, ``5.e3``, ``nan``, ``inf``, which CNTK refuses.
        fill_missing: whether to follow CNTK's rule for dense samples with fewer values than declared: the rest is zero.
            False: such a sample is an error.
        max_errors: 0: a sequence with an error is unreadable as a whole. Above: CNTK's row dropping: bad samples are
            dropped, up to this many errors (CNTK counts up to three for one bad row) over the life of this object, each
            chunk's counted once; one more, or a stream left without samples, is a `DataError`.
        chunk_size: bytes of text per chunk. Part of the order: another size is another order.
        cache: where to keep the index: True: next to the file, or in ``$XDG_CACHE_HOME/feedline`` if that is not
            writable; a folder; False: in a temporary file.
        memory: bytes that a decoded chunk may take.
        progress: called with (bytes done, bytes in total) while indexing; an exception from it aborts. True: shown
            on stderr.
        stream_kwargs: more streams.

    Raises:
        SchemaError: no stream, two streams that read the same field, or a declaration that CTF cannot satisfy.
        DataError: a file is missing or not CTF, or its index cannot be written.
    """

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        streams: Mapping[str, Stream] | None = None,
        *,
        skip_sequence_ids: bool = False,
        lenient: bool = False,
        fill_missing: bool = False,
        max_errors: int = 0,
        chunk_size: int = 32 << 20,
        cache: Cache = True,
        memory: int = CHUNK_MEMORY,
        progress: Progress = None,
        **stream_kwargs: Stream,
    ) -> None:
        max_errors = whole_number("max_errors", max_errors, 0)
        chunk_size, memory = whole_number("chunk_size", chunk_size, 1), whole_number("memory", memory, 1)
        paths = list_files(path)
        self.schema = Schema(declared_streams(streams, stream_kwargs))
        self.name = name_of(paths)
        self._arguments = {
            "skip_sequence_ids": skip_sequence_ids,
            "lenient": lenient,
            "fill_missing": fill_missing,
            "max_errors": max_errors,
            "chunk_size": chunk_size,
            "cache": cache,
            "memory": memory,
        }
        self._lenient = lenient
        self._parser = _make_parser(self.schema, lenient, fill_missing, memory)
        size_stream = self.schema.size_stream
        field = None if size_stream is None else (self.schema[size_stream].field or size_stream)
        options = IndexOptions(field, skip_sequence_ids, lenient, chunk_size)
        self._files = open_texts(paths, options, cache, progress)
        self._infos = [ChunkInfo(*row) for file in self._files for row in file.sizes()]
        # First sequence and first chunk of each file.
        self._starts = _offsets(file.index.header.sequences for file in self._files)
        self._chunk_starts = _offsets(len(file.index.table) for file in self._files)
        self._buffers = ReadBuffers(_PAD_BYTES)
        self._max_errors = max_errors
        self._errors_left = max_errors
        self._charged: dict[int, int] = {}
        self._counting = PerProcess(Lock)
        if not self._infos:
            raise DataError(
                f"expected at least one sequence with the field `{field}`, which defines the size, got none",
                path=self.name,
                stream=size_stream,
            )

    # ---- description ------------------------------------------------------------------------------

    def chunks(self) -> list[ChunkInfo]:
        """Return the size of every chunk: sequences, samples as indexed, bytes of text."""
        return self._infos

    def digest(self) -> str:
        """Return 32 hex digits over the files' sizes, excerpts and chunk tables."""
        content = hashlib.blake2b(digest_size=16)
        for file in self._files:
            head = file.index.header
            content.update(repr((head.file_size, head.sample, head.sequences, head.flags)).encode())
            content.update(file.index.table.tobytes())
        return content.hexdigest()

    def paths(self) -> list[str]:
        """Return the paths of the text files."""
        return [str(file.path) for file in self._files]

    def lengths(self, ordinals: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return the samples of sequences: their rows, or those with the stream that defines the size."""
        if all(file.index.single for file in self._files):
            return None
        found = np.empty(len(ordinals), np.int64)
        for number, at, local in self._by_file(ordinals):
            found[at] = self._files[number].checked(_samples_at(local))
        return found

    def keys(self, ordinals: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the ids of sequences; for a file without ids, line numbers, from 0, counted through all files."""
        lines = _offsets(file.index.header.lines for file in self._files)
        found = np.empty(len(ordinals), np.uint64)
        for number, at, entries in self._look_up(ordinals):
            base = 0 if self._files[number].index.has_ids else int(lines[number])
            found[at] = entries["key"] + np.uint64(base)
        return found

    def _look_up(self, ordinals: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64], NDArray[Any]]]:
        """Yield (file, places in ``ordinals``, entries) for each file concerned."""
        for number, at, local in self._by_file(ordinals):
            yield number, at, self._files[number].checked(_at(local))

    def _by_file(self, ordinals: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """See `by_file`."""
        return by_file(np.asarray(ordinals, np.int64), self._starts)

    # ---- reading ----------------------------------------------------------------------------------

    def read(self, chunk: int) -> Chunk:
        """Return the sequences of a chunk, each stream with the rows that it has.

        Raises:
            DataError: the file has changed or is shorter than indexed, the decoded chunk would exceed ``memory``, or
                ``max_errors`` is exhausted.
        """
        if not 0 <= chunk < len(self._infos):
            raise IndexError(f"expected a chunk from 0 to {len(self._infos) - 1}, got {chunk}")
        file, _, begin, size = self._located(chunk)
        with file.opened() as text, self._buffers.lend(size) as buffer:
            unread = read_most(text, buffer[_PAD_BYTES : _PAD_BYTES + size], begin, file.path)
            return self._parsed(chunk, text, buffer, unread)

    def extents(self, chunk: int) -> list[Extent]:
        """Return the text of the chunk, with the padding that the parser may load on both sides."""
        file, _, begin, size = self._located(chunk)
        first = max(0, begin - _PAD_BYTES)
        return [Extent(str(file.path), first, min(begin + size + _PAD_BYTES, file.index.header.file_size) - first)]

    def read_fetched(self, chunk: int, pieces: Sequence[Piece]) -> Chunk:
        """See `Deserializer.read_fetched`."""
        (piece,) = pieces
        if isinstance(piece, Unread):
            return self.read(chunk)  # which reads what it can
        file, _, begin, size = self._located(chunk)
        found = np.frombuffer(piece, np.uint8)
        with file.opened() as text:
            if begin >= _PAD_BYTES and len(found) == size + 2 * _PAD_BYTES:
                return self._parsed(chunk, text, found, [])
            with self._buffers.lend(size) as buffer:  # at the ends of a file, padding is missing on one side
                buffer[_PAD_BYTES : _PAD_BYTES + size] = found[min(begin, _PAD_BYTES) :][:size]
                return self._parsed(chunk, text, buffer, [])

    def _located(self, chunk: int) -> tuple[IndexedText, int, int, int]:
        """Return the file of a chunk, its number there, and first byte and size of its text."""
        number = int(np.searchsorted(self._chunk_starts, chunk, side="right")) - 1
        file, local = self._files[number], chunk - int(self._chunk_starts[number])
        begin, size = (int(file.index.table[local][k]) for k in ("offset", "bytes"))
        return file, local, begin, size

    def _parsed(
        self, chunk: int, text: BinaryIO, buffer: NDArray[np.uint8], unread: Sequence[tuple[int, int, int]]
    ) -> Chunk:
        """Parse a chunk whose text is in ``buffer`` after the padding, with gaps listed in ``unread`` (see
        `read_most`)."""
        file, local, begin, _ = self._located(chunk)
        file.compare(text)
        entries = file.checked(lambda index: index.entries(local))
        first = int(self._starts[self._files.index(file)] + file.index.first[local])
        offsets = entries["offset"].astype(np.int64)
        ordinals = np.arange(first, first + len(entries))
        if unread and self._max_errors > 0:  # errors are counted by sample
            raise unreadable.unread(Unread(unread[0][2], unread[0][0]), str(file.path), first)
        return self._parse(
            chunk,
            file,
            text,
            buffer=buffer,
            position=offsets - begin,
            entries=entries,
            ordinals=ordinals,
            unread=unread,
        )

    def select(self, ordinals: NDArray[np.int64]) -> Chunk:
        """Return the sequences ``ordinals``, in that order, reading only their bytes.

        Raises:
            IndexError: an ordinal is outside the corpus.
            DataError: as for `read`.
        """
        parts = ChunkSet(self.schema)
        slots = np.empty(len(ordinals), np.uint32)
        index = np.empty(len(ordinals), np.int64)
        errors: dict[int, DataError] = {}
        for number, at, local in self._by_file(ordinals):
            once, inverse = np.unique(local, return_inverse=True)
            part = self._select_in(number, once)
            slots[at], index[at] = parts.add(part), inverse
            if part.errors:
                errors.update(
                    (i, part.errors[k]) for i, k in zip(at.tolist(), inverse.tolist(), strict=True) if k in part.errors
                )
        return Chunk(self.schema, parts.gather(slots, index), errors)

    def _select_in(self, number: int, local: NDArray[np.int64]) -> Chunk:
        """Return sequences of one file; ``local`` is ascending."""
        file = self._files[number]
        entries = file.checked(_at(local))
        lows, highs, places, position = read_together(entries)
        with file.opened() as text, self._buffers.lend(int(places[-1])) as buffer:
            for low, high, place in zip(lows.tolist(), highs.tolist(), places.tolist(), strict=False):
                read_exactly(text, buffer[_PAD_BYTES + place : _PAD_BYTES + place + high - low], low, file.path)
            file.compare(text)
            return self._parse(
                None,
                file,
                text,
                buffer=buffer,
                position=position,
                entries=entries,
                ordinals=local + self._starts[number],
            )

    def _parse(
        self,
        chunk: int | None,
        file: IndexedText,
        text: BinaryIO,
        *,
        buffer: NDArray[np.uint8],
        position: NDArray[np.int64],
        entries: NDArray[Any],
        ordinals: NDArray[np.int64],
        unread: Sequence[tuple[int, int, int]] = (),
    ) -> Chunk:
        """Parse the sequences that are in ``buffer`` at ``position`` after the padding, with gaps in the text listed in
        ``unread`` (see `read_most`)."""
        arguments = (
            buffer,
            _PAD_BYTES,
            position,
            np.ascontiguousarray(entries["size"]),
            np.ascontiguousarray(entries["samples"]),
            0,
        )
        try:
            if self._max_errors == 0:
                streams, _, found, _ = self._parser.parse(*arguments, -1)
            else:
                streams, found = self._parse_counting(chunk, arguments)
        except ValueError as error:
            # Cannot happen unless the index file is being changed: text and entries have been checked.
            raise DataError(
                f"expected an unchanging index, got one that was modified after it was checked: {error}",
                path=str(file.path),
                hint="open it again",
            ) from error
        values: dict[str, Value] = {}
        for (name, stream), arrays in zip(self.schema.items(), streams, strict=True):
            if stream.sparse:
                indptr, indices, data, offsets = arrays
                values[name] = SparseValue(indptr, indices, data, stream.size, offsets)
            else:
                rows, offsets = arrays
                values[name] = DenseValue(rows.reshape(len(rows), *stream.shape), offsets)
        records = found.view(RECORD)
        if len(records) == 0 and not unread:
            return Chunk(self.schema, values)
        # From bytes in the buffer to bytes in the file.
        records = records.copy()
        sequence = records["sequence"]
        records["byte"] += (entries["offset"].astype(np.int64) - position).astype(np.uint64)[sequence]
        if len(records):
            self._raise_fatal(file, text, records, ordinals)
        # Where a part could not be read, nothing is read again to describe other errors.
        near = (0, 1) if unread else (int(entries["offset"][0]), line_of(text, int(entries["offset"][0])))
        if self._max_errors > 0:
            self._tell_dropped(file, text, records, ordinals, near)
            return Chunk(self.schema, values)
        errors = self._errors(file, text, entries, ordinals, records=records, near=near, unread=unread)
        return Chunk(self.schema, values, errors)

    def _errors(
        self,
        file: IndexedText,
        text: BinaryIO,
        entries: NDArray[Any],
        ordinals: NDArray[np.int64],
        *,
        records: NDArray[Any],
        near: tuple[int, int],
        unread: Sequence[tuple[int, int, int]],
    ) -> Mapping[int, DataError]:
        """Return why sequences cannot be read; if there are many, each is described when it is asked for."""
        low = entries["offset"].astype(np.int64)
        high = low + entries["size"]
        gaps = [np.flatnonzero((low < end) & (high > begin)) for begin, end, _ in unread]
        rows = np.unique(np.concatenate([records["sequence"].astype(np.int64), *gaps]))
        place = near

        def in_file(text: BinaryIO, row: int) -> DataError:
            nonlocal place
            # If a sequence has several gaps, the first one stays.
            for begin, end, number in unread:
                if low[row] < end and high[row] > begin:
                    why = Unread(number, max(begin, int(low[row])))
                    return unreadable.unread(why, str(file.path), int(ordinals[row]))
            if unread:
                return _beside_a_hole(file.path, int(ordinals[row]))
            record = records[int(np.searchsorted(records["sequence"], row, side="right")) - 1]
            (error,) = describe(
                file.path,
                text,
                streams=list(self.schema),
                lenient=self._lenient,
                records=[record],
                ordinals=ordinals,
                near=place if place[0] <= record["byte"] else near,  # lines are counted from the last error on
            )
            place = int(record["byte"]), error.line or 1
            return error

        def alone(row: int) -> DataError:
            with file.opened() as text:
                return in_file(text, row)

        if len(rows) > MOST_AT_ONCE:
            return LazyErrors(rows, alone)
        return {row: in_file(text, row) for row in rows.tolist()}

    def _parse_counting(self, chunk: int | None, arguments: tuple[Any, ...]) -> tuple[Any, NDArray[np.uint8]]:
        """Parse with CNTK's error count, which one caller at a time may change; a selection (None) is not counted."""
        if chunk is None:
            streams, _, found, _ = self._parser.parse(*arguments, _UNLIMITED)
            return streams, found
        with self._counting.get():
            allowed = self._errors_left + self._charged.get(chunk, 0)
            streams, _, found, left = self._parser.parse(*arguments, allowed)
            self._charged[chunk] = allowed - left
            self._errors_left = left
        return streams, found

    def _raise_fatal(
        self, file: IndexedText, text: BinaryIO, records: NDArray[Any], ordinals: NDArray[np.int64]
    ) -> None:
        """Raise the error that made the parser give up, if it did."""
        last = records[-1]
        code = NAMES[int(last["code"])]
        if code not in FATAL and not (self._max_errors > 0 and code == "missing_stream"):
            return
        cause = last if code != "errors_exhausted" else records[-2]
        byte, sequence = int(cause["byte"]), int(ordinals[cause["sequence"]])
        stream = list(self.schema)[cause["stream"]] if cause["stream"] >= 0 else None
        if code == "memory_limit":
            limit, needed = last["expected"], last["got"]
            what = f"expected at most {limit} bytes when decoded at a time (memory), got {needed} before the end"
            hint = "raise memory=, or lower chunk_size="
        else:
            (error,) = describe(
                file.path,
                text,
                streams=list(self.schema),
                lenient=self._lenient,
                records=[cause],
                ordinals=ordinals,
                near=(0, 1),
            )
            what, hint = error.what, None
            if code == "errors_exhausted":
                what = f"expected at most {self._max_errors} errors (max_errors), got one more: {what}"
        line = line_of(text, byte)
        raise DataError(what, path=str(file.path), byte=byte, line=line, sequence=sequence, stream=stream, hint=hint)

    def _tell_dropped(
        self,
        file: IndexedText,
        text: BinaryIO,
        records: NDArray[Any],
        ordinals: NDArray[np.int64],
        near: tuple[int, int],
    ) -> None:
        (first,) = describe(
            file.path,
            text,
            streams=list(self.schema),
            lenient=self._lenient,
            records=records[:1],
            ordinals=ordinals,
            near=near,
        )
        _log.warning("%d errors skipped (max_errors); the first: %s", len(records), first.what)

    # ---- other -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Release the read buffers; files are only open during a read."""
        self._buffers.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process opens the files itself, with fresh error counts.
        return (_reopen, ([str(file.path) for file in self._files], dict(self.schema.streams), self._arguments))

    def __repr__(self) -> str:
        sequences, samples = int(self._starts[-1]), sum(info.samples for info in self._infos)
        return f"CTFDeserializer({self.name}: {sequences} sequences, {samples} samples, {len(self._infos)} chunks)"


class IndexedText:
    """A text file and its index, for formats of text that is indexed by sequence."""

    def __init__(self, path: Path, options: IndexOptions, cache: Cache, progress: Progress) -> None:
        self.path, self._options, self._cache = path, options, cache
        self._lock = PerProcess(Lock)
        self.index = open_index(path, options, cache, progress)

    def sizes(self) -> list[tuple[int, int, int]]:
        """Return sequences, samples and bytes of every chunk."""
        table = self.index.table
        return list(zip(*(table[k].tolist() for k in ("sequences", "samples", "bytes")), strict=True))

    def checked(self, get: Callable[[CtfIndex], _T]) -> _T:
        """Return ``get(index)``, rebuilding a damaged index first."""
        try:
            return get(self.index)
        except DamagedIndexError as damage:
            with self._lock.get():
                _log.warning("the index of %s is damaged (%s); rebuilding it", self.path, damage)
                fresh = open_index(self.path, self._options, self._cache, rebuild=True)
                if not np.array_equal(fresh.table, self.index.table):
                    raise self._changed() from damage
                self.index = fresh
        return get(self.index)

    def entries_at(self, ordinals: NDArray[np.int64]) -> NDArray[Any]:
        """Return the index's entries of sequences, checked; see `CtfIndex.at`."""
        return self.checked(_at(ordinals))

    @contextlib.contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Open the text, for as long as the context lasts."""
        with open_file(self.path) as text:
            yield text

    def compare(self, text: BinaryIO) -> None:
        """Check, after reading, that the file is still the one that was indexed."""
        now, then = status_of(text), self.index.header
        if (now.st_size, now.st_mtime_ns) != (then.file_size, then.mtime_ns):
            raise self._changed()

    def _changed(self) -> DataError:
        return DataError(
            "expected the file as it was when it was opened, got one that has changed since",
            path=str(self.path),
            hint="open it again; its sequences and their order may have changed",
        )


def _beside_a_hole(path: Path, ordinal: int) -> DataError:
    return DataError(
        "expected valid text, got an error in a chunk that the disk cannot read completely",
        path=str(path),
        sequence=ordinal,
    )


def _at(ordinals: NDArray[np.int64]) -> Callable[[CtfIndex], NDArray[Any]]:
    return lambda index: index.at(ordinals)


def _samples_at(ordinals: NDArray[np.int64]) -> Callable[[CtfIndex], NDArray[Any]]:
    return lambda index: index.at(ordinals, "samples")


def open_texts(paths: list[Path], options: IndexOptions, cache: Cache, progress: Progress) -> list[IndexedText]:
    """Open files; ``progress`` is called with bytes of all of them together."""
    parts = progress_of_each(paths, progress)
    return [IndexedText(path, options, cache, part) for path, part in zip(paths, parts, strict=True)]


def progress_of_each(paths: list[Path], progress: Progress) -> list[Progress]:
    """Return what to call for each file, so that ``progress`` is called with bytes of all of them together."""
    if not callable(progress):
        return [progress] * len(paths)  # nothing, or a bar for each file
    sizes = [size_of(path) if path.exists() else 0 for path in paths]
    total = sum(sizes)
    return [lambda n, _, before=before: progress(before + n, total) for before in _offsets(sizes).tolist()[:-1]]  # type: ignore[misc]


def _make_parser(schema: Schema, lenient: bool, fill: bool, memory_bytes: int) -> Any:
    fields: dict[str, str] = {}
    for name, stream in schema.items():
        field = stream.field or name
        if field in fields:
            raise SchemaError(f"expected each field to be read once, got `{field}` in {fields[field]} and {name}")
        if not all("!" <= c <= "~" and c != "|" for c in field) or field.startswith("#"):
            raise SchemaError(
                f"expected printable ASCII without blanks, `|` and a leading `#` as field name, got {field!r}; "
                f"set field= for stream `{name}`"
            )
        if stream.is_bytes:
            raise SchemaError(
                f"expected numbers for stream `{name}`, got {stream.kind}: CTF holds nothing else; for text and bytes "
                "use a store, Parquet or arrays"
            )
        if stream.dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise SchemaError(f"expected dtype float32 or float64 for stream `{name}`, got {stream.dtype.name}")
        if not 1 <= stream.size < 2**31:
            raise SchemaError(f"expected 1 to {2**31 - 1} values in a sample of stream `{name}`, got {stream.size}")
        fields[field] = name
    size_stream = schema.size_stream
    return _native.CtfParser(
        [field.encode() for field in fields],
        [stream.size for stream in schema.values()],
        [stream.sparse for stream in schema.values()],
        [stream.dtype == np.float64 for stream in schema.values()],
        size_stream=-1 if size_stream is None else list(schema).index(size_stream),
        lenient=lenient,
        fill=fill,
        memory_bytes=memory_bytes,
    )


def by_file(ordinals: Ints, starts: Ints) -> Iterator[tuple[int, Ints, Ints]]:
    """Yield (file, places in ``ordinals``, ordinals within the file) for each file concerned.

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


def read_together(entries: NDArray[Any]) -> tuple[Ints, Ints, Ints, Ints]:
    """Return which bytes to read for entries of an index, in the order of the text: neighbours with one read.

    Returns:
        First byte and end of each read; the sums of their sizes from 0; and where each entry is in what was read.
    """
    begin = entries["offset"].astype(np.int64)
    end = begin + entries["size"]
    heads = np.flatnonzero(np.concatenate([[True], begin[1:] - end[:-1] > _GAP_BYTES]))
    lows, highs = begin[heads], end[np.append(heads[1:] - 1, len(end) - 1)]
    places = _offsets(highs - lows)
    return lows, highs, places, begin - np.repeat(lows - places[:-1], np.diff(np.append(heads, len(begin))))


def _offsets(sizes: Any) -> NDArray[np.int64]:
    """Return the cumulative sums from 0, int64 (n + 1,)."""
    return np.concatenate([[0], np.cumsum(np.fromiter(sizes, np.int64))])


def _reopen(paths: list[str], streams: dict[str, Stream], arguments: dict[str, Any]) -> CTFDeserializer:
    return CTFDeserializer(paths, streams, **arguments)


def open_files(paths: list[str], streams: Mapping[str, Stream], memory_bytes: int) -> CTFDeserializer:
    """Open files, or a folder of them; see `open_corpus`."""
    from feedline.feed.formats.detect import infer_ctf_streams

    what = paths if len(paths) > 1 else paths[0]
    return CTFDeserializer(what, streams or infer_ctf_streams(paths[0]), memory=memory_bytes)
