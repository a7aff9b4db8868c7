"""Documents of tokens packed into rows of one length.

A chunk of documents is a chunk of rows. The number of rows depends only on lengths, so that positions, windows,
partition and mixtures work as for any corpus. Every sweep draws which documents share a row: chunk numbers of the order
carry the sweep. Reading returns the tokens of rows and the origins of their pieces. Segments, positions and labels are
made with minibatches (`lm_batches`), so that windows do not hold them.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from feedline import _native
from feedline.data import Chunk, Schema, Stream, Value
from feedline.data.value import DenseValue
from feedline.errors import DataError, SchemaError
from feedline.feed.composed.concat import check_part, lengths_of
from feedline.feed.composed.lm_batches import NONE, PIECES, Unpacking
from feedline.feed.protocol import (
    CHUNK_BITS,
    CHUNK_MASK,
    ChunkInfo,
    Deserializer,
    DocumentsOfRows,
    Extent,
    Fetchable,
    Ints,
    Ordered,
    Piece,
    RowsOfDocuments,
    Verifiable,
    check_seed,
    chunk_extents,
    require,
    verified,
    whole_number,
)
from feedline.feed.timeline import ChunkTable, Timeline, Window, WindowPlan
from feedline.feed.timeline.feedline import FeedlineOrder
from feedline.feed.unique import distinct

METHODS = ("best-fit", "first-fit", "split")
LONG = ("split", "drop", "error")
LONGEST_ROW = 1 << 24

# Level of the key that shuffles the documents of a chunk. docs/explanation/order.md lists all levels.
COMPANIONS = 12


class _Pieces(NamedTuple):
    """Runs of tokens of documents, by row and by place in it.

    Attributes:
        row: int64 (n,), row of each piece in its chunk, ascending.
        document: int64 (n,), index of its document in the chunk.
        first, length: int64 (n,), first token of the piece in the document, and its number of tokens.
    """

    row: Ints
    document: Ints
    first: Ints
    length: Ints


class SweptOrder(FeedlineOrder):
    """The order "feedline-1" for chunks that each sweep packs differently. Chunk numbers carry the sweep."""

    name: ClassVar[str] = "feedline-1-swept"
    swept = True

    def window_at(self, sweep: int, place: int, window: int | None = None) -> WindowPlan:
        """See `Timeline.window_at`."""
        plan = super().window_at(sweep, place, window)
        plan.chunks = plan.chunks | (sweep << CHUNK_BITS)
        return plan


class Packed(Deserializer, Fetchable, Ordered, RowsOfDocuments, Verifiable):
    """A corpus of rows of ``row`` tokens over a corpus of documents, whose sequences are tokens.

    Streams of its minibatches. All but the last two have ``row`` samples per sequence:

    - the tokens, under their name, and ``labels``: the next token of the same document, int64, and ``ignore`` at its
      end and for padding.
    - ``segment``: 1 for the first document of a row, 2 for the next one, 0 for padding, and ``positions``: place in the
      document, from 0. Both are int32.
    - other streams of the documents, with zeros for padding.
    - ``cu_seqlens``: int32, the beginnings of documents and padding in the concatenated rows of the minibatch, and the
      end, as flash attention's functions of variable length take them: ``minibatch["cu_seqlens"].rows``.
    - ``document``: int64, ordinal of each document in a row.

    Every sweep draws which documents share a row, by ``seed``, except with ``"first-fit"``. A row with an
    unreadable document is unreadable. Documents without tokens are left out.

    Args:
        corpus: documents: one stream of integers with shape (), and others of the same length.
        row: tokens of a row, up to 2^24.
        method: ``"best-fit"``: documents of a chunk by decreasing length, each into the fullest row that has room. The
            number of rows does not depend on the draw. ``"first-fit"``: in the order of the corpus, each into the first
            row that has room. ``"split"``: in random order, one after another, cut at the ends of rows. Only the last
            row of a chunk has padding.
        long: treatment of documents longer than a row. ``"split"``: they are cut into rows and a remainder, and the
            last label of a piece is the next token. ``"drop"``: they are left out. ``"error"``: a DataError. Not for
            ``method="split"``.
        tokens: name of the stream of tokens, if there are several streams of integers.
        pad: token of padding.
        ignore: label of places without one.
        seed: seed of the draw.

    Attributes:
        row: tokens of a row.
        fill: share of all places that hold a token.

    Raises:
        DataError: no tokens, or with ``long="error"`` a document longer than a row.
        SchemaError: no stream of tokens, or a stream of another kind.
        ValueError: an argument out of range.
    """

    def __init__(
        self,
        corpus: Deserializer,
        row: int,
        *,
        method: str = "best-fit",
        long: str = "split",
        tokens: str | None = None,
        pad: int = 0,
        ignore: int = -100,
        seed: int = 0,
    ) -> None:
        check_part(corpus, "Packed")
        if method not in METHODS:
            raise ValueError(f"expected method of Packed to be one of {', '.join(map(repr, METHODS))}, got {method!r}")
        if long not in LONG:
            raise ValueError(f"expected long of Packed to be one of {', '.join(map(repr, LONG))}, got {long!r}")
        self.row = whole_number("row of Packed", row, 1)
        if self.row > LONGEST_ROW:
            raise ValueError(f"expected row of Packed of at most {LONGEST_ROW} tokens, got {row}")
        if corpus.capability(Ordered) is not None:
            raise ValueError(
                f"expected documents in a corpus without an order of its own for Packed, got {corpus.name}: pack each "
                "corpus, and mix the rows"
            )
        self._corpus, self._method, self._long, self._seed = corpus, method, long, check_seed(seed)
        self._tokens = _tokens_of(corpus, tokens)
        dtype = corpus.schema[self._tokens].dtype
        info = np.iinfo(dtype)
        if not info.min <= pad <= info.max:
            raise ValueError(f"expected pad of Packed as {dtype}, got {pad!r}")
        self.finish = Unpacking(self._tokens, self.row, pad=int(pad), ignore=int(ignore))
        streams = {name: Stream(stream.shape, stream.dtype) for name, stream in corpus.schema.items()}
        self.schema = Schema({**streams, PIECES: Stream((4,), "int64")})
        self.finish.schema(self.schema)  # refuses the names of streams that it adds
        self.name = f"{corpus.name}, packed"
        self._documents = ChunkTable(corpus.chunks())
        self._infos = self._count_rows()
        total = sum(info.sequences for info in self._infos)
        if not total:
            raise DataError("expected documents with tokens to pack, got none", path=corpus.name)
        self.fill = self._kept / (total * self.row)

    # ---- description ------------------------------------------------------------------------------

    def chunks(self) -> Sequence[ChunkInfo]:
        """Return the rows of every chunk of documents."""
        return self._infos

    def digest(self) -> str:
        """Return 32 hex digits over the corpus and the settings."""
        settings = [self._corpus.digest(), self.row, self._method, self._long, self._tokens, self._seed]
        settings += [self.finish.pad, self.finish.ignore]
        return hashlib.blake2b(json.dumps(settings).encode(), digest_size=16).hexdigest()

    def paths(self) -> Sequence[str]:
        """Return the corpus's paths."""
        return self._corpus.paths()

    def lengths(self, ordinals: Ints) -> Ints:
        """Return ``row`` for each row."""
        return np.full(len(ordinals), self.row, np.int64)

    def own_order(self, seed: int, shuffle: bool, window: Window | None, order_of: Callable[..., Timeline]) -> Timeline:
        """Return the order of rows. See `Ordered.own_order`."""
        return SweptOrder(ChunkTable(self._infos), seed, shuffle, window or Window(chunks=max(1, len(self._infos))))

    def _count_rows(self) -> list[ChunkInfo]:
        """Return the rows of each chunk, from the lengths of its documents."""
        infos, self._kept = [], 0
        table = self._documents
        for c, stored in enumerate(table.bytes.tolist()):
            if self._method == "split":
                tokens = int(table.samples[c])
                rows = -(-tokens // self.row)
            else:
                pieces = self._cut(c)
                fit = _native.first_fit if self._method == "first-fit" else _native.best_fit
                rows, tokens = (fit(pieces.length, self.row)[2] if len(pieces.length) else 0), int(pieces.length.sum())
            self._kept += tokens
            infos.append(ChunkInfo(rows, rows * self.row, stored))
        return infos

    # ---- packing ----------------------------------------------------------------------------------

    def _lengths_of(self, chunk: int) -> Ints:
        first, stop = self._documents.starts[chunk : chunk + 2].tolist()
        return lengths_of(self._corpus, np.arange(first, stop, dtype=np.int64))

    def _cut(self, chunk: int) -> _Pieces:
        """Return the pieces of the documents of a chunk, in the order of documents and without rows."""
        lengths = self._lengths_of(chunk)
        longer = lengths > self.row
        if self._long == "error" and longer.any():
            at = int(np.flatnonzero(longer)[0])
            raise DataError(
                f"expected documents of at most {self.row} tokens, got one of {lengths[at]}",
                path=self._corpus.name,
                sequence=int(self._documents.starts[chunk]) + at,
                hint='pack with long="split" or "drop"',
            )
        if self._long == "drop":
            lengths = np.where(longer, 0, lengths)
        counts = -(-lengths // self.row)
        document = np.repeat(np.arange(len(lengths)), counts)
        nth = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
        first = nth * self.row
        length = np.minimum(lengths[document] - first, self.row)
        return _Pieces(np.empty(0, np.int64), document, first, length)

    def _pack(self, sweep: int, chunk: int) -> _Pieces:
        """Return the pieces of all rows of a chunk in a sweep."""
        key = _native.hash_key([self._seed, sweep, COMPANIONS, chunk])
        if self._method == "split":
            return self._lay_out(key, self._lengths_of(chunk))
        pieces = self._cut(chunk)
        count = len(pieces.length)
        if not count:
            return pieces
        if self._method == "first-fit":
            row, offset, rows = _native.first_fit(pieces.length, self.row)
        else:
            row, offset, rows = _native.best_fit(pieces.length, self.row, _native.fisher_yates(key, count))
        _, order = _native.row_contents(row, offset, rows)
        return _Pieces(row[order], pieces.document[order], pieces.first[order], pieces.length[order])

    def _lay_out(self, key: int, lengths: Ints) -> _Pieces:
        """Return documents in random order, cut at the ends of rows."""
        order = _native.fisher_yates(key, len(lengths)).astype(np.int64)
        ends = np.cumsum(lengths[order])
        total = int(ends[-1]) if len(ends) else 0
        cuts = distinct(np.concatenate([ends, np.arange(self.row, total, self.row, dtype=np.int64), [0]]))
        starts, stops = cuts[:-1], cuts[1:]
        which = np.searchsorted(ends, starts, side="right")
        document = order[which]
        return _Pieces(starts // self.row, document, starts - (ends[which] - lengths[document]), stops - starts)

    def documents(self, chunk: int) -> DocumentsOfRows:
        """Return the documents of the rows of a chunk, in the sweep that its number carries."""
        number = chunk & CHUNK_MASK
        pieces = self._pack(chunk >> CHUNK_BITS, number)
        ordinals = pieces.document + self._documents.starts[number]
        return DocumentsOfRows(ordinals, pieces.length, self._bounds(pieces, number))

    def _bounds(self, pieces: _Pieces, number: int) -> Ints:
        """Return the index of the first piece of each row, and the number of pieces."""
        counts = np.bincount(pieces.row, minlength=self._infos[number].sequences)
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    # ---- reading ----------------------------------------------------------------------------------

    def read(self, chunk: int) -> Chunk:
        """Return the rows of a chunk, in the sweep that its number carries. Raises the errors of the corpus."""
        return self._rows(self._corpus.read(chunk & CHUNK_MASK), chunk)

    def extents(self, chunk: int) -> Sequence[Extent]:
        """Return the corpus's extents."""
        return chunk_extents(self._corpus, chunk & CHUNK_MASK)

    def read_fetched(self, chunk: int, pieces: Sequence[Piece]) -> Chunk:
        """Read like ``read`` a chunk whose extents were fetched."""
        return self._rows(require(self._corpus, Fetchable).read_fetched(chunk & CHUNK_MASK, pieces), chunk)

    def _rows(self, documents: Chunk, chunk: int) -> Chunk:
        number = chunk & CHUNK_MASK
        pieces = self._pack(chunk >> CHUNK_BITS, number)
        self._check(documents, number)
        rows = self._infos[number].sequences
        bounds = self._bounds(pieces, number)
        before = np.concatenate([[0], np.cumsum(pieces.length)])
        offset = before[:-1] - before[bounds[pieces.row]]
        every = np.arange(rows + 1, dtype=np.int64) * self.row
        # Unreadable documents may have no tokens to copy.
        readable = ~np.isin(pieces.document, list(documents.errors))
        values: dict[str, Any] = {}
        for name, value in documents.values.items():
            assert isinstance(value, DenseValue)
            starts = value.offsets[pieces.document] + pieces.first
            fill = np.array(self.finish.pad if name == self._tokens else 0, value.rows.dtype)
            packed = _native.packed_values(
                value.rows,
                pieces.row[readable],
                offset[readable],
                starts[readable],
                pieces.length[readable],
                count=rows,
                row=self.row,
                fill=fill,
            )
            values[name] = DenseValue(packed.reshape(rows * self.row, *value.rows.shape[1:]), every)
        ordinals = pieces.document + self._documents.starts[number]
        following = _following(documents.values[self._tokens], pieces)
        table = np.stack([ordinals, pieces.first, pieces.length, following], axis=1)
        values[PIECES] = DenseValue(np.ascontiguousarray(table, np.int64), bounds)
        errors: dict[int, DataError] = {}
        if documents.errors:
            for row, document in zip(pieces.row.tolist(), pieces.document.tolist(), strict=True):
                error = documents.errors.get(document)
                if error is not None:
                    where = int(self._documents.starts[number]) + document
                    errors.setdefault(row, error.located(path=self._corpus.name, sequence=where))
        return Chunk(self.schema, values, errors)

    def _check(self, documents: Chunk, number: int) -> None:
        """Check that a chunk has the documents for which it was packed, in all streams."""
        expected = self._lengths_of(number)
        for name, value in documents.values.items():
            wrong = np.flatnonzero(value.lengths != expected)
            wrong = wrong[~np.isin(wrong, list(documents.errors))]
            if len(wrong):
                at = int(wrong[0])
                raise DataError(
                    f"expected {expected[at]} samples in every stream of a document, got {value.lengths[at]}",
                    path=self._corpus.name,
                    sequence=int(self._documents.starts[number]) + at,
                    stream=name,
                )

    def verified(self) -> Deserializer:
        """Return the same rows over the verified corpus. See `Verifiable.verified`."""
        twin = copy.copy(self)
        twin._corpus = verified(self._corpus)
        return twin

    def close(self) -> None:
        """Close the corpus."""
        self._corpus.close()


def _tokens_of(corpus: Deserializer, requested: str | None) -> str:
    """Return the name of the stream of tokens.

    Raises:
        SchemaError: there is no such stream, or several.
    """
    for name, stream in corpus.schema.items():
        if stream.sparse or stream.is_bytes:
            raise SchemaError(f"expected dense streams of numbers to pack, got {stream} as `{name}`")
    integers = [
        name
        for name, stream in corpus.schema.items()
        if not stream.sparse and stream.shape == () and stream.dtype.kind in "iu" and stream.dtype != np.uint64
    ]
    if requested is not None:
        if requested not in integers:
            actual = corpus.schema.get(requested)
            raise SchemaError(
                f"expected a stream of integers with shape () as tokens, got `{requested}`: {actual or 'none'}"
            )
        return requested
    if len(integers) != 1:
        raise SchemaError(
            f"expected one stream of integers with shape () in {corpus.name} for Packed, got "
            f"{', '.join(integers) or 'none'}; name it: tokens="
        )
    return integers[0]


def _following(value: Value, pieces: _Pieces) -> Ints:
    """Return the token after each piece in its document, int64, and `NONE` at the end of the document."""
    assert isinstance(value, DenseValue)
    ends = value.offsets[pieces.document] + pieces.first + pieces.length
    goes_on = ends < value.offsets[pieces.document + 1]
    following = np.full(len(ends), NONE, np.int64)
    following[goes_on] = value.rows[ends[goes_on]]
    return following
