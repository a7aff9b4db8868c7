"""The order of a corpus whose chunk sizes are unknown before reading.

It is "feedline-1", except that windows count chunks, a position is (sweep, window, place in it), and planning a window
reads it. The ordinal of a sequence, for `Minibatch.ids` and fingerprints, is ``chunk << INDEX_BITS | index``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import ClassVar

import numpy as np

from feedline.errors import DataError
from feedline.feed.protocol import CHUNK_BITS, CHUNK_MASK
from feedline.feed.timeline.elements import ChunkTable, Ints, Segment, Timeline, Window, WindowPlan, keyed_permutation
from feedline.feed.timeline.feedline import SEQUENCES, chunk_order

DEFAULT_WINDOW = Window(chunks=8)

# Windows of `GrowingUnsizedOrder` that have fewer chunks: 1, 2 and 4.
_DOUBLINGS = 3

INDEX_BITS = 32
"""Bits of the ordinal of a sequence that hold its index in its chunk. The higher bits hold the number of the chunk."""


class UnsizedOrder(Timeline):
    """The order "feedline-1-unsized".

    Args:
        chunks: number of chunks.
        seed: seed of the order.
        shuffle: whether to permute.
        window: window in chunks. None: 8 chunks.
        count: function that reads chunks and returns their numbers of sequences, int64 (k,).
    """

    name: ClassVar[str] = "feedline-1-unsized"

    def __init__(
        self, chunks: int, seed: int, shuffle: bool, window: Window | None, count: Callable[[Ints], Ints]
    ) -> None:
        window = window or DEFAULT_WINDOW
        if window.chunks is None:
            raise ValueError(f"expected Window(chunks=...) for a corpus without chunk_info, got {window!r}")
        super().__init__(ChunkTable([]), seed, shuffle, window)
        self._width = window.chunks if shuffle else 1
        self._total, self._count = chunks, count

    def chunks_of(self, sweep: int, window: int) -> Ints:
        """Return the numbers of the chunks of a window, in its order. Reads nothing."""
        return chunk_order(self, self._total, sweep)[self._begin(sweep, window) : self._begin(sweep, window + 1)]

    def windows(self, sweep: int) -> int:
        """Return the number of windows in a sweep."""
        return -(-self._total // self._width)

    def _begin(self, sweep: int, window: int) -> int:
        """Return the place of the first chunk of a window in the chunk order of its sweep."""
        return window * self._width

    def window_at(self, sweep: int, place: int, window: int | None = None) -> WindowPlan:
        """See `Timeline.window_at`. Reads the window's chunks."""
        number = window or 0
        plan = self._window(sweep, number)
        # A saved position may name the window after the last one read, when it was not yet known to be empty.
        return plan if plan.count or place else self.window_after(plan)

    def _window(self, sweep: int, number: int) -> WindowPlan:
        windows = 0 if sweep < 0 else self.windows(sweep)
        if not 0 <= number < windows:
            raise IndexError(f"expected 0 <= window < {windows}, got sweep {sweep}, window {number}")
        chunks = self.chunks_of(sweep, number)
        starts = np.concatenate([[0], np.cumsum(self._count(chunks))]).astype(np.int64)

        def is_last() -> bool:
            following = range(number + 1, windows)
            return not any(self._count(self.chunks_of(sweep, after)).any() for after in following)

        return WindowPlan(
            sweep,
            number,
            chunks=chunks,
            position=self._begin(sweep, number),
            starts=starts,
            first=0,
            last=is_last,
            make_cut=functools.partial(keyed_permutation, self, int(starts[-1]), (sweep, SEQUENCES, number)),
        )

    def window_after(self, plan: WindowPlan) -> WindowPlan:
        """See `Timeline.window_after`. Skips windows without sequences."""
        # From the first window of a sweep to the last of the next.
        for _ in range(self.windows(plan.sweep) + self.windows(plan.sweep + 1)):
            plan = self._window(*self._after(plan.sweep, plan.number))
            if plan.count:
                return plan
        raise DataError("expected at least one sequence, got none in any chunk")

    def _after(self, sweep: int, number: int) -> tuple[int, int]:
        return (sweep + 1, 0) if number + 1 == self.windows(sweep) else (sweep, number + 1)

    def chunks_after(self, plan: WindowPlan, max_sweeps: int | None = None) -> Iterator[Ints]:
        """See `Timeline.chunks_after`."""
        sweep, number = self._after(plan.sweep, plan.number)
        while max_sweeps is None or sweep < max_sweeps:
            yield self.chunks_of(sweep, number)
            sweep, number = self._after(sweep, number)

    def segment(self, plan: WindowPlan, start: int, most: int) -> Segment:
        """See `Timeline.segment`."""
        firsts = (plan.chunks & CHUNK_MASK) << INDEX_BITS
        return Segment.locate_segment(plan, start, min(most, plan.count - start), firsts)

    def position_of(self, plan: WindowPlan, place: int) -> tuple[int, int, int | None]:
        """See `Timeline.position_of`."""
        if place < plan.count:
            return plan.sweep, place, plan.number
        return (plan.sweep + 1, 0, 0) if plan.last else (plan.sweep, 0, plan.number + 1)


class SweptUnsizedOrder(UnsizedOrder):
    """The order "feedline-1-unsized-swept", for chunks that differ between sweeps. Chunk numbers carry the sweep."""

    name: ClassVar[str] = "feedline-1-unsized-swept"
    swept = True

    def chunks_of(self, sweep: int, window: int) -> Ints:
        """See `UnsizedOrder.chunks_of`."""
        return super().chunks_of(sweep, window) | (sweep << CHUNK_BITS)


class GrowingUnsizedOrder(SweptUnsizedOrder):
    """The order "feedline-2-unsized-swept". The windows of the first sweep have 1, 2 and 4 chunks, then 8, so that the
    first minibatch waits for one chunk."""

    name: ClassVar[str] = "feedline-2-unsized-swept"

    def __init__(self, chunks: int, seed: int, count: Callable[[Ints], Ints]) -> None:
        super().__init__(chunks, seed, True, DEFAULT_WINDOW, count)

    def windows(self, sweep: int) -> int:
        """See `UnsizedOrder.windows`."""
        if sweep:
            return super().windows(sweep)
        if self._total < self._width:
            return self._total.bit_length()
        return _DOUBLINGS + -(-(self._total - self._begin(0, _DOUBLINGS)) // self._width)

    def _begin(self, sweep: int, window: int) -> int:
        if sweep:
            return super()._begin(sweep, window)
        if window <= _DOUBLINGS:
            return (1 << window) - 1
        return self._width - 1 + (window - _DOUBLINGS) * self._width
