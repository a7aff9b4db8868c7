"""The ranks of a run on its page: maps of rank and time that show the shares of time in which ranks wait.

Like other charts, the pictures are stretched to their boxes, and words are text outside of them. The shades are one
colour in ten opacities, over light and dark paper. The tables have the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from itertools import groupby
from typing import NamedTuple

from feedline.runs import page
from feedline.runs.diagnosis.rank_view import seconds_text
from feedline.runs.rank_spans import RankSpan, RanksSpans, merge
from feedline.runs.readiness import late_findings
from feedline.runs.watching import duration_text

_COLUMNS, _TABLE_COLUMNS, _ROWS = 60, 10, 64  # most stretches of time in a picture and in a table, and rows
_LEVELS, _SENTENCES = 10, 4
_HEIGHTS_PX = (6.0, 26.0)  # of a row
_LABEL_PX, _MOST_PX = 14.0, 420.0  # between two labels, and of a picture

STYLE = """.heat { display: grid; grid-template-columns: 4.2rem minmax(0, 1fr) 2.6rem; font-size: .76rem;
  color: var(--soft); font-variant-numeric: tabular-nums; padding-top: .4rem }
.heat > div { position: relative } .heat svg { position: absolute; inset: 0; width: 100%; height: 100%;
  background: var(--paper); outline: 1px solid var(--line) }
.heat path, .shades path { stroke: none; fill: currentColor }
.heat path.mark, .shades path.mark { fill: none; stroke: var(--ink) }
.heat span { position: absolute; white-space: nowrap } .heat .row { right: .5rem; transform: translateY(-50%) }
.heat .late { left: .4rem; transform: translateY(-50%); color: var(--ink); font-weight: 600 }
.heat .times { grid-column: 2 } .heat .times span { top: .3rem }
.shade { outline: 1px solid var(--line) }
""" + "".join(f".h{level} {{ fill-opacity: {level / _LEVELS:g} }}\n" for level in range(1, _LEVELS + 1))


class _Map(NamedTuple):
    """A map, before it is drawn.

    Attributes:
        key, title, description: identifier, heading, and sentences.
        colour: class of its colour.
        seconds_of: seconds of a span that it shows.
    """

    key: str
    title: str
    description: str
    colour: str
    seconds_of: Callable[[RankSpan], float]


_DATA = _Map(
    "ranks-data",
    "Ranks that wait for data",
    "The share of each rank's time in which its loop waited for minibatches. Blank: no wait, or no minibatch.",
    "s1",
    lambda span: span.waiting_s,
)
_EXCHANGES = _Map(
    "ranks-exchanges",
    "Ranks that wait for ranks",
    "The share of each rank's time in which it waited for other ranks in exchanges. The rank that all wait for is the "
    "one that waits least.",
    "s2",
    lambda span: min(span.exchange_seconds or 0.0, span.loop_s),
)


class _Row(NamedTuple):
    """A row of a map: a rank, or several if there are many."""

    name: str
    spans: list[RankSpan]
    late: bool


def section(ranks: RanksSpans) -> str:
    """Return the HTML about the ranks of a run, an empty text for one rank.

    Args:
        ranks: spans of each rank, by rank.
    """
    if len(ranks) < 2:
        return ""
    totals = [merge(ranks[rank]) for rank in sorted(ranks)]
    late = {finding.rank: finding for finding in late_findings(totals)}
    rows = _rows_of(ranks, set(late))
    maps = [_DATA, *([_EXCHANGES] if any(span.exchange_seconds is not None for span in totals) else [])]
    starts_s = sorted({span.began_s for spans in ranks.values() for span, after in _starts(spans) if after})
    sentences = [
        f"Rank {rank} on {finding.host} is late ({finding.stage.replace('_', '-')}). {finding.evidence}"
        for rank, finding in sorted(late.items(), key=lambda of_rank: -of_rank[1].gain)
    ]
    if len(sentences) > _SENTENCES:
        sentences[_SENTENCES:] = [f"{len(sentences) - _SENTENCES} more ranks are late."]
    return (
        (page.findings(sentences) if sentences else "")
        + f'<div class="charts">\n{"".join(_figure(kind, rows, starts_s) for kind in maps)}</div>'
        + _table(totals, set(late))
    )


def _rows_of(ranks: RanksSpans, late: set[int]) -> list[_Row]:
    numbers = sorted(ranks)
    size = math.ceil(len(numbers) / _ROWS)
    rows = []
    for at in range(0, len(numbers), size):
        group = numbers[at : at + size]
        name = str(group[0]) if len(group) == 1 else f"{group[0]} to {group[-1]}"
        spans = [span for rank in group for span in ranks[rank]]
        rows.append(_Row(name, spans, not late.isdisjoint(group)))
    return rows


def _starts(spans: Sequence[RankSpan]) -> list[tuple[RankSpan, bool]]:
    """Return the first span of each process, and whether a process came before it."""
    firsts = [next(of_process) for _, of_process in groupby(spans, key=lambda span: span.process)]
    return [(span, number > 0) for number, span in enumerate(firsts)]


def _shares(kind: _Map, row: _Row, columns: int, end_s: float) -> list[float | None]:
    """Return the shares of a row in equal stretches of time, 0 to 1. None where no minibatch ended."""
    sums, loops_s = [0.0] * columns, [0.0] * columns
    for span in row.spans:
        first, last = (columns * at / end_s for at in (span.began_s, span.ended_s))
        for column in range(int(first), min(columns, math.ceil(last))):
            part = (min(last, column + 1) - max(first, column)) / (last - first)
            sums[column] += part * kind.seconds_of(span)
            loops_s[column] += part * span.loop_s
    return [total / loop_s if loop_s else None for total, loop_s in zip(sums, loops_s, strict=True)]


def _figure(kind: _Map, rows: list[_Row], starts_s: Sequence[float]) -> str:
    end_s = max(span.ended_s for row in rows for span in row.spans)
    columns = min(_COLUMNS, max(len(row.spans) for row in rows))
    cells = [_shares(kind, row, columns, end_s) for row in rows]
    height = max(_HEIGHTS_PX[0], min(_HEIGHTS_PX[1], _MOST_PX / len(rows)))
    every = math.ceil(_LABEL_PX / height)
    places = [(100 * (number + 0.5) / len(rows), row) for number, row in enumerate(rows)]
    labels = "".join(
        f'<span class="row" style="top:{at:.2f}%">{escape(row.name)}</span>' for at, row in places[::every]
    )
    late = "".join(f'<span class="late" style="top:{at:.2f}%">late</span>' for at, row in places if row.late)
    marks = "".join(f'<path class="mark" d="M{columns * at / end_s:.2f} 0V{len(rows)}"/>' for at in starts_s)
    several = f" Each row is the mean of several of {sum(map(_count, rows))} ranks." if rows[0].name.count(" ") else ""
    return f"""<section class="card" id="{kind.key}" aria-labelledby="{kind.key}-title">
<h3 id="{kind.key}-title">{kind.title}</h3>
<p class="says">{kind.description}{several}</p>
{_legend(kind, bool(starts_s))}
<figure><p class="unit" aria-hidden="true">rank</p>
<div class="heat" style="grid-template-rows:{height * len(rows):.0f}px 1.5rem"><div aria-hidden="true">{labels}</div>
<div><svg class="{kind.colour}" viewBox="0 0 {columns} {len(rows)}" preserveAspectRatio="none" role="img"
aria-label="{escape(_description(kind, rows, cells, end_s))}">
{_paths(cells)}{marks}
</svg></div><div aria-hidden="true">{late}</div>
<div class="times" aria-hidden="true">{_times(end_s)}</div></div>
<figcaption><span></span><span>time of the run</span></figcaption></figure>
<details><summary>Numbers of “{kind.title}”</summary>
{_numbers(kind, rows, min(columns, _TABLE_COLUMNS), end_s)}</details>
</section>
"""


def _count(row: _Row) -> int:
    return len({span.rank for span in row.spans})


def _paths(cells: Sequence[Sequence[float | None]]) -> str:
    """Return a path for each shade, with the stretches of a row that have it."""
    parts: dict[int, list[str]] = {}
    for y, row in enumerate(cells):
        x = 0
        for level, stretch in groupby(row, key=_level):
            width = len(list(stretch))
            if level:
                parts.setdefault(level, []).append(f"M{x} {y}.04h{width}v.92h-{width}z")
            x += width
    return "\n".join(f'<path class="h{level}" d="{"".join(parts[level])}"/>' for level in sorted(parts))


def _level(share: float | None) -> int:
    """Return the shade of a share, from 1. 0 is nothing at all."""
    return 0 if share is None else min(_LEVELS, math.ceil(_LEVELS * share - 0.05))


def _legend(kind: _Map, marked: bool) -> str:
    size = 16
    shades = "".join(
        f'<path class="h{level}" d="M{size * (level - 1)} 0h{size}v12h-{size}z"/>' for level in range(1, _LEVELS + 1)
    )
    resumed = (
        '<li><svg width="24" height="12" aria-hidden="true"><path class="mark" d="M12 0V12"/></svg> resumed after an '
        "interruption</li>"
    )
    return (
        f'<ul class="legend shades"><li>0 % <svg class="shade {kind.colour}" width="{size * _LEVELS}" height="12" '
        f'aria-hidden="true">{shades}</svg> 100 %</li>{resumed if marked else ""}</ul>'
    )


def _times(end_s: float) -> str:
    shifts = ((0.0, "0"), (0.5, "-50%"), (1.0, "-100%"))
    return "".join(
        f'<span style="left:{100 * at:g}%;transform:translateX({shift})">{duration_text(at * end_s)}</span>'
        for at, shift in shifts
    )


def _description(kind: _Map, rows: list[_Row], cells: Sequence[Sequence[float | None]], end_s: float) -> str:
    """Return a description of the picture."""
    means = [(_mean(kind, row), row.name) for row in rows]
    (low, lowest), (high, highest) = min(means), max(means)
    peaks = [(share, number, x) for number, row in enumerate(cells) for x, share in enumerate(row) if share is not None]
    text = f"{kind.title}, by rank and time. Least {low:.0%} of the time of rank {lowest}, most {high:.0%} of rank "
    text += f"{highest}"
    if peaks:
        share, number, x = max(peaks)
        at_s = (x + 0.5) / len(cells[0]) * end_s
        text += f". Highest: {share:.0%} on rank {rows[number].name} after {duration_text(at_s)}"
    late = ", ".join(row.name for row in rows if row.late)
    return f"{text}. {f'Late: rank {late}' if late else 'No rank is late'}."


def _mean(kind: _Map, row: _Row) -> float:
    loop_s = sum(span.loop_s for span in row.spans)
    return sum(map(kind.seconds_of, row.spans)) / loop_s if loop_s else 0.0


def _numbers(kind: _Map, rows: list[_Row], columns: int, end_s: float) -> str:
    heads = ("rank", *(f"to {duration_text((column + 1) * end_s / columns)}" for column in range(columns)))
    lines = [
        (row.name, *("" if share is None else f"{share:.0%}" for share in _shares(kind, row, columns, end_s)))
        for row in rows
    ]
    return page.table(f"Numbers of {kind.title}", heads, lines)


def _table(totals: Sequence[RankSpan], late: set[int]) -> str:
    heads = ("rank", "host", "waiting for data", "most for", "own work of a step", "waiting for ranks", "")
    rows = [
        (
            str(span.rank),
            span.host,
            f"{span.waiting:.1%}",
            (span.stage or "").replace("_", "-"),
            seconds_text(span.working_s).replace(" ", "\u00a0"),
            "" if span.exchanging is None else f"{span.exchanging:.1%}",
            "late" if span.rank in late else "",
        )
        for span in totals
    ]
    return page.table("Ranks over the whole run", heads, rows)
