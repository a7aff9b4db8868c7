"""Fast paths of networks equal the general ones: labels as classes, sums of products and biases."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from feedline.data import Value
from feedline.networks import apply
from feedline.networks.compile import Network
from feedline.networks.packed_minibatch import SparseRows
from tests.graph.worlds import given, offsets, one_hot, packed, weights
from tests.inside import fed
from tests.oracles import criteria


def labels(kind, hot, rng):
    value = one_hot(rng, 5).dense()
    rows = value.rows if hot else value.rows * 0.9 + 0.02
    return Value.from_dense(rows.astype(np.float64), offsets()) if kind == "s" else Value.from_dense(rows[:4])


@pytest.mark.parametrize("hot", [True, False])
@pytest.mark.parametrize("kind", ["s", "b"])
def test_one_hot_labels_are_classes(kind, hot):
    rng = np.random.default_rng(0)
    value = labels(kind, hot, rng)
    z = torch.from_numpy(rng.uniform(-1, 1, value.rows.shape))
    nodes = given((5,), kind), given((5,), kind)
    network = Network([apply(op, nodes) for op in ("cross_entropy_with_softmax", "classification_error")])
    seen = fed(network, nodes[1])

    def function(z):
        return network({nodes[0]: packed(z, kind), nodes[1]: value})[0].data

    loss, error = (found.data for found in network({nodes[0]: packed(z, kind), nodes[1]: value}))
    assert [type(x) is SparseRows for x in seen] == [hot, hot]
    pairs = list(zip(z.numpy(), value.rows, strict=True))
    np.testing.assert_allclose(loss, [criteria.cross_entropy(a, b) for a, b in pairs], rtol=1e-12)
    np.testing.assert_allclose(error, [criteria.classification_error(a, b) for a, b in pairs], atol=1e-15)
    z.requires_grad_()
    assert torch.autograd.gradcheck(function, [z])
    assert torch.autograd.gradgradcheck(function, [z])


@pytest.mark.parametrize("use", ["result", "operand", "scores", "axis", "top"])
def test_labels_that_are_more_stay_dense(use):
    rng = np.random.default_rng(0)
    value = labels("s", True, rng)
    z, y = given((5,), "s"), given((5,), "s")
    settings = {"axis": {"axis": 0}, "top": {"top": 2}}.get(use, {})
    roots = [apply("classification_error", [y, z] if use == "scores" else [z, y], settings)]
    roots += {"result": [y], "operand": [apply("exp", [y])]}.get(use, [])
    network = Network(roots)
    seen = fed(network, y)
    network({z: packed(torch.from_numpy(rng.uniform(-1, 1, value.rows.shape)), "s"), y: value})
    assert seen
    assert not any(type(x) is SparseRows for x in seen)


@pytest.mark.parametrize("columns", [1, 7, 20])
@pytest.mark.parametrize("width", [3, 2500])  # few numbers, and enough to turn a narrow matrix
@pytest.mark.parametrize("turned", [False, True])
def test_a_product_and_its_bias_are_one_step(columns, width, turned):
    rng = np.random.default_rng(columns)
    x, w, b = rng.uniform(-1, 1, (4, width)), rng.uniform(-1, 1, (width, columns)), rng.uniform(-1, 1, columns)
    node, matrix, bias = given((width,), "b"), weights(w), weights(b, "b")
    product = apply("times", [node, matrix])
    root = apply("plus", [bias, product] if turned else [product, bias])
    feeds = {node: Value.from_dense(x)}
    one, two = Network([root]), Network([root, product])
    assert (len(one.steps), len(two.steps)) == (1, 2)
    y, (again, alone) = one(feeds)[0].data, (found.data for found in two(feeds))
    np.testing.assert_allclose(y.detach(), x @ w + b, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(again.detach(), y.detach(), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(alone.detach(), x @ w, rtol=1e-12, atol=1e-12)
    slope = rng.uniform(-1, 1, y.shape)
    found = torch.autograd.grad(y, [matrix.weights.tensor, bias.weights.tensor], torch.from_numpy(slope))
    np.testing.assert_allclose(found[0], x.T @ slope, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found[1], slope.sum(0), rtol=1e-12, atol=1e-12)


def test_sparse_rows_times_a_matrix_and_a_bias():
    rng = np.random.default_rng(0)
    w, b, value = rng.uniform(-1, 1, (6, 3)), rng.uniform(-1, 1, 3), one_hot(rng, 6)
    node = given((6,), "s", sparse=True)
    root = apply("plus", [apply("times", [node, weights(w)]), weights(b, "b")])
    np.testing.assert_allclose(Network([root])({node: value})[0].data.detach(), value.dense().rows @ w + b, rtol=1e-12)


CONVOLUTION = {"strides": (1, 1), "dilation": (1, 1), "pad": (True, True), "groups": 1}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("filters", [2, 17])  # few channels, and enough to pool them last
def test_convolutions_with_biases_rectified_and_pooled(filters, turned):
    rng = np.random.default_rng(filters)
    x = rng.uniform(-1, 1, (4, 3, 7, 8))
    node, kernel = given((3, 7, 8), "b"), weights(rng.uniform(-1, 1, (filters, 3, 3, 3)))
    bias = weights(rng.uniform(-1, 1, (filters, 1, 1)), "b")
    whole = apply("convolution", [kernel, node], CONVOLUTION)
    plus = apply("plus", [bias, whole] if turned else [whole, bias])
    relu = apply("relu", [plus])
    root = apply("max_pooling", [relu], {"window": (3, 2), "strides": (2, 2), "pad": (False, False)})
    fast, slow = Network([root]), Network([root, whole, plus, relu])
    assert (len(fast.steps), len(slow.steps)) == (3, 4)
    found, expected = (network({node: Value.from_dense(x)})[0].data for network in (fast, slow))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    w, b = kernel.weights.tensor, bias.weights.tensor
    by_hand = torch.nn.functional.conv2d(torch.from_numpy(x), w, b.reshape(-1), padding=1)
    by_hand = torch.nn.functional.max_pool2d(torch.relu(by_hand), (3, 2), (2, 2))
    torch.testing.assert_close(found, by_hand, rtol=1e-12, atol=1e-12)
    slope = torch.from_numpy(rng.uniform(-1, 1, found.shape))
    gradients = [torch.autograd.grad(y, [w, b], slope) for y in (found, expected, by_hand)]
    for ours in gradients[:2]:
        for one, other in zip(ours, gradients[2], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_results_that_are_needed_are_not_overwritten():
    rng = np.random.default_rng(0)
    x, w = rng.uniform(-1, 1, (4, 3)), rng.uniform(-1, 1, (3, 2))
    node, matrix = given((3,), "b"), weights(w)
    product = apply("times", [node, matrix])
    relu = apply("relu", [product])
    network = Network([relu, product, apply("relu", [node]), apply("relu", [matrix])])
    feeds = {node: Value.from_dense(x.copy())}
    for _ in range(2):
        found = [result.data.detach() for result in network(feeds)]
        for one, expected in zip(found, [np.maximum(x @ w, 0), x @ w, np.maximum(x, 0), np.maximum(w, 0)], strict=True):
            np.testing.assert_allclose(one, expected, rtol=1e-12)
    exp = apply("exp", [product])
    y = Network([apply("relu", [exp])])(feeds)[0].data
    (slope,) = torch.autograd.grad(y.sum(), [matrix.weights.tensor])  # which needs what exp returned
    np.testing.assert_allclose(slope, x.T @ np.exp(x @ w), rtol=1e-12)
