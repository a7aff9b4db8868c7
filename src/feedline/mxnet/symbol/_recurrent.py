"""`RNN`: stacked recurrent layers over a whole sequence, their parameters in one vector as cuDNN packs them.

Weights of all layers and directions come first (input to hidden, hidden to hidden), then biases in the same order,
gates in torch's order; so the vector is cut and handed to torch as it is.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from feedline.mxnet.symbol._operator import Names, Shape, Site, define
from feedline.mxnet.symbol._parameters import MOST, Parameter, between, flag, integer, optional, real, word

_GATES = {"gru": 3, "lstm": 4, "rnn_relu": 1, "rnn_tanh": 1}


def _pieces(p: Any, width: int) -> list[Shape]:
    """Shapes of all weights, then of all biases."""
    directions, rows = 1 + p.bidirectional, _GATES[p.mode] * p.state_size
    weights: list[Shape] = []
    for layer in range(p.num_layers):
        below = width if layer == 0 else p.state_size * directions
        weights += [(rows, below), (rows, p.state_size)] * directions
    return weights + [(rows,)] * len(weights)


def _shape(site: Site) -> None:
    x, p = site.full(), site.p
    if x is None:
        return
    if len(x) != 3:
        site.refuse(f"expected data (steps, batch, width), got {x}")
    state = (p.num_layers * (1 + p.bidirectional), x[1], p.state_size)
    site.put_in(1, (sum(math.prod(piece) for piece in _pieces(p, x[2])),))
    for i in range(2, len(site.ins)):
        site.put_in(i, state)


def _run(p: Any, training: bool, x: Any, parameters: Any, state: Any, cell: Any = None) -> Any:
    shapes = _pieces(p, x.shape[2])
    flat = [
        piece.reshape(shape)
        for piece, shape in zip(parameters.split([math.prod(s) for s in shapes]), shapes, strict=True)
    ]
    half = len(flat) // 2
    # torch wants the two weights and the two biases of each layer and direction together.
    ordered = [t for i in range(0, half, 2) for t in (*flat[i : i + 2], *flat[half + i : half + i + 2])]
    function = getattr(torch, p.mode)
    given = (state, cell) if p.mode == "lstm" else state
    result = function(x, given, ordered, True, p.num_layers, p.p, training, bool(p.bidirectional), False)
    return tuple(result) if p.state_outputs else result[0]


def _inputs(p: Any) -> Names:
    return ("data", "parameters", "state", *(("state_cell",) if p.mode == "lstm" else ()))


define(
    "RNN",
    _inputs,
    _run,
    {
        "state_size": Parameter(between(integer, 1)),
        "num_layers": Parameter(between(integer, 1, MOST)),
        "bidirectional": Parameter(flag, False),
        "mode": Parameter(word(*_GATES)),
        "p": Parameter(between(real, 0, 1), 0.0),
        "state_outputs": Parameter(flag, False),
        "projection_size": Parameter(optional(word("None")), None),
    },
    weights="parameters",
    outputs=lambda p: 1 + p.state_outputs * (2 if p.mode == "lstm" else 1),
    called="output state_output statecell_output",
    shape=_shape,
)
