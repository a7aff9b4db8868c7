"""Native code, compared with its twin: exactly where pixels are only moved, within a level where they are mixed."""

import numpy as np
import pytest

from feedline import _native, images
from tests.images.conftest import BUILT, NAMES
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
