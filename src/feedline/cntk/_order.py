"""CNTK's traversal order of a graph, which orders ``parameters`` and decides which variable counts a loss's samples.

Depth first from the roots, so the last layer comes first. Operands are visited in the order in which CNTK stores them,
which for products is the reverse of the order in which scripts pass them. A block yields its own parameters and
constants first, in their inner order, then its arguments. The placeholder through which a recurrence reads its previous
state stands for the node that computes the next state.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from feedline.networks import Node
from feedline.networks.traverse import loop_parts


def _turned(inputs: Sequence[Node]) -> list[Node]:
    return [inputs[1], inputs[0]]


# CNTK's order of operands, where it differs from the node's.
_OPERANDS: dict[str, Callable[[Sequence[Node]], list[Node]]] = {
    "times": _turned,
    "times_transpose": _turned,
    "param_relu": _turned,
    # Fused recurrences: x, W, H, b and initial states. An LSTM's step adds b first, a plain one last.
    "lstm": lambda given: [given[3], given[1], given[2], *given[4:], given[0]],
    "rnn": lambda given: [given[1], given[2], given[3], *given[4:], given[0]],
    "attention_weights": lambda given: [given[3], given[2], *given[:2]],
    # Keys, values, the mask of valid ones, query, and the weights of the last product.
    "attend": lambda given: [given[4], given[3], *given[:3]],
}


def in_order(roots: Iterable[Node], border: Collection[Node] = ()) -> Iterator[Node]:
    """Yield all nodes in CNTK's order, each once; nothing at or below ``border``."""
    seen, ends = set(border), dict[Node, Node]()
    stack = [iter(list(roots))]
    while stack:
        node = next(stack[-1], None)
        if node is None:
            stack.pop()
            continue
        node = ends.get(node, node)
        if node in seen:
            continue
        seen.add(node)
        yield node
        if not node.is_leaf:
            stack.append(iter(_operands(node, ends)))


# What combines layers is no block of its own in CNTK, unless it has a name.
_OPEN = ("Sequential", "SequentialClique", "ResNetBlock")


def search_order(roots: Iterable[Node], depth: int = 0) -> Iterator[Node]:
    """Yield nodes in the order in which CNTK's graph functions visit them, each once.

    Depth first, operands in CNTK's order. A closed block is followed by its own parameters and its operands; one that
    is entered comes before everything else that waits, and its inside after it. A recurrence's outputs stand for the
    nodes that compute them.

    Args:
        roots: nodes to start from.
        depth: number of nested blocks to enter; -1: all.
    """
    seen, ends = set[Node](), dict[Node, Node]()
    waiting = deque((root, sys.maxsize if depth == -1 else depth) for root in roots)
    while waiting:
        node, left = waiting.popleft()
        node = ends.get(node, node)
        if node in seen:
            continue
        seen.add(node)
        if node.attributes.get("block") in _OPEN and not node.attributes.get("instance"):
            waiting.appendleft((node.inputs[0], left))
            continue
        yield node
        if node.is_leaf:
            continue
        if "block" in node.attributes and left > 0:
            waiting.extend((child, left - 1) for child in (*node.inputs[1:], node.inputs[0]))
            continue
        # Products have the order of their operands in scripts here.
        below = list(node.inputs) if _OPERANDS.get(node.op) is _turned else _operands(node, ends)
        if node.op == "pick":
            seen.update(below)
            below = [child for body in below if not body.is_leaf for child in _operands(body, ends)]
        waiting.extendleft((child, left) for child in reversed(below))


def operands(node: Node) -> list[Node]:
    """Return what an operation is applied to; of a block its own parameters and constants, then its arguments."""
    if "recurrentOp" in node.attributes:  # an operation in CNTK
        return list(node.inputs[1:])
    return _operands(node, {}) if "block" in node.attributes or node.op == "pick" else list(node.inputs)


def leaves_in_order(roots: Iterable[Node], *ops: str) -> list[Node]:
    """Return leaves of the given kinds in CNTK's order."""
    return [node for node in in_order(roots) if node.op in ops]


def _operands(node: Node, ends: dict[Node, Node]) -> list[Node]:
    if "block" in node.attributes:
        # A parameter passed as an argument is visited inside the block, like the block's own.
        applied_to = [child for child in node.inputs[1:] if child.weights is None]
        own = (n for n in in_order(node.inputs[:1], applied_to) if n.weights is not None)
        return [*own, *applied_to]
    if node.op == "pick":
        outputs, states = loop_parts(node.inputs[0])
        ends.update(zip(states, outputs[len(outputs) - len(states) :], strict=True))
        return [outputs[node.attributes["index"]]]
    return _OPERANDS.get(node.op, list)(node.inputs)
