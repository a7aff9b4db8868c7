"""The chunks of several corpora, one corpus after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from feedline.data import Chunk, Schema
from feedline.feed.protocol import (
    CHUNK_MASK,
    ChunkInfo,
    Deserializer,
    LengthsOfStreams,
    Mapped,
    MappedFile,
    RandomAccess,
    Sliceable,
    can,
    fetches_ahead,
    files_of,
    read_slice,
    require,
    select_by_chunk,
    stream_lengths,
)
from feedline.feed.unique import distinct

Ints = NDArray[np.int64]

_OF_ALL = (RandomAccess, Sliceable)  # capabilities of a concatenation if all parts have them


class Concatenated(Deserializer, RandomAccess, Sliceable, Mapped, LengthsOfStreams):
    """Several corpora as one: the chunks of the first corpus, then of the second, and so on.

    Args:
        parts: the corpora, which know their sizes before reading.
        schema: streams that all of them have.
        name: name of all together.

    Attributes:
        parts: the corpora.
        firsts: int64 (parts + 1,), ordinal of the first sequence of each part, and the number of sequences.
    """

    def __init__(self, parts: Sequence[Deserializer], schema: Schema, name: str) -> None:
        self.parts: tuple[Deserializer, ...] = tuple(parts)
        self.schema, self.name = schema, name
        self._as_read = all(list(part.schema) == list(schema) for part in parts)
        self._lacks = [kind for kind in _OF_ALL if not all(can(part, kind) for part in parts)]
        self.in_runs = all(fetches_ahead(part) for part in parts)
        if RandomAccess not in self._lacks:
            views = [require(part, RandomAccess) for part in parts]
            self.in_memory = all(part.in_memory for part in views)
            self.looks_at_all = any(part.looks_at_all for part in views)
        self._single: set[int] = set()  # parts whose sequences have one sample each
        infos = [part.chunks() for part in parts]
        self._table = [info for of_part in infos for info in of_part]
        self._chunks: Ints = np.cumsum([0, *map(len, infos)], dtype=np.int64)
        before = np.cumsum([0, *(info.sequences for info in self._table)], dtype=np.int64)
        self.firsts: Ints = before[self._chunks]

    # ---- description ------------------------------------------------------------------------------

    def chunks(self) -> Sequence[ChunkInfo]:
        """Return the chunks of all parts."""
        return self._table

    def paths(self) -> Sequence[str]:
        """Return the paths of all parts."""
        return [path for part in self.parts for path in part.paths()]

    def lengths(self, ordinals: Ints) -> Ints | None:
        """Return the samples of the sequences ``ordinals``, int64 (n,), or None if each has one."""
        if len(self._single) == len(self.parts):
            return None
        lengths = np.ones(len(ordinals), np.int64)
        for k, at, local in self._by_part(ordinals):
            if k in self._single:
                continue
            of_part = self.parts[k].lengths(local)
            if of_part is None:
                self._single.add(k)
            else:
                lengths[at] = of_part
        return lengths

    def stream_lengths(self, stream: str) -> Callable[[Ints], Ints] | None:
        """Return the lengths in the parts, see `LengthsOfStreams.stream_lengths`."""
        functions = [function for part in self.parts if (function := stream_lengths(part, stream)) is not None]
        if len(functions) < len(self.parts):
            return None

        def of(ordinals: Ints) -> Ints:
            lengths = np.empty(len(ordinals), np.int64)
            for k, at, local in self._by_part(ordinals):
                lengths[at] = functions[k](local)
            return lengths

        return of

    # ---- reading ----------------------------------------------------------------------------------

    def read(self, chunk: int) -> Chunk:
        """Return the sequences of a chunk. Raises the errors of its part."""
        part, number = self._part_of(chunk)
        return self._fit(part.read(number))

    def read_slice(self, chunk: int, start: int, stop: int) -> Chunk:
        """Return the sequences ``start:stop`` of a chunk."""
        part, number = self._part_of(chunk)
        return self._fit(read_slice(part, number, start, stop))

    def view(self, chunk: int, start: int = 0, stop: int | None = None) -> tuple[Chunk, Ints | None]:
        """Return the part's view of a chunk."""
        part, number = self._part_of(chunk)
        view, index = require(part, RandomAccess).view(number, start, stop)
        return self._fit(view), index

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

    def select(self, ordinals: Ints) -> Chunk:
        """Return the sequences ``ordinals``, in that order, as one chunk."""
        ordinals = np.asarray(ordinals, np.int64)
        parts = list(self._by_part(ordinals))
        if len(parts) == 1:
            k, _, local = parts[0]
            return self._fit(self.parts[k].select(local))
        return select_by_chunk(self, ordinals)

    def close(self) -> None:
        """Close all parts."""
        for part in self.parts:
            part.close()

    # ---- internals --------------------------------------------------------------------------------

    def _fit(self, chunk: Chunk) -> Chunk:
        """Return a part's chunk with the streams of this corpus, in their order."""
        if self._as_read:
            return chunk
        return Chunk(self.schema, {name: chunk.values[name] for name in self.schema}, chunk.errors, seals=chunk.seals)

    def _part_of(self, chunk: int) -> tuple[Deserializer, int]:
        number = chunk & CHUNK_MASK
        if not 0 <= number < self._chunks[-1]:
            raise IndexError(f"expected 0 <= chunk < {self._chunks[-1]}, got {number}")
        k = int(np.searchsorted(self._chunks, number, side="right")) - 1
        return self.parts[k], chunk - int(self._chunks[k])  # the bits above the number stay

    def _by_part(self, ordinals: Ints) -> list[tuple[int, Ints, Ints]]:
        """Return the numbers of the parts concerned, with the places of their sequences in ``ordinals`` and the
        ordinals of these sequences in the part."""
        if len(ordinals) and not 0 <= ordinals.min() <= ordinals.max() < self.firsts[-1]:
            raise IndexError(f"expected 0 <= ordinal < {self.firsts[-1]}, got {ordinals.min()} to {ordinals.max()}")
        of = np.searchsorted(self.firsts, ordinals, side="right") - 1
        which = np.argsort(of.astype(np.min_scalar_type(len(self.parts))), kind="stable")  # radix, for small integers
        bounds = np.concatenate([[0], np.cumsum(np.bincount(of, minlength=len(self.parts)))])
        return [
            (k, at := which[bounds[k] : bounds[k + 1]], ordinals[at] - self.firsts[k])
            for k in np.flatnonzero(np.diff(bounds)).tolist()
        ]
