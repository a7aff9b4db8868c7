"""Waiting for the disk is logged once, with advice, and only if it takes most of the time."""

from __future__ import annotations

import logging
import re

import numpy as np
import pytest

import feedline as fl
from feedline.feed.reading import io_stalls
from feedline.feed.reading.io_stalls import Waits
from tests.inside import reader_of


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch):
    monkeypatch.setattr(io_stalls, "_warned", set())


class Clock:
    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(io_stalls.time, "perf_counter", lambda: self.now)


def told(caplog):
    return [record.getMessage() for record in caplog.records if "waiting for the disk" in record.getMessage()]


@pytest.mark.parametrize(
    ("wait", "work", "steps", "expected"),
    [
        (0.9, 0.1, 9, 0),  # not long enough yet
        (0.9, 0.1, 12, 1),
        (0.9, 0.1, 500, 1),  # once
        (0.6, 0.4, 30, 1),
        (0.3, 0.7, 500, 0),  # a third is not enough
        (0.001, 2.0, 500, 0),
        (30.0, 0.0, 1, 1),
    ],
)
def test_a_note_comes_once_when_it_is_most_of_the_time(monkeypatch, caplog, wait, work, steps, expected):
    clock, waits = Clock(monkeypatch), Waits("data", "do something")
    for k in range(steps):
        clock.now += wait
        waits.add(wait, 50_000_000 * (k + 1))
        clock.now += work
    assert len(told(caplog)) == expected
    assert all(record.levelno == logging.WARNING and record.name == "feedline" for record in caplog.records)
    if expected and steps > 1:
        percent = int(re.match(r"data: (\d+) % of the last", told(caplog)[0])[1])
        assert percent == pytest.approx(100 * wait / (wait + work), abs=3)
        assert "do something" in told(caplog)[0]


def test_what_was_long_ago_does_not_count(monkeypatch, caplog):
    """A job whose data no longer fits logs it, even after a good start. A slow start is forgotten."""
    clock, waits = Clock(monkeypatch), Waits("data", "do something")
    waits.add(9.0, 1)
    clock.now += 1000
    for _ in range(50):
        clock.now += 1
        waits.add(0.2, 1)
    assert told(caplog) == []
    clock.now += 100
    for _ in range(12):
        clock.now += 1
        waits.add(0.9, 1)
    assert len(told(caplog)) == 1


ROWS = 2000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    x = np.repeat(np.arange(ROWS, dtype=np.float32), 300).reshape(ROWS, 300)
    np.save(path / "x.npy", x)
    fl.convert(fl.ArrayDeserializer(x=x), path / "store", chunk_bytes=1 << 18)
    fl.convert(fl.ArrayDeserializer(x=x), path / "lz4", chunk_bytes=1 << 18, compression="lz4")
    return path


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize(
    ("what", "options", "advice"),
    [
        ("store", {"shuffle": "whole"}, "fl.Window"),
        ("npy", {"shuffle": "whole"}, "shuffle=seed"),
        ("store", {"shuffle": fl.Window(bytes=1 << 19)}, "compression="),
        ("store", {"shuffle": False}, "compression="),
        ("store", {"shuffle": fl.Window(bytes=1 << 19), "read_ahead": 0}, "read_ahead"),
        ("lz4", {"shuffle": fl.Window(bytes=1 << 19)}, "memory"),
        ("lz4", {"shuffle": False, "read_ahead": 1}, "read_ahead"),
    ],
)
def test_a_source_that_waits_logs_advice(folder, monkeypatch, caplog, what, options, advice, forced):
    """A source that finds everything in memory logs nothing."""
    monkeypatch.setattr(io_stalls, "MIN_S", 0.0)
    monkeypatch.setattr(io_stalls, "SHARE", 0.0)
    monkeypatch.setattr("feedline.feed.reading.decoding_reader._MIN_WAIT_S", 0.0)
    for _ in range(2):
        corpus = (
            fl.ArrayDeserializer(x=np.load(folder / "x.npy", mmap_mode="r"))
            if what == "npy"
            else fl.StoreDeserializer(folder / what)
        )
        for path in corpus.paths():
            with open(path, "rb") as file:
                file.read()
        with fl.MinibatchSource(corpus, max_sweeps=1, **options) as feed:
            reader = reader_of(feed)
            getattr(reader, "ranges", reader).forced = forced
            assert sum(m.num_sequences for m in feed.minibatches(64)) == ROWS
    messages = told(caplog)
    assert len(messages) == forced
    if forced:
        assert advice in messages[0]
        assert str(folder) in messages[0]


def test_a_loader_that_waits_warns_once(folder, monkeypatch, caplog):
    """Over all its sweeps."""
    from feedline.feed.reading.fetching_reader import FetchingReader

    monkeypatch.setattr(io_stalls, "MIN_S", 0.0)
    monkeypatch.setattr(io_stalls, "SHARE", 0.0)
    monkeypatch.setattr(FetchingReader, "forced", property(lambda _: True, lambda *_: None), raising=False)
    loader = fl.DataLoader(np.load(folder / "x.npy", mmap_mode="r"), 64, shuffle=True)
    for _ in range(3):
        assert sum(map(len, loader)) == ROWS
    (message,) = told(caplog)
    assert "shuffle=seed" in message
