"""Native code, compared with its twin: exactly where pixels are only moved, within a level where they are mixed."""

import io
import math
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from feedline import _native, images
from feedline.images.step import CROP, FLIP, JITTER, PAD, RESIZE
from tests.effort import examples
from tests.images.conftest import BUILT, NAMES
from tests.images.pictures import drawn, encoded
from tests.images.test_decode import SCHEMA, places, values
from tests.oracles import pictures as reference

MOVED = [
    [images.CenterCrop((20, 30))],
    [images.CenterCrop(100), images.Flip(0.5, 0.5)],
    [images.RandomCrop(24, padding=5, fill=9), images.Pad((1, 2, 3, 4), padding_mode="edge")],
    [images.RandomCrop(24, padding=(30, 0, 2, 25), padding_mode="edge")],
    [images.RandomCrop(24, padding=(9, 3), padding_mode="reflect")],
    [images.RandomCrop(100, pad_if_needed=True, padding=2, padding_mode="symmetric")],
    [
        images.CenterCrop(20),
        images.Pad((3, 70, 0, 19), padding_mode="symmetric"),
        images.Pad(4, padding_mode="reflect"),
    ],
    [images.RandomResizedCrop((20, 31), filter="nearest"), images.Flip(0.5)],
    [images.Resize((70, 90), filter="nearest"), images.CenterCrop(60)],
    [images.RandomCrop(24), images.MultiView([[], images.Flip(1.0)]), images.Normalize(0.4, 0.3)],
]
MIXED = [
    [images.RandomResizedCrop(24), images.Flip(0.5)],
    [images.Resize(20), images.CenterCrop(16)],
    [images.Resize((90, 100))],
    [images.Resize((5, 100))],
    [images.CenterCrop(30), images.ColorJitter(brightness=0.5)],
    [images.CenterCrop(30), images.ColorJitter(contrast=0.5)],
    [images.CenterCrop(30), images.ColorJitter(saturation=0.9)],
    [images.CenterCrop(30), images.ColorJitter(hue=0.5)],
]

pytestmark = pytest.mark.skipif(not BUILT, reason="native code for pictures is not built")


def both(monkeypatch, decode):
    """Pictures from native code, and from its twin."""
    ours = decode.run_all(SCHEMA, values(), places())
    for name in NAMES:
        monkeypatch.setattr(_native, name, getattr(reference, name))
    theirs = decode.run_all(SCHEMA, values(), places())
    assert ours.errors == theirs.errors == {}
    return ours.values["image"].rows, theirs.values["image"].rows


@pytest.mark.parametrize("upright", [True, False])
@pytest.mark.parametrize("color", ["RGB", "BGR", "grey"])
@pytest.mark.parametrize("steps", MOVED, ids=repr)
def test_moved_pixels_are_equal(monkeypatch, steps, color, upright):
    ours, theirs = both(monkeypatch, images.Decode("image", *steps, color=color, upright=upright))
    assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("color", ["RGB", "BGR", "grey"])
@pytest.mark.parametrize("steps", MIXED, ids=repr)
def test_mixed_pixels_are_equal_within_a_level(monkeypatch, steps, color):
    ours, theirs = both(monkeypatch, images.Decode("image", *steps, color=color))
    assert abs(ours.astype(int) - theirs).max() <= 1


def test_draws_are_equal():
    sweeps, ordinals = np.array([0, 1, 2**40]), np.array([5, 2**33, 0])
    for seed, stage, step, count in [(0, 0, 0, 1), (2**63 + 5, 3, (2 << 16) + 1, 22)]:
        ours = _native.uniforms(seed, sweeps, ordinals, stage, step, count)
        theirs = reference.uniforms(seed, sweeps, ordinals, stage, step, count)
        assert ours.dtype == np.float64
        assert (ours == theirs).all()
    assert _native.uniforms(1, sweeps, ordinals, 0, 0, 0).shape == (3, 0)


# ---- programs without steps ------------------------------------------------------------------------------


def run(pictures, ops, size, *, color=0, **options):
    """Run ops, (kind, numbers), on JPEGs or on arrays. Returns (n, height, width, channels), and the faults."""
    encoded = [b"" if isinstance(picture, np.ndarray) else picture for picture in pictures]
    bounds = np.cumsum([0, *map(len, encoded)])
    width, height = size
    shape = (len(pictures), height, width, 1 if color == 2 else 3)
    memory = np.full(math.prod(shape) + 200, 77, np.uint8)
    out = memory[100:-100].reshape(shape)
    numbers = [number for _, row in ops for number in row]
    batch = _native.PictureBatch(
        np.frombuffer(b"".join(encoded), np.uint8),
        bounds,
        {i: picture for i, picture in enumerate(pictures) if isinstance(picture, np.ndarray)},
        np.array([kind for kind, _ in ops], np.uint8),
        np.tile(np.array(numbers, np.float64), (len(pictures), 1)),
        out=out,
        color=color,
        upright=options.pop("upright", True),
        **options,
    )
    wrong = batch.result()
    assert (memory[:100] == 77).all(), "nothing is written before the pictures"
    assert (memory[-100:] == 77).all(), "nor behind them"
    return out, wrong


def noise(width, height, channels=3, seed=0):
    """A picture of nothing but black and white."""
    rng = np.random.default_rng([seed, width, height])
    return rng.integers(0, 2, (height, width, channels)).astype(np.uint8) * 255


def resized(pixels, width, height, filter):
    out, wrong = run([pixels], [(RESIZE, (width, height, filter))], (width, height), color=2 * (pixels.shape[2] == 1))
    assert wrong == []
    return out[0]


@pytest.mark.parametrize("filter", range(6))
@pytest.mark.parametrize("channels", [1, 3])
def test_resized_pictures_match_pillow_and_opencv_within_a_level(filter, channels):
    rng = np.random.default_rng(filter)
    sides = [1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 50, 98]
    for seed in range(examples(15)):
        w, h, width, height = (int(side) for side in rng.choice(sides, 4)) if seed else (98, 6, 2, 34)
        pixels = noise(w, h, channels, seed) if seed % 2 else drawn(max(w, 4), max(h, 4), seed)[:, :, :channels]
        expected = reference.resize(pixels, width, height, filter)
        difference = resized(pixels, width, height, filter) - expected.astype(int)
        assert abs(difference).max() <= (0 if filter in (0, 3) else 1), (w, h, width, height)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        *[((1, 1), (9, 7)), ((20000, 3), (1, 3)), ((3, 20000), (3, 1)), ((6001, 5), (3, 2)), ((5, 6001), (300, 3))],
        *[((130, 131), (2, 2)), ((129, 129), (2, 2)), ((2, 3), (400, 1)), ((65, 65), (1, 1)), ((64, 64), (1, 1))],
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_the_largest_ratios_are_within_a_level_of_pillow(before, after, channels):
    pixels = noise(*before, channels)
    pixels[:, ::2] //= 2  # means other than 127
    found = resized(pixels, *after, 1)
    assert abs(found - reference.resize(pixels, *after, 1).astype(int)).max() <= 1
    assert abs(found - reference.unrounded(pixels, *after, 1)).max() <= 0.53
    flat = np.full_like(pixels, 200)
    assert (resized(flat, *after, 1) == 200).all()


@pytest.mark.parametrize("mode", range(4))
def test_borders_match_numpy(mode):
    for seed, (w, h) in enumerate([(1, 1), (2, 1), (1, 3), (3, 2), (5, 4)]):
        pixels = np.random.default_rng(seed).integers(0, 256, (h, w, 3)).astype(np.uint8)
        for left, top, right, bottom in [(0, 0, 0, 0), (1, 0, 0, 2), (7, 3, 4, 11), (0, 13, 30, 1)]:
            expected = reference.pad(pixels, left, top, right, bottom, mode, 9)
            found, _ = run([pixels], [(PAD, (left, top, right, bottom, mode, 9))], expected.shape[1::-1])
            assert (found[0] == expected).all(), (w, h, left, top, right, bottom)


@pytest.mark.parametrize("turned", range(1, 9))
def test_crops_of_turned_pictures(turned):
    data = encoded(drawn(45, 30), turned=turned)
    stored, _ = run([data], [], (45, 30), upright=False)
    upright = reference.upright(stored[0], turned)
    height, width = upright.shape[:2]
    assert (width, height) == ((30, 45) if turned >= 5 else (45, 30))
    whole, wrong = run([data], [], (width, height))
    assert wrong == []
    assert (whole[0] == upright).all()
    for x, y, w, h in [(0, 0, 1, 1), (3, 5, 20, 17), (width - 7, height - 4, 7, 4)]:
        expected = upright[y : y + h, x : x + w]
        part, wrong = run([data], [(CROP, (x, y, w, h))], (w, h))
        assert wrong == []
        assert (part[0] == expected).all()
        part, wrong = run([data], [(CROP, (x, y, w, h)), (RESIZE, (w, h, 1)), (FLIP, (1, 1))], (w, h))
        assert wrong == []
        assert (part[0] == expected[::-1, ::-1]).all()  # a size that stays


@pytest.mark.parametrize("turned", range(1, 9))
def test_turned_pictures_are_shrunk_where_asked(turned):
    picture = Image.fromarray(drawn(200, 160)).resize((400, 320))  # smooth: nothing is lost
    data = encoded(picture, turned=turned)
    size = (20, 25) if turned >= 5 else (25, 20)
    crop = (40, 40, 160, 200) if turned >= 5 else (40, 40, 200, 160)
    ops = [(CROP, crop), (RESIZE, (*size, 1))]
    found, wrong = run([data], ops, size, shrink=True)
    assert wrong == []
    exact, _ = run([data], ops, size)
    assert (found != exact).any()  # it was shrunk
    difference = abs(found - exact.astype(int))
    assert difference.mean() < 3  # of a picture that is turned wrongly, 60
    assert difference.max() <= 20


def test_colors_of_cmyk_are_pillows():
    cmyk = Image.merge("CMYK", [Image.fromarray(drawn(40, 30, i)[:, :, 0]) for i in range(4)])
    data = encoded(cmyk, quality=95)
    marker = data.index(b"Adobe") + 11  # the components: 0 CMYK, 2 YCCK
    assert data[marker] == 0
    for kind in (0, 2):
        data = data[:marker] + bytes([kind]) + data[marker + 1 :]
        with Image.open(io.BytesIO(data)) as picture:
            expected = {0: picture.convert("RGB"), 2: picture.convert("L")}
        for color in (0, 1, 2):
            (found,), wrong = run([data], [], (40, 30), color=color)
            theirs = np.asarray(expected[color & 2]).reshape(30, 40, -1)[:, :, :: -1 if color == 1 else 1]
            assert wrong == []
            assert abs(found - theirs.astype(int)).max() <= 1


@pytest.mark.parametrize(("scans", "words"), [(1, None), (100, None), (101, "more than 100 scans")])
def test_a_picture_of_very_many_scans_is_refused(scans, words):
    data = encoded(Image.fromarray(drawn(40, 30)[:, :, 0]), progressive=True)
    begin = data.index(b"\xff\xda")
    end = data.index(b"\xff\xc4", begin)  # the tables of the next one
    dc = bytearray(data[begin:end])
    assert dc[:10] == b"\xff\xda\x00\x08\x01\x01\x00\x00\x00\x01"
    dc[9] = 0  # all bits of the means at once, as often as wanted
    (found,), wrong = run([data[:begin] + bytes(dc) * scans + b"\xff\xd9"], [], (40, 30), color=2)
    assert [words in what for _, what in wrong] == ([] if words is None else [True])
    assert (found.max() == 0) == bool(words)


# ---- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 2.0**31, -(2.0**31)])
@pytest.mark.parametrize(("kind", "arity"), [(CROP, 4), (RESIZE, 3), (FLIP, 2), (PAD, 6), (JITTER, 5)])
def test_numbers_that_are_none_are_refused(kind, arity, number):
    for place in range(arity):
        numbers = [1.0] * arity
        numbers[place] = number
        with pytest.raises(ValueError, match=r"numbers of at most 2\*\*30"):
            run([noise(4, 4)], [(kind, numbers)], (4, 4))


@pytest.mark.parametrize(
    ("op", "words"),
    [
        ((RESIZE, (4, 4, 6)), "a filter from 0 to 5"),
        ((RESIZE, (4, 4, -1)), "a filter from 0 to 5"),
        ((PAD, (0, 0, 0, 0, 4, 0)), "a border from 0 to 3"),
        ((PAD, (0, 0, 0, 0, -1, 0)), "a border from 0 to 3"),
        ((PAD, (0, 0, 0, 0, 0, 256)), "a value from 0 to 255"),
        ((JITTER, (1, 1, 1, 0, 24)), "an order from 0 to 23"),
        ((6, ()), "kinds of operations from 1 to 5"),
    ],
)
def test_choices_that_there_are_not(op, words):
    with pytest.raises(ValueError, match=words):
        run([noise(4, 4)], [op], (4, 4))


@pytest.mark.parametrize(
    ("op", "words"),
    [
        ((CROP, (0, 0, 0, 4)), r"a crop inside of 4 x 4 pixels, got 0 x 4 at \(0, 0\)"),
        ((CROP, (2**30, 2**30, 2**30, 2**30)), "a crop inside of 4 x 4"),
        ((CROP, (-1, 0, 4, 4)), "a crop inside of 4 x 4"),
        ((RESIZE, (0, 4, 1)), "a size of at least 1 x 1, got 0 x 4"),
        ((RESIZE, (2**30, 2**30, 1)), "at most 1000 pixels"),
        ((PAD, (-1, 0, 0, 0, 0, 0)), "borders of at least 0 pixels"),
        ((PAD, (2**30, 2**30, 2**30, 2**30, 2, 0)), "at most 1000 pixels"),
        ((PAD, (1, 0, 0, 0, 3, 0)), "its steps lead to 5 x 4 pixels, not to 4 x 4"),
    ],
)
def test_pictures_that_an_operation_does_not_fit(op, words):
    out, ((place, what),) = run([noise(4, 4)], [op], (4, 4), max_pixels=1000)
    assert place == 0
    assert re.search(words, what)
    assert (out == 0).all()


@pytest.mark.parametrize("factor", [-(2.0**30), -1.0, 0.0, 1e-300, 2.0**30])
def test_colors_are_changed_by_any_number(factor):
    (found,), wrong = run([drawn(9, 7)], [(JITTER, (factor, factor, factor, factor, 11))], (9, 7))
    assert wrong == []
    assert found.shape == (7, 9, 3)
    whole_turns, _ = run([drawn(9, 7)], [(JITTER, (1, 1, 1, float(round(factor)), 0))], (9, 7))
    assert abs(whole_turns[0] - drawn(9, 7).astype(int)).max() <= 1


# ---- variants --------------------------------------------------------------------------------------------

VARIANT = """
import hashlib
import numpy as np
from feedline import _native

rng, found = np.random.default_rng(5), hashlib.sha256()
for k in range(400):
    channels, filter = int(rng.choice([1, 3, 3])), int(rng.integers(0, 6))
    height, width, to_height, to_width = (int(n) for n in rng.integers(1, 300 if k % 50 == 0 else 60, 4))
    pixels = rng.integers(0, 256, (height, width, channels)).astype(np.uint8)
    planes, floats = bool(rng.integers(2)), bool(rng.integers(2))
    shape = (1, channels, to_height, to_width) if floats and planes else (1, to_height, to_width, channels)
    out = np.zeros(shape, np.float32 if floats else np.uint8)
    numbers = rng.normal(size=(2, channels)).astype(np.float32) if floats else (None, None)
    colors = [*rng.uniform(0, 2, 3), rng.uniform(-0.5, 0.5), rng.integers(24)]
    moved = [to_width, to_height, filter, rng.integers(2), rng.integers(2)]
    batch = _native.PictureBatch(
        np.empty(0, np.uint8), np.zeros(2, np.int64), {0: pixels}, np.array([2, 3, 5], np.uint8),
        np.array([[*moved, *colors]], float), out=out, upright=False,
        color=int(rng.integers(2)) if channels == 3 else 2, mean=numbers[0], scale=numbers[1], chw=planes,
    )
    assert batch.result() == []
    found.update(out.tobytes())
print(found.hexdigest())
"""


def test_all_variants_return_the_same_bits():
    found = {
        subprocess.run(
            [sys.executable, "-c", VARIANT],
            env={**os.environ, "FEEDLINE_SIMD": simd},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for simd in ("portable", "sse41", "avx2")
    }
    assert len(found) == 1
