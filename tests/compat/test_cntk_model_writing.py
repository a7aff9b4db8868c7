"""What is written as `ModelFormat.CNTKv2` computes the same, and obeys the rules by which CNTK loads files."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("google.protobuf", reason="protobuf is not installed")

import feedline as fl  # noqa: E402
import feedline.cntk as C  # noqa: E402
from feedline.cntk._model_files.dictionaries import read_dictionary  # noqa: E402
from feedline.cntk.layers import Dense, Fold, Recurrence  # noqa: E402
from tests.compat import cntk_functions  # noqa: E402
from tests.oracles import cntk_model as file  # noqa: E402
from tests.oracles.cntk_model import BATCH, Axis, Dims, Int  # noqa: E402

REGIONS = C.constant(np.array([[0, 0, 8, 6], [2, 3, 15, 9]], np.float32))
# Those that ONNX does not have.
MORE = {
    "regions": cntk_functions.of_image(lambda i: C.roipooling(i, REGIONS, C.MAX_POOLING, (2, 3), 0.5)),
    "straight through": cntk_functions.of_x(C.ops.straight_through_impl),
}
CASES = {**cntk_functions.CASES, **cntk_functions.RAGGED, **MORE}


def saved(f, path):
    f.save(str(path), format=C.ModelFormat.CNTKv2)
    return C.Function.load(str(path))


def data_for(f, feeds):
    return {v: feeds[v.name] for v in f.arguments}


@pytest.mark.parametrize("name", CASES)
def test_what_is_loaded_computes_the_same(tmp_path, name):
    f, feeds = CASES[name]()
    again = saved(f, tmp_path / "z.model")
    assert sorted(v.name for v in again.arguments) == sorted(v.name for v in f.arguments)
    assert sorted(p.name for p in again.parameters) == sorted(p.name for p in f.parameters)
    expected, found = (cntk_functions.flat(g.eval(data_for(g, feeds))) for g in (f, again))
    for a, b in zip(expected, found, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, 3e-6, 3e-6)
    check(read_dictionary(tmp_path / "z.model"))


def check(model):
    """Check the rules of CNTK's loader: operands precede their readers, as leaves or outputs. Blocks are complete."""
    known = {}
    for leaf in model["inputs"]:
        assert leaf["uid"] not in known
        known[leaf["uid"]] = leaf["kind"]
    functions = {f["uid"]: f for f in model["primitive_functions"]}
    assert len(functions) == len(model["primitive_functions"])
    check_root(functions, model["root"])
    done = set()
    for f in model["primitive_functions"]:
        assert all(uid in known for uid in f["inputs"]), f
        done.add(f["uid"])
        outputs = 2 if f["op"] in (72, 87) else 1
        if f["op"] == 44:
            continue
        if f["op"] == 57:
            check_block(f, functions, known, done)
            inner = functions[f["block_function_composite"]["root"]]
            outputs = len(inner["inputs"]) if inner["op"] == 44 else 1
            for key, value in zip(
                f["block_function_composite_arguments_map_keys"],
                f["block_function_composite_arguments_map_values"],
                strict=True,
            ):
                assert known[key] == 4
                assert value in known
                assert value in f["inputs"]
        for i in range(outputs):
            uid = f"{f['uid']}_Output_{i}"
            assert known.get(uid, 4) == 4  # only a placeholder may replace it before
            known[uid] = 1
    used = {uid for f in model["primitive_functions"] for uid in f["inputs"]}
    used |= {
        uid for f in model["primitive_functions"] for uid in f.get("block_function_composite_arguments_map_keys", [])
    }
    assert {leaf["uid"] for leaf in model["inputs"]} <= used


def check_root(functions, uid):
    """A root that is a block has one output, as all outputs of a root are results."""
    root = functions[uid]
    if root["op"] == 57:
        inner = functions[root["block_function_composite"]["root"]]
        assert inner["op"] != 44 or len(inner["inputs"]) == 1
    assert root["op"] not in (72, 87) or root["attributes"].get("sequenceUnpackSuppressMaskOutput", False)


def check_block(block, functions, known, done):
    """What is inside is there already, and reads the block's placeholders, parameters and constants alone."""
    keys = block["block_function_composite_arguments_map_keys"]
    check_root(functions, block["block_function_composite"]["root"])
    waiting, seen = [block["block_function_composite"]["root"]], set()
    while waiting:
        uid = waiting.pop()
        if uid in seen:
            continue
        seen.add(uid)
        assert uid in done
        for operand in functions[uid]["inputs"]:
            owner = operand.rpartition("_Output_")[0]
            if owner in functions:
                waiting.append(owner)
            else:
                assert known[operand] in (2, 3) or operand in keys


def test_the_bytes_of_a_file(tmp_path):
    """Those of an encoder that shares nothing with the writer: shapes and operands from right to left."""
    x = C.input_variable((2, 3), name="x")
    w = C.parameter(init=np.arange(6, dtype="f4").reshape(3, 2), name="w")
    z = C.times(x, w, name="product")
    z = C.slice(C.transpose(z, (1, 0)), 0, 0, 1, name="part")
    z.save(str(tmp_path / "z.model"), format=C.ModelFormat.CNTKv2)
    leaves = [
        file.given("Parameter1", 2, w.value),
        file.leaf("Input1", 0, (3, 2), [BATCH], name="x"),
    ]
    leaves[0] = {**{key: v for key, v in leaves[0].items() if key != "value"}, "name": "w", "value": w.value}
    functions = [
        file.function("Times1", 31, ["Parameter1", "Input1"], {"outputRank": 1, "inferInputRankToMap": Int(-1)}),
        file.function("TransposeAxes1", 12, ["Times1_Output_0"], {"axisVec": [Axis(1), Axis(0)]}),
        file.function(
            "Slice1",
            14,
            ["TransposeAxes1_Output_0"],
            {"axis": Axis(1), "beginIndex": Int(0), "endIndex": Int(1), "sliceStrides": Int(1)},
        ),
    ]
    functions[0]["name"], functions[2]["name"] = "product", "part"
    expected = file.dictionary(file.model("Slice1", leaves, functions))
    found = (tmp_path / "z.model").read_bytes()
    # Both orders of the two leaves are CNTK's.
    other = file.dictionary(file.model("Slice1", leaves[::-1], functions))
    assert found in (expected, other)
    assert Dims((3, 2)) == leaves[1]["shape"]


def test_numbers_of_operations(tmp_path):
    """As published with CNTK 2.7."""
    x = C.input_variable((2, 3), name="x")
    numbers = {
        31: C.times(x, cntk_functions.weights(3, 2)),
        32: C.times_transpose(x, cntk_functions.weights(4, 3)),
        75: C.sigmoid(x),
        3: C.relu(x),
        52: C.log_add_exp(x, 1),
        39: C.reduce_sum(x, 0),
        43: C.splice(x, x),
        62: C.alias(x, "other"),
        65: C.elu(x),
        83: C.pad(x, [(0, 1), (1, 0)]),
        91: C.cast(x, "float64"),
        95: C.tan(x),
        96: C.atan(x),
    }
    for number, f in numbers.items():
        f.save(str(tmp_path / "f"), format=C.ModelFormat.CNTKv2)
        functions = read_dictionary(tmp_path / "f")["primitive_functions"]
        assert functions[-1]["op"] == number
        assert functions[-1]["version"] == 24
        assert functions[-1]["type"] == "PrimitiveFunction"


def test_a_cross_entropy_in_a_file(tmp_path):
    """In CNTK's order of operands: ``TransposeTimes(labels, scores)``, in a block over scores and labels."""
    scores, labels = C.input_variable(3, name="scores"), C.input_variable(3, name="labels")
    C.cross_entropy_with_softmax(scores, labels).save(str(tmp_path / "z"), format=C.ModelFormat.CNTKv2)
    model = read_dictionary(tmp_path / "z")
    names = {leaf["uid"]: leaf.get("name") for leaf in model["inputs"]}
    block = model["primitive_functions"][-1]
    assert block["block_function_op_name"] == "CrossEntropyWithSoftmax"
    keys, values = (block[f"block_function_composite_arguments_map_{key}"] for key in ("keys", "values"))
    stands_for = {key: names[value] for key, value in zip(keys, values, strict=True)}
    assert list(stands_for.values()) == ["scores", "labels"]
    (product,) = (f for f in model["primitive_functions"] if f["op"] == 32)
    assert [stands_for[uid] for uid in product["inputs"]] == ["labels", "scores"]
    (total,) = (f for f in model["primitive_functions"] if f["op"] == 39)
    assert [stands_for[uid] for uid in total["inputs"]] == ["scores"]
    assert total["attributes"]["reductionOpName"] == "LogSum"


def test_states_are_placeholders_of_the_next_value(tmp_path):
    s = C.sequence.input_variable(3, name="s")
    Recurrence(C.layers.LSTM(2))(s).save(str(tmp_path / "z"), format=C.ModelFormat.CNTKv2)
    model = read_dictionary(tmp_path / "z")
    stood_for = [leaf["uid"] for leaf in model["inputs"] if leaf["kind"] == 4 and "_Output_" in leaf["uid"]]
    assert len(stood_for) == 2
    delays = [f for f in model["primitive_functions"] if f["op"] == 37]
    assert sorted(f["inputs"][0] for f in delays) == sorted(stood_for)


def test_blocks_of_layers_are_blocks(tmp_path):
    """Also within recurrences. The order of parameters follows from them."""
    s = C.sequence.input_variable(3, name="s")
    tag = [(Recurrence(C.layers.LSTM(4)), Recurrence(C.layers.GRU(4), go_backwards=True)), C.splice]
    z = C.layers.Sequential([C.layers.Embedding(5), C.layers.Stabilizer(), *tag, Dense(2, name="out")])(s)
    again = saved(z, tmp_path / "z")
    model = read_dictionary(tmp_path / "z")
    blocks = [f["block_function_op_name"] for f in model["primitive_functions"] if f["op"] == 57]
    assert {"Embedding", "Stabilizer", "Recurrence", "GRU", "Dense"} <= set(blocks)
    assert [p.name for p in again.parameters] == [p.name for p in z.parameters]
    assert [p.shape for p in again.parameters] == [p.shape for p in z.parameters]
    assert again.out.op_name == "Dense"
    assert again.out.W.shape == (8, 2)
    twice = saved(again, tmp_path / "again")
    for a, b in zip(z.eval({s: cntk_functions.STEPS}), twice.eval(cntk_functions.STEPS), strict=True):
        np.testing.assert_allclose(a, b, 1e-6, 1e-7)


def test_a_block_that_is_read_from_outside_is_written_once(tmp_path):
    """The inside of a layer as a separate result, and a step that captures a variable."""
    x = C.input_variable(3, name="x")
    z = C.layers.Sequential([Dense(4, activation=C.tanh, name="layer"), C.layers.BatchNormalization(), Dense(2)])(x)
    inner = C.combine(z, z.find_by_name("layer").block_root * 2)
    again = saved(inner, tmp_path / "z")
    model = read_dictionary(tmp_path / "z")
    assert sum(f["op"] == 31 for f in model["primitive_functions"]) == 2
    for a, b in zip(
        inner.eval(np.ones((2, 3), "f4")).values(), again.eval(np.ones((2, 3), "f4")).values(), strict=True
    ):
        np.testing.assert_allclose(a, b, 1e-6)


def test_training_goes_on_from_a_file(tmp_path):
    """Gradients, running statistics and dropout equal the saved function's."""
    x, y = C.input_variable(4, name="x"), C.input_variable(3, name="y")
    z = C.layers.Sequential([Dense(5, activation=C.tanh), C.layers.BatchNormalization(), Dense(3)])(x)
    loss = C.cross_entropy_with_softmax(z, y)
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(6, 4)).astype("f4"), "y": np.eye(3, dtype="f4")[rng.integers(0, 3, 6)]}
    again = saved(loss, tmp_path / "z")

    def trained(f):
        given = {v: data[v.name] for v in f.arguments}
        learner = C.sgd(f.parameters, C.learning_parameter_schedule(0.5))
        trainer = C.Trainer(None, (f,), [learner])
        for _ in range(3):
            trainer.train_minibatch(given)
        return f.eval(given), {c.name: c.value for c in f.constants if c.name}

    (one, mine), (other, theirs) = trained(loss), trained(again)
    np.testing.assert_allclose(one, other, 1e-6)
    assert {"aggregate_mean", "aggregate_variance", "aggregate_count"} <= set(mine)
    for name, value in mine.items():
        np.testing.assert_allclose(theirs[name], value, 1e-6)


def test_what_cntk_does_not_have(tmp_path):
    path = str(tmp_path / "z")
    s, x = C.sequence.input_variable(3, name="s"), C.input_variable(3)

    class Twice(C.ops.functions.UserFunction):
        def forward(self, a, *args):
            return None, 2 * a

        def infer_outputs(self):
            return [C.output_variable(self.inputs[0].shape, self.inputs[0].dtype, self.inputs[0].dynamic_axes)]

    def refused(f, what):
        with pytest.raises(fl.CompatError, match=what):
            f.save(path, format=C.ModelFormat.CNTKv2)
        assert list(tmp_path.iterdir()) == []

    refused(C.user_function(Twice([x])), "Python code")
    # Steps of another number than the input's.
    longer = C.layers.UnfoldFrom(lambda h: Dense(3)(h), length_increase=2.0)(C.sequence.last(s), s)
    refused(longer, r"sequence_ones `.*save without a format")
    refused(C.squeeze(C.placeholder(name="p")), "expected known shapes")
    with pytest.raises(ValueError, match="expected a known shape"):
        C.times(C.placeholder(name="p"), C.parameter((C.InferredDimension, 2))).save(path, format=C.ModelFormat.CNTKv2)


def test_files_without_a_format_are_feedlines(tmp_path):
    s = C.sequence.input_variable(3, name="s")
    z = Fold(C.layers.GRU(2))(s)
    z.save(str(tmp_path / "a"))
    z.save(str(tmp_path / "b"), format=C.ModelFormat.CNTKv2)
    z.save(str(tmp_path / "c"), format=0)
    assert (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes()
    assert (tmp_path / "a").read_bytes()[8:9] == b"{"
    for name in "abc":  # the first bytes identify the format
        for kwargs in ({}, {"format": C.ModelFormat.CNTKv2}):
            again = C.Function.load(str(tmp_path / name), **kwargs)
            data = [np.ones((2, 3), "f4"), np.zeros((4, 3), "f4")]
            np.testing.assert_allclose(again.eval(data), z.eval(data), 1e-6)
    for call in (lambda: z.save(str(tmp_path / "d"), format=7), lambda: C.load_model("a", format="x")):
        with pytest.raises(ValueError, match=r"ModelFormat\.CNTKv2, ModelFormat\.ONNX or no format"):
            call()


def test_restore_from_a_file_in_cntks_format(tmp_path):
    s = C.sequence.input_variable(3, name="s")

    def build():
        return C.layers.Sequential(
            [Recurrence(C.layers.LSTM(4)), C.sequence.last, C.layers.BatchNormalization(), Dense(2)]
        )(s)

    z, other = build(), build()
    data = cntk_functions.STEPS
    z.forward({s: data}, z.outputs, z.outputs)  # moves the running statistics
    z.save(str(tmp_path / "z"), format=C.ModelFormat.CNTKv2)
    other.restore(str(tmp_path / "z"))
    np.testing.assert_allclose(other.eval({s: data}), z.eval({s: data}), 1e-6)
