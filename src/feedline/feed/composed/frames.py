"""Sequences split into frames: every sample becomes a separate sequence.

This is for models that look at one frame at a time, with its neighbours in the sample. The order shuffles frames, and
the content of a frame is unchanged. Chunks are not copied unless a sequence is unreadable or streams differ in length.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from feedline.data import Chunk, Schema, Stream, Value
from feedline.data.value import BytesValue
from feedline.errors import DataError
from feedline.feed.composed.concat import lengths_of
from feedline.feed.files.lru import LruCache
from feedline.feed.formats.unreadable import no_values
from feedline.feed.joined_values import in_sequences
from feedline.feed.protocol import ChunkInfo, Deserializer, Ints, chunk_starts, is_sized


class Frames(Deserializer):
    """The frames of a corpus, one sequence each, in the order of its sequences.

    A frame is unreadable if a stream lacks it, because its sequence is shorter in that stream. All frames of an
    unreadable sequence are unreadable, too.

    Args:
        corpus: corpus whose sequences are split. It must know their lengths before reading.

    Raises:
        ValueError: the corpus does not know its sizes.
    """

    def __init__(self, corpus: Deserializer) -> None:
        if not is_sized(corpus):
            raise ValueError(f"expected a corpus that knows its sizes before reading, got {corpus.name}")
        self.corpus = corpus
        self.schema, self.name = corpus.schema, corpus.name
        self._infos = [ChunkInfo(info.samples, info.samples, info.bytes) for info in corpus.chunks()]
        self._starts = chunk_starts(corpus)
        self._kept = LruCache(self._lengths_of, lambda lengths: lengths.nbytes, 64 << 20)

    def chunks(self) -> list[ChunkInfo]:
        """Return the size of every chunk: the corpus's, with a sequence for each sample."""
        return self._infos

    def digest(self) -> str:
        """Return the corpus's digest, marked to differ from the digest of whole sequences."""
        return f"{self.corpus.digest()}f"

    def paths(self) -> list[str]:
        """Return the paths of the corpus."""
        return list(self.corpus.paths())

    def read(self, chunk: int) -> Chunk:
        """Return the frames of a chunk. Raises the errors of the corpus."""
        return frames_of(self.corpus.read(chunk), self._kept.get(chunk))

    def close(self) -> None:
        """Close the corpus."""
        self._kept.clear()
        self.corpus.close()

    def _lengths_of(self, chunk: int) -> Ints:
        return lengths_of(self.corpus, np.arange(self._starts[chunk], self._starts[chunk + 1]))


def frames_of(chunk: Chunk, lengths: Ints) -> Chunk:
    """Return the samples of a chunk as sequences: ``lengths[i]`` of sequence i, even if a stream has fewer."""
    starts = np.concatenate([[0], np.cumsum(lengths)])
    errors: dict[int, DataError] = {}
    for i, error in chunk.errors.items():
        errors.update(dict.fromkeys(range(int(starts[i]), int(starts[i + 1])), error))
    values: dict[str, Value] = {}
    for name, value in chunk.values.items():
        if np.array_equal(value.lengths, lengths):
            values[name] = in_sequences(value, None)
            continue
        within = np.arange(int(starts[-1])) - np.repeat(starts[:-1], lengths)
        present = within < np.repeat(value.lengths, lengths)
        rows = np.where(present, np.repeat(value.offsets[:-1], lengths) + within, 0)
        values[name] = take_rows(value, rows, present)
        for i in np.flatnonzero(~present).tolist():
            what = "expected a sample of every stream for a frame, got a shorter sequence"
            errors.setdefault(i, DataError(what, stream=name))
    return Chunk(chunk.schema, values, errors, seals=chunk.seals)


def repeat(chunk: Chunk, like: Chunk) -> Chunk:
    """Return a chunk whose sequences, of one sample each, are repeated for each sample of the sequences of ``like``.

    A sequence with more than one sample, or none, is unreadable, unless it is as long as its counterpart in ``like``.
    """
    lengths = np.ones(len(like), np.int64) if like.lengths is None else like.lengths
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    within = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], lengths)
    errors = dict(chunk.errors)
    values: dict[str, Value] = {}
    for name, value in chunk.values.items():
        fits = (value.lengths == 1) | (value.lengths == lengths)
        step = np.where(fits & (value.lengths > 1), 1, 0)
        rows = np.repeat(np.where(fits, value.offsets[:-1], 0), lengths) + within * np.repeat(step, lengths)
        taken = take_rows(value, rows, np.repeat(fits, lengths))
        values[name] = in_sequences(taken, offsets)
        for i in np.flatnonzero(~fits).tolist():
            what = f"expected one sample to repeat {lengths[i]} times, got {value.lengths[i]}"
            errors.setdefault(i, DataError(what, stream=name))
    return Chunk(chunk.schema, values, errors)


def take_rows(value: Value, rows: Ints, present: NDArray[np.bool_] | None = None) -> Value:
    """Return copies of the samples ``rows``, one sequence each. Rows where ``present`` is False are arbitrary."""
    single = in_sequences(value, None)
    schema = Schema({"x": _stream(value)})
    if single.num_samples == 0:
        return no_values(schema, (), len(rows))["x"]
    return Chunk(schema, {"x": single}).take(np.ascontiguousarray(rows if present is None else rows * present))["x"]


def _stream(value: Value) -> Stream:
    if isinstance(value, BytesValue):
        return Stream(dtype=value.kind)
    return Stream(value.shape, value.dtype, value.is_sparse)
