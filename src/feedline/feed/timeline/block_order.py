"""The order "feedline-2": "feedline-1" over blocks, runs of sequences within a chunk, instead of whole chunks.

A window of a given size mixes better the more places of the corpus it draws from: for data sorted by label, the
variance of a minibatch's mean is 1 + B/k times the variance for independent draws, for minibatches of B sequences and
windows of k blocks. Chunks are sized for writing and decoding (32 MiB in a store, so eight to a window). Blocks are as
small as blocks that a disk reads at full speed can be. Specified to the bit in docs/explanation/order.md.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from feedline.feed.timeline.elements import ChunkTable, Ints, Window
from feedline.feed.timeline.feedline import FeedlineOrder

BLOCK_BYTES = 1 << 20

# Planning a sweep takes O(blocks) time and memory, so beyond a tebibyte blocks grow with the corpus.
MAX_BLOCKS = 1 << 20


class Blocks:
    """The blocks that each chunk of a corpus is cut into.

    A chunk of n sequences and b stored bytes is cut into ``min(n, ceil(b / size))`` blocks, at least one, of which
    block j of k begins at sequence ``n * j // k``. Samples and stored bytes are attributed the same way. The size is 1
    MiB, doubled until the corpus has at most 2^20 blocks or each chunk is one.

    Attributes:
        table: sizes of the blocks, in corpus order.
        chunk: int64 (blocks,), chunk that each block is part of.
        first: int64 (blocks,), index in that chunk of the block's first sequence.
    """

    __slots__ = ("chunk", "first", "table")

    def __init__(self, chunks: ChunkTable) -> None:
        size = BLOCK_BYTES
        counts = _counts(chunks, size)
        while counts.sum() > max(MAX_BLOCKS, len(chunks)):
            size *= 2
            counts = _counts(chunks, size)
        self.chunk: Ints = np.repeat(np.arange(len(chunks), dtype=np.int64), counts)
        within = np.arange(len(self.chunk), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
        of = counts[self.chunk]
        columns = []
        for total in (chunks.sequences, chunks.samples, chunks.bytes):
            # (total // k) * j + (total % k) * j // k is total * j // k without the product that could overflow.
            quotient, remainder = np.divmod(total[self.chunk], of)
            starts, stops = (quotient * j + remainder * j // of for j in (within, within + 1))
            columns.append(stops - starts)
            if total is chunks.sequences:
                self.first: Ints = starts
        self.table = ChunkTable.of_columns(*columns)

    @classmethod
    def of(cls, table: ChunkTable, chunk: Ints, first: Ints) -> Blocks:
        """Return blocks with these attributes."""
        blocks = cls.__new__(cls)
        blocks.table, blocks.chunk, blocks.first = table, chunk, first
        return blocks


def _counts(chunks: ChunkTable, size: int) -> Ints:
    counts: Ints = np.maximum(np.minimum(chunks.sequences, -(-chunks.bytes // size)), 1)
    return counts


class BlockOrder(FeedlineOrder):
    """The order "feedline-2".

    Attributes:
        blocks: blocks that windows are made of. Chunk numbers of a `WindowPlan` are numbers of blocks.
    """

    name: ClassVar[str] = "feedline-2"

    def __init__(self, table: ChunkTable, seed: int, shuffle: bool, window: Window | None) -> None:
        self.blocks = Blocks(table)
        super().__init__(self.blocks.table, seed, shuffle, window)
        self.chunk_table = table
