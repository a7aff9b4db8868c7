"""What the feed asks of a format, the `Deserializer`, and what others may ask of a feed, the `Feed`.

A deserializer cuts its corpus into chunks, tells how large they are without reading them, and reads one at a
time. It knows nothing of order, workers, minibatches or states; those are the feed's. Adding a format means
subclassing this and nothing else (CONTRIBUTING.md walks through one).
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from feedline.data import Chunk, Minibatch, Schema, Span, Unit
from feedline.errors import DataError

CHUNK_MEMORY = 2 << 30
"""Bytes that a decoded chunk may take, unless told otherwise: a small file can say that it is a large one."""


class ChunkInfo(NamedTuple):
    """What is known of a chunk before it is read.

    Attributes:
        sequences: number of sequences.
        samples: number of samples, as the minibatch budget counts them.
        bytes: stored bytes (text, compressed or mapped), what ``Window(bytes=...)`` counts.
    """

    sequences: int
    samples: int
    bytes: int


class MappedFile(Protocol):
    """A file that views of chunks lie in.

    Attributes:
        path: where it is.
        size: its bytes, or those up to the end of what is mapped.
        first: the byte with which the map begins, 0 if all of it is mapped.
        address: where byte 0 is mapped, or would be.
        identity: (device, inode).
    """

    @property
    def path(self) -> str: ...  # noqa: D102  # see the class
    @property
    def size(self) -> int: ...  # noqa: D102
    @property
    def first(self) -> int: ...  # noqa: D102
    @property
    def address(self) -> int: ...  # noqa: D102
    @property
    def identity(self) -> tuple[int, int]: ...  # noqa: D102


class Extent(NamedTuple):
    """A part of a file."""

    path: str
    offset: int
    size: int


class Unread(NamedTuple):
    """Why an extent could not be fetched: an errno, or -1 where the file ends too early; and the first such byte."""

    error: int
    byte: int


Piece = memoryview | Unread
"""The bytes of an extent, or why there are none."""


class Deserializer(abc.ABC):
    """A corpus: sequences in a fixed order, cut into chunks.

    The *ordinal* of a sequence is its index in the corpus: the sequences of chunk 0, then of chunk 1, and so on.
    Methods may be called from several threads at a time; ``read`` should release the GIL where it can.

    Attributes:
        schema: the streams delivered.
        sized: chunk sizes are known before reading. Where they are not, ``chunks``, ``lengths``, ``keys`` and
            ``select`` are never called: windows count chunks, a state is (sweep, window, ordinal in it), and
            restoring reads one window.
        random_access: ``read`` costs no I/O and no decoding, as it returns views of memory or of a mapped file.
            Small ones are shuffled as a whole by default; the others in windows.
        in_memory: all of it is in memory already, so that it is shuffled as a whole however large it is.
        sliceable: ``read_slice`` reads no more than it returns, so that windows may be made of small blocks.
        fetchable: chunks are views of the mapped files that ``files`` tells, so that what is not in memory can be
            fetched ahead of need.
        name: what errors and `feedline inspect` call the corpus, a path where there is one.
    """

    schema: Schema
    sized: bool = True
    random_access: bool = False
    in_memory: bool = False
    sliceable: bool = False
    fetchable: bool = False
    name: str = "data"

    @abc.abstractmethod
    def chunks(self) -> Sequence[ChunkInfo]:
        """Size of every chunk, in corpus order; fixed for the life of this object."""

    def num_chunks(self) -> int:
        """Number of chunks."""
        return len(self.chunks())

    @abc.abstractmethod
    def read(self, chunk: int) -> Chunk:
        """The sequences of chunk number ``chunk``.

        Raises:
            DataError: the chunk cannot be read at all. A sequence that cannot be read is no reason to raise:
                say why in `Chunk.errors`.
        """

    def read_slice(self, chunk: int, start: int, stop: int) -> Chunk:
        """The sequences ``start:stop`` of chunk number ``chunk``; raises what ``read`` does.

        This default reads the whole chunk: override it and set ``sliceable`` where less will do.
        """
        return self.read(chunk).slice(start, stop)

    def files(self, chunks: Sequence[int]) -> Sequence[MappedFile]:
        """The mapped files that ``chunks`` are views of; only where ``fetchable``.

        These will be read soon: what `read` itself looks at may be asked for here, and is not to be waited for.
        """
        return ()

    def extents(self, chunk: int) -> Sequence[Extent]:
        """The parts of files that ``read`` reads for a chunk, so that they can be fetched ahead of need.

        Returns:
            None of them by default: ``read_fetched`` is never called then.
        """
        return ()

    def read_fetched(self, chunk: int, pieces: Sequence[Piece]) -> Chunk:
        """As ``read``, for a chunk whose ``extents`` were fetched: ``pieces`` are theirs."""
        raise NotImplementedError

    @abc.abstractmethod
    def digest(self) -> str:
        """Hex digits that stand for the content: sizes and samples of it, never paths or modification times."""

    def lengths(self, ordinals: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Samples of the sequences ``ordinals``, as the minibatch budget counts them.

        Returns:
            int64 (n,), or None if every sequence of the corpus has exactly one sample.
        """
        return None

    def keys(self, ordinals: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Keys of the sequences ``ordinals``, uint64 (n,), by which corpora are joined; the ordinal by default."""
        return ordinals.astype(np.uint64)

    def select(self, ordinals: NDArray[np.int64]) -> Chunk:
        """The sequences ``ordinals``, in that order, as one chunk; for joins and previews.

        This default reads each chunk concerned once and one at a time. Formats that can read single sequences
        do better.
        """
        return select_by_chunk(self, ordinals)

    def paths(self) -> Sequence[str]:
        """Paths of the files that hold the sequences, for measuring what reading them costs; none if not in files."""
        return ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"

    def close(self) -> None:  # noqa: B027  # optional: most formats hold nothing open
        """Release files and maps; reading afterwards is an error."""


def select_by_chunk(
    corpus: Deserializer,
    ordinals: NDArray[np.int64],
    starts: NDArray[np.int64] | None = None,
    read: Callable[[int], Chunk] | None = None,
) -> Chunk:
    """The sequences ``ordinals`` of ``corpus``, reading each chunk concerned once.

    Args:
        corpus: where from.
        ordinals: int64 (n,).
        starts: int64 (chunks + 1,), ordinal of the first sequence of each chunk, for callers who have it at hand.
        read: instead of ``corpus.read``.
    """
    from feedline.feed.assembly import ChunkSet

    if starts is None:
        starts = chunk_starts(corpus)
    if len(ordinals) and not 0 <= ordinals.min() <= ordinals.max() < starts[-1]:
        raise IndexError(f"expected 0 <= ordinal < {starts[-1]}, got {ordinals.min()} to {ordinals.max()}")
    chunk_of = np.searchsorted(starts, ordinals, side="right") - 1
    # Gather chunk by chunk into a set of partial chunks small enough to keep: only the rows asked for stay.
    parts = ChunkSet(corpus.schema)
    slots = np.zeros(len(ordinals), np.uint32)
    index = np.zeros(len(ordinals), np.int64)
    errors: dict[int, DataError] = {}
    for chunk in np.unique(chunk_of).tolist():
        at = np.flatnonzero(chunk_of == chunk)
        part = (read or corpus.read)(chunk).take(ordinals[at] - starts[chunk])
        slots[at], index[at] = parts.add(part), np.arange(len(at))
        errors.update(
            (int(at[i]), error.located(path=corpus.name, sequence=int(ordinals[at[i]])))
            for i, error in part.errors.items()
        )
    return Chunk(corpus.schema, parts.gather(slots, index), errors)


def whole_number(what: str, value: Any, least: int) -> int:
    """An argument as an int.

    Raises:
        TypeError: it is none.
        ValueError: it is below ``least``.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"expected {what} as an int, got {value!r}")
    if value < least:
        raise ValueError(f"expected {what} of at least {least}, got {value}")
    return int(value)


def chunk_starts(corpus: Deserializer) -> NDArray[np.int64]:
    """int64 (chunks + 1,): ordinal of the first sequence of each chunk, and of one behind the last."""
    return np.concatenate([[0], np.cumsum([info.sequences for info in corpus.chunks()], dtype=np.int64)])


def upto(next_minibatch: Callable[[], Minibatch], until: Span | None) -> Iterator[Minibatch]:
    """Minibatches to the end of a feed, or to the one that completes the span ``until`` counted from here.

    Raises:
        TypeError: ``until`` is no span.
    """
    if until is not None and not isinstance(until, Span):
        raise TypeError(
            f"expected until=fl.samples(n), fl.minibatches(n) or fl.sweeps(n), got {until!r}; "
            f"for so many minibatches write fl.minibatches({until!r})"
        )
    return _upto(next_minibatch, until)


def _upto(next_minibatch: Callable[[], Minibatch], until: Span | None) -> Iterator[Minibatch]:
    taken = 0
    while until is None or taken < until.count:
        minibatch = next_minibatch()
        # The attribute: an interrupt at the start of a method would lose what counts as delivered by now.
        if minibatch._ended:
            return
        yield minibatch
        if until is not None:
            if until.unit is Unit.SAMPLE:
                taken += minibatch.global_samples
            else:
                taken += 1 if until.unit is Unit.MINIBATCH else minibatch.sweep_end


@runtime_checkable
class Feed(Protocol):
    """Anything that yields minibatches and has a state: what trainers and sessions take.

    Attributes:
        schema: the streams delivered.
    """

    schema: Schema

    def __iter__(self) -> Iterator[Minibatch]:
        """Minibatches from the current position to the end."""

    def state_dict(self) -> dict[str, Any]:
        """The position behind the last minibatch delivered, in JSON types."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a saved position.

        Raises:
            StateError: the state belongs to other data, another order or another version.
        """
