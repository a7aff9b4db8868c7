"""Cuts of documents along their length, for ranks that share sequences.

A cut is the last change of a minibatch. All ranks of a context dimension make the same whole sequences and keep their
pieces, so that order, states and random numbers are those of whole sequences. Cost: one copy of the kept samples.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.data import Schema, Stream, Value
from feedline.data.value import DenseValue
from feedline.errors import DataError, SchemaError
from feedline.feed.composed.lm_batches import Unpacking
from feedline.feed.partition import ZIGZAG, Cut, IndexAndCount
from feedline.feed.protocol import Deserializer, finish_of

Ints = NDArray[np.int64]

POSITIONS, BOUNDS, PADDED_BOUNDS = "positions", "cu_seqlens", "cu_seqlens_padded"
#: Streams that describe the minibatch, not its sequences.
FLAT = (BOUNDS, PADDED_BOUNDS)
_INT32 = Stream((), "int32")


class _Layout(NamedTuple):
    """Where the samples of a rank are.

    Attributes:
        starts, lengths: int64 (runs,), runs of samples in the whole sequences.
        places: int64 (runs,), first place of each run in the samples of this rank.
        offsets: int64 (sequences + 1,), bounds of this rank's sequences.
    """

    starts: Ints
    lengths: Ints
    places: Ints
    offsets: Ints


class DocumentCuts:
    """Cuts the documents of minibatches.

    Args:
        cut: how to cut.
        before: streams of whole sequences.
        corpus: corpus of the sequences.

    Attributes:
        schema: streams of cut sequences.

    Raises:
        SchemaError: there is no such stream, it is not dense, or the corpus has no rows of `Packed` and ``cut`` names
            no streams.
    """

    def __init__(self, cut: Cut, before: Schema, corpus: Deserializer) -> None:
        self._cut, self._corpus = cut, corpus
        rows = finish_of(corpus)
        self._packed = rows if isinstance(rows, Unpacking) else None
        if self._packed is not None and self._packed.others:
            raise SchemaError(
                f"expected rows whose streams all have a sample for each token to cut, got {corpus.name}, in which "
                f"`{self._packed.others[0]}` has a length of its own; leave out cut=, or pack without cost="
            )
        padding = {} if self._packed is None else self._packed.padding(corpus.schema)
        padding |= cut.streams
        self._padding = {name: value for name, value in padding.items() if value is not None}
        self._whole = {name for name, value in padding.items() if value is None} | {*FLAT}
        self._check_streams(before)
        added = {name: _INT32 for name in (POSITIONS, BOUNDS) if self._packed is None and name not in before}
        self._makes_positions = POSITIONS in added
        if self._makes_positions:
            self._padding[POSITIONS] = 0
        self.schema = Schema({**before, **added, PADDED_BOUNDS: _INT32})
        self._tokens = next(iter(self._padding)) if self._packed is None else self._packed.tokens

    def _check_streams(self, before: Schema) -> None:
        if not self._padding:
            raise SchemaError(
                f"expected fl.Cut(pieces, streams) for {self._corpus.name}, with the value of padding of each stream "
                f'that has a sample for each token, got a cut without streams: write fl.Cut("{self._cut.pieces}", '
                f'{{"{next(iter(before))}": 0}}), or pack the documents into rows with fl.Packed'
            )
        for name in (*self._padding, *self._whole & self._cut.streams.keys()):
            if name not in before:
                raise SchemaError(f"expected streams {', '.join(before)} in the cut, got `{name}`")
            if name in self._padding and (before[name].sparse or before[name].is_bytes):
                raise SchemaError(f"expected dense streams in the cut, got `{name}`, {before[name]!r}")
        taken = [name for name in FLAT if name in before]
        if taken and (self._packed is None or PADDED_BOUNDS in taken):
            raise SchemaError(f"expected no stream `{taken[0]}`, which a cut makes; use another name")

    def take(self, values: dict[str, Value], ids: Ints, share: IndexAndCount) -> tuple[dict[str, Value], int]:
        """Return the pieces of a rank, and its number of samples without padding.

        Args:
            values: value by stream, of whole sequences.
            ids: int64 (n,), ordinal of each sequence.
            share: (index, count) of the rank.

        Raises:
            DataError: the streams of a sequence differ in length, or with ``uneven="error"`` a document does not
                divide.
        """
        if not len(ids):
            missing = {name: Value.empty(self.schema[name], True) for name in self.schema if name not in values}
            return {name: missing[name] if name in missing else values[name] for name in self.schema}, 0
        tokens = values[self._tokens]
        bounds = tokens.offsets if self._packed is None else values[BOUNDS].rows.astype(np.int64)
        lengths = np.diff(bounds)
        # A sequence is a document, or the documents of a row, which has no empty ones.
        row = np.arange(len(ids)) if self._packed is None else np.searchsorted(tokens.offsets, bounds[1:]) - 1
        self._check_lengths(values, tokens, ids)
        count = share[1]
        pieces = 2 * count if self._cut.pieces == ZIGZAG else count
        piece = -(-lengths // pieces)
        if self._cut.uneven == "error" and (piece * pieces != lengths).any():
            at = int(np.flatnonzero(piece * pieces != lengths)[0])
            raise DataError(
                f"expected documents of a multiple of {pieces} tokens to cut, got one of {lengths[at]}",
                path=self._corpus.name,
                sequence=int(ids[row[at]]),
                hint='pad documents with fl.Cut(uneven="pad")',
            )
        if self._packed is not None:
            piece = _even(piece, row, len(ids))
        layout = _layout(bounds[:-1], lengths, row=row, piece=piece, share=share, zigzag=pieces != count, n=len(ids))
        outputs = dict(values)
        if self._makes_positions:
            places = np.arange(bounds[-1]) - np.repeat(bounds[:-1], lengths)
            outputs[POSITIONS] = DenseValue(places.astype(np.int32), tokens.offsets)
        for name, fill in self._padding.items():
            outputs[name] = _kept(outputs[name], layout, fill)
        if self._packed is None:
            outputs[BOUNDS] = _bounds(lengths, row, len(ids))
        outputs[PADDED_BOUNDS] = _bounds(piece * pieces, row, len(ids))
        return {name: outputs[name] for name in self.schema}, int(layout.lengths.sum())

    def _check_lengths(self, values: dict[str, Value], tokens: Value, ids: Ints) -> None:
        token_lengths = tokens.lengths
        for name, value in values.items():
            if name in self._padding:
                if value is not tokens and not np.array_equal(value.offsets, tokens.offsets):
                    at = int(np.flatnonzero(value.lengths != token_lengths)[0])
                    raise DataError(
                        f"expected {token_lengths[at]} samples in stream `{name}`, as in `{self._tokens}`, got "
                        f"{value.lengths[at]}",
                        path=self._corpus.name,
                        sequence=int(ids[at]),
                        stream=name,
                        hint="leave streams out of fl.Cut that have no sample for each token",
                    )
            elif name not in self._whole and not value.one_sample_each and np.array_equal(value.lengths, token_lengths):
                raise DataError(
                    f"expected stream `{name}`, which is not cut, to differ from `{self._tokens}` in length, got "
                    f"{token_lengths[0]} samples",
                    path=self._corpus.name,
                    sequence=int(ids[0]),
                    stream=name,
                    hint=f'pass fl.Cut(streams={{"{name}": 0}}), with its value of padding, or None to leave it whole',
                )


def _even(piece: Ints, row: Ints, n: int) -> Ints:
    """Return the lengths of pieces with which all rows are as long as the longest. Their last documents get more
    padding. Otherwise dense copies would pad each stream with zeros, also labels."""
    totals = np.bincount(row, piece, n).astype(np.int64)
    longer = piece.copy()
    longer[np.searchsorted(row, np.arange(n), side="right") - 1] += totals.max() - totals
    return longer


def _layout(
    starts: Ints, lengths: Ints, *, row: Ints, piece: Ints, share: IndexAndCount, zigzag: bool, n: int
) -> _Layout:
    """Return where the samples of a rank are.

    Args:
        starts, lengths: int64 (documents,), first sample of each document, and its length.
        row: int64 (documents,), index of its sequence.
        piece: int64 (documents,), length of its pieces.
        share: (index, count) of the rank.
        zigzag: whether it gets two pieces of each document.
        n: number of sequences.
    """
    index, count = share
    numbers = np.array([index, 2 * count - 1 - index] if zigzag else [index], np.int64)
    taken = piece * len(numbers)
    first = np.cumsum(taken) - taken  # of each document in the samples of this rank
    begin = np.minimum(piece[:, None] * numbers, lengths[:, None])
    stop = np.minimum(begin + piece[:, None], lengths[:, None])
    places = first[:, None] + piece[:, None] * np.arange(len(numbers))
    offsets = np.concatenate([[0], np.cumsum(taken)])[np.searchsorted(row, np.arange(n + 1))]
    runs = stop > begin
    return _Layout((starts[:, None] + begin)[runs], (stop - begin)[runs], places[runs], offsets)


def _kept(value: Value, layout: _Layout, fill: float) -> DenseValue:
    """Return the samples of a rank, with padding between them."""
    total = int(layout.offsets[-1])
    rows = np.ascontiguousarray(value.rows)
    if not total:
        return DenseValue(rows[:0], layout.offsets)
    zeros = np.zeros(len(layout.starts), np.int64)
    samples = _native.packed_values(
        rows, zeros, layout.places, layout.starts, layout.lengths, count=1, row=total, fill=np.array(fill, rows.dtype)
    )
    return DenseValue(samples.reshape(total, *rows.shape[1:]), layout.offsets)


def _bounds(lengths: Ints, row: Ints, n: int) -> DenseValue:
    """Return the beginnings of documents end to end, and the end, which the last of ``n`` sequences has."""
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    offsets = np.searchsorted(row, np.arange(n + 1))
    offsets[-1] += 1
    return DenseValue(ends, offsets)
