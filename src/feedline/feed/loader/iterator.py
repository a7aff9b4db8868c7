"""The iterator over one sweep of a loader. It counts the executor's batches, pins their memory, and copies them to
devices.

The position advances when a batch is delivered, not when it is made or copied. A batch that fails leaves the position
as it is, and the next call continues after it. An interrupt loses nothing, not even a finished batch: the next call
delivers the batch of the interrupted one. `executors` explains how.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from feedline import _native
from feedline.concurrency.reentrancy import refusal
from feedline.errors import DataError, install_line
from feedline.feed.loader import collate as collating
from feedline.feed.loader import sampling
from feedline.feed.loader.draws import SamplerDraws
from feedline.feed.loader.epoch import Epoch
from feedline.feed.loader.executors import PoolExecutor
from feedline.feed.loader.fetch import Fetched
from feedline.feed.loader.figures.loader_stats import LoaderStats, ShownSweep
from feedline.feed.loader.order import Planned
from feedline.feed.loader.state import ResumePoint
from feedline.feed.loader.sweeps import SweepProgress, Sweeps
from feedline.feed.progress_bar import Progress
from feedline.feed.quarantine import QuarantineFile
from feedline.interop.lightning import check_restored
from feedline.interop.meshes import is_jax_placement

_Base: Any = collating.torch_class("BaseIterator")  # frameworks do not copy iterators of this class


class LoaderIterator(_Base):
    """One sweep of a loader, or the rest of one.

    Args:
        epoch: epoch that makes the batches.
        sweeps: position of the loader.
        progress: position of this iterator, advanced as batches are delivered.
        draws: draws that torch would make during the sweep. None if it would make none.
        stats: statistics of the loader.
        quarantine: list of skipped items. None if unreadable items are errors.
        show: whether to show the number of batches delivered, or a function that shows it.
        check_length: function called with the number of batches delivered. None if it need not be checked.
    """

    def __init__(
        self,
        epoch: Epoch,
        *,
        sweeps: Sweeps,
        progress: SweepProgress,
        draws: SamplerDraws | None,
        stats: LoaderStats,
        quarantine: QuarantineFile | None,
        show: Progress,
        check_length: Callable[[int], None] | None,
    ) -> None:
        batches, sweep = epoch.batches, progress.place.sweep
        self._length = None if batches.options.is_iterable else lambda: epoch.batches.count(sweep)
        self._shown = ShownSweep(show, stats, self._length)
        self._epoch, self._executor, self._draws = epoch, epoch.executor(progress.place), draws
        self._sweeps, self._progress, self._divided = sweeps, progress, sweeps.divided
        stats.rank, stats.ranks = epoch.partition
        stats.read_by(epoch.worker_figures, getattr(self._executor, "source", None))
        self._note_generators()
        progress.epoch = batches.epoch()  # now that workers have begun
        self._stats, self._quarantine, self._check_length = stats, quarantine, check_length
        self._delivered_at: float | None = None
        self._yielded = 0
        self._ended = False
        options, torch = batches.options, collating.torch_side()
        self._pin = bool(options.pin_memory) and torch is not None and torch.pins(options.pin_memory_device)
        self._transfer = None
        self._in_jax = is_jax_placement(options.device)
        if options.device is not None and not self._in_jax:
            if torch is None:
                raise ModuleNotFoundError(f"device= requires torch; run {install_line('torch')}")
            self._transfer = torch.Transfer(options.device)
        # Whether the next sweep has been begun, or cannot be.
        self._followed = not isinstance(self._executor, PoolExecutor)
        self._inside: int | None = None  # the thread inside `__next__`
        # The stages of a batch, each of which holds at most one.
        self._received: tuple[Planned, Fetched] | None = None
        self._moving: tuple[Planned, Fetched, Any, Any] | None = None
        self._failed: Exception | None = None
        self._hand: tuple[Planned, Fetched, Any] | None = None

    def __iter__(self) -> LoaderIterator:
        return self

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("an iterator over an IterableDataset has no length; len(loader) is the dataset's")
        return self._length()

    def __next__(self) -> Any:
        me = threading.get_ident()
        if self._inside is not None:
            raise refusal("this iterator", self._inside)
        self._inside = me
        try:
            stats = self._stats
            began = time.perf_counter()
            if self._delivered_at is not None:
                stats.note_step(began - self._delivered_at)
                self._delivered_at = None
            if self._ended:
                raise StopIteration
            if self._yielded < 2:  # the first batch may be read ahead, before anything is restored
                check_restored()
            if not self._progress.asked:
                self._begin()
            if self._sweeps.divided is not self._divided:
                self._repartition()
            if self._draws is not None:
                self._draws.draw_for(self._yielded + 1)
            if self._yielded:
                self._shown(self._yielded)
                if not self._followed:
                    self._begin_next()
            if self._hand is None:
                try:
                    if self._transfer is None or not self._transfer.asynchronous:
                        self._hand = self._next()
                    else:
                        self._next_travelled()
                except StopIteration:
                    self._end()
                    raise
            hand = self._hand
            assert hand is not None
            planned, fetched, batch = hand
            place, skipped = self._progress.after(planned), len(fetched.bad)
            if self._check_length is not None:
                self._check_length(self._yielded + 1)
            if fetched.slowest is not None or not stats.batches & 15:
                stats.note_items(fetched.items, fetched.reading, fetched.slowest)
            now = time.perf_counter()
            # From here on there are no calls, and so no interrupts, until the loop has the batch.
            self._progress.place, self._hand = place, None
            self._yielded += 1
            stats.batches += 1
            stats.items += fetched.items
            stats.skipped += skipped
            stats.reading += fetched.reading
            stats.collating += fetched.collating
            stats.hook = fetched.hook
            stats.computing += fetched.computing
            stats.waiting += now - began
            if self._yielded == 1:
                stats.starting += now - began
                stats.starts += 1
            self._delivered_at = now
            return batch
        finally:
            self._inside = None

    @property
    def is_newest(self) -> bool:
        """Whether its sweep is the loader's newest, with no other place to go on from."""
        now = self._sweeps.now
        return now.newest is self._progress and now.resume is None

    def abandon(self) -> None:
        """End the work for an iterator that was never asked for a batch."""
        self._ended = True
        self._executor.close()
        self._epoch.close()

    def _begin(self) -> None:
        """Before the first batch, go to the sweep that `set_epoch` has chosen since the iterator was created."""
        sweeps, progress = self._sweeps, self._progress
        with sweeps.lock():
            place = sweeps.redirection(progress)
            if place is not None:  # until `note_move` has returned, an interrupt leads here again
                self._executor.close()
                self._executor = self._epoch.move_to(place)
                sweeps.note_move(progress, place)
            self._note_generators()
            progress.place = sampling.with_generator(self._epoch.batches.options.user_sampler, progress.place)
            sweeps.note_first_request(progress)
            progress.asked = True

    def _begin_next(self) -> None:
        """Once the workers have all batches of this sweep, begin the next one, if nothing can change it."""
        executor, draws, sweeps = self._executor, self._draws, self._sweeps
        if not isinstance(executor, PoolExecutor) or not executor.all_in_flight:
            return
        if draws is not None and not draws.ended:  # its seed depends on them
            return
        self._followed = True
        with sweeps.lock(), contextlib.suppress(Exception):  # the next ``iter`` raises it again
            if self.is_newest:
                self._epoch.begin_next(sweeps.upcoming, sweeps.now.upcoming)

    def _note_generators(self) -> None:
        """Note, for states, from which generators a sampler has begun, as it has where there are workers."""
        begun, place = getattr(self._epoch.remaining, "begun", None), self._progress.place
        if begun is not None and not place.start:
            self._progress.place = place._replace(memo={**(place.memo or {}), **begun})

    def _repartition(self) -> None:
        """Go on after the last batch delivered, with the share that the loader has now."""
        divided, place = self._sweeps.divided, self._progress.place
        assert divided is not None
        if place.done:
            raise ValueError(
                f"expected all batches up to the last one before another share, got none from {place.start}, as one of "
                "them failed at this rank: load the state from before it on all ranks"
            )
        self._executor = self._epoch.repartition(*divided, self._executor, place)
        self._received = self._moving = self._failed = self._hand = None
        self._divided = divided  # until here, an interrupt leads here again

    def _next(self) -> tuple[Planned, Fetched, Any]:
        planned, fetched = self._next_with_items()
        batch = fetched.batch
        if self._pin or self._in_jax or self._transfer is not None:
            began = time.perf_counter()
            try:
                if self._in_jax:
                    batch = self._epoch.in_jax(batch, planned)
                if self._pin:
                    batch = collating.torch_side().pinned(batch)
                if self._transfer is not None:
                    batch = self._transfer.finish(*self._transfer.start(batch))
            except Exception:
                self._received = None
                raise
            self._stats.transfer += time.perf_counter() - began
        self._received = None
        return planned, fetched, batch

    def _next_travelled(self) -> None:
        """Copy one batch to the device while the loop computes with the previous one."""
        if self._moving is None and self._failed is None:
            self._start()
        moving = self._moving
        if moving is None:
            failed, self._failed = self._failed, None
            assert failed is not None
            raise failed
        planned, fetched, batch, pending = moving
        try:
            batch = self._transfer.finish(batch, pending)  # type: ignore[union-attr]
        except Exception:
            self._moving = None
            raise
        self._hand, self._moving = (planned, fetched, batch), None
        self._start()

    def _start(self) -> None:
        try:
            planned, fetched = self._next_with_items()
            began = time.perf_counter()
            batch, pending = self._transfer.start(fetched.batch)  # type: ignore[union-attr]
            self._stats.transfer += time.perf_counter() - began
            self._moving, self._received = (planned, fetched, batch, pending), None
        except Exception as error:  # raised after the preceding batch
            self._failed, self._received = error, None

    def _next_with_items(self) -> tuple[Planned, Fetched]:
        """Return the next batch that has items, kept in ``_received``. List its unreadable items in the quarantine
        first."""
        while True:
            received = self._received
            if received is None:
                received = self._received = self._executor.next()
            planned, fetched = received
            if not fetched.bad:
                return received
            try:
                self._list(fetched)
                if fetched.items:
                    return received
                if self._epoch.partition[1] > 1:
                    raise DataError(
                        f"expected a readable item in this rank's part of the batch from place {planned.start} of "
                        f"sweep {planned.sweep}, got none: without a batch this rank would fall a step behind"
                    )
            except Exception:
                self._received = None
                raise
            place, skipped = self._progress.after(planned), len(fetched.bad)
            self._progress.place, self._received = place, None
            self._stats.skipped += skipped

    def _list(self, fetched: Fetched) -> None:
        quarantine = self._quarantine
        assert quarantine is not None
        for key, index, text in fetched.bad:
            number = int(index) if index.lstrip("-").isdigit() else key
            quarantine.add(number, DataError(text, sequence=number), self._epoch.partition[0])

    def _end(self) -> None:
        progress = self._progress
        ended = progress.place
        sampler = self._epoch.batches.options.user_sampler
        place = ResumePoint(ended.sweep + 1, memo=sampling.after(sampler, ended.memo))
        self._executor.close()
        self._epoch.close()
        _native.release_memory()
        self._shown.close()  # an interrupt here comes before the end of the sweep, not after it
        progress.place, self._ended = place, True

    # ---- names of torch's iterator, by which programs end workers early ------------------------------

    @property
    def _workers(self) -> list[Any]:
        self._expect_workers("_workers")
        return self._epoch.processes

    @property
    def _shutdown_workers(self) -> Callable[[], None]:
        self._expect_workers("_shutdown_workers")
        return self._epoch.dismiss

    def _expect_workers(self, name: str) -> None:
        """Programs ask for a name to learn whether there are workers."""
        if not self._epoch.batches.options.num_workers:
            raise AttributeError(f"an iterator without workers has no {name}")

    def __getstate__(self) -> Any:
        raise NotImplementedError("a LoaderIterator cannot be pickled; pickle the loader, or its state_dict()")
