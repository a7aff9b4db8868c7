"""Thinning: what stays, and that it is little."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.runs.chart_rows import ChartTable, TableRow, join_columns, thin
from tests.effort import examples

number = st.none() | st.integers(-50, 50) | st.floats(-1e6, 1e6)
tables = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.tuples(*[number] * width), min_size=1, max_size=300).map(
        lambda rows: ChartTable(
            "x", tuple("abcd"[:width]), tuple(TableRow(i * 3, row) for i, row in enumerate(rows)), len(rows)
        )
    )
)


def column(rows, k):
    """Numbers of a column, with their places."""
    return [(row.values[k], row.at) for row in rows if row.values[k] is not None]


@given(tables, st.integers(2, 60))
@settings(max_examples=examples(100), deadline=None)
def test_first_last_lowest_highest_stay(table, most):
    """In every column. Rows stay complete, in order, and there are few."""
    found = thin(table, most)
    assert list(found.rows) == [row for row in table.rows if row in set(found.rows)]
    assert found.total == len(table.rows)
    assert len(found.rows) <= max(most, 2 * (2 + 2 * 2 * len(table.columns)))
    for k in range(len(table.columns)):
        before, after = column(table.rows, k), column(found.rows, k)
        assert bool(before) == bool(after)
        if before:
            assert (after[0], after[-1]) == (before[0], before[-1])
            assert min(after)[0] == min(before)[0]
            assert max(after)[0] == max(before)[0]


def test_a_peak_stays_in_its_stretch():
    """A needle in ten thousand rows is shown, and each part of the axis is."""
    pairs = [(i, 5.0 if i == 6789 else i % 7 / 100) for i in range(10_000)]
    found = thin(join_columns("x", {"a": pairs}))
    assert (6789, 5.0) in {(row.at, row.values[0]) for row in found.rows}
    assert len(found.rows) <= 300
    gaps = [b.at - a.at for a, b in zip(found.rows, found.rows[1:], strict=False)]
    assert max(gaps) < 10_000 / 20


def test_columns_are_joined_by_place():
    """Positions of several columns make one row each. A column without a number is omitted."""
    table = join_columns("x", {"a": [(1, 0.5), (3, 0.25)], "none": [(1, None)], "b": [(2, 7), (3, 8)]})
    assert table.columns == ("a", "b")
    assert [(row.at, row.values) for row in table.rows] == [(1, (0.5, None)), (2, (None, 7)), (3, (0.25, 8))]
    assert table.total == 3
