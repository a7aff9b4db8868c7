"""An epoch: the executor of one sweep, the workers that make its batches, and the `Crew` that outlives a sweep.

As in torch, workers start when ``iter`` is called and end with their sweep, so that they see the dataset as it is then.
Nothing is read before that. With ``persistent_workers=True`` they stay, with their copies of the dataset.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from feedline.concurrency.finalizers import unless_exiting
from feedline.concurrency.turns import lend
from feedline.feed.equal_work import by_position
from feedline.feed.loader import collate as collating
from feedline.feed.loader.batches import Batches, ItemBatches, IterableBatches, PlannedBatches, SamplerBatches
from feedline.feed.loader.begun_sweep import BegunSweep, may_begin_early
from feedline.feed.loader.executors import (
    MAX_AHEAD,
    MAX_AHEAD_RAY,
    DrawnAhead,
    Executor,
    InProcessExecutor,
    PoolExecutor,
    RemainingBatches,
    gather_from,
)
from feedline.feed.loader.fetch import Fetch, WorkerStart, unit_of
from feedline.feed.loader.gather import columns_of
from feedline.feed.loader.iterable import DatasetPast, IterableExecutor, IterableFetch
from feedline.feed.loader.options import LoaderOptions
from feedline.feed.loader.order import Planned
from feedline.feed.loader.sample_seeds import Seeding
from feedline.feed.loader.state import ResumePoint
from feedline.feed.partition import ranks

if TYPE_CHECKING:
    from feedline.feed.workers import Pool, Taken, WorkerStats


def batches_of(options: LoaderOptions, seed: int | None) -> Batches:
    """Return the batches that the arguments describe.

    Raises:
        ValueError, TypeError: the dataset does not support them.
    """
    if options.is_corpus:
        from feedline.feed.loader.corpus_dataset import CorpusBatches  # with all of `MinibatchSource`

        return CorpusBatches(options, seed)
    if options.is_iterable:
        return IterableBatches(options, seed)
    if options.user_sampler is not None:
        return SamplerBatches(options, seed)
    batches = ItemBatches(options, seed)
    if options.shuffle and batches.places == 0:
        raise ValueError("expected at least one item to shuffle: num_samples should be a positive integer value, got 0")
    return batches


class Crew:
    """The parts of a loader that outlive a sweep: persistent workers, their figures, and which generators user code
    draws from.

    Attributes:
        seeding: knows which generators samples made in this process draw from.
        mark: object that the threads of this loader `serve`.
        past: history of an iterable dataset that is read in this process.
        figures: figures of the workers, over all sweeps.
        taken: how their results were taken, over all sweeps. None before there are workers.
        begins_next: whether a sweep may be begun before its ``iter``, see `begun_sweep`. No longer once that was in
            vain.
    """

    def __init__(self) -> None:
        self.seeding: Seeding | None = None
        self.mark = object()
        self.past = DatasetPast()
        self.figures: list[WorkerStats] = []
        self.taken: Taken | None = None
        self._options: LoaderOptions | None = None  # of the workers of the newest sweep
        self._kept: Pool | None = None  # persistent workers, of the same
        self._pools: weakref.WeakSet[Pool] = weakref.WeakSet()
        self._newest: weakref.ref[Pool] | None = None
        self._begun: BegunSweep | None = None
        self.begins_next = True

    def __reduce__(self) -> Any:
        """Make copies start their own workers."""
        return Crew, ()

    def begin(self, options: LoaderOptions) -> bool:
        """Begin a sweep. Return whether it has new workers, rather than the workers of the preceding sweep."""
        stay = options.persistent_workers and self._options is options
        self._options, self._kept = options, self._kept if stay else None
        return not stay

    def follow(self, options: LoaderOptions, changed: LoaderOptions) -> None:
        """Keep the workers that were started with ``options`` when these change in what workers do not see."""
        if self._options is options:
            self._options = changed

    def pool(self, options: LoaderOptions, task: Callable[[], Any]) -> Pool:
        """Return the workers of a sweep that has begun."""
        if self._kept is not None and self._options is options:
            return self._kept
        from feedline.feed.workers import Pool

        assert options.kind != "here"
        pool = Pool(
            task(),
            options.num_workers,
            kind=options.kind,
            method=options.multiprocessing_context,
            depth=_most_ahead(options) if options.grows else options.ahead,
            timeout_s=options.timeout,
        )
        if len(self.figures) == len(pool.figures):
            pool.figures[:] = self.figures  # they go on counting
        if self.taken is not None:
            pool.taken = self.taken
        self.figures, self.taken = pool.figures, pool.taken
        self._pools.add(pool)
        self._newest = weakref.ref(pool)
        if options.persistent_workers and self._options is options:
            self._kept = pool
        return pool

    def release(self, pool: Pool) -> None:
        """Shut down the workers of a sweep that has ended, unless they are persistent."""
        if self._kept is not pool:
            lend(self.mark, pool.close)
            pool.close()

    def dismiss(self, pool: Pool) -> None:
        """Shut down the workers of a sweep, even if they are persistent: the next sweep starts others."""
        if self._kept is pool:
            self._options = self._kept = None
        self.release(pool)

    def begin_next(self, epoch: Epoch, place: ResumePoint) -> None:
        """Begin the sweep that comes next if nothing changes."""
        if self._begun is None:
            newest = self._newest
            self._begun = epoch.begun(place)
            self._newest = newest

    def take_begun(self, epoch: Epoch, place: ResumePoint) -> BegunSweep | None:
        """Return the sweep that was begun, if it is this one. Drop another one."""
        batches, begun = epoch.batches, self._begun
        if begun is None:
            return None
        self._begun = None
        if isinstance(batches, ItemBatches) and begun.is_for(batches, epoch.partition, place):
            self._newest = weakref.ref(begun.pool)
            return begun
        self.begins_next = False
        begun.close()
        return None

    @property
    def pids(self) -> list[int]:
        """Process ids of the newest workers, empty if they have ended."""
        pool = None if self._newest is None else self._newest()
        return [] if pool is None else list(pool.pids)

    def close(self) -> None:
        """Shut all workers down."""
        self._options = self._kept = self._begun = None
        for pool in list(self._pools):
            lend(self.mark, pool.close)
            pool.close()


class Epoch:
    """One sweep, from a snapshot of the loader at ``iter``.

    Args:
        batches: batches to make.
        partition: (index, count) of this rank.
        crew: crew of the loader.

    Attributes:
        partition: see above.
        remaining: remaining batches of a map-style dataset. None for other datasets, and before `executor` is called.
    """

    def __init__(self, batches: Batches, partition: tuple[int, int], crew: Crew) -> None:
        self.batches, self.partition, self._crew = batches, partition, crew
        self.remaining: RemainingBatches | None = None
        self._pool: Pool | None = None

    @property
    def worker_figures(self) -> tuple[list[WorkerStats], Taken | None]:
        """Figures of the workers, and how their results were taken, over all sweeps of the loader."""
        return self._crew.figures, self._crew.taken

    def in_jax(self, batch: Any, planned: Planned) -> Any:
        """Return a batch with JAX arrays, on the device or sharding of the loader."""
        from feedline.data.minibatch import RankShare  # with all of `data`

        options, count = self.batches.options, self.partition[1]
        sizes = None if options.samples is not None else partial(by_position, planned.stop - planned.start, count)
        export = importlib.import_module("feedline.interop.jax").export_batch
        share = RankShare(*self.partition, *options.own_partition.cut(), sizes)
        return export(batch, options.device, share)

    def executor(self, place: ResumePoint, previous: Executor | None = None) -> Executor:
        """Return the executor for the batches from a place on, after one of the same sweep if there is one."""
        batches = self.batches
        begun = None if previous is not None else self._crew.take_begun(self, place)
        if begun is not None:
            self._pool, self.remaining = begun.pool, begun.remaining
            return begun.executor
        if batches.options.is_corpus:
            from feedline.feed.loader.corpus_dataset import CorpusBatches

            assert isinstance(batches, CorpusBatches)
            return batches.executor(place, previous)
        if isinstance(batches, IterableBatches):
            return self._iterable(batches, place)
        assert isinstance(batches, PlannedBatches)
        options, seed = batches.options, batches.sure_seed
        remaining = self.remaining = batches.remaining(place, self.partition)
        if collating.own_form(options.collate_fn) is collating.collate and options.worker_init_fn is None:
            columns = columns_of(options.dataset)
            if columns is not None:
                from feedline.feed.loader.staged import StagedExecutor, in_files

                files = in_files(columns)
                if options.num_workers and options.user_sampler is not None:
                    remaining = DrawnAhead(remaining, options.depth)  # as if there were workers
                if files is None:
                    return InProcessExecutor(remaining.next, gather_from(columns))
                return StagedExecutor(remaining, columns, files, batches)
        if options.kind == "here":
            fetch = self._fetch(batches)
            return InProcessExecutor(remaining.next, lambda planned: (planned, fetch.run(unit_of(planned, seed))))
        own_order = options.user_sampler is None
        return PoolExecutor(
            remaining,
            self._workers(lambda: self._fetch(batches)),
            seed=seed,
            depth=options.depth,
            # A user's sampler is asked no earlier than torch asks it.
            most=_most_ahead(options) * options.num_workers if options.grows and own_order else options.depth,
            # The state of a user's sampler cannot represent batches delivered out of order.
            in_order=options.in_order or hasattr(options.user_sampler, "state_dict"),
            loader=self._crew.mark,
        )

    def begin_next(self, following: Callable[[], Batches], place: ResumePoint) -> None:
        """Begin the next sweep before its ``iter``, if it can be known already. See `begun_sweep`."""
        crew, options = self._crew, self.batches.options
        if not crew.begins_next or not isinstance(self.batches, ItemBatches):
            return
        if not may_begin_early(options):
            crew.begins_next = False
            return
        batches = following()
        if batches.options is options:
            crew.begin_next(Epoch(batches, self.partition, crew), place)

    def begun(self, place: ResumePoint) -> BegunSweep:
        """Let the workers of a sweep begin. This epoch is done then."""
        batches, executor = self.batches, self.executor(place)
        pool, self._pool = self._pool, None
        assert isinstance(batches, PlannedBatches)
        assert pool is not None
        assert self.remaining is not None
        return BegunSweep(batches, self.partition, place, pool=pool, executor=executor, remaining=self.remaining)

    def move_to(self, place: ResumePoint) -> Executor:
        """Return an executor that begins at another place. No batch must have been asked for. A sampler draws no more
        from its generators than if it had begun there."""
        begun = getattr(self.remaining, "begun", None)
        if self.batches.seed_sweep is not None:  # the seed goes with the sweep under its new number
            self.batches = self.batches.with_seed(self.batches.seed, place.sweep)
        return self.executor(place if begun is None else place._replace(memo=begun))

    def repartition(
        self, before: LoaderOptions, after: LoaderOptions, executor: Executor, place: ResumePoint
    ) -> Executor:
        """Return an executor for another share of the batches from a place on, in place of the present one. Workers
        stay, as do the windows of a corpus.

        Args:
            before, after: options of the loader before and after the change of its share. The epoch may have others.
            executor: the present executor.
            place: place of the first batch.
        """
        executor.close()
        batches, share = self.batches, after.own_partition
        options = after if batches.options is before else batches.options.repartitioned(share)
        self.batches, self.partition = batches.with_options(options), share.resolve()
        return self.executor(place, executor)

    def close(self) -> None:
        """End the workers, unless they are persistent."""
        pool, self._pool = self._pool, None
        if pool is not None:
            self._crew.release(pool)

    @property
    def processes(self) -> list[Any]:
        """Processes of the workers, if they are processes of this machine."""
        return [] if self._pool is None else self._pool.processes

    def dismiss(self) -> None:
        """End the workers, also persistent ones. Batches that are not made yet cannot be."""
        if self._pool is not None:
            self._crew.dismiss(self._pool)

    @unless_exiting
    def __del__(self) -> None:
        # Workers' threads may be waiting for the turn of this thread, which would wait for them in vain.
        if self._pool is not None:
            lend(self._crew.mark, self.close)

    def _workers(self, task: Callable[[], Any]) -> Pool:
        if self._pool is None:
            self._pool = self._crew.pool(self.batches.options, task)
        return self._pool

    def _fetch(self, batches: PlannedBatches) -> Fetch:
        options = batches.options
        fetch = Fetch(
            batches.items,
            collate=options.collate_fn,
            batched=options.batched,
            skip=options.quarantine is not None,
            start=self._worker_start(),
        )
        if options.place != "process":
            self._crew.seeding = fetch.seed_with(self._crew.seeding)
        return fetch

    def _worker_start(self) -> WorkerStart:
        batches, options = self.batches, self.batches.options
        loader = None if options.place == "process" else self._crew.mark
        return WorkerStart(batches.sure_seed, options.worker_init_fn, options.place, loader)

    def _iterable(self, batches: IterableBatches, place: ResumePoint) -> IterableExecutor:
        options = batches.options
        turn, progress = batches.progress(place.memo, place.start)
        fetch = IterableFetch(
            options.dataset,
            collate=collating.own_form(options.collate_fn) or options.collate_fn,
            size=options.indices,
            drop_last=options.drop_last,
            start=self._worker_start(),
            past=self._crew.past,
            ranks=ranks() if options.is_pipe else (0, 1),
        )
        return IterableExecutor(
            fetch,
            None if options.kind == "here" else self._workers(lambda: fetch),
            sweep=place.sweep,
            key=batches.key(place.sweep),
            turn=turn,
            progress=progress,
            depth=options.ahead,
            in_order=options.in_order,
            loader=self._crew.mark,
        )


def _most_ahead(options: LoaderOptions) -> int:
    return MAX_AHEAD_RAY if options.kind == "ray" else MAX_AHEAD
