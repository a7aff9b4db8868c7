"""The number of samples of each sequence of a segment, before the sequences are delivered.

It comes from the corpus if chunk sizes are known before reading, else from the chunks of the window. The functions hold
no reference to a source, so that an unused source is freed at once rather than by the cycle collector.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from feedline.data import Chunk
from feedline.errors import DataError
from feedline.feed.protocol import Deserializer, Ints
from feedline.feed.reading.decoding_reader import DecodingReader
from feedline.feed.timeline import Segment

Lengths = Callable[[Segment], Ints | None]


def of_corpus(corpus: Deserializer) -> Lengths:
    """Return a function that asks ``corpus`` for the lengths."""
    return lambda segment: corpus.lengths(segment.ordinals)


def of_windows(reader: DecodingReader) -> Lengths:
    """Return a function that takes the lengths from the chunks of the window, which it reads if necessary."""

    def of(segment: Segment) -> Ints | None:
        chunks = reader.fetch(segment.plan.chunks)
        if all(chunk.lengths is None for chunk in chunks):
            return None
        flat = np.concatenate([_lengths(chunk) for chunk in chunks])
        sizes: Ints = flat[segment.plan.starts[segment.place] + segment.index]
        return sizes

    return of


def require_single(lengths: Lengths, corpus: Deserializer) -> Lengths:
    """Return ``lengths`` for frame mode, in which a sequence with more or fewer samples than one is a DataError."""

    def of(segment: Segment) -> Ints | None:
        samples = lengths(segment)
        if samples is not None and (samples != 1).any():
            bad = int(np.flatnonzero(samples != 1)[0])
            raise frame_error(corpus, int(samples[bad]), int(segment.ordinals[bad]))
        return samples

    return of


def frame_error(corpus: Deserializer, samples: int, ordinal: int, stream: str | None = None) -> DataError:
    """Return the error for a sequence that cannot be fed in frame mode."""
    return DataError(
        f"expected sequences of one sample in frame mode, got one of {samples} samples",
        path=corpus.name,
        sequence=ordinal,
        stream=stream,
        hint="leave out frame_mode=True to read whole sequences",
    )


def _lengths(chunk: Chunk) -> Ints:
    return np.ones(chunk.num_sequences, np.int64) if chunk.lengths is None else chunk.lengths
