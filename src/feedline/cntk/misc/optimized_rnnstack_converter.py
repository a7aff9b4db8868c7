"""`cntk.misc.optimized_rnnstack_converter`: stacks of recurrences as layers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.cntk import layers
from feedline.cntk._names import names_of
from feedline.cntk.misc.converter import convert
from feedline.cntk.ops import relu, splice, tanh
from feedline.cntk.ops.functions import Function

__all__, __getattr__ = names_of(__name__)

_GATES = {"lstm": 4, "rnnReLU": 1, "rnnTanh": 1}


def convert_optimized_rnnstack(cudnn_model: Any) -> Function:
    """Return a copy of a model whose `optimized_rnnstack` are `layers.Recurrence`, with new parameters.

    Stacks that share a parameter share the parameters of the layers.

    Raises:
        ValueError: a stack of GRUs, which differ from `layers.GRU`.
    """
    converted: dict[Any, list[list[Any]]] = {}

    def converter(stack: Any) -> Any:
        x, weights = stack.inputs
        if weights.node not in converted:
            converted[weights.node] = _layers(stack, np.asarray(weights.value).reshape(-1))
        for directions in converted[weights.node]:
            outputs = [layer(x) for layer in directions]
            x = outputs[0] if len(outputs) == 1 else splice(*outputs)
        return x

    return convert(cudnn_model, lambda f: "recurrentOp" in f.node.attributes, converter)


def _layers(stack: Any, numbers: NDArray[Any]) -> list[list[Any]]:
    """Return the recurrences of each layer, with the numbers of the stack."""
    get = stack.node.attributes
    op, hidden = get["recurrentOp"], get["hiddenSize"]
    if op not in _GATES:
        raise ValueError(f"expected a stack of LSTMs or plain recurrences, got {op!r}: its gates are other ones")
    rows, directions = _GATES[op] * hidden, 2 if get["bidirectional"] else 1
    sizes = [stack.inputs[0].shape[0], *[directions * hidden] * (get["numLayers"] - 1)]
    at, steps = 0, []
    for size in sizes:
        for _ in range(directions):
            step = _step(op, hidden)
            for weights, columns in ((step.W, size), (step.H, hidden)):
                part = numbers[at : at + rows * columns].reshape(rows, columns)
                _set(weights, _reorder(part.T, op))
                at += rows * columns
            steps.append(step)
    for step in steps:
        _set(step.b, _reorder(numbers[at : at + rows] + numbers[at + rows : at + 2 * rows], op))
        at += 2 * rows
    recurrences = [layers.Recurrence(step, go_backwards=i % directions == 1) for i, step in enumerate(steps)]
    return [recurrences[i : i + directions] for i in range(0, len(recurrences), directions)]


def _step(op: str, hidden: int) -> Any:
    return layers.LSTM(hidden) if op == "lstm" else layers.RNNStep(hidden, activation=relu if "ReLU" in op else tanh)


def _set(parameter: Any, value: NDArray[Any]) -> None:
    if -1 in parameter.shape:
        parameter.node.weights.fix_shape(value.shape)
    parameter.value = np.ascontiguousarray(value)


def _reorder(weights: NDArray[Any], op: str) -> NDArray[Any]:
    """Exchange forget gate and candidate of an LSTM."""
    if op != "lstm":
        return weights
    i, f, c, o = np.split(weights, 4, axis=-1)
    return np.concatenate([i, c, f, o], axis=-1)
