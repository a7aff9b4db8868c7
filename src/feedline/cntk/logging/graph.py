"""`cntk.logging.graph`: ways through the graph of a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feedline.cntk._names import explain
from feedline.graph.traverse import depth_first

__all__ = ["depth_first_search", "find_all_with_name", "find_by_name", "get_node_outputs"]


def depth_first_search(root: Any, visitor: Callable[[Any], bool], depth: int = 0) -> list[Any]:
    """Functions and variables below a function for which ``visitor`` is true, each before what it is applied to.

    Args:
        root: a function or a variable.
        visitor: gets a function, or a variable that is a leaf.
        depth: not looked at: blocks are open.
    """
    from feedline.cntk.ops._function import Function
    from feedline.cntk.variables import variable_of

    roots = [v.node for v in root.outputs] if hasattr(root, "outputs") else [root.node]
    items = (variable_of(node) if node.is_leaf else Function.of([node]) for node in depth_first(roots))
    return [item for item in items if visitor(item)]


def find_all_with_name(node: Any, node_name: str, depth: int = 0) -> list[Any]:
    """All functions and variables of this name below one."""
    return depth_first_search(node, lambda x: x.name == node_name, depth)


def find_by_name(node: Any, node_name: str, depth: int = 0) -> Any:
    """The function or variable of this name below one; None if there is none.

    Raises:
        ValueError: there are several, or the name is no text.
    """
    if not isinstance(node_name, str):
        raise ValueError(f"expected a name as text, got {type(node_name).__name__}")
    found = find_all_with_name(node, node_name, depth)
    if len(found) > 1:
        raise ValueError(f"expected one node with the name {node_name!r}, got {len(found)}: use find_all_with_name")
    return found[0] if found else None


def get_node_outputs(node: Any, depth: int = 0) -> list[Any]:
    """Outputs of all functions below one, its own first."""
    found = depth_first_search(node, lambda x: hasattr(x, "outputs"), depth)
    return [output for function in found for output in function.outputs]


def __getattr__(name: str) -> Any:
    raise explain("cntk.logging.graph", name)
