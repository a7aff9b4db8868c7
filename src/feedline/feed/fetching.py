"""Stores larger than memory: what the page cache does not hold is fetched ahead of need, and let go behind it.

Sequences of a store are views of mapped files. Where the page cache holds them, they are copied from there at memory
speed, and nothing is done ahead. Where it does not, every touch would wait for the disk, a page at a time; so native
threads (native/include/feedline/fetch.h) bring them into memory of our own first, past the page cache:

- of a *window*, its blocks, and those of the next window within the budget: held until the window is done;
- in the *order of the corpus*, blocks of it, as far ahead as the budget goes;
- of a *whole* shuffle, the sequences of the minibatches to come, each by itself (`CopyAhead` asks for them).

Processes of one machine that share the data read blocks through the page cache after all, so that each comes from the
disk once, and have it drop what they are done with.

Which of the two applies is found out while reading: a few pages are looked at every now and then, and looking costs a
microsecond. Order and values are the same either way, and so are errors: what cannot be fetched is tried sequence by
sequence, so that only those are lost whose own bytes cannot be read.
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
from feedline.data.value import SparseValue
from feedline.errors import DataError
from feedline.feed.assembly import ChunkSet
from feedline.feed.prefetch import LEAST_AHEAD, Reader, SegmentSlice, Stats, Upcoming, together
from feedline.feed.protocol import Deserializer, MappedFile
from feedline.feed.timeline import BlockOrder, Segment, Timeline, WindowPlan
from feedline.feed.timeline.blocks import Blocks
from feedline.feed.waiting import BLOCKS, NOT_AHEAD, WHOLE, Waits
from feedline.feed.workers.limits import available

Ints = NDArray[np.int64]
Slots = NDArray[np.uint32]

# Reads in flight: random reads gain up to here (a virtual disk; 32: 0.9 of it, 512: 1.0).
_DEPTH = 128
# Blocks are handed over to the threads in groups of this many bytes, or blocks.
_GROUP_BYTES = 4 << 20
_GROUP_UNITS = 64
# How often a whole shuffle that finds everything in the page cache looks again, in seconds, and at how many sequences.
_LOOK_EVERY = 0.005
_LOOK_AT = 4
# In order: blocks looked at together.
_LOOK_UNITS = 32
# Blocks of a window that are looked at.
_LOOK_WINDOW = 16
# How many minibatches, or bytes in order, must have been in the page cache before nothing more is fetched.
_CALM_MINIBATCHES = 16
_CALM_BYTES = 32 << 20
# Rows up to this size are worth to be found in the page cache: the page that has one has many.
_SMALL_ROW = 512
# In order: chunks whose heads are asked for before they are needed.
_SOON = 4
# Blocks in order that are kept behind the place in use, for minibatches that were copied ahead and dropped.
_BEHIND_BYTES = 8 << 20

_log = logging.getLogger("feedline")


class _BlockGroup:
    """Blocks that are fetched together.

    Attributes:
        staged: what fetches them.
        bytes: of all of them.
        left: how many of them are still wanted.
        faulty: those that cannot be read as a whole, once that is known.
    """

    __slots__ = ("bytes", "faulty", "left", "staged")

    def __init__(self, staged: _native.Staged, nbytes: int, count: int) -> None:
        self.staged, self.bytes, self.left = staged, nbytes, count
        self.faulty: set[int] | None = None


class _Unit:
    """One block, on its way or there.

    Attributes:
        group: what it is fetched with.
        run: its number there.
        slot: where it is held; -1: it cannot be read as a whole; None: not taken in yet.
    """

    __slots__ = ("group", "run", "slot")

    def __init__(self, group: _BlockGroup, run: int) -> None:
        self.group, self.run = group, run
        self.slot: int | None = None


class _Held(NamedTuple):
    """A window in memory: for each of its blocks the slot, and what is added to indices in the block."""

    plan: WindowPlan | None
    slots: Slots
    base: Ints


def _is_cut(file: MappedFile) -> bool:
    try:
        return os.stat(file.path).st_size < file.size
    except OSError:
        return True


def _sizes(value: Value) -> tuple[int, int]:
    """Bytes of the rows of a value, or of its indices and values; bytes of what says where they begin."""
    bounds = 0 if value.one_sample_each else value.offsets.nbytes
    if isinstance(value, SparseValue):
        bounds += value.indptr.nbytes
    return value.nbytes - bounds, bounds


class FetchingReader(Reader):
    """See the module.

    Args:
        corpus: where from; its chunks are views of mapped files, see `Deserializer.files`.
        timeline: the order.
        chunks: where to.
        stats: what to count in.
        budget: bytes that may be fetched ahead; None: the next window, or `LEAST_AHEAD`.

    Attributes:
        backend: of the native fetcher, until it is made: ``"any"``, ``"io_uring"`` or ``"threads"``.
        direct: read past the page cache.
        forced: take nothing from the page cache, as if it were always empty.
        waits: tells of long waits.
    """

    def __init__(
        self, corpus: Deserializer, timeline: Timeline, chunks: ChunkSet, stats: Stats, budget: int | None
    ) -> None:
        self._corpus, self._timeline, self._chunks, self._stats = corpus, timeline, chunks, stats
        self._whole = timeline.shuffle and timeline.window is None
        self._in_place = not timeline.shuffle
        self._whole_window = budget is None
        self._budget = LEAST_AHEAD if budget is None else budget
        self.backend, self.direct, self.forced = "any", True, False
        lies_in = next(iter(corpus.paths()), corpus.name)
        self.waits = Waits(lies_in, WHOLE if self._whole else BLOCKS if budget is None else NOT_AHEAD)
        # A unit is what is fetched as one: an entry of the timeline's table, or in order a block of it.
        blocks = timeline.blocks if isinstance(timeline, BlockOrder) else None
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
        self._fetcher: _native.Fetcher | None = None
        self._files: dict[int, tuple[MappedFile, int | None]] = {}  # by address, with numbers of those it could open
        self._sample: Chunk | None = None  # some chunk: what pieces sequences are made of
        self._keep: list[int] | None = None
        self._units: dict[int, _Unit] = {}
        self._ahead = 0  # bytes of those that are not taken in yet
        self._plans: dict[tuple[int, int], _Held] = {}
        self._in_file = _Held(None, np.empty(0, np.uint32), np.empty(0, np.int64))  # marks segments of mapped slots
        self._next = 0  # in order: the block behind the last that was asked for
        self._wraps = False  # in order: whether another sweep follows
        self._behind: deque[int] = deque()  # in order: blocks taken in, oldest first
        self._cold = False
        self._calm = 0  # how long everything has been found in the page cache, while fetching
        self._look_at = 0.0
        self._covered: Segment | None = None  # in order: one that lies in there, whose chunks are known
        self._seen = (0, 0)  # in order: the sequences, from and to, for which that need not be found out again
        self._faulty = 0  # blocks held that cannot be read as a whole

    # ---- for the source ---------------------------------------------------------------------------

    @property
    def scattered(self) -> bool:
        """Whether sequences may be taken from anywhere at any time: there is no window to be held."""
        return self._whole or self._in_place

    @property
    def stages(self) -> bool:
        """Whether sequences are to be staged, one by one, before they are copied."""
        return self._faulty > 0 or (self._whole and (self._cold or self.forced))

    def prepare(self, segment: Segment) -> None:
        """Know the chunk of the segment's first sequence."""
        entry = segment.plan.chunks[segment.place[:1]]
        self._slots_of(self._chunks_of(segment.plan, entry))

    def prepared(self, segment: Segment) -> bool:
        """Whether `take` has nothing to wait for; only of use for windows."""
        return self.scattered or self.holds(segment.plan)

    def ready(self, parts: Sequence[SegmentSlice]) -> bool:
        """Whether `take` has nothing to wait for."""
        if self._in_place and (self._cold or self.forced):
            units = (
                self._units.get(u) for s, a, b in parts for u in np.unique(self._units_of(s.ordinals[a:b])).tolist()
            )
            return all(unit is not None and unit.group.staged.done for unit in units)
        return all(self.prepared(segment) for segment, _, _ in parts)

    def take(self, parts: Sequence[SegmentSlice]) -> tuple[Slots, Ints]:
        """Hold what ``parts`` need; returns where each of their sequences is: a slot, and an index there."""
        take = self._take_in_order if self._in_place else self._take_of_window
        slots, index = take(parts[0]) if len(parts) == 1 else together([take(part) for part in parts])
        if self._whole and not self._cold and (now := time.perf_counter()) >= self._look_at:
            self._look(slots, index, now)
        return slots, index

    def finds(self, ordinals: Ints) -> bool:
        """Whether the page cache holds the sequences of these numbers in the corpus, as far as some looks tell.

        Rising ones in the order of the corpus, any of a whole shuffle. If not, `take_ordinals` is to be asked for them.
        """
        if self._cold or self.forced or not len(ordinals):
            return False
        if self._in_place:
            return self._there(int(ordinals[0]), int(ordinals[-1]))
        if (now := time.perf_counter()) >= self._look_at:
            self._look(*self.in_files(ordinals), now)
        return not self._cold

    def take_ordinals(self, ordinals: Ints) -> tuple[Slots, Ints]:
        """As `take`, of sequences that the page cache may lack."""
        if self._in_place and len(ordinals):
            return self._blocks_in_order(ordinals)
        return self.in_files(ordinals)

    def in_files(self, ordinals: Ints) -> tuple[Slots, Ints]:
        """Where sequences are in the views of their chunks."""
        starts = self._timeline.chunk_table.starts
        chunks = np.searchsorted(starts, ordinals, side="right") - 1
        return self._slots_of(chunks), ordinals - starts[chunks]

    def stage(self, slots: Slots, index: Ints) -> _native.Staged:
        """Begin to bring sequences into memory, each by itself."""
        return self._chunks.stage(self._disk(), slots, index, None, self._kept())

    def stage_again(self, slots: Slots, index: Ints) -> _native.Staged | None:
        """Read sequences that could not be copied, and everything from now on, past memory, if a file was cut.

        Where nothing was cut, what cannot be copied was written to, and no part of it can be trusted.
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
        """Wait for sequences that were staged; returns why some of them, with ordinals ``ids``, cannot be read."""
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
        """Whether all blocks of a window are in memory for it."""
        return self.scattered or (plan.sweep, plan.number) in self._plans

    def chunk(self, slot: int) -> Chunk | None:
        """None: chunks of stores have no unreadable sequences before these are read."""
        return None

    @property
    def has_errors(self) -> bool:
        """Never; see `chunk`."""
        return False

    def keep(self, plans: list[WindowPlan], upcoming: Upcoming | None) -> None:
        """Let go of all windows but ``plans``, and fetch ahead in ``upcoming``."""
        if self._whole:
            return
        if self._in_place:
            if upcoming is not None:
                self._wraps = upcoming.look() is not None
            return
        wanted = {(plan.sweep, plan.number) for plan in plans}
        if not self._plans.keys() <= wanted:
            for key in [key for key in self._plans if key not in wanted]:
                del self._plans[key]
            needed = {int(u) for plan in plans for u in plan.chunks}
            self._drop([u for u, unit in self._units.items() if unit.slot is not None and u not in needed])
        if upcoming is not None and self._budget > 0:
            try:
                self._fetch_ahead(upcoming)
            except Exception as error:
                # What cannot be read is told when it is needed: what comes before it is still good.
                _log.debug("%s: not read ahead: %s", self._corpus.name, error)

    def read_on(self, upcoming: Upcoming) -> None:
        """Nothing: what there is room for has been asked for."""

    def reset(self) -> None:
        """Forget what was fetched ahead: the position has jumped."""
        self._drop([u for u, unit in self._units.items() if unit.slot is None])

    def close(self) -> None:
        """Let everything go and end the threads."""
        self._plans.clear()
        self._behind.clear()
        self._drop(list(self._units))
        self._chunks.keep(set())
        self._mapped[:] = -1
        self._unknown = len(self._mapped)
        self._files.clear()
        self._fetcher = self._sample = None

    # ---- mapped files -----------------------------------------------------------------------------

    def _disk(self) -> _native.Fetcher:
        if self._fetcher is None:
            keep = self._budget if not self._whole_window else max(self._budget, self._window_bytes())
            self._fetcher = _native.Fetcher(self.backend, _DEPTH, keep)
        return self._fetcher

    def _window_bytes(self) -> int:
        window = self._timeline.window
        if window is None or window.bytes is None:
            return LEAST_AHEAD
        return min(window.bytes, int(self._table.bytes.sum()))

    def _know(self, file: MappedFile) -> None:
        """Make a file known to the fetcher."""
        if file.address in self._files:
            return
        try:
            # The shares of all processes lie in the same blocks: each is read once, and found in the page cache by the
            # others. Sequences of a whole shuffle are a process's own.
            share = self.shared and not self._whole
            number = self._disk().add(
                file.path, file.size, file.address, file.identity, self.direct, not self.forced, file.first, share
            )
        except OSError as error:
            number = None
            _log.warning(
                "%s: cannot be opened a second time (%s), so it is read through its map, a page at a time where it is "
                "not in memory; raise the limit on descriptors (ulimit -n) if that is what is missing",
                file.path,
                error.strerror,
            )
        self._files[file.address] = file, number

    def _slots_of(self, chunks: Ints) -> Slots:
        """Slots of the views of ``chunks``."""
        slots = self._mapped[chunks]
        if len(slots) and slots.min() < 0:
            missing = np.unique(chunks[slots < 0]).tolist()
            soon = range(missing[-1] + 1, min(missing[-1] + 1 + _SOON, len(self._mapped))) if self._in_place else ()
            for file in self._corpus.files([*missing, *soon]):
                self._know(file)
            for chunk in missing:
                began = time.perf_counter()
                views = self._sample = self._corpus.read(chunk)
                self._mapped[chunk] = self._chunks.add(views)
                self._unknown -= 1
                self._stats.chunks_read += 1
                self._stats.read_seconds += time.perf_counter() - began
            slots = self._mapped[chunks]
        return slots.astype(np.uint32)

    def _chunks_of(self, plan: WindowPlan, entries: Ints) -> Ints:
        """The chunks that entries of a plan are, or are parts of."""
        if self._in_place and not isinstance(self._timeline, BlockOrder):
            return entries
        return self._chunk_of[entries]

    def _from_files(self, part: SegmentSlice) -> tuple[Slots, Ints]:
        """Where the sequences of ``part`` are in the views of their chunks."""
        segment, a, b = part
        if segment.held is not self._in_file:
            if self._unknown and not (self._in_place and int(segment.place[-1]) - int(segment.place[0]) < _SOON):
                # Chunk by chunk as they are needed: those of a segment may be all of a large store.
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
        """For each stream, which of its pieces the page cache is to keep: those that would cost a read each again.

        Small rows, and the bounds of sequences and rows, as far as all of them fit; by the sizes of one chunk.
        """
        if self._keep is None:
            chunk = self._sample
            assert chunk is not None
            total = self._timeline.table.total_sequences / max(chunk.num_sequences, 1)
            room = LEAST_AHEAD
            if self._whole:
                room = max(room, (available() or 0) // 16)
            pieces = []
            for number, value in enumerate(chunk.values.values()):
                rows, bounds = _sizes(value)
                pieces.append((bounds * total, number, 2))
                if rows <= _SMALL_ROW * chunk.num_sequences:
                    pieces.append((rows * total, number, 1))
            self._keep = [0] * len(chunk.values)
            for nbytes, number, bit in sorted(pieces):
                room -= int(nbytes)
                if room >= 0:
                    self._keep[number] |= bit
        return self._keep

    def _lacks(self, units: Ints, most: int) -> bool:
        """Whether some of at most ``most`` of ``units`` are not in the page cache."""
        if self.forced:
            return True
        if len(units) > most:
            units = units[(2 * np.arange(most) + 1) * len(units) // (2 * most)]
        slots = self._slots_of(self._chunk_of[units])
        counts = self._table.sequences[units]
        some = counts > 0
        return self._chunks.lacking(self._disk(), slots[some], self._first[units][some], counts[some], most, 1) > 0

    # ---- blocks -----------------------------------------------------------------------------------

    def _begin(self, units: Iterable[int]) -> None:
        """Have ``units`` fetched, those that have sequences and are not on their way."""
        group: list[int] = []
        nbytes = 0
        for unit in units:
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
        """Where a block is held, that was begun; -1 if it cannot be read as a whole."""
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
                self._chunks.drop(unit.slot)
            unit.group.left -= 1
            if unit.group.left == 0:
                if self.shared and unit.slot is not None:
                    unit.group.staged.forget()
                self._stats.held_bytes -= unit.group.bytes

    # ---- windows, and the whole -------------------------------------------------------------------

    def _take_of_window(self, part: SegmentSlice) -> tuple[Slots, Ints]:
        segment, a, b = part
        if self._whole:
            if segment.held is self._in_file:  # once all chunks are known; the shortest way
                assert segment.slots is not None
                assert segment.taken is not None
                return segment.slots[a:b], segment.taken[a:b]
            return self._from_files(part)
        plan = segment.plan
        held = self._plans.get((plan.sweep, plan.number)) or self._hold(plan)
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
        self._plans[plan.sweep, plan.number] = held
        return held

    def _fetch_ahead(self, upcoming: Upcoming) -> None:
        """Ask for the blocks to come that there is room for, if some of them are not in the page cache."""
        room = self._budget - self._ahead
        wanted: list[int] = []
        while upcoming.passed < len(self._table):  # the axis has no end, but a sweep ahead is the whole corpus
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
        """Find out whether sequences of a whole shuffle have left the page cache."""
        self._look_at = now + _LOOK_EVERY
        if self.forced or self._chunks.lacking(self._disk(), slots, index, None, _LOOK_AT, 1):
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
        needed = np.unique(units).tolist()
        if any(unit not in self._units for unit in needed):
            # The position has jumped, or is the first: what is needed now does not share the disk with what is not.
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
        """As `_there`, of sequences ``a`` to ``b - 1`` of a segment; notes a segment that is there as a whole."""
        there = self._there(int(segment.ordinals[a]), int(segment.ordinals[b - 1]))
        low, high = self._seen
        whole = segment.held is self._in_file and low <= segment.ordinals[0] and segment.ordinals[-1] < high
        self._covered = segment if there and whole else None
        return there

    def _there(self, first: int, last: int) -> bool:
        """Whether the page cache holds sequences ``first`` to ``last``, or did when it was last asked."""
        low, high = self._seen
        return (low <= first and last < high) or not self._lacking_in_order(first, last)

    def _lacking_in_order(self, first: int, last: int) -> bool:
        """Whether the page cache lacks some of the blocks from sequence ``first`` to some behind ``last``.

        Those ahead are fetched before they are needed, then. Looks at `_LOOK_UNITS` blocks, again behind half of them.
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
        """Ask for the blocks behind number ``last`` that there is room for, in whole groups."""
        total = len(self._table)
        ahead = (self._next - last - 1) % total
        if ahead > len(self._units):  # the position has jumped
            self._next = last + 1
        room = self._budget - self._ahead
        while room >= min(_GROUP_BYTES, self._budget):
            group: list[int] = []
            nbytes, start = 0, self._next
            while nbytes < _GROUP_BYTES and len(group) < _GROUP_UNITS:
                if self._next >= total:
                    if not self._wraps:
                        break
                    self._next = 0
                unit = self._next
                if unit in self._units:  # all the corpus is here
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
                # What cannot be read is told when it is needed: what comes before it is still good.
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
        skip = 'pass on_error="skip" to the source to go on without such sequences and list them'
        if number == 0:
            return DataError(
                "expected offsets that never fall and stay inside their chunk, got others",
                path=self._corpus.name,
                sequence=ordinal,
                stream=name,
                hint=f"the data is damaged: write it again, or {skip}",
            )
        what = "got its end: the file was cut" if number < 0 else f"got an error of the disk: {os.strerror(number)}"
        return DataError(
            f"expected bytes that can be read, {what}",
            path=path,
            byte=byte,
            sequence=ordinal,
            stream=name,
            hint=f"restore the file or write it again, then go on from the last state, or {skip}",
        )
