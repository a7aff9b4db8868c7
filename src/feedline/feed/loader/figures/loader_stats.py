"""Statistics of a loader: batches delivered, where the time went, and how much faster a perfect loader would be."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from feedline.concurrency.finalizers import unless_exiting
from feedline.concurrency.stages import Durations, FeedStage, add_stages
from feedline.feed.loader.figures.remedies import remedy
from feedline.feed.progress_bar import Progress, Report, showing
from feedline.system import usable_cores

if TYPE_CHECKING:
    from feedline.feed.reading.stats import Stats
    from feedline.feed.workers import Taken, WorkerStats

_SLOW = 4  # times as long as the median of a batch, from which one of its items must have been slow
_LONG_S = 500e-6  # from which each step is timed, instead of one in sixteen
_INTERNAL = {"internal": True}  # of fields that `LoaderStats.to_json` leaves out


@dataclass(slots=True, weakref_slot=True)
class LoaderStats:
    """Statistics of a `DataLoader` in this process, over all its iterators.

    Attributes:
        batches, items: number delivered.
        skipped: number of unreadable items skipped.
        waiting: seconds spent in ``next``, in total: how long the loop waited for data.
        starting: seconds of ``waiting`` for the first batch of each iterator.
        starts: number of iterators that have delivered a batch.
        reading: seconds in the dataset, summed over workers.
        collating: seconds in ``collate_fn``, summed over workers.
        computing: seconds of CPU time of both. 0 if batches are copied from arrays or files without Python.
        transfer: seconds in which ``next`` pinned memory or copied batches to a device.
        consuming: seconds between the delivery of a batch and the next call of ``next``: the loop's own time.
        workers: units, seconds of work, copied memory and restarts by worker. Empty without workers.
        taken: how results were taken from workers. None without workers.
        hook: name of the debugger or profiler that Python calls where the last batch was made. Empty without one.
        rank, ranks: rank of the newest iterator, and number of ranks.
    """

    batches: int = 0
    items: int = 0
    skipped: int = 0
    waiting: float = 0.0
    starting: float = 0.0
    starts: int = 0
    reading: float = 0.0
    collating: float = 0.0
    computing: float = 0.0
    transfer: float = 0.0
    consuming: float = 0.0
    workers: list[WorkerStats] = field(default_factory=list)
    taken: Taken | None = None
    hook: str = ""
    rank: int = 0
    ranks: int = 1
    item_durations: Durations = field(default_factory=Durations, repr=False, metadata=_INTERNAL)
    step_durations: Durations = field(default_factory=Durations, repr=False, metadata=_INTERNAL)
    source: Stats | None = field(default=None, repr=False, metadata=_INTERNAL)
    earlier: dict[str, FeedStage] = field(default_factory=dict, repr=False, metadata=_INTERNAL)
    describe: Callable[[], dict[str, Any]] = field(default=dict, repr=False, metadata=_INTERNAL)
    known: dict[str, Any] | None = field(default=None, repr=False, metadata=_INTERNAL)

    def __reduce__(self) -> Any:
        """Let copies go on from the figures, without the source and the dataset."""
        left_out = ("source", "describe", "known", "earlier")
        figures = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name not in left_out}
        return partial(LoaderStats, **figures, known=self.facts, earlier=self._earlier_stages()), ()

    @property
    def facts(self) -> dict[str, Any]:
        """Settings of the loader. Once they were asked for, nothing here refers to the dataset."""
        if self.known is None:
            self.known, self.describe = self.describe(), dict
        return self.known

    def _earlier_stages(self) -> dict[str, FeedStage]:
        return self.earlier if self.source is None else add_stages(self.earlier, self.source.stages)

    def read_by(self, workers: tuple[list[WorkerStats], Taken | None], source: Any) -> None:
        """Note the figures of the workers, and the source, that a sweep is read by."""
        self.workers, self.taken = workers
        self.earlier = self._earlier_stages()
        self.source = None if source is None else source.stats()
        if self.source is not None:
            self.source.inside, self.source.describe = True, dict

    def note_step(self, seconds: float) -> None:
        """Add a step of the loop."""
        self.consuming += seconds
        # Not the first step, in which much is done once, such as imports and compilation.
        if self.batches > 1 and (seconds >= _LONG_S or not self.batches & 15):
            number = self.batches
            self.step_durations.add(seconds, lambda: f"step {number}")

    def note_items(self, items: int, seconds: float, slowest: tuple[float, Any] | None) -> None:
        """Note how long the items of a batch took to read, in all, and the slowest of them, see `Fetched.slowest`."""
        durations = self.item_durations
        durations.count(seconds / max(items, 1), items)
        if slowest is not None:
            item_s, index = slowest
            if not isinstance(index, list):
                durations.note(item_s, lambda: f"item {index}")
            elif seconds >= _SLOW * items * durations.median_s:  # among fast ones, which are not timed one by one
                durations.note(item_s, lambda: f"one of {len(index)} items, {', '.join(map(str, index[:8]))}, …")

    @property
    def stages(self) -> dict[str, FeedStage]:
        """Stages that have done something, by name.

        Of the time in a dataset, ``decode`` is the processor's, and in ``fetch`` it waits. ``gather`` collates.
        """
        handing_s, threads = 0.0 if self.taken is None else self.taken.seconds, max(1, len(self.workers))
        stages = dict(self._earlier_stages())
        if stages:
            pass  # of a corpus
        elif self.computing or self.collating:
            making_s = self.reading + self.collating
            waited_s = max(0.0, self.waiting - self.transfer - handing_s) if self.workers else making_s
            decoding_s = min(self.reading, max(0.0, self.computing - self.collating))
            parts = {"fetch": self.reading - decoding_s, "decode": decoding_s, "gather": self.collating}
            for name, seconds in parts.items():
                waits = waited_s * seconds / making_s if making_s else 0.0
                stages[name] = FeedStage(seconds, waits, self.items, threads=threads)
            stages["decode" if decoding_s > self.reading / 2 else "fetch"].timed(self.item_durations)
        else:  # copies of arrays or files, without Python
            copying_s = max(0.0, self.waiting - self.reading - self.transfer)
            stages["fetch"] = FeedStage(self.reading, self.reading, self.items)
            stages["gather"] = FeedStage(copying_s, copying_s, self.items)
        if self.taken is not None and self.taken.results:
            size = sum(worker.bytes for worker in self.workers)
            fullness = self.taken.ready / self.taken.results
            stages["hand_over"] = FeedStage(handing_s, handing_s, self.taken.results, size, fullness=fullness)
        stages["device"] = FeedStage(self.transfer, self.transfer, self.batches)
        stages["step"] = FeedStage(self.consuming, 0.0, self.batches).timed(self.step_durations)
        return {name: stage for name, stage in stages.items() if stage.seconds}

    @property
    def gain(self) -> float:
        """Speed-up of the loop if it never had to wait for data. 1.0: nothing to gain."""
        return (self.waiting + self.consuming) / self.consuming if self.consuming else 1.0

    @property
    def advice(self) -> str:
        """What limits the loop on this machine, and what to change, in sentences."""
        return remedy(self, usable_cores())

    @property
    def memory_advice(self) -> str:
        """What to do about workers that copy the memory of this process, in a sentence. Empty if they do not."""
        copied_bytes = max((worker.copied_bytes for worker in self.workers), default=0)
        if not copied_bytes:
            return ""
        from feedline.feed.workers.copied_memory import advice_on  # there are workers, so it is imported

        return advice_on(copied_bytes)

    def brief(self) -> dict[str, str]:
        """Return the figures for a progress bar: ``bar.set_postfix(loader.stats().brief())`` of tqdm."""
        total = self.waiting + self.consuming
        waiting = self.waiting / total if total else 0
        return {"batches": str(self.batches), "waiting": f"{waiting:.0%}", "perfect": f"{self.gain:.2f}x"}

    def to_json(self) -> dict[str, Any]:
        """Return all figures by name, in JSON types."""
        # Not `asdict` of all, which would copy the dataset.
        figures = {entry.name: getattr(self, entry.name) for entry in fields(self) if not entry.metadata}
        figures["workers"] = list(map(asdict, self.workers))
        figures["taken"] = None if self.taken is None else asdict(self.taken)
        advice = {"advice": self.advice, "memory_advice": self.memory_advice}
        stages = {name: stage.to_json() for name, stage in self.stages.items()}
        return {**figures, "gain": self.gain, **advice, "stages": stages}

    def __repr__(self) -> str:
        busy = ", ".join(f"{w.seconds:.3f} s" for w in self.workers)
        return (
            f"LoaderStats({self.batches} batches, {self.items} items; waited {self.waiting:.3f} s, "
            f"loop {self.consuming:.3f} s; reading {self.reading:.3f} s, collating {self.collating:.3f} s, "
            f"transfer {self.transfer:.3f} s{f'; workers busy {busy}' if busy else ''}; {self.skipped} skipped; "
            f"a perfect loader would be {self.gain:.2f} times as fast). {self.advice}"
            f"{f' {self.memory_advice}' if self.memory_advice else ''}"
        )


class ShownSweep:
    """Shows the number of batches that a sweep has delivered. A bar disappears when the sweep ends or is dropped.

    Args:
        progress: as `DataLoader` takes it.
        stats: statistics of the loader, for the share of time spent waiting.
        length: function that returns the number of batches. None if unknown.

    Raises:
        ModuleNotFoundError: a bar on a terminal needs rich, which is not installed.
        TypeError: ``progress`` is something else.
    """

    def __init__(self, progress: Progress, stats: LoaderStats, length: Callable[[], int] | None) -> None:
        self._open = contextlib.ExitStack()
        # Not a method: the bar would keep this object alive, which removes the bar when the iterator is dropped.
        remark = partial(_waiting, stats, stats.waiting, stats.consuming)
        self._report: Report | None = self._open.enter_context(showing(progress, "loading", "batches", remark=remark))
        self._length, self._total = length, 0

    def __call__(self, done: int) -> None:
        """Show that ``done`` batches have been delivered."""
        if self._report is None:
            return
        if not self._total and self._length is not None:
            self._total = self._length()
        self._report(done, self._total)

    def close(self) -> None:
        """Remove the bar."""
        self._report = None
        self._open.close()

    @unless_exiting
    def __del__(self) -> None:
        self.close()


def _waiting(stats: LoaderStats, waited_s: float, consumed_s: float) -> str:
    """Return the share of time spent waiting since the totals were ``waited_s`` and ``consumed_s``."""
    waited_s, consumed_s = stats.waiting - waited_s, stats.consuming - consumed_s
    return f"waiting {waited_s / (waited_s + consumed_s):.0%}" if waited_s + consumed_s > 0 else ""
