"""Bound symbols: loss heads make their gradients as MXNet's do, requests are kept, states move in training only."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import feedline.mxnet as mx
from tests.oracles import mxnet as oracle

X = mx.sym.var("x")
Y = mx.sym.var("y")


def array(values):
    return mx.nd.array(np.asarray(values), dtype="float64")


def backward(symbol, arrays, above=None, grad_req="write"):
    """Outputs and gradients of one step."""
    arguments = {name: array(value) for name, value in arrays.items()}
    gradients = {name: array(np.zeros(np.shape(value))) for name, value in arrays.items()}
    executor = symbol.bind(mx.cpu(), arguments, gradients, grad_req)
    executor.forward(is_train=True)
    executor.backward(above)
    return [o.asnumpy() for o in executor.outputs], {n: g.asnumpy() for n, g in gradients.items()}


# ---- softmax ------------------------------------------------------------------------------------------------

ROWS = st.integers(1, 4)


@given(
    rows=ROWS,
    classes=st.integers(2, 4),
    scale=st.sampled_from([1.0, 0.5]),
    ignore=st.sampled_from([None, 0, 1]),
    normalization=st.sampled_from(["null", "batch", "valid"]),
    alpha=st.sampled_from([0.0, 0.2]),
    seed=st.integers(0, 99),
)
def test_softmax_output(rows, classes, scale, ignore, normalization, alpha, seed):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(rows, classes)), rng.integers(0, classes, rows)
    settings = {"grad_scale": scale, "normalization": normalization, "smooth_alpha": alpha}
    if ignore is not None:
        settings.update(use_ignore=True, ignore_label=ignore)
    (out,), gradients = backward(mx.sym.SoftmaxOutput(X, Y, **settings), {"x": x, "y": y})
    np.testing.assert_allclose(out, oracle.softmax(x, 1), rtol=1e-12)
    expected = oracle.softmax_gradient(
        out[..., None],
        y[:, None],
        scale=scale,
        ignore=ignore,
        normalization=normalization,
        alpha=alpha,
        ignore_label=-1 if ignore is None else ignore,
    )
    np.testing.assert_allclose(gradients["x"], expected[..., 0], rtol=1e-12)
    assert not gradients["y"].any()


@given(
    sizes=st.tuples(ROWS, st.integers(2, 3), st.integers(1, 3), st.integers(1, 3)),
    normalization=st.sampled_from(["null", "batch", "valid"]),
    seed=st.integers(0, 99),
    form=st.sampled_from(["flat", "full", "column"]),
)
def test_softmax_output_at_every_place(sizes, normalization, seed, form):
    n, k, h, w = sizes
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=sizes), rng.integers(0, k, (n, h * w))
    shape = {"flat": (n, h * w), "full": (n, h, w), "column": (n, 1, h, w)}[form]
    symbol = mx.sym.SoftmaxOutput(
        X, Y, multi_output=True, normalization=normalization, use_ignore=True, ignore_label=1, grad_scale=2
    )
    (out,), gradients = backward(symbol, {"x": x, "y": y.reshape(shape)})
    np.testing.assert_allclose(out, oracle.softmax(x, 1), rtol=1e-12)
    expected = oracle.softmax_gradient(
        out.reshape(n, k, -1), y, scale=2, ignore=1, normalization=normalization, ignore_label=1
    )
    np.testing.assert_allclose(gradients["x"], expected.reshape(sizes), rtol=1e-12)


def test_softmax_output_keeps_axes_or_takes_them_together():
    x = np.random.default_rng(0).normal(size=(2, 3, 4))
    (kept,), _ = backward(mx.sym.SoftmaxOutput(X, Y, preserve_shape=True), {"x": x, "y": np.zeros((2, 3))})
    np.testing.assert_allclose(kept, oracle.softmax(x, 2), rtol=1e-12)
    probabilities = oracle.softmax(-x, 2)
    (together,), gradients = backward(mx.sym.SoftmaxOutput(X, Y, grad_scale=3), {"x": x, "y": probabilities})
    np.testing.assert_allclose(together, oracle.softmax(x.reshape(2, -1), 1).reshape(x.shape), rtol=1e-12)
    np.testing.assert_allclose(gradients["x"], 3 * (together - probabilities), rtol=1e-12)


def test_softmax_output_takes_a_gradient_from_above_if_set():
    x, y, above = np.ones((2, 3)), np.array([0, 2]), np.array([[1.0, 2, 3], [4, 5, 6]])
    (out,), plain = backward(mx.sym.SoftmaxOutput(X, Y), {"x": x, "y": y}, array(above))
    _, told = backward(mx.sym.SoftmaxOutput(X, Y, out_grad=True), {"x": x, "y": y}, array(above))
    np.testing.assert_allclose(told["x"], plain["x"] * above)
    np.testing.assert_allclose(plain["x"], out - np.eye(3)[[0, 2]])


# ---- other heads --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "out", "difference"),
    [
        ("LinearRegressionOutput", lambda x: x, lambda p, y: p - y),
        ("LogisticRegressionOutput", lambda x: 1 / (1 + np.exp(-x)), lambda p, y: p - y),
        ("MAERegressionOutput", lambda x: x, lambda p, y: np.sign(p - y)),
    ],
)
@pytest.mark.parametrize("shape", [(4, 3), (4, 1), (2, 3, 2)])
def test_regression(head, out, difference, shape):
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=shape), rng.normal(size=shape)
    label = y[:, 0] if shape[1:] == (1,) else y
    (found,), gradients = backward(getattr(mx.sym, head)(X, Y, grad_scale=0.5), {"x": x, "y": label})
    np.testing.assert_allclose(found, out(x), rtol=1e-12)
    each = x.size / len(x)
    np.testing.assert_allclose(gradients["x"], difference(out(x), y) * 0.5 / each, rtol=1e-12)


@given(
    rows=ROWS,
    classes=st.integers(1, 4),
    margin=st.sampled_from([1.0, 0.3]),
    scale=st.sampled_from([1.0, 0.5]),
    linear=st.booleans(),
    seed=st.integers(0, 99),
)
def test_margins(rows, classes, margin, scale, linear, seed):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(rows, classes)), rng.integers(0, classes, rows)
    symbol = mx.sym.SVMOutput(X, Y, margin=margin, regularization_coefficient=scale, use_linear=linear)
    (out,), gradients = backward(symbol, {"x": x, "y": y})
    assert out.tolist() == x.tolist()
    expected = oracle.margin_gradient(x, y, margin=margin, scale=scale, linear=linear)
    np.testing.assert_allclose(gradients["x"], expected, rtol=1e-12)
    assert symbol.infer_shape(x=x.shape)[0] == [x.shape, y.shape]


def test_make_loss():
    x = np.array([[1.0, -2], [3, 4]])
    for settings, expected in (
        ({}, 1.0),
        ({"grad_scale": 0.5}, 0.5),
        ({"normalization": "batch"}, 0.5),
        ({"normalization": "valid"}, 1 / 3),
        ({"normalization": "valid", "valid_thresh": 9.0}, 1.0),
    ):
        (out,), gradients = backward(mx.sym.MakeLoss(X * 2, **settings), {"x": x})
        assert out.tolist() == (2 * x).tolist()
        np.testing.assert_allclose(gradients["x"], np.full_like(x, 2 * expected))
    _, gradients = backward(mx.sym.make_loss(mx.sym.square(X)), {"x": x})
    np.testing.assert_allclose(gradients["x"], 2 * x)


def test_nothing_passes_a_blocked_gradient():
    _, gradients = backward(mx.sym.make_loss(mx.sym.BlockGrad(X) * X), {"x": [2.0, 3.0]})
    assert gradients["x"].tolist() == [2, 3]
    _, gradients = backward(mx.sym.Group([mx.sym.make_loss(X * 2), mx.sym.BlockGrad(X)]), {"x": [2.0]})
    assert gradients["x"].tolist() == [2]


# ---- requests, errors ---------------------------------------------------------------------------------------


def test_a_gradient_from_above_is_asked_for_only_where_it_goes_somewhere():
    symbol = mx.sym.make_loss(X) * mx.sym.BlockGrad(Y)
    _, gradients = backward(symbol, {"x": [2.0], "y": [3.0]})
    assert (gradients["x"].tolist(), gradients["y"].tolist()) == ([1], [0])
    with pytest.raises(mx.MXNetError, match="out_grads"):
        backward(mx.sym.make_loss(X) * Y, {"x": [2.0], "y": [3.0]})


def test_requests():
    symbol = mx.sym.make_loss(X * Y)
    for request, expected in (
        ("write", {"x": [5], "y": [3]}),
        ("add", {"x": [11], "y": [7]}),
        ({"x": "add"}, {"x": [11], "y": [1]}),
        (["null", "write"], {"x": [1], "y": [3]}),
    ):
        gradients = {"x": array([1]), "y": array([1])}
        executor = symbol.bind(mx.cpu(), [array([3]), array([5])], gradients, request)
        executor.forward(is_train=True)
        executor.backward()
        executor.backward()  # again is allowed, and "add" adds again
        assert {n: g.asnumpy().tolist() for n, g in gradients.items()} == expected, request


def test_the_gradient_of_what_is_no_loss_comes_from_above():
    executor = (X * 2).bind(mx.cpu(), {"x": array([1.0, 2])}, {"x": array([0, 0])})
    with pytest.raises(mx.MXNetError, match=r"forward\(\) before backward"):
        executor.backward()
    executor.forward(is_train=True)
    with pytest.raises(mx.MXNetError, match=r"expected out_grads, got none for _mulscalar.*_output"):
        executor.backward()
    with pytest.raises(mx.MXNetError, match="expected 1 head gradients"):
        executor.backward([array([1, 1]), array([1, 1])])
    with pytest.raises(mx.MXNetError, match=r"shape \(2,\) for _mulscalar.*got \(3,\)"):
        executor.backward(array([1, 1, 1]))
    executor.backward(array([1, 10]))
    assert executor.grad_dict["x"].asnumpy().tolist() == [2, 20]


def test_what_does_not_fit_is_refused():
    symbol = mx.sym.FullyConnected(X, num_hidden=2, name="fc")
    good = {"x": array(np.ones((3, 4))), "fc_weight": array(np.ones((2, 4))), "fc_bias": array(np.ones(2))}
    for change, message in (
        ({"fc_bias": None}, "none for fc_bias"),
        ({"fc_weight": array(np.ones((2, 5)))}, "Error in operator fc: Shape inconsistent"),
    ):
        bad = {k: v for k, v in {**good, **change}.items() if v is not None}
        with pytest.raises(mx.MXNetError, match=message):
            symbol.bind(mx.cpu(), bad)
    with pytest.raises(mx.MXNetError, match="expected 3 arguments"):
        symbol.bind(mx.cpu(), [good["x"]])
    with pytest.raises(mx.MXNetError, match=r"a gradient of shape \(2,\) for `fc_bias`, got \(3,\)"):
        symbol.bind(mx.cpu(), good, {"fc_bias": array(np.ones(3))})
    with pytest.raises(mx.MXNetError, match="grad_req write, add or null"):
        symbol.bind(mx.cpu(), good, grad_req="often")
    with pytest.raises(mx.MXNetError, match=r"simple_bind error.*unknown: \['x', 'fc_weight', 'fc_bias'\]"):
        symbol.simple_bind(mx.cpu())
    executor = symbol.bind(mx.cpu(), good)
    with pytest.raises(TypeError, match="Unknown argument z; expected one of x"):
        executor.forward(z=good["x"])
    with pytest.raises(ValueError, match=r"Argument x, need: \(3, 4\), received: \(2, 4\)"):
        executor.forward(x=np.ones((2, 4)))
    with pytest.raises(ValueError, match="Duplicate names"):
        (X + mx.sym.var("x")).bind(mx.cpu(), [array([1]), array([1])]).arg_dict  # noqa: B018 - it raises


# ---- a network ----------------------------------------------------------------------------------------------


def network():
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=6, name="fc1")
    x = mx.sym.BatchNorm(x, fix_gamma=False, name="bn")
    x = mx.sym.Activation(x, act_type="relu")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(x, num_hidden=3, name="fc2"), name="softmax")


def test_simple_bind_makes_everything():
    executor = network().simple_bind(mx.cpu(), grad_req={"fc1_weight": "write"}, data=(4, 5))
    assert {n: a.shape for n, a in executor.arg_dict.items()} == {
        "data": (4, 5),
        "fc1_weight": (6, 5),
        "fc1_bias": (6,),
        "bn_gamma": (6,),
        "bn_beta": (6,),
        "fc2_weight": (3, 6),
        "fc2_bias": (3,),
        "softmax_label": (4,),
    }
    assert [n for n, g in executor.grad_dict.items() if g is not None] == ["fc1_weight"]
    assert {n: a.dtype for n, a in executor.aux_dict.items()} == {
        "bn_moving_mean": np.float32,
        "bn_moving_var": np.float32,
    }
    double = network().simple_bind(mx.cpu(), type_dict={"data": "float64"}, data=(4, 5))
    assert {a.dtype for a in double.arg_dict.values()} == {np.float64}


def test_gradients_match_torch():
    rng = np.random.default_rng(5)
    executor = network().simple_bind(mx.cpu(), type_dict={"data": "float64"}, data=(8, 5))
    for name, a in executor.arg_dict.items():
        a[:] = rng.integers(0, 3, 8) if name == "softmax_label" else rng.normal(size=a.shape)
    executor.forward(is_train=True)
    executor.backward()
    p = {n: torch.tensor(a.asnumpy(), requires_grad=True) for n, a in executor.arg_dict.items()}
    h = torch.nn.functional.linear(p["data"], p["fc1_weight"], p["fc1_bias"])
    h = torch.nn.functional.batch_norm(h, None, None, p["bn_gamma"], p["bn_beta"], True, eps=1e-3).relu()
    h = torch.nn.functional.linear(h, p["fc2_weight"], p["fc2_bias"])
    torch.nn.functional.cross_entropy(h, p["softmax_label"].detach().long(), reduction="sum").backward()
    for name, gradient in executor.grad_dict.items():
        if name != "softmax_label":
            np.testing.assert_allclose(gradient.asnumpy(), p[name].grad.numpy(), rtol=1e-9, atol=1e-12)


def test_statistics_move_in_training_only():
    executor = mx.sym.BatchNorm(X, momentum=0.75, name="bn").simple_bind(mx.cpu(), x=(4, 2))
    mean, variance = (executor.aux_dict[f"bn_moving_{what}"] for what in ("mean", "var"))
    variance[:] = 1
    data = np.arange(8, dtype="f4").reshape(4, 2)
    executor.forward(x=data)
    assert mean.asnumpy().tolist() == [0, 0]
    executor.forward(is_train=True, x=data)
    assert mean.asnumpy().tolist() == (data.mean(0) / 4).tolist()
    assert variance.asnumpy().tolist() == (0.75 + data.var(0) / 4).tolist()


def test_a_fixed_gamma_is_one_and_has_no_gradient():
    arrays = {"x": np.random.default_rng(0).normal(size=(4, 2)), "g": [5.0, 5.0], "b": [0.0, 0.0]}
    outs = []
    for fixed in (True, False):
        symbol = mx.sym.BatchNorm(X, mx.sym.var("g"), mx.sym.var("b"), fix_gamma=fixed)
        held = {n: array(a) for n, a in arrays.items()}
        gradients = {n: array(np.zeros(np.shape(a))) for n, a in arrays.items()}
        states = [array([0, 0]), array([1, 1])]
        executor = symbol.bind(mx.cpu(), held, gradients, aux_states=states)
        outs.append(executor.forward(is_train=True)[0].asnumpy())
        executor.backward(array(np.random.default_rng(1).normal(size=(4, 2))))
        assert bool(gradients["g"].asnumpy().any()) is not fixed
    np.testing.assert_allclose(outs[1], outs[0] * 5)


def test_dropout_drops_in_training_only():
    ones = {"x": np.ones((200, 50))}
    for axes in ((), (0,)):
        symbol = mx.sym.Dropout(X, p=0.25, axes=axes)
        executor = symbol.bind(mx.cpu(), {"x": array(ones["x"])}, {"x": array(ones["x"])})
        assert (executor.forward()[0].asnumpy() == 1).all()
        out = executor.forward(is_train=True)[0].asnumpy()
        assert set(np.unique(out)) == {0, 1 / 0.75}
        assert bool((out == out[0]).all()) is (axes == (0,))
        executor.backward(array(ones["x"]))
        np.testing.assert_array_equal(executor.grad_dict["x"].asnumpy(), out)
    assert 0.7 < (out != 0).mean() < 0.8 or axes
    always = mx.sym.Dropout(X, p=0.5, mode="always").eval(x=array(ones["x"]))[0].asnumpy()
    assert 0.45 < (always != 0).mean() < 0.55


def test_random_slopes():
    symbol = mx.sym.LeakyReLU(X, act_type="rrelu", lower_bound=0.2, upper_bound=0.4)
    executor = symbol.bind(mx.cpu(), {"x": array(-np.ones(500))})
    out = -executor.forward(is_train=True)[0].asnumpy()
    assert 0.2 <= out.min() < 0.22
    assert 0.38 < out.max() <= 0.4


def test_arrays_are_used_where_they_are():
    w = array([2.0])
    executor = mx.sym.elemwise_mul(X, mx.sym.var("w"), name="product").bind(mx.cpu(), {"x": array([3.0]), "w": w})
    assert executor.forward()[0].asnumpy().tolist() == [6]
    w += 1
    assert executor.forward()[0].asnumpy().tolist() == [9]
    assert executor.output_dict["product_output"] is executor.outputs[0]
    executor.copy_params_from({"w": array([5.0])})
    assert w.asnumpy().tolist() == [5]
    with pytest.raises(ValueError, match='"v" that is not in the arguments: x, w'):
        executor.copy_params_from({"v": w})
    executor.copy_params_from({"v": w}, allow_extra_params=True)


def test_other_shapes():
    executor = network().simple_bind(mx.cpu(), data=(4, 5))
    executor.arg_dict["fc1_weight"][:] = 7
    other = executor.reshape(data=(2, 5), softmax_label=(2,))
    assert other.arg_dict["fc1_weight"] is executor.arg_dict["fc1_weight"]
    assert other.forward()[0].shape == (2, 3)
    with pytest.raises(mx.MXNetError, match="`fc1_weight` to keep shape"):
        executor.reshape(data=(2, 6), softmax_label=(2,))
    wider = executor.reshape(partial_shaping=True, data=(2, 6))
    assert wider.arg_dict["fc1_weight"].shape == (6, 6)


def test_labels_and_numbers_may_be_whole():
    x = mx.sym.Embedding(mx.sym.var("word"), input_dim=5, output_dim=3, name="e")
    symbol = mx.sym.SoftmaxOutput(x, mx.sym.var("label"))
    types = {"word": "int32", "label": "int64"}
    executor = symbol.simple_bind(mx.cpu(), type_dict=types, word=(4,))
    assert {n: np.dtype(a.dtype).name for n, a in executor.arg_dict.items()} == {**types, "e_weight": "float32"}
    executor.forward(is_train=True, word=np.array([0, 1, 1, 4]), label=np.array([0, 1, 2, 0]))
    executor.backward()
    weight = executor.grad_dict["e_weight"].asnumpy()
    assert weight[2:4].any() == False  # noqa: E712 - an array's truth
    assert weight[1].any()


def test_outputs_may_be_chosen_and_repeated():
    halves = mx.sym.split(X, num_outputs=2)
    symbol = mx.sym.Group([halves[1], halves[1] * 2, X])
    outs, gradients = backward(symbol, {"x": [[1.0, 2]]}, [array([[1]]), array([[10]]), array([[100, 100]])])
    assert [o.tolist() for o in outs] == [[[2]], [[4]], [[1, 2]]]
    assert gradients["x"].tolist() == [[100, 121]]


# ---- after forward without is_train -------------------------------------------------------------------------


def test_backward_after_forward_without_training():
    executor = (X * Y).bind(mx.cpu(), [array([1, 2]), array([3, 4])], [array([0, 0]), array([0, 0])])
    with pytest.raises(mx.MXNetError, match=r"call of forward\(\) before backward"):
        executor.backward(array([1, 1]))
    executor.forward()
    executor.backward(array([1, 10]))
    assert [g.asnumpy().tolist() for g in executor.grad_arrays] == [[3, 40], [1, 20]]
    assert executor.outputs[0].asnumpy().tolist() == [3, 8]


def test_backward_after_forward_keeps_inference_mode():
    """Dropout passes gradients unchanged, and running statistics stay."""
    net = mx.sym.sum(mx.sym.BatchNorm(mx.sym.Dropout(X, p=0.5), name="bn"))
    executor = net.simple_bind(mx.cpu(), x=(4, 3))
    executor.arg_dict["x"][:] = 2
    executor.arg_dict["bn_gamma"][:] = 1
    executor.aux_dict["bn_moving_var"][:] = 1
    executor.forward()
    executor.backward(mx.nd.ones(1))
    gradient = executor.grad_dict["x"].asnumpy()
    assert gradient == pytest.approx(np.full((4, 3), gradient[0, 0]))
    assert gradient[0, 0] > 0
    assert executor.aux_dict["bn_moving_mean"].asnumpy().tolist() == [0, 0, 0]


def test_groups_have_contexts():
    with mx.AttrScope(ctx_group="first"):
        hidden = mx.sym.FullyConnected(X, num_hidden=2, name="a")
    with mx.AttrScope(ctx_group="second"):
        net = mx.sym.BatchNorm(mx.sym.FullyConnected(hidden, num_hidden=2, name="b"), name="n")
    groups = {"first": mx.cpu(1), "second": mx.cpu(2)}
    executor = net.simple_bind(mx.cpu(), group2ctx=groups, x=(3, 2))
    contexts = {name: executor.arg_dict[name].context for name in net.list_arguments()}
    assert contexts == {
        "x": mx.cpu(0), "a_weight": mx.cpu(1), "a_bias": mx.cpu(1), "b_weight": mx.cpu(2), "b_bias": mx.cpu(2),
        "n_gamma": mx.cpu(2), "n_beta": mx.cpu(2),
    }  # fmt: skip
    assert {a.context for a in executor.aux_arrays} == {mx.cpu(2)}
    assert executor.grad_dict["a_weight"].context == mx.cpu(1)
    executor.forward(is_train=True)
    executor.backward(mx.nd.ones((3, 2)))
