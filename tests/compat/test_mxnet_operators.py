"""Each operator has the oracle's result, the inferred shape, and the gradient of finite differences."""

from __future__ import annotations

import random

import numpy as np
import pytest

import feedline.mxnet as mx
from feedline.mxnet.symbol._make import FUNCTIONS
from feedline.mxnet.symbol._operator import OPERATORS
from feedline.mxnet.symbol._parameters import read, to_text
from tests.compat import image_and_sequence_cases, operator_cases

TABLE = operator_cases.TABLE | image_and_sequence_cases.TABLE
HEADS = {name for name, operator in OPERATORS.items() if operator.head}
CASES = [
    pytest.param(name, case, id=f"{name}-{i}") for name, several in TABLE.items() for i, case in enumerate(several)
]


def symbol_of(name, case):
    names = OPERATORS[name].input_names(made(name, case))
    return FUNCTIONS[name](*[mx.sym.var(n) for n in names], name="it", **case.settings), names


def made(name, case):
    """Settings as the operator reads them."""
    return read(name, OPERATORS[name].parameters, {k: to_text(v) for k, v in case.settings.items()})


def bound(symbol, names, arrays, gradients=False):
    given = {n: mx.nd.array(a, dtype="float64") for n, a in zip(names, arrays, strict=True)}
    states = symbol.list_auxiliary_states()
    grads = {n: mx.nd.zeros(a.shape, dtype="float64") for n, a in given.items()} if gradients else None
    arguments = {n: a for n, a in given.items() if n not in states}
    return symbol.bind(mx.cpu(), arguments, grads, aux_states={n: given[n] for n in states})


def test_every_operator_has_a_twin():
    assert set(TABLE) | HEADS == set(OPERATORS)


@pytest.mark.parametrize(("name", "case"), CASES)
def test_the_result_is_the_twins(name, case):
    symbol, names = symbol_of(name, case)
    arrays = case.arrays()
    expected = case.twin(*arrays)
    expected = expected if isinstance(expected, tuple) else (expected,)
    outputs = bound(symbol, names, arrays).forward()
    assert len(outputs) == len(expected)
    for mine, theirs in zip(outputs, expected, strict=True):
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine.asnumpy(), theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("name", "case"), CASES)
def test_the_shape_is_what_was_inferred(name, case):
    symbol, names = symbol_of(name, case)
    arrays = case.arrays()
    given = dict(zip(names, (a.shape for a in arrays), strict=True))
    expected = case.twin(*arrays)
    expected = expected if isinstance(expected, tuple) else (expected,)
    _, shapes, _ = symbol.infer_shape(**given)
    assert shapes == [e.shape for e in expected]
    # Parameters follow from the data.
    first = {n: given[n] for n in names if n not in OPERATORS[name].weights + OPERATORS[name].states}
    arguments, shapes, states = symbol.infer_shape(**first)
    assert shapes == [e.shape for e in expected]
    leaves = [*symbol.list_arguments(), *symbol.list_auxiliary_states()]
    found = dict(zip(leaves, [*arguments, *states], strict=True))
    if case.settings.get("act_type") != "prelu":
        assert found == given


@pytest.mark.parametrize(("name", "case"), CASES)
def test_shapes_of_a_part_are_shapes_of_the_whole(name, case):
    """Shapes inferred while lengths or whole inputs are unknown still hold once they are known."""
    symbol, names = symbol_of(name, case)
    given = dict(zip(names, (a.shape for a in case.arrays()), strict=True))
    _, whole, _ = symbol.infer_shape(**given)
    rng = random.Random(f"{name} {case.settings}")
    for _ in range(10):
        part = {n: tuple(0 if rng.random() < 0.4 else k for k in s) for n, s in given.items() if rng.random() < 0.8}
        _, outs, _ = symbol.infer_shape_partial(**part)
        for mine, theirs in zip(outs, whole, strict=True):
            check_part(mine, theirs)
        above = tuple(0 if rng.random() < 0.4 else k for k in whole[0])
        net = mx.sym.elemwise_add(symbol[0], mx.sym.var("above"))
        arguments, _, states = net.infer_shape_partial(**part, above=above)
        for leaf, mine in zip(
            (*net.list_arguments(), *net.list_auxiliary_states()), (*arguments, *states), strict=True
        ):
            # The shape of a condition is a guess until it is known.
            if name != "where" or leaf in part:
                check_part(mine, whole[0] if leaf == "above" else given[leaf])


def check_part(mine, theirs):
    assert mine == () or len(mine) == len(theirs)
    assert all(m in (0, n) for m, n in zip(mine, theirs, strict=False))


@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_result_of_another_shape_than_is_used_above_is_refused(name, case):
    """The same if shapes of consumers are known first, and shapes of inputs later."""
    symbol, names = symbol_of(name, case)
    given = dict(zip(names, (a.shape for a in case.arrays()), strict=True))
    right = symbol.infer_shape(**given)[1][0]
    late = [n for n in names if n not in symbol.list_auxiliary_states()]
    shapes = {n: shape for n, shape in given.items() if n not in late} | {f"{n}_too": given[n] for n in late}
    inside = symbol.get_internals()
    beside = [inside[n] + mx.sym.var(f"{n}_too") for n in late]
    above = mx.sym.Group([symbol[0] + mx.sym.var("above"), *beside])
    assert above.infer_shape(**shapes, above=right)[1][0] == right
    for wrong in ((*right[:-1], right[-1] + 1), (*right, 2)):
        with pytest.raises(mx.MXNetError):
            above.infer_shape(**shapes, above=wrong)


def test_a_result_that_follows_from_one_input_or_the_settings_needs_no_others():
    x, y = mx.sym.var("x"), mx.sym.var("y")
    for symbol, known, out in (
        (mx.sym.broadcast_like(x, y), {"y": (2, 3)}, (2, 3)),
        (mx.sym.reshape_like(x, y), {"y": (2, 3), "x": (0,)}, (2, 3)),
        (mx.sym.scatter_nd(x, y, shape=(3, 4)), {"y": (2, 2)}, (3, 4)),
        (mx.sym.CTCLoss(x, y), {"x": (4, 2, 3)}, (2,)),
    ):
        assert symbol.infer_shape_partial(**known)[1] == [out]


@pytest.mark.parametrize(("name", "case"), [c for c in CASES if c.values[1].smooth])
def test_the_gradient_is_a_difference_quotient(name, case):
    """Along one random direction for each input that has a gradient, in training where the case asks for it."""
    symbol, names = symbol_of(name, case)
    arrays, rng = case.arrays(), np.random.default_rng(2)
    executor = bound(symbol, names, arrays, gradients=True)
    outputs = executor.forward(is_train=True)
    above = [rng.normal(size=o.shape) for o in outputs]
    executor.backward([mx.nd.array(a, dtype="float64") for a in above])

    def total(changed):
        found = bound(symbol, names, changed).forward(is_train=True)
        return sum((o.asnumpy() * a).sum() for o, a in zip(found, above, strict=True))

    gradients, step = executor.grad_dict, 1e-5
    for i, slot in enumerate(names):
        if slot in (*OPERATORS[name].free_names(made(name, case)), *OPERATORS[name].states):
            continue
        direction = rng.normal(size=arrays[i].shape)
        ahead, behind = list(arrays), list(arrays)
        ahead[i], behind[i] = arrays[i] + step * direction, arrays[i] - step * direction
        slope = (total(ahead) - total(behind)) / (2 * step)
        np.testing.assert_allclose((gradients[slot].asnumpy() * direction).sum(), slope, rtol=1e-5, atol=1e-7)


def test_halves_are_rounded_by_mxnets_rules():
    x = mx.sym.var("x")
    array = mx.nd.array([-1.5, -0.5, 0.5, 1.5, 2.5])
    assert mx.sym.rint(x).eval(x=array)[0].asnumpy().tolist() == [-2, -1, 0, 1, 2]
    assert mx.sym.round(x).eval(x=array)[0].asnumpy().tolist() == [-2, -1, 1, 2, 3]


X, Y = mx.sym.var("x"), mx.sym.var("y")
A, B = [0, 1, 2, -1, 0, 3, -2, 1], [0, 1, 1, -1, 1, 0, -2, -1]

# Symbol, operands, and what MXNet 1.9.1 gave: the result, and the gradients of its sum.
AT_EDGES = {
    "maximum": (
        mx.sym.maximum(X, Y), (A, B), [0, 1, 2, -1, 1, 3, -2, 1], [1, 1, 1, 1, 0, 1, 1, 1], [0, 0, 0, 0, 1, 0, 0, 0]
    ),
    "minimum": (
        mx.sym.minimum(X, Y), (A, B), [0, 1, 1, -1, 0, 0, -2, -1], [1, 1, 0, 1, 1, 0, 1, 0], [0, 0, 1, 0, 0, 1, 0, 1]
    ),
    "broadcast_maximum": (
        mx.sym.broadcast_maximum(X, Y), ([0, 1, 2], [0, 1, 1]), [0, 1, 2], [1, 1, 1], [0, 0, 0]
    ),
    "maximum with a number": (mx.sym.maximum(X, 1), (A,), [1, 1, 2, 1, 1, 3, 1, 1], [0, 1, 1, 0, 0, 1, 0, 1]),
    "minimum with a number": (mx.sym.minimum(X, 1), (A,), [0, 1, 1, -1, 0, 1, -2, 1], [1, 1, 0, 1, 1, 0, 1, 1]),
    "max": (
        mx.sym.max(X, axis=1), ([[1, 3, 3], [0, 2, 2], [0, 0, 0]],), [3, 2, 0], [[0, 1, 1], [0, 1, 1], [1, 1, 1]]
    ),
    "max of all": (mx.sym.max(X), ([[1, 3, 3], [0, 2, 2]],), [3], [[0, 1, 1], [0, 0, 0]]),
    "min": (
        mx.sym.min(X, axis=1), ([[1, 3, 3], [0, 2, 2], [0, 0, 0]],), [1, 0, 0], [[1, 0, 0], [1, 0, 0], [1, 1, 1]]
    ),
    "clip": (mx.sym.clip(X, a_min=-1, a_max=1), ([-2, -1, 0, 1, 2],), [-1, -1, 0, 1, 1], [0, 1, 1, 1, 0]),
    "relu": (mx.sym.relu(X), ([-1, 0, 1],), [0, 0, 1], [0, 0, 1]),
    "abs": (mx.sym.abs(X), ([-1, 0, 1],), [1, 0, 1], [-1, 0, 1]),
    "leaky": (mx.sym.LeakyReLU(X, slope=0.25), ([-1, 0, 1],), [-0.25, 0, 1], [0.25, 0.25, 1]),
    "hard_sigmoid": (mx.sym.hard_sigmoid(X), ([-2.5, -3, 0, 2.5, 3],), [0, 0, 0.5, 1, 1], [0, 0, 0.2, 0, 0]),
    "division by 0": (X / Y, ([2, -1], [0, 0]), [np.inf, -np.inf], [np.inf, np.inf], [-np.inf, np.inf]),
    "logical_not": (mx.sym.logical_not(X), ([-1, 0, 0.5],), [0, 1, 0], [0, 0, 0]),
    "MAERegressionOutput": (
        mx.sym.MAERegressionOutput(X, Y), ([[1, 2, 3]], [[1, 1, 4]]),
        [[1, 2, 3]], [[-1 / 3, 1 / 3, -1 / 3]], [[0, 0, 0]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", AT_EDGES)
def test_numbers_at_the_edges_are_mxnets(case):
    """On bounds and between equal operands, where torch has other gradients."""
    symbol, arrays, result, *gradients = AT_EDGES[case]
    executor = bound(symbol, "xy"[: len(arrays)], [np.array(a, "f8") for a in arrays], gradients=True)
    (output,) = executor.forward(is_train=True)
    executor.backward([mx.nd.ones(output.shape, dtype="float64")])
    np.testing.assert_allclose(output.asnumpy(), result, rtol=1e-6)
    for name, expected in zip("xy", gradients, strict=False):
        np.testing.assert_allclose(executor.grad_dict[name].asnumpy(), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("symbol", "shapes", "said"),
    [
        (mx.sym.InstanceNorm(X), {"x": (2, 3)}, "expected data"),
        (mx.sym.GroupNorm(X, num_groups=2), {"x": (2, 3, 4)}, "in 2 groups"),
        (mx.sym.LRN(X, nsize=2), {"x": (2, 3, 4, 4)}, "odd number of channels for nsize, got 2"),
        (mx.sym.LRN(X, nsize=3), {"x": (2, 3)}, "expected data"),
        (mx.sym.UpSampling(X, scale=0, sample_type="nearest"), {"x": (1, 1, 2, 2)}, "at least 1 as scale"),
        (mx.sym.UpSampling(X, scale=2, sample_type="nearest"), {"x": (1, 2, 2)}, "expected data"),
        (mx.sym.UpSampling(X, scale=(1, 2), sample_type="bilinear"), {"x": (1, 1, 2, 2)}, "same scale"),
        (
            mx.sym.UpSampling(X, Y, scale=2, sample_type="nearest"),
            {"x": (1, 1, 2, 2), "y": (1, 1, 3, 4)},
            "of a size that divides",
        ),
        (
            mx.sym.UpSampling(X, Y, scale=2, sample_type="nearest", multi_input_mode="sum"),
            {"x": (1, 1, 2, 2), "y": (1, 2, 2, 2)},
            "equal numbers of channels",
        ),
        (mx.sym.Crop(X, h_w=(3, 1), num_args=1), {"x": (1, 1, 2, 2)}, "expected a crop within"),
        (mx.sym.space_to_depth(X, block_size=2), {"x": (1, 1, 2, 3)}, "height and width that 2 divides"),
        (mx.sym.depth_to_space(X, block_size=2), {"x": (1, 6, 2, 2)}, "a multiple of 2 \\* 2 channels"),
        (mx.sym.broadcast_axis(X, axis=0, size=2), {"x": (3, 3)}, "each axis of length 1"),
        (mx.sym.argmax_channel(X), {"x": (4,)}, "expected data"),
        (mx.sym.arange(3, 1), {}, "numbers between start and stop"),
        (mx.sym.arange(1, 3, step=0), {}, "step other than 0"),
        (mx.sym.contrib.BilinearResize2D(X, mode="odd_scale"), {"x": (1, 1, 2, 2)}, "scale_height and"),
        (mx.sym.contrib.AdaptiveAvgPooling2D(X, output_size=(1, 2, 3)), {"x": (1, 1, 2, 2)}, "as output_size"),
        (mx.sym.SequenceMask(X, axis=2), {"x": (2, 3, 4)}, "time as axis 0 or 1, got 2"),
        (mx.sym.SequenceLast(X, Y, use_sequence_length=True), {"x": (2, 3), "y": (2,)}, "Shape inconsistent"),
        (mx.sym.CTCLoss(X, Y), {"x": (2, 3, 4), "y": (2, 3)}, "labels"),
        (mx.sym.topk(X, k=4), {"x": (2, 3)}, "expected k up to 3"),
        (mx.sym.sort(X, axis=2), {"x": (2, 3)}, "expected an axis"),
        (mx.sym.reverse(X, axis=2), {"x": (2, 3)}, "expected an axis"),
        (mx.sym.slice_like(X, Y), {"x": (2, 3), "y": (3, 3)}, "fits into"),
        (mx.sym.batch_take(X, Y), {"x": (2, 3), "y": (3,)}, "Shape inconsistent"),
        (mx.sym.gather_nd(X, Y), {"x": (2, 3), "y": (3, 1)}, "at most 2 axes"),
        (mx.sym.LeakyReLU(X, Y, act_type="prelu"), {"x": (5, 1, 1), "y": (3,)}, "expected gamma for data"),
        (mx.sym.LeakyReLU(X, Y, act_type="prelu"), {"x": (5, 2, 1), "y": (3,)}, "broadcast"),
        (mx.sym.pick(X, Y), {"x": (2, 3), "y": (3,)}, "invalid for input of size 3"),
        (mx.sym.reshape_like(X, Y), {"x": (6,), "y": (2, 2)}, "invalid for input of size 6"),
        (mx.sym.pad(X, mode="reflect", pad_width=(0, 0, 0, 0, 2, 0, 0, 0)), {"x": (1, 1, 2, 2)}, "Padding size"),
        (mx.sym.scatter_nd(X, Y, shape=(4,)), {"x": (3,), "y": (1, 2)}, "expected data of shape"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(symbol, shapes, said):
    with pytest.raises(mx.MXNetError, match=said):
        symbol.infer_shape(**shapes)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: mx.sym.contrib.BilinearResize2D(X, height=0),
            "height of operator .*BilinearResize2D: .*from 1 to 10000",
        ),
        (lambda: mx.sym.contrib.BilinearResize2D(X, width=10001), "width of operator .*: expected from 1 to 10000"),
        (
            lambda: mx.sym.FullyConnected(X, num_hidden=0),
            "num_hidden of operator FullyConnected: expected from 1, got '0'",
        ),
        (lambda: mx.sym.Convolution(X, kernel=(1, 1), num_filter=-1), "num_filter of operator .*: expected from 1"),
        (lambda: mx.sym.Convolution(X, kernel=(1, 1), num_filter=2, num_group=0), "num_group of .*: expected from 1"),
        (lambda: mx.sym.Embedding(X, input_dim=0, output_dim=1), "input_dim of operator Embedding: expected from 1"),
        (lambda: mx.sym.Embedding(X, input_dim=1, output_dim=0), "output_dim of operator Embedding: expected from 1"),
        (lambda: mx.sym.Dropout(X, p=1.5), "p of operator Dropout: expected from 0 to 1, got '1.5'"),
        (lambda: mx.sym.Dropout(X, p="nan"), "p of operator Dropout: expected from 0 to 1, got 'nan'"),
        (lambda: mx.sym.SoftmaxOutput(X, smooth_alpha=2), "smooth_alpha of .*: expected from 0 to 1"),
        (lambda: mx.sym.split(X, num_outputs=0), "num_outputs of operator .*: expected from 1"),
        (lambda: mx.sym.concat(X, num_args=0), "num_args of operator Concat: expected from 1"),
        (lambda: mx.sym.RNN(X, state_size=0, num_layers=1, mode="lstm"), "state_size of operator RNN: expected from 1"),
        (lambda: mx.sym.FullyConnected(X, num_hidden=2**31), "num_hidden of .*: expected a number of 32 bits"),
        (lambda: mx.sym.FullyConnected(X, num_hidden=1.5), "num_hidden of .*: expected a whole number, got '1.5'"),
        (lambda: mx.sym.cast(X, dtype="object"), "dtype of operator .*: expected one of float32"),
    ],
)
def test_settings_out_of_range_are_refused_where_they_stand(make, said):
    """As in MXNet: when the node is made, before any shape is known."""
    with pytest.raises(mx.MXNetError, match=said):
        make()


def test_what_torch_cannot_do_is_mxnets_error_and_names_the_node():
    symbol = mx.sym.one_hot(X, depth=2, off_value="nan", dtype="int32", name="hot")
    executor = symbol.bind(mx.cpu(), {"x": mx.nd.zeros((1,))})
    with pytest.raises(mx.MXNetError, match="Error in operator hot: RuntimeError: value cannot be converted"):
        executor.forward()
