"""The complete parts of a store whose writing may be interrupted, and how far into the source they reach.

A part is recorded once it, and the lengths of its sequences, are on disk. Writing that continues after the recorded
parts gives the same bytes as writing that was never interrupted, as parts are cut by what is written only.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from feedline.feed.files.records import record, recorded
from feedline.feed.formats.store.manifest import StoreFile, lengths_header
from feedline.feed.formats.store.targets import Target


class PartTable(NamedTuple):
    """A complete Arrow IPC file of a store, before it is known which streams are ragged in the whole store.

    Attributes:
        file: name in the store's folder.
        bytes: size of the file.
        ragged: names of the streams whose column has a list level for sequences.
        rows: for each chunk the numbers of `StoreFile.chunks`, in the order of that description.
        totals: for each chunk the number of samples in each stream.
    """

    file: str
    bytes: int
    ragged: frozenset[str]
    rows: Sequence[Sequence[int]]
    totals: Sequence[dict[str, int]]

    def describe(self, ragged: Sequence[str]) -> StoreFile:
        """Return the entry of the manifest; ``ragged``: the streams that are ragged anywhere in the store."""
        table = np.array(self.rows, np.int64).T
        keys = ("byte", "bytes", "sequences", "samples", "crc32c", "memory")[: len(table)]
        chunks = dict(zip(keys, table, strict=True))
        totals = {name: np.array([row[name] for row in self.totals], np.int64) for name in ragged}
        return StoreFile(self.file, self.bytes, self.ragged, chunks, totals)


class SourceProgress(NamedTuple):
    """How far a source has been read when a part ends.

    Attributes:
        chunks: chunks of the source read as a whole.
        written: readable sequences of the next chunk that are in the store already.
        skipped: unreadable sequences in the chunks read as a whole.
    """

    chunks: int
    written: int
    skipped: int


class PartRecord(NamedTuple):
    """A complete part, and what continues after it.

    Attributes:
        part: its description.
        sequences: number of sequences in the store up to its end.
        ragged: streams that are ragged from there on.
        compression: codec of the store.
        progress: how far the source has been read.
    """

    part: PartTable
    sequences: int
    ragged: set[str]
    compression: str | None
    progress: SourceProgress


class Journal:
    """The records of a store being written, and the folder that holds its files.

    Args:
        work: folder of the records, locked by this process.
        target: where the store will appear.
        done: file to create just before it does.

    Attributes:
        target: where the store will appear.
        folder: folder of the store's files.
        records: records of complete parts.

    Raises:
        OSError: the folder cannot be created.
    """

    def __init__(self, work: Path, target: Target, done: str) -> None:
        self._work, self.target, self._done = work, target, done
        self.folder = work / "store"
        self.folder.mkdir(mode=0o755, exist_ok=True)
        self.records: list[PartRecord] = []
        self._marks: list[tuple[int, SourceProgress]] = []
        while (found := self._load(len(self.records))) is not None:
            self.records.append(found)
        kept = {known.part.file for known in self.records}
        ragged = self.records[-1].ragged if self.records else set()
        for entry in self.folder.iterdir():  # what the interrupted writer had not completed
            if entry.name not in kept and not (ragged and entry.name.startswith("lengths-")):
                entry.unlink()
        for known in self.records:
            if (path := self.folder / known.part.file).exists():
                target.finished(path)

    @property
    def progress(self) -> SourceProgress:
        """How far the source has been read for the complete parts."""
        return self.records[-1].progress if self.records else SourceProgress(0, 0, 0)

    def reading(self, chunk: int, sequences: int, skipped: int) -> None:
        """Note that chunk number ``chunk`` comes next, after ``sequences`` written and ``skipped`` unreadable ones."""
        self._marks.append((sequences, SourceProgress(chunk, 0, skipped)))

    def add(self, part: PartTable, sequences: int, ragged: set[str], compression: str | None) -> None:
        """Record a part, which is on disk with the lengths of its sequences."""
        while len(self._marks) > 1 and self._marks[1][0] <= sequences:
            del self._marks[0]
        before, progress = self._marks[0]
        progress = progress._replace(written=sequences - before)
        table = [part.file, part.bytes, sorted(part.ragged), part.rows, part.totals]
        record(self._path(len(self.records)), [table, sequences, sorted(ragged), compression, progress])
        self.records.append(PartRecord(part, sequences, set(ragged), compression, progress))
        self.target.finished(self.folder / part.file)

    def publish(self) -> None:
        """Let the store appear."""
        (self._work / self._done).touch()
        self.target.publish(self.folder)

    def drop(self) -> None:
        """Keep everything: the owner of the work folder decides."""

    def _path(self, number: int) -> Path:
        return self._work / f"part-{number:06d}.json"

    def _load(self, number: int) -> PartRecord | None:
        """Return record ``number`` if it exists and its files are as it says, or have arrived where they belong."""
        found = recorded(self._path(number))
        if found is None:
            return None
        part, sequences, ragged, compression, progress = found
        file, nbytes, ragged_part, rows, totals = part
        least = len(lengths_header(0)) + 4 * sequences
        whole = [path for path in self.folder.glob("lengths-*.npy") if _size(path) >= least]
        there = _size(self.folder / file) == nbytes or self.target.has(file, nbytes)
        if not there or len(whole) < len(ragged):
            return None
        table = PartTable(file, nbytes, frozenset(ragged_part), rows, totals)
        return PartRecord(table, sequences, set(ragged), compression, SourceProgress(*progress))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1
