"""Figures of torch's own loaders, whose iterators are timed while a doctor looks on."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from typing import Any

from feedline.concurrency.conditions import process_conditions
from feedline.concurrency.hooks import hook_name
from feedline.concurrency.stages import FEEDS, Durations, FeedStage
from feedline.feed.workers.results import WorkerStats

_MODULE = "torch.utils.data.dataloader"


class TorchLoaderFigures:
    """Figures of a ``torch.utils.data.DataLoader``, over all its iterators.

    Torch does not say how long its workers work. While the loop waits for a batch, they are taken to be busy.

    Args:
        loader: the loader.
    """

    def __init__(self, loader: Any) -> None:
        self.batches, self.rank, self.ranks = 0, 0, 1
        self.waiting, self.consuming, self.starting, self.starts = 0.0, 0.0, 0.0, 0
        self.hook = ""
        self.workers: list[WorkerStats] = []
        self._here_s = self._turn_s = 0.0  # processor time in `next`, of this thread; see `note_batch`
        self._ended_s = self._living_s = 0.0  # processor time of workers that have ended, and of the present ones
        self._batches, self._steps = Durations(), Durations()
        self._facts = {
            "feed": "torch.utils.data.DataLoader",
            "dataset": type(loader.dataset).__name__,
            "workers": loader.num_workers,
            "kind": "process" if loader.num_workers else "here",
            "prefetch_factor": loader.prefetch_factor,
            "persistent_workers": loader.persistent_workers,
            "pin_memory": loader.pin_memory,
            "device": None,
            "batch_size": loader.batch_size,
        }

    @property
    def facts(self) -> dict[str, Any]:
        """Settings of the loader, in JSON types."""
        return self._facts

    @property
    def computing(self) -> float:
        """Processor time of its workers, or of this thread in ``next``."""
        if self.workers:
            living = filter(None, (process_conditions(worker.pid) for worker in self.workers))
            self._living_s = max(
                self._living_s, sum(worker.cpu_seconds or 0.0 for worker in living)
            )  # some may have ended
        return self._here_s + self._ended_s + self._living_s

    @property
    def stages(self) -> dict[str, FeedStage]:
        """Stages of the loop by name. Of the time in a dataset, ``decode`` is the processor's, and ``fetch`` waits."""
        threads = max(1, len(self.workers))
        busy_s = threads * self.waiting
        decoding_s = min(busy_s, self.computing)
        decoding = FeedStage(
            decoding_s, self.waiting * decoding_s / busy_s if busy_s else 0.0, self.batches, 0, threads
        )
        fetching = FeedStage(busy_s - decoding_s, self.waiting - decoding.waiting, self.batches, 0, threads)
        (decoding if decoding_s > busy_s / 2 else fetching).timed(self._batches)
        step = FeedStage(self.consuming, 0.0, self.batches).timed(self._steps)
        stages = {"fetch": fetching, "decode": decoding, "step": step}
        return {name: stage for name, stage in stages.items() if stage.seconds}

    def note_step(self, seconds: float) -> None:
        """Add a step of the loop."""
        self.consuming += seconds
        number = self.batches
        if number > 1:  # much is done once in the first step, such as imports and compilation
            self._steps.add(seconds, lambda: f"step {number}")

    def note_workers(self, workers: Sequence[Any]) -> None:
        """Note the processes that make the batches of an iterator."""
        pids = [worker.pid or 0 for worker in workers]
        if pids != [worker.pid for worker in self.workers]:
            self._ended_s, self._living_s = self._ended_s + self._living_s, 0.0
            self.workers = [WorkerStats(i, pid) for i, pid in enumerate(pids)]

    def note_batch(self, seconds: float, computing_s: float, first: bool) -> None:
        """Add a batch that the loop waited for, ``computing_s`` of it with work of its own thread."""
        self.waiting += seconds
        number = self.batches
        if first:
            self.starting += seconds
            self.starts += 1
        else:
            # Workers work at the same time, so that the loop waits for one batch of each turn.
            self._turn_s += seconds
            if number % max(1, len(self.workers)) == 0:
                self._batches.add(self._turn_s, lambda: f"batch {number}")
                self._turn_s = 0.0
        if not self.workers:
            self._here_s += computing_s
            self.hook = hook_name()
        self.batches += 1


class TorchLoaders:
    """Times the iterators of torch's loaders that this process creates from now on, until it is closed.

    Several at a time share the times.
    """

    def __init__(self) -> None:
        self._attached = False
        self._finder: _LoaderImport | None = None
        module = sys.modules.get(_MODULE)
        if hasattr(module, "DataLoader"):  # the last of the names it defines
            self._attach(module)
        else:
            self._finder = _LoaderImport(self._attach)
            sys.meta_path.insert(0, self._finder)

    def _attach(self, module: Any) -> None:
        self._attached = True
        _TIMING.begin(module._BaseDataLoaderIter)

    def close(self) -> None:
        """Leave torch as it was."""
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        if self._attached:
            self._attached = False
            _TIMING.end()


class _Timing:
    """The changed methods of torch's iterators, while anyone uses them."""

    def __init__(self) -> None:
        self._users = 0
        self._lock = threading.Lock()
        self._iterators: Any = None  # the class
        self._before: tuple[Any, Any] = (None, None)  # its methods
        self._after: tuple[Any, Any] = (None, None)  # those that take the times
        self._figures: weakref.WeakKeyDictionary[Any, TorchLoaderFigures] = weakref.WeakKeyDictionary()

    def begin(self, iterators: Any) -> None:
        """Count a user. The first one changes the methods."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._change(iterators)

    def end(self) -> None:
        """Count a user less. The last one restores the methods."""
        with self._lock:
            self._users -= 1
            now = (self._iterators.__init__, self._iterators.__next__)
            if not self._users and now == self._after:  # unless another tool has changed them since
                self._iterators.__init__, self._iterators.__next__ = self._before

    def _change(self, iterators: Any) -> None:
        self._iterators = iterators
        initialise, advance = self._before = iterators.__init__, iterators.__next__
        pid = os.getpid()  # a forked worker may have loaders of its own

        def initialised(iterator: Any, loader: Any) -> None:
            initialise(iterator, loader)
            if os.getpid() == pid:
                iterator._feedline = _Timed(self._figures_of(loader))

        def advanced(iterator: Any) -> Any:
            timed = getattr(iterator, "_feedline", None)
            return advance(iterator) if timed is None else timed.next(iterator, advance)

        iterators.__init__, iterators.__next__ = self._after = initialised, advanced

    def _figures_of(self, loader: Any) -> TorchLoaderFigures:
        figures = self._figures.get(loader)
        if figures is None:
            figures = self._figures[loader] = TorchLoaderFigures(loader)
            FEEDS.add(figures)
        return figures


class _LoaderImport(MetaPathFinder):
    """Calls a function with the module of torch's loaders when the program imports it.

    Args:
        call: the function.
    """

    def __init__(self, call: Callable[[Any], None]) -> None:
        self._call = call

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Return the spec that Python finds without this finder, which then calls the function."""
        if fullname != _MODULE or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute, call = spec.loader.exec_module, self._call

            def executed(module: Any) -> None:
                execute(module)
                call(module)

            spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


_TIMING = _Timing()


class _Timed:
    """The times of one iterator."""

    def __init__(self, figures: TorchLoaderFigures) -> None:
        self._figures, self._first = figures, True
        self._delivered_at: float | None = None

    def next(self, iterator: Any, advance: Callable[[Any], Any]) -> Any:
        """Return the next batch."""
        began, computed = time.perf_counter(), time.thread_time()
        if self._delivered_at is not None:
            self._figures.note_step(began - self._delivered_at)
            self._delivered_at = None
        batch = advance(iterator)
        computing_s, seconds = time.thread_time() - computed, time.perf_counter() - began
        if self._first:
            self._figures.note_workers(getattr(iterator, "_workers", ()))
        self._figures.note_batch(seconds, computing_s, self._first)
        self._first = False
        self._delivered_at = time.perf_counter()
        return batch
