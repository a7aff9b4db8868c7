"""CNTK text format (CTF): a `Deserializer` for one or several text files.

Guarantees: CNTK's grammar and chunks. Numbers are rounded correctly. No value is invented without `fill_missing`. An
unreadable sequence keeps its place and reports why. Nothing outside the declared streams is parsed. Text is read with
pread, never mapped, and a file that changes while open is an error, not a crash. Cost: the first opening reads the
files once to index them (see `file_index`), later ones read O(chunks). Reading a chunk costs its text, its columns, and
about 1 ns per byte of text. Reading releases the GIL.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.concurrency.fork_local import PerProcess
from feedline.data import Chunk, Schema, Stream, Value
from feedline.data.chunk import LazyErrors
from feedline.data.value import DenseValue, SparseValue
from feedline.errors import DataError, SchemaError
from feedline.feed.files.paths import PathLike
from feedline.feed.formats.cntk.ctf_errors import FATAL, NAMES, RECORD, describe, describe_index_error
from feedline.feed.formats.cntk.ctf_streams import infer_ctf_streams
from feedline.feed.formats.indexed.file_index import Cache, IndexKind
from feedline.feed.formats.indexed.indexed_corpus import MAX_AT_ONCE, ChunkPlace, by_file, line_of, offsets_of
from feedline.feed.formats.indexed.rows import PAD, TextCorpus, TextRows
from feedline.feed.formats.missing import identity_of
from feedline.feed.progress_bar import Progress
from feedline.feed.protocol import CHUNK_MEMORY, Extent, Ints, Keyed, Piece, Unread, declared_streams, whole_number

_UNLIMITED = 1 << 62

_log = logging.getLogger("feedline")


class CTFDeserializer(TextCorpus, Keyed):
    """Sequences of CTF files.

    Args:
        path: a file, a list of files (read as their concatenation), a folder or a glob pattern (sorted by path).
        streams: stream name to `Stream`, also as keyword arguments. ``field`` is the name in the file, by default the
            stream's name. ``shape`` determines the number of values of a dense sample, or of indices of a sparse
            sample. The dtype is float32 or float64. Fields without a stream are skipped.
        skip_sequence_ids: whether every line is a sequence, with or without an id.
        lenient: whether to accept blank lines and the numbers ``.5``, ``5.e3``, ``nan``, ``inf``, which CNTK refuses.
        fill_missing: whether to follow CNTK's rule for dense samples with fewer values than declared: missing values
            are zero. Otherwise such a sample is an error, unless its stream has ``missing`` or ``mask``, which also
            fill one sample where a sequence has none.
        max_errors: maximum number of errors. With 0, a sequence with an error is unreadable as a whole. Above 0, bad
            samples are dropped, as in CNTK, which counts up to three errors for one bad row. Errors are counted over
            the life of this object, and once for each chunk. One more error, or a stream without any sample, is a
            `DataError`.
        chunk_size: bytes of text per chunk. Part of the order: another size is another order.
        cache: folder for the index. With True, next to the file, or in ``$XDG_CACHE_HOME/feedline`` if that is not
            writable. With False, in a temporary file.
        memory: bytes that a decoded chunk may take.
        progress: function that is called with (bytes done, bytes in total) while indexing. An exception from it
            aborts. With True, a bar is shown on stderr.
        stream_kwargs: more streams.

    Raises:
        SchemaError: there is no stream, two streams read the same field, or CTF cannot satisfy a declaration.
        ValueError: streams with ``missing`` or ``mask``, and either errors are counted, or one defines the size.
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
        super().__init__(
            path,
            chunk_size=chunk_size,
            cache=cache,
            memory_bytes=memory,
            skip_sequence_ids=skip_sequence_ids,
            lenient=lenient,
            fill_missing=fill_missing,
            max_errors=max_errors,
        )
        self._take_streams(declared_streams(streams, stream_kwargs))
        self._lenient = lenient
        size_stream = self._streams.size_stream
        if self._fillings and (max_errors or size_stream in self._fillings):
            raise ValueError(
                f"expected no missing= or mask= with max_errors, nor in the stream that defines the size, got it for "
                f"{', '.join(self._fillings)}"
            )
        fill = [2 if name in self._fillings else int(fill_missing) for name in self._streams]
        self._parser = _make_parser(self._streams, lenient, fill, self._memory_bytes)
        field = None if size_stream is None else (self._streams[size_stream].field or size_stream)
        self._size_field = field
        self._index(ctf_index(self._chunk_size, field, skip_ids=skip_sequence_ids, lenient=lenient), progress)
        self._max_errors = max_errors
        self._errors_left = max_errors
        self._charged: dict[tuple[int, int], int] = {}
        self._counting = PerProcess(Lock)

    # ---- description ------------------------------------------------------------------------------

    def _empty_error(self) -> DataError:
        return DataError(
            f"expected at least one sequence with the field `{self._size_field}`, which defines the size, got none",
            path=self.name,
            stream=self.schema.size_stream,
        )

    def _content_identity(self) -> tuple[str, ...]:
        return identity_of(self._fillings).decode(), "flags"

    def keys(self, ordinals: Ints) -> NDArray[np.uint64]:
        """Return the ids of sequences. In files without ids, these are line numbers, from 0, counted through all
        files."""
        lines = offsets_of(file.index.header.lines for file in self._files)
        keys = np.empty(len(ordinals), np.uint64)
        for number, at, local in by_file(np.asarray(ordinals, np.int64), self._starts):
            base = 0 if self._files[number].index.has_ids else int(lines[number])
            keys[at] = self._files[number].entries_at(local, "key") + np.uint64(base)
        return keys

    # ---- reading ----------------------------------------------------------------------------------

    def extents(self, chunk: int) -> list[Extent]:
        """Return the text of the chunk, with the padding that the parser may load on both sides."""
        file, _, _, begin, size = self._place(chunk)
        first = max(0, begin - PAD)
        return [Extent(str(file.path), first, min(begin + size + PAD, file.index.header.file_size) - first)]

    def read_fetched(self, chunk: int, pieces: Sequence[Piece]) -> Chunk:
        """See `Fetchable.read_fetched`."""
        (piece,) = pieces
        if isinstance(piece, Unread):
            return self.read(chunk)  # reads as much as possible
        place = self._place(chunk)
        if place.begin < PAD or len(piece) < place.size + 2 * PAD:
            # At the ends of a file, padding is missing on one side.
            return super().read_fetched(chunk, [piece[min(place.begin, PAD) :][: place.size]])
        with place.file.open() as text:
            place.file.compare(text)
        return self._parse_chunk(place, np.frombuffer(piece, np.uint8), [])

    def _parse(self, part: TextRows, buffer: NDArray[np.uint8]) -> Chunk:
        """Parse sequences.

        Raises:
            DataError: decoded, they would exceed ``memory``, or ``max_errors`` is exhausted.
        """
        if part.holes and self._max_errors > 0:  # errors are counted by sample
            begin, _, reason = part.holes[0]
            raise part.file.hole_error(begin, reason, int(part.ordinals[0]), None)
        arguments = (buffer, PAD, part.places.view(np.uint8), part.origin)
        with part.file.index_errors():
            if self._max_errors == 0:
                streams, _, faults, _ = self._parser.parse(*arguments, -1)
            else:
                streams, faults = self._parse_counting(part.chunk, arguments)
        values: dict[str, Value] = {}
        for (name, stream), (*arrays, missing) in zip(self._streams.items(), streams, strict=True):
            if stream.sparse:
                indptr, indices, data, offsets = arrays
                values[name] = SparseValue(indptr, indices, data, stream.size, offsets)
            else:
                rows, offsets = arrays
                values[name] = DenseValue(rows.reshape(len(rows), *stream.shape), offsets)
            self._fill(values, name, missing)
        records = faults.view(RECORD)
        if len(records) == 0 and not part.holes:
            return Chunk(self.schema, values)
        records, sequence = records.copy(), records["sequence"]
        records["byte"] += part.entries["offset"][sequence] - part.places["offset"][sequence]
        with part.file.open() as text:
            if len(records):
                self._raise_fatal(part, text, records)
            # After a failed read, text is not read again to describe other errors.
            begin = int(part.entries["offset"][0])
            near = (0, 1) if part.holes else (begin, line_of(text, begin))
            if self._max_errors > 0:
                first = self._record_error(part, text, records[0], near)
                _log.warning("%d errors skipped (max_errors); the first: %s", len(records), first.what)
                return Chunk(self.schema, values)
            return Chunk(self.schema, values, self._errors(part, text, records, near))

    def _errors(
        self, part: TextRows, text: BinaryIO, records: NDArray[Any], near: tuple[int, int]
    ) -> Mapping[int, DataError]:
        """Return the errors of unreadable sequences. If there are many, each is described on access."""
        path, holes = part.file.path, part.holes
        low = part.entries["offset"].astype(np.int64)
        high = low + part.entries["size"]
        gaps = [np.flatnonzero((low < end) & (high > begin)) for begin, end, _ in holes]
        rows = np.unique(np.concatenate([records["sequence"].astype(np.int64), *gaps]))
        place = near

        def error_in(text: BinaryIO, row: int) -> DataError:
            nonlocal place
            # The first gap of a sequence counts.
            for begin, end, reason in holes:
                if low[row] < end and high[row] > begin:
                    if isinstance(reason, Unread):
                        reason = reason._replace(byte=max(begin, int(low[row])))
                    return part.file.hole_error(begin, reason, int(part.ordinals[row]), None)
            if holes:
                return _hole_chunk_error(path, int(part.ordinals[row]))
            record = records[int(np.searchsorted(records["sequence"], row, side="right")) - 1]
            after = place if place[0] <= record["byte"] else near  # count lines from the last error on
            error = self._record_error(part, text, record, after)
            place = int(record["byte"]), error.line or 1
            return error

        def error_of(row: int) -> DataError:
            with part.file.open() as text:
                return error_in(text, row)

        if len(rows) > MAX_AT_ONCE:
            return LazyErrors(rows, error_of)
        return {row: error_in(text, row) for row in rows.tolist()}

    def _parse_counting(self, chunk: ChunkPlace | None, arguments: tuple[Any, ...]) -> tuple[Any, NDArray[np.uint8]]:
        """Parse with CNTK's error count, which one caller at a time may change.

        Errors of a selection, without a ``chunk``, are not counted.
        """
        if chunk is None:
            streams, _, faults, _ = self._parser.parse(*arguments, _UNLIMITED)
            return streams, faults
        number = chunk.number, chunk.local
        with self._counting.get():
            allowed = self._errors_left + self._charged.get(number, 0)
            streams, _, faults, remaining = self._parser.parse(*arguments, allowed)
            self._charged[number] = allowed - remaining
            self._errors_left = remaining
        return streams, faults

    def _raise_fatal(self, part: TextRows, text: BinaryIO, records: NDArray[Any]) -> None:
        """Raise the error that made the parser give up, if it did."""
        last = records[-1]
        code = NAMES[int(last["code"])]
        if code not in FATAL and not (self._max_errors > 0 and code == "missing_stream"):
            return
        cause = last if code != "errors_exhausted" else records[-2]
        byte, sequence = int(cause["byte"]), int(part.ordinals[cause["sequence"]])
        stream = list(self._streams)[cause["stream"]] if cause["stream"] >= 0 else None
        if code == "memory_limit":
            limit, needed = last["expected"], last["got"]
            what = f"expected at most {limit} bytes decoded at once (memory), got {needed} before the end"
            hint = "raise memory=, or lower chunk_size="
        else:
            what, hint = self._record_error(part, text, cause, (0, 1)).what, None
            if code == "errors_exhausted":
                what = f"expected at most {self._max_errors} errors (max_errors), got one more: {what}"
        path, line = str(part.file.path), line_of(text, byte)
        raise DataError(what, path=path, byte=byte, line=line, sequence=sequence, stream=stream, hint=hint)

    def _record_error(self, part: TextRows, text: BinaryIO, record: Any, near: tuple[int, int]) -> DataError:
        path, names = part.file.path, list(self._streams)
        return describe(path, text, record, streams=names, lenient=self._lenient, ordinals=part.ordinals, near=near)


def ctf_index(chunk_size: int, size_field: str | None, *, skip_ids: bool, lenient: bool) -> IndexKind:
    """Return the kind of index for CNTK text.

    Args:
        chunk_size: maximum bytes of text in a chunk.
        size_field: field of the stream that defines the size, if any.
        skip_ids: whether every line is a sequence.
        lenient: whether blank lines are skipped.
    """
    field = None if size_field is None else size_field.encode()
    options = ["ctf", size_field, skip_ids, lenient]
    return IndexKind(chunk_size, options, lambda: _native.CtfIndexer(field, skip_ids, lenient), describe_index_error)


def _hole_chunk_error(path: Path, ordinal: int) -> DataError:
    what = "expected valid text, got an error in a chunk that the disk cannot read completely"
    return DataError(what, path=str(path), sequence=ordinal)


def _make_parser(schema: Schema, lenient: bool, fill: Sequence[int], memory_bytes: int) -> Any:
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
    return _native.CtfParser(
        [field.encode() for field in fields],
        [stream.size for stream in schema.values()],
        [stream.sparse for stream in schema.values()],
        [stream.dtype == np.float64 for stream in schema.values()],
        fill,
        size_stream=schema.size_at,
        lenient=lenient,
        memory_bytes=memory_bytes,
    )


def open_files(paths: list[str], streams: Mapping[str, Stream], memory_bytes: int) -> CTFDeserializer:
    """Open files, or a folder of them. See `open_corpus`."""
    what = paths if len(paths) > 1 else paths[0]
    return CTFDeserializer(what, streams or infer_ctf_streams(paths[0]), memory=memory_bytes)
