"""The reader of chunks that cost no memory to hold: views of memory, or of mapped files."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from feedline.data import Chunk
from feedline.feed.assembly import ChunkSet
from feedline.feed.packing.axis import SegmentSlice
from feedline.feed.protocol import Deserializer, Ints, RandomAccess, require
from feedline.feed.reading.reader import Reader, Slots, Upcoming, concatenate_slots
from feedline.feed.reading.stats import Stats
from feedline.feed.timeline import ChunkTable, Segment, WindowPlan
from feedline.feed.unique import distinct


class MappedReader(Reader):
    """Maps a chunk when a minibatch first needs it, and never releases it.

    Args:
        corpus: corpus whose chunks are views, see `RandomAccess`.
        table: table of its chunks.
        chunks: chunk set to add chunks to.
        stats: statistics to update.
    """

    def __init__(self, corpus: Deserializer, table: ChunkTable, chunks: ChunkSet, stats: Stats) -> None:
        self._corpus, self._chunks, self._stats = corpus, chunks, stats
        self._mapped = np.full(len(table), -1, np.int64)  # slot of each chunk's view
        self._unmapped = len(self._mapped)
        self._index: dict[int, Ints] = {}  # by chunk: indices of its sequences in a view that has others, too
        self._views = object()  # marks segments whose slots are known

    def take(self, parts: Sequence[SegmentSlice]) -> tuple[Slots, Ints]:
        """See `Reader.take`."""
        if all(a == b for _, a, b in parts):
            for segment, _, _ in parts:  # one chunk shows the layout of its streams
                entries = segment.plan.chunks[segment.place[:1] if segment.n else slice(1)]
                self._locate(entries, np.zeros(len(entries), np.int64))
            return concatenate_slots([])
        return concatenate_slots([self._take(part) for part in parts])

    def _take(self, part: SegmentSlice) -> tuple[Slots, Ints]:
        """Return the slot and the index of each sequence of ``part`` in the view of its chunk."""
        segment, a, b = part
        if segment.held is not self._views:
            if not self._maps_all(segment):
                return self._locate(segment.plan.chunks[segment.place[a:b]], segment.index[a:b])
            segment.slots, segment.taken = self._locate(segment.plan.chunks.take(segment.place), segment.index)
            segment.held = self._views
        assert segment.slots is not None
        assert segment.taken is not None
        return segment.slots[a:b], segment.taken[a:b]

    def _maps_all(self, segment: Segment) -> bool:
        """Return whether to map all chunks of a segment when the first is needed, so that slots are looked up once."""
        return True

    def _locate(self, entries: Ints, index: Ints) -> tuple[Slots, Ints]:
        """Return the slots of ``entries`` of a plan, and convert ``index`` in the entries to indices in the slots."""
        return self._in_views(entries, index)

    def _in_views(self, chunks: Ints, index: Ints) -> tuple[Slots, Ints]:
        """Return the slots of ``chunks``, and convert ``index`` in these chunks to indices in their views."""
        slots = self._slots_of(chunks)
        if not self._index or not len(chunks):
            return slots, index
        taken, order = index.copy(), np.argsort(chunks, kind="stable")
        for places in np.split(order, np.flatnonzero(np.diff(chunks[order])) + 1):
            within = self._index.get(int(chunks[places[0]]))
            if within is not None:
                taken[places] = within[index[places]]
        return slots, taken

    def _slots_of(self, chunks: Ints) -> Slots:
        """Return the slots of ``chunks``. Maps them first if necessary."""
        slots = self._mapped[chunks]
        if len(slots) and slots.min() < 0:
            missing = distinct(chunks[slots < 0])
            self._prepare(missing)
            for chunk in missing.tolist():
                self._map(chunk)
            slots = self._mapped[chunks]
        return slots.astype(np.uint32)

    def _prepare(self, chunks: Ints) -> None:
        """Prepare to map ``chunks``. By default nothing has to be done."""

    def _map(self, chunk: int) -> Chunk:
        began = time.perf_counter()
        view, index = require(self._corpus, RandomAccess).view(chunk)
        slot = self._chunks.add(view)
        if index is not None:
            self._index[chunk] = index
        self._mapped[chunk] = slot  # last, so that after an interrupt it is mapped again
        self._unmapped -= 1
        self._stats.chunks_read += 1
        self._stats.read_seconds += time.perf_counter() - began
        return view

    def ready(self, parts: Sequence[SegmentSlice]) -> bool:
        """Return whether the chunks of ``parts`` are mapped, as making a view may read."""
        return not self._unmapped or all(
            segment.held is self._views or (self._mapped[segment.plan.chunks[segment.place]] >= 0).all()
            for segment, _, _ in parts
        )

    def holds(self, plan: WindowPlan) -> bool:
        """Return True: holding views costs nothing."""
        return True

    def keep(self, plans: list[WindowPlan], upcoming: Upcoming | None) -> None:
        """Do nothing: there are no windows to release."""

    def read_on(self, upcoming: Upcoming) -> None:
        """Do nothing: whatever there was room for has been requested."""

    def reset(self) -> None:
        """Do nothing: nothing is read ahead."""

    def close(self) -> None:
        """Release all chunks."""
        self._chunks.keep(set())
        self._index.clear()
        self._mapped[:] = -1
        self._unmapped = len(self._mapped)
