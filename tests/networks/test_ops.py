"""Every operation against NumPy, one sample or one sequence at a time, and its gradients against finite differences."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
import torch

from feedline.networks import (
    apply,
    ops,  # noqa: F401  # declares them
)
from feedline.networks.compile import Network
from feedline.networks.registry import OPS
from tests.graph import worlds
from tests.graph.worlds import LENGTHS, draw, given, packed, run, sample, weights
from tests.oracles import criteria
from tests.oracles import network as oracle


class Case:
    """An operation on inputs of some shapes. ``twin`` computes one sample."""

    def __init__(self, op, inputs, twin, attributes=None, low=-1.0, high=1.0, smooth=True, differentiable=None):
        self.op, self.inputs, self.twin, self.attributes = op, inputs, twin, attributes or {}
        self.low, self.high, self.smooth = low, high, smooth
        self.differentiable = range(len(inputs)) if differentiable is None else differentiable

    def __repr__(self):
        return f"{self.op}-{'-'.join(f'{k or chr(48)}{shape}' for shape, k in self.inputs)}".replace(" ", "")


def kinds(op, shapes, twin, **options):
    """The same over all mixtures of dynamic axes that matter."""
    mixtures = [("s",)] if len(shapes) == 1 else [("s", "s"), ("s", "b"), ("b", "s"), ("s", ""), ("", "b"), ("b", "b")]
    return [Case(op, list(zip(shapes, mix, strict=True)), twin, **options) for mix in mixtures]


TWINS = {
    "negate": np.negative, "reciprocal": lambda x: 1 / x, "relu": lambda x: np.maximum(x, 0), "sigmoid": oracle.sigmoid,
    "tanh": np.tanh, "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "square": np.square, "abs": np.abs,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "sinh": np.sinh, "cosh": np.cosh, "asinh": np.arcsinh, "atanh": np.arctanh,
    "softplus": lambda x: np.log(1 + np.exp(x)), "softsign": lambda x: x / (1 + np.abs(x)),
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
}  # fmt: skip
STEPS = {
    "floor": np.floor, "ceil": np.ceil, "round": lambda x: np.floor(x + 0.5), "sign": np.sign,
    "element_not": lambda x: (x <= 0).astype(float), "stop_gradient": lambda x: x,
}  # fmt: skip
PAIRS = {
    "plus": np.add, "minus": np.subtract, "element_times": np.multiply, "element_divide": np.divide, "pow": np.power,
    "log_add_exp": np.logaddexp, "element_max": np.maximum, "element_min": np.minimum,
    "param_relu": lambda a, x: np.where(x >= 0, x, a * x),
}  # fmt: skip
TRUTHS = {
    "equal": np.equal, "not_equal": np.not_equal, "less": np.less, "less_equal": np.less_equal,
    "greater": np.greater, "greater_equal": np.greater_equal, "element_and": lambda a, b: (a > 0) & (b > 0),
    "element_or": lambda a, b: (a > 0) | (b > 0), "element_xor": lambda a, b: (a > 0) ^ (b > 0),
}  # fmt: skip
OVER = {
    "reduce_sum": np.sum, "reduce_mean": np.mean, "reduce_max": np.max, "reduce_min": np.min, "reduce_prod": np.prod,
    "reduce_log_sum_exp": lambda x, axis, keepdims: np.log(np.exp(x).sum(axis, keepdims=keepdims)),
    "reduce_l1": lambda x, axis, keepdims: np.abs(x).sum(axis, keepdims=keepdims),
    "reduce_l2": lambda x, axis, keepdims: np.sqrt(np.square(x).sum(axis, keepdims=keepdims)),
    "reduce_sum_square": lambda x, axis, keepdims: np.square(x).sum(axis, keepdims=keepdims),
}  # fmt: skip

CASES = [
    *[Case(op, [((3,), "s")], f, low=0.1, high=0.9) for op, f in TWINS.items()],
    *[
        Case(op, [((3,), k)], f, low=-0.9, high=-0.1)
        for op, f in TWINS.items()
        if op in ("relu", "abs", "selu")
        for k in "sb"
    ],
    *[Case(op, [((3,), "s")], f, low=-3, high=3, smooth=False) for op, f in STEPS.items()],
    *[c for op, f in PAIRS.items() for c in kinds(op, [(2, 3), (3,)], f, low=0.1, high=0.9)],
    *[c for op, f in PAIRS.items() for c in kinds(op, [(), (2, 1)], f, low=0.1, high=0.9)],
    *[
        c
        for op, f in TRUTHS.items()
        for c in kinds(op, [(3,), (1,)], lambda a, b, f=f: f(a, b).astype(float), smooth=False)
    ],
    Case("elu", [((3,), "s")], lambda x: np.where(x > 0, x, 0.5 * np.expm1(x)), {"alpha": 0.5}),
    Case("leaky_relu", [((3,), "s")], lambda x: np.where(x > 0, x, 0.2 * x), {"alpha": 0.2}),
    Case("hard_sigmoid", [((3,), "s")], lambda x: np.clip(0.3 * x + 0.5, 0, 1), {"alpha": 0.3, "beta": 0.5}),
    Case(
        "clip",
        [((3,), "s"), ((), ""), ((), "b")],
        lambda x, low, high: np.where(x < low, low, np.where(x > high, high, x)),
        differentiable=(0,),
    ),
    Case(
        "element_select",
        [((3,), "s"), ((3,), "b"), ((), "")],
        lambda f, a, b: np.where(f != 0, a, b),
        differentiable=(1, 2),
    ),
    Case("alias", [((3,), "s"), ((2,), "b")], lambda x, y: x, differentiable=(0,)),
    *[
        Case("softmax", [((2, 3), k)], lambda x, a=a: oracle.softmax(x, a), {"axis": a})
        for k in ("s", "")
        for a in (0, -1)
    ],
    Case("softmax", [((2, 3), "b")], lambda x: oracle.softmax(x.ravel()).reshape(2, 3), {"axis": None}),
    Case("log_softmax", [((2, 3), "s")], lambda x: np.log(oracle.softmax(x, 1)), {"axis": 1}),
    Case("hardmax", [((4,), "s")], lambda x: (np.arange(4) == x.argmax()).astype(float), smooth=False),
    *[
        Case(op, [((2, 3), k)], lambda x, f=f, a=a: f(x, axis=a, keepdims=a is not None), {"axis": a})
        for op, f in OVER.items()
        for k in ("s", "b", "")
        for a in (None, 0, -1, (0, 1))
    ],
    Case("reduce_sum", [((2, 3), "s")], lambda x: x.sum(0), {"axis": 0, "keepdims": False}),
    *[
        Case(op, [((), "s")], lambda x, f=f: f(x, axis=None, keepdims=False))
        for op, f in OVER.items()
        if op != "reduce_l2"
    ],
    *[
        Case(
            op,
            [((2, 3), "s")],
            lambda x, f=f, a=a: np.expand_dims(f(x, a), a) if a is not None else f(x),
            {"axis": a},
            smooth=False,
        )
        for op, f in (("argmax", np.argmax), ("argmin", np.argmin))
        for a in (None, 0, 1)
    ],
    *[
        Case("top_k", [((2, 4), k)], lambda x: -np.sort(-x, -1)[:, :3], {"k": 3, "axis": -1, "indices": False})
        for k in ("s", "b", "")
    ],
    Case("top_k", [((4, 2), "s")], lambda x: -np.sort(-x, 0)[:1], {"k": 1, "axis": 0, "indices": False}),
    Case(
        "top_k",
        [((2, 4), "s")],
        lambda x: np.argsort(-x, -1)[:, :3].astype(float),
        {"k": 3, "axis": -1, "indices": True},
        smooth=False,
    ),
    *[
        Case(
            "max_unpooling",
            [(x, a), (like, b)],
            lambda x, like, w=w, p=p: oracle.unpool(x, like, w, w, p),
            {"window": w, "strides": w, "pad": p},
            differentiable=(0,),
        )
        for x, like, w, p in (
            ((2, 2, 2), (2, 4, 4), (2, 2), (False, False)),
            ((2, 3), (2, 5), (2,), (True,)),
            ((2, 1, 2), (4, 3, 5), (2, 3, 4), (False, False, True)),
        )
        for a, b in (("s", "s"), ("s", "b"), ("", "s"), ("b", "b"), ("", ""))
    ],
    *kinds("times", [(3,), (3, 2)], lambda x, w: x @ w),
    *kinds("times", [(4, 3), (3, 2)], lambda x, w: x @ w),
    *kinds("times", [(3,), (3, 2, 2)], lambda x, w: oracle.times(x, w, 1), attributes={"output_rank": 2}),
    *kinds("times", [(5, 2, 3), (2, 3, 4)], lambda x, w: oracle.times(x, w, 2)),
    *kinds("times", [(3,), (3,)], lambda x, w: x @ w, attributes={"output_rank": 0}),
    *kinds("times_transpose", [(3,), (2, 3)], lambda x, w: x @ w.T),
    *kinds("times_transpose", [(4, 3), (2, 3)], lambda x, w: x @ w.T),
    *kinds("times_transpose", [(4, 3), (3,)], lambda x, w: (x @ w)[:, None]),
    *kinds("times_transpose", [(3,), (3,)], lambda x, w: (x @ w).reshape(1)),
    *[Case("reshape", [((2, 6), k)], lambda x: x.reshape(3, 4), {"shape": (3, -1)}) for k in ("s", "b", "")],
    Case("reshape", [((2, 6, 5), "s")], lambda x: x.reshape(2, 3, 2, 5), {"shape": (3, 2), "begin": 1, "end": 2}),
    *[Case("transpose", [((2, 3, 4), k)], lambda x: x.transpose(2, 0, 1), {"perm": (2, 0, 1)}) for k in ("s", "")],
    *[c for a in (0, -1) for c in kinds("splice", [(2, 3), (2, 3)], oracle.splice(a), attributes={"axis": a})],
    *kinds("splice", [(3,), (3,)], oracle.splice(-2), attributes={"axis": -2}),
    Case("splice", [((2, 3), "s"), ((1,), "b"), ((3,), "")], oracle.splice(1), {"axis": 1}),
    Case("slice", [((5,), "s")], lambda x: x[1:4], {"axis": (0,), "begin": (1,), "end": (4,), "strides": (1,)}),
    Case(
        "slice",
        [((5, 4), "s")],
        lambda x: x[-3::2, :-1],
        {"axis": (0, -1), "begin": (-3, 0), "end": (0, -1), "strides": (2, 1)},
    ),
    Case("one_hot", [((), "s")], lambda x: np.eye(4)[int(x)], {"classes": 4, "axis": -1}, low=0, high=4, smooth=False),
    Case(
        "one_hot",
        [((2,), "s")],
        lambda x: np.eye(4)[x.astype(int)].T,
        {"classes": 4, "axis": 0},
        low=0,
        high=4,
        smooth=False,
    ),
    *kinds("gather", [(2,), (4, 3)], lambda i, r: r[i.astype(int)], low=0, high=4, differentiable=(1,)),
    *kinds(
        "gather",
        [(2,), (3, 4)],
        lambda i, r: r[:, i.astype(int)],
        attributes={"axis": 1},
        low=0,
        high=4,
        differentiable=(1,),
    ),
    *kinds("gather", [(), (4, 3)], lambda i, r: r[int(i)], low=0, high=4, differentiable=(1,)),
    Case(
        "pad",
        [((2, 3), "s")],
        lambda x: np.pad(x, ((1, 0), (0, 2)), constant_values=7),
        {"pattern": ((1, 0), (0, 2)), "mode": "constant", "value": 7},
    ),
    Case(
        "pad",
        [((3, 4), "s")],
        lambda x: np.pad(x, ((1, 0), (0, 2)), "reflect"),
        {"pattern": ((1, 0), (0, 2)), "mode": "reflect"},
    ),
    *kinds("squared_error", [(2, 3), (3,)], lambda a, b: np.square(a - b).sum()),
    *kinds("squared_error", [(), ()], lambda a, b: np.square(a - b).sum()),
    *kinds("binary_cross_entropy", [(3,), (3,)], criteria.binary_cross_entropy, low=0.1, high=0.9),
    *kinds("binary_cross_entropy", [(2, 3), (1,)], criteria.binary_cross_entropy, low=0.1, high=0.9),
    *kinds("cross_entropy_with_softmax", [(4,), (4,)], criteria.cross_entropy),
    *kinds("cross_entropy_with_softmax", [(2, 4), (3, 4)], criteria.cross_entropy),
    *kinds("cross_entropy_with_softmax", [(4,), (3, 4)], lambda o, t: criteria.cross_entropy(o[None], t)[0]),
    *[
        Case(
            "cross_entropy_with_softmax",
            [((4, 3), "s"), ((4, 3), k)],
            lambda o, t, a=a: criteria.cross_entropy_along(o, t, a),
            {"axis": a},
        )
        for a in (0, 1, None)
        for k in ("s", "b", "")
    ],
    *kinds("classification_error", [(4,), (4,)], criteria.classification_error, differentiable=(1,)),
    *kinds("classification_error", [(2, 4), (3, 4)], criteria.classification_error, differentiable=(1,)),
    *[
        Case(
            "classification_error",
            [((4, 3), "s"), ((4, 3), k)],
            lambda o, t, a=a: criteria.classification_error_along(o, t, a),
            {"axis": a},
            smooth=False,
        )
        for a in (0, 1, None)
        for k in ("s", "b", "")
    ],
    *kinds("cosine_distance", [(4,), (4,)], criteria.cosine_distance),
    *kinds("cosine_distance", [(2, 3), (2, 3)], criteria.cosine_distance),
    *[
        Case(
            "convolution",
            [(kernel, ""), (x, "s")],
            lambda w, x, s=s, p=p: oracle.convolve(w, x, s, p),
            {"strides": s, "pad": p, "dilation": (1,) * len(s), "groups": 1},
        )
        for kernel, x, s, p in (
            ((3, 2, 3), (2, 7), (1,), (False,)),
            ((3, 2, 4), (2, 7), (2,), (True,)),
            ((2, 2, 3, 2), (2, 5, 4), (2, 1), (True, True)),
            ((2, 2, 2, 3), (2, 6, 5), (3, 2), (True, False)),
            ((2, 1, 1, 2, 2), (1, 4, 3, 4), (2, 1, 3), (True, True, False)),
        )
    ],
    Case(
        "convolution",
        [((4, 1, 3), ""), ((2, 8), "b")],
        lambda w, x: oracle.convolve(w, x, (2,), (True,), (2,), 2),
        {"strides": (2,), "pad": (True,), "dilation": (2,), "groups": 2},
    ),
    *[
        Case(
            op,
            [(x, k)],
            lambda x, w=w, s=s, p=p, f=f: oracle.pool(x, w, s, p, f),
            {"window": w, "strides": s, "pad": p},
        )
        for op, f in (("max_pooling", max), ("average_pooling", np.mean))
        for x, w, s, p in (
            ((2, 5), (2,), (2,), (False,)),
            ((2, 6, 5), (3, 2), (2, 2), (True, True)),
            ((5, 4), (3, 3), (1, 2), (True, False)),
        )
        for k in ("s", "")
    ],
    *[
        Case(op, [(x, k)], lambda x, f=f: f(x, tuple(range(1, x.ndim)), keepdims=True))
        for op, f in (("global_max_pooling", np.max), ("global_average_pooling", np.mean))
        for x in ((2, 5), (3, 2, 4), (2, 3, 2, 2))
        for k in ("s", "b", "")
    ],
]


def made(case, seed):
    rng = np.random.default_rng(seed)
    tensors = [draw(rng, shape, kind, case.low, case.high) for shape, kind in case.inputs]
    nodes = [given(shape, kind) for shape, kind in case.inputs]
    return nodes, tensors, apply(case.op, nodes, case.attributes)


def axes_of(case):
    found = {kind for _, kind in case.inputs}
    return "s" if "s" in found else "b" if "b" in found else ""


def feeds(case, nodes, tensors):
    return {n: packed(x, kind) for n, x, (_, kind) in zip(nodes, tensors, case.inputs, strict=True)}


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_each_sample_is_as_numpy_computes_it(case):
    nodes, tensors, root = made(case, 0)
    kind = axes_of(case)
    (result,) = run([root], feeds(case, nodes, tensors))
    found = result.data.numpy()
    assert found.shape == worlds.rows(kind) + root.shape
    arrays = [x.numpy() for x in tensors]
    count = {"s": sum(LENGTHS), "b": len(LENGTHS), "": 1}[kind]
    for row in range(count):
        # In a minibatch without steps, a row is a sequence. The inputs have the same axes, or none.
        mine = [
            sample(a, k, row) if kind == "s" or not k else a[row] for a, (_, k) in zip(arrays, case.inputs, strict=True)
        ]
        expected = np.asarray(case.twin(*mine))
        assert expected.shape == root.shape
        np.testing.assert_allclose(found[row] if kind else found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("case", [c for c in CASES if c.smooth], ids=repr)
def test_gradients_match_finite_differences(case):
    nodes, tensors, root = made(case, 1)
    network = Network([root])

    def function(*given_tensors):
        mixed = list(tensors)
        for i, x in zip(case.differentiable, given_tensors, strict=True):
            mixed[i] = x
        return network(feeds(case, nodes, mixed))[0].data

    wanted = [tensors[i].clone().requires_grad_() for i in case.differentiable]
    assert torch.autograd.gradcheck(function, wanted, fast_mode=True)


# ---- along sequences ------------------------------------------------------------------------------


def per_sequence(function, *arrays):
    return [function(*(a[b:e] for a in arrays)) for b, e in itertools.pairwise(worlds.offsets())]


ALONG = {
    "sequence_first": (lambda x: x[0], {}),
    "sequence_last": (lambda x: x[-1], {}),
    "sequence_reduce_sum": (lambda x: x.sum(0), {}),
    "sequence_reduce_mean": (lambda x: x.mean(0), {}),
    "sequence_reduce_max": (lambda x: x.max(0), {}),
    "sequence_softmax": (functools.partial(oracle.softmax, axis=0), {}),
}


@pytest.mark.parametrize("op", ALONG)
@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
def test_along_sequences(op, shape):
    twin, attributes = ALONG[op]
    x, node = draw(np.random.default_rng(0), shape, "s"), given(shape, "s")
    root = apply(op, [node], attributes)
    expected = per_sequence(twin, x.numpy())
    (result,) = run([root], {node: packed(x, "s")})
    whole = np.concatenate(expected) if len(root.axes) == 2 else np.stack(expected)
    np.testing.assert_allclose(result.data.numpy(), whole, rtol=1e-12)
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: run([root], {node: packed(x, "s")})[0].data, [x])


@pytest.mark.parametrize("steps", [1, 2, 5, -1, -3])
@pytest.mark.parametrize("kind", ["", "b"])
def test_delay(steps, kind):
    rng = np.random.default_rng(0)
    x, initial = draw(rng, (2,), "s"), draw(rng, (2,), kind)
    nodes = given((2,), "s"), given((2,), kind)
    root = apply("delay", nodes, {"steps": steps})

    def function(x, initial):
        return run([root], {nodes[0]: packed(x, "s"), nodes[1]: packed(initial, kind)})[0].data

    expected = [
        oracle.delay(x.numpy()[b:e], steps, initial.numpy()[i] if kind else initial.numpy())
        for i, (b, e) in enumerate(itertools.pairwise(worlds.offsets()))
    ]
    np.testing.assert_array_equal(function(x, initial).numpy(), np.concatenate(expected))
    assert torch.autograd.gradcheck(function, [x.requires_grad_(), initial.requires_grad_()])


def test_ends_are_marked():
    x, node = draw(np.random.default_rng(0), (2,), "s"), given((2,), "s")
    roots = [apply(op, [node]) for op in ("sequence_is_first", "sequence_is_last")]
    first, last = (r.data.tolist() for r in run(roots, {node: packed(x, "s")}))
    assert first == [1, 0, 0, 1, 1, 0, 0, 0, 1, 0]
    assert last == [0, 0, 1, 1, 0, 0, 0, 1, 0, 1]


@pytest.mark.parametrize("kind", ["", "b", "s"])
def test_broadcast_as(kind):
    rng = np.random.default_rng(0)
    x, nodes = draw(rng, (2,), kind), (given((2,), kind), given((5,), "s"))
    root = apply("sequence_broadcast_as", nodes)

    def function(x):
        return run([root], {nodes[0]: packed(x, kind), nodes[1]: packed(draw(rng, (5,), "s"), "s")})[0].data

    found = function(x).numpy()
    for row in range(sum(LENGTHS)):
        np.testing.assert_array_equal(found[row], sample(x.numpy(), kind, row))
    assert torch.autograd.gradcheck(function, [x.requires_grad_()])


def test_gather_where_scatter():
    rng = np.random.default_rng(0)
    x, node, flag = draw(rng, (2,), "s"), given((2,), "s"), given((), "s")
    marks = torch.tensor([1, 0, 1, 0, 0, 1, 1, 0, 0, 1.0], dtype=torch.float64)
    taken = apply("sequence_gather", [node, flag])
    back = apply("sequence_scatter", [taken, flag])
    steps = apply("sequence_where", [flag])
    both = apply("plus", [taken, steps])  # along one axis, as one condition made it
    total = apply("sequence_reduce_sum", [taken])

    def function(x):
        return run([taken, back, both, total], {node: packed(x, "s"), flag: packed(marks, "s")})

    result = function(x)
    kept = marks.bool()
    assert result[0].sequences.lengths.tolist() == [2, 0, 2, 1]
    np.testing.assert_array_equal(result[0].data, x[kept])
    np.testing.assert_array_equal(result[1].data, torch.where(kept[:, None], x, 0))
    np.testing.assert_array_equal(result[2].data - x[kept], [[0, 0], [2, 2], [1, 1], [2, 2], [1, 1]])
    np.testing.assert_allclose(result[3].data[1], [0, 0])
    for i in (0, 1, 3):
        assert torch.autograd.gradcheck(lambda x, i=i: function(x)[i].data, [x.clone().requires_grad_()])


@pytest.mark.parametrize(("begin", "end"), [(0, 1), (-1, 0), (0, 0), (-3, 0)])
def test_slices_of_sequences(begin, end):
    x, node = draw(np.random.default_rng(0), (2,), "s"), given((2,), "s")
    root = apply("sequence_slice", [node], {"begin": begin, "end": end})
    (result,) = run([root], {node: packed(x, "s")})
    expected = per_sequence(lambda s: s[begin : end or None], x.numpy())
    assert result.sequences.lengths.tolist() == [len(s) for s in expected]
    np.testing.assert_array_equal(result.data, np.concatenate(expected))
    assert torch.autograd.gradcheck(lambda x: run([root], {node: packed(x, "s")})[0].data, [x.requires_grad_()])


@pytest.mark.parametrize("how", ["sum", "mean", "max", "min"])
def test_over_everything_and_over_the_batch(how):
    rng = np.random.default_rng(0)
    reduce = getattr(np, how)
    for op, kind, axis in (("reduce_everything", "s", None), ("reduce_batch", "b", 0)):
        x, node = draw(rng, (2, 3), kind), given((2, 3), kind)
        root = apply(op, [node], {"how": how})
        (result,) = run([root], {node: packed(x, kind)})
        np.testing.assert_allclose(result.data, reduce(x.numpy(), axis), rtol=1e-12)
        assert root.axes == ()
        assert torch.autograd.gradcheck(
            lambda x, root=root, node=node, kind=kind: run([root], {node: packed(x, kind)})[0].data,
            [x.requires_grad_()],
        )


# ---- sparse ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [worlds.one_hot, worlds.sparse])
@pytest.mark.parametrize("shape", [(6, 3), (6, 2, 2)])
def test_sparse_products_are_look_ups(make, shape):
    rng = np.random.default_rng(0)
    value, node, w = make(rng, 6), given((6,), "s", sparse=True), given(shape, "")
    root = apply("times", [node, w], {"output_rank": len(shape) - 1})
    weights_ = draw(rng, shape, "")

    def function(w_):
        return run([root], {node: value, w: packed(w_, "")})[0].data

    np.testing.assert_allclose(function(weights_), np.tensordot(worlds.dense(value), weights_.numpy(), 1), atol=1e-12)
    assert torch.autograd.gradcheck(function, [weights_.requires_grad_()])


@pytest.mark.parametrize("make", [worlds.one_hot, worlds.sparse])
def test_sparse_products_with_transposes(make):
    rng = np.random.default_rng(0)
    value, node, w = make(rng, 6), given((6,), "s", sparse=True), draw(rng, (3, 6), "")
    root = apply("times_transpose", [node, weights(w)])
    found = run([root], {node: value})[0].data.detach()
    np.testing.assert_allclose(found, worlds.dense(value) @ w.numpy().T, atol=1e-12)


@pytest.mark.parametrize("make", [worlds.one_hot, worlds.sparse])
def test_sparse_targets(make):
    rng = np.random.default_rng(0)
    value, z = make(rng, 5), draw(rng, (5,), "s")
    nodes = given((5,), "s"), given((5,), "s", sparse=True)
    root = apply("cross_entropy_with_softmax", nodes)

    def function(z):
        return run([root], {nodes[0]: packed(z, "s"), nodes[1]: value})[0].data

    expected = [criteria.cross_entropy(a, b) for a, b in zip(z.numpy(), worlds.dense(value), strict=True)]
    np.testing.assert_allclose(function(z), expected, rtol=1e-12)
    assert torch.autograd.gradcheck(function, [z.requires_grad_()])


@pytest.mark.parametrize("make", [worlds.one_hot, worlds.sparse])
def test_sparse_labels_of_errors(make):
    rng = np.random.default_rng(0)
    value, z = make(rng, 3), draw(rng, (3,), "s")
    nodes = given((3,), "s"), given((3,), "s", sparse=True)
    root = apply("classification_error", nodes)
    expected = [criteria.classification_error(a, b) for a, b in zip(z.numpy(), worlds.dense(value), strict=True)]
    np.testing.assert_allclose(run([root], {nodes[0]: packed(z, "s"), nodes[1]: value})[0].data, expected, atol=1e-15)


@pytest.mark.parametrize("sparse", [True, False])
def test_errors_among_the_best_are_counted_over_the_minibatch(sparse):
    rng = np.random.default_rng(0)
    value, z = worlds.one_hot(rng, 4), draw(rng, (4,), "s").round(decimals=1)
    targets = worlds.dense(value)
    nodes = given((4,), "s"), given((4,), "s", sparse=sparse)
    fed = {nodes[0]: packed(z, "s"), nodes[1]: value if sparse else packed(torch.from_numpy(targets), "s")}
    for top in (2, 3, 4):
        root = apply("classification_error", nodes, {"top": top})
        assert (root.shape, root.axes) == ((), ())
        assert float(run([root], fed)[0].data) == criteria.missed_by_the_best(z.numpy(), targets, top)
    with pytest.raises(ValueError, match="at least 5 classes"):
        apply("classification_error", nodes, {"top": 5})
    with pytest.raises(ValueError, match="no axis with topN=2"):
        apply("classification_error", nodes, {"top": 2, "axis": 0})


@pytest.mark.parametrize(("shape", "kinds"), [((), "sss"), ((1,), "sbs"), ((1,), "ssb")])
def test_a_weighted_cross_entropy_is_one_number(shape, kinds):
    """Its weights are scaled to 1 on average in the value, and not in the gradient: CNTK's."""
    rng = np.random.default_rng(0)
    tensors = [draw(rng, shape, k, 0.1, 0.9) for k in kinds]
    nodes = [given(shape, k) for k in kinds]
    root = apply("weighted_binary_cross_entropy", nodes)
    assert (root.shape, root.axes) == ((), ())
    tensors[0].requires_grad_()
    fed = {n: packed(x, k) for n, x, k in zip(nodes, tensors, kinds, strict=True)}
    found = run([root], fed)[0].data
    count = sum(LENGTHS)
    rows = [[float(sample(x.detach(), k, i)) for i in range(count)] for x, k in zip(tensors, kinds, strict=True)]
    np.testing.assert_allclose(found.detach(), criteria.weighted_binary_cross_entropy(*rows), rtol=1e-12)
    (gradient,) = torch.autograd.grad(found, [tensors[0]])
    np.testing.assert_allclose(gradient.ravel(), criteria.weighted_binary_cross_entropy_gradient(*rows), rtol=1e-12)
    with pytest.raises(ValueError, match="one probability, one target and one weight per sample"):
        apply("weighted_binary_cross_entropy", [given((3,), "s"), given((3,), "s"), given((), "s")])


@pytest.mark.parametrize("make", [worlds.one_hot, worlds.sparse])
@pytest.mark.parametrize("op", ["sequence_first", "sequence_last", "delay", "sequence_broadcast_as", "sequence_gather"])
def test_rows_of_sparse_data_are_chosen_without_making_them_dense(make, op):
    rng = np.random.default_rng(0)
    value, node, w = make(rng, 6), given((6,), "s", sparse=True), weights(rng.uniform(size=(6, 2)))
    flat = given((6,), "s")
    marks, flag = torch.tensor([1, 0, 1, 1, 0, 1, 1, 0, 0, 1.0], dtype=torch.float64), given((), "s")
    more = {"delay": [weights(0.0, trains=False)], "sequence_broadcast_as": [flag], "sequence_gather": [flag]}.get(
        op, []
    )
    attributes = {"steps": 1} if op == "delay" else {}
    roots = [apply("times", [apply(op, [x, *more], attributes), w]) for x in (node, flat)]
    dense_rows = packed(torch.from_numpy(worlds.dense(value)), "s")
    ours, plain = run(roots, {node: value, flat: dense_rows, flag: packed(marks, "s")})
    torch.testing.assert_close(ours.data, plain.data)


def test_sparse_data_is_never_made_dense():
    node = given((6,), "s", sparse=True)
    root = apply("tanh", [node], {}, "squash")
    with pytest.raises(TypeError, match=r"tanh `squash`: expected dense data, got sparse rows"):
        run([root], {node: worlds.one_hot(np.random.default_rng(0), 6)})


# ---- numbers that are drawn ------------------------------------------------------------------------


def test_dropout_drops_in_training_alone():
    x, node = torch.ones(10, 500, dtype=torch.float64), given((500,), "s")
    root = apply("dropout", [node], {"rate": 0.25})
    torch.manual_seed(0)
    trained = run([root], {node: packed(x, "s")}, training=True)[0].data
    assert set(trained.unique().tolist()) == {0, 1 / 0.75}
    assert abs((trained == 0).double().mean() - 0.25) < 0.03
    assert torch.equal(run([root], {node: packed(x, "s")})[0].data, x)


@pytest.mark.parametrize(
    ("how", "arguments", "mean", "deviation"),
    [
        ("uniform", (1, 3), 2, 2 / 12**0.5),
        ("normal", (1, 0.5), 1, 0.5),
        ("gumbel", (1, 2), 1 + 2 * 0.5772156649, 2 * np.pi / 6**0.5),
        ("bernoulli", (0.3,), 0.3, 0.21**0.5),
    ],
)
def test_drawn_numbers_have_their_distribution(how, arguments, mean, deviation):
    x, node = torch.zeros(10, 2000, dtype=torch.float64), given((2000,), "s")
    root = apply(f"random_{how}", [node], {"arguments": arguments})
    torch.manual_seed(0)
    found = run([root], {node: packed(x, "s")})[0].data
    assert abs(found.mean() - mean) < 0.03 * max(1, deviation)
    assert abs(found.std() / deviation - 1) < 0.03


def test_samples_follow_their_weights():
    node = given((3,), "b")
    root = apply("random_sample", [node], {"many": 2000, "replacement": True})
    torch.manual_seed(0)
    found = run([root], {node: packed(torch.tensor([[1, 0, 3.0]] * 4, dtype=torch.float64), "b")})[0].data
    assert found.shape == (4, 2000, 3)
    np.testing.assert_allclose(found.mean(1), [[0.25, 0, 0.75]] * 4, atol=0.04)


# ---- batch normalisation --------------------------------------------------------------------------


@pytest.mark.parametrize("spatial", [True, False])
def test_batch_normalization(spatial):
    rng = np.random.default_rng(0)
    shape = (2, 3)
    own = shape[:1] if spatial else shape
    x, node = draw(rng, shape, "s"), given(shape, "s")
    scale, bias = rng.uniform(0.5, 2, own), rng.uniform(-1, 1, own)
    mean, variance, count = (weights(np.zeros(s), trains=False) for s in (own, own, ()))
    for held in (mean, variance, count):
        held.weights.keeps = True
    attributes = {"spatial": spatial, "normalization_time_constant": 20.0, "blend_time_constant": 0.0, "epsilon": 1e-3}
    s_node, b_node = given(own, ""), given(own, "")
    root = apply("batch_normalization", [node, s_node, b_node, mean, variance, count], attributes)

    def function(x, s, b, training=True):
        fed = {node: packed(x, "s"), s_node: packed(s, ""), b_node: packed(b, "")}
        return run([root], fed, training)[0].data

    over = (0, 2) if spatial else 0
    fit = (slice(None), None) if spatial else ...
    s, b = torch.from_numpy(scale), torch.from_numpy(bias)
    now_mean, now_variance = x.numpy().mean(over), x.numpy().var(over)
    expected = (x.numpy() - now_mean[fit]) / np.sqrt(now_variance[fit] + 1e-3) * scale[fit] + bias[fit]
    np.testing.assert_allclose(function(x, s, b), expected, rtol=1e-9)
    # The first minibatch gives the statistics whole, the next one a share.
    unbiased = x.numpy().var(over, ddof=1)
    np.testing.assert_allclose(mean.weights.tensor, now_mean)
    np.testing.assert_allclose(variance.weights.tensor, unbiased)
    later = (x.numpy() - now_mean[fit]) / np.sqrt(unbiased[fit] + 1e-3) * scale[fit] + bias[fit]
    np.testing.assert_allclose(function(x, s, b, training=False), later, rtol=1e-9)
    function(2 * x + 1, s, b)
    share = 1 - np.exp(-10 / 20)
    np.testing.assert_allclose(mean.weights.tensor, now_mean + share * (now_mean + 1), rtol=1e-9)
    np.testing.assert_allclose(variance.weights.tensor, unbiased * (1 + 3 * share), rtol=1e-9)
    assert float(count.weights.tensor) == 20
    assert torch.autograd.gradcheck(function, [x.requires_grad_(), s.requires_grad_(), b.requires_grad_()])


def test_batch_normalization_of_another_element_type():
    node = given((2,), "b")
    mean, variance, count = (weights(np.full(n, 3, np.float32), trains=False) for n in ((2,), (2,), ()))
    settings = {"spatial": True, "normalization_time_constant": 5.0, "blend_time_constant": 0.0, "epsilon": 1.0}
    root = apply("batch_normalization", [node, weights([1, 1]), weights([0, 5]), mean, variance, count], settings)
    x = torch.tensor([[5.0, 7.0]], dtype=torch.float16)
    assert run([root], {node: packed(x, "b")})[0].data.tolist() == [[1, 7]]


def test_one_number_has_no_variance():
    node = given((2,), "b")
    mean, variance, count = (weights(np.full(n, 3.0), trains=False) for n in ((2,), (2,), ()))
    settings = {"spatial": False, "normalization_time_constant": 5.0, "blend_time_constant": 0.0, "epsilon": 1e-3}
    root = apply("batch_normalization", [node, weights([1, 1]), weights([0, 0]), mean, variance, count], settings)
    x = torch.tensor([[5.0, 7.0]], dtype=torch.float64)
    assert run([root], {node: packed(x, "b")}, training=True)[0].data.tolist() == [[0, 0]]
    assert variance.weights.tensor.tolist() == [3, 3]
    assert (mean.weights.tensor > 3).all()
    assert float(count.weights.tensor) == 4


def test_a_transposed_convolution_is_the_gradient_of_one():
    rng = np.random.default_rng(0)
    for pad, size in ((True, 8), (False, 9)):
        w, x = draw(rng, (3, 2, 3), ""), draw(rng, (2, size), "b")
        nodes = given((3, 2, 3), ""), given((2, size), "b")
        settings = {"strides": (2,), "pad": (pad,)}
        root = apply("convolution", nodes, {**settings, "dilation": (1,), "groups": 1})
        x.requires_grad_()
        (y,) = run([root], {nodes[0]: packed(w, ""), nodes[1]: packed(x, "b")})
        g = torch.from_numpy(rng.uniform(size=y.data.shape))
        (expected,) = torch.autograd.grad(y.data, [x], g)
        up = given(root.shape, "b")
        transposed = apply("convolution_transpose", [nodes[0], up], {**settings, "shape": (size,)})
        assert transposed.shape == (2, size)

        def function(w, g, transposed=transposed, up=up, nodes=nodes):
            return run([transposed], {nodes[0]: packed(w, ""), up: packed(g, "b")})[0].data

        torch.testing.assert_close(function(w, g), expected)
        assert torch.autograd.gradcheck(function, [w.clone().requires_grad_(), g.requires_grad_()])


def test_an_assignment_happens_at_each_run():
    target, x = weights([1.0, 2.0]), given((2,), "")
    root = apply("assign", [target, apply("plus", [target, x])])
    network = Network([root])
    fed = {x: packed(torch.tensor([1.0, -1.0], dtype=torch.float64), "")}
    for expected in ([2.0, 1.0], [3.0, 0.0]):
        (result,) = network(fed)
        assert not result.data.requires_grad
        assert result.data.tolist() == target.weights.tensor.tolist() == expected
    unknown = worlds.parameter_node(worlds.Weights((-1,), np.zeros, "float64"), "w")
    assert apply("assign", [unknown, x]).shape == unknown.shape == (2,)
    for left, right in ((x, x), (target, given((2,), "b"))):
        with pytest.raises(ValueError, match="expected a parameter, and a value without dynamic axes"):
            apply("assign", [left, right])
    with pytest.raises(ValueError, match="broadcasts to the parameter"):
        apply("assign", [weights(0.0), x])


# ---- completeness ---------------------------------------------------------------------------------

ELSEWHERE = {
    "delay", "sequence_broadcast_as", "sequence_gather", "sequence_where", "sequence_scatter", "sequence_slice",
    "sequence_is_first", "sequence_is_last", "reduce_everything", "reduce_batch", "dropout",
    "weighted_binary_cross_entropy", "random_uniform",
    "random_normal", "random_gumbel", "random_bernoulli", "random_sample", "batch_normalization",
    "convolution_transpose", "assign",
    # test_recurrence and test_gradients
    "lstm", "rnn", "loop", "pick", "user", "user_output",
    # test_attention
    "attend", "attention_weights", "attention_mean", "sequence_padded", "sequence_valid", "sequence_ones",
    # tests/compat/test_cntk_old_scripts
    "cast", "cosine_distance_with_negative_samples", "random_sample_inclusion_frequency",
    # tests/compat/test_cntk_oracle and test_cntk_compositions
    "crop", "forward_backward", "gru", "roi_pooling", "sequence_every", "straight_through", "to_sequence",
    "to_sequence_like",
    # tests/compat/test_cntk_ranking
    "edit_distance_error", "lambda_rank", "ndcg_at_1",
    # tests/compat/test_cntk_shapes
    "late", "eye_rows", "sequence_unpacked", "sequence_mask", "to_batch", "unpack_batch",
}  # fmt: skip


def test_every_operation_is_tested():
    own = {name for name in OPS if "." not in name}  # façades' operations are tested with them
    assert own == {case.op for case in CASES} | set(ALONG) | ELSEWHERE
