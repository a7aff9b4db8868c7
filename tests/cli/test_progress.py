"""Progress of commands: the library's, on stderr alone."""

from __future__ import annotations

import io
import sys

import pytest

from feedline.cli.console import progress
from feedline.feed import progress_bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("unit", ["B", "sequences"])
def test_a_log_gets_lines(monkeypatch, capsys, unit):
    monkeypatch.setattr(progress_bar, "_LINE_S", 0.0)
    with progress("converting", unit) as show:
        show(0, 4000)
        show(2000, 4000)
    out, err = capsys.readouterr()
    assert out == ""
    amount = "2 kB of 4 kB" if unit == "B" else "2,000 of 4,000 sequences"
    assert f"converting: {amount}" in err
    assert err.endswith("left\n")


def test_work_that_is_soon_done_prints_nothing(capsys):
    with progress("converting") as show:
        show(1, 2)
        show(2, 2)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar_that_is_taken_away(monkeypatch):
    monkeypatch.setattr(progress_bar, "_REDRAW_S", 0.0)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress("decoding", "sequences") as show:
        show(1, 4)
        show(2, 4)
    assert "decoding" in terminal.getvalue()
    assert "2 of 4 sequences" in terminal.getvalue()
