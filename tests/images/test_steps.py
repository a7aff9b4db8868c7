"""Plans of steps: torchvision's sizes, places and distributions, and the same numbers for a picture in any company."""

import itertools
import math

import numpy as np
import pytest

from feedline import images
from feedline.images.step import CROP, JITTER, PAD_MODES, RESIZE
from tests.effort import examples
from tests.oracles import pictures as reference

RNG = np.random.default_rng(0)
SIZES = RNG.integers(1, 400, (200, 2))

STEPS = [
    images.CenterCrop((30, 200)),
    images.RandomCrop(20, pad_if_needed=True),
    images.RandomCrop((8, 12), padding=(3, 1), fill=9),
    images.RandomCrop((8, 12), padding=(3, 9, 30, 1), padding_mode="edge"),
    images.RandomCrop(32),
    images.RandomResizedCrop((20, 30)),
    images.RandomResizedCrop(9, scale=(0.9, 1.5), ratio=(0.2, 0.5), filter="nearest"),
    images.Resize(50),
    images.Resize(50, max_size=60),
    images.Resize((40, 30)),
    images.Flip(0.3, 0.6),
    images.ColorJitter(0.4, (0.5, 2.0), 1.5, 0.1),
    images.Pad((1, 2, 3, 4)),
]


@pytest.fixture(scope="module")
def torchvision():
    from tests.frameworks.vision import torchvision

    return torchvision.transforms


def draws(step, n, seed=0):
    return np.random.default_rng(seed).random((n, step.draws))


def apply(pixels, ops, i=0):
    for kind, params in ops:
        pixels = reference.OPS[kind](pixels, *params[i].tolist())
    return pixels


def picture(width, height, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)


# ---- laws of all steps -----------------------------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS, ids=repr)
def test_a_picture_gets_the_same_plan_in_any_company(step):
    u = draws(step, len(SIZES))
    ops, after = step.plan(SIZES, u)
    order = np.random.default_rng(1).permutation(len(SIZES))
    for which in [order, order[:7], order[:1], order[:0]]:
        some, sizes = step.plan(SIZES[which], u[which])
        assert [op.kind for op in some] == [op.kind for op in ops]
        assert (sizes == after[which]).all()
        assert all((a.params == b.params[which]).all() for a, b in zip(some, ops, strict=True))


@pytest.mark.parametrize("step", STEPS, ids=repr)
def test_sizes_match_the_pixels_after_the_operations(step):
    ops, after = step.plan(SIZES, draws(step, len(SIZES)))
    for i in range(25):
        if after[i].min() > 0:
            pixels = apply(picture(*SIZES[i]), ops, i)
            assert pixels.shape == (after[i, 1], after[i, 0], 3)


@pytest.mark.parametrize("step", STEPS, ids=repr)
def test_a_fixed_size_matches_all_pictures(step):
    _, after = step.plan(SIZES, draws(step, len(SIZES)))
    found = {tuple(size) for size in after.tolist()} - {(0, 0)}
    fixed = step.fixed_size(None)
    assert found == {fixed} if fixed is not None else len(found) > 1
    assert step.fixed_size((50, 60)) == tuple(step.plan(np.array([[50, 60]]), draws(step, 1))[1][0].tolist())


def test_plans_leave_their_arguments_alone():
    for step in STEPS:
        sizes, u = SIZES.copy(), draws(step, len(SIZES))
        kept = u.copy()
        step.plan(sizes, u)
        assert (sizes == SIZES).all(), step
        assert (u == kept).all(), step


# ---- sizes and places as torchvision's -------------------------------------------------------------------


@pytest.mark.frameworks("torch", "torchvision")
@pytest.mark.parametrize(("size", "max_size"), [(50, None), (7, 9), (224, 225), (1, None), (100, 3000)])
def test_resize_has_torchvisions_sizes(torchvision, size, max_size):
    sides = np.array(list(itertools.product([1, 2, 3, 49, 50, 51, 99, 100, 224, 375, 500, 1999], repeat=2)))
    _, after = images.Resize(size, max_size=max_size).plan(sides, np.empty((len(sides), 0)))
    for (width, height), found in zip(sides.tolist(), after.tolist(), strict=True):
        rule = torchvision.functional._compute_resized_output_size((height, width), [size], max_size=max_size)
        assert found == [max(side, 1) for side in rule[::-1]]


@pytest.mark.frameworks("torch", "torchvision")
def test_center_crop_is_torchvisions(torchvision):
    import torch

    for width, height in itertools.product([1, 4, 5, 6, 7, 8, 11], repeat=2):
        ops, _ = images.CenterCrop((5, 6)).plan(np.array([[width, height]]), np.empty((1, 0)))
        pixels = picture(width, height)
        expected = torchvision.functional.center_crop(torch.from_numpy(pixels).permute(2, 0, 1), [5, 6])
        assert (apply(pixels, ops) == expected.permute(1, 2, 0).numpy()).all(), (width, height)


@pytest.mark.frameworks("torch", "torchvision")
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.parametrize("padding", [2, [3], (3, 1), (4, 1, 2, 3)])
def test_pad_is_torchvisions(torchvision, padding, mode):
    import torch

    pixels = picture(5, 6)
    ops, _ = images.Pad(padding, 7, mode).plan(np.array([[5, 6]]), np.empty((1, 0)))
    borders = padding if isinstance(padding, int) else list(padding)
    expected = torchvision.functional.pad(torch.from_numpy(pixels).permute(2, 0, 1), borders, 7, mode)
    assert (apply(pixels, ops) == expected.permute(1, 2, 0).numpy()).all()


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.parametrize(
    ("padding", "border"),
    [(None, (0,) * 4), (1, (1,) * 4), (4, (4,) * 4), ((3, 9), (3, 9, 3, 9)), ((6, 0, 1, 13), (6, 0, 1, 13))],
)
def test_random_crop_is_a_window_of_the_padded_picture(padding, border, mode):
    step = images.RandomCrop((5, 6), padding, pad_if_needed=True, fill=7, padding_mode=mode)
    left, top, right, bottom = border
    for i, (width, height) in enumerate(itertools.product([1, 3, 5, 6, 9], repeat=2)):
        u = draws(step, 1, i)
        pixels = picture(width, height, i)
        padded = reference.pad(pixels, left, top, right, bottom, PAD_MODES[mode], 7)
        lack_w, lack_h = max(6 - padded.shape[1], 0), max(5 - padded.shape[0], 0)
        padded = reference.pad(padded, lack_w, lack_h, lack_w, lack_h, PAD_MODES[mode], 7)
        x = math.floor(u[0, 0] * (padded.shape[1] - 6 + 1))
        y = math.floor(u[0, 1] * (padded.shape[0] - 5 + 1))
        ops, _ = step.plan(np.array([[width, height]]), u)
        assert (apply(pixels, ops) == padded[y : y + 5, x : x + 6]).all()


def test_random_crop_decodes_no_more_than_it_needs():
    for step in [images.RandomCrop(8), images.RandomCrop(8, 4), images.RandomCrop(8, pad_if_needed=True)]:
        assert step.plan(np.array([[20, 30]]), draws(step, 1))[0][0].kind == CROP


def test_every_place_of_a_random_crop_is_equally_likely():
    step = images.RandomCrop(5)
    n = examples(3000)
    ops, _ = step.plan(np.tile([7, 8], (n, 1)), draws(step, n))
    counts = np.zeros((3, 4))
    np.add.at(counts, tuple(ops[0].params[:, :2].astype(int).T), 1)
    assert abs(counts / n * 12 - 1).max() < 6 * math.sqrt(12 / n)


def test_a_picture_smaller_than_a_random_crop_is_refused():
    step = images.RandomCrop((50, 60), padding=5)
    _, after = step.plan(np.array([[50, 40], [49, 40], [50, 39]]), draws(step, 3))
    assert after.tolist() == [[60, 50], [0, 0], [0, 0]]
    assert "at least 50 x 40" in step.refused(49, 40)
    assert "got 49 x 40; pass pad_if_needed=True" in step.refused(49, 40)


# ---- random resized crops --------------------------------------------------------------------------------


def drawn(u, width, height, scale, ratio):
    """Return x, y, width and height by torchvision's rule: ten draws of an area, ten of a ratio, and two of a place."""
    area = width * height
    for k in range(10):
        target = area * (scale[0] + u[k] * (scale[1] - scale[0]))
        low, high = math.log(ratio[0]), math.log(ratio[1])
        aspect = math.exp(low + u[10 + k] * (high - low))
        w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < w <= width and 0 < h <= height:
            return [math.floor(u[20] * (width - w + 1)), math.floor(u[21] * (height - h + 1)), w, h]
    w, h = width, height
    if width / height < ratio[0]:
        h = round(width / ratio[0])
    elif width / height > ratio[1]:
        w = round(height * ratio[1])
    w, h = max(w, 1), max(h, 1)  # 0 in torchvision, of a picture that is all border
    return [(width - w) // 2, (height - h) // 2, w, h]


@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.9, 1.0), (2.0, 3.0)])
@pytest.mark.parametrize("ratio", [(3 / 4, 4 / 3), (0.1, 0.2), (1.0, 1.0)])
def test_random_resized_crop_follows_the_rule(scale, ratio):
    step = images.RandomResizedCrop(24, scale=scale, ratio=ratio)
    sizes = np.concatenate([SIZES, [[500, 375], [375, 500], [3, 400], [400, 3]]])
    u = draws(step, len(sizes))
    ops, _ = step.plan(sizes, u)
    assert [op.kind for op in ops] == [CROP, RESIZE]
    expected = [drawn(v, *size, scale, ratio) for v, size in zip(u.tolist(), sizes.tolist(), strict=True)]
    assert ops[0].params.tolist() == expected


@pytest.mark.frameworks("torch", "torchvision")
@pytest.mark.parametrize(("width", "height"), [(500, 375), (100, 300), (60, 400)])
def test_random_resized_crop_has_torchvisions_distribution(torchvision, width, height):
    import torch

    torch.manual_seed(1)
    n = examples(750)
    blank = torch.empty(3, height, width)
    theirs = np.array([torchvision.RandomResizedCrop.get_params(blank, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(n)])
    step = images.RandomResizedCrop(24)
    ops, _ = step.plan(np.tile([width, height], (8 * n, 1)), draws(step, 8 * n))
    for column in range(4):  # theirs: top, left, height, width
        ours = ops[0].params[:, [1, 0, 3, 2][column]]
        assert distance(ours, theirs[:, column]) < 2.2 * math.sqrt(1 / n + 1 / (8 * n)), column
    ours, logs = ops[0].params, np.log(theirs[:, 3] / theirs[:, 2])
    assert distance(np.log(ours[:, 2] / ours[:, 3]), logs) < 2.2 * math.sqrt(1 / n + 1 / (8 * n))
    assert distance(ours[:, 2] * ours[:, 3], theirs[:, 2] * theirs[:, 3]) < 2.2 * math.sqrt(1 / n + 1 / (8 * n))


def distance(a, b):
    """Return the statistic of Kolmogorov and Smirnov: the largest distance between two distribution functions.

    It exceeds 2.2 sqrt(1/n + 1/m) for equal distributions with a probability below 2 exp(-2 * 2.2**2) = 1e-4. Draws
    here are fixed.
    """
    at = np.union1d(a, b)
    return abs(
        np.searchsorted(np.sort(a), at, "right") / len(a) - np.searchsorted(np.sort(b), at, "right") / len(b)
    ).max()


def test_our_exponential_is_exact_to_an_ulp():
    from feedline.images.cropping import _exp

    x = np.concatenate([np.linspace(-12, 12, 20001), [0.0, math.log(4 / 3)]])
    assert (abs(_exp(x) / np.exp(x) - 1) <= 2**-51).all()


# ---- flips and colours -----------------------------------------------------------------------------------


def test_flips_are_as_likely_as_they_should_be():
    step, n = images.Flip(0.3, 0.6), examples(2500)
    ops, _ = step.plan(np.ones((n, 2), np.int64), draws(step, n))
    both = ops[0].params.mean(axis=0)
    assert abs(both - [0.3, 0.6]).max() < 5 * 0.5 / math.sqrt(n)
    assert abs((ops[0].params[:, 0] * ops[0].params[:, 1]).mean() - 0.18) < 5 * 0.5 / math.sqrt(n)
    for p in (0.0, 1.0):
        ops, _ = images.Flip(p).plan(np.ones((n, 2), np.int64), draws(step, n))
        assert (ops[0].params == [p, 0]).all()


@pytest.mark.frameworks("torch", "torchvision")
@pytest.mark.parametrize(
    "given", [(0.4, 0.4, 0.4, 0.1), (1.5, (0.2, 3.0), 0, (-0.5, 0.2)), ((0.0, 0.5), 0, 2, 0), (0, 0, 0, 0.5)]
)
def test_color_jitter_has_torchvisions_ranges(torchvision, given):
    theirs = torchvision.ColorJitter(*given)
    ends = [theirs.brightness, theirs.contrast, theirs.saturation, theirs.hue]
    step, n = images.ColorJitter(*given), 2000
    (op,), _ = step.plan(np.ones((n, 2), np.int64), draws(step, n))
    assert op.kind == JITTER
    for k, expected in enumerate(ends):
        low, high = expected or ([1.0, 1.0, 1.0, 0.0][k],) * 2
        column = op.params[:, k]
        assert low <= column.min() <= column.max() <= high
        assert column.min() <= low + 0.01 * (high - low)
        assert column.max() >= high - 0.01 * (high - low)
    assert (np.bincount(op.params[:, 4].astype(int), minlength=24) > n / 24 / 2).all()


@pytest.mark.frameworks("torch", "torchvision")
def test_normalize_is_torchvisions_up_to_rounding(torchvision):
    import torch

    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    levels = np.arange(256, dtype=np.uint8)[:, None, None].repeat(3, axis=2)
    expected = torchvision.Compose([torchvision.ToTensor(), torchvision.Normalize(mean, std)])(levels)
    assert expected.dtype == torch.float32
    shift, factor = images.Normalize(mean, std).numbers(3)
    ours = (levels.astype(np.float32) - shift) * factor
    assert ours.dtype == np.float32
    assert abs(ours - expected.permute(1, 2, 0).numpy()).max() < 1e-6


def test_normalize_takes_levels_and_single_numbers():
    shift, factor = images.Normalize(128, [1, 2, 4], scale=1).numbers(3)
    assert (shift.tolist(), factor.tolist()) == ([128] * 3, [1, 0.5, 0.25])
    with pytest.raises(ValueError, match="std of Normalize for 1 channels, got"):
        images.Normalize(128, [1, 2, 4]).numbers(1)


# ---- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: images.CenterCrop(0), "side or .height, width. of at least 1 as size of CenterCrop, got 0"),
        (lambda: images.CenterCrop((1, 2, 3)), "of at least 1 as size"),
        (lambda: images.RandomCrop(2.5), "as size of RandomCrop"),
        (lambda: images.RandomCrop(2, padding=-1), "of at least 0 as padding of RandomCrop, got -1"),
        (lambda: images.RandomCrop(2, padding_mode="wrap"), "'reflect' or 'symmetric' as padding_mode"),
        (lambda: images.RandomCrop(2, fill=256), "from 0 to 255 as fill of RandomCrop, got 256"),
        (lambda: images.RandomResizedCrop(2, scale=(1, 0.5)), "scale of RandomResizedCrop"),
        (lambda: images.RandomResizedCrop(2, ratio=(0, 1)), "ratio of RandomResizedCrop"),
        (lambda: images.RandomResizedCrop(2, filter="cubic"), "'nearest' or 'triangle' as filter"),
        (lambda: images.Resize(5, max_size=5), "max_size of Resize above"),
        (lambda: images.Resize((5, 6), max_size=9), "max_size of Resize above one number"),
        (lambda: images.Flip(1.5), "probability from 0 to 1 as p of Flip, got 1.5"),
        (lambda: images.Pad((1, 2, 3)), "as padding of Pad"),
        (lambda: images.ColorJitter(-1), "brightness of ColorJitter"),
        (lambda: images.ColorJitter(hue=0.6), "hue of ColorJitter from -0.5 to 0.5"),
        (lambda: images.ColorJitter(contrast=(2, 1)), "contrast of ColorJitter from 0 to inf"),
        (lambda: images.Normalize(0, 0), "other than 0"),
        (lambda: images.Normalize(math.nan, 1), "one number or one for each channel as mean"),
        (lambda: images.Normalize(0, 1, layout="WHC"), "'CHW' or 'HWC'"),
        (lambda: images.MultiView(0), "at least one view"),
    ],
)
def test_wrong_arguments(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_views_are_made_of_steps():
    with pytest.raises(TypeError, match=r"images\.Flip in the views of MultiView, got 'flip'"):
        images.MultiView([["flip"]])


def test_steps_are_shown_as_they_were_written():
    assert repr(images.RandomCrop(32, padding=4)) == "RandomCrop(size=32, padding=4)"
    assert repr(images.MultiView([[], images.Flip(1.0)])) == "MultiView(views=[[], Flip(p=1.0)])"
