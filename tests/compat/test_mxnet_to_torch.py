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
    weight = F.Variable("w")
    tied = F.dot(F.FullyConnected(x, weight=weight, num_hidden=4, no_bias=True), weight)
    refused(tmp_path, tied, shapes, fl.CompatError, "weights that only such layers read, got parameter `w`")
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
