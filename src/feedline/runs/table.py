"""The numbers behind a chart: rows along one axis, and how long tables are thinned.

Thinning keeps rows whole. Law (tests/runs/test_table.py): the first, last, lowest and highest number of every column
are kept, overall and in each stretch of the axis, in order; nothing is averaged, so every number shown is in the log.
Curves of several runs over each other are averaged instead: extremes of one among those of another would be teeth.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Number = int | float
MOST_ROWS = 300


@dataclass(frozen=True, slots=True)
class TableRow:
    """One place on the axis, and a number or None for each column."""

    at: Number
    values: tuple[Number | None, ...]


@dataclass(frozen=True, slots=True)
class ChartTable:
    """Rows along one axis.

    Attributes:
        axis: what `TableRow.at` counts.
        columns: names.
        rows: in order of `TableRow.at`.
        total: rows there were before thinning.
    """

    axis: str
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    total: int

    def numbers(self) -> list[Number]:
        """Return all numbers of all columns."""
        return [value for row in self.rows for value in row.values if value is not None]


def joined(axis: str, columns: Mapping[str, Iterable[tuple[Number, Number | None]]]) -> ChartTable:
    """Return a table of columns given as (place, number) pairs; columns without a number are omitted."""
    given = {name: pairs for name, column in columns.items() if (pairs := [p for p in column if p[1] is not None])}
    at: dict[Number, list[Number | None]] = {}
    for k, pairs in enumerate(given.values()):
        for place, number in pairs:
            at.setdefault(place, [None] * len(given))[k] = number
    rows = tuple(TableRow(place, tuple(at[place])) for place in sorted(at))
    return ChartTable(axis, tuple(given), rows, len(rows))


def thinned(table: ChartTable, most: int = MOST_ROWS) -> ChartTable:
    """Thin a table to about ``most`` rows; see the module. A table that is small enough is returned unchanged."""
    if len(table.rows) <= most:
        return table
    per_stretch = 2 + 2 * len(table.columns)
    stretches = max(1, (most - per_stretch) // per_stretch)
    keep = _telling(table.rows, 0, len(table.rows))
    for i in range(stretches):
        keep |= _telling(table.rows, i * len(table.rows) // stretches, (i + 1) * len(table.rows) // stretches)
    return ChartTable(table.axis, table.columns, tuple(table.rows[i] for i in sorted(keep)), table.total)


def averaged(table: ChartTable, most: int = MOST_ROWS) -> ChartTable:
    """Average a table in stretches, to ``most`` rows, between its first and last; one small enough is unchanged."""
    rows = table.rows
    if len(rows) <= most:
        return table
    inner, count = rows[1:-1], most - 2
    found = [rows[0]]
    for i in range(count):
        stretch = inner[i * len(inner) // count : (i + 1) * len(inner) // count]
        there = [[n for row in stretch if (n := row.values[k]) is not None] for k in range(len(table.columns))]
        means = tuple(math.fsum(numbers) / len(numbers) if numbers else None for numbers in there)
        found.append(TableRow(stretch[len(stretch) // 2].at, means))
    return ChartTable(table.axis, table.columns, (*found, rows[-1]), table.total)


def _telling(rows: Sequence[TableRow], start: int, stop: int) -> set[int]:
    """The rows of a stretch that have the first, last, lowest or highest number of a column."""
    found: set[int] = set()
    for k in range(len(rows[0].values)):
        there = [(number, i) for i in range(start, stop) if (number := rows[i].values[k]) is not None]
        if there:
            found |= {there[0][1], there[-1][1], min(there)[1], max(there)[1]}
    return found
