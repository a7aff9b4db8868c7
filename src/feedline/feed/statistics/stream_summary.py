"""The summary of one stream of some chunks. Summaries are merged in the order of the chunks."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.data import Stream, Value
from feedline.data.value import BytesValue, SparseValue
from feedline.errors import SchemaError
from feedline.feed.statistics import row_sample
from feedline.feed.statistics.array_text import array_of, text_of
from feedline.feed.statistics.column_moments import Moments, moments_of, moments_of_lengths
from feedline.feed.statistics.row_sample import RowSample
from feedline.feed.statistics.value_counts import Present, add_texts, value_table

Candidates = Callable[[int], tuple[NDArray[np.int64], NDArray[np.uint64]]]


class StreamSummary:
    """What is known of a stream.

    Args:
        name: its name.
        stream: its declaration.

    Attributes:
        samples: number of samples, nulls included.
        nulls: number of samples that the data lacks.
        columns: moments of each column of its numbers, or of the bytes of its texts.
        lengths: moments of the numbers of samples in its sequences.
        sample: a sample of its numbers, if they are scalars. Else None.
        table: counts of its values, if they are scalar integers or texts. Else None.
    """

    def __init__(self, name: str, stream: Stream) -> None:
        kind = stream.dtype.kind
        if kind not in "biufSU":
            raise SchemaError(f"expected numbers or texts for statistics, got {stream.dtype} in stream `{name}`")
        self.name, self.stream = name, stream
        self.samples = self.nulls = 0
        scalar = stream.shape == () and not stream.is_bytes
        self.columns = [Moments()] * (1 if stream.sparse else max(stream.size, 1))
        self.lengths = Moments()
        self.sample: RowSample | None = RowSample(_plain(stream.dtype)) if scalar else None
        counted = stream.is_bytes or (scalar and kind in "iu")
        self.table: _native.ValueTable | None = value_table(texts=stream.is_bytes) if counted else None

    def add(self, value: Value, present: Present, candidates: Candidates) -> None:
        """Add the samples of some sequences.

        Args:
            value: the samples.
            present: uint8 (samples,), 0 for those that the data lacks. None: none is lacking.
            candidates: returns index and hash of those of ``n`` samples that may enter `sample`.
        """
        count = value.num_samples
        self.samples += count
        if present is not None:
            self.nulls += count - int(np.count_nonzero(present))
        if not value.one_sample_each:
            self.lengths = self.lengths.merged(moments_of_lengths(value.offsets, None))
        if isinstance(value, BytesValue):
            assert self.table is not None
            add_texts(self.table, value, present)
            self.columns = [self.columns[0].merged(moments_of_lengths(value.bounds, present))]
            return
        if isinstance(value, SparseValue):
            self._add_rows(_numbers(value.values).reshape(-1, 1), None)
            return
        rows = _numbers(value.rows)
        self._add_rows(rows.reshape(count, len(self.columns)), present)
        if self.table is not None:
            self.table.add_integers(rows, present)
        if self.sample is not None:
            places, hashes = candidates(count)
            numbers = rows[places]
            keep = numbers == numbers  # not NaN
            if present is not None:
                keep &= present[places] != 0
            some = slice(None) if keep.all() else keep  # a mask copies
            self.sample.add(hashes[some], numbers[some])

    def merge(self, following: StreamSummary) -> None:
        """Add the summary of the chunks that follow."""
        self.samples += following.samples
        self.nulls += following.nulls
        self.columns = [mine.merged(theirs) for mine, theirs in zip(self.columns, following.columns, strict=True)]
        self.lengths = self.lengths.merged(following.lengths)
        if self.sample is not None and following.sample is not None:
            self.sample.merge(following.sample)
        if self.table is not None and following.table is not None:
            self.table.merge(following.table)

    def state(self) -> dict[str, Any]:
        """Return everything in types of JSON, without loss."""
        state: dict[str, Any] = {"samples": self.samples, "nulls": self.nulls}
        state |= {"columns": [list(column) for column in self.columns], "lengths": list(self.lengths)}
        if self.sample is not None:
            state["sample"] = [text_of(array) for array in self.sample.cut()]
        if self.table is not None:
            values, counts = self.table.entries()
            state["values"] = _strings(values) if self.stream.is_bytes else values
            state["counts"] = text_of(counts)
            state["registers"] = base64.b64encode(self.table.registers).decode()
            state["error"] = self.table.error
        return state

    def load(self, state: dict[str, Any]) -> None:
        """Load what `state` has returned."""
        self.samples, self.nulls = state["samples"], state["nulls"]
        self.columns, self.lengths = [Moments(*column) for column in state["columns"]], Moments(*state["lengths"])
        if self.sample is not None:
            self.sample.add(*map(array_of, state["sample"]))
        if self.table is not None:
            counts = array_of(state["counts"])
            if self.stream.is_bytes:
                texts = [base64.b64decode(text) for text in state["values"]]
                value = Value.from_bytes(texts, "bytes")
                self.table.add_texts(value.bounds, value.data, None, counts)
            else:
                self.table.add_integers(np.array(state["values"], np.int64), None, counts)
            self.table.registers, self.table.error = base64.b64decode(state["registers"]), state["error"]

    def _add_rows(self, rows: NDArray[Any], present: Present) -> None:
        added = moments_of(rows, present)
        self.columns = [mine.merged(theirs) for mine, theirs in zip(self.columns, added, strict=True)]


def first_threshold(samples: int | None) -> int:
    """Return a threshold below which there are about four times as many of ``samples`` hashes as a
    sample has. None: unknown."""
    enough = 4 * row_sample.SIZE
    return row_sample.ALL if samples is None or samples <= enough else (enough << 64) // samples


def _plain(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which numbers of a stream are summarised."""
    if dtype.kind == "b":
        return np.dtype(np.uint8)
    return np.dtype(np.float32) if dtype == np.float16 else dtype.newbyteorder("=")


def _numbers(rows: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(rows, _plain(rows.dtype))


def _strings(values: list[bytes]) -> list[str]:
    return [base64.b64encode(value).decode() for value in values]
