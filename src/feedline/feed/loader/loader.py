"""`DataLoader`: torch's constructor over one order, one clock and a pool that never drains.

The order is a function of (seed, sweep), workers make batches of it in any number, and a state is a place in it. What
each part does is told where it is done: `order` and `sampling` (which items), `fetch` and `iterable` (reading them),
`random` (augmentation), `collate` and `gather` (batches), `executor` (who makes them), `state`, `arguments`.
"""

from __future__ import annotations

import os
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from feedline.feed.loader import arguments, corpus, order, ragged, sampling, state
from feedline.feed.loader import collate as collating
from feedline.feed.loader.executors import (
    MOST_AHEAD,
    Executor,
    InProcessExecutor,
    PoolExecutor,
    RemainingBatches,
    gathered,
)
from feedline.feed.loader.fetch import Fetch, unit_of
from feedline.feed.loader.gather import ColumnItems, columnar, columns_of
from feedline.feed.loader.identity import digest_of
from feedline.feed.loader.iterable import IterableExecutor, IterableFetch, stands_of
from feedline.feed.loader.iterator import LoaderIterator, SweepProgress
from feedline.feed.loader.order import (
    BatchRule,
    BatchSampler,
    Items,
    ItemSampler,
    Order,
    Planned,
    PlannedSweep,
    Weighted,
)
from feedline.feed.loader.random import Seeding
from feedline.feed.loader.staged import StagedExecutor, in_files
from feedline.feed.loader.state import ResumePoint
from feedline.feed.loader.stats import LoaderStats
from feedline.feed.partition import Partition
from feedline.feed.quarantine import Quarantine
from feedline.feed.workers import Pool

_FIXED = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")


class DataLoader:
    """Batches of a dataset: `torch.utils.data.DataLoader`, with an order, a state and workers that keep promises.

    Parameters that torch has mean what they mean there; the rest follows them. Each ``iter`` is the next sweep over the
    data, also after a ``break``. Several iterators may be in use at once.

    Args:
        dataset: map-style (``__getitem__`` and ``__len__``, ``__getitems__`` is used where there is one) or an
            `IterableDataset`. Arrays, tensors, tuples and dictionaries of them, and `TensorDataset` are gathered, a
            batch in one call. A feedline corpus, or a path that `open_corpus` takes: batches are dictionaries by
            stream name.
        batch_size: items of a batch of this rank; None: items come one by one, not in batches.
        shuffle: permute the items anew each sweep.
        sampler, batch_sampler: an order of your own: an iterable of indices, or of lists of them.
        num_workers: processes or threads that make batches; 0: none, batches are made in ``next``.
        collate_fn: makes a batch of a list of items.
        pin_memory: put batches into pinned memory, where there is an accelerator.
        drop_last: leave out a last batch that is not full.
        timeout: seconds to wait for a batch from workers; 0: for ever.
        worker_init_fn: called with its number in each worker when it starts.
        multiprocessing_context: how processes start: "forkserver" (the default here), "spawn", "fork" or a context.
        generator: what ``seed`` is drawn from.
        prefetch_factor: batches made ahead, for each worker. Left out, at least 2, and more as long as they are small.
        persistent_workers: without effect: workers always live as long as the loader.
        pin_memory_device: without effect, as in torch: the accelerator is found.
        in_order: False: hand out batches as they come; the state then lists what came before its turn.
        seed: of order and random numbers, 0 <= seed < 2**64. None: drawn once, from ``generator`` or torch's global
            generator, so that ``torch.manual_seed`` decides; it is in the state.
        workers: "process", "thread", or "auto": threads where Python runs without the GIL, else processes.
        partition: (index, count): deliver this rank's part of global batches of ``batch_size * count`` items; "auto":
            the rank and world size of torch.distributed. All ranks get equally many batches, perhaps an empty last one.
        on_error: "skip": an item that raises keeps its place in the order and is left out of its batch.
        quarantine, max_errors: with ``on_error="skip"``, as for `MinibatchSource`.
        batch_samples: instead of ``batch_size``, at most so many samples in a batch of this rank, for items of varying
            length; a longer item comes alone. Needs ``lengths``, except for corpora. Every array of an item with at
            least one dimension is a sequence along its first; the lengths stand last in a batch, int64 (items,), or
            under the key ``"lengths"``.
        lengths: (items,), samples of each item.
        layout: of sequences in a batch: "padded" with zeros, (items, longest, ...), or "packed", (samples, ...).
        weights: (items,): draw as many items as there are, with replacement, in these proportions.
        device: deliver tensors there; on CUDA copied ahead, beside the computation.
        snapshot_every_n_steps: without effect, for torchdata's `StatefulDataLoader`: a state can be had at any time.

    Raises:
        ValueError, TypeError: arguments that have no meaning or contradict each other.
    """

    _ready = False

    __class_getitem__: Any = classmethod(types.GenericAlias)  # DataLoader[T] in annotations, as torch's

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        workers: str = "auto",
        partition: tuple[int, int] | str | None = None,
        on_error: str = "raise",
        quarantine: str | Path | None = None,
        max_errors: int | None = None,
        batch_samples: int | None = None,
        lengths: ArrayLike | None = None,
        layout: str = "padded",
        weights: ArrayLike | None = None,
        device: Any = None,
        snapshot_every_n_steps: int | None = None,
    ) -> None:
        given = dict(locals())
        self._grows = prefetch_factor is None
        self.prefetch_factor = arguments.check_workers(
            num_workers, timeout, prefetch_factor, persistent_workers, workers
        )
        dataset = corpus.opened(dataset)
        self._corpus = corpus.is_corpus(dataset)
        self._iterable = not self._corpus and arguments.is_iterable_style(dataset)
        arguments.check_batching(self._iterable, batch_size, shuffle, sampler, batch_sampler, drop_last)
        arguments.check_own(given, self._iterable)
        if self._corpus:
            corpus.check(given)
        self.dataset, self.num_workers, self.timeout = dataset, num_workers, timeout
        self.worker_init_fn, self.generator, self.in_order = worker_init_fn, generator, in_order
        self.pin_memory, self.pin_memory_device = pin_memory, pin_memory_device
        self.persistent_workers = persistent_workers
        self.multiprocessing_context = multiprocessing_context
        self.batch_size = None if batch_sampler is not None or batch_samples is not None else batch_size
        self.drop_last = drop_last
        self._workers, self._share, self._device = workers, arguments.share_of(partition), device
        self._layout, self._batch_samples, self._shuffle = layout, batch_samples, bool(shuffle)
        self._user_sampler = sampler if sampler is not None else batch_sampler
        self._skip = on_error == "skip"
        self._listing = {"quarantine": quarantine, "max_errors": max_errors}
        self._quarantine = Quarantine(quarantine, max_errors) if self._skip else None

        self._seed_given = seed is not None
        self._seed = _drawn_seed(generator) if seed is None else seed
        self._items = ColumnItems(dataset) if not self._corpus and columnar(dataset) else dataset
        n = 0 if self._iterable or self._corpus else _length(self._items, needed=self._user_sampler is None)
        self._weights = None if weights is None else order.checked_weights(weights, n)
        if batch_samples is not None and not self._corpus:
            if lengths is None:
                raise ValueError(
                    "expected lengths= with batch_samples, the number of samples of each item: what fits into a batch "
                    "is decided before items are read"
                )
            self._lengths: Any = order.checked_lengths(lengths, n)
        else:
            if lengths is not None:
                raise ValueError("expected lengths with batch_samples only")
            self._lengths = None
        if shuffle and not self._corpus and n == 0:
            raise ValueError("expected at least one item to shuffle, got a dataset of 0")
        self._order: Order | None = None
        if not (self._iterable or self._corpus) and self._user_sampler is None:
            self._order = self._order_of(n)

        batched = batch_size is not None or batch_sampler is not None
        default = collating.default_functions()[0 if batched else 1]
        if batch_samples is not None and not self._corpus:
            default = ragged.Collate(layout)
        self.collate_fn: Callable[[Any], Any] = default if collate_fn is None else collate_fn
        self.sampler, self.batch_sampler = self._samplers(sampler, batch_sampler, batched)

        if num_workers and self._kind() == "process":
            arguments.warn_of_many(num_workers)
        self._next_sweep = 0
        self._resume: ResumePoint | None = None
        self._progress: SweepProgress | None = None
        self._pool: Pool | None = None
        self._seeding: Seeding | None = None
        self._stats = LoaderStats()
        self._firsts: dict[int, Any] = {}  # of an iterable dataset that is read here, see `iterable`
        self._entering = os.getpid(), threading.RLock()
        self._told_length: int | None = None
        self._digest: tuple[int, str | None] | None = None  # for a length of the dataset, what identifies it
        self._ahead: PoolExecutor | None = None
        self._source: corpus.CorpusBatches | None = None
        self._ready = True

    # ---- attributes as torch has them --------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        if self._ready and name in _FIXED:
            raise ValueError(
                f"{name} cannot be set once {type(self).__name__} is made: it decides the batches; make another loader"
            )
        super().__setattr__(name, value)

    @property
    def multiprocessing_context(self) -> Any:
        """How worker processes start; None: by forkserver."""
        return self._context

    @multiprocessing_context.setter
    def multiprocessing_context(self, context: Any) -> None:
        self._context = arguments.start_method(context, self.num_workers)

    def _samplers(self, sampler: Any, batch_sampler: Any, batched: bool) -> tuple[Any, Any]:
        own = ItemSampler(weakref.WeakMethod(self._upcoming))
        if batch_sampler is not None:
            return own, batch_sampler
        if not batched:
            return own if sampler is None else sampler, None
        if sampler is not None:
            return sampler, BatchSampler(sampler, self.batch_size or 1, self.drop_last, None)
        if self._iterable or self._corpus:
            return own, BatchSampler(own, self.batch_size or 1, self.drop_last, None)
        return own, BatchSampler(own, self.batch_size or 1, self.drop_last, weakref.WeakMethod(self._upcoming_batches))

    def _upcoming(self) -> tuple[Order, int]:
        """Order and sweep of the next iterator."""
        found = self._current_order(self._resume is not None)
        if found is None:
            raise TypeError(f"expected a map-style dataset with an order of the loader's own, got {self.dataset!r:.80}")
        return found, self._coming()

    def _coming(self) -> int:
        return self._next_sweep if self._resume is None else self._resume.sweep

    def _upcoming_batches(self) -> tuple[Iterator[Planned], int]:
        found, sweep = self._upcoming()
        cut = self._cut(self._shared())
        return order.batches(found, cut, sweep, 0), order.count(found, cut, sweep)

    def __len__(self) -> int:
        """Batches of a sweep; of an iterable dataset, what its ``__len__`` says. With ``batch_samples`` the number
        differs between sweeps: that of the next one.

        Raises:
            TypeError: dataset or sampler have no length.
        """
        if self._corpus:
            return self._corpus_source().batches(self._coming(), self.drop_last)
        if self._iterable:
            self._told_length = length = len(self.dataset)
            if self.batch_size is None:
                return length
            return length // self.batch_size if self.drop_last else -(-length // self.batch_size)
        if self._user_sampler is not None:
            return len(self.sampler if self.batch_sampler is None else self.batch_sampler)
        found, sweep = self._upcoming()
        return order.count(found, self._cut(self._shared()), sweep)

    # ---- iteration ---------------------------------------------------------------------------------

    def __iter__(self) -> LoaderIterator:
        """The next sweep, or after `load_state_dict` the rest of the one that was saved."""
        progress = before = None
        try:
            with self._alone():  # threads that begin at once are given a sweep each
                place = self._resume or ResumePoint(self._next_sweep)
                share = self._shared()
                self._follow(self._current_order(self._resume is not None))
                progress = SweepProgress(place)
                resume = self._resume
                if resume is None and self._user_sampler is not None:
                    # Workers draw from it at once: to try again, it has to be put back.
                    memo = sampling.before(self._user_sampler)
                    resume = None if memo is None else place._replace(memo=memo)
                before = resume, self._progress, self._next_sweep
                self._resume, self._progress, self._next_sweep = None, progress, place.sweep + 1
                return LoaderIterator(self, self._executor(place, share, progress), progress, share)
        except BaseException:  # what fails, or is interrupted, can be tried again
            if before is not None and self._progress is progress:
                self._resume, self._progress, self._next_sweep = before
            raise

    def _alone(self) -> Any:
        """A lock of this process: that of a parent may be held by a thread that is not here."""
        if self._entering[0] != os.getpid():
            self._entering = os.getpid(), threading.RLock()
        return self._entering[1]

    def _executor(self, place: ResumePoint, share: tuple[int, int], progress: SweepProgress) -> Executor:
        if self._corpus:
            return self._corpus_source().executor(place, self.drop_last)
        if self._iterable:
            return self._turns(place)
        rest = self._rest(place, share)
        known = collating.known(self.collate_fn)
        if known is collating.collate and self.worker_init_fn is None:
            columns = columns_of(self.dataset)
            files = None if columns is None else in_files(columns)
            if columns is not None and files is not None:
                own = self._order  # a sampler of the user's is asked when its batch is
                in_order = own is not None and not (self._shuffle or own.replaces)
                return StagedExecutor(rest, columns, files, in_order, own is not None, self._skip)
            if columns is not None:
                return InProcessExecutor(rest, gathered(columns))
        kind = self._kind()
        if kind == "here":
            run = self._fetch(kind).run
            return InProcessExecutor(rest, lambda planned: run(unit_of(planned)))
        pool = self._pool_of(lambda: self._fetch(kind))
        depth = max(self.prefetch_factor or 1, 1) * self.num_workers
        owner, newest = weakref.ref(self), weakref.ref(progress)

        def beyond() -> RemainingBatches | None:
            loader = owner()
            if loader is None or kind != "process" or loader._order is None or loader._resume is not None:
                return None
            # Only for the iterator that was made last: which sweep comes after another one's is not known.
            if loader._progress is not newest():
                return None
            return loader._rest(ResumePoint(loader._next_sweep), share)

        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            if place == ResumePoint(place.sweep) and ahead.carry_on(place.sweep, share, beyond):
                return ahead
            ahead.close()
        in_order = self.in_order or hasattr(self._user_sampler, "state_dict")  # states of others would not tell
        return PoolExecutor(rest, pool, place.sweep, share, -depth if self._grows else depth, in_order, beyond)

    def _rest(self, place: ResumePoint, share: tuple[int, int]) -> RemainingBatches:
        if self._order is not None:
            found, cut, sweep, done = self._order, self._cut(share), place.sweep, place.done
            return PlannedSweep(lambda start: order.batches(found, cut, sweep, start, done), place.start)
        batches = self.batch_size is None and self.batch_sampler is not None
        return sampling.Sampled(self._user_sampler, self.batch_size, batches, self.drop_last, self._seed, place)

    def _turns(self, place: ResumePoint) -> IterableExecutor:
        kind = self._kind()
        turn, stands = stands_of(place.memo, max(self.num_workers, 1), place.start, self.batch_size)

        def fetch() -> IterableFetch:
            collate = collating.known(self.collate_fn) or self.collate_fn
            size = self.batch_size
            init, firsts = self.worker_init_fn, self._firsts
            return IterableFetch(self.dataset, collate, size, self.drop_last, self._seed, init, kind, firsts)

        if kind == "here":
            return IterableExecutor(fetch(), None, place.sweep, turn, stands, 1, True)
        made = fetch()
        pool = self._pool_of(lambda: made)
        return IterableExecutor(made, pool, place.sweep, turn, stands, self.prefetch_factor or 1, self.in_order)

    def _fetch(self, kind: str) -> Fetch:
        batched = self.batch_size is not None or self.batch_sampler is not None
        fetch = Fetch(self._items, self.collate_fn, batched, self._skip, self._seed, self.worker_init_fn, kind)
        if kind == "here":
            # What samples draw from is found out once, not every sweep.
            self._seeding = fetch.seed_with(self._seeding)
        return fetch

    def _kind(self) -> str:
        if self.num_workers == 0:
            return "here"
        return _workers_kind(self._workers)

    def _pool_of(self, task: Callable[[], Any]) -> Pool:
        if self._pool is None:
            kind = self._kind()
            depth = MOST_AHEAD if self._grows else max(self.prefetch_factor or 1, 1)
            self._pool = Pool(
                task(),
                self.num_workers,
                kind="thread" if kind == "thread" else "process",
                method=self._context,
                depth=depth,
                timeout=self.timeout,
            )
        return self._pool

    def _cut(self, share: tuple[int, int]) -> BatchRule:
        if self._batch_samples is not None:
            return BatchRule(self._batch_samples, share, self.drop_last, self._lengths)
        return BatchRule(self.batch_size, share, self.drop_last)

    def _shared(self) -> tuple[int, int]:
        return self._share.resolve() if isinstance(self._share, Partition) else self._share

    def _order_of(self, n: int) -> Order:
        if self._weights is not None:
            return Weighted(self._weights, self._seed)
        return Items(n, self._seed, self._shuffle)

    def _current_order(self, resuming: bool) -> Order | None:
        """The loader's own order over the dataset as long as it is now, which torch follows too.

        Raises:
            ValueError: it has another length, and something else hangs on that.
        """
        if self._order is None:
            return None
        n = _length(self._items, needed=True)
        if n == self._order.length:
            return self._order
        if self._weights is not None or self._lengths is not None or resuming:
            raise ValueError(
                f"expected {self._order.length} items, as when the loader was made or its state was loaded, got {n}"
            )
        return self._order_of(n)

    def _follow(self, current: Order | None) -> None:
        """Go on with this order. Workers that have the dataset as it was, and batches of it, are of no use then."""
        if current is not self._order:
            self._drop_ahead()
            self._pool, self._order = None, current  # iterators that are still in use keep their workers

    # ---- state -------------------------------------------------------------------------------------

    def _identity(self, current: Order | None) -> dict[str, Any]:
        if self._corpus:
            return self._corpus_source().identity()
        seed = f"{self._seed:016x}"
        if self._iterable:
            return {"order": "iterable", "seed": seed, "workers": self.num_workers}
        if current is not None:
            identity = {"order": current.name, **current.identity()}
        else:
            batches = self.batch_size is None and self.batch_sampler is not None
            identity = {"order": "batch sampler" if batches else "sampler", "seed": seed}
        n = 0 if current is None else current.length
        if self._digest is None or self._digest[0] != n:
            # A dataset that has grown since the sweep began is no longer what the sweep is over.
            same = current is None or _length(self._items, needed=True) == n
            self._digest = n, digest_of(self.dataset) if same else None
        digest = self._digest[1]
        return identity if digest is None else {**identity, "dataset": digest}

    def state_dict(self) -> dict[str, Any]:
        """What follows the last batch delivered by the iterator made last: a few numbers in JSON types.

        Load it under any batch size, number of workers, method of loading or partition; an iterable dataset's under
        the same number of workers. What iterable datasets and samplers say in ``state_dict`` of their own is in it as
        they say it, so that has to be JSON too.
        """
        place = self._resume or ResumePoint(self._next_sweep) if self._progress is None else self._progress.place
        return state.to_json(self._identity(self._order), place)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to where a state was taken: the next ``iter`` continues there. Reads no data.

        A loader that was given no ``seed`` takes that of the state.

        Raises:
            StateError: the state belongs to other data, another order or another version.
        """
        with self._alone():
            fixed = self._weights is not None or self._lengths is not None
            current = self._order if fixed else self._current_order(False)
            saved, identity = state.seed_of(state_dict), self._identity(current)
            reseeds = saved is not None and not self._seed_given and saved != self._seed
            if reseeds:
                identity["seed"] = f"{saved:016x}"
            place = state.from_json(state_dict, identity, self._check_memo, self._places(current))
            self._follow(current)
            self._drop_ahead()
            if saved is not None and reseeds:
                self._reseed(saved)
            self._resume, self._progress = place, None

    def _check_memo(self, memo: Any, start: int) -> None:
        if self._iterable:
            stands_of(memo, max(self.num_workers, 1), start, self.batch_size)
        elif self._user_sampler is not None:
            sampling.check_memo(memo)
        else:
            state.no_memo(memo, start)

    def _reseed(self, seed: int) -> None:
        self._seed = seed
        if self._order is not None:
            self._order = self._order_of(self._order.length)
        self.close()  # workers have the old one
        self._source = self._seeding = None

    # ---- the rest ----------------------------------------------------------------------------------

    def stats(self) -> LoaderStats:
        """What was delivered so far, and where the time went."""
        if self._pool is not None:
            self._stats.workers = self._pool.stats().workers
        return self._stats

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers; none before the first ``iter``, or without processes."""
        return list(self._pool.pids) if self._pool is not None and self._kind() == "process" else []

    def _places(self, current: Order | None) -> int | None:
        """Places of a sweep; of a sampler of the user's, only drawing tells."""
        if self._corpus:
            return self._corpus_source().items
        return None if current is None else current.length

    def _drop_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()

    def close(self) -> None:
        """End the workers. The loader can be used again: they are started anew."""
        self._drop_ahead()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Everything but workers: a copy starts its own."""
        place = self._resume or ResumePoint(self._next_sweep) if self._progress is None else self._progress.place
        return {
            **self.__dict__,
            "_pool": None,
            "_entering": None,
            "_ahead": None,
            "_source": None,
            "_seeding": None,
            "_progress": None,
            "_resume": place,
            "_order": None if self._order is None else self._order.length,
            "sampler": None if isinstance(self.sampler, ItemSampler) else self.sampler,
            "batch_sampler": None if isinstance(self.batch_sampler, BatchSampler) else self.batch_sampler,
        }

    def __setstate__(self, saved: dict[str, Any]) -> None:
        length = saved.pop("_order")
        batched = saved["batch_size"] is not None or saved["_batch_samples"] is not None
        self.__dict__.update(saved, _ready=False, _entering=(os.getpid(), threading.RLock()))
        self._order = None if length is None else self._order_of(length)
        batch_sampler = saved["batch_sampler"]
        self.sampler, self.batch_sampler = self._samplers(saved["sampler"], batch_sampler, batched)
        self._ready = True

    def __repr__(self) -> str:
        how = "shuffled" if self._shuffle else "weighted" if self._weights is not None else "in order"
        size = f"{self._batch_samples} samples" if self._batch_samples else f"{self.batch_size} items"
        workers = f"{self.num_workers} {self._kind()} workers" if self.num_workers else "no workers"
        return f"DataLoader({type(self.dataset).__name__}, batches of {size}, {how}, {workers})"

    def _corpus_source(self) -> corpus.CorpusBatches:
        if self._source is None:
            self._source = corpus.CorpusBatches(
                self.dataset,
                seed=self._seed,
                shuffle=self._shuffle,
                share=self._shared,
                size=self.batch_size,
                samples=self._batch_samples,
                layout=self._layout,
                threads=max(self.num_workers, 2),
                collate=self.collate_fn,
                errors={"on_error": "skip", **self._listing} if self._skip else {},
            )
        return self._source


def _drawn_seed(generator: Any) -> int:
    torch = collating.torch_side()
    if torch is not None:
        drawn: int = torch.first_seed(generator)
        return drawn
    return int(np.random.randint(0, 2**63 - 1, dtype=np.int64))


def _length(dataset: Any, needed: bool) -> int:
    """Items of a map-style dataset; 0 if it does not say and a sampler does."""
    if not needed:
        return 0
    try:
        return len(dataset)
    except TypeError as error:
        raise TypeError(
            f"expected a dataset with __len__ (or a sampler, or an IterableDataset), got {type(dataset).__name__}"
        ) from error


def _workers_kind(workers: str) -> str:
    if workers != "auto":
        return workers
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    return "process" if gil else "thread"
