"""A page that compares runs: their curves in common charts, their results, and their differences in settings.

Like the page of a single run it is self-contained. Long curves are averaged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from itertools import pairwise

from feedline._version import __version__
from feedline.runs import page
from feedline.runs.chart_rows import MAX_ROWS, average_rows, join_columns
from feedline.runs.charts import MAX_COLUMNS, NOT_FINITE, Chart, Pairs, moving_means, spans_decades
from feedline.runs.compare_runs import ComparedRun, NotFinite, lower_is_better
from feedline.runs.drawing import exact, figures

_UNITS = {"throughput": "samples/s", "waiting for data": "%", "learning rate": "rate"}
_SECONDARY = ("learning rate", "throughput", "waiting for data")
_ORDER = ("training loss", "validation loss", "training metric", "validation metric", *_SECONDARY)
_HELD_OUT = re.compile(r"valid|(?<![a-z])(val|test|eval|dev)(?![a-z])", re.IGNORECASE)
_MAX_NAMED = 3  # curves of other programs
_EQUAL = 1e-4  # relative. Smaller differences are due to rounding, as in sums over another number of workers


def check_count(count: int) -> None:
    """Raise ValueError for fewer than two runs, or more than there are distinct colours."""
    if not 2 <= count <= MAX_COLUMNS:
        raise ValueError(f"expected 2 to {MAX_COLUMNS} runs to compare, got {count}")


def html(runs: Sequence[ComparedRun]) -> str:
    """Return the page of as many runs as `check_count` allows."""
    names = [run.name for run in runs]
    parts = [
        ("summary", "In short", page.findings(_findings(runs))),
        ("results", "What came of them", _table("Results", names, [run.results for run in runs])),
        ("curves", "Curves", figures(_charts(runs)) + page.paragraph(_constant_rates(runs))),
        ("differences", "What differs", _differences(runs)),
        ("same", "What is the same in all", _same(runs)),
    ]
    title = f"{len(runs)} runs: {', '.join(names)}"
    logs = ", ".join(str(run.path) for run in runs)
    body = f"""<header><h1>{escape(title)}</h1></header>
{page.sections(parts)}
<footer>Made by feedline {escape(__version__)} from {escape(logs)}. Charts: move the pointer over them, or focus one and
use the arrow keys; the numbers are below each.</footer>"""
    return page.document(title, body)


def _charts(runs: Sequence[ComparedRun]) -> list[Chart]:
    """Return a chart for each curve that a run has, over each axis."""
    charts: list[Chart] = []
    for name in _curve_names(runs):
        if name == "learning rate" and _constant_rates(runs):
            continue  # a sentence has it
        for axis in dict.fromkeys(run.axis for run in runs if name in run.curves):
            shown_runs = [run for run in runs if name in run.curves and run.axis == axis]
            if any(len(run.curves[name]) > 1 for run in shown_runs):  # single numbers are only in the table of results
                charts.append(_chart(runs, shown_runs, name, f"curve-{len(charts)}"))
    return charts


def _curve_names(runs: Sequence[ComparedRun]) -> list[str]:
    names = dict.fromkeys(name for run in runs for name in run.curves)
    places = {name: i for i, name in enumerate(_ORDER)}
    return sorted(names, key=lambda name: places.get(name.partition(":")[0], len(places)))


def _chart(runs: Sequence[ComparedRun], shown_runs: Sequence[ComparedRun], name: str, key: str) -> Chart:
    """Return the chart of a curve. A run has one colour on the whole page."""
    smooth = {run.name: moving_means(run.curves[name]) for run in shown_runs}
    smooth = {run: (means, width) for run, (means, width) in smooth.items() if means and name != "learning rate"}
    columns: dict[str, Pairs] = {}
    colours = []
    for run in shown_runs:
        means, width = smooth.get(run.name, (run.curves[name], 0))
        columns[f"{run.name}, mean of {width}" if width else run.name] = means
        colours.append(1 + runs.index(run))
    faint = [run for run in shown_runs if run.name in smooth] if len(shown_runs) + len(smooth) <= MAX_COLUMNS else []
    columns |= {run.name: run.curves[name] for run in faint}
    colours += [1 + runs.index(run) for run in faint]
    table = join_columns(shown_runs[0].axis, columns)
    standard = name.partition(":")[0] in _ORDER
    sentences = [] if len(shown_runs) == len(runs) else [f"Of {', '.join(run.name for run in shown_runs)}."]
    not_finite = [(run.name, run.not_finite[name]) for run in shown_runs if name in run.not_finite]
    sentences += [f"{run} is {_where_not_finite(numbers, shown_runs[0].axis)}." for run, numbers in not_finite]
    if len(table.rows) > MAX_ROWS:
        sentences.append(f"Each point is the average of about {round(len(table.rows) / MAX_ROWS)} numbers.")
    return Chart(
        key,
        name.capitalize() if standard and ":" not in name else name[:1].upper() + name[1:] if standard else name,
        " ".join(sentences),
        _UNITS.get(name, name.rpartition(": ")[2] if ":" in name else name.rpartition(" ")[2]),
        average_rows(table),
        name not in ("throughput", "waiting for data") and spans_decades(table),
        faint=tuple(run.name for run in faint),
        colours=tuple(colours),
        until=max((numbers.last for _, numbers in not_finite), default=None),
        last_on_top=True,
    )


def _where_not_finite(numbers: NotFinite, axis: str) -> str:
    if numbers.to_the_end:
        return f"{NOT_FINITE} from {numbers.first:,} {axis} on"
    places = f"{numbers.count:,} place{'s' * (numbers.count > 1)}"
    return f"{NOT_FINITE} at {places}, first at {numbers.first:,} {axis}"


def _constant_rates(runs: Sequence[ComparedRun]) -> str:
    """Return a sentence with the learning rates if none of them changes, otherwise an empty text."""
    rates = {run.name: {n for _, n in run.curves["learning rate"]} for run in runs if "learning rate" in run.curves}
    if not rates or any(len(distinct) != 1 for distinct in rates.values()):
        return ""
    values = {run: f"{next(iter(distinct)):.6g}" for run, distinct in rates.items()}
    if len(set(values.values())) == 1:
        return f"The learning rate is {next(iter(values.values()))} throughout, in {', '.join(values)}."
    return f"The learning rate is {', '.join(f'{rate} in {run}' for run, rate in values.items())}, throughout."


def _findings(runs: Sequence[ComparedRun]) -> list[str]:
    sentences = [f"{run.name} {run.early}." for run in runs if run.early]
    sentences += [
        f"{run.name}: {name} is {_where_not_finite(numbers, run.axis)}."
        for run in runs
        for name, numbers in run.not_finite.items()
    ]
    sentences += _best(runs)
    sentences += [text for before, after in pairwise(runs) if (text := _agreement(before, after))]
    speeds = {run.name: run.speed for run in runs if run.speed is not None}
    if len(speeds) > 1 and min(speeds.values()) > 0:
        slow, fast = (choose(speeds, key=lambda run: speeds[run]) for choose in (min, max))
        ratio = speeds[fast] / speeds[slow]
        if ratio > 1.1:
            sentences.append(f"{fast} is {ratio:.1f} times as fast as {slow}, over its whole wall time.")
    digests = {run.facts["digest of the corpus"] for run in runs if "digest of the corpus" in run.facts}
    if len(digests) > 1:
        sentences.append("They were trained on different data.")
    return sentences or ["Nothing stands out."]


def _best(runs: Sequence[ComparedRun]) -> list[str]:
    """Return sentences on the lowest loss, and on the ends of other common curves, whose better direction is
    unknown."""
    shared = [name for name in _curve_names(runs) if sum(name in run.curves for run in runs) > 1]
    shared = [name for name in shared if name not in _SECONDARY]
    shared.sort(key=lambda name: (_HELD_OUT.search(name) is None, name.startswith("test ")))
    losses = [name for name in shared if lower_is_better(name)]
    unrated = [name for name in shared if not lower_is_better(name)]
    sentences = []
    for name in losses[:1]:
        lowest = {run.name: min(n for _, n in run.curves[name]) for run in runs if name in run.curves}
        best = min(lowest.values())
        tied = [run for run, loss in lowest.items() if _about_equal(loss, best)]
        equal = "equal" if len({lowest[run] for run in tied}) == 1 else "about equal"
        value = f"{exact(best)}, of {tied[0]}" if len(tied) == 1 else f"{best:.4g}, of {' and '.join(tied)}, {equal}"
        sentences.append(f"Lowest {name}: {value}.")
    if any(_HELD_OUT.search(name) for name in unrated):
        unrated = [name for name in unrated if _HELD_OUT.search(name)]
    for name in unrated[:_MAX_NAMED]:
        last = {run.name: run.curves[name][-1][1] for run in runs if name in run.curves}
        if not all(_about_equal(number, max(last.values())) for number in last.values()):
            ends = ", ".join(f"{exact(n)} in {run}" for run, n in last.items())
            sentences.append(f"{name[:1].upper()}{name[1:]} ends at {ends}.")
    return sentences


def _about_equal(a: float, b: float) -> bool:
    return abs(a - b) <= _EQUAL * max(abs(a), abs(b))


def _agreement(first: ComparedRun, second: ComparedRun) -> str:
    """Return a sentence on whether the training losses of two runs are equal, or where they first differ."""
    losses = [dict(run.curves.get("training loss", [])) for run in (first, second)]
    common = sorted(losses[0].keys() & losses[1].keys())
    if len(common) < 2 or first.axis != second.axis:
        return ""
    both = f"{first.name} and {second.name}"
    first_difference = next((at for at in common if losses[0][at] != losses[1][at]), None)
    if first_difference is None:
        return f"{both} have equal training losses, to the last digit, at all {len(common)} places."
    largest = max(abs(losses[0][at] - losses[1][at]) for at in common)
    about = all(_about_equal(losses[0][at], losses[1][at]) for at in common)
    if first_difference == common[0]:
        return f"{both} have about equal training losses: they differ by at most {largest:.2g}." if about else ""
    return (
        f"{both} have equal training losses, to the last digit, before {first_difference:,} {first.axis}; from there "
        f"on they differ by at most {largest:.2g}{', no more than rounding makes' if about else ''}."
    )


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
    columns = [{name: run.facts.get(name, "not told") for name in differ} for run in runs]
    return _table("Differences", [run.name for run in runs], columns)


def _same(runs: Sequence[ComparedRun]) -> str:
    first = runs[0].facts
    same = [(name, text) for name, text in first.items() if all(run.facts.get(name) == text for run in runs)]
    return f'<div class="card">{page.facts(same)}</div>' if same else ""
