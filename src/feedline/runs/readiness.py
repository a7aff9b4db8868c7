"""How ready each rank of a run is: what its loop waits for, and which rank the others wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from feedline.concurrency.stages import FeedStage
from feedline.runs.diagnosis import FeedRecord, Finding, RankRecord
from feedline.runs.diagnosis.all_rules import late_ranks
from feedline.runs.rank_spans import RankSpan, merge

_RECENT = 10  # smallest number of spans that count as recent. It is a tenth of all if that is more


class RankState(NamedTuple):
    """A rank of a run, lately.

    Attributes:
        rank: the rank.
        host: name of its machine.
        waiting: share of its time, 0 to 1, in which its loop waited for data.
        stage: stage of the feed that it waited for longest, such as `"decode"`. None if it did not wait.
        step_seconds: mean seconds of its own work for a minibatch, without waiting for data or for other ranks.
        exchanging: share of its time, 0 to 1, in which it waited for other ranks in exchanges. None if it is not known.
        late: stage for which all other ranks wait, `"step"` or a stage of its feed. None if they do not wait for this
            rank.
    """

    rank: int
    host: str
    waiting: float
    stage: str | None
    step_seconds: float
    exchanging: float | None
    late: str | None

    @property
    def own_share(self) -> float:
        """Share of its time in which it did not wait for other ranks."""
        return 1.0 - (self.exchanging or 0.0)

    @property
    def stage_word(self) -> str:
        """Name of `stage` for readers."""
        return (self.stage or "-").replace("_", "-")

    @property
    def late_word(self) -> str:
        """Name of `late` for readers."""
        return (self.late or "-").replace("_", "-")


def rank_states(spans: Mapping[int, Sequence[RankSpan]]) -> list[RankState]:
    """Return the recent state of each rank, by rank.

    Args:
        spans: spans of each rank, by rank.
    """
    recent = [merge(_recent(spans[rank])) for rank in sorted(spans) if spans[rank]]
    late = {finding.rank: finding.stage for finding in late_findings(recent)}
    return [
        RankState(span.rank, span.host, span.waiting, span.stage, span.working_s, span.exchanging, late.get(span.rank))
        for span in recent
    ]


def late_findings(spans: Sequence[RankSpan]) -> list[Finding]:
    """Return findings about the ranks that the others wait for.

    Args:
        spans: one span of each rank, all of about the same time.
    """
    return late_ranks([_record(span) for span in spans])


def _recent(spans: Sequence[RankSpan]) -> list[RankSpan]:
    present = [span for span in spans if span.process == spans[-1].process]
    return present[-max(_RECENT, len(present) // 10) :]


def _record(span: RankSpan) -> RankRecord:
    stages = {stage: FeedStage(waiting=seconds) for stage, seconds in span.waits_s.items()}
    stages["step"] = FeedStage(span.step_seconds, units=span.steps)
    seconds = span.ended_s - span.began_s
    return RankRecord(
        span.rank, span.host, seconds, [FeedRecord(stages=stages)], exchange_seconds=span.exchange_seconds
    )
