"""progress=True: a bar on a terminal, lines elsewhere. Functions are called as before."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest

import feedline as fl
from feedline.feed import progress_bar as module
from feedline.feed.progress_bar import ShownProgress, showing


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on by a second whenever it is read."""
    now = iter(range(10**6))
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(now)))


def source(**settings):
    x = np.arange(40, dtype=np.float32).reshape(20, 2)
    return fl.MinibatchSource(fl.ArrayDeserializer(x=x), max_sweeps=2, **settings)


def test_lines_come_now_and_then(clock):
    out = io.StringIO()
    shown = ShownProgress("converting", "items", lambda: "9% waiting", out)
    for done in range(81):
        shown(done, 100)
    shown.close()
    lines = out.getvalue().splitlines()
    assert 3 <= len(lines) <= 5
    assert lines[0].startswith("converting: ")
    assert lines[-1].startswith("converting: 80 of 100 items, ")
    assert lines[-1].endswith(" left, 9% waiting")


def test_short_work_prints_nothing():
    out = io.StringIO()
    shown = ShownProgress("converting", "B", None, out)
    shown(0, 10)
    shown(10, 10)
    shown.close()
    assert out.getvalue() == ""


def test_a_bar_on_a_terminal(clock):
    pytest.importorskip("rich", reason="rich is not installed")
    out = Terminal()
    shown = ShownProgress("indexing", "B", None, out)
    for done in range(0, 5_000_000, 500_000):
        shown(done, 0 if done < 1_000_000 else 5_000_000)
    shown.close()
    text = out.getvalue()
    assert "indexing" in text
    assert "4.5 MB of 5 MB" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is shown again


def test_what_progress_may_be():
    seen = []
    for progress, expected in ((None, None), (False, None), (seen.append, seen.append)):
        with showing(progress, "x") as report:
            assert report == expected
    with pytest.raises(TypeError, match="progress=True, False, None or a function"), showing("yes", "x"):
        pass


def test_minibatches_are_counted():
    seen = []
    batches = list(source().minibatches(5, progress=lambda done, total: seen.append((done, total))))
    assert len(batches) == 8
    assert seen == [(i, 8) for i in range(9)]
    seen.clear()
    until = list(source().minibatches(5, fl.sweeps(1), progress=lambda done, total: seen.append((done, total))))
    assert seen == [(i, 4) for i in range(5)]
    assert len(until) == 4


def test_it_is_shown_and_taken_away(monkeypatch, clock):
    """Also when the loop is left early."""
    pytest.importorskip("rich", reason="rich is not installed")
    monkeypatch.setattr(sys, "stderr", out := Terminal())
    for i, _ in enumerate(source().minibatches(5, progress=True)):
        if i == 5:
            break
    text = out.getvalue()
    assert "5 of 8 minibatches" in text
    assert "% waiting" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_an_interrupt_while_it_is_shown_loses_nothing():
    """It is shown between minibatches, when none is in flight."""
    feed, seen = source(), []

    def interrupt(done, total):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        for minibatch in feed.minibatches(5, progress=interrupt):
            seen += minibatch.ids.tolist()
    for minibatch in feed.minibatches(5):
        seen += minibatch.ids.tolist()
    assert seen == [i for minibatch in source().minibatches(5) for i in minibatch.ids.tolist()]


def test_conversions_and_validation_and_indexing(tmp_path, monkeypatch, clock):
    monkeypatch.setattr(module, "_LINE_S", 0.0)
    monkeypatch.setattr(sys, "stderr", out := io.StringIO())
    text = tmp_path / "x.ctf"
    text.write_text("".join(f"{i} |x {i} 0\n" for i in range(100)))
    corpus = fl.CTFDeserializer(str(text), x=fl.Stream(2), progress=True)
    fl.convert(corpus, tmp_path / "store", progress=True)
    fl.validate(tmp_path / "store", progress=True)
    fl.convert([{"x": 1.0}] * 30, tmp_path / "other", progress=True)
    told = [line.split(":")[0] for line in out.getvalue().splitlines()]
    assert list(dict.fromkeys(told)) == ["indexing x.ctf", "converting", "validating"]
    assert "30 of 30 items" in out.getvalue()


def test_without_rich_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install .*\[cli\]'"):
        ShownProgress("x", "B", None, Terminal())
