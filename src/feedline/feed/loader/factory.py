"""Create the executor of each sweep, and own what outlives it: the workers, and the batches made ahead."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from feedline.feed.loader import collate as collating
from feedline.feed.loader.batches import Batches, ItemBatches, IterableBatches, PlannedBatches, SamplerBatches
from feedline.feed.loader.changes import snapshot
from feedline.feed.loader.executors import (
    MOST_AHEAD,
    MOST_AHEAD_RAY,
    Executor,
    InProcessExecutor,
    PoolExecutor,
    RemainingBatches,
    gathered,
)
from feedline.feed.loader.fetch import Fetch
from feedline.feed.loader.gather import columns_of
from feedline.feed.loader.iterable import DatasetPast, IterableExecutor, IterableFetch
from feedline.feed.loader.options import LoaderOptions
from feedline.feed.loader.random import Seeding
from feedline.feed.loader.state import ResumePoint
from feedline.feed.partition import ranks

if TYPE_CHECKING:
    from feedline.feed.workers import Pool


def batches_of(options: LoaderOptions, seed: int) -> Batches:
    """Return the batches that the arguments describe.

    Raises:
        ValueError, TypeError: the dataset does not support them.
    """
    if options.is_corpus:
        from feedline.feed.loader.corpus import CorpusBatches  # with all of `MinibatchSource`

        return CorpusBatches(options, seed)
    if options.is_iterable:
        return IterableBatches(options, seed)
    if options.user_sampler is not None:
        return SamplerBatches(options, seed)
    found = ItemBatches(options, seed)
    if options.shuffle and found.places == 0:
        raise ValueError("expected at least one item to shuffle: num_samples should be a positive integer value, got 0")
    return found


class ExecutorFactory:
    """Creates the executor of each sweep.

    Attributes:
        pool: the workers; None until they are needed.
    """

    def __init__(self) -> None:
        self.pool: Pool | None = None
        self._parked: PoolExecutor | None = None  # has begun the next sweep
        self._seeding: Seeding | None = None
        self._batches: Batches | None = None  # what all of these were made for
        self._seen: list[Any] = []  # what the workers hold copies of
        self._past = DatasetPast()  # of an iterable dataset that is read here

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without workers: a copy starts its own."""
        return {**self.__dict__, "pool": None, "_parked": None, "_seeding": None, "_batches": None, "_seen": []}

    def make(
        self,
        batches: Batches,
        place: ResumePoint,
        share: tuple[int, int],
        beyond: Callable[[], ResumePoint | None],
    ) -> Executor:
        """Return the executor for the rest of a sweep.

        Args:
            batches: batches to make.
            place: place to begin at.
            share: (index, count) of this rank.
            beyond: function that returns where the following sweep begins; None: unknown.
        """
        if batches is not self._batches or self._stale(batches.options):
            self._adopt(batches)
        if batches.options.is_corpus:
            from feedline.feed.loader.corpus import CorpusBatches

            assert isinstance(batches, CorpusBatches)
            return batches.executor(place)
        if isinstance(batches, IterableBatches):
            return self._iterable(batches, place)
        assert isinstance(batches, PlannedBatches)
        options, rest = batches.options, batches.remaining(place, share)
        if collating.known(options.collate_fn) is collating.collate and options.worker_init_fn is None:
            columns = columns_of(options.dataset)
            if columns is not None:
                from feedline.feed.loader.staged import StagedExecutor, in_files

                files = in_files(columns)
                if files is None:
                    return InProcessExecutor(rest, gathered(columns))
                return StagedExecutor(
                    rest,
                    columns=columns,
                    corpus=files,
                    in_order=batches.in_order,
                    looks_ahead=batches.order is not None,  # a user's sampler is not read ahead
                    skip=options.skips,
                )
        if options.kind == "here":
            fetch = _fetch_of(batches)
            self._seeding = fetch.seed_with(self._seeding)  # the trial of generators is run once
            return InProcessExecutor(rest, fetch.run)
        return self._pooled(batches, rest, place, share, beyond)

    def _pooled(
        self,
        batches: PlannedBatches,
        rest: RemainingBatches,
        place: ResumePoint,
        share: tuple[int, int],
        beyond: Callable[[], ResumePoint | None],
    ) -> Executor:
        options = batches.options
        pool = self._pool_of(options, lambda: _fetch_of(batches))
        follows = options.place == "process" and batches.order is not None

        def next_sweep() -> RemainingBatches | None:
            behind = beyond() if follows else None
            return None if behind is None else batches.remaining(behind, share)

        parked, self._parked = self._parked, None
        if parked is not None:
            if place == ResumePoint(place.sweep) and parked.carry_on(place.sweep, share, next_sweep):
                return parked
            parked.close()
        depth = options.ahead * options.num_workers
        return PoolExecutor(
            rest,
            pool,
            sweep=place.sweep,
            share=share,
            depth=depth,
            most=_most_ahead(options) * options.num_workers if options.grows else depth,
            # The state of a user's sampler cannot represent batches delivered out of order.
            in_order=options.in_order or hasattr(options.user_sampler, "state_dict"),
            beyond=next_sweep,
        )

    def _iterable(self, batches: IterableBatches, place: ResumePoint) -> IterableExecutor:
        options = batches.options
        turn, stands = batches.stands(place.memo, place.start)
        fetch = IterableFetch(
            options.dataset,
            collate=collating.known(options.collate_fn) or options.collate_fn,
            size=options.indices,
            drop_last=options.drop_last,
            seed=batches.seed,
            init=options.worker_init_fn,
            place=options.place,
            past=self._past,
            ranks=ranks() if options.is_pipe else (0, 1),
        )
        here = options.kind == "here"
        return IterableExecutor(
            fetch,
            None if here else self._pool_of(options, lambda: fetch),
            sweep=place.sweep,
            turn=turn,
            stands=stands,
            depth=1 if here else options.prefetch_factor or 1,
            in_order=here or options.in_order,
        )

    def _pool_of(self, options: LoaderOptions, task: Callable[[], Any]) -> Pool:
        if self.pool is None:
            assert options.kind != "here"
            from feedline.feed.workers import Pool

            self.pool = Pool(
                task(),
                options.num_workers,
                kind=options.kind,
                method=options.multiprocessing_context,
                depth=_most_ahead(options) if options.grows else options.ahead,
                timeout_s=options.timeout,
            )
            self._seen = _copied(options)
        return self.pool

    def _stale(self, options: LoaderOptions) -> bool:
        """Return whether the program has changed what the workers hold copies of. As in torch, those that were asked to
        be persistent keep their copies."""
        return self.pool is not None and not options.persistent_workers and _copied(options) != self._seen

    def retire(self, executor: Executor, newest: bool) -> None:
        """Close the executor of a finished sweep, or park it for the next sweep if it is the newest iterator's."""
        if not (newest and isinstance(executor, PoolExecutor)):
            executor.close()
        elif self._parked is not executor:
            self.drop_parked()
            self._parked = executor

    def drop_parked(self) -> None:
        """Discard the batches made for the next sweep."""
        parked, self._parked = self._parked, None
        if parked is not None:
            parked.close()

    def _adopt(self, batches: Batches) -> None:
        """Start new workers for ``batches``, as the present ones hold another dataset, seed or arguments, or what these
        were. Iterators in use keep theirs."""
        self.drop_parked()
        self.pool = None
        if self._batches is None or self._batches.seed != batches.seed:
            self._seeding = None
        self._batches = batches

    def close(self) -> None:
        """Shut the workers down."""
        self.drop_parked()
        pool, self.pool = self.pool, None
        if pool is not None:
            pool.close()


def _most_ahead(options: LoaderOptions) -> int:
    return MOST_AHEAD_RAY if options.kind == "ray" else MOST_AHEAD


def _copied(options: LoaderOptions) -> list[Any]:
    return snapshot(options.dataset, options.collate_fn)


def _fetch_of(batches: PlannedBatches) -> Fetch:
    options = batches.options
    return Fetch(
        batches.items,
        collate=options.collate_fn,
        batched=options.batched,
        skip=options.skips,
        seed=batches.seed,
        init=options.worker_init_fn,
        place=options.place,
    )
