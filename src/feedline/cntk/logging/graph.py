"""`cntk.logging.graph`: ways through the graph of a function."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from feedline.cntk._names import explain
from feedline.cntk._tracing import called
from feedline.cntk.ops._function import operand_of
from feedline.graph.plot import plot_network
from feedline.networks import Node
from feedline.networks.traverse import depth_first, topological

__all__ = ["depth_first_search", "find_all_with_name", "find_by_name", "find_by_uid", "get_node_outputs", "plot"]


def depth_first_search(root: Any, visitor: Callable[[Any], bool], depth: int = 0) -> list[Any]:
    """Functions and variables below a function for which ``visitor`` is true, each before what it is applied to.

    Args:
        root: a function or a variable.
        visitor: gets a function, or a variable that is a leaf.
        depth: not looked at: blocks are open.
    """
    return [item for item in map(operand_of, depth_first(_roots(root))) if visitor(item)]


def find_all_with_name(node: Any, node_name: str, depth: int = 0) -> list[Any]:
    """All functions and variables of this name below one."""
    return depth_first_search(
        node, lambda x: x.name == node_name and all(called(n, node_name) for n in _roots(x)), depth
    )


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


def find_by_uid(node: Any, node_uid: str, depth: int = 0) -> Any:
    """The function or variable with this `uid` below one; None if there is none.

    Raises:
        ValueError: the uid is no text.
    """
    if not isinstance(node_uid, str):
        raise ValueError(f"expected a uid as text, got {type(node_uid).__name__}")
    found = depth_first_search(node, lambda x: x.uid == node_uid, depth)
    return found[0] if found else None


def get_node_outputs(node: Any, depth: int = 0) -> list[Any]:
    """Outputs of all functions below one, its own first."""
    found = depth_first_search(node, lambda x: hasattr(x, "outputs"), depth)
    return [output for function in found for output in function.outputs]


def plot(root: Any, filename: str | None = None) -> str:
    """A network as text, and as a picture if a file is named: feedline's own, see `feedline.plot_network`.

    Args:
        root: a function or a variable.
        filename: ends in ``.svg``, ``.pdf`` or ``.png``, for which the program ``dot`` is needed, or in ``.dot``.

    Returns:
        one line for each operation, inputs first: ``operation(inputs) -> output;``, all by `uid`.

    Raises:
        ValueError: another ending.
        ModuleNotFoundError: the package graphviz is not there (``pip install 'feedline[viz]'``).
        graphviz.ExecutableNotFound: the program ``dot`` is not there.
    """
    roots = _roots(root)
    if filename is not None:
        stem, ending = os.path.splitext(os.fspath(filename))
        if ending.lower() not in (".svg", ".pdf", ".png", ".dot"):
            raise ValueError(f"expected a file name in .svg, .pdf, .png or .dot, got {filename!r}")
        picture = plot_network(roots, title=root.name or os.path.basename(stem))
        if ending.lower() == ".dot":
            picture.save(filename)
        else:
            picture.render(outfile=filename, cleanup=True)
    lines = (_line(node) for node in topological(roots) if not node.is_leaf)
    return "\n".join(lines)


def _roots(root: Any) -> list[Node]:
    return [v.node for v in root.outputs] if hasattr(root, "outputs") else [root.node]


def _line(node: Node) -> str:
    return f"{node.op}({', '.join(child.uid for child in node.inputs)}) -> {node.uid};"


def __getattr__(name: str) -> Any:
    raise explain("cntk.logging.graph", name)
