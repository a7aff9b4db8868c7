"""What of a run is compared with others: its curves, what it was made with, and what came of it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.runs.charts import whole_by_part
from feedline.runs.drawing import exact
from feedline.runs.event_files import Curve, event_curves, holds_events
from feedline.runs.folder import read_run
from feedline.runs.history import Average, History

_OF_STATE = {"order": "order", "seed": "seed of the order", "shuffle": "shuffle", "corpus": "digest of the corpus"}
_HEX = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A run beside others.

    Attributes:
        name: name for display, unique among those compared.
        path: its log.
        axis: what its curves run over.
        curves: (place, number) pairs by name.
        facts: what it was made with, as text by name.
        results: what came of it, as text by name.
        speed: samples per second of its whole wall time; None: unknown.
    """

    name: str
    path: Path
    axis: str
    curves: dict[str, Curve]
    facts: dict[str, str]
    results: dict[str, str]
    speed: float | None = None


def read_compared(paths: Sequence[str | os.PathLike[str]]) -> list[ComparedRun]:
    """Read run folders, logs, and folders or files of TensorBoard events.

    Raises:
        FileNotFoundError: no such folder, or no log in it.
        DataError: several logs to choose from, or a file that is not a log.
        ModuleNotFoundError: an event file, and tensorboard is not installed.
    """
    places = [Path(path) for path in paths]
    return [_read(place, name) for place, name in zip(places, _names(places), strict=True)]


def _names(places: Sequence[Path]) -> list[str]:
    """Return the shortest ends of paths that tell them apart; a log stands for its folder."""
    parts = [(place.resolve().parent if place.is_file() else place.resolve()).parts for place in places]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(path[-depth:]) for path in parts]
        if len(set(names)) == len(names):
            return names
    return [str(place) for place in places]  # two logs of one folder


def _read(place: Path, name: str) -> ComparedRun:
    if holds_events(place) and not any(place.glob("*.jsonl")):
        curves, ours = event_curves(place)
        results = {f"{key}, last": exact(curve[-1][1]) for key, curve in curves.items() if key.endswith("loss")}
        return ComparedRun(name, place, "label samples" if ours else "steps", curves, {}, _lowest(curves) | results)
    run = read_run(place)
    history = run.history
    curves = _curves(history)
    facts, results = _facts(history), _results(history, curves)
    return ComparedRun(name, history.path, history.counts, curves, facts, results, history.speed)


def _curves(history: History) -> dict[str, Curve]:
    spans = history.spans
    found: dict[str, list[tuple[int, float | None]]] = {
        "training loss": [(span.samples, span.loss) for span in spans],
        "training metric": [(span.samples, span.metric) for span in spans],
        "learning rate": [(span.samples, span.rates[0]) for span in spans if span.rates],
        "throughput": [(span.samples, span.counted / span.seconds) for span in spans if span.seconds > 0],
        "waiting for data": [(span.samples, None if s is None else 100 * s) for span in spans for s in [span.waiting]],
    }
    for kind in ("validation", "test"):
        averages: list[Average] = [average for average in history.averages if average.kind == kind]
        found[f"{kind} loss"] = [(average.samples, average.loss) for average in averages]
        found[f"{kind} metric"] = [(average.samples, average.metric) for average in averages]
    known = {name: [(at, n) for at, n in curve if n is not None] for name, curve in found.items()}
    return {name: curve for name, curve in known.items() if curve}


def _facts(history: History) -> dict[str, str]:
    about = history.about
    state: dict[str, Any] = (about.get("feed") or {}).get("state") or {}
    seed = state.get("seed")
    if isinstance(seed, str) and _HEX.fullmatch(seed):
        state = {**state, "seed": int(seed, 16)}
    found: dict[str, Any] = {
        "model": about.get("model"),
        "parameters": about.get("parameters"),
        "learners": ", ".join(about.get("learners", [])),
        **(about.get("settings") or {}),
        "workers": about.get("workers"),
        **{f"{name} a sweep": count for name, count in (about.get("corpus") or {}).items()},
        **{words: state.get(name) for name, words in _OF_STATE.items()},
        **{f"stream {name}": text for name, text in (about.get("streams") or {}).items()},
        "feedline": about.get("feedline"),
        **(about.get("versions") or {}),
        "commit": about.get("commit"),
        "command": about.get("command"),
        "machine": about.get("machine"),
        **{f"threads, {name}": count for name, count in (about.get("threads") or {}).items()},
    }
    return {name: str(value) for name, value in found.items() if value not in (None, "")}


def _lowest(curves: dict[str, Curve]) -> dict[str, str]:
    found = {}
    for name in ("training loss", "validation loss"):
        if name in curves:
            at, lowest = min(curves[name], key=lambda pair: pair[1])
            found[f"{name}, lowest"] = f"{exact(lowest)} at {at:,}"
    return found


def _results(history: History, curves: dict[str, Curve]) -> dict[str, str]:
    found = _lowest(curves)
    for name in (f"{kind} {what}" for kind in ("training", "validation", "test") for what in ("loss", "metric")):
        if name in curves:
            found[f"{name}, last"] = exact(curves[name][-1][1])
    seconds, waiting = history.seconds, whole_by_part(history).get("waiting for data", 0.0)
    found[history.counts] = f"{history.samples:,}"
    if seconds:
        found |= {"wall time": f"{seconds:,.4g} s", f"{history.counts} a second": f"{history.speed:,.0f}"}
        found["time spent waiting"] = f"{waiting / seconds:.1%}"
    found["resumed"] = history.resumed
    ended = history.ended
    found["end"] = "none in the log" if ended is None else "interrupted" if ended.get("interrupted") else "reached"
    return found
