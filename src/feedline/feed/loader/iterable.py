"""Iterable datasets: each worker iterates a copy of its own, the loop takes a batch of each in turn.

torch's semantics: the dataset itself shares out its data by ``get_worker_info``. A state holds, for each worker, how
many batches and samples of its were delivered, and what the dataset and its iterator say of themselves in
``state_dict``; a dataset that says nothing is iterated again to that point, with a warning. Where samples draw from the
global generators of a worker process, the states of those are held too.
"""

from __future__ import annotations

import contextlib
import copy
import json
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import count, repeat
from types import GeneratorType
from typing import Any, NamedTuple

from feedline import _native
from feedline.errors import StateError
from feedline.feed.loader.fetch import Fetched, start_worker
from feedline.feed.loader.order import Planned
from feedline.feed.loader.random import WORKER, Drawn, seed_process
from feedline.feed.loader.state import whole
from feedline.feed.workers import Pool

MOST_ITERATORS = 4  # of one loader that a worker keeps going

_readings = count()


class Said(NamedTuple):
    """What is known behind a batch of a worker.

    Attributes:
        state: what the iterator says in ``state_dict``; where it has none, what the dataset says; None: neither does.
        dataset: what the dataset says where both do.
        random: states of the global generators that were drawn from in this worker's process, by name.
    """

    state: Any = None
    dataset: Any = None
    random: dict[str, Any] | None = None


class Stand(NamedTuple):
    """How far a worker's part of a sweep has been delivered.

    Attributes:
        batches, samples: delivered.
        said: behind them.
        ended: there are no more.
    """

    batches: int = 0
    samples: int = 0
    said: Said = Said()
    ended: bool = False

    def to_json(self) -> dict[str, Any]:
        """For a state."""
        found = {"batches": self.batches, "samples": self.samples, "state": self.said.state, "ended": self.ended}
        more = {"dataset": self.said.dataset, "random": self.said.random}
        return {**found, **{name: value for name, value in more.items() if value is not None}}


def stands_of(memo: Any, workers: int, start: int, size: int | None) -> tuple[int, list[Stand]]:
    """Whose turn it is, and the stand of each worker, as a state has them.

    Args:
        memo: of the state; None: of the beginning of a sweep.
        workers: how many there are, at least 1.
        start: batches delivered.
        size: samples of a batch. The states of feedline 0.1 do not count samples, and are taken to be of this size.

    Raises:
        KeyError, TypeError, ValueError: that cannot be.
    """
    if memo is None:
        if start:
            raise ValueError("expected a `memo` of what each worker has delivered, got none")
        return 0, [Stand()] * workers
    if not isinstance(memo, Mapping) or not isinstance(memo["each"], (list, tuple)):
        raise TypeError(f"expected `memo` of an iterable dataset to hold `turn` and `each`, got {memo!r:.80}")
    if len(memo["each"]) != workers:
        raise ValueError(f"expected `each` of {workers} workers, got {len(memo['each'])}")
    turn = whole(memo, "turn", workers)
    stands = []
    for one in memo["each"]:
        if not isinstance(one, Mapping):
            raise TypeError(f"expected a mapping for each worker, got {one!r:.80}")
        batches = whole(one, "batches")
        samples = whole(one, "samples") if "samples" in one else batches * (size or 1)
        if not isinstance(one["ended"], bool):
            raise TypeError(f"expected `ended` to be true or false, got {one['ended']!r:.80}")
        random = one.get("random")
        if random is not None:
            Drawn.check(random)
        stands.append(Stand(batches, samples, Said(one["state"], one.get("dataset"), random), one["ended"]))
    if sum(stand.batches for stand in stands) != start:
        raise ValueError(f"expected the batches of all workers to be `sequence`, {start}")
    return turn, stands


class BatchRequest(NamedTuple):
    """What a worker is asked for.

    Attributes:
        reading: which reading of the dataset; after a state was loaded, a sweep is read anew.
        sweep: which sweep.
        number: of its batches in this sweep, which one.
        base: where it may begin, should it not be there.
    """

    reading: int
    sweep: int
    number: int
    base: Stand


class WorkerBatch(NamedTuple):
    """What comes back.

    Attributes:
        fetched: the batch; None: this worker has no more.
        said: of the dataset behind the batch.
        ended: nothing follows it, as the batch is a short one. Datasets that set themselves back at their end say by
            then what they say at their beginning.
    """

    fetched: Fetched | None
    said: Said
    ended: bool = True


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
        firsts: of earlier ones that ran here, see `_Reader`.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        collate: Any,
        size: int | None,
        drop_last: bool,
        seed: int,
        init: Callable[[int], Any] | None,
        place: str,
        firsts: dict[int, Any],
    ) -> None:
        self.dataset, self._collate, self._size, self._drop_last = dataset, collate, size, drop_last
        self._seed, self._init, self._where, self._firsts = seed, init, place, firsts
        self._own: Any = None  # what belongs to a thread

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_own": None}

    def _reader(self, reading: int) -> _Reader:
        if self._own is None:
            self._own = threading.local()
        own = self._own
        if not hasattr(own, "readers"):
            own.readers, own.dataset, own.worker, own.drawn, own.firsts = {}, self.dataset, None, None, self._firsts
        readers: dict[int, _Reader] = own.readers
        if reading not in readers:
            # Several iterators may be in use at once; none is told when it is not any more.
            while len(readers) >= MOST_ITERATORS:
                readers.pop(min(readers))
            worker = own.worker if self._init is None else None
            readers[reading] = _Reader(own.dataset, worker, self._seed, own.drawn, own.firsts)
        return readers[reading]

    def start(self, worker: int, workers: int) -> None:
        """See `Task.start`."""
        dataset = self.dataset
        if self._where == "thread":
            dataset = copy.copy(dataset)  # each has attributes of its own, as in processes
        start_worker(dataset, self._seed, self._init, self._where, worker, workers)
        if self._own is None:
            self._own = threading.local()
        own, process = self._own, self._where == "process"
        own.readers, own.dataset, own.worker, own.firsts = {}, dataset, worker if process else None, {}
        own.drawn = Drawn() if process else None

    def run(self, turn: BatchRequest) -> WorkerBatch:
        """See `Task.run`. An interrupted one may be asked for again."""
        began = time.perf_counter()
        samples, said, ended = self._reader(turn.reading).read(turn, self._size or 1, self._drop_last)
        if not samples:
            return WorkerBatch(None, said)
        read = time.perf_counter()
        batch = self._collate(samples if self._size is not None else samples[0])
        return WorkerBatch(Fetched(batch, len(samples), [], read - began, time.perf_counter() - read), said, ended)


def _next(iterator: Iterator[Any], n: int) -> Iterator[Any]:
    """The next ``n`` items, or as many as there are.

    Unlike ``islice``, it does not call ``iter`` on the iterator: one that is the dataset itself would begin again.
    """
    return map(next, repeat(iterator, n))


class _Reader:
    """One iteration of a dataset.

    Args:
        dataset: what is iterated.
        worker: whose process this is; None: generators are another's to seed.
        seed: of the loader.
        drawn: follows the generators of this process; None: they are the loop's too.
        firsts: what this dataset said before the sweeps that were begun last. One that keeps its place in itself has to
            be put back for a sweep to be begun again.
    """

    def __init__(
        self, dataset: Any, worker: int | None, seed: int, drawn: Drawn | None, firsts: dict[int, Any]
    ) -> None:
        self._dataset, self._worker, self._seed, self._drawn, self._firsts = dataset, worker, seed, drawn, firsts
        self._at: tuple[int, int] | None = None  # sweep and number of the batch in `_samples`
        self._samples: list[Any] = []
        self._said: Said | None = None  # known when the batch is whole
        self._iterator: Any = None
        self._ended = self._reading = False

    def read(self, turn: BatchRequest, size: int, drop_last: bool) -> tuple[list[Any], Said, bool]:
        """The samples of a batch, none at the end; what is said behind it; whether it is known that none follow.

        The batch stays here until the next one is asked for.
        """
        at = turn.sweep, turn.number
        if self._at != at or (self._reading and not self._goes_on()):
            if self._at != (turn.sweep, turn.number - 1) or self._reading:
                self._begin(turn, size)
            self._samples, self._said, self._at = [], None, at
        samples = self._samples
        if self._said is None:
            if not self._ended and len(samples) < size:
                self._reading = True
                samples.extend(_next(self._iterator, size - len(samples)))  # what came stays, if it is interrupted
                self._reading = False
                self._ended = len(samples) < size
            said = self._says()
            if drop_last and self._ended:
                self._samples = samples = []
            self._said = said
        return samples, self._said, self._ended

    def _goes_on(self) -> bool:
        """Whether an iterator that was interrupted can be asked for more: it is all there is of the data."""
        iterator = self._iterator
        if isinstance(iterator, GeneratorType):
            return iterator.gi_frame is not None
        return iterator is self._dataset

    # ---- to a place ------------------------------------------------------------------------------------

    def _begin(self, turn: BatchRequest, size: int) -> None:
        base, old = turn.base, self._iterator if self._reading else None
        self._at = None
        if self._worker is not None:  # a worker_init_fn may have seeded, and then stays in charge
            seed_process(_native.hash_key([self._seed, turn.sweep, WORKER, self._worker]))
            if self._drawn is not None:
                self._drawn.begin()
        if not base.batches and base.said.state is None:
            base = base._replace(said=Said(self._before(turn.sweep)))
        restored, iterator = self._restored(base.said)
        if iterator is old and old is not None:
            raise RuntimeError(
                f"expected an iterable dataset that can be iterated again after an interrupt, got a "
                f"{type(self._dataset).__name__} that gives the same iterator again; where it stands is unknown: make "
                "another loader"
            )
        skip = (turn.number - base.batches) * size + (0 if restored else base.samples)
        if old is not None and skip:
            _warn_of_replay(self._dataset, "to go on after an interrupt", 8)
        if restored and base.said.random is not None and self._drawn is not None:
            self._drawn.restore(base.said.random)
        self._ended = False
        while skip > 0 and (passed := len(list(_next(iterator, min(skip, 1 << 10))))):  # Ctrl-C stays possible
            skip -= passed
        self._iterator, self._reading = iterator, False

    def _before(self, sweep: int) -> Any:
        """What the dataset said before a sweep that is begun again; None: the first time, or it said nothing."""
        firsts = self._firsts
        if sweep in firsts:
            return firsts[sweep]
        first = None
        with contextlib.suppress(Exception):  # it may have no state before it is iterated
            first = _state_of(self._dataset)
        for old in sorted(firsts)[: len(firsts) - MOST_ITERATORS]:
            del firsts[old]
        firsts[sweep] = first
        return None

    def _restored(self, said: Said) -> tuple[bool, Any]:
        """An iterator, and whether it stands where ``said`` was said.

        What a dataset needs to take a state in may come into being in its ``__iter__``, and ``__iter__`` may set back
        what was taken in before; then the state is loaded (again) behind it.
        """
        dataset, state = self._dataset, said.state if said.dataset is None else said.dataset
        if state is None:
            return False, iter(dataset)
        early, failed, reflected = hasattr(dataset, "load_state_dict"), None, False
        if early:
            try:
                dataset.load_state_dict(state)
                reflected = _says_so(dataset, state)
            except AttributeError as error:
                failed = error
        iterator = iter(dataset)
        if early and (failed is not None or (reflected and not _says_so(dataset, state))):
            try:
                dataset.load_state_dict(state)
            except AttributeError as error:
                raise StateError(
                    f"{type(dataset).__name__}.load_state_dict raised {error!r}, before __iter__ and behind it",
                    saved={"state": state},
                    hint="make what it needs in __init__ or, in a function that is no generator, in __iter__",
                ) from error
        if said.dataset is not None or not early:
            owner = next((o for o in (iterator, dataset) if hasattr(o, "load_state_dict")), None)
            if owner is None:
                return early, iterator
            owner.load_state_dict(said.state)
        return True, iterator

    def _says(self) -> Said:
        random = None if self._drawn is None else self._drawn.states()
        own = _state_of(self._iterator) if self._iterator is not self._dataset else None
        of_dataset = _state_of(self._dataset)
        return Said(of_dataset, None, random) if own is None else Said(own, of_dataset, random)


def _state_of(thing: Any) -> Any:
    return copy.deepcopy(thing.state_dict()) if hasattr(thing, "state_dict") else None


def _says_so(dataset: Any, state: Any) -> bool:
    """Whether a dataset says that it is in a state; JSON has made lists of tuples meanwhile."""
    try:
        said = _state_of(dataset)
    except AttributeError:
        return False
    return _text(said) == _text(state)


def _text(state: Any) -> str:
    return json.dumps(state, sort_keys=True, default=repr)


class IterableExecutor:
    """The batches of all workers in turn; a `Executor`.

    Args:
        fetch: what makes them here, without workers.
        pool: of workers; None: none.
        sweep: which sweep.
        turn, stands: whose turn it is, and how far each worker's part has been delivered.
        depth: batches outstanding for each worker.
        in_order: take turns; False: whoever has one.
    """

    def __init__(
        self,
        fetch: IterableFetch,
        pool: Pool | None,
        *,
        sweep: int,
        turn: int,
        stands: list[Stand],
        depth: int,
        in_order: bool,
    ) -> None:
        self._waiting: list[deque[int]] = [deque() for _ in stands]
        self._fetch, self._pool, self._sweep, self._in_order = fetch, pool, sweep, in_order
        self._depth, self._turn = max(depth, 1), turn
        self._bases, self._each = stands, list(stands)
        self._asked = [stand.batches for stand in stands]
        self._delivered = sum(self._asked)
        self._reading = next(_readings)
        self._came: tuple[int, WorkerBatch] | None = None
        if any(stand.batches and stand.said.state is None and not stand.ended for stand in stands):
            _warn_of_replay(fetch.dataset, "to resume", 6)
        self._fill(stands)

    def next(self) -> tuple[Planned, Fetched]:
        """See `Executor.next`."""
        while True:
            came = self._came
            if came is None:
                came = self._came = self._next()
            worker, piece = came
            each, turn = list(self._each), (worker + 1) % len(self._each)
            before, fetched = each[worker], piece.fetched
            if piece.ended and self._pool is not None:
                self._pool.cancel(self._waiting[worker])
                self._waiting[worker].clear()
            if fetched is None:
                each[worker] = before._replace(said=piece.said, ended=True)
                self._each, self._turn, self._came = each, turn, None
                continue
            each[worker] = Stand(before.batches + 1, before.samples + fetched.items, piece.said, piece.ended)
            self._fill(each)
            at = self._delivered
            memo = {"turn": turn, "each": [stand.to_json() for stand in each]}
            planned = Planned(self._sweep, at, at + 1, None, None, memo=memo)
            self._each, self._turn, self._delivered, self._came = each, turn, at + 1, None
            return planned, fetched

    def _next(self) -> tuple[int, WorkerBatch]:
        active = [worker for worker, stand in enumerate(self._each) if not stand.ended]
        if not active:
            raise StopIteration
        self._fill(self._each)
        worker = next((w for w in active if w >= self._turn), active[0])
        if self._pool is None:
            # What was delivered last is as good a base as any, and the nearest should it be interrupted.
            number = self._asked[0]
            base = self._each[0] if self._each[0].batches == number else self._bases[0]
            try:
                piece = self._fetch.run(BatchRequest(self._reading, self._sweep, number, base))
            except Exception:
                self._asked[0] = number + 1
                raise
            self._asked[0] = number + 1
            return 0, piece
        if not self._in_order:
            first = self._pool.any_of([ticket for w in active for ticket in list(self._waiting[w])[:1]])
            worker = next(w for w in active if self._waiting[w][0] == first)
        waiting = self._waiting[worker]
        turn = (worker + 1) % len(self._each)
        try:
            piece = self._pool.result(waiting[0])
        except Exception:
            del waiting[0]
            self._turn = turn
            raise
        del waiting[0]
        return worker, piece

    def _fill(self, each: list[Stand]) -> None:
        if self._pool is None:
            return
        for _ in range(self._depth):
            for worker, waiting in enumerate(self._waiting):
                if len(waiting) < self._depth and not each[worker].ended:
                    number = self._asked[worker]
                    turn = BatchRequest(self._reading, self._sweep, number, self._bases[worker])
                    ticket = self._pool.submit(turn, worker)
                    self._asked[worker] = number + 1
                    waiting.append(ticket)

    def close(self) -> None:
        """Cancel what is outstanding."""
        if self._pool is not None:
            self._pool.cancel(self._given_up())

    def __del__(self) -> None:
        if hasattr(self, "_came") and self._pool is not None:  # else it was never made, or has no workers
            self._pool.abandon(self._given_up())

    def _given_up(self) -> list[int]:
        tickets = [ticket for waiting in self._waiting for ticket in waiting]
        for waiting in self._waiting:
            waiting.clear()
        return tickets


def _warn_of_replay(dataset: Any, why: str, stacklevel: int) -> None:
    warnings.warn(
        f"{type(dataset).__name__} has no state_dict() and load_state_dict(): {why}, it is iterated from its beginning "
        "to the batch that is next",
        UserWarning,
        stacklevel=stacklevel,
    )


class DeclaredLength:
    """The length that an iterable dataset told, in batches as torch takes it; a warning says if more come.

    Args:
        dataset: the dataset.
        told: what its ``__len__`` said.
        workers: how many read it.
    """

    def __init__(self, dataset: Any, told: int, workers: int) -> None:
        self._dataset, self._told, self._workers = dataset, told, workers

    def check(self, yielded: int) -> None:
        """Warn if more batches came than were told."""
        if yielded <= self._told:
            return
        hint = "; every worker iterates a copy of its own, which has to share out by torch.utils.data.get_worker_info()"
        warnings.warn(
            f"Length of IterableDataset {self._dataset} was said to be {self._told} (by len(loader)), and {yielded} "
            f"came{hint if self._workers else ''}",
            UserWarning,
            stacklevel=3,
        )
