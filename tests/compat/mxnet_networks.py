"""Networks of MXNet for files of other libraries: their files with drawn parameters, data, and results."""

from __future__ import annotations

import json

import numpy as np

import feedline.mxnet as mx

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


def block(data, filters, name, stride=1):
    """A unit of a face network: normalised first, PReLU, a shortcut."""
    y = F.BatchNorm(data, fix_gamma=False, eps=2e-5, name=f"{name}_bn1")
    y = F.Convolution(y, num_filter=filters, kernel=(3, 3), pad=(1, 1), no_bias=True, name=f"{name}_conv1")
    y = F.LeakyReLU(F.BatchNorm(y, name=f"{name}_bn2"), act_type="prelu", name=f"{name}_relu")
    y = F.Convolution(y, num_filter=filters, kernel=(3, 3), stride=(stride, stride), pad=(1, 1), name=f"{name}_conv2")
    shortcut = F.Convolution(data, num_filter=filters, kernel=(1, 1), stride=(stride, stride), name=f"{name}_sc")
    return y + shortcut


def face():
    """As InsightFace's: pixels are scaled in the network, the embedding is a normalised layer."""
    x = (F.Variable("data") - 127.5) * 0.0078125
    y = block(block(x, 8, "a", 2), 16, "b", 2)
    y = F.Dropout(F.BatchNorm(y, fix_gamma=False, name="bn"), p=0.4)
    y = F.FullyConnected(y, num_hidden=12, name="pre_fc1")
    return F.L2Normalization(F.BatchNorm(y, eps=2e-5, name="fc1"))


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
