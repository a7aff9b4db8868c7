"""Progress of a run: marks of due actions, and running sums of a progress span."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from feedline.data import Span, Unit
from feedline.runs.feeding import Fed, Feeding
from feedline.runs.fields import amount, whole
from feedline.train.summary import NOTHING, Summary, check_list, plus, summary_from_json, summary_to_json


@dataclass(frozen=True, slots=True)
class Progress:
    """Report of a progress span.

    Attributes:
        number: number of the report, from 1.
        summary: sums over its label samples.
        minibatches: number of updates.
        seconds: wall time in seconds, without the time between a checkpoint and its restore.
        waiting, evaluating, saving: fractions of that time, 0 to 1, spent waiting for the source, in validations, and
            writing checkpoints.
        fed: statistics of this rank's feed.
    """

    number: int
    summary: Summary
    minibatches: int
    seconds: float
    waiting: float
    evaluating: float
    saving: float
    fed: Fed


class SpanMark:
    """Detects the end of a span from the counts of a run."""

    __slots__ = ("_every", "_passed")

    def __init__(self, every: Span | None) -> None:
        if every is not None and not isinstance(every, Span):
            raise TypeError(f"expected a span such as fl.samples(10_000), got {every!r}")
        if every is not None and every.count < 1:
            raise ValueError(f"expected a span of at least 1, got {every}; omit it to have none")
        self._every, self._passed = every, 0

    def crossed(self, counts: Mapping[Unit, int]) -> bool:
        """Return whether a span has ended, once or several times, since the last call."""
        if self._every is None:
            return False
        before, self._passed = self._passed, counts[self._every.unit] // self._every.count
        return self._passed != before


@dataclass(slots=True)
class Sums:
    """Running sums of a progress span. A restored span continues with the time up to its checkpoint."""

    summary: Summary = NOTHING
    minibatches: int = 0
    waited_s: float = 0.0
    evaluated_s: float = 0.0
    saved_s: float = 0.0
    feeding: Feeding = field(default_factory=Feeding)
    earlier_s: float = 0.0
    began: float = 0.0

    def start_clock(self) -> None:
        """Start the clock."""
        self.began = time.perf_counter()

    def add(self, summary: Summary) -> None:
        """Add a minibatch."""
        self.summary = plus(self.summary, summary)
        self.minibatches += 1

    def seconds(self) -> float:
        """Return the wall time so far."""
        return self.earlier_s + time.perf_counter() - self.began

    def to_json(self) -> list[Any]:
        """Return the sums in JSON types."""
        spent = [self.waited_s, self.evaluated_s, self.saved_s, self.seconds()]
        return [summary_to_json(self.summary), self.minibatches, self.feeding.fed().to_json(), *spent]

    @classmethod
    def from_json(cls, data: Any, name: str) -> Sums:
        """Read the result of `to_json`. Raises ValueError for anything else."""
        summary, minibatches, fed, *spent = check_list(data, 7, name)
        waited, evaluated, saving, seconds = (amount(value, f"{name}, seconds") for value in spent)
        try:
            feeding = Feeding(Fed.from_json(fed))
        except (KeyError, TypeError) as error:
            raise ValueError(f"{name}: expected statistics of a feed, got {fed!r:.80}") from error
        count = whole(minibatches, f"{name}, minibatches")
        return cls(summary_from_json(summary, name), count, waited, evaluated, saving, feeding, seconds)

    def progress(self, number: int, summary: Summary) -> Progress:
        """Return the report of a span, whose sums over all ranks are ``summary``."""
        seconds = self.seconds()
        spent = (self.waited_s, self.evaluated_s, self.saved_s)
        waiting, evaluating, saving = (min(1.0, part / seconds) if seconds else 0.0 for part in spent)
        fed = self.feeding.fed()
        return Progress(number, summary, self.minibatches, seconds, waiting, evaluating, saving, fed)
