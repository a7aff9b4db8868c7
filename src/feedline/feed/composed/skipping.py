"""Leave out the sequences of a corpus that a quarantine file lists. They keep their places in every order."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from feedline.data import Chunk
from feedline.errors import DataError
from feedline.feed.files.paths import PathLike, open_file
from feedline.feed.formats.unreadable import no_values
from feedline.feed.protocol import (
    CountsNulls,
    Deserializer,
    Extent,
    Fetchable,
    Ints,
    Mapped,
    MappedFile,
    Piece,
    RandomAccess,
    RowsOfDocuments,
    Sliceable,
    chunk_extents,
    chunk_starts,
    fetches_ahead,
    files_of,
    is_sized,
    read_slice,
    require,
    select_by_chunk,
)
from feedline.feed.quarantine import LISTED
from feedline.feed.unique import distinct
from feedline.feed.wrapper import Forwarding

Paths = PathLike | Sequence[PathLike]


class Skipping(Forwarding, RandomAccess, Sliceable, Mapped, Fetchable):
    """A corpus in which listed sequences are unreadable: each is replaced by an error.

    That error is a `ListedError`, which sources leave out with every ``on_error``. A chunk is never read if all of its
    sequences are listed. States are the same as without the list.

    Args:
        corpus: corpus to read.
        skip: one or several quarantine files.

    Attributes:
        listed: ordinals of the listed sequences, ascending.

    Raises:
        DataError: a file is not a list of sequences of this corpus.
        ValueError: the corpus does not know its sizes, or is made of rows of documents, which have to be skipped
            before they are packed.
    """

    _lacks = (CountsNulls,)  # which may be those of listed sequences

    def __init__(self, corpus: Deserializer, skip: Paths) -> None:
        if corpus.capability(RowsOfDocuments) is not None:
            raise ValueError(
                f"expected documents to skip, got rows of them, {corpus.name}: skip before packing, "
                "fl.Packed(fl.Skipping(documents, skip), ...)"
            )
        if not is_sized(corpus):
            raise ValueError(
                f"expected a corpus that knows its sizes before reading with skip, got {corpus.name}: of texts, skip "
                "before they are tokenized, fl.Tokenized(fl.Skipping(texts, skip), ...)"
            )
        before = np.empty(0, np.int64)
        if type(corpus) is Skipping:  # merge both lists
            before = corpus.listed
            corpus = corpus._corpus
        super().__init__(corpus)
        self._starts = chunk_starts(corpus)
        paths = [skip] if isinstance(skip, (str, os.PathLike)) else list(skip)
        listed = [_read_ordinals(Path(path), corpus.name, int(self._starts[-1])) for path in paths]
        self.listed: Ints = distinct(np.concatenate([before, *listed]))
        # Chunks that are not read are not views of mapped files.
        counts = np.diff(np.searchsorted(self.listed, self._starts))
        self._unread = frozenset(np.flatnonzero((counts > 0) & (counts == np.diff(self._starts))).tolist())
        views = corpus.capability(RandomAccess)
        if views is not None:
            self.in_memory, self.looks_at_all = views.in_memory, views.looks_at_all
        self.in_runs = fetches_ahead(corpus) and not self._unread

    @property
    def ordinals(self) -> frozenset[int]:
        """The ordinals of `listed`."""
        return frozenset(self.listed.tolist())

    def files(self, chunks: Sequence[int]) -> Sequence[MappedFile]:
        """Return the corpus's files for the ``chunks`` that are read."""
        return files_of(self._corpus, [chunk for chunk in chunks if chunk not in self._unread])

    def hold_bounds(self) -> None:
        """Make the corpus hold its bounds."""
        require(self._corpus, Mapped).hold_bounds()

    def extents(self, chunk: int) -> Sequence[Extent]:
        """Return the corpus's extents, and none for a chunk that is not read."""
        return () if chunk in self._unread else chunk_extents(self._corpus, chunk)

    def read(self, chunk: int) -> Chunk:
        """Return the chunk with its listed sequences marked. Raises the errors of the corpus."""
        if chunk in self._unread:
            return self._nothing(int(self._starts[chunk + 1] - self._starts[chunk]))
        return self._mark(self._corpus.read(chunk), int(self._starts[chunk]))

    def read_fetched(self, chunk: int, pieces: Sequence[Piece]) -> Chunk:
        """Read like ``read`` a chunk whose extents were fetched."""
        return self._mark(require(self._corpus, Fetchable).read_fetched(chunk, pieces), int(self._starts[chunk]))

    def read_slice(self, chunk: int, start: int, stop: int) -> Chunk:
        """Return a slice of the chunk like ``read``."""
        if chunk in self._unread:
            return self._nothing(stop - start)
        return self._mark(read_slice(self._corpus, chunk, start, stop), int(self._starts[chunk]) + start)

    def view(self, chunk: int, start: int = 0, stop: int | None = None) -> tuple[Chunk, Ints | None]:
        """Return a view of the chunk with its listed sequences marked."""
        if chunk in self._unread:
            start, stop, _ = slice(start, stop).indices(int(self._starts[chunk + 1] - self._starts[chunk]))
            return self._nothing(stop - start), None
        viewed, index = require(self._corpus, RandomAccess).view(chunk, start, stop)
        first = int(self._starts[chunk]) + start
        count = viewed.num_sequences if index is None else len(index)
        listed = self._among(first, first + count)
        if not listed:
            return viewed, index
        places = listed if index is None else index[listed].tolist()
        errors = {**viewed.errors, **dict.fromkeys(places, LISTED)}
        return Chunk(viewed.schema, viewed.values, errors, seals=viewed.seals), index

    def select(self, ordinals: Ints) -> Chunk:
        """Return the sequences ``ordinals``, in that order, like ``read``."""
        if np.isin(ordinals, self.listed).any():
            return select_by_chunk(self, ordinals)
        return self._corpus.select(ordinals)

    def _among(self, first: int, stop: int) -> list[int]:
        a, b = np.searchsorted(self.listed, (first, stop))
        places: list[int] = (self.listed[a:b] - first).tolist()
        return places

    def _nothing(self, count: int) -> Chunk:
        return Chunk(self.schema, no_values(self.schema, (), count), dict.fromkeys(range(count), LISTED))

    def _mark(self, chunk: Chunk, first: int) -> Chunk:
        listed = self._among(first, first + chunk.num_sequences)
        if not listed:
            return chunk
        return Chunk(chunk.schema, chunk.values, {**chunk.errors, **dict.fromkeys(listed, LISTED)}, seals=chunk.seals)


def lists(corpus: Deserializer) -> Iterator[Ints]:
    """Yield the ordinals that a corpus leaves out, then the ordinals that its parts leave out. No digest covers
    them."""
    from feedline.feed.composed.concat import Concat  # most sources need none of these
    from feedline.feed.composed.join import Join
    from feedline.feed.composed.packed import Packed
    from feedline.feed.composed.texts.tokenized import Tokenized

    if isinstance(corpus, Skipping):
        yield corpus.listed
    if isinstance(corpus, (Forwarding, Packed, Tokenized)):
        yield from lists(corpus._corpus)
    elif isinstance(corpus, (Join, Concat)):
        for part in corpus.parts:
            yield from lists(part)
    else:
        yield np.empty(0, np.int64)


def _read_ordinals(path: Path, corpus: str, count: int) -> Ints:
    ordinals: list[int] = []
    with open_file(path) as file:
        for number, line in enumerate(file, 1):
            ordinals.append(_sequence(path, number, line, corpus, count))
    return np.array(ordinals, np.int64)


def _sequence(path: Path, number: int, line: bytes, corpus: str, count: int) -> int:
    sequence, documents = None, corpus
    try:
        entry = json.loads(line)
        sequence, documents = entry["sequence"], entry.get("documents", corpus)
    except (AttributeError, ValueError, TypeError, LookupError, RecursionError):
        pass
    if documents != corpus:
        raise DataError(
            f"expected a list of sequences of {corpus}, got one of documents of {documents}",
            path=str(path),
            line=number,
            hint=f"skip them in that corpus, before it is packed or tokenized; if it has moved, write "
            f'"documents": {json.dumps(corpus)}',
        )
    if type(sequence) is int and 0 <= sequence < count:
        return sequence
    got = f"sequence {sequence}" if type(sequence) is int else repr(line[:60])
    raise DataError(
        f'expected a line such as {{"sequence": 17}} with a sequence below {count}, got {got}',
        path=str(path),
        line=number,
        hint='pass the quarantine file of this corpus, as on_error="skip" and `feedline validate` write it',
    )
