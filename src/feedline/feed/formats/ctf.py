"""CNTK text format (CTF): a `Deserializer` over one or several text files.

Guarantees: CNTK's grammar and chunks; numbers rounded correctly; no value is made up unless `fill_missing` asks for
it; a sequence that cannot be read keeps its place and says why; nothing outside the declared streams is looked at; text
is read with pread, never mapped, and a file that changes under the reader is an error, not a crash. Costs: the first
opening reads the files once to index them (see `ctf_index`), later ones read O(chunks); reading a chunk costs its text,
its columns, and about 1 ns a byte of text. Reading releases the GIL.
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
from feedline.data.value import DenseValue, SparseValue
from feedline.errors import DataError, SchemaError
from feedline.feed.assembly import ChunkSet
from feedline.feed.files.paths import PathLike, list_files, open_file, status_of
from feedline.feed.files.reading import read_exactly, read_most
from feedline.feed.formats import unreadable as lost
from feedline.feed.formats.ctf_errors import FATAL, NAMES, RECORD, describe, line_of
from feedline.feed.formats.ctf_index import Cache, CtfIndex, DamagedIndexError, IndexOptions, Progress, open_index
from feedline.feed.per_process import PerProcess
from feedline.feed.protocol import CHUNK_MEMORY, ChunkInfo, Deserializer, Extent, Piece, Unread

_PAD = 64  # bytes that the native parser may load on either side of the text
_GAP = 64 << 10  # bytes read in vain rather than asked for separately
_UNLIMITED = 1 << 62

_log = logging.getLogger("feedline")
_T = TypeVar("_T")


class CTFDeserializer(Deserializer):
    """Sequences of CTF files.

    Args:
        path: a file, a list of files (their concatenation), a folder or a glob pattern (sorted by path).
        streams: stream name to `Stream`; also given as keyword arguments. ``field`` is the name in the file, by
            default the stream's own; ``shape`` says how many values a dense sample has, or how many indices a
            sparse one may use; dtype float32 or float64. Fields that no stream names are passed over.
        skip_sequence_ids: every line is a sequence of its own, ids or not.
        lenient: accept blank lines and the numbers ``.5``, ``5.e3``, ``nan``, ``inf``, which CNTK refuses.
        fill_missing: CNTK's rule for dense samples with fewer values than declared: the rest is zero. False: such a
            sample is an error.
        max_errors: 0: a sequence with an error is unreadable as a whole. Above: CNTK's row dropping; bad samples
            are dropped, up to so many errors (CNTK counts up to three for one bad row) over the life of this
            object, each chunk's counted once; one more, or a stream left without samples, is a `DataError`.
        chunk_size: bytes of text in a chunk. Part of the order: another size is another order.
        cache: where the index is kept: True: beside the file, or in ``$XDG_CACHE_HOME/feedline`` where that cannot
            be written; a folder; False: in a temporary file.
        memory: bytes that a decoded chunk may take.
        progress: called with (bytes done, bytes in all) while indexing; what it raises ends it.
        stream_kwargs: more streams.

    Raises:
        SchemaError: no stream, two that read the same field, or a declaration that CTF cannot fill.
        DataError: a file is missing or no CTF, or its index cannot be written.
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
        progress: Progress | None = None,
        **stream_kwargs: Stream,
    ) -> None:
        for what, value, least in (("max_errors", max_errors, 0), ("chunk_size", chunk_size, 1), ("memory", memory, 1)):
            if value < least:
                raise ValueError(f"expected {what} of at least {least}, got {value}")
        paths = list_files(path)
        declared = dict(streams or {})
        twice = declared.keys() & stream_kwargs.keys()
        if twice:
            raise SchemaError(f"expected each stream once, got {', '.join(sorted(twice))} in `streams` and by keyword")
        self.schema = Schema(declared | stream_kwargs)
        self.name = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
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
        self._files = _open_files(paths, options, cache, progress)
        self._infos = [ChunkInfo(*row) for file in self._files for row in file.sizes()]
        # Where each file begins, in sequences and in chunks.
        self._starts = _offsets(file.index.header.sequences for file in self._files)
        self._chunk_starts = _offsets(len(file.index.table) for file in self._files)
        self._buffers: list[NDArray[np.uint8]] = []
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

    # ---- what is there ----------------------------------------------------------------------------

    def chunks(self) -> list[ChunkInfo]:
        """Size of every chunk: sequences, samples as indexed, bytes of text."""
        return self._infos

    def digest(self) -> str:
        """32 hex digits for the files' sizes, samples of their bytes and chunk tables."""
        content = hashlib.blake2b(digest_size=16)
        for file in self._files:
            head = file.index.header
            content.update(repr((head.file_size, head.sample, head.sequences, head.flags)).encode())
            content.update(file.index.table.tobytes())
        return content.hexdigest()

    def paths(self) -> list[str]:
        """The text."""
        return [str(file.path) for file in self._files]

    def lengths(self, ordinals: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Samples of sequences: their rows, or those that name the stream which defines the size."""
        if all(file.index.single for file in self._files):
            return None
        found = np.empty(len(ordinals), np.int64)
        for number, at, local in self._by_file(ordinals):
            found[at] = self._files[number].checked(_samples_at(local))
        return found

    def keys(self, ordinals: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Ids of sequences; where a file has none, their line numbers, from 0, counted through all files."""
        lines = _offsets(file.index.header.lines for file in self._files)
        found = np.empty(len(ordinals), np.uint64)
        for number, at, entries in self._look_up(ordinals):
            base = 0 if self._files[number].index.has_ids else int(lines[number])
            found[at] = entries["key"] + np.uint64(base)
        return found

    def _look_up(self, ordinals: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64], NDArray[Any]]]:
        """(file, places in ``ordinals``, entries) for each file concerned."""
        for number, at, local in self._by_file(ordinals):
            yield number, at, self._files[number].checked(_at(local))

    def _by_file(self, ordinals: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """(file, places in ``ordinals``, ordinals within the file) for each file concerned."""
        ordinals = np.asarray(ordinals, np.int64)
        if len(ordinals) and (ordinals.min() < 0 or ordinals.max() >= self._starts[-1]):
            raise IndexError(
                f"expected ordinals from 0 to {self._starts[-1] - 1}, got {ordinals.min()} to {ordinals.max()}"
            )
        if len(self._files) == 1 and len(ordinals):
            yield 0, np.arange(len(ordinals)), ordinals
            return
        file_of = np.searchsorted(self._starts, ordinals, side="right") - 1
        for number in np.unique(file_of).tolist():
            at = np.flatnonzero(file_of == number)
            yield number, at, ordinals[at] - self._starts[number]

    # ---- reading ----------------------------------------------------------------------------------

    def read(self, chunk: int) -> Chunk:
        """The sequences of a chunk, each stream with the rows it has.

        Raises:
            DataError: the file has changed or is shorter than indexed, the decoded chunk would pass ``memory``, or
                ``max_errors`` is used up.
        """
        if not 0 <= chunk < len(self._infos):
            raise IndexError(f"expected a chunk from 0 to {len(self._infos) - 1}, got {chunk}")
        file, _, begin, size = self._located(chunk)
        with file.opened() as text, self._buffer(size) as buffer:
            unread = read_most(text, buffer[_PAD : _PAD + size], begin, file.path)
            return self._parsed(chunk, text, buffer, unread)

    def extents(self, chunk: int) -> list[Extent]:
        """The text of the chunk, and what the parser may look at on both sides of it."""
        file, _, begin, size = self._located(chunk)
        first = max(0, begin - _PAD)
        return [Extent(str(file.path), first, min(begin + size + _PAD, file.index.header.file_size) - first)]

    def read_fetched(self, chunk: int, pieces: Sequence[Piece]) -> Chunk:
        """As `read`, of text in memory."""
        (piece,) = pieces
        if isinstance(piece, Unread):
            return self.read(chunk)  # which finds out how much of it can be read
        file, _, begin, size = self._located(chunk)
        found = np.frombuffer(piece, np.uint8)
        with file.opened() as text:
            if begin >= _PAD and len(found) == size + 2 * _PAD:
                return self._parsed(chunk, text, found, [])
            with self._buffer(size) as buffer:  # at the ends of a file there is nothing on one side
                buffer[_PAD : _PAD + size] = found[min(begin, _PAD) :][:size]
                return self._parsed(chunk, text, buffer, [])

    def _located(self, chunk: int) -> tuple[_TextFile, int, int, int]:
        """The file of a chunk, its number there, where its text begins, and how long it is."""
        number = int(np.searchsorted(self._chunk_starts, chunk, side="right")) - 1
        file, local = self._files[number], chunk - int(self._chunk_starts[number])
        begin, size = (int(file.index.table[local][k]) for k in ("offset", "bytes"))
        return file, local, begin, size

    def _parsed(
        self, chunk: int, text: BinaryIO, buffer: NDArray[np.uint8], unread: Sequence[tuple[int, int, int]]
    ) -> Chunk:
        """A chunk whose text lies in ``buffer`` behind its padding, but for what is ``unread`` (see `read_most`)."""
        file, local, begin, _ = self._located(chunk)
        file.compare(text)
        entries = file.checked(lambda index: index.entries(local))
        first = int(self._starts[self._files.index(file)] + file.index.first[local])
        offsets = entries["offset"].astype(np.int64)
        ordinals = np.arange(first, first + len(entries))
        if unread and self._max_errors > 0:  # whose errors are those of samples
            raise lost.unread(Unread(unread[0][2], unread[0][0]), str(file.path), first)
        parsed = self._parse(chunk, file, text, buffer, offsets - begin, entries, ordinals, bool(unread))
        ends = offsets + entries["size"]
        for low, high, error in reversed(unread):  # of several, the first is told
            for i in np.flatnonzero((offsets < high) & (ends > low)).tolist():
                why = Unread(error, max(low, int(offsets[i])))
                parsed.errors[i] = lost.unread(why, str(file.path), first + i)
        return parsed

    def select(self, ordinals: NDArray[np.int64]) -> Chunk:
        """The sequences ``ordinals``, in that order, reading their bytes alone.

        Raises:
            IndexError: an ordinal outside the corpus.
            DataError: as `read`.
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
        """Sequences of one file, ``local`` rising."""
        file = self._files[number]
        entries = file.checked(_at(local))
        begin = entries["offset"].astype(np.int64)
        end = begin + entries["size"]
        # Neighbours are read together: runs are parted by gaps too wide to read in vain.
        heads = np.flatnonzero(np.concatenate([[True], begin[1:] - end[:-1] > _GAP]))
        lows, highs = begin[heads], end[np.append(heads[1:] - 1, len(end) - 1)]
        places = _offsets(highs - lows)
        position = begin - np.repeat(lows - places[:-1], np.diff(np.append(heads, len(begin))))
        with file.opened() as text, self._buffer(int(places[-1])) as buffer:
            for low, high, place in zip(lows.tolist(), highs.tolist(), places.tolist(), strict=False):
                read_exactly(text, buffer[_PAD + place : _PAD + place + high - low], low, file.path)
            file.compare(text)
            return self._parse(None, file, text, buffer, position, entries, local + self._starts[number])

    def _parse(
        self,
        chunk: int | None,
        file: _TextFile,
        text: BinaryIO,
        buffer: NDArray[np.uint8],
        position: NDArray[np.int64],
        entries: NDArray[Any],
        ordinals: NDArray[np.int64],
        holes: bool = False,
    ) -> Chunk:
        """The sequences that lie in ``buffer`` at ``position`` behind its padding, perhaps with holes in the text."""
        arguments = (
            buffer,
            _PAD,
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
            # The text was compared with the index, and the index with its checksums.
            raise DataError(
                f"expected an index that stays as it was checked, got one that changes: {error}",
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
        if len(records) == 0:
            return Chunk(self.schema, values)
        # From bytes in the buffer to bytes in the file.
        records = records.copy()
        sequence = records["sequence"]
        records["byte"] += (entries["offset"].astype(np.int64) - position).astype(np.uint64)[sequence]
        self._raise_fatal(file, text, records, ordinals)
        if holes:  # telling what is wrong beside them would mean to read the text again
            errors = {i: _beside_a_hole(file.path, int(ordinals[i])) for i in sequence.tolist()}
            return Chunk(self.schema, values, errors)
        near = (int(entries["offset"][0]), line_of(text, int(entries["offset"][0])))
        if self._max_errors > 0:
            self._tell_dropped(file, text, records, ordinals, near)
            return Chunk(self.schema, values)
        told = describe(file.path, text, list(self.schema), self._lenient, records, ordinals, near)
        return Chunk(self.schema, values, dict(zip(sequence.tolist(), told, strict=True)))

    def _parse_counting(self, chunk: int | None, arguments: tuple[Any, ...]) -> tuple[Any, NDArray[np.uint8]]:
        """CNTK's way; one caller at a time, as there is one count. A selection (None) is not counted."""
        if chunk is None:
            streams, _, found, _ = self._parser.parse(*arguments, _UNLIMITED)
            return streams, found
        with self._counting.get():
            allowed = self._errors_left + self._charged.get(chunk, 0)
            streams, _, found, left = self._parser.parse(*arguments, allowed)
            self._charged[chunk] = allowed - left
            self._errors_left = left
        return streams, found

    def _raise_fatal(self, file: _TextFile, text: BinaryIO, records: NDArray[Any], ordinals: NDArray[np.int64]) -> None:
        """Raise what made the parser give up, if it did."""
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
            (error,) = describe(file.path, text, list(self.schema), self._lenient, [cause], ordinals, (0, 1))
            what, hint = error.what, None
            if code == "errors_exhausted":
                what = f"expected at most {self._max_errors} errors (max_errors), got one more: {what}"
        line = line_of(text, byte)
        raise DataError(what, path=str(file.path), byte=byte, line=line, sequence=sequence, stream=stream, hint=hint)

    def _tell_dropped(
        self, file: _TextFile, text: BinaryIO, records: NDArray[Any], ordinals: NDArray[np.int64], near: tuple[int, int]
    ) -> None:
        (first,) = describe(file.path, text, list(self.schema), self._lenient, records[:1], ordinals, near)
        _log.warning("%d errors passed over (max_errors); the first: %s", len(records), first.what)

    @contextlib.contextmanager
    def _buffer(self, size: int) -> Iterator[NDArray[np.uint8]]:
        """Room for ``size`` bytes of text and the padding, used again by later calls: fresh pages are dear."""
        try:
            buffer = self._buffers.pop()
        except IndexError:
            buffer = np.empty(0, np.uint8)
        if len(buffer) < size + 2 * _PAD:
            buffer = np.empty(size + 2 * _PAD, np.uint8)
        try:
            yield buffer
        finally:
            if len(self._buffers) < 2:
                self._buffers.append(buffer)

    # ---- the rest ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Let the read buffers go; files are open during a read only."""
        self._buffers.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process opens the files itself; counts of errors start anew there.
        return (_reopen, ([str(file.path) for file in self._files], dict(self.schema.streams), self._arguments))

    def __repr__(self) -> str:
        sequences, samples = int(self._starts[-1]), sum(info.samples for info in self._infos)
        return f"CTFDeserializer({self.name}: {sequences} sequences, {samples} samples, {len(self._infos)} chunks)"


class _TextFile:
    """A text and its index."""

    def __init__(self, path: Path, options: IndexOptions, cache: Cache, progress: Progress | None) -> None:
        self.path, self._options, self._cache = path, options, cache
        self._lock = PerProcess(Lock)
        self.index = open_index(path, options, cache, progress)

    def sizes(self) -> list[tuple[int, int, int]]:
        table = self.index.table
        return list(zip(*(table[k].tolist() for k in ("sequences", "samples", "bytes")), strict=True))

    def checked(self, get: Callable[[CtfIndex], _T]) -> _T:
        """What ``get`` takes from the index; a damaged index is built anew first."""
        try:
            return get(self.index)
        except DamagedIndexError as damage:
            with self._lock.get():
                _log.warning("the index of %s is damaged (%s); building it anew", self.path, damage)
                fresh = open_index(self.path, self._options, self._cache, rebuild=True)
                if not np.array_equal(fresh.table, self.index.table):
                    raise self._changed() from damage
                self.index = fresh
        return get(self.index)

    @contextlib.contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        with open_file(self.path) as text:
            yield text

    def compare(self, text: BinaryIO) -> None:
        """Make sure, after reading, that it was the file that is indexed."""
        now, then = status_of(text), self.index.header
        if (now.st_size, now.st_mtime_ns) != (then.file_size, then.mtime_ns):
            raise self._changed()

    def _changed(self) -> DataError:
        return DataError(
            "expected the file as it was when it was opened, got one that has changed since",
            path=str(self.path),
            hint="open it again; its sequences and their order may be others now",
        )


def _beside_a_hole(path: Path, ordinal: int) -> DataError:
    return DataError(
        "expected text that can be parsed, got other text in a chunk that the disk does not give as a whole",
        path=str(path),
        sequence=ordinal,
    )


def _at(ordinals: NDArray[np.int64]) -> Callable[[CtfIndex], NDArray[Any]]:
    return lambda index: index.at(ordinals)


def _samples_at(ordinals: NDArray[np.int64]) -> Callable[[CtfIndex], NDArray[Any]]:
    return lambda index: index.at(ordinals, "samples")


def _open_files(paths: list[Path], options: IndexOptions, cache: Cache, progress: Progress | None) -> list[_TextFile]:
    if progress is None:
        return [_TextFile(path, options, cache, None) for path in paths]
    sizes = [path.stat().st_size if path.exists() else 0 for path in paths]
    total, files = sum(sizes), list[_TextFile]()
    for path, before in zip(paths, _offsets(sizes).tolist(), strict=False):
        files.append(_TextFile(path, options, cache, lambda n, _, before=before: progress(before + n, total)))  # type: ignore[misc]
    return files


def _make_parser(schema: Schema, lenient: bool, fill: bool, memory: int) -> Any:
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
        -1 if size_stream is None else list(schema).index(size_stream),
        lenient,
        fill=fill,
        memory_limit=memory,
    )


def _offsets(sizes: Any) -> NDArray[np.int64]:
    """int64 (n + 1,), running sums from 0."""
    return np.concatenate([[0], np.cumsum(np.fromiter(sizes, np.int64))])


def _reopen(paths: list[str], streams: dict[str, Stream], arguments: dict[str, Any]) -> CTFDeserializer:
    return CTFDeserializer(paths, streams, **arguments)
