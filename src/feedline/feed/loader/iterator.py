"""One sweep of a loader as it is delivered: batches out of the supply, books, pinned memory, devices.

A position moves when a batch is handed out, not when it is made or begins to travel; one that fails leaves it where it
was, and the next call goes on behind it.
"""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING, Any

from feedline.errors import DataError
from feedline.feed.loader import collate as collating
from feedline.feed.loader import sampling
from feedline.feed.loader.fetch import Fetched
from feedline.feed.loader.order import Planned
from feedline.feed.loader.state import Place
from feedline.feed.loader.supply import Pooled, Supply

if TYPE_CHECKING:
    from feedline.feed.loader.loader import DataLoader


class Progress:
    """How far an iterator has delivered; the loader keeps the newest one's when the iterator is gone."""

    def __init__(self, place: Place, end: int | None) -> None:
        """``end``: places of the sweep, where that is known."""
        self.sweep, self.place, self._end = place.sweep, place, end

    def passed(self, planned: Planned) -> None:
        """A batch was delivered."""
        place = self.place
        if planned.start == place.start and not place.done:
            self._stand(planned.stop, (), planned.memo)
            return
        start = place.start
        done: list[tuple[int, int]] = []
        for a, b in sorted((*place.done, (planned.start, planned.stop))):
            if a <= start:
                start = max(start, b)
            elif done and a <= done[-1][1]:
                done[-1] = (done[-1][0], max(b, done[-1][1]))
            else:
                done.append((a, b))
        self._stand(start, tuple(done), planned.memo)

    def _stand(self, start: int, done: tuple[tuple[int, int], ...], memo: Any) -> None:
        # What follows the last item of a sweep is the first of the next.
        over = start == self._end
        self.place = Place(self.sweep + 1) if over else Place(self.sweep, start, done, memo)

    def end(self, memo: Any) -> None:
        """The sweep is used up."""
        self.place = Place(self.sweep + 1, memo=memo)


class LoaderIterator:
    """One sweep of a loader, or the rest of one."""

    def __init__(self, loader: DataLoader, supply: Supply, progress: Progress, share: tuple[int, int]) -> None:
        self._loader, self._supply, self._progress, self._share = loader, supply, progress, share
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
        self._moving: tuple[Planned, Fetched, Any, Any] | None = None
        self._failed: Exception | None = None

    def __iter__(self) -> LoaderIterator:
        return self

    def __len__(self) -> int:
        if self._loader._iterable:
            raise TypeError("an iterator over an IterableDataset has no length; len(loader) says what the dataset does")
        return len(self._loader)

    def __next__(self) -> Any:
        stats = self._loader._stats
        began = time.perf_counter()
        if self._left is not None:
            stats.consuming += began - self._left
            self._left = None
        if self._ended:
            raise StopIteration
        try:
            planned, fetched, batch = self._next()
        except StopIteration:
            self._end()
            raise
        self._progress.passed(planned)
        self._yielded += 1
        stats.batches += 1
        stats.items += fetched.items
        stats.reading += fetched.reading
        stats.collating += fetched.collating
        if self._loader._iterable:
            self._check_told()
        self._left = now = time.perf_counter()
        stats.waiting += now - began
        return batch

    def _next(self) -> tuple[Planned, Fetched, Any]:
        if self._transfer is None or not self._transfer.asynchronous:
            planned, fetched = self._supplied()
            return planned, fetched, self._moved(fetched.batch)
        # One batch travels while the one before it is computed with.
        if self._moving is None and self._failed is None:
            self._start()
        if self._moving is None:
            assert self._failed is not None
            failed, self._failed = self._failed, None
            raise failed
        planned, fetched, batch, pending = self._moving
        self._moving = None
        batch = self._transfer.finish(batch, pending)
        self._start()
        return planned, fetched, batch

    def _start(self) -> None:
        try:
            planned, fetched = self._supplied()
        except Exception as error:  # its turn comes after the batch before it
            self._failed = error
            return
        began = time.perf_counter()
        self._moving = planned, fetched, *self._transfer.start(fetched.batch)  # type: ignore[union-attr]
        self._loader._stats.transfer += time.perf_counter() - began

    def _moved(self, batch: Any) -> Any:
        if not self._pin and self._transfer is None:
            return batch
        began = time.perf_counter()
        torch = collating.torch_side()
        if self._pin and torch is not None:
            batch = torch.pinned(batch)
        if self._transfer is not None:
            batch = self._transfer.finish(*self._transfer.start(batch))
        self._loader._stats.transfer += time.perf_counter() - began
        return batch

    def _supplied(self) -> tuple[Planned, Fetched]:
        """The next batch with anything in it; unreadable items are listed first."""
        while True:
            planned, fetched = self._supply.next()
            if not fetched.bad:
                return planned, fetched
            self._list(fetched)
            if fetched.items:
                return planned, fetched
            if self._share[1] > 1:
                raise DataError(
                    f"expected a readable item in this rank's part of the batch from place {planned.start} of sweep "
                    f"{planned.sweep}, got none: without a batch here, ranks would step unequally often"
                )
            self._progress.passed(planned)

    def _list(self, fetched: Fetched) -> None:
        quarantine = self._loader._quarantine
        assert quarantine is not None
        for key, index, text in fetched.bad:
            number = int(index) if index.lstrip("-").isdigit() else key
            quarantine.add(number, DataError(text, sequence=number), self._share[0])
            self._loader._stats.skipped += 1

    def _check_told(self) -> None:
        if self._told is not None and self._yielded > self._told:
            _warn_of_length(self._loader, self._told, self._yielded)

    def _end(self) -> None:
        self._ended = True
        loader, progress = self._loader, self._progress
        memo = sampling.after(loader._user_sampler) if loader._user_sampler is not None else None
        progress.end(memo)
        supply = self._supply
        if isinstance(supply, Pooled) and loader._progress is progress:
            loader._drop_ahead()
            loader._ahead = supply
        else:
            supply.close()

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
