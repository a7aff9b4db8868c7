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

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("onnx", reason="onnx is not installed")

F = mx.sym


def saved(folder, symbol, shapes):
    """Write a network with drawn parameters. Returns its files, its parameters, and the shapes of its inputs."""
    rng = np.random.default_rng(3)
    arguments, _, states = symbol.infer_shape(**shapes)
    params = {}
    for kind, names, lengths in (
        ("arg", symbol.list_arguments(), arguments),
        ("aux", symbol.list_auxiliary_states(), states),
    ):
        for name, shape in zip(names, lengths, strict=True):
            if name not in shapes and not name.endswith("label"):
                low = 0.5 if kind == "aux" or name.endswith("gamma") else -0.5
                params[f"{kind}:{name}"] = mx.nd.array(rng.uniform(low, 1, shape))
    symbol.save(str(folder / "net-symbol.json"))
    mx.nd.save(str(folder / "net.params"), params)
    return folder / "net-symbol.json", folder / "net.params", params


def fed(symbol, shapes, batch):
    """Numbers for the inputs: indices of rows for those of embeddings."""
    rng = np.random.default_rng(batch)
    nodes = json.loads(symbol.tojson())["nodes"]
    rows = {nodes[node["inputs"][0][0]]["name"] for node in nodes if node["op"] == "Embedding"}
    inputs = {}
    for name, shape in shapes.items():
        lengths = (batch, *shape[1:])
        inputs[name] = (rng.integers(0, 5, lengths) if name in rows else rng.normal(size=lengths)).astype(np.float32)
    return inputs


def expected(symbol, params, inputs):
    """What the executor returns."""
    executor = symbol.simple_bind(mx.cpu(), grad_req="null", **{name: x.shape for name, x in inputs.items()})
    arrays = {kind: {n[4:]: a for n, a in params.items() if n.startswith(kind)} for kind in ("arg:", "aux:")}
    executor.copy_params_from(arrays["arg:"], arrays["aux:"])
    return [out.asnumpy() for out in executor.forward(**{name: mx.nd.array(x) for name, x in inputs.items()})]


def shapes_of(shapes):
    """Shapes as the command takes them."""
    return [f"{name}={','.join(map(str, shape))}" for name, shape in shapes.items()]


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


def block(data, filters, name, stride=1):
    """A unit of a face network: normalised first, PReLU, a shortcut."""
    y = F.BatchNorm(data, fix_gamma=False, eps=2e-5, name=f"{name}_bn1")
    y = F.Convolution(y, num_filter=filters, kernel=(3, 3), pad=(1, 1), no_bias=True, name=f"{name}_conv1")
    y = F.LeakyReLU(F.BatchNorm(y, name=f"{name}_bn2"), act_type="prelu", name=f"{name}_relu")
    y = F.Convolution(y, num_filter=filters, kernel=(3, 3), stride=(stride, stride), pad=(1, 1), name=f"{name}_conv2")
    shortcut = F.Convolution(data, num_filter=filters, kernel=(1, 1), stride=(stride, stride), name=f"{name}_sc")
    return y + shortcut


def test_a_face_network(tmp_path):
    """As InsightFace's: pixels are scaled in the network, the embedding is a normalised layer."""
    x = (F.Variable("data") - 127.5) * 0.0078125
    y = block(block(x, 8, "a", 2), 16, "b", 2)
    y = F.Dropout(F.BatchNorm(y, fix_gamma=False, name="bn"), p=0.4)
    y = F.FullyConnected(y, num_hidden=12, name="pre_fc1")
    compare(tmp_path, F.L2Normalization(F.BatchNorm(y, eps=2e-5, name="fc1")), {"data": (2, 3, 12, 12)})


DATA = {"data": (2, 4, 7, 6)}
LAYERS = {
    "pool max full": lambda x: F.Pooling(x, kernel=(3, 2), stride=(2, 2), pad=(1, 0), pooling_convention="full"),
    "pool max": lambda x: F.Pooling(x, kernel=(2, 2), stride=(2, 2)),
    "pool avg": lambda x: F.Pooling(x, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="avg"),
    "pool avg full": lambda x: F.Pooling(
        x, kernel=(2, 2), stride=(2, 3), pool_type="avg", pooling_convention="full", pad=(1, 1)
    ),
    "pool avg inner": lambda x: F.Pooling(
        x, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="avg", count_include_pad=False
    ),
    "pool sum": lambda x: F.Pooling(x, kernel=(2, 2), pool_type="sum"),
    "pool lp": lambda x: F.Pooling(x, kernel=(2, 2), pool_type="lp", p_value=2),
    "global avg": lambda x: F.Pooling(x, global_pool=True, pool_type="avg", kernel=(1, 1)),
    "global max": lambda x: F.Pooling(x, global_pool=True, pool_type="max", kernel=(1, 1)),
    "global sum": lambda x: F.Pooling(x, global_pool=True, pool_type="sum", kernel=(1, 1)),
    "groups": lambda x: F.Convolution(x, num_filter=4, num_group=2, kernel=(3, 3), dilate=(2, 1), stride=(1, 2)),
    "deconvolution": lambda x: F.Deconvolution(x, num_filter=3, kernel=(3, 3), stride=(2, 2), pad=(1, 1), adj=(1, 1)),
    "elu": lambda x: F.LeakyReLU(x, act_type="elu", slope=0.7),
    "gelu": lambda x: F.LeakyReLU(x, act_type="gelu"),
    "selu": lambda x: F.LeakyReLU(x, act_type="selu"),
    "leaky": lambda x: F.LeakyReLU(x, slope=0.1),
    "rrelu": lambda x: F.LeakyReLU(x, act_type="rrelu"),
    "norm of last axis": lambda x: F.BatchNorm(x, axis=-1, fix_gamma=False),
    "layer norm": lambda x: F.LayerNorm(x, axis=1),
    "l2 channel": lambda x: F.L2Normalization(x, mode="channel"),
    "l2 spatial": lambda x: F.L2Normalization(x, mode="spatial"),
    "softmax": lambda x: F.softmax(x, axis=1, temperature=2.0),
    "softmin": lambda x: F.softmin(x),
    "log softmax": lambda x: F.log_softmax(x, axis=2),
    "softmax activation": lambda x: F.SoftmaxActivation(x),
    "softmax of channels": lambda x: F.SoftmaxActivation(x, mode="channel"),
    "softmax output": lambda x: F.SoftmaxOutput(x, name="softmax"),
    "softmax outputs": lambda x: F.SoftmaxOutput(x, multi_output=True, name="softmax"),
    "logistic": lambda x: F.LogisticRegressionOutput(F.Flatten(x), name="logistic"),
    "transposed": lambda x: F.transpose(x, axes=(0, 2, 3, 1)),
    "all transposed": lambda x: F.transpose(x),
    "swapped": lambda x: F.swapaxes(x, dim1=1, dim2=3),
    "reshaped": lambda x: F.reshape(x, shape=(0, -1, 2)),
    "batch merged": lambda x: F.reshape(x, shape=(-3, -2)),
    "batch split off again": lambda x: F.reshape(F.reshape(x, shape=(-3, -2)), shape=(-4, -1, 4, -2)),
    "parts": lambda x: F.Concat(*reversed(list(F.SliceChannel(x, num_outputs=2))), dim=1),
    "squeezed parts": lambda x: F.add_n(*F.SliceChannel(x, num_outputs=4, squeeze_axis=True)),
    "axis": lambda x: F.slice_axis(x, axis=2, begin=-3, end=None),
    "sum": lambda x: F.sum(x, axis=(1, 3), keepdims=True),
    "sum of others": lambda x: F.mean(x, axis=0, exclude=True),
    "max of all": lambda x: F.max(x),
    "norm": lambda x: F.norm(x, axis=1),
    "clip": lambda x: F.clip(x, -0.5, 0.25),
    "numbers": lambda x: F.exp(2 - x / 3) * (1 / (F.abs(x) + 1)) ** 2 + 2 ** F.tanh(x),
    "larger": lambda x: F.broadcast_greater(x, F.mean(x, axis=1, keepdims=True)) * F.square(x),
    "cast": lambda x: F.Cast(F.Cast(x * 9, dtype="int32"), dtype="float32"),
    "bigger": lambda x: F.UpSampling(x, scale=2, sample_type="nearest"),
    "rows": lambda x: F.FullyConnected(x, num_hidden=3, flatten=False),
    "dims": lambda x: F.squeeze(F.expand_dims(F.slice_axis(x, axis=3, begin=0, end=1), axis=1), axis=4),
    "product": lambda x: F.dot(F.Flatten(x), F.Variable("kernel_weight", shape=(5, 168)), transpose_b=True),
    "blocked": lambda x: F.BlockGrad(F.minimum(F.maximum(x, 0), 1)),
}


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
        (["--to", "torch"], "expected --to onnx or safetensors, got torch"),
        (["--to", "onnx", "--shape", "data=1,x"], "expected --shape as NAME=LENGTHS"),
        (["--to", "safetensors", "--shape", "data=1,4"], "expected --shape for onnx only"),
    ):
        assert message in feedline("export", net, params, *options, code=2).stderr
    mx.nd.save(str(params), {**arrays, "arg:other": mx.nd.zeros((1,))})
    assert "got other, which it does not have" in feedline("export", net, params, "--to", "onnx", code=1).stderr
