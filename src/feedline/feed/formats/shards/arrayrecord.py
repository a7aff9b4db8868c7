"""ArrayRecord files, which Grain reads: runs of records are chunks, and single records can be read.

The package array_record reads and decompresses. It compares a checksum of every block, so that no damage goes
unnoticed. Opening reads the index at the end of every file. Records of a group are compressed together, so chunks begin
where groups do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from feedline.concurrency.fork_local import PerProcess
from feedline.data import Chunk, Schema, Stream, Value
from feedline.errors import DataError, SchemaError, install_line
from feedline.feed.files.digest import ContentDigest
from feedline.feed.files.lru import LruCache
from feedline.feed.files.paths import PathLike, check_unchanged, name_of, open_file, size_and_time
from feedline.feed.files.remote import check_room, materialize
from feedline.feed.formats.indexed.mapped_corpus import archives_at
from feedline.feed.formats.pickled_by_arguments import PickledByArguments
from feedline.feed.protocol import CHUNK_MEMORY, ChunkInfo, Deserializer, Growing, Ints, Selective, whole_number

CHUNK_BYTES = 32 << 20
SUFFIXES = ".array*record*"
"""Pattern of the suffixes of files in a folder, with the numbers that TensorFlow Datasets append."""

_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"  # no threads of its own, which a forked child would lack
_MAX_READERS = 64
_PIECES = 8  # in which a chunk is read, so that a decoded chunk that is too large is noticed early


class _Records(NamedTuple):
    """Records of a file that are read together."""

    file: int
    first: int
    records: int


class ArrayRecordDeserializer(Deserializer, Selective, Growing, PickledByArguments):
    """Records of ArrayRecord files, each a sequence of one byte string.

    The bytes are delivered as they are: a message of tf.train.Example is not parsed.

    Args:
        path: a file, a list of files (read as their concatenation), a folder, or a glob pattern.
        streams: one stream of bytes by its name, with ``field="record"`` if it has another name. By default ``record``.
        chunk_sequences: records per chunk, which are rounded up to whole groups. By default as many as take 32 MiB of
            their file. A file is cut into chunks of its own.
        memory: bytes that the records of a chunk may take.

    Raises:
        SchemaError: the streams are not one of bytes.
        DataError: a file is missing, damaged or no ArrayRecord file, or there is no record.
        ModuleNotFoundError: array_record is not installed (``pip install 'feedline[arrayrecord]'``).
    """

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        streams: Mapping[str, Stream] | None = None,
        *,
        chunk_sequences: int | None = None,
        memory: int = CHUNK_MEMORY,
    ) -> None:
        whole_number("memory", memory, 1)
        if chunk_sequences is not None:
            whole_number("chunk_sequences", chunk_sequences, 1)
        self.schema = Schema(_checked({"record": Stream(dtype="bytes")} if streams is None else streams))
        self._memory_bytes = memory
        self._files = archives_at(path, SUFFIXES)
        self.name = name_of(self._files)
        remedy = "copy the files, as array_record does not read parts of objects"
        check_room(self.paths(), f"{self.name}, which is fetched whole", remedy)
        materialize(self.paths())
        self._states, self._counts, self._runs = list[tuple[int, int]](), list[int](), list[_Records]()
        for number, file in enumerate(self._files):
            with open_file(file) as opened:
                self._states.append(size_and_time(opened))
            reader = _open(file)
            self._counts.append(reader.num_records())
            most = chunk_sequences or max(1, self._counts[-1] * CHUNK_BYTES // self._states[-1][0])
            self._runs += _cut(number, self._counts[-1], most, _group_of(reader))
        self._starts = np.cumsum([0, *self._counts], dtype=np.int64)
        if self._starts[-1] == 0:
            raise DataError("expected at least one record, got none", path=self.name)
        self._readers = PerProcess(self._new_readers)
        self._set_arguments(path, streams, chunk_sequences=chunk_sequences, memory=memory)

    def chunks(self) -> list[ChunkInfo]:
        """Return the size of every chunk. ``bytes`` is its share of its file."""
        return [
            ChunkInfo(run.records, run.records, self._states[run.file][0] * run.records // self._counts[run.file])
            for run in self._runs
        ]

    def read(self, chunk: int) -> Chunk:
        """Return the records of a chunk.

        Raises:
            DataError: one of them is damaged, or they take more than ``memory``.
        """
        if not 0 <= chunk < len(self._runs):
            raise IndexError(f"expected a chunk number from 0 to {len(self._runs) - 1}, got {chunk}")
        run = self._runs[chunk]
        step, end, records = -(-run.records // _PIECES), run.first + run.records, list[bytes]()
        taken_bytes = 0
        for first in range(run.first, end, step):
            piece = self._read(run.file, first, min(end, first + step))
            taken_bytes += sum(map(len, piece))
            if taken_bytes > self._memory_bytes:
                raise DataError(
                    f"expected at most {self._memory_bytes} bytes in a decoded chunk (memory), got {taken_bytes}",
                    path=str(self._files[run.file]),
                    hint="raise memory=, or pass fewer chunk_sequences",
                )
            records += piece
        return self._chunk(records)

    def select(self, ordinals: Ints) -> Chunk:
        """Return the sequences ``ordinals``, in that order, as one chunk. Reads only their groups."""
        total = int(self._starts[-1])
        if len(ordinals) and not 0 <= ordinals.min() <= ordinals.max() < total:
            raise IndexError(f"expected 0 <= ordinal < {total}, got {ordinals.min()} to {ordinals.max()}")
        numbers = np.searchsorted(self._starts, ordinals, "right") - 1
        records = [b""] * len(ordinals)
        for number in np.unique(numbers).tolist():
            at = np.flatnonzero(numbers == number)
            places = (ordinals[at] - self._starts[number]).tolist()
            for i, record in zip(at.tolist(), self._read(number, places), strict=True):
                records[i] = record
        return self._chunk(records)

    def paths(self) -> list[str]:
        """Return the paths of the files."""
        return [str(file) for file in self._files]

    def digest(self) -> str:
        """Return 32 hex digits over the files' records, sizes and excerpts."""
        return list(self.digests())[-1][1]

    def digests(self) -> Iterator[tuple[int, str]]:
        """Yield the digest after each file. See `Growing.digests`."""
        digest = ContentDigest()
        digest.text(b"arrayrecord;")
        ends = np.cumsum(np.bincount([run.file for run in self._runs], minlength=len(self._files))).tolist()
        for file, (size, _), count, end in zip(self._files, self._states, self._counts, ends, strict=True):
            digest.numbers(count)
            with open_file(file) as opened:
                digest.file(opened, size)
            yield end, digest.hexdigest()

    def close(self) -> None:
        """Close the files."""
        self._readers.get().clear()

    # ---- internals --------------------------------------------------------------------------------

    def _new_readers(self) -> LruCache[int, Any]:
        return LruCache(self._reader, lambda _: 1, _MAX_READERS)

    def _reader(self, number: int) -> Any:
        return _open(self._files[number])

    def _read(self, number: int, *places: Any) -> list[bytes]:
        """Return records of a file: from a first to a last one, or those of a list.

        Raises:
            DataError: one of them is damaged, or the file has changed since it was opened.
        """
        try:
            records: list[bytes] = self._readers.get().get(number).read(*places)
        except (RuntimeError, IndexError, DataError) as error:
            self._compare(number)
            if isinstance(error, DataError):
                raise
            raise _damage_error(self._files[number], f"records cannot be read: {error}") from error
        self._compare(number)
        return records

    def _compare(self, number: int) -> None:
        """Check that a file is as it was when it was opened. The reader may have read the one that replaced it."""
        with open_file(self._files[number]) as file:
            check_unchanged(file, self._states[number])

    def _chunk(self, records: list[bytes]) -> Chunk:
        (name,) = self.schema
        return Chunk(self.schema, {name: Value.from_bytes(records, "bytes")})


def _checked(streams: Mapping[str, Stream]) -> Mapping[str, Stream]:
    """Return the streams.

    Raises:
        SchemaError: they are not one of bytes, of the field ``record``.
    """
    if len(streams) != 1:
        raise SchemaError(f"expected one stream, as a record is one byte string, got {', '.join(streams) or 'none'}")
    for name, stream in streams.items():
        if (stream.field or name) != "record":
            raise SchemaError(f'expected the stream `record`, or field="record" of one, got `{name}`')
        if not stream.is_bytes or stream.is_text or stream.may_miss:
            raise SchemaError(f"expected `bytes` for stream `{name}`, got {stream}; decode them in an fl.Map")
    return streams


def _open(path: Path) -> Any:
    """Return a reader of a file.

    Raises:
        DataError: it cannot be read, or is no ArrayRecord file.
        ModuleNotFoundError: array_record is not installed.
    """
    try:
        from array_record.python.array_record_module import ArrayRecordReader
    except ModuleNotFoundError as error:
        line = install_line("arrayrecord")
        raise ModuleNotFoundError(f"array_record is not installed; run: {line}") from error
    try:
        reader = ArrayRecordReader(os.fspath(path), options=_OPTIONS)
        if not reader.ok():
            reader.read_all()  # raises the reason
            raise RuntimeError("its index is damaged")
    except (RuntimeError, ValueError) as error:
        raise _damage_error(path, f"index cannot be read: {error}") from error
    return reader


def _group_of(reader: Any) -> int:
    """Return how many records are compressed together. 1 if an old file does not say."""
    match = re.search(r"\bgroup_size:(\d+)", reader.writer_options_string())
    return max(1, int(match[1])) if match else 1


def _cut(file: int, records: int, most: int, group: int) -> list[_Records]:
    """Return the chunks of a file."""
    step = -(-most // group) * group
    return [_Records(file, first, min(step, records - first)) for first in range(0, records, step)]


def _damage_error(path: Path, what: str) -> DataError:
    hint = "the file is damaged, or was not written to its end; restore it"
    return DataError(f"expected an ArrayRecord file, but its {what}", path=str(path), hint=hint)
