"""A corpus of sequences with given keys and lengths, and rows that name their sequence."""

import threading

import numpy as np

import feedline as fl
from feedline import Chunk, ChunkInfo, DataError, Deserializer, Schema, Stream, Value
from feedline.feed.protocol import select_by_chunk


class KeyedCorpus(Deserializer, fl.Keyed):
    def __init__(self, name, keys, lengths=None, chunk=3, sparse=False, bad=(), defines_size=False):
        self.name = name
        stream = Stream(shape=97, sparse=True) if sparse else Stream(shape=2, dtype="float64")
        self.schema = Schema({name: Stream(stream.shape, stream.dtype, sparse, defines_size=defines_size)})
        self.all_keys = np.array(keys, np.uint64)
        self.all_lengths = None if lengths is None else np.array(lengths, np.int64)
        self._edges = [*range(0, len(keys), chunk), len(keys)]
        self._bad = set(bad)
        self.reads = []
        self._lock = threading.Lock()

    def chunks(self):
        return [
            ChunkInfo(b - a, sum(self.length(i) for i in range(a, b)), 7 * (b - a))
            for a, b in zip(self._edges, self._edges[1:], strict=False)
        ]

    def length(self, ordinal):
        return 1 if self.all_lengths is None else int(self.all_lengths[ordinal])

    def lengths(self, ordinals):
        return None if self.all_lengths is None else self.all_lengths[ordinals]

    def keys(self, ordinals):
        return self.all_keys[ordinals]

    def digest(self):
        return self.all_keys.tobytes().hex()

    def sequence(self, ordinal):
        """The rows of one sequence, dense, and its row of column indices."""
        steps = np.arange(self.length(ordinal))
        return np.stack([np.full(len(steps), ordinal, float), steps.astype(float)], axis=1)

    def read(self, chunk):
        with self._lock:
            self.reads.append(chunk)
        a, b = self._edges[chunk], self._edges[chunk + 1]
        (stream,) = self.schema.values()
        if a == b:
            value = Value.empty(stream)
        elif stream.sparse:
            value = Value.one_hot([np.full(self.length(i), i % 97) for i in range(a, b)], 97)
        else:
            value = Value.from_sequences([self.sequence(i) for i in range(a, b)])
        errors = {i - a: DataError(f"planted in {self.name}", sequence=i) for i in range(a, b) if i in self._bad}
        return Chunk(self.schema, {self.name: value}, errors)


class SelectingCorpus(KeyedCorpus):
    """A corpus that overrides `select`."""

    def select(self, ordinals):
        return select_by_chunk(self, ordinals)
