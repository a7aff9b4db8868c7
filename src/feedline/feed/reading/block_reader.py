"""The reader of mapped files in windows. It fetches the blocks of a window, and of the next one."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from feedline.feed.assembly import ChunkSet
from feedline.feed.packing.axis import SegmentSlice
from feedline.feed.protocol import Deserializer, Ints
from feedline.feed.reading.fetching_reader import FetchingReader
from feedline.feed.reading.reader import Slots, Upcoming
from feedline.feed.reading.stats import Stats
from feedline.feed.reading.windows import WindowReader
from feedline.feed.timeline import Timeline

_LOOK_AT = 16  # limit of the blocks of a window that are checked for residency

_log = logging.getLogger("feedline")


class BlockReader(WindowReader, FetchingReader):
    """Holds the blocks of the current windows that the page cache lacks. Other blocks are copied from there."""

    def __init__(
        self, corpus: Deserializer, timeline: Timeline, chunks: ChunkSet, stats: Stats, budget_bytes: int | None
    ) -> None:
        WindowReader.__init__(self)
        FetchingReader.__init__(self, corpus, timeline, chunks, stats, budget_bytes=budget_bytes)

    def take(self, parts: Sequence[SegmentSlice]) -> tuple[Slots, Ints]:
        """See `Reader.take`. For parts without sequences, maps a chunk, and does not fetch their windows."""
        return FetchingReader.take(self, parts)

    def _hold(self, chunks: Ints) -> tuple[Slots, Ints | None]:
        slots, first = self._slots_of(self._blocks.chunk[chunks]), self._blocks.first[chunks]
        numbers = chunks.tolist()
        if any(number in self._fetched for number in numbers) or self._lacks(chunks, _LOOK_AT):
            self._fetch_blocks(numbers)
            for place, number in enumerate(numbers):
                if number in self._fetched and (slot := self._slot_of(number)) >= 0:
                    slots[place], first[place] = slot, 0
        return slots, first

    def _has_read(self, chunks: Ints) -> bool:
        missing = []
        for number in chunks.tolist():
            block = self._fetched.get(number)
            if block is None:
                missing.append(number)
            elif block.slot is None and not block.group.staged.done:
                return False
        return not missing or not self._lacks(np.array(missing, np.int64), _LOOK_AT)

    def _release(self, needed: set[int]) -> None:
        self._drop_blocks([n for n, block in self._fetched.items() if block.slot is not None and n not in needed])

    def _read_ahead(self, upcoming: Upcoming) -> None:
        if not self._budget_bytes:
            return
        try:
            self._fetch_ahead(upcoming)
        except Exception as error:
            # Raised when the data is needed. The minibatches before it are valid.
            _log.debug("%s: not read ahead: %s", self._corpus.name, error)

    def _fetch_ahead(self, upcoming: Upcoming) -> None:
        """Begin to fetch as many of the next blocks as there is room for, if the page cache lacks some of them."""
        table, room = self._blocks.table, self._budget_bytes - self._ahead
        numbers: list[int] = []
        while upcoming.passed < len(table):  # the axis may be endless, but one sweep is the whole corpus
            number = upcoming.look()
            if number is None or (self._whole_window and upcoming.window > 0):
                break
            room -= int(table.bytes[number])
            if room < 0 and not self._whole_window:
                break
            numbers.append(number)
            upcoming.advance()
        if numbers and self._lacks(np.array(numbers, np.int64), _LOOK_AT):
            self._fetch_blocks(numbers)

    def close(self) -> None:
        """See `Reader.close`."""
        WindowReader.close(self)
        FetchingReader.close(self)
