"""Symbols as source of torch: each of MXNet's operators as an expression, and its layers as those of `torch.nn`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

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
from feedline.networks import Node, Weights, replace
from feedline.networks.node import parameter_node
from feedline.networks.torch_source.module_file import write_module
from feedline.networks.torch_source.source_writer import ModuleParts, SourceWriter, dtype_argument
from feedline.networks.torch_source.torch_layers import padded, shared_layer, values
from feedline.networks.traverse import element_type, reads, topological


def write_torch(
    path: Path, symbol: Symbol, params: Mapping[str, Any], shapes: Mapping[str, Sequence[int]], origin: str
) -> float:
    """Write a symbol as ``path``, a module of torch, and its parameters next to it. See `write_module`.

    Args:
        path: path of the source.
        symbol: the network.
        params: arrays by the names of its arguments and states.
        shapes: shapes of its inputs by name, the batch first. Labels need none.
        origin: name of the symbol's file.

    Returns:
        The largest difference of an output on random inputs, relative to its largest value or 1.

    Raises:
        CompatError: an operator that torch, or this function, does not have, or an output that differs. The error names
            it.
        MXNetError: the parameters or shapes do not fit the symbol, or some are missing.
    """
    leaves = [node for nodes in variables(symbol.entries) for node in nodes]
    arrays = {node: params[node.name] for node in leaves if node.name in params}
    types = element_types(symbol, leaves, arrays)
    roots, graph_leaves = lowered(symbol, leaves, arrays, types, shapes)
    twins = shapes_of_larger(symbol, leaves, arrays, types, shapes, roots)
    states = set(symbol.list_auxiliary_states())
    weights = {
        graph_leaves[node]: _leaf(array.tensor, node.name, node.name not in states) for node, array in arrays.items()
    }
    order = topological(roots)
    roots = replace(roots, weights)
    # The new graph has the same nodes in the same order, with weights in place of inputs.
    twins = {new: twins[old] for new, old in zip(topological(roots), order, strict=True)}
    w = _SymbolSource(roots, twins)
    for root in roots:
        w.value(root)
    named = {graph_leaves[node]: node.name for node in leaves if node not in arrays}
    inputs = [node for node in named if node in w.inputs]
    if lacking := [named[node] for node in inputs if named[node] not in shapes]:
        raise MXNetError(f"expected parameters for {', '.join(lacking)}, or shapes if they are inputs, got neither")
    w = _SymbolSource(roots, twins)
    return write_module(path, w, roots, inputs, origin)


def _leaf(tensor: Any, name: str, trains: bool) -> Node:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return parameter_node(Weights(tuple(tensor.shape), lambda shape: tensor, dtype, trains, keeps=not trains), name)


class _SymbolSource(SourceWriter):
    """A writer that knows which lengths depend on the batch.

    Args:
        roots: outputs of the network.
        twins: shapes of nodes for a batch of another length.

    Attributes:
        inputs: inputs that have been read.
    """

    def __init__(self, roots: Sequence[Node], twins: Mapping[Node, tuple[int, ...]]) -> None:
        super().__init__(OPERATORS, ModuleParts(roots, {}), without_label)
        self.inputs: set[Node] = set()
        self._twins = twins

    def _add_leaf(self, node: Node) -> None:
        if node.op == "input":
            self.inputs.add(node)
            self.declare(node, self.free(node.name))
        else:
            super()._add_leaf(node)

    def fit(self, x: str, node: Node) -> str:
        """Reshape a value to the shape of a node.

        Raises:
            CompatError: several lengths depend on the batch.
        """
        pairs = zip(shape_in_batch(node), self._twins[node], strict=True)
        lengths = [length if length == twin else -1 for length, twin in pairs]
        if lengths.count(-1) > 1:
            raise CompatError(f"{node.label}: expected one length that depends on the batch, got several")
        return f"{x}.reshape({', '.join(map(str, lengths)) or '()'})"

    def shape_of(self, node: Node) -> list[str]:
        """Return the lengths of all axes. One that depends on the batch is ``batch``, or ``any``."""
        shape = shape_in_batch(node)
        larger = self._twins.get(node, shape)  # the data has other nodes than its symbol
        names = ((str(a), "batch")[b - a] if b - a < 2 else "any" for a, b in zip(shape, larger, strict=True))
        return list(names)

    def length(self, node: Node, axis: int) -> int:
        """Return the length of an axis.

        Raises:
            CompatError: it depends on the batch.
        """
        if shape_in_batch(node)[axis] != self._twins[node][axis]:
            raise CompatError(f"{node.label}: expected a length that does not depend on the batch along axis {axis}")
        return shape_in_batch(node)[axis]

    def has_layer(self, node: Node) -> bool:
        """Return whether all that read the weights of a node are layers like it, which can be one layer of torch."""
        return all(
            weight.weights is not None and all(_alike(reader, node) for reader in self.parts.readers[weight])
            for weight in reads(node)[1:]
        )

    def layer(self, node: Node, construction: str, tensors: Mapping[str, torch.Tensor]) -> str:
        """Return the layer of a node, shared with nodes that read the same weights.

        Raises:
            CompatError: something else reads a weight, too.
        """
        weights = reads(node)[1:]
        if not self.has_layer(node):
            labels = ", ".join(weight.label for weight in weights)
            raise CompatError(
                f"{node.label}: expected weights that only such layers read, got {labels}; write the layer by hand"
            )
        return shared_layer(self, tuple(weights), lambda: self.add_layer(node.name, construction, tensors))


def _alike(reader: Node | None, node: Node) -> bool:
    """Return whether a reader of a node's weights is the same operation with the same weights and settings."""
    if reader is None or reader.op != node.op or reads(reader)[1:] != reads(node)[1:]:
        return False
    return bool(reader.attributes["p"] == node.attributes["p"])


Operator = Callable[[Any, Node], str]


# ---- operators ----------------------------------------------------------------------------------------


def _rank(node: Node, i: int = 0) -> int:
    return len(shape_in_batch(node.inputs[i]))


def _of(template: str) -> Operator:
    """Return an operator that puts the values of the operands, ``{0}``, in an expression."""
    return lambda w, node: template.format(*(w.value(child) for child in node.inputs))


def _truth(sign: str) -> Operator:
    return lambda w, node: f"({w.value(node.inputs[0])} {sign} {w.value(node.inputs[1])}).float()"


def _with_number(template: str) -> Operator:
    """Return an operator of the first operand, ``{0}``, and the number among the settings, ``{1}``."""

    def write(w: _SymbolSource, node: Node) -> str:
        number = repr(float(node.attributes["p"].scalar))
        return template.format(w.value(node.inputs[0]), f"({number})" if number.startswith("-") else number)

    return write


def _reshape(w: _SymbolSource, node: Node) -> str:
    return w.fit(w.value(node.inputs[0]), node)


def _tensors(*nodes: Node) -> dict[str, torch.Tensor]:
    return dict(zip(("weight", "bias"), values(*nodes), strict=False))


def _dtype(leaf: Node) -> str:
    return dtype_argument(element_type(leaf))


def _dense(w: _SymbolSource, node: Node) -> str:
    p, weights = node.attributes["p"], reads(node)[1:]
    x = w.value(node.inputs[0]) + (".flatten(1)" if p.flatten and _rank(node) > 2 else "")
    if not w.has_layer(node):
        return f"functional.linear({', '.join([x, *map(w.value, weights)])})"
    outputs, width = shape_in_batch(weights[0])
    bias = ", bias=False" if p.no_bias else ""
    layer = w.layer(node, f"nn.Linear({width}, {outputs}{bias}{_dtype(weights[0])})", _tensors(*weights))
    return f"{layer}({x})"


def _embedding(w: _SymbolSource, node: Node) -> str:
    p, (indices, weight) = node.attributes["p"], reads(node)
    w.parts.limits[indices] = p.input_dim
    rows = f"{w.value(node.inputs[0])}.long()"
    if not w.has_layer(node):
        return f"functional.embedding({rows}, {w.value(weight)})"
    layer = w.layer(node, f"nn.Embedding({p.input_dim}, {p.output_dim}{_dtype(weight)})", _tensors(weight))
    return f"{layer}({rows})"


def _convolution(kind: str) -> Operator:
    def write(w: _SymbolSource, node: Node) -> str:
        p, weights = node.attributes["p"], reads(node)[1:]
        rank = len(p.kernel)
        ones, zeros = (1,) * rank, (0,) * rank
        channels = shape_in_batch(node.inputs[0])[1]
        arguments = f", stride={tuple(p.stride)}" if tuple(p.stride or ones) != ones else ""
        arguments += f", padding={tuple(p.pad)}" if tuple(p.pad or zeros) != zeros else ""
        if kind == "ConvTranspose":
            if any(p.target_shape):
                raise CompatError(f"{node.label}: expected padding, got target_shape; use pad and adj")
            arguments += f", output_padding={tuple(p.adj)}" if any(p.adj) else ""
        arguments += f", dilation={tuple(p.dilate)}" if tuple(p.dilate or ones) != ones else ""
        arguments += f", groups={p.num_group}" if p.num_group != 1 else ""
        x = w.value(node.inputs[0])
        if not w.has_layer(node):
            function = {"Conv": "conv", "ConvTranspose": "conv_transpose"}[kind]
            return f"functional.{function}{rank}d({', '.join([x, *map(w.value, weights)])}{arguments})"
        arguments = f"{channels}, {p.num_filter}, {tuple(p.kernel)}{arguments}{', bias=False' if p.no_bias else ''}"
        layer = w.layer(node, f"nn.{kind}{rank}d({arguments}{_dtype(weights[0])})", _tensors(*weights))
        return f"{layer}({x})"

    return write


def _pooling(w: _SymbolSource, node: Node) -> str:
    p, x = node.attributes["p"], w.value(node.inputs[0])
    sizes, rank = shape_in_batch(node.inputs[0])[2:], _rank(node) - 2
    dims = tuple(range(2, rank + 2))
    if p.global_pool and p.pool_type != "lp":
        how = {"max": "amax", "avg": "mean", "sum": "sum"}[p.pool_type]
        return f"{x}.{how}({dims}, keepdim=True)"
    kernel = sizes if p.global_pool else tuple(p.kernel)
    stride = (1,) * rank if p.global_pool else tuple(p.stride) or (1,) * rank
    before = (0,) * rank if p.global_pool else tuple(p.pad) or (0,) * rank
    reach = zip(shape_in_batch(node)[2:], stride, kernel, sizes, before, strict=True)
    after = [(out - 1) * step + size - length - pad for out, step, size, length, pad in reach]
    pads = list(zip(before, after, strict=True))
    settings = f"{kernel}, {stride}" if stride != kernel else f"{kernel}"
    # Negative padding crops cells that no window covers, as torch does itself.
    plain = all(-step < b <= a <= k // 2 for (a, b), step, k in zip(pads, stride, kernel, strict=True))
    if p.pool_type == "max":
        if plain and any(before):
            return f"functional.max_pool{rank}d({x}, {kernel}, {stride}, {before})"
        wide = x if plain else padded(x, pads, "-torch.inf")
        return f"functional.max_pool{rank}d({wide}, {settings})"
    average, cells = f"functional.avg_pool{rank}d", math.prod(kernel)
    if p.pool_type == "lp":
        power = float(p.p_value)
        wide = padded(f"({x}.abs() ** {power})", pads)
        return f"({average}({wide}, {settings}) * {cells}) ** {1 / power}"
    mean = f"{average}({padded(x, pads)}, {settings})"
    if p.pool_type == "sum":
        return f"{mean} * {cells}"
    # Cells of the padding count, if they are to, cells beyond it never do: divide by the counted share of each window.
    beyond = [b - a for a, b in pads]
    if p.count_include_pad and max(beyond) <= 0:
        return mean
    if not any(before) and max(beyond) <= 0:
        return mean
    ones = f"torch.ones_like({x}[:1, :1])"
    if p.count_include_pad:
        ones = padded(padded(ones, [(n, n) for n in before], "1.0"), [(0, n) for n in beyond])
    else:
        ones = padded(ones, pads)
    share = w.assign("share", f"{average}({ones}, {settings})")
    return f"{mean} / {share}"


def _activation(w: _SymbolSource, node: Node) -> str:
    functions = {"softrelu": "functional.softplus", "softsign": "functional.softsign"}
    kind = node.attributes["p"].act_type
    return f"{functions.get(kind, f'torch.{kind}')}({w.value(node.inputs[0])})"


def _leaky(w: _SymbolSource, node: Node) -> str:
    p, x = node.attributes["p"], w.value(node.inputs[0])
    if p.act_type in ("selu", "gelu"):
        return f"functional.{p.act_type}({x})"
    if p.act_type == "elu":
        return f"functional.elu({x}, {float(p.slope)})"
    if p.act_type == "prelu":
        (slope,) = reads(node)[1:]
        count = math.prod(shape_in_batch(slope))
        layer = w.layer(node, f"nn.PReLU({count}{_dtype(slope)})", {"weight": values(slope)[0].flatten()})
        return f"{layer}({x})"
    slope = (p.lower_bound + p.upper_bound) / 2 if p.act_type == "rrelu" else p.slope
    return f"functional.leaky_relu({x}, {float(slope)})"


def _batch_norm(w: _SymbolSource, node: Node) -> str:
    p, weights, rank = node.attributes["p"], reads(node)[1:], _rank(node)
    if p.output_mean_var:
        raise CompatError(f"{node.label}: expected one output, got output_mean_var; leave it out")
    gamma, beta, mean, variance = values(*weights)
    tensors = {
        "weight": torch.ones_like(gamma) if p.fix_gamma else gamma,
        "bias": beta,
        "running_mean": mean,
        "running_var": variance,
        "num_batches_tracked": torch.tensor(0),
    }
    kind = {4: 2, 5: 3}.get(rank, 1)
    momentum = round(1 - p.momentum, 12)
    construction = f"nn.BatchNorm{kind}d({len(gamma)}, eps={float(p.eps)}, momentum={momentum}{_dtype(weights[0])})"
    layer = w.layer(node, construction, tensors)
    if p.fix_gamma:
        w.parts.members[f"{layer}.weight"] = f"{layer}.weight.requires_grad_(False)  # fix_gamma"
    axis, x = p.axis % rank, w.value(node.inputs[0])
    # torch's layers have the channels in the second axis.
    return f"{layer}({x})" if axis == 1 else f"{layer}({x}.movedim({axis}, 1)).movedim(1, {axis})"


def _wide(w: _SymbolSource, leaf: Node, axis: int, rank: int) -> str:
    return f"{w.value(leaf)}.reshape({', '.join('-1' if i == axis % rank else '1' for i in range(rank))})"


def _layer_norm(w: _SymbolSource, node: Node) -> str:
    p, ndim = node.attributes["p"], _rank(node)
    x, gamma, beta = w.value(node.inputs[0]), *reads(node)[1:]
    axis = p.axis % ndim
    if axis == ndim - 1:
        construction = f"nn.LayerNorm({len(values(gamma)[0])}, eps={float(p.eps)}{_dtype(gamma)})"
        layer = w.layer(node, construction, _tensors(gamma, beta))
        return f"{layer}({x})"
    centred = w.assign("centred", f"{x} - {x}.mean({axis}, keepdim=True)")
    scaled = w.assign(
        "scaled", f"{centred} * torch.rsqrt({centred}.square().mean({axis}, keepdim=True) + {float(p.eps)})"
    )
    return f"{scaled} * {_wide(w, gamma, axis, ndim)} + {_wide(w, beta, axis, ndim)}"


def _l2(w: _SymbolSource, node: Node) -> str:
    p, x, rank = node.attributes["p"], w.value(node.inputs[0]), _rank(node)
    axes = {"instance": range(1, rank), "channel": range(1, 2), "spatial": range(2, rank)}[p.mode]
    return f"{x} / torch.sqrt({x}.square().sum({tuple(axes)}, keepdim=True) + {float(p.eps)})"


def _dropout(w: _SymbolSource, node: Node) -> str:
    p = node.attributes["p"]
    if p.mode == "always" or p.axes:
        raise CompatError(
            f"{node.label}: expected dropout of elements in training only, got mode `{p.mode}`, axes {p.axes}"
        )
    layer = w.add_layer(node.name, f"nn.Dropout({float(p.p)})", {})
    return f"{layer}({w.value(node.inputs[0])})"


def _softmax(function: str, sign: str = "") -> Operator:
    def write(w: _SymbolSource, node: Node) -> str:
        p, x = node.attributes["p"], w.value(node.inputs[0])
        scaled = f"{sign}{x}" + (f" / {float(p.temperature)}" if p.temperature not in (None, 1.0) else "")
        return f"torch.{function}({scaled}, {p.axis})"

    return write


def _softmax_activation(w: _SymbolSource, node: Node) -> str:
    x = w.value(node.inputs[0])
    if node.attributes["p"].mode == "channel":
        return f"torch.softmax({x}, 1)"
    return f"torch.softmax({x}.flatten(1), 1)" + (f".reshape({x}.shape)" if _rank(node) > 2 else "")


def _softmax_output(w: _SymbolSource, node: Node) -> str:
    p, x = node.attributes["p"], w.value(node.inputs[0])
    if p.multi_output or p.preserve_shape or _rank(node) == 2:
        return f"torch.softmax({x}, {1 if p.multi_output else -1})"
    return f"torch.softmax({x}.flatten(1), 1).reshape({x}.shape)"


def _reduce(function: str) -> Operator:
    def write(w: _SymbolSource, node: Node) -> str:
        p, x, rank = node.attributes["p"], w.value(node.inputs[0]), _rank(node)
        axes = list(range(rank))
        if p.axis:
            named = {axis % rank for axis in p.axis}
            axes = [axis for axis in axes if (axis in named) != p.exclude]
        if function == "prod":
            for axis in axes:
                x = f"{x}.prod({axis}, keepdim=True)"
            y = x if p.keepdims else f"{x}.squeeze({tuple(axes)})"
        else:
            before = ".abs()" if function == "norm" and p.ord == "1" else ".square()" if function == "norm" else ""
            how = {"max": "amax", "min": "amin", "norm": "sum"}.get(function, function)
            y = f"{x}{before}.{how}({tuple(axes)}{', keepdim=True' if p.keepdims else ''})"
            y += ".sqrt()" if function == "norm" and p.ord != "1" else ""
        return f"{y}.reshape(1)" if len(axes) == rank and not p.keepdims else y

    return write


def _transpose(w: _SymbolSource, node: Node) -> str:
    rank = _rank(node)
    order = [axis % rank for axis in node.attributes["p"].axes] or list(reversed(range(rank)))
    return f"{w.value(node.inputs[0])}.permute({', '.join(map(str, order))})"


def _swap(w: _SymbolSource, node: Node) -> str:
    p = node.attributes["p"]
    return f"{w.value(node.inputs[0])}.transpose({p.dim1}, {p.dim2})"


def _concat(w: _SymbolSource, node: Node) -> str:
    return f"torch.cat([{', '.join(w.value(child) for child in node.inputs)}], {node.attributes['p'].dim})"


def _part(w: _SymbolSource, node: Node) -> str:
    """Write one part of a `SliceChannel`, the only operator with several outputs here."""
    whole = node.inputs[0]
    if whole.op != "mxnet.SliceChannel":
        raise CompatError(f"{whole.label}: expected one output, got several; write the operator by hand")
    return _slice_part(w, whole, node.attributes["index"])


def _slice_part(w: _SymbolSource, node: Node, index: int = 0) -> str:
    p, rank = node.attributes["p"], _rank(node)
    axis = p.axis % rank
    size = w.length(node.inputs[0], axis) // int(p.num_outputs)
    part = f"{w.value(node.inputs[0])}.narrow({axis}, {index * size}, {size})"
    return f"{part}.squeeze({axis})" if p.squeeze_axis else part


def _several(w: _SymbolSource, node: Node) -> str:
    """Return the operand: each reader takes its own part of it."""
    return _slice_part(w, node) if int(node.attributes["p"].num_outputs) == 1 else w.value(node.inputs[0])


def _slice_axis(w: _SymbolSource, node: Node) -> str:
    p = node.attributes["p"]
    axis = p.axis % _rank(node)
    begin, end, _ = slice(p.begin, p.end).indices(w.length(node.inputs[0], axis))
    return f"{w.value(node.inputs[0])}.narrow({axis}, {begin}, {end - begin})"


def _clip(w: _SymbolSource, node: Node) -> str:
    p = node.attributes["p"]
    return f"{w.value(node.inputs[0])}.clamp({float(p.a_min)}, {float(p.a_max)})"


def _cast(w: _SymbolSource, node: Node) -> str:
    return f"{w.value(node.inputs[0])}.to(torch.{np.dtype(node.attributes['p'].dtype).name})"


def _dot(w: _SymbolSource, node: Node) -> str:
    p = node.attributes["p"]
    if _rank(node) != 2 or _rank(node, 1) != 2:
        raise CompatError(f"{node.label}: expected two matrices, got {_rank(node)} and {_rank(node, 1)} axes")
    a, b = (w.value(child) for child in node.inputs)
    return f"{a}{'.T' if p.transpose_a else ''} @ {b}{'.T' if p.transpose_b else ''}"


def _sampled(w: _SymbolSource, node: Node) -> str:
    p = node.attributes["p"]
    if p.sample_type != "nearest" or len(node.inputs) > 1:
        raise CompatError(f"{node.label}: expected one image and nearest sampling, got {p.sample_type}")
    return f"functional.interpolate({w.value(node.inputs[0])}, scale_factor={(float(p.scale[0]), float(p.scale[-1]))})"


_PAIRS = {"add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}", "power": "{0} ** {1}"}
_CHOICES = {"maximum": "torch.maximum({0}, {1})", "minimum": "torch.minimum({0}, {1})"}
_TRUTHS = {"equal": "==", "greater": ">", "greater_equal": ">=", "lesser": "<", "lesser_equal": "<="}
_FUNCTIONS = "abs ceil cos cosh erf exp floor log relu rsqrt sigmoid sign sin sinh sqrt square tan tanh reciprocal"
_BY_NAME: dict[str, Operator] = {
    **{name: _of(f"torch.{name}({{0}})") for name in _FUNCTIONS.split()},
    **{f"arc{name}": _of(f"torch.a{name}({{0}})") for name in ("cos", "cosh", "sin", "sinh", "tan", "tanh")},
    "softsign": _of("functional.softsign({0})"),
    "negative": _of("-{0}"),
    **dict.fromkeys(("_copy", "MakeLoss", "make_loss"), _of("{0}")),
    "BlockGrad": _of("{0}.detach()"),
    **{f"broadcast_{name}": _of(text) for name, text in (_PAIRS | _CHOICES).items()},
    **{f"elemwise_{name}": _of(_PAIRS[name]) for name in ("add", "sub", "mul", "div")},
    **{f"_{name}": _of(text) for name, text in _CHOICES.items()},
    "_power": _of(_PAIRS["power"]),
    **{f"{prefix}_{name}": _truth(sign) for name, sign in _TRUTHS.items() for prefix in ("", "broadcast")},
    "_plus_scalar": _with_number("{0} + {1}"),
    "_minus_scalar": _with_number("{0} - {1}"),
    "_rminus_scalar": _with_number("{1} - {0}"),
    "_mul_scalar": _with_number("{0} * {1}"),
    "_div_scalar": _with_number("{0} / {1}"),
    "_rdiv_scalar": _with_number("{1} / {0}"),
    "_power_scalar": _with_number("{0} ** {1}"),
    "_rpower_scalar": _with_number("{1} ** {0}"),
    "_maximum_scalar": _with_number("{0}.clamp(min={1})"),
    "_minimum_scalar": _with_number("{0}.clamp(max={1})"),
    "Activation": _activation,
    "BatchNorm": _batch_norm,
    "Cast": _cast,
    "Concat": _concat,
    "Convolution": _convolution("Conv"),
    "Deconvolution": _convolution("ConvTranspose"),
    "Dropout": _dropout,
    "Embedding": _embedding,
    "Flatten": lambda w, node: f"{w.value(node.inputs[0])}" + (".flatten(1)" if _rank(node) > 1 else "[:, None]"),
    "FullyConnected": _dense,
    "L2Normalization": _l2,
    "LayerNorm": _layer_norm,
    "LeakyReLU": _leaky,
    "Pooling": _pooling,
    "Reshape": _reshape,
    "SliceChannel": _several,
    "SoftmaxActivation": _softmax_activation,
    "SwapAxis": _swap,
    "UpSampling": _sampled,
    "add_n": lambda w, node: " + ".join(w.value(child) for child in node.inputs),
    "clip": _clip,
    "dot": _dot,
    "expand_dims": _reshape,
    "log_softmax": _softmax("log_softmax"),
    "output": _part,
    "slice_axis": _slice_axis,
    "softmax": _softmax("softmax"),
    "softmin": _softmax("softmax", "-"),
    "squeeze": _reshape,
    "transpose": _transpose,
    **{name: _reduce(name) for name in ("max", "mean", "min", "norm", "prod", "sum")},
}
OPERATORS: dict[str, Operator] = {
    **{f"mxnet.{name}": operator for name, operator in _BY_NAME.items()},
    **dict.fromkeys((f"{OF_DATA}{name}" for name in HEADS), _of("{0}")),
    f"{OF_DATA}LogisticRegressionOutput": _of("torch.sigmoid({0})"),
    f"{OF_DATA}SoftmaxOutput": _softmax_output,
}
