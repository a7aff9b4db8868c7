"""The batches of each kind of dataset: how they are planned, counted, and identified in a state.

Instances are immutable: `Batches.current`, `Batches.seeded` and `Batches.adapted` return others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from feedline.feed.loader import order, sampling, state
from feedline.feed.loader.executors import RemainingBatches
from feedline.feed.loader.gather import ColumnItems, columnar
from feedline.feed.loader.identity import digest_of
from feedline.feed.loader.iterable import Stand, stands_of
from feedline.feed.loader.options import LoaderOptions
from feedline.feed.loader.order import BatchRule, Items, Order, PlannedSweep, Weighted, batch_count
from feedline.feed.loader.state import ResumePoint


class Batches(ABC):
    """The batches of one dataset.

    Args:
        options: arguments of the loader.
        seed: seed of order and random numbers.

    Attributes:
        places: number of places in a sweep; None: unknown until drawn.
        order: the loader's own order of items, if it has one.
        endless: whether there is one sweep without end, which every loop continues.
    """

    places: int | None = None
    endless = False
    order: Order | None = None

    def __init__(self, options: LoaderOptions, seed: int) -> None:
        self.options, self.seed = options, seed

    def adapted(self, options: LoaderOptions) -> Batches:
        """Return the same batches under other options."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, options=options)
        return other

    def seeded(self, seed: int) -> Batches:
        """Return the batches under another seed."""
        return type(self)(self.options, seed)

    def current(self, resuming: bool) -> Batches:
        """Return the batches of the dataset at its current length; as in torch, it may have changed.

        Raises:
            ValueError: the length has changed, and a state or arguments depend on it.
        """
        return self

    def loadable(self) -> Batches:
        """Return the batches that a state is compared with."""
        return self

    def carried(self) -> dict[str, Any]:
        """Return what a state records of the order that may differ from what is declared; see `restored`."""
        return {}

    def restored(self, saved: Mapping[str, Any], place: ResumePoint) -> Batches:
        """Return the batches under the order that a state at a place carries.

        Raises:
            StateError: it does not agree with what is declared, or is damaged.
        """
        return self

    def reweighted(self, place: ResumePoint, weights: Mapping[str, Any], at: int | None) -> tuple[Batches, int]:
        """Return the batches of a mixture under other weights, and the place from which they hold.

        Raises:
            TypeError, ValueError: as by `MinibatchSource.change_weights`.
        """
        raise TypeError("expected a Mixture to change its weights, got a dataset that has none")

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Return what a state records to prevent loading it over other data or another order."""

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
        state.no_memo(memo, start)

    def memo_before(self) -> Any:
        """Return the sampler's state to restore if its sweep cannot begin; None: there is none."""
        return None

    def memo_after(self, last: Any) -> Any:
        """Return the sampler's state between two sweeps, of which the first ended with the memo ``last``; None: there
        is none."""
        return None

    def epoch(self) -> int | None:
        """Return the epoch set on a user's sampler; None: it has none."""
        return None


class PlannedBatches(Batches):
    """Batches of a map-style dataset, planned as indices.

    Attributes:
        items: the dataset, by index.
        in_order: whether items come in the order of the data.
    """

    in_order = False

    def __init__(self, options: LoaderOptions, seed: int) -> None:
        super().__init__(options, seed)
        self.items = ColumnItems(options.dataset) if columnar(options.dataset) else options.dataset
        self._digest: list[str | None] = []  # empty until computed

    @abstractmethod
    def remaining(self, place: ResumePoint, share: tuple[int, int]) -> RemainingBatches:
        """Return the batches from a place on."""

    def _identified(self, identity: dict[str, Any], same: bool = True) -> dict[str, Any]:
        if not self._digest:
            self._digest.append(digest_of(self.options.dataset) if same else None)
        digest = self._digest[0]
        return identity if digest is None else {**identity, "dataset": digest}


class ItemBatches(PlannedBatches):
    """Batches in the loader's own order.

    Args:
        options, seed: see `Batches`.
        length: number of items; None: the dataset's length.
    """

    places: int
    order: Order

    def __init__(self, options: LoaderOptions, seed: int, length: int | None = None) -> None:
        super().__init__(options, seed)
        self.places = n = self._length() if length is None else length
        weights, lengths = options.weights, options.lengths
        self._lengths = None if lengths is None else order.checked_lengths(lengths, n)
        if weights is None:
            self.order = Items(n, seed, bool(options.shuffle))
        else:
            weights = order.checked_weights(weights, n)
            self.order = Weighted(weights, seed)
        # The caller may change its lists: copies and other seeds use the checked values.
        self.options = options.replaced("weights", weights).replaced("lengths", self._lengths)
        self.in_order = not (options.shuffle or self.order.replaces)
        self._fixed = weights is not None or lengths is not None

    def __reduce__(self) -> Any:
        """Orders are large or native, and can be recreated from these."""
        return ItemBatches, (self.options, self.seed, self.places)

    def _length(self) -> int:
        try:
            return len(self.items)
        except TypeError as error:
            raise TypeError(
                "expected a dataset with __len__ (or a sampler, or an IterableDataset), got "
                f"{type(self.items).__name__}"
            ) from error

    def seeded(self, seed: int) -> ItemBatches:
        """See `Batches.seeded`."""
        other = ItemBatches(self.options, seed, self.places)
        other._digest = self._digest
        return other

    def current(self, resuming: bool) -> ItemBatches:
        """See `Batches.current`."""
        n = self._length()
        if n == self.places:
            return self
        if self._fixed or resuming:
            raise ValueError(
                f"expected {self.places} items, as when the loader was created or its state loaded, got {n}"
            )
        return ItemBatches(self.options, self.seed, n)

    def loadable(self) -> ItemBatches:
        """See `Batches.loadable`."""
        return self if self._fixed else self.current(False)

    def identity(self) -> dict[str, Any]:
        """See `Batches.identity`."""
        # A dataset that has grown since the sweep began is not the one that the sweep covers.
        same = bool(self._digest) or self._length() == self.places
        return self._identified({"order": self.order.name, **self.order.identity()}, same)

    def count(self, sweep: int) -> int:
        """See `Batches.count`."""
        return order.count(self.order, self.rule(self.options.share.resolve()), sweep)

    def rule(self, share: tuple[int, int]) -> BatchRule:
        """Return the rule that cuts a sweep into batches."""
        options = self.options
        return BatchRule(options.batch_samples or options.indices, share, options.drop_last, self._lengths)

    def remaining(self, place: ResumePoint, share: tuple[int, int]) -> PlannedSweep:
        """See `PlannedBatches.remaining`."""
        items, rule, sweep, done = self.order, self.rule(share), place.sweep, place.done
        return PlannedSweep(lambda start: order.batches(items, rule, sweep, start, done), place.start)


class SamplerBatches(PlannedBatches):
    """Batches in the order of the user's sampler or batch sampler."""

    def identity(self) -> dict[str, Any]:
        """See `Batches.identity`."""
        name = "sampler" if self.options.batch_sampler is None else "batch sampler"
        return self._identified({"order": name, "seed": f"{self.seed:016x}"})

    def count(self, sweep: int) -> int:
        """See `Batches.count`."""
        options = self.options
        if options.sampler is None or options.indices is None:
            return len(options.user_sampler)
        return batch_count(len(options.sampler), options.indices, options.drop_last)

    def check_memo(self, memo: Any, start: int) -> None:
        """See `Batches.check_memo`."""
        sampling.check_memo(memo)

    def memo_before(self) -> Any:
        """See `Batches.memo_before`: filling the workers draws from the sampler at once."""
        return sampling.before(self.options.user_sampler)

    def memo_after(self, last: Any) -> Any:
        """See `Batches.memo_after`."""
        return sampling.after(self.options.user_sampler, last)

    def epoch(self) -> int | None:
        """See `Batches.epoch`."""
        return sampling.epoch_of(self.options.user_sampler)

    def remaining(self, place: ResumePoint, share: tuple[int, int]) -> sampling.Sampled:
        """See `PlannedBatches.remaining`."""
        options = self.options
        return sampling.Sampled(
            options.user_sampler,
            size=options.indices,
            batches=options.batch_sampler is not None,
            drop_last=options.drop_last,
            seed=self.seed,
            place=place,
        )


class IterableBatches(Batches):
    """Batches of an iterable dataset, which has its own order."""

    def identity(self) -> dict[str, Any]:
        """See `Batches.identity`."""
        return {"order": "iterable", "seed": f"{self.seed:016x}", "workers": self.options.num_workers}

    def count(self, sweep: int) -> int:
        """See `Batches.count`."""
        length, size = len(self.options.dataset), self.options.indices
        if size is None:
            return length
        return batch_count(length, size, self.options.drop_last)

    def check_memo(self, memo: Any, start: int) -> None:
        """See `Batches.check_memo`."""
        self.stands(memo, start)

    def stands(self, memo: Any, start: int) -> tuple[int, list[Stand]]:
        """Return whose turn it is, and the `Stand` of each worker; see `stands_of`."""
        return stands_of(memo, max(self.options.num_workers, 1), start, self.options.indices)
