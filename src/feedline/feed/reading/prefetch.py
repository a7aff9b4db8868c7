"""Readers: bring chunks into memory ahead of need, hold them, and release them.

A `Reader` gives the source slots and indices from which sequences can be copied.

`BufferedReader` reads and decodes chunks in threads, one chunk per thread, ahead of the current window: the whole next
window by default, or a given number of bytes. Deserializers release the GIL meanwhile. If a corpus knows the parts of
files that a chunk consists of, these are fetched ahead of the threads (see `ranges`). `MappedReader` serves corpora
whose chunks are views of memory or of a mapping: it adds a chunk when a segment first needs it and never releases it,
as it owns nothing.

Neither leaves anything behind: threads end with the reader, and a forked child starts its own.
"""

from __future__ import annotations

import abc
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.concurrency.jobs import Job, Threads
from feedline.data import Chunk
from feedline.errors import DataError
from feedline.feed.assembly import ChunkSet
from feedline.feed.distinct import distinct
from feedline.feed.protocol import CHUNK_MASK, CHUNK_MEMORY, Deserializer, Fetchable, RandomAccess, Selective, required
from feedline.feed.reading.ranges import ROOM_BYTES, RangeFetcher
from feedline.feed.reading.waiting import BLOCKS, NOT_AHEAD, Waits
from feedline.feed.timeline import ChunkTable, Segment, Share, WindowPlan
from feedline.feed.workers.limits import available, figure, fits_page_cache, give_back, situation

Ints = NDArray[np.int64]

LEAST_AHEAD_BYTES = 64 << 20
"""Decoded bytes read ahead by default, or the next window, whichever is more; less where memory is short."""

_DECODING = 3  # times its decoded size that a chunk takes beside its stored bytes while it is decoded: arrays that grow
_SPARE_BYTES = 32 << 20  # left free for minibatches
_WORTH_BYTES = 1 << 20  # smaller chunks come without a look at the memory that is free, which takes as long

# Minibatches whose sequences are read by themselves while the first window is being read: each of them is read twice.
_MOST_SELECTED = 8

_A_WAIT_S = 1e-4  # seconds; shorter waits are not counted


@dataclass(slots=True)
class Stats:
    """Statistics of a source in this process.

    Attributes:
        chunks_read: chunks read (and decoded), repeats included.
        held_bytes: decoded bytes of chunks in private memory; a mapped chunk counts nothing, as its pages belong to
            the file.
        peak_bytes: the most that ``held_bytes`` was, with the stored bytes that were fetched ahead and, for each chunk
            that was being decoded, its stored bytes and three times what it decodes to.
        read_seconds: time spent reading and decoding, summed over threads.
        wait_seconds: time that ``next_minibatch`` waited for chunks.
        transform_seconds: time spent in transforms, summed over threads; decoding pictures is one.
        minibatches, sequences, samples: number delivered to this rank.
        skipped: unreadable sequences skipped by this rank.
        asked_bytes: bytes of local files that were asked for, wherever they were: of mapped files, such as stores, the
            values that were copied, of others the parts that chunks lie in; 0 where a format does not tell.
        disk_bytes: bytes fetched, mostly past the page cache, as it did not hold them: whole pages, so that it may be
            more than was asked for.
        fetched_bytes, cached_bytes: bytes of chunks that came from object stores, and that the cache of objects had.
        corpora: what each corpus of a mixture has given since the beginning of the order, over all ranks, beside the
            share that its weights declare; empty for other corpora.
    """

    chunks_read: int = 0
    held_bytes: int = 0
    peak_bytes: int = 0
    read_seconds: float = 0.0
    wait_seconds: float = 0.0
    transform_seconds: float = 0.0
    minibatches: int = 0
    sequences: int = 0
    samples: int = 0
    skipped: int = 0
    asked_bytes: int = 0
    disk_bytes: int = 0
    fetched_bytes: int = 0
    cached_bytes: int = 0
    corpora: dict[str, Share] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return all figures by name, in JSON types."""
        return asdict(self) | {"corpora": {name: share._asdict() for name, share in self.corpora.items()}}

    def __repr__(self) -> str:
        return (
            f"Stats({self.minibatches} minibatches, {self.sequences} sequences, {self.samples} samples; "
            f"{self.chunks_read} chunks read in {self.read_seconds:.3f} s, waited {self.wait_seconds:.3f} s; "
            f"holds {self.held_bytes / 1e6:.1f} MB, at most {self.peak_bytes / 1e6:.1f} MB; {self.skipped} skipped"
            + "".join(f"; {name} {s.delivered:.1%} of {s.declared:.1%} declared" for name, s in self.corpora.items())
            + ")"
        )


class Upcoming:
    """The chunks of the windows that follow, one at a time in order of need; a reader stops when it runs out of room.

    Created for each current window, and owned by the code that walks the windows: those of a corpus of unknown chunk
    sizes refer to the reader, which must not refer back to them.

    Attributes:
        window: number of windows between the current one and that of the chunk considered last.
        passed: number of chunks before it.
        again: function that returns all these windows from the first one on.
    """

    __slots__ = ("_chunks", "_next", "_windows", "again", "passed", "window")

    def __init__(self, again: Callable[[], Iterator[Ints]]) -> None:
        self.again = again
        self._windows = again()
        self._chunks: Iterator[int] = iter(())
        self._next: int | None = None
        self.window, self.passed = -1, 0

    def look(self) -> int | None:
        """Return the next chunk; None at the end of the axis."""
        while self._next is None:
            self._next = next(self._chunks, None)
            if self._next is None:
                ids = next(self._windows, None)
                if ids is None:
                    return None
                self._chunks, self.window = iter(ids.tolist()), self.window + 1
        return self._next

    def advance(self) -> None:
        """Move past the chunk returned by `look`."""
        self._next, self.passed = None, self.passed + 1


SegmentSlice = tuple[Segment, int, int]
"""The sequences a..b-1 of a segment."""


class Reader(abc.ABC):
    """Brings sequences into memory; see the module. Some readers do more, see `Staging` and `Selecting`.

    Attributes:
        shared: whether other processes of this machine read the same data at the same time, for their shares of it.
    """

    shared = False

    @property
    def asked_bytes(self) -> int:
        """Bytes of local files that were asked for so far, see `Stats`; 0 if unknown."""
        return 0

    @abc.abstractmethod
    def ready(self, parts: Sequence[SegmentSlice]) -> bool:
        """Return whether `take` would not block."""

    @abc.abstractmethod
    def take(self, parts: Sequence[SegmentSlice]) -> tuple[NDArray[np.uint32], Ints]:
        """Read the chunks that ``parts`` need; return slot and index of each of their sequences.

        For a part without sequences at least one chunk is read, as only a chunk shows the layout of its streams.
        """

    @abc.abstractmethod
    def errors(self, slots: NDArray[np.uint32], index: Ints) -> dict[int, DataError]:
        """Return the errors of unreadable sequences among those at ``index`` of the chunks at ``slots``, by place."""

    @abc.abstractmethod
    def holds(self, plan: WindowPlan) -> bool:
        """Return whether all chunks of a window are held in memory, or need not be."""

    @abc.abstractmethod
    def keep(self, plans: list[WindowPlan], upcoming: Upcoming | None) -> None:
        """Release all windows except ``plans``, and read ahead in ``upcoming``."""

    @abc.abstractmethod
    def read_on(self, upcoming: Upcoming) -> None:
        """Continue to read ahead if there is more room by now."""

    @abc.abstractmethod
    def reset(self) -> None:
        """Discard what was read ahead: the position has jumped."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release everything and stop the threads."""


class Staging(abc.ABC):
    """A reader that can read sequences one by one into memory of their own, from which they are copied."""

    @property
    @abc.abstractmethod
    def stages(self) -> bool:
        """Whether sequences should be staged before they are copied."""

    @abc.abstractmethod
    def stage(self, slots: NDArray[np.uint32], index: Ints) -> _native.Staged:
        """Begin to read sequences."""

    @abc.abstractmethod
    def settle(self, staged: _native.Staged, ids: Ints) -> dict[int, DataError]:
        """Wait for staged sequences; return the errors of those, with ordinals ``ids``, that cannot be read."""

    @abc.abstractmethod
    def stage_again(self, slots: NDArray[np.uint32], index: Ints) -> _native.Staged | None:
        """Begin to read sequences that could not be copied because a mapped file was truncated or its disk fails; None
        if that would not help.
        """


class Selecting(abc.ABC):
    """A reader whose first window takes so long that sequences of it should come by themselves meanwhile."""

    @abc.abstractmethod
    def selects(self, parts: Sequence[SegmentSlice]) -> bool:
        """Return whether sequences of ``parts`` should be selected from the corpus by themselves, as their window is
        still being read; begins to read it."""


def upcoming(reader: Reader, window: WindowPlan, following: Callable[[], Iterator[Ints]]) -> Upcoming:
    """Return what to read ahead in the current ``window``: the chunks of those ``following`` it, after its own if it is
    not held. A minibatch may reach a window of which this rank takes nothing yet."""
    if reader.holds(window):
        return Upcoming(following)
    return Upcoming(lambda: itertools.chain((window.chunks,), following()))


def together(found: Sequence[tuple[NDArray[np.uint32], Ints]]) -> tuple[NDArray[np.uint32], Ints]:
    """Concatenate slots and indices of several parts."""
    if len(found) == 1:
        return found[0]
    if not found:
        return np.empty(0, np.uint32), np.empty(0, np.int64)
    slots, index = zip(*found, strict=True)
    return np.concatenate(slots), np.concatenate(index)


class MappedReader(Reader):
    """Serves chunks that cost nothing to hold; see the module."""

    def __init__(self, corpus: Deserializer, chunks: ChunkSet, stats: Stats) -> None:
        self._corpus, self._chunks, self._stats = corpus, chunks, stats
        self._slots: dict[int, int] = {}
        self._errors: dict[int, Chunk] = {}
        self._index: dict[int, Ints] = {}  # by chunk, where its sequences are among those of a view

    def _slots_of(self, segment: Segment) -> NDArray[np.uint32]:
        """Return the ``slots`` of a segment, adding the chunks that it needs."""
        if segment.slots is not None:
            return segment.slots
        ids = segment.plan.chunks
        table = np.zeros(len(ids), np.uint32)
        # Of a part that takes nothing of the segment, one chunk shows the layout.
        needed = (
            [0]
            if len(ids) == 1 or not segment.n
            else np.flatnonzero(np.bincount(segment.place, minlength=len(ids))).tolist()
        )
        for place in needed:
            chunk_id = int(ids[place])
            slot = self._slots.get(chunk_id)
            if slot is None:
                began = time.perf_counter()
                chunk, index = required(self._corpus, RandomAccess).view(chunk_id)
                slot = self._chunks.add(chunk)
                if index is not None:
                    self._index[chunk_id] = index
                if chunk.errors:
                    self._errors[slot] = chunk
                self._slots[chunk_id] = slot  # last, so that after an interrupt it is added again, with its errors
                self._stats.chunks_read += 1
                self._stats.read_seconds += time.perf_counter() - began
            table[place] = slot
        if self._index:
            segment.taken = self._within(segment)
        segment.slots = slots = table[segment.place]
        return slots

    def _within(self, segment: Segment) -> Ints:
        """Return the index of each sequence of a segment in the view that holds it."""
        ids = segment.plan.chunks
        order = np.argsort(segment.place, kind="stable")
        counts = np.bincount(segment.place, minlength=len(ids))
        places = np.flatnonzero(counts)
        grouped, at = segment.index[order], 0
        for place, count in zip(places.tolist(), counts[places].tolist(), strict=True):
            index = self._index.get(int(ids[place]))
            if index is not None:
                grouped[at : at + count] = index[grouped[at : at + count]]
            at += count
        taken = np.empty_like(grouped)
        taken[order] = grouped
        return taken

    def take(self, parts: Sequence[SegmentSlice]) -> tuple[NDArray[np.uint32], Ints]:
        """See `Reader.take`."""
        slots = [self._slots_of(segment)[a:b] for segment, a, b in parts]
        index = [(s.index if s.taken is None else s.taken)[a:b] for s, a, b in parts]
        return together(list(zip(slots, index, strict=True)))

    def ready(self, parts: Sequence[SegmentSlice]) -> bool:
        """See `Reader.ready`."""
        return all(
            segment.slots is not None
            or self._slots.keys() >= set(segment.plan.chunks[distinct(segment.place)].tolist())
            for segment, _, _ in parts
        )

    def holds(self, plan: WindowPlan) -> bool:
        """Return True: holding chunks costs nothing."""
        return True

    def errors(self, slots: NDArray[np.uint32], index: Ints) -> dict[int, DataError]:
        """See `Reader.errors`."""
        return errors_among(self._errors, slots, index)

    def keep(self, plans: list[WindowPlan], upcoming: Upcoming | None) -> None:
        """Do nothing: there are no windows to release."""

    def read_on(self, upcoming: Upcoming) -> None:
        """Do nothing: nothing is read ahead."""

    def reset(self) -> None:
        """Do nothing: nothing is read ahead."""

    def close(self) -> None:
        """Release all chunks."""
        self._chunks.keep(set())
        self._slots.clear()
        self._errors.clear()
        self._index.clear()


class _HeldChunk:
    """A chunk that is being read, has been read ahead, or is held in a slot."""

    __slots__ = ("bytes", "counted", "dropped", "job", "slot")

    def __init__(self, estimate: int) -> None:
        self.job: Job[Chunk] | None = None
        self.bytes, self.slot = estimate, -1
        self.counted = self.dropped = False


def ahead_bytes() -> int:
    """Return the bytes that are read ahead by default: an eighth of the memory that is free, at most."""
    free = available()
    return LEAST_AHEAD_BYTES if free is None else min(LEAST_AHEAD_BYTES, free // 8)


def _expected_ratio(corpus: Deserializer, table: ChunkTable) -> float:
    """Return the decoded bytes per stored byte that a schema of dense streams lets expect; 1 for other schemas, and
    where a chunk would decode to more than most corpora allow: the schema may declare what the data does not hold."""
    streams = corpus.schema.values()
    stored = int(table.bytes.sum())
    if not stored or any(stream.sparse or not stream.dtype.itemsize for stream in streams):
        return 1.0
    sample_bytes = sum(math.prod(stream.shape) * stream.dtype.itemsize for stream in streams)
    if int(table.samples.max()) * sample_bytes > CHUNK_MEMORY:
        return 1.0
    return int(table.samples.sum()) * sample_bytes / stored


class BufferedReader(Reader, Selecting):
    """Reads and decodes chunks into private memory; see the module.

    Args:
        corpus: corpus to read from.
        chunks: chunk set to add chunks to.
        stats: statistics to update.
        total: number of chunks.
        table: sizes of each chunk; None: unknown.
        threads: number of chunks read at a time.
        budget_bytes: decoded bytes that may be read ahead of the current windows, 0 for none; None: the whole next
            window, and as much of the following ones as fits into `LEAST_AHEAD_BYTES` with it, while there is room in
            memory.

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
        self._corpus, self._chunks, self._stats = corpus, chunks, stats
        self._total, self._threads = total, threads
        self._stored = None if table is None else table.bytes
        self._whole_window = budget_bytes is None
        self._budget_bytes = ahead_bytes() if budget_bytes is None else budget_bytes
        self._entries: dict[int, _HeldChunk] = {}
        self._plans: dict[tuple[int, ...], tuple[NDArray[np.uint32], Ints]] = {}  # slots and chunks of windows, by key
        self._errors: dict[int, Chunk] = {}
        # Decoded bytes per stored byte: expected at first, then as seen so far.
        self._ratio = 1.0 if table is None else _expected_ratio(corpus, table)
        self._seen = (0, 0)  # chunks read, their decoded bytes
        self._asked_at = 0  # chunks read when reading ahead was last continued
        self._selected = 0  # minibatches since the start, or a seek, that did not wait for their window
        self._pool: Threads | None = None
        self.ranges = self._fresh()
        lies_in = next(iter(corpus.paths()), corpus.name)
        self._in_files = any(corpus.paths())
        self.waits = Waits(lies_in, BLOCKS if budget_bytes is None else NOT_AHEAD)
        self._may_keep: bool | None = None  # what is read, in the page cache; None: not decided
        self._pid = os.getpid()
        self._make_locks()

    # ---- called by the source ---------------------------------------------------------------------

    @property
    def asked_bytes(self) -> int:
        """See `Reader.asked_bytes`."""
        return self.ranges.asked_bytes

    def take(self, parts: Sequence[SegmentSlice]) -> tuple[NDArray[np.uint32], Ints]:
        """See `Reader.take`."""
        return together([(self._slots_of(segment)[a:b], segment.index[a:b]) for segment, a, b in parts])

    def _slots_of(self, segment: Segment) -> NDArray[np.uint32]:
        """Return the ``slots`` of a segment, holding its window: reads the chunks that are missing."""
        plan = segment.plan
        slots, chunks = self._plans.get(plan.key) or (self._hold(plan), plan.chunks)
        if chunks is not plan.chunks and not np.array_equal(chunks, plan.chunks):
            raise RuntimeError(f"expected a window with chunks {chunks} at {plan.key}, got one with {plan.chunks}")
        if segment.held is not slots:
            # Also if the window was released after a failed minibatch, and has been read again.
            segment.slots, segment.held = slots[segment.place], slots
        assert segment.slots is not None
        return segment.slots

    def ready(self, parts: Sequence[SegmentSlice]) -> bool:
        """See `Reader.ready`; windows that share most of their chunks are held ahead of need once they are read."""
        plans = [segment.plan for segment, _, _ in parts]
        return all(self.holds(plan) or (plan.gradual and self._has_read(plan)) for plan in plans)

    def _has_read(self, plan: WindowPlan) -> bool:
        """Return whether all chunks of a window have been read, so that holding it does not wait."""
        jobs = [entry.job for entry in map(self._entries.get, plan.chunks.tolist()) if entry is not None]
        return len(jobs) == len(plan.chunks) and all(job is not None and job.done and not job.failed for job in jobs)

    def holds(self, plan: WindowPlan) -> bool:
        """See `Reader.holds`."""
        return plan.key in self._plans

    def errors(self, slots: NDArray[np.uint32], index: Ints) -> dict[int, DataError]:
        """See `Reader.errors`."""
        return errors_among(self._errors, slots, index)

    def selects(self, parts: Sequence[SegmentSlice]) -> bool:
        """See `Selecting.selects`: only of the first window after the start, or a seek, and for a few minibatches."""
        window = parts[0][0].plan
        if (
            self._corpus.capability(Selective) is None
            or not self._budget_bytes
            or self._plans
            or self._selected >= _MOST_SELECTED
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
        """Return the job that reads a chunk; begins it if need be."""
        entry = self._entries.get(chunk_id)
        if entry is None or entry.job is None or entry.job.failed:
            self._submit(chunk_id)
            entry = self._entries[chunk_id]
        assert entry.job is not None
        return entry.job

    def counts(self, ids: Ints) -> Ints:
        """Return the number of sequences of each chunk, reading those that are not in memory; int64 (k,)."""
        return np.array([chunk.num_sequences for chunk in self.fetch(ids)], np.int64)

    def fetch(self, ids: Ints) -> list[Chunk]:
        """Return the chunks ``ids``, reading them if necessary.

        Raises:
            Exception: reading a chunk raised this; the next request reads it again.
        """
        self._after_fork()
        asked = set()
        for chunk_id in ids.tolist():
            entry = self._entries.get(chunk_id)
            if entry is None or entry.job is None or entry.job.failed:
                self._submit(chunk_id)
                asked.add(chunk_id)
        began = time.perf_counter()
        try:
            chunks = [self._chunk_of(chunk_id, chunk_id in asked) for chunk_id in ids.tolist()]
        finally:
            self._waited(time.perf_counter() - began)
        return chunks

    def _chunk_of(self, chunk_id: int, asked: bool) -> Chunk:
        """Wait for a chunk that is being read.

        If reading it ahead failed, read it again unless it was ``asked`` for just now: the cause may be gone.
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
                if asked or error is not job.error:
                    raise
            self._submit(chunk_id)
            asked = True

    def keep(self, plans: list[WindowPlan], upcoming: Upcoming | None) -> None:
        """See `Reader.keep`."""
        self._after_fork()
        wanted = {plan.key for plan in plans}
        if len(self._plans) > len(wanted) or not self._plans.keys() <= wanted:
            for key in [key for key in self._plans if key not in wanted]:
                del self._plans[key]
            self._drop({int(c) for plan in plans for c in plan.chunks})
        if upcoming is not None:
            self.ranges.uses.start(upcoming.again)
            if self._budget_bytes > 0:
                self._read_ahead(upcoming)

    def read_on(self, upcoming: Upcoming) -> None:
        """Continue to read ahead if a chunk was read since the last call; otherwise costs next to nothing.

        The size of a chunk is estimated before it is read, and known afterwards, so there may be more room.
        """
        if self._asked_at != self._seen[0] and self._budget_bytes > 0:
            self._after_fork()
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
        self._after_fork()
        self._plans.clear()
        self._drop(set())
        self.reset()
        if self._pool is not None:
            self._pool.close()
            self._pool = None
        self.ranges.close()

    # ---- internals --------------------------------------------------------------------------------

    def _make_locks(self) -> None:
        """Make new locks: those inherited by a fork may be held by threads that do not exist here."""
        self._lock = threading.Lock()  # guards the statistics that threads update, and `_decoding`
        self._decoded = threading.Condition(self._lock)  # a chunk, or given up
        self._decoding = 0  # bytes taken for chunks that are being decoded

    def _hold(self, plan: WindowPlan) -> NDArray[np.uint32]:
        self._after_fork()
        # Windows of some orders share most of their chunks with the window before: those that are held cost a look-up.
        entries, ids = self._entries, plan.chunks.tolist()
        missing = [c for c in dict.fromkeys(ids) if (entry := entries.get(c)) is None or entry.slot < 0]
        if missing:
            for chunk_id, chunk in zip(missing, self.fetch(np.array(missing, np.int64)), strict=True):
                slot = self._chunks.add(chunk)
                if chunk.errors:
                    self._errors[slot] = chunk
                entries[chunk_id].slot = slot  # last, so that after an interrupt it is added again, with its errors
        slots = np.array([entries[c].slot for c in ids], np.uint32)
        self._plans[plan.key] = slots, plan.chunks
        return slots

    def _waited(self, seconds: float) -> None:
        stats, ranges = self._stats, self.ranges
        stats.wait_seconds += seconds
        if seconds > _A_WAIT_S and ranges.disk_bytes:
            # Attribute to the disk the share of this wait that the threads spent waiting for it.
            share = min(1.0, ranges.wait_seconds / max(stats.read_seconds, seconds))
            self.waits.add(seconds * share, ranges.disk_bytes)
            if self.waits.slow and self._may_keep is None:
                self._may_keep = self._whole_window and fits_page_cache(self._stored_bytes())

    def _stored_bytes(self) -> int:
        """Return the size of the corpus; where it is unknown, one that fits nowhere."""
        return 2**63 if self._stored is None else int(self._stored.sum())

    def _fresh(self) -> RangeFetcher:
        return RangeFetcher(self._corpus, self._total, min(ROOM_BYTES, self._budget_bytes))

    def _drop(self, needed: set[int]) -> None:
        for chunk_id in [c for c, entry in self._entries.items() if entry.slot >= 0 and c not in needed]:
            self._uncount(self._entries.pop(chunk_id))
        slots = {entry.slot for entry in self._entries.values() if entry.slot >= 0}
        self._chunks.keep(slots)
        self._errors = {slot: chunk for slot, chunk in self._errors.items() if slot in slots}

    def _uncount(self, entry: _HeldChunk) -> None:
        with self._lock:
            entry.dropped = True
            if entry.counted:
                self._stats.held_bytes -= entry.bytes

    def _read_ahead(self, upcoming: Upcoming) -> None:
        self._asked_at = self._seen[0]
        used = sum(entry.bytes for entry in self._entries.values() if entry.slot < 0)
        waiting = sum(e.bytes for e in self._entries.values() if e.job is not None and not e.job.done)
        free, looked = None, False
        while upcoming.passed < self._total:  # the axis may be endless, but one sweep is the whole corpus
            chunk_id = upcoming.look()
            if chunk_id is None:
                return
            if chunk_id not in self._entries:
                size = self._estimate(chunk_id)
                used, waiting = used + size, waiting + size
                if used > self._budget_bytes and not (self._whole_window and upcoming.window == 0):
                    return
                if self._whole_window and waiting >= _WORTH_BYTES:
                    free, looked = (free if looked else available()), True
                    if free is not None and free < waiting + (1 + _DECODING) * size * self._threads + _SPARE_BYTES:
                        return  # `read_on` continues when there is room
                self._submit(chunk_id)
            upcoming.advance()

    def _estimate(self, chunk_id: int) -> int:
        if self._stored is not None:
            return int(int(self._stored[chunk_id & CHUNK_MASK]) * self._ratio)
        chunks, decoded = self._seen
        return decoded // chunks if chunks else self._budget_bytes

    def _submit(self, chunk_id: int) -> None:
        if self._pool is None:
            self._pool = Threads(self._threads)
        entry = _HeldChunk(self._estimate(chunk_id))
        self.ranges.shared, self.ranges.keeps = self.shared, self._may_keep is True
        self.ranges.want(entry, chunk_id)
        entry.job = self._pool.submit(lambda: self._read(chunk_id, entry))
        self._entries[chunk_id] = entry

    def _read(self, chunk_id: int, entry: _HeldChunk) -> Chunk:
        began = time.perf_counter()
        expected = self._estimate(chunk_id)
        if self._in_files and self._stored is not None:
            room = int(self._stored[chunk_id & CHUNK_MASK]) + _DECODING * expected
        else:  # before any was read, a corpus that is in no files may state any number of bytes
            room = expected if self._seen[0] else 0
        try:
            self._make_room(chunk_id, room)
        except BaseException:
            self.ranges.forget(entry)  # nobody will take what was fetched for it
            raise
        try:
            pieces = self.ranges.take(entry)
            chunk = (
                self._corpus.read(chunk_id)
                if pieces is None
                else required(self._corpus, Fetchable).read_fetched(chunk_id, pieces)
            )
            del pieces
        finally:
            with self._decoded:
                self._decoding -= room
                self._decoded.notify_all()
        if room >= _WORTH_BYTES:
            give_back()
        size = chunk.nbytes
        with self._lock:
            self._stats.disk_bytes = self.ranges.disk_bytes
            self._stats.fetched_bytes = self.ranges.fetched_bytes
            self._stats.cached_bytes = self.ranges.cached_bytes
            entry.bytes = size
            self._seen = (self._seen[0] + 1, self._seen[1] + size)
            if self._stored is not None and self._stored[chunk_id & CHUNK_MASK] > 0:
                self._ratio = size / int(self._stored[chunk_id & CHUNK_MASK])
            stats = self._stats
            stats.chunks_read += 1
            stats.read_seconds += time.perf_counter() - began
            if not entry.dropped:
                entry.counted = True
                stats.held_bytes += size
            self._count_peak()
        return chunk

    def _make_room(self, chunk_id: int, room: int) -> None:
        """Wait until a chunk can be decoded beside those that are being decoded.

        Raises:
            MemoryError: it cannot, though no other is.
        """
        with self._decoded:
            while room >= _WORTH_BYTES:
                free = available()
                if free is None or free >= room + self._decoding + _SPARE_BYTES:
                    break
                if not self._decoding:
                    raise MemoryError(
                        f"expected room for {figure(room + _SPARE_BYTES)}, which chunk {chunk_id} of "
                        f"{self._corpus.name} takes while it is decoded, beside {figure(self._stats.held_bytes)} of "
                        f"chunks that are held; {situation()}\n"
                        "  pass a smaller window, such as shuffle=fl.Window(bytes=64 << 20), which is another order; "
                        "raise the limit; or convert the data to a store, which needs no memory for its windows"
                    )
                self._decoded.wait()
            self._decoding += room
            self._count_peak()

    def _count_peak(self) -> None:
        stats = self._stats
        stats.peak_bytes = max(stats.peak_bytes, stats.held_bytes + self._decoding + self.ranges.used_bytes)

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            # The threads stayed in the parent, and locks that they held, one per job, stay locked forever; so keep only
            # adopted chunks.
            self._pid, self._pool = os.getpid(), None
            self._make_locks()
            self.ranges = self._fresh()
            for chunk_id in [c for c, entry in self._entries.items() if entry.slot < 0]:
                entry = self._entries.pop(chunk_id)
                if entry.counted:
                    self._stats.held_bytes -= entry.bytes


def errors_among(chunks: Mapping[int, Chunk], slots: NDArray[np.uint32], index: Ints) -> dict[int, DataError]:
    """Return the errors of sequences at ``index`` of the chunks at ``slots``, by place; ``chunks`` are, by slot, those
    with unreadable sequences."""
    errors: dict[int, DataError] = {}
    if not chunks:
        return errors
    for slot in distinct(slots).tolist():
        chunk = chunks.get(slot)
        if chunk is not None:
            at = np.flatnonzero(slots == slot)
            errors |= {i: chunk.errors[row] for i in at.tolist() if (row := int(index[i])) in chunk.errors}
    return errors
