"""One sweep of a loader as it is delivered: batches out of the supply, books, pinned memory, devices.

A position moves when a batch is handed out, not when it is made or begins to travel; one that fails leaves it where it
was, and the next call goes on behind it. An interrupt leaves everything where it was, batches in hand included: the
next call hands out what this one would have. How that is kept is told in `executor`.
"""

from __future__ import annotations

import threading
import time
import warnings
from typing import TYPE_CHECKING, Any

from feedline.errors import DataError
from feedline.feed.loader import collate as collating
from feedline.feed.loader import sampling
from feedline.feed.loader.executors import Executor, PoolExecutor
from feedline.feed.loader.fetch import Fetched
from feedline.feed.loader.order import Planned
from feedline.feed.loader.state import ResumePoint
from feedline.feed.one_thread import refusal

if TYPE_CHECKING:
    from feedline.feed.loader.loader import DataLoader


class SweepProgress:
    """How far an iterator has delivered; the loader keeps the newest one's when the iterator is gone."""

    def __init__(self, place: ResumePoint) -> None:
        self.place = place

    def after(self, planned: Planned) -> ResumePoint:
        """Where it stands once this batch has been delivered.

        Behind the last batch that is the end of the sweep: only the loop's next question, which finds nothing, begins
        another one.
        """
        place = self.place
        if planned.start == place.start and not place.done:
            return ResumePoint(place.sweep, planned.stop, (), planned.memo)
        start = place.start
        done: list[tuple[int, int]] = []
        for a, b in sorted((*place.done, (planned.start, planned.stop))):
            if a <= start:
                start = max(start, b)
            elif done and a <= done[-1][1]:
                done[-1] = (done[-1][0], max(b, done[-1][1]))
            else:
                done.append((a, b))
        return ResumePoint(place.sweep, start, tuple(done), planned.memo)


class LoaderIterator:
    """One sweep of a loader, or the rest of one."""

    def __init__(self, loader: DataLoader, executor: Executor, progress: SweepProgress, share: tuple[int, int]) -> None:
        self._loader, self._executor, self._progress, self._share = loader, executor, progress, share
        self._left: float | None = None
        self._yielded = 0
        self._ended = False
        self._told = loader._told_length
        torch = collating.torch_side()
        self._pin = bool(loader.pin_memory) and torch is not None and torch.pins(loader.pin_memory_device)
        self._transfer = None
        if loader._device is not None:
            if torch is None:
                raise ModuleNotFoundError("device= needs torch; run: pip install 'feedline[torch]'")
            self._transfer = torch.Transfer(loader._device)
        self._inside: int | None = None  # the thread that is in `__next__`
        # Where a batch is on its way; at most one in each place.
        self._came: tuple[Planned, Fetched] | None = None
        self._moving: tuple[Planned, Fetched, Any, Any] | None = None
        self._failed: Exception | None = None
        self._hand: tuple[Planned, Fetched, Any] | None = None

    def __iter__(self) -> LoaderIterator:
        return self

    def __len__(self) -> int:
        if self._loader._iterable:
            raise TypeError("an iterator over an IterableDataset has no length; len(loader) says what the dataset does")
        return len(self._loader)

    def __next__(self) -> Any:
        me = threading.get_ident()
        if self._inside is not None:
            raise refusal("this iterator", self._inside)
        self._inside = me
        try:
            stats = self._loader._stats
            began = time.perf_counter()
            if self._left is not None:
                stats.consuming += began - self._left
                self._left = None
            if self._ended:
                raise StopIteration
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
            if self._loader._iterable:
                self._check_told()
            now = time.perf_counter()
            # From here on nothing is called until the loop has the batch.
            self._progress.place, self._hand = place, None
            self._yielded += 1
            stats.batches += 1
            stats.items += fetched.items
            stats.skipped += skipped
            stats.reading += fetched.reading
            stats.collating += fetched.collating
            stats.waiting += now - began
            self._left = now
            return batch
        finally:
            self._inside = None

    def _next(self) -> tuple[Planned, Fetched, Any]:
        planned, fetched = self._supplied()
        batch = fetched.batch
        if self._pin or self._transfer is not None:
            batch = self._moved(batch)
        self._came = None
        return planned, fetched, batch

    def _next_travelled(self) -> None:
        """One batch travels while the one before it is computed with."""
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
            planned, fetched = self._supplied()
            began = time.perf_counter()
            batch, pending = self._transfer.start(fetched.batch)  # type: ignore[union-attr]
            self._loader._stats.transfer += time.perf_counter() - began
            self._moving, self._came = (planned, fetched, batch, pending), None
        except Exception as error:  # its turn comes after the batch before it
            self._failed, self._came = error, None

    def _moved(self, batch: Any) -> Any:
        began = time.perf_counter()
        torch = collating.torch_side()
        try:
            if self._pin and torch is not None:
                batch = torch.pinned(batch)
            if self._transfer is not None:
                batch = self._transfer.finish(*self._transfer.start(batch))
        except Exception:
            self._came = None
            raise
        self._loader._stats.transfer += time.perf_counter() - began
        return batch

    def _supplied(self) -> tuple[Planned, Fetched]:
        """The next batch with anything in it, which stays in ``_came``; unreadable items are listed first."""
        while True:
            came = self._came
            if came is None:
                came = self._came = self._executor.next()
            planned, fetched = came
            if not fetched.bad:
                return came
            try:
                self._list(fetched)
                if fetched.items:
                    return came
                if self._share[1] > 1:
                    raise DataError(
                        f"expected a readable item in this rank's part of the batch from place {planned.start} of "
                        f"sweep {planned.sweep}, got none: without a batch here, ranks would step unequally often"
                    )
            except Exception:
                self._came = None
                raise
            place, skipped = self._progress.after(planned), len(fetched.bad)
            self._progress.place, self._came = place, None
            self._loader._stats.skipped += skipped

    def _list(self, fetched: Fetched) -> None:
        quarantine = self._loader._quarantine
        assert quarantine is not None
        for key, index, text in fetched.bad:
            number = int(index) if index.lstrip("-").isdigit() else key
            quarantine.add(number, DataError(text, sequence=number), self._share[0])

    def _check_told(self) -> None:
        if self._told is not None and self._yielded >= self._told:
            _warn_of_length(self._loader, self._told, self._yielded + 1)

    def _end(self) -> None:
        loader, progress, executor = self._loader, self._progress, self._executor
        memo = sampling.after(loader._user_sampler) if loader._user_sampler is not None else None
        place = ResumePoint(progress.place.sweep + 1, memo=memo)
        if isinstance(executor, PoolExecutor) and loader._progress is progress:
            if loader._ahead is not executor:
                loader._drop_ahead()
            loader._ahead = executor
        else:
            executor.close()
        progress.place, self._ended = place, True

    def __getstate__(self) -> Any:
        raise NotImplementedError("a LoaderIterator cannot be pickled; pickle the loader, or its state_dict()")


def _warn_of_length(loader: DataLoader, told: int, yielded: int) -> None:
    hint = ""
    if loader.num_workers:
        hint = "; every worker iterates a copy of its own, which has to share out by torch.utils.data.get_worker_info()"
    warnings.warn(
        f"Length of IterableDataset {loader.dataset} was said to be {told} (by len(loader)), and {yielded} came{hint}",
        UserWarning,
        stacklevel=4,
    )
