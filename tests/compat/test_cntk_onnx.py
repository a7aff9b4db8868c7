"""ONNX files: onnxruntime computes the same as the function, and so does the function loaded from the file."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
onnx = pytest.importorskip("onnx", reason="onnx is not installed")
runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import feedline as fl  # noqa: E402
import feedline.cntk as C  # noqa: E402
from feedline.cntk.layers import LSTM, Dense, Recurrence, Sequential  # noqa: E402
from tests.compat import cntk_functions  # noqa: E402
from tests.compat.cntk_functions import CASES, RAGGED, STEPS, flat, normal  # noqa: E402

runtime.set_default_logger_severity(3)
ONNX = C.ModelFormat.ONNX


def session(path):
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run(path, feeds):
    """Return outputs of onnxruntime for data by name. Sequences, in lists, are side by side."""
    return session(path).run(None, {name: np.stack(x, 1) if isinstance(x, list) else x for name, x in feeds.items()})


def side_by_side(result, variable):
    """The result of an evaluation as a tensor with the axes of ONNX."""
    if isinstance(result, list):
        return np.stack([np.asarray(x) for x in result], 1)
    array = np.asarray(result)
    return np.moveaxis(array, 0, 1) if len(variable.dynamic_axes) == 2 else array


def evaluated(f, feeds):
    given = {v: feeds[v.name] for v in f.arguments}
    results = f.eval(given)
    return [side_by_side(results[v] if isinstance(results, dict) else results, v) for v in f.outputs]


def same(found, expected, tolerance=5e-6):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, tolerance, tolerance)


@pytest.mark.parametrize("name", CASES)
def test_a_runtime_and_what_is_loaded_compute_the_same(tmp_path, name):
    f, feeds = CASES[name]()
    path = tmp_path / "f.onnx"
    f.save(str(path), format=ONNX)
    if name == "an output twice":
        expected = [np.exp(feeds["x"]), feeds["x"]]
        same(run(path, feeds), expected)
        same([np.asarray(x) for x in flat(C.load_model(str(path), format=ONNX).eval(feeds))], expected)
        return
    expected = evaluated(f, feeds)
    same(run(path, feeds), expected)
    again = C.Function.load(str(path), format=ONNX)
    assert [v.name for v in again.arguments] == [v.name for v in f.arguments]
    same(evaluated(again, feeds), expected)


def test_any_number_of_samples_and_steps(tmp_path):
    """One file for batches and sequences of every length, down to one."""
    s = C.sequence.input_variable(3, name="steps")
    h = Recurrence(LSTM(4, use_peepholes=True, init=C.normal(0.5)))(s)
    f = C.combine(Recurrence(LSTM(2, init=C.normal(0.5)))(h), Dense(2, init=C.normal(0.5))(C.sequence.last(h)))
    path = tmp_path / "f.onnx"
    f.save(str(path), format=ONNX)
    again, compute = C.Function.load(str(path), format=ONNX), session(path)
    for count, steps in ((1, 1), (1, 5), (6, 1), (3, 4)):
        data = [normal(steps, 3) for _ in range(count)]
        expected = evaluated(f, {"steps": data})
        same(compute.run(None, {"steps": np.stack(data, 1)}), expected)
        same(evaluated(again, {"steps": data}), expected)


def test_names_and_axes_in_the_file(tmp_path):
    s = C.sequence.input_variable(3, name="words")
    z = C.combine(Dense(2, name="scores")(s), C.sequence.last(s, name="end"))
    path = tmp_path / "f.onnx"
    z.save(str(path), format=ONNX)
    model = onnx.load(str(path))
    onnx.checker.check_model(model, full_check=True)

    def about(value):
        return value.name, [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]

    assert [about(v) for v in model.graph.input] == [("words", ["steps of defaultDynamicAxis", "batch", 3])]
    assert [about(v) for v in model.graph.output] == [
        ("scores", ["steps of defaultDynamicAxis", "batch", 2]),
        ("end", ["batch", 3]),
    ]
    assert {i.name for i in model.graph.initializer} >= {"W", "b"}
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 18)]
    again = C.Function.load(str(path), format=ONNX)
    assert [o.name for o in again.outputs] == ["scores", "end"]
    assert [(p.name, p.shape) for p in again.parameters] == [("W", (3, 2)), ("b", (2,))]
    assert [a.name for a in again.arguments[0].dynamic_axes] == ["defaultBatchAxis", "defaultDynamicAxis"]


def test_a_file_has_nothing_that_is_not_read(tmp_path):
    """Neither weights in another order than ONNX's, nor counts of samples."""
    s = C.sequence.input_variable(3, name="s")
    z = Sequential([Recurrence(LSTM(4)), C.sequence.last, C.layers.BatchNormalization(), Dense(2)])(s)
    z.save(str(tmp_path / "z.onnx"), format=ONNX)
    graph = onnx.load(str(tmp_path / "z.onnx")).graph
    read = {name for made in graph.node for name in made.input} | {output.name for output in graph.output}
    assert {initializer.name for initializer in graph.initializer} <= read
    assert all(read & set(made.output) for made in graph.node)
    arrays = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    assert sorted(a.shape for a in arrays.values() if a.ndim == 3) == [(1, 16, 3), (1, 16, 4)]


def test_what_is_loaded_learns(tmp_path):
    x, y = C.input_variable(4, name="x"), C.input_variable(3, name="y")
    z = Sequential(
        [Dense(5, activation=C.tanh), C.layers.BatchNormalization(map_rank=1), C.layers.Dropout(0.0), Dense(3)]
    )(x)
    path = tmp_path / "z.onnx"
    z.save(str(path), format=ONNX)
    again = C.Function.load(str(path), format=ONNX)
    rng = np.random.default_rng(0)
    data, labels = rng.normal(size=(6, 4)).astype("f4"), np.eye(3, dtype="f4")[[0, 1, 2, 0, 1, 2]]
    assert sorted(p.shape for p in again.parameters) == sorted(p.shape for p in z.parameters)

    def losses(f):
        (given,) = f.arguments
        loss = C.cross_entropy_with_softmax(f, y)
        trainer = C.Trainer(None, (loss,), [C.sgd(f.parameters, C.learning_parameter_schedule(0.5))])
        found = []
        for _ in range(4):
            trainer.train_minibatch({given: data, y: labels})
            found.append(trainer.previous_minibatch_loss_average)
        return found

    mine, theirs = losses(z), losses(again)
    np.testing.assert_allclose(theirs, mine, 1e-5)
    assert mine[-1] < mine[0]


# ---- what ONNX cannot express --------------------------------------------------------------------------


@pytest.mark.parametrize("name", RAGGED)
def test_operations_that_onnx_lacks(tmp_path, name):
    f, _ = RAGGED[name]()
    with pytest.raises(fl.CompatError, match=r" `.*expected an operation that ONNX can express"):
        f.save(str(tmp_path / "f.onnx"), format=ONNX)
    assert list(tmp_path.iterdir()) == []


def test_other_refusals(tmp_path):
    path = str(tmp_path / "f.onnx")
    s, x = C.sequence.input_variable(3, name="s"), C.input_variable(3)

    def refused(f, what):
        with pytest.raises(fl.CompatError, match=what):
            f.save(path, format=ONNX)

    refused(C.random.uniform_like(x), "random_uniform")
    refused(C.squeeze(C.input_variable((C.FreeDimension, 1))), "expected known shapes")
    refused(C.gather(C.sequence.broadcast_as(x, s), C.one_hot(C.slice(s, 0, 0, 1), 3)), "gather `.*for all samples")
    with pytest.raises(ValueError, match="placeholders to be replaced"):
        (C.placeholder((3,), x.dynamic_axes) + 1).save(path, format=ONNX)
    with pytest.raises(ValueError, match="expected a known shape"):
        C.combine(C.parameter((C.InferredDimension, 2))).save(path, format=ONNX)


# ---- files of others -----------------------------------------------------------------------------------


def made(path, nodes, inputs, outputs, tensors=(), opset=18):
    """Write a model, with inputs by name with their lengths, and tensors by name with their arrays."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in dict(tensors).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(model, str(path))
    return path


def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


IMAGES = {"x": ["N", 3, 7, 9]}
KERNEL, BIAS = normal(4, 3, 3, 2), normal(4)
RECURRENT = {"x": ["T", "N", 3]}


def gates(count, directions=1, cells=2):
    return {
        "W": normal(directions, count * cells, 3),
        "R": normal(directions, count * cells, cells),
        "B": normal(directions, 2 * count * cells),
    }


FOREIGN = {
    "gemm": (
        [node("Flatten", "x", "f"), node("Gemm", "f W b", "y", transB=1, alpha=0.5, beta=2.0)],
        IMAGES,
        {"W": normal(5, 189), "b": normal(5)},
    ),
    "convolution with other pads": (
        [node("Conv", "x W b", "c", pads=[2, 0, 1, 3], strides=[2, 1]), node("Relu", "c", "y")],
        IMAGES,
        {"W": KERNEL, "b": BIAS},
    ),
    "convolution, same at the lower end": ([node("Conv", "x W", "y", auto_pad="SAME_LOWER")], IMAGES, {"W": KERNEL}),
    "convolution, same at the upper end": (
        [node("Conv", "x W", "y", auto_pad="SAME_UPPER", strides=[2, 2])],
        IMAGES,
        {"W": KERNEL},
    ),
    "transposed convolution": (
        [node("ConvTranspose", "x W b", "y", pads=[1, 0, 1, 1], strides=[2, 2], output_padding=[1, 0])],
        IMAGES,
        {"W": normal(3, 2, 3, 3), "b": normal(2)},
    ),
    "average of cells inside": (
        [node("AveragePool", "x", "y", kernel_shape=[3, 2], pads=[2, 1, 0, 1], strides=[2, 2])],
        IMAGES,
        {},
    ),
    "average with pads": (
        [node("AveragePool", "x", "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)],
        IMAGES,
        {},
    ),
    "maximum with pads": (
        [node("MaxPool", "x", "y", kernel_shape=[3, 2], pads=[2, 0, 0, 1], strides=[2, 2])],
        IMAGES,
        {},
    ),
    "global pools": (
        [node("GlobalAveragePool", "x", "a"), node("GlobalMaxPool", "x", "b"), node("Add", "a b", "y")],
        IMAGES,
        {},
    ),
    "normalization": (
        [node("BatchNormalization", "x s b m v", "y", epsilon=0.1)],
        IMAGES,
        {"s": normal(3), "b": normal(3), "m": normal(3), "v": np.abs(normal(3))},
    ),
    "response of neighbours": ([node("LRN", "x", "y", size=3, alpha=0.5, bias=2.0)], IMAGES, {}),
    "parts": (
        [node("Split", "x n", "a b", axis=1), node("Concat", "b a", "y", axis=1)],
        IMAGES,
        {"n": np.array([1, 2])},
    ),
    "shapes": (
        [
            node("Shape", "x", "s"),
            node("Gather", "s zero", "n"),
            node("Unsqueeze", "n axis", "n1"),
            node("Concat", "n1 rest", "to", axis=0),
            node("Reshape", "x to", "r"),
            node("Transpose", "r", "y", perm=[0, 2, 1]),
        ],
        IMAGES,
        {"zero": np.array(0), "axis": np.array([0]), "rest": np.array([21, -1])},
    ),
    "bounds": ([node("Clip", "x low high", "y")], IMAGES, {"low": np.float32(-0.5), "high": np.float32(0.5)}),
    "one bound": ([node("Clip", "x low", "y")], IMAGES, {"low": np.float32(-0.5)}),
    "leading axes of length 1": (
        [node("Mul", "x a", "m"), node("Add", "m b", "y")],
        IMAGES,
        {"a": normal(1, 3, 1, 1), "b": normal(1, 1, 7, 9)},
    ),
    "prelu and selu": (
        [node("PRelu", "x a", "p"), node("Selu", "p", "y", alpha=1.5, gamma=0.5)],
        IMAGES,
        {"a": normal(3, 1, 1)},
    ),
    "constants of nodes": (
        [
            helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(normal(9))),
            helper.make_node("Constant", [], ["two"], value_float=2.0),
            node("Sub", "x c", "d"),
            node("Div", "d two", "y"),
        ],
        IMAGES,
        {},
    ),
    "many summands": (
        [node("Sum", "x a x", "s"), node("Mean", "s x", "m"), node("Max", "m x a", "y")],
        IMAGES,
        {"a": normal(9)},
    ),
    "reductions": (
        [node("ReduceMean", "x axes", "m", keepdims=0), node("ReduceL2", "m last", "y", keepdims=1)],
        IMAGES,
        {"axes": np.array([-1]), "last": np.array([2])},
    ),
    "greatest places": ([node("ArgMax", "x", "k", axis=1, keepdims=0), node("Cast", "k", "y", to=1)], IMAGES, {}),
    "choice": (
        [
            node("Greater", "x a", "g"),
            node("Where", "g x a", "w"),
            node("Not", "g", "n"),
            node("Cast", "n", "f", to=1),
            node("Add", "w f", "y"),
        ],
        IMAGES,
        {"a": normal(9)},
    ),
    "matrices": ([node("MatMul", "x W", "y")], IMAGES, {"W": normal(9, 4)}),
    "squared by itself": (
        [node("Transpose", "x", "t", perm=[0, 2, 1]), node("MatMul", "x t", "y")],
        {"x": ["N", 4, 5]},
        {},
    ),
    "lstm": (
        [node("LSTM", "x W R B", "h", hidden_size=2), node("Squeeze", "h one", "y")],
        RECURRENT,
        {**gates(4), "one": np.array([1])},
    ),
    "lstm, last states": (
        [
            node("LSTM", "x W R B", "h e c", hidden_size=2, direction="reverse"),
            node("Concat", "e c", "s", axis=2),
            node("Squeeze", "s zero", "y"),
        ],
        RECURRENT,
        {**gates(4), "zero": np.array([0])},
    ),
    "lstm in both directions": (
        [
            node("LSTM", "x W R B", "h", hidden_size=2, direction="bidirectional"),
            node("Transpose", "h", "t", perm=[0, 2, 1, 3]),
            node("Reshape", "t to", "y"),
        ],
        RECURRENT,
        {**gates(4, 2), "to": np.array([0, 0, -1])},
    ),
    "gru": (
        [node("GRU", "x W R B", "h", hidden_size=2), node("Squeeze", "h one", "y")],
        RECURRENT,
        {**gates(3), "one": np.array([1])},
    ),
    "gru of torch": (
        [
            node("GRU", "x W R B", "h e", hidden_size=2, linear_before_reset=1, direction="reverse"),
            node("Squeeze", "e zero", "y"),
        ],
        RECURRENT,
        {**gates(3), "zero": np.array([0])},
    ),
    "rnn": (
        [node("RNN", "x W R B", "h", hidden_size=2, activations=["Relu"]), node("Squeeze", "h one", "y")],
        RECURRENT,
        {**gates(1), "one": np.array([1])},
    ),
    "rnn from a state": (
        [helper.make_node("RNN", ["x", "W", "R", "", "", "i"], ["h"], hidden_size=2), node("Squeeze", "h one", "y")],
        RECURRENT,
        {**{k: v for k, v in gates(1).items() if k != "B"}, "i": np.full((1, 1, 2), 0.5, "f4"), "one": np.array([1])},
    ),
}
# The initial state of a runtime is for a known number of sequences.
FOREIGN["rnn from a state"][1]["x"][1] = "N"


@pytest.mark.parametrize("name", FOREIGN)
def test_files_of_others(tmp_path, name):
    nodes, inputs, tensors = FOREIGN[name]
    path = made(tmp_path / "f.onnx", nodes, inputs, ["y"], tensors)
    f = C.Function.load(str(path), format=ONNX)
    steps = inputs is RECURRENT
    single = name == "rnn from a state"
    data = STEPS[:1] if steps and single else STEPS if steps else normal(2, *inputs["x"][1:])
    same(evaluated(f, {"x": data}), run(path, {"x": data}), 1e-5)


def test_files_of_older_operations(tmp_path):
    """Axes and bounds as attributes, as before opsets 10 to 13."""
    nodes = [
        node("Slice", "x", "s", starts=[1], ends=[6], axes=[2]),
        node("ReduceSum", "s", "r", axes=[1], keepdims=1),
        node("Squeeze", "r", "q", axes=[1]),
        node("Unsqueeze", "q", "u", axes=[1]),
        node("Clip", "u", "c", min=-1.0, max=1.0),
        node("Pad", "c", "p", pads=[0, 0, 1, 0, 0, 0, 0, 2], value=0.5),
        node("Dropout", "p", "y", ratio=0.25),
    ]
    path = made(tmp_path / "f.onnx", nodes, IMAGES, ["y"], opset=9)
    data = normal(2, 3, 7, 9)
    same(evaluated(C.Function.load(str(path), format=ONNX), {"x": data}), run(path, {"x": data}))


def test_errors_name_the_node(tmp_path):
    path = tmp_path / "f.onnx"

    def refused(what, nodes, inputs=IMAGES, tensors=(), error=fl.CompatError):
        made(path, nodes, inputs, ["y"], tensors)
        with pytest.raises(error, match=what):
            C.Function.load(str(path), format=ONNX)

    refused(r"Erf `error`: expected an operation that feedline supports", [node("Erf", "x", "y", name="error")])
    refused(r"Concat `y`: .*the batch or steps", [node("Concat", "x x", "y", axis=0)])
    refused(
        "GRU `h`: expected no clip",
        [node("GRU", "x W R B", "h", hidden_size=2, clip=1.0), node("Squeeze", "h one", "y")],
        RECURRENT,
        {**gates(3), "one": np.array([1])},
    )
    refused("input `x`: expected axes of any length only for", [node("Relu", "x", "y")], {"x": ["a", "b", "c"]})
    refused("Add `y`", [node("Add", "x a", "y")], tensors={"a": normal(2, 3, 7, 9)})
    refused(
        r"got an error at MatMul `y`", [node("MatMul", "x a", "y")], tensors={"a": normal(4, 4)}, error=fl.StateError
    )
    refused(
        "TopK `v`: expected the largest",
        [node("TopK", "x k", "v i", largest=0), node("Relu", "v", "y")],
        tensors={"k": np.array([1])},
    )


def test_torn_and_foreign_files(tmp_path):
    path = tmp_path / "f.onnx"
    C.exp(C.input_variable(3)).save(str(path), format=ONNX)
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], b"hello", b""):
        path.write_bytes(damaged)
        with pytest.raises(fl.StateError, match="expected an ONNX model"):
            C.Function.load(str(path), format=ONNX)
    with pytest.raises(fl.StateError, match="readable ONNX file"):
        C.Function.load(str(tmp_path / "none"), format=ONNX)
    path.write_bytes(content)
    with pytest.raises(fl.StateError):
        C.Function.load(str(path))  # one has to pass the format, ONNX


def test_damaged_bytes(tmp_path):
    """Whatever a file has become, it is refused as damaged or as something that feedline lacks, or loads."""
    f, _ = CASES["gru"]()
    path, rng, refused = tmp_path / "f.onnx", np.random.default_rng(0), 0
    f.save(str(path), format=ONNX)
    content = path.read_bytes()
    for _ in range(60):
        damaged = bytearray(content)
        for place in rng.integers(0, len(content), 3):
            damaged[place] = rng.integers(0, 256)
        path.write_bytes(damaged)
        try:
            C.Function.load(str(path), format=ONNX)
        except (fl.StateError, fl.CompatError):
            refused += 1
    assert refused > 30


def test_steps_of_other_axes(tmp_path):
    """Two inputs along different sequences."""
    a = C.sequence.input_variable(2, name="a", sequence_axis=C.Axis("first"))
    b = C.sequence.input_variable(2, name="b", sequence_axis=C.Axis("second"))
    f = a + C.sequence.broadcast_as(C.sequence.last(b), a)
    path = tmp_path / "f.onnx"
    f.save(str(path), format=ONNX)
    feeds = {"a": [normal(4, 2), normal(4, 2)], "b": [normal(3, 2), normal(3, 2)]}
    expected = evaluated(f, feeds)
    same(run(path, feeds), expected)
    same(evaluated(C.Function.load(str(path), format=ONNX), feeds), expected)


def test_a_large_model_suggests_alternatives(tmp_path, monkeypatch):
    from feedline.networks.onnx import onnx_library as library

    monkeypatch.setattr(library, "_LARGEST_BYTES", 10)
    with pytest.raises(fl.StateError, match=r"less than 2 GiB(.|\n)*CNTKv2"):
        Dense(3)(C.input_variable(2)).save(str(tmp_path / "f.onnx"), format=ONNX)
    assert cntk_functions.UNARY


def test_numbers_of_no_class(tmp_path):
    """CNTK has zeros for all, ONNX counts negative ones from the last class."""
    x, numbers = C.input_variable(2, name="x"), np.float32([[-1, 2], [5, -0.5], [0, 1.5]])
    f = C.one_hot(x, 3)
    f.save(str(tmp_path / "f.onnx"), ONNX)
    (found,) = run(tmp_path / "f.onnx", {"x": numbers})
    np.testing.assert_array_equal(found, f.eval(numbers))
    np.testing.assert_array_equal(C.load_model(str(tmp_path / "f.onnx"), format=ONNX).eval(numbers), f.eval(numbers))

    onnx = pytest.importorskip("onnx")
    vector = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.INT64, ["N", 2])
    hot = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 2, 3])
    values = [onnx.numpy_helper.from_array(a, n) for a, n in ((np.int64([3]), "depth"), (np.float32([0, 1]), "values"))]
    node = onnx.helper.make_node("OneHot", ["x", "depth", "values"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [vector], [hot], values)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 11)], ir_version=8)
    onnx.save(model, str(tmp_path / "m.onnx"))
    numbers = np.array([[-1, 2], [5, -3], [0, 1]])
    (expected,) = run(tmp_path / "m.onnx", {"x": numbers})
    np.testing.assert_array_equal(C.load_model(str(tmp_path / "m.onnx"), format=ONNX).eval(numbers), expected)
