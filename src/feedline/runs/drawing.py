"""Charts as HTML and SVG: a picture that stretches with the page, its legend, and its table.

The SVG is stretched to its box. So lines keep their width by ``non-scaling-stroke``, points are strokes of zero length,
and the scales are text outside of the SVG, which stays readable on a phone. Series differ by colour and by dashes.
Every text is escaped. The script of the page reads its data from the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from operator import itemgetter

from feedline.runs.chart_rows import ChartTable, Number
from feedline.runs.charts import Chart

_SIDE = 1000.0  # of the square of the SVG
_MAX_POINTS = 40  # more points would hide the line
_BAR_GROUP = 0.8  # share of the width of a class


def figures(charts: Sequence[Chart], restarts: Sequence[int] = ()) -> str:
    """Return the sections of charts side by side. See `figure`."""
    return f'<div class="charts">\n{"".join(figure(chart, restarts) for chart in charts)}</div>' if charts else ""


def figure(chart: Chart, restarts: Sequence[int] = ()) -> str:
    """Return a section with heading, legend, picture and table.

    Args:
        chart: chart to show, with at least one number.
        restarts: places on the axis where the run resumed after an interruption.
    """
    across, up = (_bands(chart) if chart.labels else _along(chart)), _upward(chart)
    marks = [] if chart.labels else [at for at in restarts if 0 <= across(at) <= _SIDE]
    content = _bars(chart.table, across, up) if chart.labels else _lines(chart, across, up)
    rows, total = len(chart.table.rows), chart.table.total
    thinned = f", {rows:,} of {total:,} rows" if rows < total else ""
    key, unit = escape(chart.key), f"{chart.unit}{', logarithmic scale' if chart.logarithmic else ''}"
    return f"""<section class="chart" id="{key}" aria-labelledby="{key}-title">
<h3 id="{key}-title">{escape(chart.title)}</h3>
<p class="says">{escape(chart.description)}</p>
{_legend(chart, bool(marks))}
<figure><p class="unit">{escape(unit)}</p><div class="plot">
<div class="ys" aria-hidden="true">{"".join(_tick("bottom", up(at) / 10, text) for at, text in up.ticks)}</div>
<div class="area"{_scales(across, up)}><svg viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img"
aria-label="{escape(_description(chart))}">
<g class="grids">{"".join(f'<path class="grid" d="M0 {_SIDE - up(at):.1f}H1000"/>' for at, _ in up.ticks)}</g>
{"".join(f'<path class="mark" d="M{across(at):.1f} 0V1000"/>' for at in marks)}
{content}
</svg><div class="cursor" hidden></div></div>
<div class="xs" aria-hidden="true">{_x_ticks(chart, across)}</div>
</div><figcaption><span class="readout" aria-hidden="true">&nbsp;</span>
<span>{escape(chart.table.axis)}</span></figcaption></figure>
<details><summary>Numbers of “{escape(chart.title)}”{thinned}</summary>
<div class="scroll" tabindex="0" role="region"
aria-label="Numbers of {escape(chart.title)}">{_table(chart, across)}</div></details>
</section>
"""


class Scale:
    """A map from an interval of numbers to 0 ... 1000 of the picture, with ticks."""

    def __init__(self, low: float, high: float, at: Iterable[float], logarithmic: bool = False) -> None:
        self._log = logarithmic
        self._low, self._high = self._place(low), self._place(high)
        self.ticks = [(number, short(number)) for number in at]

    def __call__(self, number: Number) -> float:
        """Return the place of a number."""
        return _SIDE * (self._place(number) - self._low) / (self._high - self._low)

    @property
    def ends(self) -> str:
        """Numbers at both ends, as exponents on a logarithmic scale, and kind of the scale."""
        return f"{self._low!r} {self._high!r} {'log' if self._log else 'linear'}"

    def _place(self, number: Number) -> float:
        return math.log10(clamp(number)) if self._log else clamp(number)


def clamp(number: Number) -> float:
    """Clamp a number to the range that can be drawn. Beyond 1e300, or within 1e-300 of 0, arithmetic would overflow."""
    return 0.0 if abs(number) < 1e-300 else max(-1e300, min(1e300, float(number)))


def round_bounds(low: float, high: float, count: int = 5) -> tuple[float, float, list[float]]:
    """Return bounds around ``low`` and ``high``, and about ``count`` round numbers between them."""
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        low, high = (min(0.0, 2 * low), max(0.0, 2 * high)) if low else (0.0, 1.0)
    if 0 < low <= 0.6 * high:
        low = 0.0
    rough = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * k for k in (1, 2, 2.5, 5, 10) if unit * k >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [round(k * step, 12 - math.floor(math.log10(step))) for k in range(first, last + 1)]
    return ticks[0], ticks[-1], ticks


def short(number: Number) -> str:
    """Format a number for scales: ``2.5k``, ``0.001``, ``1e-06``."""
    size = abs(number)
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= unit:
            return f"{number / unit:.6g}{name}"
    return f"{number:.6g}"


def exact(number: Number | None) -> str:
    """Format a number for tables: integers in full, other numbers to six digits, None as an empty text."""
    if number is None:
        return ""
    return str(number) if isinstance(number, int) else f"{number:.6g}"


def _along(chart: Chart) -> Scale:
    rows = chart.table.rows
    low, high = float(rows[0].at), float(rows[-1].at if chart.until is None else max(chart.until, rows[-1].at))
    _, _, ticks = round_bounds(0.0 if low <= 0.6 * high else low, high)
    # The picture ends at the end of the run, as an empty part up to a round bound would look like an aborted run.
    low, high = min(low, ticks[0]), high if high > ticks[0] else ticks[-1]
    return Scale(low, high, [at for at in ticks if low <= at <= high])


def _upward(chart: Chart) -> Scale:
    numbers = chart.table.numbers()
    low, high = clamp(min(numbers)), clamp(max(numbers))
    if chart.labels or chart.unit == "%":
        low = min(0.0, low)
    elif chart.logarithmic:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        step = max(1, math.ceil((len(decades) - 1) / 6))
        return Scale(10.0 ** decades[0], 10.0 ** decades[-1], [10.0**k for k in decades[::step]], logarithmic=True)
    return Scale(*round_bounds(low, high))


def _scales(across: Callable[[Number], float], up: Scale) -> str:
    """Return attributes by which the script of the page chooses new ticks after a zoom. Classes cannot be zoomed."""
    return f' data-across="{across.ends}" data-up="{up.ends}"' if isinstance(across, Scale) else ""


def _bands(chart: Chart) -> Callable[[Number], float]:
    """Return a map from a class to its middle."""
    first, count = chart.table.rows[0].at, len(chart.table.rows)
    return lambda at: _SIDE * (at - first + 0.5) / count


def _lines(chart: Chart, across: Callable[[Number], float], up: Scale) -> str:
    table, paths = chart.table, []
    # The first curve in the legend is drawn on top, or the last.
    order = sorted(range(len(table.columns)), key=lambda k: (table.columns[k] not in chart.faint, k))
    for k in order if chart.last_on_top else range(len(table.columns))[::-1]:
        at = [(across(row.at), _SIDE - up(number)) for row in table.rows if (number := row.values[k]) is not None]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in at)
        is_faint = table.columns[k] in chart.faint
        if len(at) > 1:
            kind = " faint" if is_faint else " under" if chart.last_on_top and k == 0 else ""
            paths.append(f'<path class="line s{chart.colour(k)}{kind}" d="{path}"/>')
        if len(at) <= _MAX_POINTS and not is_faint:
            points = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in at)
            over = " over" if chart.last_on_top and k else ""
            paths.append(f'<path class="point{over} s{chart.colour(k)}" d="{points}"/>')
    return "\n".join(paths)


def _bars(table: ChartTable, across: Callable[[Number], float], up: Scale) -> str:
    room = _SIDE * _BAR_GROUP / len(table.rows)
    width = room / len(table.columns)
    return "\n".join(
        f'<rect class="s{k + 1}" x="{across(row.at) - room / 2 + k * width:.1f}" y="{_SIDE - up(number):.1f}" '
        f'width="{width:.1f}" height="{up(number):.1f}"/>'
        for row in table.rows
        for k, number in enumerate(row.values)
        if number
    )


def _legend(chart: Chart, marked: bool) -> str:
    shape = '<rect width="24" height="10" y="1"/>' if chart.labels else '<path class="line" d="M1 6H23"/>'
    thin = shape.replace('"line"', '"line faint"')
    items = [
        (f"s{chart.colour(k)}", thin if name in chart.faint else shape, name)
        for k, name in enumerate(chart.table.columns)
    ]
    if marked:
        items.append(("", '<path class="mark" d="M12 0V12"/>', "resumed after an interruption"))
    cells = "".join(
        f'<li><svg class="{kind}" width="24" height="12" aria-hidden="true">{shape}</svg> {escape(name)}</li>'
        for kind, shape, name in items
    )
    return f'<ul class="legend">{cells}</ul>'


def _tick(side: str, percent: float, text: str) -> str:
    return f'<span style="{side}:{percent:.2f}%">{escape(text)}</span>'


def _x_ticks(chart: Chart, across: Callable[[Number], float]) -> str:
    places: Sequence[tuple[Number, str]] = across.ticks if isinstance(across, Scale) else []
    if chart.labels:  # only some of many classes, whose names would overlap
        rows = zip(chart.table.rows, chart.labels, strict=True)
        places = [(row.at, label) for row, label in rows][:: math.ceil(len(chart.labels) / 8)]
    return "".join(_tick("left", across(at) / 10, text) for at, text in places)


def _description(chart: Chart) -> str:
    """Return a description of the picture."""
    parts = []
    for k, column in enumerate(chart.table.columns):
        rows = zip(_names(chart), chart.table.rows, strict=True)
        cells = [(n, f"{exact(n)} at {name}") for name, row in rows if (n := row.values[k]) is not None]
        low, high = (choose(cells, key=itemgetter(0))[1] for choose in (min, max))
        ends = "" if chart.labels else f"from {cells[0][1]} to {cells[-1][1]}, "
        parts.append(f"{column}: {ends}lowest {low}, highest {high}")
    return f"{chart.title} ({chart.unit}) by {chart.table.axis}. {'; '.join(parts)}."


def _names(chart: Chart) -> Sequence[str]:
    """Return the names of the rows: classes, or places."""
    return chart.labels or [exact(row.at) for row in chart.table.rows]


def _table(chart: Chart, across: Callable[[Number], float]) -> str:
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in (chart.table.axis, *chart.table.columns))
    rows = "\n".join(
        f'<tr data-x="{across(row.at):.1f}"><th scope="row">{escape(name)}</th>'
        f"{''.join(f'<td>{exact(number)}</td>' for number in row.values)}</tr>"
        for name, row in zip(_names(chart), chart.table.rows, strict=True)
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>\n{rows}\n</tbody></table>"
