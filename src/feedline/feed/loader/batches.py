"""The batches of each kind of dataset: how they are planned, counted, and identified in a state.

Instances are immutable: `Batches.current`, `Batches.with_seed` and `Batches.with_options` return new ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from feedline.feed.arguments import Weighted
from feedline.feed.equal_work import streams_of, work_of
from feedline.feed.loader import order, sampling
from feedline.feed.loader.draws import ProgramGenerator
from feedline.feed.loader.executors import RemainingBatches
from feedline.feed.loader.gather import ColumnItems, columnar
from feedline.feed.loader.identity import digest_of, head_of
from feedline.feed.loader.iterable import WorkerProgress, progress_of
from feedline.feed.loader.options import LoaderOptions
from feedline.feed.loader.order import BatchRule, Items, Order, PlannedSweep, WeightedItems, batch_count
from feedline.feed.loader.sample_seeds import SweepKey
from feedline.feed.loader.state import ResumePoint


class Batches(ABC):
    """The batches of one dataset.

    Args:
        options: arguments of the loader.
        seed: seed of order and random numbers. None if it is drawn when a sweep begins.

    Attributes:
        seed_sweep: sweep that the seed was drawn for, from the program's generators. None if the seed holds for all
            sweeps.
        places: number of places in a sweep. None if it is unknown until indices are drawn.
        order: the loader's own order of items, if it has one.
        endless: whether there is one sweep without end, which every loop continues.
        program: the global generator, which a user's sampler draws from.
        one_seed: whether a seed that is drawn holds for all sweeps, as the order goes on from one to the next.
    """

    seed_sweep: int | None = None
    places: int | None = None
    endless = one_seed = False
    order: Order | None = None
    program: ProgramGenerator | None = None

    def __init__(self, options: LoaderOptions, seed: int | None) -> None:
        self.options, self.seed = options, seed

    @property
    def sure_seed(self) -> int:
        """The seed, once it is drawn."""
        assert self.seed is not None, "a seed is drawn when a sweep begins"
        return self.seed

    def key(self, sweep: int) -> SweepKey:
        """Return the key from which the order and the random numbers of a sweep follow.

        A seed that was drawn for a sweep gives it the same numbers whichever sweep of a program it is.
        """
        return self.sure_seed, sweep - (self.seed_sweep or 0)

    def with_options(self, options: LoaderOptions) -> Self:
        """Return the same batches under other options."""
        batches = object.__new__(type(self))
        batches.__dict__.update(self.__dict__, options=options)
        return batches

    def sampler_key(self, place: ResumePoint) -> SweepKey | None:
        """Return the key that seeds the generators when a user's sampler starts, or None to leave them as they are.

        Without a seed they stay as they are, as with torch. A state of 1.0.0rc1 does not hold their states: its seed
        holds for all sweeps.
        """
        options, memo = self.options, place.memo or {}
        unseeded = options.seed is None and options.partition is None
        if self.seed_sweep is not None or (unseeded and (not place.start or "random" in memo)):
            return None
        return self.key(place.sweep)

    def with_seed(self, seed: int | None, seed_sweep: int | None = None) -> Self:
        """Return the batches under another seed, drawn for a sweep or for all of them."""
        batches = self.with_options(self.options)
        batches.seed, batches.seed_sweep = seed, seed_sweep
        return batches

    @property
    def shuffles(self) -> bool:
        """Whether the loader's own order is random."""
        options = self.options
        own_order = options.user_sampler is None and not options.is_iterable
        return own_order and (bool(options.shuffle) or options.weighted is not None)

    def current(self, resuming: bool) -> Batches:
        """Return the batches of the dataset at its current length. As in torch, it may have changed.

        Raises:
            ValueError: the length has changed, and a state or arguments depend on it.
        """
        return self

    def loadable(self, saved: Mapping[str, Any]) -> tuple[Batches, Mapping[str, Any]]:
        """Return the batches that a state is compared with, and the state.

        If data has grown since the state, these batches end its sweep over what it began with, and the state names the
        data as it is now.
        """
        return self, saved

    def places_in(self, sweep: int) -> int | None:
        """Return the number of places in a sweep, see `places`."""
        return self.places

    def data_state(self) -> dict[str, Any]:
        """Return the part of a state that names how much data there is, if it may grow. See `loadable`."""
        return {}

    def order_state(self) -> dict[str, Any]:
        """Return the part of the order that a state records because it may differ from the declaration. See
        `with_saved_order`."""
        return {}

    def with_saved_order(self, saved: Mapping[str, Any], place: ResumePoint) -> Batches:
        """Return the batches under the order that a state at a place records.

        Raises:
            StateError: the order contradicts the declaration, or is damaged.
        """
        return self

    def with_weights(self, place: ResumePoint, weights: Mapping[str, Any], at: int | None) -> tuple[Batches, int]:
        """Return the batches of a mixture under other weights, and the place from which they hold.

        Raises:
            TypeError, ValueError: as by `MinibatchSource.change_weights`.
        """
        raise TypeError("expected a Mixture to change its weights, got a dataset that has none")

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Return the fields of a state that prevent loading it over other data or another order, except for the
        seed."""

    @abstractmethod
    def count(self, sweep: int) -> int:
        """Return the number of batches in a sweep.

        Raises:
            TypeError: the dataset or sampler has no length.
        """

    def check_memo(self, memo: Any, start: int) -> None:
        """Check the state of a sampler or an iterable dataset.

        Raises:
            KeyError, TypeError, ValueError: it is invalid.
        """
        if memo is not None:
            raise ValueError(f"expected no `memo` for this order, got {memo!r:.80}")

    def epoch(self) -> int | None:
        """Return the epoch that was set on a user's sampler, or None if there is none."""
        return sampling.epoch_of(self.options.user_sampler)


class PlannedBatches(Batches):
    """Batches of a map-style dataset, planned as indices.

    Attributes:
        items: the dataset, by index.
        in_order: whether items come in the order of the data.
    """

    in_order = False

    def __init__(self, options: LoaderOptions, seed: int | None) -> None:
        super().__init__(options, seed)
        self.items = ColumnItems(options.dataset) if columnar(options.dataset) else options.dataset
        self._digest: list[str | None] = []  # empty until computed

    @abstractmethod
    def remaining(self, place: ResumePoint, partition: tuple[int, int]) -> RemainingBatches:
        """Return the batches from a place on."""

    def _add_digest(self, identity: dict[str, Any], same: bool = True) -> dict[str, Any]:
        if not self._digest:
            self._digest.append(digest_of(self.options.dataset) if same else None)
        digest = self._digest[0]
        return identity if digest is None else {**identity, "dataset": digest}


class ItemBatches(PlannedBatches):
    """Batches in the loader's own order.

    Args:
        options, seed: see `Batches`.
        length: number of items. None: the dataset's length.
    """

    places: int
    order: Order

    def __init__(self, options: LoaderOptions, seed: int | None, length: int | None = None) -> None:
        super().__init__(options, seed)
        self.places = n = self._length() if length is None else length
        weighted, by_length = options.weighted, options.by_length
        self._lengths = self._work = None
        # The caller may change its lists: copies use the checked values.
        if weighted is None:
            self.order = Items(n, seed or 0, bool(options.shuffle))
        else:
            weights = order.check_weights(weighted.weights, n)
            self.order = WeightedItems(weights, seed or 0)
            if weights is not weighted.weights:
                self.options = self.options.with_checked(weighted=Weighted(weights))
        if by_length is not None:
            assert by_length.lengths is not None  # see `LoaderOptions`
            self._lengths = order.check_lengths(by_length.lengths, n)
            if self._lengths is not by_length.lengths:
                self.options = self.options.with_checked(by_length=replace(by_length, lengths=self._lengths))
            rule = options.own_partition.partition.rule
            if rule is not None:
                streams_of(rule, ())  # refuses functions of several streams
                self._work = work_of(rule, self._lengths)
        self.in_order = not (options.shuffle or self.order.replaces)
        self._fixed = weighted is not None or by_length is not None

    def __reduce__(self) -> Any:
        """Recreate the order, which is large or native, from these arguments."""
        return ItemBatches, (self.options, self.seed, self.places), {"seed_sweep": self.seed_sweep}

    def _length(self) -> int:
        try:
            return len(self.items)
        except TypeError as error:
            raise TypeError(
                "expected a dataset with __len__ (or a sampler, or an IterableDataset), got "
                f"{type(self.items).__name__}"
            ) from error

    def with_seed(self, seed: int | None, seed_sweep: int | None = None) -> Self:
        """See `Batches.with_seed`."""
        batches = super().with_seed(seed, seed_sweep)
        batches.order = self.order.under(seed or 0)
        return batches

    def current(self, resuming: bool) -> ItemBatches:
        """See `Batches.current`."""
        n = self._length()
        if n == self.places:
            return self
        if resuming and self._is_head(n):
            return self
        if self._fixed or resuming:
            raise ValueError(f"expected {self.places} items, as when the loader was made or its state loaded, got {n}")
        batches = ItemBatches(self.options, self.seed, n)
        batches.seed_sweep = self.seed_sweep
        return batches

    def loadable(self, saved: Mapping[str, Any]) -> tuple[ItemBatches, Mapping[str, Any]]:
        """See `Batches.loadable`."""
        if self._fixed:
            return self, saved
        batches, items, digest = self.current(False), saved.get("items"), saved.get("dataset")
        if type(items) is not int or not 0 < items < batches.places or digest is None:
            return batches, saved
        if digest_of(head_of(self.options.dataset, items)) != digest:
            return batches, saved
        if saved.get("sequence") == 0 and not saved.get("delivered"):  # its sweep has not begun
            identity = batches.identity()
            return batches, {**saved, **{key: identity[key] for key in ("items", "dataset")}}
        begun = ItemBatches(self.options, self.seed, items)
        begun.seed_sweep, begun._digest = self.seed_sweep, [digest]
        return begun, saved

    def _is_head(self, items: int) -> bool:
        """Return whether the dataset of these batches is known to be the first items of what has ``items`` now."""
        digest = None if self._fixed or not self._digest or items < self.places else self._digest[0]
        return digest is not None and digest == digest_of(head_of(self.options.dataset, self.places))

    def identity(self) -> dict[str, Any]:
        """See `Batches.identity`."""
        # A dataset that has grown since the sweep began is not the one that the sweep covers.
        same = bool(self._digest) or self._length() == self.places
        return self._add_digest({"order": self.order.name, **self.order.identity()}, same)

    def count(self, sweep: int) -> int:
        """See `Batches.count`."""
        return order.count(self.order, self.rule(self.options.own_partition.resolve()), self.key(sweep)[1])

    def rule(self, partition: tuple[int, int]) -> BatchRule:
        """Return the rule that cuts a sweep into batches."""
        options = self.options
        lengths = None if options.samples is None else self._lengths
        return BatchRule(options.samples or options.indices, partition, options.drop_last, lengths, self._work)

    def remaining(self, place: ResumePoint, partition: tuple[int, int]) -> PlannedSweep:
        """See `PlannedBatches.remaining`."""
        items, rule, sweep, done = self.order, self.rule(partition), self.key(place.sweep)[1], place.done
        return PlannedSweep(lambda start: order.batches(items, rule, sweep, start, done), place.start)


class SamplerBatches(PlannedBatches):
    """Batches in the order of the user's sampler or batch sampler."""

    def identity(self) -> dict[str, Any]:
        """See `Batches.identity`."""
        name = "sampler" if self.options.batch_sampler is None else "batch sampler"
        return self._add_digest({"order": name})

    def count(self, sweep: int) -> int:
        """See `Batches.count`."""
        options = self.options
        return batch_count(len(options.user_sampler), options.indices or 1, options.drop_last)

    def check_memo(self, memo: Any, start: int) -> None:
        """See `Batches.check_memo`."""
        sampling.check_memo(memo)

    def remaining(self, place: ResumePoint, partition: tuple[int, int]) -> sampling.SampledBatches:
        """See `PlannedBatches.remaining`."""
        options = self.options
        return sampling.SampledBatches(
            options.user_sampler,
            size=options.indices,
            batches=options.batch_sampler is not None,
            drop_last=options.drop_last,
            key=self.sampler_key(place),
            place=place,
            program=self.program,
        )


class IterableBatches(Batches):
    """Batches of an iterable dataset, which has its own order."""

    def identity(self) -> dict[str, Any]:
        """See `Batches.identity`."""
        return {"order": "iterable", "workers": self.options.num_workers}

    def count(self, sweep: int) -> int:
        """See `Batches.count`."""
        options = self.options
        return batch_count(len(options.dataset), options.indices or 1, options.drop_last)

    def check_memo(self, memo: Any, start: int) -> None:
        """See `Batches.check_memo`."""
        self.progress(memo, start)

    def progress(self, memo: Any, start: int) -> tuple[int, list[WorkerProgress]]:
        """Return the number of the worker whose turn it is, and the `WorkerProgress` of each worker."""
        return progress_of(memo, max(self.options.num_workers, 1), start)
