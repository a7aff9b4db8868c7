"""The order "feedline-1": permute the chunks, fill windows with them, permute each window.

Specified to the bit in docs/explanation/order.md. Resuming and other ranks rely on it, so it never changes. Cost:
O(chunks) once per sweep, then O(log chunks) to find a place. Memory: 4 bytes per sequence of the current window, and
nothing for windows of more than 2^20 sequences.
"""

from __future__ import annotations

import functools
from typing import ClassVar

import numpy as np

from feedline.feed.timeline.elements import (
    ChunkTable,
    Ints,
    SweepLayouts,
    Timeline,
    Window,
    WindowPlan,
    keyed_permutation,
)

# Levels of the key, by the permuted objects.
CHUNKS, SEQUENCES = 0, 1


class FeedlineOrder(Timeline):
    """The order "feedline-1"."""

    name: ClassVar[str] = "feedline-1"

    def __init__(self, table: ChunkTable, seed: int, shuffle: bool, window: Window | None) -> None:
        super().__init__(table, seed, shuffle, window)
        self._sweeps = SweepLayouts(functools.partial(_SweepLayout, self))

    def window_at(self, sweep: int, place: int, window: int | None = None) -> WindowPlan:
        """See `Timeline.window_at`."""
        self._check(sweep, place)
        layout = self._sweeps.get(sweep)
        return layout.plan(int(np.searchsorted(layout.firsts, place, side="right")) - 1)


class _SweepLayout:
    """The chunk order and window bounds of one sweep, which determine everything else."""

    def __init__(self, order: FeedlineOrder, number: int) -> None:
        table, window = order.table, order.window
        self._order, self._number = order, number
        self.chunks = chunk_order(order, len(table), number)
        self.starts: Ints = np.concatenate([[0], np.cumsum(table.sequences[self.chunks])]).astype(np.int64)
        if window is None:
            self.bounds: Ints = np.array([0, len(table)], np.int64)
        else:
            self.bounds = _fill_windows(table, self.chunks, window)
        # First place of each window. Of the windows that start at a place the last one is taken, which skips empty
        # windows, of chunks without sequences.
        self.firsts: Ints = self.starts[self.bounds[:-1]]

    def plan(self, number: int) -> WindowPlan:
        a, b = int(self.bounds[number]), int(self.bounds[number + 1])
        first, stop = int(self.starts[a]), int(self.starts[b])
        return WindowPlan(
            self._number,
            number,
            chunks=self.chunks[a:b],
            position=a,
            starts=self.starts[a : b + 1] - first,
            first=first,
            last=stop == self._order.table.total_sequences,
            make_cut=functools.partial(keyed_permutation, self._order, stop - first, (self._number, SEQUENCES, number)),
        )


def chunk_order(order: Timeline, count: int, sweep: int) -> Ints:
    """Return the numbers of the ``count`` chunks in the order of a sweep, int64 (count,)."""
    return np.asarray(keyed_permutation(order, count, (sweep, CHUNKS))(0, count), np.int64)


def _fill_windows(table: ChunkTable, chunks: Ints, window: Window) -> Ints:
    """Return the bounds of the windows in permuted chunks. Greedy, O(windows log chunks)."""
    if window.chunks is not None:
        return np.append(np.arange(0, len(chunks), window.chunks, dtype=np.int64), np.int64(len(chunks)))
    costs, budget = (table.samples, window.samples) if window.samples is not None else (table.bytes, window.bytes)
    assert budget is not None
    ends = np.cumsum(costs[chunks])
    bounds, used = [0], 0
    while bounds[-1] < len(chunks):
        stop = int(np.searchsorted(ends, used + budget, side="right"))
        stop = max(stop, bounds[-1] + 1)
        bounds.append(stop)
        used = int(ends[stop - 1])
    return np.array(bounds, np.int64)
