"""A transform that turns packed rows into the inputs of a model: labels, segments, positions and bounds."""

from __future__ import annotations

import time

import numpy as np

from feedline import _native
from feedline.data import Schema, Stream, Value
from feedline.data.value import DenseValue
from feedline.errors import SchemaError
from feedline.feed.transforms import DrawKeys, Transform, Transformed

#: Stream of the pieces of rows, one sample each: ordinal of the document, first token of it, number of tokens, and the
#: token that follows in the document, or `NONE`.
PIECES = "pieces"
NONE = -(2**63)

_MADE = {"labels": "int64", "segment": "int32", "positions": "int32", "cu_seqlens": "int32", "document": "int64"}
_OF_DOCUMENTS = ("cu_seqlens", "document")


class Unpacking(Transform):
    """Makes the streams of `Packed` from the tokens and pieces of rows.

    Args:
        tokens: name of the stream of tokens.
        row: tokens of a row.
        pad, ignore: token of padding, and label of places without one.
    """

    flat = ("cu_seqlens",)

    def __init__(self, tokens: str, row: int, *, pad: int, ignore: int) -> None:
        self.tokens, self.row, self.pad, self.ignore = tokens, row, pad, ignore

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
        if taken := [name for name in _MADE if name in streams]:
            raise SchemaError(
                f"expected documents without a stream `{taken[0]}`, which {self.name} makes; open them with other names"
            )
        added = {name: Stream((), dtype) for name, dtype in _MADE.items()}
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
        document, first, length, following = (np.ascontiguousarray(column) for column in pieces.rows.T)
        rows = np.repeat(np.arange(count), pieces.lengths)
        before_piece = np.cumsum(length) - length
        offsets = before_piece - before_piece[np.minimum(pieces.offsets[rows], max(len(length) - 1, 0))]
        starts = rows * self.row + offsets
        _, labels, segment, positions, bounds, sequences, _ = _native.packed_rows(
            tokens.rows,
            rows,
            offsets,
            starts=starts,
            lengths=length,
            positions=first,
            count=count,
            row=self.row,
            pad=self.pad,
            ignore=self.ignore,
        )
        assert labels is not None
        labels = labels.reshape(-1)
        cut = np.flatnonzero(following != NONE)
        labels[starts[cut] + length[cut] - 1] = following[cut]
        every = tokens.offsets
        ends = np.append(sequences[:-1], len(bounds))  # the last row also has the end of all bounds
        added = {
            "labels": DenseValue(labels, every),
            "segment": DenseValue(segment.reshape(-1), every),
            "positions": DenseValue(positions.reshape(-1), every),
            "cu_seqlens": DenseValue(bounds, ends),
            "document": DenseValue(document, pieces.offsets),
        }
        others = [name for name in before if name not in (PIECES, self.tokens)]
        outputs = {name: added[name] if name in added else values[name] for name in (self.tokens, *others, *_MADE)}
        return Transformed(outputs, seconds=time.perf_counter() - began)
