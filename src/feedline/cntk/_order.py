"""The order in which CNTK meets the variables of a graph: that of ``parameters`` and of what a loss is counted by.

From the roots down, each operand after what is below the one before it: so the last layer comes first. Where a function
keeps its operands in another order than scripts give them in, as products do, its own counts. Of a block the parameters
and constants come first, in the order inside, then what it is applied to. What a recurrence reads of itself is what its
state becomes, met there if it was not before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from feedline.networks import Node
from feedline.networks.traverse import loop_parts


def _turned(inputs: Sequence[Node]) -> list[Node]:
    return [inputs[1], inputs[0]]


# CNTK's order of operands, where it is another one than the node's.
_OPERANDS: dict[str, Callable[[Sequence[Node]], list[Node]]] = {
    "times": _turned,
    "times_transpose": _turned,
    "param_relu": _turned,
    # Fused recurrences: x, W, H, b and initial states, of steps whose sums begin with b, or end with it.
    "lstm": lambda given: [given[3], given[1], given[2], *given[4:], given[0]],
    "rnn": lambda given: [given[1], given[2], given[3], *given[4:], given[0]],
    # Keys, values, which of them there are, query, and the weights of the last product.
    "attend": lambda given: [given[4], given[3], *given[:3]],
}


def in_order(roots: Iterable[Node], border: Collection[Node] = ()) -> Iterator[Node]:
    """All nodes that CNTK meets, each once; nothing at or below ``border``."""
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


def leaves_in_order(roots: Iterable[Node], *ops: str) -> list[Node]:
    """Leaves of the given kinds, as CNTK meets them."""
    return [node for node in in_order(roots) if node.op in ops]


def _operands(node: Node, ends: dict[Node, Node]) -> list[Node]:
    if "block" in node.attributes:
        # A parameter that it is applied to is met inside, like its own.
        applied_to = [child for child in node.inputs[1:] if child.weights is None]
        own = (n for n in in_order(node.inputs[:1], applied_to) if n.weights is not None)
        return [*own, *applied_to]
    if node.op == "pick":
        outputs, states = loop_parts(node.inputs[0])
        ends.update(zip(states, outputs[len(outputs) - len(states) :], strict=True))
        return [outputs[node.attributes["index"]]]
    return _OPERANDS.get(node.op, list)(node.inputs)
