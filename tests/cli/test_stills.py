"""`inspect --pictures` of other data than pictures: marks, documents and sounds are where they are in the data."""

from __future__ import annotations

import base64
import io
import json
import re

import numpy as np
import pytest

import feedline as fl
from tests.cli.shell import feedline
from tests.runs.logs import Page
from tests.video.clips import make_video

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

COUNT = 12
PROGRAM = """
import numpy as np
import feedline as fl

def red(i):
    import io
    from PIL import Image
    file = io.BytesIO()
    Image.new("RGB", (8, 6), (20 * i, 0, 0)).save(file, "PNG")
    return file.getvalue()

rows = fl.ArrayDeserializer(
    {
        "episode": np.repeat([0, 1], 6),
        "camera": fl.Value.from_bytes([red(i) for i in range(12)]),
        "action": np.arange(36, dtype=np.float32).reshape(12, 3),
        "task": fl.Value.from_bytes(["<lift> & turn"] * 12),
    }
)
windows = fl.TimeWindows(rows, {"camera": (-1, 0), "action": range(4)}, within="episode")

def packed():
    documents = fl.ArrayDeserializer({"tokens": fl.Value.from_dense(np.arange(20), [0, 3, 8, 12, 20])})
    return fl.MinibatchSource(fl.Packed(documents, 16), max_sweeps=1)

def rates():
    tokens = fl.Value.from_dense(np.arange(20), [0, 3, 8, 12, 20])
    patches = fl.Value.from_dense(np.ones((20, 2)), [0, 8, 8, 16, 20])
    documents = fl.ArrayDeserializer({"tokens": tokens, "patches": patches})
    return fl.MinibatchSource(fl.Packed(documents, 16, cost={"tokens": 1, "patches": 0.25}), max_sweeps=1)

def doubled(sequence):
    return {"x": np.repeat(sequence["x"], 2).astype(np.float32)[None], "double": 2 * sequence["x"]}

def seeded():
    corpus = fl.ArrayDeserializer(x=np.arange(40.0))
    change = fl.Map(doubled, x=fl.Stream((2,)), double=fl.Stream((), dtype="float64"))
    return fl.MinibatchSource(corpus, seed=3, max_sweeps=1, transforms=[change])

def resumed():
    source = seeded()
    source.next_minibatch(7)
    return source

def tone():
    t = np.arange(16_000) / 16_000
    samples = np.sin(2 * np.pi * 2_000 * t).astype(np.float32)
    return fl.ArrayDeserializer({"sound": fl.Value.from_dense(samples, [0, 16_000])})

segments = fl.ArrayDeserializer({"segment": np.array([3, -1]), "x": np.arange(2.0), "labels": np.array([7, 8])})
number = 5
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "robot.py").write_text(PROGRAM)
    return tmp_path


def sheet(target, count=COUNT, *options):
    """Write the page of a target. Return the command's output, the page and its cards."""
    about = json.loads(
        feedline("inspect", target, "--pictures", count, "--out", "page.html", "--json", *options).stdout
    )
    with open("page.html", encoding="utf-8") as file:
        text = file.read()
    parsed = Page(text)
    assert not parsed.scripts
    assert all(link.startswith("data:image/") for link in parsed.links)
    return about, text, re.split(r'<li class="card">', text)[1:]


def pixels(link):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(link.partition("base64,")[2]))))


def test_windows_are_strips_and_curves_with_marks(program):
    about, _, cards = sheet("robot:windows")
    assert about == {"page": "page.html", "sequences": COUNT, "unreadable": 0}
    assert len(cards) == COUNT
    for i, card in enumerate(cards):
        frames = re.findall(r'<li class="(\w*)"><img src="([^"]+)"[^>]*><span>([^<]+)</span>', card)
        first = i % 6 == 0
        assert [style for style, _, _ in frames] == ["padded" if first else "", "now"]
        assert [caption for _, _, caption in frames] == ["-1, padded" if first else "-1", "0"]
        reds = [pixels(link)[0, 0, 0] for _, link, _ in frames]
        assert reds == [20 * i if first else 20 * (i - 1), 20 * i]
        missing = max(0, i % 6 + 4 - 6)
        widths = [float(width) for width in re.findall(r'class="padded" x="[\d.]+" width="([\d.]+)"', card)]
        assert sum(widths) == pytest.approx(600 * missing / 4)
        assert len(re.findall("<polyline", card)) == 3
        assert "&lt;lift&gt; &amp; turn" in card


def test_a_page_begins_with_what_was_sampled(program):
    def beginning(target, count):
        _, text, _ = sheet(target, count)
        return " ".join(re.sub("<[^>]+>", " ", text[text.index("<h1") : text.index("<main")]).split())

    of_corpus = beginning("robot:windows", 5)
    assert "5 of 12 sequences, evenly spaced in the corpus, without transforms." in of_corpus
    assert "corpus arrays, in windows sequences 0, 3, 6, 8, 11 transforms none" in of_corpus
    of_source = beginning("robot:seeded", 4)
    source = fl.MinibatchSource(fl.ArrayDeserializer(x=np.arange(40.0)), seed=3)
    ids = ", ".join(str(source.next_minibatch(1).ids[0]) for _ in range(4))
    assert "The first 4 of 40 sequences that a source with seed 3 delivers." in of_source
    assert f"sequences {ids} order feedline-1, seed 3, shuffled all of a sweep together transforms x from" in of_source
    assert "x from float64 to float32 (2,); double added, float64" in of_source
    later = beginning("robot:resumed", 2)
    assert "The next 2 of 40 sequences that a source with seed 3 delivers after sweep 0 (from 0), 7 of 40" in later


def test_packed_rows_are_bars_of_documents(program):
    _, _, cards = sheet("robot:packed", 2)
    bars = []
    for card in cards:
        spans = re.findall(r'<rect class="(\w+)" x="[\d.]+" width="([\d.]+)"[^>]*><title>([^<]+)', card)
        assert sum(float(width) for _, width, _ in spans) == pytest.approx(600, abs=0.1)
        bars.append([int(re.search(r"\d+$|(?<=: )\d+", title)[0]) for _, _, title in spans])
        assert len({style for style, _, _ in spans}) == len(spans)
    source = fl.MinibatchSource(
        fl.Packed(fl.ArrayDeserializer({"tokens": fl.Value.from_dense(np.arange(20), [0, 3, 8, 12, 20])}), 16),
        max_sweeps=1,
    )
    rows = [row for m in source.minibatches(1) for row in m["segment"].sequences()]
    runs = [np.diff(np.flatnonzero(np.diff(row.ravel(), prepend=-1, append=-1))).tolist() for row in rows]
    assert bars == runs


def test_packed_rows_of_several_rates_have_a_bar_for_each(program):
    _, _, cards = sheet("robot:rates", 9)
    assert all(re.findall("<h3>([^<]+)", card) == ["tokens", "patches", "document"] for card in cards)
    bars = [re.findall(r"<title>document (\d+): (\d+) (\w+)", card) for card in cards]
    assert sum(int(count) for bar in bars for _, count, name in bar if name == "tokens") == 20
    assert sum(int(count) for bar in bars for _, count, name in bar if name == "patches") == 20
    documents = [{name: [k for k, _, of in bar if of == name] for name in ("tokens", "patches")} for bar in bars]
    assert all(set(each["patches"]) <= set(each["tokens"]) for each in documents)


def test_streams_with_the_names_of_packed_rows_are_shown(program):
    _, text, cards = sheet("robot:segments")
    assert "<rect" not in text
    assert [re.findall("<p>([^<]*)</p>", card) for card in cards] == [["3", "0", "7"], ["-1", "1", "8"]]


def test_a_sound_is_a_spectrogram(program):
    _, _, (card,) = sheet("robot:tone")
    (link,) = re.findall(r'<div class="heat"><img src="([^"]+)"', card)
    levels = pixels(link).astype(int).sum(-1).mean(1)
    frequency = 8_000 * (1 - (levels.argmax() + 0.5) / len(levels))
    assert frequency == pytest.approx(2_000, abs=8_000 / len(levels))


@pytest.mark.frameworks("soundfile", "soxr")
def test_segments_of_recordings_are_marked(program):
    import soundfile

    t = np.arange(32_000) / 16_000
    soundfile.write("tone.wav", np.sin(2 * np.pi * 2_000 * t), 16_000)
    lines = [{"audio": f"tone.wav#t={begin},{begin + 0.5}"} for begin in (0.0, 1.0)] + [{"audio": "lost.wav"}]
    (program / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    about, _, cards = sheet("a.jsonl", 3)
    assert about["unreadable"] == 1
    marks = [re.search(r"left:([\d.]+)%;width:([\d.]+)%", card) for card in cards]
    assert [tuple(map(float, mark.groups())) for mark in marks[:2]] == [(0, 25), (50, 25)]
    assert "lost.wav" in cards[2]


@pytest.mark.frameworks("av", "torchcodec")
def test_frames_of_videos_are_strips(program):
    make_video(program / "clip", frames=30)
    lines = [{"number": i, "frame": f"clip.mp4#t={i / 30!r}"} for i in range(30)]
    (program / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (program / "moving.py").write_text(
        "import feedline as fl\n"
        "streams = {'frame': fl.Stream(dtype='str'), 'number': fl.Stream(dtype='int64')}\n"
        "rows = fl.JSONLinesDeserializer('a.jsonl', streams)\n"
        "windows = fl.TimeWindows(rows, {'frame': (-2, 0)}, within=[30])\n"
    )
    _, _, cards = sheet("moving:windows", 30)
    strips = [re.findall(r'<li class="(\w*)"><img src="([^"]+)"', card) for card in cards]
    assert [style for style, _ in strips[0]] == ["padded", "now"]
    blues = [[pixels(link)[..., 2].mean() for _, link in strip] for strip in strips]
    assert blues[10][0] == pytest.approx(blues[8][1])
    assert [before < now for before, now in blues] == [False] + [True] * 29


def test_unreadable_sequences_say_why(program):
    (program / "a.jsonl").write_text('{"x": 1}\n{"x": "<b>"}\n{"x": 3}\n')
    about, text, cards = sheet("a.jsonl", 3, "--stream", "x=scalar")
    assert about["unreadable"] == 1
    assert 'class="error"' in cards[1]
    assert "&lt;b&gt;" in cards[1]
    assert text.count('class="error"') == 1


@pytest.mark.parametrize(
    ("target", "message"),
    [("robot:nothing", "a factory at robot:nothing"), ("robot:number", "a corpus or a MinibatchSource")],
)
def test_other_targets_are_errors(program, target, message):
    assert message in feedline("inspect", target, "--pictures", 3, code=1).stderr
