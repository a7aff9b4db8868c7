"""The reader of mapped files in the order of the corpus. It fetches the next blocks that the page cache lacks."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

import numpy as np

from feedline.feed.assembly import ChunkSet
from feedline.feed.packing.axis import SegmentSlice
from feedline.feed.protocol import Deserializer, Ints
from feedline.feed.reading.fetching_reader import FEW_CHUNKS, GROUP_BLOCKS, GROUP_BYTES, FetchingReader
from feedline.feed.reading.reader import Slots, Upcoming
from feedline.feed.reading.stats import Stats
from feedline.feed.timeline import Segment, Timeline, WindowPlan
from feedline.feed.timeline.block_order import Blocks
from feedline.feed.unique import distinct

# Number of blocks that one check for residency covers.
_LOOK_BLOCKS = 32
# Fetching stops once this many bytes in a row were in the page cache.
_WARM_BYTES = 32 << 20
# Bytes of past blocks that are kept, in case minibatches that were copied ahead are dropped.
_PAST_BYTES = 8 << 20

_log = logging.getLogger("feedline")


class SequentialReader(FetchingReader):
    """Fetches the next blocks, as far ahead as the budget allows, and keeps the last few."""

    def __init__(
        self, corpus: Deserializer, timeline: Timeline, chunks: ChunkSet, stats: Stats, budget_bytes: int | None
    ) -> None:
        super().__init__(corpus, timeline, chunks, stats, budget_bytes)
        if timeline.blocks is None:
            self._blocks = Blocks(timeline.table)
        self._next = 0  # the next block to fetch
        self._wraps = False  # whether another sweep follows
        self._past: deque[int] = deque()  # blocks that were used, oldest first
        self._cold = False
        self._covered: Segment | None = None  # a segment in the page cache whose slots are known
        self._checked_range = (0, 0)  # range of sequences that need not be checked again

    def ready(self, parts: Sequence[SegmentSlice]) -> bool:
        """See `Reader.ready`."""
        if not self._cold and not self.forced:
            return True
        numbers = (n for s, a, b in parts for n in distinct(self._blocks_of(s.ordinals[a:b])).tolist())
        return all((block := self._fetched.get(n)) is not None and block.group.staged.done for n in numbers)

    def finds(self, ordinals: Ints) -> bool:
        """Return whether the page cache holds the sequences ``ordinals``, ascending, judged by a sample of pages.

        If not, call `take_ordinals`.
        """
        if self._cold or self.forced or not len(ordinals):
            return False
        return self._in_cache(int(ordinals[0]), int(ordinals[-1]))

    def take_ordinals(self, ordinals: Ints) -> tuple[Slots, Ints]:
        """Return slots and indices as `take` does, of sequences that the page cache may lack."""
        return self._from_blocks(ordinals) if len(ordinals) else self.in_files(ordinals)

    def keep(self, plans: list[WindowPlan], upcoming: Upcoming | None) -> None:
        """See `Reader.keep`. There are no windows to release."""
        if upcoming is not None:
            self._wraps = upcoming.look() is not None

    def close(self) -> None:
        """See `Reader.close`."""
        self._past.clear()
        super().close()

    def _prepare(self, chunks: Ints) -> None:
        # The metadata of the chunks that follow is prefetched.
        last = int(chunks[-1])
        soon = np.arange(last + 1, min(last + 1 + FEW_CHUNKS, len(self._mapped)))
        super()._prepare(np.concatenate([chunks, soon]))

    def _take(self, part: SegmentSlice) -> tuple[Slots, Ints]:
        segment, a, b = part
        if not self._cold:
            if segment is self._covered:
                assert segment.slots is not None
                assert segment.taken is not None
                return segment.slots[a:b], segment.taken[a:b]
            if self._segment_in_cache(segment, a, b):
                return super()._take(part)
        return self._from_blocks(segment.ordinals[a:b])

    def _blocks_of(self, ordinals: Ints) -> Ints:
        """Return the number of the block of each sequence."""
        numbers: Ints = np.searchsorted(self._blocks.table.starts, ordinals, side="right") - 1
        return numbers

    def _from_blocks(self, ordinals: Ints) -> tuple[Slots, Ints]:
        """Return slots and indices of sequences in fetched blocks. Waits for missing blocks."""
        blocks, numbers = self._blocks, self._blocks_of(ordinals)
        needed = distinct(numbers).tolist()
        most = self._budget_bytes
        if any(number not in self._fetched for number in needed):
            # A seek, or the first read: fetch these blocks before any that are needed later, and few of those, as
            # making requests takes time that this minibatch waits for.
            most = min(most, 2 * GROUP_BYTES)  # room for a whole group, whose last block may exceed it
            self._fetch_blocks(needed)
            for number in needed:
                if number in self._fetched:
                    self._slot_of(number)
        self._fetch_on(needed[-1], most)
        slots, index = np.empty(len(ordinals), np.uint32), np.empty(len(ordinals), np.int64)
        for number in needed:
            at = numbers == number
            slot = self._slot_of(number)
            index[at] = ordinals[at] - blocks.table.starts[number]
            if slot < 0:
                slots[at] = self._slots_of(blocks.chunk[number : number + 1])[0]
                index[at] += blocks.first[number]
            else:
                slots[at] = slot
            if number not in self._past:
                self._past.append(number)
        self._drop_past(set(needed))
        if self._hits >= _WARM_BYTES and not self.forced:
            self._cold = False
        return slots, index

    def _segment_in_cache(self, segment: Segment, a: int, b: int) -> bool:
        """Return `_in_cache` for sequences ``a`` to ``b - 1`` of a segment. Remember a segment that the page cache
        holds as a whole."""
        in_cache = self._in_cache(int(segment.ordinals[a]), int(segment.ordinals[b - 1]))
        low, high = self._checked_range
        covers = segment.held is self._views and low <= segment.ordinals[0] and segment.ordinals[-1] < high
        self._covered = segment if in_cache and covers else None
        return in_cache

    def _in_cache(self, first: int, last: int) -> bool:
        """Return whether the page cache holds sequences ``first`` to ``last``, or held them when it was last
        checked."""
        low, high = self._checked_range
        return (low <= first and last < high) or not self._lacking(first, last)

    def _lacking(self, first: int, last: int) -> bool:
        """Return whether the page cache lacks some of the blocks from sequence ``first`` to beyond ``last``.

        It checks `_LOOK_BLOCKS` blocks, and again when half of them were used, so that missing blocks are fetched
        before they are needed.
        """
        starts = self._blocks.table.starts
        low, high = (int(np.searchsorted(starts, ordinal, side="right")) - 1 for ordinal in (first, last))
        end = min(max(high + 1, low + _LOOK_BLOCKS), len(self._blocks.table))
        self._checked_range = (int(starts[low]), int(starts[max(high + 1, (low + end) // 2)]))
        if not self._lacks(np.arange(low, end), 8):
            return False
        self._cold, self._hits, self._next, self._checked_range = True, 0, high + 1, (0, 0)
        return True

    def _fetch_on(self, last: int, most: int) -> None:
        """Begin to fetch as many of the blocks after number ``last`` as there is room for in ``most`` bytes, in whole
        groups."""
        table = self._blocks.table
        total = len(table)
        ahead = (self._next - last - 1) % total
        if ahead > len(self._fetched):  # the position has jumped
            self._next = last + 1
        room = most - self._ahead
        while room >= min(GROUP_BYTES, self._budget_bytes):
            group: list[int] = []
            nbytes, start = 0, self._next
            while nbytes < GROUP_BYTES and len(group) < GROUP_BLOCKS:
                if self._next >= total:
                    if not self._wraps:
                        break
                    self._next = 0
                number = self._next
                if number in self._fetched:  # the whole corpus is held
                    break
                self._next += 1
                group.append(number)
                nbytes += int(table.bytes[number])
            if not group or nbytes > room:
                self._next = start
                return
            try:
                self._fetch_blocks(group)
            except Exception as error:
                # Raised when the data is needed. The minibatches before it are valid.
                _log.debug("%s: not read ahead: %s", self._corpus.name, error)
                self._next = start
                return
            room -= nbytes

    def _drop_past(self, needed: set[int]) -> None:
        nbytes = sum(int(self._blocks.table.bytes[number]) for number in self._past)
        while self._past and nbytes > _PAST_BYTES and self._past[0] not in needed:
            number = self._past.popleft()
            nbytes -= int(self._blocks.table.bytes[number])
            if number in self._fetched:
                self._drop_blocks([number])
