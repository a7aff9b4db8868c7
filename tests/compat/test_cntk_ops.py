"""CNTK's operations that combine several of the graph's, against NumPy. The others are tested in tests/graph."""

from __future__ import annotations

import functools

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline.cntk as C  # noqa: E402
from tests.oracles.network import convolve  # noqa: E402

close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6)
IMAGES = np.random.default_rng(0).normal(size=(3, 8, 4, 6)).astype(np.float32)


@pytest.fixture
def image():
    return C.input_variable((8, 4, 6))


def test_depth_to_space(image):
    """Of each block of four channels' cells, one block of two by two cells."""
    y = C.depth_to_space(image, 2)
    found = y.eval({image: IMAGES})
    assert found.shape == (3, 2, 8, 12)
    for c, h, w in np.ndindex(2, 8, 12):
        np.testing.assert_array_equal(found[:, c, h, w], IMAGES[:, (h % 2 * 2 + w % 2) * 2 + c, h // 2, w // 2])
    np.testing.assert_array_equal(C.space_to_depth(y, 2).eval({image: IMAGES}), IMAGES)
    with pytest.raises(ValueError, match="multiple of 9 channels, got 8"):
        C.depth_to_space(image, 3)
    with pytest.raises(ValueError, match="that 4 divides, got 4 and 6"):
        C.space_to_depth(image, 4)


def test_one_hot_of_numbers_of_no_class_is_zero():
    """Scripts mark padding by -1. CNTK cuts off fractions."""
    x, numbers = C.input_variable(1), np.array([[5], [-1], [1.7], [2], [-0.5]], np.float32)
    expected = np.zeros((5, 1, 3), np.float32)
    expected[2, 0, 1] = expected[3, 0, 2] = 1
    np.testing.assert_array_equal(C.one_hot(x, 3).eval({x: numbers}), expected)
    s, identity = C.input_variable(()), np.identity(3, np.float32)
    product = C.times(C.one_hot(s, 3, sparse_output=True), identity)
    np.testing.assert_array_equal(product.eval({s: numbers[:, 0]}), expected[:, 0])
    np.testing.assert_array_equal(product.eval({s: np.float32([2, 0])}), identity[[2, 0]])


def test_crops(image):
    like = C.input_variable((1, 2, 3))
    found = C.crop_manual(image, like, 2, 1).eval({image: IMAGES, like: IMAGES[:, :1, :2, :3]})
    np.testing.assert_array_equal(found, IMAGES[:, :, 1:3, 2:5])
    with pytest.raises(ValueError, match=r"\(2, 3\) cells from \(1, 4\) on within the last two axes"):
        C.crop_manual(image, like, 4, 1)


def test_local_response_normalization(image):
    found = C.local_response_normalization(image, 2, 1.5, 0.3, 0.75).eval({image: IMAGES})
    for c in range(8):
        around = np.square(IMAGES[:, max(0, c - 2) : c + 3]).sum(1)
        close(found[:, c], IMAGES[:, c] / (1.5 + 0.3 * around / 5) ** 0.75)
    close(C.local_response_normalization(image, 0, 1, 1, 1).eval({image: IMAGES}), IMAGES / (1 + np.square(IMAGES)))


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("scaling", [False, True])
def test_mean_variance_normalization(image, across, scaling):
    axes = (1, 2, 3) if across else (2, 3)
    found = C.mean_variance_normalization(image, 0.5, across, scaling).eval({image: IMAGES})
    expected = IMAGES - IMAGES.mean(axes, keepdims=True)
    if scaling:
        expected = expected / (IMAGES.std(axes, keepdims=True) + 0.5)
    close(found, expected)


def test_sums_and_means():
    a, b = C.input_variable(2), C.input_variable(2)
    fed = {a: np.float32([[1, 2]]), b: np.float32([[3, 5]])}
    close(C.sum([a, b, b]).eval(fed), [[7, 12]])
    close(C.mean(a, b).eval(fed), [[2, 3.5]])
    close(C.sum(a).eval({a: fed[a]}), fed[a])


def test_the_largest(image):
    values, numbers = C.top_k(image, 2).outputs
    found = C.top_k(image, 2).eval({image: IMAGES})
    assert [v.shape for v in found.values()] == [(3, 8, 4, 2)] * 2
    found = C.combine(values, numbers).eval({image: IMAGES})
    close(np.take_along_axis(IMAGES, found[numbers].astype(int), -1), found[values])
    close(found[values][..., 0], IMAGES.max(-1))


def test_unpooling_goes_back_to_the_maxima(image):
    pooled = C.layers.MaxPooling((2, 2), strides=2)(image)
    back = C.layers.MaxUnpooling((2, 2), strides=2)(pooled, image)
    found = back.eval({image: IMAGES})
    assert found.shape == IMAGES.shape
    close(found[found != 0], IMAGES[found != 0])
    close(np.sort(found[found != 0]), np.sort(pooled.eval({image: IMAGES}).ravel()))
    with pytest.raises(ValueError, match="after pooling"):
        C.unpooling(pooled, image, C.MAX_UNPOOLING, (3, 3), (2, 2))


def test_classes_are_drawn_by_their_weights():
    torch.manual_seed(0)
    drawn = C.random_sample(C.Constant(np.float32([1, 0, 3])), 400, True).eval()
    assert drawn.shape == (400, 3)
    np.testing.assert_array_equal(drawn.sum(1), 1)
    close(drawn.mean(0), [0.25, 0, 0.75], atol=0.07)


def test_assignments():
    p = C.parameter((2,), init=1)
    close(C.assign(p, p * 3).eval(), [3, 3])
    close(p.value, [3, 3])


@pytest.mark.parametrize(
    ("late", "settings"),
    [
        (False, {}),
        (False, {"strides": 2}),
        (False, {"strides": (2, 1, 1), "auto_padding": [True, False, True]}),
        (True, {}),
        (True, {"strides": 2}),
    ],
)
def test_a_kernel_with_as_many_axes_as_the_data_is_one_filter(late, settings):
    """AlexNet sums squares of neighbouring channels so, before its data is known."""
    kernel = np.random.default_rng(1).normal(size=(1, 3, 1, 2)).astype(np.float32)
    x = C.input_variable((1, 8, 4, 6))
    operand = C.placeholder() if late else x
    found = C.convolution(C.constant(kernel), C.square(operand), **settings)
    found = found.replace_placeholders({operand: x}) if late else found
    strides = settings.get("strides", 1)
    strides = strides if isinstance(strides, tuple) else (strides,) * 3
    pad = settings.get("auto_padding", [True] * 3)
    expected = [convolve(kernel[None], cube[None] ** 2, strides, pad) for cube in IMAGES]
    close(found.eval({x: IMAGES[:, None]}), expected)
    assert found.shape == expected[0].shape
    with pytest.raises(ValueError, match="as many channels"):
        C.convolution(np.ones((2, 3, 1, 2), np.float32), x)
