"""Symbols as ONNX files: each of MXNet's operators as ONNX's, for inference.

The batch, the first axis of every input, may have any length: operators see shapes for two lengths of it, and write
lengths that are equal in both. Loss heads are their predictions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from feedline.errors import CompatError
from feedline.mxnet._export.symbol_graphs import (
    HEADS,
    OF_DATA,
    element_types,
    lowered,
    shape_in_batch,
    shapes_of_larger,
    without_label,
)
from feedline.mxnet.base import MXNetError
from feedline.mxnet.symbol._node import variables
from feedline.mxnet.symbol._symbol import Symbol
from feedline.networks import BATCH, Node
from feedline.networks.onnx import onnx_library as library
from feedline.networks.onnx.onnx_writer import Writer


def write_symbol(path: Path, symbol: Symbol, params: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]) -> None:
    """Write a symbol and its parameters as an ONNX file, atomically replacing ``path``.

    Args:
        path: path of the file.
        symbol: the network.
        params: arrays by the names of its arguments and states.
        shapes: shapes of its inputs by name, the batch first. Labels need none.

    Raises:
        CompatError: an operator that ONNX, or this function, does not have. The error names it.
        MXNetError: the parameters or shapes do not fit the symbol, or some are missing.
        StateError: tensors of 2 GiB or more.
    """
    leaves = [node for nodes in variables(symbol.entries) for node in nodes]
    arrays = {node: params[node.name] for node in leaves if node.name in params}
    types = element_types(symbol, leaves, arrays)
    for node in arrays:
        _check_float(types[node], f"`{node.name}`")
    roots, graph_leaves = lowered(symbol, leaves, arrays, types, shapes)
    writer = _SymbolWriter(shapes_of_larger(symbol, leaves, arrays, types, shapes, roots))
    for node in leaves:
        if node in arrays:
            name = writer.constant(arrays[node].asnumpy(), node.name)
        else:
            name = writer.typed(writer.free(node.name), types[node])
            writer.inputs.append(library.describe(name, types[node], [BATCH, *graph_leaves[node].shape[1:]]))
        writer.declare(graph_leaves[node], name)
    outputs = []
    for root, output in zip(roots, symbol.list_outputs(), strict=True):
        result = writer.value(root)
        name = writer.free(output)
        writer.nodes.append(library.node("Identity", [result], [name]))
        outputs.append(library.describe(name, writer.dtype_of(result), writer.lengths_of(root, output)))
    nodes, names = library.keep_used(writer.nodes, [output.name for output in outputs])
    inputs = [entry for entry in writer.inputs if entry.name in names]
    if lacking := [entry.name for entry in inputs if entry.name not in shapes]:
        raise MXNetError(f"expected parameters for {', '.join(lacking)}, or shapes if they are inputs, got neither")
    tensors = [tensor for tensor in writer.initializers if tensor.name in names]
    library.save(path, library.graph(nodes, inputs, outputs, tensors))


class _SymbolWriter(Writer):
    """A writer that knows which lengths depend on the batch.

    Args:
        twins: shapes of nodes for a batch of another length.
    """

    def __init__(self, twins: Mapping[Node, tuple[int, ...]]) -> None:
        super().__init__(OPERATORS, without_label)
        self._twins = twins

    def fit(self, x: str, node: Node) -> str:
        """Reshape a value to the shape of a node.

        Raises:
            CompatError: several lengths depend on the batch.
        """
        pairs = zip(shape_in_batch(node), self._twins[node], strict=True)
        lengths = [length if length == twin else -1 for length, twin in pairs]
        if lengths.count(-1) > 1:
            raise CompatError(f"{node.label}: expected one length that depends on the batch, got several")
        return self("Reshape", x, self.constant(lengths))

    def lengths_of(self, node: Node, name: str) -> list[int | str]:
        """Return the lengths of the axes of an output. One that depends on the batch has a name instead."""
        lengths: list[int | str] = []
        for axis, (length, twin) in enumerate(zip(shape_in_batch(node), self._twins[node], strict=True)):
            other = BATCH if length + 1 == twin else f"{name} axis {axis}"
            lengths.append(length if length == twin else other)
        return lengths

    def length(self, node: Node, axis: int) -> int:
        """Return the length of an axis.

        Raises:
            CompatError: it depends on the batch.
        """
        if shape_in_batch(node)[axis] != self._twins[node][axis]:
            raise CompatError(f"{node.label}: expected a length that does not depend on the batch along axis {axis}")
        return shape_in_batch(node)[axis]


Operator = Callable[[Any, Node], str]


# ---- operators ----------------------------------------------------------------------------------------


def _value(w: _SymbolWriter, node: Node, i: int = 0) -> str:
    return w.value(node.inputs[i])


def _rank(node: Node, i: int = 0) -> int:
    return len(shape_in_batch(node.inputs[i]))


def _unary(op: str, **attributes: Any) -> Operator:
    return lambda w, node: w(op, _value(w, node), **attributes)


def _binary(op: str) -> Operator:
    return lambda w, node: w(op, *w.promote(_value(w, node), _value(w, node, 1)))


def _truth(op: str) -> Operator:
    def write(w: _SymbolWriter, node: Node) -> str:
        a, b = w.promote(_value(w, node), _value(w, node, 1))
        return w.cast(w(op, a, b, dtype="bool"), w.dtype_of(a))

    return write


def _with_number(op: str, reverse: bool = False) -> Operator:
    def write(w: _SymbolWriter, node: Node) -> str:
        x = _value(w, node)
        operands = [x, w.number(node.attributes["p"].scalar, x)]
        return w(op, *reversed(operands) if reverse else operands, dtype=w.dtype_of(x))

    return write


def _reshape(w: _SymbolWriter, node: Node) -> str:
    return w.fit(_value(w, node), node)


def _dense(w: _SymbolWriter, node: Node) -> str:
    p, x, weight = node.attributes["p"], _value(w, node), _value(w, node, 1)
    if p.flatten:
        x = w("Flatten", x, axis=1)
    product = w("MatMul", x, w("Transpose", weight, perm=[1, 0]))
    return product if p.no_bias else w("Add", product, _value(w, node, 2))


def _window(p: Any) -> dict[str, Any]:
    ones, zeros = [1] * len(p.kernel), [0] * len(p.kernel)
    pad = list(p.pad) or zeros
    return {
        "kernel_shape": list(p.kernel),
        "strides": list(p.stride) or ones,
        "dilations": list(p.dilate) or ones,
        "pads": [*pad, *pad],
        "group": p.num_group,
    }


def _convolution(op: str) -> Operator:
    def write(w: _SymbolWriter, node: Node) -> str:
        p = node.attributes["p"]
        settings = _window(p)
        if op == "ConvTranspose":
            if any(p.target_shape):
                raise CompatError(
                    f"{node.label}: expected padding, got target_shape, which ONNX lacks; use pad and adj"
                )
            settings["output_padding"] = list(p.adj) or [0] * len(p.kernel)
        return w(op, *(w.value(child) for child in node.inputs), **settings)

    return write


def _pooling(w: _SymbolWriter, node: Node) -> str:
    p, x = node.attributes["p"], _value(w, node)
    sizes, rank = shape_in_batch(node.inputs[0])[2:], _rank(node) - 2
    if p.global_pool:
        if p.pool_type == "lp":
            return w("GlobalLpPool", x, p=int(p.p_value))
        if p.pool_type == "sum":
            return w("ReduceSum", x, w.constant(list(range(2, rank + 2))), keepdims=1)
        return w("GlobalMaxPool" if p.pool_type == "max" else "GlobalAveragePool", x)
    kernel, stride = list(p.kernel), list(p.stride) or [1] * rank
    before = list(p.pad) or [0] * rank
    count = shape_in_batch(node)[2:]
    reach = zip(count, stride, kernel, sizes, before, strict=True)
    after = [(out - 1) * step + size - length - pad for out, step, size, length, pad in reach]
    settings: dict[str, Any] = {"kernel_shape": kernel, "strides": stride}
    if p.pool_type == "max":
        return w("MaxPool", _padded(w, x, before, after, -math.inf), **settings)
    cells = math.prod(kernel)
    if p.pool_type == "lp":
        power = w.number(p.p_value, x)
        powers = w("Pow", w("Abs", x), power)
        total = w("Mul", w("AveragePool", _padded(w, powers, before, after, 0.0), **settings), w.number(cells, x))
        return w("Pow", total, w.number(1 / p.p_value, x))
    mean = w("AveragePool", _padded(w, x, before, after, 0.0), **settings)
    if p.pool_type == "sum":
        return w("Mul", mean, w.number(cells, x))
    # Cells of the padding count, if they are to, cells beyond it never do: divide by the counted share of each window.
    share = np.ones((1, 1, *sizes), w.dtype_of(x))
    edge = 1.0 if p.count_include_pad else 0.0
    share = np.pad(share, [(0, 0), (0, 0), *((n, n) for n in before)], constant_values=edge)
    more = [b - a for a, b in zip(before, after, strict=True)]
    if share.all() and max(more) <= 0:
        return mean
    counted = w.constant(share, "cells")
    return w("Div", mean, w("AveragePool", _padded(w, counted, [0] * rank, more, 0.0), **settings))


def _padded(w: _SymbolWriter, x: str, before: Sequence[int], after: Sequence[int], value: float) -> str:
    """Pad, or crop by negative amounts, all axes of a value but the first two."""
    if not any((*before, *after)):
        return x
    return w("Pad", x, w.constant([0, 0, *before, 0, 0, *after]), w.number(value, x))


def _activation(w: _SymbolWriter, node: Node) -> str:
    op = {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "softrelu": "Softplus", "softsign": "Softsign"}
    return w(op[node.attributes["p"].act_type], _value(w, node))


def _leaky(w: _SymbolWriter, node: Node) -> str:
    p, x = node.attributes["p"], _value(w, node)
    if p.act_type == "elu":
        return w("Elu", x, alpha=p.slope)
    if p.act_type == "selu":
        return w("Selu", x)
    if p.act_type == "gelu":
        half = w("Erf", w("Mul", x, w.number(math.sqrt(0.5), x)))
        return w("Mul", w("Mul", x, w.number(0.5, x)), w("Add", half, w.number(1, x)))
    if p.act_type == "prelu":
        slope, rank = _value(w, node, 1), _rank(node)
        if rank > 2 and shape_in_batch(node.inputs[1]) != (1,):
            slope = w("Reshape", slope, w.constant([-1, *[1] * (rank - 2)]))
        return w("PRelu", x, slope)
    alpha = (p.lower_bound + p.upper_bound) / 2 if p.act_type == "rrelu" else p.slope
    return w("LeakyRelu", x, alpha=alpha)


def _batch_norm(w: _SymbolWriter, node: Node) -> str:
    p = node.attributes["p"]
    if p.output_mean_var:
        raise CompatError(f"{node.label}: expected one output, got output_mean_var")
    x, gamma, beta, mean, variance = (w.value(child) for child in node.inputs)
    dtype = w.dtype_of(x)
    if p.fix_gamma:
        gamma = w.constant(np.ones(shape_in_batch(node.inputs[1]), dtype), "gamma")
    axis = p.axis % _rank(node)
    order = list(range(_rank(node)))
    order.insert(1, order.pop(axis))  # channels are the second axis of ONNX's
    moved = axis != 1
    data = w("Transpose", x, perm=order) if moved else x
    parameters = [w.cast(name, dtype) for name in (gamma, beta, mean, variance)]
    y = w("BatchNormalization", data, *parameters, epsilon=p.eps)
    return w("Transpose", y, perm=[order.index(i) for i in range(len(order))]) if moved else y


def _l2(w: _SymbolWriter, node: Node) -> str:
    p, x, rank = node.attributes["p"], _value(w, node), _rank(node)
    axes = {"instance": range(1, rank), "channel": range(1, 2), "spatial": range(2, rank)}[p.mode]
    total = w("ReduceSumSquare", x, w.constant(list(axes)), keepdims=1)
    return w("Div", x, w("Sqrt", w("Add", total, w.number(p.eps, x))))


def _layer_norm(w: _SymbolWriter, node: Node) -> str:
    p = node.attributes["p"]
    x, gamma, beta = (w.value(child) for child in node.inputs)
    axis = w.constant([p.axis])
    centred = w("Sub", x, w("ReduceMean", x, axis, keepdims=1))
    variance = w("ReduceMean", w("Mul", centred, centred), axis, keepdims=1)
    y = w("Div", centred, w("Sqrt", w("Add", variance, w.number(p.eps, x))))
    rank = _rank(node)
    wide = w.constant([-1 if i == p.axis % rank else 1 for i in range(rank)])
    return w("Add", w("Mul", y, w("Reshape", gamma, wide)), w("Reshape", beta, wide))


def _embedding(w: _SymbolWriter, node: Node) -> str:
    p = node.attributes["p"]
    rows = w.cast(_value(w, node), "int64")
    low, high = (w.constant(np.array(n, "i8"), "row") for n in (0, p.input_dim - 1))
    weight = _value(w, node, 1)
    return w("Gather", weight, w("Max", w("Min", rows, high), low), dtype=w.dtype_of(weight), axis=0)


def _dropout(w: _SymbolWriter, node: Node) -> str:
    if node.attributes["p"].mode == "always":
        raise CompatError(f"{node.label}: expected dropout in training only, got mode `always`")
    return w("Identity", _value(w, node))


def _softmax(op: str, sign: int = 1) -> Operator:
    def write(w: _SymbolWriter, node: Node) -> str:
        p, x = node.attributes["p"], _value(w, node)
        scale = sign / (p.temperature or 1.0)
        return w(op, x if scale == 1 else w("Mul", x, w.number(scale, x)), axis=p.axis)

    return write


def _softmax_activation(w: _SymbolWriter, node: Node) -> str:
    if node.attributes["p"].mode == "channel":
        return w("Softmax", _value(w, node), axis=1)
    return w.fit(w("Softmax", w("Flatten", _value(w, node), axis=1), axis=1), node)


def _softmax_output(w: _SymbolWriter, node: Node) -> str:
    p, x = node.attributes["p"], _value(w, node)
    if p.multi_output or p.preserve_shape or _rank(node) == 2:
        return w("Softmax", x, axis=1 if p.multi_output else -1)
    return w.fit(w("Softmax", w("Flatten", x, axis=1), axis=1), node.inputs[0])


def _reduce(op: str) -> Operator:
    def write(w: _SymbolWriter, node: Node) -> str:
        p, x, rank = node.attributes["p"], _value(w, node), _rank(node)
        axes = list(range(rank))
        if p.axis:
            named = {axis % rank for axis in p.axis}
            axes = [axis for axis in axes if (axis in named) != p.exclude]
        kind = "ReduceL1" if op == "norm" and p.ord == "1" else "ReduceL2" if op == "norm" else op
        y = w(kind, x, w.constant(axes), keepdims=int(p.keepdims))
        return w("Reshape", y, w.constant([1])) if len(axes) == rank and not p.keepdims else y

    return write


def _transpose(w: _SymbolWriter, node: Node) -> str:
    rank = _rank(node)
    perm = [axis % rank for axis in node.attributes["p"].axes] or list(reversed(range(rank)))
    return w("Transpose", _value(w, node), perm=perm)


def _swap(w: _SymbolWriter, node: Node) -> str:
    p, perm = node.attributes["p"], list(range(_rank(node)))
    perm[p.dim1], perm[p.dim2] = perm[p.dim2], perm[p.dim1]
    return w("Transpose", _value(w, node), perm=perm)


def _concat(w: _SymbolWriter, node: Node) -> str:
    return w("Concat", *w.promote(*(w.value(child) for child in node.inputs)), axis=node.attributes["p"].dim)


def _sum_of_all(w: _SymbolWriter, node: Node) -> str:
    return w("Sum", *w.promote(*(w.value(child) for child in node.inputs)))


def _part(w: _SymbolWriter, node: Node) -> str:
    """Write one part of a `SliceChannel`, the only operator with several outputs that ONNX has."""
    whole = node.inputs[0]
    if whole.op != "mxnet.SliceChannel":
        raise CompatError(f"{whole.label}: expected one output, got several, of which ONNX has no operator")
    return _slice_part(w, whole, node.attributes["index"])


def _slice_part(w: _SymbolWriter, node: Node, index: int = 0) -> str:
    p, rank = node.attributes["p"], _rank(node)
    axis = p.axis % rank
    size = w.length(node.inputs[0], axis) // int(p.num_outputs)
    places = ([index * size], [(index + 1) * size], [axis])
    part = w("Slice", _value(w, node), *(w.constant(numbers) for numbers in places))
    return w("Squeeze", part, w.constant([axis])) if p.squeeze_axis else part


def _slice_axis(w: _SymbolWriter, node: Node) -> str:
    p = node.attributes["p"]
    axis = p.axis % _rank(node)
    begin, end, _ = slice(p.begin, p.end).indices(w.length(node.inputs[0], axis))
    return w("Slice", _value(w, node), *(w.constant([n]) for n in (begin, end, axis)))


def _clip(w: _SymbolWriter, node: Node) -> str:
    p, x = node.attributes["p"], _value(w, node)
    return w("Max", w("Min", x, w.number(p.a_max, x)), w.number(p.a_min, x))


def _check_float(dtype: str, what: str) -> None:
    """Check that something is no float of another width than inputs have, as ONNX does not mix them.

    Raises:
        CompatError: it is.
    """
    if dtype in ("float16", "float64"):
        raise CompatError(f"expected a network that computes with float32, got {dtype} as {what}: cast it first")


def _cast(w: _SymbolWriter, node: Node) -> str:
    dtype = node.attributes["p"].dtype
    _check_float(str(np.dtype(dtype).name), "the result of Cast")
    return w.cast(_value(w, node), dtype)


def _rsqrt(w: _SymbolWriter, node: Node) -> str:
    return w("Reciprocal", w("Sqrt", _value(w, node)))


def _square(w: _SymbolWriter, node: Node) -> str:
    x = _value(w, node)
    return w("Mul", x, x)


def _dot(w: _SymbolWriter, node: Node) -> str:
    p, operands = node.attributes["p"], [_value(w, node), _value(w, node, 1)]
    if _rank(node) != 2 or _rank(node, 1) != 2:
        raise CompatError(f"{node.label}: expected two matrices, got {_rank(node)} and {_rank(node, 1)} axes")
    for i, turned in enumerate((p.transpose_a, p.transpose_b)):
        operands[i] = w("Transpose", operands[i], perm=[1, 0]) if turned else operands[i]
    return w("MatMul", *w.promote(*operands))


def _sampled(w: _SymbolWriter, node: Node) -> str:
    p = node.attributes["p"]
    if p.sample_type != "nearest" or len(node.inputs) > 1:
        raise CompatError(f"{node.label}: expected one image and nearest sampling, got {p.sample_type}")
    scale = np.array([1, 1, p.scale[0], p.scale[-1]], "f4")
    x = _value(w, node)
    nearest = {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    return w("Resize", x, "", w.constant(scale, "scales"), **nearest)


_PAIRS = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "maximum": "Max", "minimum": "Min"}
_TRUTHS = {
    "equal": "Equal",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
    "lesser": "Less",
    "lesser_equal": "LessOrEqual",
}
_UNARY = {
    **{name: name.capitalize() for name in ("abs", "ceil", "cos", "cosh", "erf", "exp", "floor", "log", "relu")},
    **{name: name.capitalize() for name in ("sigmoid", "sign", "sin", "sinh", "softsign", "sqrt", "tan", "tanh")},
    **{f"arc{name}": f"A{name}" for name in ("cos", "cosh", "sin", "sinh", "tan", "tanh")},
    "negative": "Neg",
    "reciprocal": "Reciprocal",
    **dict.fromkeys(("_copy", "BlockGrad", "MakeLoss", "make_loss"), "Identity"),
}
_BY_NAME: dict[str, Operator] = {
    **{name: _unary(op) for name, op in _UNARY.items()},
    **{f"broadcast_{name}": _binary(op) for name, op in _PAIRS.items()},
    **{f"elemwise_{name}": _binary(_PAIRS[name]) for name in ("add", "sub", "mul", "div")},
    **{f"_{name}": _binary(_PAIRS[name]) for name in ("maximum", "minimum")},
    **{f"{prefix}_{name}": _truth(op) for name, op in _TRUTHS.items() for prefix in ("", "broadcast")},
    "_power": _binary("Pow"),
    "broadcast_power": _binary("Pow"),
    "_plus_scalar": _with_number("Add"),
    "_minus_scalar": _with_number("Sub"),
    "_rminus_scalar": _with_number("Sub", reverse=True),
    "_mul_scalar": _with_number("Mul"),
    "_div_scalar": _with_number("Div"),
    "_rdiv_scalar": _with_number("Div", reverse=True),
    "_power_scalar": _with_number("Pow"),
    "_rpower_scalar": _with_number("Pow", reverse=True),
    "_maximum_scalar": _with_number("Max"),
    "_minimum_scalar": _with_number("Min"),
    "Activation": _activation,
    "BatchNorm": _batch_norm,
    "Cast": _cast,
    "Concat": _concat,
    "Convolution": _convolution("Conv"),
    "Deconvolution": _convolution("ConvTranspose"),
    "Dropout": _dropout,
    "Embedding": _embedding,
    "Flatten": _unary("Flatten", axis=1),
    "FullyConnected": _dense,
    "L2Normalization": _l2,
    "LayerNorm": _layer_norm,
    "LeakyReLU": _leaky,
    "Pooling": _pooling,
    "Reshape": _reshape,
    "SliceChannel": _slice_part,
    "SoftmaxActivation": _softmax_activation,
    "SwapAxis": _swap,
    "UpSampling": _sampled,
    "add_n": _sum_of_all,
    "clip": _clip,
    "dot": _dot,
    "expand_dims": _reshape,
    "log_softmax": _softmax("LogSoftmax"),
    "output": _part,
    "rsqrt": _rsqrt,
    "slice_axis": _slice_axis,
    "softmax": _softmax("Softmax"),
    "softmin": _softmax("Softmax", -1),
    "square": _square,
    "squeeze": _reshape,
    "transpose": _transpose,
    **{name: _reduce(f"Reduce{name.capitalize()}") for name in ("max", "mean", "min", "prod", "sum")},
    "norm": _reduce("norm"),
}
OPERATORS: dict[str, Operator] = {
    **{f"mxnet.{name}": operator for name, operator in _BY_NAME.items()},
    **dict.fromkeys((f"{OF_DATA}{name}" for name in HEADS), _unary("Identity")),
    f"{OF_DATA}LogisticRegressionOutput": _unary("Sigmoid"),
    f"{OF_DATA}SoftmaxOutput": _softmax_output,
}
