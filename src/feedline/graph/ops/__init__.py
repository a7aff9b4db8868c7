"""The operations that torch can run here, by theme; importing this declares them all."""

from feedline.graph.ops import (
    convolution,
    elementwise,
    linear,
    losses,
    normalization,
    random,
    recurrence,
    reductions,
    sequence,
    shape,
    user,
)

__all__ = [
    "convolution",
    "elementwise",
    "linear",
    "losses",
    "normalization",
    "random",
    "recurrence",
    "reductions",
    "sequence",
    "shape",
    "user",
]
