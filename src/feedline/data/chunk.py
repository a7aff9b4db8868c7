"""A chunk: sequences read and shuffled together, one value per stream.

What a deserializer returns and what minibatches are gathered from. A chunk may hold sequences that could not
be read; they keep their place, have no samples, and say why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from feedline.data.schema import Schema
from feedline.data.value import Value, counted_lengths
from feedline.errors import DataError, SchemaError


class Chunk:
    """Sequences of all streams of a schema.

    Args:
        schema: the streams.
        values: one `Value` per stream of the schema, all with the same number of sequences.
        errors: by index in the chunk, why a sequence could not be read. Such a sequence keeps its place; what
            its values hold is never delivered.

    Raises:
        SchemaError: a stream is missing or too many, has another dtype, shape or kind than declared, or the
            streams disagree on the number of sequences.
    """

    __slots__ = ("errors", "num_sequences", "schema", "values")

    def __init__(
        self, schema: Schema, values: Mapping[str, Value], errors: Mapping[int, DataError] | None = None
    ) -> None:
        if list(values) != list(schema):
            if set(values) != set(schema):
                raise SchemaError(f"expected the streams {', '.join(schema)}, got {', '.join(values) or 'none'}")
            values = {name: values[name] for name in schema}
        counts = {name: value.num_sequences for name, value in values.items()}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{name} has {count}" for name, count in counts.items())
            raise SchemaError(f"expected one number of sequences in all streams of a chunk, got: {listed}")
        for name, value in values.items():
            value.check(name, schema[name])
        self.schema = schema
        self.values = dict(values)
        self.errors = dict(errors or {})
        self.num_sequences = next(iter(counts.values()))

    @property
    def valid(self) -> NDArray[np.bool_] | None:
        """bool (num_sequences,), False for an unreadable sequence; None if all are good."""
        if not self.errors:
            return None
        valid = np.ones(self.num_sequences, np.bool_)
        valid[list(self.errors)] = False
        return valid

    @property
    def lengths(self) -> NDArray[np.int64] | None:
        """Samples of each sequence as the minibatch budget counts them: of the defining stream, else the longest.

        int64 (num_sequences,), or None if every sequence counts one.
        """
        return counted_lengths(self.schema, self.values)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays; for a mapped chunk these are file pages, not private memory."""
        return sum(value.nbytes for value in self.values.values())

    def take(self, which: NDArray[np.int64]) -> Chunk:
        """A new chunk with the sequences at the indices ``which``, in that order; copies."""
        values = {name: value.select(which) for name, value in self.values.items()}
        errors = {i: self.errors[k] for i, k in enumerate(which.tolist()) if k in self.errors} if self.errors else {}
        return Chunk(self.schema, values, errors)

    def slice(self, start: int, stop: int) -> Chunk:
        """The sequences ``start:stop`` as a chunk over the same arrays."""
        values = {name: value.slice(start, stop) for name, value in self.values.items()}
        errors = {i - start: error for i, error in self.errors.items() if start <= i < stop}
        return Chunk(self.schema, values, errors)

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def __len__(self) -> int:
        return self.num_sequences

    def __repr__(self) -> str:
        bad = f", {len(self.errors)} unreadable" if self.errors else ""
        width = max(len(name) for name in self.values)
        rows = [f"  {name:<{width}}  {value.describe()}" for name, value in self.values.items()]
        return "\n".join([f"Chunk({self.num_sequences} sequences{bad})", *rows])
