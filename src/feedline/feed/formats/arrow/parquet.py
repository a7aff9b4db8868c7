"""Parquet files as a corpus: a row group is a chunk.

Pages are decompressed and decoded without the GIL, one thread per chunk, so row groups of tens of megabytes work best.
They are read with ordinary reads, never mapped. As chunks must be decoded, they are shuffled in windows.
`feedline.convert` writes a store, which has random access.

Parquet does not record the lengths of lists. The columns of ragged streams are therefore decoded once, in the first
call of `ParquetDeserializer.lengths` or `ParquetDeserializer.chunks`. The lengths are kept in a mapped temporary file
without a name, which takes 4 bytes of disk per sequence (in ``TMPDIR``) and no private memory. Nothing is written next
to the data, which may be shared and read-only.

Our own parser (`_native.parquet_footer`) reads sizes from the footer and the page headers, because pyarrow aborts the
process if a file's statistics are damaged. Nothing is decoded before the result is known to fit into ``memory``.
"""

from __future__ import annotations

import functools
import operator
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from feedline import _native
from feedline.data import Chunk, Stream, Value
from feedline.errors import DataError, shown_path
from feedline.feed.byte_strings import TooLargeError
from feedline.feed.files.digest import ContentDigest
from feedline.feed.files.paths import PathLike, check_unchanged, looking, open_file, read_at, reading, size_and_time
from feedline.feed.files.remote import fetch_parts
from feedline.feed.formats.arrow import columns as arrow_columns
from feedline.feed.formats.arrow.column_paths import ColumnPath, inner_types, leaf_span, nested_paths, storage
from feedline.feed.formats.arrow.columns import Column, Source
from feedline.feed.formats.arrow.file import unknown_types
from feedline.feed.formats.arrow.hugging_face import parquet_files
from feedline.feed.formats.arrow.list_lengths import ListLengths, column_per_list, count_lengths, longest_lists
from feedline.feed.formats.arrow.parquet_input import Pages
from feedline.feed.formats.arrow.united_columns import choose, lacking_rows
from feedline.feed.formats.hive_folders import NULL, hive_columns
from feedline.feed.formats.missing import identity_of
from feedline.feed.formats.pickled_by_arguments import PickledByArguments
from feedline.feed.formats.unreadable import lost_chunk, read_error
from feedline.feed.formats.widening import SchemaRule, is_union
from feedline.feed.protocol import (
    CHUNK_MEMORY,
    ChunkInfo,
    CountsNulls,
    Deserializer,
    Extent,
    Fetchable,
    Growing,
    Ints,
    NullCount,
    Piece,
    Unread,
    whole_number,
)


class ParquetDeserializer(Deserializer, Fetchable, Growing, CountsNulls, PickledByArguments):
    """Parquet files. A row is a sequence.

    Columns of numbers, bools, byte strings and texts, structs of bytes and path, and lists of these are streams, as are
    such values within structs and lists of structs, by path. A struct or list declared as bytes is its JSON text. See
    `feedline.feed.formats.arrow.columns` and the page on Parquet.

    A sequence with a null, with a sparse index outside its classes, or with a text that is not UTF-8, is unreadable: it
    keeps its place. ``missing`` and ``mask`` of a declared `Stream` make nulls readable.

    Args:
        path: a file, a folder (all ``*.parquet`` below it, sorted by the bytes of their relative paths, except names
            that begin with ``.`` or ``_``, and for one of Hugging Face's datasets the files of one split), or a list of
            files in corpus order.
        streams: names of columns, including columns that folders are named after (``label=a/``), or declarations by
            stream name (`Stream.field` names the column, or is a path such as ``"messages[].content"``, the shape may
            be another shape of the same size). By default every column that can be a stream. A warning names the other
            columns.
        split: split of a folder that has several, by its ``README.md`` or the names of its files.
        defines_size: name of the stream whose lengths count towards the minibatch budget, by default the longest stream
            of each sequence, or as declared.
        memory: bytes that a decoded row group may take.
        schema: ``"union"`` takes files whose columns differ, in their order too. Numbers have the narrowest type that
            holds those of all files exactly. ``missing`` and ``mask`` fill what files lack. A log message says what
            differs. By default all files must have the same types.

    Attributes:
        nested_paths: the paths of the values within structs and lists of structs, whether they are streams or not.

    Raises:
        DataError: a folder has several splits, a file is missing, damaged or encrypted, a row group claims to need more
            than ``memory``, or there are no rows.
        SchemaError: a column is missing, cannot be a stream, or differs between files or from its declaration, or is
            not filled where files lack it.
    """

    _joined_rows = 0  # up to so many rows of small row groups of a file are one chunk

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        streams: Sequence[str] | Mapping[str, Stream] | None = None,
        *,
        split: str | None = None,
        defines_size: str | None = None,
        memory: int = CHUNK_MEMORY,
        schema: SchemaRule = "strict",
    ) -> None:
        whole_number("memory", memory, 1)
        self.name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else "parquet files"
        paths = _list_files(path, split)
        hive = hive_columns(paths, path)
        kinds = {key: int if any(isinstance(value, int) for value in values) else str for key, values in hive.items()}
        fetch_parts([(name, -_FOOTER_BYTES, sys.maxsize) for name in paths])
        self._files = [
            _ParquetFile(name, {key: values[i] for key, values in hive.items()}, kinds) for i, name in enumerate(paths)
        ]
        sources = [file.source for file in self._files]
        self._columns, lacking = choose(sources, streams, defines_size, union=is_union(schema))
        for file, fields in zip(self._files, lacking, strict=True):
            file.lacking = fields
        for name, column in self._columns.items():
            if column.path.column in hive:
                self._columns[name] = column._replace(null_means=f"as a folder `{column.field}={NULL}`, or none, says")
        self.schema = arrow_columns.schema_of(self._columns)
        self.nested_paths = nested_paths(self._files[0].schema)
        self._used_once = arrow_columns.used_once(self._columns)
        self._fields = list(dict.fromkeys(column.path for column in self._columns.values()))
        self._groups = [group for file in self._files for group in file.groups(self._fields, memory, self._joined_rows)]
        self._first = np.cumsum([0] + [group.rows for group in self._groups], dtype=np.int64)
        if self._first[-1] == 0:
            raise DataError("expected at least one row, got none", path=self.name)
        self._table: list[ChunkInfo] | None = None
        self._lengths: ListLengths | None = None
        self._lock = threading.Lock()
        self._memory_bytes = memory
        # By name, so that opening the corpus again does not repeat the warning about other columns.
        names: Any = list(self.schema) if streams is None else streams
        self._set_arguments(path, names, split=split, defines_size=defines_size, memory=memory, schema=schema)

    def chunks(self) -> list[ChunkInfo]:
        """Return the size of every chunk. ``bytes`` counts the compressed bytes of the columns in use.

        The first call decodes the columns of ragged streams.
        """
        if self._table is None:
            lengths = self._all_lengths()
            samples = [group.rows for group in self._groups] if lengths is None else lengths.samples
            rows = zip(self._groups, samples, strict=True)
            self._table = [ChunkInfo(group.rows, count, group.bytes) for group, count in rows]
        return self._table

    def read(self, chunk: int) -> Chunk:
        """Return the decoded rows of row group number ``chunk``, counted through all files.

        Raises:
            DataError: the row group cannot be read.
        """
        if not 0 <= chunk < len(self._groups):
            raise IndexError(f"expected a chunk number from 0 to {len(self._groups) - 1}, got {chunk}")
        return self._read(chunk, [])

    def extents(self, chunk: int) -> list[Extent]:
        """Return the pages of the columns in use. Neighbours are merged."""
        return self._groups[chunk].file.extents(self._groups[chunk], self._fields)

    def read_fetched(self, chunk: int, pieces: Sequence[Piece]) -> Chunk:
        """See `Fetchable.read_fetched`."""
        for piece in pieces:
            if isinstance(piece, Unread):
                return self._lost_chunk(chunk, piece)
        pairs = zip(self.extents(chunk), pieces, strict=True)
        return self._read(chunk, [(extent.offset, piece) for extent, piece in pairs if isinstance(piece, memoryview)])

    def _lost_chunk(self, chunk: int, failure: Unread) -> Chunk:
        """Return a chunk of unreadable sequences, as each row has a part in the unreadable page."""
        group = self._groups[chunk]
        ragged, first = arrow_columns.ragged_of(self._columns), int(self._first[chunk])
        return lost_chunk(self.schema, ragged, group.rows, lambda i: read_error(failure, group.file.path, first + i))

    def _read(self, chunk: int, blocks: list[tuple[int, memoryview]]) -> Chunk:
        group = self._groups[chunk]
        with group.file.open() as file:
            handle = Pages(file, blocks)
            try:
                table = group.file.decode(handle, group, self._fields, self._memory_bytes)
            except Exception:
                if handle.unread is None:
                    raise
                return self._lost_chunk(chunk, handle.unread)
        values: dict[str, Value] = {}
        unreadable = arrow_columns.UnreadableRows(self._columns, group.rows, group.file.path, int(self._first[chunk]))
        for name, column in self._columns.items():
            with group.file.source.converting_errors(f"{group.where}, column {column.field!r},"):
                try:
                    if column.path in group.file.lacking:
                        rows = lacking_rows(column, group.rows, self._memory_bytes)
                    else:
                        array, alone = table.column(column.path.column), column.path.column in self._used_once
                        rows = arrow_columns.decode(array, column, self._memory_bytes, changeable=alone)
                except TooLargeError as error:
                    raise group.file.size_error(group.where, error.args[0], self._memory_bytes) from None
            rows.into(values, name)
            unreadable.mark(name, rows.bad)
        return Chunk(self.schema, values, unreadable.errors())

    def lengths(self, ordinals: Ints) -> Ints | None:
        """Return the samples of the sequences ``ordinals``, int64 (n,), or None if every sequence has one.

        O(n). The first call may decode columns, see the docstring of the module.
        """
        lengths = self._all_lengths()
        return None if lengths is None else lengths.table[ordinals].astype(np.int64)

    def paths(self) -> list[str]:
        """Return the paths of the Parquet files."""
        return [file.path for file in self._files]

    def rows_of_files(self) -> list[int]:
        """Return the rows of each file."""
        rows = dict.fromkeys(self._files, 0)
        for group in self._groups:
            rows[group.file] += group.rows
        return list(rows.values())

    def digest(self) -> str:
        """Return 32 hex digits over row counts, sizes and three blocks of each file, including its footer."""
        return list(self.digests())[-1][1]

    def digests(self) -> Iterator[tuple[int, str]]:
        """Yield the digest after each file, see `Growing.digests`."""
        digest = ContentDigest()
        digest.text(identity_of(arrow_columns.fillings_of(self._columns)))
        rows: dict[_ParquetFile, list[int]] = {file: [] for file in self._files}
        for group in self._groups:
            rows[group.file].append(group.rows)
        chunks = 0
        for file, counts in rows.items():
            digest.numbers(*counts)
            with file.open() as handle:
                digest.file(handle, file.size)
            chunks += len(counts)
            yield chunks, digest.hexdigest()

    def null_counts(self) -> dict[str, NullCount]:
        """Return the nulls that the footers count, of scalars, byte strings and texts, also within structs."""
        counts: dict[str, NullCount] = {}
        for name, column in self._columns.items():
            of_files = [file.null_count(column) for file in self._files]
            if -1 not in of_files:
                counts[name] = arrow_columns.null_count(name, column, sum(of_files))
        return counts

    def _longest(self, group: _RowGroup, columns: Sequence[Column], shortest: int) -> Ints:
        """Return the samples of the sequences of a row group. See `longest_lists`."""
        present = [column for column in columns if column.path not in group.file.lacking]
        if not present:
            return np.full(group.rows, shortest, np.int64)
        with group.file.open() as handle:
            table = group.file.decode(Pages(handle, []), group, [c.path for c in present], self._memory_bytes)
        return longest_lists(
            table,
            present,
            shortest=shortest,
            memory_bytes=self._memory_bytes,
            source=group.file.source,
            what=group.where,
        )

    def _all_lengths(self) -> ListLengths | None:
        size = self.schema.size_stream
        counted = [column for name, column in self._columns.items() if size in (None, name)]
        ragged = [column for column in counted if column.ragged]
        if not ragged:
            return None
        with self._lock:
            if self._lengths is None:
                shortest = 0 if len(ragged) == len(counted) else 1
                columns = column_per_list(ragged)
                chunks = (self._longest(group, columns, shortest) for group in self._groups)
                self._lengths = count_lengths(chunks, self._groups[0].file.path)
            return self._lengths


# ---- files and row groups -------------------------------------------------------------------------------


_FOOTER_BYTES = 64 << 10  # bytes at the end of a file that pyarrow reads first
_TAIL_BYTES = 8  # length of the footer, and magic
_JOINED_BYTES = 16 << 20  # decoded bytes of row groups that are read together
_GAP_BYTES = 64 << 10  # gaps up to this many bytes between columns in use are read
_PAGE_HEADER_BYTES, _MAX_PAGE_HEADER_BYTES = 1 << 10, 16 << 20  # of a page's header that are read first, and at most


class _Sizes(NamedTuple):
    """Sizes from a footer: rows (groups,), and for each leaf column (groups, columns). ``nulls`` are -1 if unknown."""

    rows: Ints
    width: int
    values: Ints
    uncompressed: Ints
    compressed: Ints
    begin: Ints
    nulls: Ints


class _RowGroup(NamedTuple):
    """A row group, or several that are read together: their file, their numbers there, their rows, and compressed bytes
    of the columns in use."""

    file: _ParquetFile
    numbers: list[int]
    rows: int
    bytes: int

    @property
    def where(self) -> str:
        """Its name in errors."""
        first, last = self.numbers[0], self.numbers[-1]
        return f"row group {first}" if first == last else f"row groups {first} to {last}"


class _ParquetFile:
    """A Parquet file whose footer was read. It is opened again for each row group, so that threads share nothing.

    Args:
        path: path of the file.
        constants: values of the columns that its folders are named after.
        kinds: the types of these columns.

    Attributes:
        lacking: paths of the columns in use of which the file has no values.
    """

    def __init__(self, path: str, constants: Mapping[str, int | str | None], kinds: Mapping[str, type]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path = path
        with open_file(path, -1) as handle:
            self._state = size_and_time(handle)
            self._sizes = self._read_sizes(handle)
            with Source(path, None, self._damage_error).converting_errors("footer"):
                try:
                    file = pq.ParquetFile(handle)
                except pa.ArrowNotImplementedError as error:
                    raise unknown_types(error, path) from error
                self.metadata = file.metadata
                self.schema = file.schema_arrow
                # pyarrow detects errors here, but not when row groups and their columns are looked up in the metadata.
                # So never do that.
                self._paths = [self.metadata.schema.column(i).path for i in range(self.metadata.num_columns)]
                widths = [width for field in self.schema for width in _leaf_widths(field.type)]
        if len(self._sizes.rows) and self._sizes.width != len(self._paths):
            raise self._damage_error(
                f"footer cannot be read: {self._sizes.width} columns in row groups, {len(self._paths)} in its schema"
            )
        self._laid_out = len(widths) == len(self._paths)
        if not self._laid_out:
            widths = [8] * len(self._paths)  # one type has an unknown layout, and cannot be a stream
        self._constants = {
            key: pa.scalar(constants[key], pa.int64() if kind is int else pa.string())
            for key, kind in kinds.items()
            if key not in self.schema.names
        }
        for key, constant in self._constants.items():
            self.schema = self.schema.append(pa.field(key, constant.type))
        self._widths = np.array(widths, np.int64)
        self.lacking: frozenset[ColumnPath] = frozenset()
        self._strings = [self.metadata.schema.column(i).physical_type == "BYTE_ARRAY" for i in range(len(self._paths))]

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._state[0]

    @property
    def source(self) -> Source:
        """The file as a source of columns."""
        return Source(shown_path(self.path), self.schema, self._damage_error)

    def open(self) -> BinaryIO:
        handle = open_file(self.path, -1)
        try:
            check_unchanged(handle, self._state)
        except BaseException:
            handle.close()
            raise
        return handle

    def extents(self, group: _RowGroup, fields: Sequence[ColumnPath]) -> list[Extent]:
        """Return the extents of the columns ``fields`` of a row group, clipped to the file."""
        runs: list[list[int]] = []
        leaves = self._leaves(fields)
        places = np.ix_(np.array(group.numbers), leaves)
        begins, sizes = (getattr(self._sizes, what)[places].reshape(-1) for what in ("begin", "compressed"))
        for begin, size in sorted(zip(begins.tolist(), sizes.tolist(), strict=True)):
            end = min(begin + size, self.size)
            if not 0 <= begin < end:
                continue
            if runs and begin <= runs[-1][1] + _GAP_BYTES:
                runs[-1][1] = max(runs[-1][1], end)
            else:
                runs.append([begin, end])
        return [Extent(self.path, begin, end - begin) for begin, end in runs]

    def groups(self, fields: Sequence[ColumnPath], memory_bytes: int, joined_rows: int) -> list[_RowGroup]:
        """Return the row groups that have rows. Neighbours of together at most ``joined_rows`` rows are one.

        Raises:
            DataError: the columns ``fields`` of a row group claim to decode to more than ``memory_bytes`` bytes.
        """
        groups: list[_RowGroup] = []
        sizes, leaves, unpacked = self._sizes, self._leaves(fields), 0
        for number in np.flatnonzero(sizes.rows).tolist():
            decoded = self._decoded_bytes(number, leaves, sizes.values[number, leaves])
            if decoded > memory_bytes:
                raise self.size_error(f"row group {number}", decoded, memory_bytes)
            compressed = int(sizes.compressed[number, leaves].sum(dtype=np.uint64))
            group = _RowGroup(self, [number], int(sizes.rows[number]), compressed)
            unpacked += int(sizes.uncompressed[number, leaves].sum(dtype=np.uint64))
            if groups and groups[-1].rows + group.rows <= joined_rows and unpacked <= _JOINED_BYTES:
                before = groups.pop()
                rows, size = before.rows + group.rows, before.bytes + group.bytes
                group = _RowGroup(self, before.numbers + group.numbers, rows, size)
            else:
                unpacked = int(sizes.uncompressed[number, leaves].sum(dtype=np.uint64))
            groups.append(group)
        return groups

    @functools.cached_property
    def _has_nulls(self) -> bool:
        """Whether the footer counts a null, or does not say."""
        return bool(self._sizes.nulls[self._sizes.rows > 0].any())

    def null_count(self, column: Column) -> int:
        """Return the number of rows in which a column is null, or -1 if the footer does not say."""
        rows = int(self._sizes.rows.sum())
        if column.path in self.lacking:
            return rows
        if (constant := self._constants.get(column.path.column)) is not None:
            return 0 if constant.is_valid else rows
        if not self._has_nulls:
            return 0
        leaves = self._leaves([column.path])
        # Those of lists also count empty lists and nulls in them, and JSON has what is null within its values.
        if column.json is not None or len(leaves) != 1:
            return -1
        if self.metadata.schema.column(int(leaves[0])).max_repetition_level:
            return -1
        nulls = self._sizes.nulls[self._sizes.rows > 0, leaves[0]]
        return -1 if (nulls < 0).any() else int(nulls.sum())

    def decode(self, handle: Pages, group: _RowGroup, fields: Sequence[ColumnPath], memory_bytes: int) -> Any:
        """Return the columns ``fields`` of row groups, read from ``handle``, as an Arrow table.

        Raises:
            DataError: they cannot be read, or decode to more than ``memory_bytes`` bytes.
        """
        import pyarrow.parquet as pq

        step = self._check_pages(handle, group, fields, memory_bytes)
        names = [self._paths[leaf] for leaf in self._leaves(fields).tolist()]
        with self.source.converting_errors(group.where):
            if not names:
                return self._with_constants(None, group, fields)
            file = pq.ParquetFile(handle, metadata=self.metadata, page_checksum_verification=True)
            if step >= group.rows:
                table = file.read_row_groups(group.numbers, columns=names, use_threads=False)
            else:
                table = self._in_steps(file, group, names, step=step, memory_bytes=memory_bytes)
        if table.num_rows != group.rows:
            raise DataError(f"expected {group.rows} rows in {group.where}, got {table.num_rows}", path=self.path)
        return self._with_constants(table, group, fields)

    def _with_constants(self, table: Any, group: _RowGroup, fields: Sequence[ColumnPath]) -> Any:
        """Return a table with the constant columns among ``fields`` added."""
        import pyarrow as pa

        columns = {} if table is None else dict(zip(table.column_names, table.columns, strict=True))
        for name in dict.fromkeys(path.column for path in fields):
            if (constant := self._constants.get(name)) is not None:
                # A dictionary of one value. The text is repeated later, where memory is counted.
                place = np.zeros(group.rows, np.int32)
                columns[name] = pa.chunked_array(
                    [pa.DictionaryArray.from_arrays(place, pa.array([constant.as_py()], constant.type))]
                )
        return pa.table(columns)

    def _in_steps(self, file: Any, group: _RowGroup, names: list[str], *, step: int, memory_bytes: int) -> Any:
        """Decode ``step`` rows at a time, up to ``memory_bytes``.

        Raises:
            DataError: the row group is larger.
        """
        import pyarrow as pa

        batches, total = [], 0
        for batch in file.iter_batches(step, row_groups=group.numbers, columns=names, use_threads=False):
            total += batch.nbytes
            if total > memory_bytes:
                raise self.size_error(group.where, total, memory_bytes)
            batches.append(batch)
        return pa.Table.from_batches(batches)

    # ---- sizes --------------------------------------------------------------------------------------

    def _read_sizes(self, handle: BinaryIO) -> _Sizes:
        tail = read_at(handle, _TAIL_BYTES, max(0, self.size - _TAIL_BYTES))
        if tail[4:] == b"PARE":
            raise self._encryption_error()
        if self.size < 4 + _TAIL_BYTES or tail[4:] != b"PAR1":
            raise self._damage_error(f"footer cannot be read: it ends in {tail[4:]!r}, not in b'PAR1'")
        length = int.from_bytes(tail[:4], "little")
        begin = self.size - _TAIL_BYTES - length
        if begin < 4:
            raise self._damage_error(f"footer cannot be read: {length} bytes in a file of {self.size}")
        try:
            rows, width, *columns = _native.parquet_footer(read_at(handle, length, begin))
        except ValueError as error:
            what, byte = error.args
            if what.startswith("an encrypted "):
                raise self._encryption_error() from error
            raise self._damage_error(f"footer cannot be read: {what}", begin + byte) from error
        return _Sizes(rows, width, *(column.reshape(len(rows), width) for column in columns))

    def _leaves(self, fields: Sequence[ColumnPath]) -> Ints:
        """Return the numbers of the leaf columns of ``fields``."""
        paths = [path for path in fields if path not in self.lacking and path.column not in self._constants]
        if self._laid_out:
            return _leaves_of(self.schema, tuple(paths))
        leaves: set[int] = set()
        for path in paths:  # as all that is below the column's name
            parts = (path.column, f"{path.column}.")
            leaves |= {i for i, leaf in enumerate(self._paths) if leaf == parts[0] or leaf.startswith(parts[1])}
        return np.array(sorted(leaves), np.int64)

    def _decoded_bytes(self, number: int, leaves: Ints, values: Ints) -> int:
        """Return the decoded bytes of columns with ``values`` values, with one offset per row for lists."""
        rows = int(self._sizes.rows[number])
        ragged = sum("." in self._paths[leaf] for leaf in leaves.tolist())
        # In Python integers: the counts of a damaged file may be any number below 2^63.
        products: list[int] = list(map(operator.mul, self._widths[leaves].tolist(), values.tolist()))
        return sum(products) + 8 * (rows + 1) * ragged

    def _check_pages(self, handle: Pages, group: _RowGroup, fields: Sequence[ColumnPath], memory_bytes: int) -> int:
        """Check the size of the result by the headers of the pages to decode.

        The footer states the size, too, but decoders trust the pages, and a page of a few bytes can claim two billion
        values.

        Returns:
            The number of rows that are certain to fit: all rows of the group, or fewer if byte strings may repeat a
            part of their page (an entry of a dictionary, a common prefix).
        """
        leaves = self._leaves(fields)
        longest = strings = decoded = 0
        are_strings = np.array([self._strings[leaf] for leaf in leaves.tolist()], np.bool_)
        for number in group.numbers:
            counts = np.zeros(len(leaves), np.int64)
            for i, leaf in enumerate(leaves.tolist()):
                for uncompressed, values in self._pages(handle, number, leaf, memory_bytes):
                    counts[i] += values
                    if are_strings[i]:
                        longest = max(longest, uncompressed)  # no string is longer than its page, or its dictionary's
            strings += int(counts[are_strings].max(initial=0))
            decoded += self._decoded_bytes(number, leaves, counts)
            if decoded > memory_bytes:
                raise self.size_error(group.where, decoded, memory_bytes)
        return group.rows if strings * longest <= memory_bytes else max(1, memory_bytes // (2 * max(longest, 1)))

    def _pages(self, handle: Pages, number: int, leaf: int, memory_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield the uncompressed bytes and the values of each page of a leaf column of a row group."""
        total, at = int(self._sizes.values[number, leaf]), int(self._sizes.begin[number, leaf])
        end = at + int(self._sizes.compressed[number, leaf])
        where = f"row group {number}, column {self._paths[leaf]!r}"
        if end > self.size:
            raise self._damage_error(f"{where} cannot be read: it ends at byte {end} of {self.size}")
        count = 0
        while count < total and at < end:
            header, compressed, uncompressed, values = self._page(handle, at, end, where)
            if uncompressed > memory_bytes:
                raise self.size_error(f"row group {number}", uncompressed, memory_bytes)
            count += values
            at += header + compressed
            yield uncompressed, values

    def _page(self, handle: Pages, at: int, end: int, where: str) -> tuple[int, int, int, int]:
        room = _PAGE_HEADER_BYTES
        while True:
            with reading(self.path, at):
                data = handle.at(at, min(room, end - at))
            try:
                page = _native.parquet_page(data)
            except ValueError as error:
                what, byte = error.args
                raise self._damage_error(f"{where} cannot be read: {what} in a page's header", at + byte) from error
            if page is not None:
                return page
            if len(data) < room or room >= _MAX_PAGE_HEADER_BYTES:
                raise self._damage_error(f"{where} cannot be read: a page's header does not end", at)
            room *= 16

    def _encryption_error(self) -> DataError:
        return DataError(
            "expected a Parquet file that anyone can read, got an encrypted one",
            path=self.path,
            hint="decrypt it: read it with pyarrow and its keys, and write it without encryption",
        )

    def _damage_error(self, what: str, byte: int | None = None) -> DataError:
        hint = "the file is damaged or not Parquet; restore it"
        return DataError(f"expected a Parquet file, but its {what}", path=self.path, byte=byte, hint=hint)

    def size_error(self, where: str, decoded: int, memory_bytes: int) -> DataError:
        return DataError(
            f"expected at most {memory_bytes} bytes in a decoded row group (memory), got {decoded} in {where}",
            path=self.path,
            hint="raise memory=, choose fewer columns, or write the file with smaller row groups",
        )


@functools.lru_cache(maxsize=256)
def _leaves_of(schema: Any, paths: tuple[ColumnPath, ...]) -> Ints:
    """Return the numbers of the leaf columns at paths. Files of one schema, and reading each, ask for the same ones."""
    leaves: set[int] = set()
    for path in paths:
        leaves.update(range(*leaf_span(schema, path)))
    return np.array(sorted(leaves), np.int64)


def _list_files(path: PathLike | Sequence[PathLike], split: str | None) -> list[str]:
    if not isinstance(path, (str, os.PathLike)):
        if not path:
            raise ValueError("expected at least one file, got an empty list")
        if split is not None:
            raise ValueError(f"expected a folder to choose the split {split!r} from, got a list")
        return [file for entry in path for file in _list_files(entry, None)]
    folder = Path(path)
    with looking(folder):
        if not folder.is_dir():
            return [os.fspath(path)]
    return [str(file) for file in parquet_files(folder, split)]


def _leaf_widths(kind: Any) -> list[int]:
    """Return for each leaf column of a type the bytes of a decoded value, or of its offset if the width varies."""
    import pyarrow as pa

    kind = storage(kind)
    if pa.types.is_dictionary(kind):
        return [8]
    if inner := inner_types(kind):
        return [width for part in inner for width in _leaf_widths(part)]
    try:
        return [max(1, int(kind.bit_width) // 8)]
    except ValueError:
        return [8]
