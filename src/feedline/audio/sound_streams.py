"""Streams of sound: float32 samples, scalars or (channels,), any number in a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from feedline._native import recycled
from feedline.data import Schema, Stream
from feedline.data.value import DenseValue
from feedline.errors import SchemaError

Samples: TypeAlias = NDArray[np.float32]
"""Sound: float32 (samples,) or (samples, channels)."""


def check_sound(schema: Schema, stream: str, where: str, *, mono: bool = False) -> None:
    """Check that a stream is one of sound.

    Raises:
        SchemaError: it is unknown or of another kind.
    """
    if stream not in schema:
        raise SchemaError(f"expected one of the streams {', '.join(schema)} for {where}, got `{stream}`")
    declared = schema[stream]
    if declared.is_bytes:
        raise SchemaError(
            f"expected samples in stream `{stream}` for {where}, got {declared}: decode it first, with "
            f"audio.Decode({stream!r})"
        )
    if declared.sparse or declared.dtype != np.float32 or len(declared.shape) > (0 if mono else 1):
        shapes = "shape ()" if mono else "shape () or (channels,)"
        raise SchemaError(f"expected float32 samples of {shapes} in stream `{stream}` for {where}, got {declared}")


def sound_value(recordings: Sequence[Samples], stream: Stream) -> DenseValue:
    """Return recordings as a value of one sequence each."""
    ends = np.cumsum([0] + [len(samples) for samples in recordings], dtype=np.int64)
    count = int(ends[-1])
    rows = recycled.empty((count, *stream.shape), stream.dtype)
    if recordings:
        np.concatenate(recordings, out=rows)
    return DenseValue(rows, ends)
