"""Symbols as modules of torch: the module computes what the symbol's executor does, for batches of any size."""

from __future__ import annotations

import json
import runpy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline as fl  # noqa: E402
import feedline.mxnet as mx  # noqa: E402
from feedline.cli.export import export  # noqa: E402
from feedline.networks.torch_source.source_writer import identifier  # noqa: E402
from tests.cli.shell import feedline  # noqa: E402
from tests.compat import golden  # noqa: E402
from tests.compat.mxnet_networks import DATA, LAYERS, F, expected, face, fed, saved, shapes_of  # noqa: E402


def compare(folder, symbol, shapes):
    """Export, and compare the module with the executor for three batches."""
    net, params, arrays = saved(folder, symbol, shapes)
    export(net, params, "torch", shapes_of(shapes))
    text = (folder / "net.py").read_text()
    assert "feedline." not in text
    module = runpy.run_path(str(folder / "net.py"))["load"]()
    for batch in (shapes[next(iter(shapes))][0], 1, 5):
        inputs = fed(symbol, shapes, batch)
        ours = expected(symbol, arrays, inputs)
        arguments = {identifier(name): torch.from_numpy(x) for name, x in inputs.items()}
        with torch.no_grad():
            results = module(**{name: x for name, x in arguments.items() if f"{name}: torch.Tensor" in text})
        results = [results] if isinstance(results, torch.Tensor) else results
        for result, x in zip(results, ours, strict=True):
            assert tuple(result.shape) == x.shape
            np.testing.assert_allclose(result.numpy(), x, rtol=2e-5, atol=2e-5)
    return text


@pytest.mark.parametrize("name", LAYERS)
def test_layers(tmp_path, name):
    compare(tmp_path, LAYERS[name](F.Variable("data")), DATA)


def test_a_face_network(tmp_path):
    text = compare(tmp_path, face(), {"data": (2, 3, 12, 12)})
    assert "self.pre_fc1 = nn.Linear(144, 12)" in text
    assert "self.a_conv2 = nn.Conv2d(8, 8, (3, 3), stride=(2, 2), padding=(1, 1))" in text


@pytest.mark.parametrize("case", golden.cases("viz.json"))
def test_networks_that_mxnet_wrote(tmp_path, case):
    symbol = mx.sym.load_json(json.dumps(case["symbol"]))
    if len(symbol.list_arguments()) > len(set(symbol.list_arguments())):
        return  # an array for a name would be that of two
    names = {node["name"] for node in case["symbol"]["nodes"] if node["op"] == "null"}
    shapes = {n: tuple(s) for n, s in case["inferred_shapes"]["inputs"].items() if n in names}
    compare(tmp_path, symbol, {name: shape for name, shape in shapes.items() if not name.endswith("label")})


def test_layers_that_share_weights_are_one_layer(tmp_path):
    weight = F.Variable("shared_weight")
    x = F.FullyConnected(F.Variable("data"), weight=weight, num_hidden=4, no_bias=True, name="first")
    text = compare(
        tmp_path, F.FullyConnected(x, weight=weight, num_hidden=4, no_bias=True, name="second"), {"data": (2, 4)}
    )
    assert text.count("nn.Linear") == 1


def test_weights_of_several_kinds_of_layers_are_one_parameter(tmp_path):
    weight = F.Variable("words")
    x = F.Embedding(F.Variable("data"), weight=weight, input_dim=9, output_dim=4, name="embedding")
    x = F.FullyConnected(F.mean(x, axis=1, name="mean"), weight=weight, num_hidden=9, no_bias=True, name="scores")
    text = compare(tmp_path, F.dot(x, weight), {"data": (2, 5)})
    assert text.count("self.words = nn.Parameter(torch.empty(9, 4))") == 1
    assert "functional.embedding(data.long(), self.words)" in text
    assert "functional.linear(mean, self.words)" in text


def test_convolutions_that_share_weights_have_their_own_settings(tmp_path):
    x, weight = F.Variable("data"), F.Variable("kernel")
    parts = [
        F.Convolution(x, weight=weight, kernel=(3, 3), num_filter=2, no_bias=True, dilate=(n, n), pad=(n, n))
        for n in (1, 2)
    ]
    text = compare(tmp_path, parts[0] + parts[1], {"data": (2, 3, 6, 6)})
    assert "functional.conv2d(data, self.kernel, padding=(2, 2), dilation=(2, 2))" in text


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_inputs_and_layers_have_the_element_type_of_the_parameters(tmp_path, dtype):
    x = F.FullyConnected(F.Variable("data"), num_hidden=3, name="fc")
    net, params, arrays = saved(tmp_path, F.SoftmaxOutput(x, name="softmax"), {"data": (2, 4)})
    mx.nd.save(str(params), {name: array.astype(dtype) for name, array in arrays.items()})
    export(net, params, "torch", ["data=2,4"])
    assert f"self.fc = nn.Linear(4, 3, dtype=torch.{dtype})" in (tmp_path / "net.py").read_text()
    module = runpy.run_path(str(tmp_path / "net.py"))["load"]()
    assert module(torch.ones(2, 4, dtype=getattr(torch, dtype))).dtype == getattr(torch, dtype)


def refused(folder, symbol, shapes, error, match):
    net, params, _ = saved(folder, symbol, shapes)
    with pytest.raises(error, match=match):
        export(net, params, "torch", shapes_of(shapes))
    assert not (folder / "net.py").exists()


def test_refused(tmp_path):
    x = F.Variable("data")
    shapes = {"data": (2, 4)}
    refused(tmp_path, F.topk(x, k=2), shapes, fl.CompatError, "topk.*torch can express")
    refused(tmp_path, F.reshape(x, shape=(2, 4)), shapes, fl.CompatError, "batches of any size")
    gamma = F.Variable("gamma")
    scaled = F.broadcast_mul(F.BatchNorm(x, gamma=gamma, fix_gamma=False), F.reshape(gamma, shape=(1, 4)))
    refused(tmp_path, scaled, shapes, fl.CompatError, "weights that only such layers read, got parameter `gamma`")
    net, params, _ = saved(tmp_path, F.FullyConnected(x, num_hidden=3), shapes)
    with pytest.raises(mx.MXNetError, match="got neither for data"):
        export(net, params, "torch")


def test_the_command(tmp_path):
    symbol = F.SoftmaxOutput(F.FullyConnected(F.Variable("data"), num_hidden=3, name="fc"), name="softmax")
    net, params, _ = saved(tmp_path, symbol, {"data": (2, 4)})
    facts = json.loads(feedline("export", net, params, "--to", "torch", "--shape", "data=2,4", "--json").stdout)
    assert facts["path"] == str(tmp_path / "net.py")
    assert facts["weights"] == str(tmp_path / "net.safetensors")
    assert facts["largest_difference"] < 1e-5
    assert facts["inputs"] == ["data", "softmax_label"]
