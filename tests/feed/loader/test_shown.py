"""`DataLoader(progress=...)`: its counts, its output, and that a bar is erased at the end."""

from __future__ import annotations

import pytest

import feedline as fl
from feedline.feed import progress_bar
from tests.feed.loader.test_torchdata_interface import Numbers


class Terminal:
    """Records the bars that are shown."""

    def __init__(self, monkeypatch):
        self.calls, self.closed, self.remarks = [], 0, []
        terminal = self

        class Bar:
            def __init__(self, what, unit, remark=None):
                assert (what, unit) == ("loading", "batches")
                self.remark = remark

            def __call__(self, done, total):
                terminal.calls.append((done, total))
                terminal.remarks.append(self.remark())

            def close(self):
                terminal.closed += 1

        monkeypatch.setattr(progress_bar, "ShownProgress", Bar)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_function_is_called_with_batches(num_workers):
    seen = []
    loader = fl.DataLoader(
        Numbers(10), batch_size=4, num_workers=num_workers, workers="thread", progress=lambda *at: seen.append(at)
    )
    assert len(list(loader)) == 3
    assert seen == [(1, 3), (2, 3), (3, 3)]
    list(loader)
    assert seen[3:] == seen[:3]  # again for every sweep


def test_a_bar_for_each_sweep(monkeypatch):
    terminal = Terminal(monkeypatch)
    loader = fl.DataLoader(Numbers(6), batch_size=2, progress=True)
    for _ in loader:
        pass
    assert terminal.calls == [(1, 3), (2, 3), (3, 3)]
    assert terminal.closed == 1
    assert all(remark.startswith("waiting ") and remark.endswith("%") for remark in terminal.remarks)
    for _ in loader:
        break
    assert terminal.closed == 2  # the iterator was dropped


def test_without_a_length_the_total_is_unknown():
    seen = []
    items = torch_iterable(5)
    assert len(list(fl.DataLoader(items, batch_size=2, progress=lambda *at: seen.append(at)))) == 3
    assert seen == [(1, 0), (2, 0), (3, 0)]


def torch_iterable(count):
    """An `IterableDataset` of this many numbers."""
    data = pytest.importorskip("torch.utils.data")

    class Stream(data.IterableDataset):
        def __iter__(self):
            return iter(range(count))

    return Stream()


@pytest.mark.parametrize("off", [None, False])
def test_off_shows_nothing(monkeypatch, off):
    terminal = Terminal(monkeypatch)
    list(fl.DataLoader(Numbers(4), progress=off))
    assert (terminal.calls, terminal.closed) == ([], 0)


def test_anything_else_is_refused_at_once():
    with pytest.raises(TypeError, match="expected progress=True, False, None or a function"):
        fl.DataLoader(Numbers(4), progress="yes")
