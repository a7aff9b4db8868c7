"""`cntk.misc.converter`: a copy of a graph with some functions exchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feedline.cntk._names import names_of
from feedline.cntk._tracing import roots_of
from feedline.cntk.ops._function import Function, operand_of
from feedline.networks import Node, replace, topological

__all__, __getattr__ = names_of(__name__)


def convert(root_func: Any, filter: Callable[[Any], bool], converter: Callable[[Any], Any]) -> Function:
    """Return a copy of a graph in which functions are exchanged for others.

    Functions inside blocks are exchanged, too. Parameters are shared with the graph, except those of functions that are
    gone. What a converter returns is not looked at again.

    Args:
        root_func: function whose graph is copied.
        filter: called with each function; whether to exchange it.
        converter: called with each of these, over inputs in which others are exchanged already; returns the function in
            its place, of one output along the same axes.

    Raises:
        TypeError: the converter returned something else.
    """
    roots = roots_of(root_func)
    exchanged: dict[Node, Node] = {}
    for node in topological(roots):
        if node.is_leaf or not filter(operand_of(node)):
            continue
        # Its inputs with what has been exchanged below it.
        (current,) = replace([node], exchanged) if exchanged else [node]
        made = converter(operand_of(current))
        if not isinstance(made, Function) or len(made.outputs) != 1:
            raise TypeError(f"expected a function of one output from the converter, got {made!r}")
        exchanged[node] = made.node
    return Function.of(replace(roots, exchanged) if exchanged else roots)
