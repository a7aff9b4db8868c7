"""`DataLoader`: torch's constructor, with an exact order and an exact state.

The order is a function of (seed, sweep). Any number of workers can make batches in it, and a state is a place in it.
The loader only connects parts: `options` checks the arguments, `batches` defines the batches of a dataset, `epoch`
creates the executor of a sweep, `iterator` delivers from it, and `sweeps` records the position.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

from feedline.concurrency.stages import FEEDS
from feedline.feed.argument_errors import expect_state
from feedline.feed.arguments import Quarantine, refuse_replaced
from feedline.feed.loader import collate as collating
from feedline.feed.loader import sampling, state
from feedline.feed.loader.batches import Batches
from feedline.feed.loader.draws import draw, seed_at
from feedline.feed.loader.epoch import Crew, Epoch, batches_of
from feedline.feed.loader.figures.loader_stats import LoaderStats
from feedline.feed.loader.iterable import warn_of_more
from feedline.feed.loader.iterator import LoaderIterator
from feedline.feed.loader.options import SAMPLERS, LoaderOptions, expect_processes, warn_of_ranks
from feedline.feed.loader.samplers import samplers_of
from feedline.feed.loader.state import ResumePoint
from feedline.feed.loader.sweeps import LoaderPosition, SweepProgress, Sweeps
from feedline.feed.partition import PartitionLike
from feedline.feed.progress_bar import Progress
from feedline.feed.quarantine import QuarantineFile
from feedline.feed.timeline import Window

if TYPE_CHECKING:
    from feedline.feed.transforms import Transform

_Base: Any = collating.torch_class("DataLoader")

# Arguments as attributes. Frameworks read them to create the same loader over another sampler. Setting one changes the
# next sweep. torch's loader has no attribute `shuffle`.
_ARGUMENTS = tuple(field.name for field in fields(LoaderOptions) if field.name != "shuffle")
# torch's loader refuses to change these once it is created.
_FIXED = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")
# Arguments that decide which batches there are. A change of the first ones makes another sampler.
_SAMPLING = frozenset(("shuffle", "partition"))
_ORDERING = _SAMPLING | {"seed", "batch_size", "drop_last"}
_REPLACING = frozenset(("dataset", *SAMPLERS))
# Arguments that workers of a map-style dataset do not see, as they get indices.
_UNSEEN = frozenset(("batch_size", "drop_last"))
# Arguments that torch's loader does not have. A subclass of it may well have attributes of these names.
_ADDED = ("seed", "workers", "partition", "on_error", "device", "transforms", "snapshot_every_n_steps", "progress")


class DataLoader(_Base):
    """Batches of a dataset: `torch.utils.data.DataLoader` with an exact order and a state.

    Parameters that torch has mean the same here. Each ``iter`` begins the next sweep over the data, also after a
    ``break``. Several iterators may be in use at once.

    Args:
        dataset: map-style dataset (``__getitem__`` and ``__len__``; ``__getitems__`` is used if present) or
            `IterableDataset`. Arrays, tensors, tuples and dictionaries of them, and `TensorDataset` are gathered,
            one call per batch. A feedline corpus, or a path that `open_corpus` takes: batches are dictionaries by
            stream name.
        batch_size: number of items per batch of this rank. None: items are delivered singly, without batching. For a
            `Bucketed` corpus, None: the batches are the corpus's own, and each rank gets a part of each.
        shuffle: permute the items in every sweep. For a corpus, also the `Window` to permute in.
        sampler: user-defined order, an iterable of indices, or a `Weighted`, which draws items by weight.
        batch_sampler: user-defined batches, an iterable of lists of indices, or a `BatchByLength`, which limits the
            samples in a batch in place of ``batch_size``.
        num_workers: number of processes or threads that make batches. 0: batches are made in ``next``.
        collate_fn: function that makes a batch from a list of items.
        pin_memory: whether to copy batches into pinned memory, if there is an accelerator.
        drop_last: whether to drop a last batch that is not full.
        timeout: seconds to wait for a batch from the workers. 0: no limit.
        worker_init_fn: function called with the worker's number when each worker starts.
        multiprocessing_context: start method, "fork", "forkserver" or "spawn", or a context. None: the default of
            `multiprocessing`, which is fork on Linux before Python 3.14 and forkserver since.
        generator: generator that the order follows from without ``seed``. None: torch's global one.
        prefetch_factor: batches in flight per worker. By default at least 2, and more as long as they are small.
        persistent_workers: workers live as long as the loader, and keep their copies of the dataset. False: workers
            start with each sweep, and see the dataset as it is then.
        pin_memory_device: no effect, as in torch: the accelerator is detected.
        in_order: False: deliver batches as they complete. The state then lists the batches delivered out of turn.
        seed: seed of order and random numbers, 0 <= seed < 2**64. None: the seed of each sweep follows from
            ``generator``, as it is at ``iter``. The loader draws from it as much as torch draws. With a partition, and
            once a program names its sweeps by ``set_epoch``, the seed of all sweeps follows from it as it is now, and
            over a `Mixture` as it is at the first ``iter``. A state has the seed of its sweep.
        workers: "process", "thread", "ray" (actors of Ray, on any machine of its cluster), or "auto": threads if
            Python runs without the GIL, else processes.
        partition: (index, count), a mesh, or a `Partition`: deliver this rank's share of global batches of
            ``batch_size * count`` items. "auto": the mesh or the ranks of the program, see `Partition`. All ranks get
            the same number of batches, of which the last may be empty. None: no shares.
        on_error: "raise", "skip", or a `Quarantine`. The last two drop items that raise from their batch, and list
            them. They keep their place in the order.
        device: device to deliver tensors on. To CUDA they are copied ahead, overlapping with computation. A device or
            sharding of JAX: batches hold JAX arrays, with a sharding over several processes global ones, and those of a
            corpus are as by `Minibatch.jax`.
        transforms: for a corpus, as for `MinibatchSource`: changes of its streams, such as decoding pictures. Not
            part of a state.
        snapshot_every_n_steps: no effect, for torchdata's `StatefulDataLoader`: a state is available at any time.
        progress: True shows a bar for each sweep: batches per second, remaining time and the share of it spent waiting.
            Where stderr is no terminal, it shows a line every half minute. A function is called as ``progress(done,
            total)`` with batches, before each but the first and at the end. An unknown total is 0.

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

    @refuse_replaced(
        quarantine="on_error=fl.Quarantine(path)",
        max_errors="on_error=fl.Quarantine(path, limit)",
        batch_samples="batch_sampler=fl.BatchByLength(samples, lengths)",
        lengths="batch_sampler=fl.BatchByLength(samples, lengths)",
        layout="batch_sampler=fl.BatchByLength(samples, lengths, layout)",
        weights="sampler=fl.Weighted(weights)",
    )
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
        partition: PartitionLike | None = None,
        on_error: str | Quarantine = "raise",
        device: Any = None,
        transforms: Sequence[Transform | Callable[..., Mapping[str, Any]]] = (),
        snapshot_every_n_steps: int | None = None,
        progress: Progress = None,
    ) -> None:
        arguments = dict(locals())
        del arguments["self"]
        options = LoaderOptions(**arguments)
        seed = options.seed
        if seed is None and options.partition is not None:  # one seed for all sweeps, which ranks agree on at the first
            seed = draw(options.generator)
        batches = batches_of(options, seed)
        if options.kind == "process":
            expect_processes(options)
        self._quarantine = QuarantineFile.of(options.quarantine)
        self._stats = LoaderStats(describe=options.describe)
        self._sweeps, self._crew = Sweeps(LoaderPosition(), batches), Crew()
        # Names that a subclass defines, or has set before it called this constructor, keep its meaning.
        earlier = self.__dict__.keys() - self.__dict__.get("_set", {}).keys()
        self._own = {name for name in _ADDED if name in earlier or hasattr(type(self), name)}
        self._set: dict[str, Any] = {}  # attributes as they were set
        self._keep(**{name: getattr(options, name) for name in _ARGUMENTS})
        sampler, batch_sampler = samplers_of(self._sweeps)
        self._keep(batch_size=options.indices, sampler=sampler, batch_sampler=batch_sampler)
        # Attributes of torch's loader that subclasses and frameworks use.
        self._iterator = self._IterableDataset_len_called = None
        self._begun: LoaderIterator | None = None  # by `prefetch`
        torch = collating.torch_side()
        self._dataset_kind = None if torch is None else torch.kind_of(options.is_iterable)
        self.__initialized = True  # from here on attributes are guarded

    # ---- attributes of torch's DataLoader ----------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        if not self._is_argument(name, value):
            object.__setattr__(self, name, value)
            return
        if name in _FIXED and self.__initialized:
            raise ValueError(
                f"{name} attribute should not be set after {type(self).__name__} is initialized: it decides the "
                "batches; create another loader"
            )
        if self.__initialized:
            self._notice()  # else `_change` would undo what the program has set on the batch sampler
        self._change({name: value})

    def _is_argument(self, name: str, value: Any) -> bool:
        """Return whether setting an attribute changes an argument.

        torch's loader has no ``shuffle``: a subclass may keep its own argument under this name, or something else if
        it has a sampler.
        """
        if "_set" not in self.__dict__ or name in self._own:
            return False
        if name != "shuffle":
            return name in _ARGUMENTS
        options = self._batches.options
        return options.user_sampler is None and not options.is_iterable and (value or None) != (options.shuffle or None)

    def _notice(self, begins: bool = False) -> None:
        """Apply changes that did not go through `__setattr__`: endless loaders replace their ``batch_sampler`` like
        that, and other programs set its attributes.

        Args:
            begins: whether a sweep begins. Frameworks put their own sampler into the batch sampler that they iterate.
        """
        now = {**self.__dict__, "multiprocessing_context": self.multiprocessing_context}  # a property of torch's
        changes = {name: now[name] for name, value in self._set.items() if now.get(name, value) is not value}
        options, batch_sampler = self._batches.options, self.batch_sampler
        if options.indices is not None and "batch_sampler" not in changes:
            for name, value in (("batch_size", options.indices), ("drop_last", options.drop_last)):
                if (current := getattr(batch_sampler, name)) != value:
                    changes.setdefault(name, current)
            if begins and batch_sampler.sampler is not self.sampler:
                changes.setdefault("sampler", batch_sampler.sampler)
        if changes:
            self._change(changes)

    def _change(self, changes: dict[str, Any]) -> None:
        """Let the next sweep begin with other arguments, or refuse them."""
        if "batch_sampler" in changes:
            changes.pop("sampler", None)  # the batches do not come from it
        before, sweeps, names = self._batches, self._sweeps, changes.keys()
        options = before.options.with_arguments(changes)
        if sweeps.now.resume is not None and names & (_REPLACING | _ORDERING) - {"partition", "batch_size"}:
            raise ValueError(
                f"expected no other {', '.join(sorted(names))} between loading a state and continuing it: set it before"
            )
        if "generator" in names and options.seed is None and sweeps.seed_is_final:
            raise ValueError("expected no other generator: all sweeps follow from the seed that was drawn once")
        if names & (_REPLACING | _ORDERING):
            batches = batches_of(options, before.seed if options.seed is None else options.seed)
            if names & _REPLACING:
                self._crew.close()  # a subclass may have a `close` of its own
                # The old samplers keep the old sweeps: the new ones may well read them.
                self._sweeps, self._crew = Sweeps(LoaderPosition(), batches), Crew()
            else:
                batches.seed_sweep = before.seed_sweep if options.seed is None else None
                sweeps.batches, sweeps.agreed = batches, sweeps.agreed or options.seed is not None
                if names <= _UNSEEN and not options.is_iterable:
                    self._crew.follow(before.options, batches.options)
        else:
            sweeps.batches = before.with_options(options)
        if "generator" in names:
            self._sweeps.follow_generator(options.generator)
        if "on_error" in names:
            self._quarantine = QuarantineFile.of(options.quarantine)
        attributes = {name: getattr(options, name) for name in names if name not in SAMPLERS}
        if "batch_size" in names:
            attributes["batch_size"] = options.indices
        self._keep(**{**changes, **attributes})
        if names & (_SAMPLING | {"dataset"}) and names.isdisjoint(SAMPLERS):
            sampler, batch_sampler = samplers_of(self._sweeps)
            self._keep(sampler=sampler, batch_sampler=batch_sampler)
        elif options.indices is not None:  # programs may hold it
            self.batch_sampler.batch_size, self.batch_sampler.drop_last = options.indices, options.drop_last

    def _keep(self, **attributes: Any) -> None:
        """Set attributes that are arguments, without changing the order."""
        arguments = {name: value for name, value in attributes.items() if name not in self._own}
        for name, value in arguments.items():
            object.__setattr__(self, name, value)
        self._set.update(arguments)

    @property
    def _foreign(self) -> bool:
        """Whether a subclass never called our constructor. torchdata's loader does not where this class replaces
        torch's: it has a separate constructor and iterators."""
        return "_sweeps" not in self.__dict__

    @property
    def _batches(self) -> Batches:
        return self._sweeps.batches

    def __len__(self) -> int:
        """Return the number of batches of a sweep, for an iterable dataset by its ``__len__``. With `BatchByLength` it
        differs between sweeps, and is the number of the next one.

        Raises:
            TypeError: the dataset or sampler has no length, or the corpus no end.
        """
        if self._foreign:
            return super().__len__()  # type: ignore[no-any-return]
        self._notice()
        options, batch_sampler = self._batches.options, self.batch_sampler
        if options.indices is not None and not options.is_iterable and batch_sampler.sampler is not self.sampler:
            return len(batch_sampler)  # the next `iter` follows it
        count = self._sweeps.upcoming().count(self._sweeps.now.upcoming.sweep)
        if options.is_iterable:
            self._IterableDataset_len_called = len(self.dataset)
        return count

    # ---- iteration ---------------------------------------------------------------------------------

    def __iter__(self) -> LoaderIterator:
        """Begin the next sweep, or after `load_state_dict` the rest of the saved one. A corpus without end has one
        sweep, which goes on after the last batch delivered."""
        begun, self._begun = self._begun, None
        if begun is not None:
            if begun.is_newest:
                return begun
            begun.abandon()  # a state has been loaded since
        return self._get_iterator()

    def prefetch(self) -> None:
        """Start the workers of the next ``iter`` and their reading now, while the program is busy with something else.

        This counts as the ``iter``: what the program changes afterwards, in the dataset or the loader's attributes,
        belongs to the sweep after, and its generators are drawn from now. Loading a state drops what was read. Without
        workers, nothing is read before the first batch is needed.
        """
        if self._foreign:
            raise TypeError("expected a loader whose constructor was called, to prefetch, got one without")
        if self._begun is None or not self._begun.is_newest:
            self._begun = iter(self)

    def _get_iterator(self) -> LoaderIterator:
        """Implement `__iter__`: subclasses override torch's method of this name."""
        self._notice(begins=True)
        FEEDS.add(self._stats)  # here, as copies of loaders are made without the constructor
        sweeps = self._sweeps
        progress = before = None
        size = self._IterableDataset_len_called
        try:
            with sweeps.lock():  # threads that begin at once get a sweep each
                now = sweeps.now
                # The next sweep, or the rest of one that has no end.
                place = now.place if self._batches.endless and now.newest is not None else now.upcoming
                warn_of_ranks(self._batches.options)
                sweeps.warn_of_skipped()
                sweeps.batches = sweeps.current()
                draws = sweeps.begin_seed(place, workers=self._crew.begin(self._batches.options))
                partition = sweeps.resolve_partition()
                batches = sweeps.batches
                sampler = batches.options.user_sampler
                # Filling the workers draws from it at once.
                memo = sampling.before(sampler) if now.resume is None else None
                place = sampling.without_generator(place)
                retry = sampling.with_generator(sampler, place) if memo is None else place._replace(memo=memo)
                progress = SweepProgress(place, now.resume is not None)
                before = now._replace(resume=retry)
                sweeps.now = LoaderPosition(place.sweep + 1, None, progress)
                return LoaderIterator(
                    Epoch(batches, partition, self._crew),
                    sweeps=sweeps,
                    progress=progress,
                    draws=draws,
                    stats=self._stats,
                    quarantine=self._quarantine,
                    show=batches.options.progress,
                    check_length=None if size is None else partial(warn_of_more, self.dataset, size, self.num_workers),
                )
        except BaseException:  # after a failure or an interrupt, the caller may retry
            if before is not None and sweeps.now.newest is progress:
                sweeps.now = before
            raise

    def repartition(self, partition: PartitionLike) -> None:
        """Take another share of each batch from the next one on, as ranks have joined or left.

        Batches of all ranks together stay what they are: ``batch_size`` becomes what each of the new ranks gets of
        them. Iterators in use go on, with their workers. What workers have made of the old shares is dropped. Loops
        over the loader's samplers are not changed. Every rank has to do this after the same batch. A step that was not
        completed is delivered again, to the new ranks, from the state before it.

        Args:
            partition: see the class. A `Partition` with the balance of the loader, or without one.

        Raises:
            ValueError: the number of ranks does not divide the batch, the balance is another one, ranks would follow
                different orders for lack of a seed, or the dataset is iterable or has its own sampler.
        """
        self._notice()
        sweeps = self._sweeps
        with sweeps.lock():
            before, batch_sampler = self._batches.options, self.batch_sampler
            was, share = before.own_partition, before.own_partition.renewed(partition)
            options = before
            if share.resolve() != was.peek() or share.partition != was.partition:
                options = before.repartitioned(share)
                if not sweeps.agreed:
                    options.expect_seed(share.resolve())
                self._crew.follow(before, options)
                batches, divided, size = self._batches.with_options(options), (before, options), options.indices
                # No calls, and so no interrupts: sizes that differ would be taken for a change by the program.
                sweeps.batches, sweeps.divided = batches, divided
                if size is not None:
                    batch_sampler.batch_size = size
            self._keep(partition=options.partition, batch_size=options.indices)
            if before.partition is None and options.partition is not None:
                sampler, batch_sampler = samplers_of(sweeps)
                self._keep(sampler=sampler, batch_sampler=batch_sampler)

    # ---- state -------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch that the newest iterator delivered: a few numbers in JSON types.

        It can be loaded under any batch size, number of workers, kind of workers or partition, except that an iterable
        dataset needs the same number of workers. It includes the states that samplers and iterable datasets return from
        ``state_dict``, unchanged, so these have to be JSON too.
        """
        self._notice()
        batches, place = self._sweeps.batches_and_place()
        seed, generators = state.seed_to_json(batches.seed, batches.seed_sweep), self._sweeps.generators()
        return state.to_json(
            {**batches.identity(), **seed, **batches.data_state(), **batches.order_state(), **generators}, place
        )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Seek to a saved state: the next ``iter`` continues there. Reads no data.

        A loader created without ``seed`` continues the sweep under the state's seed. Its ``generator``, if any, and the
        generator of a user's sampler are restored. torch's global generator is not: later sweeps have the seeds of the
        saved run until the program draws from it or sets it.

        Raises:
            StateError: the state belongs to other data, another order or another version.
        """
        self._notice()
        with self._sweeps.lock():
            expect_state(state_dict, "DataLoader")
            current, state_dict = self._batches.loadable(state_dict)
            identity, own_seed = current.identity(), current.options.seed
            if own_seed is not None:
                identity |= state.seed_to_json(own_seed, None)
            reweighted = bool(current.order_state())  # other weights may end elsewhere
            length = (lambda sweep: None) if reweighted else current.places_in
            place = state.from_json(state_dict, identity, current.check_memo, length)
            seed, seed_sweep, generators = state.seed_from_json(state_dict, place.sweep)
            batches = current.with_seed(seed, seed_sweep).with_saved_order(state_dict, place)
            self._sweeps.set_generators(generators)
            sampling.set_generator(batches.options.user_sampler, place)
            self._continue(batches, place)
            self._sweeps.agreed = self._sweeps.agreed or seed is not None

    def change_weights(self, weights: Mapping[str, Any], at: int | None = None) -> int:
        """Change the weights of a `Mixture` from a place on. States record them.

        The next ``iter`` goes on after the last batch that was delivered. All ranks have to make the same changes at
        the same positions.

        Args:
            weights: weight by name, as `Mixture` takes them.
            at: number of sequences of the mixture after which they hold. None: the next border of blocks.

        Returns:
            The place from which they hold.

        Raises:
            TypeError: the dataset is no mixture, or a weight is no number.
            ValueError: the place is not after the next border of blocks, or a weight is out of range.
        """
        with self._sweeps.lock():
            place, batches = self._sweeps.place, self._batches
            if batches.seed is None:
                batches = batches.with_seed(seed_at(batches.options.generator))
            batches, at = batches.with_weights(place, weights, at)
            self._continue(batches, place)
        return at

    def _continue(self, batches: Batches, place: ResumePoint) -> None:
        """Let the next iterator begin at a place."""
        self._sweeps.batches = batches
        self._sweeps.now = self._sweeps.now._replace(resume=place, newest=None)

    # ---- the rest ----------------------------------------------------------------------------------

    def stats(self) -> LoaderStats:
        """Return the number of batches delivered so far, and where the time went."""
        self._stats.workers, self._stats.taken = list(self._crew.figures), self._crew.taken
        return self._stats

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers of the newest sweep. Empty without processes, and when the sweep is over, except
        for persistent workers. Actors of Ray may run on other machines, and have id 0 until they run."""
        return self._crew.pids if self._batches.options.place == "process" else []

    def close(self) -> None:
        """Shut the workers down. The loader remains usable and starts new ones. Idempotent."""
        begun, self._begun = self._begun, None
        if begun is not None and begun.is_newest:  # its sweep is still to come
            self._sweeps.now = self._sweeps.now._replace(resume=self._sweeps.place, newest=None)
        self._crew.close()

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return everything but workers: a copy starts its own."""
        if self._foreign:
            return self.__dict__
        sweeps = copy.copy(self._sweeps)
        sampler, batch_sampler = samplers_of(sweeps)
        shown = {"sampler": sampler, "batch_sampler": batch_sampler}
        copied = {"_begun": None, "_crew": Crew(), "_sweeps": sweeps, "_set": {**self._set, **shown}}
        return {**self.__dict__, **copied, **shown}

    def __repr__(self) -> str:
        if self._foreign:
            return object.__repr__(self)
        options = self._batches.options
        how = "shuffled" if options.shuffle else "in order" if options.weighted is None else "weighted"
        size = f"{options.samples} samples" if options.samples else f"{self.batch_size} items"
        workers = f"{self.num_workers} {options.kind} workers" if self.num_workers else "no workers"
        return f"DataLoader({type(self.dataset).__name__}, batches of {size}, {how}, {workers})"
