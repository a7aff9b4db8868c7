"""The numbers of a chart: rows along one axis, and the thinning of long tables.

Thinning keeps whole rows. Law (tests/runs/test_chart_rows.py): the first, last, lowest and highest number of every
column are kept, overall and in each stretch of the axis, in order. Nothing is averaged, so every number shown is in the
log. Curves of several runs in one chart are averaged instead, as their mixed extremes would look like teeth.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Number = int | float
MAX_ROWS = 300


@dataclass(frozen=True, slots=True)
class TableRow:
    """One place on the axis, and a number or None for each column."""

    at: Number
    values: tuple[Number | None, ...]


@dataclass(frozen=True, slots=True)
class ChartTable:
    """Rows along one axis.

    Attributes:
        axis: unit of `TableRow.at`.
        columns: names of the columns.
        rows: rows, in order of `TableRow.at`.
        total: number of rows before thinning.
    """

    axis: str
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    total: int

    def numbers(self) -> list[Number]:
        """Return all numbers of all columns."""
        return [value for row in self.rows for value in row.values if value is not None]


def join_columns(axis: str, columns: Mapping[str, Iterable[tuple[Number, Number | None]]]) -> ChartTable:
    """Return a table of columns from (place, number) pairs. Columns without a number are omitted."""
    defined = {name: pairs for name, column in columns.items() if (pairs := [p for p in column if p[1] is not None])}
    at: dict[Number, list[Number | None]] = {}
    for k, pairs in enumerate(defined.values()):
        for place, number in pairs:
            at.setdefault(place, [None] * len(defined))[k] = number
    rows = tuple(TableRow(place, tuple(at[place])) for place in sorted(at))
    return ChartTable(axis, tuple(defined), rows, len(rows))


def thin(table: ChartTable, limit: int = MAX_ROWS) -> ChartTable:
    """Thin a table to about ``limit`` rows. See the module. A table that is small enough is returned unchanged."""
    if len(table.rows) <= limit:
        return table
    per_stretch = 2 + 2 * len(table.columns)
    stretches = max(1, (limit - per_stretch) // per_stretch)
    keep = _extremes(table.rows, 0, len(table.rows))
    for i in range(stretches):
        keep |= _extremes(table.rows, i * len(table.rows) // stretches, (i + 1) * len(table.rows) // stretches)
    return ChartTable(table.axis, table.columns, tuple(table.rows[i] for i in sorted(keep)), table.total)


def average_rows(table: ChartTable, limit: int = MAX_ROWS) -> ChartTable:
    """Average stretches of a table, to ``limit`` rows, but not its first and last row. A small table is unchanged."""
    rows = table.rows
    if len(rows) <= limit:
        return table
    inner, count = rows[1:-1], limit - 2
    averages = [rows[0]]
    for i in range(count):
        stretch = inner[i * len(inner) // count : (i + 1) * len(inner) // count]
        values = [[n for row in stretch if (n := row.values[k]) is not None] for k in range(len(table.columns))]
        means = tuple(math.fsum(numbers) / len(numbers) if numbers else None for numbers in values)
        averages.append(TableRow(stretch[len(stretch) // 2].at, means))
    return ChartTable(table.axis, table.columns, (*averages, rows[-1]), table.total)


def _extremes(rows: Sequence[TableRow], start: int, stop: int) -> set[int]:
    """Return the rows of a stretch that have the first, last, lowest or highest number of a column."""
    indices: set[int] = set()
    for k in range(len(rows[0].values)):
        pairs = [(number, i) for i in range(start, stop) if (number := rows[i].values[k]) is not None]
        if pairs:
            indices |= {pairs[0][1], pairs[-1][1], min(pairs)[1], max(pairs)[1]}
    return indices
