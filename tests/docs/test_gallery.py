"""The gallery's images show what its code draws, and are small."""

from __future__ import annotations

import re
import shutil

import pytest

from tests.docs.gallery import IMAGES, LARGEST, PAGE, known, pictures, titles


@pytest.mark.skipif(shutil.which("dot") is None, reason="the program dot is not installed")
def test_images_are_of_the_pictures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    drawn = pictures() | known()
    assert {path.stem for path in IMAGES.glob("*.svg")} >= set(drawn)
    assert len(drawn) >= 6
    for name, picture in drawn.items():
        now, committed = picture.pipe(format="svg", encoding="utf-8"), (IMAGES / f"{name}.svg").read_text("utf-8")
        assert titles(now) == titles(committed), "run: python -m tests.docs.gallery"
        assert texts(now) == texts(committed), "run: python -m tests.docs.gallery"


def texts(svg):
    """Words of a picture, wherever they stand."""
    return sorted(re.findall(r"<text[^>]*>([^<]*)</text>", svg))


def test_images_are_small_and_shown():
    text = PAGE.read_text("utf-8")
    for path in IMAGES.iterdir():
        assert path.stat().st_size < LARGEST
    assert all(
        f"images/{name}.svg" in text for name in ("block", "transformer", "lstm", "factorisation", "resnet50", "vit")
    )
