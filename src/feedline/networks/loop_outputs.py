"""Nodes inside recurrences as results: a node that a state's step computes becomes one more output of its recurrence.

A node inside a recurrence reads states, which only have values within the recurrence. Searching a graph finds such
nodes by their names, and `remember` notes the recurrence in which each was found. `outside` then replaces such roots of
a network by a pick of a recurrence that has them as further outputs. The recurrence is remembered weakly, so that it
lives as long as the graph that it belongs to.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

from feedline.networks.node import Node
from feedline.networks.registry import apply
from feedline.networks.traverse import depth_first, loop_parts, topological

_recurrences: weakref.WeakKeyDictionary[Node, weakref.ref[Node]] = weakref.WeakKeyDictionary()


def remember(roots: Sequence[Node], nodes: Iterable[Node]) -> None:
    """Note the recurrence of ``roots`` to which each node belongs, if it reads a state of one."""
    nodes = list(nodes)
    loops = _loops(roots)
    loops += [loop for root in roots if (loop := _find_remembered(root)) is not None]
    if loops:
        for node in nodes:
            loop = _of(node, loops)
            if loop is not None:
                _recurrences[node] = weakref.ref(loop)


def outside(roots: Sequence[Node]) -> list[Node]:
    """Return the roots. A root inside a recurrence becomes a further output of the recurrence.

    A recurrence below another root is preferred to the remembered one.
    """
    if not any(_open(root) for root in roots):
        return list(roots)
    loops = _loops(roots)
    return [_pick(root, loops) for root in roots]


def _pick(node: Node, loops: Sequence[Node]) -> Node:
    loop = _of(node, loops)
    if loop is None:
        loop = _find_remembered(node)
    if loop is None:
        return node
    outputs, states = loop_parts(loop)
    extended = apply("loop", [node, *outputs, *states], {"count": len(outputs) + 1})
    return apply("pick", [extended], {"index": 0}, node.name)


def _find_remembered(node: Node) -> Node | None:
    reference = _recurrences.get(node)
    return None if reference is None else reference()


def _loops(roots: Sequence[Node]) -> list[Node]:
    return [node for node in depth_first(roots) if node.op == "loop"]


def _of(node: Node, loops: Iterable[Node]) -> Node | None:
    """Return the recurrence whose states the node reads, or None if it reads none."""
    states = set(_open(node))
    return next((loop for loop in loops if states and states <= set(loop_parts(loop)[1])), None)


def _open(node: Node) -> list[Node]:
    """Return the placeholders below a node that are not states of recurrences below it."""
    below = topological([node])
    closed = {state for n in below if n.op == "loop" for state in loop_parts(n)[1]}
    return [n for n in below if n.op == "placeholder" and n not in closed]
