"""The order of CNTK 2.7's block randomizer, bit for bit, for migration and for parity tests.

Chunks are shuffled, then every sequence is swapped with a random partner within a rolling window of chunks around its
own. The shuffle is sequential over a sweep: planning a sweep costs 8 bytes and a few random numbers per sequence, reads
no data, and is repeated after a restore into the middle of one. CNTK's defect of forgetting the seed on restore is not
reproduced.
"""

from __future__ import annotations

import functools
from typing import ClassVar

import numpy as np

from feedline import _native
from feedline.feed.timeline.elements import ChunkTable, Ints, SweepLayouts, Timeline, Window, WindowPlan

DEFAULT_WINDOW = Window(chunks=128)


class CntkOrder(Timeline):
    """The order "cntk-2.7". Windows are in chunks or samples. ``window`` None means CNTK's 128 chunks."""

    name: ClassVar[str] = "cntk-2.7"

    def __init__(self, table: ChunkTable, seed: int, shuffle: bool, window: Window | None) -> None:
        if window is not None and window.bytes is not None:
            raise ValueError('expected Window(chunks=...) or Window(samples=...) with order="cntk", got bytes')
        super().__init__(table, seed, shuffle, window or DEFAULT_WINDOW)
        self._sweeps = SweepLayouts(functools.partial(_CntkSweep, self))

    def window_at(self, sweep: int, place: int, window: int | None = None) -> WindowPlan:
        """See `Timeline.window_at`. Here a window is the range of places that one chunk occupies."""
        self._check(sweep, place)
        layout = self._sweeps.get(sweep)
        return layout.plan(int(np.searchsorted(layout.starts, place, side="right")) - 1)


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
        # It delivers fewer sequences than its chunks hold: the places of one of them.
        return WindowPlan(
            self._number,
            number,
            chunks=self.chunks[begin:end],
            position=begin,
            starts=self.starts[begin : end + 1] - origin,
            first=first,
            count=stop - first,
            last=stop == self._order.table.total_sequences,
            make_cut=lambda: lambda a, b: self.order[first + a : first + b] - origin,
        )


def rolling_windows_in_chunks(count: int, width: int) -> tuple[Ints, Ints]:
    """Return the window [begin, end) of each of ``count`` randomised chunks: ``width`` chunks, shifted at the ends."""
    i = np.arange(count, dtype=np.int64)
    begin = np.maximum(i - width // 2, 0)
    end = begin + width
    over = end > count
    begin[over], end[over] = max(0, count - width), count
    return begin, end


def rolling_windows_in_samples(samples: Ints, width: int) -> tuple[Ints, Ints]:
    """Return the window [begin, end) of each randomised chunk: about ``width`` samples. ``samples`` are per chunk."""
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
