"""Feedline's corpora in a `DataLoader`: stores, CTF, Parquet and whatever `open_corpus` opens.

They are read by a `MinibatchSource`, a sweep each, whose order, windows and parts they have; ``batch_size`` counts
sequences, ``batch_samples`` samples. Reading, decoding and copying are native and run in threads of their own, so no
worker processes are started: ``num_workers`` is the number of chunks read at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.data import Chunk, Minibatch, Position
from feedline.errors import SchemaError
from feedline.feed.convert import open_corpus
from feedline.feed.loader import collate as collating
from feedline.feed.loader.fetch import Fetched
from feedline.feed.loader.order import Planned
from feedline.feed.loader.state import ResumePoint
from feedline.feed.protocol import ChunkInfo, Deserializer, Extent, MappedFile, Piece
from feedline.feed.source import MinibatchSource


def opened(dataset: Any) -> Any:
    """``dataset``, or the corpus at that path."""
    return open_corpus(dataset) if isinstance(dataset, (str, os.PathLike)) else dataset


def is_corpus(dataset: Any) -> bool:
    """Whether it is one of feedline's."""
    return isinstance(dataset, Deserializer)


def check(given: Mapping[str, Any]) -> None:
    """Check that nothing is asked of a corpus that belongs to datasets of items.

    Raises:
        ValueError: something is.
    """
    for name in ("sampler", "batch_sampler", "weights", "lengths", "worker_init_fn"):
        if given[name] is not None:
            raise ValueError(f"expected no {name} for a corpus, which is read in its own order by native threads")
    if given["batch_size"] is None:
        raise ValueError("expected a batch_size for a corpus, got None")


class CorpusBatches:
    """The batches of a corpus.

    Args:
        corpus: what is read.
        seed, shuffle: of the order.
        share: gives (index, count).
        size: sequences of a batch of one rank; None: ``samples`` counts.
        samples: of a batch of one rank.
        layout: of sequences of several samples.
        threads: chunks read at a time.
        collate: a ``collate_fn`` over the sequences of a batch; the default one is not called.
        errors: arguments of the source about unreadable sequences.

    Attributes:
        items: sequences of a sweep.
    """

    def __init__(
        self,
        corpus: Deserializer,
        *,
        seed: int,
        shuffle: bool,
        share: Callable[[], tuple[int, int]],
        size: int | None,
        samples: int | None,
        layout: str,
        threads: int,
        collate: Callable[[Any], Any],
        errors: Mapping[str, Any],
    ) -> None:
        if not corpus.sized:
            raise ValueError(
                "expected a corpus that tells the sizes of its chunks before they are read; implement chunk_info, "
                "convert it to a store, or use a MinibatchSource"
            )
        if samples is None:
            corpus = _OneEach(corpus)
        self._corpus, self._seed, self._shuffle, self._share = corpus, seed, shuffle, share
        self._size: int = samples if samples is not None else size or 1
        self._counts_items = samples is None
        self._layout, self._threads, self._errors = layout, threads, errors
        self.items = sum(info.sequences for info in corpus.chunks())
        self._collate = None if collating.known(collate) is not None else collate

    def _source(self, sweep: int) -> MinibatchSource:
        return MinibatchSource(
            self._corpus,
            seed=self._seed,
            shuffle=self._shuffle,
            partition=(0, 1),
            max_sweeps=sweep + 1,
            threads=self._threads,
            **self._errors,
        )

    def identity(self) -> dict[str, Any]:
        """What a state of this order names."""
        saved = self._source(0).state_dict()
        return {key: saved[key] for key in ("order", "seed", "shuffle", "schema", "corpus")}

    def batches(self, sweep: int, drop_last: bool) -> int:
        """Batches of a sweep."""
        size = self._size * self._share()[1]
        if self._counts_items:
            return self.items // size if drop_last else -(-self.items // size)
        sizes = [planned.global_samples for planned in self._source(sweep).plan(size, start=Position(sweep))]
        return len(sizes) - (drop_last and len(sizes) > 0 and sizes[-1] < size)

    def executor(self, place: ResumePoint, drop_last: bool) -> CorpusExecutor:
        """The batches of the rest of a sweep."""
        source = self._source(place.sweep)
        ended = place.start == self.items  # behind the last sequence, which is no position of a source
        source.seek(Position(place.sweep + 1) if ended else Position(place.sweep, place.start))
        index, count = self._share()
        return CorpusExecutor(source, self._size * count, (index, count), drop_last, self._made)

    def _made(self, minibatch: Minibatch) -> Any:
        return _tree(minibatch, self._layout) if self._collate is None else self._collate(_items(minibatch))


class CorpusExecutor:
    """The rest of a sweep of a source; a `Executor`."""

    def __init__(
        self,
        source: MinibatchSource,
        size: int,
        share: tuple[int, int],
        drop_last: bool,
        made: Callable[[Minibatch], Any],
    ) -> None:
        self._source, self._size, self._share, self._items = source, size, share, source.num_sequences
        self._drop_last, self._made = drop_last, made
        self._came: tuple[Position, float, float, Minibatch] | None = None  # out of the source, not delivered

    def next(self) -> tuple[Planned, Fetched]:
        """See `Executor.next`."""
        source = self._source
        came = self._came
        if came is None:
            before, stats = source.position, source.stats()
            waited, read = stats.wait_seconds, stats.read_seconds
            came = self._came = before, waited, read, source.next_minibatch(self._size, partition=self._share)
        before, waited, read, minibatch = came
        if not minibatch or (self._drop_last and minibatch.sweep_end and minibatch.global_samples < self._size):
            raise StopIteration
        after, stats = source.position, source.stats()
        stop = after.ordinal if after.sweep == before.sweep else self._items
        planned = Planned(before.sweep, before.ordinal, stop, None, None)
        reading = max(stats.read_seconds - read, stats.wait_seconds - waited)
        try:
            fetched = Fetched(self._made(minibatch), minibatch.num_sequences, [], reading, 0.0)
        except Exception:
            self._came = None
            raise
        self._came = None
        return planned, fetched

    def close(self) -> None:
        """Threads end with the source."""


class _OneEach(Deserializer):
    """A corpus whose sequences count one each, however long they are."""

    def __init__(self, corpus: Deserializer) -> None:
        self._corpus = corpus
        self.schema, self.name = corpus.schema, corpus.name
        self.random_access, self.in_memory, self.sliceable = corpus.random_access, corpus.in_memory, corpus.sliceable
        self.fetchable = corpus.fetchable

    def chunks(self) -> Sequence[ChunkInfo]:
        """See `Deserializer.chunks`."""
        return [ChunkInfo(info.sequences, info.sequences, info.bytes) for info in self._corpus.chunks()]

    def read(self, chunk: int) -> Chunk:
        """See `Deserializer.read`."""
        return self._corpus.read(chunk)

    def read_slice(self, chunk: int, start: int, stop: int) -> Chunk:
        """See `Deserializer.read_slice`."""
        return self._corpus.read_slice(chunk, start, stop)

    def files(self, chunks: Sequence[int]) -> Sequence[MappedFile]:
        """See `Deserializer.files`."""
        return self._corpus.files(chunks)

    def extents(self, chunk: int) -> Sequence[Extent]:
        """See `Deserializer.extents`."""
        return self._corpus.extents(chunk)

    def read_fetched(self, chunk: int, pieces: Sequence[Piece]) -> Chunk:
        """See `Deserializer.read_fetched`."""
        return self._corpus.read_fetched(chunk, pieces)

    def paths(self) -> Sequence[str]:
        """See `Deserializer.paths`."""
        return self._corpus.paths()

    def digest(self) -> str:
        """See `Deserializer.digest`."""
        return self._corpus.digest()

    def select(self, ordinals: NDArray[np.int64]) -> Chunk:
        """See `Deserializer.select`."""
        return self._corpus.select(ordinals)


def _tree(minibatch: Minibatch, layout: str) -> dict[str, Any]:
    """Streams by name; for those of several samples a sequence, their lengths under "lengths"."""
    torch = collating.torch_side()
    batch: dict[str, Any] = {}
    lengths: dict[str, Any] = {}
    for name, value in minibatch.items():
        if value.is_sparse:
            batch[name] = value if torch is None else value.torch()
        elif torch is not None:
            batch[name] = value.torch(layout=layout)
        else:
            batch[name] = value.padded() if layout == "padded" else value.rows
        if not value.one_sample_each:
            lengths[name] = value.lengths if torch is None else torch.from_numpy(value.lengths)
    if lengths:
        if "lengths" in batch:
            raise SchemaError(
                "expected no stream `lengths`: lengths of sequences stand there; rename it, or use MinibatchSource"
            )
        batch["lengths"] = lengths
    return batch


def _items(minibatch: Minibatch) -> list[dict[str, Any]]:
    """One dictionary a sequence: arrays (length, *shape), or (*shape) for streams of one sample a sequence."""
    columns = {
        name: list(value.rows) if value.one_sample_each and not value.is_sparse else value.sequences()
        for name, value in minibatch.items()
    }
    return [{name: column[i] for name, column in columns.items()} for i in range(minibatch.num_sequences)]
