"""Write recurrences as ONNX's ``Scan``, whose body computes one step of each sequence.

A delay by one step reads a state of the scan, the value of its operand a step before. A delay by more steps reads a
chain of states, each of which takes the value of its predecessor.
"""

from __future__ import annotations

from feedline.errors import CompatError
from feedline.networks import Node
from feedline.networks.loop import inside, operands
from feedline.networks.onnx import onnx_library as library
from feedline.networks.onnx.onnx_writer import Writer
from feedline.networks.traverse import element_type, loop_parts, resolve_alias, topological


def scan(w: Writer, loop: Node) -> list[str]:
    """Write a recurrence, and return the names of its outputs.

    Raises:
        CompatError: a recurrence in two directions or without an input, or an operation that ONNX cannot express.
    """
    outputs, states = loop_parts(loop)
    members = inside(loop)
    delays = [n for n in topological(outputs) if n.op == "delay" and n in members]
    directions = {n.attributes["steps"] > 0 for n in delays}
    if len(directions) != 1:
        raise CompatError(
            f"{outputs[0].label}: expected a recurrence in one direction, got one in both, which Scan cannot express; "
            "save without a format"
        )
    backwards, axis = not directions.pop(), delays[0].axes[1]
    outside = operands(loop)
    values = {n: w.value(n) for n in outside}  # the body reads operands without steps directly
    steps = [n for n in outside if axis in n.axes]
    body = Writer(w.operators, w.recipe, w, axis)
    for state, end in zip(states, outputs[len(outputs) - len(states) :], strict=True):
        body.alias(state, resolve_alias(end))  # for readers without a delay

    entering: list[str] = []
    chains: list[list[str]] = []
    for delay in delays:
        dtype = element_type(delay)
        chain = [body.typed(body.free("state"), dtype) for _ in range(abs(delay.attributes["steps"]))]
        entering += [_before(w, delay, steps)] * len(chain)
        chains.append(chain)
        body.inputs += [library.describe(name, dtype, None) for name in chain]
        body.declare(delay, chain[-1])
    for node in steps:
        dtype = w.dtype_of(values[node])
        name = body.typed(body.free("step"), dtype)
        body.inputs.append(library.describe(name, dtype, None))
        body.declare(node, name)

    results, dtypes = [], []
    for delay, chain in zip(delays, chains, strict=True):
        dtype = element_type(delay)
        for name in (body.cast(body.value(delay.inputs[0]), dtype), *chain[:-1]):
            results.append(library.describe(_name(body, name), dtype, None))
            dtypes.append(dtype)
    for output in outputs:
        value = body.value(output)
        results.append(library.describe(_name(body, value), body.dtype_of(value), None))
        dtypes.append(body.dtype_of(value))
    names = w.several(
        "Scan",
        [*entering, *(values[node] for node in steps)],
        dtypes,
        body=library.graph(body.nodes, body.inputs, results, body.initializers),
        num_scan_inputs=len(steps),
        scan_input_directions=[int(backwards)] * len(steps),
        scan_output_directions=[int(backwards)] * len(outputs),
    )
    return names[len(entering) :]


def _name(body: Writer, name: str) -> str:
    """Return a new name for a value, as the results of a graph need distinct names."""
    result = body.free("result")
    body.nodes.append(library.node("Identity", [name], [result]))
    return result


def _before(w: Writer, delay: Node, steps: list[Node]) -> str:
    """Return the value of a delay before the first step, (batch, *shape)."""
    initial = delay.inputs[1]
    if len(initial.axes) > 1:
        raise CompatError(f"{delay.label}: expected an initial state without steps, got {initial.label}")
    if not steps:
        raise CompatError(
            f"{delay.label}: expected a recurrence over an input's steps, got one that generates its own steps"
        )
    value = w.cast(w.value(initial), element_type(delay))
    missing = len(delay.shape) - len(initial.shape)
    if initial.axes and missing > 0:
        value = w("Unsqueeze", value, w.constant(list(range(1, 1 + missing))))
    batch = w("Shape", w.value(steps[0]), dtype="int64", start=1, end=2)
    return w("Expand", value, w("Concat", batch, w.constant(list(delay.shape)), axis=0))
