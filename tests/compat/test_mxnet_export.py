"""Symbols as ONNX: onnxruntime computes what the symbol's executor does, for batches of any size."""

from __future__ import annotations

import json

import numpy as np
import pytest

import feedline as fl
import feedline.mxnet as mx
from feedline.cli.export import export
from tests.cli.shell import feedline
from tests.compat import golden
from tests.compat.mxnet_networks import DATA, LAYERS, F, expected, face, fed, saved, shapes_of

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("onnx", reason="onnx is not installed")


def compare(folder, symbol, shapes):
    """Export by the command, and compare with the executor for three batches."""
    files = saved(folder, symbol, shapes)
    feedline("export", *files[:2], "--to", "onnx", *(f"--shape={text}" for text in shapes_of(shapes)))
    session = onnxruntime.InferenceSession(str(folder / "net.onnx"))
    assert [out.name for out in session.get_outputs()] == symbol.list_outputs()
    for batch in (shapes[next(iter(shapes))][0], 1, 5):
        inputs = fed(symbol, shapes, batch)
        ours = expected(symbol, files[2], inputs)
        used = {entry.name for entry in session.get_inputs()}
        results = session.run(None, {name: x for name, x in inputs.items() if name in used})
        assert [result.shape for result in results] == [x.shape for x in ours]
        for result, x in zip(results, ours, strict=True):
            np.testing.assert_allclose(result, x, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("case", golden.cases("viz.json"))
def test_networks_that_mxnet_wrote(tmp_path, case):
    symbol = mx.sym.load_json(json.dumps(case["symbol"]))
    names = {node["name"] for node in case["symbol"]["nodes"] if node["op"] == "null"}
    shapes = {n: tuple(s) for n, s in case["inferred_shapes"]["inputs"].items() if n in names}
    shapes = {name: shape for name, shape in shapes.items() if not name.endswith("label")}
    if len(symbol.list_arguments()) > len(set(symbol.list_arguments())):  # an array for a name would be that of two
        net, params, _ = saved(tmp_path, symbol, shapes)
        assert "got several `fc_bias`" in feedline("export", net, params, "--to", "safetensors", code=1).stderr
        return
    compare(tmp_path, symbol, shapes)


def test_a_face_network(tmp_path):
    compare(tmp_path, face(), {"data": (2, 3, 12, 12)})


@pytest.mark.parametrize("name", LAYERS)
def test_layers(tmp_path, monkeypatch, name):
    def in_process(command, symbol, params, *options):
        export(symbol, params, "onnx", shapes_of(DATA))

    monkeypatch.setitem(globals(), "feedline", in_process)
    compare(tmp_path, LAYERS[name](F.Variable("data")), DATA)


def refused(folder, symbol, shapes, error, match, **shown):
    net, params, _ = saved(folder, symbol, shapes)
    with pytest.raises(error, match=match):
        export(net, params, "onnx", shapes_of(shown or shapes))
    assert not (folder / "net.onnx").exists()


def test_refused(tmp_path):
    x = F.Variable("data")
    dense = F.FullyConnected(x, num_hidden=3, name="fc")
    shapes = {"data": (2, 4)}
    refused(tmp_path, F.topk(x, k=2), shapes, fl.CompatError, "topk.*ONNX can express")
    refused(tmp_path, F.reshape(x, shape=(2, 4)), shapes, fl.CompatError, "batches of any size")
    refused(tmp_path, F.SliceChannel(x, num_outputs=2, axis=0), shapes, fl.CompatError, "batch|any size")
    refused(tmp_path, dense, shapes, mx.MXNetError, "expected shapes of inputs, data, got one of `x`", x=(1, 4))
    refused(tmp_path, dense, shapes, mx.MXNetError, "[Ss]hape", data=(2, 5))
    with pytest.raises(mx.MXNetError, match="got neither for data"):
        export(tmp_path / "net-symbol.json", tmp_path / "net.params", "onnx")
    with pytest.raises(mx.MXNetError, match="expected the JSON of a symbol"):
        export(tmp_path / "net.params", tmp_path / "net-symbol.json", "onnx")
    net, params, arrays = saved(tmp_path, dense, shapes)
    mx.nd.save(str(params), {name: array.astype("float16") for name, array in arrays.items()})
    with pytest.raises(fl.CompatError, match="computes with float32, got float16 as `fc_"):
        export(net, params, "onnx", shapes_of(shapes))
    refused(tmp_path, F.Cast(dense, dtype="float64"), shapes, fl.CompatError, "got float64 as the result of Cast")


def test_the_command(tmp_path):
    from safetensors.numpy import load_file

    symbol = F.BatchNorm(F.FullyConnected(F.Variable("data"), num_hidden=3, name="fc"), name="bn")
    net, params, arrays = saved(tmp_path, symbol, {"data": (2, 4)})
    told = json.loads(feedline("export", net, params, "--to", "safetensors", "--json").stdout)
    assert told["path"] == str(tmp_path / "net.safetensors")
    assert told["parameters"] == 6
    assert told["inputs"] == ["data"]
    weights = load_file(tmp_path / "net.safetensors")
    assert weights.keys() == {name[4:] for name in arrays}
    for name, array in arrays.items():
        assert weights[name[4:]].tolist() == array.asnumpy().tolist()
    for options, message in (
        (["--to", "text"], "expected --to onnx, safetensors, torch, got text"),
        (["--to", "onnx", "--shape", "data=1,x"], "expected --shape as NAME=LENGTHS"),
        (["--to", "safetensors", "--shape", "data=1,4"], "expected --shape for onnx and torch only"),
    ):
        assert message in feedline("export", net, params, *options, code=2).stderr
    mx.nd.save(str(params), {**arrays, "arg:other": mx.nd.zeros((1,))})
    assert "got other, which it does not have" in feedline("export", net, params, "--to", "onnx", code=1).stderr
