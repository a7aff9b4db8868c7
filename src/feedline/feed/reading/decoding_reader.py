"""The reader of chunks that are decoded: threads read and decode them ahead of the current window, one chunk each.

By default the whole next window is read ahead, otherwise as many bytes as the caller allows. Deserializers release the
GIL meanwhile. If a corpus knows the parts of files that a chunk consists of, these are fetched ahead of the threads
(see `ranges`).

Threads end with the reader, and a forked child starts its own.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from feedline.concurrency.thread_pool import Job, Threads
from feedline.data import Chunk
from feedline.feed.assembly import ChunkSet
from feedline.feed.packing.axis import SegmentSlice
from feedline.feed.protocol import (
    CHUNK_MASK,
    CHUNK_MEMORY,
    Deserializer,
    Fetchable,
    Ints,
    Selective,
    chunk_extents,
    require,
)
from feedline.feed.reading.io_stalls import BLOCKS, NOT_AHEAD, Waits
from feedline.feed.reading.reader import MIN_AHEAD_BYTES, Selecting, Slots, Upcoming
from feedline.feed.reading.stats import Stats
from feedline.feed.reading.windows import WindowReader
from feedline.feed.timeline import ChunkTable
from feedline.feed.workers.limits import available, figure, fits_page_cache, give_back, situation

if TYPE_CHECKING:
    from feedline.feed.reading.ranges import RangeFetcher

# Memory that decoding a chunk takes besides its stored bytes, as a multiple of its decoded size: arrays grow.
_DECODING_FACTOR = 3
_PLENTY = 8  # times the memory in use that must be free for freed memory to be kept for reuse
_SPARE_BYTES = 32 << 20  # left free for minibatches
_MIN_CHECKED_BYTES = 1 << 20  # free memory is not checked for smaller chunks, as the check takes as long as they do

# Minibatches whose sequences are selected one by one while the first window is being read. Each sequence is read twice.
_MAX_SELECTED = 8

_MIN_WAIT_S = 1e-4  # shorter waits for the disk are not counted


class _HeldChunk:
    """A chunk that is being read, has been read ahead, or is held in a slot."""

    __slots__ = ("bytes", "counted", "dropped", "job", "slot")

    def __init__(self, estimate: int) -> None:
        self.job: Job[Chunk] | None = None
        self.bytes, self.slot = estimate, -1
        self.counted = self.dropped = False


def ahead_bytes() -> int:
    """Return the bytes that are read ahead by default: 64 MiB, or an eighth of the free memory if that is less."""
    free = available()
    return MIN_AHEAD_BYTES if free is None else min(MIN_AHEAD_BYTES, free // 8)


def _expected_ratio(corpus: Deserializer, table: ChunkTable) -> float:
    """Estimate the decoded bytes per stored byte from a schema of dense streams.

    Return 1 for other schemas, and if a chunk would decode to more than most corpora allow, as the schema may declare
    more than the data holds.
    """
    streams = corpus.schema.values()
    stored = int(table.bytes.sum())
    if not stored or any(stream.sparse or not stream.dtype.itemsize for stream in streams):
        return 1.0
    sample_bytes = sum(math.prod(stream.shape) * stream.dtype.itemsize for stream in streams)
    if int(table.samples.max()) * sample_bytes > CHUNK_MEMORY:
        return 1.0
    return int(table.samples.sum()) * sample_bytes / stored


class DecodingReader(WindowReader, Selecting):
    """Reads and decodes chunks into private memory.

    Args:
        corpus: corpus to read from.
        chunks: chunk set to add chunks to.
        stats: statistics to update.
        total: number of chunks.
        table: sizes of each chunk. None if unknown.
        threads: number of chunks read at a time.
        budget_bytes: decoded bytes that may be read ahead of the current windows. None: the whole next window, and as
            much of the following windows as fits into `MIN_AHEAD_BYTES` with it, while there is room in memory. Chunks
            of unknown size are often computed, such as tokens of texts: then two for each thread at most.

    Attributes:
        ranges: fetches the stored bytes of chunks.
        waits: accounts for time spent waiting for the disk, and warns.
    """

    def __init__(
        self,
        corpus: Deserializer,
        chunks: ChunkSet,
        stats: Stats,
        *,
        total: int,
        table: ChunkTable | None,
        threads: int,
        budget_bytes: int | None,
    ) -> None:
        super().__init__()
        self._corpus, self._chunks, self._stats = corpus, chunks, stats
        self._total, self._threads = total, threads
        self._stored = None if table is None else table.bytes
        self._whole_window = budget_bytes is None
        self._budget_bytes = ahead_bytes() if budget_bytes is None else budget_bytes
        self._max_ahead = 2 * threads if self._whole_window and table is None else sys.maxsize
        self._entries: dict[int, _HeldChunk] = {}
        # Decoded bytes per stored byte: estimated at first, then of the last chunk that was read.
        self._ratio = 1.0 if table is None else _expected_ratio(corpus, table)
        self._totals = (0, 0)  # number of chunks that were read, and their decoded bytes
        self._continued_at = 0  # number of chunks that were read when reading ahead was last continued
        self._selected = 0  # minibatches since the start or a seek that did not wait for their window
        self._pool: Threads | None = None
        self.ranges = self._new_ranges()
        location = next(iter(corpus.paths()), corpus.name)
        self._in_files = any(corpus.paths())
        self.waits = Waits(location, BLOCKS if budget_bytes is None else NOT_AHEAD)
        self._keeps_pages: bool | None = None  # whether chunks stay in the page cache. None: not decided
        self._pid = os.getpid()
        self._make_locks()

    # ---- called by the source ---------------------------------------------------------------------

    @property
    def asked_bytes(self) -> int:
        """See `Reader.asked_bytes`."""
        return self.ranges.asked_bytes

    def _has_read(self, chunks: Ints) -> bool:
        jobs = [entry.job for entry in map(self._entries.get, chunks.tolist()) if entry is not None]
        return len(jobs) == len(chunks) and all(job is not None and job.done and not job.failed for job in jobs)

    def selects(self, parts: Sequence[SegmentSlice]) -> bool:
        """See `Selecting.selects`: for a few minibatches of the first window after the start or a seek."""
        window = parts[0].segment.plan
        if (
            self._corpus.capability(Selective) is None
            or not self._budget_bytes
            or self._windows
            or self._selected >= _MAX_SELECTED
            or any(segment.plan is not window for segment, _, _ in parts)
        ):
            return False
        self._after_fork()
        jobs = [self._job_of(chunk_id) for chunk_id in window.chunks.tolist()]
        if all(job.done for job in jobs):
            return False
        self._selected += 1
        return True

    def _job_of(self, chunk_id: int) -> Job[Chunk]:
        """Return the job that reads a chunk, and begin it if necessary."""
        entry = self._entries.get(chunk_id)
        if entry is None or entry.job is None or entry.job.failed:
            self._submit(chunk_id)
            entry = self._entries[chunk_id]
        assert entry.job is not None
        return entry.job

    def counts(self, ids: Ints) -> Ints:
        """Return the number of sequences of each chunk, int64 (k,). Reads the chunks that are not in memory."""
        return np.array([chunk.num_sequences for chunk in self.fetch(ids)], np.int64)

    def fetch(self, ids: Ints) -> list[Chunk]:
        """Return the chunks ``ids``. Reads them if necessary.

        Raises:
            Exception: reading a chunk raised this. The next request reads the chunk again.
        """
        self._after_fork()
        submitted = set()
        for chunk_id in ids.tolist():
            entry = self._entries.get(chunk_id)
            if entry is None or entry.job is None or entry.job.failed:
                self._submit(chunk_id)
                submitted.add(chunk_id)
        began = time.perf_counter()
        try:
            chunks = [self._chunk_of(chunk_id, chunk_id in submitted) for chunk_id in ids.tolist()]
        finally:
            self._count_wait(time.perf_counter() - began)
        return chunks

    def _chunk_of(self, chunk_id: int, just_submitted: bool) -> Chunk:
        """Wait for a chunk that is being read.

        If it was read ahead and that failed, read it again, as the cause may be gone.
        """
        while True:
            job = self._entries[chunk_id].job
            assert job is not None
            try:
                return job.result()
            except BaseException as error:
                if job.failed:
                    del self._entries[chunk_id]
                # Otherwise it was or will be read, and this thread was interrupted.
                if just_submitted or error is not job.error:
                    raise
            self._submit(chunk_id)
            just_submitted = True

    def read_on(self, upcoming: Upcoming) -> None:
        """Continue to read ahead if a chunk was read since the last call. Otherwise this costs almost nothing.

        The size of a chunk is estimated before it is read, and known afterwards, so there may be more room than before.
        """
        if self._continued_at != self._totals[0]:
            self._read_ahead(upcoming)

    def reset(self) -> None:
        """See `Reader.reset`."""
        self._after_fork()
        self._selected = 0
        self.ranges.uses.forget()
        for chunk_id in [c for c, entry in self._entries.items() if entry.slot < 0]:
            entry = self._entries.pop(chunk_id)
            if entry.job is not None:
                entry.job.cancel()
            self.ranges.forget(entry)
            self._uncount(entry)

    def close(self) -> None:
        """See `Reader.close`."""
        super().close()
        self._release(set())
        self.reset()
        if self._pool is not None:
            self._pool.close()
            self._pool = None
        self.ranges.close()

    # ---- internals --------------------------------------------------------------------------------

    def _make_locks(self) -> None:
        """Make new locks. In a forked child, locks may be held by threads that do not exist there."""
        self._lock = threading.Lock()  # guards the statistics that threads update, and `_decoding_bytes`
        self._memory_freed = threading.Condition(self._lock)  # signalled when a chunk is decoded, or has failed
        self._is_scarce, self._kept_bytes = True, 0  # whether freed memory is given back, and the memory kept for reuse
        self._decoding_bytes = 0  # memory that is reserved for chunks that are being decoded

    def _hold(self, chunks: Ints) -> tuple[Slots, None]:
        self._after_fork()
        # Windows of some orders share most of their chunks with the window before. A chunk that is in memory costs one
        # look-up.
        entries, ids = self._entries, chunks.tolist()
        missing = [c for c in dict.fromkeys(ids) if (entry := entries.get(c)) is None or entry.slot < 0]
        if missing:
            for chunk_id, chunk in zip(missing, self.fetch(np.array(missing, np.int64)), strict=True):
                entries[chunk_id].slot = self._chunks.add(chunk)
        return np.array([entries[c].slot for c in ids], np.uint32), None

    def _count_wait(self, seconds: float) -> None:
        stats, ranges = self._stats, self.ranges
        stats.wait_seconds += seconds
        if seconds > _MIN_WAIT_S and ranges.disk_bytes:
            # Attribute to the disk the share of this wait that the threads spent waiting for it.
            share = min(1.0, ranges.wait_seconds / max(stats.read_seconds, seconds))
            self.waits.add(seconds * share, ranges.disk_bytes)
            if self.waits.slow and self._keeps_pages is None:
                self._keeps_pages = self._whole_window and fits_page_cache(self._stored_bytes())

    def _place_of(self, chunk_id: int) -> str:
        extents = chunk_extents(self._corpus, chunk_id & CHUNK_MASK)
        return f"{extents[0].path}, byte {extents[0].offset}" if extents else f"{self._corpus.name}, chunk {chunk_id}"

    def _stored_bytes(self) -> int:
        """Return the stored size of the corpus. If it is unknown, return a size that fits nowhere."""
        return 2**63 if self._stored is None else int(self._stored.sum())

    def _new_ranges(self) -> RangeFetcher:
        from feedline.feed.reading.ranges import ROOM_BYTES, RangeFetcher  # with the cache of object stores

        return RangeFetcher(self._corpus, self._total, min(ROOM_BYTES, self._budget_bytes))

    def _release(self, needed: set[int]) -> None:
        self._after_fork()
        for chunk_id in [c for c, entry in self._entries.items() if entry.slot >= 0 and c not in needed]:
            self._uncount(self._entries.pop(chunk_id))
        self._chunks.keep({entry.slot for entry in self._entries.values() if entry.slot >= 0})

    def _uncount(self, entry: _HeldChunk) -> None:
        with self._lock:
            entry.dropped = True
            if entry.counted:
                self._stats.held_bytes -= entry.bytes

    def _read_ahead(self, upcoming: Upcoming) -> None:
        self._after_fork()
        self.ranges.uses.start(upcoming.again)
        self._continued_at = self._totals[0]
        if not self._budget_bytes:
            return
        ahead = [entry.bytes for entry in self._entries.values() if entry.slot < 0]
        used, left = sum(ahead), self._max_ahead - len(ahead)
        waiting = sum(e.bytes for e in self._entries.values() if e.job is not None and not e.job.done)
        free, looked = None, False
        while upcoming.passed < self._total:  # the axis may be endless, but one sweep is the whole corpus
            chunk_id = upcoming.look()
            if chunk_id is None:
                return
            if chunk_id not in self._entries:
                size = self._estimate(chunk_id)
                used, waiting, left = used + size, waiting + size, left - 1
                if (used > self._budget_bytes or left < 0) and not (self._whole_window and upcoming.window == 0):
                    return
                if self._whole_window and waiting >= _MIN_CHECKED_BYTES:
                    free, looked = (free if looked else available()), True
                    needed = waiting + (1 + _DECODING_FACTOR) * size * self._threads + _SPARE_BYTES
                    if free is not None and free < needed:
                        return  # `read_on` continues when there is room
                self._submit(chunk_id)
            upcoming.advance()

    def _estimate(self, chunk_id: int) -> int:
        if self._stored is not None:
            return int(int(self._stored[chunk_id & CHUNK_MASK]) * self._ratio)
        chunks, decoded = self._totals
        return decoded // chunks if chunks else self._budget_bytes

    def _submit(self, chunk_id: int) -> None:
        if self._pool is None:
            self._pool = Threads(self._threads)
        entry = _HeldChunk(self._estimate(chunk_id))
        self.ranges.shared, self.ranges.keeps = self.shared, self._keeps_pages is True
        self.ranges.want(entry, chunk_id)
        entry.job = self._pool.submit(lambda: self._read(chunk_id, entry))
        self._entries[chunk_id] = entry

    def _read(self, chunk_id: int, entry: _HeldChunk) -> Chunk:
        began = time.perf_counter()
        expected = self._estimate(chunk_id)
        if self._in_files and self._stored is not None:
            room = int(self._stored[chunk_id & CHUNK_MASK]) + _DECODING_FACTOR * expected
        else:  # before the first chunk was read, a corpus that is not in files may state any number of bytes
            room = expected if self._totals[0] else 0
        try:
            self._wait_for_memory(chunk_id, room)
        except BaseException:
            self.ranges.forget(entry)  # nothing will take its bytes
            raise
        try:
            pieces = self.ranges.take(entry)
            if pieces is None:
                chunk = self._corpus.read(chunk_id)
            else:
                chunk = require(self._corpus, Fetchable).read_fetched(chunk_id, pieces)
            del pieces
        finally:
            with self._memory_freed:
                self._decoding_bytes -= room
                self._memory_freed.notify_all()
        if room >= _MIN_CHECKED_BYTES and self._is_scarce:
            give_back()
        size = chunk.nbytes
        with self._lock:
            self._stats.fetch_seconds = self.ranges.wait_seconds
            self._stats.disk_bytes = self.ranges.disk_bytes
            self._stats.fetched_bytes = self.ranges.fetched_bytes
            self._stats.cached_bytes = self.ranges.cached_bytes
            entry.bytes = size
            self._totals = (self._totals[0] + 1, self._totals[1] + size)
            if self._stored is not None and self._stored[chunk_id & CHUNK_MASK] > 0:
                self._ratio = size / int(self._stored[chunk_id & CHUNK_MASK])
            stats = self._stats
            stats.chunks_read += 1
            seconds = time.perf_counter() - began
            stats.read_seconds += seconds
            stats.decoded_bytes += size
            stats.chunk_durations.add(seconds, lambda: self._place_of(chunk_id))
            if not entry.dropped:
                entry.counted = True
                stats.held_bytes += size
            self._count_peak()
        return chunk

    def _wait_for_memory(self, chunk_id: int, room: int) -> None:
        """Wait until there is memory to decode one more chunk, and reserve it.

        Raises:
            MemoryError: the chunk does not fit, although no other is being decoded.
        """
        with self._memory_freed:
            while room >= _MIN_CHECKED_BYTES:
                free = available()
                wanted = room + self._decoding_bytes
                # New memory costs Arrow as much as decoding into it. So freed memory is kept for reuse where there is
                # plenty: as measured, about what one chunk takes while it is decoded.
                self._is_scarce = free is not None and free < _PLENTY * (wanted + self._stats.held_bytes)
                self._kept_bytes = 0 if self._is_scarce else max(self._kept_bytes, room)
                if free is None or free >= wanted + _SPARE_BYTES:
                    break
                if not self._decoding_bytes:
                    raise MemoryError(
                        f"expected room for {figure(room + _SPARE_BYTES)}, which chunk {chunk_id} of "
                        f"{self._corpus.name} takes while it is decoded, in addition to "
                        f"{figure(self._stats.held_bytes)} of chunks that are held; {situation()}\n"
                        "  pass a smaller window, such as shuffle=fl.Window(bytes=64 << 20), which is another order; "
                        "raise the limit; or convert the data to a store, which needs no memory for its windows"
                    )
                self._memory_freed.wait()
            self._decoding_bytes += room
            self._count_peak()

    def _count_peak(self) -> None:
        stats = self._stats
        stats.peak_bytes = max(
            stats.peak_bytes, stats.held_bytes + self._decoding_bytes + self._kept_bytes + self.ranges.used_bytes
        )

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            # The threads stayed in the parent, and the locks that they held, one for each job, stay locked forever. So
            # only chunks in slots are kept.
            self._pid, self._pool = os.getpid(), None
            self._make_locks()
            self.ranges = self._new_ranges()
            for chunk_id in [c for c, entry in self._entries.items() if entry.slot < 0]:
                entry = self._entries.pop(chunk_id)
                if entry.counted:
                    self._stats.held_bytes -= entry.bytes
