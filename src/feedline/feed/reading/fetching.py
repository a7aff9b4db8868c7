"""Stores larger than memory: data that the page cache does not hold is fetched ahead, and released after use.

Sequences of a store are views of mapped files. Data in the page cache is copied from there at memory speed, and nothing
is fetched. For other data every page fault would wait for the disk; so native threads (native/include/feedline/fetch.h)
first read it into private memory:

- of a *window*, its blocks, and those of the next window within the budget: held until the window is done;
- in the *order of the corpus*, its blocks, as far ahead as the budget allows;
- of a *whole* shuffle, the sequences of the next minibatches, each by itself (`CopyAhead` requests them).

They bypass the page cache, unless all of the data fits into it well, ``read_ahead`` is left out, and the disk is slow
or read at random places: then what is read stays there for the next sweep. Processes of one machine that share the data
do read blocks through the page cache, so that each comes from the disk once, and drop them from it after use.

Which case applies is determined while reading: the residency of a few pages is checked now and then, at a microsecond
per check. Order and values are the same either way, and so are errors: a block that cannot be fetched is read sequence
by sequence, so that only those are lost whose own bytes cannot be read.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.data import Chunk, Value
from feedline.data.value import BytesValue, SparseValue
from feedline.errors import DataError
from feedline.feed.assembly import ChunkSet
from feedline.feed.distinct import distinct
from feedline.feed.protocol import Deserializer, MappedFile, files_of
from feedline.feed.reading.prefetch import (
    LEAST_AHEAD_BYTES,
    Reader,
    SegmentSlice,
    Staging,
    Stats,
    Upcoming,
    errors_among,
    together,
)
from feedline.feed.reading.waiting import BLOCKS, NOT_AHEAD, WHOLE, Waits
from feedline.feed.timeline import Segment, Timeline, WindowPlan
from feedline.feed.timeline.blocks import Blocks
from feedline.feed.workers.limits import available, fits_page_cache

Ints = NDArray[np.int64]
Slots = NDArray[np.uint32]

# Reads in flight: random reads gain up to here (on a virtual disk, 32 give 0.9 of the speed, 512 give 1.0).
_DEPTH = 128
# Blocks are handed to the threads in groups of this many bytes, or blocks.
_GROUP_BYTES = 4 << 20
_GROUP_UNITS = 64
# How often, in seconds, a whole shuffle with everything in the page cache checks again, and at how many sequences.
_LOOK_EVERY_S = 0.005
_LOOK_AT = 4
# In order: blocks checked together.
_LOOK_UNITS = 32
# Blocks of a window that are checked.
_LOOK_WINDOW = 16
# How many minibatches, or bytes in order, must have been in the page cache before fetching stops.
_CALM_MINIBATCHES = 16
_CALM_BYTES = 32 << 20
# Rows up to this many bytes are worth keeping in the page cache: a page holds many of them.
_SMALL_ROW_BYTES = 512
# Sequences of so many bytes are read with their neighbours where those are kept, see `_native.Gatherer.stage`.
_NEAR_BYTES = 64 << 10
# Rows, 1, and bounds, 2.
_ALL = 3
# In order: chunks whose metadata is prefetched.
_SOON = 4
# In order: bytes of blocks kept behind the current place, for minibatches that were copied ahead and dropped.
_BEHIND_BYTES = 8 << 20

_log = logging.getLogger("feedline")


class _BlockGroup:
    """Blocks that are fetched together.

    Attributes:
        staged: the native fetch.
        bytes: bytes of all of them.
        left: number of them still needed.
        faulty: those that cannot be read as a whole; None until known.
    """

    __slots__ = ("bytes", "faulty", "left", "staged")

    def __init__(self, staged: _native.Staged, nbytes: int, count: int) -> None:
        self.staged, self.bytes, self.left = staged, nbytes, count
        self.faulty: set[int] | None = None


class _Unit:
    """A block that is being fetched, or held.

    Attributes:
        group: group that it is fetched with.
        run: its number in the group.
        slot: slot that holds it; -1: it cannot be read as a whole; None: not adopted yet.
    """

    __slots__ = ("group", "run", "slot")

    def __init__(self, group: _BlockGroup, run: int) -> None:
        self.group, self.run = group, run
        self.slot: int | None = None


class _Held(NamedTuple):
    """A window in memory: for each of its blocks the slot, and the offset to add to indices within the block."""

    plan: WindowPlan | None
    slots: Slots
    base: Ints


def _is_cut(file: MappedFile) -> bool:
    try:
        return os.stat(file.path).st_size < file.size
    except OSError:
        return True


def _sizes(value: Value) -> tuple[int, int]:
    """Return the bytes of a value's rows (or indices and values), and the bytes of its offsets."""
    bounds = 0 if value.one_sample_each else value.offsets.nbytes
    if isinstance(value, SparseValue):
        bounds += value.indptr.nbytes
    if isinstance(value, BytesValue):
        bounds += value.bounds.nbytes
    return value.nbytes - bounds, bounds


class FetchingReader(Reader, Staging):
    """Reads corpora of mapped files, fetching what the page cache lacks.

    Args:
        corpus: corpus whose chunks are views of mapped files, see `Deserializer.files`.
        timeline: order of the corpus.
        chunks: chunk set to add chunks to.
        stats: statistics to update.
        budget_bytes: bytes that may be fetched ahead; None: the next window, or `LEAST_AHEAD_BYTES`.

    Attributes:
        backend: backend of the native fetcher, until it is created: ``"any"``, ``"io_uring"`` or ``"threads"``.
        direct: whether to bypass the page cache.
        forced: whether to fetch everything, as if the page cache were always empty.
        waits: accounts for time spent waiting, and warns.
    """

    def __init__(
        self, corpus: Deserializer, timeline: Timeline, chunks: ChunkSet, stats: Stats, budget_bytes: int | None
    ) -> None:
        self._corpus, self._timeline, self._chunks, self._stats = corpus, timeline, chunks, stats
        self._whole = not timeline.in_corpus_order and timeline.window is None
        self._in_place = timeline.in_corpus_order
        self._whole_window = budget_bytes is None
        self._budget_bytes = LEAST_AHEAD_BYTES if budget_bytes is None else budget_bytes
        self.backend, self.direct, self.forced = "any", True, False
        lies_in = next(iter(corpus.paths()), corpus.name)
        self.waits = Waits(lies_in, WHOLE if self._whole else BLOCKS if budget_bytes is None else NOT_AHEAD)
        # A unit is fetched as a whole: an entry of the timeline's table, or in order a block of it.
        blocks = timeline.blocks
        if self._in_place and blocks is None:
            blocks = Blocks(timeline.table)
        if blocks is not None:
            self._table, self._chunk_of, self._first = blocks.table, blocks.chunk, blocks.first
        else:
            self._table = timeline.table
            self._chunk_of = np.arange(len(self._table), dtype=np.int64)
            self._first = np.zeros(len(self._table), np.int64)
        self._mapped = np.full(len(timeline.chunk_table), -1, np.int64)  # slot of each chunk's views
        self._unknown = len(self._mapped)  # chunks without one
        self._errors: dict[int, Chunk] = {}  # by slot: views, of whole chunks or of blocks, with unreadable sequences
        self._fetcher: _native.Fetcher | None = None
        self._files: dict[int, tuple[MappedFile, int | None]] = {}  # by address; None: it could not be opened
        self._sample: Chunk | None = None  # some chunk: shows the layout of sequences
        self._keep: list[int] | None = None
        self._keeps_all: bool | None = None  # None: not decided
        self._units: dict[int, _Unit] = {}
        self._ahead = 0  # bytes of those not adopted yet
        self._plans: dict[tuple[int, ...], _Held] = {}
        self._in_file = _Held(None, np.empty(0, np.uint32), np.empty(0, np.int64))  # marks segments of mapped slots
        self._next = 0  # in order: the next block to fetch
        self._wraps = False  # in order: whether another sweep follows
        self._behind: deque[int] = deque()  # in order: adopted blocks, oldest first
        self._cold = False
        self._calm = 0  # minibatches or bytes since a fetch last missed the page cache
        self._look_at = 0.0
        self._covered: Segment | None = None  # in order: a segment in the page cache, whose chunks are known
        self._seen = (0, 0)  # in order: range of sequences that need not be checked again
        self._faulty = 0  # blocks that cannot be read as a whole

    # ---- called by the source ---------------------------------------------------------------------

    @property
    def stages(self) -> bool:
        """See `Staging.stages`."""
        return self._faulty > 0 or (self._whole and (self._cold or self.forced))

    def _has_fetched(self, entries: Ints) -> bool:
        """Return whether blocks have been fetched, or need not be."""
        missing = []
        for entry in entries.tolist():
            unit = self._units.get(entry)
            if unit is None:
                missing.append(entry)
            elif unit.slot is None and not unit.group.staged.done:
                return False
        return not missing or not self._lacks(np.array(missing, np.int64), _LOOK_WINDOW)

    def ready(self, parts: Sequence[SegmentSlice]) -> bool:
        """See `Reader.ready`; a window that differs from the one before in few blocks need not be the current one."""
        if self._in_place and (self._cold or self.forced):
            units = (
                self._units.get(u) for s, a, b in parts for u in distinct(self._units_of(s.ordinals[a:b])).tolist()
            )
            return all(unit is not None and unit.group.staged.done for unit in units)
        plans = [segment.plan for segment, _, _ in parts]
        return all(self.holds(plan) or (plan.gradual and self._has_fetched(plan.chunks)) for plan in plans)

    @property
    def asked_bytes(self) -> int:
        """See `Reader.asked_bytes`."""
        return self._chunks.copied_bytes

    def take(self, parts: Sequence[SegmentSlice]) -> tuple[Slots, Ints]:
        """See `Reader.take`; of parts without sequences, the first chunk is mapped."""
        if all(a == b for _, a, b in parts):
            for segment, _, _ in parts:
                entry = segment.plan.chunks[segment.place[:1] if segment.n else slice(1)]
                self._slots_of(self._chunks_of(segment.plan, entry))
            return together([])
        take = self._take_in_order if self._in_place else self._take_of_window
        slots, index = together([take(part) for part in parts])
        if self._whole and not self._cold and (now := time.perf_counter()) >= self._look_at:
            self._look(slots, index, now)
        return slots, index

    def finds(self, ordinals: Ints) -> bool:
        """Return whether the page cache holds the sequences ``ordinals``, judged by a sample of pages.

        The ordinals are ascending in the order of the corpus, arbitrary in a whole shuffle. If not, call
        `take_ordinals`.
        """
        if self._cold or self.forced or not len(ordinals):
            return False
        if self._in_place:
            return self._there(int(ordinals[0]), int(ordinals[-1]))
        if (now := time.perf_counter()) >= self._look_at:
            self._look(*self.in_files(ordinals), now)
        return not self._cold

    def take_ordinals(self, ordinals: Ints) -> tuple[Slots, Ints]:
        """Return slots and indices as `take` does, of sequences that the page cache may lack."""
        if self._in_place and len(ordinals):
            return self._blocks_in_order(ordinals)
        return self.in_files(ordinals)

    def in_files(self, ordinals: Ints) -> tuple[Slots, Ints]:
        """Return slots and indices of sequences in the mapped chunks."""
        starts = self._timeline.chunk_table.starts
        chunks = np.searchsorted(starts, ordinals, side="right") - 1
        return self._slots_of(chunks), ordinals - starts[chunks]

    def stage(self, slots: Slots, index: Ints) -> _native.Staged:
        """See `Staging.stage`."""
        return self._chunks.stage(self._disk(), slots, index, None, self._kept())

    def stage_again(self, slots: Slots, index: Ints) -> _native.Staged | None:
        """Switch to reading everything past the mapping if a file was truncated, and stage sequences that could not be
        copied.

        Return None if no file was truncated: then the data was overwritten, and none of it can be trusted.
        """
        known = [file for file, number in self._files.values() if number is not None]
        if not any(_is_cut(file) for file in known):
            return None
        if not self.forced:
            self.forced, self._files = True, {}
            self._fetcher = None
            for file in known:
                self._know(file)
        return self.stage(slots, index)

    def settle(self, staged: _native.Staged, ids: Ints) -> dict[int, DataError]:
        """See `Staging.settle`."""
        began = time.perf_counter()
        faults = staged.faults()
        waited = time.perf_counter() - began
        self._stats.wait_seconds += waited
        _, missing, nbytes = staged.found()
        self._stats.disk_bytes += nbytes
        if missing:
            self.waits.add(waited, self._stats.disk_bytes)
        self._stats.peak_bytes = max(self._stats.peak_bytes, self._disk().memory)
        self._calm = 0 if missing else self._calm + 1
        if self._whole and self._calm >= _CALM_MINIBATCHES:
            self._cold = False
        return {fault[0]: self._error(fault, int(ids[fault[0]])) for fault in faults}

    def holds(self, plan: WindowPlan) -> bool:
        """See `Reader.holds`."""
        return self._whole or self._in_place or plan.key in self._plans

    def errors(self, slots: Slots, index: Ints) -> dict[int, DataError]:
        """See `Reader.errors`. Unreadable sequences of stores are only detected while reading, those of other formats
        (nulls, say) when a chunk is mapped."""
        return errors_among(self._errors, slots, index)

    def keep(self, plans: list[WindowPlan], upcoming: Upcoming | None) -> None:
        """See `Reader.keep`."""
        if self._whole:
            return
        if self._in_place:
            if upcoming is not None:
                self._wraps = upcoming.look() is not None
            return
        wanted = {plan.key for plan in plans}
        if not self._plans.keys() <= wanted:
            for key in [key for key in self._plans if key not in wanted]:
                del self._plans[key]
            needed = {int(u) for plan in plans for u in plan.chunks}
            self._drop([u for u, unit in self._units.items() if unit.slot is not None and u not in needed])
        if upcoming is not None and self._budget_bytes > 0:
            try:
                self._fetch_ahead(upcoming)
            except Exception as error:
                # Raised when the data is needed: what comes before it is valid.
                _log.debug("%s: not read ahead: %s", self._corpus.name, error)

    def read_on(self, upcoming: Upcoming) -> None:
        """Do nothing: all that there is room for has been requested."""

    def reset(self) -> None:
        """See `Reader.reset`."""
        self._drop([u for u, unit in self._units.items() if unit.slot is None])

    def close(self) -> None:
        """See `Reader.close`."""
        self._plans.clear()
        self._behind.clear()
        self._drop(list(self._units))
        self._chunks.keep(set())
        self._mapped[:] = -1
        self._unknown = len(self._mapped)
        self._files.clear()
        self._errors.clear()
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
            return LEAST_AHEAD_BYTES
        return min(window.bytes, int(self._table.bytes.sum()))

    def _know(self, file: MappedFile) -> None:
        """Add a file to the fetcher."""
        if file.address in self._files:
            return
        try:
            # The shares of all processes lie in the same blocks: one process reads each, and the others find it in the
            # page cache. In a whole shuffle, every process reads other sequences.
            share = self.shared and not self._whole
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

    def _slots_of(self, chunks: Ints) -> Slots:
        """Return the slots of the mapped ``chunks``, mapping them if necessary."""
        slots = self._mapped[chunks]
        if len(slots) and slots.min() < 0:
            missing = distinct(chunks[slots < 0]).tolist()
            soon = range(missing[-1] + 1, min(missing[-1] + 1 + _SOON, len(self._mapped))) if self._in_place else ()
            for file in files_of(self._corpus, [*missing, *soon]):
                self._know(file)
            for chunk in missing:
                began = time.perf_counter()
                views = self._sample = self._corpus.read(chunk)
                slot = self._chunks.add(views)
                if views.errors:
                    self._errors[slot] = views
                self._mapped[chunk] = slot  # last, so that after an interrupt it is added again, with its errors
                self._unknown -= 1
                self._stats.chunks_read += 1
                self._stats.read_seconds += time.perf_counter() - began
            slots = self._mapped[chunks]
        return slots.astype(np.uint32)

    def _chunks_of(self, plan: WindowPlan, entries: Ints) -> Ints:
        """Return the chunks that entries of a plan are, or are blocks of."""
        if self._in_place and self._timeline.blocks is None:
            return entries
        chunks: Ints = self._chunk_of[entries]
        return chunks

    def _from_files(self, part: SegmentSlice) -> tuple[Slots, Ints]:
        """Return slots and indices of the sequences of ``part`` in the mapped chunks."""
        segment, a, b = part
        if segment.held is not self._in_file:
            if self._unknown and not (self._in_place and int(segment.place[-1]) - int(segment.place[0]) < _SOON):
                # Map chunks as they are needed: a segment may span all chunks of a large store.
                return self._views(segment, slice(a, b))
            segment.slots, segment.taken = self._views(segment, slice(None))
            segment.held = self._in_file
        assert segment.slots is not None
        assert segment.taken is not None
        return segment.slots[a:b], segment.taken[a:b]

    def _views(self, segment: Segment, which: slice) -> tuple[Slots, Ints]:
        entries = segment.plan.chunks[segment.place[which]]
        chunks = self._chunks_of(segment.plan, entries)
        index = segment.index[which]
        return self._slots_of(chunks), index if chunks is entries else index + self._first[entries]

    def _kept(self) -> list[int]:
        """Return, for each stream, a bit mask of parts that the page cache should keep, as each would cost another
        read.

        That is everything if it fits well, nobody has said how much memory to take, and it is worth it: where the disk
        is slow, and in a whole shuffle of sequences that are read with their neighbours. Else small rows, and the
        offsets of sequences and rows, as far as all of them fit; estimated from one chunk.
        """
        if self._keep is None or (self._keeps_all is None and self.waits.slow):
            chunk = self._sample
            assert chunk is not None
            total_bytes = int(self._table.bytes.sum())
            scattered = self._whole and total_bytes <= _NEAR_BYTES * self._timeline.table.total_sequences
            if scattered or self.waits.slow:
                self._keeps_all = self._whole_window and fits_page_cache(total_bytes)
            if self._keeps_all:
                self._keep = [_ALL] * len(chunk.values)
                return self._keep
            total = self._timeline.table.total_sequences / max(chunk.num_sequences, 1)
            room = LEAST_AHEAD_BYTES
            if self._whole:
                room = max(room, (available() or 0) // 16)
            pieces = []
            for number, value in enumerate(chunk.values.values()):
                rows, bounds = _sizes(value)
                pieces.append((bounds * total, number, 2))
                if rows <= _SMALL_ROW_BYTES * chunk.num_sequences:
                    pieces.append((rows * total, number, 1))
            self._keep = [0] * len(chunk.values)
            for nbytes, number, bit in sorted(pieces):
                room -= int(nbytes)
                if room >= 0:
                    self._keep[number] |= bit
        return self._keep

    def _lacks(self, units: Ints, most: int) -> bool:
        """Return whether any of at most ``most`` of ``units`` are missing from the page cache."""
        if self.forced:
            return True
        if len(units) > most:
            units = units[(2 * np.arange(most) + 1) * len(units) // (2 * most)]
        slots = self._slots_of(self._chunk_of[units])
        counts = self._table.sequences[units]
        some = counts > 0
        return (
            self._chunks.lacking(self._disk(), slots[some], self._first[units][some], counts[some], most=most, pages=1)
            > 0
        )

    # ---- blocks -----------------------------------------------------------------------------------

    def _begin(self, units: Iterable[int]) -> None:
        """Begin to fetch those of ``units`` that have sequences and are not being fetched."""
        group: list[int] = []
        nbytes = 0
        for unit in dict.fromkeys(units):  # two arcs may need parts of one block
            if unit in self._units or not self._table.sequences[unit]:
                continue
            group.append(unit)
            nbytes += int(self._table.bytes[unit])
            if nbytes >= _GROUP_BYTES or len(group) == _GROUP_UNITS:
                self._begin_group(group, nbytes)
                group, nbytes = [], 0
        if group:
            self._begin_group(group, nbytes)

    def _begin_group(self, units: list[int], nbytes: int) -> None:
        ids = np.array(units, np.int64)
        slots = self._slots_of(self._chunk_of[ids])
        staged = self._chunks.stage(self._disk(), slots, self._first[ids], self._table.sequences[ids], self._kept())
        group = _BlockGroup(staged, nbytes, len(units))
        for run, unit in enumerate(units):
            self._units[unit] = _Unit(group, run)
        self._ahead += nbytes
        self._stats.held_bytes += nbytes
        self._stats.peak_bytes = max(self._stats.peak_bytes, self._stats.held_bytes)

    def _slot(self, unit: int) -> int:
        """Wait for a block that is being fetched; return its slot, or -1 if it cannot be read as a whole."""
        found = self._units[unit]
        if found.slot is None:
            group = found.group
            if group.faulty is None:
                began = time.perf_counter()
                faulty = {fault[0] for fault in group.staged.faults()}
                waited = time.perf_counter() - began
                self._stats.wait_seconds += waited
                _, missing, nbytes = group.staged.found()
                self._stats.disk_bytes += nbytes
                if missing:
                    self.waits.add(waited, self._stats.disk_bytes)
                self._calm = 0 if missing else self._calm + group.bytes
                group.faulty = faulty
            self._ahead -= int(self._table.bytes[unit])
            if found.run in group.faulty:
                found.slot = -1
                self._faulty += 1
            else:
                found.slot = self._chunks.adopt(group.staged, found.run)
                whole = self._errors.get(int(self._mapped[self._chunk_of[unit]]))
                if whole is not None:
                    first = int(self._first[unit])
                    self._errors[found.slot] = whole.slice(first, first + int(self._table.sequences[unit]))
                self._stats.chunks_read += 1
        return found.slot

    def _drop(self, units: Iterable[int]) -> None:
        for number in units:
            unit = self._units.pop(number)
            if unit.slot is None:
                self._ahead -= int(self._table.bytes[number])
            elif unit.slot == -1:
                self._faulty -= 1
            else:
                self._errors.pop(unit.slot, None)
                self._chunks.drop(unit.slot)
            unit.group.left -= 1
            if unit.group.left == 0:
                if self.shared and unit.slot is not None:
                    unit.group.staged.forget()
                self._stats.held_bytes -= unit.group.bytes

    # ---- windows, and whole shuffles --------------------------------------------------------------

    def _take_of_window(self, part: SegmentSlice) -> tuple[Slots, Ints]:
        segment, a, b = part
        if self._whole:
            if segment.held is self._in_file:  # fast path, once all chunks are known
                assert segment.slots is not None
                assert segment.taken is not None
                return segment.slots[a:b], segment.taken[a:b]
            return self._from_files(part)
        plan = segment.plan
        held = self._plans.get(plan.key) or self._hold(plan)
        if segment.held is not held:
            segment.slots = held.slots[segment.place]
            segment.taken = segment.index + held.base[segment.place]
            segment.held = held
        assert segment.slots is not None
        assert segment.taken is not None
        return segment.slots[a:b], segment.taken[a:b]

    def _hold(self, plan: WindowPlan) -> _Held:
        units = plan.chunks
        slots, base = self._slots_of(self._chunk_of[units]), self._first[units]
        ids = units.tolist()
        if any(unit in self._units for unit in ids) or self._lacks(units, _LOOK_WINDOW):
            self._begin(ids)
            for place, unit in enumerate(ids):
                if unit in self._units:
                    slot = self._slot(unit)
                    if slot >= 0:
                        slots[place], base[place] = slot, 0
        held = _Held(plan, slots, base)
        self._plans[plan.key] = held
        return held

    def _fetch_ahead(self, upcoming: Upcoming) -> None:
        """Begin to fetch the next blocks that there is room for, if the page cache lacks some of them."""
        room = self._budget_bytes - self._ahead
        wanted: list[int] = []
        while upcoming.passed < len(self._table):  # the axis may be endless, but one sweep is the whole corpus
            unit = upcoming.look()
            if unit is None or (self._whole_window and upcoming.window > 0):
                break
            room -= int(self._table.bytes[unit])
            if room < 0 and not self._whole_window:
                break
            wanted.append(unit)
            upcoming.advance()
        if wanted and self._lacks(np.array(wanted, np.int64), _LOOK_WINDOW):
            self._begin(wanted)

    def _look(self, slots: Slots, index: Ints, now: float) -> None:
        """Check whether sequences of a whole shuffle have left the page cache."""
        self._look_at = now + _LOOK_EVERY_S
        if self.forced or self._chunks.lacking(self._disk(), slots, index, None, most=_LOOK_AT, pages=1):
            self._cold, self._calm = True, 0

    # ---- in the order of the corpus ---------------------------------------------------------------

    def _units_of(self, ordinals: Ints) -> Ints:
        units: Ints = np.searchsorted(self._table.starts, ordinals, side="right") - 1
        return units

    def _take_in_order(self, part: SegmentSlice) -> tuple[Slots, Ints]:
        segment, a, b = part
        if not self._cold:
            if segment is self._covered:
                assert segment.slots is not None
                assert segment.taken is not None
                return segment.slots[a:b], segment.taken[a:b]
            if self._there_in_order(segment, a, b):
                return self._from_files(part)
        return self._blocks_in_order(segment.ordinals[a:b])

    def _blocks_in_order(self, ordinals: Ints) -> tuple[Slots, Ints]:
        units = self._units_of(ordinals)
        needed = distinct(units).tolist()
        if any(unit not in self._units for unit in needed):
            # A seek, or the first read: fetch what is needed now before anything ahead of it.
            self._begin(needed)
            for unit in needed:
                if unit in self._units:
                    self._slot(unit)
        self._fetch_on(needed[-1])
        slots, index = np.empty(len(ordinals), np.uint32), np.empty(len(ordinals), np.int64)
        for unit in needed:
            at = units == unit
            slot = self._slot(unit)
            index[at] = ordinals[at] - self._table.starts[unit]
            if slot < 0:
                slots[at] = self._slots_of(self._chunk_of[unit : unit + 1])[0]
                index[at] += self._first[unit]
            else:
                slots[at] = slot
            if unit not in self._behind:
                self._behind.append(unit)
        self._let_go(set(needed))
        if self._calm >= _CALM_BYTES and not self.forced:
            self._cold = False
        return slots, index

    def _there_in_order(self, segment: Segment, a: int, b: int) -> bool:
        """Apply `_there` to sequences ``a`` to ``b - 1`` of a segment, and remember a segment that is there as a
        whole."""
        there = self._there(int(segment.ordinals[a]), int(segment.ordinals[b - 1]))
        low, high = self._seen
        whole = segment.held is self._in_file and low <= segment.ordinals[0] and segment.ordinals[-1] < high
        self._covered = segment if there and whole else None
        return there

    def _there(self, first: int, last: int) -> bool:
        """Return whether the page cache holds sequences ``first`` to ``last``, or did when last checked."""
        low, high = self._seen
        return (low <= first and last < high) or not self._lacking_in_order(first, last)

    def _lacking_in_order(self, first: int, last: int) -> bool:
        """Return whether the page cache lacks some of the blocks from sequence ``first`` to beyond ``last``.

        It looks ahead, so that missing blocks are fetched before they are needed: at `_LOOK_UNITS` blocks, again after
        half of them.
        """
        starts = self._table.starts
        low, high = (int(np.searchsorted(starts, ordinal, side="right")) - 1 for ordinal in (first, last))
        end = min(max(high + 1, low + _LOOK_UNITS), len(self._table))
        self._seen = (int(starts[low]), int(starts[max(high + 1, (low + end) // 2)]))
        if not self._lacks(np.arange(low, end), 8):
            return False
        self._cold, self._calm, self._next, self._seen = True, 0, high + 1, (0, 0)
        return True

    def _fetch_on(self, last: int) -> None:
        """Begin to fetch the blocks after number ``last`` that there is room for, in whole groups."""
        total = len(self._table)
        ahead = (self._next - last - 1) % total
        if ahead > len(self._units):  # the position has jumped
            self._next = last + 1
        room = self._budget_bytes - self._ahead
        while room >= min(_GROUP_BYTES, self._budget_bytes):
            group: list[int] = []
            nbytes, start = 0, self._next
            while nbytes < _GROUP_BYTES and len(group) < _GROUP_UNITS:
                if self._next >= total:
                    if not self._wraps:
                        break
                    self._next = 0
                unit = self._next
                if unit in self._units:  # the whole corpus is held
                    break
                self._next += 1
                group.append(unit)
                nbytes += int(self._table.bytes[unit])
            if not group or nbytes > room:
                self._next = start
                return
            try:
                self._begin(group)
            except Exception as error:
                # Raised when the data is needed: what comes before it is valid.
                _log.debug("%s: not read ahead: %s", self._corpus.name, error)
                self._next = start
                return
            room -= nbytes

    def _let_go(self, needed: set[int]) -> None:
        held = sum(int(self._table.bytes[u]) for u in self._behind)
        while self._behind and held > _BEHIND_BYTES and self._behind[0] not in needed:
            unit = self._behind.popleft()
            held -= int(self._table.bytes[unit])
            if unit in self._units:
                self._drop([unit])

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
