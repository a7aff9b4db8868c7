"""One rank's record as the rules see it: shares of the loop's time without the start of workers, and its peers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from feedline.concurrency.stages import FeedStage
from feedline.runs.diagnosis.finding import Finding
from feedline.runs.diagnosis.record import FeedRecord, RankRecord

#: Share of the loop's time from which a cause is worth a change.
WORTH = 0.1
#: Largest share of all waits for a processor that the slowest units have.
OF_QUEUES = 0.5
#: Seconds of a loop, and minibatches, below which figures say little.
FEWEST_S, FEWEST = 0.2, 4


@dataclass(slots=True)
class RankView:
    """The record of a rank, and of the ranks that it is compared with.

    Attributes:
        record: its record.
        peers: views of the other ranks.
        feed: the feed with which its loop spent most of its time.
        stages: its stages. Time in a dataset that waited for a processor is in ``decode``.
    """

    record: RankRecord
    peers: Sequence[RankView] = ()
    feed: FeedRecord = field(init=False)
    stages: dict[str, FeedStage] = field(init=False)

    def __post_init__(self) -> None:
        self.feed = self.record.feed
        self.stages = _with_queues(self.feed, self.queued_s or self.amount("loop_queued_seconds"))

    @property
    def tells(self) -> bool:
        """Whether the loop was long enough for advice."""
        return self.feed.seconds >= FEWEST_S and self.feed.step.units >= FEWEST

    @property
    def seconds(self) -> float:
        """Seconds of the loop, without waiting for workers to start, and for processors that others use."""
        return max(1e-9, self.feed.seconds - self._starting_s - self._competing_s)

    @property
    def _starting_s(self) -> float:
        if not self.workers and "dataset" in self.feed.facts:  # then first batches are like all others
            return 0.0
        return min(self.feed.starting_seconds, self.feed.waiting)

    @property
    def _competing_s(self) -> float:
        """Seconds of waiting that were lost as workers or the loop waited for a processor."""
        reading = [self.feed.stage(name) for name in ("fetch", "decode")]
        threads = max(stage.threads for stage in reading)
        queued_s = self.queued_s / threads + self.amount("loop_queued_seconds")
        # Workers that wait for a processor all the time would still keep the loop waiting if they had one.
        least_s = (sum(stage.seconds for stage in reading) - self.queued_s) / threads
        if threads > 1 and self.feed.facts.get("read_ahead") is None:  # they work during the step
            least_s -= self.feed.step.seconds
        return max(0.0, min(queued_s, self.feed.waiting - self._starting_s - max(0.0, least_s)))

    @property
    def queued_s(self) -> float:
        """Seconds in which workers, or threads that work for the loop, waited for a processor."""
        if by_workers := self.amount("worker_queued_seconds"):
            return by_workers
        works = any(stage.threads > 1 for stage in self.feed.stages.values())
        return max(0.0, self.amount("queued_seconds") - self.amount("loop_queued_seconds")) if works else 0.0

    def stage(self, name: str) -> FeedStage:
        """Return a stage of the feed."""
        return self.stages.get(name, FeedStage())

    def waiting(self, *names: str) -> float:
        """Return the seconds in which the loop waited for stages, for all of them without names."""
        waiting = self.feed.waiting
        later = 1 - (self._starting_s + self._competing_s) / waiting if waiting else 0.0
        return later * (sum(self.stage(name).waiting for name in names) if names else waiting)

    def share(self, *names: str) -> float:
        """Return the share of the loop's time, 0 to 1, in which it waited for stages, for all of them without names."""
        return self.waiting(*names) / self.seconds

    def waits(self, *names: str) -> bool:
        """Whether the loop waits for stages so long that a change is worth it."""
        return self.share(*names) >= WORTH

    @property
    def exchanging(self) -> float:
        """Share of the loop's time, 0 to 1, in which it waited for other ranks in exchanges. 0 if it is not known."""
        return min(1.0, (self.record.exchange_seconds or 0.0) / self.seconds)

    @property
    def working_s(self) -> float:
        """Mean seconds of the loop's own work for a minibatch, without waiting for data or for other ranks."""
        step = self.stage("step")
        return max(0.0, step.seconds - (self.record.exchange_seconds or 0.0)) / max(1, step.units)

    @property
    def slowest_stage(self) -> str:
        """Stage that the loop waits for longest. ``"step"`` if it hardly waits."""
        name = max(self.stages, key=lambda name: self.stage(name).waiting, default="step")
        return name if self.waits() else "step"

    @property
    def workers(self) -> int:
        """Number of workers of the loader. 0 without."""
        workers = self.feed.facts.get("workers")
        return workers if isinstance(workers, int) else 0

    @property
    def cores_busy(self) -> float:
        """Mean number of processors that the process and its workers kept busy. 0 if it is not known."""
        return self.amount("cpu_seconds") / max(self.record.seconds, 1e-9)

    @property
    def cores_busy_text(self) -> str:
        """The number of processors that were busy, for a sentence."""
        return "an unknown number" if self.record.conditions.cpu_seconds is None else f"{self.cores_busy:.2g}"

    @property
    def free_memory_text(self) -> str:
        """How much memory is free, for a sentence."""
        free_bytes = self.record.conditions.available_bytes
        return "an unknown amount" if free_bytes is None else bytes_text(free_bytes)

    def amount(self, name: str) -> float:
        """Return a figure of the conditions by its name. 0 if it is unknown, as rules look for large ones."""
        return float(getattr(self.record.conditions, name) or 0.0)

    def usual(self, figure: Callable[[RankView], float]) -> float | None:
        """Return the median of a figure over the peers. None without peers whose loops are long enough."""
        figures = [figure(peer) for peer in self.peers if peer.tells]
        return median(figures) if figures else None

    def finding(
        self, stage: str, reason: str, evidence: str, setting: str, *, saved_s: float, limit_s: float = 0.0
    ) -> Finding:
        """Return a finding about this rank.

        Args:
            stage, reason, evidence, setting: see `Finding`.
            saved_s: seconds of the loop that the change saves.
            limit_s: seconds that the loop takes at least after it, as something else limits it then.
        """
        after_s = max(self.seconds - saved_s, self.seconds / 100, limit_s)
        gain = max(1.0, self.seconds / after_s)
        return Finding(stage, self.record.rank, self.record.host, reason, evidence, setting, gain)


def _with_queues(feed: FeedRecord, queued_s: float) -> dict[str, FeedStage]:
    """Return the stages of a feed. Of a dataset, ``fetch`` is the time without a processor, whatever the reason."""
    fetch = feed.stage("fetch")
    if "dataset" not in feed.facts or not fetch.seconds or not queued_s:
        return feed.stages
    decode, moved = feed.stages.get("decode", FeedStage(threads=fetch.threads)), min(1.0, queued_s / fetch.seconds)
    parts = {
        "fetch": replace(fetch, seconds=fetch.seconds * (1 - moved), waiting=fetch.waiting * (1 - moved)),
        "decode": replace(
            decode, seconds=decode.seconds + moved * fetch.seconds, waiting=decode.waiting + moved * fetch.waiting
        ),
    }
    return feed.stages | parts


Rule = Callable[[RankView], Finding | None]


def seconds_text(seconds: float) -> str:
    """Return a duration in a unit in which it is easy to read."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"


def bytes_text(nbytes: float) -> str:
    """Return a size in a unit in which it is easy to read."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes:.0f} bytes"
