"""Fused recurrences as single operations, for where their kernels cannot run: as part of another recurrence."""

from __future__ import annotations

from typing import Any

from feedline.networks.node import Node, Type
from feedline.networks.registry import apply

CELLS = ("lstm", "rnn")


def opened(cell: Node) -> tuple[Node, dict[Node, Node]]:
    """What a fused recurrence gives at a step, and what each of its states becomes.

    Args:
        cell: an operation of `CELLS`.

    Returns:
        the output; and for each state, a placeholder that is read by delays, the node that it stands for.
    """
    x, w, h, b, *initial = cell.inputs
    steps = -1 if cell.attributes.get("backwards", False) else 1
    states = [Node("placeholder", given=cell.type if cell.type.known else Type()) for _ in initial]
    before = [apply("delay", pair, {"steps": steps}) for pair in zip(states, initial, strict=True)]
    total = _plus(_plus(b, apply("times", [x, w])), apply("times", [before[0], h]))
    if cell.op == "rnn":
        output = apply(cell.attributes["activation"], [total], label=cell.name)
        return output, {states[0]: output}
    # Gates stand as input, candidate, forget, output.
    cells = h.type.shape[0] if h.type.shape is not None else 0
    i, g, f, o = (_part(total, k * cells, (k + 1) * cells) for k in range(4))
    kept, new = _product(_sigmoid(f), before[1]), _product(_sigmoid(i), apply("tanh", [g]))
    c = _plus(kept, new)
    output = apply("element_times", [_sigmoid(o), apply("tanh", [c])], label=cell.name)
    return output, {states[0]: output, states[1]: c}


def _plus(*nodes: Node) -> Node:
    return apply("plus", nodes)


def _product(*nodes: Node) -> Node:
    return apply("element_times", nodes)


def _sigmoid(node: Node) -> Node:
    return apply("sigmoid", [node])


def _part(node: Node, begin: int, end: int) -> Node:
    at: dict[str, Any] = {"axis": (-1,), "begin": (begin,), "end": (end,), "strides": (1,)}
    return apply("slice", [node], at)
