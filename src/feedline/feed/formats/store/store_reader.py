"""Read a store. Chunks are views of mapped files.

Opening costs O(chunks) and reads only the manifest. Reading a chunk maps its file once, checks sizes and offsets, and
keeps no copy. Private memory does not grow with the data. Lengths of sequences come from a separate mapped file, 4
bytes per sequence and ragged stream. Only native code reads mappings, and reports if a mapped file was truncated (see
`mapped_files`).
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.concurrency.thread_pool import call_each
from feedline.data import Chunk, Schema, Stream, Value
from feedline.errors import DataError, SchemaError
from feedline.feed.files.paths import PathLike
from feedline.feed.formats.fetched_views import check_room_for_bounds
from feedline.feed.formats.pickled_by_arguments import PickledByArguments
from feedline.feed.formats.store import stream_columns
from feedline.feed.formats.store.batch import MAX_HEAD_BYTES, ArrowBatch
from feedline.feed.formats.store.compressed import BatchInMemory, read_exactly
from feedline.feed.formats.store.manifest import Manifest, StoreFile, lengths_header
from feedline.feed.formats.store.mapped_files import ADVICE, StoreMap, open_inside
from feedline.feed.formats.unreadable import lost_chunk, read_error
from feedline.feed.joined_values import in_sequences
from feedline.feed.protocol import (
    ChunkInfo,
    Deserializer,
    Extent,
    Fetchable,
    Growing,
    Ints,
    LengthsOfStreams,
    Mapped,
    Piece,
    RandomAccess,
    Sliceable,
    Unread,
    Verifiable,
)


class StoreDeserializer(
    Deserializer, RandomAccess, Sliceable, Mapped, Fetchable, Growing, LengthsOfStreams, Verifiable, PickledByArguments
):
    """A store written by `StoreWriter` or `feedline.convert`.

    Nothing in the files is trusted: counts and sizes are checked when the store is opened, offsets when a chunk is
        read, sparse indices and bools when a source, `select` or `Chunk.take` copies a sequence. The views of a
    chunk from `read` are the bytes of the file, unless it is compressed. Their indices are checked when they are passed
    on, to SciPy, torch or as dense rows. Code that reads the arrays directly gets unchecked bytes, and is killed if the
    file is truncated during the read. Chunks of a compressed store are read and decompressed whole, and compared with
    their checksums each time.

    Args:
        path: folder of the store.
        streams: names of the streams to deliver, in that order, by default all.
        verify: whether to compare each chunk with its checksum when it is first read, which reads all of it.

    Raises:
        DataError: there is no store, or it is damaged.
        SchemaError: the store lacks a stream.
    """

    def __init__(self, path: PathLike, streams: Sequence[str] | None = None, *, verify: bool = False) -> None:
        self.name = os.fspath(path)
        self._folder = Path(path)
        self._manifest = manifest = Manifest.load(self._folder)
        if isinstance(streams, str):
            raise TypeError(f"expected a list of stream names, got the string {streams!r}; write [{streams!r}]")
        names = list(manifest.schema) if streams is None else list(streams)
        if len(set(names)) < len(names):
            raise SchemaError(f"expected each stream once, got {', '.join(names)}")
        if missing := [name for name in names if name not in manifest.schema]:
            raise SchemaError(
                f"expected streams of the store {self.name}, which has {', '.join(manifest.schema)}; "
                f"got {', '.join(missing)}"
            )
        self.schema = Schema({name: manifest.schema[name] for name in names})
        self._names = None if streams is None else names
        self._verify = verify
        self._set_arguments(self.name, self._names, verify=verify)
        self._verified: set[int | str] = set()
        if manifest.compression is not None:
            self._lacks = (RandomAccess, Sliceable, Mapped)
        self._first = np.cumsum([0] + [len(part.chunks["byte"]) for part in manifest.parts])
        counts = [part.chunks["sequences"] for part in manifest.parts]
        self._starts = np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.int64)
        self._files: dict[str, StoreMap] = {}  # that are mapped, checked or not
        self._maps: dict[str, _MappedPart] = {}
        self._lengths_files: dict[str, _MappedLengths] = {}
        self._advice = "random"
        self._lock = threading.Lock()
        self._table: list[ChunkInfo] | None = None
        self._closed = False

    def chunks(self) -> list[ChunkInfo]:
        """Return the size of every chunk. ``bytes`` counts its record batch, with all streams of the store."""
        if self._table is None:
            parts, samples = self._manifest.parts, self._samples()
            sequences, stored = (np.concatenate([part.chunks[key] for part in parts]) for key in ("sequences", "bytes"))
            rows = zip(sequences.tolist(), samples.tolist(), stored.tolist(), strict=True)
            self._table = [ChunkInfo(*row) for row in rows]
        return self._table

    def read(self, chunk: int) -> Chunk:
        """Return views of the sequences of chunk number ``chunk``, after checking all offsets.

        Raises:
            DataError: the file was truncated, is damaged, or contradicts the manifest.
        """
        return self._read(chunk, None)

    def extents(self, chunk: int) -> list[Extent]:
        """Return the record batch of a chunk.

        Sources over an uncompressed store read views instead. Only readers that copy from its chunks call this, so that
        data which is not in memory is read in large blocks.
        """
        part, i = self._locate(chunk)
        return [Extent(str(self._folder / part.file), int(part.chunks["byte"][i]), int(part.chunks["bytes"][i]))]

    def read_fetched(self, chunk: int, pieces: Sequence[Piece]) -> Chunk:
        """See `Fetchable.read_fetched`."""
        (piece,) = pieces
        if isinstance(piece, Unread):
            return self._lost_chunk(chunk, piece)
        # Arrays of an uncompressed batch are views of these bytes, and the caller may reuse ``piece``.
        return self._read(chunk, piece if self._manifest.compression is not None else memoryview(bytearray(piece)))

    def _read(self, chunk: int, stored: memoryview | None) -> Chunk:
        part, i, mapped = self._open_chunk(chunk)
        ordinals = int(self._starts[chunk]), int(self._starts[chunk + 1])
        if self._manifest.compression is not None and stored is None:
            start, size = (int(part.chunks[key][i]) for key in ("byte", "bytes"))
            message = self._fetch(mapped.file.path, start, size)
            if isinstance(message, Unread):
                return self._lost_chunk(chunk, message)
            stored = memoryview(message)
        values = self._decode_columns((part, i, mapped), ordinals, stream_columns.decode, stored)
        self._check_samples(chunk, part, i, mapped.file.path, values)
        return Chunk(self.schema, values, seals=() if stored is not None else [mapped.file.seal])

    def read_slice(self, chunk: int, start: int, stop: int) -> Chunk:
        """Return views of the sequences ``start:stop`` of chunk number ``chunk``, with copies of their offsets.

        Reads and checks only these.

        Raises:
            DataError: as for `read`.
        """
        part, i, mapped = self._open_chunk(chunk)
        count = int(part.chunks["sequences"][i])
        start, stop, _ = slice(start, stop).indices(count)
        first = int(self._starts[chunk])
        decode = functools.partial(stream_columns.decode, start=start, stop=max(start, stop))
        values = self._decode_columns((part, i, mapped), (first + start, first + max(start, stop)), decode)
        return Chunk(self.schema, values, seals=[mapped.file.seal])

    def files(self, chunks: Sequence[int]) -> Sequence[StoreMap]:
        """Return the mapped files with ``chunks``, and make the kernel begin to read the heads of these chunks."""
        maps = {}
        for chunk in chunks:
            part, i = self._locate(chunk)
            # The heads of all files and chunks are requested before the first is waited for.
            file = maps[part.file] = self._open_file(part)
            file.advise("willneed", int(part.chunks["byte"][i]), 4096)
        return list(maps.values())

    def hold_bounds(self) -> None:
        """Fetch and hold the bounds of the sequences of all chunks, if the files are objects in an object store.

        Views of these chunks then read no other bytes, see `fetched_views`.

        Raises:
            DataError: the cache has no room for the bounds, or they cannot be fetched.
        """
        self._check_room()
        for name in self.schema:
            if name in self._manifest.lengths:
                self._open_lengths(name)
        call_each(self._hold_bounds, range(int(self._first[-1])), _REQUESTS)

    def _check_room(self) -> None:
        sizes = [np.array([side.bytes for name, side in self._manifest.lengths.items() if name in self.schema])]
        for part in self._manifest.parts:
            sequences = part.chunks["sequences"]
            sizes.append(np.full(len(sequences), _HEAD_BYTES))
            for name in self.schema:
                stream = self._manifest.schema[name]
                if name in part.ragged:
                    sizes.append(8 * (sequences + 1))
                if stream.sparse or stream.is_bytes:
                    sizes.append(8 * (part.totals.get(name, sequences) + 1))
        check_room_for_bounds(np.concatenate(sizes).tolist(), self.paths(), self.name, len(self.schema))

    def _hold_bounds(self, chunk: int) -> None:
        part, i = self._locate(chunk)
        mapped, start, size = self._map(part), int(part.chunks["byte"][i]), int(part.chunks["bytes"][i])
        mapped.file.hold(start, min(size, _HEAD_BYTES))
        # The marker, and the length of the metadata that follows. Reading the batch checks it.
        _, length = mapped.file.copy(8, start).view("<i4").tolist()
        if _HEAD_BYTES < 8 + length <= min(size, MAX_HEAD_BYTES):
            mapped.file.hold(start, 8 + length)
        try:
            batch = ArrowBatch(mapped.file, start, size, mapped.arrow)
            for name in self.schema:
                column = batch.arrow.column(mapped.arrow.get_field_index(name))
                for buffer in stream_columns.bounds_of(column, self._manifest.schema[name], name in part.ragged):
                    batch.hold(buffer)
        except ValueError as error:
            raise _damage_error(str(error), mapped.file.path, start) from error

    def lengths(self, ordinals: Ints) -> Ints | None:
        """Return the samples of the sequences ``ordinals``, int64 (n,), or None if every sequence has one. O(n)."""
        ragged, plain = self._counted_streams()
        if not ragged:
            return None
        ordinals = np.ascontiguousarray(ordinals, np.int64)
        longest = np.full(len(ordinals), int(plain), np.int64)
        for name in ragged:
            np.maximum(longest, self._open_lengths(name).take(ordinals), out=longest)
        return longest

    def stream_lengths(self, stream: str) -> Callable[[Ints], Ints]:
        """See `LengthsOfStreams.stream_lengths`."""
        if stream not in self._manifest.lengths:
            return lambda ordinals: np.ones(len(ordinals), np.int64)

        def of(ordinals: Ints) -> Ints:
            lengths: Ints = self._open_lengths(stream).take(np.ascontiguousarray(ordinals, np.int64)).astype(np.int64)
            return lengths

        return of

    def digest(self) -> str:
        """Return 32 hex digits over the sizes and checksums of all chunks, for any choice of streams."""
        return self._manifest.digest()

    def digests(self) -> Iterator[tuple[int, str]]:
        """Yield the digest after each part, see `Growing.digests`."""
        return self._manifest.digests()

    def paths(self) -> list[str]:
        """Return the paths of the Arrow files."""
        return [str(self._folder / part.file) for part in self._manifest.parts]

    def advise(self, advice: str, chunk: int | None = None) -> None:
        """Advise the kernel how the mappings will be used.

        Args:
            advice: ``"random"`` (the default: no read-ahead), ``"sequential"`` or ``"willneed"`` (start reading now).
            chunk: number of the chunk. By default the advice is for all files, including files that are mapped later.
        """
        if advice not in ADVICE:
            raise ValueError(f"expected one of {', '.join(ADVICE)}, got {advice!r}")
        if chunk is None:
            with self._lock:
                self._advice = advice
                files = list(self._files.values())
            for file in files:
                file.advise(advice)
            return
        part, i = self._locate(chunk)
        self._map(part).file.advise(advice, int(part.chunks["byte"][i]), int(part.chunks["bytes"][i]))

    def verified(self) -> StoreDeserializer:
        """Return the same store with ``verify=True``."""
        return self if self._verify else StoreDeserializer(self.name, self._names, verify=True)

    def close(self) -> None:
        """Release the mappings. Chunks that were returned keep theirs."""
        with self._lock:
            self._closed = True
            self._files, self._maps, self._lengths_files = {}, {}, {}

    # ---- chunks -------------------------------------------------------------------------------------

    def _locate(self, chunk: int) -> tuple[StoreFile, int]:
        if not 0 <= chunk < self._first[-1]:
            raise IndexError(f"expected a chunk number from 0 to {self._first[-1] - 1}, got {chunk}")
        number = int(np.searchsorted(self._first, chunk, side="right")) - 1
        return self._manifest.parts[number], chunk - int(self._first[number])

    def _map(self, part: StoreFile) -> _MappedPart:
        file = self._open_file(part)
        with self._lock:
            self._check_open()
            mapped = self._maps.get(part.file)
            if mapped is None:
                mapped = self._maps[part.file] = _MappedPart(file, self._manifest.schema, part)
            return mapped

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"expected an open store, but {self.name} was closed")

    def _open_file(self, part: StoreFile) -> StoreMap:
        """Return the map of a part, of which nothing may be checked yet. Begins to read what the check needs."""
        with self._lock:
            self._check_open()
            file = self._files.get(part.file)
            if file is None:
                file = self._files[part.file] = StoreMap(self._folder / part.file, part.bytes)
                file.advise(self._advice)
                file.advise("willneed", 0, _schema_bytes(part))
                file.advise("willneed", file.size - 8)
            return file

    def _open_chunk(self, chunk: int) -> tuple[StoreFile, int, _MappedPart]:
        """Return the part of a chunk, the number of the chunk in it, and the mapping of the part."""
        part, i = self._locate(chunk)
        mapped = self._map(part)
        mapped.file.check()
        # Compressed chunks are compared with their checksum at each read.
        if self._verify and self._manifest.compression is None and chunk not in self._verified:
            _check_sum(mapped.file, *(int(part.chunks[key][i]) for key in ("byte", "bytes", "crc32c")))
            self._verified.add(chunk)
        return part, i, mapped

    def _decode_columns(
        self,
        opened: tuple[StoreFile, int, _MappedPart],
        ordinals: tuple[int, int],
        decode: Callable[..., Value],
        stored: memoryview | None = None,
    ) -> dict[str, Value]:
        """Return the values of the sequences ``ordinals``, by ``decode`` of each column of an open chunk.

        ``stored`` is the message of the chunk, if it was read.
        """
        part, i, mapped = opened
        start, size, sequences = (int(part.chunks[key][i]) for key in ("byte", "bytes", "sequences"))
        damage_error = functools.partial(_damage_error, path=mapped.file.path, byte=start)
        batch: ArrowBatch | BatchInMemory
        try:
            if stored is None:
                batch = ArrowBatch(mapped.file, start, size, mapped.arrow)
            else:
                crc32c = int(part.chunks["crc32c"][i])
                memory = None if self._manifest.compression is None else int(part.chunks["memory"][i])
                batch = BatchInMemory(stored, crc32c, memory, mapped.arrow)
        except ValueError as error:
            raise damage_error(str(error)) from error
        values = {}
        for name in self.schema:
            column = batch.arrow.column(mapped.arrow.get_field_index(name))
            if len(column) != sequences:
                raise damage_error(f"expected {sequences} sequences in the chunk, got {len(column)}", stream=name)
            side = self._open_lengths(name) if name in self._manifest.lengths else None
            lengths = None if side is None else side.view(*ordinals)
            try:
                value = decode(column, self._manifest.schema[name], lengths, name in part.ragged, batch)
            except (ValueError, IndexError) as error:
                if side is not None:
                    side.check()  # the cause may be a truncated file of lengths
                raise damage_error(str(error), stream=name) from error
            if side is not None:
                side.check()
                if value.one_sample_each:
                    # This part was written before the stream became ragged. All chunks must have the same form.
                    value = in_sequences(value, np.arange(value.num_samples + 1, dtype=np.int64))
            values[name] = value
        return values

    def _fetch(self, path: str, start: int, size: int) -> bytearray | Unread:
        with open_inside(Path(path)) as file:
            try:
                return read_exactly(file, start, size)
            except OSError as error:
                return Unread(error.errno or errno.EIO, start)
            except EOFError as error:
                raise _damage_error(f"cannot read a chunk of {size} bytes: {error}", path, start) from error

    def _lost_chunk(self, chunk: int, failure: Unread) -> Chunk:
        part, i = self._locate(chunk)
        first, count, path = int(self._starts[chunk]), int(part.chunks["sequences"][i]), str(self._folder / part.file)
        return lost_chunk(self.schema, self._manifest.lengths, count, lambda i: read_error(failure, path, first + i))

    def _check_samples(self, chunk: int, part: StoreFile, i: int, path: str, values: Mapping[str, Value]) -> None:
        """Compare the samples of a chunk with the manifest."""
        damage_error = functools.partial(_damage_error, path=path, byte=int(part.chunks["byte"][i]))
        for name in values.keys() & self._manifest.lengths.keys():
            total = int(part.totals[name][i])
            if values[name].num_samples != total:
                raise damage_error(f"expected {total} samples, got {values[name].num_samples}", stream=name)
        ragged, plain = self._counted_streams()
        if len(ragged) == 1 and not plain:
            got = int(part.totals[ragged[0]][i])
        else:
            lengths = self.lengths(np.arange(self._starts[chunk], self._starts[chunk + 1]))
            got = int(part.chunks["sequences"][i]) if lengths is None else int(lengths.sum())
        expected = self.chunks()[chunk].samples
        if expected != got:
            raise damage_error(f"expected {expected} samples in the chunk, got {got}")

    # ---- lengths ------------------------------------------------------------------------------------

    def _counted_streams(self) -> tuple[list[str], bool]:
        """Return the ragged streams that count towards the minibatch budget, and whether other streams count, too."""
        size = self.schema.size_stream
        counted = list(self.schema) if size is None else [size]
        ragged = [name for name in counted if name in self._manifest.lengths]
        return ragged, len(ragged) < len(counted)

    def _samples(self) -> Ints:
        parts = self._manifest.parts
        ragged, plain = self._counted_streams()
        if not ragged:
            return np.concatenate([part.chunks["sequences"] for part in parts])
        if set(self.schema) == set(self._manifest.schema):
            return np.concatenate([part.chunks["samples"] for part in parts])
        if len(ragged) == 1 and not plain:
            return np.concatenate([part.totals[ragged[0]] for part in parts])
        # Which of these streams is the longest differs between sequences, so their lengths are read.
        counts = np.concatenate([part.chunks["sequences"] for part in parts]).tolist()
        starts = itertools.accumulate(counts, initial=0)
        totals = [self.lengths(np.arange(a, a + n)) for a, n in zip(starts, counts, strict=False)]
        return np.array([0 if lengths is None else int(lengths.sum()) for lengths in totals], np.int64)

    def _open_lengths(self, name: str) -> _MappedLengths:
        with self._lock:
            self._check_open()
            lengths = self._lengths_files.get(name)
            if lengths is None:
                side = self._manifest.lengths[name]
                file = StoreMap(self._folder / side.file, side.bytes)
                file.hold()
                if self._verify:
                    _check_sum(file, 0, side.bytes, side.crc32c)
                lengths = self._lengths_files[name] = _MappedLengths(file, self._manifest.sequences, name)
        return lengths


# Files of lengths up to this size are read at once, not page by page, as look-ups come in any order.
_MAX_LENGTHS_AT_ONCE = 64 << 20

_REQUESTS = 32  # at once, for the bounds of chunks
_HEAD_BYTES = 4096  # of a chunk, usually enough for its head


def _schema_bytes(part: StoreFile) -> int:
    """Return the bytes before the first chunk of a part."""
    return min(int(part.chunks["byte"][0]), MAX_HEAD_BYTES)


class _MappedPart:
    """A mapped Arrow file whose schema matches the manifest."""

    def __init__(self, file: StoreMap, schema: Schema, part: StoreFile) -> None:
        import pyarrow as pa

        self.file = file
        fields = [stream_columns.field(name, stream, name in part.ragged) for name, stream in schema.items()]
        self.arrow = pa.schema(fields)
        # "ARROW1\0\0", the schema's message, the first batch, ..., int32, "ARROW1"
        message = file.copy(_schema_bytes(part) - 8, 8)
        if not (file.copy(6, 0).tobytes() == file.copy(6, file.size - 6).tobytes() == b"ARROW1"):
            raise _damage_error('expected an Arrow file, "ARROW1" at its start and end', file.path, 0)
        try:
            actual = pa.ipc.read_schema(pa.py_buffer(message))
        except (pa.ArrowException, OSError, ValueError, EOFError, TypeError) as error:
            raise _damage_error(f"expected an Arrow file: {error}", file.path, 0) from error
        if not actual.equals(self.arrow, check_metadata=True):
            raise _damage_error(f"expected the columns\n{self.arrow}\ngot\n{actual}", file.path, 0)


class _MappedLengths:
    """A mapped ``.npy`` file of lengths."""

    def __init__(self, file: StoreMap, count: int, stream: str) -> None:
        header = lengths_header(count)
        if file.size != len(header) + 4 * count or file.copy(len(header), 0).tobytes() != header:
            raise _damage_error(f"expected a .npy file of {count} int32 lengths", file.path, 0, stream)
        self._file, self._stream = file, stream
        if file.size <= _MAX_LENGTHS_AT_ONCE:
            file.advise("willneed")
        self._lengths: NDArray[np.int32] = file.view(np.dtype("<i4"), count, len(header))
        self._gatherer = _native.Gatherer([None])
        self._gatherer.add(0, [(self._lengths, None)])

    def view(self, start: int, stop: int) -> NDArray[np.int32]:
        """Return the lengths of the sequences ``start:stop``, as a view for native code. A call of `check` must
        follow."""
        self._file.advise("willneed", self._file.size - 4 * (len(self._lengths) - start), 4 * (stop - start))
        return self._lengths[start:stop]

    def check(self) -> None:
        """Check, after reading, that the file is complete. Up to the end of its last page, a truncated file reads as
        zeros.

        Raises:
            DataError: the file was truncated.
        """
        self._file.check()

    def take(self, ordinals: Ints) -> NDArray[np.int32]:
        """Return a copy of the lengths of the sequences ``ordinals``."""
        lengths: NDArray[np.int32]
        ((lengths, _),) = self._gatherer.gather(None, ordinals)
        self.check()
        if len(lengths) and lengths.min() < 0:
            raise DataError(
                f"expected lengths of at least 0, got {lengths.min()}",
                path=self._file.path,
                stream=self._stream,
                hint="restore the damaged file or write the store again",
            )
        return lengths


def _check_sum(file: StoreMap, start: int, size: int, expected: int) -> None:
    got = _native.crc32c(file.view(np.dtype(np.uint8), size, start))
    if got != expected:
        raise _damage_error(f"expected {size} bytes with checksum {expected:08x}, got {got:08x}", file.path, start)


def _damage_error(what: str, path: str, byte: int, stream: str | None = None) -> DataError:
    return DataError(
        what, path=path, byte=byte, stream=stream, hint="restore the damaged file or write the store again"
    )


def open_files(paths: list[str], streams: Mapping[str, Stream], memory_bytes: int) -> StoreDeserializer:
    """Open a store. See `open_corpus`."""
    return StoreDeserializer(paths[0], list(streams) or None)
