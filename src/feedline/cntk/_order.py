"""CNTK's traversal order of a graph, which orders ``parameters`` and decides which variable counts a loss's samples.

It is depth first from the roots, so the last layer comes first. Operands are visited in the order in which CNTK stores
them, which for products is the reverse of the order in scripts. A block yields its own parameters and constants first,
in their inner order, then its arguments. The placeholder through which a recurrence reads its previous state is
resolved to the node that computes the next state.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from feedline.networks import Node
from feedline.networks.traverse import loop_parts


def _swap(inputs: Sequence[Node]) -> list[Node]:
    return [inputs[1], inputs[0]]


# CNTK's order of operands, where it differs from the node's.
_OPERANDS: dict[str, Callable[[Sequence[Node]], list[Node]]] = {
    "times": _swap,
    "times_transpose": _swap,
    "param_relu": _swap,
    # Fused recurrences: x, W, H, b and initial states. An LSTM's step adds b first, a plain step last.
    "lstm": lambda inputs: [inputs[3], inputs[1], inputs[2], *inputs[4:], inputs[0]],
    "rnn": lambda inputs: [inputs[1], inputs[2], inputs[3], *inputs[4:], inputs[0]],
    "attention_weights": lambda inputs: [inputs[3], inputs[2], *inputs[:2]],
    # Keys, values, the mask of valid steps, query, and the weights of the last product.
    "attend": lambda inputs: [inputs[4], inputs[3], *inputs[:3]],
}


def in_order(roots: Iterable[Node], border: Collection[Node] = ()) -> Iterator[Node]:
    """Yield all nodes in CNTK's order, each once, without nodes at or below ``border``."""
    visited, ends = set(border), dict[Node, Node]()
    stack = [iter(list(roots))]
    while stack:
        node = next(stack[-1], None)
        if node is None:
            stack.pop()
            continue
        node = ends.get(node, node)
        if node in visited:
            continue
        visited.add(node)
        yield node
        if not node.is_leaf:
            stack.append(iter(_operands(node, ends)))


# Combinations of layers are blocks in CNTK only if they have a name.
_OPEN = ("Sequential", "SequentialClique", "ResNetBlock")


def search_order(roots: Iterable[Node], depth: int = 0) -> Iterator[Node]:
    """Yield nodes in the order in which CNTK's graph functions visit them, each once.

    The order is depth first, operands in CNTK's order. A closed block is followed by its own parameters and its
    operands. The content of an open block comes after all waiting nodes. Outputs of a recurrence are resolved to the
    nodes that compute them.

    Args:
        roots: nodes to start from.
        depth: number of nested blocks to enter. -1: all.
    """
    visited, ends = set[Node](), dict[Node, Node]()
    waiting = deque((root, sys.maxsize if depth == -1 else depth) for root in roots)
    while waiting:
        node, levels = waiting.popleft()
        node = ends.get(node, node)
        if node in visited:
            continue
        visited.add(node)
        if node.attributes.get("block") in _OPEN and not node.attributes.get("instance"):
            waiting.appendleft((node.inputs[0], levels))
            continue
        yield node
        if node.is_leaf:
            continue
        if "block" in node.attributes and levels > 0:
            waiting.extend((child, levels - 1) for child in (*node.inputs[1:], node.inputs[0]))
            continue
        # Here, products have the order of their operands in scripts.
        below = list(node.inputs) if _OPERANDS.get(node.op) is _swap else _operands(node, ends)
        if node.op == "pick":
            visited.update(below)
            below = [child for body in below if not body.is_leaf for child in _operands(body, ends)]
        waiting.extendleft((child, levels) for child in reversed(below))


def operands(node: Node) -> list[Node]:
    """Return the operands of an operation, or a block's own parameters and constants, then its arguments."""
    if "recurrentOp" in node.attributes:  # an operation in CNTK
        return list(node.inputs[1:])
    folded = "block" in node.attributes or node.op in ("pick", "user_output")
    return _operands(node, {}) if folded else list(node.inputs)


def leaves_in_order(roots: Iterable[Node], *ops: str) -> list[Node]:
    """Return leaves of these kinds in CNTK's order."""
    return [node for node in in_order(roots) if node.op in ops]


def _operands(node: Node, ends: dict[Node, Node]) -> list[Node]:
    if "block" in node.attributes:
        # A parameter passed as an argument is visited inside the block, like the block's own.
        applied_to = [child for child in node.inputs[1:] if child.weights is None]
        weights = (n for n in in_order(node.inputs[:1], applied_to) if n.weights is not None)
        return [*weights, *applied_to]
    if node.op == "pick":
        outputs, states = loop_parts(node.inputs[0])
        ends.update(zip(states, outputs[len(outputs) - len(states) :], strict=True))
        return [outputs[node.attributes["index"]]]
    if node.op == "user_output":  # one function in CNTK, with several outputs
        return list(node.inputs[0].inputs)
    return _OPERANDS.get(node.op, list)(node.inputs)
