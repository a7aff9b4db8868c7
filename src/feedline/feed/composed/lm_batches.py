"""A transform that turns packed rows into the inputs of a model: labels, segments, positions and bounds."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from feedline import _native
from feedline.data import Schema, Stream, Value
from feedline.data.value import DenseValue
from feedline.errors import DataError, SchemaError
from feedline.feed.protocol import Ints
from feedline.feed.transforms import DrawKeys, Transform, Transformed

#: Stream of the pieces of rows, one sample each: ordinal of the document, first token of it, number of tokens, token
#: that follows in the document, or `NONE`, and the number of samples in each stream that has a length of its own.
PIECES = "pieces"
NONE = -(2**63)

_MADE = {"labels": "int64", "segment": "int32", "positions": "int32", "cu_seqlens": "int32", "document": "int64"}
_BOUNDS, _SEGMENT = "cu_seqlens", "segment"
_OF_DOCUMENTS = (_BOUNDS, "document")


class Unpacking(Transform):
    """Makes the streams of `Packed` from the tokens and pieces of rows.

    Args:
        tokens: name of the stream of tokens.
        row: tokens of a row.
        pad, ignore: token of padding, and label of places without one.
        others: streams with a length of their own, which is not padded.
    """

    def __init__(self, tokens: str, row: int, *, pad: int, ignore: int, others: Sequence[str] = ()) -> None:
        self.tokens, self.row, self.pad, self.ignore = tokens, row, pad, ignore
        self.others = tuple(others)
        self.flat = (_BOUNDS, *(f"{name}_{_BOUNDS}" for name in self.others))

    @property
    def name(self) -> str:
        """Name in errors."""
        return f"fl.Packed(row={self.row})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unpacking) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def schema(self, before: Schema) -> Schema:
        """Return the streams of minibatches.

        Raises:
            SchemaError: a stream has the name of an added one.
        """
        streams = {name: stream for name, stream in before.items() if name != PIECES}
        made = {**_MADE, **{f"{name}_{each}": _MADE[each] for name in self.others for each in (_SEGMENT, _BOUNDS)}}
        if taken := [name for name in made if name in streams]:
            raise SchemaError(
                f"expected documents without a stream `{taken[0]}`, which {self.name} makes; open them with other names"
            )
        added = {name: Stream((), dtype) for name, dtype in made.items()}
        first = streams.pop(self.tokens)
        # The tokens define the size, as there are fewer bounds and documents.
        counted = Stream(first.shape, first.dtype, defines_size=True)
        return Schema({self.tokens: counted, **streams, **added})

    def padding(self, before: Schema) -> dict[str, float | None]:
        """Return the value of padding by stream that has a sample for each token."""
        known = {self.tokens: self.pad, "labels": self.ignore}
        return {name: known.get(name, 0) for name in self.schema(before) if name not in _OF_DOCUMENTS}

    def run_all(self, before: Schema, values: dict[str, Value], keys: DrawKeys) -> Transformed:
        """See `Transform.run_all`."""
        began = time.perf_counter()
        count = len(keys.ordinals)
        if not count:
            after = self.schema(before)
            return Transformed(
                {name: values[name] if name in values else Value.empty(after[name], True) for name in after}
            )
        pieces, tokens = values[PIECES], values[self.tokens]
        assert isinstance(pieces, DenseValue)
        assert isinstance(tokens, DenseValue)
        document, first, length, following, *others = (np.ascontiguousarray(column) for column in pieces.rows.T)
        rows = np.repeat(np.arange(count), pieces.lengths)
        before_piece = np.cumsum(length) - length
        offsets = before_piece - before_piece[np.minimum(pieces.offsets[rows], max(len(length) - 1, 0))]
        starts = rows * self.row + offsets
        with_tokens = slice(None) if length.all() else length > 0
        _, labels, segment, positions, bounds, sequences, _ = _native.packed_rows(
            tokens.rows,
            rows[with_tokens],
            offsets[with_tokens],
            starts=starts[with_tokens],
            lengths=length[with_tokens],
            positions=first[with_tokens],
            count=count,
            row=self.row,
            pad=self.pad,
            ignore=self.ignore,
        )
        assert labels is not None
        labels, segment = labels.reshape(-1), segment.reshape(-1)
        cut = np.flatnonzero(following != NONE)
        labels[starts[cut] + length[cut] - 1] = following[cut]
        every = tokens.offsets
        ends = np.append(sequences[:-1], len(bounds))  # the last row also has the end of all bounds
        number = (np.arange(len(length)) - pieces.offsets[rows] + 1).astype(np.int32)
        padding = self.row - np.bincount(rows, length, count).astype(np.int64)
        ends_of_documents = DenseValue(bounds, ends)
        if not length.all():  # the kernel knows documents with tokens only
            segment[segment > 0] = np.repeat(number, length)
            ends_of_documents = _bounds(self.tokens, length, pieces, padding, padding)
        added = {
            "labels": DenseValue(labels, every),
            _SEGMENT: DenseValue(segment, every),
            "positions": DenseValue(positions.reshape(-1), every),
            _BOUNDS: ends_of_documents,
            "document": DenseValue(document, pieces.offsets),
        }
        for name, lengths in zip(self.others, others, strict=True):
            added[f"{name}_{_SEGMENT}"] = DenseValue(np.repeat(number, lengths), values[name].offsets)
            added[f"{name}_{_BOUNDS}"] = _bounds(name, lengths, pieces, padding, np.zeros_like(padding))
        outputs = {**values, **added}
        return Transformed({name: outputs[name] for name in self.schema(before)}, seconds=time.perf_counter() - began)


def _bounds(name: str, lengths: Ints, pieces: Value, padding: Ints, padded: Ints) -> DenseValue:
    """Return the beginnings of documents and padding in the concatenated rows of a stream, and the end.

    The bounds of all streams have the same places, so that two of them are queries and keys of the same documents.

    Args:
        name: name of the stream.
        lengths: int64 (n,), samples of each document.
        pieces: a value with the documents of each row.
        padding: int64 (rows,), padding of tokens. Where there is some, all streams have a place for it.
        padded: int64 (rows,), padding of this stream.

    Raises:
        DataError: there are too many samples for int32.
    """
    has_padding = padding > 0
    every = np.insert(lengths, pieces.offsets[1:][has_padding], padded[has_padding])
    bounds = np.concatenate([[0], np.cumsum(every)])
    if bounds[-1] >= 1 << 31:
        raise DataError(
            f"expected fewer than 2**31 samples in a minibatch, for bounds of int32, got {bounds[-1]}",
            stream=name,
            hint="make smaller minibatches",
        )
    offsets = pieces.offsets + np.concatenate([[0], np.cumsum(has_padding)])
    offsets[-1] += 1  # the last row also has the end of all bounds
    return DenseValue(bounds.astype(np.int32), offsets)
