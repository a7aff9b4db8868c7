"""Recurrences in generated source: layers of `torch.nn` where torch has the rule, else a loop over steps.

CNTK's files hold an LSTM as the operations of its cell. `find_cells` recognises them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from feedline.errors import CompatError
from feedline.networks import Node
from feedline.networks.cells import open_cell
from feedline.networks.loop import inside, operands
from feedline.networks.torch_source.source_writer import SourceWriter, dtype_argument
from feedline.networks.torch_source.torch_layers import shared_layer, values
from feedline.networks.traverse import close, element_type, loop_parts, reads, resolve_alias, topological

# ---- loops ------------------------------------------------------------------------------------------------


def write_loop(w: SourceWriter, loop: Node) -> list[str]:
    """Write a recurrence as a loop over steps, and return the expressions of its outputs.

    Raises:
        CompatError: a recurrence in two directions, or without an input.
    """
    outputs, states = loop_parts(loop)
    outputs = tuple(resolve_alias(output) for output in outputs)
    members = inside(loop)
    delays = [n for n in topological(outputs, reads) if n.op == "delay" and n in members]
    if len({n.attributes["steps"] > 0 for n in delays}) != 1:
        raise CompatError(
            f"{outputs[0].label}: expected a recurrence in one direction, got one in both; write its loop by hand"
        )
    backwards, axis = delays[0].attributes["steps"] < 0, delays[0].axes[1]
    outside = [n for n in operands(loop) if n.weights is None]
    entering = {n: w.value(n) for n in outside}
    steps = [n for n in outside if axis in n.axes]
    if not steps:
        raise CompatError(
            f"{outputs[0].label}: expected a recurrence over an input's steps, got one that generates its own steps; "
            "write its loop by hand"
        )
    like = entering[steps[0]]
    initial = {delay: _before(w, delay, like) for delay in delays}
    body = SourceWriter(w.operators, w.parts, w.recipe, w, axis)
    for state, end in zip(states, outputs[len(outputs) - len(states) :], strict=True):
        body.alias(state, end)
    for node in steps:
        body.declare(
            node, body.assign(f"{entering[node]}_now", f"{entering[node]}[:, {'at' if backwards else 'step'}]")
        )
    sources = {delay: _source(delay, states, outputs) for delay in delays}
    recorded: dict[Node, str] = {}
    for node in (*sources.values(), *outputs):
        recorded.setdefault(node, w.free(f"steps_of_{body.base_name(node)}"))
    for delay in delays:
        count = abs(delay.attributes["steps"])
        earlier = f"{recorded[sources[delay]]}[step - {count}]"
        if backwards:
            ends = f"(at + {count} < {w.parts.lengths[axis]})[:{', None' * len(delay.shape)}]"
            earlier = f"torch.where({ends}, {earlier}, {initial[delay]})"
        name = body.assign(
            f"{body.base_name(sources[delay])}_before", f"{earlier} if step >= {count} else {initial[delay]}"
        )
        body.declare(delay, name)
    names = {node: body.value(node) for node in recorded}
    w.lines.append(f"{', '.join(recorded.values())} = {', '.join(['[]'] * len(recorded))}")
    w.lines.append(f"for step in range({like}.shape[1]):")
    if backwards:
        body.lines.insert(0, f"at = {like}.shape[1] - 1 - step")
    body.lines += [f"{recorded[node]}.append({name})" for node, name in names.items()]
    w.lines += [f"    {line}" for line in body.lines]
    order = "[::-1]" if backwards else ""
    return [f"torch.stack({recorded[output]}{order}, 1)" for output in outputs]


def _source(delay: Node, states: Sequence[Node], outputs: Sequence[Node]) -> Node:
    """Return the node whose earlier value a delay reads."""
    source = reads(delay)[0]
    ends = dict(zip(states, outputs[len(outputs) - len(states) :], strict=True))
    return ends.get(source, source)


def _before(w: SourceWriter, delay: Node, like: str) -> str:
    """Return the value of a delay before the first step, (batch, *shape)."""
    initial = reads(delay)[1]
    if len(initial.axes) > 1:
        raise CompatError(
            f"{delay.label}: expected an initial state without steps, got {initial.label}; write its loop by hand"
        )
    sizes = "".join(f", {n}" for n in delay.shape)
    number = w.number(initial)
    if number:
        size = f"len({like}){sizes or ','}"
        return w.assign("initial", f"torch.full(({size}), {number.strip('()')}{_like(delay, like)})")
    value = w.value(initial)
    if w.leading(initial):
        new = len(delay.shape) - len(initial.shape)
        value += f"[:{', None' * new}]" if new else ""
    return w.assign("initial", f"{value}.expand(len({like}){sizes})")


def _like(node: Node, like: str) -> str:
    return f"{dtype_argument(element_type(node))}, device={like}.device"


# ---- layers of torch --------------------------------------------------------------------------------------

_KINDS = {"lstm": "LSTM", "rnn": "RNN", "gru": "GRU"}


def write_layer(w: SourceWriter, node: Node) -> str:
    """Write an LSTM, RNN or GRU of torch. If its weights are not its own, write the loop of its cell."""
    x, kernel, recurrent, *below = reads(node)
    biases = below[: 2 if node.op == "gru" else 1]
    initial = below[len(biases) :]
    leaves = [kernel, recurrent, *biases]
    alike = all(leaf.weights is not None and _own(w, leaf, leaves, node) for leaf in leaves)
    trains = {leaf.weights.trains for leaf in leaves if leaf.weights is not None}
    if not alike or len(trains) != 1:
        if node.op == "gru":
            raise CompatError(f"{node.label}: expected weights of its own, got weights that others read, too")
        output, states = open_cell(node)
        pick = close([output], states)[0]
        return w.value(pick)
    name = shared_layer(w, tuple(leaves), lambda: _add(w, node, leaves, trains == {True}))
    data, lengths = w.value(x), w.lengths_of(node)
    backwards = node.attributes.get("backwards", False)
    entering = _states(w, node, initial, data)
    if backwards:
        w.parts.called.add("reverse")
        data = f"reverse({data}, {lengths})"
    y = f"{name}({data}{entering})[0]"
    return w.call("reverse", y, lengths) if backwards else y


def _own(w: SourceWriter, leaf: Node, leaves: Sequence[Node], node: Node) -> bool:
    """Return whether only layers with the same weights read a weight."""
    readers = w.parts.readers[leaf]
    if len(readers) == 1:
        return True  # this layer, or the operation of a cell that it replaces
    return all(
        reader is not None and reader.op == node.op and reads(reader)[1 : 1 + len(leaves)] == list(leaves)
        for reader in readers
    )


def _add(w: SourceWriter, node: Node, leaves: Sequence[Node], trains: bool) -> str:
    kernel, recurrent, *biases = values(*leaves)
    cells = node.shape[0]
    # The order of gates is input, candidate, forget, output in CNTK, and input, forget, candidate, output in torch.
    order = torch.arange(len(kernel.t())).reshape(-1, cells)
    order = (order[[0, 2, 1, 3]] if node.op == "lstm" else order).flatten()
    bias = biases[0][order]
    settings = ", nonlinearity='relu'" if node.attributes.get("activation") == "relu" else ""
    tensors = {
        "weight_ih_l0": kernel.t()[order].contiguous(),
        "weight_hh_l0": recurrent.t()[order].contiguous(),
        "bias_ih_l0": bias,
        "bias_hh_l0": biases[1] if len(biases) > 1 else torch.zeros_like(bias),
    }
    construction = (
        f"nn.{_KINDS[node.op]}({kernel.shape[0]}, {cells}{settings}, batch_first=True"
        f"{dtype_argument(str(kernel.dtype).removeprefix('torch.'))})"
    )
    name = w.add_layer(w.parts.labels.get(leaves[0], node.op), construction, tensors, trains)
    if len(biases) == 1 and trains:
        # With two that train, the bias would change twice as fast as before.
        w.parts.members[f"{name}.bias"] = f"{name}.bias_hh_l0.requires_grad_(False)  # the old layer has a single bias"
    return name


def _states(w: SourceWriter, node: Node, initial: Sequence[Node], data: str) -> str:
    """Return the argument with the initial states of a layer, empty if they are 0."""
    numbers = [w.number(state) for state in initial]
    if all(number is not None and float(number.strip("()")) == 0 for number in numbers):
        return ""
    states = []
    for state, number in zip(initial, numbers, strict=True):
        size = f"1, len({data}), {node.shape[0]}"
        full = f"torch.full(({size}), {number and number.strip('()')}{_like(node, data)})"
        states.append(full if number else f"{w.value(state)}.expand({size}).contiguous()")
    # CNTK's cells have the output first, and so has torch.
    return f", ({', '.join(states)})" if len(states) > 1 else f", {states[0]}"


# ---- cells that files hold as operations --------------------------------------------------------------------


def find_cells(w: SourceWriter) -> None:
    """Replace recurrences that compute an LSTM, or an RNN of torch, by that operation."""
    picks: dict[Node, list[Node]] = {}
    for node in w.parts.order:
        if node.op == "pick":
            picks.setdefault(node.inputs[0], []).append(node)
    for loop, readers in picks.items():
        cell = _cell_of(loop)
        outputs = [resolve_alias(output) for output in loop_parts(loop)[0]]
        if cell is None or any(outputs[pick.attributes["index"]] is not cell[0] for pick in readers):
            continue  # other states than the output are read, which torch's layers do not return
        w.parts.readers[reads(cell[1])[0]].append(cell[1])
        for pick in readers:
            w.alias(pick, cell[1])


def _cell_of(loop: Node) -> tuple[Node, Node] | None:
    """Return the output of a recurrence, and an ``lstm`` or ``rnn`` that computes it; None for all other rules."""
    outputs, states = loop_parts(loop)
    outputs = tuple(resolve_alias(output) for output in outputs)
    ends = dict(zip(states, outputs[len(outputs) - len(states) :], strict=True))
    delays = [n for n in topological(outputs, reads) if n.op == "delay" and resolve_alias(n.inputs[0]) in ends]
    by_end = {ends[reads(delay)[0]]: delay for delay in delays}
    if len(by_end) != len(delays) or {abs(delay.attributes["steps"]) for delay in delays} != {1}:
        return None
    if len({delay.attributes["steps"] for delay in delays}) != 1 or any(_is_open(d) for d in delays):
        return None
    for output in dict.fromkeys(outputs):
        cell = _rnn(output, by_end) if len(delays) == 1 else _lstm(output, by_end) if len(delays) == 2 else None
        if cell is not None:
            settings = {"backwards": delays[0].attributes["steps"] < 0, **cell[1]}
            op = "rnn" if len(delays) == 1 else "lstm"
            return output, Node(op, cell[0], settings, output.type, output.name)
    return None


def _is_open(delay: Node) -> bool:
    """Return whether an initial state is none of torch's layers: with steps, or of another shape for each sample."""
    initial = reads(delay)[1]
    return len(initial.axes) > 1 or (bool(initial.axes) and initial.shape != delay.shape)


def _rnn(output: Node, delays: dict[Node, Node]) -> tuple[tuple[Node, ...], dict[str, str]] | None:
    if output.op not in ("tanh", "relu") or output not in delays:
        return None
    operands_of_sum = _affine(reads(output)[0], delays[output])
    if operands_of_sum is None:
        return None
    return (*operands_of_sum, reads(delays[output])[1]), {"activation": output.op}


def _lstm(output: Node, delays: dict[Node, Node]) -> tuple[tuple[Node, ...], dict[str, str]] | None:
    if output not in delays:
        return None
    (state,) = (end for end in delays if end is not output)
    gates: dict[int, Node] = {}
    cells = output.shape[0] if len(output.shape) == 1 else 0

    def gate(node: Node, op: str, number: int) -> bool:
        """Return whether a node is this part of the sum, after its activation."""
        if node.op != op or (part := reads(node)[0]).op != "slice":
            return False
        get, total = part.attributes, reads(part)[0]
        if total.shape != (4 * cells,) or len(get["axis"]) != 1 or tuple(get["strides"]) != (1,):
            return False
        begin, end = get["begin"][0] % (4 * cells), (get["end"][0] - 1) % (4 * cells) + 1
        gates[number] = total
        return (begin, end) == (number * cells, (number + 1) * cells)

    def is_product(node: Node, number: int, factor: object) -> bool:
        """Return whether a node is a gate times the second operand, in any order."""
        if node.op != "element_times":
            return False
        a, b = reads(node)
        return any(gate(x, "sigmoid", number) and _is(y, factor) for x, y in ((a, b), (b, a)))

    def _is(node: Node, factor: object) -> bool:
        if isinstance(factor, int):
            return gate(node, "tanh", factor)
        if isinstance(factor, tuple):
            return node.op == "tanh" and reads(node)[0] is factor[0]
        return node is factor

    if state.op != "plus" or not is_product(output, 3, (state,)):
        return None
    a, b = reads(state)
    is_sum = any(is_product(x, 2, delays[state]) and is_product(y, 0, 1) for x, y in ((a, b), (b, a)))
    if not is_sum or len(set(gates.values())) != 1:
        return None
    operands_of_sum = _affine(gates[0], delays[output])
    if operands_of_sum is None:
        return None
    return (*operands_of_sum, *(reads(delays[end])[1] for end in (output, state))), {}


def _affine(total: Node, past: Node) -> tuple[Node, Node, Node, Node] | None:
    """Return x, W, H and b of a sum ``x W + past H + b``, or None for all other nodes."""
    terms, waiting = [], [total]
    while waiting:
        node = waiting.pop()
        if node.op == "plus":
            waiting += reads(node)
        else:
            terms.append(node)
    products = [n for n in terms if n.op == "times" and len(n.inputs[1].shape) == 2 and len(n.inputs[0].shape) == 1]
    vectors = [n for n in terms if n.weights is not None and n.shape == total.shape]
    recurrent = [n for n in products if reads(n)[0] is past]
    if len(terms) != 3 or len(products) != 2 or len(vectors) != 1 or len(recurrent) != 1:
        return None
    (of_x,) = (n for n in products if n is not recurrent[0])
    x, kernel = reads(of_x)
    if len(x.axes) < 2 or any(n.weights is None for n in (kernel, reads(recurrent[0])[1])):
        return None
    return x, kernel, reads(recurrent[0])[1], vectors[0]
