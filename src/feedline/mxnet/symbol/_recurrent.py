"""`RNN`: stacked recurrent layers over a whole sequence, with parameters in one vector, as cuDNN packs them.

Weights of all layers and directions come first (input to hidden, hidden to hidden), then biases in the same order, with
gates in torch's order. So pieces of the vector are passed to torch unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch

from feedline.mxnet.symbol._operator import define, from_data
from feedline.mxnet.symbol._parameters import Count, Fraction, Positive, Shape

_GATES = {"gru": 3, "lstm": 4, "rnn_relu": 1, "rnn_tanh": 1}


def _pieces(width: int, mode: str, state_size: int, layers: int, directions: int) -> list[Shape]:
    """Return the shapes of all weights, then of all biases."""
    rows = _GATES[mode] * state_size
    weights: list[Shape] = []
    for layer in range(layers):
        below = width if layer == 0 else state_size * directions
        weights += [(rows, below), (rows, state_size)] * directions
    return weights + [(rows,)] * len(weights)


def _shapes(x: Shape, p: Any) -> Sequence[Shape]:
    if len(x) != 3:
        raise ValueError(f"expected data (steps, batch, width), got {x}")
    directions = 1 + p.bidirectional
    state = (p.num_layers * directions, x[1], p.state_size)
    pieces = _pieces(x[2], p.mode, p.state_size, p.num_layers, directions)
    return (sum(map(math.prod, pieces)),), state, state


@define(
    "RNN",
    when={"state_cell": lambda p: p.mode == "lstm"},
    weights="parameters",
    outputs=lambda p: 1 + p.state_outputs * (2 if p.mode == "lstm" else 1),
    called="output state_output statecell_output",
    shape=from_data(_shapes, complete=True),
)
def _run(
    data: Any,
    parameters: Any,
    state: Any,
    state_cell: Any = None,
    *,
    training: bool,
    state_size: Positive,
    num_layers: Count,
    bidirectional: bool = False,
    mode: Literal["gru", "lstm", "rnn_relu", "rnn_tanh"],
    p: Fraction = 0.0,
    state_outputs: bool = False,
    projection_size: Literal["None"] | None = None,
) -> Any:
    if data.is_meta:  # `_shapes` has checked the rest, and torch would iterate over all steps, possibly a million
        out = data.new_empty((*data.shape[:2], state_size * (1 + bidirectional)))
        states = [torch.empty_like(tensor) for tensor in (state, state_cell) if tensor is not None]
        return (out, *states) if state_outputs else out
    shapes = _pieces(data.shape[2], mode, state_size, num_layers, 1 + bidirectional)
    cuts = parameters.split([math.prod(shape) for shape in shapes])
    flat = [piece.reshape(shape) for piece, shape in zip(cuts, shapes, strict=True)]
    half = len(flat) // 2
    # torch expects the two weights and two biases of each layer and direction together.
    ordered = [t for i in range(0, half, 2) for t in (*flat[i : i + 2], *flat[half + i : half + i + 2])]
    initial = (state, state_cell) if mode == "lstm" else state
    result = getattr(torch, mode)(data, initial, ordered, True, num_layers, p, training, bidirectional, False)
    return tuple(result) if state_outputs else result[0]
