"""A dataset of items, read in order as chunks of a corpus, which `convert` writes to a store.

A `DataLoader` reads the items in order, in any number of worker processes, with random numbers keyed by the item. So
the chunks do not depend on the number of workers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import itemgetter
from typing import Any

from feedline.data import Chunk, Schema, Stream, Value
from feedline.data.value import as_arrays
from feedline.errors import DataError
from feedline.feed.argument_errors import refuse
from feedline.feed.files.digest import ContentDigest
from feedline.feed.loader.fetch import next_items
from feedline.feed.loader.gather import ColumnItems, columnar
from feedline.feed.loader.loader import DataLoader
from feedline.feed.loader.options import is_iterable_style
from feedline.feed.loader.sample_schema import Fields, Misfit, Unreadable

LOOKED_AT = 32
"""Number of items, spread over the dataset, from which the streams are inferred."""

_ITEMS, _BYTES = 64, 1 << 20  # of a chunk, at most

Streams = Mapping[str, Stream | None] | Sequence[str] | None


class DatasetChunks:
    """The items of a dataset as chunks. See `convert`.

    Args:
        dataset: map-style or iterable dataset.
        streams: streams to make of its samples, see `Fields.of`.
        jobs: number of worker processes that read items. With 1, this process reads them.
        executor: "local", or "ray": workers of Ray read the items, even if there is only one.
        skip: whether items that raise become unreadable sequences.

    Attributes:
        schema: the streams.

    Raises:
        TypeError, ValueError: ``dataset`` is no dataset, or does not support the arguments.
        SchemaError: samples cannot be stored.
        DataError: there is no readable item.
    """

    def __init__(self, dataset: Any, streams: Streams, *, jobs: int, executor: str = "local", skip: bool) -> None:
        refuse(dataset, "convert")
        if not hasattr(dataset, "__getitem__") and not hasattr(dataset, "__iter__"):
            raise TypeError(
                f"expected a deserializer, a path or a dataset to convert, got {type(dataset).__name__}, which has "
                "neither __getitem__ nor __iter__"
            )
        self._jobs, self._kind, self._iterable = jobs, executor, is_iterable_style(dataset)
        if self._iterable and (jobs > 1 or executor == "ray" or skip):
            what = "jobs=1" if jobs > 1 else 'executor="local"' if executor == "ray" else 'on_error="raise"'
            raise ValueError(f"expected {what} for an IterableDataset: one iterator yields its items one by one")
        items: Any = ColumnItems(dataset) if columnar(dataset) else dataset
        self._items = _Guarded(items) if skip else items
        self._total = _length(items)
        if self._total is None and not self._iterable:
            raise TypeError(
                f"expected a dataset with a length, got {type(dataset).__name__} without __len__; iter(dataset) can "
                "be converted without a length"
            )
        self._rest: Iterator[Any] = iter(())
        places, samples = self._inspect()
        readable = {f"item {i}": s for i, s in zip(places, samples, strict=True) if not isinstance(s, Unreadable)}
        if not readable:
            unreadable = f"; the first one: {samples[0].what}" if samples else ""
            raise DataError(f"expected at least one item that can be read, got none{unreadable}")
        self._fields = Fields.of(readable, streams)
        self.schema: Schema = self._fields.schema
        content = ContentDigest()
        for place, sample in readable.items():
            for value in self._values([sample], [place])[0].values():
                for array in as_arrays(value):
                    if array is not None:
                        content.array(array)
        nbytes = sum(value.nbytes for value in self._values([next(iter(readable.values()))], ["item 0"])[0].values())
        self._size = max(1, min(_ITEMS, _BYTES // max(nbytes, 1)))
        self._content = content.hexdigest()

    def digest(self) -> str:
        """Return a text that identifies the dataset, as far as that is possible without reading all of it."""
        return f"{self._total} items {self.schema.digest} {self._content}"

    def chunks(self, start: int = 0) -> Generator[tuple[Chunk, int, int]]:
        """Yield the chunks from number ``start`` on, with the items read so far and in total (0: unknown).

        An iterable dataset is read once.
        """
        done = start * self._size
        batches = self._from_iterator(start) if self._iterable else self._from_loader(done)
        with contextlib.closing(batches):  # else the traceback of an error would keep the workers alive
            for batch in batches:
                if isinstance(batch, Misfit):
                    raise self._fields.error(batch, f"item {done + batch.number}")
                values, errors = batch
                chunk = Chunk(self.schema, values, {i: DataError(text) for i, text in errors.items()})
                done += chunk.num_sequences
                yield chunk, done, self._total or 0

    def _inspect(self) -> tuple[Sequence[int], list[Any]]:
        """Return the places of some items, and the items."""
        if self._iterable:
            iterator = iter(self._items)
            samples = list(next_items(iterator, LOOKED_AT))
            self._rest = chain(samples, next_items(iterator))
            return range(len(samples)), samples
        last = (self._total or 0) - 1
        places = sorted({last * i // (LOOKED_AT - 1) for i in range(LOOKED_AT)}) if last >= 0 else []
        with self._loader(alone=self._kind == "ray", sampler=places, batch_size=1, collate_fn=itemgetter(0)) as loader:
            return places, list(loader)

    def _from_iterator(self, start: int) -> Generator[Any]:
        batches: Iterable[list[Any]] = iter(lambda: list(islice(self._rest, self._size)), [])
        yield from map(ToValues(self._fields), islice(batches, start, None))

    def _from_loader(self, done: int) -> Generator[Any]:
        with self._loader(batch_size=self._size, collate_fn=ToValues(self._fields)) as loader:
            if done:
                loader.load_state_dict({**loader.state_dict(), "sequence": done})
            yield from loader

    def _loader(self, alone: bool = False, **arguments: Any) -> DataLoader:
        """Return a loader of the items. With ``alone`` this process reads them, as starting workers would take
        longer."""
        kind = "ray" if self._kind == "ray" else "process"
        workers = 0 if alone or (self._jobs == 1 and kind == "process") else self._jobs
        return DataLoader(self._items, num_workers=workers, workers=kind, seed=0, **arguments)

    def _values(self, samples: Sequence[Any], places: Sequence[str]) -> tuple[dict[str, Value], dict[int, str]]:
        converted = ToValues(self._fields)(samples)
        if isinstance(converted, Misfit):
            raise self._fields.error(converted, places[converted.number])
        return converted


class ToValues:
    """Collates samples to values, with the errors of unreadable samples as texts, or to a `Misfit`."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields

    def __call__(self, samples: Sequence[Any]) -> tuple[dict[str, Value], dict[int, str]] | Misfit:
        """Return the batch of ``samples``."""
        values = self._fields.values(samples)
        if isinstance(values, Misfit):
            return values
        return values, {i: sample.what for i, sample in enumerate(samples) if isinstance(sample, Unreadable)}


class _Guarded:
    """A map-style dataset whose items that raise are `Unreadable`."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        try:
            return self._dataset[index]
        except Exception as error:
            return Unreadable(f"expected item {index} to be readable: {type(error).__name__}: {error}")


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:
        return None
