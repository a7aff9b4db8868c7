"""Arrays in files that other libraries read: the common part of HDF5 and Zarr.

A file becomes an `ArrayDeserializer`. Its columns are views, if the file can be mapped, or `StoredColumn` objects,
which read rows when they are needed. Several files become one corpus. Rows are read in blocks as they are stored, and a
damaged block makes only its own rows unreadable. The memory of a read is bounded, whatever size the file claims.
"""

from __future__ import annotations

import abc
import contextlib
import copy
import math
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from feedline.concurrency.fork_local import PerProcess
from feedline.data import Schema, Stream, Value
from feedline.data.value import BytesValue, DenseValue, as_arrays, strings_from_list
from feedline.errors import DataError, SchemaError
from feedline.feed.byte_strings import from_array
from feedline.feed.concatenated import Concatenated
from feedline.feed.files.digest import ContentDigest
from feedline.feed.files.lru import LruCache
from feedline.feed.files.paths import PathLike, name_of
from feedline.feed.formats.arrays import ArrayDeserializer
from feedline.feed.formats.hdf5_zarr.fill_values import FillValues, fill_value_of
from feedline.feed.formats.lazy_rows import CHUNK_BYTES, LazyRows
from feedline.feed.formats.missing import filling_of, identity_of, with_masks
from feedline.feed.formats.pickled_by_arguments import PickledByArguments
from feedline.feed.formats.unreadable import no_values, reraise_if_transient
from feedline.feed.joined_values import join_values
from feedline.feed.protocol import CHUNK_MEMORY, Deserializer, Growing, Ints, declared_streams, whole_number

_SLAB_ROWS = 1024  # read in one step, of strings and ragged rows, whose sizes are unknown before
_SAMPLE_ROWS = 64  # of strings, from which the size of a row is estimated
_MAX_CHUNK_BYTES = 128 << 20  # of a larger chunk, at whose end blocks of several sizes end
_MAX_KEPT_BYTES = 64 << 20  # of the blocks of a column that chunks have cut
_MAX_CHUNKS = 1 << 22  # 128 TiB by default. More chunks are a sign of a damaged number of rows


class FileColumn(NamedTuple):
    """A column of a file.

    Attributes:
        rows: a `StoredColumn`, or a view of a map.
        stream: declaration of a row.
        fill_value: value of missing samples, if the declaration asks for it.
    """

    rows: Any
    stream: Stream
    fill_value: Any = None


Columns = dict[str, FileColumn]


class StoredArray(Protocol):
    """An array in a file.

    Attributes:
        path: path of the file.
        shape: shape of the array, one row per sequence.
        dtype: dtype of numbers, in native byte order, or of strings ``"S"`` or ``"U"``, of no size.
        ragged: whether a row is a vector of any length.
        block: number of rows in a stored block.
        concurrent: whether several threads may read it at the same time.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    ragged: bool
    block: int
    concurrent: bool

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Read rows. Any exception means that they cannot be read."""

    def map_rows(self) -> NDArray[Any] | None:
        """Return all rows as a view of the file, if they are stored as they are in memory."""

    def fill_values(self) -> tuple[Mapping[str, Any], Any]:
        """Return the attributes of the array, and the fill value that it was created with, or None."""


class StoredColumn(LazyRows):
    """Rows of a `StoredArray`: numbers, byte strings, texts, or vectors of any length.

    Args:
        name: name of the stream, for errors.
        data: the array.
        stream: declaration of a row, as `declared` checked it.
        memory_bytes: bytes that one read may take.

    Attributes:
        first: ordinal of the first row in the corpus, for errors.

    Raises:
        DataError: there are more rows than a machine could have.
    """

    def __init__(self, name: str, data: StoredArray, stream: Stream, memory_bytes: int) -> None:
        self._name, self._data, self._count = name, data, data.shape[0]
        self.stream, self.step, self.first = stream, max(1, data.block), 0
        self._path, self._memory_bytes = data.path, memory_bytes
        turn: Callable[[], Any] = contextlib.nullcontext if data.concurrent else threading.Lock
        self._turn = PerProcess(turn)
        if self._count > sys.maxsize:
            raise self._error(f"expected at most {sys.maxsize} rows, got {self._count}")
        self._mean_bytes = 1
        room = min(memory_bytes, _MAX_KEPT_BYTES)
        self._cut_blocks: LruCache[int, NDArray[Any]] = LruCache(self._block, self._bytes_of, room)
        self.offsets = self._count_offsets() if data.ragged and not stream.is_bytes else None
        self._mean_bytes = self._estimate_row_bytes()

    @property
    def row_bytes(self) -> int:
        """Number of bytes of a row in memory, an estimate where rows differ."""
        return self._mean_bytes

    def read(self, start: int, stop: int) -> tuple[Value, dict[int, DataError]]:
        """Return the rows ``start:stop``, and the errors of unreadable rows by index.

        Raises:
            DataError: the process lacks descriptors, which must not make rows unreadable.
        """
        values: list[Value] = []
        errors: dict[int, DataError] = {}
        at = taken_bytes = 0
        for value, error in self._pieces(start, stop):
            if error is not None:
                errors.update({at + i: self._row_error(error, start + at + i) for i in range(value.num_sequences)})
            values.append(value)
            at, taken_bytes = at + value.num_sequences, taken_bytes + value.nbytes
            try:
                self._check_bytes(taken_bytes)
            except DataError as too_large:
                count = stop - start
                return self._empty_rows(count), {i: self._row_error(too_large, start + i) for i in range(count)}
        return join_values(values), errors

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[Value, DataError | None]]:
        """Yield the rows ``start:stop`` in pieces, as large as they can be read, and the error of each unreadable
        piece."""
        error = None
        try:
            value = self._value(start, stop)
        except DataError as caught:
            reraise_if_transient(caught)
            # Halve the rows, between blocks, until the damaged block is isolated.
            middle = (start + (stop - start) // 2) // self.step * self.step
            if middle <= start:
                middle = (start // self.step + 1) * self.step
            if middle < stop:
                yield from self._pieces(start, middle)
                yield from self._pieces(middle, stop)
                return
            value, error = self._empty_rows(stop - start), caught
        yield value, error

    def head(self, rows: int) -> StoredColumn:
        """Return the first rows."""
        head = super().head(rows)
        head._mean_bytes = 1
        head._cut_blocks = LruCache(head._block, head._bytes_of, min(self._memory_bytes, _MAX_KEPT_BYTES))
        head.offsets = None if self.offsets is None else self.offsets[: rows + 1]
        head._mean_bytes = head._estimate_row_bytes()
        return head

    def add_to(self, digest: ContentDigest) -> None:
        """Add the shape, and rows from head, middle and tail, with the number of unreadable rows."""
        digest.numbers(self._count, *self.stream.shape)
        rows = min(self._count, max(1, _SAMPLE_ROWS * 1024 // max(1, self._mean_bytes)))
        last = self._count - rows
        for start in sorted({0, last // 2, last}):
            value, errors = self.read(start, start + rows)
            digest.numbers(len(errors), value.num_samples)
            for array in as_arrays(value):
                if array is not None:
                    digest.array(array)

    def _value(self, start: int, stop: int) -> Value:
        """Read rows.

        Raises:
            DataError: some of them cannot be read, or are not as declared.
        """
        if not self._data.ragged and not self.stream.is_bytes:
            self._check_bytes((stop - start) * self.row_bytes)
            rows = self._rows(start, stop).astype(self.stream.dtype, copy=False)
            return Value.from_dense(np.ascontiguousarray(rows))
        parts: list[Value] = []
        slab = max(1, _SLAB_ROWS // self.step) * self.step
        at, taken_bytes = start, 0
        while at < stop or not parts:
            # Slabs end where blocks end, so that no block is decoded twice.
            end = min(stop, (at // slab + 1) * slab)
            try:
                parts.append(self._varying_value(self._rows(at, end)))
            except (TypeError, ValueError, AttributeError) as error:
                raise self._error(f"cannot read rows {at} to {end - 1}: {error}") from error
            taken_bytes, at = taken_bytes + parts[-1].nbytes, end
            self._check_bytes(taken_bytes)
        value = join_values(parts)
        if self.offsets is not None:
            expected = np.diff(self.offsets[start : stop + 1])
            if not np.array_equal(value.lengths, expected):
                raise self._error(
                    f"expected rows {start} to {stop - 1} to be as long as when they were counted, got other lengths"
                )
        return value

    def _varying_value(self, rows: NDArray[Any]) -> Value:
        if not self._data.ragged:
            value = strings_from_list(rows.tolist()) if rows.dtype.kind in "OT" else from_array(rows)
            return BytesValue(value.bounds, value.data, None, text=self.stream.is_text)
        items = rows.tolist()
        bounds = np.zeros(len(items) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, items), np.int64, len(items)), out=bounds[1:])
        kind = np.dtype(np.uint8) if self.stream.is_bytes else self.stream.dtype
        flat = np.concatenate(items).astype(kind, copy=False) if bounds[-1] else np.empty(0, kind)
        if flat.shape != (bounds[-1],):
            raise ValueError(f"expected vectors, got shape {flat.shape}")
        if self.stream.is_bytes:
            return BytesValue(bounds, flat, None, text=self.stream.is_text)
        return DenseValue(flat, bounds)

    def _rows(self, start: int, stop: int) -> NDArray[Any]:
        try:
            rows = self._by_block(start, stop)
        except DataError:
            raise
        except Exception as error:
            raise self._error(f"cannot read rows {start} to {stop - 1}: {type(error).__name__}: {error}") from error
        expected = (stop - start, *self._data.shape[1:])
        varying = self._data.ragged or self.stream.is_bytes
        if rows.shape != expected or (not varying and rows.dtype.newbyteorder("=") != self.stream.dtype):
            dtype = "" if varying else f"{self.stream.dtype} "
            raise self._error(
                f"expected rows {start} to {stop - 1} of stream `{self._name}` as {dtype}{expected}, got "
                f"{rows.dtype} {rows.shape}"
            )
        return rows

    def _by_block(self, start: int, stop: int) -> NDArray[Any]:
        """Read rows. Blocks that are read only in part are kept for the chunks with their other rows."""
        head = min(stop, -(-start // self.step) * self.step)
        tail = stop if stop == self._count else max(head, stop // self.step * self.step)
        if head == start and tail == stop:
            return self._read_in_turn(start, stop)
        parts = [self._part(start, head)] if head > start else []
        parts += [self._read_in_turn(head, tail)] if tail > head else []
        parts += [self._part(tail, stop)] if stop > tail else []
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _part(self, start: int, stop: int) -> NDArray[Any]:
        """Read rows of one block."""
        number = start // self.step
        try:
            block = self._cut_blocks.get(number)
        except Exception:  # these rows of the block may be readable
            return self._read_in_turn(start, stop)
        return block[start - number * self.step : stop - number * self.step]

    def _block(self, number: int) -> NDArray[Any]:
        return self._read_in_turn(number * self.step, min(self._count, (number + 1) * self.step))

    def _bytes_of(self, block: NDArray[Any]) -> int:
        return max(block.nbytes, len(block) * self._mean_bytes)

    def _read_in_turn(self, start: int, stop: int) -> NDArray[Any]:
        with self._turn.get():
            rows: NDArray[Any] = self._data.rows(start, stop)
        return rows

    def _count_offsets(self) -> Ints:
        """Return the offsets of the rows. Reads the whole array once, and keeps only the offsets."""
        if self._count * 8 > self._memory_bytes:
            raise self._error(f"expected at most {self._memory_bytes // 8} rows (memory), got {self._count}")
        offsets = np.zeros(self._count + 1, np.int64)
        slab = max(1, _SLAB_ROWS // self.step) * self.step
        self.offsets = None
        for start in range(0, self._count, slab):
            at = start
            for value, _ in self._pieces(start, min(self._count, start + slab)):
                offsets[at + 1 : at + 1 + value.num_sequences] = value.lengths
                at += value.num_sequences
        return np.cumsum(offsets, out=offsets)

    def _estimate_row_bytes(self) -> int:
        if self.offsets is not None:
            return int(self.offsets[-1]) * self.stream.dtype.itemsize // max(1, self._count) + 1
        if not self.stream.is_bytes:
            return max(1, self.stream.size * self.stream.dtype.itemsize)
        rows = min(self._count, _SAMPLE_ROWS)
        last = self._count - rows
        sizes = [self.read(at, at + rows)[0].nbytes for at in sorted({0, last // 2, last})] if rows else [0]
        return max(sizes) // max(1, rows) + 1

    def _check_bytes(self, taken_bytes: int) -> None:
        if taken_bytes > self._memory_bytes:
            raise self._error(
                f"expected rows of at most {self._memory_bytes} bytes at a time (memory), got {taken_bytes} or more",
                hint="raise memory=, or lower chunk_sequences=",
            )

    def _empty_rows(self, count: int) -> Value:
        ragged = (self._name,) if self._data.ragged and not self.stream.is_bytes else ()
        return no_values(Schema({self._name: self.stream}), ragged, count)[self._name]

    def _error(self, what: str, hint: str | None = None) -> DataError:
        return DataError(what, path=self._path, stream=self._name, hint=hint)

    def _row_error(self, error: DataError, row: int) -> DataError:
        path, hint = error.path or self._path, error.hint or _SKIP
        return DataError(error.what, path=path, sequence=self.first + row, stream=self._name, hint=hint)


_SKIP = 'restore the file, or pass on_error="skip" to the source to skip such sequences and list them'


class StoredArrays(Concatenated, Growing, PickledByArguments):
    """Arrays of one or several files as a corpus, one file after the other. See `HDF5Deserializer`."""

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        streams: Mapping[str, Stream] | None = None,
        *,
        group: str = "/",
        chunk_sequences: int | None = None,
        memory: int = CHUNK_MEMORY,
        **stream_kwargs: Stream,
    ) -> None:
        memory_bytes = whole_number("memory", memory, 1)
        streams = declared_streams(streams, stream_kwargs)
        self._set_arguments(path, streams, group=group, chunk_sequences=chunk_sequences, memory=memory_bytes)
        paths, tables = self._list_paths(path), []
        for file_path in paths:
            tables.append(self._arrays(file_path, group, streams, memory_bytes))
            # The first file declares the streams of all files.
            streams = streams or {name: column.stream for name, column in tables[-1].items()}
        self._memory_bytes, self._step, self._declared = memory_bytes, chunk_sequences, streams
        self._set_files(paths, tables)

    def _set_files(self, paths: list[str], tables: Sequence[Columns]) -> None:
        """Set the files, with the columns of each.

        Raises:
            SchemaError, DataError: the columns of a file differ in their rows, or have too many.
        """
        streams, self._paths, self._tables = self._declared, paths, tables
        size = next((name for name, stream in streams.items() if stream.defines_size), None)
        self._parts: list[ArrayDeserializer] = []
        self._fillings = {name: filling for name, s in streams.items() if (filling := filling_of(s)) is not None}
        first, read = 0, list[Deserializer]()
        for name, by_stream in zip(paths, tables, strict=True):
            columns = {stream_name: column.rows for stream_name, column in by_stream.items()}
            stored = [column for column in columns.values() if isinstance(column, StoredColumn)]
            step = self._step
            if step is None and stored:
                step = _chunk_rows(stored, self._memory_bytes)
            try:
                corpus = ArrayDeserializer(columns, chunk_sequences=step, defines_size=size)
            except DataError as error:
                raise error.located(path=name) from None
            except SchemaError as error:
                hint = "declare the streams that belong together: x=fl.Stream(..., field='name')"
                raise SchemaError(f"{error} ({name}); {hint}") from None
            for column in stored:
                column.first = first
            if corpus.num_sequences // corpus.step > _MAX_CHUNKS:
                raise DataError(
                    f"expected at most {_MAX_CHUNKS} chunks, got {corpus.num_sequences} rows in chunks of "
                    f"{corpus.step}",
                    path=name,
                    hint="the file is damaged, or pass larger chunk_sequences=",
                )
            self._parts.append(corpus)
            fill_values = {stream_name: column.fill_value for stream_name, column in by_stream.items()}
            read.append(FillValues(corpus, self._fillings, fill_values) if self._fillings else corpus)
            first += corpus.num_sequences
        schema = with_masks({name: stream.delivered() for name, stream in streams.items()}, self._fillings)
        super().__init__(read, schema, name_of(self._paths))
        nothing = np.empty(0, np.int64)
        self._single = {k for k, corpus in enumerate(self._parts) if corpus.lengths(nothing) is None}

    @abc.abstractmethod
    def _list_paths(self, path: PathLike | Sequence[PathLike]) -> list[str]:
        """Return the files at ``path``, before any of them is opened."""

    @abc.abstractmethod
    def _arrays(self, path: str, group: str, streams: Mapping[str, Stream], memory_bytes: int) -> Columns:
        """Return the result of `_columns_of` for a file, which may be open during the call."""

    def _columns_of(
        self,
        arrays: Callable[[str], StoredArray],
        names: Callable[[], Iterator[str]],
        streams: Mapping[str, Stream],
        *,
        path: str,
        memory_bytes: int,
    ) -> Columns:
        """Return the arrays of a file by stream, mapped if they can be, with the declaration of each.

        Args:
            arrays: function that returns the array of a name, or raises a SchemaError if there is none, or if it cannot
                be a stream.
            names: function that returns the names of the arrays that are streams if none are declared.
            streams: declarations.
            path: path of the file, for errors.
            memory_bytes: bytes that one read may take.

        Raises:
            SchemaError: a stream is missing, or not as declared.
        """
        columns: Columns = {}
        for name, stream in (streams or dict.fromkeys(names())).items():
            array = arrays(name if stream is None or stream.field is None else stream.field)
            fill_value = None
            if stream is None:
                delivered = stream = _stream_of(array)
            else:
                delivered = _check_declared(name, stream.delivered(), array, path)
                if stream.may_miss:
                    fill_value = fill_value_of(name, *array.fill_values(), dtype=array.dtype, where=path)
            mapped = None if stream.is_bytes else array.map_rows()
            rows = StoredColumn(name, array, delivered, memory_bytes) if mapped is None else mapped
            columns[name] = FileColumn(rows, stream, fill_value)
        return columns

    def paths(self) -> Sequence[str]:
        """Return the paths of the files."""
        return self._paths

    select = Deserializer.select  # by chunk: a join keeps the chunks that it reads

    def digest(self) -> str:
        """Return 32 hex digits over shapes and excerpts of every file."""
        return list(self.digests())[-1][1]

    def digests(self) -> Iterator[tuple[int, str]]:
        """Yield the digest after each file. See `Growing.digests`."""
        digest = ContentDigest()
        for path, part, end in zip(self._paths, self._parts, self._chunks[1:].tolist(), strict=True):
            digest.numbers(part.num_sequences)
            self._add_file(digest, path, part)
            yield end, digest.hexdigest(identity_of(self._fillings))

    def _first(self, sequences: int) -> Iterator[Self]:
        """Yield the corpus of the first sequences, if they end within a file."""
        k = int(np.searchsorted(self.firsts, sequences, side="right")) - 1
        if rows := sequences - int(self.firsts[k]):
            cut = {
                name: column._replace(
                    rows=column.rows.head(rows) if isinstance(column.rows, LazyRows) else column.rows[:rows]
                )
                for name, column in self._tables[k].items()
            }
            first = copy.copy(self)
            first._set_files(self._paths[: k + 1], [*self._tables[:k], cut])
            yield first

    @abc.abstractmethod
    def _add_file(self, digest: ContentDigest, path: str, part: ArrayDeserializer) -> None:
        """Add excerpts of a file."""


def _chunk_rows(columns: Sequence[StoredColumn], memory_bytes: int) -> int:
    """Return the number of rows of a chunk, at most 32 MiB, that costs the least decoding.

    These rows are whole blocks of all columns, if such a chunk takes at most 128 MiB. Otherwise they are whole blocks
    of one column (above 128 MiB, of a column that makes up half of a row). It is the column for which the fewest bytes
    of blocks are cut. A cut block is decoded for both chunks, unless these are read one after the other.
    """
    row = max(1, sum(column.row_bytes for column in columns))
    max_rows = max(1, min(CHUNK_BYTES, memory_bytes) // row)
    common_step = math.lcm(*(column.step for column in columns))
    if common_step <= max(max_rows, min(_MAX_CHUNK_BYTES, memory_bytes) // row):
        return max(1, max_rows // common_step) * common_step

    def cost(rows: int) -> float:
        # Every (step / gcd)-th chunk ends where a block ends.
        return sum((column.step - math.gcd(rows, column.step)) * column.row_bytes for column in columns) / rows

    def max_bytes(column: StoredColumn) -> int:
        # A large block is decoded as a whole anyway, but a block of many small rows must not make the chunk so long.
        return memory_bytes if 2 * column.row_bytes >= row else min(_MAX_CHUNK_BYTES, memory_bytes)

    steps = {column.step for column in columns if column.step * row <= max_bytes(column)}
    return min((max(1, max_rows // step) * step for step in sorted(steps)), key=cost, default=max_rows)


def _stream_of(array: StoredArray) -> Stream:
    return Stream(() if array.ragged or array.dtype.itemsize == 0 else array.shape[1:], array.dtype)


def _check_declared(name: str, stream: Stream, array: StoredArray, path: str) -> Stream:
    actual = _stream_of(array)
    encoded = stream.is_bytes and (actual.is_bytes or (array.ragged and actual.dtype == np.uint8))
    if stream.sparse or not (encoded or (stream.shape, stream.dtype) == (actual.shape, actual.dtype)):
        raise SchemaError(f"expected {stream} for stream `{name}`, got {actual} in {path}")
    return stream
