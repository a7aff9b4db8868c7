"""How many samples has each sequence of a segment, before it is delivered?

From the corpus where chunk sizes are known before reading, else from the chunks of the window. Nothing here refers to
a source, so that one that nobody uses any more is freed at once, and not when cycles are next looked for.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from feedline.data import Chunk
from feedline.errors import DataError
from feedline.feed.prefetch import BufferedReader
from feedline.feed.protocol import Deserializer
from feedline.feed.timeline import Segment

Ints = NDArray[np.int64]
Lengths = Callable[[Segment], Ints | None]


def indexed(corpus: Deserializer) -> Lengths:
    """The lengths that ``corpus`` tells; None: one sample each."""
    return lambda segment: corpus.lengths(segment.ordinals)


def read(reader: BufferedReader) -> Lengths:
    """The lengths that the chunks of the segment's window have, read now if need be."""

    def of(segment: Segment) -> Ints | None:
        chunks = reader.fetch(segment.plan.chunks)
        if all(chunk.lengths is None for chunk in chunks):
            return None
        flat = np.concatenate([_lengths(chunk) for chunk in chunks])
        found: Ints = flat[segment.plan.starts[segment.place] + segment.index]
        return found

    return of


def single(lengths: Lengths, corpus: Deserializer) -> Lengths:
    """As ``lengths``, for frame mode: raises a DataError for any sequence that has not exactly one sample."""

    def of(segment: Segment) -> Ints | None:
        found = lengths(segment)
        if found is not None and (found != 1).any():
            bad = int(np.flatnonzero(found != 1)[0])
            raise no_frame(corpus, int(found[bad]), int(segment.ordinals[bad]))
        return found

    return of


def no_frame(corpus: Deserializer, samples: int, ordinal: int, stream: str | None = None) -> DataError:
    """Why a sequence cannot be fed in frame mode."""
    return DataError(
        f"expected sequences of one sample in frame mode, got one of {samples} samples",
        path=corpus.name,
        sequence=ordinal,
        stream=stream,
        hint="leave out frame_mode=True to read whole sequences",
    )


def _lengths(chunk: Chunk) -> Ints:
    return np.ones(chunk.num_sequences, np.int64) if chunk.lengths is None else chunk.lengths
