"""Write a corpus larger than memory as a store in random order, in two passes that can be interrupted.

Sequences are sorted by a key hashed from the seed and their ordinal: a random permutation that needs no table and no
count in advance. The first pass sorts as much as fits into memory at a time into *runs*. The second merges them by
ranges of keys. Each run and each merged range is a store that appears when it is complete, so an interrupted process
continues after the last of them. Cost: the data is read and written twice, in large pieces, and takes twice its space
meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.data import Chunk
from feedline.errors import DataError
from feedline.feed.assembly import ChunkSet
from feedline.feed.conversion.unfinished import DONE, unfinished
from feedline.feed.files.atomic import atomic_file
from feedline.feed.files.records import read_record, write_record
from feedline.feed.formats.store.combine import combine
from feedline.feed.formats.store.manifest import Manifest
from feedline.feed.formats.store.staging import StagingFolder
from feedline.feed.formats.store.store_reader import StoreDeserializer
from feedline.feed.formats.store.targets import Target
from feedline.feed.formats.store.writer import COMPRESSED_CHUNK_BYTES, StoreWriter
from feedline.feed.progress_bar import Report
from feedline.feed.protocol import read_slice
from feedline.feed.quarantine import ListedError

Keys = NDArray[np.uint64]

# Level of the key. docs/explanation/order.md lists the other levels.
SHUFFLED_STORE = 9
_GOLDEN = 0x9E3779B97F4A7C15

# A pass holds chunks, a sorted copy of them, and the writer's pending data.
_SHARE = 3


class Settings(NamedTuple):
    """The settings that determine the bytes of the store. Interrupted work only continues under the same settings.

    Attributes:
        source: digest of the corpus.
        seed: seed of the order. None keeps the order of the corpus.
        memory: bytes that a pass may hold.
    """

    source: str
    seed: int | None
    memory: int
    chunk_bytes: int | None
    part_bytes: int
    compression: str | None
    on_error: str


class _Run(NamedTuple):
    """A sorted part of the corpus.

    Attributes:
        chunks: chunks of the corpus read up to its end.
        sequences, skipped: sequences written, and skipped as unreadable, up to its end.
        bytes: bytes of data of the run.
    """

    chunks: int
    sequences: int
    skipped: int
    bytes: int


def keys_of(seed: int, first: int, count: int) -> Keys:
    """Return the sort keys of the sequences ``first`` to ``first + count - 1``, uint64 (count,)."""
    z = np.arange(first + 1, first + count + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    z += np.uint64(_native.hash_key([seed, 0, SHUFFLED_STORE]))
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return z ^ z >> np.uint64(31)


def readable(chunk: Chunk, on_error: str, first: int) -> Chunk:
    """Return the readable sequences of a chunk. ``first`` is the ordinal of its first sequence.

    Raises:
        DataError: a sequence is unreadable, no list names it, and ``on_error`` is ``"raise"``.
    """
    valid = chunk.valid
    if valid is None:
        return chunk
    unlisted = [i for i, error in chunk.errors.items() if not isinstance(error, ListedError)]
    if unlisted and on_error == "raise":
        raise chunk.errors[min(unlisted)].located(sequence=first + min(unlisted))
    return chunk.take(np.flatnonzero(valid))


def write_shuffled(
    chunks: Callable[[int], Generator[tuple[Chunk, int, int]]],
    target: Target,
    settings: Settings,
    *,
    overwrite: bool,
    progress: Report | None,
) -> tuple[Manifest, int]:
    """Write all sequences of ``chunks`` to a new store, in random order.

    Args:
        chunks: ``chunks(n)`` yields the chunks of the corpus except the first n, with bytes done and in total.
        target: destination of the store.
        settings: see `Settings`.
        overwrite: whether to replace a store of that name.
        progress: called as ``progress(done, total)``, in bytes of the corpus, counted once per pass.

    Returns:
        The manifest, and the number of unreadable sequences skipped.

    Raises:
        DataError: an unreadable sequence, a full disk, or another process doing the same work.
        FileExistsError: the name is taken.
    """
    with unfinished(target, settings._asdict(), overwrite=overwrite) as work:
        runs, total = _sort(chunks, work, settings, progress)
        merged = _merge(work, runs, settings, progress, total)
        target.clear_leftovers()
        place = StagingFolder(target.local_path, target.publish)
        try:
            manifest = combine(merged, place.folder)
            target.refuse_existing(overwrite)
            (work / DONE).touch()
            place.publish()
        except BaseException:
            place.drop()
            raise
    return manifest, runs[-1].skipped


def _sort(
    chunks: Callable[[int], Generator[tuple[Chunk, int, int]]], work: Path, settings: Settings, progress: Report | None
) -> tuple[list[_Run], int]:
    """Run the first pass. Return the runs and the bytes of the corpus."""
    runs: list[_Run] = []
    while (done := read_record(work / f"run-{len(runs):06d}.json")) is not None:
        runs.append(_Run(*done))
    begun = runs[-1] if runs else _Run(0, 0, 0, 0)
    read, skipped, nbytes, total = begun.chunks, begun.skipped, 0, 0
    ordinal = begun.sequences + begun.skipped
    pieces: list[Chunk] = []

    def write() -> None:
        before = runs[-1].sequences if runs else 0
        assert settings.seed is not None
        keys = keys_of(settings.seed, before, sum(piece.num_sequences for piece in pieces))
        order = np.argsort(keys, kind="stable")
        number = len(runs)
        path = work / f"run-{number:06d}"
        with StoreWriter(path, pieces[0].schema, chunk_bytes=settings.chunk_bytes, overwrite=True) as writer:
            writer.write(_gather(pieces, order))
        with atomic_file(path.with_suffix(".npy")) as file:
            np.save(file, keys[order])
        run = _Run(read, before + len(keys), skipped, nbytes)
        write_record(path.with_suffix(".json"), run)
        runs.append(run)

    with contextlib.closing(chunks(begun.chunks)) as reading:
        for mapped, done_bytes, total in reading:  # the last `total` is returned
            # A copy, so that entries are checked: sequences with impossible entries become unreadable.
            chunk = mapped.take(np.arange(mapped.num_sequences))
            bad = len(chunk.errors)
            chunk = readable(chunk, settings.on_error, ordinal)
            if pieces and chunk.num_sequences and nbytes + chunk.nbytes > settings.memory // _SHARE:
                write()  # counts the chunks before this one
                pieces, nbytes = [], 0
            read, ordinal, skipped = read + 1, ordinal + mapped.num_sequences, skipped + bad
            if chunk.num_sequences:
                pieces.append(chunk)
                nbytes += chunk.nbytes
            if progress is not None:
                progress(done_bytes, 2 * total)
    if pieces:
        write()
    if not runs:
        raise DataError("expected at least one sequence to write, got none")
    return runs, total


def _merge(work: Path, runs: list[_Run], settings: Settings, progress: Report | None, total: int) -> list[Path]:
    """Run the second pass. Return stores whose sequences follow one another in key order."""
    chunk_bytes = settings.chunk_bytes
    if chunk_bytes is None and settings.compression is not None:
        chunk_bytes = COMPRESSED_CHUNK_BYTES  # even if "auto" decides against compression
    count = max(1, -(-sum(run.bytes for run in runs) // max(1, settings.memory // _SHARE)))
    keys = [np.load(work / f"run-{i:06d}.npy", mmap_mode="r") for i in range(len(runs))]
    stores = [StoreDeserializer(work / f"run-{i:06d}") for i in range(len(runs))]
    merged: list[Path] = []
    for number in range(count):
        path = work / f"merged-{number:06d}"
        low, high = (np.uint64(min(i * 2**64 // count, 2**64 - 1)) for i in (number, number + 1))
        last = number + 1 == count
        bounds = [(int(np.searchsorted(k, low)), len(k) if last else int(np.searchsorted(k, high))) for k in keys]
        if any(a < b for a, b in bounds):
            merged.append(path)
        if merged[-1:] == [path] and not path.is_dir():
            pieces = [p for store, (a, b) in zip(stores, bounds, strict=True) for p in _slices(store, a, b)]
            order = np.argsort(np.concatenate([k[a:b] for k, (a, b) in zip(keys, bounds, strict=True)]), kind="stable")
            # All stores use the codec that "auto" selected for the first.
            codec = Manifest.load(merged[0]).compression if len(merged) > 1 else settings.compression
            with StoreWriter(
                path, pieces[0].schema, chunk_bytes=chunk_bytes, part_bytes=settings.part_bytes, compression=codec
            ) as writer:
                writer.write(_gather(pieces, order))
        if progress is not None:
            progress(total + total * (number + 1) // count, 2 * total)
    for store in stores:
        store.close()
    return merged


def _slices(store: StoreDeserializer, start: int, stop: int) -> Iterator[Chunk]:
    """Yield the sequences ``start:stop`` of a store, advising the kernel to read ahead."""
    first = 0
    for number, info in enumerate(store.chunks()):
        a, b = max(start - first, 0), min(stop - first, info.sequences)
        if a < b:
            store.advise("willneed", number)
            yield read_slice(store, number, a, b)
        first += info.sequences


def _gather(pieces: list[Chunk], order: NDArray[Any]) -> Chunk:
    """Return the sequences of all ``pieces``, numbered consecutively, in the order ``order``."""
    schema = pieces[0].schema
    chunks = ChunkSet(schema)
    counts = [piece.num_sequences for piece in pieces]
    slots = np.repeat(np.array([chunks.add(piece) for piece in pieces], np.uint32), counts)
    index = np.concatenate([np.arange(count, dtype=np.int64) for count in counts])
    return Chunk(schema, chunks.gather(slots[order], index[order]))
