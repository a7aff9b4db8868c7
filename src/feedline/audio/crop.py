"""Random or middle parts of recordings."""

from __future__ import annotations

import time

import numpy as np

from feedline.audio.sound_streams import check_sound, sound_value
from feedline.data import Schema, Value
from feedline.feed.protocol import whole_number
from feedline.feed.transforms import DrawKeys, Transform, Transformed


class Crop(Transform):
    """Keep a part of each recording, and all of those that are shorter.

    Where it begins is drawn for each sequence anew in each sweep: the same for any minibatch size, number of ranks or
    restart.

    Args:
        stream: a dense float32 stream, samples of shape () or (channels,).
        duration_s: length of a part in seconds.
        samples: length of a part in samples, instead of ``duration_s``.
        rate: samples per second, for ``duration_s``.
        random: whether its begin is random. Otherwise the part is in the middle.

    Raises:
        ValueError: neither or both lengths, or an argument out of range.
    """

    def __init__(
        self,
        stream: str,
        duration_s: float | None = None,
        *,
        samples: int | None = None,
        rate: int = 16000,
        random: bool = True,
    ) -> None:
        if (duration_s is None) == (samples is None):
            raise ValueError(
                f"expected either duration_s or samples for audio.Crop, got {duration_s!r} and {samples!r}"
            )
        rate = whole_number("rate", rate, 1)
        if duration_s is not None:
            if not 0 < duration_s < 2**40:
                raise ValueError(f"expected duration_s above 0 for audio.Crop, got {duration_s!r}")
            samples = max(1, round(duration_s * rate))
        self._stream, self._random = stream, bool(random)
        self._samples = whole_number("samples", samples, 1)

    @property
    def name(self) -> str:
        """Name in errors."""
        return f"audio.Crop({self._stream!r})"

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
        value = values[self._stream]
        spare = np.maximum(value.lengths - self._samples, 0)
        starts = spare // 2
        if self._random:
            draws = keys.uniforms(0, 1)[:, 0] if len(spare) else np.empty(0)
            starts = np.minimum((draws * (spare + 1)).astype(np.int64), spare)
        sequences = zip(value.sequences(), starts.tolist(), strict=True)
        parts = [sequence[start : start + self._samples] for sequence, start in sequences]
        changed = {**values, self._stream: sound_value(parts, before[self._stream])}
        return Transformed({name: changed[name] for name in before}, seconds=time.perf_counter() - began)

    def __repr__(self) -> str:
        return f"Crop({self._stream!r}, samples={self._samples}, random={self._random})"
