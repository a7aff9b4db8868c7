"""CNTK's networks: layers against NumPy, functions, files, gradients, and whole scripts."""

from __future__ import annotations

import functools
import math
import shutil

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline as fl  # noqa: E402
import feedline.cntk as C  # noqa: E402
from feedline.cntk.layers import (  # noqa: E402
    GRU,
    LSTM,
    AveragePooling,
    BatchNormalization,
    Convolution,
    Convolution1D,
    Convolution2D,
    Delay,
    Dense,
    Dropout,
    Embedding,
    Fold,
    For,
    LayerNormalization,
    MaxPooling,
    PastValueWindow,
    Recurrence,
    RecurrenceFrom,
    ResNetBlock,
    RNNStep,
    Sequential,
    Stabilizer,
)
from tests.cli.shell import feedline  # noqa: E402
from tests.oracles import network as oracle  # noqa: E402

STEPS = [np.float32(np.random.default_rng(i).uniform(-1, 1, (n, 3))) for i, n in enumerate((4, 1, 3))]
close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6)


def values(function):
    return {p.name: p.value for p in function.parameters}


def same(found, expected):
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        close(mine, theirs)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def x():
    return C.sequence.input_variable(3, name="x")


# ---- layers ---------------------------------------------------------------------------------------


def test_dense(x):
    layer = Dense(5, activation=C.relu, name="hidden")
    assert layer.W.shape == (-1, 5)
    z = layer(x)
    W, b = layer.W.value, layer.b.value
    assert (W.shape, b.tolist()) == ((3, 5), [0] * 5)
    layer.b.value = np.arange(5) - 2
    same(z.eval({x: STEPS}), [np.maximum(s @ W + np.arange(5) - 2, 0) for s in STEPS])
    assert z.find_by_name("hidden").op_name == "Dense"
    assert Dense(2, bias=False)(x).parameters[0].name == "W"
    image = C.input_variable((2, 3, 4))
    assert Dense((5, 6))(image).W.shape == (2, 3, 4, 5, 6)
    assert Dense(5, map_rank=1)(image).shape == (2, 5)
    assert Dense(5, input_rank=1)(image).shape == (2, 3, 5)
    with pytest.raises(ValueError, match="input_rank or map_rank"):
        Dense(5, input_rank=1, map_rank=1)


def test_a_layer_applied_twice_shares_its_parameters(x):
    layer = Dense(2)
    both = C.combine(layer(x), layer(C.sequence.past_value(x)))
    assert len(both.parameters) == 2
    with pytest.raises(ValueError, match=r"times: expected .* got \(4,\) of input .* and \(3, 2\) of parameter `W`"):
        layer(C.input_variable(4))


def test_embedding_of_sparse_and_dense_classes():
    layer = Embedding(4)
    words, flat = C.sequence.input_variable(7, is_sparse=True), C.sequence.input_variable(7)
    classes = [[1, 6, 0], [3]]
    E = layer(words).E.value
    assert E.shape == (7, 4)
    same(layer(words).eval({words: C.Value.one_hot(classes, 7)}), [E[c] for c in classes])
    # As in CNTK, data may be sparse for a variable that is not declared sparse.
    same(layer(flat).eval({flat: C.Value.one_hot(classes, 7)}), [E[c] for c in classes])
    same(layer(flat).eval({flat: [np.eye(7, dtype="f4")[c] for c in classes]}), [E[c] for c in classes])
    fixed = Embedding(weights=np.ones((7, 2), "f4"))(words)
    assert (fixed.parameters, fixed.constants[0].name) == ((), "E")


@pytest.mark.parametrize("backwards", [False, True])
def test_recurrences_match_cntk(x, backwards):
    def run(step, twin, **options):
        z = Recurrence(step, go_backwards=backwards, **options)(x)
        same(z.eval({x: STEPS}), [twin(s.astype("f8"), **values(z)) for s in STEPS])
        return z

    def turned(f):
        return (lambda s, **w: f(s[::-1], **w)[::-1]) if backwards else f

    lstm = functools.partial(oracle.lstm, h0=0.1, c0=0.1, backwards=backwards)
    assert run(LSTM(4), lstm, initial_state=0.1).find_by_name("x") is not None
    run(RNNStep(4), functools.partial(oracle.rnn, activation=oracle.sigmoid, backwards=backwards))
    for activation, twin in ((C.tanh, np.tanh), (C.relu, lambda v: np.maximum(v, 0))):
        step = RNNStep(4, activation=activation)
        run(step, functools.partial(oracle.rnn, activation=twin, backwards=backwards))
    run(GRU(4), turned(oracle.gru))


def test_fused_and_looped_lstms_agree(x):
    """Asking for all states takes the step loop: torch's kernel gives one."""
    step = LSTM(4)
    fused = Recurrence(step)(x)
    looped = Recurrence(step, return_full_state=True)(x)
    assert {n.op for n in fl_nodes(fused)} & {"lstm", "loop"} == {"lstm"}
    assert {n.op for n in fl_nodes(looped)} & {"lstm", "loop"} == {"loop"}
    assert fused.parameters == fused.parameters
    assert set(fused.parameters) == set(looped.parameters)
    h, c = looped.outputs
    found = looped.eval({x: STEPS})
    same(found[h], fused.eval({x: STEPS}))
    assert found[c][0].shape == (4, 4)


def fl_nodes(function):
    from feedline.networks import topological

    return topological([function.node] if len(function.outputs) == 1 else [v.node for v in function.outputs])


@pytest.mark.parametrize(
    "step",
    [
        lambda: LSTM(4, use_peepholes=True),
        lambda: LSTM(4, enable_self_stabilization=True),
        lambda: LSTM(4, cell_shape=6),
        lambda: LSTM(4, activation=C.relu),
        lambda: GRU(4, enable_self_stabilization=True),
        lambda: GRU(4, cell_shape=4),
        lambda: RNNStep(4, cell_shape=5, activation=C.tanh, enable_self_stabilization=True),
        lambda: RNNStep(4, activation=C.tanh) >> Dense(4),
    ],
)
def test_other_steps_learn(x, step):
    z = Recurrence(step())(x)
    loss = C.reduce_sum(C.square(z))
    gradients = loss.grad({x: STEPS}, wrt=z.parameters)
    assert all(np.isfinite(g).all() and np.abs(g).sum() > 0 for g in gradients.values())
    assert [s.shape for s in z.eval({x: STEPS})] == [(4, 4), (1, 4), (3, 4)]


def test_states_that_are_data(x):
    h0, c0 = C.input_variable(4), C.input_variable(4)
    step = LSTM(4)
    z = RecurrenceFrom(step)(h0, c0, x)
    first = [np.float32(np.random.default_rng(9 + i).uniform(-1, 1, (3, 4))) for i in range(2)]
    expected = [oracle.lstm(s.astype("f8"), **values(z), h0=first[0][i], c0=first[1][i]) for i, s in enumerate(STEPS)]
    same(z.eval({x: STEPS, h0: first[0], c0: first[1]}), expected)


def test_fold_and_recurrence_of_python_functions(x):
    same(Recurrence(C.plus)(x).eval({x: STEPS}), [np.cumsum(s, 0) for s in STEPS])
    close(Fold(C.plus)(x).eval({x: STEPS}), [s.sum(0) for s in STEPS])
    close(Fold(lambda a, b: C.element_max(a, b), initial_state=-1)(x).eval({x: STEPS}), [s.max(0) for s in STEPS])
    close(Fold(C.plus, go_backwards=True, initial_state=1)(x).eval({x: STEPS}), [s.sum(0) + 1 for s in STEPS])


def test_recurrences_written_by_hand(x):
    state = C.placeholder()
    total = x * 0.5 + C.sequence.past_value(state)
    total.replace_placeholders({state: total})
    same(total.eval({x: STEPS}), [np.cumsum(s * 0.5, 0) for s in STEPS])
    backwards = C.layers.ForwardDeclaration()
    other = x + C.sequence.future_value(backwards, 1)
    backwards.resolve_to(other)
    same(other.eval({x: STEPS}), [np.cumsum(s[::-1], 0)[::-1] + 1 for s in STEPS])


def test_delays_and_windows(x):
    shifted = Delay(2, initial_state=7)(x).eval({x: STEPS})
    same(shifted, [oracle.delay(s, 2, 7) for s in STEPS])
    value, valid = PastValueWindow(2, axis=-2)(x).eval({x: STEPS}).values()
    close(value, [[s[-1], s[-2] if len(s) > 1 else s[0] * 0] for s in STEPS])
    assert valid[..., 0].tolist() == [[1, 1], [1, 0], [1, 1]]
    trigram = Sequential([tuple(Delay(t) for t in (-1, 0, 1)), C.splice])(x)
    around = [np.pad(s, ((1, 1), (0, 0))) for s in STEPS]
    same(trigram.eval({x: STEPS}), [np.concatenate([a[2:], a[1:-1], a[:-2]], 1) for a in around])


def test_composing():
    x = C.input_variable(3)
    model = Sequential([For(range(2), lambda i: Dense(4 + i)), [Dense(2), C.tanh], ResNetBlock(Dense(2)), Dropout(0.5)])
    z = model(x)
    assert [p.shape for p in z.parameters if p.name == "W"] == [(2, 2), (5, 2), (4, 5), (3, 4)]
    close((Dense(2) >> C.relu)(x).eval({x: STEPS[0]}) >= 0, True)
    with pytest.raises(TypeError, match="expected functions, or tuples or lists of them"):
        Sequential([3])(x)


def test_default_options():
    x = C.input_variable(3)
    with C.layers.default_options(activation=C.relu, init=C.uniform(0.1), pad=True, bias=False):
        assert "relu" in {n.op for n in fl_nodes(Dense(4)(x))}
        assert "relu" not in {n.op for n in fl_nodes(Dense(4, activation=None)(x))}
        assert [p.name for p in Dense(4)(x).parameters] == ["W"]
        with C.default_options_for(Dense, activation=C.tanh):
            assert "tanh" in {n.op for n in fl_nodes(Dense(4)(x))}
            assert "relu" in {n.op for n in fl_nodes(Convolution1D(2, 3)(C.input_variable((1, 5))))}
        assert np.abs(Dense(400)(x).W.value).max() <= 0.1
        assert Convolution2D(3, 4)(C.input_variable((1, 6, 6))).shape == (4, 6, 6)
    assert "relu" not in {n.op for n in fl_nodes(Dense(4)(x))}


def test_convolutions_and_pooling():
    image = C.input_variable((2, 7, 6))
    data = np.float32(np.random.default_rng(0).uniform(-1, 1, (3, 2, 7, 6)))
    z = Convolution((3, 2), 4, strides=(2, 1), pad=True, activation=C.relu, init_bias=0.1)(image)
    W, b = (z.parameters[i].value.astype("f8") for i in (0, 1))
    assert (W.shape, b.shape) == ((4, 2, 3, 2), (4, 1, 1))
    close(z.eval({image: data}), [np.maximum(oracle.convolve(W, d, (2, 1), (True, True)) + b, 0) for d in data])
    for layer, reduce in ((MaxPooling, max), (AveragePooling, np.mean)):
        pooled = layer((3, 3), strides=2, pad=True)(image).eval({image: data})
        close(pooled, [oracle.pool(d, (3, 3), (2, 2), (True, True), reduce) for d in data])
    plain = C.input_variable((7, 6))
    gray = Convolution((2, 2), 3, reduction_rank=0, bias=False)(plain)
    w = gray.W.value
    assert (w.shape, gray.shape) == ((3, 1, 2, 2), (3, 6, 5))
    close(gray.eval({plain: data[:, 0]}), [oracle.convolve(w, d[:1], (1, 1), (False, False)) for d in data])
    assert C.layers.GlobalAveragePooling()(image).shape == (2, 1, 1)
    with pytest.raises(fl.CompatError, match="shared kernel"):
        Convolution(3, 4, sharing=False)


def test_normalisations():
    x = C.input_variable((2, 3))
    data = np.float32(np.random.default_rng(0).uniform(-1, 1, (5, 2, 3)))
    centred = data - data.mean((1, 2), keepdims=True)
    z = LayerNormalization()(x)
    close(z.eval({x: data}), centred / (np.sqrt((centred**2).mean((1, 2), keepdims=True)) + 1e-5))
    assert [p.shape for p in z.parameters] == [(3,), (3,)]
    for map_rank, over in ((1, (0, 2)), (None, 0)):
        b = BatchNormalization(map_rank=map_rank)(x)
        _, found = b.forward({x: data}, b.outputs, b.outputs)
        mean, variance = data.mean(over, keepdims=True), data.var(over, keepdims=True)
        close(found[b.output], (data - mean) / np.sqrt(variance + 1e-5), rtol=1e-4)
        # Later by the unbiased estimate of the variance.
        unbiased = data.var(over, keepdims=True, ddof=1)
        close(b.eval({x: data}), (data - mean) / np.sqrt(unbiased + 1e-5), rtol=1e-4)
        statistics = {c.name: c.value for c in b.constants if c.name}
        close(statistics["aggregate_mean"], mean.squeeze())
        close(statistics["aggregate_variance"], unbiased.squeeze())
        assert statistics["aggregate_count"] == 5


def test_a_stabilizer_begins_as_the_identity():
    x = C.input_variable(3)
    z = Stabilizer()(x)
    close(z.eval({x: STEPS[0]}), STEPS[0])
    assert Stabilizer(enable_self_stabilization=False)(x).parameters == ()


FANS = [
    (C.glorot_uniform(), (200, 300), "u", math.sqrt(6 / 500)),
    (C.he_uniform(), (200, 300), "u", math.sqrt(6 / 200)),
    (C.xavier(), (200, 300), "u", math.sqrt(3 / 200)),
    (C.uniform(0.3), (200, 300), "u", 0.3),
    (C.glorot_normal(), (200, 300), "n", math.sqrt(2 / 500)),
    (C.he_normal(scale=2), (200, 300), "n", 2 * math.sqrt(2 / 200)),
    (C.normal(0.2), (200, 300), "n", 0.2),
    # 40 channels, 50 filters, a window of 9: a kernel as Convolution makes it
    (C.glorot_uniform(output_rank=-1, filter_rank=2), (50, 40, 3, 3), "u", math.sqrt(6 / (90 * 9))),
    (C.he_normal(output_rank=-1, filter_rank=2), (50, 40, 3, 3), "n", math.sqrt(2 / 360)),
]


@pytest.mark.parametrize(("initializer", "shape", "kind", "width"), FANS)
def test_initializers_know_their_fans(initializer, shape, kind, width):
    C.cntk_py.set_fixed_random_seed(1)  # else what earlier tests made decides
    found = C.Parameter(shape, init=initializer).value
    if kind == "u":
        assert 0.99 * width < np.abs(found).max() <= width * 1.000001
        close(found.std(), width / math.sqrt(3), rtol=0.02)
    else:
        close(found.std(), width, rtol=0.02)


def test_initializers_with_seeds_and_windows():
    a, b = (C.Parameter((3, 4), init=C.glorot_uniform(seed=5)).value for _ in range(2))
    assert (a == b).all()
    close(C.Parameter((1, 1, 4, 4), init=C.bilinear(4, 4)).value[0, 0, 0], [0.0625, 0.1875, 0.1875, 0.0625])
    assert np.abs(C.Parameter((1000,), init=C.truncated_normal(0.1)).value).max() <= 0.2


# ---- operations of the package, where they are more than a node ------------------------------------


def test_operators_and_slices():
    x = C.input_variable((3, 4))
    data = np.float32(np.random.default_rng(0).uniform(0.5, 1, (2, 3, 4)))
    cases = {
        1 - x / 2 + x**2: 1 - data / 2 + data**2,
        -x @ np.ones((4, 2), "f4"): -data @ np.ones((4, 2)),
        np.float32(2) * x: 2 * data,
        abs(x - 0.7): np.abs(data - 0.7),
        x[1]: data[:, 1:2],
        x[0:2, 1:4:2]: data[:, 0:2, 1:4:2],
        x[..., -1]: data[..., -1:],
        x[[2, 0]]: data[:, [2, 0]],
        x[0:2, [-1, 1]]: data[:, 0:2, [-1, 1]],
        x > 0.7: data > 0.7,
        C.reduce_sum(x, axis=(0, 1)): data.sum((1, 2), keepdims=True),
        C.reduce_sum(x): data.sum((1, 2)),
        C.reduce_mean(x, axis=C.Axis.all_axes()): data.mean(),
        C.squeeze(C.expand_dims(x, 0)): data,
        C.swapaxes(x): data.transpose(0, 2, 1),
        C.flatten(x): data.reshape(2, 1, 12),
        C.splice(x, x, axis=0): np.concatenate([data, data], 1),
        C.splice(x, x, axis=C.Axis.new_leading_axis()): np.stack([data, data], 1),
        C.element_max(x, 0.6, 0.8): np.maximum(data, 0.8),
        C.ones_like(x) - C.zeros_like(x): np.ones_like(data),
        C.per_dim_mean_variance_normalize(x, 0.5, 2): (data - 0.5) * 2,
    }
    for function, expected in cases.items():
        close(function.eval({x: data}), expected)
    close(C.times([[1, 2]], [[3], [4]]).eval(), [[11]])
    close(C.cross_entropy_with_softmax([[1.0, 2.0, 3.0, 4.0]], [[0.35, 0.15, 0.05, 0.45]]).eval(), [[1.84019]])
    with pytest.raises(TypeError, match="lists of them and slices"):
        x["a"]


# ---- functions ------------------------------------------------------------------------------------


def test_arguments_come_in_order():
    a, b = C.input_variable(2, name="a"), C.input_variable(2, name="b")
    f = C.minus(a, b, name="f")
    assert f.arguments == (a, b)
    close(f(np.ones((1, 2), "f4"), np.zeros((1, 2), "f4")), 1)
    close(f({"a": np.ones((1, 2), "f4"), "b": np.zeros((1, 2), "f4")}), 1)
    close(f(b=np.ones((1, 2), "f4"), a=np.zeros((1, 2), "f4")), -1)
    g = f(b, a)
    close(g.eval({a: np.ones((1, 2), "f4"), b: np.zeros((1, 2), "f4")}), -1)
    with pytest.raises(ValueError, match="expected data for input `a`, input `b`, got it for 'c'"):
        f.eval({"c": 1})
    with pytest.raises(ValueError, match="a dictionary of data for 2 arguments, input `a`, input `b`, got list"):
        f.eval([np.ones((1, 2), "f4")])
    assert repr(f).startswith("Minus(Input('a', [#], [2]), Input('b', [#], [2])) -> Output('f', [#], [2])")


def test_functions_from_python():
    @C.Function
    def scaled(x, scale):
        return x * scale

    @C.BlockFunction("Twice", name="doubled")
    def twice(x):
        return C.Function.NamedOutput(once=x), C.Function.NamedOutput(double=x * 2)

    x, s = C.input_variable(2, name="data"), C.input_variable(())
    assert [v.name for v in scaled.arguments] == ["x", "scale"]
    close(scaled(x, s).eval({x: [[1, 2]], s: [3]}), [[3, 6]])
    both = twice(x)
    assert (both.double.name, both.is_block, both.op_name) == ("double", True, "Twice")
    close(both.eval({x: [[1, 2]]})[both.double], [[2, 4]])


def test_blocks_and_names():
    x = C.input_variable(2, name="x")
    p = C.placeholder(name="p")
    inside = C.alias(C.tanh(p, name="inner") * 2, name="result")
    block = C.as_block(inside, [(p, x)], "MyBlock", "mine")
    assert (block.is_block, block.op_name, block.name) == (True, "MyBlock", "mine")
    assert block.arguments == (x,)
    z = C.plus(block, 1, name="z")
    assert z.find_by_name("inner") is None
    assert z.find_by_name("inner", depth=1).shape == z.inner.shape == (2,)
    assert z.find_by_name("x") == x
    assert z.find_by_name("none") is None
    assert len(C.combine(z, C.tanh(x, name="inner")).find_all_by_name("inner", -1)) == 2
    assert block.block_root.op_name == "Alias"
    assert block.block_arguments_mapping == [(x, x)]


def test_clones(x):
    z = Sequential([Dense(4, activation=C.tanh), Dense(2)])(x)
    before = z.eval({x: STEPS})
    other = C.sequence.input_variable(3)
    shared, copied, frozen = (
        z.clone(method, {x: other}) for method in (C.CloneMethod.share, C.CloneMethod.clone, "freeze")
    )
    for clone in (shared, copied, frozen):
        same(clone.eval({other: STEPS}), before)
    z.parameters[0].value = z.parameters[0].value * 2
    assert set(shared.parameters) == set(z.parameters)
    assert (len(frozen.parameters), len(frozen.constants)) == (0, 4)
    same(copied.eval({other: STEPS}), before)
    same(shared.eval({other: STEPS}), z.eval({x: STEPS}))


def test_a_replacement_over_inputs_of_the_function_is_copied_with_them(x):
    labels = C.sequence.input_variable(3, name="labels")
    loss = C.reduce_sum(C.square(x - labels))
    steps = C.input_variable((C.FreeDimension, 3), name="steps")
    lengths = C.input_variable((), name="lengths")
    clone = loss.clone("share", {x: C.reconcile_dynamic_axes(C.to_sequence(steps, lengths), labels)})
    assert [a.name for a in clone.arguments].count("labels") == 1
    padded, counts = np.zeros((3, max(map(len, STEPS)), 3), np.float32), np.float32([len(s) for s in STEPS])
    for row, step in zip(padded, STEPS, strict=True):
        row[: len(step)] = step
    data = {"steps": padded, "lengths": counts, "labels": [s + 1 for s in STEPS]}
    same(clone.eval(data), loss.eval({x: STEPS, labels: data["labels"]}))
    with pytest.raises(ValueError, match="expected data for input `labels`"):
        clone.eval({steps: padded, lengths: counts, labels: data["labels"]})


def test_gradients_match_finite_differences(x):
    z = Sequential([Recurrence(GRU(2)), C.sequence.last, Dense(1), C.reduce_sum])(x)
    data = [s.copy() for s in STEPS]
    weights = next(p for p in z.parameters if p.name == "W" and p.shape == (3, 6))
    found = z.grad({x: data}, wrt=[x, weights])

    def total():
        return float(z.eval({x: data}).sum(dtype="f8"))

    def difference(change):
        change(1e-2)
        up = total()
        change(-2e-2)
        down = total()
        change(1e-2)
        return (up - down) / 2e-2

    for at in ((0, 1, 2), (2, 0, 0)):
        close(
            difference(lambda d, at=at: np.add.at(data[at[0]], at[1:], d)),
            found[x][at[0]][at[1:]],
            rtol=2e-2,
            atol=2e-4,
        )

    def moved(d):
        value = weights.value
        value[1, 3] += d
        weights.value = value

    close(difference(moved), found[weights][1, 3], rtol=2e-2, atol=2e-4)


def test_forward_and_backward():
    x = C.input_variable(2, needs_gradient=True)
    w = C.Parameter((2,), init=3)
    z = C.element_times(x, w)
    data = np.float32([[1, 2], [3, 4]])
    state, found = z.forward({x: data}, [z.output], {z.output})
    close(found[z.output], 3 * data)
    gradients = z.backward(state, {z.output: np.float32([[1, 0], [0, 2]])}, [x, w])
    close(gradients[x], [[3, 0], [0, 6]])
    close(gradients[w], [1, 8])
    close(z.grad({x: data}), np.full((2, 2), 3))
    gradient, value = z.grad({x: data}, wrt=[w], outputs=[z.output])
    close(gradient, [4, 6])
    close(value, 3 * data)
    with pytest.raises(ValueError, match="state of forward"):
        z.backward(None, 1, [x])


def test_dropout_drops_in_training_alone():
    x = C.input_variable(1000)
    z = Dropout(0.5)(x)
    ones = np.ones((1, 1000), "f4")
    assert (z.eval({x: ones}) == 1).all()
    _, trained = z.forward({x: ones}, z.outputs, z.outputs)
    assert set(np.unique(trained[z.output])) == {0, 2}


def test_data_in_every_form(x):
    z = x * 2
    flat = C.input_variable(3)
    rows = np.concatenate(STEPS)
    same(z.eval(STEPS), [2 * s for s in STEPS])
    same(z.eval({x: C.Value(STEPS)}), [2 * s for s in STEPS])
    same(z.eval({"x": fl.Value.from_sequences(STEPS)}), [2 * s for s in STEPS])
    same(z.eval({x: rows.reshape(2, 4, 3)}), 2 * rows.reshape(2, 4, 3))
    same(z.eval({x: rows}), [2 * rows])  # one sequence
    same(z.eval({x: C.Value(rows)}), [2 * rows])
    same(z.eval({x: rows.tolist()}), 2 * rows[:, None])
    close((flat * 2).eval({flat: rows.tolist()}), 2 * rows)
    close((flat * 2).eval({flat: C.Value(rows[:, None])}), 2 * rows)
    fixed = C.input_variable((2,), dynamic_axes=[])
    close((fixed + 1).eval({fixed: [1, 2]}), [2, 3])
    with pytest.raises(ValueError, match=r"expected an array \(N, \*\(3,\)\)"):
        z.eval(rows[:, :2])


def test_what_a_file_keeps(tmp_path, x):
    hidden = Sequential([Embedding(4), Recurrence(GRU(3)), C.sequence.last, BatchNormalization()])(x)
    z = C.combine(Dense(2, name="out")(hidden), C.reduce_sum(hidden, name="sum"))
    z.forward({x: STEPS}, z.outputs, z.outputs)  # moves the running statistics
    path = tmp_path / "model.safetensors"
    z.save(path)
    loaded = C.load_model(path)
    assert [v.name for v in loaded.arguments] == ["x"]
    assert [p.name for p in loaded.parameters] == [p.name for p in z.parameters]
    mine, theirs = z.eval({x: STEPS}), loaded.eval({"x": STEPS})
    for a, b in zip(mine.values(), theirs.values(), strict=True):
        np.testing.assert_array_equal(a, b)
    other = z.clone("clone")
    for p in other.parameters:
        p.value = p.value * 0
    other.restore(path)
    for a, b in zip(other.eval({"x": STEPS}).values(), mine.values(), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(fl.StateError, match="same graph"):
        Dense(2)(x).restore(path)
    with pytest.raises(fl.StateError):
        C.load_model(tmp_path / "none")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(fl.StateError):
        C.load_model(path)


# ---- operations of one's own ----------------------------------------------------------------------


class Cube(C.UserFunction):
    def __init__(self, x, name="cube"):
        super().__init__([x], name=name)

    def forward(self, argument, device=None, outputs_to_retain=None):
        power = [a**3 for a in argument] if isinstance(argument, list) else argument**3
        return argument, power

    def backward(self, state, root_gradients):
        if isinstance(state, list):
            return [3 * a**2 * g for a, g in zip(state, root_gradients, strict=True)]
        return 3 * state**2 * root_gradients

    def infer_outputs(self):
        shape, axes = self.user_inputs[0].shape, self.user_inputs[0].dynamic_axes
        return [C.output_variable(shape, np.float32, axes)]


class SumAndProduct(C.UserFunction):
    def forward(self, arguments, outputs, device=None, outputs_to_retain=None):
        a, b = arguments
        total, product = outputs
        outputs[total], outputs[product] = a + b, a * b
        return arguments

    def backward(self, state, root_gradients, variables):
        a, b = state
        total, product = root_gradients.values()
        first, second = self.user_inputs
        if first in variables:
            variables[first] = total + product * b
        if second in variables:
            variables[second] = total + product * a

    def infer_outputs(self):
        kind = (self.user_inputs[0].shape, np.float32, self.user_inputs[0].dynamic_axes)
        return [C.output_variable(*kind, name=name) for name in ("total", "product")]


def test_custom_functions(tmp_path, x):
    cubed = C.user_function(Cube(x * 1))
    same(cubed.eval({x: STEPS}), [s**3 for s in STEPS])
    same((cubed * 2).grad({x: STEPS}, wrt=[x]), [6 * s**2 for s in STEPS])
    flat = C.input_variable(2)
    close((C.user_function(Cube(flat)) + 1).grad({flat: [[1, 2]]}, wrt=[flat]), [[3, 12]])
    w = C.Parameter((2,), init=3)
    both = C.user_function(SumAndProduct([flat, flat * w]))
    found = both.eval({flat: [[1, 2]]})
    close(list(found.values()), [[[4, 8]], [[3, 12]]])
    close(C.plus(*both.outputs).grad({flat: [[1, 2]]}, wrt=[w]), [1 * (1 + 1), 2 * (1 + 2)])
    cubed.save(tmp_path / "f")
    with pytest.raises(fl.CompatError, match=r"`cube`: expected a static method deserialize.* of .*\.Cube"):
        C.load_model(tmp_path / "f")


# ---- training -------------------------------------------------------------------------------------


class Halved(C.UserLearner):
    def update(self, gradient_values, training_sample_count, sweep_end):
        for parameter in gradient_values:
            parameter.value = parameter.value / 2
        return True


def test_trainers_take_functions_and_their_parameters(tmp_path):
    x, y = C.input_variable(2, name="x"), C.input_variable(3, name="y", is_sparse=True)
    z = Dense(3)(x)
    loss, error = C.cross_entropy_with_softmax(z, y), C.classification_error(z, y)
    data = {x: np.float32([[1, 0], [0, 1]]), y: C.Value.one_hot([[0], [2]], 3)}
    W = z.W.value
    trainer = C.Trainer(z, (loss, error), [C.sgd(z.parameters, C.learning_parameter_schedule(0.5))])
    assert trainer.train_minibatch(data)
    assert trainer.parameter_learners[0].parameters == z.parameters
    assert (trainer.model, trainer.loss_function, trainer.evaluation_function) == (z, loss, error)
    expected = W - 0.5 * data[x].T @ (oracle.softmax(data[x] @ W) - np.eye(3)[[0, 2]]) / 2
    close(z.W.value, expected)
    close(trainer.test_minibatch({"x": data[x], "y": data[y]}), error.eval(data).mean())
    trainer.save_checkpoint(str(tmp_path / "m"))
    close(C.load_model(tmp_path / "m").eval(data[x]), z.eval({x: data[x]}))
    z.W.value = W
    trainer.restore_from_checkpoint(str(tmp_path / "m"))
    close(z.W.value, expected)
    halving = C.Trainer(None, C.combine(loss, error), [Halved(z.parameters, C.learning_parameter_schedule(1))])
    halving.train_minibatch(data)
    close(z.W.value, expected / 2)
    with pytest.raises(ValueError, match="got 3 outputs"):
        C.Trainer(z, C.combine(loss, error, z), [C.sgd(z.parameters, 0.1)])


def characters(path, **options):
    """A source of sequences of 7, 4 and 9 characters out of five, and the one that follows each."""
    text = ["abcdeab", "cdea", "bcdeabcde"]
    lines = [(i, t, "abcde".index(c)) for i, s in enumerate(text) for t, c in enumerate(s)]
    path.write_text("".join(f"{i} |x {c}:1 |y {(c + 1) % 5}:1\n" for i, t, c in lines))
    streams = C.io.StreamDefs(x=C.io.StreamDef("x", 5, is_sparse=True), y=C.io.StreamDef("y", 5, is_sparse=True))
    return C.io.MinibatchSource(C.io.CTFDeserializer(str(path), streams), randomize=False, **options)


def language_model(steps):
    """Predict next characters by an LSTM, and by a custom recurrence."""
    torch.manual_seed(0)
    x, y = (C.sequence.input_variable(5, is_sparse=True, name=name) for name in "xy")
    if steps:
        H, state = C.parameter((4, 4), init=C.glorot_uniform()), C.placeholder()
        embedded = Embedding(4)(x)
        h = C.tanh(embedded + C.times(C.sequence.past_value(state, time_step=steps), H))
        z = Dense(5)(h.replace_placeholder(h))
    else:
        z = Dense(5)(Recurrence(LSTM(4))(Embedding(4)(x)))
    trainer = C.Trainer(z, (C.cross_entropy_with_softmax(z, y), None), [C.sgd(z.parameters, 0.1)])
    return z, trainer, {"x": x, "y": y}


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_state_is_carried_from_piece_to_piece(tmp_path, steps):
    """Truncated: the losses of all pieces equal the losses of whole sequences, as long as nothing is learned."""
    z, trainer, inputs = language_model(steps)
    trainer.parameter_learners[0].reset_learning_rate(C.learning_parameter_schedule(0))
    whole = characters(tmp_path / "d.ctf", max_sweeps=1).next_minibatch(20)
    keys = {info.name: info for info in whole}
    expected = C.cross_entropy_with_softmax(z, inputs["y"]).eval({inputs[n]: whole[i] for n, i in keys.items()})
    source = characters(tmp_path / "d.ctf", truncation_length=3, max_sweeps=1)
    streams = {inputs[name]: source.streams[name] for name in inputs}
    total = 0.0
    while minibatch := source.next_minibatch(6, streams):
        trainer.train_minibatch(minibatch)
        total += trainer.previous_minibatch_loss_average * trainer.previous_minibatch_sample_count
    close(total, sum(e.sum() for e in expected))


@pytest.mark.parametrize("steps", [0, 2])
def test_scripts_may_mark_where_sequences_begin(steps):
    """Two sequences in three minibatches of pieces are as whole ones, in training and otherwise."""
    z, trainer, inputs = language_model(steps)
    trainer.parameter_learners[0].reset_learning_rate(C.learning_parameter_schedule(0))
    x, y = (inputs[name] for name in "xy")
    rng = np.random.default_rng(0)
    words, following = (np.eye(5, dtype="f4")[rng.integers(0, 5, (2, 9))] for _ in range(2))
    expected = C.cross_entropy_with_softmax(z, y).eval({x: list(words), y: list(following)})
    scores = np.stack(z.eval({x: list(words)}))
    for begin in (0, 3, 6):
        piece, flags = slice(begin, begin + 3), [begin == 0] * 2
        trainer.train_minibatch(({x: list(words[:, piece]), y: list(following[:, piece])}, flags))
        close(trainer.previous_minibatch_loss_average, np.mean([e[piece] for e in expected]))
        close(np.stack(z.eval((list(words[:, piece]), flags))), scores[:, piece])
    with pytest.raises(ValueError, match="a bool for each of 2 sequences, got 1"):
        trainer.train_minibatch(({x: list(words), y: list(following)}, [True]))


def test_functions_run_piece_by_piece(tmp_path):
    z, _, inputs = language_model(0)
    x = inputs["x"]
    whole = characters(tmp_path / "d.ctf", max_sweeps=1)
    expected = z.eval({x: whole.next_minibatch(20)[whole.streams.x]})
    source = characters(tmp_path / "d.ctf", truncation_length=3, max_sweeps=1)
    first, second = (source.next_minibatch(6, {x: source.streams.x}) for _ in range(2))
    found = [*z.eval(first), *z.eval(second[x])]
    begins = [start for fed in (first, second) for start in fed[x].data._starts]
    assert begins == [True, True, False, False, True]
    same(found, [expected[0][:3], expected[1][:3], expected[0][3:6], expected[1][3:], expected[2][:2]])
    with pytest.raises(ValueError, match="whole sequences"):
        C.sequence.last(z).eval(first)


@pytest.mark.parametrize("steps", [0, 2])
def test_a_checkpoint_holds_what_is_carried(tmp_path, steps):
    def losses(trainer, source, inputs, count):
        streams = {inputs[name]: source.streams[name] for name in inputs}
        for _ in range(count):
            trainer.train_minibatch(source.next_minibatch(6, streams))
            yield trainer.previous_minibatch_loss_average

    _, trainer, inputs = language_model(steps)
    source = characters(tmp_path / "d.ctf", truncation_length=3)
    list(losses(trainer, source, inputs, 3))
    trainer.save_checkpoint(str(tmp_path / "m"), source.get_checkpoint_state())
    expected = list(losses(trainer, source, inputs, 4))
    _, trainer, inputs = language_model(steps)
    source = characters(tmp_path / "d.ctf", truncation_length=3)
    source.restore_from_checkpoint(trainer.restore_from_checkpoint(str(tmp_path / "m")))
    assert list(losses(trainer, source, inputs, 4)) == expected


def test_a_tagger_learns_as_one_of_torch_alone():
    """Embedding, LSTM, dense over sparse words. The same numbers from the same parameters, minibatch by minibatch."""
    rng = np.random.default_rng(0)
    x, y = (C.sequence.input_variable(n, is_sparse=True) for n in (50, 7))
    z = Sequential([Embedding(8), Recurrence(LSTM(12)), Dense(7)])(x)
    D, d, b, W, H, E = (p.value for p in z.parameters)

    def torch_order(weights):
        i, g, f, o = np.split(weights, 4, -1)
        return torch.tensor(np.concatenate([i, f, g, o], -1).T.copy())

    embed, lstm, dense = torch.nn.Embedding(50, 8), torch.nn.LSTM(8, 12), torch.nn.Linear(12, 7)
    with torch.no_grad():
        embed.weight.copy_(torch.tensor(E))
        for target, value in zip(lstm.parameters(), (W, H, b), strict=False):
            target.copy_(torch_order(value))
        lstm.bias_hh_l0.zero_()
        dense.weight.copy_(torch.tensor(D.T.copy()))
        dense.bias.copy_(torch.tensor(d))
    lstm.bias_hh_l0.requires_grad_(False)
    own = [p for m in (embed, lstm, dense) for p in m.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(own, 0.5)
    loss = C.cross_entropy_with_softmax(z, y)
    trainer = C.Trainer(z, (loss, None), [C.sgd(z.parameters, C.learning_parameter_schedule(0.5))])
    for _ in range(5):
        lengths = rng.integers(1, 9, 6)
        words, tags = ([rng.integers(0, n, k) for k in lengths] for n in (50, 7))
        trainer.train_minibatch({x: C.Value.one_hot(words, 50), y: C.Value.one_hot(tags, 7)})
        packed = torch.nn.utils.rnn.pack_sequence([embed(torch.tensor(w)) for w in words], enforce_sorted=False)
        out, _ = lstm(packed)
        targets = torch.nn.utils.rnn.pack_sequence([torch.tensor(t) for t in tags], enforce_sorted=False)
        expected = torch.nn.functional.cross_entropy(dense(out.data), targets.data)
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
        close(trainer.previous_minibatch_loss_average, expected.item(), rtol=1e-5)
    close(z.parameters[-1].value, embed.weight.detach(), rtol=1e-4)
    close(z.parameters[0].value, dense.weight.detach().T, rtol=1e-4)


SCRIPT = """
import numpy as np
import cntk as C

x, y = C.input_variable(20, name='features'), C.input_variable(3, name='labels')
z = C.layers.Sequential([C.layers.Dense(8, activation=C.relu), C.layers.Dense(3, activation=None)])(x)
ce, pe = C.cross_entropy_with_softmax(z, y), C.classification_error(z, y)
streams = C.io.StreamDefs(features=C.io.StreamDef(field='f', shape=20), labels=C.io.StreamDef(field='l', shape=3))
source = C.io.MinibatchSource(C.io.CTFDeserializer('train.ctf', streams))
learner = C.sgd(z.parameters, C.learning_rate_schedule(0.02, C.UnitType.sample))
printer = C.logging.ProgressPrinter(tag='Training', num_epochs=3)
trainer = C.Trainer(z, (ce, pe), [learner], [printer])
inputs = {x: source.streams.features, y: source.streams.labels}
C.training_session(trainer=trainer, mb_source=source, mb_size=16, model_inputs_to_streams=inputs, max_samples=900,
                   progress_frequency=300).train()
minibatch = source.next_minibatch(300, inputs)
print('error', trainer.test_minibatch(minibatch))
"""


def test_a_script_with_a_network_runs_unchanged(tmp_path):
    rng = np.random.default_rng(0)
    with open(tmp_path / "train.ctf", "w") as file:
        for _ in range(300):
            k = rng.integers(3)
            features = rng.uniform(0, 0.3, 20) + np.repeat(np.eye(3)[k], [7, 7, 6])
            file.write(
                f"|l {' '.join(map(str, np.eye(3, dtype=int)[k]))} |f {' '.join(f'{v:.3f}' for v in features)}\n"
            )
    (tmp_path / "script.py").write_text(SCRIPT)
    done = feedline("run", "--as", "cntk", tmp_path / "script.py", cwd=tmp_path)
    assert [line.split("]")[0] for line in done.stdout.splitlines() if line.startswith("Finished")] == [
        f"Finished Epoch[{i} of 3" for i in (1, 2, 3)
    ]
    assert done.stdout.endswith("error 0.0\n")


def test_networks_are_described_and_drawn(tmp_path):
    pytest.importorskip("graphviz", reason="graphviz is not installed")
    x = C.input_variable(3, name="x")
    z = C.layers.Dense(2, activation=C.relu, name="hidden")(x)
    told = C.logging.graph.plot(z, str(tmp_path / "network.dot"))
    assert told == f"Dense({z.W.uid}, {z.b.uid}, {x.uid}) -> {z.output.uid};\n"
    drawn = (tmp_path / "network.dot").read_text("utf-8")
    assert drawn.startswith("digraph")
    assert "hidden" in drawn
    assert C.logging.graph.plot(z) == told
    with pytest.raises(ValueError, match=r"in .svg, .pdf, .png or .dot, got 'network.gif'"):
        C.logging.graph.plot(z, "network.gif")
    if shutil.which("dot"):
        C.logging.graph.plot(z, str(tmp_path / "network.svg"))
        assert "<svg" in (tmp_path / "network.svg").read_text("utf-8")
    assert {path.suffix for path in tmp_path.iterdir()} <= {".dot", ".svg"}
