"""Feeding from a store: chunks are views of mapped files.

Opening costs O(chunks) and reads the manifest only. Reading a chunk maps its file once, checks sizes and
offsets, and copies nothing; private memory does not grow with the data. Lengths of sequences come from a
mapped side file, 4 bytes a sequence and ragged stream.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.data import Chunk, Schema, Value
from feedline.data.value import DenseValue, SparseValue
from feedline.errors import DataError, SchemaError
from feedline.feed.formats.store import columns
from feedline.feed.formats.store.manifest import Manifest, Part, lengths_header
from feedline.feed.formats.store.mapped import ADVICE, MappedFile
from feedline.feed.protocol import ChunkInfo, Deserializer


class StoreDeserializer(Deserializer):
    """A store written by `StoreWriter` or `feedline.convert`.

    Nothing in the files is trusted: counts and sizes are checked when the store is opened, offsets when a
    chunk is read. The entries themselves (indices of sparse streams included) are checked with ``verify``.

    Args:
        path: the store's folder.
        streams: names of the streams to deliver, in that order; None: all.
        verify: compare each chunk with its checksum when it is first read, and each sparse index with the
            number of classes; reads the whole chunk.

    Raises:
        DataError: no store, or a damaged one.
        SchemaError: a stream that the store does not have.
    """

    random_access = True
    sliceable = True

    def __init__(
        self, path: str | os.PathLike[str], streams: Sequence[str] | None = None, *, verify: bool = False
    ) -> None:
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
        self._wanted = None if streams is None else names
        self._verify = verify
        self._verified: set[int | str] = set()
        self._first = np.cumsum([0] + [len(part.chunks["byte"]) for part in manifest.parts])
        self._maps: dict[str, _MappedPart] = {}
        self._sides: dict[str, tuple[MappedFile, NDArray[np.int32]]] = {}
        self._advice = "random"
        self._lock = threading.Lock()
        self._table: list[ChunkInfo] | None = None
        self._closed = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.name, self._wanted, self._verify)

    def chunks(self) -> list[ChunkInfo]:
        """Size of every chunk; ``bytes`` are those of its record batch, all streams of the store included."""
        if self._table is None:
            samples = self._samples()
            table = {key: np.concatenate([part.chunks[key] for part in self._manifest.parts]) for key in _TABLE}
            rows = zip(table["sequences"].tolist(), samples.tolist(), table["bytes"].tolist(), strict=True)
            self._table = [ChunkInfo(*row) for row in rows]
        return self._table

    def read(self, chunk: int) -> Chunk:
        """Views of the sequences of chunk number ``chunk``.

        Raises:
            DataError: the file was cut, is damaged, or contradicts the manifest.
        """
        part, i = self._locate(chunk)
        mapped = self._map(part)
        mapped.file.check()
        start, size = int(part.chunks["byte"][i]), int(part.chunks["bytes"][i])
        region = mapped.file.buffer.slice(start, size)
        if self._verify and chunk not in self._verified:
            self._check_sum(mapped.file.path, region, start, int(part.chunks["crc32c"][i]))
        values = self._decode(part, i, mapped, region, start)
        if self._verify and chunk not in self._verified:
            for name, value in values.items():
                _check_indices(mapped.file.path, name, value)
            self._verified.add(chunk)
        return Chunk(self.schema, values)

    def lengths(self, ordinals: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Samples of the sequences ``ordinals``, int64 (n,); None if every sequence has one. O(n)."""
        ragged, plain = self._counted()
        if not ragged:
            return None
        longest = np.ones(len(ordinals), np.int64) if plain else np.zeros(len(ordinals), np.int64)
        for name in ragged:
            lengths = self._side(name)[ordinals]
            if len(lengths) and lengths.min() < 0:
                raise DataError(
                    f"expected lengths of at least 0, got {lengths.min()}",
                    path=self._side_path(name),
                    stream=name,
                )
            np.maximum(longest, lengths, out=longest)
        return longest

    def digest(self) -> str:
        """32 hex digits over the sizes and checksums of all chunks; the same for every choice of streams."""
        return self._manifest.digest()

    def files(self) -> list[str]:
        """The Arrow files."""
        return [str(self._folder / part.file) for part in self._manifest.parts]

    def advise(self, advice: str, chunk: int | None = None) -> None:
        """Tell the kernel how the maps will be used.

        Args:
            advice: ``"random"`` (the default of a new store: no read-ahead), ``"sequential"`` or
                ``"willneed"`` (start reading now).
            chunk: that chunk only; None: all files, also those mapped later.
        """
        if advice not in ADVICE:
            raise ValueError(f"expected one of {', '.join(ADVICE)}, got {advice!r}")
        if chunk is None:
            with self._lock:
                self._advice = advice
                maps = list(self._maps.values())
            for mapped in maps:
                mapped.file.advise(advice)
            return
        part, i = self._locate(chunk)
        self._map(part).file.advise(advice, int(part.chunks["byte"][i]), int(part.chunks["bytes"][i]))

    def close(self) -> None:
        """Let go of the maps; chunks handed out keep theirs."""
        with self._lock:
            self._closed = True
            self._maps, self._sides = {}, {}

    # ---- chunks -------------------------------------------------------------------------------------

    def _locate(self, chunk: int) -> tuple[Part, int]:
        if not 0 <= chunk < self._first[-1]:
            raise IndexError(f"expected a chunk number from 0 to {self._first[-1] - 1}, got {chunk}")
        number = int(np.searchsorted(self._first, chunk, side="right")) - 1
        return self._manifest.parts[number], chunk - int(self._first[number])

    def _map(self, part: Part) -> _MappedPart:
        with self._lock:
            if self._closed:
                raise ValueError(f"expected an open store, but {self.name} was closed")
            mapped = self._maps.get(part.file)
            if mapped is None:
                file = MappedFile(str(self._folder / part.file), part.bytes)
                file.advise(self._advice)
                mapped = self._maps[part.file] = _MappedPart(file, self._manifest.schema, part)
            return mapped

    def _decode(self, part: Part, i: int, mapped: _MappedPart, region: Any, start: int) -> dict[str, Value]:
        import pyarrow as pa

        path = mapped.file.path
        sequences = int(part.chunks["sequences"][i])
        try:
            batch = pa.ipc.read_record_batch(pa.ipc.read_message(region), mapped.arrow)
        except (pa.ArrowException, OSError, ValueError, EOFError, TypeError) as error:
            raise _damaged(f"expected an Arrow record batch: {error}", path, start) from error
        if batch.num_rows != sequences:
            raise _damaged(f"expected {sequences} sequences in the chunk, got {batch.num_rows}", path, start)
        inside = columns.Region(region)
        values = {}
        for name in self.schema:
            stream = self._manifest.schema[name]
            column = batch.column(mapped.arrow.get_field_index(name))
            try:
                value = columns.decode(column, stream, name in part.ragged, inside)
            except (ValueError, IndexError) as error:
                raise _damaged(str(error), path, start, name) from error
            if name in self._manifest.lengths:
                total = int(part.totals[name][i])
                if value.num_samples != total:
                    raise _damaged(f"expected {total} samples, got {value.num_samples}", path, start, name)
                if value.one_sample_each:
                    # Written before the stream turned out to have sequences: all chunks look alike.
                    value = _with_offsets(value)
            values[name] = value
        return values

    def _check_sum(self, path: str, region: Any, start: int, expected: int) -> None:
        got = _native.crc32c(region)
        if got != expected:
            raise _damaged(f"expected a chunk with checksum {expected:08x}, got {got:08x}", path, start)

    # ---- lengths ------------------------------------------------------------------------------------

    def _counted(self) -> tuple[list[str], bool]:
        """Ragged streams that count against the budget, and whether a one-sample stream does too."""
        size = self.schema.size_stream
        counted = list(self.schema) if size is None else [size]
        ragged = [name for name in counted if name in self._manifest.lengths]
        return ragged, len(ragged) < len(counted)

    def _samples(self) -> NDArray[np.int64]:
        parts = self._manifest.parts
        ragged, plain = self._counted()
        if not ragged:
            return np.concatenate([part.chunks["sequences"] for part in parts])
        if set(self.schema) == set(self._manifest.schema):
            return np.concatenate([part.chunks["samples"] for part in parts])
        if len(ragged) == 1 and not plain:
            return np.concatenate([part.totals[ragged[0]] for part in parts])
        # The longest of some of the streams: only the sequences know.
        counts = np.concatenate([part.chunks["sequences"] for part in parts]).tolist()
        starts = itertools.accumulate(counts, initial=0)
        totals = [self.lengths(np.arange(a, a + n)) for a, n in zip(starts, counts, strict=False)]
        return np.array([0 if lengths is None else int(lengths.sum()) for lengths in totals], np.int64)

    def _side_path(self, name: str) -> str:
        return str(self._folder / self._manifest.lengths[name].file)

    def _side(self, name: str) -> NDArray[np.int32]:
        with self._lock:
            if self._closed:
                raise ValueError(f"expected an open store, but {self.name} was closed")
            found = self._sides.get(name)
            if found is None:
                found = self._sides[name] = self._open_side(name)
        found[0].check()
        return found[1]

    def _open_side(self, name: str) -> tuple[MappedFile, NDArray[np.int32]]:
        side, path = self._manifest.lengths[name], self._side_path(name)
        file = MappedFile(path, side.bytes)
        if self._verify:
            self._check_sum(path, file.buffer, 0, side.crc32c)
        count = self._manifest.sequences
        header = lengths_header(count)
        if side.bytes != len(header) + 4 * count or file.buffer.slice(0, len(header)).to_pybytes() != header:
            raise _damaged(f"expected a .npy file of {count} int32 lengths", path, 0, name)
        return file, np.frombuffer(file.buffer, "<i4", count, len(header))


_TABLE = ("sequences", "bytes")


class _MappedPart:
    """A mapped Arrow file whose schema is what the manifest says."""

    def __init__(self, file: MappedFile, schema: Schema, part: Part) -> None:
        import pyarrow as pa

        self.file = file
        fields = [columns.field(name, stream, name in part.ragged) for name, stream in schema.items()]
        self.arrow = pa.schema(fields)
        head = int(part.chunks["byte"][0])
        try:
            found = pa.ipc.read_schema(file.buffer.slice(8, head - 8))
        except (pa.ArrowException, OSError, ValueError, EOFError, TypeError) as error:
            raise _damaged(f"expected an Arrow file: {error}", file.path, 0) from error
        if not found.equals(self.arrow, check_metadata=True):
            raise _damaged(f"expected the columns\n{self.arrow}\ngot\n{found}", file.path, 0)


def _with_offsets(value: Value) -> Value:
    offsets = np.arange(value.num_samples + 1, dtype=np.int64)
    if isinstance(value, SparseValue):
        return SparseValue(value.indptr, value.indices, value.values, value.classes, offsets)
    assert isinstance(value, DenseValue)
    return DenseValue(value.rows, offsets)


def _check_indices(path: str, name: str, value: Value) -> None:
    if isinstance(value, SparseValue) and len(value.indices):
        low, high = int(value.indices.min()), int(value.indices.max())
        if low < 0 or high >= value.classes:
            raise DataError(f"expected indices in [0, {value.classes}), got {low} to {high}", path=path, stream=name)


def _damaged(what: str, path: str, byte: int, stream: str | None = None) -> DataError:
    return DataError(
        what,
        path=path,
        byte=byte,
        stream=stream,
        hint="the file is damaged; restore it or write the store again",
    )


def _reopen(path: str, streams: list[str] | None, verify: bool) -> StoreDeserializer:
    return StoreDeserializer(path, streams, verify=verify)
