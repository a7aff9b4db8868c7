"""Arrow files as a corpus: Hugging Face's datasets on disk, IPC files and streams, and Feather. A record batch is a
chunk.

Files are mapped, and chunks are views of them: samples are copied once, into the minibatch. Opening reads the heads of
the batches, about 1 us each, and no data. Data in a form that a gather cannot use is copied when its chunk is read:
offsets of 4 bytes, bools, validity bitmaps, and lists declared to have equal lengths where some do not.

Files with compressed batches, such as most Feather files, or with dictionaries, views or unions are read and decoded
by Arrow, a batch at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.concurrency.thread_pool import call_each
from feedline.data import Chunk, Stream, Value
from feedline.data.chunk import makers, values_of
from feedline.data.faults import BadEntriesError
from feedline.errors import DataError
from feedline.feed.assembly import ChunkSet
from feedline.feed.byte_strings import TooLargeError
from feedline.feed.files.digest import ContentDigest
from feedline.feed.files.paths import PathLike, list_files, looking, open_file
from feedline.feed.formats.arrow import columns as arrow_columns
from feedline.feed.formats.arrow.buffer_views import (
    BatchLayout,
    MappedBatch,
    MappedItems,
    Place,
    batch_nulls,
    has_equal_lists,
    layout_of,
    leaf_of,
    length_pairs,
    needed_buffers,
    place_at,
)
from feedline.feed.formats.arrow.column_paths import nested_paths
from feedline.feed.formats.arrow.columns import Column
from feedline.feed.formats.arrow.decoded_batches import decode_batch
from feedline.feed.formats.arrow.file import ArrowFile, read_bytes
from feedline.feed.formats.arrow.hugging_face import Dataset, arrow_dataset
from feedline.feed.formats.arrow.united_columns import choose, lacking_rows
from feedline.feed.formats.detect_shards import folder_of, is_litdata
from feedline.feed.formats.fetched_views import check_room_for_bounds, page_runs
from feedline.feed.formats.hive_folders import warn_of_unread_columns
from feedline.feed.formats.missing import identity_of
from feedline.feed.formats.pickled_by_arguments import PickledByArguments
from feedline.feed.formats.shards.litdata_index import litdata_index, row_spans
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
    Mapped,
    MappedFile,
    NullCount,
    Piece,
    RandomAccess,
    Sliceable,
    Unread,
    select_by_chunk,
    whole_number,
)
from feedline.feed.unique import distinct

_MAX_UNREADABLE = 1 << 20  # sequences of a batch that keep their places if it cannot be read
_VIEW_BYTES = 4 << 20  # of a chunk of rows that indices name, part of the order
_REQUESTS = 16  # at once, for the buffers that views need


class ArrowDeserializer(
    Deserializer, RandomAccess, Sliceable, Mapped, Fetchable, Growing, CountsNulls, PickledByArguments
):
    """Arrow IPC streams and files. A row is a sequence, a record batch a chunk.

    Columns are streams as in Parquet, see `feedline.feed.formats.arrow.columns`. A sequence with a null, or with a text
    that is not UTF-8, is unreadable: it keeps its place. ``missing`` and ``mask`` of a declared `Stream` make nulls
    readable.

    Args:
        path: a file (``.arrow``, ``.feather``), a pattern, a list of these in corpus order, or a folder: as
            `save_to_disk` writes it, from the cache of `load_dataset`, as LitData writes it with chunks of rows, or any
            other folder, whose ``*.arrow`` files are read, sorted by the bytes of their relative paths.
        streams: names of columns, or declarations by stream name (`Stream.field` names the column, or is a path such as
            ``"messages[].content"``, the shape may be another shape of the same size, and declares lists of equal
            lengths). By default every column that can be a
            stream. A warning names the other columns.
        split: split of a folder that has several.
        indices: an Arrow file with a column ``indices``: the numbers of the rows to deliver, in corpus order, as
            `select`, `shuffle` and `filter` of `datasets` write them. By default the file that the folder names, or all
            rows.
        defines_size: name of the stream whose lengths count towards the minibatch budget, by default the longest stream
            of each sequence, or as declared.
        memory: bytes that a decoded batch may take, where batches must be decoded.
        schema: ``"union"`` takes files whose columns differ, see `ParquetDeserializer`.

    Attributes:
        classes: the names of classes by stream, for columns that are a `ClassLabel` of `datasets`.
        nested_paths: the paths of the values within structs and lists of structs, whether they are streams or not.

    Raises:
        DataError: a folder has several splits, a file is missing, damaged or not Arrow's, or there are no rows.
        SchemaError: a column is missing, cannot be a stream, or differs between files or from its declaration, or is
            not filled where files lack it.
    """

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        streams: Sequence[str] | Mapping[str, Stream] | None = None,
        *,
        split: str | None = None,
        indices: PathLike | None = None,
        defines_size: str | None = None,
        memory: int = CHUNK_MEMORY,
        schema: SchemaRule = "strict",
    ) -> None:
        whole_number("memory", memory, 1)
        self.name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else "Arrow files"
        parts = [_dataset(entry, split) for entry in ([path] if isinstance(path, (str, os.PathLike)) else path)]
        if not parts:
            raise ValueError("expected at least one file, got an empty list")
        self._files = [file for part in parts for file in _open_files(part)]
        views = [part.indices for part in parts if part.indices is not None]
        if indices is None and views and len(parts) > 1:
            raise DataError("expected a single dataset if it is a view of some rows, got several", path=str(views[0]))
        indices_path = Path(indices) if indices is not None else views[0] if views else None
        sources = [file.source for file in self._files]
        self._columns, lacking = choose(sources, streams, defines_size, union=is_union(schema))
        for file, paths in zip(self._files, lacking, strict=True):
            file.lacking = paths
        self.nested_paths = nested_paths(sources[0].schema)
        if streams is None:
            warn_of_unread_columns(self.paths(), path, self.name, self._columns.keys() | set(sources[0].schema.names))
        self.schema = arrow_columns.schema_of(self._columns)
        self.classes = _class_names(sources[0].schema, {name: c.field for name, c in self._columns.items()})
        self._memory = memory
        # Files of one dataset may order their columns differently.
        layouts = [layout_of(file.schema) for file in self._files]
        self._layouts = [layout for layout in layouts if layout is not None]
        written = any(column.json is not None for column in self._columns.values())  # texts that are made, not views
        viewable = not written and not any(file.compressed or not file.aligned for file in self._files)
        self._mapped = viewable and len(self._layouts) == len(layouts)
        counts = [len(file.starts) for file in self._files]
        self._first = np.cumsum([0, *counts], dtype=np.int64)
        self._starts = np.cumsum([0, *np.concatenate([file.rows for file in self._files]).tolist()], dtype=np.int64)
        if self._starts[-1] == 0:
            raise DataError("expected at least one row, got none", path=self.name)
        self._check_row_size()
        self._sizes = np.concatenate([file.heads + file.bodies for file in self._files])
        self._row_bytes = max(1, int(self._sizes.sum()) // int(self._starts[-1]))
        self._step = max(1, _VIEW_BYTES // self._row_bytes)  # rows in a chunk, if indices name them
        self._lock = threading.Lock()
        self._bounds: list[_Lookup] | None = None
        self._table: list[ChunkInfo] | None = None
        self._chunk_set: ChunkSet | None = None
        self._closed = False
        self._rows = None if indices_path is None else _RowNumbers(str(indices_path), int(self._starts[-1]))
        if not self._mapped:
            self._lacks = (RandomAccess, Sliceable, Mapped)
        elif self._rows is not None:
            self._lacks = (RandomAccess, Mapped)
        names: Any = list(self.schema) if streams is None else streams
        self._set_arguments(
            path, names, split=split, indices=indices, defines_size=defines_size, memory=memory, schema=schema
        )

    # ---- chunks -------------------------------------------------------------------------------------

    def chunks(self) -> list[ChunkInfo]:
        """Return the size of every chunk. ``bytes`` counts its batches, with all columns."""
        if self._table is None:
            sizes = self._sizes
            starts = self._starts
            if self._rows is not None:
                starts = np.append(np.arange(0, len(self._rows), self._step, dtype=np.int64), len(self._rows))
                sizes = np.diff(starts) * self._row_bytes
            rows = np.diff(starts)
            samples = rows
            if self._ragged_streams():
                spans = zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
                samples = np.array([int(self._lengths(np.arange(a, b)).sum()) for a, b in spans], np.int64)
            table = zip(rows.tolist(), samples.tolist(), sizes.tolist(), strict=True)
            self._table = [ChunkInfo(*row) for row in table]
        return self._table

    def read(self, chunk: int) -> Chunk:
        """Return the rows of chunk number ``chunk``. They are views if the batch is not compressed, without indices.

        Raises:
            DataError: a file was truncated, or its disk fails.
        """
        return self.read_slice(chunk, 0, self._count(chunk))

    def read_slice(self, chunk: int, start: int, stop: int) -> Chunk:
        """Return the rows ``start:stop`` of chunk number ``chunk`` in the same way."""
        start, stop, _ = slice(start, stop).indices(self._count(chunk))
        stop = max(start, stop)
        if self._rows is not None:
            first = chunk * self._step
            return self._indexed_rows(np.arange(first + start, first + stop))
        return self._read_batch(chunk, start, stop)

    def hold_bounds(self) -> None:
        """Fetch and hold the buffers that views of the batches need: bounds, validity and bits.

        Raises:
            DataError: the cache has no room for them, or they cannot be fetched.
        """
        spans: dict[str, list[tuple[int, int]]] = {}
        for file, batch, places in self._sound_batches():
            of_file = spans.setdefault(file.path, [])
            for place, column in places:
                of_file += [batch.span(number) for number in needed_buffers(batch, place, column)]
        self._hold(spans)
        copied: dict[str, list[tuple[int, int]]] = {}
        for file, batch, places in self._sound_batches():
            for place, column in places:
                with contextlib.suppress(ValueError):  # reading the damaged batch raises the error
                    if column.dims and not has_equal_lists(batch, place, column):
                        leaf = leaf_of(place_at(place, column.path.steps))
                        copied.setdefault(file.path, []).append(batch.span(leaf))
        if copied:
            self._hold({path: [*of_file, *copied.get(path, [])] for path, of_file in spans.items()})

    def _hold(self, spans: Mapping[str, list[tuple[int, int]]]) -> None:
        runs = [(file, *run) for file in self._files for run in page_runs(spans.get(file.path, []))]
        check_room_for_bounds([end - begin for _, begin, end in runs], self.paths(), self.name, len(self.schema))
        call_each(lambda run: run[0].hold(*run[1:]), runs, _REQUESTS)

    def _sound_batches(self) -> Iterator[tuple[ArrowFile, MappedBatch, list[tuple[Place, Column]]]]:
        """Yield the batches with sound heads, and the places of their columns. Reads only the heads."""
        for chunk in range(int(self._first[-1])):
            file, i = self._locate(chunk)
            layout = self._layout(file)
            with contextlib.suppress(ValueError):
                columns = self._columns.values()
                batch = MappedBatch(file, file.batch(i), layout)
                yield file, batch, [(layout.places[c.path.column], c) for c in columns if c.path not in file.lacking]

    def extents(self, chunk: int) -> list[Extent]:
        """Return the extent of a batch that must be decoded, or no extent for a batch that is read as views."""
        if self._mapped or self._rows is not None:
            return []
        file, i = self._locate(chunk)
        batch = file.batch(i)
        return [Extent(file.path, batch.start, batch.head + batch.body)]

    def read_fetched(self, chunk: int, pieces: Sequence[Piece]) -> Chunk:
        """See `Fetchable.read_fetched`. Only for batches that must be decoded."""
        (piece,) = pieces
        if isinstance(piece, Unread):
            file, i = self._locate(chunk)
            ragged, first = arrow_columns.ragged_of(self._columns), int(self._starts[chunk])
            return lost_chunk(self.schema, ragged, int(file.rows[i]), lambda i: read_error(piece, file.path, first + i))
        return self._decode_batch(chunk, piece)

    def select(self, ordinals: Ints) -> Chunk:
        """Return the sequences ``ordinals``, in that order, as one chunk."""
        if self._rows is not None:
            return self._indexed_rows(ordinals)
        return select_by_chunk(self, ordinals, self._starts)

    def files(self, chunks: Sequence[int]) -> Sequence[MappedFile]:
        """Return the mapped files with ``chunks``, and make the kernel begin to read the heads of these chunks."""
        by_path: dict[str, MappedFile] = {}
        for chunk in chunks:
            file, i = self._locate(chunk)
            with self._lock:
                mapped = file.map()
            mapped.advise("willneed", int(file.starts[i]), int(file.heads[i]))
            by_path[file.path] = mapped
        return list(by_path.values())

    def lengths(self, ordinals: Ints) -> Ints | None:
        """Return the samples of the sequences ``ordinals``, int64 (n,), or None if every sequence has one. O(n)."""
        return self._lengths(np.ascontiguousarray(ordinals, np.int64)) if self._ragged_streams() else None

    def paths(self) -> list[str]:
        """Return the paths of the Arrow files."""
        return [file.path for file in self._files]

    def digest(self) -> str:
        """Return 32 hex digits over the rows of all batches, and three blocks of each file."""
        return list(self.digests())[-1][1]

    def digests(self) -> Iterator[tuple[int, str]]:
        """Yield the digest after each file, see `Growing.digests`, or only the last if indices name the rows."""
        digest = ContentDigest()
        digest.text(identity_of(arrow_columns.fillings_of(self._columns)))
        for file, end in zip(self._files, self._first[1:].tolist(), strict=True):
            digest.numbers(*file.rows.tolist())
            with open_file(file.path, -1) as handle:
                digest.file(handle, file.size)
            if self._rows is None:
                yield end, digest.hexdigest()
        if self._rows is not None:
            with open_file(self._rows.path, -1) as handle:
                digest.file(handle, self._rows.size)
            yield len(self.chunks()), digest.hexdigest()

    def null_counts(self) -> dict[str, NullCount]:
        """Return the nulls that the heads of the batches count, of scalars, byte strings and texts. None are known of
        rows that indices name, and of files with dictionaries or views."""
        if self._rows is not None or len(self._layouts) < len(self._files):
            return {}
        counts = {name: 0 for name, column in self._columns.items() if not column.path.steps}
        for file, layout in zip(self._files, self._layouts, strict=True):
            nodes: dict[str, int] = {}
            for name in list(counts):
                path = self._columns[name].path
                if path in file.lacking:
                    counts[name] += int(file.rows.sum())
                elif layout.places[path.column].children:  # which may have nulls of their own
                    del counts[name]
                else:
                    nodes[name] = layout.places[path.column].node
            for batch in map(file.batch, range(len(file.starts))):
                with contextlib.suppress(ValueError):  # reading the damaged batch raises the error
                    nulls = batch_nulls(file.head(batch), batch, layout)
                    for name, node in nodes.items():
                        counts[name] += int(nulls[node])
        return {name: arrow_columns.null_count(name, self._columns[name], count) for name, count in counts.items()}

    def close(self) -> None:
        """Release the maps. Chunks that were returned keep theirs."""
        with self._lock:
            self._closed = True
            self._chunk_set, self._bounds = None, None
            for file in self._files:
                file.unmap()

    # ---- batches ------------------------------------------------------------------------------------

    def _count(self, chunk: int) -> int:
        if self._rows is not None:
            return self.chunks()[chunk].sequences
        file, i = self._locate(chunk)
        return int(file.rows[i])

    def _check_row_size(self) -> None:
        """Check that a row fits into a batch. A damaged schema can claim any size for it.

        Raises:
            DataError: a row is too large.
        """
        fixed = [c for c in self._columns.values() if not (c.ragged or c.dims or c.stream.kind != "dense")]
        bits = sum(c.stream.size * (c.value_bits if self._mapped else 8 * c.stream.dtype.itemsize) for c in fixed)
        room = self._memory if not self._mapped else max(int(file.bodies.max(initial=0)) for file in self._files)
        if bits > 8 * room:
            raise DataError(
                f"expected rows that fit into a batch of {room} bytes, got {bits // 8} bytes a row",
                path=self.name,
                hint="the schema is damaged" if self._mapped else "raise memory=, or choose fewer columns",
            )

    def _locate(self, chunk: int) -> tuple[ArrowFile, int]:
        if not 0 <= chunk < self._first[-1]:
            raise IndexError(f"expected a chunk number from 0 to {self._first[-1] - 1}, got {chunk}")
        number = int(np.searchsorted(self._first, chunk, side="right")) - 1
        return self._files[number], chunk - int(self._first[number])

    def _layout(self, file: ArrowFile) -> BatchLayout:
        return self._layouts[self._files.index(file)]

    def _open(self, chunk: int) -> tuple[ArrowFile, MappedBatch]:
        """Return a mapped batch and its file.

        Raises:
            ValueError: it is damaged.
            DataError: the file was truncated, or its disk fails.
        """
        if self._closed:
            raise RuntimeError(f"expected an open corpus, but {self.name} was closed")
        file, i = self._locate(chunk)
        with self._lock:
            mapped = file.map()
        mapped.check()
        return file, MappedBatch(file, file.batch(i), self._layout(file))

    def _read_batch(self, chunk: int, start: int, stop: int) -> Chunk:
        if not self._mapped:
            return self._decode_batch(chunk, None).slice(start, stop)
        first = int(self._starts[chunk]) + start
        values: dict[str, Value] = {}
        try:
            file, batch = self._open(chunk)
            layout = self._layout(file)
            unreadable = arrow_columns.UnreadableRows(self._columns, stop - start, file.path, first)
            for name, column in self._columns.items():
                if column.path in file.lacking:
                    rows = lacking_rows(column, stop - start, self._memory)
                else:
                    items = MappedItems(batch, layout.places[column.path.column], start, stop)
                    rows = arrow_columns.value_of(items, column, self._memory)
                rows.into(values, name)
                unreadable.mark(name, rows.bad)
        except (ValueError, TooLargeError) as error:
            return self._damaged_chunk(chunk, start, stop, error)
        return Chunk(self.schema, values, unreadable.errors(), seals=file.map().seals)

    def _decode_batch(self, chunk: int, fetched: memoryview | None) -> Chunk:
        """Return a batch, decoded by Arrow, from ``fetched`` if its bytes were fetched."""
        file, i = self._locate(chunk)
        batch = file.batch(i)
        data = read_bytes(file.path, batch.start, batch.head + batch.body) if fetched is None else fetched
        values: dict[str, Value] = {}
        unreadable = arrow_columns.UnreadableRows(self._columns, batch.rows, file.path, int(self._starts[chunk]))
        try:
            fields = [c.path.column for c in self._columns.values() if c.path not in file.lacking]
            decoded = decode_batch(file, batch, data, fields, self._memory)
            for name, column in self._columns.items():
                if column.path in file.lacking:
                    rows = lacking_rows(column, batch.rows, self._memory)
                else:
                    items = arrow_columns.ArrowItems(decoded.column(column.path.column), self._memory)
                    rows = arrow_columns.value_of(items, column, self._memory)
                rows.into(values, name)
                unreadable.mark(name, rows.bad)
        except TooLargeError as error:
            raise DataError(
                f"expected at most {self._memory} bytes in a decoded batch (memory), got {error.args[0]}",
                path=file.path,
                byte=batch.start,
                hint="raise memory=, choose fewer columns, or write the file with smaller batches",
            ) from None
        except _damage_errors() as error:
            return self._damaged_chunk(chunk, 0, batch.rows, error)
        return Chunk(self.schema, values, unreadable.errors())

    def _damaged_chunk(self, chunk: int, start: int, stop: int, error: Exception) -> Chunk:
        """Return a chunk of unreadable sequences for a batch that cannot be read.

        Raises:
            DataError: the batch claims too many sequences.
        """
        file, i = self._locate(chunk)
        # The parser adds the byte of the head to the message.
        what, byte = error.args if len(error.args) == 2 else (error, 0)
        byte = int(file.starts[i]) + (byte if isinstance(byte, int) else 0)
        if isinstance(error, TooLargeError):
            what = f"lists of unequal lengths take {error} bytes, more than memory={self._memory}"
        reason = f"expected a record batch of {int(file.rows[i])} rows that can be read, got damage: {what}"
        if stop - start > _MAX_UNREADABLE:
            # A damaged batch may claim any number of rows.
            raise DataError(reason, path=file.path, byte=byte, hint="restore the file or write it again")
        hint = 'restore the file, or pass on_error="skip" to the source to skip such sequences and list them'
        ragged, first = arrow_columns.ragged_of(self._columns), int(self._starts[chunk]) + start

        def error_of(i: int) -> DataError:
            return DataError(reason, path=file.path, byte=byte, sequence=first + i, hint=hint)

        return lost_chunk(self.schema, ragged, stop - start, error_of)

    # ---- rows that indices name ---------------------------------------------------------------------

    def _indexed_rows(self, ordinals: Ints) -> Chunk:
        """Return copies of the rows that the indices name at ``ordinals``."""
        assert self._rows is not None
        rows, wrong = self._rows.take(ordinals)
        if self._mapped:
            chunk = self._gather_rows(rows)
        else:
            chunk = select_by_chunk(self, rows, self._starts, lambda number: self._decode_batch(number, None))
        errors = dict(chunk.errors)
        for i in np.flatnonzero(wrong).tolist():
            errors[i] = DataError(
                f"expected a row number below {int(self._starts[-1])}, got another",
                path=self._rows.path,
                sequence=int(ordinals[i]),
            )
        return Chunk(self.schema, chunk.values, errors)

    def _gather_rows(self, rows: Ints) -> Chunk:
        """Copy rows natively. Batches stay registered, as there may be few rows in each."""
        chunks = np.searchsorted(self._starts, rows, side="right") - 1
        needed = distinct(chunks)
        with self._lock:
            if self._chunk_set is None:
                self._chunk_set, self._slots = ChunkSet(self.schema), np.full(len(self._starts) - 1, -1, np.int64)
                self._errors: dict[int, DataError] = {}
            chunk_set, slots, errors = self._chunk_set, self._slots, self._errors
        for chunk in needed[slots[needed] < 0].tolist():
            file, i = self._locate(chunk)
            part = self._read_batch(chunk, 0, int(file.rows[i]))
            with self._lock:
                if slots[chunk] < 0:
                    errors.update({int(self._starts[chunk]) + i: error for i, error in part.errors.items()})
                    slots[chunk] = chunk_set.add(part)
        bad: dict[int, DataError] = {}
        if errors:
            bad = {i: errors[row] for i, row in enumerate(rows.tolist()) if row in errors}
        places, index = slots[chunks].astype(np.uint32), rows - self._starts[chunks]
        try:
            values = chunk_set.gather(places, index)
        except BadEntriesError as fault:
            values = values_of(makers(self.schema), fault.arrays)
            bad = fault.errors(list(self.schema), rows.tolist(), self.name) | bad
        return Chunk(self.schema, values, bad)

    # ---- lengths ------------------------------------------------------------------------------------

    def _ragged_streams(self) -> list[str]:
        """Return the ragged streams that count towards the minibatch budget."""
        size = self.schema.size_stream
        return [name for name, column in self._columns.items() if column.ragged and size in (None, name)]

    def _lengths(self, ordinals: Ints) -> Ints:
        rows = ordinals if self._rows is None else self._rows.take(ordinals)[0]
        ragged, size = self._ragged_streams(), self.schema.size_stream
        longest = np.full(len(rows), int(size is None and len(ragged) < len(self._columns)), np.int64)
        for lookup in self._lookups(ragged):
            pairs = lookup.take(rows).astype(np.int64)
            lengths = pairs[:, 1] - pairs[:, 0]
            if len(lengths) and lengths.min() < 0:
                raise DataError(
                    f"expected lists of at least 0 items, got {lengths.min()}",
                    path=self.name,
                    sequence=int(ordinals[int(lengths.argmin())]),
                    hint="the file is damaged; restore it or write it again",
                )
            np.maximum(longest, lengths, out=longest)
        return longest

    def _lookups(self, ragged: list[str]) -> list[_Lookup]:
        with self._lock:
            if self._bounds is not None:
                return self._bounds
        parts: list[list[NDArray[Any]]] = [[] for _ in ragged]
        seals: list[Sequence[NDArray[np.uint8]]] = []
        for chunk in range(int(self._first[-1])):
            file, i = self._locate(chunk)
            if self._mapped:
                try:
                    _, batch = self._open(chunk)
                    layout = self._layout(file)
                    for part, name in zip(parts, ragged, strict=True):
                        column = self._columns[name]
                        if column.path in file.lacking:
                            part.append(np.zeros((batch.rows, 2), np.int64))
                        else:
                            part.append(length_pairs(batch, layout.places[column.path.column], column))
                except ValueError as error:
                    raise file.damage_error(f"a batch cannot be read: {error}", int(file.starts[i])) from error
                seals.append(file.map().seals)
            else:
                chunk_read = self._decode_batch(chunk, None)
                for part, name in zip(parts, ragged, strict=True):
                    ends = chunk_read[name].offsets
                    part.append(np.stack([ends[:-1], ends[1:]], axis=1))
        lookups = [_Lookup(_same_dtype(part), self._starts, seals) for part in parts]
        with self._lock:
            self._bounds = lookups
        return lookups


class _Lookup:
    """Small rows in parts of mapped files, looked up by number and copied natively."""

    def __init__(
        self, parts: Sequence[NDArray[Any]], starts: Ints, seals: Sequence[Sequence[NDArray[np.uint8]]]
    ) -> None:
        self._starts = starts
        self._gatherer = _native.Gatherer([None])
        for slot, part in enumerate(parts):
            self._gatherer.add(slot, [(part, None)], seals[slot] if seals else [])

    def take(self, rows: Ints) -> NDArray[Any]:
        """Return copies of rows.

        Raises:
            DataError: a file was truncated, or its disk fails.
        """
        slots = np.searchsorted(self._starts, rows, side="right") - 1
        ((copies, _),) = self._gatherer.gather(slots.astype(np.uint32), rows - self._starts[slots])
        taken: NDArray[Any] = copies
        return taken


class _RowNumbers:
    """The row numbers of a view, as `datasets` writes them: a column ``indices`` of uint64."""

    def __init__(self, path: str, count: int) -> None:
        self.path, self._count = path, count
        file = ArrowFile(path)
        self.size = file.size
        layout = layout_of(file.schema)
        kind = file.schema.field("indices").type if "indices" in file.schema.names else None
        if layout is None or kind is None or str(kind) not in ("uint64", "int64") or file.compressed:
            raise DataError(f"expected a column `indices` of uint64, got {file.schema.names}", path=path)
        starts = np.cumsum([0, *file.rows.tolist()], dtype=np.int64)
        if starts[-1] == 0:
            raise DataError("expected at least one row, got a view of none", path=path)
        parts = []
        for i in range(len(file.starts)):
            try:
                place = layout.places["indices"]
                batch = MappedBatch(file, file.batch(i), layout)
                parts.append(batch.view(place.buffer + 1, np.dtype(np.int64), 0, batch.rows))
            except ValueError as error:
                raise file.damage_error(f"a batch cannot be read: {error}", int(file.starts[i])) from error
        self._lookup = _Lookup(parts, starts, [file.map().seals] * len(parts))
        self._length = int(starts[-1])

    def __len__(self) -> int:
        return self._length

    def take(self, ordinals: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """Return the row numbers at ``ordinals``, and the mask of the numbers out of range, which become 0."""
        rows = self._lookup.take(ordinals)
        wrong = (rows < 0) | (rows >= self._count)
        return np.where(wrong, 0, rows), wrong


def _same_dtype(parts: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return pairs of bounds of one dtype: copies if files have lists of both kinds, with bounds of 4 and 8 bytes."""
    if len({part.dtype for part in parts}) == 1:
        return parts
    return [np.stack([_native.copied(part[:, i]).astype(np.int64) for i in (0, 1)], axis=1) for part in parts]


def _damage_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that pyarrow, and NumPy over its results, raise for damaged data."""
    import pyarrow as pa

    return (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError, EOFError, IndexError, KeyError)


def _open_files(part: Dataset) -> list[ArrowFile]:
    spans: Sequence[tuple[int, int] | None] = part.spans or [None] * len(part.files)
    return [
        ArrowFile(str(file), complete=part.complete, span=span) for file, span in zip(part.files, spans, strict=True)
    ]


def _dataset(path: PathLike, split: str | None) -> Dataset:
    folder = folder_of(path)
    with looking(folder):
        if folder.is_dir():
            return _litdata_dataset(folder) if split is None and is_litdata(folder) else arrow_dataset(folder, split)
    if split is not None:
        raise DataError(f"expected a folder to choose the split {split!r} from, got a file", path=str(path))
    return Dataset(list_files(path), complete=False)


def _litdata_dataset(folder: Path) -> Dataset:
    spans = row_spans(litdata_index(folder, "rows"))
    return Dataset([path for path, _ in spans], complete=False, spans=[span for _, span in spans])


def _class_names(schema: Any, fields: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the names of classes by stream, as `datasets` keeps them in the schema's metadata."""
    classes: dict[str, list[str]] = {}
    try:
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        for name, field in fields.items():
            feature = features.get(field)
            names = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
            if isinstance(names, list) and all(isinstance(label, str) for label in names):
                classes[name] = names
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    return classes
