"""Records of the complete parts of a store, with which interrupted writing continues.

A part is recorded when its file and the lengths of its sequences are on disk. Writing that continues after the recorded
parts gives the same bytes as uninterrupted writing, as parts are cut by their content only.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from feedline.feed.files.records import read_record, write_record
from feedline.feed.formats.store.manifest import StoreFile, lengths_header
from feedline.feed.formats.store.targets import Target


class PartTable(NamedTuple):
    """A complete Arrow IPC file, before the ragged streams of the whole store are known.

    Attributes:
        file: name in the store's folder.
        bytes: size of the file.
        ragged: names of the streams whose column has a list level for sequences.
        rows: for each chunk the numbers in `StoreFile.chunks`, in the order in which it documents them.
        totals: for each chunk the number of samples in each stream.
    """

    file: str
    bytes: int
    ragged: frozenset[str]
    rows: Sequence[Sequence[int]]
    totals: Sequence[dict[str, int]]

    def describe(self, ragged: Sequence[str]) -> StoreFile:
        """Return the entry of the manifest. ``ragged`` names the streams that are ragged anywhere in the store."""
        table = np.array(self.rows, np.int64).T
        keys = ("byte", "bytes", "sequences", "samples", "crc32c", "memory")[: len(table)]
        chunks = dict(zip(keys, table, strict=True))
        totals = {name: np.array([row[name] for row in self.totals], np.int64) for name in ragged}
        return StoreFile(self.file, self.bytes, self.ragged, chunks, totals)


class SourceProgress(NamedTuple):
    """The progress in a source at the end of a part.

    Attributes:
        chunks: chunks of the source that were read as a whole.
        written: readable sequences of the next chunk that are in the store.
        skipped: unreadable sequences in the chunks that were read as a whole.
    """

    chunks: int
    written: int
    skipped: int


class PartRecord(NamedTuple):
    """A complete part, and the state of writing after it.

    Attributes:
        part: description of the part.
        sequences: number of sequences in the store up to its end.
        ragged: streams that are ragged by then.
        compression: codec of the store.
        progress: progress in the source.
    """

    part: PartTable
    sequences: int
    ragged: set[str]
    compression: str | None
    progress: SourceProgress


class Journal:
    """The records of a store that is being written, and the folder of its files.

    Args:
        work: folder of the records, locked by this process.
        target: destination of the store.
        done: name of a file that is created just before the store appears.

    Attributes:
        target: destination of the store.
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
        while (loaded := self._load(len(self.records))) is not None:
            self.records.append(loaded)
        files = {saved.part.file for saved in self.records}
        ragged = self.records[-1].ragged if self.records else set()
        for entry in self.folder.iterdir():  # remove the incomplete files of an interrupted writer
            if entry.name not in files and not (ragged and entry.name.startswith("lengths-")):
                entry.unlink()
        for saved in self.records:
            if (path := self.folder / saved.part.file).exists():
                target.add_file(path)

    @property
    def progress(self) -> SourceProgress:
        """The progress in the source at the end of the complete parts."""
        return self.records[-1].progress if self.records else SourceProgress(0, 0, 0)

    def begin_chunk(self, chunk: int, sequences: int, skipped: int) -> None:
        """Mark the beginning of chunk ``chunk`` of the source, after ``sequences`` written and ``skipped`` unreadable
        ones."""
        self._marks.append((sequences, SourceProgress(chunk, 0, skipped)))

    def add(self, part: PartTable, sequences: int, ragged: set[str], compression: str | None) -> None:
        """Record a part, which is on disk with the lengths of its sequences."""
        while len(self._marks) > 1 and self._marks[1][0] <= sequences:
            del self._marks[0]
        before, progress = self._marks[0]
        progress = progress._replace(written=sequences - before)
        table = [part.file, part.bytes, sorted(part.ragged), part.rows, part.totals]
        write_record(self._path(len(self.records)), [table, sequences, sorted(ragged), compression, progress])
        self.records.append(PartRecord(part, sequences, set(ragged), compression, progress))
        self.target.add_file(self.folder / part.file)

    def publish(self) -> None:
        """Make the store appear."""
        (self._work / self._done).touch()
        self.target.publish(self.folder)

    def drop(self) -> None:
        """Keep everything, as the owner of the work folder removes it or continues."""

    def _path(self, number: int) -> Path:
        return self._work / f"part-{number:06d}.json"

    def _load(self, number: int) -> PartRecord | None:
        """Return record ``number`` if it exists and its files are complete or have arrived at the target, else None."""
        content = read_record(self._path(number))
        if content is None:
            return None
        part, sequences, ragged, compression, progress = content
        file, nbytes, ragged_part, rows, totals = part
        min_size = len(lengths_header(0)) + 4 * sequences
        complete = [path for path in self.folder.glob("lengths-*.npy") if _size(path) >= min_size]
        present = _size(self.folder / file) == nbytes or self.target.has(file, nbytes)
        if not present or len(complete) < len(ragged):
            return None
        table = PartTable(file, nbytes, frozenset(ragged_part), rows, totals)
        return PartRecord(table, sequences, set(ragged), compression, SourceProgress(*progress))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1
