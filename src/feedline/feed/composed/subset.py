"""A corpus of some of another's sequences, selected once, before any order. `Take` and `Filtered` select them.

The selection is part of the digest, so that a state of another selection is refused. Chunks keep their borders, and
have fewer sequences. Empty chunks are dropped. A run of sequences takes no memory, other selections 8 bytes for each
sequence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from feedline.data import Chunk
from feedline.errors import DataError
from feedline.feed.protocol import (
    Capability,
    ChunkInfo,
    CountsNulls,
    Deserializer,
    Extent,
    Fetchable,
    Ints,
    Keyed,
    LengthsOfStreams,
    Mapped,
    MappedFile,
    OfParts,
    Ordered,
    Piece,
    RandomAccess,
    Sliceable,
    chunk_extents,
    chunk_starts,
    fetches_ahead,
    files_of,
    keys_of,
    read_slice,
    require,
    stream_lengths,
)
from feedline.feed.wrapper import Forwarding

_DIGEST_PIECE = 1 << 20  # ordinals


class Chosen(Forwarding, RandomAccess, Sliceable, Mapped, Fetchable, Keyed, OfParts, LengthsOfStreams):
    """The sequences ``which`` of a corpus, in its order. Their ordinals are counted from 0.

    Errors of unreadable sequences name the sequence by its ordinal in the corpus, and keys are the corpus's.

    Args:
        corpus: corpus to select from. `check_part` has accepted it, and it does not have its own order.
        which: a range with step 1, or int64 (n,) of ascending ordinals of ``corpus``.

    Raises:
        DataError: no sequence is selected.
        ValueError: the corpus does not know its sizes, or has its own order.
    """

    _lacks = (CountsNulls,)  # which may be those of other sequences

    def __init__(self, corpus: Deserializer, which: range | Ints) -> None:
        if corpus.capability(Ordered) is not None:
            raise ValueError(
                f"expected a corpus without an order of its own for {type(self).__name__}, got {corpus.name}: choose "
                "from each of its parts"
            )
        super().__init__(corpus)
        if not len(which):
            raise DataError("expected at least one sequence to be chosen, got none", path=corpus.name)
        self._first = int(which[0])
        # None for a run, which needs no list.
        self._which: Ints | None = None
        if not isinstance(which, range) and int(which[-1]) - self._first != len(which) - 1:
            self._which = which
        self._count = len(which)
        self._originals = chunk_starts(corpus)
        counts = np.diff(self._before(self._originals))
        self._numbers: Ints = np.flatnonzero(counts)
        self._starts: Ints = np.cumsum([0, *counts[self._numbers]], dtype=np.int64)
        ends = self._own(self._starts[1:] - 1) - self._own(self._starts[:-1]) + 1
        views = corpus.capability(RandomAccess)
        if views is not None:
            self.in_memory, self.looks_at_all = views.in_memory, views.looks_at_all
        self.in_runs = fetches_ahead(corpus) and np.array_equal(ends, np.diff(self._starts))
        self._infos: list[ChunkInfo] | None = None

    # ---- description ------------------------------------------------------------------------------

    def chunks(self) -> Sequence[ChunkInfo]:
        """Return the size of every chunk that is not empty, with stored bytes in proportion to samples."""
        if self._infos is None:
            infos = self._corpus.chunks()
            self._infos = [self._info(k, infos[number]) for k, number in enumerate(self._numbers.tolist())]
        return self._infos

    def digest(self) -> str:
        """Return 32 hex digits over the corpus's digest and the selected ordinals."""
        h = hashlib.blake2b(self._corpus.digest().encode(), digest_size=16)
        h.update(f" chosen {self._first} {self._count};".encode())
        if self._which is not None:
            for at in range(0, self._count, _DIGEST_PIECE):
                h.update(np.ascontiguousarray(self._which[at : at + _DIGEST_PIECE], "<i8").tobytes())
        return h.hexdigest()

    def lengths(self, ordinals: Ints) -> Ints | None:
        """Return the samples of the sequences ``ordinals``, int64 (n,), or None if each has one."""
        return self._corpus.lengths(self.original(ordinals))

    def stream_lengths(self, stream: str) -> Callable[[Ints], Ints] | None:
        """Return the corpus's lengths, see `LengthsOfStreams.stream_lengths`."""
        lengths = stream_lengths(self._corpus, stream)
        return None if lengths is None else lambda ordinals: lengths(self.original(ordinals))

    def keys(self, ordinals: Ints) -> NDArray[np.uint64]:
        """Return the corpus's keys of the sequences ``ordinals``, uint64 (n,)."""
        return keys_of(self._corpus, self.original(ordinals))

    def capability(self, kind: type[Capability]) -> Capability | None:
        """See `Forwarding.capability`. `keys` translates ordinals, so it is not forwarded."""
        return self if kind is Keyed else super().capability(kind)  # type: ignore[return-value]

    def sources(self, ordinals: Ints) -> Ints:
        """Return the number of the corpus's part of each sequence, int64 (n,)."""
        parts = self._corpus.capability(OfParts)
        assert parts is not None  # or `capability` returned None
        return parts.sources(self.original(ordinals))

    def original(self, ordinals: Ints) -> Ints:
        """Return the ordinals in the corpus of the sequences ``ordinals``, int64 (n,).

        Raises:
            IndexError: there is no such sequence.
        """
        ordinals = np.asarray(ordinals, np.int64)
        if len(ordinals) and not 0 <= ordinals.min() <= ordinals.max() < self._count:
            raise IndexError(f"expected 0 <= ordinal < {self._count}, got {ordinals.min()} to {ordinals.max()}")
        return self._own(ordinals)

    # ---- reading ----------------------------------------------------------------------------------

    def read(self, chunk: int) -> Chunk:
        """Return the selected sequences of a chunk: a view if the corpus returns one and they are a run, else a
        copy."""
        number, which = self._locate(chunk)
        if not self._whole(chunk):
            return self.read_slice(chunk, 0, len(which))
        return self._name_errors(self._corpus.read(number), which + self._originals[number])

    def read_slice(self, chunk: int, start: int, stop: int) -> Chunk:
        """Return the sequences ``start:stop`` of a chunk like ``read``. The sequences between them are read, too."""
        number, which = self._locate(chunk, start, stop)
        if not len(which):
            return read_slice(self._corpus, number, 0, 0)
        low, high = int(which[0]), int(which[-1]) + 1
        taken = read_slice(self._corpus, number, low, high)
        taken = taken if high - low == len(which) else taken.take(which - low)
        return self._name_errors(taken, which + self._originals[number])

    def view(self, chunk: int, start: int = 0, stop: int | None = None) -> tuple[Chunk, Ints | None]:
        """Return a view of the corpus that holds the sequences ``start:stop`` of a chunk, and their indices in it."""
        number, which = self._locate(chunk, start, stop)
        if not len(which):
            return read_slice(self._corpus, number, 0, 0), None
        low, high = int(which[0]), int(which[-1]) + 1
        part = {} if low == 0 and high == self._sequences(number) else {"start": low, "stop": high}
        viewed, inner = require(self._corpus, RandomAccess).view(number, **part)
        if inner is not None:  # errors of the view are by index in it already
            return viewed, inner[which - low]
        viewed = self._name_errors(viewed, np.arange(low, high) + self._originals[number])
        return viewed, None if high - low == len(which) else which - low

    def files(self, chunks: Sequence[int]) -> Sequence[MappedFile]:
        """Return the mapped files under ``chunks``."""
        return files_of(self._corpus, self._numbers[np.asarray(chunks, np.int64)].tolist())

    def hold_bounds(self) -> None:
        """Make the corpus hold its bounds."""
        require(self._corpus, Mapped).hold_bounds()

    def extents(self, chunk: int) -> Sequence[Extent]:
        """Return the corpus's extents for a chunk."""
        return chunk_extents(self._corpus, self._locate(chunk)[0])

    def read_fetched(self, chunk: int, pieces: Sequence[Piece]) -> Chunk:
        """Read like ``read`` a chunk whose extents were fetched."""
        number, which = self._locate(chunk)
        taken = require(self._corpus, Fetchable).read_fetched(number, pieces)
        taken = taken if self._whole(chunk) else taken.take(which)
        return self._name_errors(taken, which + self._originals[number])

    def select(self, ordinals: Ints) -> Chunk:
        """Return the sequences ``ordinals``, in that order, as one chunk."""
        which = self.original(ordinals)
        taken = self._corpus.select(which)
        return self._name_errors(taken, which)

    # ---- internals --------------------------------------------------------------------------------

    def _own(self, ordinals: Ints) -> Ints:
        return ordinals + self._first if self._which is None else self._which[ordinals]

    def _before(self, ordinals: Ints) -> Ints:
        """Return the number of selected sequences before each ordinal of the corpus."""
        if self._which is None:
            return np.clip(ordinals - self._first, 0, self._count)
        return np.searchsorted(self._which, ordinals)

    def _info(self, k: int, info: ChunkInfo) -> ChunkInfo:
        if self._whole(k):
            return info
        first, stop = int(self._starts[k]), int(self._starts[k + 1])
        lengths = self._corpus.lengths(self._own(np.arange(first, stop)))
        samples = stop - first if lengths is None else int(lengths.sum())
        part, total = (samples, info.samples) if samples else (stop - first, info.sequences)
        return ChunkInfo(stop - first, samples, -(-info.bytes * part // max(total, 1)))

    def _sequences(self, number: int) -> int:
        return int(self._originals[number + 1] - self._originals[number])

    def _whole(self, chunk: int) -> bool:
        return int(self._starts[chunk + 1] - self._starts[chunk]) == self._sequences(int(self._numbers[chunk]))

    def _locate(self, chunk: int, start: int = 0, stop: int | None = None) -> tuple[int, Ints]:
        """Return the corpus's number of a chunk, and the indices in it of the sequences ``start:stop``."""
        if not 0 <= chunk < len(self._numbers):
            raise IndexError(f"expected 0 <= chunk < {len(self._numbers)}, got {chunk}")
        first = int(self._starts[chunk])
        start, stop, _ = slice(start, stop).indices(int(self._starts[chunk + 1]) - first)
        number = int(self._numbers[chunk])
        return number, self._own(np.arange(first + start, first + max(start, stop))) - self._originals[number]

    def _name_errors(self, chunk: Chunk, originals: Ints) -> Chunk:
        """Return a chunk of the corpus's sequences ``originals`` with errors that name them."""
        if not chunk.errors:
            return chunk
        path = self._corpus.name
        errors = {i: error.located(path=path, sequence=int(originals[i])) for i, error in chunk.errors.items()}
        return Chunk(chunk.schema, chunk.values, errors, seals=chunk.seals)
