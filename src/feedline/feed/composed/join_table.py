"""The resolved join: for each joined sequence, its ordinal in each part, in a mapped file.

Resolving sorts the keys of each secondary on disk and looks up the primary's, block by block, so that private memory
stays at about ten times the block (2^18 keys) for data of any size. The file is used only if its header matches these
parts. Rows are checked against their checksum and the parts' sizes before their first use, and a damaged file is
resolved again. Layout, little endian::

    header  64 bytes: magic, crc32c of the rest of the header, version, digest of the parts, sequences, width,
            chunks, crc32c of everything after the rows
    rows    per joined sequence: ordinal in each secondary i64, after the ordinal in the primary if any was dropped
    chunks  per chunk of the primary: sequences, samples, bytes i64
    crcs    per 2^16 rows: crc32c u32
"""

from __future__ import annotations

import itertools
import logging
import mmap
import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline import _native, system
from feedline.errors import DataError
from feedline.feed.files.cache_files import open_cached
from feedline.feed.files.change_detection import Watched
from feedline.feed.protocol import ChunkInfo, Deserializer, Ints, keys_of
from feedline.feed.unique import distinct

Lengths = Callable[[Sequence[Ints]], Ints | None]

BLOCK_KEYS = 1 << 18
"""Number of keys that are processed at a time."""

_MAGIC = b"FLJOIN\0\0"
_VERSION = 1
_HEADER = struct.Struct("<8sII16sQIQI8x")  # magic, crc, version, digest, sequences, width, chunks, crc of the tail
_HEADER_BYTES = _HEADER.size
_CRC_ROWS = 1 << 16

_log = logging.getLogger("feedline")


class _Header(NamedTuple):
    version: int
    digest: bytes
    sequences: int
    width: int
    chunks: int
    tail: int

    def pack(self) -> bytes:
        packed = _HEADER.pack(_MAGIC, 0, *self)
        return _HEADER.pack(_MAGIC, _native.crc32c(packed[12:]), *self)

    @classmethod
    def unpack(cls, packed: bytes) -> _Header | None:
        if len(packed) < _HEADER_BYTES:
            return None
        magic, crc, *fields = _HEADER.unpack(packed)
        good = magic == _MAGIC and crc == _native.crc32c(packed[12:])
        return cls(*fields) if good else None


class JoinTable:
    """A resolved join, in a mapped file.

    Args:
        parts: the primary and the secondaries.
        infos: chunk table of each part.
        lengths: function from the ordinals in each part to the lengths of joined sequences.
        digest: 16 bytes that identify the parts.
        folder: folder of the file. None: a temporary file.
        name: name of the join, for errors.

    Attributes:
        count: number of joined sequences.
        chunks: size of every chunk.
        first: int64 (chunks + 1,), joined sequences before each chunk.
        path: path of the file. None if it is temporary.
    """

    def __init__(
        self,
        parts: Sequence[Deserializer],
        infos: Sequence[Sequence[ChunkInfo]],
        lengths: Lengths,
        *,
        digest: bytes,
        folder: Path | None,
        name: str,
    ) -> None:
        self._parts, self._infos, self._lengths, self._digest = parts, infos, lengths, digest
        self._totals = [sum(info.sequences for info in rows) for rows in infos]
        self._folder, self._name = folder, name
        self._closed = False
        self.path: Path | None = None if folder is None else folder / self._file_name
        self._load(rebuild=False)

    @property
    def _file_name(self) -> str:
        return f"{self._digest.hex()}.{_VERSION}.feedline-join"

    def rows(self, ordinals: Ints) -> Ints:
        """Return int64 (n, parts): ordinal in each part of the joined sequences ``ordinals``.

        Raises:
            IndexError: an ordinal is outside the join.
            ValueError: the join is closed.
        """
        if self._closed:
            raise ValueError(f"expected an open join, but the {self._name} was closed")
        if len(ordinals) and not 0 <= ordinals.min() <= ordinals.max() < self.count:
            raise IndexError(f"expected 0 <= ordinal < {self.count}, got {ordinals.min()} to {ordinals.max()}")
        if self._watched.resized or not self._sound(ordinals):
            _log.warning("%s is damaged and is resolved again", self.path)
            self._load(rebuild=True)
            return self.rows(ordinals)
        rows = self._rows[ordinals].astype(np.int64, copy=False)
        return rows if self._has_primary else np.column_stack([ordinals, rows])

    def _sound(self, ordinals: Ints) -> bool:
        """Return whether the rows of these sequences are undamaged."""
        if self._watched.modified_in_place():
            self._checked[:] = False
        if not self._checked.all():
            for block in distinct(ordinals // _CRC_ROWS).tolist():
                if not self._checked[block]:
                    if not self._good(block):
                        return False
                    self._checked[block] = True
        return True

    def close(self) -> None:
        """Release the file. The table is unusable afterwards."""
        self._closed = True
        self._rows, self._crcs = np.empty((0, 0), np.int64), np.empty(0, np.uint32)

    # ---- opening ----------------------------------------------------------------------------------

    def _load(self, rebuild: bool) -> None:
        with open_cached(self._folder, self._file_name, self._usable, self._resolve, rebuild=rebuild) as file:
            status = os.fstat(file.fileno())
            header = self._header(file)
            if header is None:
                raise DataError(f"expected a valid resolved join, got one damaged while it was written: {self._name}")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            system.note_map(mapped, self.path)
            self._watched = Watched(mapped, status, self.path)
        rows = header.sequences * header.width
        self.count, self._has_primary = header.sequences, header.width == len(self._parts)
        self._rows = np.frombuffer(mapped, "<i8", rows, _HEADER_BYTES).reshape(header.sequences, header.width)
        at = _HEADER_BYTES + 8 * rows
        table = np.frombuffer(mapped, "<i8", 3 * header.chunks, at).reshape(-1, 3)
        self.chunks = [ChunkInfo(*row) for row in table.tolist()]
        self.first = np.concatenate([[0], np.cumsum(table[:, 0])]).astype(np.int64)
        self._crcs = np.frombuffer(mapped, "<u4", -(-self.count // _CRC_ROWS), at + table.nbytes)
        self._checked = np.zeros(len(self._crcs), np.bool_)

    def _usable(self, file: BinaryIO) -> bool:
        return self._header(file) is not None

    def _header(self, file: BinaryIO) -> _Header | None:
        """Return the header of a file if it and the chunk table match these parts, else None."""
        file.seek(0)
        header = _Header.unpack(file.read(_HEADER_BYTES))
        parts = len(self._parts)
        if (
            header is None
            or (header.version, header.digest, header.chunks) != (_VERSION, self._digest, len(self._infos[0]))
            or header.width != (parts if header.sequences < self._totals[0] else parts - 1)
        ):
            return None
        rows, crcs = 8 * header.sequences * header.width, 4 * -(-header.sequences // _CRC_ROWS)
        if os.fstat(file.fileno()).st_size != _HEADER_BYTES + rows + 24 * header.chunks + crcs:
            return None
        file.seek(_HEADER_BYTES + rows)
        tail = file.read(24 * header.chunks + crcs)
        table = np.frombuffer(tail, "<i8", 3 * header.chunks).reshape(-1, 3)
        if _native.crc32c(tail) != header.tail or table[:, 0].sum() != header.sequences:
            return None
        return header

    def _good(self, block: int) -> bool:
        """Return whether a block of rows matches its checksum and names sequences that exist."""
        rows = self._rows[block * _CRC_ROWS : (block + 1) * _CRC_ROWS]
        if _native.crc32c(rows) != self._crcs[block] or (rows < 0).any():
            return False
        totals = self._totals if self._has_primary else self._totals[1:]
        return bool((rows < np.array(totals)).all()) and not (self._has_primary and (np.diff(rows[:, 0]) <= 0).any())

    # ---- resolving --------------------------------------------------------------------------------

    def _resolve(self, file: BinaryIO) -> None:
        parts, totals = self._parts, self._totals
        # In the folder of the table if possible, as $TMPDIR may be in memory.
        folder = self._folder if self._folder is not None and os.access(self._folder, os.W_OK) else None
        with _scratch(folder) as scratch:
            matches = _map_numbers(scratch, totals[0] * (len(parts) - 1)).reshape(totals[0], len(parts) - 1)
            for number in range(1, len(parts)):
                with _scratch(folder) as keys_file:
                    keys, ordinals = _sort_keys(parts[number], totals[number], keys_file, folder)
                    _look_up(parts[0], totals[0], keys, ordinals, matches[:, number - 1])
                    del keys, ordinals
            self._write(file, matches)

    def _write(self, file: BinaryIO, matches: Ints) -> None:
        parts, infos = self._parts, self._infos[0]
        bounds = [range(a, min(a + BLOCK_KEYS, len(matches))) for a in range(0, len(matches), BLOCK_KEYS)]
        count = sum(int((matches[b.start : b.stop] >= 0).all(axis=1).sum()) for b in bounds)
        if count == 0:
            counts = ", ".join(f"{t} in {p.name}" for p, t in zip(parts, self._totals, strict=True))
            lacking = ", ".join(
                f"{part.name} has {int((matches[:, i] >= 0).sum())} of the primary's keys"
                for i, part in enumerate(parts[1:])
            )
            raise DataError(
                f"expected corpora with keys in common, got none; sequences: {counts}; {lacking}",
                path=parts[0].name,
                hint="compare the results of keys(ordinals) of each part",
            )
        starts = np.concatenate([[0], np.cumsum([info.sequences for info in infos])]).astype(np.int64)
        table = np.zeros((len(infos), 3), np.int64)
        table[:, 2] = [info.bytes for info in infos]
        width = len(parts) if count < len(matches) else len(parts) - 1
        file.write(bytes(_HEADER_BYTES))
        for bound in bounds:
            part = matches[bound.start : bound.stop]
            good = (part >= 0).all(axis=1)
            primary = np.flatnonzero(good) + bound.start
            rows = np.column_stack([primary, part[good]])
            lengths = self._lengths([np.ascontiguousarray(column) for column in rows.T])
            chunk = np.searchsorted(starts, primary, side="right") - 1
            np.add.at(table[:, 0], chunk, 1)
            np.add.at(table[:, 1], chunk, 1 if lengths is None else lengths)
            file.write(np.ascontiguousarray(rows[:, -width:], "<i8").data)
        file.seek(_HEADER_BYTES)
        sizes = [8 * width * min(_CRC_ROWS, count - first) for first in range(0, count, _CRC_ROWS)]
        crcs = [_native.crc32c(file.read(size)) for size in sizes]
        tail = table.astype("<i8").tobytes() + np.array(crcs, "<u4").tobytes()
        file.write(tail)
        file.seek(0)
        file.write(_Header(_VERSION, self._digest, count, width, len(infos), tail=_native.crc32c(tail)).pack())
        file.flush()


def _scratch(folder: Path | None) -> AbstractContextManager[BinaryIO]:
    return tempfile.TemporaryFile(prefix="feedline-join-", dir=folder)


def _map_numbers(file: BinaryIO, count: int, dtype: str = "<i8") -> Ints:
    """Return ``count`` numbers as a shared mapping of a file: its pages belong to the file, not to private memory."""
    if count == 0:
        return np.empty(0, dtype)
    # Allocated, not sparse: a fault on a mapping of a full disk would kill the process.
    system.allocate(file.fileno(), 8 * count)
    return np.frombuffer(mmap.mmap(file.fileno(), 8 * count), dtype)


def _keys(corpus: Deserializer, a: int, b: int) -> NDArray[np.uint64]:
    keys = np.ascontiguousarray(keys_of(corpus, np.arange(a, b)), np.uint64)
    if keys.shape != (b - a,):
        raise DataError(f"expected {b - a} keys of {corpus.name}, got an array of shape {keys.shape}")
    return keys


def _sort_keys(
    corpus: Deserializer, total: int, file: BinaryIO, folder: Path | None
) -> tuple[NDArray[np.uint64], Ints]:
    """Return all keys of a corpus in ascending order, and their ordinals, both mapped from ``file``."""
    if total <= BLOCK_KEYS:
        return _sort_run(corpus, 0, total)
    both = _map_numbers(file, 2 * total)
    keys, ordinals = both[:total].view(np.uint64), both[total:]
    with _scratch(folder) as runs_file:
        runs = _map_numbers(runs_file, 2 * total)
        run_keys, run_ordinals = runs[:total].view(np.uint64), runs[total:]
        edges = [*range(0, total, BLOCK_KEYS), total]
        for a, b in itertools.pairwise(edges):
            run_keys[a:b], run_ordinals[a:b] = _sort_run(corpus, a, b)
        done = 0
        for pieces in _ranges(run_keys, edges):
            part = np.concatenate([run_keys[a:b] for a, b in pieces])
            at = np.concatenate([run_ordinals[a:b] for a, b in pieces])
            order = np.argsort(part, kind="stable")
            keys[done : done + len(part)] = part[order]
            ordinals[done : done + len(part)] = at[order]
            _refuse_twins(corpus, keys[done : done + len(part)], ordinals[done : done + len(part)])
            done += len(part)
    return keys, ordinals


def _sort_run(corpus: Deserializer, a: int, b: int) -> tuple[NDArray[np.uint64], Ints]:
    keys = _keys(corpus, a, b)
    order = np.argsort(keys, kind="stable")
    keys, ordinals = keys[order], order + a
    _refuse_twins(corpus, keys, ordinals)
    return keys, ordinals


def _ranges(keys: NDArray[np.uint64], edges: list[int]) -> Iterator[list[tuple[int, int]]]:
    """Yield slices of sorted runs that hold all keys of one range after another, about two blocks in total.

    A run contributes every step-th key as a sample. A range with as many samples as there are runs holds at most 2 *
    runs * step keys. A key occurs once in a run, so duplicates cannot make a range longer.
    """
    count = len(edges) - 1
    step = max(1, BLOCK_KEYS // count)
    samples = np.sort(np.concatenate([keys[a:b:step] for a, b in itertools.pairwise(edges)]))
    splitters = distinct(samples[count::count])
    bounds = [
        np.concatenate([[a], a + np.searchsorted(keys[a:b], splitters, side="left"), [b]])
        for a, b in itertools.pairwise(edges)
    ]
    for i in range(len(splitters) + 1):
        yield [(int(bound[i]), int(bound[i + 1])) for bound in bounds]


def _refuse_twins(corpus: Deserializer, keys: NDArray[np.uint64], ordinals: Ints) -> None:
    twins = np.flatnonzero(keys[1:] == keys[:-1])
    if len(twins):
        at = int(twins[0])
        first, second = int(ordinals[at]), int(ordinals[at + 1])
        raise DataError(
            f"expected each key once in {corpus.name}, got key {int(keys[at])} for sequences {first} and {second}",
            path=corpus.name,
            sequence=second,
            hint="only the primary, the first part of a join, may repeat a key",
        )


def _look_up(primary: Deserializer, total: int, keys: NDArray[np.uint64], ordinals: Ints, out: Ints) -> None:
    """Write, for each sequence of the primary, the ordinal with its key, or -1."""
    for a in range(0, total, BLOCK_KEYS):
        b = min(a + BLOCK_KEYS, total)
        primary_keys = _keys(primary, a, b)
        order = np.argsort(primary_keys, kind="stable")  # searching in order touches each page of the mapping once
        primary_keys = primary_keys[order]
        at = np.searchsorted(keys, primary_keys)
        hit = at < len(keys)
        hit[hit] = keys[at[hit]] == primary_keys[hit]
        result = np.full(b - a, -1, np.int64)
        result[order[hit]] = ordinals[at[hit]]
        out[a:b] = result
