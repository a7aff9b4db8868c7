"""Fused recurrences as single operations, for use inside other recurrences, where their kernels cannot run."""

from __future__ import annotations

from typing import Any

from feedline.networks.node import Node, Type
from feedline.networks.registry import apply

CELLS = ("lstm", "rnn")


def open_cell(cell: Node) -> tuple[Node, dict[Node, Node]]:
    """Return the output of one step of a fused recurrence, and its next states.

    Args:
        cell: operation of `CELLS`.

    Returns:
        The output, and a mapping from each state, a placeholder that delays read, to the next state.
    """
    x, w, h, b, *initial = cell.inputs
    steps = -1 if cell.attributes.get("backwards", False) else 1
    states = [Node("placeholder", given=cell.type if cell.type.is_known else Type()) for _ in initial]
    before = [apply("delay", pair, {"steps": steps}) for pair in zip(states, initial, strict=True)]
    total = _plus(_plus(b, apply("times", [x, w])), apply("times", [before[0], h]))
    if cell.op == "rnn":
        output = apply(cell.attributes["activation"], [total], label=cell.name)
        return output, {states[0]: output}
    # The order of gates is input, candidate, forget, output.
    cells = h.type.shape[0] if h.type.shape is not None else 0
    i, g, f, o = (_part(total, k * cells, (k + 1) * cells) for k in range(4))
    c = _plus(_gate(f, before[1]), _gate(i, apply("tanh", [g])))
    output = _gate(o, apply("tanh", [c]), cell.name)
    return output, {states[0]: output, states[1]: c}


def _plus(*nodes: Node) -> Node:
    return apply("plus", nodes)


def _gate(gate: Node, node: Node, label: str = "") -> Node:
    return apply("element_times", [apply("sigmoid", [gate]), node], label=label)


def _part(node: Node, begin: int, end: int) -> Node:
    at: dict[str, Any] = {"axis": (-1,), "begin": (begin,), "end": (end,), "strides": (1,)}
    return apply("slice", [node], at)
