"""`DataLoader`: torch's constructor over one order, one clock and a pool that never drains.

The order is a function of (seed, sweep), workers make batches of it in any number, and a state is a place in it. The
loader itself only connects parts: `options` checks the arguments, `batches` says what there is to deliver, `factory`
makes the executor of a sweep, `iterator` delivers it, and `sweeps` remembers where it stands.
"""

from __future__ import annotations

import copy
import os
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from feedline.feed.loader import collate as collating
from feedline.feed.loader import order, state
from feedline.feed.loader.batches import Batches, ItemBatches
from feedline.feed.loader.factory import ExecutorFactory, batches_of
from feedline.feed.loader.iterable import DeclaredLength
from feedline.feed.loader.iterator import LoaderIterator
from feedline.feed.loader.options import LoaderOptions, warn_of_many
from feedline.feed.loader.order import BatchSampler, ItemSampler, Order, Planned
from feedline.feed.loader.stats import LoaderStats
from feedline.feed.loader.sweeps import LoaderStanding, SweepProgress, Sweeps
from feedline.feed.quarantine import Quarantine

_FIXED = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")
_CHANGEABLE = (
    "num_workers",
    "timeout",
    "worker_init_fn",
    "generator",
    "in_order",
    "pin_memory",
    "pin_memory_device",
    "multiprocessing_context",
    "prefetch_factor",
    "collate_fn",
)


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

    dataset: Any
    num_workers: int
    timeout: float
    worker_init_fn: Callable[[int], Any] | None
    generator: Any
    in_order: bool
    pin_memory: bool
    pin_memory_device: str
    multiprocessing_context: Any
    prefetch_factor: int | None
    persistent_workers: bool
    collate_fn: Callable[[Any], Any]
    drop_last: bool

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
        del given["self"]
        options = LoaderOptions(**given)
        self._seed_given = seed is not None
        batches = batches_of(options, _drawn_seed(generator) if seed is None else seed)
        if options.kind == "process":
            warn_of_many(num_workers)
        for name in ("dataset", "drop_last", "persistent_workers", *_CHANGEABLE):
            setattr(self, name, getattr(options, name))
        self.batch_size = options.indices
        self.sampler, self.batch_sampler = self._samplers(options)
        self._quarantine = Quarantine(quarantine, max_errors) if options.skips else None
        self._stats = LoaderStats()
        self._declared: DeclaredLength | None = None
        self._sweeps, self._factory = Sweeps(LoaderStanding()), ExecutorFactory()
        self._entering = os.getpid(), threading.RLock()
        self._batches = batches  # the last one: from here on attributes are guarded

    # ---- attributes as torch has them --------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        if "_batches" in self.__dict__:
            if name in _FIXED:
                raise ValueError(
                    f"{name} cannot be set once {type(self).__name__} is made: it decides the batches; make another "
                    "loader"
                )
            if name in _CHANGEABLE:
                options = self._batches.options.replaced(name, value)
                self._batches, value = self._batches.adapted(options), getattr(options, name)
        super().__setattr__(name, value)

    def _samplers(self, options: LoaderOptions) -> tuple[Any, Any]:
        own = ItemSampler(weakref.WeakMethod(self._upcoming))
        if options.batch_sampler is not None:
            return own, options.batch_sampler
        sampler = own if options.sampler is None else options.sampler
        if not options.batched:
            return sampler, None
        planned = options.sampler is None and not (options.is_iterable or options.is_corpus)
        upcoming = weakref.WeakMethod(self._upcoming_batches) if planned else None
        return sampler, BatchSampler(sampler, options.indices or 1, options.drop_last, upcoming)

    def _upcoming(self) -> tuple[Order, int]:
        """Order and sweep of the next iterator."""
        batches, sweep = self._upcoming_items()
        return batches.order, sweep

    def _upcoming_items(self) -> tuple[ItemBatches, int]:
        now = self._sweeps.now
        batches = self._batches.current(now.resume is not None)
        if not isinstance(batches, ItemBatches):
            raise TypeError(f"expected a map-style dataset with an order of the loader's own, got {self.dataset!r:.80}")
        return batches, now.upcoming.sweep

    def _upcoming_batches(self) -> tuple[Iterator[Planned], int]:
        batches, sweep = self._upcoming_items()
        rule = batches.rule(batches.options.share.resolve())
        return order.batches(batches.order, rule, sweep, 0), order.count(batches.order, rule, sweep)

    def __len__(self) -> int:
        """Batches of a sweep; of an iterable dataset, what its ``__len__`` says. With ``batch_samples`` the number
        differs between sweeps: that of the next one.

        Raises:
            TypeError: dataset or sampler have no length.
        """
        now = self._sweeps.now
        count = self._batches.current(now.resume is not None).count(now.upcoming.sweep)
        if self._batches.options.is_iterable:
            self._declared = DeclaredLength(self.dataset, len(self.dataset), self.num_workers)
        return count

    # ---- iteration ---------------------------------------------------------------------------------

    def __iter__(self) -> LoaderIterator:
        """The next sweep, or after `load_state_dict` the rest of the one that was saved."""
        sweeps = self._sweeps
        progress = before = None
        try:
            with self._alone():  # threads that begin at once are given a sweep each
                now = sweeps.now
                place = now.upcoming
                rank, ranks = share = self._batches.options.share.resolve()
                self._follow(self._batches.current(now.resume is not None))
                batches, progress = self._batches, SweepProgress(place)
                memo = batches.memo_before() if now.resume is None else None
                before = now if memo is None else now._replace(resume=place._replace(memo=memo))
                sweeps.now = LoaderStanding(place.sweep + 1, None, progress)
                return LoaderIterator(
                    self._factory.make(batches, place, share, partial(sweeps.beyond, progress)),
                    factory=self._factory,
                    batches=batches,
                    sweeps=sweeps,
                    progress=progress,
                    rank=rank,
                    ranks=ranks,
                    stats=self._stats,
                    quarantine=self._quarantine,
                    length=None if batches.options.is_iterable else self.__len__,
                    declared=self._declared,
                )
        except BaseException:  # what fails, or is interrupted, can be tried again
            if before is not None and sweeps.now.newest is progress:
                sweeps.now = before
            raise

    def _alone(self) -> Any:
        """A lock of this process: that of a parent may be held by a thread that is not here."""
        if self._entering[0] != os.getpid():
            self._entering = os.getpid(), threading.RLock()
        return self._entering[1]

    def _follow(self, current: Batches) -> None:
        """Go on with these batches. Workers that have the dataset as it was are of no use then."""
        if current is not self._batches:
            self._factory.forget_workers()
            self._batches = current

    # ---- state -------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What follows the last batch delivered by the iterator made last: a few numbers in JSON types.

        Load it under any batch size, number of workers, method of loading or partition; an iterable dataset's under
        the same number of workers. What iterable datasets and samplers say in ``state_dict`` of their own is in it as
        they say it, so that has to be JSON too.
        """
        return state.to_json(self._batches.identity(), self._sweeps.now.place)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to where a state was taken: the next ``iter`` continues there. Reads no data.

        A loader that was given no ``seed`` takes that of the state.

        Raises:
            StateError: the state belongs to other data, another order or another version.
        """
        with self._alone():
            current = self._batches.loadable()
            saved, identity = state.seed_of(state_dict), current.identity()
            reseeds = saved is not None and not self._seed_given and saved != current.seed
            if reseeds:
                identity["seed"] = f"{saved:016x}"
            place = state.from_json(state_dict, identity, current.check_memo, current.places)
            self._follow(current)
            self._factory.drop_parked()
            if saved is not None and reseeds:
                self._batches = current.seeded(saved)
                self._factory.reseeded()
            self._sweeps.now = self._sweeps.now._replace(resume=place, newest=None)

    # ---- the rest ----------------------------------------------------------------------------------

    def stats(self) -> LoaderStats:
        """What was delivered so far, and where the time went."""
        if self._factory.pool is not None:
            self._stats.workers = self._factory.pool.stats().workers
        return self._stats

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers; none before the first ``iter``, or without processes."""
        pool = self._factory.pool
        return list(pool.pids) if pool is not None and self._batches.options.kind == "process" else []

    def close(self) -> None:
        """End the workers. The loader can be used again: they are started anew."""
        self._factory.close()

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Everything but workers: a copy starts its own."""
        return {
            **self.__dict__,
            "_entering": None,
            "_factory": copy.copy(self._factory),
            "_sweeps": Sweeps(LoaderStanding(self._sweeps.now.next_sweep, self._sweeps.now.place)),
            "sampler": None,
            "batch_sampler": None,
        }

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self.__dict__.update(saved, _entering=(os.getpid(), threading.RLock()))
        sampler, batch_sampler = self._samplers(self._batches.options)
        self.__dict__.update(sampler=sampler, batch_sampler=batch_sampler)

    def __repr__(self) -> str:
        options = self._batches.options
        how = "shuffled" if options.shuffle else "in order" if options.weights is None else "weighted"
        size = f"{options.batch_samples} samples" if options.batch_samples else f"{self.batch_size} items"
        workers = f"{self.num_workers} {options.kind} workers" if self.num_workers else "no workers"
        return f"DataLoader({type(self.dataset).__name__}, batches of {size}, {how}, {workers})"


def _drawn_seed(generator: Any) -> int:
    torch = collating.torch_side()
    if torch is not None:
        drawn: int = torch.first_seed(generator)
        return drawn
    return int(np.random.randint(0, 2**63 - 1, dtype=np.int64))
