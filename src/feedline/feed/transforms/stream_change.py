"""Transforms that change some streams by themselves, each sample alone, in native code."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from feedline.data import Schema, Stream, Value
from feedline.data.chunk import present_samples
from feedline.errors import SchemaError
from feedline.feed.transforms.transform import DrawKeys, Transform, Transformed

Flags = NDArray[np.bool_]


class StreamChange(Transform):
    """A change of the samples of some streams. Their number, and the other streams, stay.

    Args:
        names: names of the streams.
    """

    def __init__(self, names: Collection[str]) -> None:
        if isinstance(names, str) or not names:
            raise ValueError(f"expected names of streams in a list, got {names!r}")
        self._names = tuple(names)

    @property
    def name(self) -> str:
        """Name in errors."""
        return f"the transform {type(self).__name__}"

    def schema(self, before: Schema) -> Schema:
        """Return the schema after this transform."""
        unknown = [name for name in self._names if name not in before]
        if unknown:
            raise SchemaError(f"expected streams {', '.join(before)} for {self.name}, got `{unknown[0]}`")
        return Schema(
            {name: self._stream(name, stream) if name in self._names else stream for name, stream in before.items()}
        )

    def run_all(self, before: Schema, values: dict[str, Value], keys: DrawKeys) -> Transformed:
        """See `Transform.run_all`."""
        began = time.perf_counter()
        changed = dict(values)
        for name in self._names:
            changed[name] = self._changed(name, values[name], present_samples(before, values, name))
        return Transformed(changed, seconds=time.perf_counter() - began)

    @abstractmethod
    def _stream(self, name: str, stream: Stream) -> Stream:
        """Return the declaration of a stream after this transform, or raise SchemaError."""

    @abstractmethod
    def _changed(self, name: str, value: Value, present: Flags | None) -> Value:
        """Return the samples of a stream. ``present`` is False for those that the data lacks."""


def with_rows(value: Value, rows: NDArray[np.generic]) -> Value:
    """Return a value with other rows, in the same sequences."""
    return Value.from_dense(rows, None if value.one_sample_each else value.offsets)
