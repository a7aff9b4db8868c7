"""Gradients of every operation: additions to the cases of test_ops, and a check that none is missing.

Smooth operations are compared with finite differences in test_ops, over ragged minibatches, recurrences in
test_recurrence. Here: sparse samples, functions of a user, random operations, and operations with constant results.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from feedline.networks import apply
from feedline.networks.compile import Network
from feedline.networks.node import Type
from feedline.networks.registry import OPS
from tests.graph import worlds
from tests.graph.test_recurrence import number
from tests.graph.worlds import draw, given, packed
from tests.networks import test_ops

CASES = [c for c in test_ops.CASES if c.smooth] + [
    # Bounds have no gradient.
    test_ops.Case("clip", [((3,), "s"), ((3,), "b"), ((), "")], np.clip, low=-1, high=1, differentiable=(0,)),
]
# By the test that holds them against finite differences.
ELSEWHERE = {
    **dict.fromkeys(test_ops.ALONG, "test_along_sequences"),
    "delay": "test_delay",
    "sequence_broadcast_as": "test_broadcast_as",
    "sequence_gather": "test_gather_where_scatter",
    "sequence_scatter": "test_gather_where_scatter",
    "sequence_slice": "test_slices_of_sequences",
    "reduce_everything": "test_over_everything_and_over_the_batch",
    "reduce_batch": "test_over_everything_and_over_the_batch",
    "batch_normalization": "test_batch_normalization",
    "weighted_binary_cross_entropy": "test_a_weighted_cross_entropy_is_one_number",
    "convolution_transpose": "test_a_transposed_convolution_is_the_gradient_of_one",
    "lstm": "test_lstm_matches_cntk",
    "rnn": "test_plain_recurrence",
    "loop": "test_lstm_matches_cntk",
    "pick": "test_lstm_matches_cntk",
    "user": "test_functions_of_a_users_own",
    "user_output": "test_functions_of_a_users_own",
    **dict.fromkeys(
        ("attend", "attention_weights", "attention_mean", "sequence_padded"),
        "test_attention_is_a_weighted_mean_of_each_sequence",
    ),
    "lambda_rank": "tests/compat/test_cntk_ranking",
    **dict.fromkeys(("late", "sequence_unpacked", "to_batch", "unpack_batch"), "tests/compat/test_cntk_shapes"),
    **dict.fromkeys(("cast", "cosine_distance_with_negative_samples"), "tests/compat/test_cntk_old_scripts"),
    "dropout": "test_dropout_lets_gradients_through_what_it_keeps",
    **dict.fromkeys(
        (
            *("crop", "roi_pooling", "forward_backward", "straight_through", "gru", "sequence_every"),
            *("to_sequence", "to_sequence_like"),
        ),
        "tests/compat/test_cntk_oracle",
    ),
}
# Steps, numbers of places, marks: constant wherever they have a derivative.
FLAT = {
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "element_and", "element_or", "element_xor",
    "element_not", "floor", "ceil", "round", "sign", "hardmax", "argmax", "argmin", "one_hot",
    "stop_gradient", "sequence_is_first", "sequence_is_last", "sequence_where", "assign", "random_uniform",
    "random_normal", "random_gumbel", "random_bernoulli", "random_sample", "random_sample_inclusion_frequency",
    "sequence_valid", "sequence_ones", "eye_rows", "sequence_mask", "edit_distance_error",
    "ndcg_at_1",
}  # fmt: skip
# Constant in some of their operands.
PARTLY_FLAT = {"classification_error", "clip"}


def test_every_operation_has_a_gradient_or_none():
    checked = {case.op for case in CASES} | set(ELSEWHERE)
    assert checked & FLAT == set()
    assert checked | FLAT == {name for name in OPS if "." not in name}  # façades' operations are tested with them


@pytest.mark.parametrize("case", CASES[-1:], ids=repr)
def test_kinks_are_smooth_on_either_side(case):
    test_ops.test_gradients_match_finite_differences(case)


@pytest.mark.parametrize("case", [c for c in test_ops.CASES if c.op in FLAT | PARTLY_FLAT], ids=repr)
def test_what_does_not_move_has_no_gradient(case):
    nodes, tensors, root = test_ops.made(case, 0)
    for tensor in tensors:
        tensor.requires_grad_()
    (result,) = Network([root])(test_ops.feeds(case, nodes, tensors))
    moving = case.differentiable if case.smooth else ()
    assert bool(moving) <= result.data.requires_grad
    if result.data.requires_grad:
        found = torch.autograd.grad(result.data.sum(), tensors, allow_unused=True)
        assert all(g is None or not g.any() for i, g in enumerate(found) if i not in moving)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [("random_uniform", {"arguments": (0.0, 1.0)}), ("sequence_is_first", {}), ("sequence_is_last", {})],
)
def test_what_only_looks_at_shapes_has_no_gradient(op, attributes):
    node = given((), "s")
    x = draw(np.random.default_rng(0), (), "s").requires_grad_()
    (result,) = Network([apply(op, [node], attributes)])({node: packed(x, "s")})
    assert not result.data.requires_grad


def test_dropout_lets_gradients_through_what_it_keeps():
    node = given((50,), "s")
    x = draw(np.random.default_rng(0), (50,), "s", 0.5, 1).requires_grad_()
    torch.manual_seed(0)
    (result,) = Network([apply("dropout", [node], {"rate": 0.25})]).train()({node: packed(x, "s")})
    (gradient,) = torch.autograd.grad(result.data.sum(), [x])
    torch.testing.assert_close(gradient, result.data.detach() / x.detach())
    assert set(gradient.unique().tolist()) == {0.0, 1 / 0.75}


class Scaled:
    """``(x * w, sum of w)``, by hand."""

    constant_outputs = ()
    needs_gradient = (False, False)

    def output_types(self, inputs):
        return [inputs[0].type, Type((), inputs[0].axes)]

    def call(self, inputs, outputs):
        return self

    def forward(self, tensors, sequences, needs):
        x, w = tensors
        return tensors, [x * w, w.sum(-1)]

    def backward(self, state, gradients, needs, sequences):
        x, w = state
        product, total = gradients
        return [product * w, product * x + total[:, None]]


def test_functions_of_a_users_own():
    rng = np.random.default_rng(0)
    nodes = [given((3,), "s"), given((3,), "s")]
    user = apply("user", nodes, {"user": Scaled()})
    network = Network([apply("user_output", [user], {"index": i}) for i in range(2)])

    def function(x, w):
        return tuple(r.data for r in network({n: packed(t, "s") for n, t in zip(nodes, (x, w), strict=True)}))

    x, w = (draw(rng, (3,), "s").requires_grad_() for _ in range(2))
    torch.testing.assert_close(function(x, w)[0], x * w)
    assert torch.autograd.gradcheck(function, [x, w])


@pytest.mark.parametrize("make", [worlds.one_hot, worlds.sparse])
@pytest.mark.parametrize(
    "op", ["", "sequence_first", "sequence_last", "delay", "sequence_broadcast_as", "sequence_gather"]
)
@pytest.mark.parametrize("product", ["times", "times_transpose"])
def test_products_of_chosen_sparse_samples(make, op, product):
    """Gradients of products with sparse samples, directly and after operations along sequences."""
    rng = np.random.default_rng(0)
    value, node, w = make(rng, 6), given((6,), "s", sparse=True), given((6, 3) if product == "times" else (3, 6), "")
    like, marks = given((), "s"), draw(rng, (), "s", 0, 1).round()
    fed = {node: value}
    if op == "delay":
        chosen = apply(op, [node, number(0)], {"steps": 1})
    elif op == "sequence_broadcast_as":
        chosen = apply(op, [apply("sequence_last", [node]), node])
    elif op == "sequence_gather":
        chosen, fed = apply(op, [node, like]), {**fed, like: packed(marks, "s")}
    else:
        chosen = apply(op, [node]) if op else node
    network = Network([apply(product, [chosen, w])])
    weights = draw(rng, w.shape, "")

    def function(tensor):
        return network({**fed, w: packed(tensor, "")})[0].data

    assert function(weights).any()
    assert torch.autograd.gradcheck(function, [weights.requires_grad_()])
