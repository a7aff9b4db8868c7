"""The table of figures: made from committed results, which the page quotes."""

from __future__ import annotations

import copy

import pytest

figures = pytest.importorskip("benchmarks.figures", reason="benchmarks are not part of the wheel")


def answer(question, ours, peer="", ratio=None, peer_value=None, unit="rows/s"):
    return {"question": question, "ours": ours, "unit": unit, "peer": peer, "ratio": ratio, "peer_value": peer_value}


REPORTS = [
    {"date": "2030-01-01", "answers": [answer("rows", 1.0, "torch", 9.0), answer("waits", 0.054, unit="us (wall)")]},
    {
        "date": "2030-01-02",
        "answers": [answer("rows", 1_340_000.0, "torch", 4.96, 270_000.0), answer("rows", 1_340_000.0, "bare", 0.9)],
    },
]


def cells(row, reports=REPORTS):
    return [cell.strip() for cell in figures.table(reports, [row])[2].strip("|").split("|")]


def test_a_row_quotes_the_newest_result_with_two_digits():
    row = figures.Row("rows", "rows", "{torch} torch, which reads {=torch}, {bare} bare")
    assert cells(row) == ["rows", "1.3 M rows/s", "5.0x torch, which reads 270,000 rows/s, 0.90x bare"]
    assert cells(figures.Row("waits", "waits", ""))[1] == "0.054 µs"
    assert figures.table(REPORTS, [row])[-1].startswith("Measured on 2030-01-02 (")


def test_several_questions_make_a_range():
    reports = [{"date": "2030-01-01", "answers": [answer("at 1", 4.0, "x", 0.7), answer("at 2", 12.0, "x", 1.4)]}]
    assert cells(figures.Row("at", "at *", "{x} x"), reports) == ["at", "4.0 to 12 rows/s", "0.70x to 1.4x x"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (figures.Row("", "gone", ""), "a committed result with the question 'gone', got none"),
        (figures.Row("", "rows", "{nobody}"), r"'rows' to be compared with 'nobody', got \['bare', 'torch'\]"),
    ],
)
def test_a_row_without_a_result_is_refused(row, message):
    with pytest.raises(ValueError, match=message):
        figures.table(REPORTS, [row])


def test_the_page_quotes_the_committed_results():
    reports = figures.committed()
    text = figures.PAGE.read_text(encoding="utf-8")
    assert figures.page(text, reports) == text
    slower = copy.deepcopy(reports)
    for report in slower:
        for each in report["answers"]:
            each["ours"] *= 3
    assert figures.page(text, slower) != text
