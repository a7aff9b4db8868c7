"""Make a batch from indices: read the items with seeded random numbers and collate them, in workers or in this process.

A unit of work is one batch. Its result holds the batch, the unreadable items and the seconds spent. The parent records
them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from feedline import _native
from feedline.concurrency.hooks import hook_name
from feedline.concurrency.turns import serve
from feedline.errors import shown
from feedline.feed.loader import blame
from feedline.feed.loader import collate as collating
from feedline.feed.loader.collate import RaggedCollate
from feedline.feed.loader.order import Planned
from feedline.feed.loader.sample_seeds import BATCH, COLLATE, ITEM, WORKER, At, Seeding

SLOW_ITEM_S = 100e-6  # seconds, from which items are timed one by one


class Fetched(NamedTuple):
    """A batch, with its unreadable items and timings.

    Attributes:
        batch: the batch that the loop gets. Undefined if ``items`` is 0 and ``bad`` is not empty.
        items: number of items in it.
        bad: (key, index as text, error as text) of each skipped item.
        reading, collating: seconds spent.
        computing: seconds of CPU time in both. 0 if no Python of the user's makes batches.
        slowest: (seconds, index) of the slowest item, or of all items, with a list of indices. None if it was not
            timed, as items are too fast for that.
        hook: name of the debugger or profiler that Python calls there. Empty without one.
    """

    batch: Any
    items: int
    bad: list[tuple[int, str, str]]
    reading: float
    collating: float
    computing: float = 0.0
    slowest: tuple[float, Any] | None = None
    hook: str = ""


class WorkUnit(NamedTuple):
    """The fields of a `Planned` that a worker needs, and the seed of its sweep."""

    seed: int
    sweep: int
    indices: Any
    keys: Any
    spare: Any
    start: int

    def __reduce__(self) -> Any:
        """Send arrays as bytes, in a tenth of the time that NumPy takes."""
        seed, sweep, indices, keys, spare, start = self
        if type(indices) is not np.ndarray or indices.dtype != np.int64:
            return WorkUnit, tuple(self)
        same = keys is indices
        return _unit_of_bytes, ((seed, sweep, indices.tobytes(), None if same else keys, spare, start),)

    def __repr__(self) -> str:
        """Return a description for errors of workers."""
        indices = self.indices.tolist() if isinstance(self.indices, np.ndarray) else self.indices
        return f"<items {indices} at place {self.start} of sweep {self.sweep}>"


def _unit_of_bytes(fields: tuple[Any, ...]) -> WorkUnit:
    seed, sweep, indices, keys, spare, start = fields
    array = np.frombuffer(indices, np.int64)
    return WorkUnit._make((seed, sweep, array, array if keys is None else keys, spare, start))


def unit_of(planned: Planned, seed: int) -> WorkUnit:
    """Return the unit of work for a batch of a sweep under ``seed``."""
    sweep, start, _, indices, keys, spare, _ = planned
    return WorkUnit._make((seed, sweep, indices, keys, spare, start))


class WorkerStart(NamedTuple):
    """How workers start.

    Attributes:
        seed: seed that they start under.
        init: ``worker_init_fn``.
        place: where they run: "here", "process" or "thread".
        loader: object that threads of this process `serve`. None: another process.
    """

    seed: int
    init: Callable[[int], Any] | None
    place: str
    loader: object

    def cpu_s(self) -> float:
        """Return CPU seconds: of the process if it has no other work, else of the thread."""
        return time.process_time() if self.place == "process" else time.thread_time()

    def begin(self, dataset: Any, worker: int, workers: int) -> None:
        """Set ``get_worker_info``, seed a worker's generators, and call the user's ``worker_init_fn``."""
        serve(self.loader)
        number = (self.seed + worker) % 2**63
        torch = collating.torch_side()
        if torch is not None:
            torch.set_worker_info(worker, workers, number, dataset, self.place == "thread")
        if self.place == "process":
            # Threads share the loop's generators.
            random.seed(number)
            np.random.seed(_native.hash_key([self.seed, WORKER, worker]) & 0xFFFFFFFF)
            if torch is not None:
                torch.GlobalGenerator().seed(number)
        if self.init is not None:
            self.init(worker)


class Fetch:
    """A `Task` of the pool over a map-style dataset.

    Args:
        dataset: map-style dataset.
        collate: function that collates the samples of a batch, or converts a single sample.
        batched: whether units are batches rather than single indices.
        skip: whether to skip unreadable items.
        start: how workers start.
    """

    def __init__(self, dataset: Any, *, collate: Any, batched: bool, skip: bool, start: WorkerStart) -> None:
        self.dataset, self._collate, self._batched, self._skip = dataset, collate, batched, skip
        self._start = start
        self._default = collating.own_form(collate)
        self._reads_batches: bool | None = None
        self._times_items = True  # until the first batch shows how fast items are
        self._seeding: Seeding | None = None
        if start.place == "thread":  # one `Seeding` for all threads
            self.seed_with(None)

    def seed_with(self, seeding: Seeding | None) -> Seeding:
        """Reuse the `Seeding` of an earlier sweep in this process, which knows the generators in use. If there is none,
        create one."""
        place = self._start.place
        self._seeding = seeding or self._seeding or Seeding(restore=place != "process", threads=place == "thread")
        return self._seeding

    def start(self, worker: int, workers: int) -> None:
        """See `Task.start`."""
        self._start.begin(self.dataset, worker, workers)
        self.seed_with(None)

    def run(self, unit: WorkUnit) -> Fetched:
        """See `Task.run`."""
        began, computed = time.perf_counter(), self._start.cpu_s()
        read = began
        dataset, default = self.dataset, self._default
        timed = TimedItems(dataset) if self._times_items and self._batched else None
        collate = default or self._collate
        bad: list[tuple[int, str, str]] = []
        count = 1

        def work(at: At) -> Any:
            nonlocal read, count
            bad.clear()
            sample = self._samples if self._batched else self._sample
            try:
                samples = sample(timed or dataset, unit, at, bad)
            except StopIteration as error:  # it would silently end the loop before the end of the data
                name = type(error).__name__
                raise RuntimeError(f"the dataset raised {name} instead of returning a sample") from error
            read = time.perf_counter()
            if not self._batched:
                count = 1 - len(bad)
                return None if bad else self._collate_samples(collate, [samples], unit)
            count = len(samples)
            if not count and (bad or unit.spare is None):
                return None
            if not count and default is not None:
                at(unit.start, BATCH)
                return collating.empty_like(default([dataset[unit.spare]]))
            if default is None:
                at(unit.start, COLLATE)
            return self._collate_samples(collate, samples, unit)

        assert self._seeding is not None
        batch = self._seeding.run((unit.seed, unit.sweep), work)
        ended = time.perf_counter()
        computing_s = self._start.cpu_s() - computed
        # Timing an item costs half a microsecond, too much for fast ones.
        self._times_items = self._batched and not self._reads_batches and read - began >= SLOW_ITEM_S * max(count, 1)
        slowest = None
        if timed is not None and timed.slowest[1] is not None:
            slowest = timed.slowest
        elif read - began >= SLOW_ITEM_S * max(count, 1):
            indices = unit.indices
            several = indices.tolist() if isinstance(indices, np.ndarray) else list(indices) if self._batched else []
            slowest = read - began, several if self._batched else _plain(indices)
        return Fetched(
            batch, count, bad, read - began, ended - read, computing=computing_s, slowest=slowest, hook=hook_name()
        )

    def _collate_samples(self, collate: Callable[[Any], Any], samples: Sequence[Any], unit: WorkUnit) -> Any:
        try:
            return collate(samples if self._batched else samples[0])
        except Exception as error:
            if not len(samples):  # an array has no truth value
                error.add_note(
                    "this rank's part of the batch has no items, so collate_fn was called with an empty list; let it "
                    "return an empty batch, or pass drop_last=True"
                )
                raise
            indices = (unit.indices if self._batched else [unit.indices]) if not self._skip else ()
            # A dataset that reads items together may return another number of them. Unreadable items are missing.
            aligned = len(indices) == len(samples)
            items = [f"item {shown(_plain(indices[i]), 60)}" if aligned else f"sample {i}" for i in range(len(samples))]
            default = self._default
            if default is None or not self._batched:
                blame.in_collate(error, items)
            else:
                blame.in_default_collate(error, samples, items, ragged=isinstance(default, RaggedCollate))
            raise

    def _samples(self, items: Any, unit: WorkUnit, at: At, bad: list[tuple[int, str, str]]) -> Any:
        dataset, indices, keys = self.dataset, unit.indices, unit.keys
        if isinstance(indices, np.ndarray):
            indices = indices.tolist()
            if keys is unit.indices:
                keys = indices
        if self._reads_batches is None:
            self._reads_batches = reads_batches(dataset)
        if self._reads_batches and not self._skip and len(indices):
            at(unit.start, BATCH)
            try:
                return dataset.__getitems__(indices)
            except Exception as error:
                blame.in_items(error, dataset, indices)
                raise
        if isinstance(keys, int):
            keys = range(keys, keys + len(indices))
        elif keys is not indices:
            keys = keys.tolist()
        samples: list[Any] = []
        add = samples.append
        if not self._skip:
            try:
                if at.many(keys, samples):
                    for index in indices:
                        add(items[index])
                else:
                    for key, index in zip(keys, indices, strict=True):
                        at(key)
                        add(items[index])
            except Exception as error:
                blame.in_item(error, dataset, _plain(indices[len(samples)]))
                raise
            return samples
        for key, index in zip(keys, indices, strict=True):
            at(key)
            try:
                add(items[index])
            except Exception as error:
                bad.append((key, repr(index), f"{type(error).__name__}: {error}"))
        return samples

    def _sample(self, items: Any, unit: WorkUnit, at: At, bad: list[tuple[int, str, str]]) -> Any:
        at(unit.keys, ITEM)
        try:
            return items[unit.indices]
        except Exception as error:
            if self._skip:
                bad.append((unit.keys, repr(unit.indices), f"{type(error).__name__}: {error}"))
                return None
            blame.in_item(error, self.dataset, unit.indices)
            raise


class TimedItems:
    """A map-style dataset whose items are timed.

    Attributes:
        slowest: seconds and index of the slowest item so far.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.slowest: tuple[float, Any] = (0.0, None)

    def __getitem__(self, index: Any) -> Any:
        began = time.perf_counter()
        item = self._dataset[index]
        seconds = time.perf_counter() - began
        if seconds > self.slowest[0]:
            self.slowest = seconds, index
        return item


def reads_batches(dataset: Any) -> bool:
    """Return whether a dataset reads a whole batch at once.

    torch's `Subset` and `StackDataset` always define ``__getitems__``, so the datasets inside them decide. Otherwise
    items are read one by one, each with its own random numbers.
    """
    torch = collating.torch_side()
    if torch is not None and type(dataset) is torch.Subset:
        return reads_batches(dataset.dataset)
    if torch is not None and type(dataset) is torch.StackDataset:
        parts = dataset.datasets
        return any(map(reads_batches, parts.values() if isinstance(parts, dict) else parts))
    return callable(getattr(dataset, "__getitems__", None))


def _plain(index: Any) -> Any:
    """Return an integer of NumPy as Python's, for messages."""
    return index.item() if isinstance(index, np.generic) else index


def next_items(iterator: Iterator[Any], n: int | None = None) -> Iterator[Any]:
    """Return the next ``n`` items, or as many as there are. None: all.

    Unlike `islice`, `chain` and a ``for`` loop, this does not call ``iter``: an iterator that is the dataset or the
    sampler itself may start again then.
    """
    return map(next, repeat(iterator) if n is None else repeat(iterator, n))
