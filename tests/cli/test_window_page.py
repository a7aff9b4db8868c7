"""`feedline plan --html`: shuffle windows compared by their reads and their mixing."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

import feedline as fl
from feedline.cli import window_page
from tests.cli.shell import feedline
from tests.runs.logs import Page

COUNT, CLASSES = 4000, 8


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Write samples sorted by class, with equal dense, sparse and numbered labels."""
    path = tmp_path_factory.mktemp("sorted") / "sorted.ctf"
    y = np.repeat(np.arange(CLASSES), COUNT // CLASSES)
    eye = np.eye(CLASSES, dtype=int)
    path.write_text("".join(f"|x {i} |s {k}:1 |d {' '.join(map(str, eye[k]))} |n {k}\n" for i, k in enumerate(y)))
    return path


@pytest.fixture(scope="module")
def corpus(path):
    streams = {"s": fl.Stream(CLASSES, sparse=True), "d": fl.Stream(CLASSES), "n": fl.Stream(1), "x": fl.Stream(1)}
    return fl.CTFDeserializer(str(path), chunk_size=1024, **streams)


def test_larger_windows_mix_better_and_read_more(corpus):
    found = window_page.choices(corpus, 64, 0, "s")
    assert [choice.name for choice in found][:2] == ["none", "Window(chunks=4)"]
    assert found[-1].name == "all"
    for before, after in itertools.pairwise(found):
        assert before.window_bytes < after.window_bytes
        assert before.distance < after.distance + 0.05
        assert np.mean(before.odd) > np.mean(after.odd) - 0.01
    none, whole = found[0], found[-1]
    assert none.neighbours == 1.0
    assert whole.distance == pytest.approx(1, abs=0.05)
    assert whole.window_bytes == sum(info.bytes for info in corpus.chunks())
    assert none.places == sorted(none.places)
    assert np.mean(whole.places) == pytest.approx(0.5, abs=0.02)
    assert np.mean(none.odd) == pytest.approx(1 - 1 / CLASSES, abs=0.05)


def test_labels_are_the_same_however_they_are_stored(corpus):
    found = [window_page.choices(corpus, 64, 0, name) for name in ("s", "d", "n")]
    assert found[0] == found[1] == found[2]
    assert window_page.choices(corpus, 64, 0, None)[0].odd == []


def test_labels_that_are_none(corpus):
    with pytest.raises(window_page.UsageError, match="expected --label to be one of s, d, n, x, got 'y'"):
        window_page.choices(corpus, 64, 0, "y")
    numbers = fl.ArrayDeserializer(y=np.linspace(0, 1, 50, dtype=np.float32))
    with pytest.raises(window_page.UsageError, match="expected classes in stream y"):
        window_page.choices(numbers, 8, 0, "y")


def test_the_page(path, tmp_path):
    streams = ["--stream", f"s={CLASSES}:sparse", "--stream", "x=1", "--chunk-size", "1k", "--size", "64"]
    out = tmp_path / "page.html"
    assert feedline("plan", path, "--html", out, "--label", "s", *streams).stdout == f"{out}\n"
    page = Page(out.read_text("utf-8"))
    assert set(page.tables) == {"places", "labels"}
    assert "mixes about as well as a full shuffle" in page.text
    told = json.loads(feedline("plan", path, "--html", out, "--json", *streams).stdout)
    assert told["windows"][0]["name"] == "none"
    assert set(Page(out.read_text("utf-8")).tables) == {"places"}
    assert "--html with --label, got none" in feedline("plan", path, "--label", "s", *streams, code=2).stderr
    assert "a path of this machine" in feedline("plan", "s3://bucket/x", "--html", out, code=2).stderr


def test_advice_heeds_labels(corpus):
    by_distance = window_page.advice(window_page.choices(corpus, 64, 0, None))
    by_labels = window_page.advice(window_page.choices(corpus, 64, 0, "s"))
    assert by_distance.split(" is ")[0] != by_labels.split(" is ")[0]


def test_all_samples_of_a_sequence_count(tmp_path):
    """Sequences that begin alike, sorted by the rest. One without a sample has no class."""
    lines = []
    for i in range(COUNT):
        k = 1 + i * CLASSES // COUNT
        lines += [f"{i} |x {i} |s 0:1\n", f"{i} |s {k}:1\n", f"{i} |s {k}:1\n"] if i % 100 else [f"{i} |x {i}\n"]
    path = tmp_path / "sequences.ctf"
    path.write_text("".join(lines))
    streams = {"s": fl.Stream(CLASSES + 1, sparse=True), "x": fl.Stream(1)}
    corpus = fl.CTFDeserializer(str(path), chunk_size=1024, **streams)
    labels = window_page.labels_of(corpus, "s")
    shares = labels.shares()
    assert shares == pytest.approx([1 / 3, *[2 / 3 / CLASSES] * CLASSES])
    assert labels.shares(np.array([1, 0])) == pytest.approx([1 / 3, 2 / 3, *[0] * (CLASSES - 1)])
    assert labels.shares(np.array([0])) == pytest.approx([0] * (CLASSES + 1))
    assert len(labels.classes) == 3 * COUNT * 99 // 100
    found = window_page.choices(corpus, 192, 0, "s")
    assert np.mean(found[0].odd) == pytest.approx(2 / 3 * (1 - 1 / CLASSES), abs=0.05)
    assert np.mean(found[-1].odd) < 0.15
    page = window_page.html(corpus, found, 192)
    assert "All samples of a sequence count." in page
    assert window_page.count_text(1, "chunk") == "1 chunk"
