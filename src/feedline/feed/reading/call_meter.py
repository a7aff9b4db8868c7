"""Measure where calls of ``next_minibatch`` spend their time: all of them if steps are long, else one in sixteen."""

from __future__ import annotations

import time

from feedline.feed.reading.stats import Stats

_SHARE, _LONG_S = 16, 500e-6


class CallMeter:
    """Adds the parts of measured calls to statistics. A call that raises is not counted.

    Args:
        stats: statistics to add to.

    Attributes:
        left: calls until the next measured one. The caller counts it down, as even a method would cost too much.
    """

    __slots__ = ("_began", "_every", "_last", "_stats", "left")

    def __init__(self, stats: Stats) -> None:
        self._stats, self._every, self.left = stats, 1, 1
        self._began = self._last = 0.0

    def begin(self) -> None:
        """Begin to measure a call."""
        ended, self._began = self._stats.ended, time.perf_counter()
        number = self._stats.minibatches
        if number > 1 and self._every == 1:  # much is done once in the first step, such as imports and compilation
            self._stats.step_durations.add(self._began - ended, lambda: f"step {number}")
        self._last = self._began + self._spent()

    def planned(self) -> None:
        """Note that the minibatch is planned."""
        self._stats.plan_seconds += self._part()

    def gathered(self) -> None:
        """Note that it is copied and transformed."""
        self._stats.gather_seconds += self._part()

    def moved(self) -> None:
        """Note that it is on its device."""
        self._stats.device_seconds += self._part()

    def end(self) -> None:
        """End the call: the rest plans later minibatches, and begins their copies."""
        stats = self._stats
        stats.plan_seconds += self._part()
        before = stats.ended or self._began
        if not stats.starts:
            stats.starting, stats.starts = stats.wait_seconds, 1
        stats.note_call(self._began)
        self._every = self.left = 1 if stats.ended - before >= self._every * _LONG_S else _SHARE

    def _part(self) -> float:
        """Return the seconds since the last part, less those counted elsewhere, for all calls that it stands for."""
        last, self._last = self._last, time.perf_counter() + self._spent()
        seconds = max(0.0, self._last - last)
        return seconds if seconds >= _LONG_S else self._every * seconds  # a long one among short ones is an exception

    def _spent(self) -> float:
        """Return minus the seconds of waiting and transforming so far, so that differences leave them out."""
        return -self._stats.wait_seconds - self._stats.transform_wait_seconds
