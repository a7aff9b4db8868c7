"""Importers of old frameworks' networks into a `feedline.graph.graph.Graph`: nodes, MXNet's symbols and their JSON."""

from __future__ import annotations

from typing import Any

from feedline.graph.graph import Graph
from feedline.graph.importers import expect_no_inputs
from feedline.networks.importers.nodes import from_nodes
from feedline.networks.importers.symbol import from_symbol, from_symbol_json
from feedline.networks.node import Node


def read_network(model: Any, inputs: Any) -> Graph | None:
    """Return the graph of a node, of an object with a ``node`` or ``outputs``, or of a sequence of these."""
    roots = _nodes(model)
    if not roots:
        return None
    expect_no_inputs(model, inputs)
    return from_nodes(roots)


def read_symbol(model: Any, inputs: Any) -> Graph | None:
    """Return the graph of a symbol of MXNet, or of its JSON."""
    if isinstance(model, str):
        return from_symbol_json(model, inputs)
    if hasattr(model, "tojson") and hasattr(model, "get_internals"):
        return from_symbol(model, inputs)
    return None


def _nodes(model: Any) -> list[Node]:
    if isinstance(model, Node):
        return [model]
    if isinstance(model, (list, tuple)):
        parts = [_nodes(part) for part in model]
        return [node for part in parts for node in part] if all(parts) else []
    if hasattr(type(model), "outputs"):
        return _nodes(tuple(model.outputs))
    candidate = getattr(model, "node", None)
    return [candidate] if isinstance(candidate, Node) else []
