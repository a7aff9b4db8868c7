"""Networks of several libraries, read into one `feedline.graph.graph.Graph`.

Importers register themselves by name, so that this package names nothing above it and each is imported when a model is
to be read. torch is imported only for modules of it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feedline.graph.graph import Graph

Importer = Callable[[Any, Any], "Graph | None"]

_IMPORTERS: dict[str, str | Importer] = {}


def register_importer(reads: str, importer: str | Importer) -> None:
    """Have ``importer(model, inputs)`` asked for the graph of models that nobody else could read.

    Args:
        reads: what it reads, for the error that lists what can be read.
        importer: returns None for a model that it does not read; a function or a ``"module:function"``.
    """
    _IMPORTERS[reads] = importer


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
    for reads, importer in _IMPORTERS.items():
        if isinstance(importer, str):
            module, _, name = importer.partition(":")
            importer = _IMPORTERS[reads] = getattr(importlib.import_module(module), name)
        graph = importer(model, inputs)
        if graph is not None:
            return graph
    raise TypeError(f"expected {', '.join(_IMPORTERS)}, got {type(model).__name__}")


def expect_no_inputs(model: Any, inputs: Any) -> None:
    """Raise TypeError if inputs are given for a model that knows its own."""
    if inputs is not None:
        raise TypeError(f"{type(model).__name__} knows its shapes: expected no inputs, got {type(inputs).__name__}")


def read_graph(model: Any, inputs: Any) -> Graph | None:
    """A graph as it is."""
    from feedline.graph.graph import Graph  # `import feedline` imports this module, and should cost nothing

    if not isinstance(model, Graph):
        return None
    expect_no_inputs(model, inputs)
    return model


def read_module(model: Any, inputs: Any) -> Graph | None:
    """The graph of a `torch.nn.Module`."""
    if "torch" not in sys.modules or not isinstance(model, sys.modules["torch"].nn.Module):
        return None
    # By name: the rest of the package does without torch.
    graph: Graph = importlib.import_module("feedline.graph.importers.torch_module").from_module(model, inputs)
    return graph
