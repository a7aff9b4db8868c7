"""CNTK's own model files, made byte by byte by an encoder that shares nothing with the reader, against NumPy."""

from __future__ import annotations

import struct
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("google.protobuf", reason="protobuf is not installed")

import feedline as fl  # noqa: E402
import feedline.cntk as C  # noqa: E402
from feedline.cntk._model_files import dictionaries, file_values, writing  # noqa: E402
from tests.oracles import cntk_model as file  # noqa: E402
from tests.oracles.cntk_model import BATCH, SEQUENCE, Axis, Dims, Float, Int, block, function, given, leaf  # noqa: E402

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 2, 4)).astype("f4")  # three samples of shape (2, 4)
Y = RNG.normal(size=(3, 2, 4)).astype("f4")
STEPS = [RNG.normal(size=(n, 3)).astype("f4") for n in (4, 1, 3)]
ROWS = Axis(-1)  # the first axis of a sample. The last is 0


def close(a, b, tolerance=2e-6):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), tolerance, tolerance)


@pytest.fixture
def loaded(tmp_path):
    def load(root, leaves, functions):
        path = tmp_path / "z.model"
        path.write_bytes(file.dictionary(file.model(root, leaves, functions)))
        return C.Function.load(str(path))

    return load


INPUTS = [leaf("Input1", 0, (4, 2), [BATCH], name="x"), leaf("Input2", 0, (4, 2), [BATCH], name="y")]


def one(loaded, op, operands, attributes, more=(), outputs=1):
    """Return the result of a model of one operation over x and y, and further leaves."""
    functions = [function("F1", op, list(operands), attributes, name="f")]
    root = "F1"
    if outputs > 1:
        functions.append(function("C1", 44, [f"F1_Output_{i}" for i in range(outputs)]))
        root = "C1"
    z = loaded(root, [*INPUTS, *more], functions)
    feeds = {"Input1": ("x", X), "Input2": ("y", Y)}
    return z.eval({name: data for uid, (name, data) in feeds.items() if uid in operands})


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


POSITIVE = np.abs(X)
UNARY = {
    0: lambda x: -x,
    1: sigmoid,
    2: np.tanh,
    3: lambda x: np.maximum(x, 0),
    4: np.exp,
    6: lambda x: np.sqrt(np.maximum(x, 0)),
    7: np.floor,
    8: np.abs,
    9: np.reciprocal,
    54: np.sin,
    55: np.cos,
    56: lambda x: x,
    62: lambda x: x,
    64: lambda x: x,
    75: sigmoid,
    77: np.sinh,
    78: np.cosh,
    86: np.arcsinh,
    95: np.tan,
    96: np.arctan,
}
BINARY = {
    19: np.add,
    20: np.subtract,
    21: np.multiply,
    22: np.equal,
    23: np.not_equal,
    24: np.less,
    25: np.less_equal,
    26: np.greater,
    27: np.greater_equal,
    52: np.logaddexp,
}


@pytest.mark.parametrize("op", UNARY)
def test_operations_on_each_element(loaded, op):
    close(one(loaded, op, ["Input1"], {}), UNARY[op](X))


@pytest.mark.parametrize(("op", "twin"), [(81, np.arcsin), (82, np.arccos), (85, np.arctanh), (5, np.log)])
def test_operations_on_part_of_the_numbers(loaded, op, twin):
    z = loaded("F1", INPUTS[:1], [function("F1", op, ["Input1"])])
    data = np.clip(POSITIVE, 0.1, 0.9)
    close(z.eval({"x": data}), twin(data))


@pytest.mark.parametrize("op", BINARY)
def test_operations_on_two(loaded, op):
    close(one(loaded, op, ["Input1", "Input2"], {}), BINARY[op](X, Y))


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


W = RNG.normal(size=(4, 5)).astype("f4")
WHOLE = Axis(file.ALL_STATIC)

# By number: operands, attributes, further leaves, and the twin.
SETTINGS = [
    ("power", 69, ["Input1", "P"], {}, [given("P", 3, 2.0)], lambda: X**2),
    ("softmax", 10, ["Input1"], {"axis": WHOLE}, [], lambda: softmax(X.reshape(3, -1), 1).reshape(X.shape)),
    ("hardmax", 11, ["Input1"], {}, [], lambda: X.max((1, 2), keepdims=True) == X),
    ("log softmax", 51, ["Input1"], {"axis": ROWS}, [], lambda: np.log(softmax(X, 1))),
    ("transposed axes", 12, ["Input1"], {"axis1": Axis(0), "axis2": Axis(1)}, [], lambda: X.swapaxes(1, 2)),
    ("transposed", 12, ["Input1"], {"axisVec": [Axis(1), Axis(0)]}, [], lambda: X.transpose(0, 2, 1)),
    (
        "slice",
        14,
        ["Input1"],
        {"axis": Axis(0), "beginIndex": Int(1), "endIndex": Int(0), "sliceStrides": Int(2)},
        [],
        lambda: X[:, :, 1::2],
    ),
    (
        "slice without strides",
        14,
        ["Input1"],
        {"axis": ROWS, "beginIndex": Int(-1), "endIndex": Int(0)},
        [],
        lambda: X[:, -1:],
    ),
    (
        "slices",
        14,
        ["Input1"],
        {
            "axisVec": [Axis(0), Axis(1)],
            "beginIndexVec": [Int(-3), Int(1)],
            "endIndexVec": [Int(-1), Int(2)],
            "sliceStridesVec": [Int(1), Int(1)],
        },
        [],
        lambda: X[:, 1:2, -3:-1],
    ),
    ("dropout", 15, ["Input1"], {"dropoutRate": 0.5, "rngSeed": 3, "rngOffset": 0}, [], lambda: X),
    ("reshape", 16, ["Input1"], {"newShape": Dims((2, 2**64 - 1))}, [], lambda: X.reshape(3, 4, 2)),
    (
        "reshape of the last axis",
        16,
        ["Input1"],
        {"newShape": Dims((2, 2)), "beginAxis": Axis(0), "endAxis": Axis(1)},
        [],
        lambda: X.reshape(3, 2, 2, 2),
    ),
    (
        "new first axis",
        16,
        ["Input1"],
        {"newShape": Dims((1,)), "beginAxis": Axis(file.END), "endAxis": Axis(file.END)},
        [],
        lambda: X[:, None],
    ),
    ("sum of all", 18, ["Input1"], {}, [], lambda: X.sum()),
    (
        "times",
        31,
        ["W", "Input1"],
        {"outputRank": 1, "inferInputRankToMap": Int(-1)},
        [given("W", 2, W)],
        lambda: X @ W,
    ),
    ("transpose times", 32, ["V", "Input1"], {"outputRank": 1}, [given("V", 2, W.T.copy())], lambda: X @ W),
    ("sum", 39, ["Input1"], {"axis": Axis(0), "reductionOpName": "Sum"}, [], lambda: X.sum(2, keepdims=True)),
    (
        "maximum, not kept",
        39,
        ["Input1"],
        {"axis": ROWS, "reductionOpName": "Max", "reductionKeepDimensions": False},
        [],
        lambda: X.max(1),
    ),
    (
        "mean of both axes",
        39,
        ["Input1"],
        {"axisVec": [Axis(0), Axis(1)], "reductionOpName": "Mean", "reductionKeepDimensions": True},
        [],
        lambda: X.mean((1, 2), keepdims=True),
    ),
    (
        "log sum",
        39,
        ["Input1"],
        {"axis": WHOLE, "reductionOpName": "LogSum"},
        [],
        lambda: np.log(np.exp(X).sum((1, 2))),
    ),
    ("minimum of the batch", 39, ["Input1"], {"axis": BATCH, "reductionOpName": "Min"}, [], lambda: X.min(0)),
    ("product of all", 39, ["Input1"], {"axis": Axis(file.ALL), "reductionOpName": "Prod"}, [], lambda: X.prod()),
    ("argmax", 39, ["Input1"], {"axis": Axis(0), "reductionOpName": "Argmax"}, [], lambda: X.argmax(2)[..., None]),
    ("argmin", 39, ["Input1"], {"axis": WHOLE, "reductionOpName": "Argmin"}, [], lambda: X.reshape(3, -1).argmin(1)),
    ("clip", 41, ["Input1", "A", "B"], {}, [given("A", 3, -0.5), given("B", 3, 0.25)], lambda: X.clip(-0.5, 0.25)),
    ("select", 42, ["Input1", "Input2", "A"], {}, [given("A", 3, 2.0)], lambda: np.where(X != 0, Y, 2)),
    ("splice", 43, ["Input1", "Input2"], {"axis": ROWS}, [], lambda: np.concatenate([X, Y], 1)),
    ("splice to a new axis", 43, ["Input1", "Input2"], {"axis": Axis(file.END)}, [], lambda: np.stack([X, Y], 1)),
    (
        "cosine",
        53,
        ["Input1", "Input2"],
        {},
        [],
        lambda: (X * Y).sum((1, 2)) / np.sqrt((X**2).sum((1, 2)) * (Y**2).sum((1, 2))),
    ),
    ("elu", 65, ["Input1"], {}, [], lambda: np.where(X >= 0, X, np.expm1(np.minimum(X, 0)))),
    (
        "one hot",
        68,
        ["K"],
        {"numClass": 3, "oneHotOutputSparse": False, "onehotAxis": Axis(0)},
        [given("K", 3, [2.0, 0.0])],
        lambda: np.eye(3)[[2, 0]],
    ),
    ("gather", 74, ["K", "R"], {}, [given("K", 3, [2.0, 0.0]), given("R", 2, W)], lambda: W[[2, 0]]),
    (
        "pad",
        83,
        ["Input1"],
        {"paddingHead": [1, 0], "paddingFoot": [0, 2], "paddingMode": 0, "paddingConstantValue": 7.0},
        [],
        lambda: np.pad(X, [(0, 0), (0, 2), (1, 0)], constant_values=7),
    ),
    ("squeezed", 88, ["A"], {}, [given("A", 3, W[None, :, None])], lambda: W),
    ("squeezed axis", 88, ["A"], {"axisVec": [Axis(0)]}, [given("A", 3, W[None, :, :, None])], lambda: W[None]),
    ("constant", 89, ["Input1"], {"fillValue": 1.5}, [], lambda: np.full_like(X, 1.5)),
    ("cast", 91, ["Input1"], {"newDataType": Int(2)}, [], lambda: X.astype("f8")),
    ("squared error of the first version", 34, ["Input1", "Input2"], {}, [], lambda: ((X - Y) ** 2).sum()),
]


@pytest.mark.parametrize(
    ("op", "operands", "attributes", "more", "twin"), [c[1:] for c in SETTINGS], ids=[c[0] for c in SETTINGS]
)
def test_operations_with_settings(loaded, op, operands, attributes, more, twin):
    found = one(loaded, op, operands, attributes, more)
    close(found, twin())
    assert np.asarray(found).shape == np.asarray(twin()).shape


def test_two_outputs(loaded):
    values, places = one(loaded, 87, ["Input1"], {"axis": Axis(0), "numItems": 2}, outputs=2).values()
    order = np.argsort(-X, -1)[..., :2]
    close(values, np.take_along_axis(X, order, -1))
    close(places, order)


VECTORS = [leaf("Input1", 0, (4,), [BATCH], name="x"), leaf("Input2", 0, (4,), [BATCH], name="y")]
PAIRS = [leaf("Input1", 0, (3,), [SEQUENCE, BATCH], name="x"), leaf("Input2", 0, (3,), [SEQUENCE, BATCH], name="y")]
SINGLES = [leaf(f"Input{i}", 0, (1,), [BATCH], name=n) for i, n in enumerate("xyg", 1)]
EDITS = {
    "SubstitutionPenalty": Float(2.0),
    "DeletionPenalty": Float(1.0),
    "InsertionPenalty": Float(1.5),
    "SquashInputs": True,
    "TokensToIgnore": [1],
}
WINDOWS = {
    "strides": Dims((2, 2, 1)),
    "autoPadding": [False, False, False],
    "lowerPad": Dims((0,)),
    "upperPad": Dims((0,)),
}
PICTURE = leaf("Input1", 0, (4, 6, 2), [BATCH], name="x")
POOLED = leaf("Input2", 0, (2, 3, 2), [BATCH], name="y")
# By number: leaves, operands, attributes, and the same of the façade, whose operations have other tests.
LIKE = {
    "cross entropy of the first version": (
        35,
        VECTORS,
        ["Input1", "Input2"],
        {},
        lambda x, y: C.reduce_sum(C.cross_entropy_with_softmax(x, y), C.Axis.all_axes()),
    ),
    "error of the first version": (
        36,
        VECTORS,
        ["Input1", "Input2"],
        {},
        lambda x, y: C.reduce_sum(C.classification_error(x, y), C.Axis.all_axes()),
    ),
    "top two": (36, VECTORS, ["Input1", "Input2", "two"], {}, lambda x, y: C.classification_error(x, y, topN=2)),
    "others": (
        67,
        VECTORS,
        ["Input1", "Input2", "one", "two"],
        {},
        lambda x, y: C.cosine_distance_with_negative_samples(x, y, 1, 2),
    ),
    "edits": (61, PAIRS, ["Input1", "Input2"], EDITS, lambda x, y: C.edit_distance_error(x, y, 2, 1, 1.5, True, [1])),
    "ranks": (59, SINGLES, ["Input1", "Input2", "Input3"], {}, C.lambda_rank),
    "gains": (60, SINGLES, ["Input1", "Input2", "Input3"], {}, C.ndcg_at_1),
    "weighted binary": (48, SINGLES, ["Input1", "Input2", "Input3"], {}, C.weighted_binary_cross_entropy),
    "crop": (
        84,
        [PICTURE, POOLED],
        ["Input1", "Input2"],
        {"offset": [1, 2]},
        lambda x, y: C.crop_manual(x, y, 1, 2),
    ),
    "unpooling": (
        58,
        [PICTURE, POOLED],
        ["Input2", "Input1"],
        {**WINDOWS, "poolingType": 0, "unpoolingWindowShape": Dims((2, 2, 1))},
        lambda x, y: C.unpooling(y, x, C.MAX_UNPOOLING, (2, 2), (2, 2)),
    ),
    "identity": (92, VECTORS, ["Input1"], {"OutputSparse": False}, lambda x, y: C.eye_like(x, False)),
    "batch as an axis": (79, VECTORS, ["Input1"], {}, lambda x, y: C.unpack_batch(x)),
    "axis as the batch": (80, [], ["W"], {}, lambda: C.to_batch(C.constant(W))),
    "frequencies": (
        46,
        [],
        ["K"],
        {"numSamples": 3, "allowDuplicates": True, "rngSeed": 1, "rngOffset": 0},
        lambda: C.random_sample_inclusion_frequency(C.constant(np.array([1.0, 2, 5], "f4")), 3, True),
    ),
}


@pytest.mark.parametrize("name", LIKE)
def test_operations_like_the_facades(loaded, name):
    op, leaves, operands, attributes, twin = LIKE[name]
    constants = {"one": 1.0, "two": 2.0, "W": W, "K": np.array([1.0, 2, 5], "f4")}
    more = [given(uid, 3, constants[uid]) for uid in operands if uid in constants]
    z = loaded("F1", [*(x for x in leaves if x["uid"] in operands), *more], [function("F1", op, operands, attributes)])
    rng = np.random.default_rng(3)
    data = {}
    for about in leaves:
        shape = about["shape"].lengths[::-1]
        if len(about["dynamic_axis"]) == 2:
            data[about["name"]] = [rng.normal(size=(n, *shape)).astype("f4") for n in (4, 1, 3)]
        else:
            data[about["name"]] = rng.uniform(0.1, 0.9, (6, *shape)).astype("f4")
    if op in (35, 36) or name == "top two":
        data["y"] = np.eye(4, dtype="f4")[rng.integers(0, 4, 6)]
    if op in (59, 60):
        data["g"] = np.array([1, 1, 1, 2, 2, 2], "f4")[:, None]
    inputs = [
        C.sequence.input_variable(about["shape"].lengths[::-1], name=about["name"])
        if len(about["dynamic_axis"]) == 2
        else C.input_variable(about["shape"].lengths[::-1], name=about["name"])
        for about in leaves
    ]
    f = twin(*inputs)
    expected, found = (g.eval({v: data[v.name] for v in g.arguments}) for g in (f, z))
    close(found, expected)
    assert np.asarray(found).shape == np.asarray(expected).shape


def test_drawn_numbers(loaded):
    uniform = {"randomDistributionType": "uniform", "randomDistributionArgs": [2.0, 3.0], "rngSeed": 1, "rngOffset": 0}
    shaped = {**uniform, "newShape": Dims((400, 2)), "newDataType": Int(1)}
    found = np.asarray(loaded("F1", [], [function("F1", 76, [], shaped)]).eval())
    assert found.shape == (2, 400)
    assert 2 <= found.min() < 2.1 < 2.9 < found.max() <= 3
    like = np.asarray(loaded("F1", VECTORS[:1], [function("F1", 76, ["Input1"], uniform)]).eval(np.zeros((9, 4), "f4")))
    assert like.shape == (9, 4)
    assert (like >= 2).all()
    drawn = {"numSamples": 3, "allowDuplicates": False, "rngSeed": 1, "rngOffset": 0}
    classes = loaded("F1", [given("K", 3, [0.0, 1, 2, 3])], [function("F1", 45, ["K"], drawn)]).eval()
    dense = classes.toarray() if hasattr(classes, "toarray") else np.asarray(classes)
    assert dense.sum(0).tolist() == [0, 1, 1, 1]
    with pytest.raises(fl.CompatError, match="RandomDistribution `F1`: expected a known distribution, got 'zipf'"):
        loaded("F1", VECTORS[:1], [function("F1", 76, ["Input1"], {**uniform, "randomDistributionType": "zipf"})])


def test_assignment(loaded):
    z = loaded("F1", [given("P", 2, W), given("K", 3, W + 1)], [function("F1", 73, ["P", "K"])])
    z.eval()
    close(z.parameters[0].value, W + 1)


IMAGES = RNG.normal(size=(2, 3, 5, 6)).astype("f4")


def windows(x, size, strides, function):
    high, wide = ((x.shape[i] - size[i - 2]) // strides[i - 2] + 1 for i in (2, 3))
    y = np.empty((*x.shape[:2], high, wide), "f4")
    for i, j in np.ndindex(high, wide):
        a, b = i * strides[0], j * strides[1]
        y[:, :, i, j] = function(x[:, :, a : a + size[0], b : b + size[1]])
    return y


def test_convolution_and_pooling(loaded):
    """Windows and strides of height 3 and width 2, as the file has them: width, height, channels."""
    kernel = RNG.normal(size=(4, 3, 3, 2)).astype("f4")
    window = {
        "strides": Dims((1, 2, 3)),
        "autoPadding": [True, False, False],
        "lowerPad": Dims((0, 0, 0)),
        "upperPad": Dims((0, 0, 0)),
    }
    settings = {**window, "sharing": [True], "dilation": Dims((1, 1, 1)), "transpose": False, "groups": 1}
    leaves = [leaf("Input1", 0, (6, 5, 3), [BATCH]), given("W", 2, kernel)]
    found = loaded("F1", leaves, [function("F1", 33, ["W", "Input1"], settings)]).eval(IMAGES)
    wide = np.pad(IMAGES, [(0, 0), (0, 0), (0, 0), (0, 1)])
    expected = [windows(wide, (3, 2), (2, 1), lambda x, f=f: (x * f).sum((1, 2, 3))[:, None])[:, :1] for f in kernel]
    close(found, np.concatenate(expected, 1), 1e-5)
    pool = {**window, "autoPadding": [False, False, False], "poolingWindowShape": Dims((2, 3, 1))}
    pool["strides"] = Dims((2, 1, 1))
    for kind, how in ((0, np.max), (1, np.mean)):
        z = loaded("F1", leaves[:1], [function("F1", 17, ["Input1"], {**pool, "poolingType": kind})])
        close(z.eval(IMAGES), windows(IMAGES, (3, 2), (1, 2), lambda x, how=how: how(x, axis=(2, 3))))
    whole = {**pool, "poolingWindowShape": Dims((2**64 - 2,)), "poolingType": 1}
    found = loaded("F1", leaves[:1], [function("F1", 17, ["Input1"], whole)]).eval(IMAGES)
    close(found, IMAGES.mean((2, 3), keepdims=True))


@pytest.mark.parametrize("counted", [True, False], ids=["version 24", "version 3"])
def test_batch_normalization(loaded, counted):
    names = ["scale", "bias", "mean", "variance"]
    values = [RNG.uniform(0.5, 2, 3).astype("f4") for _ in names]
    leaves = [
        leaf("Input1", 0, (6, 5, 3), [BATCH]),
        *(given(n, 2 if i < 2 else 3, v) for i, (n, v) in enumerate(zip(names, values, strict=True))),
    ]
    operands = ["Input1", *names]
    if counted:
        leaves.append(given("count", 3, 8.0))
        operands.append("count")
    settings = {
        "spatial": True,
        "normalizationTimeConstant": 100.0,
        "blendTimeConstant": 0.0,
        "epsilon": 0.25,
        "useCuDNNEngine": True,
    }
    z = loaded("F1", leaves, [function("F1", 40, operands, settings)])
    scale, bias, mean, variance = (v[:, None, None] for v in values)
    close(z.eval(IMAGES), (IMAGES - mean) / np.sqrt(variance + 0.25) * scale + bias)
    assert all(n.node.weights.keeps for n in z.constants if n.shape == (3,))  # and are saved with the parameters


def dense(uid, kind="Dense"):
    """Functions of a layer: a block over one placeholder."""
    functions = [
        function(f"{uid}Times", 31, ["W", f"{uid}P"], {"outputRank": 1, "inferInputRankToMap": Int(0)}),
        function(f"{uid}Plus", 19, [f"{uid}Times_Output_0", "b"]),
        block(uid, kind, f"{uid}Plus", {f"{uid}P": "Input1"}, name="layer"),
    ]
    return [leaf(f"{uid}P", 4, (4, 2), [Axis(file.UNKNOWN)])], functions


def test_a_layer(loaded):
    placeholders, functions = dense("B1")
    b = np.arange(5, dtype="f4")
    z = loaded("B1", [INPUTS[0], given("W", 2, W, name="W"), given("b", 2, b, name="b"), *placeholders], functions)
    close(z.eval(X), X @ W + b)
    assert [(p.name, p.shape) for p in z.parameters] == [("W", (4, 5)), ("b", (5,))]
    assert z.layer.op_name == "Dense"
    assert not z.placeholders
    close(z.find_by_name("layer").block_root.eval(X), X @ W + b)


def recurrence(delay=37, initial="zero"):
    """h = tanh(x V + h U), the state through a placeholder with the identifier of the last function's output."""
    product = {"outputRank": 1, "inferInputRankToMap": Int(-1)}
    return [
        function("Past", delay, ["Tanh_Output_0", initial], {"offset": 1}),
        function("Times1", 31, ["U", "Past_Output_0"], product),
        function("Times2", 31, ["V", "Input1"], product),
        function("Plus", 19, ["Times2_Output_0", "Times1_Output_0"]),
        function("Tanh", 2, ["Plus_Output_0"], name="h"),
    ]


V, U = (RNG.normal(size=s).astype("f4") for s in ((3, 2), (2, 2)))
STATES = [
    leaf("Input1", 0, (3,), [SEQUENCE, BATCH], name="x"),
    given("V", 2, V),
    given("U", 2, U),
    given("zero", 3, 0.5),
    leaf("Tanh_Output_0", 4, (2,), [SEQUENCE, BATCH]),
]


def unrolled(x, backwards=False):
    h, out = np.full(2, 0.5), []
    for row in x[::-1] if backwards else x:
        h = np.tanh(row @ V + h @ U)
        out.append(h)
    return np.array(out[::-1] if backwards else out)


@pytest.mark.parametrize("delay", [37, 38], ids=["past", "future"])
def test_a_recurrence(loaded, delay):
    for found, x in zip(loaded("Tanh", STATES, recurrence(delay)).eval(STEPS), STEPS, strict=True):
        close(found, unrolled(x, delay == 38))


def test_a_recurrence_inside_a_block_and_its_last_step(loaded):
    """A block around the cycle, and the blocks that CNTK makes of `sequence.last` around that."""
    functions = [f if f["uid"] != "Times2" else {**f, "inputs": ["V", "P"]} for f in recurrence()]
    functions += [
        block("B1", "Recurrence", "Tanh", {"P": "Input1"}),
        function("Flat", 50, ["none", "Q"]),
        function("Future", 38, ["Flat_Output_0", "one"], {"offset": 1}),
        function(
            "Where",
            13,
            ["Future_Output_0"],
            {"newSequenceAxisLengthScalingFactor": 0, "newSequenceAxisLengthAdditiveFactor": Int(1)},
        ),
        function("Index", 28, ["Q", "Where_Output_0"]),
        function("Gather", 29, ["Q", "Index_Output_0"]),
        block("B2", "Sequence::Slice", "Gather", {"Q": "B1_Output_0"}, name="end"),
    ]
    leaves = [
        *STATES,
        *(leaf(p, 4, (2,), [Axis(file.UNKNOWN)]) for p in "PQ"),
        given("none", 3, 0.0),
        given("one", 3, 1.0),
    ]
    z = loaded("B2", leaves, functions)
    close(z.eval(STEPS), [unrolled(x)[-1] for x in STEPS])
    assert z.node.op == "sequence_last"
    # The same without the block's name: by its content.
    functions[-1] = {**functions[-1], "block_function_op_name": "Mine"}
    z = loaded("B2", leaves, functions)
    close(z.eval(STEPS), [unrolled(x)[-1] for x in STEPS])


@pytest.mark.parametrize(
    ("begin", "end", "flags"),
    [
        (0, 1, [function("E", 37, ["Flat_Output_0", "one"], {"offset": 1})]),
        (1, 0, [function("D", 37, ["Flat_Output_0", "one"], {"offset": 1}), function("E", 20, ["one", "D_Output_0"])]),
        (0, -1, [function("D", 38, ["Flat_Output_0", "one"], {"offset": 1}), function("E", 20, ["one", "D_Output_0"])]),
        (
            1,
            3,
            [
                function("A", 37, ["Flat_Output_0", "one"], {"offset": 1}),
                function("B", 20, ["one", "A_Output_0"]),
                function("D", 37, ["Flat_Output_0", "one"], {"offset": 3}),
                function("E", 21, ["B_Output_0", "D_Output_0"]),
            ],
        ),
    ],
)
def test_slices_of_sequences(loaded, begin, end, flags):
    factors = {
        "newSequenceAxisLengthScalingFactor": int(end <= begin),
        "newSequenceAxisLengthAdditiveFactor": Int(end - begin),
    }
    functions = [
        function("Flat", 50, ["none", "P"]),
        *flags,
        function("Where", 13, ["E_Output_0"], factors),
        function("Index", 28, ["P", "Where_Output_0"]),
        function("Gather", 29, ["P", "Index_Output_0"]),
        block("S", "Sequence::Slice", "Gather", {"P": "Input1"}),
    ]
    leaves = [STATES[0], leaf("P", 4, (3,), [Axis(file.UNKNOWN)]), given("none", 3, 0.0), given("one", 3, 1.0)]
    z = loaded("S", leaves, functions)
    steps = [s for s in STEPS if len(s) > 1]
    found = z.eval(steps)
    for a, x in zip(found, steps, strict=True):
        close(a, x[begin : end or None][0] if (begin, end) == (0, 1) else x[begin : end or None])
    assert z.node.op == ("sequence_first" if (begin, end) == (0, 1) else "sequence_slice")


def test_steps_selected_and_put_back(loaded):
    """By the number of the first element. Without blocks of CNTK's names."""
    functions = [
        function("Sign", 26, ["Input1", "zero"]),
        function("Flag", 14, ["Sign_Output_0"], {"axis": Axis(0), "beginIndex": Int(0), "endIndex": Int(1)}),
        function("Where", 13, ["Flag_Output_0"]),
        function("Index", 28, ["Input1", "Where_Output_0"]),
        function("Gather", 29, ["Input1", "Index_Output_0"]),
        function("Twice", 19, ["Gather_Output_0", "Gather_Output_0"]),
        function("Index2", 28, ["Flag_Output_0", "Where_Output_0"]),
        function("Scatter", 30, ["Twice_Output_0", "Index2_Output_0", "Flag_Output_0"]),
    ]
    steps = [np.array([[1, 2, 3], [-1, 5, 6], [7, 8, -9]], "f4"), np.array([[2, 2, 2]], "f4")]
    z = loaded("Scatter", [STATES[0], given("zero", 3, 0.0)], functions)
    for found, x in zip(z.eval(steps), steps, strict=True):
        close(found, 2 * x * (x[:, :1] > 0))


def test_sums_over_sequences_and_unpacked_steps(loaded):
    unpack = {"sequenceUnpackPaddingValue": 0.0, "sequenceUnpackSuppressMaskOutput": True}
    functions = [
        function("U", 72, ["P"], unpack),
        function("R", 39, ["U_Output_0"], {"axis": ROWS, "reductionOpName": "Sum", "reductionKeepDimensions": False}),
        block("S", "Sequence::ReduceElements", "R", {"P": "Input1"}),
    ]
    leaves = [STATES[0], leaf("P", 4, (3,), [Axis(file.UNKNOWN)])]
    z = loaded("S", leaves, functions)
    close(z.eval(STEPS), [x.sum(0) for x in STEPS])
    assert z.node.op == "sequence_reduce_sum"
    functions = [
        function("U", 72, ["Input1"], {"sequenceUnpackPaddingValue": 9.0, "sequenceUnpackSuppressMaskOutput": False}),
        function("C", 44, ["U_Output_0", "U_Output_1"]),
    ]
    steps, mask = loaded("C", leaves[:1], functions).eval(STEPS).values()
    close(steps[1], [*STEPS[1], [9] * 3, [9] * 3, [9] * 3])
    close(mask, [[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 1, 0]])


def cross_entropy():
    return [
        function("L", 39, ["P"], {"axis": Axis(0), "reductionOpName": "LogSum", "reductionKeepDimensions": True}),
        function("T", 32, ["Q", "P"], {"outputRank": 1}),
        function("M", 20, ["L_Output_0", "T_Output_0"]),
        block("CE", "CrossEntropyWithSoftmax", "M", {"P": "Input1", "Q": "Input2"}),
    ]


def test_a_cross_entropy_of_large_scores_and_sparse_targets(loaded):
    """The scores of a file's formula would cancel. Its labels may be sparse."""
    leaves = [
        leaf("Input1", 0, (4,), [BATCH], name="x"),
        leaf("Input2", 0, (4,), [BATCH], name="y", is_sparse=True),
        *(leaf(p, 4, (4,), [Axis(file.UNKNOWN)]) for p in "PQ"),
    ]
    z = loaded("CE", leaves, cross_entropy())
    scores = np.array([[1e4, 1e4 + 1, 0, 0], [0, 1, 2, 3]], "f4")
    labels = C.Value.one_hot([[1], [2]], 4)
    close(z.eval({"x": scores, "y": labels})[:, 0], [np.log1p(np.exp(-1)), np.log(np.exp([0, 1, 2, 3]).sum()) - 2])


def test_a_block_of_a_known_name_with_something_else_inside(loaded):
    placeholders, functions = dense("B1", kind="LogSoftmax")
    b = np.arange(5, dtype="f4")
    z = loaded("B1", [INPUTS[0], given("W", 2, W), given("b", 2, b), *placeholders], functions)
    close(z.eval(X), X @ W + b)
    functions = cross_entropy()
    functions[0] = function("L", 39, ["P"], {"axis": Axis(0), "reductionOpName": "Max"})
    leaves = [INPUTS[0], INPUTS[1], *(leaf(p, 4, (4, 2), [Axis(file.UNKNOWN)]) for p in "PQ")]
    z = loaded("CE", leaves, functions)
    product = np.einsum("bic,bjc->bij", X, Y)
    close(z.eval({"x": X, "y": Y}), X.max(2, keepdims=True) - product)
    functions = cross_entropy()
    functions[2] = function("M", 19, ["L_Output_0", "T_Output_0"])
    z = loaded("CE", leaves, functions)
    close(z.eval({"x": X, "y": Y}), np.log(np.exp(X).sum(2, keepdims=True)) + product)


def test_a_softmax_that_does_not_overflow(loaded):
    functions = [
        function("E", 4, ["P"]),
        function("R", 39, ["E_Output_0"], {"axis": Axis(0), "reductionOpName": "Sum"}),
        function("L", 5, ["R_Output_0"]),
        function("M", 20, ["P", "L_Output_0"]),
        block("S", "LogSoftmax", "M", {"P": "Input1"}, {"axis": Axis(0)}),
    ]
    z = loaded("S", [INPUTS[0], leaf("P", 4, (4, 2), [Axis(file.UNKNOWN)])], functions)
    close(z.eval(X * 1000), torch.log_softmax(torch.from_numpy(X * 1000), -1).numpy())


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_element_types(loaded, dtype):
    x = np.arange(6).reshape(2, 3).astype(dtype)
    number = {"float16": 4, "float32": 1, "float64": 2}[dtype]
    z = loaded("F", [{**given("P", 2, x), "data_type": number}], [function("F", 62, ["P"])])
    (p,) = z.parameters
    assert p.dtype == np.dtype(dtype).type
    np.testing.assert_array_equal(p.value, x)


def test_a_file_of_two_parts(tmp_path):
    """As CNTK writes files of 2 GiB or more: the elements of the arrays follow the message."""
    path, double = tmp_path / "big.dnn", W.astype("f8")
    leaves = [INPUTS[0], given("W", 2, W), given("D", 2, double, data_type=2), given("n", 3, 3.0)]
    functions = [
        function("T", 31, ["W", "Input1"], {"outputRank": 1, "inferInputRankToMap": Int(-1)}),
        function("M", 21, ["T_Output_0", "n"]),
        function("C", 44, ["M_Output_0", "D"]),
    ]
    arrays = [W, double, np.float32(3.0)]
    content = file.two_parts(file.model("C", leaves, functions), arrays)
    path.write_bytes(content)
    product, kept = C.load_model(str(path)).outputs
    close(C.combine(product).eval(X), 3 * (X @ W))
    np.testing.assert_array_equal(C.combine(kept + 0).eval(), double)
    for torn, why in (
        (content[:-1], "4 bytes of an array, got 3"),
        (content[:200], "a message of"),
        (content + b"\0", "no more bytes"),
    ):
        path.write_bytes(torn)
        with pytest.raises(fl.StateError, match=why):
            C.load_model(str(path))


def test_writing_of_two_parts(tmp_path, monkeypatch):
    original = writing.write_dictionary
    monkeypatch.setattr(writing, "write_dictionary", lambda path, values: original(path, values, 100))
    z = C.layers.Dense(5, init=C.normal(1.0), init_bias=2.0)(C.input_variable(4, name="x"))
    z.save(str(tmp_path / "a.dnn"), format=C.ModelFormat.CNTKv2)
    content = (tmp_path / "a.dnn").read_bytes()
    assert content.startswith(file.MAGIC)
    assert content.endswith((z.b.value.tobytes(), z.W.value.tobytes()))
    close(C.load_model(str(tmp_path / "a.dnn")).eval(X[:, 0]), z.eval(X[:, 0]))


@pytest.mark.parametrize("unbound", [Int(2**64 - 1), -1], ids=["without a sign", "with one"])
def test_alignments_of_labels(loaded, unbound):
    """CTC, of which a file has two operations. Labels are given as for CNTK: 2 at their first step, else 1."""
    leaves = [
        leaf("Input1", 0, (4,), [SEQUENCE, BATCH], name="a"),
        leaf("Input2", 0, (4,), [SEQUENCE, BATCH], name="b"),
    ]
    settings = {"blankTokenId": Int(3), "delayConstraint": unbound}
    functions = [
        function("F1", 63, ["Input1"], name="graph"),
        function("F2", 66, ["F1_Output_0", "Input2"], settings, name="ctc"),
    ]
    labels = np.eye(4, dtype="f4")[[0, 1, 1, 2, 2]] * np.array([[2], [2], [1], [2], [1]], "f4")
    scores = RNG.normal(size=(5, 4)).astype("f4")
    a, b = (C.sequence.input_variable(4, name=name) for name in "ab")
    expected = C.forward_backward(C.labels_to_graph(a), b, 3).eval({a: [labels], b: [scores]})
    close(loaded("F2", leaves, functions).eval({"a": [labels], "b": [scores]}), expected)
    bound = [
        functions[0],
        function("F2", 66, ["F1_Output_0", "Input2"], {"blankTokenId": Int(3), "delayConstraint": 2}),
    ]
    expected = C.forward_backward(C.labels_to_graph(a), b, 3, 2).eval({a: [labels], b: [scores]})
    close(loaded("F2", leaves, bound).eval({"a": [labels], "b": [scores]}), expected)


# ---- errors -----------------------------------------------------------------------------------------------


def test_an_operation_that_feedline_lacks(loaded):
    with pytest.raises(fl.CompatError, match=r"ToSequence `steps` \(F1\).*sequence\.input_variable"):
        loaded("F1", INPUTS, [function("F1", 70, ["Input1"], name="steps")])
    with pytest.raises(fl.CompatError, match=r"OptimizedRNNStack `F1`: .*convert_optimized_rnnstack"):
        loaded("F1", INPUTS, [function("F1", 49, ["Input1", "Input2"])])
    with pytest.raises(fl.CompatError, match=r"operation 199 `F1`: expected an operation of CNTK 2\.7"):
        loaded("F1", INPUTS, [function("F1", 199, ["Input1"])])
    with pytest.raises(fl.CompatError, match="Convolution `F1`: expected automatic padding or none"):
        settings = {"strides": Dims((1, 1)), "autoPadding": [False], "lowerPad": Dims((1, 1)), "upperPad": Dims((1, 1))}
        kernel = given("W", 2, np.ones((1, 2, 2, 2), "f4"))
        loaded("F1", [leaf("Input1", 0, (4, 4, 2), [BATCH]), kernel], [function("F1", 33, ["W", "Input1"], settings)])


def test_operations_that_python_computes(loaded):
    state = {"module": "mine", "class": "Twice"}
    about = {
        **function("U1", 0, ["Input1"]),
        "type": "UserDefinedFunction",
        "native": False,
        "user_defined_state": state,
    }
    with pytest.raises(fl.CompatError, match=r"UserFunction `Twice`.*mine\.Twice.*restore"):
        loaded("U1", INPUTS, [about])


def test_models_of_the_first_version(tmp_path):
    path = tmp_path / "old.dnn"
    path.write_bytes("BCN\0BVersion\0".encode("utf-16-le") + b"\0" * 50)
    for call in (lambda: C.Function.load(str(path)), lambda: C.load_model(str(path))):
        with pytest.raises(fl.CompatError, match=r"got one of CNTK 1, .*save\(other\)"):
            call()


def test_torn_and_foreign_files(tmp_path):
    path = tmp_path / "z.model"
    placeholders, functions = dense("B1")
    leaves = [INPUTS[0], given("W", 2, W), given("b", 2, np.zeros(5, "f4")), *placeholders]
    content = file.dictionary(file.model("B1", leaves, functions))
    path.write_bytes(content)
    C.load_model(str(path))
    for size in range(0, len(content), 23):
        path.write_bytes(content[:size])
        with pytest.raises(fl.StateError):
            C.load_model(str(path))
    for foreign in (b"PK\x03\x04" + b"\0" * 40, b"\x08\x07\x12\x07pytorch" + b"\xff" * 40, b"hello, world", b""):
        path.write_bytes(foreign)
        with pytest.raises(fl.StateError, match=str(path)):
            C.load_model(str(path))
    with pytest.raises(fl.StateError, match="No such file"):
        C.load_model(str(tmp_path / "none"))


def test_damaged_bytes(tmp_path):
    """Whatever a file has become, it is refused as damaged or as something that feedline lacks, or loads."""
    path = tmp_path / "z.model"
    placeholders, functions = dense("B1")
    layer = file.model("B1", [INPUTS[0], given("W", 2, W[:, :1]), given("b", 2, [1.0]), *placeholders], functions)
    rng, refused = np.random.default_rng(0), 0
    for model in (layer, file.model("Tanh", STATES, recurrence())):
        content = file.dictionary(model)
        for _ in range(60):
            damaged = bytearray(content)
            for place in rng.integers(0, len(content), 2):
                damaged[place] = rng.integers(0, 256)
            path.write_bytes(damaged)
            try:
                C.load_model(str(path))
            except (fl.StateError, fl.CompatError):
                refused += 1
    assert refused > 60


def test_damaged_graphs(loaded, tmp_path):
    def broken(what, root="F1", leaves=INPUTS, functions=None):
        with pytest.raises(fl.StateError, match=what):
            loaded(root, leaves, functions or [function("F1", 19, ["Input1", "Input2"])])

    broken("the root function F9, got", root="F9")
    broken("a leaf or an output Input2, which an operation reads", leaves=INPUTS[:1])
    broken(
        "the output F1_Output_3", "F2", functions=[function("F1", 0, ["Input1"]), function("F2", 0, ["F1_Output_3"])]
    )
    broken("the setting 'newShape' of Reshape `F1`", functions=[function("F1", 16, ["Input1"])])
    broken("operands and settings that fit Plus `F1`", leaves=[INPUTS[0], leaf("Input2", 0, (3, 2), [BATCH])])
    broken("recurrences through PastValue or FutureValue", functions=[function("F1", 19, ["Input1", "F1_Output_0"])])
    odd = leaf("Input2", 0, (4, 2), [SEQUENCE, SEQUENCE])
    broken("the batch axis and at most one sequence axis", leaves=[INPUTS[0], odd])
    broken("str under 'uid'", functions=[{k: v for k, v in function("F1", 0, ["Input1"]).items() if k != "uid"}])
    path = tmp_path / "trainer.ckp"
    path.write_bytes(file.dictionary({"Version": 1, "Learners": [{}], "ExternalState": {}}))
    with pytest.raises(fl.StateError, match=r"a trainer's checkpoint \(\.ckp\): load the model's file"):
        C.load_model(str(path))
    z = C.layers.Dense(2)(C.input_variable(4))
    trainer = C.Trainer(z, (C.reduce_sum(z),), [C.sgd(z.parameters, C.learning_parameter_schedule(0.1))])
    with pytest.raises(fl.CompatError, match=r"got one of CNTK: restore the parameters.*model\.restore\('.*trainer'\)"):
        trainer.restore_from_checkpoint(str(path.with_suffix("")))
    wrong = given("W", 2, W)
    path.write_bytes(
        file.dictionary(
            file.model(
                "F1",
                [INPUTS[0], {**wrong, "shape": Dims((9, 9))}],
                [function("F1", 31, ["W", "Input1"], {"outputRank": 1})],
            )
        )
    )
    with pytest.raises(fl.StateError, match=r"a value of shape \(9, 9\) of W, got \(4, 5\)"):
        C.load_model(str(path))


def test_arrays_with_fewer_elements_than_their_shape(tmp_path):
    content = file.dictionary(file.model("F", [given("P", 2, np.arange(3, dtype="f4"))], [function("F", 62, ["P"])]))
    right = struct.pack("<3f", 0, 1, 2)
    assert content.count(right) == 1
    # A shape of four where there are three numbers.
    damaged = content.replace(file.shape(Dims((3,))), file.shape(Dims((4,))))
    path = tmp_path / "z.model"
    path.write_bytes(damaged)
    with pytest.raises(fl.StateError, match=r"4 elements of an array \(4,\), got 3"):
        C.load_model(str(path))


# ---- parameters of a file for a network in Python -----------------------------------------------------------


def test_restore_takes_parameters_from_a_model_of_cntk(tmp_path):
    placeholders, functions = dense("B1")
    b = np.arange(5, dtype="f4")
    leaves = [INPUTS[0], given("W", 2, W, name="W"), given("b", 2, b, name="b"), *placeholders]
    path = tmp_path / "z.model"
    path.write_bytes(file.dictionary(file.model("B1", leaves, functions)))
    z = C.layers.Dense(5, map_rank=1)(C.input_variable((2, 4)))
    assert [p.name for p in z.parameters] == ["W", "b"]
    z.restore(str(path))
    close(z.eval(X), X @ W + b)
    other = C.layers.Dense(4, map_rank=1)(C.input_variable((2, 4)))
    before = other.W.value
    with pytest.raises(fl.StateError, match="the parameters and constants of this function"):
        other.restore(str(path))
    np.testing.assert_array_equal(other.W.value, before)


def test_restore_compares_constants(tmp_path):
    """Running statistics of the same parameters, but of another name."""
    names = ["scale", "bias", "aggregate_mean", "aggregate_variance", "aggregate_count"]

    def saved(names):
        values = [np.full(3, i, "f4") for i in range(4)] + [np.float32(7)]
        leaves = [leaf("Input1", 0, (6, 5, 3), [BATCH])]
        leaves += [given(n, 2 if i < 2 else 3, v, name=n) for i, (n, v) in enumerate(zip(names, values, strict=True))]
        settings = {"spatial": True, "normalizationTimeConstant": 100.0, "blendTimeConstant": 0.0, "epsilon": 0.25}
        path = tmp_path / "z.model"
        path.write_bytes(file.dictionary(file.model("F1", leaves, [function("F1", 40, ["Input1", *names], settings)])))
        return str(path)

    z = C.layers.BatchNormalization(map_rank=1)(C.input_variable((3, 5, 6)))
    with pytest.raises(fl.StateError, match="the parameters and constants of this function"):
        z.restore(saved([*names[:3], "other", names[4]]))
    z.restore(saved(names))
    assert {c.name: c.value.tolist() for c in z.constants} == {
        "aggregate_mean": [2, 2, 2],
        "aggregate_variance": [3, 3, 3],
        "aggregate_count": 7,
    }


def test_numbers_of_a_version_to_come(tmp_path):
    """A kind of value that CNTK 2.7 has not."""
    entry = file.counted(2, file.counted(1, b"new") + file.counted(2, file.number(1, 1) + file.number(2, 77)))
    (tmp_path / "z.model").write_bytes(file.number(1, 1) + entry)
    with pytest.raises(fl.StateError, match="a kind of value from 0 to 11, got 77"):
        C.load_model(str(tmp_path / "z.model"))


def test_values_of_attributes(tmp_path):
    """Every kind of value that the messages have."""
    x = np.arange(-3, 3).reshape(2, 3)
    content = {
        "bool": True,
        "int": Int(-5),
        "size_t": 2**40,
        "float": Float(0.5),
        "double": 0.1,
        "string": "größer",
        "shape": Dims((2**64 - 3, 2**64 - 1, 7)),
        "axis": Axis(file.DYNAMIC, "seq", True),
        "list": [1, [2.0], {}],
        "dictionary": {"a": {"b": False}},
        "none": None,
        **{dtype: x.astype(dtype) for dtype in ("int8", "int16", "float16", "float32", "float64")},
    }
    path = tmp_path / "d"
    path.write_bytes(file.dictionary(content))
    found = dictionaries.read_dictionary(path)
    assert found["shape"] == (7, -1, -3)
    assert isinstance(found["shape"], file_values.Shape)
    assert found["axis"] == file_values.FileAxis(file.DYNAMIC, "seq", True)
    plain = [key for key in content if key not in ("shape", "axis") and not isinstance(content[key], np.ndarray)]
    assert [found[key] for key in plain] == [content[key] for key in plain]
    for dtype in ("int8", "int16", "float16", "float32", "float64"):
        assert found[dtype].dtype == dtype
        np.testing.assert_array_equal(found[dtype], x)
    written = tmp_path / "again"
    dictionaries.write_dictionary(written, {key: value for key, value in found.items() if value is not None})
    assert written.read_bytes() == file.dictionary({key: value for key, value in content.items() if value is not None})
    with pytest.raises(TypeError, match="a value that CNTK's dictionaries hold"):
        dictionaries.write_dictionary(written, {"a": object()})
    assert list(tmp_path.glob("*.tmp")) == []


@pytest.mark.parametrize(("package", "extra"), [("google.protobuf", "cntk"), ("onnx", "onnx")])
def test_a_package_that_is_missing(tmp_path, monkeypatch, package, extra):
    z = C.exp(C.input_variable(3))
    parts = ("feedline.cntk._model_files", "feedline.cntk._onnx", "feedline.networks.onnx")
    for name in [name for name in sys.modules if name.startswith(parts)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    number = {"cntk": C.ModelFormat.CNTKv2, "onnx": C.ModelFormat.ONNX}[extra]
    with pytest.raises(ModuleNotFoundError, match=rf"pip install .*\[{extra}\]'"):
        z.save(str(tmp_path / "z"), format=number)
    z.save(str(tmp_path / "z"))  # needs neither
    np.testing.assert_allclose(C.load_model(str(tmp_path / "z")).eval(X[:, 0, :3]), np.exp(X[:, 0, :3]), 1e-6)
