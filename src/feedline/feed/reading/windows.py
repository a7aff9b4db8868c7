"""Windows of chunks or blocks: they are read ahead, held in memory while in use, then released."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from feedline.feed.packing.axis import SegmentSlice
from feedline.feed.protocol import Ints
from feedline.feed.reading.reader import Reader, Slots, Upcoming, concatenate_slots
from feedline.feed.timeline import WindowPlan


class _HeldWindow(NamedTuple):
    """A window in memory.

    Attributes:
        chunks: int64 (k,), chunks of the window.
        slots: (k,), slot of each chunk.
        first: int64 (k,), offset to add to indices within each chunk. None if there are no offsets.
    """

    chunks: Ints
    slots: Slots
    first: Ints | None


class WindowReader(Reader):
    """Holds the windows that the source uses. Subclasses bring their chunks, or blocks, into memory."""

    def __init__(self) -> None:
        self._windows: dict[tuple[int, ...], _HeldWindow] = {}

    @abc.abstractmethod
    def _hold(self, chunks: Ints) -> tuple[Slots, Ints | None]:
        """Wait until all ``chunks`` are in memory. Return their slots, and the offsets of `_HeldWindow.first`."""

    @abc.abstractmethod
    def _has_read(self, chunks: Ints) -> bool:
        """Return whether `_hold` would not wait."""

    @abc.abstractmethod
    def _release(self, needed: set[int]) -> None:
        """Release all chunks that are held, except those ``needed``."""

    @abc.abstractmethod
    def _read_ahead(self, upcoming: Upcoming) -> None:
        """Begin to read the next chunks that there is room for."""

    def take(self, parts: Sequence[SegmentSlice]) -> tuple[Slots, Ints]:
        """See `Reader.take`."""
        return concatenate_slots([self._take(part) for part in parts])

    def _take(self, part: SegmentSlice) -> tuple[Slots, Ints]:
        segment, a, b = part
        plan = segment.plan
        window = self._windows.get(plan.key)
        if window is None:
            window = self._windows[plan.key] = _HeldWindow(plan.chunks, *self._hold(plan.chunks))
        elif window.chunks is not plan.chunks and not np.array_equal(window.chunks, plan.chunks):
            raise RuntimeError(f"expected a window with chunks {window.chunks} at {plan.key}, got {plan.chunks}")
        if segment.held is not window:
            # Also after the window was released because a minibatch failed, and was read again.
            place, first = segment.place, window.first
            segment.slots = window.slots[place]
            segment.taken = segment.index if first is None else segment.index + first[place]
            segment.held = window
        assert segment.slots is not None
        assert segment.taken is not None
        return segment.slots[a:b], segment.taken[a:b]

    def ready(self, parts: Sequence[SegmentSlice]) -> bool:
        """See `Reader.ready`. A window that shares most of its chunks with the window before it is held ahead of need
        once its other chunks are read."""
        plans = [segment.plan for segment, _, _ in parts]
        return all(self.holds(plan) or (plan.gradual and self._has_read(plan.chunks)) for plan in plans)

    def holds(self, plan: WindowPlan) -> bool:
        """See `Reader.holds`."""
        return plan.key in self._windows

    def keep(self, plans: list[WindowPlan], upcoming: Upcoming | None) -> None:
        """See `Reader.keep`."""
        keys = {plan.key for plan in plans}
        if not self._windows.keys() <= keys:
            self._windows = {key: window for key, window in self._windows.items() if key in keys}
            self._release({chunk for plan in plans for chunk in plan.chunks.tolist()})
        if upcoming is not None:
            self._read_ahead(upcoming)

    def close(self) -> None:
        """See `Reader.close`."""
        self._windows.clear()
