"""Conversion of a symbol to a graph of `feedline.networks`, which torch runs.

MXNet's shapes include the batch axis, first, so nodes have all axes in their shapes and no dynamic axes. Each operator
is declared once as the operation ``mxnet.NAME``, with its settings as an attribute. Several outputs are a tuple, from
which ``mxnet.output`` takes one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from feedline.mxnet.base import MXNetError
from feedline.mxnet.symbol._infer import Inferred
from feedline.mxnet.symbol._node import Entry, Node, topological, within
from feedline.mxnet.symbol._operator import OPERATORS, Operator
from feedline.networks import Node as GraphNode
from feedline.networks import apply
from feedline.networks.node import input_node
from feedline.networks.ops.align import one_of_several
from feedline.networks.packed_minibatch import PackedBatch
from feedline.networks.registry import declare, no_axes
from feedline.networks.shapes import declared_shape


def lower(
    entries: Sequence[Entry], shapes: Inferred, types: Mapping[Node, str]
) -> tuple[list[GraphNode], dict[Node, GraphNode]]:
    """Return graph nodes of the outputs, and the input leaf of each variable.

    Args:
        entries: outputs of a symbol.
        shapes: shapes of all nodes below them, all known.
        types: names of element types of the variables.

    Raises:
        MXNetError: a hidden output, which only files contain.
    """
    nodes: dict[tuple[Node, int], GraphNode] = {}
    leaves: dict[Node, GraphNode] = {}

    def at(entry: Entry) -> GraphNode:
        if entry.output >= entry.node.visible:
            raise MXNetError(
                f"expected one of the {entry.node.visible} visible outputs of `{entry.node.name}`, "
                f"got number {entry.output}, which is hidden"
            )
        return nodes[entry.node, entry.output]

    for node in topological(entries):
        if node.operator is None:
            leaf = input_node(shapes.shape(node) or (), (), node.name, dtype=types[node])
            leaves[node] = nodes[node, 0] = leaf
            continue
        below = [at(entry) for entry in node.inputs]
        several = node.visible > 1
        # A tuple itself has no shape.
        attributes = {"p": node.p, "shape": () if several else shapes.shapes[node, 0]}
        result = apply(f"mxnet.{node.operator.name}", below, attributes, node.name)
        for i in range(node.visible):
            place = {"index": i, "shape": shapes.shapes[node, i]}
            nodes[node, i] = apply("mxnet.output", [result], place, node.output_name(i)) if several else result
    return [at(entry) for entry in entries], leaves


def _running(operator: Operator) -> Callable[[GraphNode], Callable[..., Any]]:
    def make(node: GraphNode) -> Callable[..., Any]:
        run = {training: operator.bind(node.attributes["p"], training) for training in (False, True)}

        guard = within(node.name)

        def running(batch: PackedBatch, *tensors: Any) -> Any:
            with guard:
                return run[batch.training](*tensors)

        return running

    return make


declare("mxnet.output", declared_shape, one_of_several, axes=no_axes, stepwise=False)
for _operator in OPERATORS.values():
    declare(f"mxnet.{_operator.name}", declared_shape, _running(_operator), axes=no_axes, stepwise=False)
