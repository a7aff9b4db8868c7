"""Text that is read, decompressed if necessary, and parsed natively. The common part of CTF, JSON Lines, CSV, and
TFRecord, whose rows are records.

Guarantees: a bad row keeps its place and reports why, with file, byte, line and stream. Text is read with pread, or
decompressed from the nearest point before it (see `files.compressed_text`), never as a whole. A file that changes while
open is an error. Cost: the first opening reads the files once, natively, to index them (24 bytes a row, see
`file_index`). Later ones read O(chunks). Reading a chunk costs its text and its columns. Indexing, unpacking and
parsing release the GIL.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.data import Chunk, Schema, Stream, Value
from feedline.data.chunk import LazyErrors
from feedline.data.scattered import ScatteredBytes, without_gaps
from feedline.data.schema import PRESENT
from feedline.data.value import BytesValue, DenseValue
from feedline.errors import DataError, SchemaError
from feedline.feed.files.buffers import ReadBuffers
from feedline.feed.files.compressed_text import head_of
from feedline.feed.files.paths import PathLike, open_file, status_of
from feedline.feed.formats.indexed.file_index import IndexKind
from feedline.feed.formats.indexed.indexed_corpus import (
    MAX_AT_ONCE,
    ChunkPlace,
    IndexedCorpus,
    Ordinals,
    check_memory,
    merge_reads,
)
from feedline.feed.formats.indexed.indexed_file import SKIP, Hole, IndexedFile, packing_of_text
from feedline.feed.formats.missing import (
    Filling,
    fill,
    filling_of,
    from_runs,
    identity_of,
    lacking,
    mask_of,
    remedy,
    with_masks,
)
from feedline.feed.progress_bar import Progress
from feedline.feed.protocol import Extent, Fetchable, Ints, Piece, Unread

CHUNK_TEXT = 32 << 20
"""Bytes of text in a chunk, by default."""

HEAD_BYTES = 4 << 20
"""Number of bytes at the head of a text from which streams are inferred."""

MAX_ROW = 64 << 20
"""Largest row in bytes. An unclosed quote makes a row of all text after it, and a small compressed file may have a huge
row."""

NAMES = {code: name for name, code in _native.ROW_ERRORS.items()}

_RECORD = np.dtype(
    [("byte", "<u8"), ("expected", "<i8"), ("got", "<i8"), ("row", "<u4"), ("stream", "<i2"), ("code", "<u2")]
)
_TYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")
_TEXT, _BYTES = len(_TYPES), len(_TYPES) + 1
_SHOWN = 60

PAD = 64
"""Bytes that the parsers may load on either side of the text."""


def index_error(path: Path, text: BinaryIO, code: int, byte: int) -> DataError:
    """Return the error for a text of rows that cannot be indexed."""
    if NAMES[code] == "utf16_input":
        return utf16_error(path)
    return DataError(
        f"expected rows of at most {MAX_ROW} bytes, got a longer one",
        path=str(path),
        byte=byte,
        hint="does a line end in another way, or a quote never close? Write large values to separate files",
    )


def utf16_error(path: Path) -> DataError:
    """Return the error for a text that begins with a byte order mark of UTF-16."""
    what, hint = "expected UTF-8 text, got a UTF-16 byte order mark", "convert it: iconv -f UTF-16 -t UTF-8"
    return DataError(what, path=str(path), byte=0, hint=hint)


class TextRows(NamedTuple):
    """Rows, or sequences of rows, whose text was read.

    Attributes:
        file: file of the rows.
        ordinals: their ordinals in the corpus.
        entries: their entries in the index.
        places: the entries with offsets in the text that was read.
        holes: parts that could not be read.
        chunk: the chunk of the rows, or None if they are a selection.
    """

    file: IndexedFile
    ordinals: Ordinals
    entries: NDArray[Any]
    places: NDArray[Any]
    holes: Sequence[Hole]
    chunk: ChunkPlace | None = None

    @property
    def origin(self) -> int:
        """Offset of the first byte that was read, in the units of ``places``."""
        return 0 if self.chunk is None else self.chunk.begin


class TextCorpus(IndexedCorpus, Fetchable):
    """Text that is read into buffers, and parsed natively."""

    _views = False  # whether chunks have views of the text
    _streams: Schema  # without masks
    _fillings: Mapping[str, Filling]

    def _take_streams(self, declared: Mapping[str, Stream]) -> None:
        """Take the declarations of the streams."""
        self._declared = dict(declared)
        self._fillings = {name: filling for name, s in declared.items() if (filling := filling_of(s)) is not None}
        self._streams = Schema({name: stream.delivered() for name, stream in declared.items()})
        self.schema = with_masks(self._streams, self._fillings)

    def _declarations(self) -> dict[str, Stream]:
        return self._declared

    def _index(self, kind: IndexKind, progress: Progress) -> None:
        super()._index(kind, progress)
        self._buffers = ReadBuffers(PAD)

    def read(self, chunk: int) -> Chunk:
        """Return the sequences of a chunk.

        Raises:
            DataError: the file has changed since it was indexed, or the chunk would exceed ``memory``.
        """
        place = self._place(chunk)
        file, size = place.file, place.size
        self._check_text_size(size, file)
        with file.open() as text, self._text_buffer(size) as buffer:
            holes = file.fill(text, buffer[PAD : PAD + size], place.begin)
            file.compare(text)
            return self._parse_chunk(place, buffer, holes)

    def extents(self, chunk: int) -> list[Extent]:
        """Return the part of the file with the chunk's text."""
        file, _, _, begin, size = self._place(chunk)
        first, end = file.extent(begin, size)
        return [Extent(str(file.path), first, end - first)]

    def read_fetched(self, chunk: int, pieces: Sequence[Piece]) -> Chunk:
        """See `Fetchable.read_fetched`."""
        (piece,) = pieces
        if isinstance(piece, Unread):
            return self.read(chunk)  # reads as much as possible
        place = self._place(chunk)
        file, begin, size = place.file, place.begin, place.size
        self._check_text_size(size, file)
        with file.open() as text, self._text_buffer(size) as buffer:
            file.compare(text)
            first, _ = file.extent(begin, size)
            holes = file.unpack(np.frombuffer(piece, np.uint8), first, buffer[PAD : PAD + size], begin)
            return self._parse_chunk(place, buffer, holes)

    def _text_buffer(self, size: int) -> contextlib.AbstractContextManager[NDArray[np.uint8]]:
        """Return a context with a buffer for the text of a chunk. It is reused afterwards, unless views need it."""
        return contextlib.nullcontext(self._buffers.give(size)) if self._views else self._buffers.lend(size)

    def _check_text_size(self, size: int, file: IndexedFile) -> None:
        """Check that ``size`` bytes of text may be read at once.

        Raises:
            DataError: these are too many.
        """

    def _parse_chunk(self, place: ChunkPlace, buffer: NDArray[np.uint8], holes: Sequence[Hole]) -> Chunk:
        entries = place.file.read_index(lambda index: index.entries(place.local))
        return self._parse(TextRows(place.file, self._ordinals(place), entries, entries, holes, chunk=place), buffer)

    def _select_in(self, number: int, local: Ints) -> Chunk:
        """Return sequences of one file. ``local`` is ascending."""
        file = self._files[number]
        entries = file.entries_at(local)
        lows, highs, places, position = merge_reads(entries)
        self._check_text_size(int(places[-1]), file)
        holes: list[Hole] = []
        with file.open() as text, self._buffers.lend(int(places[-1])) as buffer:
            for low, high, place in zip(lows.tolist(), highs.tolist(), places.tolist(), strict=False):
                holes += file.fill(text, buffer[PAD + place : PAD + place + high - low], low)
            file.compare(text)
            moved = entries.copy()
            moved["offset"] = position
            return self._parse(TextRows(file, local + self._starts[number], entries, moved, holes), buffer)

    def _fill(self, values: dict[str, Value], name: str, runs: NDArray[np.int64] | None) -> None:
        """Fill the missing values of a stream, which are zeros or empty, and add its mask, if it has one.

        Args:
            values: the values of the streams.
            name: name of the stream.
            runs: pairs of the first missing value and the number of missing ones, as the parser found them.
        """
        filling = self._fillings.get(name)
        if filling is None:
            return
        stream, value = self._streams[name], values[name]
        single = stream.is_bytes or stream.sparse
        flags = from_runs(runs, value.num_samples, 1 if single else stream.size)
        if single and flags is not None:
            flags = flags[:, 0]
        if filling.value:
            values[name] = fill(value, flags, filling)
        if filling.mask:
            values[name + PRESENT] = mask_of(value, flags)

    @abstractmethod
    def _parse(self, part: TextRows, buffer: NDArray[np.uint8]) -> Chunk:
        """Parse the text in ``buffer``, which has padding on both sides."""

    def close(self) -> None:
        """Release the read buffers. Files are only open during a read."""
        self._buffers.clear()


RowParser = _native.JsonParser | _native.CsvParser | _native.ExampleParser


class RowLayout(NamedTuple):
    """How the rows of a file are parsed: the parser, and the streams that it returns."""

    parser: RowParser
    streams: Sequence[str]


class RowsDeserializer(TextCorpus):
    """Rows of text, the base of `JSONLinesDeserializer`, `CSVDeserializer` and `TFRecordDeserializer`.

    Class attributes name a row and its content, and declare whether the index numbers lines.
    """

    _unit, _content, _numbers_lines = "row", "text", True
    _parser: RowParser
    _ragged: frozenset[str] = frozenset()
    _identity: str

    def _fields(self, what: str) -> list[tuple[int, tuple[int, ...], bool, bool]]:
        """Return the fields of a parser. Raises the errors of `parser_fields`."""
        return parser_fields(self._streams, self._ragged, self._fillings, memory_bytes=self._memory_bytes, what=what)

    def _content_identity(self) -> tuple[str, ...]:
        return (self._identity + identity_of(self._fillings).decode(),)

    def _check_text_size(self, size: int, file: IndexedFile) -> None:
        if size > self._memory_bytes:
            raise DataError(
                f"expected at most {self._memory_bytes} bytes of {self._content} at once (memory), got {size}",
                path=str(file.source),
                hint="raise memory=, or lower chunk_size="
                + ("; a row may be that long because nothing ends it" if self._numbers_lines else ""),
            )

    def _parse(self, part: TextRows, buffer: NDArray[np.uint8]) -> Chunk:
        file, ordinals, entries, places, holes, chunk = part
        parser, present = self._layout_of(file)
        origin = part.origin
        views = self._views and chunk is not None
        parse = parser.view if views and isinstance(parser, _native.ExampleParser) else parser.parse
        with file.index_errors():
            streams, faults = parse(buffer, PAD, places.view(np.uint8), origin)
        records = faults.view(_RECORD)
        if len(records) and NAMES[int(records[-1]["code"])] == "memory_limit":
            last = records[-1]
            raise DataError(
                f"expected at most {last['expected']} bytes decoded at once (memory), got {last['got']} before the end",
                path=str(file.source),
                line=self._line(entries, int(last["row"])),
                sequence=int(ordinals[last["row"]]),
                hint="raise memory=, or lower chunk_size=",
            )
        values: dict[str, Value] = {}
        columns = dict(zip(present, streams, strict=True))
        for name, stream in self._streams.items():
            if name not in columns:
                self._add_lacking(values, name, len(ordinals), file)
                continue
            data, bounds, offsets, missing = columns[name]
            if stream.is_bytes and bounds is None:
                spans = data.view(np.int64).reshape(-1, 2)
                values[name] = ScatteredBytes(spans, buffer[PAD:], text=stream.is_text)
            elif stream.is_bytes:
                values[name] = BytesValue(bounds, data, offsets, text=stream.is_text)
            else:
                count = len(ordinals) if offsets is None else int(offsets[-1])
                values[name] = DenseValue(data.view(stream.dtype).reshape(count, *stream.shape), offsets)
            self._fill(values, name, missing)
        without_gaps(values, buffer)
        if len(records) == 0 and not holes:
            return self._make_chunk(part, values, {})
        begin = entries["offset"].astype(np.int64)
        end = begin + entries["size"]
        gaps = [np.flatnonzero((begin < high) & (end > low)) for low, high, _ in holes]
        of_records = records["row"].astype(np.int64)
        rows = np.unique(np.concatenate([of_records, *gaps]))
        names = list(present)
        # If there are many errors, each is created on access, as a row can be shorter than its error. This needs a copy
        # of the text, as the buffer is reused.
        snapshot = buffer.copy() if len(rows) > MAX_AT_ONCE else buffer

        def record_error(k: int) -> DataError:
            record = records[k]
            row = int(record["row"])
            at, position = int(record["byte"]), int(places["offset"][row]) - origin
            shown = bytes(snapshot[PAD + at : PAD + position + int(entries["size"][row])][: 4 * _SHOWN])
            at_fault = names[record["stream"]] if record["stream"] >= 0 else None
            code = NAMES[int(record["code"])]
            what, hint = self._describe(file, record, code, at_fault, shown=excerpt(shown), byte=shown[:1])
            if not self._numbers_lines:
                what += f", in {self._unit} {int(entries['key'][row])}"
            return DataError(
                what,
                path=str(file.source),
                byte=int(entries["offset"][row]) + at - position,
                line=self._line(entries, row),
                sequence=int(ordinals[row]),
                stream=at_fault,
                hint=SKIP if hint is None else f"{hint}; {SKIP}",
            )

        def row_error(row: int) -> DataError:
            for low, high, reason in holes:  # the first hole of a row counts
                if begin[row] < high and end[row] > low:
                    return file.hole_error(low, reason, int(ordinals[row]), self._line(entries, row))
            return record_error(int(np.searchsorted(of_records, row, side="right")) - 1)

        errors: Mapping[int, DataError] = LazyErrors(rows, row_error)
        return self._make_chunk(part, values, errors if len(rows) > MAX_AT_ONCE else dict(errors))

    def _make_chunk(self, part: TextRows, values: dict[str, Value], errors: Mapping[int, DataError]) -> Chunk:
        """Return the chunk of parsed rows. A subclass may make other streams of them."""
        return Chunk(self.schema, values, errors)

    def _remedy(self, name: str | None) -> str | None:
        """Return what to do about values that a stream lacks."""
        return None if name is None else remedy(name, self._streams[name])

    def _line(self, entries: NDArray[Any], row: int) -> int | None:
        """Return the line of a row, if keys are numbers of lines."""
        return int(entries["key"][row]) if self._numbers_lines else None

    def _layout_of(self, file: IndexedFile) -> RowLayout:
        """Return how the rows of a file are parsed."""
        return RowLayout(self._parser, list(self._streams))

    def _add_lacking(self, values: dict[str, Value], name: str, count: int, file: IndexedFile) -> None:
        """Add the samples, and the mask, of a stream that a file lacks.

        Raises:
            DataError: they exceed the memory.
        """
        stream = self._streams[name]
        check_memory(count * stream.size * max(1, stream.dtype.itemsize), self._memory_bytes, str(file.source))
        values[name], mask = lacking(stream, count, self._fillings[name])
        if mask is not None:
            values[name + PRESENT] = mask

    @abstractmethod
    def _describe(
        self, file: IndexedFile, record: Any, code: str, stream: str | None, *, shown: str, byte: bytes
    ) -> tuple[str, str | None]:
        """Return the message for a fault of a row, and a hint."""


def excerpt(text: bytes) -> str:
    """Return the beginning of a text, for an error."""
    line = text.split(b"\n")[0].decode("utf-8", "replace").rstrip("\r")
    return line if len(line) <= _SHOWN else line[: _SHOWN - 3] + "..."


def parser_fields(
    schema: Schema, ragged: frozenset[str], optional: Collection[str] = (), *, memory_bytes: int, what: str
) -> list[tuple[int, tuple[int, ...], bool, bool]]:
    """Return the fields of a parser for the streams of a schema, of which ``optional`` may lack values.

    Raises:
        SchemaError: text in rows cannot fill a stream, or a sample exceeds the memory.
    """
    fields = []
    for name, stream in schema.items():
        if stream.sparse:
            raise SchemaError(
                f"expected a dense stream, bytes or str for stream `{name}`, got sparse {stream.shape}: {what} has no "
                "sparse vectors; make them in an fl.Map"
            )
        if stream.is_bytes:
            kind = _TEXT if stream.is_text else _BYTES
        elif stream.dtype.name in _TYPES and stream.dtype.isnative:
            kind = _TYPES.index(stream.dtype.name)
        else:
            raise SchemaError(
                f"expected one of {', '.join(_TYPES)}, bytes or str for stream `{name}`, got {stream.dtype}"
            )
        if stream.size * max(1, stream.dtype.itemsize) > memory_bytes:
            raise SchemaError(
                f"expected samples of at most {memory_bytes} bytes (memory) for stream `{name}`, got {stream.shape}"
            )
        fields.append((kind, stream.shape, name in ragged, name in optional))
    return fields


def head_text(path: PathLike) -> tuple[bytes, bool]:
    """Return the first bytes of a text without a byte order mark, and whether the text is complete.

    Raises:
        DataError: the text cannot be read, or is packed and damaged.
    """
    with open_file(path) as file:
        packing = packing_of_text(file)
        size = HEAD_BYTES + 1 if packing is not None else min(HEAD_BYTES, status_of(file).st_size) + 1
        text = head_of(file, size, packing)
    if packing is not None and not text:
        raise DataError(
            f"expected text in {packing}, got none that can be unpacked",
            path=str(path),
            byte=0,
            hint="the file is empty, truncated or damaged: restore it",
        )
    return text[:HEAD_BYTES].removeprefix(b"\xef\xbb\xbf"), len(text) <= HEAD_BYTES
