"""CNTK's binary format (CBF): a `Deserializer` for one or several files.

Guarantees: nothing in a file is trusted. Counts and offsets are compared with its size before they are followed. A
damaged chunk makes only its own sequences unreadable. Cost: opening reads header and chunk table, 16 bytes a chunk, and
nothing else. Reading a chunk looks at the length of every sequence once. Dense streams with one sample per sequence are
delivered as views of the mapped file. All others are copied once, natively, without the GIL.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.data import Chunk, Schema, Stream, Value
from feedline.data.scattered import even_views
from feedline.data.value import DenseValue, SparseValue
from feedline.errors import DataError, SchemaError
from feedline.feed.files.digest import ContentDigest
from feedline.feed.files.paths import PathLike, list_files, name_of, open_file, read_at, reading, status_of
from feedline.feed.files.remote import object_at
from feedline.feed.files.truncation_guard import note_file, seals_of
from feedline.feed.formats.indexed.indexed_corpus import by_file
from feedline.feed.formats.magic_numbers import CBF
from feedline.feed.formats.pickled_by_arguments import PickledByArguments
from feedline.feed.formats.unreadable import lost_chunk, read_error
from feedline.feed.protocol import (
    ChunkInfo,
    Deserializer,
    Extent,
    Fetchable,
    Growing,
    Ints,
    Piece,
    RandomAccess,
    Sliceable,
    Unread,
    declared_streams,
    whole_number,
)
from feedline.feed.unique import distinct

MAGIC = int.from_bytes(CBF, "little")
VERSION = 1
UNIT = 32 << 20

_HEAD = struct.Struct("<QI")
_COUNTS = struct.Struct("<QII")
_TABLE = np.dtype([("offset", "<i8"), ("sequences", "<u4"), ("samples", "<u4")])
_FAULT = np.dtype(
    [("byte", "<i8"), ("expected", "<i8"), ("got", "<i8"), ("stream", "<i4"), ("code", "<i4"), ("sequence", "<i8")]
)
_TYPES = (np.dtype(np.float32), np.dtype(np.float64))
_MAX_STREAMS = 1 << 16
_FEW, _TINY = 1024, 64 << 10
_DAMAGED = "the file is damaged or was truncated; write it again from its source"
# As CbfError in native/include/feedline/cbf.h. {e} and {g}: expected and got.
_MESSAGES = {
    1: "expected {e} bytes for the lengths of a chunk's sequences, got a chunk of {g}",
    2: "expected a sequence of {e} bytes, got {g} bytes to the end of its chunk",
    3: "expected a possible number of stored values, got {g}",
    4: "expected a sequence of {e} samples, as its longest stream has, got {g}",
    5: "expected {e} samples in a chunk, as the chunk table says, got {g}",
    6: "expected a chunk of {e} bytes, as its sequences take, got {g}",
}


class CbfField(NamedTuple):
    """A stream of a file.

    Attributes:
        name: name, in ASCII.
        sparse: whether its samples are sparse.
        dtype: float32 or float64.
        dim: values in a sample.
    """

    name: str
    sparse: bool
    dtype: np.dtype[Any]
    dim: int

    @property
    def stream(self) -> Stream:
        """The field as a stream."""
        return Stream(self.dim, self.dtype, self.sparse)


class CBFDeserializer(Deserializer, RandomAccess, Sliceable, Fetchable, Growing, PickledByArguments):
    """Sequences of CBF files, as CNTK's ``ctf2bin`` and `write_cbf` write them.

    Args:
        path: a file, a list of files (read as their concatenation), a folder or a glob pattern (sorted by path).
        streams: streams to deliver, by name, also as keyword arguments. ``field`` is the name in the file, by default
            the stream's name. Shape and kind must match the file. The dtype may be float32 or float64: numbers are
            converted. By default all streams of the file, as it describes them.
        chunk_size: bytes up to which neighbouring chunks of a file become one chunk of the order. CNTK's converter
            writes files of many thousands of chunks, most of a single sequence. If chunks are delivered as views, only
            chunks of a single sequence are joined, unless the others are tiny. With 0 the chunks stay as they are in
            the file, which CNTK's order needs.
        stream_kwargs: more streams.

    Raises:
        SchemaError: the files lack a stream, have it with another shape or kind, or have different streams.
        DataError: a file is missing, not CBF, or its header is damaged.
    """

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        streams: Mapping[str, Stream] | None = None,
        *,
        chunk_size: int = UNIT,
        **stream_kwargs: Stream,
    ) -> None:
        chunk_size = whole_number("chunk_size", chunk_size, 0)
        paths = list_files(path)
        self.name = name_of(paths)
        self._files = [_CbfFile(path, chunk_size) for path in paths]
        fields = self._files[0].fields
        for file in self._files[1:]:
            if file.fields != fields:
                raise SchemaError(
                    f"expected the streams of {paths[0]} in every file, got {_names_of(file.fields)} in {file.path}, "
                    f"not {_names_of(fields)}"
                )
        declared = declared_streams(streams, stream_kwargs) or {field.name: field.stream for field in fields}
        self.schema = Schema(declared)
        self._set_arguments(self.paths(), dict(declared), chunk_size=chunk_size)
        self._columns = [_column(name, stream, fields, self.name) for name, stream in self.schema.items()]
        self._first = np.cumsum([0, *(file.num_units for file in self._files)])
        self._starts = np.cumsum([0, *(int(file.unit_starts[-1]) for file in self._files)])
        self._single = all(file.single for file in self._files)
        # The order depends on this, so only the chunk tables determine it.
        pairs = zip(self._columns, declared.values(), strict=True)
        as_stored = [stream.dtype == fields[column].dtype for column, stream in pairs]
        self._has_views = self.looks_at_all = all(as_stored) and all(file.regular for file in self._files)
        if not self._has_views:
            self._lacks = (RandomAccess, Sliceable)
        self._infos = [info for file in self._files for info in file.infos()]
        self._views: dict[int, Chunk] = {}
        if not self._starts[-1]:
            raise DataError("expected at least one sequence, got none", path=self.name)

    # ---- description ------------------------------------------------------------------------------

    def chunks(self) -> list[ChunkInfo]:
        """Return the size of every chunk. ``bytes`` counts the bytes in the file."""
        return self._infos

    def digest(self) -> str:
        """Return 32 hex digits over headers, chunk tables and excerpts of all files."""
        return list(self.digests())[-1][1]

    def digests(self) -> Iterator[tuple[int, str]]:
        """Yield the digest after each file. See `Growing.digests`."""
        content = ContentDigest()
        for file, end in zip(self._files, self._first[1:].tolist(), strict=True):
            content.array(file.table.view(np.uint8))
            with file.open() as stored:
                content.file(stored, file.size)
            yield end, content.hexdigest()

    def paths(self) -> list[str]:
        """Return the paths of the files."""
        return [str(file.path) for file in self._files]

    def lengths(self, ordinals: Ints) -> Ints | None:
        """Return the samples of sequences, by their longest stream, or None if every sequence has one.

        Raises:
            DataError: the lengths in a file contradict its chunk table.
        """
        if self._single:
            return None
        lengths = np.empty(len(ordinals), np.int64)
        for number, at, local in by_file(np.asarray(ordinals, np.int64), self._starts):
            lengths[at] = self._files[number].lengths(local)
        return lengths

    # ---- reading ----------------------------------------------------------------------------------

    def read(self, chunk: int) -> Chunk:
        """Return the sequences of a chunk: views of the file if each has one dense sample, else copies.

        Raises:
            DataError: the file was truncated since it was opened, or its disk fails.
        """
        decoded = self._views.get(chunk)
        if decoded is None:
            file, unit = self._locate(chunk)
            begin, size = file.extent(unit)
            file.compare()
            decoded = self._decode(chunk, np.frombuffer(file.map()[0], np.uint8, size, begin), mapped=True)
            if self._has_views and not decoded.errors and all(_is_view(value) for value in decoded.values.values()):
                self._views[chunk] = decoded  # views take no memory, and make another search unnecessary
        return decoded

    def read_slice(self, chunk: int, start: int, stop: int) -> Chunk:
        """Return the sequences ``start:stop`` of a chunk, as `read` does."""
        return self.read(chunk).slice(start, stop)

    def extents(self, chunk: int) -> list[Extent]:
        """Return the bytes of the chunk, unless they are delivered as views of local files."""
        if self._has_views and not any(file.remote for file in self._files):
            return []
        file, unit = self._locate(chunk)
        return [Extent(str(file.path), *file.extent(unit))]

    def read_fetched(self, chunk: int, pieces: Sequence[Piece]) -> Chunk:
        """See `Fetchable.read_fetched`."""
        (piece,) = pieces
        if isinstance(piece, Unread):
            file, _ = self._locate(chunk)
            ragged, first = () if self._single else self.schema, self._ordinal(chunk)
            count = self._infos[chunk].sequences
            return lost_chunk(self.schema, ragged, count, lambda i: read_error(piece, str(file.path), first + i))
        return self._decode(chunk, np.frombuffer(piece, np.uint8), mapped=False)

    def _locate(self, chunk: int) -> tuple[_CbfFile, int]:
        if not 0 <= chunk < len(self._infos):
            raise IndexError(f"expected a chunk from 0 to {len(self._infos) - 1}, got {chunk}")
        number = int(np.searchsorted(self._first, chunk, side="right")) - 1
        return self._files[number], chunk - int(self._first[number])

    def _ordinal(self, chunk: int) -> int:
        """Return the first sequence of a chunk."""
        number = int(np.searchsorted(self._first, chunk, side="right")) - 1
        return int(self._starts[number] + self._files[number].unit_starts[chunk - self._first[number]])

    def _decode(self, chunk: int, data: NDArray[np.uint8], *, mapped: bool) -> Chunk:
        """Return the sequences in the bytes of a chunk.

        Args:
            chunk: number of the chunk.
            data: bytes of the chunk.
            mapped: whether they are part of the map of the file, so that values may be views of them.
        """
        file, unit = self._locate(chunk)
        table, sizes = file.parts(unit)
        native = [(field.sparse, field.dtype.itemsize, field.dim) for field in file.fields]
        begin, samples, stored, faults = _native.cbf_find(
            data,
            sizes,
            np.ascontiguousarray(table["sequences"]),
            np.ascontiguousarray(table["samples"]),
            native,
            open_end=unit == file.num_units - 1,  # in CNTK the last chunk ends at the header
        )
        n = self._infos[chunk].sequences
        shape = (len(native), n)
        begin, samples, stored = begin.reshape(shape), samples.reshape(shape), stored.reshape(shape)
        errors = self._faults(chunk, faults.view(_FAULT), table, samples)
        values: dict[str, Value] = {}
        for (name, stream), column in zip(self.schema.items(), self._columns, strict=True):
            field = file.fields[column]
            places = _Places(begin[column], samples[column], stored[column])
            if field.sparse:
                values[name], bad = _sparse(data, stream, field, places)
                for i in np.flatnonzero(bad).tolist():
                    what = "expected as many values in the samples of a sequence as it has, got another number"
                    errors.setdefault(i, self._damage_error(chunk, what, int(places.begin[i]), i, name))
            else:
                values[name] = _dense(data, stream, field, places, mapped)
        seals = file.map()[1] if mapped else ()
        return Chunk(self.schema, values, errors, seals=seals)

    def _faults(
        self, chunk: int, faults: NDArray[Any], table: NDArray[Any], samples: NDArray[np.uint32]
    ) -> dict[int, DataError]:
        """Return the errors of unreadable sequences, by index in the chunk."""
        errors: dict[int, DataError] = {}
        starts = np.concatenate([[0], np.cumsum(table["sequences"], dtype=np.int64)])
        file, _ = self._locate(chunk)
        for part in np.flatnonzero(faults["code"]).tolist():
            fault = faults[part]
            what = _MESSAGES[int(fault["code"])].format(e=int(fault["expected"]), g=int(fault["got"]))
            stream = file.fields[fault["stream"]].name if fault["stream"] >= 0 else None
            for i in range(int(starts[part]), int(starts[part + 1])):
                errors[i] = self._damage_error(chunk, what, int(fault["byte"]), i, stream)
        if self._single:
            for i in np.flatnonzero(samples.max(axis=0) != 1).tolist():
                what = "expected one sample, as the chunk table says of every sequence, got another number"
                errors.setdefault(i, self._damage_error(chunk, what, 0, i, None))
        return errors

    def _damage_error(self, chunk: int, what: str, byte: int, index: int, stream: str | None) -> DataError:
        file, unit = self._locate(chunk)
        return DataError(
            what,
            path=str(file.path),
            byte=file.extent(unit)[0] + byte,
            sequence=self._ordinal(chunk) + index,
            stream=stream,
            hint=f'{_DAMAGED}, or pass on_error="skip" to the source to skip such sequences and list them',
        )

    # ---- other ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Release the views. Chunks that were returned keep theirs."""
        self._views.clear()


class _CbfFile:
    """A file: its header, its chunk table, and its units, which are runs of chunks that are read as one."""

    def __init__(self, path: Path, unit_size: int) -> None:
        self.path = path
        with self.open() as file:
            self.size = status_of(file).st_size
            self.fields, self.table, header_at = _read_header(file, self.size)
        remote = object_at(path)
        self.remote = remote is not None and not remote.whole
        self._mapped: tuple[mmap.mmap, list[NDArray[np.uint8]]] | None = None
        if not self.remote:
            self.map()
        self._bounds = np.append(self.table["offset"], header_at).astype(np.int64)
        self._starts = np.concatenate([[0], np.cumsum(self.table["sequences"], dtype=np.int64)])
        self.single = bool((self.table["sequences"] == self.table["samples"]).all())
        self.regular = self.single and self._has_views(unit_size)
        several = self.table["sequences"] > 1 if self.regular else None
        self._units = _units(self._bounds, unit_size, several)
        self.unit_starts = self._starts[self._units]
        self._lengths: dict[int, NDArray[np.uint32]] = {}

    def _has_views(self, unit_size: int) -> bool:
        """Return whether every unit can be a view: all streams are dense, and each chunk has the size that this
        implies.

        Chunks of several sequences cannot be joined to a view. If they are tiny, joining them is worth a copy.
        """
        if any(field.sparse for field in self.fields):
            return False
        each = 4 + sum(4 + field.dim * field.dtype.itemsize for field in self.fields)
        if not np.array_equal(np.diff(self._bounds), self.table["sequences"].astype(np.int64) * each):
            return False
        alone = self.table["sequences"][self.table["sequences"] > 1]
        return unit_size == 0 or len(alone) < _FEW or int(alone.sum(dtype=np.int64)) * each // len(alone) >= _TINY

    @property
    def num_units(self) -> int:
        return len(self._units) - 1

    def open(self) -> BinaryIO:
        return open_file(self.path)

    def map(self) -> tuple[mmap.mmap, list[NDArray[np.uint8]]]:
        """Return the map of the file, and its seals. A file in a store is mapped once all of its bytes are fetched."""
        if self._mapped is None:
            remote = object_at(self.path)
            if remote is not None and not remote.has_pinned(0, remote.size):
                raise RuntimeError(f"expected all of {remote.url} to have been fetched")
            with self.open() as file, reading(self.path):
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            note_file(mapped, self.path)
            self._mapped = mapped, seals_of([np.frombuffer(mapped, np.uint8)])
        return self._mapped

    def compare(self) -> None:
        """Check that the size of the file has not changed."""
        with reading(self.path):
            now = self.map()[0].size()
        if now != self.size:
            raise DataError(f"expected a file of {self.size} bytes, got {now}", path=str(self.path), hint=_DAMAGED)

    def infos(self) -> list[ChunkInfo]:
        samples = np.concatenate([[0], np.cumsum(self.table["samples"], dtype=np.int64)])
        columns = (np.diff(array[self._units]).tolist() for array in (self._starts, samples, self._bounds))
        return [ChunkInfo(*row) for row in zip(*columns, strict=True)]

    def extent(self, unit: int) -> tuple[int, int]:
        """Return first byte and size of a unit."""
        begin, end = self._bounds[self._units[unit : unit + 2]].tolist()
        return begin, end - begin

    def parts(self, unit: int) -> tuple[NDArray[Any], Ints]:
        """Return the rows of the chunk table for a unit, and the sizes of its chunks."""
        a, b = self._units[unit : unit + 2].tolist()
        return self.table[a:b], np.diff(self._bounds[a : b + 1])

    def lengths(self, ordinals: Ints) -> Ints:
        chunk_of = np.searchsorted(self._starts, ordinals, side="right") - 1
        lengths = self.table["samples"][chunk_of].astype(np.int64)  # correct for chunks of one sequence
        for chunk in distinct(chunk_of[self.table["sequences"][chunk_of] > 1]).tolist():
            at = np.flatnonzero(chunk_of == chunk)
            lengths[at] = self._chunk_lengths(chunk)[ordinals[at] - self._starts[chunk]]
        return lengths

    def _chunk_lengths(self, chunk: int) -> NDArray[np.uint32]:
        lengths = self._lengths.get(chunk)
        if lengths is None:
            count, byte = int(self.table["sequences"][chunk]), int(self._bounds[chunk])
            with self.open() as file:
                raw = read_at(file, 4 * count, byte)
            total = int(self.table["samples"][chunk])
            lengths = np.frombuffer(raw, "<u4")
            if len(lengths) != count or int(lengths.sum(dtype=np.uint64)) != total:
                raise DataError(
                    f"expected lengths of {count} sequences that add up to {total} samples, as the chunk table says, "
                    f"got {len(lengths)} that add up to {int(lengths.sum(dtype=np.uint64))}",
                    path=str(self.path),
                    byte=byte,
                    hint=_DAMAGED,
                )
            self._lengths[chunk] = lengths
        return lengths


# ---- the header ---------------------------------------------------------------------------------------


def _read_header(file: BinaryIO, size: int) -> tuple[list[CbfField], NDArray[Any], int]:
    """Return the streams, the chunk table, and the end of the chunks."""
    name = os.fspath(file.name)

    def damage_error(what: str, byte: int) -> DataError:
        return DataError(what, path=name, byte=byte, hint=_DAMAGED)

    head = read_at(file, _HEAD.size, 0)
    if len(head) < _HEAD.size or not head.startswith(CBF):
        raise DataError(f"expected a CBF file, got one that begins with {head[:8]!r}", path=name, byte=0)
    version = _HEAD.unpack(head)[1]
    if version != VERSION:
        raise DataError(f"expected version {VERSION} of CBF, got {version}", path=name, byte=8)
    if size < _HEAD.size + _COUNTS.size + 8:
        raise damage_error(f"expected a file with a header, got {size} bytes", size)
    (at,) = struct.unpack("<q", read_at(file, 8, size - 8))
    if not _HEAD.size <= at <= size - 8 - _COUNTS.size:
        raise damage_error(f"expected the header at byte {_HEAD.size} to {size - 8 - _COUNTS.size}, got {at}", size - 8)
    raw = read_at(file, size - 8 - at, at)
    magic, num_chunks, num_streams = _COUNTS.unpack_from(raw)
    if magic != MAGIC:
        raise damage_error("expected a header that begins as the file does, got other bytes", at)
    if not 1 <= num_streams <= _MAX_STREAMS:
        raise damage_error(f"expected 1 to {_MAX_STREAMS} streams, got {num_streams}", at + 12)
    fields, byte = [], _COUNTS.size
    for _ in range(num_streams):
        if byte + 5 > len(raw):
            raise damage_error("expected a stream, got the end of the header", at + byte)
        encoding, length = struct.unpack_from("<BI", raw, byte)
        if length > len(raw) - byte - 10:
            raise damage_error(f"expected a stream's name, got a length of {length} bytes", at + byte + 1)
        text = raw[byte + 5 : byte + 5 + length]
        kind, dim = struct.unpack_from("<BI", raw, byte + 5 + length)
        if encoding > 1 or kind > 1 or not 1 <= dim < 2**31 or not text.isascii() or not text:
            raise damage_error(
                f"expected a stream with encoding 0 or 1, an ASCII name, element type 0 or 1 and 1 to {2**31 - 1} "
                f"values in a sample, got {encoding}, {text[:64]!r}, {kind} and {dim}",
                at + byte,
            )
        fields.append(CbfField(text.decode(), encoding == 1, _TYPES[kind], dim))
        byte += 10 + length
    if len({field.name for field in fields}) < len(fields):
        raise damage_error(f"expected streams of different names, got {_names_of(fields)}", at + _COUNTS.size)
    if len(raw) - byte != num_chunks * _TABLE.itemsize:
        raise damage_error(
            f"expected a table of {num_chunks} chunks, {num_chunks * _TABLE.itemsize} bytes, got {len(raw) - byte}",
            at + byte,
        )
    table = np.frombuffer(raw, _TABLE, num_chunks, byte)
    bounds = np.append(table["offset"], at)
    wrong = np.flatnonzero(bounds[1:] < bounds[:-1]).tolist()
    if num_chunks and bounds[0] < _HEAD.size:
        wrong.insert(0, 0)
    # Each sequence takes 4 bytes for its length, and 4 bytes for its length in each stream.
    sizes = np.diff(bounds) // (4 + 4 * num_streams)
    wrong += np.flatnonzero(table["sequences"] > np.maximum(sizes, 0)).tolist() if not wrong else []
    if wrong:
        row = int(wrong[0])
        raise damage_error(
            f"expected chunk {row} within the file and before the next one, with room for its sequences, got offset "
            f"{table['offset'][row]} and {table['sequences'][row]} sequences",
            at + byte + row * _TABLE.itemsize,
        )
    return fields, table, at


def _units(bounds: Ints, size: int, alone: NDArray[np.bool_] | None) -> Ints:
    """Return the first chunk of each unit, a run of chunks of up to ``size`` bytes, and the number of chunks.

    Chunks marked in ``alone`` are never joined.
    """
    if size == 0:
        return np.arange(len(bounds))
    ends = np.append(np.flatnonzero(alone), len(bounds) - 1) if alone is not None else np.array([len(bounds) - 1])
    starts = [0]
    while starts[-1] < len(bounds) - 1:
        at = starts[-1]
        stop = int(np.searchsorted(bounds, bounds[at] + size, side="right")) - 1
        starts.append(max(at + 1, min(stop, int(ends[np.searchsorted(ends, at)]))))
    return np.array(starts)


def _column(name: str, stream: Stream, fields: Sequence[CbfField], path: str) -> int:
    field_name = stream.field or name
    number = next((number for number, field in enumerate(fields) if field.name == field_name), None)
    if number is None:
        raise SchemaError(f"expected the stream `{field_name}` in {path}, which has {_names_of(fields)}")
    field = fields[number]
    if stream.sparse != field.sparse or stream.size != field.dim:
        kind = "sparse" if field.sparse else "dense"
        raise SchemaError(
            f"expected stream `{name}` as the file has it, {kind} with {field.dim} values in a sample, got "
            f"{'sparse' if stream.sparse else 'dense'} with {stream.size}"
        )
    if stream.dtype not in _TYPES:
        raise SchemaError(f"expected dtype float32 or float64 for stream `{name}`, got {stream.dtype.name}")
    return number


def _names_of(fields: Sequence[CbfField]) -> str:
    return ", ".join(f"{f.name} ({'sparse' if f.sparse else 'dense'} {f.dtype.name}, {f.dim})" for f in fields)


# ---- values -------------------------------------------------------------------------------------------


class _Places(NamedTuple):
    """The places of the sequences of a stream.

    Attributes:
        begin: first byte of each sequence.
        samples: number of samples.
        stored: number of stored values, if the stream is sparse.
    """

    begin: Ints
    samples: NDArray[np.uint32]
    stored: NDArray[np.int32]


def _dense(data: NDArray[np.uint8], stream: Stream, field: CbfField, places: _Places, mapped: bool) -> DenseValue:
    begin, samples, _ = places
    single = bool((samples == 1).all())
    if mapped and single and stream.dtype == field.dtype:
        views = even_views(begin, data, field.dtype, stream.shape)
        if views is not None:
            return DenseValue(views)
    row_bytes = field.dim * field.dtype.itemsize
    offsets = None if single else _offsets(samples)
    out = np.empty((int(samples.sum(dtype=np.int64)), field.dim), field.dtype)
    _native.cbf_dense(data, begin, samples, row_bytes, out.reshape(-1).view(np.uint8))
    return DenseValue(out.astype(stream.dtype, copy=False).reshape(-1, *stream.shape), offsets)


def _sparse(
    data: NDArray[np.uint8], stream: Stream, field: CbfField, places: _Places
) -> tuple[SparseValue, NDArray[np.bool_]]:
    indptr, indices, values, bad = _native.cbf_sparse(data, *places, field.dtype.itemsize)
    numbers = values.view(field.dtype).astype(stream.dtype, copy=False)
    offsets = None if (places.samples == 1).all() else _offsets(places.samples)
    return SparseValue(indptr, indices, numbers, stream.size, offsets), bad


def _offsets(samples: NDArray[np.uint32]) -> Ints:
    return np.concatenate([[0], np.cumsum(samples, dtype=np.int64)])


def _is_view(value: Value) -> bool:
    return isinstance(value, DenseValue) and not value.rows.flags.owndata and value._offsets is None


def open_files(paths: list[str], streams: Mapping[str, Stream], memory_bytes: int) -> CBFDeserializer:
    """Open files. See `open_corpus`."""
    return CBFDeserializer(paths, streams or None)
