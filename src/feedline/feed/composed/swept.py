"""The order of a corpus whose chunks hold something else in every sweep: "feedline-1", with sweeps in chunk numbers."""

from __future__ import annotations

from typing import ClassVar

from feedline.feed.protocol import CHUNK_BITS, CHUNK_MASK
from feedline.feed.timeline import WindowPlan
from feedline.feed.timeline.feedline import FeedlineOrder


def number_of(chunk: int) -> int:
    """Return the number of a chunk without its sweep."""
    return chunk & CHUNK_MASK


def sweep_of(chunk: int) -> int:
    """Return the sweep that a chunk number carries."""
    return chunk >> CHUNK_BITS


class SweptOrder(FeedlineOrder):
    """The order "feedline-1" of chunks that are packed anew in every sweep."""

    name: ClassVar[str] = "feedline-1-swept"
    swept = True

    def window_at(self, sweep: int, ordinal: int, window: int | None = None) -> WindowPlan:
        """See `Timeline.window_at`."""
        plan = super().window_at(sweep, ordinal, window)
        plan.chunks = plan.chunks | (sweep << CHUNK_BITS)
        return plan
