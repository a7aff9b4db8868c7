"""What each stage of a feed has done, and how long the loop waited for it.

Stages, in the order of the data: plan, fetch, decode, gather, transform, hand_over (from a worker to this process),
device (copies to it) and step (the loop's own work).
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

STAGES = ("plan", "fetch", "decode", "gather", "transform", "hand_over", "device", "step")

_SLOWEST = 3  # units whose names are listed
_PER_OCTAVE = 4  # steps of the histogram


@dataclass(slots=True)
class Durations:
    """Durations of the units of a stage: how many took how long, and the names of the slowest.

    Attributes:
        counts: number of units by the logarithm of their duration, in quarters of an octave.
        slowest: (seconds, name) of the slowest units, slowest first.
    """

    counts: dict[int, int] = field(default_factory=dict)
    slowest: list[tuple[float, str]] = field(default_factory=list)

    def add(self, seconds: float, name: Callable[[], str]) -> None:
        """Count a unit. ``name`` is called if it is among the slowest."""
        self.count(seconds)
        self.note(seconds, name)

    def count(self, seconds: float, units: int = 1) -> None:
        """Count ``units`` of ``seconds`` each."""
        step = math.floor(_PER_OCTAVE * math.log2(max(seconds, 1e-9)))
        self.counts[step] = self.counts.get(step, 0) + units

    def note(self, seconds: float, name: Callable[[], str]) -> None:
        """List a unit if it is one of the slowest."""
        slowest = self.slowest
        if len(slowest) < _SLOWEST or seconds > slowest[-1][0]:
            # A new list, as other threads may add to the same durations or read them.
            self.slowest = sorted([*slowest, (seconds, name())], key=lambda unit: -unit[0])[:_SLOWEST]

    @property
    def median_s(self) -> float:
        """Median duration in seconds, within a tenth. 0 if there are no units."""
        half = sum(self.counts.values()) / 2
        for step in sorted(self.counts):
            half -= self.counts[step]
            if half <= 0:
                return float(2 ** ((step + 0.5) / _PER_OCTAVE))
        return 0.0


@dataclass(slots=True)
class FeedStage:
    """What a stage of a feed has done so far, in this process and its workers.

    Attributes:
        seconds: time that it took, summed over its threads or processes.
        waiting: seconds in which the loop waited for it.
        units: number of chunks, items or minibatches.
        bytes: bytes that it read or made. 0 if they are not counted.
        threads: number of threads or processes that may work on it at a time.
        fullness: mean share of the places for its results, 0 to 1, that were full when the next stage took a result.
            None if its results do not queue.
        median_seconds: median duration of a unit. 0 if units are not timed one by one.
        slowest: the slowest units, by ``seconds`` and ``name``.
    """

    seconds: float = 0.0
    waiting: float = 0.0
    units: int = 0
    bytes: int = 0
    threads: int = 1
    fullness: float | None = None
    median_seconds: float = 0.0
    slowest: list[dict[str, Any]] = field(default_factory=list)

    def timed(self, durations: Durations) -> FeedStage:
        """Add the durations of its units. Return the stage."""
        self.median_seconds = durations.median_s
        self.slowest = [{"seconds": seconds, "name": name} for seconds, name in durations.slowest]
        return self

    def since(self, start: FeedStage) -> FeedStage:
        """Return the stage between ``start``, an earlier one, and now. The median and fullness are as they are now."""
        return replace(
            self,
            seconds=max(0.0, self.seconds - start.seconds),
            waiting=max(0.0, self.waiting - start.waiting),
            units=max(0, self.units - start.units),
            bytes=max(0, self.bytes - start.bytes),
            slowest=[unit for unit in self.slowest if unit not in start.slowest],
        )

    def to_json(self) -> dict[str, Any]:
        """Return all figures by name, in JSON types."""
        return asdict(self)


def add_stages(first: dict[str, FeedStage], second: dict[str, FeedStage]) -> dict[str, FeedStage]:
    """Return the sums of the figures of two sweeps, or ranks, by stage."""
    sums = {}
    for name in [*first, *(name for name in second if name not in first)]:
        a, b = first.get(name, FeedStage()), second.get(name, FeedStage())
        slowest = sorted([*a.slowest, *b.slowest], key=lambda unit: -unit["seconds"])[:_SLOWEST]
        larger = a if a.units >= b.units else b
        sums[name] = FeedStage(
            a.seconds + b.seconds,
            a.waiting + b.waiting,
            a.units + b.units,
            a.bytes + b.bytes,
            threads=max(a.threads, b.threads),
            fullness=larger.fullness,
            median_seconds=larger.median_seconds,
            slowest=slowest,
        )
    return sums


class FeedFigures(Protocol):
    """See `Stats` and `LoaderStats`."""

    @property
    def stages(self) -> dict[str, FeedStage]:
        """Stages by name, those that have done something."""

    @property
    def facts(self) -> dict[str, Any]:
        """Settings and data of the feed, in JSON types."""


class Feeds:
    """The figures of all feeds of this process that are in use, for `feedline.doctor`."""

    def __init__(self) -> None:
        self._living: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by id
        self._listeners: list[Callable[[FeedFigures], None]] = []
        self._lock = threading.RLock()  # so that a listener hears of each feed once

    def add(self, figures: FeedFigures) -> None:
        """Add the figures of a feed, if they are new."""
        with self._lock:
            if self._living.get(id(figures)) is figures:
                return
            self._living[id(figures)] = figures
            for listener in self._listeners:
                listener(figures)

    def listen(self, listener: Callable[[FeedFigures], None]) -> Callable[[], None]:
        """Call ``listener`` with the figures of each feed, now and when they are added. Return a function that stops
        it."""
        with self._lock:
            self._listeners.append(listener)
            for figures in list(self._living.values()):
                listener(figures)
        return lambda: self._listeners.remove(listener)

    def __iter__(self) -> Iterator[FeedFigures]:
        return iter(list(self._living.values()))


FEEDS = Feeds()
