"""ONNX's recurrences as the graph's: LSTM, GRU and RNN, and ``Scan``, in whose body one step is computed.

ONNX has the gates of an LSTM in the order input, output, forget, candidate, and those of a GRU in the order update,
reset, candidate; CNTK's LSTM has input, candidate, forget, output.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from feedline.cntk._nodes import constant_node
from feedline.cntk._onnx import library
from feedline.cntk._onnx.reader import Given, Reader, Translation
from feedline.cntk._onnx.values import BATCHES, DIRECTIONS, SINGLE, STEPS, Value, reshaped
from feedline.networks import Node, Weights, apply
from feedline.networks.cells import opened
from feedline.networks.node import parameter_node, placeholder_node
from feedline.networks.traverse import close


def _checked(given: Given, defaults: list[str]) -> tuple[list[bool], int]:
    """Return for each direction whether it goes backwards, and the number of cells.

    Raises:
        CompatError: settings that feedline does not have.
    """
    get = given.attributes
    directions = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[
        get.get("direction", "forward")
    ]
    activations = [a.lower() for a in get.get("activations", defaults * len(directions))]
    if activations != [a.lower() for a in defaults] * len(directions) and given.op != "RNN":
        raise given.refuse(f"expected the activations {defaults}, got {activations}")
    if get.get("clip") or get.get("layout", 0) or given.has(4) or (given.op == "LSTM" and given.has(7)):
        raise given.refuse("expected neither clip, layout, lengths of sequences nor peepholes")
    if given.value().layout != (STEPS, BATCHES):
        raise given.refuse(f"expected steps and the batch as the first axes, got {given.value().layout}")
    return directions, int(get["hidden_size"])


def _weights(given: Given, i: int, direction: int, rows: int) -> np.ndarray[Any, Any]:
    """Return the weights of a direction, or zeros if there are none."""
    if not given.has(i):
        return np.zeros(rows, np.float32)
    return np.asarray(given.known(i)[direction])


def _parameter(array: np.ndarray[Any, Any], name: str) -> Node:
    array = np.ascontiguousarray(array)
    return parameter_node(Weights(array.shape, lambda shape: array, array.dtype.name), name)


def _initial(given: Given, i: int, direction: int) -> Node:
    """Return the state before the first step."""
    if not given.has(i):
        return constant_node(0.0)
    value = given.value(i)
    if not value.layout or value.layout[0] == SINGLE:
        node = value.node
        if value.layout or len(node.shape) < 2:
            return node
        if node.shape[:2] != (1, 1):
            raise given.refuse(f"expected the same initial state for all sequences, got {node.shape}")
        return reshaped(node, node.shape[2:])
    if value.layout[0] == 1:
        return value.node
    raise given.refuse(f"expected initial states of one direction, got {value.layout}")


def _ordered(array: np.ndarray[Any, Any], order: list[int]) -> np.ndarray[Any, Any]:
    gates = np.split(array, len(order))
    return np.concatenate([gates[i] for i in order])


def _results(given: Given, found: list[list[Node]], backwards: list[bool]) -> list[Any]:
    """Return all steps, and the last of each state, for one or two directions.

    Args:
        given: node.
        found: for each direction, the nodes of its states.
        backwards: for each direction, whether it goes backwards.
    """
    single = len(found) == 1
    if single:
        steps = Value(found[0][0], (STEPS, SINGLE, BATCHES))
    else:
        both = [reshaped(states[0], (1, *states[0].shape)) for states in found]
        steps = Value(apply("splice", both, {"axis": -2}), (STEPS, DIRECTIONS, BATCHES))
    results: list[Any] = [steps]
    for i in range(len(found[0])):
        if len(given.outputs) > i + 1 and given.outputs[i + 1]:
            if not single:
                raise given.refuse("expected final states of one direction only")
            op = "sequence_first" if backwards[0] else "sequence_last"
            results.append(Value(apply(op, [found[0][i]]), (SINGLE, BATCHES)))
        else:
            results.append(None)
    return results


def _lstm(given: Given) -> list[Any]:
    backwards, cells = _checked(given, ["Sigmoid", "Tanh", "Tanh"])
    found = []
    for i, turned in enumerate(backwards):
        w, r = (_ordered(_weights(given, k, i, 0), [0, 3, 2, 1]).T for k in (1, 2))
        b = _weights(given, 3, i, 8 * cells)
        bias = _ordered(b[: 4 * cells] + b[4 * cells :], [0, 3, 2, 1])
        nodes = [_parameter(a, n) for a, n in ((w, "W"), (r, "H"), (bias.astype(w.dtype), "b"))]
        states = [_initial(given, k, i) for k in (5, 6)]
        x = given.value().node
        if len(given.outputs) > 2 and given.outputs[2]:
            found.append(_lstm_states(x, nodes, states, turned))
        else:
            found.append([apply("lstm", [x, *nodes, *states], {"backwards": turned})])
    return _results(given, found, backwards)


def _lstm_states(x: Node, weights: list[Node], initial: list[Node], backwards: bool) -> list[Node]:
    """Outputs and cells, of which a fused kernel returns the first alone."""
    cell = apply("lstm", [x, *weights, *initial], {"backwards": backwards})
    output, states = opened(cell)
    ends = list(states.values())
    return close([output, ends[1]], states)[:2]


def _rnn(given: Given) -> list[Any]:
    backwards, cells = _checked(given, ["Tanh"])
    activations = [a.lower() for a in given.attributes.get("activations", ["Tanh"] * len(backwards))]
    found = []
    for i, turned in enumerate(backwards):
        if activations[i] not in ("tanh", "relu"):
            raise given.refuse(f"expected the activation Tanh or Relu, got {activations[i]}")
        w, r = (_weights(given, k, i, 0).T for k in (1, 2))
        b = _weights(given, 3, i, 2 * cells)
        nodes = [_parameter(a, n) for a, n in ((w, "W"), (r, "H"), ((b[:cells] + b[cells:]).astype(w.dtype), "b"))]
        settings = {"activation": activations[i], "backwards": turned}
        found.append([apply("rnn", [given.value().node, *nodes, _initial(given, 5, i)], settings)])
    return _results(given, found, backwards)


def _gru(given: Given) -> list[Any]:
    backwards, cells = _checked(given, ["Sigmoid", "Tanh"])
    after = bool(given.attributes.get("linear_before_reset", 0))
    found = []
    for i, turned in enumerate(backwards):
        w, r = (np.split(_weights(given, k, i, 0), 3) for k in (1, 2))
        b = np.split(_weights(given, 3, i, 6 * cells).astype(w[0].dtype), 6)
        kernels = [_parameter(a.T, f"W{n}") for a, n in zip(w, "zrh", strict=True)]
        recurrent = [_parameter(a.T, f"H{n}") for a, n in zip(r, "zrh", strict=True)]
        biases = [_parameter(a, f"b{n}") for a, n in zip(b, ("z", "r", "h", "z2", "r2", "h2"), strict=True)]
        state = placeholder_node(name="h")
        past = apply("delay", [state, _initial(given, 5, i)], {"steps": -1 if turned else 1})
        x = given.value().node
        z, reset = (
            apply("sigmoid", [_sum(_times(x, kernels[k]), _times(past, recurrent[k]), biases[k], biases[k + 3])])
            for k in (0, 1)
        )
        if after:
            from_state = apply("element_times", [reset, _sum(_times(past, recurrent[2]), biases[5])])
        else:
            from_state = _sum(_times(apply("element_times", [reset, past]), recurrent[2]), biases[5])
        new = apply("tanh", [_sum(_times(x, kernels[2]), biases[2], from_state)])
        kept = apply("element_times", [z, past])
        output = _sum(apply("element_times", [apply("minus", [constant_node(1.0), z]), new]), kept)
        found.append(close([output], {state: output})[:1])
    return _results(given, found, backwards)


def _times(x: Node, weights: Node) -> Node:
    return apply("times", [x, weights], {"output_rank": 1, "map_rank": None})


def _sum(*nodes: Node) -> Node:
    total = nodes[0]
    for node in nodes[1:]:
        total = apply("plus", [total, node])
    return total


def _scan(given: Given) -> list[Any]:
    get = given.attributes
    body, many = get["body"], int(get["num_scan_inputs"])
    count = len(given.inputs) - many
    outputs = len(body.output) - count
    turned = {*get.get("scan_input_directions", [0] * many), *get.get("scan_output_directions", [0] * outputs)}
    axes = {*get.get("scan_input_axes", [0]), *get.get("scan_output_axes", [0])}
    if len(turned) != 1 or axes != {0}:
        raise given.refuse("expected steps along the first axes, all in one direction")
    backwards = bool(turned.pop())
    steps = [given.value(i) for i in range(count, len(given.inputs))]
    if any(value.layout[:1] != (STEPS,) for value in steps):
        raise given.refuse("expected sequences as inputs")
    inner = Reader(given.reader.translations, given.reader.opset, given.reader)
    for initializer in body.initializer:
        array = library.array_of(initializer)
        whole = array.dtype.kind != "f"
        inner.values[initializer.name] = array if whole else Value(constant_node(array))
    states = []
    for declared, i in zip(body.input, range(count), strict=False):
        initial = given.value(i)
        state = placeholder_node(initial.node.shape, steps[0].node.axes, declared.name)
        past = apply("delay", [state, initial.node], {"steps": -1 if backwards else 1})
        states.append(state)
        inner.values[declared.name] = Value(past, (BATCHES,))
    for declared, value in zip(body.input[count:], steps, strict=True):
        inner.values[declared.name] = Value(value.node, value.layout[1:])
    inner.run(body.node)
    ends = [inner.value(output.name, given.label).node for output in body.output[:count]]
    bodies = [inner.value(output.name, given.label).node for output in body.output[count:]]
    closed = close([*bodies, *ends], dict(zip(states, ends, strict=True)))
    op = "sequence_first" if backwards else "sequence_last"
    finals: list[Any] = [
        Value(apply(op, [node]), (BATCHES,)) if name else None
        for node, name in zip(closed[outputs : outputs + count], given.outputs, strict=False)
    ]
    return [*finals, *(Value(node, (STEPS, BATCHES)) for node in closed[:outputs])]


TRANSLATIONS: dict[str, Translation] = {"LSTM": _lstm, "RNN": _rnn, "GRU": _gru, "Scan": _scan}
