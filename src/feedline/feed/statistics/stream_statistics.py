"""Statistics of a corpus, and their file in JSON."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feedline.data import Stream
from feedline.errors import DataError
from feedline.feed.files.atomic import atomic_file
from feedline.feed.files.paths import PathLike, open_file
from feedline.feed.statistics.column_moments import Moments
from feedline.feed.statistics.stream_summary import StreamSummary
from feedline.feed.statistics.value_counts import distinct_values

_FORMAT = 1


@dataclass(frozen=True)
class StreamStatistics:
    """Statistics of one stream.

    `mean`, `deviation`, `low` and `high` are of the numbers that are there and not NaN: one number for scalars and for
    the stored numbers of sparse samples, else a list with one for each element of a sample. For texts they are of the
    lengths in bytes.

    Attributes:
        dtype: dtype of the stream.
        samples: number of samples.
        nulls: number of samples that the data lacks, by the mask of `fl.Stream(mask=True)`.
        nan: number of numbers that are NaN.
        mean, deviation: mean and standard deviation, divided by the count.
        low, high: least and greatest number.
        percentiles: quantiles 0.00, 0.01 to 1.00 of scalars, else empty.
        rank_error: how far the rank of a percentile may be off, as a part of all numbers, once in a thousand times
            more. 0: they are exact, as up to 32,768 numbers.
        distinct: number of distinct values of integers and texts. Else None.
        distinct_error: its standard error, as a part of it. 0: it is exact.
        values: the most frequent integers or texts, at most 65,536, with their counts, by falling count.
        count_error: how much too small a count may be. 0: all values are there, with exact counts.
        lengths: ``(mean, deviation, least, greatest)`` of the numbers of samples in sequences. None if each has one.
    """

    dtype: str
    samples: int
    nulls: int
    nan: int
    mean: Any
    deviation: Any
    low: Any
    high: Any
    percentiles: tuple[float, ...]
    rank_error: float
    distinct: int | None
    distinct_error: float
    values: tuple[tuple[Any, int], ...]
    count_error: int
    lengths: tuple[float, float, int, int] | None

    def quantile(self, share: float) -> float:
        """Return a quantile between the percentiles.

        Raises:
            ValueError: the share is not from 0 to 1, or the stream has no percentiles.
        """
        if not self.percentiles or not 0 <= share <= 1:
            raise ValueError(f"expected a share from 0 to 1 of a stream of scalars, got {share}")
        return float(np.interp(share, np.linspace(0, 1, len(self.percentiles)), self.percentiles))


@dataclass(frozen=True)
class CorpusStatistics(Mapping[str, StreamStatistics]):
    """Statistics of the streams of a corpus, by name.

    Attributes:
        digest: digest of the corpus.
        sequences: number of sequences.
        streams: statistics by stream.
    """

    digest: str
    sequences: int
    streams: Mapping[str, StreamStatistics]

    def __getitem__(self, name: str) -> StreamStatistics:
        return self.streams[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.streams)

    def __len__(self) -> int:
        return len(self.streams)

    def save(self, path: PathLike) -> None:
        """Write them as JSON.

        Raises:
            DataError: the file cannot be written.
        """
        streams = {name: _in_json(stream) for name, stream in self.streams.items()}
        content = {"format": _FORMAT, "digest": self.digest, "sequences": self.sequences, "streams": streams}
        write_json(Path(path), content)

    @staticmethod
    def load(path: PathLike) -> CorpusStatistics:
        """Read a file of `save`.

        Raises:
            DataError: there is no such file, or it is another one.
        """
        content = read_json(Path(path))
        try:
            if content["format"] != _FORMAT:
                raise ValueError(f"format {content['format']}")
            streams = {name: _from_json(stream) for name, stream in content["streams"].items()}
            return CorpusStatistics(content["digest"], content["sequences"], streams)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"expected statistics of format {_FORMAT}, got {error!r}", path=str(path)) from error


def statistics_of(summary: StreamSummary) -> StreamStatistics:
    """Return the statistics of a summary."""
    stream, columns, sample, table = summary.stream, summary.columns, summary.sample, summary.table
    first = columns[0]
    distinct: tuple[int | None, float] = (None, 0.0) if table is None else distinct_values(table)
    values: list[tuple[Any, int]] = []
    if table is not None:
        items, counts = table.items()
        values = list(zip(_values(summary.name, stream, items), counts.tolist(), strict=True))
    lengths = summary.lengths
    return StreamStatistics(
        dtype=stream.dtype.name,
        samples=summary.samples,
        nulls=summary.nulls,
        nan=sum(column.nan for column in columns),
        mean=_shaped(stream, [column.mean if column.size else math.nan for column in columns]),
        deviation=_shaped(stream, [column.deviation for column in columns]),
        low=_shaped(stream, [column.low for column in columns]),
        high=_shaped(stream, [column.high for column in columns]),
        percentiles=() if sample is None or not first.size else tuple(sample.percentiles(first.low, first.high)),
        rank_error=0.0 if sample is None else sample.rank_error(first.size),
        distinct=distinct[0],
        distinct_error=distinct[1],
        values=tuple(values),
        count_error=0 if table is None else table.error,
        lengths=_limits(lengths),
    )


def _limits(lengths: Moments) -> tuple[float, float, int, int] | None:
    return (lengths.mean, lengths.deviation, lengths.low, lengths.high) if lengths.size else None


def _shaped(stream: Stream, numbers: list[Any]) -> Any:
    """Return one number for each element of a sample, in its shape."""
    if stream.sparse or stream.shape == ():
        return numbers[0]
    return np.array(numbers, object).reshape(stream.shape).tolist()


def _values(name: str, stream: Stream, items: list[Any]) -> list[Any]:
    if stream.is_text:
        try:
            return [item.decode() for item in items]
        except UnicodeDecodeError as error:
            raise DataError(f"expected texts in UTF-8, got {error.object!r:.80}", stream=name) from error
    if stream.dtype == np.uint64:
        return [item % (1 << 64) for item in items]
    return items


def _in_json(stream: StreamStatistics) -> dict[str, Any]:
    content = dataclasses.asdict(stream)
    if stream.dtype.startswith("bytes"):
        content["values"] = [[base64.b64encode(value).decode(), count] for value, count in stream.values]
    return content


def _from_json(content: dict[str, Any]) -> StreamStatistics:
    values = [(value, count) for value, count in content["values"]]
    if content["dtype"].startswith("bytes"):
        values = [(base64.b64decode(value), count) for value, count in values]
    lengths = content["lengths"]
    changed = {
        "values": tuple(values),
        "percentiles": tuple(content["percentiles"]),
        "lengths": None if lengths is None else tuple(lengths),
    }
    return StreamStatistics(**content | changed)


def write_json(path: Path, content: Any) -> None:
    """Write a file completely or not at all.

    Raises:
        DataError: it cannot be written.
    """
    try:
        with atomic_file(path) as file:
            file.write(json.dumps(content, ensure_ascii=True).encode())
    except OSError as error:
        raise DataError(f"expected a folder for statistics: {error.strerror}", path=str(path)) from error


def read_json(path: Path) -> Any:
    """Return the content of a file.

    Raises:
        DataError: it cannot be read, or is not JSON.
    """
    try:
        with open_file(path) as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        raise DataError(f"expected statistics in JSON: {error}", path=str(path)) from error
