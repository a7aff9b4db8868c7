"""What makes the batches of a sweep? The choice of an executor, and what outlives it: workers, batches made ahead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feedline.feed.loader import collate as collating
from feedline.feed.loader.batches import Batches, ItemBatches, IterableBatches, PlannedBatches, SamplerBatches
from feedline.feed.loader.corpus import CorpusBatches
from feedline.feed.loader.executors import (
    MOST_AHEAD,
    Executor,
    InProcessExecutor,
    PoolExecutor,
    RemainingBatches,
    gathered,
)
from feedline.feed.loader.fetch import Fetch, unit_of
from feedline.feed.loader.gather import columns_of
from feedline.feed.loader.iterable import IterableExecutor, IterableFetch
from feedline.feed.loader.options import LoaderOptions
from feedline.feed.loader.random import Seeding
from feedline.feed.loader.staged import StagedExecutor, in_files
from feedline.feed.loader.state import ResumePoint
from feedline.feed.workers import Pool


def batches_of(options: LoaderOptions, seed: int) -> Batches:
    """The batches that arguments ask for.

    Raises:
        ValueError, TypeError: the dataset does not allow them.
    """
    if options.is_corpus:
        return CorpusBatches(options, seed)
    if options.is_iterable:
        return IterableBatches(options, seed)
    if options.user_sampler is not None:
        return SamplerBatches(options, seed)
    found = ItemBatches(options, seed)
    if options.shuffle and found.places == 0:
        raise ValueError("expected at least one item to shuffle, got a dataset of 0")
    return found


class ExecutorFactory:
    """Makes the executor of each sweep.

    Attributes:
        pool: the workers, once they are needed.
    """

    def __init__(self) -> None:
        self.pool: Pool | None = None
        self._parked: PoolExecutor | None = None  # has begun with the next sweep
        self._seeding: Seeding | None = None
        self._firsts: dict[int, Any] = {}  # of an iterable dataset that is read here, see `iterable`

    def __getstate__(self) -> dict[str, Any]:
        """A copy starts its own workers."""
        return {**self.__dict__, "pool": None, "_parked": None, "_seeding": None}

    def make(
        self,
        batches: Batches,
        place: ResumePoint,
        share: tuple[int, int],
        beyond: Callable[[], ResumePoint | None],
    ) -> Executor:
        """The executor of the rest of a sweep.

        Args:
            batches: what it makes.
            place: where it begins.
            share: of the batches.
            beyond: where the sweep after it begins, if that is known.
        """
        if isinstance(batches, CorpusBatches):
            return batches.executor(place)
        if isinstance(batches, IterableBatches):
            return self._iterable(batches, place)
        assert isinstance(batches, PlannedBatches)
        options, rest = batches.options, batches.remaining(place, share)
        if collating.known(options.collate_fn) is collating.collate and options.worker_init_fn is None:
            columns = columns_of(options.dataset)
            if columns is not None:
                files = in_files(columns)
                if files is None:
                    return InProcessExecutor(rest, gathered(columns))
                return StagedExecutor(
                    rest,
                    columns=columns,
                    corpus=files,
                    in_order=batches.in_order,
                    looks_ahead=batches.order is not None,  # a user's sampler is asked when its batch is
                    skip=options.skips,
                )
        if options.kind == "here":
            fetch = _fetch_of(batches)
            self._seeding = fetch.seed_with(self._seeding)  # what samples draw from is found out once
            run = fetch.run
            return InProcessExecutor(rest, lambda planned: run(unit_of(planned)))
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
        follows = options.kind == "process" and batches.order is not None

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
            grows=options.grows,
            # A state could not tell which batches of another's sampler were delivered.
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
            place=options.kind,
            firsts=self._firsts,
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
            self.pool = Pool(
                task(),
                options.num_workers,
                kind="thread" if options.kind == "thread" else "process",
                method=options.multiprocessing_context,
                depth=MOST_AHEAD if options.grows else options.ahead,
                timeout=options.timeout,
            )
        return self.pool

    def retire(self, executor: Executor, newest: bool) -> None:
        """Close the executor of a sweep that has ended; that of the newest iterator may go on with the next sweep."""
        if not (newest and isinstance(executor, PoolExecutor)):
            executor.close()
        elif self._parked is not executor:
            self.drop_parked()
            self._parked = executor

    def drop_parked(self) -> None:
        """Give up the batches that were made for the next sweep."""
        parked, self._parked = self._parked, None
        if parked is not None:
            parked.close()

    def forget_workers(self) -> None:
        """Start others for the next sweep: these have the dataset as it was. Iterators in use keep theirs."""
        self.drop_parked()
        self.pool = None

    def reseeded(self) -> None:
        """End the workers, and forget what was found out under the old seed."""
        self.close()
        self._seeding = None

    def close(self) -> None:
        """End the workers."""
        self.drop_parked()
        pool, self.pool = self.pool, None
        if pool is not None:
            pool.close()


def _fetch_of(batches: PlannedBatches) -> Fetch:
    options = batches.options
    return Fetch(
        batches.items,
        collate=options.collate_fn,
        batched=options.batched,
        skip=options.skips,
        seed=batches.seed,
        init=options.worker_init_fn,
        place=options.kind,
    )
