"""Numbers with a mean of 0 and a deviation of 1."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from feedline.data import Stream, Value
from feedline.errors import SchemaError
from feedline.feed.transforms.stream_change import Flags, StreamChange, with_rows


class Standardize(StreamChange):
    """Subtract the mean of all data from each number, and divide by the standard deviation.

    The results are float32, each element of a sample by its own mean and deviation. Elements that are always the same
    become 0, and so do samples that the data lacks, where the corpus has their mask: 0 is the mean.

    Args:
        statistics: what `statistics` has returned.
        streams: names of the streams. None: all dense streams of floating point numbers among the statistics.

    Raises:
        SchemaError: a stream has no statistics, or is not one of dense numbers.
        ValueError: there are no such streams, or numbers of one are infinite or too large, so that it has no mean.
    """

    def __init__(self, statistics: Mapping[str, Any], streams: Collection[str] | None = None) -> None:
        if streams is None:
            streams = [name for name, stream in statistics.items() if stream.dtype.startswith("float")]
        super().__init__(streams)
        self._means: dict[str, Any] = {}
        self._factors: dict[str, Any] = {}
        for name in self._names:
            if name not in statistics:
                raise SchemaError(f"expected statistics of `{name}`, got those of {', '.join(statistics)}")
            deviation = np.asarray(statistics[name].deviation, np.float64)
            self._means[name] = np.asarray(statistics[name].mean, np.float64)
            _check_finite(name, statistics[name])
            varies = np.isfinite(deviation) & (deviation > 0)
            self._factors[name] = np.where(varies, 1 / np.where(varies, deviation, 1), 0)

    def _stream(self, name: str, stream: Stream) -> Stream:
        if stream.sparse or stream.is_bytes or stream.dtype.kind not in "biuf":
            raise SchemaError(f"expected a dense stream of numbers for {self.name}, got `{name}`: {stream}")
        if self._means[name].shape != stream.shape:
            raise SchemaError(
                f"expected samples of shape {self._means[name].shape} in `{name}`, as in its statistics, got "
                f"{stream.shape}"
            )
        return Stream(stream.shape, "float32", defines_size=stream.defines_size)

    def _changed(self, name: str, value: Value, present: Flags | None) -> Value:
        difference = np.subtract(value.rows, self._means[name], dtype=np.float64)  # first, as means may be large
        rows = np.multiply(difference, self._factors[name], dtype=np.float64, out=difference).astype(np.float32)
        if present is not None:
            rows[~present] = 0
        return with_rows(value, rows)


def _check_finite(name: str, stream: Any) -> None:
    """Raise ValueError if numbers have no mean or deviation, with which all of them would become NaN."""
    columns = zip(
        *(np.ravel(x).tolist() for x in (stream.mean, stream.deviation, stream.low, stream.high)), strict=True
    )
    for mean, deviation, low, high in columns:
        if low is not None and not (np.isfinite(mean) and np.isfinite(deviation)):
            raise ValueError(
                f"expected numbers with a mean and a deviation in `{name}`, got {low} to {high}: replace infinite and "
                "huge numbers in the data, or name the streams that you want without it"
            )
