"""From indices to a batch: read the items, seeded, and collate them. The same code runs in workers and without any.

A unit of work is one batch. What comes back is the batch and, beside it, what the parent keeps books of: unreadable
items and the seconds spent.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from feedline import _native
from feedline.feed.loader import collate as collating
from feedline.feed.loader.order import Planned
from feedline.feed.loader.random import BATCH, COLLATE, ITEM, WORKER, At, Seeding


class Fetched(NamedTuple):
    """A batch and its books.

    Attributes:
        batch: what the loop gets; meaningless where ``items`` is 0 and ``bad`` is not empty.
        items: in it.
        bad: (key, index as text, error as text) of each item passed over.
        reading, collating: seconds.
    """

    batch: Any
    items: int
    bad: list[tuple[int, str, str]]
    reading: float
    collating: float


class WorkUnit(NamedTuple):
    """What a worker is told: the fields of a `Planned` that it needs."""

    sweep: int
    indices: Any
    keys: Any
    spare: Any
    place: int


def unit_of(planned: Planned) -> WorkUnit:
    """The work for a batch."""
    return WorkUnit(planned.sweep, planned.indices, planned.keys, planned.spare, planned.start)


class Fetch:
    """A `Task` of the pool over a map-style dataset.

    Args:
        dataset: map-style.
        collate: collates the samples of a batch, or converts the only one.
        batched: whether units are batches or single indices.
        skip: pass over items that cannot be read.
        seed: of the loader.
        info: the seed that ``get_worker_info`` tells, less the number of the worker.
        init: ``worker_init_fn``.
        place: "here", "process" or "thread": where it runs.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        collate: Any,
        batched: bool,
        skip: bool,
        seed: int,
        init: Callable[[int], Any] | None,
        place: str,
    ) -> None:
        self.dataset, self._collate, self._batched, self._skip = dataset, collate, batched, skip
        self._seed, self._init, self._where = seed, init, place
        self._together: bool | None = None
        self._seeding: Seeding | None = self._made() if place == "thread" else None

    def _made(self) -> Seeding:
        return Seeding(self._seed, restore=self._where != "process", threads=self._where == "thread")

    def seed_with(self, seeding: Seeding | None) -> Seeding:
        """Go on with what another one of this process has found out about the generators in use, if there is one."""
        if seeding is not None:
            self._seeding = seeding
        elif self._seeding is None:
            self._seeding = self._made()
        return self._seeding

    def start(self, worker: int, workers: int) -> None:
        """See `Task.start`."""
        start_worker(self.dataset, self._seed, self._init, self._where, worker, workers)
        self.seed_with(None)

    def run(self, unit: WorkUnit) -> Fetched:
        """See `Task.run`."""
        began = time.perf_counter()
        read = began
        dataset, own = self.dataset, collating.known(self._collate)
        together = own or self._collate
        bad: list[tuple[int, str, str]] = []
        count = 1

        def work(at: At) -> Any:
            nonlocal read, count
            bad.clear()
            samples = self._samples(dataset, unit, at, bad) if self._batched else self._sample(dataset, unit, at, bad)
            read = time.perf_counter()
            if not self._batched:
                count = 1 - len(bad)
                return None if bad else together(samples)
            count = len(samples)
            if not count and (bad or unit.spare is None):
                return None
            if not count and own is not None:
                at(unit.place, BATCH)
                return collating.emptied(own([dataset[unit.spare]]))
            if own is None:
                at(unit.place, COLLATE)
            return together(samples)

        assert self._seeding is not None
        batch = self._seeding.run(unit.sweep, work)
        return Fetched(batch, count, bad, read - began, time.perf_counter() - read)

    def _samples(self, dataset: Any, unit: WorkUnit, at: At, bad: list[tuple[int, str, str]]) -> Any:
        indices = unit.indices
        if isinstance(indices, np.ndarray):
            indices = indices.tolist()
        if self._together is None:
            self._together = reads_together(dataset)
        if self._together and not self._skip and len(indices):
            at(unit.place, BATCH)
            try:
                return dataset.__getitems__(indices)
            except StopIteration as error:
                raise _no_end(error) from error
        keys = unit.keys
        keys = range(keys, keys + len(indices)) if isinstance(keys, int) else keys.tolist()
        samples: list[Any] = []
        add = samples.append
        if not self._skip:
            try:
                if at.many(keys, samples):
                    for index in indices:
                        add(dataset[index])
                else:
                    for key, index in zip(keys, indices, strict=True):
                        at(key)
                        add(dataset[index])
            except StopIteration as error:
                raise _no_end(error) from error
            return samples
        for key, index in zip(keys, indices, strict=True):
            at(key)
            try:
                add(dataset[index])
            except Exception as error:
                bad.append((key, repr(index), f"{type(error).__name__}: {error}"))
        return samples

    def _sample(self, dataset: Any, unit: WorkUnit, at: At, bad: list[tuple[int, str, str]]) -> Any:
        at(unit.keys, ITEM)
        try:
            return dataset[unit.indices]
        except Exception as error:
            if self._skip:
                bad.append((unit.keys, repr(unit.indices), f"{type(error).__name__}: {error}"))
                return None
            if isinstance(error, StopIteration):
                raise _no_end(error) from error
            raise


def reads_together(dataset: Any) -> bool:
    """Whether a dataset reads a whole batch at once.

    torch's `Subset` and `StackDataset` always say that they do; it is true where what they are made of does. Elsewhere
    items are read one by one, so that each has random numbers of its own.
    """
    torch = collating.torch_side()
    if torch is not None and type(dataset) is torch.Subset:
        return reads_together(dataset.dataset)
    if torch is not None and type(dataset) is torch.StackDataset:
        parts = dataset.datasets
        return any(map(reads_together, parts.values() if isinstance(parts, dict) else parts))
    return callable(getattr(dataset, "__getitems__", None))


def _no_end(error: StopIteration) -> RuntimeError:
    # Let through, it would end the loop, and the rest of the data would be lost without a word.
    return RuntimeError(f"the dataset raised {type(error).__name__} where a sample was asked for")


def start_worker(
    dataset: Any, seed: int, init: Callable[[int], Any] | None, where: str, worker: int, workers: int
) -> None:
    """Say who this worker is, seed its generators, and call the user's ``worker_init_fn``."""
    number = (seed + worker) % 2**63
    torch = collating.torch_side()
    if torch is not None:
        torch.set_worker_info(worker, workers, number, dataset, where == "thread")
    if where == "process":
        # Threads share the loop's generators.
        random.seed(number)
        np.random.seed(_native.hash_key([seed, WORKER, worker]) & 0xFFFFFFFF)
        if torch is not None:
            torch.global_generator().seed(number)
    if init is not None:
        init(worker)
