"""`cntk.logging.graph`: search in the graph of a function, and its display."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from feedline.cntk._names import names_of
from feedline.cntk._op_names import op_name, variable_uid
from feedline.cntk._order import operands, search_order
from feedline.cntk._tracing import has_name
from feedline.cntk.ops._function import operands_in
from feedline.graph.plot import plot_network
from feedline.networks import Node

__all__, __getattr__ = names_of(__name__)


def depth_first_search(root: Any, visitor: Callable[[Any], bool], depth: int = 0) -> list[Any]:
    """Return functions and variables below a function for which ``visitor`` is true, in CNTK's order.

    A combination of several outputs comes first.

    Args:
        root: function or variable.
        visitor: predicate of a function, or of a variable that is a leaf.
        depth: number of nested blocks to enter. -1: all.
    """
    roots = _roots(root)
    items = operands_in(roots, list(search_order(roots, depth)))
    return [item for item in ([root, *items] if _is_combination(root) else items) if visitor(item)]


def find_all_with_name(node: Any, node_name: str, depth: int = 0) -> list[Any]:
    """Return all functions and variables of this name below a node."""
    roots = _roots(node)
    below = operands_in(roots, [n for n in search_order(roots, depth) if has_name(n, node_name)])
    return [node, *below] if _is_combination(node) and node.name == node_name else below


def find_by_name(node: Any, node_name: str, depth: int = 0) -> Any:
    """Return the function or variable of this name below a node, or None.

    Raises:
        ValueError: several have this name, or the name is not a str.
    """
    if not isinstance(node_name, str):
        raise ValueError(f"expected a name as text, got {type(node_name).__name__}")
    matches = find_all_with_name(node, node_name, depth)
    if len(matches) > 1:
        raise ValueError(f"expected one node with the name {node_name!r}, got {len(matches)}: use find_all_with_name")
    return matches[0] if matches else None


def find_by_uid(node: Any, node_uid: str, depth: int = 0) -> Any:
    """Return the function or variable with this `uid` below a node, or None.

    Raises:
        ValueError: the uid is not a str.
    """
    if not isinstance(node_uid, str):
        raise ValueError(f"expected a uid as text, got {type(node_uid).__name__}")
    matches = depth_first_search(node, lambda x: x.uid == node_uid, depth)
    return matches[0] if matches else None


def get_node_outputs(node: Any, depth: int = 0) -> list[Any]:
    """Return the outputs of a node, and of all functions below it."""
    functions = depth_first_search(node, lambda x: hasattr(x, "outputs"), depth)
    return [output for function in functions for output in function.outputs]


def plot(root: Any, filename: str | None = None) -> str:
    """Return a network as text, and write a picture if a file is named. See `feedline.plot_network`.

    Args:
        root: function or variable.
        filename: path that ends in ``.svg``, ``.pdf`` or ``.png``, which require the program ``dot``, or in ``.dot``.

    Returns:
        One line for each operation or block, inputs first: ``Plus(inputs) -> output;``, all by `uid`.

    Raises:
        ValueError: another ending.
        ModuleNotFoundError: the package graphviz is not installed (``pip install 'feedline[viz]'``).
        graphviz.ExecutableNotFound: the program ``dot`` is not installed.
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
    nodes = [node for node in search_order(roots) if not node.is_leaf]
    lines = [_line(op_name(node), _shown_operands(node), node) for node in reversed(nodes)]
    if _is_combination(root):
        lines += [_line("Combine", roots, output) for output in reversed(roots)]
    return "\n".join(lines)


def _roots(root: Any) -> list[Node]:
    return [v.node for v in root.outputs] if hasattr(root, "outputs") else [root.node]


def _is_combination(root: Any) -> bool:
    return getattr(root, "op_name", None) == "Combine"


def _shown_operands(node: Node) -> list[Node]:
    """Return the operands of a node, without constants that belong to a block."""
    return [child for child in operands(node) if "block" not in node.attributes or child.op != "constant"]


def _line(kind: str, below: Sequence[Node], output: Node) -> str:
    return f"{kind}({', '.join(variable_uid(child) for child in below)}) -> {variable_uid(output)};\n"
