"""Several corpora, one after another, as one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.data import Chunk, Schema, Stream
from feedline.errors import SchemaError
from feedline.feed.concatenated import Concatenated
from feedline.feed.protocol import (
    Capability,
    Deserializer,
    DocumentsOfRows,
    Extent,
    Fetchable,
    Growing,
    Ints,
    Keyed,
    OfParts,
    Ordered,
    Piece,
    RowsOfDocuments,
    Verifiable,
    chunk_extents,
    finish_of,
    is_sized,
    keys_of,
    require,
    says_where_batches_end,
    verified,
)


class Concat(Concatenated, Fetchable, Growing, Keyed, OfParts, RowsOfDocuments, Verifiable):
    """The sequences of several corpora, one corpus after another.

    Args:
        corpora: at least one, of any formats, with the same streams.
        columns: names of the streams to keep, which all corpora must have. None: all. A sequence keeps the number of
            samples that it has in its corpus.

    Attributes:
        parts: the corpora.
        firsts: int64 (parts + 1,), ordinal of the first sequence of each part, and the number of sequences.

    Raises:
        SchemaError: the streams of two corpora differ.
        ValueError: no corpus, or a corpus that does not know the sizes of its chunks before reading them.
    """

    def __init__(self, *corpora: Deserializer, columns: Sequence[str] | None = None) -> None:
        for corpus in corpora:
            check_part(corpus, type(self).__name__)
        if not corpora:
            raise ValueError(f"expected at least one corpus for {type(self).__name__}, got none")
        super().__init__(corpora, same_schema(corpora, columns), ", ".join(corpus.name for corpus in corpora))
        ordered = [corpus.name for corpus in corpora if corpus.capability(Ordered) is not None]
        if ordered and not isinstance(self, Ordered):
            raise ValueError(
                f"expected corpora without an order of their own for Concat, got {ordered[0]}: fl.Mixture mixes it"
            )
        self.finish = finish_of(corpora[0])
        if differing := [corpus.name for corpus in corpora if finish_of(corpus) != self.finish]:
            raise ValueError(
                f"expected corpora that are all packed alike, or all not packed, got {corpora[0].name} and "
                f"{differing[0]}"
            )

    # ---- description ------------------------------------------------------------------------------

    def digest(self) -> str:
        """Return 32 hex digits over the digests of all parts and their numbers of chunks."""
        return list(self._digests(growing=False))[-1][1]

    def digests(self) -> Iterator[tuple[int, str]]:
        """Yield the digests within and after each part, and those of the first part alone. See `Growing.digests`."""
        return self._digests(growing=True)

    def _digests(self, *, growing: bool) -> Iterator[tuple[int, str]]:
        h = hashlib.blake2b(self.schema.digest.encode(), digest_size=16)
        for part, before in zip(self.parts, self._chunks[:-1].tolist(), strict=True):
            grown = part.capability(Growing) if growing else None
            of_part = [(len(part.chunks()), part.digest())] if grown is None else list(grown.digests())
            for count, digest in of_part:
                if before == 0 and growing:
                    yield count, digest
                after = h.copy()
                after.update(f"{digest} {count};".encode())
                yield before + count, after.hexdigest()
            h = after

    def shorter(self, sequences: int) -> Iterator[Deserializer]:
        """Yield corpora of which the last part ended within a part of this one. See `Growing.shorter`."""
        k = int(np.searchsorted(self.firsts, sequences, side="right")) - 1
        growing = self.parts[k].capability(Growing)
        if growing is None or isinstance(self, Ordered):
            return
        for part in growing.shorter(sequences - int(self.firsts[k])):
            if k == 0:
                yield part
            yield Concat(*self.parts[:k], part, columns=list(self.schema))

    def keys(self, ordinals: Ints) -> NDArray[np.uint64]:
        """Return the parts' keys of the sequences ``ordinals``, uint64 (n,). Parts may have equal keys."""
        keys = np.empty(len(ordinals), np.uint64)
        for k, at, part_ordinals in self._by_part(ordinals):
            keys[at] = keys_of(self.parts[k], part_ordinals)
        return keys

    def sources(self, ordinals: Ints) -> Ints:
        """Return the number of the part of each sequence."""
        return np.searchsorted(self.firsts, ordinals, side="right") - 1

    def capability(self, kind: type[Capability]) -> Capability | None:
        """See `Deserializer.capability`. Rows of documents are available only if all parts have them."""
        return None if kind is RowsOfDocuments and self.finish is None else super().capability(kind)

    def documents(self, chunk: int) -> DocumentsOfRows:
        """Return the documents from which the part's rows are packed."""
        part, number = self._part_of(chunk)
        rows = part.capability(RowsOfDocuments)
        assert rows is not None  # `capability` checked all parts
        return rows.documents(number)

    # ---- reading ----------------------------------------------------------------------------------

    def extents(self, chunk: int) -> Sequence[Extent]:
        """Return the parts of files that ``read`` reads for a chunk."""
        part, number = self._part_of(chunk)
        return chunk_extents(part, number)

    def read_fetched(self, chunk: int, pieces: Sequence[Piece]) -> Chunk:
        """Read a chunk whose extents were fetched."""
        part, number = self._part_of(chunk)
        return self._fit(require(part, Fetchable).read_fetched(number, pieces))

    def verified(self) -> Deserializer:
        """Return this corpus over its parts with all checksums compared. See `Verifiable.verified`."""
        parts = [verified(part) for part in self.parts]
        if all(a is b for a, b in zip(parts, self.parts, strict=True)):
            return self
        return Concat(*parts, columns=list(self.schema))


def check_part(corpus: Any, of: str) -> None:
    """Check that something can be a part of a corpus of several.

    Raises:
        TypeError: the object is no corpus.
        ValueError: the corpus decides where minibatches end, or does not know its sizes.
    """
    check_corpus(corpus, of)
    if not is_sized(corpus):
        raise ValueError(
            f"expected corpora that know the sizes of their chunks before reading for {of}, got {corpus.name}; "
            "implement `UserDeserializer.chunk_info` (and `chunk_lengths` if its sequences are ragged), or write texts "
            "that are tokenized to a store, with fl.convert"
        )


def check_corpus(corpus: Any, of: str) -> None:
    """Check that something is a corpus that does not decide where minibatches end.

    Raises:
        TypeError: the object is no corpus.
        ValueError: the corpus decides where minibatches end.
    """
    if not isinstance(corpus, Deserializer):
        raise TypeError(f"expected feedline Deserializers for {of}, got {type(corpus).__name__}")
    if says_where_batches_end(corpus):
        raise ValueError(
            f"expected corpora that do not decide where minibatches end for {of}, got {corpus.name}; make batches of "
            "the result instead"
        )


def lengths_of(corpus: Deserializer, ordinals: Ints) -> Ints:
    """Return the samples of the sequences ``ordinals``, int64 (n,)."""
    lengths = corpus.lengths(ordinals)
    return np.ones(len(ordinals), np.int64) if lengths is None else lengths


def same_schema(corpora: Sequence[Deserializer], columns: Sequence[str] | None) -> Schema:
    """Return the streams that all of these corpora have, or only ``columns``.

    Raises:
        SchemaError: streams differ, or one is missing.
    """
    first = corpora[0]
    if columns is None:
        names = dict.fromkeys(name for corpus in corpora for name in corpus.schema)
    elif isinstance(columns, str) or not columns:
        raise SchemaError(f"expected a list of streams as columns, got {columns!r}")
    else:
        names = dict.fromkeys(columns)
    for corpus in corpora:
        for name in names:
            ours, theirs = _kind(first.schema.get(name)), _kind(corpus.schema.get(name))
            if ours != theirs or theirs is None:
                raise SchemaError(
                    f"expected the same streams in all corpora, got {first.schema.get(name) or 'none'} as `{name}` in "
                    f"{first.name} and {corpus.schema.get(name) or 'none'} in {corpus.name}; name the streams to keep "
                    f"by columns=, or open the corpora with the same declarations"
                )
    return Schema({name: first.schema[name] for name in names})


def _kind(stream: Stream | None) -> tuple[Any, ...] | None:
    """Return the properties in which two corpora must agree. The name in the data may differ."""
    return None if stream is None else (stream.shape, stream.dtype, stream.sparse, stream.defines_size, stream.unit)
