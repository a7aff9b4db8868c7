"""`inspect --pictures`: boxes lie where samples come from, labels are right, the page needs nothing but itself."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import re

import numpy as np
import pytest

import feedline as fl
from tests.cli.shell import feedline
from tests.runs import chromium
from tests.runs.logs import Page

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

from feedline_demo import pictures as made  # noqa: E402

from feedline import images  # noqa: E402
from feedline.cli.corpus import open_path  # noqa: E402
from feedline.cli.pictures import PageOptions, parse_steps, picture_stream, trace, write_page  # noqa: E402
from feedline.feed.transforms import DrawKeys  # noqa: E402
from feedline.images.decode import views_of  # noqa: E402

WIDTH, HEIGHT = 61, 42
STEPS = [
    ["RandomResizedCrop(24, scale=(0.2, 1.0))", "Flip(0.5)"],
    ["Resize((50, 90))", "RandomCrop(24)", "Flip(0.5)"],
    ["Flip(1.0)", "CenterCrop((30, 30))", "Resize((24, 24))", "Flip(0.5)"],
    ["Flip(0.5)", "MultiView([[RandomResizedCrop(24)], [RandomCrop(30), Resize((24, 24))]])", "Flip(0.5)"],
]


def coordinates():
    """A picture with each pixel's position as its colour: 4 x in red, 6 y in green."""
    x, y = np.arange(WIDTH, dtype=np.uint8), np.arange(HEIGHT, dtype=np.uint8)
    return np.stack(np.broadcast_arrays(4 * x[None, :], 6 * y[:, None], np.uint8(0)), axis=-1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Twelve pictures of several classes, one of them cut off."""
    path = tmp_path_factory.mktemp("pictures")
    some = list(made.pictures(12, sides=(40, 90)))
    some[5] = some[5]._replace(data=some[5].data[:40])
    made.write_folder(path, some)
    return path


def page(path, asked, out):
    """Write the page. Return the command's output, and the page's text."""
    opened = open_path(path, None, "32M")
    with contextlib.closing(opened.corpus):
        return write_page(opened, asked, out), out.read_text("utf-8")


@pytest.mark.parametrize("steps", STEPS, ids=lambda steps: steps[0])
def test_boxes_are_where_samples_come_from(steps):
    """The corners of each sample show the coordinates of the corners of its box."""
    made_steps = parse_steps(steps)
    decode = images.Decode("image", *made_steps)
    count = 40
    ordinals, sweeps = np.arange(count), np.arange(count) % 3
    corpus = fl.ArrayDeserializer(image=[made.encode(coordinates(), "PNG")] * count)
    values, keys = {"image": corpus.select(ordinals)["image"]}, DrawKeys(5, sweeps, ordinals, stage=0)
    rows = decode.run_all(corpus.schema, values, keys).values["image"].rows
    views, stacked, _ = views_of(decode.steps)
    boxes = [trace(view, np.tile([WIDTH, HEIGHT], (count, 1)), keys) for view in views]
    samples = rows if stacked else rows[:, None]
    for pixels, box in zip(samples.swapaxes(0, 1).reshape(-1, 24, 24, 3).astype(float), sum(boxes, []), strict=True):
        # Half a sample's pixel from the edge, the pixel's centre.
        side = pixels.shape[0]
        for row, column in ((0, 0), (0, side - 1), (side - 1, 0), (side - 1, side - 1)):
            right, low = (column + 0.5) / side, (row + 0.5) / side
            x = box.left + (box.right - box.left) * (1 - right if box.mirrored else right) - 0.5
            y = box.top + (box.bottom - box.top) * (1 - low if box.upside_down else low) - 0.5
            # A filter mixes in neighbours, and stops at edges.
            assert abs(pixels[row, column, 0] / 4 - np.clip(x, 0, WIDTH - 1)) < 0.75
            assert abs(pixels[row, column, 1] / 6 - np.clip(y, 0, HEIGHT - 1)) < 0.75
    assert all(len({box.mirrored for box in some}) == 2 for some in boxes)
    assert len(set(map(str, boxes))) == len(views)


def test_a_page_shows_pictures_labels_and_what_is_unreadable(folder, tmp_path):
    found, text = page(folder, PageOptions(12, 2, (), 0), tmp_path / "a.html")
    assert (found["pictures"], found["unreadable"], found["stream"]) == (12, 1, "image")
    shown = Page(text)
    assert shown.scripts == []
    assert shown.handlers == []
    assert all(link.startswith("data:image/") for link in shown.links)
    titles = re.findall(r"<h2>([a-z-]+)</h2>", text)
    assert titles == [made.CLASSES[picture.label] for picture in sorted(made.pictures(12), key=lambda p: p.label)]
    samples = [base64.b64decode(link.partition(",")[2]) for link in shown.links if link.startswith("data:image/png")]
    assert len(samples) == 2 * 11
    assert {Image.open(io.BytesIO(sample)).size for sample in samples} == {(224, 224)}
    assert text.count('class="broken"') == 1
    assert "RandomResizedCrop(224)" in text


def test_a_page_begins_with_what_was_sampled(folder, tmp_path):
    """Before the pictures: which sequences of how many, by which order and seed, and the transforms."""
    _, text = page(folder, PageOptions(5, 2, ["RandomCrop(24)", "Flip(0.5)"], 7), tmp_path / "a.html")
    before = " ".join(re.sub("<[^>]+>", " ", text[text.index("<h1") : text.index('<ol class="sheet">')]).split())
    assert "5 of 12 sequences, evenly spaced in the corpus, as a source with seed 7 delivers them in sweeps" in before
    assert "sweeps 0 and 1, after RandomCrop(24) and Flip(0.5). corpus" in before
    assert f"corpus {folder}, image folder sequences 0, 3, 6, 8, 11 seed, sweeps 7, sweeps 0 and 1 transforms" in before
    assert "transforms RandomCrop(24), then Flip(0.5)" in before
    _, text = page(folder, PageOptions(99, 1, (), 0), tmp_path / "a.html")
    assert "All 12 sequences as a source with seed 0 delivers them in sweep 0, after " in text


def test_samples_match_a_source(folder, tmp_path):
    """The page shows, bit for bit, what a source with this seed delivers in sweeps 0 and 1."""
    steps = ["RandomResizedCrop(32)", "Flip(0.5)"]
    _, text = page(folder, PageOptions(5, 2, steps, 7), tmp_path / "a.html")
    shown = [
        np.asarray(Image.open(io.BytesIO(base64.b64decode(link.partition(",")[2])))).tobytes()
        for link in Page(text).links
        if link.startswith("data:image/png")
    ]
    delivered = {}
    transforms = [images.Decode("image", *parse_steps(steps))]
    with fl.MinibatchSource(
        fl.open_corpus(folder), seed=7, max_sweeps=2, transforms=transforms, on_error="skip"
    ) as source:
        for minibatch in source.minibatches(3):
            for ordinal, pixels in zip(minibatch.ids.tolist(), minibatch["image"].rows, strict=True):
                delivered.setdefault(ordinal, []).append(np.asarray(pixels).tobytes())
    evenly = [0, 3, 6, 8, 11]
    assert shown == [pixels for ordinal in evenly for pixels in delivered.get(ordinal, [])]


def test_each_view_is_shown(folder, tmp_path):
    found, text = page(
        folder, PageOptions(4, 2, ["CenterCrop(32)", "MultiView([[], Flip(1.0)])"], 0), tmp_path / "a.html"
    )
    shown = Page(text)
    samples = [
        np.asarray(Image.open(io.BytesIO(base64.b64decode(link.partition(",")[2]))))
        for link in shown.links
        if link.startswith("data:image/png")
    ]
    assert len(samples) == 4 * (4 - found["unreadable"])
    assert all((a == b[:, ::-1]).all() for a, b in zip(samples[::2], samples[1::2], strict=True))
    for view in ("0a", "0b", "1a", "1b"):
        assert text.count(f'alt="sweep {view}: 32 × 32') == 4 - found["unreadable"]
    assert "2 × 32 × 32 × 3" in text


def test_names_are_text(tmp_path):
    evil = tmp_path / "data" / "<b>bold<"
    evil.mkdir(parents=True)
    (evil / "a.png").write_bytes(made.encode(coordinates(), "PNG"))
    _, text = page(tmp_path / "data", PageOptions(3, 1, (), 0), tmp_path / "a.html")
    assert "<b>bold<" not in text
    assert "&lt;b&gt;bold&lt;" in text


def test_on_the_command_line(folder, tmp_path):
    done = feedline("inspect", folder, "--pictures", 4, "--step", "CenterCrop(32)", "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert found["page"] == "pictures.html"
    assert (tmp_path / "pictures.html").stat().st_size == found["bytes"]
    assert (found["pictures"], found["steps"]) == (4, ["CenterCrop(32)"])
    assert "JPEG" in found["decoders"]
    told = json.loads(feedline("inspect", folder, "--json").stdout)["pictures"]
    assert (told["stream"], told["decoders"]) == ("image", found["decoders"])
    assert sum(told["formats"].values()) == told["looked_at"] == len(told["sizes"])
    assert sum(told["classes"].values()) >= told["looked_at"]
    assert re.search("decoded +JPEG by", feedline("inspect", folder).stdout)


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ("Crop(3)", "expected --step NAME(ARGUMENTS) of CenterCrop, "),
        ("__import__('os')", "expected --step NAME(ARGUMENTS)"),
        ("CenterCrop(open('x'))", "expected --step NAME(ARGUMENTS)"),
        ("PictureStep()", "expected --step NAME(ARGUMENTS)"),
        ("MultiView([Nothing(1)])", "expected --step NAME(ARGUMENTS)"),
        ("MultiView([[Flip(2)]])", "as p of Flip, got 2, in --step 'MultiView([[Flip(2)]])'"),
        ("CenterCrop(", "expected --step NAME(ARGUMENTS)"),
        ("CenterCrop(side=3, sides=4)", "in --step 'CenterCrop(side=3, sides=4)'"),
    ],
)
def test_wrong_steps_are_named(step, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        parse_steps([step])


def test_a_corpus_without_pictures_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 2)))
    done = feedline("inspect", tmp_path / "a.npz", "--pictures", "3", "--step", "Flip(1.0)", code=2)
    assert "expected a stream of encoded pictures in" in done.stderr
    assert "x: " in done.stderr


def test_bytes_that_are_no_pictures_are_passed_over():
    some = [picture.data for picture in made.pictures(4, sides=(16, 20))]
    corpus = fl.ArrayDeserializer(audio=[b"RIFF...."] * 4, shown=some)
    assert picture_stream(corpus, 4) == "shown"
    assert picture_stream(fl.ArrayDeserializer(audio=[b"RIFF...."] * 4), 4) is None
    several = fl.ArrayDeserializer(clip=[some[:2], some[2:]])  # two pictures a sequence
    assert picture_stream(several, 2) is None


@pytest.mark.skipif(chromium.PROGRAM is None, reason="chromium is not installed")
def test_a_browser_draws_it_and_asks_for_nothing(folder, tmp_path):
    page(folder, PageOptions(6, 2, (), 0), tmp_path / "a.html")
    browser = chromium.Browser(tmp_path / "profile")
    try:
        browser.open(tmp_path / "a.html", width=360)
        widths = browser.value("[...document.images].map((image) => image.naturalWidth)")
        assert set(widths) == {224}
        assert browser.value("document.querySelectorAll('.original image').length") == len(widths) / 2
        assert browser.value("document.documentElement.scrollWidth <= window.innerWidth")
        assert [url for url in browser.requests if not url.startswith("data:")] == [(tmp_path / "a.html").as_uri()]
        assert browser.console == []
    finally:
        browser.close()
