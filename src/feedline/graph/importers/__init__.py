"""Networks of several libraries, read into one `feedline.graph.graph.Graph`.

An importer is one file. Which one reads a model is told by what the model is; torch is imported only for modules of it.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from feedline.graph.graph import Graph
from feedline.graph.importers.nodes import from_nodes
from feedline.graph.importers.symbol import from_symbol, from_symbol_json
from feedline.graph.node import Node


def graph_of(model: Any, inputs: Any = None) -> Graph:
    """The graph of a network.

    Args:
        model: a `torch.nn.Module`; a node, function or variable of feedline's networks, or a sequence of these; a
            symbol of MXNet, or its JSON; a `Graph`, which is returned.
        inputs: what the model is applied to, so that shapes are known. For torch one input or a sequence of them, or a
            mapping by keyword, each a tensor, an array or a shape (a tuple of ints, which stands for zeros); for
            symbols a mapping from names to shapes; the others know theirs.

    Raises:
        TypeError: the model is something else, or inputs are given to one that knows its own.
        ValueError: the inputs do not fit, or the JSON is none of a symbol.
    """
    if isinstance(model, str):
        return from_symbol_json(model, inputs)
    if hasattr(model, "tojson") and hasattr(model, "get_internals"):
        return from_symbol(model, inputs)
    if "torch" in sys.modules and isinstance(model, sys.modules["torch"].nn.Module):
        # By name: the rest of the room does without torch.
        graph: Graph = importlib.import_module("feedline.graph.importers.torch_module").from_module(model, inputs)
        return graph
    roots = _nodes(model)
    if not roots and not isinstance(model, Graph):
        raise TypeError(
            "expected a torch.nn.Module, a network of feedline's nodes, a symbol or its JSON, "
            f"or a Graph, got {type(model).__name__}"
        )
    if inputs is not None:
        raise TypeError(f"{type(model).__name__} knows its shapes: expected no inputs, got {type(inputs).__name__}")
    return model if isinstance(model, Graph) else from_nodes(roots)


def _nodes(model: Any) -> list[Node]:
    """Nodes of a node, of a handle on one (``node``) or several (``outputs``), or of a sequence of these."""
    if isinstance(model, Node):
        return [model]
    if isinstance(model, (list, tuple)):
        parts = [_nodes(part) for part in model]
        return [node for part in parts for node in part] if all(parts) else []
    if hasattr(type(model), "outputs"):
        return _nodes(tuple(model.outputs))
    found = getattr(model, "node", None)
    return [found] if isinstance(found, Node) else []
