"""Importers, which read networks of several libraries into a `feedline.graph.graph.Graph`.

They are listed here by name, so that this package does not depend on them. An importer is imported when a model is
read, and torch is imported only for its modules.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feedline.graph.graph import Graph

# Models that each importer reads, and its module. An importer returns None for a model of another kind, so that the
# next one is tried.
_IMPORTERS = {
    "a torch.nn.Module": "feedline.graph.importers:read_module",
    "an ONNX model or its file": "feedline.graph.importers:read_onnx",
    "a symbol of MXNet or its JSON": "feedline.networks.importers:read_symbol",
    "a network of nodes": "feedline.networks.importers:read_network",
    "a Graph": "feedline.graph.importers:read_graph",
}


def graph_of(model: Any, inputs: Any = None) -> Graph:
    """Return the graph of a network.

    Args:
        model: a `torch.nn.Module`, a node, function or variable of feedline's networks or a sequence of these, a symbol
            of MXNet or its JSON, an ONNX model or the path of its file (``.onnx``), or a `Graph`, which is returned.
        inputs: inputs of the model, for shapes. For torch one input, a sequence of them, or a mapping by keyword, each
            a tensor, an array or a shape (a tuple of ints, for zeros). For symbols and ONNX a mapping from names to
            shapes. Not accepted for other models, whose shapes are known.

    Raises:
        TypeError: a model of another type, or inputs for one whose shapes are known.
        ValueError: inputs that do not fit, or JSON that does not describe a symbol.
    """
    for place in _IMPORTERS.values():
        module, _, name = place.partition(":")
        graph: Graph | None = getattr(importlib.import_module(module), name)(model, inputs)
        if graph is not None:
            return graph
    *others, last = _IMPORTERS
    raise TypeError(f"expected {', '.join(others)} or {last}, got {type(model).__name__}")


def expect_no_inputs(model: Any, inputs: Any) -> None:
    """Raise a TypeError if there are inputs for a model whose shapes are known."""
    if inputs is not None:
        raise TypeError(f"{type(model).__name__} knows its shapes: expected no inputs, got {type(inputs).__name__}")


def read_graph(model: Any, inputs: Any) -> Graph | None:
    """Return a graph unchanged."""
    from feedline.graph.graph import Graph  # imported late to keep `import feedline` fast

    if not isinstance(model, Graph):
        return None
    expect_no_inputs(model, inputs)
    return model


def read_onnx(model: Any, inputs: Any) -> Graph | None:
    """Return the graph of an ONNX model, or of its file."""
    is_file = isinstance(model, (str, os.PathLike)) and os.fspath(model).endswith(".onnx")
    if not is_file and not ("onnx" in sys.modules and isinstance(model, sys.modules["onnx"].ModelProto)):
        return None
    # Imported by name, as the rest of the package does not import onnx.
    graph: Graph = importlib.import_module("feedline.graph.importers.onnx_file").from_onnx(model, inputs)
    return graph


def read_module(model: Any, inputs: Any) -> Graph | None:
    """Return the graph of a `torch.nn.Module`."""
    if "torch" not in sys.modules or not isinstance(model, sys.modules["torch"].nn.Module):
        return None
    # Imported by name, as the rest of the package does not import torch.
    graph: Graph = importlib.import_module("feedline.graph.importers.torch_module").from_module(model, inputs)
    return graph
