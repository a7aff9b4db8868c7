"""Join several corpora by sequence key: the first determines chunks and order, the others are looked up.

A joined sequence has the streams of all parts. A sequence of the primary whose key is missing in another part is
dropped and counted. A duplicate key in another part is an error, as it is ambiguous.

A join is resolved once, in O(n log n) and in blocks of bounded memory, into a table of 8 bytes per sequence and
secondary (and 8 more if any sequence was dropped). The table is a mapped file of the cache folder (see `join_table`),
and opening it again reads O(chunks). Reading a chunk reads the primary's chunk and selects from the others: contiguous
runs cost one read, scattered sequences as many as their format needs.
"""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.data import Chunk, Schema, Value
from feedline.errors import DataError, SchemaError
from feedline.feed.composed.frames import repeat
from feedline.feed.composed.join_table import JoinTable
from feedline.feed.files.cache_files import user_cache
from feedline.feed.files.lru import LruCache
from feedline.feed.formats.fetched_views import may_lack_parts
from feedline.feed.protocol import (
    Broadcast,
    ChunkInfo,
    Deserializer,
    Ints,
    Keyed,
    LengthsOfStreams,
    RandomAccess,
    Verifiable,
    can,
    chunk_starts,
    is_sized,
    keys_of,
    select_by_chunk,
    stream_lengths,
    verified,
)
from feedline.feed.unique import distinct

_SAMPLED = 1024  # sequences of each part whose keys and lengths the digest covers


class Join(Deserializer, Keyed, LengthsOfStreams, Verifiable):
    """Sequences of several corpora, joined by their keys (`Keyed.keys`).

    The join has the chunks and the order of the primary, and its ``ChunkInfo.bytes``, as only the primary determines
    the order. The length of a joined sequence is the greatest length in its parts, or the length in the part whose
    stream defines the size. A sequence that is unreadable in one part is unreadable in the join, with the error of that
    part. The primary may repeat a key: each occurrence looks up the same sequences. If a part has ``broadcast`` set,
    its sequences of one sample are repeated for each sample of the primary's sequence.

    Args:
        primary: corpus that determines chunks and order.
        secondaries: at least one corpus to look up by key. All stream names must differ.
        cache: folder for the resolved table, created with mode 0700. None: ``$XDG_CACHE_HOME/feedline``
            (``~/.cache/feedline``). False: no folder. If it is not writable, the table is a temporary file in
            ``$TMPDIR``, resolved again by every process. Tables of data that no longer exists may be deleted at any
            time.
        memory: cache, in bytes, for decoded chunks of secondaries that can only be read chunk by chunk. If their order
            differs from the primary's, fewer bytes than their chunks in use cause repeated reads.

    Attributes:
        dropped: number of sequences of the primary that are dropped, as a secondary lacks their key.

    Raises:
        SchemaError: two streams have the same name, or two define the size.
        DataError: no key in common, or a duplicate key in a secondary.
        ValueError: fewer than two parts, or a part whose chunk sizes are unknown before reading.
    """

    def __init__(
        self,
        primary: Deserializer,
        *secondaries: Deserializer,
        cache: str | os.PathLike[str] | bool | None = None,
        memory: int = 256 << 20,
    ) -> None:
        parts = (primary, *secondaries)
        for part in parts:
            if not isinstance(part, Deserializer):
                raise TypeError(f"expected feedline Deserializers to join, got {type(part).__name__}")
            if not is_sized(part):
                raise ValueError(
                    f"expected chunk sizes that are known before reading to join {part.name}; implement "
                    "`UserDeserializer.chunk_info` (and `chunk_lengths` if its sequences are ragged)"
                )
        if len(parts) < 2:
            raise ValueError(f"expected at least two corpora to join, got {len(parts)}")
        if primary.capability(Broadcast) is not None:
            raise ValueError(f"expected a first corpus without broadcast, got {primary.name}: no earlier corpus to fit")
        self.parts = parts
        self.schema = _join_schemas(parts)
        self.name = f"join of {', '.join(part.name for part in parts)}"
        self._infos = [list(part.chunks()) for part in parts]
        self._starts = [chunk_starts(part) for part in parts]
        sizing = [part for part in parts if part.schema.size_stream is not None and part.capability(Broadcast) is None]
        self._sizing = parts.index(sizing[0]) if sizing else None
        self._kept, self._memory = LruCache(self._read_part, lambda chunk: chunk.nbytes, memory), memory
        self._digest = self._identify()
        folder = None if cache is False else user_cache() if cache is None or cache is True else Path(cache)
        self._table = JoinTable(
            parts, self._infos, self._part_lengths, digest=bytes.fromhex(self._digest), folder=folder, name=self.name
        )
        self.dropped = int(self._starts[0][-1]) - self._table.count
        self._owned: Sequence[Any] = (self._table, *parts)

    # ---- description ------------------------------------------------------------------------------

    def chunks(self) -> Sequence[ChunkInfo]:
        """Return the size of every chunk: the primary's, without dropped sequences."""
        return self._table.chunks

    def digest(self) -> str:
        """Return 32 hex digits over the digests, chunk tables and some keys and lengths of all parts."""
        return self._digest

    def paths(self) -> list[str]:
        """Return the paths of all parts."""
        return [path for part in self.parts for path in part.paths()]

    def lengths(self, ordinals: Ints) -> Ints | None:
        """Return the samples of the joined sequences ``ordinals``, int64 (n,), or None if each has one."""
        return self._part_lengths(list(self._table.rows(ordinals).T))

    def stream_lengths(self, stream: str) -> Callable[[Ints], Ints] | None:
        """Return the lengths in the part with the stream, see `LengthsOfStreams.stream_lengths`. Those of a broadcast
        part are unknown, as they depend on another part."""
        (k,) = (k for k, part in enumerate(self.parts) if stream in part.schema)
        lengths = None if self.parts[k].capability(Broadcast) is not None else stream_lengths(self.parts[k], stream)
        return None if lengths is None else lambda ordinals: lengths(self._table.rows(ordinals)[:, k])

    def keys(self, ordinals: Ints) -> NDArray[np.uint64]:
        """Return the primary's keys of the joined sequences ``ordinals``, uint64 (n,)."""
        return keys_of(self.parts[0], self._table.rows(ordinals)[:, 0])

    def _part_lengths(self, columns: Sequence[Ints]) -> Ints | None:
        """Return the lengths of joined sequences from their ordinals in each part."""
        if self._sizing is not None:
            return self.parts[self._sizing].lengths(columns[self._sizing])
        longest: Ints | None = None
        all_ragged = True
        for part, ordinals in zip(self.parts, columns, strict=True):
            if part.capability(Broadcast) is not None:
                continue
            lengths = part.lengths(ordinals)
            all_ragged = all_ragged and lengths is not None
            if lengths is not None:
                longest = lengths if longest is None else np.maximum(longest, lengths)
        return longest if longest is None or all_ragged else np.maximum(longest, 1)

    def _identify(self) -> str:
        h = hashlib.blake2b(digest_size=16)
        for part, infos, starts in zip(self.parts, self._infos, self._starts, strict=True):
            h.update(f"{part.digest()} {part.schema.digest} {len(infos)};".encode())
            h.update(np.array(infos, "<i8").tobytes())
            # Joins of the same data by different columns must not share a table, but may have parts with equal digests.
            some = distinct(np.linspace(0, max(starts[-1] - 1, 0), _SAMPLED).astype(np.int64))[: starts[-1]]
            h.update(np.ascontiguousarray(keys_of(part, some), "<u8").tobytes())
            lengths = part.lengths(some)
            h.update(b"" if lengths is None else np.ascontiguousarray(lengths, "<i8").tobytes())
        return h.hexdigest()

    # ---- reading ----------------------------------------------------------------------------------

    def read(self, chunk: int) -> Chunk:
        """Return the joined sequences of the primary's chunk number ``chunk``.

        Raises:
            DataError: a part cannot be read, or its keys have changed since the join was resolved.
        """
        if not 0 <= chunk < len(self._infos[0]):
            raise IndexError(f"expected 0 <= chunk < {len(self._infos[0])}, got {chunk}")
        first, stop = self._table.first[chunk], self._table.first[chunk + 1]
        rows = self._table.rows(np.arange(first, stop))
        self._check_keys(rows)
        primary = self.parts[0].read(chunk)
        if stop - first < self._infos[0][chunk].sequences:
            primary = primary.take(rows[:, 0] - self._starts[0][chunk])
        return self._assemble([primary, *(self._select(i, rows[:, i]) for i in range(1, len(self.parts)))])

    def select(self, ordinals: Ints) -> Chunk:
        """Return the joined sequences ``ordinals``, in that order, as one chunk."""
        rows = self._table.rows(ordinals)
        self._check_keys(rows)
        return self._assemble([self._select(i, rows[:, i]) for i in range(len(self.parts))])

    def _select(self, part: int, ordinals: Ints) -> Chunk:
        corpus = self.parts[part]
        ordinals = np.ascontiguousarray(ordinals)
        if len(ordinals) == 0:
            return Chunk(corpus.schema, {name: Value.empty(stream) for name, stream in corpus.schema.items()})
        if type(corpus).select is not Deserializer.select:
            return corpus.select(ordinals)
        at_hand = can(corpus, RandomAccess) and not may_lack_parts(corpus)
        read = corpus.read if at_hand else lambda chunk: self._kept.get((part, chunk))
        return select_by_chunk(corpus, ordinals, self._starts[part], read)

    def _read_part(self, key: tuple[int, int]) -> Chunk:
        part, chunk = key
        return self.parts[part].read(chunk)

    def _assemble(self, chunks: list[Chunk]) -> Chunk:
        values: dict[str, Value] = {}
        errors: dict[int, DataError] = {}
        for part, chunk in zip(self.parts, chunks, strict=True):
            if part.capability(Broadcast) is not None:
                chunk = repeat(chunk, chunks[0])
            values.update(chunk.values)
            errors = {**chunk.errors, **errors}  # the error of the first part takes precedence
        return Chunk(self.schema, values, errors, seals=[seal for chunk in chunks for seal in chunk.seals])

    def _check_keys(self, rows: Ints) -> None:
        """Compare keys: the digest covers only some of the data, and a wrong pair would go unnoticed forever."""
        keys = keys_of(self.parts[0], np.ascontiguousarray(rows[:, 0]))
        for part, ordinals in zip(self.parts[1:], rows.T[1:], strict=True):
            got = keys_of(part, np.ascontiguousarray(ordinals))
            if not np.array_equal(got, keys):
                bad = int(np.flatnonzero(got != keys)[0])
                raise DataError(
                    f"expected key {keys[bad]} in {part.name}, as the resolved join says, got {got[bad]}: "
                    "the keys have changed since the join was resolved",
                    path=part.name,
                    sequence=int(ordinals[bad]),
                    hint=f"delete {self._table.path} and join again" if self._table.path else "join again",
                )

    def verified(self) -> Join:
        """Return the join of the verified parts, with the same table."""
        parts = tuple(verified(part) for part in self.parts)
        if all(new is old for new, old in zip(parts, self.parts, strict=True)):
            return self
        twin = copy.copy(self)
        twin.parts = parts
        twin._kept = LruCache(twin._read_part, lambda chunk: chunk.nbytes, self._memory)
        twin._owned = [new for new, old in zip(parts, self.parts, strict=True) if new is not old]
        return twin

    def close(self) -> None:
        """Release the table and all parts."""
        self._kept.clear()
        for owned in self._owned:
            owned.close()


def _join_schemas(parts: Sequence[Deserializer]) -> Schema:
    owners: dict[str, str] = {}
    streams: dict[str, Any] = {}
    for number, part in enumerate(parts):
        for name, stream in part.schema.items():
            if name in owners:
                raise SchemaError(
                    f"expected distinct stream names in a join, got `{name}` in {owners[name]} and in {part.name} "
                    f"(part {number}); rename one, e.g. other_{name}=fl.Stream(..., field={name!r})"
                )
            owners[name], streams[name] = part.name, stream
    return Schema(streams)
