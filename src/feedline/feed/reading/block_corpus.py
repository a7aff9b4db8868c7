"""A corpus in blocks: runs of sequences of a chunk that are read separately.

Blocks are in the order of the sequences, so ordinals and lengths are the corpus's own.
"""

from __future__ import annotations

from collections.abc import Sequence

from feedline.data import Chunk
from feedline.feed.formats.fetched_views import extents_of, fetched_chunk, may_lack_parts
from feedline.feed.protocol import (
    ChunkInfo,
    Deserializer,
    Extent,
    Fetchable,
    Ints,
    MappedFile,
    Piece,
    RandomAccess,
    Sliceable,
    can,
    chunk_extents,
    files_of,
    looks_at_all,
    read_slice,
    require,
)
from feedline.feed.timeline.block_order import Blocks


class BlockCorpus(Deserializer, RandomAccess, Sliceable, Fetchable):
    """The blocks of ``corpus`` as chunks. Reading a block costs what `Sliceable.read_slice` costs."""

    def __init__(self, corpus: Deserializer, blocks: Blocks) -> None:
        self._corpus, self._blocks = corpus, blocks
        self.schema, self.name = corpus.schema, corpus.name
        if not can(corpus, RandomAccess):
            self._lacks = (RandomAccess,)
        self._in_parts = may_lack_parts(corpus)

    def chunks(self) -> Sequence[ChunkInfo]:
        """Return the size of every block."""
        table = self._blocks.table
        rows = zip(table.sequences.tolist(), table.samples.tolist(), table.bytes.tolist(), strict=True)
        return [ChunkInfo(*row) for row in rows]

    def extents(self, chunk: int) -> Sequence[Extent]:
        """Return the extents of block number ``chunk``, if parts of the files of the corpus may be missing.

        They are the bytes of its views, or the extents of the whole chunk if reading a part of it looks at all of it.
        """
        if not self._in_parts:
            return ()
        if looks_at_all(self._corpus):
            return chunk_extents(self._corpus, int(self._blocks.chunk[chunk]))
        views, _, files = self._views_of(chunk)
        return extents_of(views, files)

    def read_fetched(self, chunk: int, pieces: Sequence[Piece]) -> Chunk:
        """Return the sequences of block number ``chunk``, whose extents were fetched."""
        if looks_at_all(self._corpus):
            first = int(self._blocks.first[chunk])
            chunk_of_block = require(self._corpus, Fetchable).read_fetched(int(self._blocks.chunk[chunk]), pieces)
            return chunk_of_block.slice(first, first + int(self._blocks.table.sequences[chunk]))
        views, index, files = self._views_of(chunk)
        fetched = fetched_chunk(views, files, pieces)
        return fetched if index is None else fetched.take(index)

    def _views_of(self, chunk: int) -> tuple[Chunk, Ints | None, Sequence[MappedFile]]:
        return *self.view(chunk), files_of(self._corpus, [int(self._blocks.chunk[chunk])])

    def read(self, chunk: int) -> Chunk:
        """Return the sequences of block number ``chunk``."""
        blocks = self._blocks
        start = int(blocks.first[chunk])
        stop = start + int(blocks.table.sequences[chunk])
        return read_slice(self._corpus, int(blocks.chunk[chunk]), start, stop)

    def read_slice(self, chunk: int, start: int, stop: int) -> Chunk:
        """Return the sequences ``start:stop`` of block number ``chunk``."""
        first = int(self._blocks.first[chunk])
        return read_slice(self._corpus, int(self._blocks.chunk[chunk]), first + start, first + stop)

    def view(self, chunk: int, start: int = 0, stop: int | None = None) -> tuple[Chunk, Ints | None]:
        """Return the corpus's view of the sequences ``start:stop`` of block number ``chunk``."""
        blocks = self._blocks
        first, count = int(blocks.first[chunk]), int(blocks.table.sequences[chunk])
        views = require(self._corpus, RandomAccess)
        return views.view(int(blocks.chunk[chunk]), first + start, first + (count if stop is None else stop))

    def digest(self) -> str:
        """See `Deserializer.digest`."""
        return self._corpus.digest()

    def lengths(self, ordinals: Ints) -> Ints | None:
        """See `Deserializer.lengths`."""
        return self._corpus.lengths(ordinals)

    def select(self, ordinals: Ints) -> Chunk:
        """See `Deserializer.select`."""
        return self._corpus.select(ordinals)

    def paths(self) -> Sequence[str]:
        """See `Deserializer.paths`."""
        return self._corpus.paths()

    def close(self) -> None:
        """Close the corpus."""
        self._corpus.close()
