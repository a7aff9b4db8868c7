"""A corpus written as a store in random order, larger than memory, in two passes that can be interrupted.

Sequences are sorted by a key hashed from the seed and their ordinal, which is a random permutation that needs no table
of itself and no count known in advance. The first pass sorts as much as fits into memory at a time into *runs*; the
second merges them by ranges of keys. Each run and each merged range is a store of its own that appears when it is
whole, so whoever is killed goes on behind the last of them. What it costs: the data is read and written twice, in large
pieces, and takes twice its room while it is being written.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.data import Chunk
from feedline.errors import DataError
from feedline.feed.assembly import ChunkSet
from feedline.feed.files.atomic import atomic_file
from feedline.feed.files.paths import open_file
from feedline.feed.formats.store import StoreDeserializer, StoreWriter
from feedline.feed.formats.store.combine import combine
from feedline.feed.formats.store.manifest import Manifest
from feedline.feed.formats.store.staging import Workplace, clear_leftovers, discard
from feedline.feed.formats.store.writer import COMPRESSED_CHUNK

Keys = NDArray[np.uint64]

# Level of the key, beside those of docs/explanation/order.md.
SHUFFLED_STORE = 9
# Files in the work folder: held by the process at work; there from just before the store appears.
LOCK, DONE = "lock", "done"
_GOLDEN = 0x9E3779B97F4A7C15

# A pass holds chunks, a sorted copy of them, and what the writer has pending.
_SHARE = 3


class Settings(NamedTuple):
    """What decides the bytes of the store: interrupted work is only gone on with under the same.

    Attributes:
        source: stands for the content of the corpus.
        seed: of the order.
        memory: bytes that a pass may hold.
        chunk_bytes, part_bytes, compression: see `StoreWriter`.
        on_error: see `feedline.convert`.
    """

    source: str
    seed: int
    memory: int
    chunk_bytes: int | None
    part_bytes: int
    compression: str | None
    on_error: str


class _Run(NamedTuple):
    """A sorted piece of the corpus.

    Attributes:
        chunks: chunks of the corpus read up to its end.
        sequences, skipped: sequences written up to its end, and left out as unreadable.
        bytes: of its own data.
    """

    chunks: int
    sequences: int
    skipped: int
    bytes: int


def keys_of(seed: int, first: int, count: int) -> Keys:
    """Sort keys of the sequences ``first`` to ``first + count - 1``, uint64 (count,)."""
    z = np.arange(first + 1, first + count + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    z += np.uint64(_native.hash_key([seed, 0, SHUFFLED_STORE]))
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return z ^ z >> np.uint64(31)


def shuffled(
    chunks: Callable[[int], Iterator[tuple[Chunk, int, int]]],
    destination: Path,
    settings: Settings,
    *,
    overwrite: bool,
    progress: Callable[[int, int], None] | None,
) -> tuple[Manifest, int]:
    """Write all sequences of ``chunks`` to a new store, in random order.

    Args:
        chunks: ``chunks(n)`` gives the chunks of the corpus but for the first n, with bytes done and in all.
        destination: the store; the work lies in a hidden folder beside it until it is done.
        settings: see `Settings`.
        overwrite: replace a store of that name.
        progress: called as ``progress(done, total)``, in bytes of the corpus, counted once a pass.

    Returns:
        The manifest, and the number of unreadable sequences left out.

    Raises:
        DataError: an unreadable sequence, a full disk, or another process at the same work.
        FileExistsError: something of that name is there already.
    """
    work = destination.parent / f".{destination.name}.shuffling"
    clear_leftovers(destination)
    try:
        StoreWriter.refuse_existing(destination, overwrite)
    except FileExistsError:
        if (work / DONE).exists():  # the call that made the store was killed before it could tidy up
            discard(work, destination)
        raise
    with _claimed(work, settings):
        try:
            runs, total = _sort(chunks, work, settings, progress)
            merged = _merge(work, runs, settings, progress, total)
            clear_leftovers(destination)
            place = Workplace(destination)
            try:
                manifest = combine(merged, place.folder)
                StoreWriter.refuse_existing(destination, overwrite)
                (work / DONE).touch()
                place.publish()
            except BaseException:
                place.drop()
                raise
            discard(work, destination)
        except BaseException as error:
            error.add_note(f"what was done so far is in {work}: the same call goes on from there; delete it to give up")
            raise
    return manifest, runs[-1].skipped


@contextlib.contextmanager
def _claimed(work: Path, settings: Settings) -> Iterator[None]:
    """The work folder, ours alone, empty or with what was done under the same settings."""
    with _locked(work):
        plan, wanted = work / "plan.json", json.dumps(settings._asdict())
        if not plan.is_file() or _text(plan) != wanted:
            # The plan first: without it, what an interrupted removal leaves is nobody's work.
            plan.unlink(missing_ok=True)
            for entry in work.iterdir():
                if entry.name != LOCK:
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            with atomic_file(plan) as file:
                file.write(wanted.encode())
        yield


@contextlib.contextmanager
def _locked(work: Path) -> Iterator[None]:
    with contextlib.ExitStack() as held:
        while True:
            work.mkdir(exist_ok=True)
            try:
                lock = held.enter_context(open(work / LOCK, "ab"))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(lock.fileno()), os.stat(work / LOCK)):
                    break
            except BlockingIOError:
                raise DataError(
                    "expected to be alone at this work, got another process that shuffles into the same store",
                    path=str(work),
                    hint="wait for it, or write elsewhere",
                ) from None
            except FileNotFoundError:
                pass  # another process was done at this moment, and discarded the folder
        yield


def _text(path: Path) -> str:
    with open_file(path) as file:
        return file.read().decode()


def _sort(
    chunks: Callable[[int], Iterator[tuple[Chunk, int, int]]],
    work: Path,
    settings: Settings,
    progress: Callable[[int, int], None] | None,
) -> tuple[list[_Run], int]:
    """The first pass; returns the runs and the bytes of the corpus."""
    runs: list[_Run] = []
    while (done := work / f"run-{len(runs):06d}.json").is_file():
        runs.append(_Run(*json.loads(_text(done))))
    begun = runs[-1] if runs else _Run(0, 0, 0, 0)
    read, skipped, held, total = begun.chunks, begun.skipped, 0, 0
    pieces: list[Chunk] = []

    def write() -> None:
        before = runs[-1].sequences if runs else 0
        keys = keys_of(settings.seed, before, sum(piece.num_sequences for piece in pieces))
        order = np.argsort(keys, kind="stable")
        number = len(runs)
        with StoreWriter(
            work / f"run-{number:06d}", pieces[0].schema, chunk_bytes=settings.chunk_bytes, overwrite=True
        ) as writer:
            writer.write(_gathered(pieces, order))
        with atomic_file(work / f"run-{number:06d}.npy") as file:
            np.save(file, keys[order])
        run = _Run(read, before + len(keys), skipped, held)
        with atomic_file(work / f"run-{number:06d}.json") as file:
            file.write(json.dumps(run).encode())
        runs.append(run)

    for mapped, done_bytes, total in chunks(begun.chunks):  # the total is that of the last
        # A copy, which is checked: sequences with impossible entries are unreadable then.
        chunk = mapped.take(np.arange(mapped.num_sequences))
        if chunk.errors:
            if settings.on_error == "raise":
                raise chunk.errors[min(chunk.errors)]
            skipped += len(chunk.errors)
            chunk = chunk.take(np.setdiff1d(np.arange(chunk.num_sequences), list(chunk.errors)))
        if pieces and held + chunk.nbytes > settings.memory // _SHARE:
            write()
            pieces, held = [], 0
        read += 1
        if chunk.num_sequences:
            pieces.append(chunk)
            held += chunk.nbytes
        if progress is not None:
            progress(done_bytes, 2 * total)
    if pieces:
        write()
    if not runs:
        raise DataError("expected at least one sequence to write, got none")
    return runs, total


def _merge(
    work: Path, runs: list[_Run], settings: Settings, progress: Callable[[int, int], None] | None, total: int
) -> list[Path]:
    """The second pass: stores that follow one another in the order of the keys."""
    chunk_bytes = settings.chunk_bytes
    if chunk_bytes is None and settings.compression is not None:
        chunk_bytes = COMPRESSED_CHUNK  # also where "auto" finds that it does not pay
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
            # What "auto" chose for the first is what all have.
            codec = Manifest.load(merged[0]).compression if len(merged) > 1 else settings.compression
            with StoreWriter(
                path,
                pieces[0].schema,
                chunk_bytes=chunk_bytes,
                part_bytes=settings.part_bytes,
                compression=codec,
            ) as writer:
                writer.write(_gathered(pieces, order))
        if progress is not None:
            progress(total + total * (number + 1) // count, 2 * total)
    for store in stores:
        store.close()
    return merged


def _slices(store: StoreDeserializer, start: int, stop: int) -> Iterator[Chunk]:
    """The sequences ``start:stop`` of a store, which the kernel is asked to read in large pieces."""
    first = 0
    for number, info in enumerate(store.chunks()):
        a, b = max(start - first, 0), min(stop - first, info.sequences)
        if a < b:
            store.advise("willneed", number)
            yield store.read_slice(number, a, b)
        first += info.sequences


def _gathered(pieces: list[Chunk], order: NDArray[Any]) -> Chunk:
    """The sequences of all ``pieces``, numbered one after the other, in the order given."""
    schema = pieces[0].schema
    chunks = ChunkSet(schema)
    counts = [piece.num_sequences for piece in pieces]
    slots = np.repeat(np.array([chunks.add(piece) for piece in pieces], np.uint32), counts)
    index = np.concatenate([np.arange(count, dtype=np.int64) for count in counts])
    return Chunk(schema, chunks.gather(slots[order], index[order]))
