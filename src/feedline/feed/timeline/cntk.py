"""The order of CNTK 2.7's block randomizer, bit for bit; for migration and for parity tests.

Chunks are shuffled, then every sequence is swapped with a random partner within a window of chunks around its
own that rolls along with it. The shuffle is sequential over a sweep: laying out a sweep costs 8 bytes and a few
random numbers a sequence, reads no data, and happens again after a restore into the middle of one. CNTK's own
defect of forgetting the seed on restore is not reproduced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from feedline import _native
from feedline.feed.timeline.plan import ChunkTable, Ints, Timeline, Window, WindowPlan

DEFAULT_WINDOW = Window(chunks=128)


class CntkOrder(Timeline):
    """See the module. Only windows in chunks or samples exist; ``window`` None means CNTK's 128 chunks."""

    name: ClassVar[str] = "cntk-2.7"

    def __init__(self, table: ChunkTable, seed: int, shuffle: bool, window: Window | None) -> None:
        if window is not None and window.bytes is not None:
            raise ValueError('expected Window(chunks=...) or Window(samples=...) with order="cntk", got bytes')
        super().__init__(table, seed, shuffle, window or DEFAULT_WINDOW)
        self._sweeps: dict[int, _CntkSweep] = {}

    def window_at(self, sweep: int, ordinal: int, window: int | None = None) -> WindowPlan:
        """See `Timeline.window_at`; here a window is the range of places that one chunk occupies."""
        self._check(sweep, ordinal)
        if sweep not in self._sweeps:
            while len(self._sweeps) >= 2:
                self._sweeps.pop(max(self._sweeps, key=lambda n: abs(n - sweep)))
            self._sweeps[sweep] = _CntkSweep(self, sweep)
        layout = self._sweeps[sweep]
        return layout.plan(int(np.searchsorted(layout.starts, ordinal, side="right")) - 1)


class _CntkSweep:
    def __init__(self, order: CntkOrder, number: int) -> None:
        table = order.table
        self._order, self._number = order, number
        count = len(table)
        if not order.shuffle:
            self.chunks: Ints = np.arange(count, dtype=np.int64)
            self.begin: Ints = self.chunks
            self.end: Ints = self.chunks + 1
        else:
            seed = (order.seed + number) % 2**64
            self.chunks = _native.cntk_chunk_order(seed, count)
            assert order.window is not None
            if order.window.chunks is not None:
                self.begin, self.end = rolling_windows_in_chunks(count, order.window.chunks)
            else:
                assert order.window.samples is not None
                self.begin, self.end = rolling_windows_in_samples(table.samples[self.chunks], order.window.samples)
        counts = table.sequences[self.chunks]
        self.starts: Ints = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        if order.shuffle:
            self.order: Ints = _native.cntk_sequence_order(seed, counts, self.begin, self.end)
        else:
            self.order = np.arange(table.total_sequences, dtype=np.int64)

    def plan(self, number: int) -> WindowPlan:
        begin, end = int(self.begin[number]), int(self.end[number])
        first, stop = int(self.starts[number]), int(self.starts[number + 1])
        origin = int(self.starts[begin])
        return RollingPlan(
            self._number,
            number,
            self.chunks[begin:end],
            begin,
            self.starts[begin : end + 1] - origin,
            first,
            stop - first,
            stop == self._order.table.total_sequences,
            lambda a, b: self.order[first + a : first + b] - origin,
        )


class RollingPlan(WindowPlan):
    """A window that delivers fewer sequences than its chunks hold: the places of one chunk."""

    __slots__ = ()

    def __init__(
        self,
        sweep: int,
        number: int,
        chunks: Ints,
        position: int,
        starts: Ints,
        first: int,
        count: int,
        last: bool,
        cut: Callable[[int, int], Ints],
    ) -> None:
        super().__init__(sweep, number, chunks, position, starts, first, last, lambda: cut)
        self.count = count


def rolling_windows_in_chunks(count: int, width: int) -> tuple[Ints, Ints]:
    """Window [begin, end) around each of ``count`` randomised chunks; about ``width`` chunks, shifted at the ends."""
    i = np.arange(count, dtype=np.int64)
    begin = np.maximum(i - width // 2, 0)
    end = begin + width
    over = end > count
    begin[over], end[over] = max(0, count - width), count
    return begin, end


def rolling_windows_in_samples(samples: Ints, width: int) -> tuple[Ints, Ints]:
    """Window [begin, end) around each randomised chunk, about ``width`` samples; ``samples`` counts per chunk."""
    count, half = len(samples), width // 2
    ends = np.cumsum(samples)
    starts = (ends - samples).tolist()
    stops = ends.tolist()
    begins, outs = np.empty(count, np.int64), np.empty(count, np.int64)
    begin, end = 0, 1
    for i in range(count):
        while starts[i] - starts[begin] > half:
            begin += 1
        begin = min(begin, i)
        end = max(end, i + 1)
        while end < count and stops[end] - starts[i] < half:
            end += 1
        begins[i], outs[i] = begin, end
    return begins, outs
