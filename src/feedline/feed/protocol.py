"""The interface of a format, `Deserializer`, and the interface of a feed, `Feed`.

A deserializer cuts its corpus into chunks, returns their sizes without reading them, and reads one at a time. It knows
nothing about order, workers, minibatches or states, which the feed handles. A format is a subclass
(CONTRIBUTING.md walks through one).
"""

from __future__ import annotations

import abc
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DataError, SchemaError
from feedline.feed.unique import distinct

if TYPE_CHECKING:
    from feedline.data import Chunk, Minibatch, Schema

Capability = TypeVar("Capability")
_Declared = TypeVar("_Declared")  # a Stream, or a declaration of one

Ints = NDArray[np.int64]
"""An array of ordinals, places, offsets or counts."""

CHUNK_BITS = 32
"""Bits of a chunk number. Where a chunk differs between sweeps, the higher bits hold the sweep, which keeps both
apart."""

CHUNK_MASK = (1 << CHUNK_BITS) - 1

CHUNK_MEMORY = 2 << 30
"""Bytes that a decoded chunk may take by default: a small file can claim to decode to a large one."""


class ChunkInfo(NamedTuple):
    """Sizes of a chunk, known before it is read.

    Attributes:
        sequences: number of sequences.
        samples: number of samples, as the minibatch budget counts them.
        bytes: stored bytes (text, compressed or mapped), as ``Window(bytes=...)`` counts them.
    """

    sequences: int
    samples: int
    bytes: int


class MappedFile(Protocol):
    """A file that chunks are views of.

    Attributes:
        path: path of the file.
        size: its size in bytes, or the end of the mapped part.
        first: first mapped byte, 0 if all of it is mapped.
        address: address at which byte 0 is mapped, or would be.
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
    """A range of bytes in a file."""

    path: str
    offset: int
    size: int


class Unread(NamedTuple):
    """Why an extent could not be fetched: the errno, or -1 if the file is too short, and the first unreadable byte."""

    error: int
    byte: int


Piece = memoryview | Unread
"""The bytes of an extent, or why they are missing."""


# The capability that an attribute of a class belongs to, and without which it has no effect. The first three used to be
# flags.
_CAPABILITY_OF: dict[str, str] = {
    "random_access": "RandomAccess",
    "sliceable": "Sliceable",
    "fetchable": "Mapped",
    "view": "RandomAccess",
    "read_slice": "Sliceable",
    "files": "Mapped",
    "extents": "Fetchable",
    "read_fetched": "Fetchable",
    "keys": "Keyed",
}


class Capable:
    """An object that may have capabilities that not every corpus has. Its base classes, such as `Sliceable`, show
    them."""

    _lacks: Collection[type] = ()  # capabilities of the class that this object does not have

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, kind in _CAPABILITY_OF.items():
            if name in cls.__dict__ and all(base.__name__ != kind for base in cls.__mro__):
                bases = ", ".join([*(base.__name__ for base in cls.__bases__), kind])
                raise TypeError(
                    f"expected {cls.__name__} to be {kind}, as it has `{name}`: write class {cls.__name__}({bases})"
                )

    def capability(self, kind: type[Capability]) -> Capability | None:
        """Return this corpus as an object with a capability, such as `Sliceable`, or None if it does not have it.

        This default returns the corpus if its class has the capability. Override it where that depends on the object.
        """
        return self if isinstance(self, kind) and kind not in self._lacks else None


class Deserializer(Capable, abc.ABC):
    """A corpus: sequences in a fixed order, cut into chunks.

    The *ordinal* of a sequence is its index in the corpus: the sequences of chunk 0, then of chunk 1, and so on.

    Methods may be called from several threads at once. ``read`` should release the GIL where it can.

    Attributes:
        schema: the streams delivered.
        name: name in errors and in `feedline inspect`. A path if there is one.
    """

    schema: Schema
    name: str = "data"

    @abc.abstractmethod
    def chunks(self) -> Sequence[ChunkInfo]:
        """Return the size of every chunk, in corpus order. Fixed for the life of this object."""

    @abc.abstractmethod
    def read(self, chunk: int) -> Chunk:
        """Return the sequences of chunk number ``chunk``.

        Raises:
            DataError: the chunk cannot be read at all. For a single unreadable sequence do not raise, but add the error
                to `Chunk.errors`.
        """

    @abc.abstractmethod
    def digest(self) -> str:
        """Return hex digits that identify the content: its sizes and excerpts, never paths or modification times."""

    def lengths(self, ordinals: Ints) -> Ints | None:
        """Return the number of samples of the sequences ``ordinals``, as the minibatch budget counts them.

        Returns:
            int64 (n,), or None if every sequence of the corpus has exactly one sample.
        """
        return None

    def select(self, ordinals: Ints) -> Chunk:
        """Return the sequences ``ordinals``, in that order, as one chunk, for joins and previews.

        This default reads each chunk that holds some of them once, one after the other. Override it in formats that can
        read single sequences.
        """
        return select_by_chunk(self, ordinals)

    def paths(self) -> Sequence[str]:
        """Return paths of the files that hold the sequences, to measure the cost of reading. Empty without files."""
        return ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"

    def close(self) -> None:  # optional: most formats hold nothing open
        """Close files and maps. Reading afterwards is an error."""


# ---- capabilities of some corpora, see `Deserializer.capability` ------------------------------------------


class RandomAccess:
    """A corpus whose ``read`` costs no I/O and no decoding, as it returns views of memory or of a mapped file.

    Small corpora of this kind are shuffled as a whole by default, others in windows.

    Attributes:
        in_memory: whether all of it is in memory, so that it is shuffled as a whole at any size.
        looks_at_all: whether reading any part of a chunk looks at all of it, although it returns views. Where parts of
            its files may be missing, ``extents`` are then the extents of whole chunks.
    """

    in_memory: bool = False
    looks_at_all: bool = False

    def view(self, chunk: int, start: int = 0, stop: int | None = None) -> tuple[Chunk, Ints | None]:
        """Return a chunk that holds the sequences ``start:stop`` of chunk number ``chunk``, maybe among others, and
        the index of each in it, int64 (n,), or None if it holds no others.

        Called instead of ``read``. Override it where ``read`` has to copy the data of a view.
        """
        corpus = cast("Deserializer", self)
        return (corpus.read(chunk) if stop is None else read_slice(corpus, chunk, start, stop)), None


class Sliceable:
    """A corpus that reads no more of a chunk than it returns, so that windows may be made of small blocks."""

    def read_slice(self, chunk: int, start: int, stop: int) -> Chunk:
        """Return the sequences ``start:stop`` of chunk number ``chunk``. Raises the errors of ``read``."""
        raise NotImplementedError


class Mapped:
    """A corpus whose chunks are views of mapped files.

    Attributes:
        in_runs: whether views hold the sequences of their chunks and no others, so that data that is not in memory is
            fetched ahead.
    """

    in_runs: bool = True

    def files(self, chunks: Sequence[int]) -> Sequence[MappedFile]:
        """Return the mapped files that ``chunks`` are views of.

        The chunks will be read soon, so this may start prefetching the bytes that `read` itself touches, but should
        not wait for them.
        """
        raise NotImplementedError

    def hold_bounds(self) -> None:
        """Load the bounds of the sequences of all chunks, or make them accessible, so that views of chunks touch no
        other bytes. Called if parts of files are missing. Files of equal rows need no bounds."""


class Fetchable:
    """A corpus that knows which parts of files ``read`` reads for a chunk, so that they can be fetched ahead."""

    def extents(self, chunk: int) -> Sequence[Extent]:
        """Return the parts of files that ``read`` reads for a chunk. If there are none, `read_fetched` is not called
        for it.

        Reads nothing that may have to be fetched, as this is also called to make room for a fetch.
        """
        raise NotImplementedError

    def read_fetched(self, chunk: int, pieces: Sequence[Piece]) -> Chunk:
        """Read a chunk like ``read``, from the bytes of its ``extents``, which were fetched: ``pieces``."""
        raise NotImplementedError


class Keyed:
    """A corpus whose sequences have keys, by which corpora are joined. In other corpora the ordinals are the keys."""

    def keys(self, ordinals: Ints) -> NDArray[np.uint64]:
        """Return keys of the sequences ``ordinals``, uint64 (n,)."""
        raise NotImplementedError


class Growing:
    """A corpus that may have been shorter before: its sequences are followed by those of new files, or by more in its
    last file."""

    def digests(self) -> Iterator[tuple[int, str]]:
        """Yield numbers of first chunks after which a file ends, ascending, and the digest that the corpus had when it
        ended there. The last ones are all chunks and `Deserializer.digest`."""
        raise NotImplementedError

    def shorter(self, sequences: int) -> Iterator[Deserializer]:
        """Yield what this corpus may have been when it had only the first ``sequences`` sequences, and a file of it
        fewer than now. By default nothing: files do not grow. Digest and chunks are needed of these corpora, no
        data."""
        return iter(())


class Indexed:
    """A corpus whose files have indexes that were made by reading them, and that can be shipped with them."""

    def indexes(self) -> Iterator[tuple[str, Callable[[BinaryIO], None]]]:
        """Yield the path of each file, and a function that writes its index to an open file.

        Raises:
            DataError: the index of a file is of no use to other machines.
        """
        raise NotImplementedError


class NullCount(NamedTuple):
    """The nulls of a stream.

    Attributes:
        sequences: number of sequences that are null.
        unfilled: why they are unreadable, and what to do about it. None if the stream fills them.
    """

    sequences: int
    unfilled: tuple[str, str] | None


class CountsNulls:
    """A corpus whose files say how many values of a stream are null."""

    def null_counts(self) -> Mapping[str, NullCount]:
        """Return the nulls by stream, for the streams of which the files say it. It reads no data."""
        raise NotImplementedError


class LengthsOfStreams:
    """A corpus that knows the length of a sequence in each stream before it reads it."""

    def stream_lengths(self, stream: str) -> Callable[[Ints], Ints] | None:
        """Return a function from ordinals to the samples of these sequences in a stream, int64 (n,). It reads no data.
        None if they are unknown before reading."""
        raise NotImplementedError


class Unsized:
    """A corpus that does not know the sizes of its chunks before it reads them.

    ``chunks``, ``lengths``, ``keys`` and ``select`` are never called. Windows count chunks, a state is (sweep, window,
    ordinal in it), and restoring reads one window.

    Attributes:
        swept: whether chunks differ between sweeps. Their numbers then carry the sweep, see `CHUNK_BITS`.
    """

    swept: bool = False

    def num_chunks(self) -> int:
        """Return the number of chunks, which is constant."""
        raise NotImplementedError


class Selective:
    """A corpus whose ``select`` reads little more than the sequences themselves, so that the first minibatches need
    not wait until a window is read."""


class OfParts:
    """A corpus whose sequences come from several others."""

    def sources(self, ordinals: Ints) -> Ints:
        """Return the number of the part that each sequence is from, int64 (n,)."""
        raise NotImplementedError


class Ordered:
    """A corpus with a special order, made of the orders of its parts.

    Attributes:
        batched: whether that order determines where minibatches end, see `Segment.breaks`.
    """

    batched: bool = False

    def own_order(self, seed: int, shuffle: bool, window: Any, order_of: Callable[..., Any]) -> Any:
        """Return the order.

        Args:
            seed: seed of the order.
            shuffle: whether to shuffle.
            window: the `Window` for all of it. None shuffles all data at once.
            order_of: ``order_of(part, seed, window)`` returns the `Timeline` of a part.
        """
        raise NotImplementedError


class DocumentsOfRows(NamedTuple):
    """The documents, or pieces of documents, in the rows of a chunk.

    Attributes:
        ordinals: int64 (m,), ordinal of each document in the corpus that the rows are from.
        lengths: int64 (m,), samples of it in its row.
        bounds: int64 (rows + 1,): row k has the documents ``bounds[k]`` to ``bounds[k + 1]``.
        lengths_in: the same lengths in the streams in which they differ, by stream.
    """

    ordinals: NDArray[np.int64]
    lengths: NDArray[np.int64]
    bounds: NDArray[np.int64]
    lengths_in: Mapping[str, NDArray[np.int64]] = {}


class RowsOfDocuments:
    """A corpus whose sequences are rows of documents.

    Attributes:
        finish: the transform that sources run first on minibatches of rows.
    """

    finish: Any

    def documents(self, chunk: int) -> DocumentsOfRows:
        """Return the documents of the rows of a chunk, without reading."""
        raise NotImplementedError


class Broadcast:
    """A corpus whose sequences have one sample, which a `Join` repeats for each sample of the sequence that it is
    joined to."""


class Verifiable:
    """A corpus that can compare checksums that it does not compare by default."""

    def verified(self) -> Deserializer:
        """Return this corpus with all checksums compared when it is read: itself if it always does.

        Closing another corpus that this returns leaves this one open.
        """
        raise NotImplementedError


def can(corpus: Deserializer, *kinds: type) -> bool:
    """Return whether a corpus has all of some capabilities."""
    return all(corpus.capability(kind) is not None for kind in kinds)


def read_slice(corpus: Deserializer, chunk: int, start: int, stop: int) -> Chunk:
    """Return the sequences ``start:stop`` of a chunk. Reads the whole chunk if the corpus is not `Sliceable`."""
    sliceable = corpus.capability(Sliceable)
    return corpus.read(chunk).slice(start, stop) if sliceable is None else sliceable.read_slice(chunk, start, stop)


def files_of(corpus: Deserializer, chunks: Sequence[int]) -> Sequence[MappedFile]:
    """Return the mapped files that chunks are views of, or none if the corpus is not `Mapped`."""
    mapped = corpus.capability(Mapped)
    return () if mapped is None else mapped.files(chunks)


def fetches_ahead(corpus: Deserializer) -> bool:
    """Return whether data of mapped files that is not in memory is fetched ahead."""
    mapped = corpus.capability(Mapped)
    return mapped is not None and mapped.in_runs


def chunk_extents(corpus: Deserializer, chunk: int) -> Sequence[Extent]:
    """Return the parts of files that are to be fetched for a chunk, or none if the corpus is not `Fetchable`."""
    fetchable = corpus.capability(Fetchable)
    return () if fetchable is None else fetchable.extents(chunk)


def keys_of(corpus: Deserializer, ordinals: Ints) -> NDArray[np.uint64]:
    """Return keys of the sequences ``ordinals``, uint64 (n,), by which corpora are joined."""
    keyed = corpus.capability(Keyed)
    return ordinals.astype(np.uint64) if keyed is None else keyed.keys(ordinals)


def stream_lengths(corpus: Deserializer, stream: str) -> Callable[[Ints], Ints] | None:
    """Return a function from ordinals to the samples of these sequences in a stream, or None if they are unknown before
    reading. The only stream of a corpus, and the one that defines its sizes, have the lengths of its sequences."""
    known = corpus.capability(LengthsOfStreams)
    lengths = None if known is None else known.stream_lengths(stream)
    sizing = list(corpus.schema) if corpus.schema.size_stream is None else [corpus.schema.size_stream]
    if lengths is not None or sizing != [stream] or not is_sized(corpus):
        return lengths

    def of_sequences(ordinals: Ints) -> Ints:
        samples = corpus.lengths(ordinals)
        return np.ones(len(ordinals), np.int64) if samples is None else samples

    return of_sequences


def require(corpus: Deserializer, kind: type[Capability]) -> Capability:
    """Return a corpus as an object with a capability that it is known to have."""
    capable = corpus.capability(kind)
    assert capable is not None, f"expected {kind.__name__}, got {corpus}"
    return capable


def looks_at_all(corpus: Deserializer) -> bool:
    """Return whether reading any part of a chunk looks at all of it, although it returns views."""
    views = corpus.capability(RandomAccess)
    return views is not None and views.looks_at_all


def is_sized(corpus: Deserializer) -> bool:
    """Return whether a corpus knows the sizes of its chunks before it reads them."""
    return corpus.capability(Unsized) is None


def num_chunks(corpus: Deserializer) -> int:
    """Return the number of chunks of a corpus."""
    unsized = corpus.capability(Unsized)
    return len(corpus.chunks()) if unsized is None else unsized.num_chunks()


def verified(corpus: Deserializer) -> Deserializer:
    """Return a corpus with all checksums compared when it is read: itself if it always does, or has none."""
    verifiable = corpus.capability(Verifiable)
    return corpus if verifiable is None else verifiable.verified()


def sources_of(corpus: Deserializer, ordinals: Ints) -> Ints | None:
    """Return the number of the part that each sequence is from, int64 (n,), or None if the corpus has no parts."""
    parts = corpus.capability(OfParts)
    return None if parts is None else parts.sources(ordinals)


def says_where_batches_end(corpus: Deserializer) -> bool:
    """Return whether a corpus has an order that determines where minibatches end."""
    ordered = corpus.capability(Ordered)
    return ordered is not None and ordered.batched


def finish_of(corpus: Deserializer) -> Any:
    """Return the transform that sources run first on minibatches of a corpus, or None if there is none."""
    rows = corpus.capability(RowsOfDocuments)
    return None if rows is None else rows.finish


def select_by_chunk(
    corpus: Deserializer,
    ordinals: Ints,
    starts: Ints | None = None,
    read: Callable[[int], Chunk] | None = None,
) -> Chunk:
    """Return the sequences ``ordinals`` of ``corpus``, reading each chunk that holds some of them once.

    Args:
        corpus: corpus to read from.
        ordinals: int64 (n,).
        starts: int64 (chunks + 1,), ordinal of the first sequence of each chunk, if the caller has it.
        read: function to call instead of ``corpus.read``.
    """
    from feedline.feed.assembly import ChunkSet

    if starts is None:
        starts = chunk_starts(corpus)
    if len(ordinals) and not 0 <= ordinals.min() <= ordinals.max() < starts[-1]:
        raise IndexError(f"expected 0 <= ordinal < {starts[-1]}, got {ordinals.min()} to {ordinals.max()}")
    chunk_of = np.searchsorted(starts, ordinals, side="right") - 1
    # Gather chunk by chunk, and keep only the requested rows of each.
    parts = ChunkSet(corpus.schema)
    slots = np.zeros(len(ordinals), np.uint32)
    index = np.zeros(len(ordinals), np.int64)
    errors: dict[int, DataError] = {}
    for chunk in distinct(chunk_of).tolist():
        at = np.flatnonzero(chunk_of == chunk)
        part = (read or corpus.read)(chunk).take(ordinals[at] - starts[chunk])
        slots[at], index[at] = parts.add(part), np.arange(len(at))
        errors.update(
            (int(at[i]), error.located(path=corpus.name, sequence=int(ordinals[at[i]])))
            for i, error in part.errors.items()
        )
    from feedline.data import Chunk  # here, as a loader of items does not need it

    return Chunk(corpus.schema, parts.gather(slots, index), errors)


def whole_number(what: str, value: Any, least: int) -> int:
    """Return an argument as an int. Integers of NumPy and torch become Python's, which JSON can hold.

    Raises:
        TypeError: it is not an integer.
        ValueError: it is below ``least``.
    """
    if type(value) is not int:
        try:
            if isinstance(value, bool):
                raise TypeError
            value = operator.index(value)
        except TypeError:
            raise TypeError(f"expected {what} as an int, got {value!r}") from None
    if value < least:
        raise ValueError(f"expected {what} of at least {least}, got {value}")
    number: int = value
    return number


def declared_streams(streams: Mapping[str, _Declared] | None, named: Mapping[str, _Declared]) -> dict[str, _Declared]:
    """Return the streams declared in a mapping and by keyword.

    Raises:
        SchemaError: a stream is declared in both.
    """
    twice = set(streams or ()) & named.keys()
    if twice:
        raise SchemaError(f"expected each stream once, got {', '.join(sorted(twice))} in `streams` and by keyword")
    return {**(streams or {}), **named}


def check_seed(value: Any) -> int:
    """Return a seed as an int.

    Raises:
        ValueError: it is not an integer, or out of range.
    """
    try:
        seed = whole_number("seed", value, 0)
    except (TypeError, ValueError):
        seed = -1
    if not 0 <= seed < 2**64:
        raise ValueError(f"expected 0 <= seed < 2**64, got {value!r}")
    return seed


def chunk_starts(corpus: Deserializer) -> Ints:
    """Return int64 (chunks + 1,): ordinal of the first sequence of each chunk, and the number of sequences."""
    return np.concatenate([[0], np.cumsum([info.sequences for info in corpus.chunks()], dtype=np.int64)])


@runtime_checkable
class Feed(Protocol):
    """Anything that yields minibatches and has a state: the input of trainers and sessions.

    Attributes:
        schema: the streams delivered.
    """

    schema: Schema

    def __iter__(self) -> Iterator[Minibatch]:
        """Yield minibatches from the current position to the end."""

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last minibatch delivered, in JSON types."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Seek to a saved position.

        Raises:
            StateError: the state belongs to other data, another order or another version.
        """
