"""Equal work for all ranks: the sequences of a global minibatch are assigned by their work, not by position.

A rule gives the work of a sequence by its length. Every rank computes the assignment of the whole minibatch, so that a
share is a function of the minibatch. States are the same with and without it, and under any number of ranks. A row
of documents has the work of all its documents. Cost: about 30 microseconds per 1,000 sequences.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feedline.feed.equal_work import WorkRule, assign, by_position, work_of
from feedline.feed.files.lru import LruCache
from feedline.feed.packing.axis import SegmentSlice
from feedline.feed.protocol import Deserializer, RowsOfDocuments
from feedline.feed.unique import distinct

Ints = NDArray[np.int64]

_CACHE_BYTES = 64 << 20


class Balance:
    """Assigns the sequences of minibatches to ranks, so that all have about as much work.

    Args:
        rule: the work of sequences.
        corpus: corpus that the sequences are from.
        same_number: whether ranks get as many sequences as by position.
    """

    def __init__(self, rule: WorkRule, corpus: Deserializer, *, same_number: bool) -> None:
        self._rule, self._corpus, self._same_number = rule, corpus, same_number
        self._rows = corpus.capability(RowsOfDocuments)
        self._work_of_chunks = LruCache(self._work_of_rows, lambda work: work.nbytes, _CACHE_BYTES)

    @classmethod
    def of(cls, rule: WorkRule | None, corpus: Deserializer) -> Balance | None:
        """Return the balance of a source, or None without a rule."""
        return rule if rule is None or isinstance(rule, cls) else cls(rule, corpus, same_number=False)

    def __call__(self, lengths: Ints) -> ArrayLike:
        """Return the work of sequences by their lengths."""
        return self._rule(lengths)

    def take(self, parts: Sequence[SegmentSlice], index: int, count: int) -> tuple[SegmentSlice, ...]:
        """Return the sequences of rank ``index`` of ``count``, in order."""
        work = np.concatenate([self._work(part) for part in parts])
        counts = by_position(len(work), count) if self._same_number else None
        chosen = assign(work, count, counts) == index
        share, first = [], 0
        for segment, a, b in parts:
            which = np.flatnonzero(chosen[first : first + b - a])
            if len(which):
                share.append(SegmentSlice(segment.take(which + a), 0, len(which)))
            first += b - a
        return tuple(share)

    def _work(self, part: SegmentSlice) -> NDArray[np.float64]:
        segment, a, b = part
        if self._rows is None:
            ends = segment.ends
            lengths = self._lengths(segment.ordinals[a:b]) if ends is None else np.diff(ends[a : b + 1])
            return work_of(self._rule, lengths)
        chunks, rows = segment.plan.chunks[segment.place[a:b]], segment.index[a:b]
        work = np.empty(b - a, np.float64)
        for chunk in distinct(chunks).tolist():
            at = chunks == chunk
            work[at] = self._work_of_chunks.get(chunk)[rows[at]]
        return work

    def _lengths(self, ordinals: Ints) -> Ints:
        lengths = self._corpus.lengths(ordinals)
        return np.ones(len(ordinals), np.int64) if lengths is None else lengths

    def _work_of_rows(self, chunk: int) -> NDArray[np.float64]:
        """Return the work of each row of a chunk."""
        assert self._rows is not None
        _, lengths, bounds = self._rows.documents(chunk)
        total = np.concatenate([[0.0], np.cumsum(work_of(self._rule, lengths))])
        work: NDArray[np.float64] = np.diff(total[bounds])
        return work
