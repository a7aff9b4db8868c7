"""What each rank of a run did, span by span: the differences between the records of ranks in the lines of a log.

A record counts from the start of its process. Its time is the time of its rank, so it may be older than its line, as a
heartbeat has carried it.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from feedline.runs.fields import amount, anything, maybe, several, table, whole, words


class FeedCounts(NamedTuple):
    """What the loop of a feed did.

    Attributes:
        waits_s: seconds in which it waited for each stage. Stages without waits are omitted.
        steps: number of minibatches.
        step_seconds: seconds of its own work, exchanges included.
    """

    waits_s: dict[str, float]
    steps: int = 0
    step_seconds: float = 0.0

    @property
    def loop_s(self) -> float:
        """Seconds of the loop."""
        return sum(self.waits_s.values()) + self.step_seconds

    def since(self, start: FeedCounts) -> FeedCounts:
        """Return the counts between ``start``, earlier ones of the same feed, and now."""
        waits_s = {stage: n for stage, now in self.waits_s.items() if (n := now - start.waits_s.get(stage, 0.0)) > 0}
        return FeedCounts(waits_s, max(0, self.steps - start.steps), max(0.0, self.step_seconds - start.step_seconds))


class RankCounts(NamedTuple):
    """What a rank did since its process began.

    Attributes:
        rank, host: the rank, and the name of its machine.
        seconds: wall time.
        feeds: counts of its feeds, in an order that stays.
        exchange_seconds: seconds in which it waited for other ranks. None if they are not known.
    """

    rank: int
    host: str
    seconds: float
    feeds: list[FeedCounts]
    exchange_seconds: float | None


class RankSpan(NamedTuple):
    """What a rank did in a span, with the feed with which its loop spent most of it. See `RankCounts` and `FeedCounts`.

    Attributes:
        process: number of its process in the run, from 0.
        began_s, ended_s: seconds since the run began, without the time between processes.
    """

    rank: int
    host: str
    process: int
    began_s: float
    ended_s: float
    waits_s: dict[str, float]
    steps: int
    step_seconds: float
    exchange_seconds: float | None

    @property
    def waiting_s(self) -> float:
        """Seconds in which the loop waited for data."""
        return sum(self.waits_s.values())

    @property
    def loop_s(self) -> float:
        """Seconds of the loop."""
        return self.waiting_s + self.step_seconds

    @property
    def stage(self) -> str | None:
        """Stage of the feed that the loop waited for longest. None if it did not wait."""
        return max(self.waits_s, key=self.waits_s.__getitem__, default=None)

    @property
    def waiting(self) -> float:
        """Share of the loop's time, 0 to 1, in which it waited for data."""
        return self.waiting_s / self.loop_s if self.loop_s else 0.0

    @property
    def exchanging(self) -> float | None:
        """Share of the loop's time, 0 to 1, in which it waited for other ranks. None if it is not known."""
        if self.exchange_seconds is None:
            return None
        return min(1.0, self.exchange_seconds / self.loop_s) if self.loop_s else 0.0

    @property
    def working_s(self) -> float:
        """Mean seconds of its own work for a minibatch, without waiting for data or for other ranks."""
        return max(0.0, self.step_seconds - (self.exchange_seconds or 0.0)) / max(1, self.steps)

    def plus(self, later: RankSpan) -> RankSpan:
        """Return this span and a later one together."""
        exchange_s = None
        if self.exchange_seconds is not None or later.exchange_seconds is not None:
            exchange_s = (self.exchange_seconds or 0.0) + (later.exchange_seconds or 0.0)
        names = self.waits_s.keys() | later.waits_s.keys()
        waits_s = {name: self.waits_s.get(name, 0.0) + later.waits_s.get(name, 0.0) for name in sorted(names)}
        return later._replace(
            began_s=self.began_s,
            waits_s=waits_s,
            steps=self.steps + later.steps,
            step_seconds=self.step_seconds + later.step_seconds,
            exchange_seconds=exchange_s,
        )


RanksSpans = dict[int, list[RankSpan]]


def merge(spans: list[RankSpan]) -> RankSpan:
    """Return spans of a rank, of which there is at least one, as one span."""
    merged = spans[0]
    for span in spans[1:]:
        merged = merged.plus(span)
    return merged


class SpanRecorder:
    """Turns counts of ranks, in the order of a log, into spans.

    Attributes:
        spans: spans by rank.
    """

    def __init__(self) -> None:
        self.spans: RanksSpans = {}
        self._last: dict[int, RankCounts] = {}
        self._process, self._began_s = 0, 0.0

    def start(self) -> None:
        """Note that a process of each rank begins, whose counts begin at 0."""
        ends_s = [spans[-1].ended_s for spans in self.spans.values()]
        if ends_s:
            self._process, self._began_s = self._process + 1, max(ends_s)
        self._last.clear()

    def add(self, counts: RankCounts) -> None:
        """Add the span from the last counts of the rank to new ones. Counts that are no newer add nothing."""
        last = self._last.get(counts.rank)
        if last is None:
            last = RankCounts(counts.rank, counts.host, 0.0, [], None)
        if counts.seconds <= last.seconds:
            return
        self._last[counts.rank] = counts
        nothing = FeedCounts({})
        feeds = [now.since(start) for now, start in itertools.zip_longest(counts.feeds, last.feeds, fillvalue=nothing)]
        feed = max(feeds, key=lambda feed: feed.loop_s, default=nothing)
        exchange_s = counts.exchange_seconds
        span = RankSpan(
            counts.rank,
            counts.host,
            self._process,
            self._began_s + last.seconds,
            self._began_s + counts.seconds,
            *feed,
            None if exchange_s is None else max(0.0, exchange_s - (last.exchange_seconds or 0.0)),
        )
        self.spans.setdefault(counts.rank, []).append(span)


def counts_of_line(line: dict[str, Any]) -> tuple[RankCounts, ...]:
    """Return the counts of all ranks whose records are in a line: several short ones, or the one of its writer."""
    ranks = several(anything, line.get("ranks", []), "ranks")
    if not ranks and line.get("record") is not None:
        ranks = [line["record"]]
    return tuple(_counts(data, "ranks" if line.get("ranks") else "record") for data in ranks)


def _counts(data: Any, name: str) -> RankCounts:
    fields = table(anything, data, name)
    feeds = [_feed(feed, f"{name}.feeds") for feed in several(anything, fields.get("feeds"), f"{name}.feeds")]
    return RankCounts(
        whole(fields.get("rank"), f"{name}.rank"),
        words(fields.get("host"), f"{name}.host"),
        amount(fields.get("seconds"), f"{name}.seconds"),
        feeds,
        maybe(amount, fields.get("exchange_seconds"), f"{name}.exchange_seconds"),
    )


def _feed(data: Any, name: str) -> FeedCounts:
    stages = table(anything, table(anything, data, name).get("stages"), f"{name}.stages")
    figures = {stage: table(anything, figure, f"{name}.stages.{stage}") for stage, figure in stages.items()}
    step = figures.pop("step", {})
    waits_s = {stage: amount(figure.get("waiting", 0.0), f"{name}.{stage}") for stage, figure in figures.items()}
    return FeedCounts(
        {stage: seconds for stage, seconds in waits_s.items() if seconds},
        whole(step.get("units", 0), f"{name}.step.units"),
        amount(step.get("seconds", 0.0), f"{name}.step.seconds"),
    )
