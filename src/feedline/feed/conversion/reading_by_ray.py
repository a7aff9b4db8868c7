"""Read chunks in order by workers of Ray, on any machine of its cluster.

Each worker opens the corpus once, by its path, as the files have the same names on all machines. If a worker or a
machine dies, the chunk that it was reading is read again elsewhere.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Generator, Sequence

import numpy as np

from feedline.data import Chunk
from feedline.errors import DataError
from feedline.feed.protocol import Deserializer
from feedline.feed.workers import Pool

_AHEAD = 4  # chunks per worker that are being read, or were read ahead


class ReadChunk:
    """A `Task` of a pool: units are numbers of chunks.

    Args:
        corpus: corpus to read.
    """

    def __init__(self, corpus: Deserializer) -> None:
        self._corpus = corpus

    def start(self, worker: int, workers: int) -> None:
        """See `Task.start`."""

    def run(self, number: int) -> Chunk | DataError:
        """Return a chunk, or the error for the caller to raise, without the notes of a worker."""
        try:
            chunk = self._corpus.read(number)
            # A copy, since views of a map are read under a guard only.
            return chunk.take(np.arange(chunk.num_sequences)) if chunk.num_sequences else chunk
        except DataError as error:
            return error


def read_by_ray(corpus: Deserializer, numbers: Sequence[int], workers: int) -> Generator[Chunk]:
    """Yield ``corpus.read(number)`` for each number, in order. Sequences with impossible entries are unreadable.

    Up to `_AHEAD` chunks per worker are held.

    Raises:
        DataError: a chunk cannot be read.
        WorkerError: workers die again and again.
    """
    waiting: deque[int] = deque()
    with contextlib.closing(Pool(ReadChunk(corpus), min(workers, max(len(numbers), 1)), kind="ray")) as pool:
        for number in numbers:
            waiting.append(pool.submit(number))
            if len(waiting) >= _AHEAD * workers:
                yield _copy_out(pool.result(waiting.popleft()))
        while waiting:
            yield _copy_out(pool.result(waiting.popleft()))


def _copy_out(chunk: Chunk | DataError) -> Chunk:
    if isinstance(chunk, DataError):
        raise chunk
    return chunk
