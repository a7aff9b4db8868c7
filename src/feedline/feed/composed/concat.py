"""Several corpora, one after the other, as one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.data import Chunk, Schema, Stream
from feedline.errors import SchemaError
from feedline.feed.distinct import distinct
from feedline.feed.protocol import (
    CHUNK_MASK,
    Capability,
    ChunkInfo,
    Deserializer,
    Extent,
    Fetchable,
    Keyed,
    Mapped,
    MappedFile,
    OfParts,
    Ordered,
    Piece,
    RandomAccess,
    RowsOfDocuments,
    Sliceable,
    Verifiable,
    can,
    chunk_extents,
    chunk_starts,
    fetches_ahead,
    files_of,
    finish_of,
    is_sized,
    keys_of,
    read_slice,
    required,
    says_where_batches_end,
    select_by_chunk,
    verified,
)

Ints = NDArray[np.int64]


_OF_ALL = (RandomAccess, Sliceable)  # what a concatenation can do if all parts can


class Concat(Deserializer, RandomAccess, Sliceable, Mapped, Fetchable, Keyed, OfParts, RowsOfDocuments, Verifiable):
    """The sequences of several corpora, one corpus after the other.

    Args:
        corpora: at least one, of any formats, with the same streams.
        columns: names of the streams to keep, which all corpora must have; None: all. A sequence keeps the number of
            samples that its corpus gives it.

    Attributes:
        parts: the corpora.
        firsts: int64 (parts + 1,), ordinal of the first sequence of each part, and the number of sequences.

    Raises:
        SchemaError: the streams of two corpora differ.
        ValueError: no corpus, or one that does not know the sizes of its chunks before reading them.
    """

    def __init__(self, *corpora: Deserializer, columns: Sequence[str] | None = None) -> None:
        for corpus in corpora:
            check_part(corpus, type(self).__name__)
        if not corpora:
            raise ValueError(f"expected at least one corpus for {type(self).__name__}, got none")
        self.parts: tuple[Deserializer, ...] = corpora
        self.schema = same_schema(corpora, columns)
        self._as_read = all(list(corpus.schema) == list(self.schema) for corpus in corpora)
        self.name = ", ".join(corpus.name for corpus in corpora)
        self._lacks = [kind for kind in _OF_ALL if not all(can(corpus, kind) for corpus in corpora)]
        self.in_runs = all(fetches_ahead(corpus) for corpus in corpora)
        if RandomAccess not in self._lacks:
            views = [required(corpus, RandomAccess) for corpus in corpora]
            self.in_memory = all(corpus.in_memory for corpus in views)
            self.looks_at_all = any(corpus.looks_at_all for corpus in views)
        ordered = [corpus.name for corpus in corpora if corpus.capability(Ordered) is not None]
        if ordered and not isinstance(self, Ordered):
            raise ValueError(
                f"expected corpora without an order of their own for Concat, got {ordered[0]}: fl.Mixture mixes it"
            )
        self.finish = finish_of(corpora[0])
        if differing := [corpus.name for corpus in corpora if finish_of(corpus) != self.finish]:
            raise ValueError(
                f"expected corpora that are packed alike, or none that is, got {corpora[0].name} and {differing[0]}"
            )
        self._single: set[int] = set()  # parts that said that each of their sequences has one sample
        self._infos = [list(corpus.chunks()) for corpus in corpora]
        self._chunks: Ints = np.cumsum([0, *map(len, self._infos)], dtype=np.int64)
        self.firsts: Ints = np.cumsum([0, *(chunk_starts(corpus)[-1] for corpus in corpora)], dtype=np.int64)

    # ---- description ------------------------------------------------------------------------------

    def chunks(self) -> Sequence[ChunkInfo]:
        """Return the chunks of all parts."""
        return [info for infos in self._infos for info in infos]

    def digest(self) -> str:
        """Return 32 hex digits over the digests of all parts and their numbers of chunks."""
        h = hashlib.blake2b(self.schema.digest.encode(), digest_size=16)
        for part, infos in zip(self.parts, self._infos, strict=True):
            h.update(f"{part.digest()} {len(infos)};".encode())
        return h.hexdigest()

    def paths(self) -> list[str]:
        """Return the paths of all parts."""
        return [path for part in self.parts for path in part.paths()]

    def lengths(self, ordinals: Ints) -> Ints | None:
        """Return the samples of the sequences ``ordinals``, int64 (n,), or None if each has one."""
        if len(self._single) == len(self.parts):
            return None
        found = np.ones(len(ordinals), np.int64)
        for k, at, own in self._by_part(ordinals):
            if k in self._single:
                continue
            lengths = self.parts[k].lengths(own)
            if lengths is None:
                self._single.add(k)
            else:
                found[at] = lengths
        return found

    def keys(self, ordinals: Ints) -> NDArray[np.uint64]:
        """Return the parts' keys of the sequences ``ordinals``, uint64 (n,); parts may have equal ones."""
        found = np.empty(len(ordinals), np.uint64)
        for k, at, own in self._by_part(ordinals):
            found[at] = keys_of(self.parts[k], own)
        return found

    def sources(self, ordinals: Ints) -> Ints:
        """Return the number of the part that each sequence is from."""
        return np.searchsorted(self.firsts, ordinals, side="right") - 1

    def capability(self, kind: type[Capability]) -> Capability | None:
        """See `Deserializer.capability`; rows of documents are those of all parts, or of none."""
        return None if kind is RowsOfDocuments and self.finish is None else super().capability(kind)

    def documents(self, chunk: int) -> tuple[Ints, Ints]:
        """Return the documents that the part's rows are packed from."""
        part, own = self._part_of(chunk)
        rows = part.capability(RowsOfDocuments)
        assert rows is not None  # as all parts are packed alike
        return rows.documents(own)

    # ---- reading ----------------------------------------------------------------------------------

    def read(self, chunk: int) -> Chunk:
        """Return the sequences of a chunk; raises what its part raises."""
        part, own = self._part_of(chunk)
        return self._fitted(part.read(own))

    def read_slice(self, chunk: int, start: int, stop: int) -> Chunk:
        """Return the sequences ``start:stop`` of a chunk."""
        part, own = self._part_of(chunk)
        return self._fitted(read_slice(part, own, start, stop))

    def view(self, chunk: int, start: int = 0, stop: int | None = None) -> tuple[Chunk, Ints | None]:
        """Return the part's view of a chunk."""
        part, own = self._part_of(chunk)
        held, index = required(part, RandomAccess).view(own, start, stop)
        return self._fitted(held), index

    def files(self, chunks: Sequence[int]) -> Sequence[MappedFile]:
        """Return the mapped files that ``chunks`` are views of."""
        numbers = np.asarray(chunks, np.int64)
        of = np.searchsorted(self._chunks, numbers, side="right") - 1
        return [
            file
            for k in distinct(of).tolist()
            for file in files_of(self.parts[k], (numbers[of == k] - self._chunks[k]).tolist())
        ]

    def hold_bounds(self) -> None:
        """Have all parts hold their bounds."""
        for part in self.parts:
            if (mapped := part.capability(Mapped)) is not None:
                mapped.hold_bounds()

    def extents(self, chunk: int) -> Sequence[Extent]:
        """Return the parts of files that ``read`` reads for a chunk."""
        part, own = self._part_of(chunk)
        return chunk_extents(part, own)

    def read_fetched(self, chunk: int, pieces: Sequence[Piece]) -> Chunk:
        """Read a chunk whose extents were fetched."""
        part, own = self._part_of(chunk)
        return self._fitted(required(part, Fetchable).read_fetched(own, pieces))

    def select(self, ordinals: Ints) -> Chunk:
        """Return the sequences ``ordinals``, in that order, as one chunk."""
        ordinals = np.asarray(ordinals, np.int64)
        parts = list(self._by_part(ordinals))
        if len(parts) == 1:
            k, _, own = parts[0]
            return self._fitted(self.parts[k].select(own))
        return select_by_chunk(self, ordinals)

    def verified(self) -> Deserializer:
        """Return this corpus over its parts with all checksums compared; see `Verifiable.verified`."""
        parts = [verified(part) for part in self.parts]
        return (
            self
            if all(a is b for a, b in zip(parts, self.parts, strict=True))
            else Concat(*parts, columns=list(self.schema))
        )

    def close(self) -> None:
        """Close all parts."""
        for part in self.parts:
            part.close()

    # ---- internals --------------------------------------------------------------------------------

    def _fitted(self, chunk: Chunk) -> Chunk:
        """Return a part's chunk with the streams of this corpus, in their order."""
        if self._as_read:
            return chunk
        return Chunk(self.schema, {name: chunk.values[name] for name in self.schema}, chunk.errors, seals=chunk.seals)

    def _part_of(self, chunk: int) -> tuple[Deserializer, int]:
        number = chunk & CHUNK_MASK
        if not 0 <= number < self._chunks[-1]:
            raise IndexError(f"expected 0 <= chunk < {self._chunks[-1]}, got {number}")
        k = int(np.searchsorted(self._chunks, number, side="right")) - 1
        return self.parts[k], chunk - int(self._chunks[k])  # what stands above the number stays

    def _by_part(self, ordinals: Ints) -> list[tuple[int, Ints, Ints]]:
        """Return the numbers of the parts concerned, with the places of their sequences in ``ordinals`` and their own
        ordinals."""
        if len(ordinals) and not 0 <= ordinals.min() <= ordinals.max() < self.firsts[-1]:
            raise IndexError(f"expected 0 <= ordinal < {self.firsts[-1]}, got {ordinals.min()} to {ordinals.max()}")
        of = self.sources(ordinals)
        which = np.argsort(of.astype(np.min_scalar_type(len(self.parts))), kind="stable")  # radix, for small integers
        bounds = np.concatenate([[0], np.cumsum(np.bincount(of, minlength=len(self.parts)))])
        return [
            (k, at := which[bounds[k] : bounds[k + 1]], ordinals[at] - self.firsts[k])
            for k in np.flatnonzero(np.diff(bounds)).tolist()
        ]


def check_part(corpus: Any, of: str) -> None:
    """Check that something can be a part of a corpus of several.

    Raises:
        TypeError: it is no corpus.
        ValueError: it does not know its sizes.
    """
    if not isinstance(corpus, Deserializer):
        raise TypeError(f"expected feedline Deserializers for {of}, got {type(corpus).__name__}")
    if says_where_batches_end(corpus):
        raise ValueError(
            f"expected corpora that do not say where minibatches end for {of}, got one of {corpus.name}; make batches "
            f"of the whole instead"
        )
    if not is_sized(corpus):
        raise ValueError(
            f"expected corpora that know the sizes of their chunks before reading for {of}, got {corpus.name}; give it "
            f"chunk_info (and chunk_lengths if its sequences are ragged)"
        )


def same_schema(corpora: Sequence[Deserializer], columns: Sequence[str] | None) -> Schema:
    """Return the streams that all of these corpora have, or those of ``columns``.

    Raises:
        SchemaError: they differ, or one is missing.
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
    """Return what two corpora must agree about: not the name in the data."""
    return None if stream is None else (stream.shape, stream.dtype, stream.sparse, stream.defines_size)
