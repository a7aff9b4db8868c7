"""Boxes move with the pixels that they surround."""

import numpy as np
import pytest

from feedline import images
from feedline.images.boxes import move_boxes
from tests.oracles import pictures as reference

STEPS = [
    [images.Flip(0.5, 0.5)],
    [images.Pad((3, 1, 7, 2)), images.Flip(0.5, 0.5)],
    [images.RandomCrop(40, pad_if_needed=True), images.Flip(0.5, 0.5)],
    [images.Resize((120, 80), filter="nearest"), images.CenterCrop((100, 70))],
    [images.CenterCrop(90), images.RandomCrop(60), images.Pad(5)],
]


def planned(steps, sizes, seed=0):
    rng, ops = np.random.default_rng(seed), []
    for step in steps:
        more, sizes = step.plan(sizes, rng.random((len(sizes), step.draws)))
        ops += more
    return ops


def surrounding(pixels):
    """Return the box around all pixels that are not 0. Zeros if there are none."""
    ys, xs = np.nonzero(pixels[:, :, 0])
    return [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1] if len(xs) else [0, 0, 0, 0]


@pytest.mark.parametrize("steps", STEPS, ids=repr)
def test_boxes_surround_what_they_surrounded(steps):
    rng = np.random.default_rng(1)
    sizes = np.tile([40, 60], (30, 1))
    low = rng.integers(0, [35, 55], (30, 2))
    boxes = np.concatenate([low, np.minimum(low + rng.integers(1, 30, (30, 2)), [40, 60])], axis=1)
    ops = planned(steps, sizes)
    found = move_boxes(boxes.astype(np.float32), np.ones(30, np.int64), sizes, ops)
    assert found.dtype == np.float32
    for i, (x1, y1, x2, y2) in enumerate(boxes.tolist()):
        pixels = np.zeros((60, 40, 1), np.uint8)
        pixels[y1:y2, x1:x2] = 1
        for kind, params in ops:
            pixels = reference.OPS[kind](pixels, *params[i].tolist())
        assert found[i].tolist() == surrounding(pixels), i


def test_boxes_are_clipped_and_keep_their_places():
    boxes = np.array([[-5, 2, 8, 300], [0, 0, 3, 3], [9, 9, 9, 12], [np.nan, 0, 1, 1], [30, 30, 20, 20]], np.float32)
    (ops, _), sizes = images.CenterCrop(10).plan(np.array([[20, 20]]), np.empty((1, 0))), np.array([[20, 20]])
    found = move_boxes(boxes, np.array([5]), sizes, ops)
    assert found.tolist() == [[0, 0, 3, 10], [0] * 4, [0] * 4, [0] * 4, [0] * 4]


def test_a_box_that_was_cut_off_does_not_come_back_with_a_border():
    ops = planned([images.CenterCrop(10), images.Pad(5)], np.array([[20, 20]]))
    found = move_boxes(np.array([[0, 0, 4, 4], [0, 0, 6, 6.0]]), np.array([2]), np.array([[20, 20]]), ops)
    assert found.tolist() == [[0, 0, 0, 0], [5, 5, 6, 6]]
    ops = planned([images.Pad(5)], np.array([[20, 20]]))
    found = move_boxes(np.array([[-3, -3, -1, -1], [-3, 2, 30, 4.0]]), np.array([2]), np.array([[20, 20]]), ops)
    assert found.tolist() == [[0, 0, 0, 0], [5, 7, 25, 9]]


def test_each_box_moves_with_its_own_picture():
    sizes = np.array([[100, 100], [10, 20], [50, 50]])
    ops = planned([images.Resize((10, 10))], sizes)
    boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 10], [5, 5, 50, 50.0]])
    found = move_boxes(boxes, np.array([1, 2, 0]), sizes, ops)
    assert found.tolist() == [[0, 0, 1, 1], [0, 0, 10, 5], [5, 2.5, 10, 10]]


def test_the_callers_boxes_stay_as_they_are():
    boxes = np.array([[-5, 0, 4, 4.0]])
    move_boxes(boxes, np.array([1]), np.array([[3, 3]]), [])
    assert boxes.tolist() == [[-5, 0, 4, 4]]
