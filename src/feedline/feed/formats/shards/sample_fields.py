"""Fields of the samples of a shard: their descriptions in an index, and their values.

Numbers are views of the shard if all samples have one size. Otherwise they are copied natively.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.data import Stream
from feedline.data.scattered import ScatteredBytes, even_views
from feedline.data.value import BytesValue, DenseValue
from feedline.errors import SchemaError
from feedline.feed.protocol import Ints

_COUNT = slice(8, 12)  # bytes of the length in the header of an array of any length
_HEAD_BYTES = 256  # first bytes of a sample, which declare its shape
UNPICKLED = "feedline never unpickles data, nor runs code that it holds"


class ArrayHead(NamedTuple):
    """The bytes before the numbers of an array.

    Attributes:
        data: the bytes, with zeros for the length of an array of any length.
        length: dtype of that length. Empty if the header has no length, or a known one.
    """

    data: bytes
    length: str = ""

    def matches(self, heads: NDArray[np.uint8], counts: Ints) -> NDArray[np.bool_]:
        """Return the mask of the rows of ``heads`` that are this header, for arrays of the lengths ``counts``."""
        expected = np.frombuffer(self.data, np.uint8)
        same: NDArray[np.bool_] = heads == expected
        if not self.length:
            return np.asarray(same.all(axis=1))
        lengths = np.ascontiguousarray(heads[:, _COUNT]).view(self.length)[:, 0]
        same[:, _COUNT] = True
        return np.asarray(same.all(axis=1) & (lengths == counts))


class Array(NamedTuple):
    """The encoding of an array in a field.

    Attributes:
        stream: shape and dtype, or None if the samples declare them and not the index.
        heads: ``heads(stream, ragged)`` returns the possible headers of a sample, all of the same size.
        parse: ``parse(head, size)`` returns the stream that a sample of ``size`` bytes declares, from its first bytes.
            If it declares none, a ValueError describes the sample.
        any_length: whether an array may be a sequence, whose length is the first dimension.
        vector: dtype of the numbers, if the index declares vectors.
    """

    stream: Stream | None
    heads: Callable[[Stream, bool], Sequence[ArrayHead]]
    parse: Callable[[bytes, int], Stream]
    any_length: bool = False
    vector: np.dtype[Any] | None = None

    @staticmethod
    def of(stream: Stream) -> Array:
        """Return an array of a known shape, without a header."""
        return Array(stream, lambda _stream, _ragged: [ArrayHead(b"")], lambda _head, _size: stream)


class ShardField(NamedTuple):
    """A field of every sample.

    Attributes:
        name: name of the field.
        encoding: encoding, as the index calls it.
        size: size in bytes, if it is the same in every sample and not stored with it.
        kind: ``"array"``, ``"bytes"``, ``"text"``, ``"json"``, or ``"refused"``.
        array: encoding of an array, for that kind.
        reason: reason why a field is refused.
        text_of: function that decodes a sample of a special encoding to text, or raises a ValueError.
    """

    name: str
    encoding: str
    size: int | None
    kind: str
    array: Array | None = None
    reason: str = UNPICKLED
    text_of: Callable[[bytes], str] | None = None

    def may_be_null(self, stream: Stream) -> bool:
        """Return whether samples of a stream may be missing: JSON's ``null``, and empty texts for numbers."""
        return self.kind == "json" or (self.kind == "text" and not stream.is_bytes)

    def check(self, name: str, stream: Stream) -> None:
        """Check that this field can fill a stream of numbers.

        Raises:
            SchemaError: the field cannot fill it.
        """
        declared = None if self.array is None else self.array.stream
        if declared is not None:
            fits = (stream.shape, stream.dtype) == (declared.shape, declared.dtype)
        elif self.array is not None and self.array.vector is not None:
            fits = stream.dtype == self.array.vector and len(stream.shape) <= 1
            declared = Stream((), self.array.vector)
        elif self.kind == "array":
            fits = stream.dtype.kind in "biufc"
        else:
            fits = self.kind in ("text", "json") and stream.dtype.kind in "biuf"
        if stream.sparse or not fits:
            raise SchemaError(
                f"expected stream `{name}` as the field is, `{self.encoding}`, got {stream}; "
                f"declare {declared or 'fl.Stream(dtype=' + repr('bytes') + ')'}"
            )


def names_of(fields: Sequence[ShardField]) -> str:
    """Return the names of fields and their encodings, for an error."""
    names = [f"{field.name} ({field.encoding})" for field in fields[:50]]
    return ", ".join(names) + (f" and {len(fields) - 50} more" if len(fields) > 50 else "")


def first_stream(spans: Ints, memory: NDArray[np.uint8], wrong: Mapping[int, str], field: ShardField) -> Stream:
    """Return the stream that the first sound sample declares for a field.

    Raises:
        ValueError: no sample declares one.
    """
    assert field.array is not None
    reason = "none"
    for i in range(len(spans)):
        if i in wrong:
            reason = f"damage: {wrong[i]}"
            continue
        try:
            return field.array.parse(*_head(spans, memory, i))
        except ValueError as error:
            reason = str(error)
    raise ValueError(f"got {reason}")


def counts_of(spans: Ints, wrong: Mapping[int, str], stream: Stream, field: ShardField) -> Ints:
    """Return the length of each sequence of a field, by its size, or 0 if that is no whole number of samples."""
    assert field.array is not None
    body = np.diff(spans)[:, 0] - len(field.array.heads(stream, True)[0].data)
    row = stream.size * stream.dtype.itemsize
    counts = np.where((body >= 0) & (body % row == 0), body // row, 0)
    if wrong:
        counts[list(wrong)] = 0
    return counts


def numbers_of(
    spans: Ints, memory: NDArray[np.uint8], stream: Stream, field: ShardField, *, ragged: bool, wrong: Mapping[int, str]
) -> tuple[DenseValue, dict[int, str]]:
    """Return the arrays of a field, and the faults of arrays that differ from the stream.

    Args:
        spans: begin and end of the field of each sample, (samples, 2).
        memory: memory with the samples.
        stream: declaration.
        field: the field.
        ragged: whether each array is a sequence of samples, else one sample.
        wrong: samples that are damaged.

    Returns:
        The value, and by index the faults of samples that are not damaged. These and damaged samples are replaced by
        zeros, or by a sequence of no samples.
    """
    array = field.array
    assert array is not None
    heads = array.heads(stream, ragged)
    lead, row = len(heads[0].data), stream.size * stream.dtype.itemsize
    body = spans[:, 1] - spans[:, 0] - lead
    fits = (body >= 0) & (body % row == 0) if ragged else body == row
    if wrong:
        fits[list(wrong)] = False
    if lead:
        at = np.flatnonzero(fits)
        begins = spans[at, 0]
        table = _copy_spans(np.stack([begins, begins + lead], axis=1), memory).reshape(len(at), lead)
        counts = body[at] // row if ragged else np.ones(len(at), np.int64)
        same = np.zeros(len(at), np.bool_)
        for head in heads:
            same |= head.matches(table, counts)
            if same.all():
                break
        fits[at[~same]] = False
    at, sound = np.flatnonzero(fits), bool(fits.all())
    begins = spans[:, 0] + lead
    if sound and not ragged and stream.dtype.kind != "b" and stream.size and len(begins) > 1 and begins[1] > begins[0]:
        views = even_views(begins, memory, stream.dtype.newbyteorder("<"), stream.shape)
        if views is not None:
            return DenseValue(views), {}
    selected = np.ascontiguousarray((spans if sound else spans[at]) + np.array([lead, 0]))
    data = _copy_spans(selected, memory)
    if stream.dtype.kind == "b" and not (data <= 1).all():
        data = (data != 0).view(np.uint8)
    count = int(body[at].sum()) // row if ragged else len(at)
    rows = data.view(stream.dtype.newbyteorder("<")).reshape(count, *stream.shape).astype(stream.dtype, copy=False)
    bad = {}
    for i in np.flatnonzero(~fits).tolist():
        if i not in wrong:
            bad[i] = _mismatch(spans, memory, i, stream, array, ragged=ragged)
    if ragged:
        lengths = np.where(fits, body // row, 0)
        return DenseValue(rows, np.concatenate([[0], np.cumsum(lengths)])), bad
    if sound:
        return DenseValue(rows), bad
    filled = np.zeros((len(spans), *stream.shape), stream.dtype)
    filled[at] = rows
    return DenseValue(filled), bad


def _copy_spans(spans: Ints, memory: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the bytes of spans one after the other. They may be part of a map, so native code copies them under a
    guard."""
    if not len(spans) or not (spans[:, 1] - spans[:, 0]).any():
        return np.empty(0, np.uint8)
    return np.ascontiguousarray(ScatteredBytes(spans, memory, text=False).packed().data)


def _head(spans: Ints, memory: NDArray[np.uint8], i: int) -> tuple[bytes, int]:
    begin, end = (int(n) for n in spans[i])
    head = np.array([[begin, min(end, begin + _HEAD_BYTES)]], np.int64)
    return _copy_spans(head, memory).tobytes(), end - begin


def _mismatch(spans: Ints, memory: NDArray[np.uint8], i: int, stream: Stream, array: Array, *, ragged: bool) -> str:
    """Return the error message for a sample that differs from its stream."""
    try:
        got = array.parse(*_head(spans, memory, i))
        actual = f"shape {got.shape} and {got.dtype}"
        if not ragged and (got.shape, got.dtype) == (stream.shape, stream.dtype):
            actual = f"{spans[i, 1] - spans[i, 0]} bytes of it"
        if not ragged and array.any_length and stream.shape and got.shape[1:] == stream.shape[1:]:
            actual += f"; declare fl.Stream({stream.shape[1:]}, {stream.dtype.name!r}) if they are sequences"
    except ValueError as error:
        actual = str(error)
    shape = str(("any number", *stream.shape)).replace("'", "") if ragged else str(stream.shape)
    return f"expected an array of shape {shape} and {stream.dtype}, got {actual}"


def texts_of(
    spans: Ints, memory: NDArray[np.uint8], text_of: Callable[[bytes], str], *, wrong: Mapping[int, str]
) -> tuple[BytesValue, dict[int, str]]:
    """Return the texts of the samples of a field, and by index the reason why a sample has no text. It is empty
    then."""
    samples = ScatteredBytes(spans, memory, text=False).packed().tolist()
    texts, bad = [""] * len(samples), {}
    for i, sample in enumerate(samples):
        if i not in wrong:
            try:
                texts[i] = text_of(sample)
            except (ValueError, RecursionError) as error:
                bad[i] = f"expected lists or dicts that can be decoded: {error or 'nested too deeply'}"
    return BytesValue.from_bytes(texts, "str"), bad
