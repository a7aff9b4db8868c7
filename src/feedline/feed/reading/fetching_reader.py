"""The readers of mapped files larger than memory. They fetch data that the page cache lacks, and release it after use.

Sequences are views of mapped files. Data in the page cache is copied from there at memory speed, and nothing is
fetched. For other data every page fault would wait for the disk. So native threads (native/include/feedline/fetch.h)
read it into private memory first. The order determines which data they read ahead:

- in windows, the blocks of a window and of the next one (`block_reader`);
- in the order of the corpus, the next blocks (`sequential_reader`);
- in a whole shuffle, the sequences of the next minibatches, each by itself (`row_reader`).

They bypass the page cache. The exception is data that easily fits into the page cache, if ``read_ahead`` is left out
and the disk is slow or is read at random places. That data stays in the page cache for the next sweep. If several
processes of one machine read the data, they read blocks through the page cache, so that each block is read from the
disk once, and drop the blocks from it after use.

Whether data has to be fetched is determined while reading: the residency of a few pages is checked now and then, at a
microsecond per check. Order and values are the same in both cases, and so are errors: a block that cannot be fetched is
read sequence by sequence, so that only sequences with unreadable bytes are lost.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from feedline import _native
from feedline.data import Chunk, Value
from feedline.data.value import BytesValue, SparseValue
from feedline.errors import DataError
from feedline.feed.assembly import ChunkSet
from feedline.feed.protocol import Deserializer, Ints, MappedFile, files_of
from feedline.feed.reading.io_stalls import BLOCKS, NOT_AHEAD, WHOLE, Waits
from feedline.feed.reading.mapped_reader import MappedReader
from feedline.feed.reading.reader import MIN_AHEAD_BYTES, Slots, Staging
from feedline.feed.reading.stats import Stats
from feedline.feed.timeline import Segment, Timeline
from feedline.feed.timeline.block_order import Blocks
from feedline.feed.workers.limits import available, fits_page_cache

# Reads in flight. More do not make random reads faster (on a virtual disk, 32 give 0.9 of the speed, 512 give 1.0).
_DEPTH = 128
# Blocks are passed to the threads in groups of this many bytes, or of this many blocks.
GROUP_BYTES = 4 << 20
GROUP_BLOCKS = 64
# Rows up to this many bytes are worth keeping in the page cache, as a page holds many of them.
_SMALL_ROW_BYTES = 512
# Sequences up to this many bytes are read with their neighbours if the neighbours are kept, see
# `_native.Gatherer.stage`.
_NEAR_BYTES = 64 << 10
# Bits of the mask of parts that the page cache keeps.
_ROWS, _BOUNDS = 1, 2
# A segment of at most this many chunks is mapped as a whole. The metadata of as many chunks is prefetched.
FEW_CHUNKS = 4

_log = logging.getLogger("feedline")


class _BlockGroup:
    """Blocks that one native call fetches.

    Attributes:
        staged: the native fetch.
        bytes: bytes of all these blocks.
        left: number of these blocks that are still needed.
        faulty: blocks that cannot be read as a whole. None until known.
    """

    __slots__ = ("bytes", "faulty", "left", "staged")

    def __init__(self, staged: _native.Staged, nbytes: int, count: int) -> None:
        self.staged, self.bytes, self.left = staged, nbytes, count
        self.faulty: set[int] | None = None


class _FetchedBlock:
    """A block that is being fetched, or is held.

    Attributes:
        group: group of the block.
        run: number of the block in the group.
        slot: slot that holds the block. -1: it cannot be read as a whole. None if it is not in a slot yet.
    """

    __slots__ = ("group", "run", "slot")

    def __init__(self, group: _BlockGroup, run: int) -> None:
        self.group, self.run = group, run
        self.slot: int | None = None


def _is_truncated(file: MappedFile) -> bool:
    try:
        return os.stat(file.path).st_size < file.size
    except OSError:
        return True


def _part_sizes(value: Value) -> tuple[int, int]:
    """Return the bytes of a value's rows (or indices and values), and the bytes of its offsets."""
    bounds = 0 if value.one_sample_each else value.offsets.nbytes
    if isinstance(value, SparseValue):
        bounds += value.indptr.nbytes
    if isinstance(value, BytesValue):
        bounds += value.bounds.nbytes
    return value.nbytes - bounds, bounds


class FetchingReader(MappedReader, Staging):
    """Reads corpora of mapped files. Fetches the data that the page cache lacks.

    Args:
        corpus: corpus whose chunks are views of mapped files, see `protocol.Mapped`.
        timeline: order of the corpus.
        chunks: chunk set to add chunks to.
        stats: statistics to update.
        budget_bytes: bytes that may be fetched ahead. None: the next window, or `MIN_AHEAD_BYTES`.

    Attributes:
        backend: backend of the native fetcher, until it is created: ``"any"``, ``"io_uring"`` or ``"threads"``.
        direct: whether to bypass the page cache.
        forced: whether to fetch everything, as if the page cache were always empty.
        waits: accounts for time spent waiting, and warns.
    """

    scattered: ClassVar[bool] = False
    """Whether single sequences are fetched, from anywhere, rather than blocks."""

    def __init__(
        self, corpus: Deserializer, timeline: Timeline, chunks: ChunkSet, stats: Stats, budget_bytes: int | None
    ) -> None:
        super().__init__(corpus, timeline.chunk_table, chunks, stats)
        self._timeline = timeline
        self._whole_window = budget_bytes is None
        self._budget_bytes = MIN_AHEAD_BYTES if budget_bytes is None else budget_bytes
        self.backend, self.direct, self.forced = "any", True, False
        location = next(iter(corpus.paths()), corpus.name)
        self.waits = Waits(location, WHOLE if self.scattered else BLOCKS if budget_bytes is None else NOT_AHEAD)
        entries = len(timeline.table)
        self._blocks = timeline.blocks or Blocks.of(
            timeline.table, np.arange(entries, dtype=np.int64), np.zeros(entries, np.int64)
        )
        self._fetcher: _native.Fetcher | None = None
        self._files: dict[int, tuple[MappedFile, int | None]] = {}  # by address. None if it could not be opened
        self._sample: Chunk | None = None  # any chunk, which shows the layout of sequences
        self._kept_parts: list[int] | None = None
        self._keeps_all: bool | None = None  # None: not decided
        self._fetched: dict[int, _FetchedBlock] = {}  # by number of block
        self._ahead = 0  # bytes of blocks that are not in slots yet
        self._hits = 0  # minibatches or bytes that the page cache had since it last lacked some
        self._faulty = 0  # blocks that cannot be read as a whole

    # ---- called by the source ---------------------------------------------------------------------

    @property
    def stages(self) -> bool:
        """See `Staging.stages`."""
        return self._faulty > 0

    @property
    def asked_bytes(self) -> int:
        """See `Reader.asked_bytes`."""
        return self._chunks.copied_bytes

    def in_files(self, ordinals: Ints) -> tuple[Slots, Ints]:
        """Return slots and indices of the sequences ``ordinals`` in the mapped chunks."""
        starts = self._timeline.chunk_table.starts
        chunks = np.searchsorted(starts, ordinals, side="right") - 1
        return self._in_views(chunks, ordinals - starts[chunks])

    def watch(self, slots: Slots, index: Ints) -> None:
        """Do nothing: `take` checks whole blocks, far ahead."""

    def stage(self, slots: Slots, index: Ints) -> _native.Staged:
        """See `Staging.stage`."""
        return self._chunks.stage(self._disk(), slots, index, None, self._parts_to_keep())

    def stage_again(self, slots: Slots, index: Ints) -> _native.Staged | None:
        """See `Staging.stage_again`. If a file was truncated, reads everything past the mapping from now on.

        Return None if no file was truncated. Then the data was overwritten, and none of it can be trusted.
        """
        files = [file for file, number in self._files.values() if number is not None]
        if not any(_is_truncated(file) for file in files):
            return None
        if not self.forced:
            self.forced, self._files = True, {}
            self._fetcher = None
            for file in files:
                self._register_file(file)
        return self.stage(slots, index)

    def wait(self, staged: _native.Staged, ids: Ints) -> dict[int, DataError]:
        """See `Staging.wait`."""
        faults, missed = self._wait_for(staged)
        self._stats.peak_bytes = max(self._stats.peak_bytes, self._disk().memory)
        self._hits = 0 if missed else self._hits + 1
        return {fault[0]: self._error(fault, int(ids[fault[0]])) for fault in faults}

    def reset(self) -> None:
        """See `Reader.reset`."""
        self._drop_blocks([number for number, block in self._fetched.items() if block.slot is None])

    def close(self) -> None:
        """See `Reader.close`."""
        self._drop_blocks(list(self._fetched))
        super().close()
        self._files.clear()
        self._fetcher = self._sample = None

    # ---- mapped files -----------------------------------------------------------------------------

    def _disk(self) -> _native.Fetcher:
        if self._fetcher is None:
            keep = self._budget_bytes if not self._whole_window else max(self._budget_bytes, self._window_bytes())
            self._fetcher = _native.Fetcher(self.backend, _DEPTH, keep)
        return self._fetcher

    def _window_bytes(self) -> int:
        window = self._timeline.window
        if window is None or window.bytes is None:
            return MIN_AHEAD_BYTES
        return min(window.bytes, int(self._timeline.table.bytes.sum()))

    def _maps_all(self, segment: Segment) -> bool:
        # A segment may span all chunks of a large store, which are then mapped as they are needed.
        if not self._unmapped or len(segment.plan.chunks) <= FEW_CHUNKS:
            return True
        return self._timeline.in_corpus_order and int(segment.place[-1]) - int(segment.place[0]) < FEW_CHUNKS

    def _locate(self, entries: Ints, index: Ints) -> tuple[Slots, Ints]:
        blocks = self._timeline.blocks
        if blocks is None:
            return self._in_views(entries, index)
        return self._in_views(blocks.chunk[entries], index + blocks.first[entries])

    def _prepare(self, chunks: Ints) -> None:
        for file in files_of(self._corpus, chunks.tolist()):
            self._register_file(file)

    def _map(self, chunk: int) -> Chunk:
        self._sample = super()._map(chunk)
        return self._sample

    def _register_file(self, file: MappedFile) -> None:
        """Add a file to the fetcher."""
        if file.address in self._files:
            return
        try:
            # All processes need the same blocks: one process reads a block, and the others find it in the page cache.
            # In a whole shuffle, every process reads other sequences.
            share = self.shared and not self.scattered
            number = self._disk().add(
                file.path,
                file.size,
                file.address,
                file.identity,
                direct=self.direct,
                ask=not self.forced,
                first=file.first,
                share=share,
            )
        except OSError as error:
            number = None
            _log.warning(
                "%s: cannot be opened a second time (%s), so it is read through its mapping, a page at a time if it is "
                "not in memory; raise the limit on descriptors (ulimit -n) if that is the cause",
                file.path,
                error.strerror,
            )
        self._files[file.address] = file, number

    def _parts_to_keep(self) -> list[int]:
        """Return for each stream a bit mask of the parts that the page cache should keep.

        That is everything if the data easily fits, ``read_ahead`` is left out, and keeping it is worth the memory: if
        the disk is slow, or in a whole shuffle of sequences that are read with their neighbours. Otherwise it is small
        rows and the offsets of sequences and rows, each of which would cost another read. They are kept as far as all
        of them fit, by an estimate from one chunk.
        """
        if self._kept_parts is None or (self._keeps_all is None and self.waits.slow):
            chunk = self._sample
            assert chunk is not None
            total_bytes = int(self._timeline.table.bytes.sum())
            scattered = self.scattered and total_bytes <= _NEAR_BYTES * self._timeline.table.total_sequences
            if scattered or self.waits.slow:
                self._keeps_all = self._whole_window and fits_page_cache(total_bytes)
            if self._keeps_all:
                self._kept_parts = [_ROWS | _BOUNDS] * len(chunk.values)
                return self._kept_parts
            total = self._timeline.table.total_sequences / max(chunk.num_sequences, 1)
            room = MIN_AHEAD_BYTES
            if self.scattered:
                room = max(room, (available() or 0) // 16)
            pieces = []
            for number, value in enumerate(chunk.values.values()):
                rows, bounds = _part_sizes(value)
                pieces.append((bounds * total, number, _BOUNDS))
                if rows <= _SMALL_ROW_BYTES * chunk.num_sequences:
                    pieces.append((rows * total, number, _ROWS))
            self._kept_parts = [0] * len(chunk.values)
            for nbytes, number, bit in sorted(pieces):
                room -= int(nbytes)
                if room >= 0:
                    self._kept_parts[number] |= bit
        return self._kept_parts

    def _wait_for(self, staged: _native.Staged) -> tuple[list[tuple[int, int, int, str, int]], bool]:
        """Wait for a fetch. Return its faults, and whether the page cache lacked some of the data."""
        began = time.perf_counter()
        faults = staged.faults()
        waited = time.perf_counter() - began
        self._stats.wait_seconds += waited
        self._stats.read_seconds += waited
        self._stats.fetch_seconds += waited
        _, missing, nbytes = staged.found()
        self._stats.disk_bytes += nbytes
        if missing:
            self.waits.add(waited, self._stats.disk_bytes)
        return faults, bool(missing)

    # ---- blocks -----------------------------------------------------------------------------------

    def _lacks(self, numbers: Ints, most: int) -> bool:
        """Return whether any of at most ``most`` of these blocks are missing from the page cache."""
        if self.forced:
            return True
        if len(numbers) > most:
            numbers = numbers[(2 * np.arange(most) + 1) * len(numbers) // (2 * most)]
        blocks, sequences = self._blocks, self._blocks.table.sequences
        numbers = numbers[sequences[numbers] > 0]
        slots, first = self._slots_of(blocks.chunk[numbers]), blocks.first[numbers]
        return self._chunks.lacking(self._disk(), slots, first, sequences[numbers], most=most, pages=1) > 0

    def _fetch_blocks(self, numbers: Iterable[int]) -> None:
        """Begin to fetch these blocks, except for empty blocks and blocks that are being fetched."""
        table, group, nbytes = self._blocks.table, list[int](), 0
        for number in dict.fromkeys(numbers):  # two arcs may need parts of one block
            if number in self._fetched or not table.sequences[number]:
                continue
            group.append(number)
            nbytes += int(table.bytes[number])
            if nbytes >= GROUP_BYTES or len(group) == GROUP_BLOCKS:
                self._fetch_group(group, nbytes)
                group, nbytes = [], 0
        if group:
            self._fetch_group(group, nbytes)

    def _fetch_group(self, numbers: list[int], nbytes: int) -> None:
        blocks, ids = self._blocks, np.array(numbers, np.int64)
        slots, counts = self._slots_of(blocks.chunk[ids]), blocks.table.sequences[ids]
        staged = self._chunks.stage(self._disk(), slots, blocks.first[ids], counts, self._parts_to_keep())
        group = _BlockGroup(staged, nbytes, len(numbers))
        for run, number in enumerate(numbers):
            self._fetched[number] = _FetchedBlock(group, run)
        self._ahead += nbytes
        self._stats.held_bytes += nbytes
        self._stats.peak_bytes = max(self._stats.peak_bytes, self._stats.held_bytes)

    def _slot_of(self, number: int) -> int:
        """Wait for a block that is being fetched. Return its slot, or -1 if it cannot be read as a whole."""
        block, blocks = self._fetched[number], self._blocks
        if block.slot is None:
            group = block.group
            if group.faulty is None:
                faults, missed = self._wait_for(group.staged)
                self._hits = 0 if missed else self._hits + group.bytes
                group.faulty = {fault[0] for fault in faults}
            self._ahead -= int(blocks.table.bytes[number])
            if block.run in group.faulty:
                block.slot = -1
                self._faulty += 1
            else:
                chunk_slot, first = int(self._mapped[blocks.chunk[number]]), int(blocks.first[number])
                count = int(blocks.table.sequences[number])
                block.slot = self._chunks.adopt(group.staged, block.run, of=chunk_slot, first=first, count=count)
                self._stats.chunks_read += 1
        return block.slot

    def _drop_blocks(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            block = self._fetched.pop(number)
            if block.slot is None:
                self._ahead -= int(self._blocks.table.bytes[number])
            elif block.slot == -1:
                self._faulty -= 1
            else:
                self._chunks.drop(block.slot)
            block.group.left -= 1
            if block.group.left == 0:
                if self.shared and block.slot is not None:
                    block.group.staged.forget()
                self._stats.held_bytes -= block.group.bytes

    # ---- errors -----------------------------------------------------------------------------------

    def _error(self, fault: tuple[int, int, int, str, int], ordinal: int) -> DataError:
        _, stream, number, path, byte = fault
        name = list(self._corpus.schema)[stream]
        skip = 'pass on_error="skip" to the source to skip such sequences and list them'
        if number == 0:
            return DataError(
                "expected ascending offsets within their chunk, got others",
                path=self._corpus.name,
                sequence=ordinal,
                stream=name,
                hint=f"the data is damaged: write it again, or {skip}",
            )
        what = "got the end of the file" if number < 0 else f"got a disk error: {os.strerror(number)}"
        return DataError(
            f"expected readable bytes, {what}",
            path=path,
            byte=byte,
            sequence=ordinal,
            stream=name,
            hint=f"restore the file or write it again, then continue from the last state, or {skip}",
        )
