"""Decoders of the pictures that native code leaves to Python: formats, modes, and other files."""

import importlib
import io
import sys
import warnings

import numpy as np
import pytest
from PIL import Image

import feedline as fl
from feedline import _native
from feedline.cli import pictures
from feedline.images import decoders
from tests.images.pictures import drawn, encoded
from tests.oracles import pictures as reference

PICTURE = drawn(37, 23)
UNKNOWN = np.array([0, 0, 0, 0, 1], np.int32)


def decode(data, color="RGB", upright=True, max_pixels=10**6, header=None):
    flat = np.frombuffer(data, np.uint8)
    if header is None:
        header = reference.picture_headers(flat, np.array([0, len(flat)]))[0]
    return decoders.decode(flat, header, color=color, upright=upright, max_pixels=max_pixels)


@pytest.fixture(params=["simplejpeg", "Pillow"])
def jpeg_decoder(request, monkeypatch):
    """Either of the decoders of JPEG."""
    if request.param == "simplejpeg":
        pytest.importorskip("simplejpeg")
    else:
        monkeypatch.setattr(decoders, "_simplejpeg", lambda: None)
    return request.param


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "WEBP", "PPM", "TGA"])
def test_lossless_formats_give_their_pixels(kind):
    data = encoded(PICTURE, kind, **({"lossless": True} if kind == "WEBP" else {}))
    assert (decode(data) == PICTURE).all()
    assert (decode(data, "BGR") == PICTURE[:, :, ::-1]).all()
    grey = np.asarray(Image.fromarray(PICTURE).convert("L"))[:, :, None]
    assert (decode(data, "grey") == grey).all()


@pytest.mark.parametrize("color", decoders.COLORS)
@pytest.mark.parametrize("source", ["RGB", "L", "CMYK"])
def test_jpeg(jpeg_decoder, source, color):
    data = encoded(Image.fromarray(PICTURE).convert(source))
    with Image.open(io.BytesIO(data)) as picture:
        expected = np.asarray(picture.convert("RGB"))
    if color == "grey":
        with Image.open(io.BytesIO(data)) as picture:
            picture.draft("L", picture.size)
            expected = np.asarray(picture.convert("L"))[:, :, None]
    found = decode(data, color)
    assert found.dtype == np.uint8
    assert found.flags.c_contiguous
    assert abs(found.astype(int) - (expected[:, :, ::-1] if color == "BGR" else expected)).max() <= 1


@pytest.mark.parametrize("turned", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_pictures_are_turned_by_their_exif(jpeg_decoder, kind, turned):
    data = encoded(PICTURE, kind, turned=turned)
    stored = decode(data, upright=False)
    assert stored.shape == PICTURE.shape
    assert (decode(data) == reference.upright(stored, turned)).all()
    assert turned == 1 or not np.array_equal(decode(data), stored)


def test_tiff_is_upright_either_way():
    data = encoded(PICTURE, "TIFF", turned=6)
    expected = reference.upright(PICTURE, 6)
    assert (decode(data) == expected).all()
    assert (decode(data, upright=False) == expected).all()


def test_orientations_that_mean_nothing_turn_nothing():
    assert (decode(encoded(PICTURE, "PNG", turned=9)) == PICTURE).all()


def test_alpha_is_dropped():
    alpha = np.arange(37 * 23, dtype=np.uint8).reshape(23, 37)
    rgba = Image.fromarray(np.dstack([PICTURE, alpha]))
    assert (decode(encoded(rgba, "PNG")) == PICTURE).all()
    grey = PICTURE[:, :, 0]
    la = Image.merge("LA", [Image.fromarray(grey), Image.fromarray(alpha)])
    assert (decode(encoded(la, "PNG")) == grey[:, :, None]).all()
    assert (decode(encoded(la, "PNG"), "grey") == grey[:, :, None]).all()


@pytest.mark.parametrize("transparency", [None, 3, bytes(range(0, 250, 25))])
def test_palettes_become_colors(transparency):
    colors = np.random.default_rng(0).integers(0, 256, (10, 3)).astype(np.uint8)
    indices = np.random.default_rng(1).integers(0, 10, (23, 37)).astype(np.uint8)
    picture = Image.fromarray(indices)
    picture.putpalette(colors.tobytes())
    options = {} if transparency is None else {"transparency": transparency}
    for kind in ("PNG", "GIF") if not isinstance(transparency, bytes) else ("PNG",):
        assert (decode(encoded(picture, kind, **options)) == colors[indices]).all()


def test_the_first_frame_of_an_animation():
    frames = [Image.fromarray(np.full((5, 6), level, np.uint8)) for level in (10, 200)]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert (decode(data) == 10).all()


def test_of_sixteen_bits_the_upper_eight_are_kept():
    deep = (np.arange(23 * 37, dtype=np.uint16) * 75).reshape(23, 37)
    for kind in ("PNG", "TIFF"):
        data = encoded(Image.fromarray(deep), kind)
        assert (decode(data, "grey")[:, :, 0] == deep >> 8).all()
        assert (decode(data) == (deep >> 8)[:, :, None]).all()


def test_one_bit_is_black_or_white():
    bits = PICTURE[:, :, 0] > 127
    data = encoded(Image.fromarray(bits), "PNG")
    assert (decode(data) == np.where(bits, 255, 0)[:, :, None]).all()
    assert (decode(data, "grey") == np.where(bits, 255, 0)[:, :, None]).all()


@pytest.mark.parametrize("numbers", [np.float32, np.int32])
def test_thirty_two_bits_are_refused(numbers):
    data = encoded(Image.fromarray(np.ones((3, 4), numbers)), "TIFF")
    with pytest.raises(fl.DataError, match="8 or 16 bits"):
        decode(data)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP"])
def test_a_cut_picture_is_an_error(jpeg_decoder, kind):
    data = encoded(drawn(200, 200), kind)
    for length in (len(data) // 2, len(data) // 4, 100, 20, 3):
        with pytest.raises(fl.DataError, match=r"expected a whole picture|that Pillow knows") as caught:
            decode(data[:length])
        assert "on_error" in caught.value.hint


@pytest.mark.parametrize("data", [b"", b"GIF89a", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"no picture"])
def test_what_is_no_picture_is_an_error(data):
    with pytest.raises(fl.DataError, match="expected a"):
        decode(data, header=UNKNOWN)


def test_no_program_is_run_for_a_picture(tmp_path, monkeypatch):
    """Pillow hands EPS to Ghostscript."""
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n%%EndComments\nshowpage\n%%EOF\n"
    ran = tmp_path / "ran"
    (tmp_path / "gs").write_text(f"#!/bin/sh\necho $* >> {ran}\nexit 1\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    with pytest.raises(fl.DataError, match="expected a picture that Pillow knows"):
        decode(eps, header=UNKNOWN)
    with pytest.raises(fl.DataError, match="expected a picture that Pillow knows"):
        decoders.decode_mask(np.frombuffer(eps, np.uint8), 10**6)
    assert pictures._original(eps) is None
    assert not ran.exists()


@pytest.mark.parametrize("header", [None, UNKNOWN], ids=["measured", "unmeasured"])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_large_picture_is_not_decoded(kind, header, monkeypatch):
    data = encoded(PICTURE, kind)
    assert decode(data, max_pixels=37 * 23, header=header).shape == PICTURE.shape
    monkeypatch.setattr(Image.Image, "load", None)
    with pytest.raises(fl.DataError, match=f"at most {37 * 23 - 1} pixels, got 37 x 23") as caught:
        decode(data, max_pixels=37 * 23 - 1, header=header)
    assert "max_pixels" in caught.value.hint


def test_pillow_warns_of_nothing_while_it_decodes(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    data = encoded(PICTURE, "PNG")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        decode(data, header=UNKNOWN)
        assert caught == []
        Image.open(io.BytesIO(data))  # the program's own pictures
        assert [warning.category for warning in caught] == [Image.DecompressionBombWarning]


def test_masks_keep_their_numbers():
    numbers = np.random.default_rng(0).integers(0, 250, (23, 37)).astype(np.uint8)
    palette = Image.fromarray(numbers)
    palette.putpalette(bytes(range(256)) * 3)
    deep = Image.fromarray(numbers.astype(np.uint16))
    for picture in (Image.fromarray(numbers), palette, deep):
        assert (decode_mask(encoded(picture, "PNG"))[:, :, 0] == numbers).all()
    bits = numbers > 100
    assert (decode_mask(encoded(Image.fromarray(bits), "PNG"))[:, :, 0] == bits).all()


@pytest.mark.parametrize(
    ("picture", "words"),
    [
        (PICTURE, "mask of one number a pixel .*got RGB"),
        (np.array([[0, 256]], np.uint16), "from 0 to 255 in a mask, got 0 to 256"),
    ],
)
def test_masks_that_are_none(picture, words):
    with pytest.raises(fl.DataError, match=words):
        decode_mask(encoded(picture, "PNG"))
    with pytest.raises(fl.DataError, match="at most 5 pixels"):
        decoders.decode_mask(np.frombuffer(encoded(PICTURE, "PNG"), np.uint8), 5)


def decode_mask(data):
    return decoders.decode_mask(np.frombuffer(data, np.uint8), 10**6)


def test_the_path_names_decoders_and_versions(monkeypatch):
    monkeypatch.setattr(_native, "NATIVE_JPEG", "3.1.2", raising=False)
    assert decoders.path() == f"JPEG: native, libjpeg-turbo 3.1.2; others: Pillow {Image.__version__}"
    monkeypatch.setattr(_native, "NATIVE_JPEG", "")
    monkeypatch.setattr(decoders, "_simplejpeg", lambda: None)
    assert decoders.path() == f"JPEG: Pillow {Image.__version__}; others: Pillow {Image.__version__}"


def test_without_pillow_the_error_names_the_extra(monkeypatch):
    decoders.pillow.cache_clear()
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    monkeypatch.setattr(importlib, "import_module", _import_without(importlib.import_module))
    with pytest.raises(ModuleNotFoundError, match=r"pip install .*\[images\]'"):
        decode(encoded(PICTURE, "BMP"), header=UNKNOWN)
    decoders.pillow.cache_clear()


def _import_without(import_module):
    def find(name, *rest):
        if name == "PIL.Image":
            raise ModuleNotFoundError(name=name)
        return import_module(name, *rest)

    return find


def test_a_header_that_ends_in_its_exif_block():
    """Of 2 bytes, though its directory would lie 4 GB away."""
    data = b"\xff\xd8\xff\xe1\x00\x02Exif\x00\x00II*\x00\xf0\xff\xff\xff" + bytes(32)
    header = _native.picture_headers(np.frombuffer(data, np.uint8), np.array([0, len(data)]))
    assert header.tolist() == [[1, 0, 0, 0, 1]]
