"""Documents of tokens packed into rows of one length.

A chunk of documents is a chunk of rows. The number of rows depends only on lengths, so that positions, windows,
partition and mixtures work as for any corpus. Where lengths are unknown before reading, as of texts that are tokenized,
the rows of a chunk are counted when it is read. Every sweep draws which documents share a row: chunk numbers of the
order carry the sweep. Reading returns the tokens of rows and the origins of their pieces. Segments, positions and
labels are made with minibatches (`lm_batches`), so that windows do not hold them.

Documents whose streams have lengths of their own are packed whole, by their cost (`document_costs`). Tokens have
padding in a row, as labels must not be padded by others with zeros. Other streams have none, so that rows take no more
memory than their documents.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from feedline import _native
from feedline.data import Chunk, Schema, Stream, Value
from feedline.data.value import DenseValue
from feedline.errors import DataError, SchemaError
from feedline.feed.composed.concat import check_corpus, lengths_of
from feedline.feed.composed.document_costs import LONGEST_ROW, DocumentCosts
from feedline.feed.composed.lm_batches import NONE, PIECES, Unpacking
from feedline.feed.joined_values import in_sequences
from feedline.feed.protocol import (
    CHUNK_BITS,
    CHUNK_MASK,
    Capability,
    ChunkInfo,
    Deserializer,
    DocumentsOfRows,
    Extent,
    Fetchable,
    Ints,
    Ordered,
    Piece,
    RowsOfDocuments,
    Unsized,
    Verifiable,
    check_seed,
    chunk_extents,
    is_sized,
    num_chunks,
    require,
    stream_lengths,
    verified,
    whole_number,
)
from feedline.feed.quarantine import DocumentError
from feedline.feed.timeline import ChunkTable, Timeline, Window, WindowPlan
from feedline.feed.timeline.feedline import FeedlineOrder
from feedline.feed.timeline.unsized import INDEX_BITS
from feedline.feed.unique import distinct

_log = logging.getLogger("feedline")

METHODS = ("best-fit", "first-fit", "split")
LONG = ("split", "drop", "error")

# Level of the key that shuffles the documents of a chunk. docs/explanation/order.md lists all levels.
COMPANIONS = 12


#: Lengths of documents by stream, int64 (n,) each.
Lengths = Mapping[str, Ints]


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

    def bounds(self) -> Ints:
        """Return the index of the first piece of each row, and the number of pieces."""
        return np.concatenate([[0], np.cumsum(np.bincount(self.row))]).astype(np.int64)


class SweptOrder(FeedlineOrder):
    """The order "feedline-1" for chunks that each sweep packs differently. Chunk numbers carry the sweep."""

    name: ClassVar[str] = "feedline-1-swept"
    swept = True

    def window_at(self, sweep: int, place: int, window: int | None = None) -> WindowPlan:
        """See `Timeline.window_at`."""
        plan = super().window_at(sweep, place, window)
        plan.chunks = plan.chunks | (sweep << CHUNK_BITS)
        return plan


class Packed(Deserializer, Fetchable, Ordered, RowsOfDocuments, Unsized, Verifiable):
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

    With ``cost``, a row has whole documents that cost at most ``row`` together, and ``row / cost`` tokens with their
    padding. Other streams with a cost have no padding in a row, but all samples of its documents in order, any number.
    For each such stream there are:

    - ``<name>_segment``: number of the document of each sample in ``segment``, int32.
    - ``<name>_cu_seqlens``: beginnings of documents, and the end, int32. They have the same number of bounds as those
      of the tokens, so that two streams can be queries and keys. Padding of tokens and absent samples are empty.

    Every sweep draws which documents share a row, by ``seed``, except with ``"first-fit"``. A row with an
    unreadable document is unreadable, or if nothing is known of its length the row of the document after it. Documents
    without tokens, or with ``cost`` those that cost nothing, are left out.

    Documents whose lengths are unknown before reading, such as `Tokenized` texts, are packed as they are read. The rows
    are those of the same documents in a store with the same chunks, in the order of the same `Window` of chunks.
    Without one, windows have 8 chunks, but 1, 2 and 4 at first, so that the first minibatch waits for one chunk. Only a
    `MinibatchSource` reads them, ``chunks``, ``fill`` and plans are a ValueError, ``document`` is ``chunk << 32 |
    index``, and an unreadable document costs no other one its row.

    Args:
        corpus: documents: one stream of integers with shape (), and others of the same length, or with a cost.
        row: tokens of a row, or what its documents cost, up to 2^24.
        method: ``"best-fit"``: documents of a chunk by decreasing length, each into the fullest row that has room. The
            number of rows does not depend on the draw. ``"first-fit"``: in the order of the corpus, each into the first
            row that has room. ``"split"``: in random order, one after another, cut at the ends of rows. Only the last
            row of a chunk has padding.
        long: treatment of documents longer than a row. ``"split"``: they are cut into rows and a remainder, and the
            last label of a piece is the next token. ``"drop"``: they are left out, with a warning, and ``dropped``
            counts them. ``"error"``: a DataError. Not for ``method="split"``. None: ``"split"``, or ``"error"`` with
            ``cost``, as a cut would not part the streams of a document at the same moment.
        cost: cost of a sample by stream, such as ``{"tokens": 1, "patches": 0.25}``, at least 0. Numbers are what
            their decimal text says, so 0.1 is a tenth. Streams with a cost have their own lengths in a document, and
            all but the tokens any kind of samples. Streams that cost 0 are packed with the others. None: all streams
            are as long as the tokens.
        tokens: name of the stream of tokens, if there are several streams of integers.
        pad: token of padding.
        ignore: label of places without one.
        seed: seed of the draw.

    Attributes:
        row: tokens of a row, or what its documents cost.

    Raises:
        DataError: no tokens, no documents but those that are left out, or with ``long="error"`` a document longer
            than a row: when it is read, if lengths are unknown before.
        SchemaError: no stream of tokens, or a stream of another kind, or one that does not exist.
        TypeError, ValueError: an argument of another kind or out of range, or documents to be cut with ``cost``.
    """

    swept = True

    def __init__(
        self,
        corpus: Deserializer,
        row: int,
        *,
        method: str = "best-fit",
        long: str | None = None,
        cost: Mapping[str, Any] | None = None,
        tokens: str | None = None,
        pad: int = 0,
        ignore: int = -100,
        seed: int = 0,
    ) -> None:
        check_corpus(corpus, "Packed")
        if method not in METHODS:
            raise ValueError(f"expected method of Packed to be one of {', '.join(map(repr, METHODS))}, got {method!r}")
        long = ("split" if cost is None else "error") if long is None else long
        if long not in LONG:
            raise ValueError(f"expected long of Packed to be one of {', '.join(map(repr, LONG))}, got {long!r}")
        if cost is not None and "split" in (method, long):
            raise ValueError(
                "expected whole documents with cost= of Packed, as a cut would not part their streams at the same "
                f'moment, got {"method" if method == "split" else "long"}="split"; use method="best-fit" and '
                'long="drop" or "error"'
            )
        self.row = whole_number("row of Packed", row, 1)
        if self.row > LONGEST_ROW:
            raise ValueError(f"expected row of Packed of at most {LONGEST_ROW} tokens, got {row}")
        if corpus.capability(Ordered) is not None:
            raise ValueError(
                f"expected documents in a corpus without an order of its own for Packed, got {corpus.name}: pack each "
                "corpus, and mix the rows"
            )
        self._corpus, self._method, self._long, self._seed = corpus, method, long, check_seed(seed)
        self._tokens = _tokens_of(corpus, tokens, () if cost is None else cost)
        self._costs = DocumentCosts(self.row, self._tokens, cost, corpus.schema)
        self._has_costs, others = cost is not None, self._costs.names[1:]
        dtype = corpus.schema[self._tokens].dtype
        info = np.iinfo(dtype)
        if not info.min <= pad <= info.max:
            raise ValueError(f"expected pad of Packed as {dtype}, got {pad!r}")
        places = self._costs.places
        self.finish = Unpacking(self._tokens, places, pad=int(pad), ignore=int(ignore), others=others)
        counted = self._tokens if others else None  # no other stream may be longer
        streams = {
            name: Stream(stream.shape, stream.dtype, stream.sparse, defines_size=name == counted, unit=stream.unit)
            for name, stream in corpus.schema.items()
        }
        if PIECES in streams:
            raise SchemaError(
                f"expected documents without a stream `{PIECES}`, which rows add, got one in {corpus.name}: open it "
                "under another name"
            )
        self.schema = Schema({**streams, PIECES: Stream((4 + len(others),), "int64")})
        self.finish.schema(self.schema)  # refuses the names of streams that it adds
        self.name = f"{corpus.name}, packed"
        self._left_out: dict[int, int] = {}  # documents by chunk, of the chunks whose lengths are known
        self._rows_read: dict[int, int] = {}  # rows by chunk, where lengths are unknown before reading
        self._warned = False
        self._documents: ChunkTable | None = None
        self._infos: list[ChunkInfo] | None = None
        self._lengths_in = self._functions_of_lengths()
        if self._lengths_in:
            self._documents = ChunkTable(corpus.chunks())
            self._infos = self._count_rows(self._documents)
            if not any(info.sequences for info in self._infos):
                raise self._empty()
            if self.dropped:
                _log.warning("%s: %d documents are longer than a row and left out", self.name, self.dropped)

    # ---- description ------------------------------------------------------------------------------

    def capability(self, kind: type[Capability]) -> Capability | None:
        """See `Deserializer.capability`. Sizes are known if those of the documents are."""
        return None if kind is Unsized and self._infos is not None else super().capability(kind)

    def num_chunks(self) -> int:
        """Return the number of chunks of documents."""
        return num_chunks(self._corpus)

    def chunks(self) -> Sequence[ChunkInfo]:
        """Return the rows of every chunk of documents.

        Raises:
            ValueError: the lengths of documents are unknown before reading.
        """
        if self._infos is None:
            raise self._unknown("the number of rows")
        return self._infos

    @property
    def fill(self) -> float:
        """Share of all places that hold a token, or of the cost of all rows that documents cost.

        Raises:
            ValueError: the lengths of documents are unknown before reading.
        """
        if self._infos is None:
            raise self._unknown("the share of padding")
        return self._kept / (sum(info.sequences for info in self._infos) * self._costs.row)

    @property
    def dropped(self) -> int:
        """Number of documents that are longer than a row and left out.

        If lengths are unknown before reading, those in the chunks that this process has read.
        """
        return sum(list(self._left_out.values()))  # a copy, as other threads may add to it

    def _empty(self) -> DataError:
        if not self.dropped:
            return DataError("expected documents with tokens to pack, got none", path=self._corpus.name)
        return DataError(
            f"expected documents {self._limit()}, got none: {self.dropped} are longer and left out",
            path=self._corpus.name,
            hint="pack them into longer rows"
            if self._has_costs
            else 'pack them with long="split", or into longer rows',
        )

    def _limit(self) -> str:
        if self._has_costs:
            return f"that cost at most {self.row} by {self._costs}"
        return f"of at most {self.row} tokens"

    def _unknown(self, figure: str) -> ValueError:
        return ValueError(
            f"expected documents whose lengths are known before reading for {figure} of Packed, got "
            f"{self._corpus.name}: write them to a store, with fl.convert, and pack that"
        )

    def digest(self) -> str:
        """Return 32 hex digits over the corpus and the settings."""
        settings = [self._corpus.digest(), self.row, self._method, self._long, self._tokens, self._seed]
        settings += [self.finish.pad, self.finish.ignore, *([str(self._costs)] if self._has_costs else [])]
        return hashlib.blake2b(json.dumps(settings).encode(), digest_size=16).hexdigest()

    def paths(self) -> Sequence[str]:
        """Return the corpus's paths."""
        return self._corpus.paths()

    def lengths(self, ordinals: Ints) -> Ints:
        """Return the number of tokens of each row with its padding."""
        return np.full(len(ordinals), self._costs.places, np.int64)

    def own_order(self, seed: int, shuffle: bool, window: Window | None, order_of: Callable[..., Timeline]) -> Timeline:
        """Return the order of rows. See `Ordered.own_order`."""
        infos = self.chunks()
        return SweptOrder(ChunkTable(infos), seed, shuffle, window or Window(chunks=max(1, len(infos))))

    def _count_rows(self, table: ChunkTable) -> list[ChunkInfo]:
        """Return the rows of each chunk, from the lengths of its documents."""
        infos, self._kept = [], 0
        for c, stored in enumerate(table.bytes.tolist()):
            if self._method == "split":
                tokens = int(table.samples[c])
                rows = -(-tokens // self.row)
            else:
                pieces = self._cut(c, self._lengths_of(table, c))
                fit = _native.first_fit if self._method == "first-fit" else _native.best_fit
                rows = fit(pieces.length, self._costs.row)[2] if len(pieces.length) else 0
                tokens = int(pieces.length.sum())
            self._kept += tokens
            infos.append(ChunkInfo(rows, rows * self._costs.places, stored))
        return infos

    # ---- packing ----------------------------------------------------------------------------------

    def _functions_of_lengths(self) -> dict[str, Callable[[Ints], Ints]]:
        """Return functions from ordinals to lengths by stream, or none if lengths are unknown before reading."""
        if not is_sized(self._corpus):
            return {}
        if not self._has_costs:
            return {self._tokens: functools.partial(lengths_of, self._corpus)}
        functions = {name: stream_lengths(self._corpus, name) for name in self._costs.names}
        known = {name: function for name, function in functions.items() if function is not None}
        return known if len(known) == len(functions) else {}

    def _lengths_of(self, table: ChunkTable, number: int) -> Lengths:
        first, stop = table.starts[number : number + 2].tolist()
        ordinals = np.arange(first, stop, dtype=np.int64)
        return {name: lengths(ordinals) for name, lengths in self._lengths_in.items()}

    def _first(self, number: int) -> int:
        """Return the ordinal of the first document of a chunk."""
        return number << INDEX_BITS if self._documents is None else int(self._documents.starts[number])

    def _cut(self, number: int, lengths: Lengths) -> _Pieces:
        """Return the pieces of documents of these lengths, in the order of documents and without rows. With costs,
        lengths of pieces are costs in units."""
        sizes, row = self._costs.of(lengths) if self._has_costs else lengths[self._tokens], self._costs.row
        longer = sizes > row
        if self._long == "error" and longer.any():
            at = int(np.flatnonzero(longer)[0])
            raise DataError(
                f"expected documents {self._limit()}, got one of {self._costs.exact(lengths, at)}",
                path=self._corpus.name,
                sequence=self._first(number) + at,
                hint='pack with long="drop"' if self._has_costs else 'pack with long="split" or "drop"',
            )
        if self._long == "drop":
            sizes = np.where(longer, 0, sizes)
            self._left_out[number] = int(longer.sum())
        counts = -(-sizes // row)
        document = np.repeat(np.arange(len(sizes)), counts)
        nth = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
        first = nth * row
        length = np.minimum(sizes[document] - first, row)
        return _Pieces(np.empty(0, np.int64), document, first, length)

    def _pack(self, chunk: int, lengths: Lengths) -> _Pieces:
        """Return the pieces of all rows of a chunk with documents of these lengths, in the sweep that its number
        carries."""
        sweep, number = chunk >> CHUNK_BITS, chunk & CHUNK_MASK
        key = _native.hash_key([self._seed, sweep, COMPANIONS, number])
        if self._method == "split":
            return self._lay_out(key, lengths[self._tokens])
        pieces = self._cut(number, lengths)
        count = len(pieces.length)
        if not count:
            return pieces
        if self._method == "first-fit":
            row, offset, rows = _native.first_fit(pieces.length, self._costs.row)
        else:
            row, offset, rows = _native.best_fit(pieces.length, self._costs.row, _native.fisher_yates(key, count))
        _, order = _native.row_contents(row, offset, rows)
        document = pieces.document[order]
        length = lengths[self._tokens][document] if self._has_costs else pieces.length[order]
        return _Pieces(row[order], document, pieces.first[order], length)

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
        """Return the documents of the rows of a chunk, in the sweep that its number carries.

        Raises:
            ValueError: the lengths of documents are unknown before reading.
        """
        if self._documents is None:
            raise self._unknown("the documents of the rows")
        number = chunk & CHUNK_MASK
        lengths = self._lengths_of(self._documents, number)
        pieces = self._pack(chunk, lengths)
        lengths_in = {name: lengths[name][pieces.document] for name in self.finish.others}
        return DocumentsOfRows(pieces.document + self._first(number), pieces.length, pieces.bounds(), lengths_in)

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
        unreadable = list(documents.errors)
        if self._documents is None:
            readable = np.ones(documents.num_sequences, np.int64)
            readable[unreadable] = 0
            lengths: Lengths = {name: documents.values[name].lengths * readable for name in self._costs.names}
        else:
            lengths = self._lengths_of(self._documents, number)
        self._check(documents, number, lengths)
        pieces = self._pack(chunk, lengths)
        bounds = pieces.bounds()
        if self._documents is None:
            self._note_rows(number, len(bounds) - 1)
        rows = len(bounds) - 1
        before = np.concatenate([[0], np.cumsum(pieces.length)])
        offset = before[:-1] - before[bounds[pieces.row]]
        # Unreadable documents may have no tokens to copy.
        copied = ~np.isin(pieces.document, unreadable) & (pieces.length > 0)
        errors = self._errors(documents, pieces, number, rows)
        places = self._costs.places
        every = np.arange(rows + 1, dtype=np.int64) * places
        if empty := sum(row >= rows for row in errors):
            every, bounds = np.append(every, [every[-1]] * empty), np.append(bounds, [bounds[-1]] * empty)
        values: dict[str, Any] = {}
        for name, value in documents.values.items():
            if name in self.finish.others:
                selected = value.select(pieces.document)
                values[name] = in_sequences(selected, selected.offsets[bounds])
                continue
            assert isinstance(value, DenseValue)
            starts = value.offsets[pieces.document] + pieces.first
            fill = np.array(self.finish.pad if name == self._tokens else 0, value.rows.dtype)
            packed = _native.packed_values(
                value.rows,
                pieces.row[copied],
                offset[copied],
                starts[copied],
                pieces.length[copied],
                count=rows,
                row=places,
                fill=fill,
            )
            values[name] = DenseValue(packed.reshape(rows * places, *value.rows.shape[1:]), every)
        following = _following(documents.values[self._tokens], pieces)
        columns = [pieces.document + self._first(number), pieces.first, pieces.length, following]
        columns += [lengths[name][pieces.document] for name in self.finish.others]
        table = np.stack(columns, axis=1)
        values[PIECES] = DenseValue(np.ascontiguousarray(table, np.int64), bounds)
        return Chunk(self.schema, values, errors)

    def _note_rows(self, number: int, rows: int) -> None:
        """Note the rows of a chunk of documents whose lengths were unknown.

        Raises:
            DataError: all documents of the corpus are longer than a row, and left out.
        """
        dropped = self.dropped
        if dropped and not self._warned:
            self._warned = True
            _log.warning("%s: documents longer than a row are left out, see its `dropped`", self.name)
        self._rows_read[number] = rows
        counts = list(self._rows_read.values())
        if dropped and len(counts) == self.num_chunks() and not any(counts):
            raise self._empty()

    def _errors(self, documents: Chunk, pieces: _Pieces, number: int, rows: int) -> dict[int, DataError]:
        """Return the errors of rows. Where lengths are unknown before reading, each unreadable document has an empty
        row of its own, after the other rows, so that it costs no other document its place."""
        errors: dict[int, DataError] = {}
        pairs: Iterable[tuple[int, int]]
        if not documents.errors:
            return errors
        if self._documents is None:
            unreadable = sorted(documents.errors)
            pairs = zip(range(rows, rows + len(unreadable)), unreadable, strict=True)
        else:
            pairs = [
                *zip(pieces.row.tolist(), pieces.document.tolist(), strict=True),
                *_without_tokens(documents, pieces),
            ]
        for row, document in pairs:
            error = documents.errors.get(document)
            if error is not None:
                errors.setdefault(row, DocumentError.of(error, self._first(number) + document, self._corpus))
        return errors

    def _check(self, documents: Chunk, number: int, lengths: Lengths) -> None:
        """Check that a chunk has documents of these lengths, in all streams."""
        for name, value in documents.values.items():
            expected = lengths.get(name, lengths[self._tokens])
            wrong = np.flatnonzero(value.lengths != expected)
            wrong = wrong[~np.isin(wrong, list(documents.errors))]
            if len(wrong):
                at = int(wrong[0])
                raise DataError(
                    f"expected {expected[at]} samples in every stream of a document, got {value.lengths[at]}",
                    path=self._corpus.name,
                    sequence=self._first(number) + at,
                    stream=name,
                    hint=f'if it has a length of its own, pack with cost={{"{self._tokens}": 1, "{name}": ...}}',
                )

    def verified(self) -> Deserializer:
        """Return the same rows over the verified corpus. See `Verifiable.verified`."""
        twin = copy.copy(self)
        twin._corpus = verified(self._corpus)
        return twin

    def close(self) -> None:
        """Close the corpus."""
        self._corpus.close()


def _tokens_of(corpus: Deserializer, requested: str | None, with_costs: Iterable[str]) -> str:
    """Return the name of the stream of tokens. Streams with costs may have any kind of samples.

    Raises:
        SchemaError: there is no such stream, or several.
    """
    for name, stream in corpus.schema.items():
        if (stream.sparse or stream.is_bytes) and name not in with_costs:
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


def _without_tokens(documents: Chunk, pieces: _Pieces) -> list[tuple[int, int]]:
    """Return (row, document) of unreadable documents of which no tokens were counted, and so are in no row.

    They must not be lost without a word: each counts for the row of the document after it, or of the last one.
    """
    order = np.argsort(pieces.document, kind="stable")
    packed = pieces.document[order]
    lost = np.setdiff1d(list(documents.errors), packed)
    if not len(packed):
        return []
    places = np.minimum(np.searchsorted(packed, lost), len(packed) - 1)
    return list(zip(pieces.row[order[places]].tolist(), lost.tolist(), strict=True))


def _following(value: Value, pieces: _Pieces) -> Ints:
    """Return the token after each piece in its document, int64, and `NONE` at the end of the document."""
    assert isinstance(value, DenseValue)
    ends = value.offsets[pieces.document] + pieces.first + pieces.length
    goes_on = ends < value.offsets[pieces.document + 1]
    following = np.full(len(ends), NONE, np.int64)
    following[goes_on] = value.rows[ends[goes_on]]
    return following
