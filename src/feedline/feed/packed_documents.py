"""The documents in rows of packed corpora, found from a plan of the rows without reading data."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.feed.files.lru import LruCache
from feedline.feed.protocol import CHUNK_MASK, Deserializer, DocumentsOfRows, RowsOfDocuments, chunk_starts
from feedline.feed.unique import distinct

Ints = NDArray[np.int64]

_CACHE_BYTES = 256 << 20


class RowDocuments(NamedTuple):
    """The documents of some rows.

    Attributes:
        ordinals: int64 (m,), ordinal of each document in the corpus that was packed. A document that was cut is in
            every row that has a piece of it.
        bounds: int64 (rows + 1,): row k has ``ordinals[bounds[k]:bounds[k + 1]]``.
    """

    ordinals: Ints
    bounds: Ints

    def by_row(self) -> list[list[int]]:
        """Return the documents of each row."""
        return [self.ordinals[a:b].tolist() for a, b in pairwise(self.bounds.tolist())]


class PackedDocuments:
    """Looks up which documents are in rows. Chunks are packed again, as they were when read, and kept for a while.

    Args:
        corpus: the corpus that was planned.
    """

    def __init__(self, corpus: Deserializer) -> None:
        self._corpus = corpus
        self._starts = chunk_starts(corpus)
        self._chunks = LruCache(self._pack, _cost, _CACHE_BYTES)

    def of(self, ids: Ints, chunks: Ints | None) -> RowDocuments | None:
        """Return the documents of rows, or None if sequences are no rows.

        Args:
            ids: int64 (n,), their ordinals.
            chunks: int64 (n,), their chunks with sweeps, see `PlannedMinibatch`.
        """
        if chunks is None:
            return None
        counts = np.zeros(len(ids), np.int64)
        parts: list[tuple[Ints, Ints, Ints]] = []
        for chunk in distinct(chunks).tolist():
            documents = self._chunks.get(chunk)
            ordinals, bounds = documents.ordinals, documents.bounds
            at = np.flatnonzero(chunks == chunk)
            rows = ids[at] - self._starts[chunk & CHUNK_MASK]
            counts[at] = bounds[rows + 1] - bounds[rows]
            parts.append((at, bounds[rows], ordinals))
        bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        result = np.empty(bounds[-1], np.int64)
        for at, firsts, ordinals in parts:
            lengths = counts[at]
            nth = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            result[np.repeat(bounds[at], lengths) + nth] = ordinals[np.repeat(firsts, lengths) + nth]
        return RowDocuments(result, bounds)

    def _pack(self, chunk: int) -> DocumentsOfRows:
        rows = self._corpus.capability(RowsOfDocuments)
        if rows is None:
            raise TypeError(f"expected a packed corpus, to find the documents of its rows, got {self._corpus.name}")
        return rows.documents(chunk)


def _cost(documents: DocumentsOfRows) -> int:
    return sum(array.nbytes for array in (*documents[:3], *documents.lengths_in.values()))
