"""What brings parameters along or draws: noise contrastive estimation, softmax in two levels, stacks, exchanges."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import scipy.sparse

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline.cntk as C  # noqa: E402

close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-5)
RNG = np.random.default_rng(0)


# ---- losses -----------------------------------------------------------------------------------------


def softplus(x):
    return np.logaddexp(0, x)


@pytest.mark.parametrize("sparse", [True, False])
def test_noise_contrastive_estimation_in_the_mean(sparse):
    """Over many draws: of classes c by their probability q, each to be told from the label with odds n q."""
    n, q = 3, np.float32([1, 2, 3, 4])
    weights, bias = np.arange(12, dtype="f4").reshape(4, 3) / 10 - 0.5, np.float32([[0.1], [0.2], [-0.3], [0.4]])
    W, b = C.parameter((4, C.InferredDimension), init=0), C.parameter(init=bias)
    x, y = C.input_variable(3, needs_gradient=True), C.input_variable(4, is_sparse=sparse)
    loss = C.nce_loss(W, b, x, y, q, num_samples=n)
    assert (W.shape, loss.shape) == ((4, 3), ())
    W.value = weights
    data, labels = np.float32([[1, 2, 3], [0.5, -1, 0.25]]), np.eye(4, dtype="f4")[[2, 0]]
    torch.manual_seed(0)
    fed = {x: data, y: scipy.sparse.csr_matrix(labels) if sparse else labels}
    found = np.mean([loss.eval(fed) for _ in range(600)], 0)
    p = q / q.sum()
    scores, prior = data @ weights.T + bias.ravel(), np.log(n * p)
    of_label = (labels * softplus(prior - scores)).sum(1)
    expected = of_label + n * (p * np.logaddexp(scores, prior)).sum(1) - (n * p * prior).sum()
    close(found, expected, rtol=0.05)  # CNTK itself, over 3000 draws: [6.3246, 2.7503]
    close(expected, [6.3246, 2.7503], rtol=0.01)
    gradients = loss.grad(fed, wrt=[x, W, b])
    assert all(np.isfinite(g).all() and np.any(g) for g in gradients.values())
    with pytest.raises(ValueError, match="to be a vector, got the shape"):
        C.nce_loss(W, b, x, y, q.reshape(2, 2))
    with pytest.raises(ValueError, match=r"expected weights \(5, size\)"):
        C.nce_loss(W, b, x, y, np.ones(5, "f4"))


def softmax(x):
    return np.exp(x) / np.exp(x).sum()


@pytest.mark.parametrize(("labels", "classes"), [(7, None), (6, 2), (4, 4)])
def test_a_softmax_in_two_levels(labels, classes):
    x, y = C.input_variable(3), C.input_variable(1)
    output, of_class, everything = C.hierarchical_softmax_layer(x, y, labels, classes)
    w1, b1, w2s, b2s = (
        next(p for p in output.parameters if p.name == f"hsoftmax_{n}") for n in ("w1", "b1", "w2s", "b2s")
    )
    for p in (w1, b1, w2s, b2s):
        p.value = RNG.normal(size=p.shape).astype("f4")
    count, each = w2s.shape[0], w2s.shape[2]
    assert count * each >= labels
    data = RNG.normal(size=(labels, 3)).astype("f4")
    fed = {x: data, y: np.arange(labels, dtype="f4")[:, None]}
    found = output.eval(fed).reshape(-1)
    for label, row in enumerate(data):
        first = softmax(row @ w1.value + b1.value)
        c, k = divmod(label, each)
        second = softmax(row @ w2s.value[c] + b2s.value[c])
        close(found[label], first[c] * second[k])
        close(of_class.eval({x: data})[label], first)
        close(everything[c].eval({x: data}).reshape(labels, each)[label], second * first[c])


# ---- stacks -----------------------------------------------------------------------------------------

KINDS = {
    "lstm": torch.nn.LSTM,
    "gru": torch.nn.GRU,
    "rnnTanh": torch.nn.RNN,
    "rnnReLU": functools.partial(torch.nn.RNN, nonlinearity="relu"),
}


def of_torch(kind, both):
    """A module, and its numbers in the layout of cuDNN: the weights of all layers, then the biases."""
    torch.manual_seed(0)
    module = KINDS[kind](3, 4, 2, bidirectional=both)
    ends = ("", "_reverse") if both else ("",)
    names = [f"{what}_l{layer}{end}" for what in ("weight", "bias") for layer in (0, 1) for end in ends]
    parts = [n.replace("_l", f"_{of}_l", 1) for n in names for of in ("ih", "hh")]
    return module, np.concatenate([getattr(module, part).detach().numpy().ravel() for part in parts])


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_stack_of_recurrences_matches_torch(kind, both):
    module, numbers = of_torch(kind, both)
    x = C.sequence.input_variable(3, needs_gradient=True)
    weights = C.parameter((C.InferredDimension, 2), init=0)
    f = C.optimized_rnnstack(x, weights, 4, 2, both, kind, "stack")
    weights.value = numbers.reshape(-1, 2)
    data = [RNG.normal(size=(n, 3)).astype("f4") for n in (4, 1, 2)]
    found = f.eval({x: data})
    for mine, steps in zip(found, data, strict=True):
        close(mine, module(torch.from_numpy(steps)[:, None])[0][:, 0].detach())
    assert f.root_function.inputs == (x, weights)
    assert (f.op_name, f.attributes["recurrentOp"]) == ("OptimizedRNNStack", kind)
    (slopes,) = [f.grad({x: data}, wrt=[weights])]
    assert slopes.shape == weights.shape
    model = C.tanh(f)
    if kind == "gru":
        with pytest.raises(ValueError, match="its gates are other ones"):
            C.misc.convert_optimized_rnnstack(model)
        return
    layers = C.misc.convert_optimized_rnnstack(model)
    assert "W" in {p.name for p in layers.parameters}
    assert weights not in layers.parameters
    for mine, other in zip(found, layers.eval({x: data}), strict=True):
        close(other, np.tanh(mine))


def test_stacks_refuse():
    x, w = C.sequence.input_variable(3), C.parameter(10, init=0)
    with pytest.raises(ValueError, match="a recurrent_op of lstm"):
        C.optimized_rnnstack(x, w, 4, 1, recurrent_op="relu")
    with pytest.raises(ValueError, match="a parameter of 144 numbers"):
        C.optimized_rnnstack(x, w, 4, 1)
    with pytest.raises(ValueError, match="sequences of vectors"):
        C.optimized_rnnstack(C.sequence.input_variable((3, 2)), w, 4, 1)


def test_stacks_that_share_a_parameter_share_layers():
    x = C.sequence.input_variable(4)
    w = C.parameter(C.InferredDimension, init=0.1)
    f = C.optimized_rnnstack(C.optimized_rnnstack(x, w, 4, 1), w, 4, 1)
    layers = C.misc.convert_optimized_rnnstack(f)
    assert len(layers.parameters) == 3
    data = [np.ones((3, 4), "f4")]
    close(layers.eval({x: data})[0], f.eval({x: data})[0])


# ---- exchanges --------------------------------------------------------------------------------------


def test_functions_are_exchanged_inside_blocks_too():
    x = C.input_variable(3)
    z = C.layers.Sequential(
        [C.layers.Dense(2, init=1, activation=C.relu), C.layers.Dense(2, init=1, activation=C.relu)]
    )(x)
    data = np.ones((1, 3), "f4")
    found = C.misc.convert(
        z, lambda f: type(f) is C.Function and f.root_function.op_name == "ReLU", lambda f: C.negate(f.inputs[0])
    )
    close(found.eval({x: data}), [[6, 6]])  # as CNTK has it
    close(C.tanh(z).eval({x: data}), [[1, 1]])
    assert set(found.parameters) == set(z.parameters)
    nothing = C.misc.convert(z, lambda f: False, lambda f: f)
    close(nothing.eval({x: data}), z.eval({x: data}))
    with pytest.raises(TypeError, match="a function with one output"):
        C.misc.convert(z, lambda f: f.op_name == "ReLU", lambda f: 3)


def test_a_root_function_has_what_it_is_applied_to():
    x, w = C.input_variable(3, name="x"), C.parameter((3, 2), init=1, name="w")
    b = C.parameter(2, init=1, name="b")
    t = C.times(x, w, name="t")
    z = C.relu(t + b)

    def names(f):
        return [v.name for v in f.inputs], f.is_primitive, f.is_composite

    assert names(z) == (["x", "w", "b"], False, True)
    assert names(z.root_function) == ([""], True, False)
    assert names(z.root_function.inputs[0].owner) == (["t", "b"], True, False)
    assert names(C.logging.find_by_name(z, "t")) == (["x", "w"], True, False)
    assert z.root_function.root_function.inputs == z.root_function.inputs
    assert z.root_function.inputs[0].owner.inputs[1].is_parameter
    layer = C.layers.Dense(2)(x)
    assert names(layer.root_function) == (["W", "b", "x"], True, False)
    found = C.logging.depth_first_search(z, lambda n: True)
    assert [getattr(i, "op_name", i.name) for i in found] == ["ReLU", "Plus", "Times", "x", "w", "b"]
