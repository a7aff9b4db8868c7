"""The record of a rank over a span: what the stages of its feeds did, and the conditions under which it ran.

Records in a log count from the start of the process, so that the difference of two is the record of the span between.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from feedline.concurrency.conditions import Conditions
from feedline.concurrency.stages import FeedStage, add_stages
from feedline.runs.fields import amount, anything, maybe, several, table, whole, words

_Check = Callable[[Any, str], Any]
_Checks = Mapping[str, _Check]


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
            {name: max(0, count - start.activity.get(name, 0)) for name, count in self.activity.items()},
            max(0.0, self.computing_seconds - start.computing_seconds),
            max(0.0, self.starting_seconds - start.starting_seconds),
            max(0, self.starts - start.starts),
            self.hook,
        )

    def plus(self, feed: FeedRecord) -> FeedRecord:
        """Return the sums of this record and that of another feed."""
        activity = {
            name: self.activity.get(name, 0) + feed.activity.get(name, 0) for name in {*self.activity, *feed.activity}
        }
        return FeedRecord(
            self.facts,
            add_stages(self.stages, feed.stages),
            activity,
            self.computing_seconds + feed.computing_seconds,
            self.starting_seconds + feed.starting_seconds,
            self.starts + feed.starts,
            self.hook or feed.hook,
        )

    @classmethod
    def from_json(cls, data: Any, name: str) -> FeedRecord:
        """Restore an entry of `RankRecord.to_json` or `RankRecord.to_brief_json`.

        Raises:
            ValueError: a field has another form. It is named.
        """
        return cls(**_checked(_FEED, data, name))


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
        """The feed that the loop waited for longest. Feeds of equal facts, such as a loader for each epoch, are one."""
        by_facts: dict[str, FeedRecord] = {}
        for feed in self.feeds:
            facts = json.dumps(feed.facts, sort_keys=True, default=str)
            by_facts[facts] = by_facts[facts].plus(feed) if facts in by_facts else feed
        # The step of a feed contains the waits for others.
        return max(by_facts.values(), key=lambda feed: (feed.waiting, feed.seconds), default=FeedRecord())

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
    def from_json(cls, data: Any) -> RankRecord:
        """Restore the result of `to_json` or `to_brief_json`. Fields that are missing have their defaults, and unknown
        ones are ignored.

        Raises:
            ValueError: a field has another form, or the rank or the host is missing. The field is named.
        """
        figures = _checked(_RANK, data, "record")
        for name in ("rank", "host"):
            if name not in figures:
                raise ValueError(f"record.{name}: expected a value, got none")
        return cls(**figures)

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


def _checked(checks: _Checks, data: Any, name: str) -> dict[str, Any]:
    """Return the known fields of an object, checked."""
    present = table(anything, data, name)
    return {key: check(present[key], f"{name}.{key}") for key, check in checks.items() if key in present}


def _optional(check: _Check) -> _Check:
    return lambda value, name: maybe(check, value, name)


def _facts(data: Any, name: str) -> dict[str, Any]:
    return table(anything, data, name) | _checked(_FACTS, data, name)


def _unit(data: Any, name: str) -> dict[str, Any]:
    unit = {"seconds": None, "name": None, **table(anything, data, name)}
    return _checked({"seconds": amount, "name": words}, unit, name)


def _stage(data: Any, name: str) -> FeedStage:
    return FeedStage(**_checked(_STAGE, data, name))


def _conditions(data: Any, name: str) -> Conditions:
    return Conditions(**_checked(_CONDITIONS, data, name))


_BY_TYPE: dict[type, _Check] = {int: whole, float: amount, str: words}
_FACTS: _Checks = {
    **dict.fromkeys(("workers", "files", "stored_bytes", "chunks", "sequences", "threads"), _optional(whole)),
    **dict.fromkeys(("feed", "format", "kind"), _optional(words)),
    "transforms": lambda value, name: several(words, value, name),
}
_STAGE: _Checks = {
    **dict.fromkeys(("seconds", "waiting", "median_seconds"), amount),
    **dict.fromkeys(("units", "bytes"), whole),
    "threads": lambda value, name: max(1, whole(value, name)),
    "fullness": _optional(amount),
    "slowest": lambda value, name: several(_unit, value, name),
}
_CONDITIONS: _Checks = {
    entry.name: _optional(_BY_TYPE[type(entry.default)]) if "None" in str(entry.type) else _BY_TYPE[type(entry.default)]
    for entry in fields(Conditions)
}
_FEED: _Checks = {
    "facts": _facts,
    "stages": lambda value, name: table(_stage, value, name),
    "activity": lambda value, name: table(whole, value, name),
    "computing_seconds": amount,
    "starting_seconds": amount,
    "starts": whole,
    "hook": words,
}
_RANK: _Checks = {
    "rank": whole,
    "host": words,
    "seconds": amount,
    "feeds": lambda value, name: several(FeedRecord.from_json, value, name),
    "conditions": _conditions,
    "exchange_seconds": _optional(amount),
    "requests": whole,
    "refused_requests": whole,
}
