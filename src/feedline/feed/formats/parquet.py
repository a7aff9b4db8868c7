"""Parquet files as a corpus: a row group is a chunk.

Pages are decompressed and decoded without the GIL, one thread a chunk, so row groups of some ten megabytes
suit best; they are read with ordinary reads, never mapped. Reading order is by windows, as chunks must be
decoded; `feedline.convert` makes a store for random access.

Parquet does not record the lengths of lists: where a stream has sequences, its columns are decoded once, at
the first call of `ParquetDeserializer.lengths` or `ParquetDeserializer.chunks`, and the lengths are kept in
an unnamed temporary file that is mapped: 4 bytes a sequence of disk (``TMPDIR``), no private memory, nothing
left behind. Nothing is written next to the data, which may be shared and read-only.

Sizes are read from the footer and the page headers by a parser of ours (`_native.parquet_footer`), not by pyarrow: its
way to them ends the process where a file's statistics are damaged. Nothing is decoded before it is known that what
comes out fits the memory given.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import operator
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.data import Chunk, Schema, Stream, Value
from feedline.data.value import DenseValue, SparseValue
from feedline.errors import DataError, SchemaError
from feedline.feed.files.atomic import room_for
from feedline.feed.files.digest import ContentDigest
from feedline.feed.files.paths import looking, open_file, read_at, reading, status_of
from feedline.feed.formats.parquet_input import Pages
from feedline.feed.formats.store import columns
from feedline.feed.formats.unreadable import lost_chunk
from feedline.feed.pieces import joined
from feedline.feed.protocol import CHUNK_MEMORY, ChunkInfo, Deserializer, Extent, Piece, Unread, whole_number

Paths = str | os.PathLike[str]


class ParquetDeserializer(Deserializer):
    """Parquet files; one row a sequence.

    =================================  =============================================
    column                             stream
    =================================  =============================================
    numbers, bools                     dense, shape ()
    fixed-size list of these           dense, a dimension per level
    list of one of the above           the same, with sequences
    list of struct<index, value>       sparse, if declared (or written from a store)
    =================================  =============================================

    A sequence with a null, or with a sparse index outside its classes, is unreadable: it keeps its place.

    Args:
        path: a file, a folder (all ``*.parquet`` below it, sorted by the bytes of their relative paths; names
            that begin with ``.`` or ``_`` are left out), or a list of files in corpus order.
        streams: names of columns, or declarations by stream name (`Stream.field` names the column, the shape
            may be another one of the same size); None: every column that can be a stream.
        defines_size: name of the stream whose lengths count against the minibatch budget; None: the longest
            stream of each sequence, or what the declarations say.
        memory: bytes that a decoded row group may take.

    Raises:
        DataError: a file is missing, damaged or encrypted, a row group says that it needs more than ``memory``, or
            there is no row at all.
        SchemaError: a column is missing, cannot be a stream, or differs between files or from what is
            declared.
    """

    def __init__(
        self,
        path: Paths | Sequence[Paths],
        streams: Sequence[str] | Mapping[str, Stream] | None = None,
        *,
        defines_size: str | None = None,
        memory: int = CHUNK_MEMORY,
    ) -> None:
        self._arguments = (path, streams, defines_size, memory)
        whole_number("memory", memory, 1)
        if isinstance(streams, str):
            raise TypeError(f"expected a list of column names, got the string {streams!r}; write [{streams!r}]")
        self.name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else "parquet files"
        self._files = [_ParquetFile(name) for name in _list_files(path)]
        self._columns = _choose(self._files[0], streams, defines_size)
        self.schema = Schema({name: column.stream for name, column in self._columns.items()})
        for file in self._files[1:]:
            _must_agree(file, self._files[0], self._columns)
        self._fields = [column.field for column in self._columns.values()]
        self._groups = [group for file in self._files for group in file.groups(self._fields, memory)]
        self._first = np.cumsum([0] + [group.rows for group in self._groups], dtype=np.int64)
        if self._first[-1] == 0:
            raise DataError("expected at least one row, got none", path=self.name)
        self._table: list[ChunkInfo] | None = None
        self._lengths: _Lengths | None = None
        self._lock = threading.Lock()
        self._memory = memory

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, self._arguments

    def chunks(self) -> list[ChunkInfo]:
        """Size of every chunk; ``bytes`` are the compressed ones of the columns in use.

        Where streams have sequences, the first call decodes their columns.
        """
        if self._table is None:
            lengths = self._all_lengths()
            samples = [group.rows for group in self._groups] if lengths is None else lengths.samples
            rows = zip(self._groups, samples, strict=True)
            self._table = [ChunkInfo(group.rows, count, group.bytes) for group, count in rows]
        return self._table

    def read(self, chunk: int) -> Chunk:
        """The rows of row group number ``chunk`` of all files, decoded.

        Raises:
            DataError: the row group cannot be read.
        """
        if not 0 <= chunk < len(self._groups):
            raise IndexError(f"expected a chunk number from 0 to {len(self._groups) - 1}, got {chunk}")
        return self._read(chunk, [])

    def extents(self, chunk: int) -> list[Extent]:
        """The pages of the columns in use; neighbours are read together."""
        return self._groups[chunk].file.extents(self._groups[chunk], self._fields)

    def read_fetched(self, chunk: int, pieces: Sequence[Piece]) -> Chunk:
        """As `read`, of pages in memory."""
        for piece in pieces:
            if isinstance(piece, Unread):
                return self._lost(chunk, piece)
        held = zip(self.extents(chunk), pieces, strict=True)
        return self._read(chunk, [(extent.offset, piece) for extent, piece in held if isinstance(piece, memoryview)])

    def _lost(self, chunk: int, why: Unread) -> Chunk:
        """A row group with a page that cannot be read: it has a part of every row."""
        group = self._groups[chunk]
        ragged = {name for name, column in self._columns.items() if column.ragged}
        return lost_chunk(self.schema, ragged, int(self._first[chunk]), group.rows, group.file.path, why)

    def _read(self, chunk: int, held: list[tuple[int, memoryview]]) -> Chunk:
        group = self._groups[chunk]
        with group.file.reading(held) as handle:
            try:
                table = group.file.decode(handle, group, self._fields, self._memory)
            except Exception:
                if handle.unread is None:
                    raise
                return self._lost(chunk, handle.unread)
        values: dict[str, Value] = {}
        errors: dict[int, DataError] = {}
        for name, column in self._columns.items():
            with group.file.telling(f"row group {group.number}, column {column.field!r},"):
                values[name], bad = _decode(table.column(column.field), column)
            for i in np.flatnonzero(bad).tolist():
                what = (
                    "expected entries with indices in range and no null"
                    if column.stream.sparse
                    else ("expected numbers, got a null")
                )
                errors.setdefault(
                    i,
                    DataError(what, path=group.file.path, sequence=int(self._first[chunk]) + i, stream=name),
                )
        return Chunk(self.schema, values, errors)

    def lengths(self, ordinals: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Samples of the sequences ``ordinals``, int64 (n,); None if every sequence has one.

        The first call may decode columns, see the module; O(n) afterwards.
        """
        lengths = self._all_lengths()
        return None if lengths is None else lengths.table[ordinals].astype(np.int64)

    def paths(self) -> list[str]:
        """The Parquet files."""
        return [file.path for file in self._files]

    def digest(self) -> str:
        """32 hex digits over row counts, sizes and three blocks of each file, its footer among them."""
        digest = ContentDigest()
        for file in self._files:
            digest.numbers(*(group.rows for group in self._groups if group.file is file))
            with file.open() as handle:
                digest.file(handle, file.size)
        return digest.hexdigest()

    def _all_lengths(self) -> _Lengths | None:
        size = self.schema.size_stream
        counted = [column for name, column in self._columns.items() if size in (None, name)]
        ragged = [column for column in counted if column.ragged]
        if not ragged:
            return None
        with self._lock:
            if self._lengths is None:
                shortest = 0 if len(ragged) == len(counted) else 1
                self._lengths = _scan(self._groups, [column.field for column in ragged], shortest, self._memory)
            return self._lengths


# ---- files and row groups -------------------------------------------------------------------------------


_TAIL = 8  # length of the footer, magic
_GAP = 64 << 10  # bytes between columns in use that are read in vain
_PAGE_HEADER, _MOST_PAGE_HEADER = 1 << 10, 16 << 20  # bytes read of a page's header at first, and at most


class _Sizes(NamedTuple):
    """What a footer says of the row groups: rows (groups,), and of each leaf column (groups, columns)."""

    rows: NDArray[np.int64]
    width: int
    values: NDArray[np.int64]
    uncompressed: NDArray[np.int64]
    compressed: NDArray[np.int64]
    begin: NDArray[np.int64]


class _RowGroup(NamedTuple):
    """A row group: its file, its number in it, its rows, compressed bytes of the columns in use."""

    file: _ParquetFile
    number: int
    rows: int
    bytes: int


class _ParquetFile:
    """A Parquet file whose footer was read; opened anew for each row group: threads share nothing."""

    def __init__(self, path: str) -> None:
        import pyarrow.parquet as pq

        self.path, self.size = path, 0
        with self.open() as handle:
            self.size = status_of(handle).st_size
            self._sizes = self._read_sizes(handle)
            with self.telling("footer"):
                file = pq.ParquetFile(handle)
                self.metadata = file.metadata
                self.schema = file.schema_arrow
                # Looked up here, where pyarrow catches what is wrong with them; row groups and their columns must
                # never be looked up in the metadata, where it does not.
                self._paths = [self.metadata.schema.column(i).path for i in range(self.metadata.num_columns)]
                widths = [width for field in self.schema for width in _leaf_widths(field.type)]
        if len(self._sizes.rows) and self._sizes.width != len(self._paths):
            raise self._damaged(
                f"footer cannot be read: {self._sizes.width} columns in row groups, {len(self._paths)} in its schema"
            )
        if len(widths) != len(self._paths):
            widths = [8] * len(self._paths)  # a type that is laid out in a way not known here, and no stream then
        self._widths = np.array(widths, np.int64)

    def open(self) -> BinaryIO:
        handle = open_file(self.path, -1)
        try:
            size = status_of(handle).st_size
            if self.size not in (0, size):
                raise DataError(
                    f"expected a file of {self.size} bytes, as when it was opened, got {size}", path=self.path
                )
        except BaseException:
            handle.close()
            raise
        return handle

    @contextlib.contextmanager
    def reading(self, held: list[tuple[int, memoryview]]) -> Iterator[Pages]:
        """What pages are read from: memory, as far as it is ``held``, else the file."""
        with self.open() as handle:
            yield Pages(handle, held)

    def extents(self, group: _RowGroup, fields: list[str]) -> list[Extent]:
        """Where the pages of the columns ``fields`` of a row group lie, as far as that is in the file."""
        found: list[list[int]] = []
        leaves = self._leaves(fields)
        begins, sizes = (getattr(self._sizes, what)[group.number, leaves] for what in ("begin", "compressed"))
        for begin, size in sorted(zip(begins.tolist(), sizes.tolist(), strict=True)):
            end = min(begin + size, self.size)
            if not 0 <= begin < end:
                continue
            if found and begin <= found[-1][1] + _GAP:
                found[-1][1] = max(found[-1][1], end)
            else:
                found.append([begin, end])
        return [Extent(self.path, begin, end - begin) for begin, end in found]

    def groups(self, fields: list[str], memory: int) -> list[_RowGroup]:
        """The row groups that have rows.

        Raises:
            DataError: one says that its columns ``fields`` decode to more than ``memory`` bytes.
        """
        found, sizes = [], self._sizes
        leaves = self._leaves(fields)
        for number in np.flatnonzero(sizes.rows).tolist():
            decoded = self._decoded(number, leaves, sizes.values[number, leaves])
            if decoded > memory:
                raise self._too_large(number, decoded, memory)
            compressed = int(sizes.compressed[number, leaves].sum(dtype=np.uint64))
            found.append(_RowGroup(self, number, int(sizes.rows[number]), compressed))
        return found

    def decode(self, handle: Pages, group: _RowGroup, fields: list[str], memory: int) -> Any:
        """The columns ``fields`` of a row group, read from ``handle``, as an Arrow table.

        Raises:
            DataError: they cannot be read, or decode to more than ``memory`` bytes.
        """
        import pyarrow.parquet as pq

        self._check_pages(handle, group, fields, memory)
        with self.telling(f"row group {group.number}"):
            file = pq.ParquetFile(handle, metadata=self.metadata, page_checksum_verification=True)
            table = file.read_row_group(group.number, columns=list(dict.fromkeys(fields)), use_threads=False)
        if table.num_rows != group.rows:
            raise DataError(
                f"expected {group.rows} rows in row group {group.number}, got {table.num_rows}",
                path=self.path,
            )
        return table

    # ---- sizes --------------------------------------------------------------------------------------

    def _read_sizes(self, handle: BinaryIO) -> _Sizes:
        tail = read_at(handle, _TAIL, max(0, self.size - _TAIL))
        if tail[4:] == b"PARE":
            raise DataError("expected a Parquet file, got an encrypted one", path=self.path)
        if self.size < 4 + _TAIL or tail[4:] != b"PAR1":
            raise self._damaged(f"footer cannot be read: it ends in {tail[4:]!r}, not in b'PAR1'")
        length = int.from_bytes(tail[:4], "little")
        begin = self.size - _TAIL - length
        if begin < 4:
            raise self._damaged(f"footer cannot be read: {length} bytes in a file of {self.size}")
        try:
            rows, width, *columns = _native.parquet_footer(read_at(handle, length, begin))
        except ValueError as error:
            what, byte = error.args
            raise self._damaged(f"footer cannot be read: {what}", begin + byte) from error
        return _Sizes(rows, width, *(column.reshape(len(rows), width) for column in columns))

    def _leaves(self, fields: list[str]) -> NDArray[np.int64]:
        """Numbers of the leaf columns of the fields."""
        wanted = set(fields)
        return np.array(
            [i for i, path in enumerate(self._paths) if path in wanted or path.split(".")[0] in wanted], np.int64
        )

    def _decoded(self, number: int, leaves: NDArray[np.int64], values: NDArray[np.int64]) -> int:
        """Bytes of columns of so many values when decoded: the values, and an offset a row where there are lists."""
        rows = int(self._sizes.rows[number])
        ragged = sum("." in self._paths[leaf] for leaf in leaves.tolist())
        # In Python's integers: counts of a damaged file may be anything below 2^63.
        products: list[int] = list(map(operator.mul, self._widths[leaves].tolist(), values.tolist()))
        return sum(products) + 8 * (rows + 1) * ragged

    def _check_pages(self, handle: Pages, group: _RowGroup, fields: list[str], memory: int) -> None:
        """Find out from the headers of the pages that will be decoded what comes out of them.

        The footer says it too, but the pages are what is believed when they are decoded: a page of some bytes can say
        that it holds two thousand million values.
        """
        sizes, leaves = self._sizes, self._leaves(fields)
        counts = np.zeros(len(leaves), np.int64)
        for i, leaf in enumerate(leaves.tolist()):
            total = int(sizes.values[group.number, leaf])
            at = int(sizes.begin[group.number, leaf])
            end = at + int(sizes.compressed[group.number, leaf])
            where = f"row group {group.number}, column {self._paths[leaf]!r}"
            if end > self.size:
                raise self._damaged(f"{where} cannot be read: it ends at byte {end} of {self.size}")
            while counts[i] < total and at < end:
                header, compressed, uncompressed, values = self._page(handle, at, end, where)
                if uncompressed > memory:
                    raise self._too_large(group.number, uncompressed, memory)
                counts[i] += values
                at += header + compressed
        decoded = self._decoded(group.number, leaves, counts)
        if decoded > memory:
            raise self._too_large(group.number, decoded, memory)

    def _page(self, handle: Pages, at: int, end: int, where: str) -> tuple[int, int, int, int]:
        room = _PAGE_HEADER
        while True:
            with reading(self.path, at):
                data = handle.at(at, min(room, end - at))
            try:
                page = _native.parquet_page(data)
            except ValueError as error:
                what, byte = error.args
                raise self._damaged(f"{where} cannot be read: {what} in a page's header", at + byte) from error
            if page is not None:
                return page
            if len(data) < room or room >= _MOST_PAGE_HEADER:
                raise self._damaged(f"{where} cannot be read: a page's header has no end", at)
            room *= 16

    def _damaged(self, what: str, byte: int | None = None) -> DataError:
        return DataError(
            f"expected a Parquet file, but its {what}",
            path=self.path,
            byte=byte,
            hint="the file is damaged or not Parquet; restore it",
        )

    def _too_large(self, number: int, decoded: int, memory: int) -> DataError:
        return DataError(
            f"expected at most {memory} bytes in a decoded row group (memory), got {decoded} in row group {number}",
            path=self.path,
            hint="raise memory=, choose fewer columns, or write the file with smaller row groups",
        )

    @contextlib.contextmanager
    def telling(self, what: str) -> Iterator[None]:
        """A block in which errors of pyarrow, and of NumPy over what it handed out, say that ``what`` is damaged."""
        import pyarrow as pa

        try:
            yield
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            raise DataError(
                f"expected a Parquet file, but its {what} cannot be read: {error}",
                path=self.path,
                hint="the file is damaged or not Parquet; restore it",
            ) from error


def _list_files(path: Paths | Sequence[Paths]) -> list[str]:
    if not isinstance(path, (str, os.PathLike)):
        if not path:
            raise ValueError("expected at least one file, got an empty list")
        return [os.fspath(name) for name in path]
    folder = Path(path)
    with looking(folder):
        if not folder.is_dir():
            return [os.fspath(path)]
        found = [p.relative_to(folder) for p in folder.rglob("*.parquet") if p.is_file()]
    found = [p for p in found if not any(part.startswith((".", "_")) for part in p.parts)]
    if not found:
        raise DataError("expected *.parquet files in the folder, got none", path=str(folder))
    return [str(folder / p) for p in sorted(found, key=os.fsencode)]


# ---- columns --------------------------------------------------------------------------------------------


class _Column(NamedTuple):
    field: str
    stream: Stream
    ragged: bool


def _choose(
    file: _ParquetFile, streams: Sequence[str] | Mapping[str, Stream] | None, defines_size: str | None
) -> dict[str, _Column]:
    chosen: dict[str, _Column] = {}
    if streams is None:
        for field in file.schema:
            with file.telling(f"column {field.name!r}"):
                column = _infer(file, field)
            if column is not None:
                if len(file.schema.get_all_field_indices(field.name)) > 1:
                    raise _twice(file, field.name)
                chosen[field.name] = column
        if not chosen:
            raise SchemaError(f"expected a column of numbers in {file.path}, which has\n{file.schema}")
    for name in streams or ():
        declared = streams[name] if isinstance(streams, Mapping) else None
        field = (declared.field if declared is not None else None) or name
        found = len(file.schema.get_all_field_indices(field))
        if found > 1:
            raise _twice(file, field)
        if found == 0:
            raise SchemaError(
                f"expected a column {field!r} in {file.path}, which has {', '.join(map(repr, file.schema.names))}"
            )
        kind = file.schema.field(field)
        with file.telling(f"column {field!r}"):
            column = _infer(file, kind, declared)
        if column is None:
            raise SchemaError(
                f"expected numbers in column {field!r} of {file.path}, got {kind.type}; encode it first, or "
                f"declare a list of struct<index, value> as {name}=fl.Stream(shape=..., sparse=True)"
            )
        if declared is not None:
            column = _as_declared(file, name, column, declared)
        chosen[name] = column
    if defines_size is not None:
        if defines_size not in chosen:
            raise SchemaError(f"expected defines_size to be one of {', '.join(chosen)}, got {defines_size!r}")
        chosen = {
            name: column._replace(
                stream=Stream(
                    column.stream.shape,
                    column.stream.dtype,
                    column.stream.sparse,
                    column.stream.field,
                    defines_size=name == defines_size,
                )
            )
            for name, column in chosen.items()
        }
    return chosen


def _infer(file: _ParquetFile, field: Any, declared: Stream | None = None) -> _Column | None:
    """What a column is by its type; a sparse one also needs its declaration, given or in its metadata."""
    import pyarrow as pa

    note = (field.metadata or {}).get(columns.METADATA_KEY)
    noted = None
    if note is not None:
        try:
            noted = columns.parse(json.loads(note))
        except (ValueError, RecursionError) as error:
            raise DataError(f"column {field.name!r} has a damaged declaration: {error}", path=file.path) from error
    kind, ragged = field.type, False
    dense = _dense(kind)
    if dense is None and _is_list(kind):
        inner = kind.value_type
        dense, ragged = _dense(inner), True
        if dense is None:
            ragged = _is_list(inner)
            entry = inner.value_type if ragged else inner
            stream = declared if declared is not None else noted
            if not (pa.types.is_struct(entry) and entry.num_fields == 2 and stream is not None and stream.sparse):
                return None
            value = _dense(entry.field(1).type)
            if not pa.types.is_integer(entry.field(0).type) or value is None or value[0]:
                return None
            sparse = Stream(stream.shape, value[1], True, defines_size=stream.defines_size)
            return _Column(field.name, sparse, ragged) if sparse.dtype in (np.float32, np.float64) else None
    if dense is None:
        return None
    stream = Stream(*dense)
    if noted is not None:
        stored = np.dtype(np.uint8) if noted.dtype == np.bool_ else noted.dtype
        if noted.sparse or noted.size != stream.size or stored != stream.dtype:
            raise DataError(
                f"column {field.name!r} of type {field.type} is declared as {noted} in its metadata",
                path=file.path,
            )
        stream = noted
    return _Column(field.name, stream, ragged)


def _twice(file: _ParquetFile, field: str) -> SchemaError:
    return SchemaError(f"expected one column {field!r} in {file.path}, got several of that name")


def _dense(kind: Any) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    import pyarrow as pa

    shape: list[int] = []
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return tuple(shape), np.dtype(kind.to_pandas_dtype())
    return None


def _leaf_widths(kind: Any) -> list[int]:
    """Bytes of a decoded value in each leaf column of a type; of what has no fixed width, its offset."""
    import pyarrow as pa

    if hasattr(kind, "storage_type"):
        return _leaf_widths(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return [8]
    inner: list[Any] = []
    if pa.types.is_struct(kind):
        inner = [kind.field(i).type for i in range(kind.num_fields)]
    elif pa.types.is_map(kind):
        inner = [kind.key_type, kind.item_type]
    elif hasattr(kind, "value_type"):
        inner = [kind.value_type]
    if inner:
        return [width for one in inner for width in _leaf_widths(one)]
    try:
        return [max(1, int(kind.bit_width) // 8)]
    except ValueError:
        return [8]


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _as_declared(file: _ParquetFile, name: str, column: _Column, declared: Stream) -> _Column:
    found = column.stream
    if declared.sparse != found.sparse or declared.dtype != found.dtype or declared.size != found.size:
        raise SchemaError(
            f"expected {declared} for stream `{name}`, got {found} in column {column.field!r} of {file.path}"
        )
    return column._replace(stream=declared)


def _must_agree(file: _ParquetFile, first: _ParquetFile, chosen: Mapping[str, _Column]) -> None:
    for name, column in chosen.items():
        kind = file.schema.field(column.field).type if column.field in file.schema.names else None
        if kind != first.schema.field(column.field).type:
            raise SchemaError(
                f"expected one type of column {column.field!r} (stream `{name}`) in all files, got "
                f"{first.schema.field(column.field).type} in {first.path} and {kind or 'none'} in {file.path}"
            )


# ---- decoding -------------------------------------------------------------------------------------------


def _decode(column: Any, how: _Column) -> tuple[Value, NDArray[np.bool_]]:
    """The rows of a column, and which of them are unreadable."""
    pieces = [_decode_piece(piece, how) for piece in column.chunks]
    if len(pieces) == 1:
        return pieces[0]
    return joined([value for value, _ in pieces]), np.concatenate([bad for _, bad in pieces])


def _decode_piece(array: Any, how: _Column) -> tuple[Value, NDArray[np.bool_]]:
    bad = _nulls(array)
    offsets = None
    if how.ragged:
        offsets, array = _unlist(array)
    stream = how.stream
    value: Value
    if stream.sparse:
        rows_bad = _nulls(array)
        indptr, entries = _unlist(array)
        wrong = _nulls(entries)
        index, values = entries.field(0), entries.field(1)
        wrong |= _nulls(index) | _nulls(values)
        numbers = _numbers(index).astype(np.int64)
        wrong |= (numbers < 0) | (numbers >= stream.shape[0])
        rows_bad |= _any(wrong, indptr)
        indices = np.where(wrong, 0, numbers).astype(np.int32)
        value = SparseValue(indptr, indices, _typed(_numbers(values), stream), stream.shape[0], offsets)
    else:
        count, rows_bad = len(array), np.zeros(len(array), np.bool_)
        width = 1
        while hasattr(array.type, "list_size"):
            rows_bad |= _nulls(array).reshape(count, width).any(axis=1)
            size = array.type.list_size
            # `values` is the whole child, `flatten` leaves out nulls; neither keeps rows in place by itself.
            array = array.values.slice(array.offset * size, len(array) * size)
            width *= size
        rows_bad |= _nulls(array).reshape(count, width).any(axis=1)
        value = DenseValue(_typed(_numbers(array), stream).reshape(count, *stream.shape), offsets)
    return value, bad | (rows_bad if offsets is None else _any(rows_bad, offsets))


def _unlist(array: Any) -> tuple[NDArray[np.int64], Any]:
    """Bounds from 0 of the lists, and the items they part."""
    bounds = array.offsets.to_numpy().astype(np.int64)
    first, last = int(bounds[0]), int(bounds[-1])
    return bounds - first, array.values.slice(first, last - first)


def _nulls(array: Any) -> NDArray[np.bool_]:
    if array.null_count == 0:
        return np.zeros(len(array), np.bool_)
    nulls: NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return nulls


def _numbers(array: Any) -> NDArray[Any]:
    if array.null_count:
        import pyarrow as pa

        zero = pa.scalar(0, pa.int64()).cast(array.type) if not pa.types.is_float16(array.type) else np.float16(0)
        array = array.fill_null(zero)
    numbers: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return numbers


def _typed(array: NDArray[Any], stream: Stream) -> NDArray[Any]:
    # Stores keep bools as bytes.
    return array if array.dtype == stream.dtype else array.astype(stream.dtype)


def _any(flags: NDArray[np.bool_], bounds: NDArray[np.int64]) -> NDArray[np.bool_]:
    """For each range of the flags whether any is set."""
    if not flags.any():
        return np.zeros(len(bounds) - 1, np.bool_)
    before = np.concatenate([[0], np.cumsum(flags)])
    found: NDArray[np.bool_] = before[bounds[1:]] > before[bounds[:-1]]
    return found


# ---- lengths --------------------------------------------------------------------------------------------


class _Lengths(NamedTuple):
    """Samples by chunk, and by sequence as a mapped int32 array."""

    samples: list[int]
    table: NDArray[np.int32]


def _scan(groups: list[_RowGroup], fields: list[str], shortest: int, memory: int) -> _Lengths:
    samples = []
    what, hint = "the lengths of sequences", "set TMPDIR to a folder with 4 bytes of space for each sequence"
    with room_for(what, tempfile.gettempdir(), groups[0].file.path, hint), tempfile.TemporaryFile() as file:
        for group in groups:
            with group.file.reading([]) as handle:
                table = group.file.decode(handle, group, fields, memory)
            longest = np.full(group.rows, shortest, np.int64)
            for field in fields:
                chunks = table.column(field).chunks
                lengths = [np.diff(chunk.offsets.to_numpy().astype(np.int64)) for chunk in chunks]
                np.maximum(longest, np.concatenate(lengths), out=longest)
            samples.append(int(longest.sum()))
            file.write(longest.astype(np.int32).tobytes())
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return _Lengths(samples, np.frombuffer(mapped, np.int32))


def _reopen(path: Any, streams: Any, defines_size: str | None, memory: int) -> ParquetDeserializer:
    return ParquetDeserializer(path, streams, defines_size=defines_size, memory=memory)
