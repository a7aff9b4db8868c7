"""ONNX models: read like others, without the weights that are kept in other files."""

from __future__ import annotations

import pytest

import feedline as fl
from feedline.graph.folding import collapse, fold_repeats
from feedline.graph.importers import graph_of
from feedline.graph.op_families import family
from feedline.graph.settings import brief

onnx = pytest.importorskip("onnx", reason="onnx is not installed")

from onnx import TensorProto, helper  # noqa: E402


def tensor(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor(name, kind, shape, b"\0" * (4 * _count(shape)), raw=True)


def _count(shape):
    count = 1
    for n in shape:
        count *= n
    return count


def network(blocks=3):
    """A stem, equal blocks of convolution and sum, a head."""
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node(
            "Conv", ["x", "stem.weight"], ["a0"], "/stem/Conv", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]
        )
    ]
    held = [tensor("stem.weight", (4, 1, 3, 3))]
    for i in range(blocks):
        name, place = f"blocks.{i}.weight", f"/blocks/blocks.{i}"
        held.append(tensor(name, (4, 2, 1, 1)))
        nodes += [
            helper.make_node("Conv", [f"a{i}", name], [f"c{i}"], f"{place}/conv/Conv", kernel_shape=[1, 1], group=2),
            helper.make_node("Relu", [f"c{i}"], [f"r{i}"], f"{place}/Relu"),
            helper.make_node("Add", [f"r{i}", f"a{i}"], [f"a{i + 1}"], f"{place}/Add"),
        ]
    nodes += [
        helper.make_node("GlobalAveragePool", [f"a{blocks}"], ["pooled"], "/GlobalAveragePool"),
        helper.make_node("Flatten", ["pooled"], ["flat"], "/Flatten"),
        helper.make_node("Gemm", ["flat", "fc.weight", "fc.bias"], ["y"], "/fc/Gemm", transB=1),
    ]
    held += [tensor("fc.weight", (10, 4)), tensor("fc.bias", (10,))]
    inputs = [value("x", TensorProto.FLOAT, ["batch", 1, 8, 8])]
    outputs = [value("y", TensorProto.FLOAT, ["batch", 10])]
    return helper.make_model(helper.make_graph(nodes, "net", inputs, outputs, held))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "net.onnx"
    onnx.save(network(), path)
    return path


def test_a_file(path):
    graph = graph_of(path, {"x": (2, 1, 8, 8)})
    assert graph.importer == "ONNX"
    assert graph.num_parameters() == 4 * 9 + 3 * 8 + 40 + 10
    work = sum(o.multiply_adds for o in graph.operations)
    assert work == 2 * (4 * 16 * 9 + 3 * 4 * 16 * 2 + 40)
    assert [brief(o.settings) for o in graph.operations if o.kind in ("Conv", "Gemm", "GlobalAveragePool")] == [
        "3×3, stride 2, padding 1, 4 filters",
        *["1×1, 2 groups, 4 filters"] * 3,
        "to 1×1",
        "10 units",
    ]
    assert graph_of(str(path)).edges().__next__().type.shape == ("batch", 1, 8, 8)
    assert graph_of(network()).operations == graph_of(path).operations


def test_blocks_are_found_by_their_names(path):
    graph = fold_repeats(collapse(graph_of(path)))
    assert graph.scopes[("blocks", "blocks.0")].repeats == 3
    assert "blocks.0 … blocks.2" in fl.plot_network(path).source
    assert "1×1, 2 groups, 4 filters" in str(fl.summary(path))


def test_weights_in_other_files_are_not_read(tmp_path):
    path = tmp_path / "net.onnx"
    onnx.save(network(), path, save_as_external_data=True, location="weights", size_threshold=0)
    expected = fl.summary(path)
    (tmp_path / "weights").unlink()
    assert fl.summary(path).rows == expected.rows
    assert expected.parameters == 110


def test_recurrent_layers_count_what_torch_counts():
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("LSTM", ["x", "w", "r", "b"], ["y"], hidden_size=5, direction="bidirectional")]
    held = [tensor("w", (2, 20, 3)), tensor("r", (2, 20, 5)), tensor("b", (2, 40))]
    inputs, outputs = [value("x", TensorProto.FLOAT, [7, 2, 3])], [value("y", TensorProto.FLOAT, None)]
    graph = graph_of(helper.make_model(helper.make_graph(nodes, "net", inputs, outputs, held)))
    (lstm,) = [o for o in graph.operations if o.kind == "LSTM"]
    assert lstm.multiply_adds == 14 * 2 * 20 * (3 + 5)
    assert brief(lstm.settings) == "5 units, both directions"


def small(nodes, held, shape=(2, 3, 4, 4), opset=13):
    """The graph of some nodes after each other, from x to y."""
    value = helper.make_tensor_value_info
    inputs, outputs = [value("x", TensorProto.FLOAT, list(shape))], [value("y", TensorProto.FLOAT, None)]
    made = helper.make_graph(nodes, "net", inputs, outputs, held)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)])


def test_settings_are_no_parameters():
    """Bounds, rates and shapes were attributes once. Later files have them as inputs, with initializers."""
    number, whole = TensorProto.FLOAT, TensorProto.INT64
    made = helper.make_tensor
    held = [
        *(tensor("w", (5, 3, 3, 3)), tensor("b", (5,))),
        *(made("lo", number, (), [0.0]), made("hi", number, (), [6.0]), made("ratio", number, (), [0.25])),
        *(made("pads", whole, (8,), [0, 0, 1, 1, 0, 0, 1, 1]), made("fill", number, (), [0.5])),
        *(made("roi", number, (0,), []), made("scales", number, (4,), [1.0, 1.0, 2.0, 2.0])),
        *(made("two", number, (), [2.0]), made("shape", whole, (2,), [2, -1])),
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], "first"),
        helper.make_node("Clip", ["c", "lo", "hi"], ["d"], "/block/Clip"),
        helper.make_node("Dropout", ["d", "ratio"], ["e"], "/block/Dropout"),
        helper.make_node("Pad", ["e", "pads", "fill"], ["f"]),
        helper.make_node("Resize", ["f", "roi", "scales"], ["g"]),
        helper.make_node("Pow", ["g", "two"], ["h"]),
        helper.make_node("Reshape", ["h", "shape"], ["y"]),
    ]
    model = small(nodes, held)
    graph = graph_of(model)
    assert (graph.num_parameters(), graph.num_parameters(trains=True)) == (140, 140)
    assert [o.parameters for o in graph.operations if o.parameters] == [("w", "b")]
    rows = {row.kind: row for row in fl.summary(model).rows}
    assert [(kind, row.name, row.parameters) for kind, row in rows.items() if kind in ("Conv", "Clip", "Dropout")] == [
        ("Conv", "first", 140),
        ("Clip", "Clip", 0),
        ("Dropout", "Dropout", 0),
    ]
    assert brief(rows["Conv"].settings) == "3×3, 5 filters"
    assert [brief(rows[kind].settings) for kind in ("Clip", "Dropout")] == ["relu6", "rate 0.25"]
    assert [family(kind) for kind in ("Clip", "clamp")] == ["activation"] * 2
    assert "min=0.0, max=6.0" in [o.detail for o in graph.operations]


def test_a_constant_node_may_give_settings():
    rate = helper.make_node("Constant", [], ["ratio"], value=helper.make_tensor("v", TensorProto.FLOAT, (), [0.5]))
    bound = helper.make_node("Constant", [], ["six"], value_float=6.0)
    nodes = [rate, bound, helper.make_node("Dropout", ["x", "ratio"], ["d"])]
    graph = graph_of(small([*nodes, helper.make_node("Clip", ["d", "", "six"], ["y"])], []))
    assert [brief(o.settings) for o in graph.operations if o.role == "operation"] == ["rate 0.5", ""]
    assert "max=6.0" in [o.detail for o in graph.operations]


def test_what_is_a_setting_here_and_a_weight_there_is_a_parameter():
    two = helper.make_tensor("two", TensorProto.FLOAT, (), [2.0])
    nodes = [helper.make_node("Pow", ["x", "two"], ["p"]), helper.make_node("Mul", ["p", "two"], ["y"])]
    graph = graph_of(small(nodes, [two]))
    assert [o.parameters for o in graph.operations if o.role == "operation"] == [(), ("two",)]
    assert graph.num_parameters(trains=True) == 1


def test_what_is_no_model_or_does_not_fit(path, tmp_path):
    with pytest.raises(FileNotFoundError, match="which is not a file"):
        graph_of(tmp_path / "none.onnx")
    for content in (b"", b"\xff\xff garbage", b"{}"):
        (tmp_path / "bad.onnx").write_bytes(content)
        with pytest.raises(ValueError, match=r"expected an ONNX (file|model with outputs), got .*bad\.onnx"):
            graph_of(tmp_path / "bad.onnx")
    with pytest.raises(TypeError, match="by name"):
        graph_of(path, (1, 1, 8, 8))
    with pytest.raises(ValueError, match="shapes of the inputs x, got one of z"):
        graph_of(path, {"z": (1, 1, 8, 8)})
    with pytest.raises(ValueError, match="a shape of 4 axes for the input x"):
        graph_of(path, {"x": (1, 1)})


def test_without_the_package_the_extra_is_named(path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    monkeypatch.delitem(__import__("sys").modules, "feedline.graph.importers.onnx_file", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"pip install .*\[onnx\]'"):
        fl.summary(path)
