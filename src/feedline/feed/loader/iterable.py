"""Iterable datasets: each worker iterates a copy of its own, the loop takes a batch of each in turn.

torch's semantics: the dataset itself shares out its data by ``get_worker_info``. A state holds, for each worker, the
number of its batches delivered and what the dataset (or its iterator) says of itself in ``state_dict``; a dataset that
says nothing is iterated again to that point, with a warning.
"""

from __future__ import annotations

import copy
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple

from feedline import _native
from feedline.feed.loader.fetch import Fetched, start_worker
from feedline.feed.loader.order import Planned
from feedline.feed.loader.random import WORKER, seed_process
from feedline.feed.workers import Pool

MOST_ITERATORS = 4  # of one loader that a worker keeps going


class Turn(NamedTuple):
    """What a worker is asked for.

    Attributes:
        sweep: which sweep.
        number: of its batches in this sweep, which one.
        base: number of the batch before which ``state`` was taken.
        state: of the dataset; None: none was saved.
    """

    sweep: int
    number: int
    base: int
    state: Any


class Piece(NamedTuple):
    """What comes back.

    Attributes:
        fetched: the batch; None: this worker has no more.
        state: of the dataset behind the batch; None: it has none.
    """

    fetched: Fetched | None
    state: Any


class IterableFetch:
    """A `Task` of the pool over an iterable dataset.

    Args:
        dataset: iterable.
        collate: collates the samples of a batch, or converts the only one.
        size: samples of a batch; None: single.
        drop_last: leave out a last batch that is not full.
        seed: of the loader.
        init: ``worker_init_fn``.
        place: "here", "process" or "thread": where it runs.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[Any], Any],
        size: int | None,
        drop_last: bool,
        seed: int,
        init: Callable[[int], Any] | None,
        place: str,
    ) -> None:
        self.dataset, self._collate, self._size, self._drop_last = dataset, collate, size, drop_last
        self._seed, self._init, self._where = seed, init, place
        self._own: Any = None  # what belongs to a thread

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_own": None}

    def _reader(self, sweep: int) -> _Reader:
        if self._own is None:
            self._own = threading.local()
        own = self._own
        if not hasattr(own, "readers"):
            own.readers, own.dataset, own.worker = {}, self.dataset, None
        readers: dict[int, _Reader] = own.readers
        if sweep not in readers:
            # Several iterators may be in use at once; none is told when it is not any more.
            while len(readers) >= MOST_ITERATORS:
                readers.pop(min(readers))
            readers[sweep] = _Reader(own.dataset, own.worker if self._init is None else None, self._seed)
        return readers[sweep]

    def start(self, worker: int, workers: int) -> None:
        """See `Task.start`."""
        dataset = self.dataset
        if self._where == "thread":
            dataset = copy.copy(dataset)  # each has attributes of its own, as in processes
        start_worker(dataset, self._seed, self._init, self._where, worker, workers)
        if self._own is None:
            self._own = threading.local()
        own = self._own
        own.readers, own.dataset, own.worker = {}, dataset, worker if self._where == "process" else None

    def run(self, turn: Turn) -> Piece:
        """See `Task.run`."""
        began = time.perf_counter()
        samples, state = self._reader(turn.sweep).read(turn, self._size, self._drop_last)
        if samples is None:
            return Piece(None, state)
        read = time.perf_counter()
        batch = self._collate(samples if self._size is not None else samples[0])
        return Piece(Fetched(batch, len(samples), [], read - began, time.perf_counter() - read), state)


class _Reader:
    """One iteration of a dataset."""

    def __init__(self, dataset: Any, worker: int | None, seed: int) -> None:
        self._dataset, self._worker, self._seed = dataset, worker, seed
        self._at: tuple[int, int] | None = None  # sweep, number of the next batch
        self._iterator: Any = None
        self._ended = False

    def read(self, turn: Turn, size: int | None, drop_last: bool) -> tuple[list[Any] | None, Any]:
        if self._at != (turn.sweep, turn.number):
            self._begin(turn, size or 1)
        self._at = (turn.sweep, turn.number + 1)
        samples = [] if self._ended else list(islice(self._iterator, size or 1))
        self._ended = len(samples) < (size or 1)
        if not samples or (drop_last and self._ended):
            self._ended = True
            return None, self._state()
        return samples, self._state()

    def _begin(self, turn: Turn, size: int) -> None:
        if self._worker is not None:  # a worker_init_fn may have seeded, and then stays in charge
            seed_process(_native.hash_key([self._seed, turn.sweep, WORKER, self._worker]))
        self._ended = False
        skipped = turn.number
        if turn.state is not None and hasattr(self._dataset, "load_state_dict"):
            self._dataset.load_state_dict(turn.state)
            skipped -= turn.base
        self._iterator = iter(self._dataset)
        if turn.state is not None and skipped == turn.number and hasattr(self._iterator, "load_state_dict"):
            self._iterator.load_state_dict(turn.state)
            skipped -= turn.base
        for _ in islice(self._iterator, skipped * size):
            pass

    def _state(self) -> Any:
        for each in (self._iterator, self._dataset):
            if hasattr(each, "state_dict"):
                return copy.deepcopy(each.state_dict())
        return None


class Turns:
    """The batches of all workers in turn; a `Supply`.

    Args:
        fetch: what makes them here, without workers.
        pool: of workers; None: none.
        sweep: which sweep.
        memo: from a state; None: from the beginning.
        depth: batches outstanding for each worker.
        in_order: take turns; False: whoever has one.
    """

    def __init__(
        self, fetch: IterableFetch, pool: Pool | None, sweep: int, memo: Any, depth: int, in_order: bool
    ) -> None:
        self._fetch, self._pool, self._sweep, self._in_order = fetch, pool, sweep, in_order
        self._depth = max(depth, 1)
        workers = 1 if pool is None else pool.workers
        fresh = {"batches": 0, "state": None, "ended": False}
        self._each: list[dict[str, Any]] = [dict(one) for one in (memo or {}).get("each", [fresh] * workers)]
        self._bases = [(one["batches"], one["state"]) for one in self._each]
        self._turn: int = (memo or {}).get("turn", 0)
        self._asked = [one["batches"] for one in self._each]
        self._waiting: list[deque[int]] = [deque() for _ in self._each]
        self._delivered = sum(one["batches"] for one in self._each)
        if any(base and state is None for base, state in self._bases):
            warnings.warn(
                f"{type(fetch.dataset).__name__} has no state_dict() and load_state_dict(): to resume, it is iterated "
                "from its beginning to the batch where the state was taken",
                UserWarning,
                stacklevel=4,
            )
        self._fill()

    def next(self) -> tuple[Planned, Fetched]:
        """See `Supply.next`."""
        while True:
            active = [w for w, one in enumerate(self._each) if not one["ended"]]
            if not active:
                raise StopIteration
            self._fill()
            worker = next((w for w in active if w >= self._turn), active[0])
            if self._pool is None:
                turn = self._unit(0)
                self._asked[0] += 1
                piece = self._fetch.run(turn)
            else:
                if not self._in_order:
                    tickets = [ticket for w in active for ticket in list(self._waiting[w])[:1]]
                    first = self._pool.any_of(tickets)
                    worker = next(w for w in active if self._waiting[w][0] == first)
                ticket = self._waiting[worker][0]
                try:
                    piece = self._pool.result(ticket)
                except Exception:
                    self._waiting[worker].popleft()
                    self._turn = (worker + 1) % len(self._each)
                    raise
                self._waiting[worker].popleft()
            one = self._each[worker]
            self._turn = (worker + 1) % len(self._each)
            one["state"] = piece.state
            if piece.fetched is None:
                one["ended"] = True
                if self._pool is not None:
                    self._pool.cancel(self._waiting[worker])
                    self._waiting[worker].clear()
                continue
            one["batches"] += 1
            self._fill()
            at = self._delivered
            self._delivered += 1
            memo = {"turn": self._turn, "each": [dict(each) for each in self._each]}
            return Planned(self._sweep, at, at + 1, None, None, memo=memo), piece.fetched

    def _unit(self, worker: int) -> Turn:
        return Turn(self._sweep, self._asked[worker], *self._bases[worker])

    def _fill(self) -> None:
        if self._pool is None:
            return
        for _ in range(self._depth):
            for worker, waiting in enumerate(self._waiting):
                if len(waiting) < self._depth and not self._each[worker]["ended"]:
                    waiting.append(self._pool.submit(self._unit(worker), worker))
                    self._asked[worker] += 1

    def close(self) -> None:
        """Cancel what is outstanding."""
        if self._pool is None:
            return
        tickets = [ticket for waiting in self._waiting for ticket in waiting]
        for waiting in self._waiting:
            waiting.clear()
        try:
            self._pool.cancel(tickets)
        except RuntimeError:  # the pool is closed, and everything with it
            pass

    def __del__(self) -> None:
        self.close()
