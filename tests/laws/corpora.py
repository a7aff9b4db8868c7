"""Corpora for the laws: made in memory, read chunk by chunk, every read counted."""

from __future__ import annotations

import threading

import numpy as np

from feedline import Chunk, ChunkInfo, Deserializer, Schema, Stream, Value


class CountedCorpus(Deserializer):
    """Ragged sequences in two streams (dense rows that name their sequence and step, sparse one-hot)."""

    def __init__(self, lengths, chunk_sizes, random_access=False, bad=()):
        assert sum(chunk_sizes) == len(lengths)
        self.schema = Schema({"x": Stream(shape=2), "y": Stream(shape=7, sparse=True)})
        self.random_access = random_access
        self._lengths = np.asarray(lengths, np.int64)
        self._starts = np.concatenate([[0], np.cumsum(chunk_sizes)]).astype(int)
        self._bad = frozenset(bad)
        self.reads = []
        self._lock = threading.Lock()

    def chunks(self):
        return [
            ChunkInfo(b - a, int(self._lengths[a:b].sum()), 10 * int(self._lengths[a:b].sum()))
            for a, b in zip(self._starts, self._starts[1:], strict=False)
        ]

    def lengths(self, ordinals):
        return None if (self._lengths == 1).all() else self._lengths[ordinals]

    def digest(self):
        return f"{self._lengths.tobytes().hex()}"

    def rows(self, ordinal):
        n = int(self._lengths[ordinal])
        return np.stack([np.full(n, ordinal, np.float32), np.arange(n, dtype=np.float32)], axis=1)

    def read(self, chunk):
        from feedline import DataError

        with self._lock:
            self.reads.append(chunk)
        a, b = self._starts[chunk], self._starts[chunk + 1]
        schema = self.schema
        if a == b:
            values = {
                "x": Value.from_dense(np.empty((0, 2), np.float32)),
                "y": Value.from_csr([0], [], np.empty(0, np.float32), 7),
            }
            return Chunk(schema, values)
        x = Value.from_sequences([self.rows(i) for i in range(a, b)])
        y = Value.one_hot([np.full(int(self._lengths[i]), i % 7) for i in range(a, b)], 7)
        errors = {i - a: DataError("planted", sequence=int(i)) for i in range(a, b) if i in self._bad}
        return Chunk(schema, {"x": x, "y": y}, errors)
