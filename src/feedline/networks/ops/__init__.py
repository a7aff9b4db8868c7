"""The operations that torch can run here, by theme; importing this declares them all."""

from feedline.networks.ops import (
    attention,
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
    "attention",
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
