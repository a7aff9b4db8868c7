"""The made pictures: the same in every process, of every kind, with labels as folders and shards have them."""

from __future__ import annotations

import io

import numpy as np
import pytest

import feedline as fl

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

from feedline_demo import pictures as made  # noqa: E402
from PIL import ImageOps  # noqa: E402

SMALL = {"sides": (40, 90)}


def opened(picture):
    return Image.open(io.BytesIO(picture.data))


def test_a_picture_depends_on_its_number_and_seed_alone():
    several = list(made.pictures(6, seed=3, **SMALL))
    assert list(made.pictures(1, seed=3, first=4, **SMALL)) == several[4:5]
    assert next(made.pictures(1, seed=4, first=4, **SMALL)).data != several[4].data
    assert len({picture.data for picture in several}) == 6


def test_every_kind_matches_its_name():
    found = {picture.kind: opened(picture) for picture in made.pictures(120, **SMALL)}
    assert set(found) == set(made.KINDS)
    assert {kind for kind, image in found.items() if image.format == "PNG"} == {"PNG"}
    assert {kind for kind, image in found.items() if "progressive" in image.info} == {"progressive"}
    assert {kind for kind, image in found.items() if image.getexif().get(0x0112, 1) > 1} == {"turned"}
    assert (found["grey"].mode, found["CMYK"].mode, found["baseline"].mode) == ("L", "CMYK", "RGB")
    first = {kind: image.layer[0][1:3] for kind, image in found.items() if kind in ("baseline", "4:2:2", "4:4:4")}
    assert first == {"baseline": (2, 2), "4:2:2": (2, 1), "4:4:4": (1, 1)}
    (turned,) = made.pictures(1, kinds=["restarts"], size=(64, 64))
    assert b"\xff\xdd" in turned.data


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turned_pictures_are_upright_once_turned(orientation):
    pixels = made.draw(0, 3, 61, 40)
    image = Image.open(io.BytesIO(made.encode(pixels, "turned", 95, orientation)))
    assert (image.size == (61, 40)) == (orientation < 5)
    upright = np.asarray(ImageOps.exif_transpose(image), np.int16)
    assert np.abs(upright - pixels).mean() < 5


def test_labels_match_a_folder(tmp_path):
    some = list(made.pictures(200, size=(24, 24), kinds=["baseline", "PNG"]))
    made.write_folder(tmp_path, some)
    corpus = fl.open_corpus(tmp_path)
    assert tuple(corpus.classes) == made.CLASSES
    read = corpus.select(np.arange(len(corpus.chunks()) and sum(info.sequences for info in corpus.chunks())))
    pairs = sorted(zip(read["image"].tolist(), read["label"].rows.tolist(), strict=True))
    assert pairs == sorted((picture.data, picture.label) for picture in some)


def test_shards_hold_all_pictures(tmp_path):
    some = list(made.pictures(10, size=(24, 24)))
    paths = made.write_tar(tmp_path, some, shards=3)
    streams = {"image": fl.Stream(dtype="bytes", field="jpg"), "label": fl.Stream((), "int64", field="cls")}
    read = fl.open_corpus(paths[0], streams=streams).select(np.arange(4))
    assert read["image"].tolist() == [some[i].data for i in (0, 3, 6, 9)]
    contents, labels = made.rows(some)
    assert read["label"].rows.tolist() == [labels[i] for i in (0, 3, 6, 9)]
    assert contents == [picture.data for picture in some]


def test_grey_pictures_have_a_grey_class():
    for picture in made.pictures(8, kinds=["grey"], size=(32, 32)):
        assert made.CLASSES[picture.label].startswith("grey-")


def test_unknown_kinds_are_refused():
    with pytest.raises(ValueError, match=r"expected kinds of baseline, .*, got GIF"):
        next(made.pictures(1, kinds=["GIF"]))
