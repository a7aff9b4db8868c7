"""Translate ONNX's recurrences: LSTM, GRU and RNN, and ``Scan``, whose body computes one step.

ONNX orders the gates of an LSTM as input, output, forget, candidate, and the gates of a GRU as update, reset,
candidate. CNTK's LSTM has input, candidate, forget, output.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from feedline.cntk._nodes import constant_node
from feedline.cntk._onnx.reader import Call, Reader, Translation
from feedline.cntk._onnx.values import BATCHES, DIRECTIONS, SINGLE, STEPS, Value, reshape
from feedline.networks import Node, Weights, apply
from feedline.networks.cells import open_cell
from feedline.networks.node import parameter_node, placeholder_node
from feedline.networks.onnx import onnx_library as library
from feedline.networks.traverse import close


def _check_settings(call: Call, defaults: list[str]) -> tuple[list[bool], int]:
    """Return whether each direction goes backwards, and the number of cells.

    Raises:
        CompatError: settings that feedline does not have.
    """
    get = call.attributes
    directions = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[
        get.get("direction", "forward")
    ]
    activations = [a.lower() for a in get.get("activations", defaults * len(directions))]
    if activations != [a.lower() for a in defaults] * len(directions) and call.op != "RNN":
        raise call.refuse(f"expected the activations {defaults}, got {activations}")
    if get.get("clip") or get.get("layout", 0) or call.has(4) or (call.op == "LSTM" and call.has(7)):
        raise call.refuse("expected no clip, no layout, no sequence_lens and no peepholes, got some of them")
    if call.value().layout != (STEPS, BATCHES):
        raise call.refuse(f"expected steps and the batch as the first axes, got {call.value().layout}")
    return directions, int(get["hidden_size"])


def _weights(call: Call, i: int, direction: int, rows: int) -> np.ndarray[Any, Any]:
    """Return the weights of a direction, or zeros if there are none."""
    if not call.has(i):
        return np.zeros(rows, np.float32)
    return np.asarray(call.array(i)[direction])


def _parameter(array: np.ndarray[Any, Any], name: str) -> Node:
    array = np.ascontiguousarray(array)
    return parameter_node(Weights(array.shape, lambda shape: array, array.dtype.name), name)


def _initial(call: Call, i: int, direction: int) -> Node:
    """Return the state before the first step."""
    if not call.has(i):
        return constant_node(0.0)
    value = call.value(i)
    if not value.layout or value.layout[0] == SINGLE:
        node = value.node
        if value.layout or len(node.shape) < 2:
            return node
        if node.shape[:2] != (1, 1):
            raise call.refuse(f"expected the same initial state for all sequences, got {node.shape}")
        return reshape(node, node.shape[2:])
    if value.layout[0] == 1:
        return value.node
    raise call.refuse(f"expected initial states of one direction, got {value.layout}")


def _reorder(array: np.ndarray[Any, Any], order: list[int]) -> np.ndarray[Any, Any]:
    gates = np.split(array, len(order))
    return np.concatenate([gates[i] for i in order])


def _results(call: Call, directions: list[list[Node]], backwards: list[bool]) -> list[Any]:
    """Return all steps, and the last of each state, for one or two directions.

    Args:
        call: call of the recurrence.
        directions: for each direction, the nodes of its states.
        backwards: for each direction, whether it goes backwards.
    """
    single = len(directions) == 1
    if single:
        steps = Value(directions[0][0], (STEPS, SINGLE, BATCHES))
    else:
        outputs = [reshape(states[0], (1, *states[0].shape)) for states in directions]
        steps = Value(apply("splice", outputs, {"axis": -2}), (STEPS, DIRECTIONS, BATCHES))
    results: list[Any] = [steps]
    for i in range(len(directions[0])):
        if len(call.outputs) > i + 1 and call.outputs[i + 1]:
            if not single:
                raise call.refuse("expected final states of one direction only, got them of both")
            op = "sequence_first" if backwards[0] else "sequence_last"
            results.append(Value(apply(op, [directions[0][i]]), (SINGLE, BATCHES)))
        else:
            results.append(None)
    return results


def _lstm(call: Call) -> list[Any]:
    backwards, cells = _check_settings(call, ["Sigmoid", "Tanh", "Tanh"])
    directions = []
    for i, reverse in enumerate(backwards):
        w, r = (_reorder(_weights(call, k, i, 0), [0, 3, 2, 1]).T for k in (1, 2))
        b = _weights(call, 3, i, 8 * cells)
        bias = _reorder(b[: 4 * cells] + b[4 * cells :], [0, 3, 2, 1])
        nodes = [_parameter(a, n) for a, n in ((w, "W"), (r, "H"), (bias.astype(w.dtype), "b"))]
        states = [_initial(call, k, i) for k in (5, 6)]
        x = call.value().node
        if len(call.outputs) > 2 and call.outputs[2]:
            directions.append(_lstm_states(x, nodes, states, reverse))
        else:
            directions.append([apply("lstm", [x, *nodes, *states], {"backwards": reverse})])
    return _results(call, directions, backwards)


def _lstm_states(x: Node, weights: list[Node], initial: list[Node], backwards: bool) -> list[Node]:
    """Return outputs and cells. A fused kernel returns the outputs alone."""
    cell = apply("lstm", [x, *weights, *initial], {"backwards": backwards})
    output, states = open_cell(cell)
    ends = list(states.values())
    return close([output, ends[1]], states)[:2]


def _rnn(call: Call) -> list[Any]:
    backwards, cells = _check_settings(call, ["Tanh"])
    activations = [a.lower() for a in call.attributes.get("activations", ["Tanh"] * len(backwards))]
    directions = []
    for i, reverse in enumerate(backwards):
        if activations[i] not in ("tanh", "relu"):
            raise call.refuse(f"expected the activation Tanh or Relu, got {activations[i]}")
        w, r = (_weights(call, k, i, 0).T for k in (1, 2))
        b = _weights(call, 3, i, 2 * cells)
        nodes = [_parameter(a, n) for a, n in ((w, "W"), (r, "H"), ((b[:cells] + b[cells:]).astype(w.dtype), "b"))]
        settings = {"activation": activations[i], "backwards": reverse}
        directions.append([apply("rnn", [call.value().node, *nodes, _initial(call, 5, i)], settings)])
    return _results(call, directions, backwards)


def _gru(call: Call) -> list[Any]:
    backwards, cells = _check_settings(call, ["Sigmoid", "Tanh"])
    after = bool(call.attributes.get("linear_before_reset", 0))
    directions = []
    for i, reverse in enumerate(backwards):
        w, r = (np.split(_weights(call, k, i, 0), 3) for k in (1, 2))
        b = np.split(_weights(call, 3, i, 6 * cells).astype(w[0].dtype), 6)
        kernels = [_parameter(a.T, f"W{n}") for a, n in zip(w, "zrh", strict=True)]
        recurrent = [_parameter(a.T, f"H{n}") for a, n in zip(r, "zrh", strict=True)]
        biases = [_parameter(a, f"b{n}") for a, n in zip(b, ("z", "r", "h", "z2", "r2", "h2"), strict=True)]
        state = placeholder_node(name="h")
        past = apply("delay", [state, _initial(call, 5, i)], {"steps": -1 if reverse else 1})
        x = call.value().node
        z, reset = (
            apply("sigmoid", [_sum(_times(x, kernels[k]), _times(past, recurrent[k]), biases[k], biases[k + 3])])
            for k in (0, 1)
        )
        if after:
            from_state = apply("element_times", [reset, _sum(_times(past, recurrent[2]), biases[5])])
        else:
            from_state = _sum(_times(apply("element_times", [reset, past]), recurrent[2]), biases[5])
        new = apply("tanh", [_sum(_times(x, kernels[2]), biases[2], from_state)])
        carried = apply("element_times", [z, past])
        output = _sum(apply("element_times", [apply("minus", [constant_node(1.0), z]), new]), carried)
        directions.append(close([output], {state: output})[:1])
    return _results(call, directions, backwards)


def _times(x: Node, weights: Node) -> Node:
    return apply("times", [x, weights], {"output_rank": 1, "map_rank": None})


def _sum(*nodes: Node) -> Node:
    total = nodes[0]
    for node in nodes[1:]:
        total = apply("plus", [total, node])
    return total


def _scan(call: Call) -> list[Any]:
    get = call.attributes
    body, scanned = get["body"], int(get["num_scan_inputs"])
    count = len(call.inputs) - scanned
    outputs = len(body.output) - count
    directions = {*get.get("scan_input_directions", [0] * scanned), *get.get("scan_output_directions", [0] * outputs)}
    axes = {*get.get("scan_input_axes", [0]), *get.get("scan_output_axes", [0])}
    if len(directions) != 1 or axes != {0}:
        raise call.refuse("expected steps along the first axes, all in one direction, got others")
    backwards = bool(directions.pop())
    steps = [call.value(i) for i in range(count, len(call.inputs))]
    if any(value.layout[:1] != (STEPS,) for value in steps):
        raise call.refuse("expected sequences as inputs, got others")
    inner = Reader(call.reader.translations, call.reader.opset, call.reader)
    for initializer in body.initializer:
        array = library.array_of(initializer)
        integers = array.dtype.kind != "f"
        inner.values[initializer.name] = array if integers else Value(constant_node(array))
    states = []
    for declared, i in zip(body.input, range(count), strict=False):
        initial = call.value(i)
        state = placeholder_node(initial.node.shape, steps[0].node.axes, declared.name)
        past = apply("delay", [state, initial.node], {"steps": -1 if backwards else 1})
        states.append(state)
        inner.values[declared.name] = Value(past, (BATCHES,))
    for declared, value in zip(body.input[count:], steps, strict=True):
        inner.values[declared.name] = Value(value.node, value.layout[1:])
    inner.run(body.node)
    ends = [inner.value(output.name, call.label).node for output in body.output[:count]]
    bodies = [inner.value(output.name, call.label).node for output in body.output[count:]]
    closed = close([*bodies, *ends], dict(zip(states, ends, strict=True)))
    op = "sequence_first" if backwards else "sequence_last"
    finals: list[Any] = [
        Value(apply(op, [node]), (BATCHES,)) if name else None
        for node, name in zip(closed[outputs : outputs + count], call.outputs, strict=False)
    ]
    return [*finals, *(Value(node, (STEPS, BATCHES)) for node in closed[:outputs])]


TRANSLATIONS: dict[str, Translation] = {"LSTM": _lstm, "RNN": _rnn, "GRU": _gru, "Scan": _scan}
