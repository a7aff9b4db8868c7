"""The JSON documents of ``feedline watch``."""

from __future__ import annotations

from typing import TypedDict

from feedline.runs.readiness import RankState
from feedline.runs.watching import Limit


class WatchDocument(TypedDict):
    """The run as its log describes it now.

    Attributes:
        log: path of the log.
        state: activity of the process, in words.
        done: share of the run that is done, 0 to 1. None if unknown.
        remaining_s: estimate of the seconds until its end. None if unknown.
        samples: number of label samples so far, or of samples in a bench.
        loss: last mean loss. None if it is unknown or not finite.
        metric: last mean metric. None if it is unknown or not finite.
        samples_per_second: label samples per second, lately. None if unknown.
        shares: shares of the time lately, 0 to 1, by activity.
        limit: limit of the speed. None if unknown.
        memory_advice: a remedy for workers that copy memory, in a sentence. None if they do not.
        ranks: the ranks of the run, lately. Empty for one rank, and if the log has none.
    """

    log: str
    state: str
    done: float | None
    remaining_s: float | None
    samples: int
    loss: float | None
    metric: float | None
    samples_per_second: float | None
    shares: dict[str, float]
    limit: Limit | None
    memory_advice: str | None
    ranks: list[RankState]


Document = WatchDocument
