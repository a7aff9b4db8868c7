"""Write a store: a complete folder, or nothing at all.

Everything is written to a hidden folder next to the destination, which is renamed at the end. After an exception, such
as a full disk, nothing remains. The next writer of that name removes the leftovers of a killed writer (see `staging`).
Memory is bounded by one chunk.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.data import Chunk, Schema, Value
from feedline.data.value import BytesValue, SparseValue, bytes_before, counted_lengths
from feedline.errors import DataError
from feedline.feed.formats.store import stream_columns
from feedline.feed.formats.store.compressed import CODECS
from feedline.feed.formats.store.journal import Journal, PartTable
from feedline.feed.formats.store.manifest import MANIFEST, Lengths, Manifest, lengths_header
from feedline.feed.formats.store.staging import StagingFolder
from feedline.feed.formats.store.targets import LocalFolder, Target
from feedline.feed.joined_values import copy_value, join_values
from feedline.feed.protocol import Ints, whole_number
from feedline.feed.remote.address_text import is_address

Piece = dict[str, Value]

PLAIN_CHUNK_BYTES, COMPRESSED_CHUNK_BYTES = 32 << 20, 4 << 20


class StoreWriter:
    """Writes sequences to a new store. As a context manager, it makes the store appear if the block ends normally.

    Chunks are cut only by the bytes of their sequences, however the sequences are split between calls of `write`.

    Args:
        path: folder to create.
        schema: the streams. Their fields are not stored, and their dtypes are converted to native byte order.
        chunk_bytes: bytes of rows in one chunk (one Arrow record batch). A longer sequence gets its own chunk. By
            default 32 MiB, or 4 MiB in a compressed store, whose chunks are read as a whole, so that windows have more
            of them.
        part_bytes: size in bytes at which another Arrow file begins. The last chunk may exceed it.
        compression: codec of chunks: ``"lz4"``, ``"zstd"``, or ``"auto"``, the first of these that shrinks the first
            chunk by a third, if any. By default chunks are not compressed, and can be read without decoding.
        overwrite: whether to replace a store of that name. Anything else of that name is never replaced.
        journal: records of complete parts, which are kept if writing is interrupted. Writing continues after these
            parts. By default nothing is kept.

    Raises:
        FileExistsError: the name is taken.
        SchemaError: the store cannot hold a dtype.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        schema: Schema,
        *,
        chunk_bytes: int | None = None,
        part_bytes: int = 1 << 30,
        overwrite: bool = False,
        compression: str | None = None,
        journal: Journal | None = None,
    ) -> None:
        if compression not in (None, "auto", *CODECS):
            raise ValueError(f"expected a compression of {', '.join(CODECS)}, auto or None, got {compression!r}")
        if chunk_bytes is None:
            chunk_bytes = PLAIN_CHUNK_BYTES if compression is None else COMPRESSED_CHUNK_BYTES
        chunk_bytes, part_bytes = whole_number("chunk_bytes", chunk_bytes, 1), whole_number("part_bytes", part_bytes, 1)
        if journal is None and is_address(os.fspath(path)):
            raise ValueError(f"expected a path, got address {os.fspath(path)!r}; fl.convert writes to object stores")
        self.target: Target = LocalFolder(path) if journal is None else journal.target
        self._declared = schema
        self._compression = compression
        self.schema = Schema({name: stream_columns.stored_stream(name, stream) for name, stream in schema.items()})
        self._chunk_bytes, self._part_bytes, self._overwrite = chunk_bytes, part_bytes, overwrite
        self.target.clear_leftovers()
        self.target.refuse_existing(overwrite)
        self._pending: list[Piece] = []
        self._pending_bytes = 0
        self._ragged: set[str] = set()
        self._part: _PartFile | None = None
        self._parts: list[PartTable] = []
        self._lengths: dict[str, LengthsFile] = {}
        self._sequences = 0
        self.manifest: Manifest | None = None
        """The manifest, or None before `close`."""
        self._journal = journal
        self._workplace: StagingFolder | Journal | None = journal
        with self._cleaning_up():
            # Next to the destination: on the same file system, so that renaming is atomic.
            self._workplace = journal or StagingFolder(self.target.local_path, self.target.publish)
            self._folder = self._workplace.folder
            self._lengths = {name: LengthsFile(self._folder, i) for i, name in enumerate(self.schema)}
            if journal is not None:
                self._continue(journal)

    # ---- interface ----------------------------------------------------------------------------------

    def write(self, values: Chunk | Mapping[str, Value]) -> None:
        """Append sequences: a chunk, or one value per stream.

        Raises:
            SchemaError: the streams differ from the schema.
            DataError: a sequence is unreadable, has a sparse index out of range or a text that is not UTF-8, or the
                files cannot be written (disk full).
        """
        chunk = values if isinstance(values, Chunk) else Chunk(self._declared, values)
        if chunk.errors:
            index, error = min(chunk.errors.items())
            raise DataError(f"expected readable sequences only, got an unreadable one at index {index}") from error
        if chunk.schema.digest != self._declared.digest:
            Chunk(self._declared, chunk.values)  # raises a SchemaError with the difference
        for name, value in chunk.values.items():
            _check_entries(name, value)
        with self._cleaning_up():
            self._append(chunk)

    def close(self) -> None:
        """Finish the store and rename it to its destination.

        Raises:
            DataError: nothing was written, or the files cannot be written (disk full).
            FileExistsError: another process has taken the name.
        """
        with self._cleaning_up():
            self._flush()
            if self._sequences == 0:
                raise DataError("expected at least one sequence to write, got none", path=self.target.name)
            self._finish()

    def abort(self) -> None:
        """Discard everything that was written, except the parts in a journal."""
        if self._part is not None:
            self._part.drop()
        for lengths in self._lengths.values():
            lengths.drop()
        if self._workplace is not None:
            self._workplace.drop()

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    # ---- chunks -------------------------------------------------------------------------------------

    def _append(self, chunk: Chunk) -> None:
        ends = np.cumsum(_sequence_bytes(chunk))
        start, count = 0, len(ends)
        if count == 0:
            return
        while start < count:
            done = int(ends[start - 1]) if start else 0
            stop = int(np.searchsorted(ends, done + self._chunk_bytes - self._pending_bytes, side="right"))
            if stop <= start and not self._pending:
                stop = start + 1
            if stop > start:
                self._pending.append({name: value.slice(start, stop) for name, value in chunk.values.items()})
                self._pending_bytes += int(ends[stop - 1]) - done
                start = stop
            if start < count:
                self._flush()
        if self._pending:
            # The caller may reuse its arrays. All pieces but the last have been copied already.
            self._pending[-1] = {name: copy_value(value) for name, value in self._pending[-1].items()}

    def _flush(self) -> None:
        if not self._pending:
            return
        import pyarrow as pa

        values = {name: join_values([piece[name] for piece in self._pending]) for name in self.schema}
        self._pending, self._pending_bytes = [], 0
        ragged = {name for name, value in values.items() if not value.one_sample_each}
        # All chunks of a file have the same columns. A stream that becomes ragged begins a new file, and remains
        # ragged.
        full = self._part is not None and self._part.size >= self._part_bytes
        if full or not ragged <= self._ragged:
            self._end_part()
        self._ragged |= ragged
        if self._part is None:
            fields = [stream_columns.field(name, stream, name in self._ragged) for name, stream in self.schema.items()]
            file = self._folder / f"part-{len(self._parts):05d}.arrow"
            if self._compression == "auto":
                self._compression = _choose_codec(values, self._ragged, pa.schema(fields))
            self._part = _PartFile(file, pa.schema(fields), frozenset(self._ragged), self._compression)
        part = self._part
        part.add(_batch(values, part.ragged, part.arrow), values, self.schema)
        count = next(iter(values.values())).num_sequences
        for name, lengths in self._lengths.items():
            if name in self._ragged:
                lengths.add(values[name].lengths, before=self._sequences)
        self._sequences += count

    def _end_part(self, finishing: bool = False) -> None:
        if self._part is None:
            return
        self._parts.append(self._part.close())
        self._part = None
        if self._journal is not None and not finishing:  # the manifest follows the last part, which needs no record
            for lengths in self._lengths.values():
                lengths.sync()
            self._journal.add(self._parts[-1], self._sequences, self._ragged, self._compression)

    def _continue(self, journal: Journal) -> None:
        """Restore the state after the last part of the journal."""
        for record in journal.records:
            self._parts.append(record.part)
            self._sequences, self._compression = record.sequences, record.compression
            self._ragged = set(record.ragged)
        for name in self._ragged:
            self._lengths[name].continue_after(self._sequences)

    # ---- finishing ----------------------------------------------------------------------------------

    def _finish(self) -> None:
        self._end_part(finishing=True)
        lengths = {name: self._lengths[name].close(self._sequences) for name in self.schema if name in self._ragged}
        parts = [part.describe(list(lengths)) for part in self._parts]
        manifest = Manifest(self.schema, lengths, parts, self._compression)
        with open(self._folder / MANIFEST, "xb") as file:
            file.write(manifest.dump())
            _sync(file)
        self.target.refuse_existing(self._overwrite)
        assert self._workplace is not None
        self._workplace.publish()
        self.manifest = manifest

    @contextlib.contextmanager
    def _cleaning_up(self) -> Iterator[None]:
        try:
            yield
        except FileExistsError:
            self.abort()
            raise
        except OSError as error:
            self.abort()
            raise DataError(
                f"cannot write the store: {error.strerror or error}",
                path=self.target.name,
                hint="free some space, and repeat the call: complete parts are kept"
                if self._journal is not None and self._journal.records
                else "nothing was left behind; free some space or write elsewhere",
            ) from error
        except BaseException:
            self.abort()
            raise


class _PartFile:
    """An Arrow IPC file that is being written, and the table of its chunks."""

    def __init__(self, path: Path, arrow: Any, ragged: frozenset[str], compression: str | None) -> None:
        import pyarrow as pa

        self.arrow, self.ragged = arrow, ragged
        self._name = path.name
        self._sink = _Sink(path)
        self._compressed = compression is not None
        options = pa.ipc.IpcWriteOptions(compression=compression)
        self._writer = pa.ipc.new_file(pa.PythonFile(self._sink, mode="w"), arrow, options=options)
        self._rows: list[tuple[int, ...]] = []
        self._totals: list[dict[str, int]] = []

    @property
    def size(self) -> int:
        return self._sink.size

    def add(self, batch: Any, values: Piece, schema: Schema) -> None:
        import pyarrow as pa

        start = self._sink.size
        self._sink.crc = 0
        self._writer.write_batch(batch)
        if start == 0:
            # The first batch also writes the head: magic, then the schema's message, whose length is in its second
            # word. For the checksum of the batch alone, its bytes are read again.
            start = self._sink.head_size()
            self._sink.crc = self._sink.crc_from(start)
        lengths = counted_lengths(schema, values)
        samples = batch.num_rows if lengths is None else int(lengths.sum())
        row = (start, self._sink.size - start, batch.num_rows, samples, self._sink.crc)
        self._rows.append((*row, pa.ipc.get_record_batch_size(batch)) if self._compressed else row)
        self._totals.append({name: value.num_samples for name, value in values.items()})

    def close(self) -> PartTable:
        """Finish the file and return its description."""
        self._writer.close()
        self._sink.finish()
        return PartTable(self._name, self._sink.size, self.ragged, self._rows, self._totals)

    def drop(self) -> None:
        self._sink.drop()


class _Sink(io.RawIOBase):
    """A file to which Arrow writes, with a byte count and a checksum."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "w+b", buffering=0)  # noqa: SIM115  # closed by `finish` or `drop`
        self.size, self.crc = 0, 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        count = len(view)
        self.crc = _native.crc32c(view, self.crc)
        while len(view):
            view = view[self._file.write(view) :]  # a raw write may be short, such as on a full disk
        self.size += count
        return count

    def head_size(self) -> int:
        # "ARROW1\0\0", 0xFFFFFFFF, int32 length of the metadata, metadata
        return 16 + int.from_bytes(os.pread(self._file.fileno(), 4, 12), "little")

    def crc_from(self, start: int) -> int:
        crc = 0
        while start < self.size:
            block = os.pread(self._file.fileno(), 1 << 20, start)
            crc = _native.crc32c(block, crc)
            start += len(block)
        return crc

    def tell(self) -> int:
        return self.size

    def writable(self) -> bool:
        return True

    def finish(self) -> None:
        _sync(self._file)
        self._file.close()

    def drop(self) -> None:
        self._file.close()


class LengthsFile:
    """The lengths of all sequences in one stream, as a ``.npy`` file, created when the stream first needs it."""

    def __init__(self, folder: Path, number: int) -> None:
        self._path = folder / f"lengths-{number}.npy"
        self._file: BinaryIO | None = None

    def add(self, lengths: NDArray[np.integer], before: int = 0) -> None:
        """Append lengths. If they are the first, the ``before`` earlier sequences have one sample each."""
        if self._file is None:
            self._file = open(self._path, "w+b")  # noqa: SIM115  # closed by `close` or `drop`
            self._file.write(lengths_header(0))
            for start in range(0, before, 1 << 20):
                self._file.write(np.ones(min(before - start, 1 << 20), np.int32).tobytes())
        if len(lengths) and lengths.max() > np.iinfo(np.int32).max:
            raise DataError(f"expected sequences of less than 2^31 samples, got {lengths.max()}")
        self._file.write(lengths.astype("<i4").tobytes())

    def continue_after(self, count: int) -> None:
        """Continue a file after the lengths of ``count`` sequences, which are on disk."""
        self._file = open(self._path, "r+b")  # noqa: SIM115  # as in `add`
        self._file.truncate(len(lengths_header(0)) + 4 * count)
        self._file.seek(0, os.SEEK_END)

    def sync(self) -> None:
        """Flush the lengths to disk."""
        if self._file is not None:
            _sync(self._file)

    def close(self, count: int) -> Lengths:
        """Finish the file, of ``count`` lengths."""
        assert self._file is not None
        self._file.seek(0)
        self._file.write(lengths_header(count))
        self._file.seek(0)
        crc = 0
        while block := self._file.read(1 << 20):
            crc = _native.crc32c(block, crc)
        size = self._file.tell()
        _sync(self._file)
        self._file.close()
        return Lengths(self._path.name, size, crc)

    def drop(self) -> None:
        """Close the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk was reported before, and the folder is removed
                self._file.close()


def _sequence_bytes(chunk: Chunk) -> Ints:
    """Return the bytes of the rows of each sequence, at least 1, without offsets, which depend on neighbours."""
    total = np.ones(chunk.num_sequences, np.int64)
    for value in chunk.values.values():
        total += np.diff(bytes_before(value, np.arange(chunk.num_sequences + 1)))
        if isinstance(value, BytesValue):
            total += 8 * value.lengths  # bounds, without which empty strings would fill memory
    return total


def _batch(values: Piece, ragged: Collection[str], schema: Any) -> Any:
    """Return values as a record batch of a schema, with lists in the columns ``ragged``."""
    import pyarrow as pa

    arrays = [stream_columns.encode(values[field.name], field.type, field.name in ragged) for field in schema]
    return pa.record_batch(arrays, schema=schema)


def _choose_codec(values: Piece, ragged: set[str], schema: Any) -> str | None:
    """Return the first codec that shrinks a chunk by a third, or None. Equal data get the same codec."""
    import pyarrow as pa

    batch = _batch(values, ragged, schema)
    for codec in CODECS:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
            writer.write_batch(batch)
        if 3 * sink.tell() <= 2 * pa.ipc.get_record_batch_size(batch):
            return codec
    return None


def _check_entries(name: str, value: Value) -> None:
    if isinstance(value, SparseValue):
        value.checked_indices(name)
    if isinstance(value, BytesValue) and value.text:
        bad = _native.first_bad_text(np.ascontiguousarray(value.data), np.ascontiguousarray(value.bounds))
        if bad >= 0:
            index = int(np.searchsorted(value.offsets, bad, side="right")) - 1
            raise DataError(f"expected text in UTF-8, got other bytes in the sequence at index {index}", stream=name)


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
