"""The record of a rank over a span: what the stages of its feeds did, and the conditions under which it ran.

Records in a log count from the start of the process, so that the difference of two is the record of the span between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from feedline.concurrency.conditions import Conditions
from feedline.concurrency.stages import FeedStage
from feedline.runs.fields import amount, anything, maybe, several, table, whole, words


@dataclass(slots=True)
class FeedRecord:
    """What a source or a loader did.

    Attributes:
        facts: its settings and data, as ``describe`` of its figures returns them.
        stages: its stages by name.
        activity: number of samples of its worker processes by what they did, see `conditions.activity_of`.
        computing_seconds: processor time in the dataset and ``collate_fn``. 0 for a source.
        starting_seconds, starts: part of the waiting that was for first batches, while workers started, and number of
            these batches.
        hook: debugger or profiler in its workers. Empty without one.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    stages: dict[str, FeedStage] = field(default_factory=dict)
    activity: dict[str, int] = field(default_factory=dict)
    computing_seconds: float = 0.0
    starting_seconds: float = 0.0
    starts: int = 0
    hook: str = ""

    @property
    def waiting(self) -> float:
        """Seconds that the loop waited for this feed."""
        return sum(stage.waiting for stage in self.stages.values())

    @property
    def step(self) -> FeedStage:
        """The loop's own work."""
        return self.stages.get("step", FeedStage())

    @property
    def seconds(self) -> float:
        """Seconds of the loop."""
        return self.waiting + self.step.seconds

    def stage(self, name: str) -> FeedStage:
        """Return a stage, without work if the feed does not have it."""
        return self.stages.get(name, FeedStage())

    def share(self, *names: str) -> float:
        """Return the share of the loop's time, 0 to 1, that it waited for some stages."""
        return sum(self.stage(name).waiting for name in names) / self.seconds if self.seconds else 0.0

    def since(self, start: FeedRecord) -> FeedRecord:
        """Return the record of the span after ``start``, an earlier record of the same feed."""
        return FeedRecord(
            self.facts,
            {name: stage.since(start.stage(name)) for name, stage in self.stages.items()},
            {name: count - start.activity.get(name, 0) for name, count in self.activity.items()},
            max(0.0, self.computing_seconds - start.computing_seconds),
            max(0.0, self.starting_seconds - start.starting_seconds),
            max(0, self.starts - start.starts),
            self.hook,
        )

    @classmethod
    def from_json(cls, data: Any, name: str) -> FeedRecord:
        """Restore an entry of `RankRecord.to_json` or `RankRecord.to_brief_json`.

        Raises:
            ValueError, TypeError, KeyError: the data has another form.
        """
        fields = table(anything, data, name)
        stages = table(_stage, fields.pop("stages"), f"{name}.stages")
        activity = table(whole, fields.pop("activity", {}), f"{name}.activity")
        return cls(stages=stages, activity=activity, **fields)


@dataclass(slots=True)
class RankRecord:
    """What one rank did.

    Attributes:
        rank: the rank.
        host: name of its machine.
        seconds: wall time of the span.
        feeds: its sources and loaders.
        conditions: conditions of its process and its workers.
        exchange_seconds: time that it waited for other ranks in exchanges. None if it is not known.
        requests, refused_requests: requests to object stores, and those that a store refused because of their number.
    """

    rank: int
    host: str
    seconds: float = 0.0
    feeds: list[FeedRecord] = field(default_factory=list)
    conditions: Conditions = field(default_factory=Conditions)
    exchange_seconds: float | None = None
    requests: int = 0
    refused_requests: int = 0

    @property
    def feed(self) -> FeedRecord:
        """The feed with which the loop spent most of its time."""
        return max(self.feeds, key=lambda feed: feed.seconds, default=FeedRecord())

    def to_json(self) -> dict[str, Any]:
        """Return the record in JSON types."""
        return asdict(self)

    def to_brief_json(self) -> dict[str, Any]:
        """Return what the loops did and waited for, in a few hundred bytes of JSON: fields of `to_json`, without those
        that say how the stages work."""
        return {
            "rank": self.rank,
            "host": self.host,
            "seconds": round(self.seconds, 6),
            "feeds": [{"stages": _brief_stages(feed)} for feed in self.feeds],
            "exchange_seconds": None if self.exchange_seconds is None else round(self.exchange_seconds, 6),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RankRecord:
        """Restore the result of `to_json` or `to_brief_json`.

        Raises:
            ValueError, TypeError, KeyError: the data has another form.
        """
        fields = table(anything, data, "record")
        feeds = [FeedRecord.from_json(feed, "record.feeds") for feed in several(anything, fields.pop("feeds"), "feeds")]
        conditions = Conditions(**table(anything, fields.pop("conditions", {}), "record.conditions"))
        record = cls(feeds=feeds, conditions=conditions, **fields)
        whole(record.rank, "record.rank")
        words(record.host, "record.host")
        amount(record.seconds, "record.seconds")
        maybe(amount, record.exchange_seconds, "record.exchange_seconds")
        return record

    def since(self, start: RankRecord) -> RankRecord:
        """Return the record of the span after ``start``, an earlier record of the same process."""
        feeds = [feed.since(earlier) for feed, earlier in zip(self.feeds, start.feeds, strict=False)]
        feeds += self.feeds[len(start.feeds) :]
        exchange_seconds = None
        if self.exchange_seconds is not None:
            exchange_seconds = max(0.0, self.exchange_seconds - (start.exchange_seconds or 0.0))
        return RankRecord(
            self.rank,
            self.host,
            max(0.0, self.seconds - start.seconds),
            feeds,
            self.conditions.since(start.conditions),
            exchange_seconds,
            max(0, self.requests - start.requests),
            max(0, self.refused_requests - start.refused_requests),
        )


def _brief_stages(feed: FeedRecord) -> dict[str, dict[str, Any]]:
    stages: dict[str, dict[str, Any]] = {
        name: {"waiting": round(stage.waiting, 6)} for name, stage in feed.stages.items() if stage.waiting
    }
    if feed.step.units:
        stages["step"] = {"seconds": round(feed.step.seconds, 6), "units": feed.step.units}
    return stages


def _stage(data: Any, name: str) -> FeedStage:
    stage = FeedStage(**table(anything, data, name))
    for figure in (stage.seconds, stage.waiting, stage.bytes, stage.units):
        amount(figure, name)
    return stage
