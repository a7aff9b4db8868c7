"""A page of several runs: their curves over each other, what they ended with, and what they were made with differently.

Like the page of a single run it is self-contained, and long curves are thinned.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise

from feedline._version import __version__
from feedline.runs import page
from feedline.runs.charts import MOST_COLUMNS, Chart, spans_decades
from feedline.runs.compared import ComparedRun
from feedline.runs.drawing import exact, figure
from feedline.runs.table import joined, thinned

_UNITS = {"throughput": "samples/s", "waiting for data": "%", "learning rate": "rate"}
_ORDER = (
    *("training loss", "validation loss", "training metric", "validation metric"),
    *("learning rate", "throughput", "waiting for data"),
)


def check_count(count: int) -> None:
    """Raise ValueError unless there are two runs at least, and no more than colours can tell apart."""
    if not 2 <= count <= MOST_COLUMNS:
        raise ValueError(f"expected 2 to {MOST_COLUMNS} runs to compare, got {count}")


def html(runs: Sequence[ComparedRun]) -> str:
    """Return the page of as many runs as `check_count` allows."""
    names = [run.name for run in runs]
    findings = "".join(f"<li>{escape(text)}</li>" for text in _findings(runs))
    charts = "".join(figure(chart) for chart in _charts(runs))
    parts = [
        ("summary", "In short", f'<ul class="findings">{findings}</ul>'),
        ("results", "What came of them", _table("Results", names, [run.results for run in runs])),
        ("curves", "Curves", f'<div class="charts">\n{charts}</div>' if charts else ""),
        ("differences", "What differs", _differences(runs)),
        ("same", "What is the same in all", _same(runs)),
    ]
    shown = [part for part in parts if part[2]]
    links = "".join(f'<li><a href="#{key}">{title}</a></li>' for key, title, _ in shown)
    sections = "\n".join(
        f'<section id="{key}" aria-labelledby="{key}-title"><h2 id="{key}-title">{title}</h2>\n{text}</section>'
        for key, title, text in shown
    )
    title = f"{len(runs)} runs: {', '.join(names)}"
    logs = ", ".join(str(run.path) for run in runs)
    body = f"""<header><h1>{escape(title)}</h1></header>
<nav aria-label="Sections"><ul>{links}</ul></nav>
<main>
{sections}
</main>
<footer>Made by feedline {escape(__version__)} from {escape(logs)}. Charts: move the pointer over them, or focus one and
use the arrow keys; the numbers are below each.</footer>"""
    return page.document(title, body)


def _charts(runs: Sequence[ComparedRun]) -> list[Chart]:
    """Return a chart for each curve that a run has, over each axis."""
    names = dict.fromkeys([*_ORDER, *(name for run in runs for name in run.curves)])
    found: list[Chart] = []
    for name in names:
        for axis in dict.fromkeys(run.axis for run in runs if name in run.curves):
            columns = {run.name: run.curves[name] for run in runs if name in run.curves and run.axis == axis}
            if all(len(curve) < 2 for curve in columns.values()):
                continue  # a single number is in the table of results
            table = joined(axis, columns)
            unit = _UNITS.get(name, name.rpartition(" ")[2])
            steep = name not in ("throughput", "waiting for data") and spans_decades(table)
            title = name.capitalize() if name in _ORDER else name
            says = "" if len(columns) == len(runs) else f"Of {', '.join(columns)}."
            found.append(Chart(f"curve-{len(found)}", title, says, unit, thinned(table), steep))
    return found


def _findings(runs: Sequence[ComparedRun]) -> list[str]:
    said = []
    for name in ("validation loss", "training loss"):
        lowest = {run.name: min(n for _, n in run.curves[name]) for run in runs if name in run.curves}
        if len(lowest) > 1:
            best = min(lowest, key=lambda run: lowest[run])
            tied = [run for run, loss in lowest.items() if loss == lowest[best]]
            said.append(f"Lowest {name}: {exact(lowest[best])}, of {' and '.join(tied)}.")
            break
    said += [text for before, after in pairwise(runs) if (text := _agreement(before, after))]
    speeds = {run.name: run.speed for run in runs if run.speed is not None}
    if len(speeds) > 1 and min(speeds.values()) > 0:
        slow, fast = (choose(speeds, key=lambda run: speeds[run]) for choose in (min, max))
        ratio = speeds[fast] / speeds[slow]
        if ratio > 1.1:
            said.append(f"{fast} is {ratio:.1f} times as fast as {slow}.")
    digests = {run.facts["digest of the corpus"] for run in runs if "digest of the corpus" in run.facts}
    if len(digests) > 1:
        said.append("They were trained on different data.")
    return said or ["Nothing stands out."]


def _agreement(one: ComparedRun, other: ComparedRun) -> str:
    """Return whether the training losses of two runs are equal where both have one, and where they part."""
    losses = [dict(run.curves.get("training loss", [])) for run in (one, other)]
    common = sorted(losses[0].keys() & losses[1].keys())
    if len(common) < 2 or one.axis != other.axis:
        return ""
    parted = next((at for at in common if losses[0][at] != losses[1][at]), None)
    if parted is None:
        return (
            f"{one.name} and {other.name} have equal training losses, to the last digit, at all {len(common)} places."
        )
    if parted == common[0]:
        return ""
    return f"{one.name} and {other.name} have equal training losses before {parted:,} {one.axis}."


def _table(title: str, names: Sequence[str], columns: Sequence[dict[str, str]]) -> str:
    rows = dict.fromkeys(name for column in columns for name in column)
    cells = [(name, *(column.get(name, "") for column in columns)) for name in rows]
    return page.table(title, ("", *names), cells, whole=True)


def _differences(runs: Sequence[ComparedRun]) -> str:
    names = dict.fromkeys(name for run in runs for name in run.facts)
    differ = [name for name in names if len({run.facts.get(name) for run in runs}) > 1]
    if not any(run.facts for run in runs):
        return "<p>The logs do not say what the runs were made with.</p>"
    if not differ:
        return "<p>Nothing that the logs tell.</p>"
    told = [{name: run.facts.get(name, "not told") for name in differ} for run in runs]
    return _table("Differences", [run.name for run in runs], told)


def _same(runs: Sequence[ComparedRun]) -> str:
    first = runs[0].facts
    same = [(name, text) for name, text in first.items() if all(run.facts.get(name) == text for run in runs)]
    return f'<div class="card">{page.facts(same)}</div>' if same else ""
