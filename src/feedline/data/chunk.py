"""A chunk: sequences read and shuffled together, one value per stream.

Deserializers return chunks, and minibatches are gathered from them. A chunk may hold sequences that could not be read.
They keep their place, have no samples, and record why.

The values of a chunk may be views of mapped files. Reading them directly is as fast as memory, but ends the process
if a file is truncated meanwhile. `Chunk.take` and `Chunk.pieces` copy, and raise a DataError in that case.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.data.faults import BadEntriesError, changed, check_seals
from feedline.data.schema import Schema, Stream, mask_of_stream
from feedline.data.value import BytesValue, DenseValue, SparseValue, Value, as_arrays, counted_lengths
from feedline.errors import DataError, SchemaError


class LazyErrors(Mapping[int, DataError]):
    """Errors of the sequences of a chunk that cannot be read, created on access: a small file can have a million of
    them.

    Args:
        rows: index in the chunk of each such sequence, ascending, int64 (n,).
        make: returns the error of one of them.
    """

    __slots__ = ("_make", "_rows")

    def __init__(self, rows: NDArray[np.int64], make: Callable[[int], DataError]) -> None:
        self._rows, self._make = rows, make

    def __getitem__(self, row: int) -> DataError:
        if row not in self:
            raise KeyError(row)
        return self._make(row)

    def __contains__(self, row: object) -> bool:
        at = int(np.searchsorted(self._rows, row)) if isinstance(row, (int, np.integer)) else len(self._rows)
        return at < len(self._rows) and bool(self._rows[at] == row)

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows.tolist())

    def __len__(self) -> int:
        return len(self._rows)

    def slice(self, start: int, stop: int) -> LazyErrors:
        """Return the errors of the sequences ``start:stop``, by their index in that slice."""
        first, last = np.searchsorted(self._rows, [start, stop])
        make = self._make
        return LazyErrors(self._rows[first:last] - start, lambda row: make(row + start))

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class Chunk:
    """Sequences of all streams of a schema.

    Args:
        schema: the streams.
        values: one `Value` per stream of the schema, all with the same number of sequences.
        errors: by index in the chunk, the error of a sequence that could not be read. Such a sequence keeps its place,
            and its values are never delivered.
        seals: for values that are views of mapped files: 8 bytes of each file, uint8 (8,), that hold its last nonzero
            byte. They are checked after each copy from the chunk, as a file truncated in the middle of a page reads
            as zeros to the end of that page.

    Raises:
        SchemaError: a stream is missing or unexpected, has another dtype, shape or kind than declared, or the
            streams disagree on the number of sequences.
    """

    __slots__ = ("errors", "num_sequences", "schema", "seals", "values")

    def __init__(
        self,
        schema: Schema,
        values: Mapping[str, Value],
        errors: Mapping[int, DataError] | None = None,
        *,
        seals: Sequence[NDArray[np.uint8]] = (),
    ) -> None:
        if list(values) != list(schema):
            if set(values) != set(schema):
                raise SchemaError(f"expected the streams {', '.join(schema)}, got {', '.join(values) or 'none'}")
            values = {name: values[name] for name in schema}
        counts = {name: value.num_sequences for name, value in values.items()}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{name} has {count}" for name, count in counts.items())
            raise SchemaError(f"expected the same number of sequences in all streams of a chunk, got: {listed}")
        for name, value in values.items():
            value.check(name, schema[name])
        self.schema = schema
        self.values = dict(values)
        self.errors: Mapping[int, DataError] = errors if isinstance(errors, LazyErrors) else dict(errors or {})
        self.seals = tuple(seals)
        self.num_sequences = next(iter(counts.values()))

    @property
    def valid(self) -> NDArray[np.bool_] | None:
        """bool (num_sequences,), False for an unreadable sequence. None if all are readable."""
        if not self.errors:
            return None
        valid = np.ones(self.num_sequences, np.bool_)
        valid[list(self.errors)] = False
        return valid

    @property
    def lengths(self) -> NDArray[np.int64] | None:
        """Samples of each sequence as the minibatch budget counts them: its length in the defining stream, else the
        longest.

        int64 (num_sequences,), or None if every sequence counts one.
        """
        return counted_lengths(self.schema, self.values)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays. For a mapped chunk these are file pages, not private memory."""
        return sum(value.nbytes for value in self.values.values())

    def take(self, which: NDArray[np.int64]) -> Chunk:
        """Copy the sequences at the indices ``which``, in that order, into a new chunk.

        A sequence with impossible entries (sparse indices out of range, text that is not UTF-8) is unreadable in the
        new chunk.

        Raises:
            DataError: a mapped file was truncated, or its disk fails.
            IndexError: an index outside ``0 <= index < num_sequences``.
        """
        return self._take_rows(self._gatherer(), which)

    def pieces(self, nbytes: int) -> Iterator[Chunk]:
        """Yield all sequences in order, as copies of about ``nbytes`` each, made as by `take`."""
        if self.num_sequences == 0:
            return
        step = max(1, self.num_sequences * nbytes // max(1, self.nbytes))
        gatherer = self._gatherer()
        for start in range(0, self.num_sequences, step):
            yield self._take_rows(gatherer, np.arange(start, min(start + step, self.num_sequences)))

    def _gatherer(self) -> _native.Gatherer:
        gatherer = gatherer_of(self.schema)
        give(gatherer, 0, self)
        return gatherer

    def _take_rows(self, gatherer: _native.Gatherer, which: NDArray[np.int64]) -> Chunk:
        errors = {i: self.errors[k] for i, k in enumerate(which.tolist()) if k in self.errors} if self.errors else {}
        try:
            arrays = gatherer.gather(None, np.ascontiguousarray(which, np.int64))
        except BadEntriesError as error:
            arrays = error.arrays
            errors = error.errors(list(self.schema), None, None) | errors
        return Chunk(self.schema, values_of(makers(self.schema), arrays), errors)

    def slice(self, start: int, stop: int) -> Chunk:
        """Return the sequences ``start:stop`` as a chunk over the same arrays."""
        values = {name: value.slice(start, stop) for name, value in self.values.items()}
        errors: Mapping[int, DataError]
        if isinstance(self.errors, LazyErrors):
            errors = self.errors.slice(start, stop)
        else:
            errors = {i - start: error for i, error in self.errors.items() if start <= i < stop}
        return Chunk(self.schema, values, errors, seals=self.seals)

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


def gatherer_of(schema: Schema) -> _native.Gatherer:
    """Return a gatherer that copies sequences out of chunks of a schema, and checks every entry that may be invalid."""
    return _native.Gatherer([_kind(stream) for stream in schema.values()], bools=True)


def _kind(stream: Stream) -> int | str | None:
    if stream.is_bytes:
        return stream.kind
    return stream.size if stream.sparse else None


Maker = Callable[..., Value]


def makers(schema: Schema) -> list[tuple[str, Maker]]:
    """Return by stream the function that turns the arrays of such a gatherer into a value."""
    return [(name, _maker(stream)) for name, stream in schema.items()]


def _maker(stream: Stream) -> Maker:
    if stream.is_bytes:
        return functools.partial(BytesValue, text=stream.is_text)
    if stream.sparse:
        classes = stream.size
        return lambda indptr, indices, values, offsets: SparseValue(indptr, indices, values, classes, offsets)
    return DenseValue


def values_of(makers: Sequence[tuple[str, Maker]], arrays: Sequence[tuple[Any, ...]]) -> dict[str, Value]:
    """Return the arrays of a gatherer as values."""
    values = {}
    for (name, make), parts in zip(makers, arrays, strict=True):  # a loop, as one runs for every minibatch
        values[name] = make(*parts)
    return values


def give(gatherer: _native.Gatherer, slot: int, chunk: Chunk) -> None:
    """Register ``chunk`` as ``slot``, for its sequences to be gathered.

    Raises:
        DataError: a file that the chunk is mapped from has changed since its offsets were checked, or was truncated.
    """
    try:
        gatherer.add(slot, [as_arrays(value) for value in chunk.values.values()], chunk.seals)
    except ValueError as error:
        if not chunk.seals:
            raise
        raise changed(chunk.seals[0].ctypes.data) from error
    try:
        # Copies compare seals with their current bytes, so an altered seal must be found here.
        check_seals(chunk.seals)
    except DataError:
        gatherer.remove(slot)
        raise


def present_samples(schema: Schema, values: Mapping[str, Value], name: str) -> NDArray[np.bool_] | None:
    """Return which samples of a stream the data has, bool (num_samples,), by its mask. None: it has no mask.

    Raises:
        SchemaError: the stream with the name of a mask has another number of samples.
    """
    mask = mask_of_stream(schema, name)
    if mask is None:
        return None
    present, samples = values[mask].rows, values[name].num_samples
    if len(present) != samples:
        raise SchemaError(
            f"expected a bool for each of {samples} samples of `{name}` in its mask `{mask}`, got {len(present)}: open "
            "that stream under another name"
        )
    return np.asarray(present)
