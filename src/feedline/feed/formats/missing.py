"""Samples that the data lacks: nulls, absent keys, empty cells.

A declaration says what becomes of them: ``fl.Stream(missing=0.0)`` fills them, ``mask=True`` adds the stream
``<name>_present``. Without either, their sequences are unreadable. A format finds the missing samples and calls `fill`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.data import Schema, Stream, Value
from feedline.data.schema import PRESENT
from feedline.data.value import BytesValue, DenseValue, SparseValue
from feedline.errors import DataError, SchemaError
from feedline.feed.protocol import CountsNulls, Deserializer

Flags = NDArray[np.bool_]


class Filling(NamedTuple):
    """What becomes of the missing samples of a stream.

    Attributes:
        value: their value.
        mask: whether there is a stream that tells which samples are present.
    """

    value: Any
    mask: bool


def filling_of(declared: Stream) -> Filling | None:
    """Return what a declaration says about missing samples, or None if their sequences are unreadable."""
    if not declared.may_miss:
        return None
    if declared.missing is not None:
        return Filling(declared.missing, declared.mask)
    return Filling((b"" if not declared.is_text else "") if declared.is_bytes else 0, True)


def with_masks(streams: Mapping[str, Stream], fillings: Mapping[str, Filling]) -> Schema:
    """Return the schema of a corpus: its streams, each followed by its mask.

    Raises:
        SchemaError: there is another stream with the name of a mask.
    """
    schema: dict[str, Stream] = {}
    for name, stream in streams.items():
        schema[name] = stream
        filling = fillings.get(name)
        if filling is not None and filling.mask:
            if name + PRESENT in streams:
                raise SchemaError(
                    f"expected no stream `{name}{PRESENT}`, which mask=True adds for `{name}`: open that stream under "
                    "another name"
                )
            schema[name + PRESENT] = Stream((), "bool")
    return Schema(schema)


def identity_of(fillings: Mapping[str, Filling]) -> bytes:
    """Return what a corpus adds to its digest: nothing if its streams fill nothing."""
    return repr(sorted(fillings.items())).encode() if fillings else b""


def fill(value: Value, missing: Flags | None, filling: Filling) -> Value:
    """Return a value with its missing samples filled: a copy if there are any, as the value may be of a mapped file.

    Args:
        value: samples of a stream.
        missing: bool (num_samples,) or, for parts of dense samples, (num_samples, values). None if none is missing.
        filling: what becomes of them.
    """
    if missing is None or not missing.any():
        return value
    if isinstance(value, DenseValue):
        rows = _native.copied(np.ascontiguousarray(value.rows))
        fill_rows(rows, missing, filling)
        return DenseValue(rows, value._offsets)
    if isinstance(value, SparseValue):
        lengths = np.diff(value.indptr)
        entries = np.repeat(~missing, lengths)
        indptr = np.concatenate([[0], np.cumsum(np.where(missing, 0, lengths))])
        indices, values = _native.copied(value.indices)[entries], _native.copied(value.values)[entries]
        return SparseValue(indptr, indices, values, value.shape[0], value._offsets)
    assert isinstance(value, BytesValue)
    filler = filling.value.encode() if value.text else filling.value
    if not filler and not value.sizes[missing].any():
        return value
    sizes = np.where(missing, 0, value.sizes)
    present_bytes = _native.copied(value.data)[np.repeat(~missing, value.sizes)]
    bounds = np.concatenate([[0], np.cumsum(np.where(missing, len(filler), sizes))])
    if not filler:
        return BytesValue(bounds, present_bytes, value._offsets, text=value.text)
    data = np.empty(int(bounds[-1]), np.uint8)
    of_missing = np.repeat(missing, np.where(missing, len(filler), sizes))
    data[~of_missing] = present_bytes
    data[of_missing] = np.tile(np.frombuffer(filler, np.uint8), int(missing.sum()))
    return BytesValue(bounds, data, value._offsets, text=value.text)


def fill_rows(rows: NDArray[Any], missing: Flags, filling: Filling) -> None:
    """Fill missing values in contiguous rows of dense samples, in place. See `fill`."""
    places = np.flatnonzero(missing)  # a mask as index is slower
    if len(places):
        rows.reshape(missing.size, -1)[places] = filling.value


def lacking(stream: Stream, count: int, filling: Filling, *, ragged: bool = False) -> tuple[Value, Value | None]:
    """Return the sequences of a file that lacks a stream, and their mask if there is one.

    They are missing samples, or no samples if sequences have any number of them (``ragged``).
    """
    samples, offsets = (0, np.zeros(count + 1, np.int64)) if ragged else (count, None)
    bounds = np.zeros(samples + 1, np.int64)
    value: Value
    if stream.is_bytes:
        value = BytesValue(bounds, np.empty(0, np.uint8), offsets, text=stream.is_text)
    elif stream.sparse:
        value = SparseValue(bounds, np.empty(0, np.int32), np.empty(0, stream.dtype), stream.size, offsets)
    else:
        value = DenseValue(np.zeros((samples, *stream.shape), stream.dtype), offsets)
    missing = np.ones(samples, np.bool_)
    filled = fill(value, missing, filling)
    return filled, mask_of(filled, missing) if filling.mask else None


def from_runs(runs: NDArray[np.int64] | None, samples: int, size: int) -> Flags | None:
    """Return the missing values that a native parser has found, bool (samples, size), or None if there are none.

    Args:
        runs: pairs of the first missing value and the number of missing ones, int64 (2n,). None: none.
        samples: number of samples.
        size: number of values of a sample.
    """
    if runs is None:
        return None
    first, count = runs.reshape(-1, 2).T
    places = np.repeat(first - np.cumsum(count) + count, count) + np.arange(count.sum())
    flags = np.zeros(samples * size, np.bool_)
    flags[places] = True
    return flags.reshape(samples, size)


def mask_of(value: Value, missing: Flags | None) -> DenseValue:
    """Return the mask of a value: bool, one a sample, False where a sample or a part of it is missing."""
    present = np.ones(value.num_samples, np.bool_)
    if missing is not None:
        present &= ~any_of_sample(missing)
    return DenseValue(present, value._offsets)


def equal_to(value: BytesValue, content: bytes) -> Flags:
    """Return which byte strings or texts have a content, bool (num_samples,)."""
    flags = np.asarray(value.sizes == len(content))
    if content and flags.any():
        first = value.bounds[:-1][flags]
        table = value.data[first[:, None] + np.arange(len(content))]
        flags[flags] = (table == np.frombuffer(content, np.uint8)).all(axis=1)
    return flags


def any_of_sample(missing: Flags) -> Flags:
    """Return for each sample whether any of its values is missing, bool (num_samples,)."""
    if missing.size == len(missing):
        return missing.reshape(-1)
    result: Flags = np.asarray(missing.any(axis=tuple(range(1, missing.ndim))))
    return result


def check_nulls(corpus: Deserializer) -> None:
    """Check that no stream has nulls that it does not fill, as far as the files of a corpus say.

    Raises:
        DataError: one has.
    """
    counting = corpus.capability(CountsNulls)
    for name, nulls in ({} if counting is None else counting.null_counts()).items():
        if nulls.sequences and nulls.unfilled is not None:
            unreadable, ways_out = nulls.unfilled
            total = sum(info.sequences for info in corpus.chunks())
            raise DataError(
                f"{unreadable}, in {nulls.sequences} of {total} sequences", path=corpus.name, stream=name, hint=ways_out
            )


def remedy(name: str, stream: Stream) -> str:
    """Return what to do about missing samples, for errors."""
    value = '""' if stream.is_text else 'b""' if stream.is_bytes else "0"
    shape = f"({stream.shape[0]},)" if len(stream.shape) == 1 else str(stream.shape)
    sparse = ", sparse=True" if stream.sparse else ""
    return (
        f'declare fl.Stream({shape}, "{stream.dtype.name}"{sparse}, missing={value}) for `{name}` to fill them, with '
        f"mask=True also to get a stream `{name}{PRESENT}`"
    )
