"""The gallery's images equal those of its code, are small, and fit on a screen. Its tables equal the code's."""

from __future__ import annotations

import html
import re
import shutil

import pytest

from tests.docs.gallery import EXHIBITS, GALLERY, IMAGES, LARGEST, PAGE, gallery, known, pictures, titles

# Maximum number of boxes, width and height in points. Circles with numbers, where a picture continues, are no boxes.
SIZES = {
    "resnet18": (43, 1200, 1600),
    "resnet50": (57, 1200, 1600),
    "vit": (23, 900, 1600),
    "unet": (51, 600, 2900),
    "nn_transformer": (31, 900, 1600),
    "two_lstms": (4, 500, 600),
    "inception": (20, 550, 1275),
    "lenet": (14, 500, 1600),
    "tagger": (5, 500, 800),
    "mobile_net": (39, 1200, 1700),
}


@pytest.fixture(scope="module", autouse=True)
def has_onnx():
    """One of the networks is an ONNX file."""
    pytest.importorskip("onnx", reason="onnx is not installed")


def image(name):
    """An image in docs/images."""
    return (IMAGES / f"{name}.svg").read_text("utf-8")


@pytest.mark.skipif(shutil.which("dot") is None, reason="the program dot is not installed")
def test_images_are_of_the_pictures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    current = pictures() | known()
    assert set(EXHIBITS) < set(current)
    assert {path.stem for path in IMAGES.glob("*.svg")} >= set(current)
    for name, picture in current.items():
        now, committed = picture.pipe(format="svg", encoding="utf-8"), image(name)
        assert titles(now) == titles(committed), f"{name}: run python -m tests.docs.gallery"
        assert texts(now) == texts(committed), f"{name}: run python -m tests.docs.gallery"


def texts(svg):
    """Words of a picture, in any order, as names of frames are broken into lines to fit."""
    return sorted(
        word for text in re.findall(r"<text[^>]*>([^<]*)</text>", svg) for word in html.unescape(text).split()
    )


@pytest.mark.parametrize("name", EXHIBITS)
def test_images_have_their_boxes_and_fit_on_a_screen(name):
    boxes, widest, highest = SIZES[name]
    shown = [title for kind, title in titles(image(name)) if kind == "node"]
    assert len([title for title in shown if not re.match(r"(to|from) \d+$|legend|name of ", title)]) == boxes
    width, height = map(int, re.search(r'width="(\d+)pt" height="(\d+)pt"', image(name)).groups())
    assert width <= widest
    assert height <= highest
    assert set(EXHIBITS[name].title.replace(",", " ").split()) <= {word.strip(",") for word in texts(image(name))}


def test_tables_match_the_networks():
    assert GALLERY.read_text("utf-8") == gallery(), "run python -m tests.docs.gallery"


def test_images_are_small_and_shown():
    text = PAGE.read_text("utf-8") + GALLERY.read_text("utf-8")
    for path in IMAGES.iterdir():
        assert path.stat().st_size < LARGEST
    shown = {*EXHIBITS, "block", "transformer", "lstm", "factorisation"}
    assert [name for name in shown if f"images/{name}.svg" not in text] == []
