"""The data of a run for comparisons: its curves, settings and results."""

from __future__ import annotations

import ast
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from feedline.runs.charts import NOT_FINITE, total_seconds_by_part
from feedline.runs.drawing import exact
from feedline.runs.event_files import Curve, event_curves, holds_events
from feedline.runs.folder import read_run
from feedline.runs.history import History

_OF_STATE = {"order": "order", "seed": "seed of the order", "shuffle": "shuffle", "corpus": "digest of the corpus"}
_HEX = re.compile(r"[0-9a-f]{16}")
_LOWER_IS_BETTER = re.compile(r"loss|error|perplexity|(?<![a-z])(err|mse|mae|rmse|nll|wer|ppl)(?![a-z])", re.IGNORECASE)
T = TypeVar("T")
_METRIC = re.compile(r"^(training|validation|test) metric")
_LONG_NUMBER = re.compile(r"\d*\.\d{9,}(?![\de])")


@dataclass(frozen=True, slots=True)
class NotFinite:
    """Numbers of a curve that are not finite.

    Attributes:
        first: first place of these numbers at the end of the curve. If the last number is finite, first place of all.
        last: last place of all numbers of the curve.
        count: number of places.
        to_the_end: whether the last number of the curve is not finite.
    """

    first: int
    last: int
    count: int
    to_the_end: bool


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A run in a comparison.

    Attributes:
        name: name for display, unique in the comparison.
        path: path of its log.
        axis: unit of the places of its curves.
        curves: (place, number) pairs by name.
        facts: settings and versions, as text by name.
        results: results, as text by name.
        not_finite: numbers that are not finite, by the name of the curve.
        speed: samples per second of its whole wall time. None if unknown.
        early: premature end in words, or empty.
        metric: name of its metric, empty if unknown.
    """

    name: str
    path: Path
    axis: str
    curves: dict[str, Curve]
    facts: dict[str, str]
    results: dict[str, str]
    not_finite: dict[str, NotFinite]
    speed: float | None = None
    early: str = ""
    metric: str = ""


def read_compared_runs(paths: Sequence[str | os.PathLike[str]]) -> list[ComparedRun]:
    """Read run folders, logs, and folders or files of TensorBoard events.

    Raises:
        FileNotFoundError: no such folder, or no log in it.
        DataError: several logs to choose from, or a file that is not a log.
        ValueError: the same run twice.
        ModuleNotFoundError: an event file, and tensorboard is not installed.
    """
    places = [Path(path) for path in paths]
    runs = [_read(place, name) for place, name in zip(places, _names(places), strict=True)]
    logs = [run.path.resolve() for run in runs]
    twice = next((log for i, log in enumerate(logs) if log in logs[:i]), None)
    if twice is not None:
        raise ValueError(f"expected different runs to compare, got {twice} twice")
    # Event files do not name the metric. Next to logs that agree on a metric, it is that metric.
    metrics = {run.metric for run in runs if run.metric}
    return [_with_metric(run, run.metric or (next(iter(metrics)) if len(metrics) == 1 else "")) for run in runs]


def lower_is_better(name: str) -> bool:
    """Return whether a curve is a loss or an error by its name. For other curves the better direction is unknown."""
    return _LOWER_IS_BETTER.search(name) is not None


def _with_metric(run: ComparedRun, name: str) -> ComparedRun:
    """Return a run with the name of its metric in the names of curves and results."""
    if not name:
        return run

    def rename(part: dict[str, T]) -> dict[str, T]:
        return {_METRIC.sub(lambda match: f"{match[0]}: {name}", key): value for key, value in part.items()}

    return replace(run, curves=rename(run.curves), results=rename(run.results), not_finite=rename(run.not_finite))


def _names(places: Sequence[Path]) -> list[str]:
    """Return the shortest distinct ends of paths as names. A log gets the name of its folder."""
    parts = [(place.resolve().parent if place.is_file() else place.resolve()).parts for place in places]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(path[-depth:]) for path in parts]
        if len(set(names)) == len(names):
            return names
    return [str(place) for place in places]  # two logs of one folder


def _read(place: Path, name: str) -> ComparedRun:
    if holds_events(place) and not any(place.glob("*.jsonl")):
        scalars, by_feedline = event_curves(place)
        curves, not_finite = _finite(scalars)
        shown = [key for key in scalars if not by_feedline or key.rpartition(" ")[2] in ("loss", "metric")]
        axis = "label samples" if by_feedline else "steps"
        return ComparedRun(name, place, axis, curves, {}, _outcome(curves, not_finite, shown), not_finite)
    history = read_run(place).history
    curves, not_finite = _finite(_curves(history))
    facts, results = _facts(history), _results(history, curves, not_finite)
    ended, counts, early = history.ended, history.counts, ""
    if ended is None:
        early = f"has no end in its log after {history.samples:,} {counts}: it is still running, or was killed"
    elif ended.get("interrupted"):
        early = f"was interrupted at {ended['samples']:,} {counts}"
    metric = history.about.get("metric_name") or ""
    return ComparedRun(name, history.path, counts, curves, facts, results, not_finite, history.speed, early, metric)


def _finite(raw: dict[str, Curve]) -> tuple[dict[str, Curve], dict[str, NotFinite]]:
    """Return the finite numbers of curves, and the places of numbers that are not finite."""
    curves, not_finite = {}, {}
    for name, curve in raw.items():
        finite = [(at, n) for at, n in curve if math.isfinite(n)]
        bad = [at for at, n in curve if not math.isfinite(n)]
        if finite:
            curves[name] = finite
        if bad:
            last = finite[-1][0] if finite else -1
            to_the_end = bad[-1] > last
            first = next(at for at in bad if at > last) if to_the_end else bad[0]
            not_finite[name] = NotFinite(first, curve[-1][0], len(bad), to_the_end)
    return curves, not_finite


def _curves(history: History) -> dict[str, Curve]:
    spans = history.spans
    columns: dict[str, Iterable[tuple[int, float | None]]] = {
        "training loss": [(span.samples, span.loss) for span in spans if span.counted],
        "training metric": [(span.samples, span.metric) for span in spans if span.counted],
        "learning rate": [(span.samples, span.rates[0]) for span in spans if span.rates],
        "throughput": [(span.samples, span.counted / span.seconds) for span in spans if span.seconds > 0],
        "waiting for data": [(span.samples, 100 * span.waiting) for span in spans if span.waiting is not None],
    }
    for kind in ("validation", "test"):
        averages = [average for average in history.averages if average.kind == kind and average.counted]
        columns[f"{kind} loss"] = [(average.samples, average.loss) for average in averages]
        columns[f"{kind} metric"] = [(average.samples, average.metric) for average in averages]
    curves = {name: [(at, math.nan if n is None else n) for at, n in curve] for name, curve in columns.items()}
    # Without a metric, or for a feed without training, a curve has no finite number.
    trains = not history.is_feed
    return {
        name: curve
        for name, curve in curves.items()
        if any(math.isfinite(n) for _, n in curve) or (curve and name.endswith("loss") and trains)
    }


def order_facts(about: dict[str, Any]) -> dict[str, Any]:
    """Return order, seed, shuffle and digest of the data, as far as a "start" line has them."""
    state = (about.get("feed") or {}).get("state")
    if not isinstance(state, dict):
        state = {}
    seed = state.get("seed")
    if isinstance(seed, str) and _HEX.fullmatch(seed):
        state = {**state, "seed": int(seed, 16)}
    return {words: state.get(name) for name, words in _OF_STATE.items()}


def setting_in_words(text: str) -> str:
    """Return a setting in readable form: schedules in words, numbers without insignificant digits.

    ``[(22153, 4096), 6144], epoch_size=1`` becomes ``4096 for 22,153 label samples, then 6144``.
    """
    text = _LONG_NUMBER.sub(lambda match: f"{float(match[0]):.9g}", text)
    steps, _, details = text.partition("], epoch_size=")
    size, _, reference = details.partition(", reference=")
    if not (steps.startswith("[") and size.isdigit()):
        return text.removesuffix(", reference=1") if text.endswith(", reference=1") and text[:1] != "[" else text
    try:
        pairs = [pair if isinstance(pair, tuple) else (1, pair) for pair in ast.literal_eval(f"{steps}]")]
        parts = [f"{number:.9g} for {int(size) * count:,} label samples" for count, number in pairs[:-1]]
    except (ValueError, TypeError, SyntaxError):  # another setting that looks like a schedule
        return text
    last = f"{pairs[-1][1]:.9g}"
    return ", then ".join([*parts, last]) + (f", per {reference} samples" if reference else "")


def _facts(history: History) -> dict[str, str]:
    about = history.about
    facts: dict[str, Any] = {
        "model": about.get("model"),
        "parameters": about.get("parameters"),
        "learners": ", ".join(about.get("learners", [])),
        **{name: setting_in_words(text) for name, text in (about.get("settings") or {}).items()},
        "workers": about.get("workers"),
        **{f"{name} a sweep": count for name, count in (about.get("corpus") or {}).items()},
        **order_facts(about),
        **{f"stream {name}": text for name, text in (about.get("streams") or {}).items()},
        "feedline": about.get("feedline"),
        **(about.get("versions") or {}),
        "commit": about.get("commit"),
        "command": about.get("command"),
        "machine": about.get("machine"),
        **{f"threads, {name}": count for name, count in (about.get("threads") or {}).items()},
    }
    return {name: str(value) for name, value in facts.items() if value not in (None, "")}


def _outcome(curves: dict[str, Curve], not_finite: dict[str, NotFinite], names: Iterable[str]) -> dict[str, str]:
    """Return the last and the best number of curves, or both extremes if the better direction is unknown."""
    outcome = {}
    for name in names:
        curve, bad_numbers = curves.get(name, []), not_finite.get(name)
        last = f"{exact(curve[-1][1])}" if curve else ""
        if bad_numbers is not None and bad_numbers.to_the_end:
            last = NOT_FINITE + (f", {last} at {curve[-1][0]:,}" if curve else "")
        if not name.startswith("test "):
            ends = {"lowest": min} if lower_is_better(name) else {"lowest": min, "highest": max}
            for end, choose in ends.items() if curve else ():
                at, number = choose(curve, key=lambda pair: pair[1])
                outcome[f"{name}, {end}"] = f"{exact(number)} at {at:,}"
        outcome[f"{name}, last"] = last
    return outcome


def _results(history: History, curves: dict[str, Curve], not_finite: dict[str, NotFinite]) -> dict[str, str]:
    names = [f"{kind} {what}" for what in ("loss", "metric") for kind in ("training", "validation", "test")]
    results = _outcome(curves, not_finite, [name for name in names if name in curves or name in not_finite])
    seconds, waiting = history.seconds, total_seconds_by_part(history).get("waiting for data", 0.0)
    results[history.counts] = f"{history.samples:,}"
    if seconds:
        results |= {"wall time": f"{seconds:,.4g} s", f"{history.counts} a second": f"{history.speed:,.0f}"}
        results["time spent waiting"] = f"{waiting / seconds:.1%}"
    results["resumed"] = history.resumed
    ended = history.ended
    results["end"] = "none in the log" if ended is None else "interrupted" if ended.get("interrupted") else "reached"
    return results
