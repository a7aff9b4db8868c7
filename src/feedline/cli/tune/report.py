"""The result of `feedline tune` as JSON and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from feedline.cli.console import print_table, stdout
from feedline.cli.tune.paired_search import SearchResult, Setting, Subject, Trial
from feedline.feed.timeline import Window


class Reported(Subject, Protocol):
    """A `Subject` whose settings can be printed."""

    unit: str

    def keeps_order(self, setting: Setting) -> bool:
        """Return whether the order is that of the present setting."""

    def mixing(self, setting: Setting) -> float | None:
        """Return how far apart neighbours of the corpus are, 1 for a full shuffle. None: unknown, or no shuffle."""

    def code(self, setting: Setting) -> str:
        """Return a program with the setting."""

    def notes(self) -> Sequence[str]:
        """Return remarks about the data, in sentences."""


def document(subject: Reported, outcome: SearchResult, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result in JSON types.

    Returns:
        ``about``, and ``unit`` of speeds (each per second), ``seconds`` and ``turns`` of the search, ``settings``: each
        with its ``arguments``, ``predicted`` and ``measured`` speeds, ``ratio`` to the present speed, number of
        ``pairs`` of turns, whether it ``keeps_order``, its ``mixing`` (the distance of neighbours, 1 for a full
        shuffle), ``remark`` (why it cannot be chosen), and whether it is ``present`` or ``chosen``. ``measured``,
        ``ratio`` and ``mixing`` are None if it was not measured. Then ``arguments``, ``changes``, ``ratio`` and
        ``code`` of the chosen one, and ``notes``.
    """
    best, present = outcome.best, outcome.present
    return {
        **about,
        "unit": subject.unit,
        "seconds": outcome.seconds,
        "turns": outcome.turns,
        "settings": [
            {
                "arguments": _to_json(trial.setting),
                "predicted": trial.predicted,
                "measured": trial.rate,
                "ratio": trial.ratio,
                "pairs": len(trial.ratios),
                "keeps_order": subject.keeps_order(trial.setting),
                "mixing": None if trial.rate is None else subject.mixing(trial.setting),
                "remark": trial.remark,
                "present": trial is present,
                "chosen": trial is best,
            }
            for trial in _sorted(outcome)
        ],
        "arguments": _to_json(best.setting),
        "changes": _changes(best.setting, present.setting),
        "ratio": best.ratio,
        "code": subject.code(best.setting),
        "notes": list(subject.notes()),
    }


def show(result: Mapping[str, Any]) -> None:
    """Print a `document`."""
    console = stdout()
    console.print(f"{result['subject']}: {result['turns']} turns in {result['seconds']:.3g} s", style="bold")
    present = next(row["arguments"] for row in result["settings"] if row["present"])
    measured = [row for row in result["settings"] if row["measured"] is not None]
    rows = []
    for row in measured:
        name = "present" if row["present"] else _named(row["arguments"], present)
        speeds = [_speed(row["predicted"]), _speed(row["measured"]), f"{row['ratio']:.2f}"]
        rows.append([("> " if row["chosen"] else "  ") + name, *speeds, _order(row)])
    print_table(["setting", "predicted", f"{result['unit']}/s", "ratio", "order"], rows, folded=True)
    if any(row["mixing"] is not None for row in measured):
        console.print("  order: how far apart neighbours are, in percent of a full shuffle")
    for row in result["settings"]:
        if row["measured"] is None and row["remark"]:
            console.print(f"  {_named(row['arguments'], present)}: {row['remark']}")
    if late := sum(row["measured"] is None and not row["remark"] for row in result["settings"]):
        console.print(f"  no time for {late} more settings, which --json lists")
    if result["changes"]:
        console.print(f"\n{result['ratio']:.2f} times as fast as the present setting:\n", style="bold")
    else:
        console.print("\nno setting was faster than the present one:\n", style="bold")
    console.print(result["code"], soft_wrap=True)  # a wrapped line could not be pasted
    for note in result["notes"]:
        console.print(f"\n{note}")


def _sorted(outcome: SearchResult) -> list[Trial]:
    """Return the present setting, then the fastest first, then those without a measurement."""
    candidates = [trial for trial in outcome.trials if trial is not outcome.present]
    return [
        outcome.present,
        *sorted(candidates, key=lambda trial: (trial.ratio is None, -(trial.ratio or trial.predicted))),
    ]


def _changes(setting: Setting, present: Setting) -> dict[str, Any]:
    return {name: value for name, value in _to_json(setting).items() if setting[name] != present[name]}


def _to_json(setting: Setting) -> dict[str, Any]:
    return {name: value.to_json() if isinstance(value, Window) else value for name, value in setting.items()}


def _named(arguments: Mapping[str, Any], present: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_shown(value)}" for name, value in arguments.items() if value != present[name])


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        ((unit, count),) = value.items()
        return f"{_count(count)} {unit}"
    return _count(value) if type(value) is int else str(value)


def _count(number: int) -> str:
    return str(number) if number < 1 << 20 else f"{number / (1 << 20):.4g}Mi"


def _order(row: Mapping[str, Any]) -> str:
    order = "same" if row["keeps_order"] else "mixes less" if row["remark"] else "other"
    return order if row["mixing"] is None else f"{order}, {row['mixing']:.0%}"


def _speed(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
