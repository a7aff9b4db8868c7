"""The search of `feedline tune`: which settings are measured, in which order, and which of them is chosen.

A machine's speed drifts, so no two turns are compared that were not next to each other: a candidate and the best
setting so far are measured in turn, and only the ratio of their speeds counts. A step begins with all settings that
differ from the best in one value, and with the best prediction. Each round measures every candidate once more and drops
the slower half. The last candidate replaces the best setting if it was faster in several pairs, or much faster in two.
Then the next step begins, with those that were nearly as fast.

The search knows no data: a `Subject` predicts and measures.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

Setting = Mapping[str, Hashable]
"""Values by the name of the argument."""

TURNS = 60  # turns that the budget has time for, apart from what starting a feed takes
MARGIN = 1.03  # times as fast, below which a setting is not worth a change
PAIRS = 3  # pairs of turns before a setting replaces another
LAST_PAIRS = 5  # that compare the result with the present setting
LARGE = 1.1  # times as fast, below which all but one of these have to agree
CLEAR = 1.5  # times as fast, from which two pairs say enough
RIVAL = 0.8  # times as fast as the best setting, from which one that was compared with an earlier one is compared again
_SHARE = 0.6  # of the time left, that a step may plan for


class UnavailableError(Exception):
    """A setting that cannot be measured, with the reason."""


class Subject(Protocol):
    """A feed whose settings are searched.

    Attributes:
        present: the user's setting.
        axes: values to try of each argument, from the least memory, threads or processes to the most.
    """

    present: Setting
    axes: Mapping[str, Sequence[Hashable]]

    def normal(self, setting: Setting) -> Setting:
        """Return the setting with the present value of every argument that has no effect in it."""

    def predict(self, setting: Setting) -> float:
        """Return the expected speed, in units per second. Called after the present setting has been measured."""

    def measure(self, setting: Setting, seconds: float) -> float:
        """Feed for about ``seconds``, and return the speed, in units per second.

        Raises:
            UnavailableError: it cannot be measured.
        """

    def refusal(self, setting: Setting) -> str:
        """Return why a measured setting is not to be chosen. Empty: it may be."""


@dataclass
class Trial:
    """A setting, as predicted and as measured.

    Attributes:
        setting: the setting.
        predicted: expected units per second.
        rates: units per second in each turn.
        ratios: speed over the speed of ``base`` in the turn next to it.
        base: the best setting when this one was measured. None: the present setting.
        remark: why it cannot be chosen. Empty: it can.
    """

    setting: Setting
    predicted: float
    rates: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    base: Trial | None = None
    remark: str = ""

    @property
    def rate(self) -> float | None:
        """Median of units per second. None: not measured."""
        return statistics.median(self.rates) if self.rates else None

    @property
    def gain(self) -> float:
        """Median of the ratios to ``base``. 1 for the present setting."""
        return statistics.median(self.ratios) if self.ratios else 1.0

    @property
    def is_clear(self) -> bool:
        """Whether it is so much faster than ``base`` that its pairs say enough."""
        return len(self.ratios) >= 2 and min(self.ratios) >= CLEAR

    @property
    def ratio(self) -> float | None:
        """Speed over the speed of the present setting. None: not measured."""
        if not self.rates:
            return None
        base = 1.0 if self.base is None else self.base.ratio
        return None if base is None else base * self.gain


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Attributes:
        present: the user's setting.
        best: the chosen setting, which is the present one if no other was faster.
        trials: all settings that were considered: the present one, then in the order in which they were measured, then
            those for which there was no time.
        seconds: seconds that the search took.
        turns: number of turns.
    """

    present: Trial
    best: Trial
    trials: list[Trial]
    seconds: float
    turns: int


def search(
    subject: Subject,
    seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    watch: Callable[[], object] = lambda: None,
) -> SearchResult:
    """Search the settings of a subject for about ``seconds``.

    Args:
        subject: predicts and measures.
        seconds: budget. It is exceeded by at most the turns of a pair.
        clock: returns the time in seconds.
        watch: called before each turn.

    Raises:
        UnavailableError: the present setting cannot be measured.
    """
    return _Search(subject, seconds, clock, watch).run()


class _Search:
    def __init__(
        self, subject: Subject, seconds: float, clock: Callable[[], float], watch: Callable[[], object]
    ) -> None:
        self._subject, self._seconds, self._clock, self._watch = subject, seconds, clock, watch
        self._began = clock()
        self._lengths: list[float] = []  # seconds of each turn
        self._measured: dict[tuple[object, ...], Trial] = {}
        self._considered: dict[tuple[object, ...], Trial] = {}
        self._clear = False  # whether the present setting is much slower than the best one
        self._axes = {name: list(values) for name, values in subject.axes.items()}

    def run(self) -> SearchResult:
        present = Trial(self._subject.present, 0.0)
        self._measured[_key(present.setting)] = present
        # The first turn opens files and fills caches. Its figures are no speed, but predictions follow from it.
        self._turn(present)
        present.rates.clear()
        self._turn(present)
        present.predicted = self._subject.predict(present.setting)
        best, adopted = present, list[Trial]()
        while candidates := self._candidates(best):
            if not self._has_time(2):
                break
            winner = self._step(best, candidates)
            if winner is not best:
                adopted.append(winner)
            best = winner
        if adopted:
            best = self._confirmed(present, adopted)
        trials = {**self._measured, **{k: t for k, t in self._considered.items() if k not in self._measured}}
        return SearchResult(present, best, list(trials.values()), self._clock() - self._began, len(self._lengths))

    def _turn(self, trial: Trial) -> float:
        self._watch()
        began = self._clock()
        rate = self._subject.measure(trial.setting, self._seconds / TURNS)
        self._lengths.append(self._clock() - began)
        trial.rates.append(rate)
        return rate

    def _has_time(self, turns: float) -> bool:
        """Return whether some more turns fit the budget, with those that confirm the result."""
        return self._left() >= turns * self._turn_s()

    def _left(self) -> float:
        """Return the seconds that are left before the turns that confirm the result."""
        pairs = 2 if self._clear else LAST_PAIRS
        confirming_s = min(2 * pairs * self._turn_s(), self._seconds / 3)
        return self._seconds - (self._clock() - self._began) - confirming_s

    def _turn_s(self) -> float:
        """Return the usual seconds of a turn, with what starting a feed takes."""
        return statistics.median(self._lengths)

    def _candidates(self, best: Trial) -> list[Trial]:
        """Return the settings to measure next, the fastest prediction first."""
        axes, setting = self._axes, best.setting
        near = [{**setting, name: value} for name, values in axes.items() for value in values]
        combined = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
        fastest = max(combined, key=self._subject.predict)
        if self._subject.predict(fastest) > MARGIN * self._subject.predict(setting):
            near.append(fastest)
        fresh = {_key(normal): normal for normal in map(self._subject.normal, near)}
        trials = [
            self._considered.setdefault(key, Trial(normal, self._subject.predict(normal)))
            for key, normal in fresh.items()
            if key not in self._measured
        ]
        earlier = [best]  # the settings that it and they have been better than
        while (base := earlier[-1].base) is not None:
            earlier.append(base)
        sound = [
            trial for trial in self._measured.values() if not trial.remark and all(trial is not t for t in earlier)
        ]
        rivals = [trial for trial in sound if trial.base is not best and self._rivals(trial, best)]
        # One pair may have been bad luck. The time that is left gives all a second and a third.
        again = [trial for trial in sound if trial.base is best and len(trial.ratios) < PAIRS]
        if not trials and not rivals:
            return sorted(again, key=lambda trial: -trial.gain)
        rivals.sort(key=lambda trial: -(trial.ratio or 0.0))
        return [*rivals, *sorted(trials, key=lambda trial: (-trial.predicted, self._cost(trial.setting)))]

    def _rivals(self, trial: Trial, best: Trial) -> bool:
        return trial.base is not None and (trial.ratio or 0.0) >= RIVAL * (best.ratio or 1.0)

    def _cost(self, setting: Setting) -> int:
        return sum(self._subject.axes[name].index(value) for name, value in setting.items())

    def _step(self, best: Trial, candidates: list[Trial]) -> Trial:
        """Measure candidates next to the best setting, and return the better of it and the last of them."""
        # Halving takes about two pairs for each candidate, and a pair is two turns.
        racing = candidates[: max(1, int(_SHARE * self._left() / (4 * self._turn_s())))]
        while racing:
            for trial in racing:
                if self._has_time(2):
                    self._pair(best, trial)
            racing = [trial for trial in racing if trial.ratios and not trial.remark and trial.gain > 1]
            racing.sort(key=lambda trial: (-round(math.log(trial.gain, MARGIN)), self._cost(trial.setting)))
            if len(racing) <= 1 or not self._has_time(2):
                break
            if racing[0].gain >= CLEAR:  # the others are better compared with it than with the slow base
                self._pair(best, racing[0])
                if racing[0].is_clear:
                    self._clear = True
                    return racing[0]
            racing = racing[: (len(racing) + 1) // 2]
        if not racing:
            return best
        winner = racing[0]
        while len(winner.ratios) < PAIRS and winner.gain >= MARGIN and self._has_time(2):
            self._pair(best, winner)
        return winner if winner.gain >= MARGIN else best

    def _pair(self, base: Trial, trial: Trial) -> None:
        """Measure a trial and its base one after the other. The first one changes from pair to pair."""
        self._measured.setdefault(_key(trial.setting), trial)
        if trial.base is not base:
            trial.base, trial.ratios = base, []
        try:
            if len(trial.ratios) % 2:
                rate = self._turn(trial)
                ratio = rate / self._turn(base)
            else:
                base_rate = self._turn(base)
                ratio = self._turn(trial) / base_rate
            trial.ratios.append(ratio)
            trial.remark = self._subject.refusal(trial.setting)
        except UnavailableError as error:
            trial.remark = str(error)
        changes = [name for name, value in trial.setting.items() if value != base.setting[name]]
        if trial.remark and len(changes) == 1:  # not again with other values of other arguments
            (name,) = changes
            if trial.setting[name] in self._axes[name]:
                self._axes[name].remove(trial.setting[name])

    def _confirmed(self, present: Trial, adopted: list[Trial]) -> Trial:
        """Compare the result with the present setting directly. Ratios of ratios add up their errors."""
        first, best = adopted[0], adopted[-1]
        best.base, best.ratios = present, []
        for number in range(LAST_PAIRS):
            if number and self._clock() - self._began + 2 * self._turn_s() > self._seconds:
                break
            self._pair(present, best)
            if best.is_clear:
                break
        steady = best.gain >= LARGE or sum(ratio <= 1 for ratio in best.ratios) <= 1
        if best.gain >= MARGIN and steady and not best.remark:
            return best
        # A later step went wrong. The first one compared with the present setting, too.
        sound = first.is_clear or (first.gain >= LARGE and len(first.ratios) >= PAIRS)
        return first if sound and first is not best else present


def _key(setting: Setting) -> tuple[object, ...]:
    # The types count: 1 and True are two values.
    return tuple((name, type(value), value) for name, value in setting.items())
