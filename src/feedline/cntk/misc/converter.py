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

    Functions inside blocks are exchanged, too. The graph's parameters are shared, except for parameters of exchanged
    functions. The functions that a converter returns are not exchanged again.

    Args:
        root_func: function whose graph is copied.
        filter: function of each function that returns whether to exchange it.
        converter: function of each function to exchange, whose inputs are exchanged already. It returns the
            replacement, a function of one output along the same axes.

    Raises:
        TypeError: the converter returned something else.
    """
    roots = roots_of(root_func)
    exchanged: dict[Node, Node] = {}
    for node in topological(roots):
        if node.is_leaf or not filter(operand_of(node)):
            continue
        # The function over inputs that have been exchanged already.
        (current,) = replace([node], exchanged) if exchanged else [node]
        converted = converter(operand_of(current))
        if not isinstance(converted, Function) or len(converted.outputs) != 1:
            raise TypeError(f"expected a function with one output from the converter, got {converted!r}")
        exchanged[node] = converted.node
    return Function.of(replace(roots, exchanged) if exchanged else roots)
