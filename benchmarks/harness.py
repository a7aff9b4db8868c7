"""Races between contenders, and the answers from them.

A race runs each contender once per round, in an order that rotates from round to round, so that a busy or throttled
machine slows all of them alike. CPU time decides, of the thread if one thread works, of the process if several do. Wall
time is kept, too. A ratio is the median of the ratios within the same round, never a ratio of
medians. Spread is half the distance between the quartiles, relative to the median.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CLOCKS: dict[str, Callable[[], float]] = {
    "thread": time.thread_time,
    "process": time.process_time,
    "wall": time.perf_counter,
}

#: Does a share of its work and returns how many units (bytes, rows, calls) that was.
Contender = Callable[[], float]


@dataclass(frozen=True)
class Round:
    """One contender's turn: units of work, seconds on the deciding clock, seconds on the wall."""

    units: float
    seconds: float
    wall: float


@dataclass(frozen=True)
class Race:
    """The times of a `race`: ``rounds`` by contender, equally many each."""

    clock: str
    rounds: Mapping[str, Sequence[Round]]

    def rates(self, name: str, clock: str | None = None) -> list[float]:
        """Units a second in each round, on the deciding clock or ``"wall"``."""
        return [r.units / max(r.wall if clock == "wall" else r.seconds, 1e-9) for r in self.rounds[name]]

    def rate(self, name: str, clock: str | None = None) -> float:
        """Median of `rates`."""
        return statistics.median(self.rates(name, clock))

    def spread(self, name: str) -> float:
        """Relative spread of `rates`."""
        return spread(self.rates(name))

    def ratios(self, ours: str, peer: str) -> list[float]:
        """Our rate over the peer's in each round: above 1 is faster."""
        return [a / b for a, b in zip(self.rates(ours), self.rates(peer), strict=True)]

    def ratio(self, ours: str, peer: str) -> float:
        """Median of `ratios`."""
        return statistics.median(self.ratios(ours, peer))


def race(
    contenders: Mapping[str, Contender],
    rounds: int,
    clock: str = "thread",
    warm_up: int = 1,
    tick: Callable[[str], tuple[float, float]] | None = None,
    before: Callable[[str], None] | None = None,
) -> Race:
    """Run all contenders ``rounds`` times, alternating, after ``warm_up`` rounds that do not count.

    Args:
        contenders: by name.
        rounds: at least 1.
        clock: the clock that decides, one of `CLOCKS`.
        warm_up: number of rounds that do not count, for caches, page tables and first calls.
        tick: returns (deciding clock, wall) for a contender's name, instead of the real clocks.
        before: called with a contender's name before its turn, off the clock, to evict the files that it will read.

    Raises:
        ValueError: no contender, no round or an unknown clock.
    """
    if not contenders or rounds < 1 or clock not in CLOCKS:
        raise ValueError(f"expected contenders, rounds >= 1 and a clock of {sorted(CLOCKS)}, got {clock!r}, {rounds}")
    now = CLOCKS[clock]
    read = tick or (lambda _: (now(), time.perf_counter()))
    names = list(contenders)
    seen: dict[str, list[Round]] = {name: [] for name in names}
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()  # a collection caused by one contender must not land in another's turn
    try:
        for number in range(-warm_up, rounds):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                if before is not None:
                    before(name)
                seconds, wall = read(name)
                units = contenders[name]()
                seconds_after, wall_after = read(name)
                if number >= 0:
                    seen[name].append(Round(units, seconds_after - seconds, wall_after - wall))
            gc.collect()
    finally:
        if enabled:
            gc.enable()
    return Race(clock, seen)


def spread(values: Sequence[float]) -> float:
    """Return half the distance between the quartiles over the median. 0 for a single value."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    middle = statistics.median(values)
    return (high - low) / 2 / middle if middle else 0.0


@dataclass(frozen=True)
class Target:
    """A bound on one figure of an answer.

    Attributes:
        of: ``"ratio"`` or ``"ours"``.
        kind: ``">="`` or ``"<="``.
        bound: the figure, in the answer's unit or as a ratio.
        text: how the bound is printed. Empty: as a number.
    """

    of: str
    kind: str
    bound: float
    text: str = ""

    def met(self, value: float) -> bool:
        """Whether ``value`` keeps to the bound."""
        return value >= self.bound if self.kind == ">=" else value <= self.bound

    def __str__(self) -> str:
        return f"{self.kind} {self.text or shown(self.bound)}{'x' if self.of == 'ratio' and not self.text else ''}"


@dataclass(frozen=True)
class Answer:
    """One row of the table.

    Attributes:
        question: the question.
        unit: of ``ours`` and ``peer_value``.
        ours: our figure.
        peer: the peer's name. Empty: nothing is compared.
        peer_value: the peer's figure. None where there is none.
        ratio: ours to the peer's, above 1 is better for us. None where there is none.
        target: the bound to keep. None: reported only.
        spread: relative spread of our figure over the rounds.
        note: how it was measured, what limits it.
        detail: the figures it was computed from, JSON types.
    """

    question: str
    unit: str
    ours: float
    peer: str = ""
    peer_value: float | None = None
    ratio: float | None = None
    target: Target | None = None
    spread: float = 0.0
    note: str = ""
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        """Whether the target is met. None without one."""
        if self.target is None:
            return None
        value = self.ratio if self.target.of == "ratio" else self.ours
        return value is not None and self.target.met(value)


def compare(
    run: Race,
    ours: str,
    peer: str,
    question: str,
    unit: str,
    scale: float = 1.0,
    at_least: float | None = None,
    text: str = "",
    note: str = "",
) -> Answer:
    """Answer "how fast, compared with ``peer``": rates in units a second of the deciding clock, times ``scale``."""
    return Answer(
        question=question,
        unit=unit,
        ours=run.rate(ours) * scale,
        peer=peer,
        peer_value=run.rate(peer) * scale,
        ratio=run.ratio(ours, peer),
        target=None if at_least is None else Target("ratio", ">=", at_least, text),
        spread=run.spread(ours),
        note=note,
        detail={
            "clock": run.clock,
            "ratio_spread": spread(run.ratios(ours, peer)),
            "rates": {name: [rate * scale for rate in run.rates(name)] for name in (ours, peer)},
            "wall_rate": {name: run.rate(name, "wall") * scale for name in (ours, peer)},
        },
    )


@dataclass(frozen=True)
class Stage:
    """What a question is given.

    Attributes:
        data: folder for generated data, shared by the questions of a run.
        quick: a smoke test: small data, few rounds, figures that mean little.
        scale: share of the full data size that disk and memory allow, at most 1.
    """

    data: Path
    quick: bool = False
    scale: float = 1.0

    def rounds(self, full: int) -> int:
        """Rounds of a race: ``full``, or 2 in a quick run."""
        return 2 if self.quick else full

    def size(self, full: int, quick: int) -> int:
        """A data size: ``full`` as far as there is room, or ``quick``."""
        return quick if self.quick else max(quick, int(full * self.scale))


# ---- printing ---------------------------------------------------------------------------------------------


def shown(value: float | None) -> str:
    """A number with three significant digits, at most."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    if abs(value) >= 0.001:
        return f"{value:.3g}"
    return f"{value:.2e}"


COLUMNS = ("question", "ours", "peer or limit", "theirs", "unit", "ratio", "target", "met", "spread")


def rows(answers: Sequence[Answer]) -> list[tuple[str, ...]]:
    """The table's cells, one row an answer, as `COLUMNS`."""
    verdict = {True: "met", False: "MISSED", None: ""}
    return [
        (
            a.question,
            shown(a.ours),
            a.peer,
            shown(a.peer_value) if a.peer_value is not None else "",
            a.unit,
            shown(a.ratio) if a.ratio is not None else "",
            str(a.target) if a.target else "",
            verdict[a.met],
            f"{a.spread:.0%}" if a.spread else "",
        )
        for a in answers
    ]


def text_table(answers: Sequence[Answer]) -> str:
    """The table for a terminal."""
    lines = [COLUMNS, *rows(answers)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    out = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([out[0], "  ".join("-" * width for width in widths), *out[1:]])


def markdown_table(answers: Sequence[Answer]) -> str:
    """The table as Markdown."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *rows(answers)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
