"""A corpus that forwards to another one, except for the changes of a subclass."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from feedline.data import Chunk
from feedline.feed.protocol import Capability, ChunkInfo, Deserializer, Verifiable, verified


class Forwarding(Deserializer, Verifiable):
    """Forwards everything to ``corpus``, whose states it shares.

    A subclass that changes the result of ``read`` must have each capability whose methods read, too, or list it in
    ``_lacks``.

    Args:
        corpus: the corpus, which must know its sizes before reading.
    """

    def __init__(self, corpus: Deserializer) -> None:
        self._corpus = corpus
        self.schema, self.name = corpus.schema, corpus.name

    def chunks(self) -> Sequence[ChunkInfo]:
        """Return the corpus's chunks."""
        return self._corpus.chunks()

    def read(self, chunk: int) -> Chunk:
        """Return the corpus's chunk."""
        return self._corpus.read(chunk)

    def select(self, ordinals: NDArray[np.int64]) -> Chunk:
        """Return the corpus's sequences."""
        return self._corpus.select(ordinals)

    def lengths(self, ordinals: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return the corpus's lengths."""
        return self._corpus.lengths(ordinals)

    def paths(self) -> Sequence[str]:
        """Return the corpus's paths."""
        return self._corpus.paths()

    def digest(self) -> str:
        """Return the corpus's digest."""
        return self._corpus.digest()

    def capability(self, kind: type[Capability]) -> Capability | None:
        """Return the capability of the corpus: this object where it overrides it, else the corpus itself."""
        inner = None if kind in self._lacks else self._corpus.capability(kind)
        return inner if inner is None or not isinstance(self, kind) else self

    def verified(self) -> Self:
        """Return the same over the verified corpus, or this object if that is the corpus."""
        corpus = verified(self._corpus)
        if corpus is self._corpus:
            return self
        forwarding = copy.copy(self)
        forwarding._corpus = corpus
        return forwarding

    def close(self) -> None:
        """Close the corpus."""
        self._corpus.close()
