"""Sound at another rate, by soxr."""

from __future__ import annotations

import functools
import importlib
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.audio.sound_streams import Samples, check_sound, sound_value
from feedline.data import Schema, Value
from feedline.errors import install_line
from feedline.feed.protocol import whole_number
from feedline.feed.transforms import DrawKeys, Transform, Transformed


class Resample(Transform):
    """Bring samples of one rate to another, by soxr in its high quality, as librosa does by default.

    `Decode` does this by itself. This is for sound from other corpora, such as arrays.

    Args:
        stream: a dense float32 stream, samples of shape () or (channels,).
        rate: samples per second after.
        original_rate: samples per second before.

    Raises:
        ValueError: a rate out of range.
        ModuleNotFoundError: soxr is not installed.
    """

    def __init__(self, stream: str, rate: int, *, original_rate: int) -> None:
        self._stream = stream
        self._rate = whole_number("rate", rate, 1)
        self._original_rate = whole_number("original_rate", original_rate, 1)
        soxr()  # raises errors now, not in the first minibatch

    @property
    def name(self) -> str:
        """Name in errors."""
        return f"audio.Resample({self._stream!r})"

    def schema(self, before: Schema) -> Schema:
        """Return the streams, which stay.

        Raises:
            SchemaError: the stream is unknown or of another kind.
        """
        check_sound(before, self._stream, self.name)
        return before

    def run_all(self, before: Schema, values: dict[str, Value], keys: DrawKeys) -> Transformed:
        """See `Transform.run_all`."""
        began = time.perf_counter()
        recordings = [
            resampled(samples, self._original_rate, self._rate) for samples in values[self._stream].sequences()
        ]
        changed = {**values, self._stream: sound_value(recordings, before[self._stream])}
        return Transformed({name: changed[name] for name in before}, seconds=time.perf_counter() - began)

    def __repr__(self) -> str:
        return f"Resample({self._stream!r}, {self._rate}, original_rate={self._original_rate})"


def resampled(samples: Samples, rate: int, to: int) -> Samples:
    """Return sound at another rate: itself if the rates are equal."""
    if rate == to or not len(samples):
        return samples
    result: NDArray[np.float32] = soxr().resample(samples, rate, to)
    return result


@functools.cache
def soxr() -> Any:
    """Return the module `soxr`, or raise a ModuleNotFoundError with the command that installs it."""
    try:
        return importlib.import_module("soxr")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"soxr is not installed; run: {install_line('audio')}") from error
