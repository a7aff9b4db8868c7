"""In which order? Pure functions from (seed, sweep, chunk table, window) to the order of sequences.

Nothing here reads data or holds a generator. One file an order: `feedline` is ours, `blocks` the same over blocks of
chunks, `cntk` reproduces CNTK 2.7 bit for bit, `unsized` serves corpora whose chunks tell their size only when read.
"""

from __future__ import annotations

from feedline.feed.timeline.blocks import BlockOrder
from feedline.feed.timeline.cntk import CntkOrder
from feedline.feed.timeline.feedline import FeedlineOrder
from feedline.feed.timeline.plan import ChunkTable, Segment, Timeline, Window, WindowPlan
from feedline.feed.timeline.unsized import UnsizedOrder

# What users may ask for by name. A new version of an order is a new name, never a change of an old one.
ORDERS: dict[str, type[Timeline]] = {"feedline-1": FeedlineOrder, "feedline-2": BlockOrder, "cntk": CntkOrder}

__all__ = ["ORDERS", "BlockOrder", "ChunkTable", "Segment", "Timeline", "UnsizedOrder", "Window", "WindowPlan"]
