"""Integers and texts as ids: of a vocabulary, or by a hash."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.data import Stream, Value
from feedline.data.value import BytesValue
from feedline.errors import SchemaError
from feedline.feed.protocol import check_seed, whole_number
from feedline.feed.transforms.stream_change import Flags, StreamChange, with_rows

UNKNOWN = 0
"""Id of values that are not in a vocabulary, and of those that the data lacks."""

_SIGN = 1 << 63


class Vocabulary(StreamChange):
    """Replace integers and texts by ids, int64: 1 for the most frequent value of all data, 2 for the next one.

    Other values get 0, and so do samples that the data lacks, where the corpus has their mask.

    Args:
        statistics: what `statistics` has returned.
        streams: names of the streams. None: all texts among the statistics.
        size: number of ids of each stream, 0 included. None: as many as there are values.
        least: count from which on a value has an id.

    Raises:
        ValueError: there are no such streams, or an argument is out of range.
        SchemaError: a stream has no counts of values, or has texts where its statistics are of integers.
    """

    def __init__(
        self,
        statistics: Mapping[str, Any],
        streams: Collection[str] | None = None,
        *,
        size: int | None = None,
        least: int = 1,
    ) -> None:
        if streams is None:
            streams = [name for name, stream in statistics.items() if stream.dtype.startswith(("str", "bytes"))]
        super().__init__(streams)
        most = None if size is None else whole_number("size", size, 2) - 1
        least = whole_number("least", least, 1)
        self._values: dict[str, list[Any]] = {}
        self._dtypes: dict[str, str] = {}
        for name in self._names:
            if name not in statistics or statistics[name].distinct is None:
                raise SchemaError(
                    f"expected statistics of integers or texts `{name}`, got those of {', '.join(statistics)}"
                )
            self._values[name] = [value for value, count in statistics[name].values[:most] if count >= least]
            self._dtypes[name] = statistics[name].dtype
        self._tables: dict[str, _native.ValueTable] = {}

    def size(self, stream: str) -> int:
        """Return the number of ids of a stream, 0 included: the rows of an embedding."""
        return len(self._values[stream]) + 1

    def __getstate__(self) -> dict[str, Any]:
        """Return what can be pickled: all but the tables."""
        return {**vars(self), "_tables": {}}

    def _stream(self, name: str, stream: Stream) -> Stream:
        ids = _ids_of(self, name, stream)
        if stream.is_bytes != self._dtypes[name].startswith(("str", "bytes")):
            raise SchemaError(
                f"expected {self._dtypes[name]} in `{name}`, as in its statistics, got {stream.dtype.name}: make "
                "statistics of this corpus"
            )
        return ids

    def _changed(self, name: str, value: Value, present: Flags | None) -> Value:
        table = self._tables.get(name)
        if table is None:
            table = self._tables[name] = _table(self._values[name], isinstance(value, BytesValue))
        if isinstance(value, BytesValue):
            ids = table.find_texts(value.bounds, np.ascontiguousarray(value.data))
        else:
            ids = table.find_integers(_integers(value))
        ids += 1
        if present is not None:
            ids[~present] = UNKNOWN
        return with_rows(value, ids)


class Hash(StreamChange):
    """Replace integers and texts by ids from 0 to ``buckets`` - 1, int64, by a hash that never changes.

    Args:
        buckets: number of ids, which different values may share.
        streams: names of the streams.
        seed: other seeds give other ids. Below 2**64.

    Raises:
        ValueError: there are no streams, or an argument is out of range.
    """

    def __init__(self, buckets: int, streams: Collection[str], *, seed: int = 0) -> None:
        super().__init__(streams)
        self._buckets, self._seed = whole_number("buckets", buckets, 1), check_seed(seed)

    def _stream(self, name: str, stream: Stream) -> Stream:
        return _ids_of(self, name, stream)

    def _changed(self, name: str, value: Value, present: Flags | None) -> Value:
        if isinstance(value, BytesValue):
            hashes = _native.hash_texts(value.bounds, np.ascontiguousarray(value.data), self._seed)
        else:
            hashes = _native.hash_integers(_integers(value), self._seed)
        return with_rows(value, (hashes % np.uint64(self._buckets)).astype(np.int64))


def _ids_of(transform: StreamChange, name: str, stream: Stream) -> Stream:
    if stream.shape != () or stream.sparse or stream.dtype.kind not in "iuSU":
        raise SchemaError(f"expected scalar integers or texts for {transform.name}, got `{name}`: {stream}")
    return Stream((), "int64", defines_size=stream.defines_size)


def _integers(value: Value) -> NDArray[np.int64]:
    return np.ascontiguousarray(value.rows).astype(np.int64, copy=False)


def _table(values: Sequence[Any], texts: bool) -> _native.ValueTable:
    """Return a table in which each value has its index as number."""
    table = _native.ValueTable(texts, 0)
    if texts:
        encoded = [v if isinstance(v, bytes) else v.encode() for v in values]
        value = Value.from_bytes(encoded, "bytes")
        assert isinstance(value, BytesValue)
        table.add_texts(value.bounds, value.data, None)
    else:
        integers = [(value + _SIGN) % (1 << 64) - _SIGN for value in values]  # as uint64 is read
        table.add_integers(np.array(integers, np.int64), None, np.ones(len(integers), np.int64))
    return table
