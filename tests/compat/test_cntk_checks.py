"""Mistakes that CNTK reports when a graph is constructed, and initial values of another shape than asked for.

Each case has the error or the value of CNTK 2.7.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline.cntk as C  # noqa: E402
from feedline.cntk.layers import (  # noqa: E402
    AveragePooling,
    Convolution,
    ConvolutionTranspose,
    Dense,
    Dropout,
    Embedding,
    For,
    MaxPooling,
    SequentialConvolution,
)

F, D = np.float32, np.float64
FOUR = np.arange(4, dtype=F)


# ---- initial values ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "init"),
    [
        ((2,), [[0, 1]]),
        ((4, 1), FOUR),
        ((2, 2), FOUR),
        ((4,), FOUR.reshape(2, 2)),
        ((2, 3), np.arange(3, dtype=F)),
        ((2,), np.array(3.0)),
        ((-1, 2), FOUR.reshape(2, 2)),
        (5, [1, 2]),
    ],
)
def test_an_array_determines_the_shape(shape, init):
    for variable in (
        C.parameter(shape, init),
        C.Parameter(shape, init),
        C.constant(init, shape),
        C.Constant(init, shape),
    ):
        assert variable.shape == np.shape(init)
        assert variable.value.tolist() == np.asarray(init).tolist()


@pytest.mark.parametrize("number", [2, 2.0, np.float32(2), np.int64(2)])
def test_a_number_fills_the_shape(number):
    for variable in (C.parameter((2, 3), number), C.Constant(number, (2, 3))):
        assert variable.value.tolist() == [[2.0] * 3] * 2


def test_arrays_determine_the_shapes_of_layers():
    x = C.input_variable(3)
    dense = Dense(2, init=np.ones((3, 2), F), init_bias=np.array([[1, 2]], F))(x)
    assert (dense.W.shape, dense.b.shape, dense.shape) == ((3, 2), (1, 2), (1, 2))
    assert dense.eval([[1, 2, 3]]).tolist() == [[[7.0, 8.0]]]
    assert Embedding(7, init=[[1, 3, 2], [3, 4, 1]]).E.shape == (2, 3)
    with pytest.raises(ValueError, match="times"):
        Dense(2, init=np.ones((4, 2), F))(x)


def test_arrays_as_kernels():
    line = C.input_variable(5)
    for layer in (
        C.layers.Convolution1D(3, init=np.array([4, 2, 1]), pad=True, reduction_rank=0, bias=False),
        Convolution((3,), init=np.array([4, 2, 1.0]), pad=True, reduction_rank=0, bias=False),
    ):
        assert layer(line).eval([[2, 6, 4, 8, 6]]).tolist() == [[10, 24, 40, 38, 44]]
    sequential = Convolution(3, init=np.array([4, 2, 1.0]), sequential=True, reduction_rank=0, bias=False)
    steps = sequential(C.sequence.input_variable(()))
    assert np.asarray(steps.eval([np.array([2, 6, 4, 8, 6], F)])).tolist() == [[24, 40, 38]]
    for init, rank in ((np.ones((4, 3, 3, 3)), 1), (np.ones((3, 3)), 0), (np.ones((4, 1, 3, 3)), 0)):
        for factory in (Convolution, SequentialConvolution):
            with pytest.raises(ValueError, match=r"expected an initializer, or .* \(4, 3, 3\)"):
                factory((3, 3), 4, init=init, reduction_rank=rank)


def test_a_value_has_the_shape_of_its_variable():
    p = C.parameter((4, 1))
    p.value = FOUR[:, None]
    assert p.value[:, 0].tolist() == [0, 1, 2, 3]
    for wrong in (FOUR, FOUR[None], np.ones(1, F), C.NDArrayView.from_dense(FOUR)):
        with pytest.raises(RuntimeError, match=r"expected a value of shape \(4, 1\)"):
            p.value = wrong
    assert p.value[:, 0].tolist() == [0, 1, 2, 3]
    p.value = 2
    assert p.value[:, 0].tolist() == [2, 2, 2, 2]


INITIALIZERS = ["uniform", "normal", "xavier", "glorot_uniform", "glorot_normal", "he_uniform", "he_normal"]
INITIALIZERS += ["truncated_normal"]


@pytest.mark.parametrize("name", INITIALIZERS)
@pytest.mark.parametrize("scale", [0, -1, -0.5, float("nan")])
def test_the_scale_of_an_initializer_is_above_0(name, scale):
    make = getattr(C.initializer, name)
    make(0.5)
    with pytest.raises(ValueError, match="scale above 0"):
        make(scale)


# ---- element types ----------------------------------------------------------------------------------


def mixtures():
    x, wide = C.input_variable(2, name="x"), C.input_variable(2, dtype=D, name="wide")
    half = C.input_variable(2, dtype=np.float16)
    return {
        "a constant": lambda: x + C.constant(np.ones(2)),
        "a parameter": lambda: C.times(x, C.parameter((2, 2), dtype=D)),
        "an input": lambda: C.element_times(x, wide),
        "half precision": lambda: C.splice(x, half),
        "below a function": lambda: C.tanh(x) - C.sqrt(wide),
        "three operands": lambda: C.element_select(x, x, wide),
        "a loss": lambda: C.squared_error(x, wide),
        "an assignment": lambda: C.assign(C.parameter(2), C.parameter(2, dtype=D)),
        "an operator": lambda: x > wide,
        "a sum of several": lambda: C.plus(x, x, x, wide),
    }


@pytest.mark.parametrize("case", mixtures())
def test_operands_have_one_element_type(case):
    function = mixtures()[case]()  # as in CNTK, the graph can be constructed
    with pytest.raises(ValueError, match=r"of one element type, got float\d\d of .* and float\d\d of"):
        function.eval({v: np.ones((1, *v.shape), v.dtype) for v in function.arguments})


LAYERS = [
    lambda: Dense(3),
    lambda: C.layers.Sequential([C.layers.Recurrence(C.layers.LSTM(3)), Dense(2)]),
    lambda: C.layers.Recurrence(C.layers.GRU(3)),
    lambda: C.layers.LayerNormalization(),
    lambda: C.Function(lambda x: C.times(x, C.parameter((2, 2)))),
]


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_have_the_element_type_of_their_operand(layer):
    wide = C.sequence.input_variable(2, dtype=D)
    with pytest.raises(ValueError, match="expected operands of one element type"):
        layer()(wide).eval([np.ones((3, 2))])
    with C.default_options(dtype=D):
        if layer().parameters[0].dtype is D:
            assert layer()(wide).eval([np.ones((3, 2))])[0].dtype == D
    assert layer()(C.cast(wide, F)).eval([np.ones((3, 2))])[0].dtype == F


def test_trained_functions_have_one_element_type():
    x, y = C.input_variable(2), C.input_variable(1, dtype=D)
    loss = C.squared_error(Dense(1)(x), y)
    learner = C.sgd(loss.parameters, 0.1)
    with pytest.raises(ValueError, match="expected operands of one element type"):
        C.Trainer(None, loss, learner).train_minibatch({x: np.ones((1, 2), F), y: np.ones((1, 1))})


def test_constants_of_layers_take_the_type_of_the_operand():
    wide = C.sequence.input_variable(2, dtype=D)
    for layer in (C.layers.Delay(), C.layers.Dropout(0.5), C.Function(lambda x: C.sequence.past_value(x, 1) + 2)):
        assert layer(wide).eval([np.ones((3, 2))])[0].dtype == D


def test_numbers_and_arrays_take_the_type_of_the_operands():
    wide, x = C.input_variable(2, dtype=D), C.input_variable(2)
    assert (wide + 1).dtype is D
    assert (np.ones(2, F) * wide).eval(np.ones((1, 2))).dtype == D
    assert (x + np.ones(2)).eval(np.ones((1, 2), F)).dtype == F
    assert (C.placeholder() + wide).is_composite is False
    bounds = C.constant([1.0]), C.constant([2.0])
    assert C.clip(wide, *bounds).eval(np.array([[0, 1.5]])).tolist() == [[1, 1.5]]
    both = C.cast(x, D) + wide
    assert both.dtype is D
    assert both.eval({x: np.ones((1, 2), F), wide: np.ones((1, 2))}).tolist() == [[2, 2]]


# ---- names ------------------------------------------------------------------------------------------


def test_a_function_is_named_once(monkeypatch):
    monkeypatch.setattr(C.cntk_py.renaming, "allowed", False)  # restored after the test
    x = C.input_variable(1)
    function = x + 1
    function.name = "first"
    named = [function, C.plus(x, 1, name="second"), Dense(1, name="third")(x)]
    for f in named:
        before = f.name
        with pytest.raises(ValueError, match=r"expected a function without a name"):
            f.name = "other"
        assert f.name == before
    C.cntk_py.allow_renaming_functions()
    for f in named:
        f.name = "other"
        assert f.name == "other"


# ---- operations -------------------------------------------------------------------------------------


def test_batch_normalization_without_running_count_warns():
    x, ones = C.input_variable(1), C.parameter(1, init=1)
    statistics = [C.constant(0, 1), C.constant(1, 1)]
    with pytest.warns(UserWarning, match="running_count"):
        C.batch_normalization(x, ones, ones, *statistics, False)
    C.batch_normalization(x, ones, ones, *statistics, False, running_count=C.constant(0))
    C.layers.BatchNormalization()(x)


@pytest.mark.parametrize("sample", [C.random_sample, C.random_sample_inclusion_frequency])
@pytest.mark.parametrize(
    ("weights", "count", "duplicates"),
    [
        ([1, -1.0], 1, True),
        ([1, -1.0], 1, False),
        ([0.0, 0.0], 1, True),
        ([1.0, 2.0, 3.0], 0, False),
        ([42.0] * 4, 50, False),
        ([[1.0, -1.0], [2.0, 3.0]], 1, True),
    ],
)
def test_weights_of_samples(sample, weights, count, duplicates):
    with pytest.raises(ValueError, match=r"weight|at least one sample"):
        sample(np.array(weights, F), count, duplicates).eval()


def test_weights_that_become_negative():
    weights = C.parameter(init=np.ones(3, F))
    drawn = C.random_sample(weights, 2, True)
    assert drawn.eval().shape == (2, 3)
    weights.value = np.array([1, -1, 1], F)
    with pytest.raises(ValueError, match="least weight of -1"):
        drawn.eval()


IMAGE = C.input_variable((3, 6, 6), name="image")
MISTAKES = {
    "transpose, an axis": (TypeError, lambda: C.transpose(IMAGE, 1)),
    "transpose, twice": (ValueError, lambda: C.transpose(IMAGE, (0, 0, 1))),
    "transpose, outside": (ValueError, lambda: C.transpose(IMAGE, (0, 1, 3))),
    "transpose, negative twice": (ValueError, lambda: C.transpose(IMAGE, (0, -3, 1))),
    "pad": (ValueError, lambda: C.pad(IMAGE, [(1, 1, 1)] * 3)),
    "pad, numbers": (ValueError, lambda: C.pad(IMAGE, [1, 1, 1])),
    "depth_to_space": (ValueError, lambda: C.depth_to_space(IMAGE, 1.5)),
    "space_to_depth": (ValueError, lambda: C.space_to_depth(IMAGE, 0)),
    "reshape": (TypeError, lambda: C.reshape(IMAGE, (1.5, 72))),
    "dropout": (ValueError, lambda: Dropout(keep_prob=-1.5)),
    "dropout, all": (ValueError, lambda: Dropout(keep_prob=1.0)),
    "embedding, init": (ValueError, lambda: Embedding(init=1, weights=[1.0, 2.0])),
    "embedding, shape": (ValueError, lambda: Embedding(3, weights=[1.0, 2.0])),
    "embedding, nothing": (ValueError, lambda: Embedding()),
    "strides": (ValueError, lambda: Convolution((3, 3), 2, strides=(1, 1, 1))),
    "pads": (ValueError, lambda: Convolution((3, 3), 2, pad=[True] * 3)),
    "dilation": (ValueError, lambda: ConvolutionTranspose((3, 3), 2, dilation=(1, 1, 1))),
    "strides of a pool": (ValueError, lambda: MaxPooling((3, 3), strides=(1, 2, 1))),
    "pads of a pool": (ValueError, lambda: AveragePooling((3, 3), pad=(True,) * 3)),
    "groups": (ValueError, lambda: Convolution((3, 3), 2, groups=0)),
    "reduction_rank": (NotImplementedError, lambda: Convolution((3, 3), 2, reduction_rank=2)),
    "convolution, strides": (ValueError, lambda: C.convolution(C.parameter((2, 3, 3, 3)), IMAGE, (1, 1, 1, 1))),
    "universal, arguments": (ValueError, lambda: C.learners.universal(lambda p: p, [C.parameter(2)])),
    "universal, shape": (ValueError, lambda: C.learners.universal(lambda p, g: p, [C.parameter((-1, 2))])),
    "slice beyond an axis": (ValueError, lambda: C.slice(IMAGE, 0, 0, 9)),
    "slice from beyond an axis": (ValueError, lambda: C.slice(IMAGE, (1, 2), (0, -7), (3, 0))),
    "softmax": (ValueError, lambda: C.softmax(IMAGE, 4)),
    "log_softmax": (ValueError, lambda: C.log_softmax(IMAGE, -5)),
    "pad, mode": (ValueError, lambda: C.pad(IMAGE, [(1, 1)] * 3, mode=7)),
    "pad, cut": (ValueError, lambda: C.pad(IMAGE, [(-1, 1)] * 3)),
    "pad, reflected": (ValueError, lambda: C.pad(IMAGE, [(0, 0), (6, 0), (0, 0)], mode=C.ops.REFLECT_PAD)),
    "pooling, kind": (ValueError, lambda: C.pooling(IMAGE, 7, (2, 2))),
    "pooling, window": (ValueError, lambda: C.pooling(IMAGE, C.MAX_POOLING, (0, 2))),
    "pooling, strides": (ValueError, lambda: C.pooling(IMAGE, C.MAX_POOLING, (2, 2), (0, 1))),
    "convolution, strides of 0": (ValueError, lambda: C.convolution(C.parameter((2, 3, 3, 3)), IMAGE, 0)),
    "convolution, dilation": (ValueError, lambda: C.convolution(C.parameter((2, 3, 3, 3)), IMAGE, dilation=0)),
    "convolution, groups": (ValueError, lambda: C.convolution(C.parameter((2, 3, 3, 3)), IMAGE, groups=0)),
    "transposed convolution": (
        ValueError,
        lambda: C.convolution_transpose(C.parameter((3, 2, 3, 3)), IMAGE, strides=2, output_shape=(2, 99, 99)),
    ),
    "roipooling": (ValueError, lambda: C.roipooling(IMAGE, C.input_variable((2, 4)), C.MAX_POOLING, (0, 2), 1.0)),
    "local_response_normalization": (ValueError, lambda: C.local_response_normalization(IMAGE, -1, 1, 1, 1)),
    "one_hot": (ValueError, lambda: C.one_hot(C.input_variable(2), 0)),
    "top_k": (ValueError, lambda: C.top_k(IMAGE, 0)),
    "uniform": (ValueError, lambda: C.random.uniform((2,), low=2, high=1)),
    "normal": (ValueError, lambda: C.random.normal_like(IMAGE, scale=-1)),
    "gumbel": (ValueError, lambda: C.random.gumbel((2,), scale=-1)),
    "bernoulli": (ValueError, lambda: C.random.bernoulli((2,), mean=2)),
    "input, negative": (ValueError, lambda: C.input_variable((-5, 2))),
    "parameter, negative": (ValueError, lambda: C.parameter((-5,))),
    "parameter, text": (TypeError, lambda: C.parameter(2, init="a")),
    "operand, None": (TypeError, lambda: C.plus(None, IMAGE)),
    "function of nothing": (TypeError, lambda: C.Function(lambda x: None)),
    "combine, nothing": (ValueError, lambda: C.combine([])),
    "combine, a number": (TypeError, lambda: C.combine([3])),
    "axes, text": (TypeError, lambda: C.input_variable(2, dynamic_axes=["a"])),
    "bilinear": (ValueError, lambda: C.parameter((2, 3), init=C.initializer.bilinear(2, 2)).value),
    "stabilizer": (ValueError, lambda: C.layers.Stabilizer(0)),
    "window of steps": (ValueError, lambda: C.layers.PastValueWindow(0, -1)(C.sequence.input_variable(2))),
    "For, a layer": (ValueError, lambda: For(range(3), Dense(5))),
    "For, a partial function": (ValueError, lambda: For(range(3), functools.partial(Dense, 5))),
    "For, an object": (ValueError, lambda: For(range(3), object())),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes(case):
    kind, make = MISTAKES[case]
    with pytest.raises(kind, match="expected"):
        make()


def test_options_of_functions():
    with pytest.raises(ValueError, match="expected a Python function"):
        C.layers.get_default_override("Dense", init=C.default_override_or(1))
    with pytest.raises(TypeError, match="expected a parameter of Dense, got 'depth'"):
        C.layers.get_default_override(Dense, depth=C.default_override_or(1))
    with C.layers.default_options_for(Dense, init=3), C.layers.default_options(pad=np.array([True, True])):
        assert C.layers.get_default_override(Dense, init=C.default_override_or(1)) == 3
        assert C.layers.get_default_override(Embedding, init=C.default_override_or(1)) == 1
        assert Convolution((3, 3), 2)(IMAGE).shape == (2, 6, 6)


def test_functions_that_construct_layers():
    for constructor in (lambda: Dense(5), lambda i: Dense(5 + i)):
        assert For(range(2), constructor)(C.input_variable(2)).shape in ((5,), (6,))


# ---- settings for some axes, and kernels without channels -------------------------------------------


def test_padding_of_the_last_axes():
    x = C.input_variable((1, 6, 6))
    pooled = C.pooling(x, C.MAX_POOLING, (1, 4, 4), (2, 2), auto_padding=[True, False])
    data = np.arange(36, dtype=F).reshape(1, 1, 6, 6)
    assert pooled.eval(data).tolist() == [[[[15, 17], [27, 29], [33, 35]]]]


def test_unpooling_of_windows_that_overlap():
    x = C.input_variable((1, 8, 8), needs_gradient=True)
    settings = ((5, 5), (2, 2), (True,))
    pooled = C.pooling(x, C.MAX_POOLING, *settings)
    back = C.unpooling(pooled, x, C.MAX_UNPOOLING, *settings)
    data = np.arange(1, 65, dtype=F).reshape(1, 1, 8, 8)
    maxima = [19, 21, 23, 24, 35, 37, 39, 40, 51, 53, 55, 56, 59, 61, 63, 64]
    mask = np.isin(data, maxima)
    assert back.eval(data).tolist() == (data * mask).tolist()
    assert back.grad(data).tolist() == mask.astype(F).tolist()


def test_transposed_convolution_without_channels():
    x = C.input_variable((3, 3))
    data = np.arange(9, dtype=F).reshape(1, 3, 3)
    result = C.convolution_transpose(FOUR.reshape(2, 2), x, auto_padding=[False], reduction_rank=0).eval(data)
    expected = [[0, 0, 1, 2], [0, 5, 11, 11], [6, 23, 29, 23], [12, 32, 37, 24]]
    assert result.reshape(4, 4).tolist() == expected
    kernel, settings = np.arange(9, dtype=F).reshape(3, 3), {"strides": 2, "output_shape": (1, 5, 6)}
    sized = C.convolution_transpose(kernel, x, auto_padding=[True], reduction_rank=0, **settings).eval(data)
    assert sized.reshape(5, 6)[0].tolist() == [0, 3, 4, 11, 8, 10]
    layer = ConvolutionTranspose((2, 2), 3, init=1, bias=False, reduction_rank=0)(x)
    assert layer.shape == (3, 4, 4)
    assert layer.eval(data)[0, 0].tolist()[0] == [0, 1, 3, 2]


def test_generated_sequences_are_rounded_up():
    double = C.layers.UnfoldFrom(lambda s: s * 2, until_predicate=lambda x: C.greater(x, 63), length_increase=1.6)
    like = C.sequence.input_variable(1)
    steps = double(C.Constant(1), like).eval([np.zeros((3, 1), F), np.zeros((5, 1), F)])
    assert [s.tolist() for s in steps] == [[2, 4, 8, 16, 32], [2, 4, 8, 16, 32, 64]]


# ---- assignments ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [F, D])
def test_assignments_wait_for_gradients(dtype):
    data = np.array([[1, 2], [4, 5]], dtype)
    target, source = C.parameter((2, 2), dtype=dtype), C.parameter(init=data)
    assigned = C.assign(target, source)
    state, values = assigned.forward({}, [assigned.output], {assigned.output})
    assert target.value.tolist() == np.zeros((2, 2)).tolist()
    assert values[assigned.output].tolist() == data.tolist()
    gradients = assigned.backward(state, {assigned.output: np.ones_like(data)}, {target})
    assert target.value.tolist() == data.tolist()
    assert gradients[target].tolist() == np.zeros((2, 2)).tolist()
    source.value = data + 1
    assigned.network()({})  # as trainers run it
    assert target.value.tolist() == (data + 1).tolist()


def test_gradients_are_taken_at_the_previous_values():
    x, w = C.input_variable(1), C.parameter(1, init=3.0)
    both = C.combine(x * w * w, C.assign(w, w * 2))
    assert both.grad([[2.0]], wrt=[w], grad_root=both.outputs[0]).tolist() == [12.0]
    assert w.value.tolist() == [3.0]  # the assignment is not below the root
    gradient, _ = both.grad([[2.0]], wrt=[w], grad_root=both.outputs[0], outputs=list(both.outputs))
    assert (gradient.tolist(), w.value.tolist()) == ([12.0], [6.0])
    assert both.eval([[2.0]])[both.outputs[0]].tolist() == [[72.0]]
    assert w.value.tolist() == [12.0]


def test_forward_is_testing_unless_gradients_follow():
    x = C.input_variable(1, needs_gradient=True)
    scale, bias = C.parameter(1, init=3), C.parameter(1, init=4)
    count = C.constant(0)
    normalized = C.batch_normalization(x, scale, bias, C.constant(1, 1), C.constant(2, 1), False, running_count=count)
    data = np.array([[0.0], [2.0]], F)
    _, values = normalized.forward({x: data})
    np.testing.assert_allclose(values[normalized.output], (data - 1) / np.sqrt(2 + 1e-5) * 3 + 4, rtol=1e-6)
    assert count.value == 0
    _, values = normalized.forward({x: data}, normalized.outputs, normalized.outputs)
    np.testing.assert_allclose(values[normalized.output], [[1], [7]], rtol=1e-4)
    assert count.value == 2
