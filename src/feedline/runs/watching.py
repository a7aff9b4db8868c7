"""The state of a run: its progress, the remaining time, and the limit of its speed.

Everything follows from the log alone. So a run can be watched from another machine, and never waits for a watcher.
Requires only NumPy.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from feedline.runs.charts import seconds_by_part
from feedline.runs.folder import RankLogs, log_of
from feedline.runs.history import History, LogEvent, ProgressLine, event_of, history_of
from feedline.runs.log import RunLog
from feedline.runs.readiness import RankState, rank_states

_RECENT = 10  # smallest number of spans that count as recent. It is a tenth of all if that is more
_WAITING_SHARE = 0.1  # share of the time from which on waiting for data limits a run
_LASTING_SHARE = 0.3  # share of the time from which on evaluating or saving limits a run
# Times without news after which a run may be dead: before the first span, after it, and as a multiple of the longest
# span.
_SILENT_AT_FIRST_S, _SILENT_S, _SILENT_SPANS = 60.0, 10.0, 5.0
_LEVELS = "▁▂▃▄▅▆▇█"


class Limit(NamedTuple):
    """The stage or the rank of a run that limits its speed, and advice.

    Attributes:
        stage: the stage, or the rank that the others wait for, in words.
        advice: advice to make it faster, in words.
    """

    stage: str
    advice: str


@dataclass(frozen=True, slots=True)
class WatchedRun:
    """A run at one moment.

    Attributes:
        history: contents of the log so far.
        now: Unix time, in seconds.
    """

    history: History
    now: float

    @property
    def done(self) -> float | None:
        """Share of the run that is done, 0 to 1. None if unknown."""
        if self.history.ended is not None and not self.history.ended.get("interrupted"):
            return 1.0
        spans = self.history.spans
        return min(1.0, spans[-1].done) if spans and spans[-1].done is not None else None

    @property
    def silent_s(self) -> float:
        """Seconds since the last line."""
        history = self.history
        times = [history.about.get("time"), history.recorded, (history.ended or {}).get("time")]
        for events in (history.spans, history.saved, history.averages):
            times += [event.time for event in events[-1:]]
        logged = [time for time in times if time is not None]
        return max(0.0, self.now - max(logged)) if logged else 0.0

    @property
    def remaining_s(self) -> float | None:
        """Estimate of the remaining seconds. None if unknown, as after a kill, or if only the last evaluation remains.

        The pace is from the recent spans or, with evaluations, which are rare and long, from all spans of this process.
        While a span takes longer than usual, the estimate does not change.
        """
        if self.history.ended is not None:
            return 0.0
        if self.is_silent:
            return None
        marks = [(span.time, span.done) for span in (self.present_spans() if self._evaluates else self.recent_spans())]
        began = self.history.about.get("time")
        if began is not None and (self._evaluates or len(marks) < 2):
            marks.insert(0, (began, self._done_at_start()))
        points = [(time, done) for time, done in marks if time is not None and done is not None]
        if len(points) < 2 or points[-1][1] <= points[0][1] or points[-1][0] <= points[0][0]:
            return None
        (first_time, first), (last_time, last) = points[0], points[-1]
        remaining = (1 - min(1.0, last)) * (last_time - first_time) / (last - first)
        usual = (last_time - first_time) / (len(points) - 1)
        return remaining - min(max(0.0, self.now - last_time), usual, 0.9 * remaining) or None

    @property
    def _evaluates(self) -> bool:
        return any(average.kind != "update" for average in self.history.averages)

    def _done_at_start(self) -> float | None:
        """Return the share that was done when the present process began. None if unknown."""
        if not self.history.restarts:
            return 0.0
        before = [span for span in self.history.spans if span.samples <= self.history.restarts[-1]]
        return before[-1].done if before else None

    @property
    def elapsed_s(self) -> float:
        """Wall time so far, of a silent run to its last span."""
        spans, last = self.present_spans(), self.history.about.get("time")
        if self.history.ended is not None or self.is_silent:
            return self.history.seconds
        if spans:
            last = spans[-1].time
        return self.history.seconds + (0.0 if last is None else max(0.0, self.now - last))

    @property
    def is_silent(self) -> bool:
        """Whether nothing was written for several times the longest span of this process."""
        if self.history.ended is not None:
            return False
        longest = max((span.seconds for span in self.present_spans()), default=None)
        if longest is None and self.history.recorded is not None:
            longest = 0.0  # a doctor writes every two seconds
        return self.silent_s > (_SILENT_AT_FIRST_S if longest is None else max(_SILENT_S, _SILENT_SPANS * longest))

    @property
    def state(self) -> str:
        """Current activity of the process, in words."""
        ended = self.history.ended
        if ended is not None:
            return "interrupted, saved" if ended.get("interrupted") else "ended"
        if self.is_silent:
            first = not self._evaluates and self.silent_s < _SILENT_AT_FIRST_S
            alternatives = "stuck, or evaluating" if first else "or stuck"
            return f"no news for {duration_text(self.silent_s)}: killed, {alternatives}"
        if self.done == 1.0:
            return "running, all trained: evaluating or saving"
        return "running"

    def present_spans(self) -> list[ProgressLine]:
        """Return the spans of the present process."""
        spans, restarts = self.history.spans, self.history.restarts
        return [span for span in spans if span.samples > restarts[-1]] if restarts else spans

    def recent_spans(self) -> list[ProgressLine]:
        """Return the last tenth of the spans of the present process, but at least ten."""
        spans = self.present_spans()
        return spans[-max(_RECENT, len(spans) // 10) :]

    def speed(self) -> float | None:
        """Return label samples per second over the recent spans, or None before the first span."""
        spans = self.recent_spans()
        seconds = sum(span.seconds for span in spans)
        return sum(span.counted for span in spans) / seconds if seconds else None

    def shares(self) -> dict[str, float]:
        """Return the shares of the recent time by part: training, waiting for data, evaluating, saving."""
        parts = seconds_by_part(self.recent_spans())
        total = sum(parts.values())
        return {name: seconds / total for name, seconds in parts.items()} if total else {}

    def ranks(self) -> list[RankState]:
        """Return the recent state of each rank, if there are several."""
        states = rank_states(self.history.ranks)
        return states if len(states) > 1 else []

    def limit(self) -> Limit | None:
        """Return the limit of the recent spans, or None before the first span."""
        shares, spans = self.shares(), self.recent_spans()
        if not shares:
            return None
        waiting = shares.get("waiting for data", 0.0)
        if shares.get("saving", 0.0) > max(_LASTING_SHARE, waiting):
            return Limit("checkpoints", "save less often")
        if shares.get("evaluating", 0.0) > max(_LASTING_SHARE, waiting):
            return Limit("evaluation", "evaluate less often, or on fewer sequences")
        late = [state for state in self.ranks() if state.late]
        if late:
            worst = max(late, key=lambda state: state.own_share)
            cause = "step" if worst.late == "step" else f"data ({worst.late_word})"
            return Limit(f"rank {worst.rank} on {worst.host}", f"the other ranks wait for its {cause}")
        if waiting < _WAITING_SHARE:
            return Limit("the training step", "the feed keeps up; a faster feed would not help")
        seconds = sum(span.seconds for span in spans)
        reading = sum(span.reading or 0.0 for span in spans) / seconds
        transforming = sum(span.transforming or 0.0 for span in spans) / seconds
        if max(reading, transforming) < _WAITING_SHARE:
            return Limit("the feed", "it waits, but neither reads nor decodes: see its transforms and its disk")
        if transforming > reading:
            return Limit(
                "decoding and other transforms",
                f"they keep {transforming:.2g} threads busy: more cores, smaller pictures or cheaper steps help",
            )
        return Limit(
            "reading",
            f"it keeps {reading:.2g} threads busy: more threads= or read_ahead=, or a store instead of text, may help",
        )


class RunWatch:
    """A run that is watched: its log is read while it grows.

    Args:
        path: path of the log, or of the run folder, which may have no log yet.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._log: RunLog[LogEvent | None] | None = None
        self._others: RankLogs | None = None
        self._history: History | None = None

    def look(self, now: float) -> WatchedRun | None:
        """Return the run at this moment, or None while there is no log, or no event in it.

        Args:
            now: Unix time, in seconds.

        Raises:
            DataError: the file is not a log, or there are several logs.
        """
        try:
            if self._log is None or self._others is None:
                path = log_of(self.path)
                self._log, self._others = RunLog(path, event_of), RankLogs(path)
            grown = self._others.read_new_lines()
            if self._log.read_new_lines() or (grown and self._history is not None):
                self._history = history_of(self._log)
                self._history.ranks |= self._others.spans
        except FileNotFoundError:  # not yet, or removed
            self._log, self._others, self._history = None, None, None
        return None if self._history is None else WatchedRun(self._history, now)


def duration_text(seconds: float) -> str:
    """Format a duration: ``3 h 5 min``, ``2 min 40 s``, ``8 s``."""
    total = round(seconds)
    parts = [(total // 86400, "d"), (total // 3600 % 24, "h"), (total // 60 % 60, "min"), (total % 60, "s")]
    first = next((i for i, (n, _) in enumerate(parts) if n), 3)
    return " ".join(f"{n} {unit}" for n, unit in parts[first : first + 2] if n or unit == parts[first][1])


def sparkline(numbers: Sequence[float | None], width: int, bounds: tuple[float, float | None] | None = None) -> str:
    """Draw numbers as a line of block characters.

    Args:
        numbers: numbers in order. None is a blank.
        width: largest number of characters. Stretches of a longer row are averaged.
        bounds: values of the lowest and the highest block, the latter None for the largest number. None means the
            extremes, and a logarithmic scale if they are two decades apart.
    """
    if width < 1 or not numbers:
        return ""
    count = min(width, len(numbers))
    cells: list[float | None] = []
    for i in range(count):
        stretch = numbers[i * len(numbers) // count : (i + 1) * len(numbers) // count]
        finite = [n for n in stretch if n is not None and math.isfinite(n)]
        cells.append(sum(finite) / len(finite) if finite else None)
    values = [n for n in cells if n is not None]
    if not values:
        return " " * count
    if bounds is None and min(values) > 0 and max(values) >= 100 * min(values):
        cells = [None if n is None else math.log(n) for n in cells]
        values = [n for n in cells if n is not None]
    low, high = (min(values), None) if bounds is None else bounds
    step = ((max(values) if high is None else high) - low) / (len(_LEVELS) - 1) or 1.0
    last = len(_LEVELS) - 1
    return "".join(" " if n is None else _LEVELS[min(last, max(0, round((n - low) / step)))] for n in cells)
