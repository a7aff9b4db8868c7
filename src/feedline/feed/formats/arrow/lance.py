"""Lance tables as a corpus: runs of rows of a fragment are chunks, and single rows can be read.

The package lance decodes, without the GIL. A table is opened at one version, which later ones leave as it is, so that
chunks keep their rows while others write. Lance does not record the lengths of lists: the columns of ragged streams are
decoded once, see `list_lengths`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from feedline.concurrency.fork_local import PerProcess
from feedline.data import Chunk, Stream, Value
from feedline.errors import DataError, install_line
from feedline.feed.byte_strings import TooLargeError
from feedline.feed.files.digest import ContentDigest
from feedline.feed.files.paths import PathLike
from feedline.feed.files.remote import object_at
from feedline.feed.formats.arrow import columns as arrow_columns
from feedline.feed.formats.arrow.column_paths import nested_paths
from feedline.feed.formats.arrow.columns import Column, Source
from feedline.feed.formats.arrow.lance_files import check_data_file, check_deletions
from feedline.feed.formats.arrow.list_lengths import ListLengths, column_per_list, count_lengths, longest_lists
from feedline.feed.formats.missing import identity_of
from feedline.feed.formats.pickled_by_arguments import PickledByArguments
from feedline.feed.protocol import CHUNK_MEMORY, ChunkInfo, Deserializer, Growing, Ints, Selective, whole_number

CHUNK_BYTES = 32 << 20
_MAX_CHUNKS = 1 << 20
# A chunk is read in pieces of at least so many rows, so that a decoded chunk that is too large is noticed early.
_PIECES, _PIECE_ROWS = 8, 1024
_VERSIONS = "_versions"  # folder of the manifests of a table


class _FragmentRows(NamedTuple):
    """Rows of a fragment that are read together: its place among the fragments, rows, stored bytes."""

    fragment: int
    rows: int
    bytes: int


class LanceDeserializer(Deserializer, Selective, Growing, PickledByArguments):
    """A Lance table, at one version. A row is a sequence.

    Columns become streams as those of Parquet files do, see `ParquetDeserializer`. Rows that were deleted are left out.
    Appending, deleting and updating make a new version. A state fits the version that it was taken from, and those to
    which rows were appended since. Columns that were added since, if they are not read, change nothing.

    Args:
        path: folder of the table.
        streams: names of columns, or declarations by stream name, `Stream.field` being the column. By default every
            column that can be a stream.
        version: number of the version, or its tag. None: the latest one. A pickled corpus opens the version it had.
        chunk_sequences: rows per chunk. By default as many as take 32 MiB of their files. A fragment is cut into chunks
            of its own.
        defines_size: name of the stream whose lengths count towards the minibatch budget, by default the longest stream
            of each sequence, or as declared.
        memory: bytes that a decoded chunk may take.

    Attributes:
        version: number of the version that is read.

    Raises:
        DataError: the table or version is missing or damaged, it is in an object store, or there are no rows.
        SchemaError: a column is missing, cannot be a stream, or differs from its declaration.
        ModuleNotFoundError: lance is not installed (``pip install 'feedline[lance]'``).
    """

    def __init__(
        self,
        path: PathLike,
        streams: Sequence[str] | Mapping[str, Stream] | None = None,
        *,
        version: int | str | None = None,
        chunk_sequences: int | None = None,
        defines_size: str | None = None,
        memory: int = CHUNK_MEMORY,
    ) -> None:
        whole_number("memory", memory, 1)
        if chunk_sequences is not None:
            whole_number("chunk_sequences", chunk_sequences, 1)
        self.name = os.fspath(path)
        _check_local(self.name)
        self._memory_bytes = memory
        with self._converting_errors("table"):
            table = _open(self.name, version)
            self.version = int(table.version)
            fragments = table.get_fragments()
            self._source = Source(self.name, table.schema, self._damage_error)
            self._columns = arrow_columns.choose([self._source], streams, defines_size)
            self.nested_paths = nested_paths(table.schema)
            self._fields = list(dict.fromkeys(column.path.column for column in self._columns.values()))
            self._files = [_files_of(table, fragment, self._fields) for fragment in fragments]
            for fragment in fragments:
                self._check_deletions(fragment)
            runs = (
                run
                for number, fragment in enumerate(fragments)
                for run in _cut(number, fragment.count_rows(), self._files[number], chunk_sequences)
            )
            self._runs = list(itertools.islice(runs, _MAX_CHUNKS + 1))
        if len(self._runs) > _MAX_CHUNKS:
            hint = "pass more chunk_sequences; a damaged table may have any number of rows"
            raise DataError(f"expected at most {_MAX_CHUNKS} chunks, got more", path=self.name, hint=hint)
        self._sound = [False] * len(fragments)
        self.schema = arrow_columns.schema_of(self._columns)
        self._starts = np.cumsum([0] + [run.rows for run in self._runs], dtype=np.int64)
        if self._starts[-1] == 0:
            raise DataError("expected at least one row, got none", path=self.name)
        with self._converting_errors("table"):
            self._table: PerProcess[Any] = PerProcess(functools.partial(_open, self.name, self.version))
        self._lengths: ListLengths | None = None
        self._lock = threading.Lock()
        # By name, so that opening the corpus again does not repeat the warning about other columns.
        names: Any = list(self._columns) if streams is None else streams
        self._set_arguments(
            path,
            names,
            version=self.version,
            chunk_sequences=chunk_sequences,
            defines_size=defines_size,
            memory=memory,
        )

    def chunks(self) -> list[ChunkInfo]:
        """Return the size of every chunk. ``bytes`` is its share of the files of the columns in use.

        The first call decodes the columns of ragged streams.
        """
        lengths = self._all_lengths()
        samples = [run.rows for run in self._runs] if lengths is None else lengths.samples
        return [ChunkInfo(run.rows, count, run.bytes) for run, count in zip(self._runs, samples, strict=True)]

    def read(self, chunk: int) -> Chunk:
        """Return the rows of a chunk.

        Raises:
            DataError: they cannot be read.
        """
        if not 0 <= chunk < len(self._runs):
            raise IndexError(f"expected a chunk number from 0 to {len(self._runs) - 1}, got {chunk}")
        rows = self._decoded(chunk, self._fields)
        return self._chunk(rows, np.arange(self._starts[chunk], self._starts[chunk + 1]))

    def select(self, ordinals: Ints) -> Chunk:
        """Return the sequences ``ordinals``, in that order, as one chunk. Reads only these."""
        total = int(self._starts[-1])
        if len(ordinals) and not 0 <= ordinals.min() <= ordinals.max() < total:
            raise IndexError(f"expected 0 <= ordinal < {total}, got {ordinals.min()} to {ordinals.max()}")
        return self._chunk(self._taken(ordinals, self._fields), ordinals)

    def lengths(self, ordinals: Ints) -> Ints | None:
        """Return the samples of the sequences ``ordinals``, int64 (n,), or None if every sequence has one.

        O(n). The first call may decode columns, see the docstring of the module.
        """
        lengths = self._all_lengths()
        return None if lengths is None else lengths.table[ordinals].astype(np.int64)

    def paths(self) -> list[str]:
        """Return the paths of the files of the columns in use."""
        return [str(Path(self.name, "data", name)) for files in self._files for name, _ in files]

    def digest(self) -> str:
        """Return 32 hex digits over the files of the columns in use, whose names are unique, and the rows in them."""
        return list(self.digests())[-1][1]

    def digests(self) -> Iterator[tuple[int, str]]:
        """Yield the digest after each fragment. See `Growing.digests`."""
        digest = ContentDigest()
        digest.text(identity_of(arrow_columns.fillings_of(self._columns)))
        ends = np.cumsum(np.bincount([run.fragment for run in self._runs], minlength=len(self._files))).tolist()
        with self._converting_errors("table"):
            fragments = self._table.get().get_fragments()
            for fragment, files, end in zip(fragments, self._files, ends, strict=True):
                digest.numbers(fragment.physical_rows, fragment.count_rows())
                digest.text("\0".join([*(name for name, _ in files), str(fragment.deletion_file())]).encode())
                yield end, digest.hexdigest()

    # ---- internals --------------------------------------------------------------------------------

    def _decoded(self, chunk: int, fields: Sequence[str]) -> Any:
        """Return columns of a chunk as an Arrow table."""
        import pyarrow as pa

        first, end = map(int, self._starts[chunk : chunk + 2])
        step = max(_PIECE_ROWS, -(-(end - first) // _PIECES))
        pieces, taken_bytes = [], 0
        for start in range(first, end, step):
            piece = self._taken(np.arange(start, min(end, start + step)), fields)
            taken_bytes += piece.nbytes
            if taken_bytes > self._memory_bytes:
                raise self._size_error(taken_bytes)
            pieces.append(piece)
        return pa.concat_tables(pieces)

    def _taken(self, ordinals: Ints, fields: Sequence[str]) -> Any:
        """Return columns of rows as an Arrow table.

        Not by a scanner: it returns a stream of Arrow, in which a panic ends the process.
        """
        for chunk in np.unique(np.searchsorted(self._starts, ordinals, "right") - 1).tolist():
            self._check_files(self._runs[chunk].fragment)
        with self._converting_errors("rows"):
            rows = self._table.get().take(ordinals, columns=list(fields))
        if rows.num_rows != len(ordinals):
            raise self._damage_error(f"rows are {rows.num_rows}, not {len(ordinals)}")
        return rows

    def _check_deletions(self, fragment: Any) -> None:
        if file := fragment.deletion_file():
            # Properties of the fragment itself would read the file, if the manifest lacks the number.
            rows = fragment.metadata.physical_rows or fragment.physical_rows
            check_deletions(Path(self.name, file), fragment.metadata.num_deletions, rows)

    def _check_files(self, fragment: int) -> None:
        """Check the files of a fragment, before it is first read."""
        if not self._sound[fragment]:
            if not any(self._sound):  # lance reads the deleted rows of all fragments when it first reads
                with self._converting_errors("table"):
                    for other in self._table.get().get_fragments():
                        self._check_deletions(other)
            for name, _ in self._files[fragment]:
                check_data_file(Path(self.name, "data", name))
            self._sound[fragment] = True

    def _chunk(self, table: Any, ordinals: Ints) -> Chunk:
        values: dict[str, Value] = {}
        unreadable = arrow_columns.UnreadableRows(self._columns, len(ordinals), self.name, ordinals)
        for name, column in self._columns.items():
            with self._converting_errors(f"column {column.field!r}"):
                try:
                    rows = arrow_columns.decode(table.column(column.path.column), column, self._memory_bytes)
                except TooLargeError as error:
                    raise self._size_error(error.args[0]) from None
            rows.into(values, name)
            unreadable.mark(name, rows.bad)
        return Chunk(self.schema, values, unreadable.errors())

    def _longest(self, chunk: int, columns: Sequence[Column], shortest: int) -> Ints:
        """Return the samples of the sequences of a chunk. See `longest_lists`."""
        return longest_lists(
            self._decoded(chunk, list(dict.fromkeys(column.path.column for column in columns))),
            columns,
            shortest=shortest,
            memory_bytes=self._memory_bytes,
            source=self._source,
            what=f"chunk {chunk}",
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
                chunks = (self._longest(chunk, columns, shortest) for chunk in range(len(self._runs)))
                self._lengths = count_lengths(chunks, self.name)
            return self._lengths

    @contextlib.contextmanager
    def _converting_errors(self, what: str) -> Iterator[None]:
        """Return a context in which errors of lance become a DataError about ``what``. It also raises panics, which
        Python code does not expect, as they are no subclass of Exception."""
        import pyarrow as pa

        try:
            yield
        except (pa.ArrowException, OSError, ValueError, RuntimeError, OverflowError, LookupError, MemoryError) as error:
            if isinstance(error, (DataError, NotImplementedError)):
                raise
            raise self._damage_error(f"{what} cannot be read: {error}") from error
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            raise self._damage_error(f"{what} cannot be read: {error}") from error

    def _damage_error(self, what: str) -> DataError:
        hint = "the table is damaged, or has no such version (lance.dataset(path).versions()); restore it"
        return DataError(f"expected a Lance table, but its {what}", path=self.name, hint=hint)

    def _size_error(self, size: int) -> DataError:
        return DataError(
            f"expected at most {self._memory_bytes} bytes in a decoded chunk (memory), got {size}",
            path=self.name,
            hint="raise memory=, choose fewer columns, or pass fewer chunk_sequences",
        )


def _check_local(path: str) -> None:
    """Check that a table is on this machine.

    Raises:
        DataError: it is in an object store, which placeholders of files stand for.
    """
    for manifest in Path(path, _VERSIONS).glob("*.manifest"):
        if object_at(manifest) is not None:
            raise DataError(
                "expected a Lance table on this machine, got one in an object store, which lance does not read from "
                "feedline's cache",
                path=path,
                hint="copy it, or mount the bucket",
            )


def _open(path: str, version: int | str | None) -> Any:
    try:
        import lance
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"lance is not installed; run: {install_line('lance')}") from error
    return lance.dataset(path, version=version)


def _files_of(table: Any, fragment: Any, fields: Sequence[str]) -> list[tuple[str, int]]:
    """Return the names and sizes of the files of a fragment that hold columns."""
    ids: set[int] = set()

    def add(field: Any) -> None:
        ids.add(field.id())
        for child in field.children():
            add(child)

    for field in table.lance_schema.fields():
        if field.name() in fields:
            add(field)
    files = [file for file in fragment.metadata.files if ids.intersection(file.fields)]
    return [(file.path, int(file.file_size_bytes or 0)) for file in files]


def _cut(
    fragment: int, rows: int, files: Sequence[tuple[str, int]], chunk_sequences: int | None
) -> Iterator[_FragmentRows]:
    """Yield the chunks of a fragment."""
    size = sum(nbytes for _, nbytes in files)
    most = chunk_sequences or max(1, rows * CHUNK_BYTES // max(size, 1))
    for first in range(0, rows, most):
        count = min(most, rows - first)
        yield _FragmentRows(fragment, count, size * count // rows)
