"""CNTK's picture readers and transforms by its own rules: sizes, places, means, colours, maps, base64, views."""

from __future__ import annotations

import base64
import io
import logging
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import feedline as fl
import feedline.cntk as C
from feedline.cntk.io import _pictures, _resize
from feedline.cntk.io import transforms as X
from feedline.cntk.io._picture_steps import STEPS, VIEWS
from tests.compat import opencv_pictures
from tests.oracles.order import cntk_chunk_order, cntk_sequence_order, cntk_windows

SHARED = Path(__file__).parents[3] / "shared" / "data" / "images"
Def, Defs = C.io.StreamDef, C.io.StreamDefs
ONE = [X.scale(1, 1, 3)]


def chart(width, height, red=7):
    """A picture whose blue is the column, and green the row: uint8 (height, width, 3), blue, green, red."""
    pixels = np.full((height, width, 3), red, np.uint8)
    pixels[..., 0], pixels[..., 1] = np.arange(width), np.arange(height)[:, None]
    return pixels


def encoded(pixels, suffix="PNG", **options):
    """Encode blue, green, red."""
    buffer = io.BytesIO()
    Image.fromarray(pixels[..., ::-1] if pixels.ndim == 3 else pixels).save(buffer, suffix, **options)
    return buffer.getvalue()


def map_of(folder, pictures, labels=None):
    lines = []
    for i, data in enumerate(pictures):
        (folder / f"{i}.img").write_bytes(data)
        lines.append(f".../{i}.img\t{i % 10 if labels is None else labels[i]}\n")
    path = folder / "map.txt"
    path.write_text("".join(lines))
    return path


def text_of(folder, pictures, labels=None):
    path = folder / "base64.txt"
    lines = (
        f"{i % 10 if labels is None else labels[i]}\t{base64.b64encode(p).decode()}" for i, p in enumerate(pictures)
    )
    path.write_text("\n".join(lines) + "\n")
    return path


def reader(path, transforms, kind=C.io.ImageDeserializer, *, classes=10, names=("features", "labels"), **options):
    streams = {names[0]: Def(field="image", transforms=transforms), names[1]: Def(field="label", shape=classes)}
    config = kind(str(path), Defs(**streams))
    config.update(options)
    return config


def source(*given, options=None, randomize=False, **kwargs):
    """Return a source over the arguments of `reader`, for one sweep."""
    return C.io.MinibatchSource(reader(*given, **kwargs), randomize=randomize, **{"max_sweeps": 1, **(options or {})})


def read(of, size=1 << 20, **options):
    """Return pictures (n, channels, height, width), and labels, of the next minibatch."""
    got = {info.m_name: data for info, data in of.next_minibatch(size, **options).items()}
    if not got:
        return np.zeros((0, 1, 1, 1), np.float32), np.zeros(0, np.int64)
    return got["features"].asarray()[:, 0], got["labels"].data.packed.indices


def everything(of, size):
    found = []
    while len((part := read(of, size))[0]):
        found.append(part)
    return tuple(np.concatenate(column) for column in zip(*found, strict=True))


def noise(count, width=9, height=7):
    draw = np.random.default_rng(3)
    return [encoded(draw.integers(0, 256, (height, width, 3)).astype(np.uint8)) for _ in range(count)]


# ---- the rules of single transforms -------------------------------------------------------------------------


def run(options, pixels, draws=(), view=0):
    """Run a transform with the numbers that it draws given, the rest 0.5."""
    numbers = dict(draws)
    return STEPS[options["type"]](options).run(pixels, lambda j: numbers.get(j, 0.5), view)


def placed(part):
    """Return (left, top, width, height) of a part of a chart, whether flipped."""
    flipped = part.shape[1] > 1 and part[0, 0, 0] > part[0, 1, 0]
    return int(part[0, -1 if flipped else 0, 0]), int(part[0, 0, 1]), part.shape[1], part.shape[0], bool(flipped)


X_, Y_, FLIP = 30, 31, 32  # the numbers that a crop draws for its place


@pytest.mark.parametrize(
    ("options", "draws", "expected"),
    [
        ({"crop_size": (10, 20)}, {}, (15, 5, 10, 20, False)),
        ({"crop_size": 11}, {}, (14, 9, 11, 11, False)),  # the center, rounded down
        ({"crop_size": (99, 8)}, {}, (0, 11, 40, 8, False)),
        ({"crop_size": 10, "side_ratio": 0.5}, {}, (15, 10, 10, 10, False)),  # sizes beat ratios
        ({"crop_type": ""}, {}, (0, 0, 40, 30, False)),
        ({"crop_type": "CENTER", "side_ratio": 0.5}, {}, (12, 7, 15, 15, False)),
        ({"side_ratio": 0.85}, {}, (7, 2, 26, 26, False)),  # 25.5 is rounded up
        ({"area_ratio": 0.25}, {}, (11, 6, 17, 17, False)),  # the root of 300 is 17.3
        ({"side_ratio": (0.5, 0.9)}, {0: 1.0}, (12, 7, 15, 15, False)),  # no jitter: the lower end
        ({"side_ratio": (0.5, 0.9), "jitter_type": "uniratio"}, {0: 0.5}, (9, 4, 21, 21, False)),
        ({"side_ratio": (0.5, 0.9), "jitter_type": "UniRatio"}, {0: 0.0}, (12, 7, 15, 15, False)),
        ({"crop_type": "randomside", "crop_size": 10}, {X_: 0.999, Y_: 0.0, FLIP: 0.9}, (30, 0, 10, 10, False)),
        ({"crop_type": "RandomSide", "crop_size": 10}, {X_: 0.0, Y_: 0.999, FLIP: 0.4}, (0, 20, 10, 10, True)),
        ({"crop_type": "randomarea", "area_ratio": 0.25}, {X_: 0.5, Y_: 0.5, FLIP: 0.5}, (12, 7, 17, 17, False)),
        ({"crop_type": "center", "crop_size": 10}, {FLIP: 0.0}, (15, 10, 10, 10, False)),
        ({"crop_size": 10, "aspect_ratio": 0.5}, {}, (15, 10, 10, 10, False)),
        # A square of 20: sides are the roots of 400 * 0.5 and 400 / 0.5, 14.1 and 28.3, cut off.
        ({"side_ratio": 2 / 3, "aspect_ratio": 0.5}, {2: 0.1}, (13, 1, 14, 28, False)),
        ({"side_ratio": 2 / 3, "aspect_ratio": 0.5}, {2: 0.9}, (6, 8, 28, 14, False)),
        # CNTK's reference and its ResNet for ImageNet have ratios above 1, though its reader refused them.
        ({"side_ratio": 2 / 3, "aspect_ratio": 2}, {2: 0.1}, (6, 8, 28, 14, False)),
        # No ratio: the whole picture has the area. 24 x 48 does not fit, nor does 48 x 24, so after ten attempts all of
        # it.
        ({"aspect_ratio": 0.5}, {}, (0, 0, 40, 30, False)),
        # The first two attempts do not fit, the third does.
        (
            {"area_ratio": (0.4, 1.0), "aspect_ratio": 1.0, "jitter_type": "uniratio"},
            {0: 1.0, 3: 0.99, 6: 0.0},
            (9, 4, 22, 22, False),
        ),
    ],
)
def test_crops(options, draws, expected):
    assert placed(run(X.crop(**options), chart(40, 30), draws.items())) == expected


def test_the_ten_views_are_corners_and_center_then_their_flips():
    places = [(0, 0), (30, 0), (0, 20), (30, 20), (15, 10)]
    views = [placed(run(X.crop("multiview10", 10), chart(40, 30), view=view)) for view in range(VIEWS)]
    assert views == [(*place, 10, 10, flipped) for flipped in (False, True) for place in places]


def test_hflip_overrides_whether_a_crop_flips():
    crop = X.crop("center", 10)
    crop["hflip"] = True
    assert placed(run(crop, chart(40, 30), [(FLIP, 0.1)])) == (15, 10, 10, 10, True)
    crop = X.crop("randomside", 10)
    crop["hflip"] = "false"
    assert not placed(run(crop, chart(40, 30), [(FLIP, 0.1)]))[4]


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (X.crop(side_ratio=0.5, area_ratio=0.5), "simultaneously"),
        (X.crop(side_ratio=1.5), "sideRatio value, must be > 0 and <= 1"),
        (X.crop(area_ratio=(0.0, 0.5)), "areaRatio value, must be > 0 and <= 1"),
        (X.crop(aspect_ratio=0), "aspectRatio value, must be > 0, the lower one first; got 0:0"),
        (X.crop("left"), "Invalid cropType"),
        (X.crop(jitter_type="unilength"), "Invalid jitterType"),
        (X.crop(crop_size=-1), "cropSize"),
        (X.crop(crop_size="a"), "cropSize"),
        (X.scale(4, 4, 3, scale_mode="Crop"), "Invalid scaleMode"),
        (X.scale(4, 4, 3, interpolations="area"), "Invalid interpolations"),
        (X.scale(4, 0, 3), "Invalid height"),
        (X.scale(4, 4, 1), "channels=3"),
        (X.mean("no-such-file.xml"), "Could not open file"),
        (X.color(brightness_radius=2), "brightnessRadius"),
        (C.cntk_py.Dictionary({"type": "Turn"}), "Invalid transform"),
    ],
)
def test_options_that_cntk_does_not_have_are_refused_when_a_source_is_made(tmp_path, transform, message):
    path = map_of(tmp_path, noise(1))
    with pytest.raises(RuntimeError, match=message):
        source(path, [transform, *ONE])


@pytest.mark.parametrize(
    ("mode", "size", "target", "expected"),
    [
        ("fill", (40, 30), (20, 10), {"corner": (0, 0)}),
        # The shorter side becomes 10. The middle 10 of 13 columns remain.
        ("crop", (40, 30), (10, 10), {"scaled": (13, 10), "cut": (1, 0)}),
        ("crop", (30, 41), (10, 10), {"scaled": (10, 14), "cut": (0, 2)}),
        ("crop", (30, 30), (10, 10), {"scaled": (10, 10), "cut": (0, 0)}),
        ("pad", (40, 30), (20, 20), {"scaled": (20, 15), "margin": (0, 2)}),
        ("pad", (30, 40), (20, 20), {"scaled": (15, 20), "margin": (2, 0)}),
    ],
)
def test_scale_modes(mode, size, target, expected):
    pixels = chart(*size)
    found = run(X.scale(*target, 3, "nearest", mode, 9), pixels)
    assert found.shape == (target[1], target[0], 3)
    if mode == "fill":
        np.testing.assert_array_equal(found[0, :, 0], np.arange(20) * 2)
        np.testing.assert_array_equal(found[:, 0, 1], np.arange(10) * 3)
        return
    whole = _resize.resize(pixels, *expected["scaled"], "nearest")
    if mode == "crop":
        x, y = expected["cut"]
        np.testing.assert_array_equal(found, whole[y : y + target[1], x : x + target[0]])
        return
    (x, y), (w, h) = expected["margin"], expected["scaled"]
    np.testing.assert_array_equal(found[y : y + h, x : x + w], whole)
    rest = np.ones(found.shape[:2], bool)
    rest[y : y + h, x : x + w] = False
    assert (found[rest] == 9).all()
    border = run(X.scale(*target, 3, "nearest", mode), pixels)  # -1: the pixels of the border
    np.testing.assert_array_equal(
        border, np.pad(whole, ((y, target[1] - h - y), (x, target[0] - w - x), (0, 0)), "edge")
    )


@pytest.mark.parametrize(("mode", "size", "target"), [("crop", (32, 33), (10, 20)), ("pad", (33, 32), (20, 10))])
def test_what_proportions_do_not_allow_is_an_error_of_the_picture(tmp_path, mode, size, target):
    path = map_of(tmp_path, [encoded(chart(*size))])
    with pytest.raises(RuntimeError, match="scaleMode=" + mode) as caught:
        read(source(path, [X.scale(*target, 3, scale_mode=mode)]))
    assert caught.value.sequence == 0


def xml_of(path, mean, dt="f", row=None):
    row, column, channels = mean.shape if row is None else (row, *mean.shape[1:])
    path.write_text(
        '<?xml version="1.0"?>\n<opencv_storage>\n'
        f"<Channel>{channels}</Channel><Row>{row}</Row><Col>{column}</Col>\n"
        f'<MeanImg type_id="opencv-matrix"><rows>1</rows><cols>{mean.size}</cols><dt>{dt}</dt><data>\n'
        + "\n".join(f"{x:e}" for x in mean.ravel())
        + "</data></MeanImg></opencv_storage>"
    )
    return str(path)


@pytest.mark.parametrize("dt", ["f", "d"])
def test_mean(tmp_path, caplog, dt):
    pixels = chart(5, 4)
    mean = np.random.default_rng(1).integers(0, 2000, (4, 5, 3)) / 8
    path = map_of(tmp_path, [encoded(pixels)])
    found, _ = read(source(path, [X.mean(xml_of(tmp_path / "mean.xml", mean, dt))]))
    np.testing.assert_array_equal(found[0], (pixels - mean).transpose(2, 0, 1))
    assert found.dtype == np.float32
    assert not caplog.records


def test_a_mean_of_another_size_is_ignored_with_a_warning(tmp_path, caplog):
    file = xml_of(tmp_path / "mean.xml", np.ones((5, 4, 3)))
    path = map_of(tmp_path, [encoded(chart(5, 4))] * 3)
    with caplog.at_level(logging.WARNING, "feedline"):
        found, _ = read(source(path, [X.mean(file)]))
    np.testing.assert_array_equal(found[0], chart(5, 4).transpose(2, 0, 1))
    (record,) = caplog.records
    assert "mean.xml is ignored for 3 pictures of another size, such as 5 x 4" in record.getMessage()


@pytest.mark.parametrize("text", ["", "<a/>", "<opencv_storage><Row>1</Row></opencv_storage>"])
def test_files_that_are_no_mean(tmp_path, text):
    file = tmp_path / "mean.xml"
    file.write_text(text)
    with pytest.raises(RuntimeError, match=r"mean\.xml"):
        source(map_of(tmp_path, noise(1)), [X.mean(str(file))])
    with pytest.raises(RuntimeError, match="Channel = 36 numbers, got 24"):
        source(map_of(tmp_path, noise(1)), [X.mean(xml_of(file, np.ones((2, 4, 3)), row=3))])


def test_color_changes_brightness_then_contrast():
    pixels = chart(40, 30)
    mean = pixels.mean(dtype=np.float64)
    for draws, alpha, beta in [
        ((0.0, 0.5), 1, -0.2),
        ((1.0, 0.5), 1, 0.2),
        ((0.5, 1.0), 1.4, 0),
        ((0.25, 0.0), 0.6, -0.1),
    ]:
        found = run(X.color(0.2, 0.4), pixels, enumerate(draws))
        np.testing.assert_allclose(found, np.clip(pixels * alpha + beta * mean, 0, 255), atol=1e-3)
    assert run(X.color(1.0, 0.0), np.full((2, 2, 3), 200, np.uint8), [(0, 1.0)]).max() == 255
    np.testing.assert_array_equal(run(X.color(0, 0, 0), pixels), pixels)


@pytest.fixture(scope="module")
def opencv():
    with np.load(opencv_pictures.PATH) as arrays:
        return dict(arrays)


@pytest.mark.parametrize("factor", opencv_pictures.SATURATIONS)
def test_color_changes_saturation_as_opencv_does(opencv, factor):
    found = run(X.color(0, 0, 1), opencv_pictures.colours(), [(2, factor / 2)])
    np.testing.assert_allclose(found, opencv[f"saturation {factor}"], atol=0.01)


def test_intensity_shifts_colours_along_their_components(tmp_path):
    """Vectors are of red, green, blue, pictures of blue, green, red."""
    matrices = {"EigVal": np.array([[1.0, 2.0, 0.0]]), "EigVec": np.array([[1.0, 0, 0], [0, 0, 1], [0, 3, 0]])}
    file = tmp_path / "intensity.xml"
    file.write_text(
        "<opencv_storage>"
        + "".join(
            f"<{name}><rows>{len(m)}</rows><cols>3</cols><dt>d</dt><data>{' '.join(map(str, m.flat))}</data></{name}>"
            for name, m in matrices.items()
        )
        + "</opencv_storage>"
    )
    options = {"type": "Intensity", "intensityStdDev": 2.0, "intensityFile": str(file)}
    u = 1 - np.exp(-0.5)  # the radius is 1
    found = run(options, chart(3, 2, red=100), [(0, u), (1, 0.0), (2, u), (3, 0.5), (4, u), (5, 0.25)])
    expected = chart(3, 2, red=100) + np.array([3 * 2 * -2.0, 0, 2])
    np.testing.assert_allclose(found, np.clip(expected, 0, 255), atol=1e-3)


# ---- scaling ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "interpolation", "pixels", "size"), [*opencv_pictures.cases()], ids=lambda x: "")
def test_scaling_is_within_one_level_of_opencv(opencv, name, interpolation, pixels, size):
    found = _resize.resize(pixels, size[1], size[0], interpolation)
    assert found.dtype == opencv[name].dtype
    if interpolation == "nearest":
        np.testing.assert_array_equal(found, opencv[name])
    else:
        np.testing.assert_allclose(found.astype(float), opencv[name], atol=1 if found.dtype == np.uint8 else 0.02)


def test_the_interpolating_library_is_known(tmp_path):
    assert source(map_of(tmp_path, noise(1)), [X.scale(4, 5, 3, "cubic")]).interpolation == "feedline"


# ---- decoding -----------------------------------------------------------------------------------------------


def test_channels_are_blue_green_red_in_front(tmp_path):
    pixels = chart(5, 4)
    of = source(map_of(tmp_path, [encoded(pixels)]), [])
    found, _ = read(of)
    np.testing.assert_array_equal(found[0], pixels.transpose(2, 0, 1))
    info = of.streams.features
    assert (info.sample_shape, info.m_sample_layout, info.dtype, info.is_sparse) == (
        (3, 4, 5),
        (5, 4, 3),
        np.float32,
        False,
    )
    assert (of.streams.labels.sample_shape, of.streams.labels.is_sparse) == ((10,), True)


def decoded(tmp_path, data, grayscale):
    """What a reader without transforms makes of a picture: (height, width, channels)."""
    found, _ = read(source(map_of(tmp_path, [data]), [], grayscale=grayscale))
    return found[0].transpose(1, 2, 0)


def test_decoding_of_other_kinds_of_pictures(tmp_path):
    gray = np.arange(20, dtype=np.uint8).reshape(4, 5) * 12
    assert np.array_equal(decoded(tmp_path, encoded(gray), True)[..., 0], gray)
    assert np.array_equal(decoded(tmp_path, encoded(gray), False), np.repeat(gray[..., None], 3, 2))
    wide = io.BytesIO()
    Image.fromarray(gray.astype(np.uint16) * 256 + 255).save(wide, "PNG")
    assert np.array_equal(decoded(tmp_path, wide.getvalue(), True)[..., 0], gray)
    # The alpha channel is dropped, not applied.
    alpha = io.BytesIO()
    Image.fromarray(np.dstack([chart(5, 4)[..., ::-1], gray])).save(alpha, "PNG")
    assert np.array_equal(decoded(tmp_path, alpha.getvalue(), False), chart(5, 4))
    # Turned by a quarter, by EXIF: the top of the picture is at the right of the file.
    exif = Image.Exif()
    exif[0x112] = 6
    turned = encoded(chart(5, 4), "PNG", exif=exif)
    assert np.array_equal(decoded(tmp_path, turned, False), np.rot90(chart(5, 4), -1))
    for kind in ("PNG", "JPEG", "BMP"):
        assert _pictures.size_of(encoded(chart(5, 4), kind)) == (5, 4)
    assert [_pictures.size_of(encoded(chart(5, 4), kind, exif=exif)) for kind in ("PNG", "JPEG")] == [(4, 5)] * 2
    # Grey from a JPEG file is its luminance as it is stored, before colours are cut off at 0 and 255.
    photo = encoded(np.random.default_rng(2).choice([0, 255], (16, 16, 3)).astype(np.uint8), "JPEG", quality=50)
    stored = Image.open(io.BytesIO(photo))
    stored.draft("YCbCr", None)
    assert np.array_equal(decoded(tmp_path, photo, True)[..., 0], np.asarray(stored)[..., 0])


@pytest.mark.parametrize("moves", [["crop"], ["scale"], ["crop", "scale", "crop"], []])
def test_native_and_python_steps_agree(tmp_path, moves):
    """Transforms without arithmetic send the movements after them to Python."""
    given = {"crop": X.crop("randomside", side_ratio=(0.5, 0.9), jitter_type="uniratio"), "scale": X.scale(9, 8, 3)}
    steps = [*(given[move] for move in moves), X.scale(6, 5, 3, "cubic")]
    path = map_of(tmp_path, noise(7, 20, 16))
    native, _ = read(source(path, [*steps, X.color(0, 0)], randomize=True))
    python, _ = read(source(path, [*steps, X.color(0, 0), X.crop()], randomize=True))
    np.testing.assert_array_equal(native, python)
    floats, _ = read(source(path, [steps[0], X.color(0, 0), *steps[1:]], randomize=True))
    assert floats.shape == native.shape
    if not moves:
        np.testing.assert_array_equal(floats, native)


def test_grayscale_is_a_key_of_the_deserializer(tmp_path):
    path = map_of(tmp_path, [encoded(chart(5, 4))])
    of = source(path, [X.scale(2, 2, 1)], grayscale=True)
    assert read(of)[0].shape == (1, 1, 2, 2)
    with pytest.raises(RuntimeError, match="channels=1"):
        source(path, [X.scale(2, 2, 3)], grayscale=True)
    with pytest.raises(
        RuntimeError, match="expected the options grayscale, multiViewCrop of an image reader, got other"
    ):
        source(path, ONE, other=1)


# ---- maps ---------------------------------------------------------------------------------------------------


def test_a_map_with_keys_archives_and_its_own_folder(tmp_path, monkeypatch):
    pictures = [encoded(np.full((2, 2, 3), 40 * i, np.uint8)) for i in range(4)]
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("a/2.png", pictures[2])
        archive.writestr("3.png", pictures[3])
    (tmp_path / "0.png").write_bytes(pictures[0])
    (tmp_path / "1.png").write_bytes(pictures[1])
    path = tmp_path / "map.txt"
    path.write_text("k0\t.../0.png\t3\nk1\t1.png\t2\n.../all.zip@/a\\2.png\t1\nk3\tall.zip@3.png\t0\n")
    monkeypatch.chdir(tmp_path)
    found, labels = read(source(path, ONE, classes=4))
    assert (found[:, 0, 0, 0].tolist(), labels.tolist()) == ([0, 40, 80, 120], [3, 2, 1, 0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.img\t1\n0.img\tblah\n", "the label a number\n.*map.txt:2"),
        ("0.img\t1\n\n0.img\t1\n", "the label a number\n.*map.txt:2"),
        ("0.img\n", "the label a number\n.*map.txt:1"),
        ("0.img\t10\n", "exceeding the label dimension\n.*map.txt:1"),
        ("all.zip@/x.png\t1\nall.zip@/a.png\t1\nall.zip@/y.png\t1\n", "x.png, .*y.png\n"),
        ("none.zip@/x.png\t1\n", "No such file.*\n.*none.zip"),
    ],
)
def test_a_map_is_checked_when_it_is_opened(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    path = map_of(tmp_path, noise(1))
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("a.png", noise(1)[0])
    path.write_text(text)
    with pytest.raises(RuntimeError, match=message) as caught:
        source("map.txt", ONE)
    assert isinstance(caught.value, fl.DataError)


def test_a_file_that_is_missing_or_no_picture_is_an_error_where_it_is_read(tmp_path):
    path = map_of(tmp_path, noise(3))
    (tmp_path / "1.img").unlink()
    of = source(path, ONE)
    assert len(read(of, 1)[0]) == 1
    with pytest.raises(RuntimeError, match="No such file") as caught:
        read(of, 1)
    assert (caught.value.sequence, Path(caught.value.path).name) == (1, "1.img")
    assert "on_error" not in str(caught.value)
    (tmp_path / "1.img").write_bytes(noise(1)[0][:60])
    of = source(path, ONE)
    assert len(read(of, 1)[0]) == 1
    with pytest.raises(RuntimeError, match="expected a whole picture") as caught:
        read(of, 1)
    assert (caught.value.sequence, caught.value.stream) == (1, "features")
    assert of.get_checkpoint_state() == {"minibatchSourcePosition": 1}  # nothing was lost


def test_pictures_must_end_up_in_one_size(tmp_path):
    path = map_of(tmp_path, [encoded(chart(8, 6)), encoded(chart(6, 8))])
    with pytest.raises(RuntimeError, match=r"8 x 6 after the transforms, got one of 6 x 8"):
        read(source(path, []))
    assert read(source(path, [X.crop(crop_size=5)]))[0].shape == (2, 3, 5, 5)
    assert read(source(path, [X.crop("randomside", side_ratio=0.5)]))[0].shape == (2, 3, 3, 3)
    for crop in (X.crop(side_ratio=(0.4, 0.5), jitter_type="uniratio"), X.crop(side_ratio=0.5, aspect_ratio=0.5)):
        with pytest.raises(RuntimeError, match="scale"):
            source(path, [crop])
        assert read(source(path, [crop, *ONE]))[0].shape == (2, 3, 1, 1)


def test_streams_of_a_deserializer(tmp_path):
    path = str(map_of(tmp_path, noise(2)))
    for kind in (C.io.ImageDeserializer, C.io.Base64ImageDeserializer):
        with pytest.raises(ValueError, match="`image` or `label`"):
            kind(path, Defs(a=Def(field="picture")))
        with pytest.raises(ValueError, match="expected a stream of pictures"):
            kind(path, Defs(a=Def(field="label", shape=3)))
        with pytest.raises(ValueError, match="one stream of field `image`"):
            kind(path, Defs(a=Def(field="image"), b=Def(field="image")))
        with pytest.raises(AttributeError):
            kind(path, Defs(a=Def(field="image"), b=Def(field="label")))
    alone = C.io.MinibatchSource(C.io.ImageDeserializer(path, Defs(x=Def(field="image", transforms=ONE))), max_sweeps=1)
    assert [info.m_name for info in alone.stream_infos()] == ["x"]
    assert alone.streams.x.size() == 2


# ---- base64 -------------------------------------------------------------------------------------------------


def test_base64(tmp_path):
    pixels = chart(5, 4)
    path = text_of(tmp_path, [encoded(pixels), encoded(pixels + 1)])
    found, labels = read(source(path, [], C.io.Base64ImageDeserializer))
    np.testing.assert_array_equal(found[1], (pixels + 1).transpose(2, 0, 1))
    assert labels.tolist() == [0, 1]
    path.write_text("".join(f"key{i}\t{line}\n" for i, line in enumerate(path.read_text().splitlines())))
    assert read(source(path, [], C.io.Base64ImageDeserializer))[1].tolist() == [0, 1]


def test_base64_that_cannot_be_decoded_is_left_out_with_a_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    good = noise(3)
    path = text_of(tmp_path, [good[0], b"no picture", good[1], good[2][:50], good[2]])
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, "5\t!!!", lines[0]]) + "\n")
    with caplog.at_level(logging.WARNING, "feedline"):
        _, labels = read(source(path, ONE, C.io.Base64ImageDeserializer))
    assert labels.tolist() == [0, 2, 4, 0]
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert [p.name for p in tmp_path.iterdir()] == ["base64.txt"]
    path.write_text(lines[0] + "\n" + lines[2].replace("2\t", "12\t") + "\n")
    with pytest.raises(RuntimeError, match="expected a label below 10, got 12"):
        read(source(path, ONE, C.io.Base64ImageDeserializer))


# ---- views, order, restarts, workers ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["map", "base64"])
def test_multi_view_crop_makes_ten_copies_in_a_row(tmp_path, kind):
    pictures = [encoded(chart(4, 3, red=i)) for i in range(3)]
    path = (map_of if kind == "map" else text_of)(tmp_path, pictures)
    made = C.io.ImageDeserializer if kind == "map" else C.io.Base64ImageDeserializer
    of = source(path, [X.crop("multiview10", 2)], made, multiViewCrop=True)
    assert [info.m_name for info in of.stream_infos()] == ["features", "labels"]
    found, labels = everything(of, 4)
    assert labels.tolist() == [0] * 10 + [1] * 10 + [2] * 10
    for i, view in enumerate(found):
        expected = run(X.crop("multiview10", 2), chart(4, 3, red=i // 10), view=i % 10)
        np.testing.assert_array_equal(view, expected.transpose(2, 0, 1))
    # Without the key each picture is the first view.
    found, _ = read(source(path, [X.crop("multiview10", 2)], made))
    np.testing.assert_array_equal(found, [chart(4, 3, red=i)[:2, :2].transpose(2, 0, 1) for i in range(3)])


def test_the_order_is_cntks_with_a_chunk_for_each_picture(tmp_path):
    count, window = 23, 5
    path = map_of(tmp_path, noise(count, 1, 1), labels=range(count))
    of = source(path, [], classes=count, randomize=True, options={"randomization_window_in_chunks": window})
    chunks = cntk_chunk_order(0, count)
    places = cntk_sequence_order(0, [1] * count, *cntk_windows([1] * count, in_chunks=window))
    assert read(of)[1].tolist() == [chunks[place] for place in places]


AUGMENT = [
    X.crop("randomside", side_ratio=(0.3, 1.0), jitter_type="uniratio"),
    X.scale(4, 4, 3),
    X.color(0.3, 0.3, 0.3),
]


def test_the_same_pictures_for_any_size_worker_or_restart(tmp_path):
    path = map_of(tmp_path, noise(20))
    options = {"max_sweeps": 2, "randomization_window_in_chunks": 6, "randomization_seed": 3}

    def opened():
        return source(path, AUGMENT, randomize=True, options=options)

    whole, _ = everything(opened(), 64)
    assert whole.shape == (40, 3, 4, 4)
    first = {tuple(p.ravel().tolist()) for p in whole[:20]}
    assert len(first) == 20
    assert not first & {tuple(p.ravel().tolist()) for p in whole[20:]}  # other crops in the next sweep
    for size in (1, 7):
        np.testing.assert_array_equal(everything(opened(), size)[0], whole)
    begun = opened()
    read(begun, 13)
    again = opened()
    again.restore_from_checkpoint(begun.get_checkpoint_state())
    np.testing.assert_array_equal(everything(again, 5)[0], whole[13:])
    parts = [everything_of_worker(opened(), rank) for rank in range(2)]
    assert sorted(map(np.ndarray.tobytes, np.concatenate(parts))) == sorted(map(np.ndarray.tobytes, whole))
    options["randomization_seed"] = 4
    assert not first & {tuple(p.ravel().tolist()) for p in everything(opened(), 64)[0]}


def everything_of_worker(of, rank):
    found = []
    while len(part := read(of, 8, num_data_partitions=2, partition_index=rank)[0]):
        found.append(part)
    return np.concatenate(found)


def test_random_crops_are_spread_evenly(tmp_path):
    """Over equal pictures and over sweeps. Left, top and flip are independent."""
    path = map_of(tmp_path, [encoded(chart(12, 10))])
    path.write_text(path.read_text() * 40)
    found, _ = read(source(path, [X.crop("randomside", 4)], options={"max_sweeps": 50}))
    places = np.array([placed(p.transpose(1, 2, 0)) for p in found])
    for column, count in ((0, 9), (1, 7), (4, 2)):
        share = np.bincount(places[:, column], minlength=count) / len(places)
        assert len(share) == count
        assert np.abs(share - 1 / count).max() < 0.04
    assert len({tuple(place) for place in places.tolist()}) == 9 * 7 * 2
    grid = places.reshape(50, 40, -1)
    assert min(len(np.unique(sweep, axis=0)) for sweep in grid) > 20
    assert min(len(np.unique(grid[:, line], axis=0)) for line in range(40)) > 20


def test_two_readers_with_equal_transforms_crop_equally(tmp_path):
    """For example pictures and their masks. Numbers of CNTK text are joined to both."""
    path = map_of(tmp_path, noise(12))
    text = tmp_path / "numbers.ctf"
    text.write_text("".join(f"{i} |n {i}\n" for i in range(12)))
    crop = X.crop("randomside", side_ratio=(0.2, 0.6), jitter_type="uniratio")
    of = C.io.MinibatchSource(
        [
            reader(path, [crop, *ONE]),
            reader(path, [crop, *ONE], names=("other", "more")),
            C.io.CTFDeserializer(str(text), Defs(numbers=Def(field="n", shape=1))),
        ],
        max_sweeps=1,
    )
    got = {info.m_name: data.asarray() for info, data in of.next_minibatch(12).items() if not info.is_sparse}
    np.testing.assert_array_equal(got["features"], got["other"])
    assert len(np.unique(got["features"])) > 12
    order = got["numbers"].ravel().astype(int)
    assert sorted(order) == list(range(12))
    assert order.tolist() != sorted(order)
    unmoved = read(source(path, [X.crop(side_ratio=0.01), *ONE]))[0]
    assert len(unmoved) == 12


def test_views_of_a_reader_are_joined_to_their_picture(tmp_path):
    path = map_of(tmp_path, [encoded(chart(4, 3, red=i)) for i in range(2)])
    text = tmp_path / "numbers.ctf"
    text.write_text("1 |n 51\n0 |n 50\n")
    of = C.io.MinibatchSource(
        [
            reader(path, [X.crop("multiview10", 2)], multiViewCrop=True),
            C.io.CTFDeserializer(str(text), Defs(numbers=Def(field="n", shape=1))),
        ],
        randomize=False,
        max_sweeps=1,
    )
    got = {info.m_name: data.asarray() for info, data in of.next_minibatch(20).items() if not info.is_sparse}
    assert got["numbers"].ravel().tolist() == [50] * 10 + [51] * 10
    assert got["features"][3, 0, 0, 0, 0] == 2  # the fourth view is at the right
    assert got["features"][13, 0, 2, 0, 0] == 1


# ---- CNTK's own test data -----------------------------------------------------------------------------------


@pytest.mark.skipif(not SHARED.exists(), reason="CNTK's test pictures are not here")
@pytest.mark.parametrize("name", ["ImageReaderSimple_map", "ImageReaderZip_map", "Base64ImageReaderSimple_map"])
def test_cntks_own_pictures(monkeypatch, name):
    monkeypatch.chdir(SHARED)
    kind = C.io.Base64ImageDeserializer if "Base64" in name else C.io.ImageDeserializer
    found, labels = read(source(f"{name}.txt", [X.scale(4, 4, 3)], kind, classes=4))
    assert labels.tolist() == [0, 1, 2, 3]
    # Black, blue, green, red, as JPEG keeps them.
    expected = np.array([[0, 0, 0], [254, 0, 0], [1, 255, 0], [0, 0, 254]])
    assert np.abs(found.mean((2, 3)) - expected).max() <= 1
