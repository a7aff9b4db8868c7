"""`DataLoader`: torch's constructor, with an exact order, an exact state, and workers that live across sweeps.

The order is a function of (seed, sweep), any number of workers can make batches of it, and a state is a place in it.
The loader only connects parts: `options` checks the arguments, `batches` defines the batches of a dataset, `factory`
creates the executor of a sweep, `iterator` delivers from it, and `sweeps` records the position.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from feedline.feed.loader import collate as collating
from feedline.feed.loader import state
from feedline.feed.loader.batches import Batches
from feedline.feed.loader.factory import ExecutorFactory, batches_of
from feedline.feed.loader.iterable import DeclaredLength
from feedline.feed.loader.iterator import LoaderIterator
from feedline.feed.loader.options import LoaderOptions, expect_processes, warn_of_ranks
from feedline.feed.loader.samplers import samplers_of
from feedline.feed.loader.shown import ShownSweep
from feedline.feed.loader.state import ResumePoint
from feedline.feed.loader.stats import LoaderStats
from feedline.feed.loader.sweeps import LoaderStanding, SweepProgress, Sweeps
from feedline.feed.quarantine import Quarantine
from feedline.feed.showing import Progress
from feedline.feed.timeline import Window

if TYPE_CHECKING:
    from feedline.feed.transforms import Transform

_torch: Any = collating.torch_side()
_Base: Any = object if _torch is None else _torch.DataLoader

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
# As attributes they are arguments when a framework makes the same loader again over another sampler.
_OWN = (
    "seed",
    "workers",
    "partition",
    "on_error",
    "quarantine",
    "max_errors",
    "batch_samples",
    "lengths",
    "layout",
    "weights",
    "device",
    "transforms",
    "snapshot_every_n_steps",
    "progress",
)


class DataLoader(_Base):
    """Batches of a dataset: `torch.utils.data.DataLoader` with an exact order and a state.

    Parameters that torch has mean the same here. Each ``iter`` begins the next sweep over the data, also after a
    ``break``. Several iterators may be in use at once.

    Args:
        dataset: map-style dataset (``__getitem__`` and ``__len__``; ``__getitems__`` is used if present) or
            `IterableDataset`. Arrays, tensors, tuples and dictionaries of them, and `TensorDataset` are gathered,
            one call per batch. A feedline corpus, or a path that `open_corpus` takes: batches are dictionaries by
            stream name.
        batch_size: number of items per batch of this rank; None: items are delivered singly, without batching;
            from a `Bucketed` corpus, its batches, of which each rank gets a part.
        shuffle: permute the items in every sweep; of a corpus, also the `Window` to permute in.
        sampler, batch_sampler: user-defined order: an iterable of indices, or of lists of indices.
        num_workers: number of processes or threads that make batches; 0: batches are made in ``next``.
        collate_fn: function that makes a batch from a list of items.
        pin_memory: whether to copy batches into pinned memory, if there is an accelerator.
        drop_last: whether to drop a last batch that is not full.
        timeout: seconds to wait for a batch from the workers; 0: no limit.
        worker_init_fn: function called with the worker's number when each worker starts.
        multiprocessing_context: start method, "fork", "forkserver" or "spawn", or a context; None: the default of
            `multiprocessing`, which is fork on Linux before Python 3.14 and forkserver since.
        generator: generator that ``seed`` is drawn from.
        prefetch_factor: batches in flight per worker. By default at least 2, and more as long as they are small.
        persistent_workers: workers always live as long as the loader. False: when a sweep begins and attributes of the
            dataset or ``collate_fn`` have changed, there are new workers, which see them, as torch's do.
        pin_memory_device: no effect, as in torch: the accelerator is detected.
        in_order: False: deliver batches as they complete; the state then lists those delivered out of turn.
        seed: seed of order and random numbers, 0 <= seed < 2**64. None: drawn once, from ``generator`` or torch's
            global generator, so that ``torch.manual_seed`` determines it; saved in the state.
        workers: "process", "thread", or "auto": threads if Python runs without the GIL, else processes; or "ray":
            actors of Ray, on any machine of its cluster.
        partition: (index, count): deliver this rank's share of global batches of ``batch_size * count`` items;
            "auto": rank and world size of torch.distributed, else those of mpiexec or srun. All ranks get the same
            number of batches; the last may be empty.
        on_error: "skip": drop items that raise from their batch; they keep their place in the order.
        quarantine, max_errors: with ``on_error="skip"``, as for `MinibatchSource`.
        batch_samples: samples per batch of this rank, at most; replaces ``batch_size`` for items of varying length.
            A longer item is delivered alone. Needs ``lengths``, except for corpora. Every array of an item with at
            least one dimension is a sequence along its first; the batch ends with the lengths, int64 (items,), or
            has them under the key ``"lengths"``.
        lengths: (items,), number of samples of each item.
        layout: sequences in a batch are "padded" with zeros, (items, longest, ...), or "packed", (samples, ...).
        weights: (items,), relative weights: draw as many items as there are, with replacement.
        device: device to deliver tensors on; to CUDA they are copied ahead, overlapping with computation.
        transforms: for a corpus, as for `MinibatchSource`: changes of its streams, such as decoding pictures. Not
            part of a state.
        snapshot_every_n_steps: no effect, for torchdata's `StatefulDataLoader`: a state is available at any time.
        progress: True shows a bar for each sweep: batches per second, remaining time and the share of it spent waiting;
            where stderr is no terminal, a line every half minute. A function is called as ``progress(done, total)``
            with batches, before each but the first and at the end; the total is 0 where it is unknown.

    Raises:
        ValueError, TypeError: arguments are invalid or contradict each other.
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
    progress: Progress
    _IterableDataset_len_called: int | None
    __initialized = False

    __class_getitem__: Any = classmethod(types.GenericAlias)  # DataLoader[T] in annotations, as torch's

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | Window | None = None,
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
        transforms: Sequence[Transform | Callable[..., Mapping[str, Any]]] = (),
        snapshot_every_n_steps: int | None = None,
        progress: Progress = None,
    ) -> None:
        given = dict(locals())
        del given["self"]
        options = LoaderOptions(**given)
        self._seed_given = seed is not None
        batches = batches_of(options, _drawn_seed(generator) if options.seed is None else options.seed)
        if options.kind == "process":
            expect_processes(options)
        for name in ("dataset", "drop_last", "persistent_workers", *_CHANGEABLE):
            setattr(self, name, getattr(options, name))
        self.batch_size = options.indices
        for name in _OWN:
            setattr(self, name, given[name])
        self._quarantine = Quarantine(quarantine, max_errors) if options.skips else None
        self._stats = LoaderStats()
        self._sweeps, self._factory = Sweeps(LoaderStanding(), batches), ExecutorFactory()
        sampler, batch_sampler = samplers_of(self._sweeps)
        self.__dict__.update(sampler=sampler, batch_sampler=batch_sampler)
        # Names of torch's that subclasses and frameworks use.
        self._iterator = self._IterableDataset_len_called = None
        self._dataset_kind = None if _torch is None else _torch.kind_of(options.is_iterable)
        self.__initialized = True  # from here on attributes are guarded

    # ---- attributes of torch's DataLoader ----------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        if "_sweeps" in self.__dict__:
            if name in _FIXED:
                self._refit(name, value)
            elif name in _CHANGEABLE:
                options = self._batches.options.replaced(name, value)
                value = getattr(options, name)
                if value is not getattr(self._batches.options, name):  # else the workers can stay
                    self._sweeps.batches = self._batches.adapted(options)
        object.__setattr__(self, name, value)

    def _refit(self, name: str, value: Any) -> None:
        """Change what decides the batches: subclasses do, between the two values of torch's flag."""
        if self.__initialized:
            raise ValueError(
                f"{name} attribute should not be set after {type(self).__name__} is initialized: it decides the "
                "batches; create another loader"
            )
        if name in ("dataset", "sampler", "batch_sampler"):
            options, seed = self._batches.options.reordered(name, value), self._batches.seed
            self._factory.close()
            # The samplers that were there keep the old sweeps: the new ones may well read them.
            self._sweeps = Sweeps(LoaderStanding(), batches_of(options, seed))

    @property
    def _foreign(self) -> bool:
        """Whether a subclass never called our constructor: torchdata's loader, where this class is put in the place of
        torch's, has one of its own, and its own iterators."""
        return "_sweeps" not in self.__dict__

    @property
    def _batches(self) -> Batches:
        return self._sweeps.batches

    def __len__(self) -> int:
        """Return the number of batches of a sweep; for an iterable dataset, as its ``__len__`` says. With
        ``batch_samples`` it differs between sweeps, and is that of the next one.

        Raises:
            TypeError: the dataset or sampler has no length, or the corpus no end.
        """
        if self._foreign:
            return super().__len__()  # type: ignore[no-any-return]
        now = self._sweeps.now
        count = self._batches.current(now.resume is not None).count(now.upcoming.sweep)
        if self._batches.options.is_iterable:
            self._IterableDataset_len_called = len(self.dataset)
        return count

    # ---- iteration ---------------------------------------------------------------------------------

    def __iter__(self) -> LoaderIterator:
        """Begin the next sweep, or after `load_state_dict` the rest of the saved one. A corpus without end has one
        sweep, which goes on after the last batch delivered."""
        return self._get_iterator()

    def _get_iterator(self) -> LoaderIterator:
        """Subclasses replace torch's method of this name."""
        sweeps = self._sweeps
        progress = before = None
        told = self._IterableDataset_len_called
        try:
            with sweeps.alone():  # threads that begin at once are given a sweep each
                now = sweeps.now
                place = sweeps.next_place
                rank, ranks = share = sweeps.share()
                warn_of_ranks(self._batches.options)
                sweeps.warn_of_skipped()
                batches = sweeps.batches = sweeps.current()
                progress = SweepProgress(place, now.resume is not None)
                memo = batches.memo_before() if now.resume is None else None
                before = now if memo is None else now._replace(resume=place._replace(memo=memo))
                sweeps.now = LoaderStanding(place.sweep + 1, None, progress)
                factory, beyond = self._factory, partial(sweeps.beyond, progress)
                return LoaderIterator(
                    lambda place: factory.make(batches, place, share, beyond),
                    factory=factory,
                    batches=batches,
                    sweeps=sweeps,
                    progress=progress,
                    rank=rank,
                    ranks=ranks,
                    stats=self._stats,
                    quarantine=self._quarantine,
                    shown=ShownSweep(self.progress, self._stats, self._length_of(batches)),
                    length=self._length_of(batches),
                    declared=None if told is None else DeclaredLength(self.dataset, told, self.num_workers),
                )
        except BaseException:  # after a failure or an interrupt, the caller may retry
            if before is not None and sweeps.now.newest is progress:
                sweeps.now = before
            raise

    def _length_of(self, batches: Batches) -> Callable[[], int] | None:
        return None if batches.options.is_iterable else self.__len__

    # ---- state -------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch that the newest iterator delivered: a few numbers in JSON types.

        It can be loaded under any batch size, number of workers, kind of workers or partition; for an iterable dataset,
        under the same number of workers. It includes what samplers and iterable datasets return from their own
        ``state_dict``, unchanged, so that has to be JSON too.
        """
        batches = self._batches
        return state.to_json({**batches.identity(), **batches.carried()}, self._sweeps.place)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Seek to a saved state: the next ``iter`` continues there. Reads no data.

        A loader created without ``seed`` adopts the state's.

        Raises:
            StateError: the state belongs to other data, another order or another version.
        """
        with self._sweeps.alone():
            current = self._batches.loadable()
            saved, identity = state.seed_of(state_dict), current.identity()
            reseeds = saved is not None and not self._seed_given and saved != current.seed
            if reseeds:
                identity["seed"] = f"{saved:016x}"
            length = None if current.carried() else current.places  # other weights may end elsewhere
            place = state.from_json(state_dict, identity, current.check_memo, length)
            batches = current.seeded(saved) if saved is not None and reseeds else current
            self._continue(batches.restored(state_dict, place), place)
            self._sweeps.agreed = self._sweeps.agreed or saved is not None

    def change_weights(self, weights: Mapping[str, Any], at: int | None = None) -> int:
        """Change the weights of a `Mixture` from a place on; states carry them.

        The next ``iter`` goes on after the last batch that was delivered. All ranks have to make the same changes at
        the same positions.

        Args:
            weights: weight by name, as `Mixture` takes them.
            at: number of sequences of the mixture from which they hold; None: the next border of blocks.

        Returns:
            The place from which they hold.

        Raises:
            TypeError: the dataset is no mixture, or a weight is no number.
            ValueError: the place is not after the next border of blocks, or a weight is out of range.
        """
        with self._sweeps.alone():
            place = self._sweeps.place
            batches, at = self._batches.reweighted(place, weights, at)
            self._continue(batches, place)
        return at

    def _continue(self, batches: Batches, place: ResumePoint) -> None:
        """Let the next iterator begin at a place."""
        self._factory.drop_parked()
        self._sweeps.batches = batches
        self._sweeps.now = self._sweeps.now._replace(resume=place, newest=None)

    # ---- the rest ----------------------------------------------------------------------------------

    def stats(self) -> LoaderStats:
        """Return what was delivered so far, and where the time went."""
        if self._factory.pool is not None:
            self._stats.workers = self._factory.pool.stats().workers
        return self._stats

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers; empty before the first ``iter``, or without processes. Those of Ray may be of
        other machines, and are 0 until they run."""
        pool = self._factory.pool
        return list(pool.pids) if pool is not None and self._batches.options.place == "process" else []

    def close(self) -> None:
        """Shut the workers down. The loader remains usable and starts new ones. Idempotent."""
        self._factory.close()

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Everything but workers: a copy starts its own."""
        if self._foreign:
            return self.__dict__
        sweeps = copy.copy(self._sweeps)
        sampler, batch_sampler = samplers_of(sweeps)
        own = {"_factory": copy.copy(self._factory), "_sweeps": sweeps}
        return {**self.__dict__, **own, "sampler": sampler, "batch_sampler": batch_sampler}

    def __repr__(self) -> str:
        if self._foreign:
            return object.__repr__(self)
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
