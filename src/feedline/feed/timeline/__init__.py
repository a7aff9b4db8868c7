"""Orders: pure functions from (seed, sweep, chunk table, window) to the order of sequences.

Nothing here reads data or holds a generator. One file per order: `feedline` is the default, `block_order` the same over
blocks of chunks, `arcs` takes turns between parts of the sweep that ranks read by themselves, `cntk` reproduces CNTK
2.7 bit for bit, `unsized` serves corpora of unknown chunk sizes.
"""

from __future__ import annotations

from feedline.feed.timeline.arcs import ArcBlockOrder, ArcOrder
from feedline.feed.timeline.block_order import BlockOrder
from feedline.feed.timeline.cntk import CntkOrder
from feedline.feed.timeline.elements import ChunkTable, Segment, Share, Timeline, Window, WindowPlan
from feedline.feed.timeline.feedline import FeedlineOrder
from feedline.feed.timeline.grown import DataVersion, GrownOrder
from feedline.feed.timeline.unsized import GrowingUnsizedOrder, SweptUnsizedOrder, UnsizedOrder

# Orders that users may name. A new version of an order gets a new name. An old one never changes.
ORDERS: dict[str, type[Timeline]] = {
    "feedline-1": FeedlineOrder,
    "feedline-2": BlockOrder,
    "arcs-1": ArcOrder,
    "arcs-2": ArcBlockOrder,
    "cntk": CntkOrder,
}

__all__ = [
    "ORDERS",
    "ArcBlockOrder",
    "ArcOrder",
    "BlockOrder",
    "ChunkTable",
    "DataVersion",
    "GrowingUnsizedOrder",
    "GrownOrder",
    "Segment",
    "Share",
    "SweptUnsizedOrder",
    "Timeline",
    "UnsizedOrder",
    "Window",
    "WindowPlan",
]
