"""Iterable datasets: each worker iterates its own copy, and the loop takes a batch from each in turn.

As in torch, the dataset itself splits its data between workers with ``get_worker_info``. For each worker, a state holds
the number of batches and samples delivered, and the results of ``state_dict`` of the dataset and its iterator. A
dataset without one is iterated again up to that point, with a warning. If samples draw from the global generators of a
worker process, their states are saved too.
"""

from __future__ import annotations

import contextlib
import copy
import json
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from types import GeneratorType
from typing import TYPE_CHECKING, Any, NamedTuple

from feedline import _native
from feedline.concurrency.finalizers import unless_exiting
from feedline.concurrency.fork_local import PerProcess
from feedline.concurrency.turns import lend
from feedline.errors import StateError
from feedline.feed.loader import blame
from feedline.feed.loader import collate as collating
from feedline.feed.loader.fetch import Fetched, WorkerStart, next_items
from feedline.feed.loader.order import Planned
from feedline.feed.loader.pipes import for_thread, keep_part, seed_pipe
from feedline.feed.loader.sample_seeds import WORKER, GlobalStates, SweepKey, seed_process
from feedline.feed.loader.state import whole

if TYPE_CHECKING:
    from feedline.feed.workers import Pool

MAX_ITERATORS = 4  # live iterators of one loader per worker

_readings = count()

_STATELESS = "has no state_dict() and load_state_dict()"


class WorkerState(NamedTuple):
    """State of a worker after a batch.

    Attributes:
        state: ``state_dict`` of the iterator, or of the dataset if the iterator has none. None if neither has one.
        dataset: ``state_dict`` of the dataset, if both have one.
        random: states, by name, of the global generators that this worker's process has drawn from.
    """

    state: Any = None
    dataset: Any = None
    random: dict[str, Any] | None = None


class WorkerProgress(NamedTuple):
    """How much of a worker's part of a sweep was delivered, and the worker's state after that.

    Attributes:
        batches, samples: number delivered.
        saved: state after these batches.
        ended: whether the part has ended.
    """

    batches: int = 0
    samples: int = 0
    saved: WorkerState = WorkerState()
    ended: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the progress in JSON types."""
        fields = {"batches": self.batches, "samples": self.samples, "state": self.saved.state, "ended": self.ended}
        optional = {"dataset": self.saved.dataset, "random": self.saved.random}
        return {**fields, **{name: value for name, value in optional.items() if value is not None}}


def progress_of(memo: Any, workers: int, start: int) -> tuple[int, list[WorkerProgress]]:
    """Return the number of the worker whose turn it is, and the `WorkerProgress` of each worker, from a state.

    Args:
        memo: memo of the state. None: the beginning of a sweep.
        workers: number of workers, at least 1.
        start: number of batches delivered.

    Raises:
        KeyError, TypeError, ValueError: the memo is invalid.
    """
    if memo is None:
        if start:
            raise ValueError("expected a `memo` with what each worker has delivered, got none")
        return 0, [WorkerProgress()] * workers
    if not isinstance(memo, Mapping) or not isinstance(memo["each"], (list, tuple)):
        raise TypeError(f"expected `memo` of an iterable dataset to hold `turn` and `each`, got {memo!r:.80}")
    if len(memo["each"]) != workers:
        raise ValueError(f"expected `each` to hold {workers} workers, got {len(memo['each'])}")
    turn = whole(memo, "turn", workers)
    progress = []
    for entry in memo["each"]:
        if not isinstance(entry, Mapping):
            raise TypeError(f"expected a mapping for each worker, got {entry!r:.80}")
        batches, samples = whole(entry, "batches"), whole(entry, "samples")
        if not isinstance(entry["ended"], bool):
            raise TypeError(f"expected `ended` to be true or false, got {entry['ended']!r:.80}")
        random = entry.get("random")
        if random is not None:
            GlobalStates.check(random)
        state = WorkerState(entry["state"], entry.get("dataset"), random)
        progress.append(WorkerProgress(batches, samples, state, entry["ended"]))
    if sum(part.batches for part in progress) != start:
        raise ValueError(f"expected the batches of all workers to add up to `sequence`, {start}")
    return turn, progress


class BatchRequest(NamedTuple):
    """A request for one batch of a worker.

    Attributes:
        reading: id of the iteration. Loading a state begins a new one of the same sweep.
        sweep: number of the sweep.
        key: key of the sweep's random numbers.
        number: number of the batch among this worker's in the sweep.
        base: progress to begin from if the iteration is not at that batch.
    """

    reading: int
    sweep: int
    key: SweepKey
    number: int
    base: WorkerProgress

    def __repr__(self) -> str:
        """Return a description for errors of workers."""
        return f"<batch {self.number} of this worker in sweep {self.sweep}>"


class WorkerBatch(NamedTuple):
    """A worker's answer to a `BatchRequest`.

    Attributes:
        fetched: the batch. None if this worker has no more.
        saved: state after the batch.
        ended: whether the batch is short, so that none follows. By then a dataset that resets itself at its end
            already returns its initial state.
    """

    fetched: Fetched | None
    saved: WorkerState
    ended: bool = True


@dataclass
class DatasetPast:
    """The history of one copy of a dataset, over all its iterations.

    Attributes:
        firsts: state before each recent sweep. A dataset that keeps its position in itself has to be reset before a
            sweep can be restarted.
        loaded: whether the loader has loaded a state into it.
    """

    firsts: dict[int, Any] = field(default_factory=dict)
    loaded: bool = False


class IterableFetch:
    """A `Task` of the pool over an iterable dataset.

    Args:
        dataset: iterable dataset.
        collate: function that collates the samples of a batch, or converts a single sample.
        size: samples per batch. None if samples are delivered singly.
        drop_last: whether to drop a last batch that is not full.
        start: how workers start.
        past: history of the dataset in this process.
        ranks: (rank, ranks) among which a pipe divides itself.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        collate: Any,
        size: int | None,
        drop_last: bool,
        start: WorkerStart,
        past: DatasetPast,
        ranks: tuple[int, int],
    ) -> None:
        self.dataset, self._collate, self._size, self._drop_last = dataset, collate, size, drop_last
        self._start, self._past, self._ranks = start, past, ranks
        self._of_threads: PerProcess[Any] = PerProcess(threading.local)

    def _reader(self, reading: int) -> _Reader:
        local = self._of_threads.get()
        if not hasattr(local, "readers"):
            local.readers, local.dataset, local.past = {}, self.dataset, self._past
            local.worker = local.generators = None
            keep_part(local.dataset, *self._ranks)
        readers: dict[int, _Reader] = local.readers
        if reading not in readers:
            # Several iterators may be in use at once, and none reports that it no longer is.
            while len(readers) >= MAX_ITERATORS:
                readers.pop(min(readers))
            worker = local.worker if self._start.init is None else None
            readers[reading] = _Reader(local.dataset, worker, local.generators, local.past)
        return readers[reading]

    def start(self, worker: int, workers: int) -> None:
        """See `Task.start`."""
        place = self._start.place
        dataset = for_thread(self.dataset) if place == "thread" else self.dataset
        rank, ranks = self._ranks
        keep_part(dataset, worker * ranks + rank, workers * ranks)  # first among ranks, as torch does
        self._start.begin(dataset, worker, workers)
        local = self._of_threads.get()
        local.readers, local.dataset, local.past = {}, dataset, DatasetPast()
        local.worker, local.generators = (worker, GlobalStates()) if place == "process" else (None, None)

    def run(self, turn: BatchRequest) -> WorkerBatch:
        """See `Task.run`. An interrupted request may be repeated."""
        began, computed = time.perf_counter(), self._start.cpu_s()
        size = self._size or 1
        first = turn.base.samples + (turn.number - turn.base.batches) * size
        reader = self._reader(turn.reading)
        try:
            samples, saved, ended = reader.read(turn, size, self._drop_last)
        except Exception as error:
            if reader.partial is not None:
                blame.in_iterator(error, self.dataset, first + reader.partial)
            raise
        if not samples:
            return WorkerBatch(None, saved)
        read = time.perf_counter()
        try:
            batch = self._collate(samples if self._size is not None else samples[0])
        except Exception as error:
            items = [f"sample {first + i} of this iterator" for i in range(len(samples))]
            if collating.own_form(self._collate) is None or self._size is None:
                blame.in_collate(error, items)
            else:
                blame.in_default_collate(error, samples, items, ragged=False)
            raise
        collating_s, computing_s = time.perf_counter() - read, self._start.cpu_s() - computed
        fetched = Fetched(batch, len(samples), [], read - began, collating_s, computing=computing_s)
        return WorkerBatch(fetched, saved, ended)


class _Reader:
    """One iteration of a dataset.

    Args:
        dataset: dataset to iterate.
        worker: number of the worker whose process this is. None if the reader does not seed the generators.
        generators: states of the generators of this process. None if the training loop uses them too.
        past: history of the dataset.
    """

    def __init__(self, dataset: Any, worker: int | None, generators: GlobalStates | None, past: DatasetPast) -> None:
        self._dataset, self._worker, self._generators, self._past = dataset, worker, generators, past
        self._at: tuple[int, int] | None = None  # sweep and number of the batch in `_samples`
        self._samples: list[Any] = []
        self._saved: WorkerState | None = None  # set once the batch is complete
        self._iterator: Any = None
        self._ended = self._reading = False
        self._untried = False  # `_iterator` was restored, and has yielded nothing yet

    def read(self, turn: BatchRequest, size: int, drop_last: bool) -> tuple[list[Any], WorkerState, bool]:
        """Return the samples of a batch (none at the end), the state after it, and whether it is certainly the last.

        The batch is kept until the next one is requested.
        """
        at = turn.sweep, turn.number
        if self._at != at or (self._reading and not self._goes_on()):
            if self._at != (turn.sweep, turn.number - 1) or self._reading:
                self._begin(turn, size)
            self._samples, self._saved, self._at = [], None, at
        samples = self._samples
        if self._saved is None:
            if not self._ended and len(samples) < size:
                self._reading = True
                try:
                    samples.extend(next_items(self._iterator, size - len(samples)))  # an interrupt keeps these samples
                except Exception as error:
                    if samples or not self._untried or not _is_hugging_face(self._dataset):
                        raise
                    # It reads a state only now, and cannot use it if workers divide shuffled shards.
                    _warn_of_replay(
                        self._dataset, f"could not load the state that it had returned ({error!r}): to resume", 8
                    )
                    self._begin(turn, size, replay=True)
                    self._at = at
                    samples.extend(next_items(self._iterator, size))
                self._reading = self._untried = False
                self._ended = len(samples) < size
            saved = self._worker_state()
            if drop_last and self._ended:
                self._samples = samples = []
            self._saved = saved
        return samples, self._saved, self._ended

    @property
    def partial(self) -> int | None:
        """Number of samples of the batch that is being read. None if no batch is."""
        return len(self._samples) if self._reading else None

    def _goes_on(self) -> bool:
        """Return whether an interrupted iterator can continue. It can if no other object holds the rest of the data."""
        iterator = self._iterator
        if isinstance(iterator, GeneratorType):
            return iterator.gi_frame is not None
        return iterator is self._dataset

    # ---- seeking ---------------------------------------------------------------------------------------

    def _begin(self, turn: BatchRequest, size: int, replay: bool = False) -> None:
        base, old = turn.base, self._iterator if self._reading and not replay else None
        self._at = None
        if replay:
            base = base._replace(saved=WorkerState())
        if self._worker is not None:  # else a worker_init_fn may have seeded them, which takes precedence
            seed_process(_native.hash_key([*turn.key, WORKER, self._worker]))
            if self._generators is not None:
                self._generators.begin()
        if not base.batches and base.saved.state is None:
            base = base._replace(saved=WorkerState(self._before(turn.sweep)))
        if self._past.loaded and base.saved.state is None and _is_hugging_face(self._dataset):
            self._dataset.load_state_dict(None)  # else it would begin every sweep from the loaded state
        seed_pipe(self._dataset, turn.key)
        restored, iterator = self._restore(base.saved)
        if iterator is old and old is not None:
            raise RuntimeError(
                f"expected an iterable dataset that can be iterated again after an interrupt, got a "
                f"{type(self._dataset).__name__} that returns the same iterator again, whose position is unknown: "
                "create another loader"
            )
        skip = (turn.number - base.batches) * size + (0 if restored else base.samples)
        if old is not None and skip:
            _warn_of_replay(self._dataset, f"{_STATELESS}: to continue after an interrupt", 8)
        if restored and base.saved.random is not None and self._generators is not None:
            self._generators.load(base.saved.random)
        self._ended = False
        while skip > 0 and (passed := len(list(next_items(iterator, min(skip, 1 << 10))))):  # Ctrl-C works in between
            skip -= passed
        self._iterator, self._reading, self._untried = iterator, False, restored
        self._past.loaded = self._past.loaded or restored

    def _before(self, sweep: int) -> Any:
        """Return the dataset's state before a sweep that is restarted, or None for a new sweep or a dataset without
        state."""
        firsts = self._past.firsts
        if sweep in firsts:
            return firsts[sweep]
        first = None
        with contextlib.suppress(Exception):  # it may have no state before its first iteration
            first = _state_of(self._dataset)
        for old in sorted(firsts)[: len(firsts) - MAX_ITERATORS]:
            del firsts[old]
        firsts[sweep] = first
        return None

    def _restore(self, saved: WorkerState) -> tuple[bool, Any]:
        """Return whether the iterator is positioned where ``saved`` was saved, and the iterator.

        ``__iter__`` of a dataset may create the objects into which it loads a state, or discard a loaded state. Then
        the state is loaded (again) after ``__iter__``.
        """
        dataset, state = self._dataset, saved.state if saved.dataset is None else saved.dataset
        if state is None:
            return False, iter(dataset)
        early, failed, reflected = hasattr(dataset, "load_state_dict"), None, False
        if early:
            try:
                dataset.load_state_dict(copy.deepcopy(state))
                reflected = _reports(dataset, state)
            except AttributeError as error:
                failed = error
        iterator = iter(dataset)
        if early and (failed is not None or (reflected and not _reports(dataset, state))):
            try:
                dataset.load_state_dict(copy.deepcopy(state))
            except AttributeError as error:
                raise StateError(
                    f"{type(dataset).__name__}.load_state_dict raised {error!r}, before __iter__ and after it",
                    saved={"state": state},
                    hint="create what it needs in __init__, or in an __iter__ that is not a generator function",
                ) from error
        if saved.dataset is not None or not early:
            owner = next((o for o in (iterator, dataset) if hasattr(o, "load_state_dict")), None)
            if owner is None:
                return early, iterator
            owner.load_state_dict(copy.deepcopy(saved.state))
        return True, iterator

    def _worker_state(self) -> WorkerState:
        random = None if self._generators is None else self._generators.now() or None
        position = _state_of(self._iterator) if self._iterator is not self._dataset else None
        of_dataset = _state_of(self._dataset)
        return WorkerState(of_dataset, None, random) if position is None else WorkerState(position, of_dataset, random)


def _state_of(owner: Any) -> Any:
    return copy.deepcopy(owner.state_dict()) if hasattr(owner, "state_dict") else None


def _reports(dataset: Any, state: Any) -> bool:
    """Return whether the dataset reports ``state``, in which JSON has turned tuples into lists."""
    try:
        saved = _state_of(dataset)
    except AttributeError:
        return False
    return _text(saved) == _text(state)


def _text(state: Any) -> str:
    return json.dumps(state, sort_keys=True, default=repr)


class IterableExecutor:
    """The `Executor` of batches from all workers in turn.

    Args:
        fetch: task that makes batches here if there are no workers.
        pool: pool of workers, or None without any.
        sweep: number of the sweep.
        key: key of the sweep's random numbers.
        turn, progress: number of the worker whose turn it is, and the progress of each worker.
        depth: batches in flight per worker.
        in_order: whether workers take turns. If not, the first worker that has a batch delivers it.
        loader: object that the threads of the pool `serve`.
    """

    def __init__(
        self,
        fetch: IterableFetch,
        pool: Pool | None,
        *,
        sweep: int,
        key: SweepKey,
        turn: int,
        progress: list[WorkerProgress],
        depth: int,
        in_order: bool,
        loader: object,
    ) -> None:
        self._waiting: list[deque[int]] = [deque() for _ in progress]
        self._fetch, self._pool, self._sweep, self._key, self._in_order = fetch, pool, sweep, key, in_order
        self._depth, self._turn, self._loader = depth, turn, loader
        self._bases, self._each = progress, list(progress)
        self._asked = [part.batches for part in progress]
        self._delivered = sum(self._asked)
        self._reading = next(_readings)
        self._received: tuple[int, WorkerBatch] | None = None
        if any(part.batches and part.saved.state is None and not part.ended for part in progress):
            _warn_of_replay(fetch.dataset, f"{_STATELESS}: to resume", 6)
        self._fill(progress)

    def next(self) -> tuple[Planned, Fetched]:
        """See `Executor.next`."""
        while True:
            received = self._received
            if received is None:
                received = self._received = self._next()
            worker, piece = received
            each, turn = list(self._each), (worker + 1) % len(self._each)
            before, fetched = each[worker], piece.fetched
            if piece.ended and self._pool is not None:
                self._pool.cancel(self._waiting[worker])
                self._waiting[worker].clear()
            if fetched is None:
                each[worker] = before._replace(saved=piece.saved, ended=True)
                self._each, self._turn, self._received = each, turn, None
                continue
            each[worker] = WorkerProgress(before.batches + 1, before.samples + fetched.items, piece.saved, piece.ended)
            self._fill(each)
            at = self._delivered
            memo = {"turn": turn, "each": [part.to_json() for part in each]}
            planned = Planned(self._sweep, at, at + 1, None, None, memo=memo)
            self._each, self._turn, self._delivered, self._received = each, turn, at + 1, None
            return planned, fetched

    def _next(self) -> tuple[int, WorkerBatch]:
        active = [worker for worker, part in enumerate(self._each) if not part.ended]
        if not active:
            raise StopIteration
        self._fill(self._each)
        worker = next((w for w in active if w >= self._turn), active[0])
        if self._pool is None:
            # The last delivered position is also a valid base, and the nearest one after an interrupt.
            number = self._asked[0]
            base = self._each[0] if self._each[0].batches == number else self._bases[0]
            try:
                piece = self._fetch.run(BatchRequest(self._reading, self._sweep, self._key, number, base))
            except Exception:
                self._asked[0] = number + 1
                raise
            self._asked[0] = number + 1
            return 0, piece
        pool, places = self._pool, [worker] if self._in_order else active
        tickets = [ticket for w in places for ticket in list(self._waiting[w])[:1]]
        lend(self._loader, lambda: pool.any_of(tickets))
        if not self._in_order:
            first = pool.any_of(tickets)
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

    def _fill(self, each: list[WorkerProgress]) -> None:
        if self._pool is None:
            return
        for _ in range(self._depth):
            for worker, waiting in enumerate(self._waiting):
                if len(waiting) < self._depth and not each[worker].ended:
                    number = self._asked[worker]
                    turn = BatchRequest(self._reading, self._sweep, self._key, number, self._bases[worker])
                    ticket = self._pool.submit(turn, worker)
                    self._asked[worker] = number + 1
                    waiting.append(ticket)

    def close(self) -> None:
        """Cancel the batches in flight."""
        if self._pool is not None:
            self._pool.cancel(self._give_up())

    @unless_exiting
    def __del__(self) -> None:
        if hasattr(self, "_received") and self._pool is not None:  # else __init__ failed, or there are no workers
            self._pool.abandon(self._give_up())

    def _give_up(self) -> list[int]:
        tickets = [ticket for waiting in self._waiting for ticket in waiting]
        for waiting in self._waiting:
            waiting.clear()
        return tickets


def _is_hugging_face(dataset: Any) -> bool:
    datasets = sys.modules.get("datasets")
    return datasets is not None and isinstance(dataset, datasets.IterableDataset)


def _warn_of_replay(dataset: Any, why: str, level: int) -> None:
    warnings.warn(f"{type(dataset).__name__} {why}, it is read from the start up to the next batch", stacklevel=level)


def warn_of_more(dataset: Any, declared: int, workers: int, yielded: int) -> None:
    """Warn if an iterable dataset has yielded more batches than its ``__len__`` promised.

    Args:
        dataset: the iterable dataset.
        declared: the length that its ``__len__`` returned.
        workers: number of workers that read it.
        yielded: number of batches delivered.
    """
    if yielded <= declared:
        return
    hint = (
        " For multiprocessing data-loading, this means that every worker iterates over all of its own copy: each has "
        "to take its share by torch.utils.data.get_worker_info()"
    )
    warnings.warn(
        f"Length of IterableDataset {dataset} was reported to be {declared} (when accessing len(loader)), "
        f"but {yielded} samples have been fetched.{hint if workers else ''}",
        stacklevel=3,
    )
