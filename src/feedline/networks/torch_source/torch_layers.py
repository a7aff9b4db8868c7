"""Layers of `torch.nn` in a graph: products and convolutions with their biases, and the names of layers and blocks.

A layer has its weights as members, so weights that anything else reads stay members of the network.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from feedline.networks import Node
from feedline.networks.compile import tensor_of
from feedline.networks.ops.convolution import CONVOLVE, window
from feedline.networks.torch_source.source_writer import SourceWriter, check_padding, dtype_argument, is_look_up
from feedline.networks.traverse import reads, resolve_alias, topological

# Blocks whose kind does not say which layer they hold.
_CONTAINERS = ("Sequential", "Recurrence", "RecurrenceFrom", "Fold", "UnfoldFrom", "PastValueWindow")


def blocks_of(roots: Sequence[Node]) -> dict[Node, list[Node]]:
    """Return the blocks that each node is in, the innermost first."""
    paths: dict[Node, list[Node]] = {}
    for block in topological(roots):
        if "block" in block.attributes:
            border = frozenset(block.inputs[1:])
            for node in topological(block.inputs[:1], partial(_inside, border)):
                paths.setdefault(node, []).append(block)
    return paths


def _inside(border: Container[Node], node: Node) -> list[Node]:
    return [child for child in node.inputs if child not in border]


def layer_names(roots: Sequence[Node], paths: Mapping[Node, Sequence[Node]]) -> dict[Node, str]:
    """Return names by node: of the block that a weight is in, and of the block or name whose value a node is.

    Blocks within blocks have the names of both. A block without a name has that of its kind, ``dense``.

    Args:
        roots: outputs of the network.
        paths: blocks by node. See `blocks_of`.
    """
    labels = {node: _label(node, paths) for node in paths if node.weights is not None}
    for node in topological(roots):
        target = resolve_alias(node)
        if node is not target and target.weights is None and not target.name:
            label = _label(target, {target: [node], **paths}) if "block" in node.attributes else node.name
            labels.setdefault(target, label)
    return {node: label for node, label in labels.items() if label}


def _label(node: Node, paths: Mapping[Node, Sequence[Node]]) -> str:
    """Return the names of the blocks around a node, the outermost first."""
    block = paths[node][0]
    kind, names = block.attributes["block"], []
    if not block.attributes["instance"] and kind not in _CONTAINERS:
        names.append(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).lower())
    around: Node | None = block
    while around is not None:
        if around.attributes["instance"]:
            names.append(around.attributes["instance"])
        around = next(iter(paths.get(around, ())), None)
    return "_".join(reversed(names))


def find_layers(w: SourceWriter, paths: Mapping[Node, Sequence[Node]]) -> None:
    """Note the products and convolutions that layers of torch compute, with the sums that are their biases.

    Layers of a block with several have the names of their weights, too.
    """
    weights_in: dict[Node, list[Node]] = {}
    layers: dict[Node, tuple[Node | None, Node]] = {}
    for node in w.parts.order:
        if node.op == "times" and _weights_of(node, 1) is not None:
            layers[node] = _bias(w, node, _outputs(node))
        elif node.op == "convolution" and _weights_of(node, 0) is not None:
            layers[node] = _bias(w, node, (node.shape[0], *(1,) * (len(node.shape) - 1)))
    for node, (bias, last) in layers.items():
        weight = _weights_of(node, 1 if node.op == "times" else 0)
        assert weight is not None
        # All that read the weights have to be this layer.
        readers = [layers.get(reader, (None, None))[0] if reader else None for reader in w.parts.readers[weight]]
        alike = all(reader in layers for reader in w.parts.readers[weight]) and set(readers) == {bias}
        if not alike or (bias is not None and _shared(w, bias, layers)):
            continue
        if paths.get(weight):
            weights_in.setdefault(paths[weight][0], []).append(weight)
        if node.op == "times":
            if _is_matrix_of_rows(node):
                w.parts.fused[last] = reads(node)[:1], _linear(node, weight, bias)
        elif len(weight.shape) - 2 in CONVOLVE and len(readers) == 1 and len(weight.shape) == len(node.shape) + 1:
            w.parts.fused[last] = reads(node)[1:], _convolution(node, weight, bias)
    for weights in weights_in.values():
        for weight in dict.fromkeys(weights) if len(set(weights)) > 1 else ():
            w.parts.names_of_layers[weight] = "_".join(filter(None, (w.parts.labels.get(weight), weight.name)))


def _weights_of(node: Node, i: int) -> Node | None:
    child = resolve_alias(node.inputs[i])
    return child if child.weights is not None and child.weights.shape else None


def _outputs(node: Node) -> tuple[int, ...]:
    """Return the last axes of a product, which are the right operand's."""
    right = resolve_alias(node.inputs[1])
    return right.shape[len(right.shape) - node.attributes.get("output_rank", 1) :]


def _is_matrix_of_rows(node: Node) -> bool:
    left, right = reads(node)
    inner = len(right.shape) - node.attributes.get("output_rank", 1)
    return left.weights is None and 1 <= inner < len(right.shape)


def _bias(w: SourceWriter, node: Node, shape: tuple[int, ...]) -> tuple[Node | None, Node]:
    """Return the bias of a layer, or None, and the node whose value the layer computes."""
    if len(w.parts.readers[node]) != 1 or (total := w.parts.readers[node][0]) is None or total.op != "plus":
        return None, node
    operands = [child for child in reads(total) if child is not node]
    weights, layer = operands[0].weights if operands else None, _weights_of(node, 1 if node.op == "times" else 0)
    if weights is None or layer is None or layer.weights is None or total.shape != node.shape:
        return None, node
    if weights.shape != shape or (weights.trains, weights.dtype) != (layer.weights.trains, layer.weights.dtype):
        return None, node
    if is_look_up(node) and reads(node)[0].sparse:
        return None, node  # an embedding has no bias
    return operands[0], total


def _shared(w: SourceWriter, bias: Node, layers: dict[Node, tuple[Node | None, Node]]) -> bool:
    sums = {last for partner, last in layers.values() if partner is bias}
    return any(reader not in sums for reader in w.parts.readers[bias])


def values(*nodes: Node) -> list[torch.Tensor]:
    """Return the tensors of leaves."""
    return [tensor_of(node.weights).detach() for node in nodes if node.weights is not None]


def shared_layer(w: SourceWriter, key: Any, make: Callable[[], str]) -> str:
    """Return the layer with these weights, which is added at its first use."""
    if key not in w.parts.layers:
        w.parts.layers[key] = make()
    return w.parts.layers[key]


def _name(w: SourceWriter, weight: Node, kind: str) -> str:
    return w.parts.names_of_layers.get(weight) or w.parts.labels.get(weight) or kind


def _linear(node: Node, weight: Node, bias: Node | None) -> Callable[[SourceWriter, Node], str]:
    left, outputs = reads(node)[0], _outputs(node)
    inner = len(weight.shape) - len(outputs)
    trains = weight.weights is not None and weight.weights.trains

    def write(w: SourceWriter, last: Node) -> str:
        x = w.value(left)
        if left.sparse and is_look_up(node):
            rows, width = weight.shape

            def embedding() -> str:
                construction = f"nn.Embedding({rows}, {width}{dtype_argument(weight.dtype)})"
                return w.add_layer(_name(w, weight, "embedding"), construction, {"weight": values(weight)[0]}, trains)

            return w.call("look_up", x, shared_layer(w, weight, embedding) + ".weight")

        def linear() -> str:
            matrix = values(weight)[0].flatten(inner).flatten(0, inner - 1).t()
            tensors = {"weight": matrix.contiguous()}
            if bias is not None:
                tensors["bias"] = values(bias)[0].flatten()
            sizes = f"{matrix.shape[1]}, {matrix.shape[0]}"
            construction = f"nn.Linear({sizes}{'' if bias else ', bias=False'}{dtype_argument(weight.dtype)})"
            return w.add_layer(_name(w, weight, "linear"), construction, tensors, trains)

        rows_of_x = f"{x}.flatten(-{inner})" if inner > 1 else x
        y = f"{shared_layer(w, weight, linear)}({rows_of_x})"
        return y if len(outputs) == 1 else f"{y}.unflatten(-1, {tuple(outputs)})"

    return write


def _convolution(node: Node, weight: Node, bias: Node | None) -> Callable[[SourceWriter, Node], str]:
    data, get, rank = reads(node)[1], node.attributes, len(weight.shape) - 2
    trains = weight.weights is not None and weight.weights.trains

    def write(w: SourceWriter, last: Node) -> str:
        settings, pads = convolution_settings(node, weight.shape, data.shape)

        def convolution() -> str:
            filters, channels = weight.shape[0], weight.shape[1] * get["groups"]
            tensors = {"weight": values(weight)[0]}
            if bias is not None:
                tensors["bias"] = values(bias)[0].flatten()
            construction = (
                f"nn.Conv{rank}d({filters_and(channels, filters, weight.shape[2:])}{settings}"
                f"{'' if bias else ', bias=False'}{dtype_argument(weight.dtype)})"
            )
            return w.add_layer(_name(w, weight, "convolution"), construction, tensors, trains)

        layer = shared_layer(w, weight, convolution)
        return over_pictures(w, last, data, lambda x: f"{layer}({padded(x, pads)})")

    return write


def filters_and(channels: int, filters: int, size: Iterable[int]) -> str:
    """Return the first arguments of a convolution's layer."""
    return f"{channels}, {filters}, {tuple(size)}"


def convolution_settings(
    node: Node, kernel: Sequence[int], data: Sequence[int]
) -> tuple[str, Sequence[tuple[int, int]]]:
    """Return the arguments of a convolution that differ from torch's defaults, and the padding before it.

    Args:
        node: convolution.
        kernel: shape (filters, channels, *window).
        data: shape (channels, *sizes).

    Raises:
        CompatError: a free length on which the padding depends.
    """
    get, rank = node.attributes, len(data) - 1
    strides, dilation, pad = (tuple(get[key]) for key in ("strides", "dilation", "pad"))
    if len(strides) != rank:  # as many as the kernel has axes, one of which is not for filters
        strides, dilation, pad = (chosen[:1] * rank for chosen in (strides, dilation, pad))
    check_padding(node, data[1:], strides, pad)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel[2:], dilation, strict=True)]
    _, pads = window(data[1:], reach, strides, pad)
    symmetric = all(before == after >= 0 for before, after in pads)
    padding = tuple(before for before, _ in pads)
    text = f", stride={strides}" if set(strides) != {1} else ""
    text += f", padding={padding}" if symmetric and any(padding) else ""
    text += f", dilation={dilation}" if set(dilation) != {1} else ""
    text += f", groups={get['groups']}" if get["groups"] != 1 else ""
    return text, [] if symmetric else pads


def padded(x: str, pads: Sequence[tuple[int, int]], value: str = "") -> str:
    """Return an expression padded, or cropped by negative amounts, along its last axes."""
    if not any(n for pair in pads for n in pair):
        return x
    flat = tuple(n for pair in reversed(pads) for n in pair)
    return f"functional.pad({x}, {flat}{f', value={value}' if value else ''})"


def over_pictures(w: SourceWriter, node: Node, data: Node, write: Callable[[str], str]) -> str:
    """Apply an expression to a minibatch of pictures, whatever the dynamic axes of the data.

    Args:
        w: writer.
        node: node of the result.
        data: node of the pictures.
        write: function of the pictures' expression, (batch, channels, *sizes), that returns the result's.
    """
    x, leading = w.value(data), w.leading(data)
    if leading == 1:
        return write(x)
    if leading == 0:
        return f"{write(f'{x}[None]')}[0]"
    return f"{write(f'{x}.flatten(0, 1)')}.unflatten(0, {x}.shape[:2])"
