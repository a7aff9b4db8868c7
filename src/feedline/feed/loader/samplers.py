"""The order of a loader, as samplers that others can iterate: `DataLoader.sampler` and `DataLoader.batch_sampler`.

Frameworks take a loader apart: they iterate its samplers, wrap them, or pass them to their loaders. Each
``iter`` of a sampler is the loader's next sweep, as ``iter(loader)`` would be, and a state of the loader follows the
indices that the sampler has yielded. Samplers hold the loader's `Sweeps`, not the loader. So they can outlive it, and
keep no worker alive. Where torch is installed they are torch's classes or subclasses of them, by which frameworks
recognise the kind of a loader.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from itertools import repeat
from typing import Any

from feedline.feed.loader import order
from feedline.feed.loader.batches import Batches, ItemBatches, SamplerBatches
from feedline.feed.loader.collate import torch_class, torch_side
from feedline.feed.loader.draws import SamplerDraws
from feedline.feed.loader.fetch import next_items
from feedline.feed.loader.options import LoaderOptions
from feedline.feed.loader.order import Planned
from feedline.feed.loader.sampling import BegunOrder, active, after
from feedline.feed.loader.state import ResumePoint
from feedline.feed.loader.sweeps import SweepProgress, Sweeps
from feedline.interop.accelerate import check_undivided


class SweepSampler:
    """The indices of one sweep after another.

    Args:
        sweeps: sweeps of the loader.
    """

    def __init__(self, sweeps: Sweeps) -> None:
        self._sweeps = sweeps

    @property
    def generator(self) -> Any:
        """The generator that the order follows from without a ``seed``. None: torch's global one.
        Frameworks replace it, to keep ranks in step."""
        return self._sweeps.generator

    @generator.setter
    def generator(self, generator: Any) -> None:
        self._sweeps.follow_generator(generator)

    @property
    def data_source(self) -> Any:
        """The dataset."""
        return self._sweeps.batches.options.dataset

    @property
    def num_samples(self) -> int:
        """Number of indices of a sweep. With a partition, the number for this rank in the next sweep."""
        return len(self)

    def __len__(self) -> int:
        """See `num_samples`."""
        batches = self._batches(self._sweeps.upcoming())
        partition = batches.options.own_partition.resolve()
        if partition[1] == 1:
            return batches.places
        rule, (index, count) = batches.rule(partition), partition
        if rule.size is None or rule.lengths is not None:  # the number of items of a batch depends on the sweep
            _, number = batches.key(self._sweeps.now.upcoming.sweep)
            return sum(len(planned.indices) for planned in order.batches(batches.order, rule, number, 0))
        full, remainder = divmod(batches.places, rule.size * count)
        last = 0 if rule.drop_last else -(-(index + 1) * remainder // count) - -(-index * remainder // count)
        return full * rule.size + last

    def __iter__(self) -> Iterator[int]:
        return _indices(*self._begin(flat=True))

    def batches(self) -> Iterator[list[int]]:
        """The indices of the next sweep, a list for each batch of the loader."""
        return _lists(*self._begin(flat=False))

    def count(self) -> int:
        """Batches of the next sweep."""
        return self._sweeps.upcoming().count(self._sweeps.now.upcoming.sweep)

    def set_epoch(self, epoch: int) -> None:
        """Make ``epoch`` the next sweep, as on torch's `DistributedSampler`, unless a state is to be continued.

        An iterator that has not been asked for a batch yet begins with it, too.
        """
        self._sweeps.go_to(operator.index(epoch))

    def _begin(self, flat: bool) -> tuple[Iterator[Planned], SweepProgress]:
        """Claim the next sweep.

        Args:
            flat: whether to yield single indices. Their consumer drops an incomplete batch.
        """
        sweeps = self._sweeps
        with sweeps.lock():
            sweeps.batches = self._batches(sweeps.current())
            if active.named:
                sweeps.name_sweeps()
            keeps, again = active.goes_on(sweeps.batches.seed), active.order_again()
            draws = sweeps.begin_seed(sweeps.now.upcoming, sampler=True, keeps=keeps)
            if again is not None:
                sweeps.follow(again)
            partition = sweeps.resolve_partition()
            check_undivided(partition[1])
            batches, progress = self._batches(sweeps.batches), sweeps.begin()
        rule, place = batches.rule(partition), progress.place
        seed, number = batches.key(place.sweep)
        active.note_begun(BegunOrder(seed, number, batches.seed_sweep is not None))
        if flat and rule.partition[1] == 1:
            rule = rule._replace(drop_last=False)
        if rule.size is None:
            rule = rule._replace(size=1)
        planned = order.batches(batches.order, rule, number, place.start, place.done)
        return planned if draws is None else _drawing(planned, draws, batches.places), progress

    def _batches(self, batches: Batches) -> ItemBatches:
        if not isinstance(batches, ItemBatches):
            raise TypeError(
                f"expected a map-style dataset, whose items have indices to sample, got {batches.options.dataset!r:.80}"
            )
        return batches


def _drawing(planned: Iterator[Planned], draws: SamplerDraws, items: int) -> Iterator[Planned]:
    draws.draw_for(1)
    yield from planned
    draws.draw_for(items + 1)


def _indices(planned: Iterator[Planned], progress: SweepProgress) -> Iterator[int]:
    for each in planned:
        indices = each.indices.tolist()
        yield from indices[:-1]
        progress.place = progress.after(each)  # the last index completes the batch
        yield from indices[-1:]
    progress.place = ResumePoint(progress.place.sweep + 1)


def _lists(planned: Iterator[Planned], progress: SweepProgress) -> Iterator[list[int]]:
    for each in planned:
        progress.place = progress.after(each)
        yield each.indices.tolist()
    progress.place = ResumePoint(progress.place.sweep + 1)


class SequentialSampler(SweepSampler, torch_class("SequentialSampler")):  # type: ignore[misc]
    """The sampler of a loader that reads in order."""


class RandomSampler(SweepSampler, torch_class("RandomSampler")):  # type: ignore[misc]
    """The sampler of a loader that shuffles."""

    replacement = False
    _num_samples = None


class WeightedRandomSampler(SweepSampler, torch_class("WeightedRandomSampler")):  # type: ignore[misc]
    """The sampler of a loader that draws by weight."""

    replacement = True

    @property
    def weights(self) -> Any:
        """The weights that were passed, one per item."""
        weighted = self._sweeps.batches.options.weighted
        return None if weighted is None else weighted.weights


class DistributedSampler(SweepSampler, torch_class("DistributedSampler")):  # type: ignore[misc]
    """The sampler of a loader with a partition. It shows frameworks that the items are divided among ranks already."""

    @property
    def num_replicas(self) -> int:
        """Number of ranks among which the items are divided."""
        return self._sweeps.batches.options.own_partition.peek()[1]

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return self._sweeps.batches.options.own_partition.peek()[0]

    dataset = SweepSampler.data_source

    @property
    def shuffle(self) -> bool:
        """Whether the order is random."""
        return bool(self._sweeps.batches.options.shuffle)

    @property
    def drop_last(self) -> bool:
        """Whether a last batch that is not full is dropped."""
        return self._sweeps.batches.options.drop_last

    @property
    def seed(self) -> int:
        """Seed of the order, 0 before it is drawn."""
        return self._sweeps.batches.seed or 0

    @property
    def epoch(self) -> int:
        """The next sweep."""
        return self._sweeps.now.upcoming.sweep

    @property
    def total_size(self) -> int:
        """Indices of all ranks in a sweep."""
        return self._batches(self._sweeps.current()).places


class ListSampler:
    """Lists of a sampler's indices, as torch's `BatchSampler` makes them.

    Args:
        sampler: yields indices.
        batch_size: indices of a list.
        drop_last: whether to drop a shorter last list.
    """

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool) -> None:
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __len__(self) -> int:
        return order.batch_count(len(self.sampler), self.batch_size, self.drop_last)

    def __iter__(self) -> Iterator[list[Any]]:
        indices = iter(self.sampler)
        while batch := list(next_items(indices, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch


BatchSampler: Any = ListSampler if torch_side() is None else torch_side().BatchSampler


class UserBatchSampler(BatchSampler):
    """Batches of a user's sampler, which is started as the loader itself starts it. So if the sampler shuffles by the
    global generators, its order follows from (seed of the loader, sweep), even in a framework that resumes by skipping.

    Args:
        sampler: sampler of the user, which may be replaced.
        batch_size, drop_last: see the loader.
        sweeps: sweeps of the loader. None: a framework's copy, which acts as torch's `BatchSampler`.
    """

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool, sweeps: Sweeps | None = None) -> None:
        super().__init__(sampler, batch_size, drop_last)
        self._sweeps = sweeps

    def __iter__(self) -> Iterator[list[Any]]:
        sweeps = self._sweeps
        if sweeps is None:
            yield from super().__iter__()
            return
        with sweeps.lock():
            sweeps.begin_seed(sweeps.now.upcoming, sampler=True)
            batches, progress = sweeps.batches, sweeps.begin()
        assert isinstance(batches, SamplerBatches), "the loader has a user's sampler"
        now = batches.options.with_checked(sampler=self.sampler, batch_size=self.batch_size, drop_last=self.drop_last)
        remaining = batches.with_options(now).remaining(progress.place, (0, 1))
        for planned in iter(remaining.next, None):  # up to StopIteration, as it never returns None
            progress.place = progress.after(planned)
            yield planned.indices
        progress.place = ResumePoint(progress.place.sweep + 1, memo=after(self.sampler, progress.place.memo))

    def set_epoch(self, epoch: int) -> None:
        """Make ``epoch`` the next sweep, and the epoch of the sampler if it counts epochs."""
        if self._sweeps is not None:
            self._sweeps.go_to(operator.index(epoch))
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)


class SweepBatchSampler(BatchSampler):
    """The loader's own batches where their sizes differ, because a `BatchByLength` limits them.

    Args:
        sampler, drop_last: see the loader.
    """

    def __init__(self, sampler: SweepSampler, drop_last: bool) -> None:
        self.sampler, self.batch_size, self.drop_last = sampler, 1, drop_last

    def __len__(self) -> int:
        return int(self.sampler.count())

    def __iter__(self) -> Iterator[list[Any]]:
        yield from self.sampler.batches()


def samplers_of(sweeps: Sweeps) -> tuple[Any, Any]:
    """Return ``sampler`` and ``batch_sampler`` of a loader: the user's if there are any, else its order."""
    options = sweeps.batches.options
    if options.sampler is not None:
        sampler = options.sampler
    elif options.is_iterable:
        # Yields None forever, as the dataset has no indices.
        sampler = repeat(None) if torch_side() is None else torch_side().EndlessSampler()
    else:
        sampler = _sampler_of(sweeps, options)
    if options.batch_sampler is not None or not options.batched:
        return sampler, options.batch_sampler
    if options.samples is not None and isinstance(sampler, SweepSampler):
        return sampler, SweepBatchSampler(sampler, options.drop_last)
    if options.sampler is not None and options.indices is not None:
        return sampler, UserBatchSampler(sampler, options.indices, options.drop_last, sweeps)
    batches = BatchSampler(sampler, options.indices or 1, options.drop_last)
    if isinstance(sampler, SweepSampler):
        # transformers looks here. Not a subclass: Lightning treats a class that is not torch's as the user's.
        batches.set_epoch = sampler.set_epoch
    return sampler, batches


def _sampler_of(sweeps: Sweeps, options: LoaderOptions) -> SweepSampler:
    if options.partition is not None:
        return DistributedSampler(sweeps)
    if options.weighted is not None:
        return WeightedRandomSampler(sweeps)
    return RandomSampler(sweeps) if options.shuffle else SequentialSampler(sweeps)
