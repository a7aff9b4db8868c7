"""A corpus that is another one, but for what a subclass changes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from feedline.data import Chunk
from feedline.feed.protocol import Capability, ChunkInfo, Deserializer, Extent, MappedFile, Piece, Verifiable, verified


class Forwarding(Deserializer, Verifiable):
    """Asks ``corpus`` for everything. States are those of the corpus itself.

    Args:
        corpus: the corpus; it must know its sizes before reading.
    """

    def __init__(self, corpus: Deserializer) -> None:
        self._corpus = corpus
        self.schema, self.name = corpus.schema, corpus.name
        self.random_access, self.in_memory = corpus.random_access, corpus.in_memory
        self.sliceable, self.fetchable = corpus.sliceable, corpus.fetchable
        self.looks_at_all = corpus.looks_at_all

    def chunks(self) -> Sequence[ChunkInfo]:
        """Return the corpus's chunks."""
        return self._corpus.chunks()

    def read(self, chunk: int) -> Chunk:
        """Return the corpus's chunk."""
        return self._corpus.read(chunk)

    def read_slice(self, chunk: int, start: int, stop: int) -> Chunk:
        """Return the corpus's slice of a chunk."""
        return self._corpus.read_slice(chunk, start, stop)

    def view(self, chunk: int, start: int = 0, stop: int | None = None) -> tuple[Chunk, NDArray[np.int64] | None]:
        """Return the corpus's view of a chunk."""
        return self._corpus.view(chunk, start, stop)

    def files(self, chunks: Sequence[int]) -> Sequence[MappedFile]:
        """Return the corpus's files."""
        return self._corpus.files(chunks)

    def hold_bounds(self) -> None:
        """Have the corpus hold its bounds."""
        self._corpus.hold_bounds()

    def extents(self, chunk: int) -> Sequence[Extent]:
        """Return the corpus's extents."""
        return self._corpus.extents(chunk)

    def read_fetched(self, chunk: int, pieces: Sequence[Piece]) -> Chunk:
        """Return the corpus's chunk, whose extents were fetched."""
        return self._corpus.read_fetched(chunk, pieces)

    def select(self, ordinals: NDArray[np.int64]) -> Chunk:
        """Return the corpus's sequences."""
        return self._corpus.select(ordinals)

    def lengths(self, ordinals: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return the corpus's lengths."""
        return self._corpus.lengths(ordinals)

    def keys(self, ordinals: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the corpus's keys."""
        return self._corpus.keys(ordinals)

    def paths(self) -> Sequence[str]:
        """Return the corpus's paths."""
        return self._corpus.paths()

    def digest(self) -> str:
        """Return the corpus's digest."""
        return self._corpus.digest()

    def capability(self, kind: type[Capability]) -> Capability | None:
        """Return what the corpus can do: by this corpus where it changes that, else by the corpus itself."""
        inner = self._corpus.capability(kind)
        return inner if inner is None or not isinstance(self, kind) else self

    def verified(self) -> Self:
        """Return the same over the verified corpus; itself if that is the corpus."""
        corpus = verified(self._corpus)
        if corpus is self._corpus:
            return self
        other = copy.copy(self)
        other._corpus = corpus
        return other

    def close(self) -> None:
        """Close the corpus."""
        self._corpus.close()
