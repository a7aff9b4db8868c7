"""Elementwise functions with CNTK's rules at the edges of their domains, and for ties between operands.

torch has other values or gradients at such points: it halves the gradient of a maximum between equal operands, and
divides by zero. Networks reach them often (clipped values are *on* the bound, a rectifier's output *is* 0), so each
function here defines its behaviour there. Elsewhere all are torch's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

# Below the first number the logarithm is the second, with the derivative that the logarithm has at that value.
SMALLEST_IN_LOG = float(np.float32(1e-37))
LOG_OF_SMALLEST = float(np.float32(-85.1))
SLOPE_OF_SMALLEST = float(np.exp(-LOG_OF_SMALLEST))


def larger(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Maximum of two. Of equal operands the second gets the gradient."""
    return torch.where(a > b, a, b)


def smaller(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Minimum of two. Of equal operands the second gets the gradient."""
    return torch.where(a < b, a, b)


def clip(x: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Clip to bounds, which get no gradient. Values on a bound do. The lower bound takes precedence."""
    return torch.where(x < low, low.detach(), torch.where(x > high, high.detach(), x))


def logarithm(x: torch.Tensor) -> torch.Tensor:
    """Natural logarithm, with a floor."""
    tiny = x < SMALLEST_IN_LOG
    floor = (x - x.detach()) * SLOPE_OF_SMALLEST + LOG_OF_SMALLEST
    return torch.where(tiny, floor, torch.log(torch.where(tiny, 1.0, x)))


def square_root(x: torch.Tensor) -> torch.Tensor:
    """Square root, 0 below 0, with the infinite slope that it has at 0."""
    return torch.sqrt(x + (x.clamp_min(0) - x).detach())


def quotient(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a / b``, or 0 without gradients where b is 0."""
    nothing = b == 0
    return torch.where(nothing, 0.0, a / torch.where(nothing, 1.0, b))


def inverse(x: torch.Tensor) -> torch.Tensor:
    """``1 / x``, or 0 without a gradient where x is 0."""
    nothing = x == 0
    return torch.where(nothing, 0.0, torch.reciprocal(torch.where(nothing, 1.0, x)))


def rectify(x: torch.Tensor, below: torch.Tensor) -> torch.Tensor:
    """``x`` for ``x >= 0``, else ``below``. At 0 the gradient goes to x."""
    return torch.where(x >= 0, x, below)


def elu(x: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
    """``alpha * (exp(x) - 1)`` below 0."""
    return rectify(x, alpha * torch.expm1(x.clamp_max(0)))


def ramp(x: torch.Tensor) -> torch.Tensor:
    """Clip to 0 and 1, where the gradient is 0."""
    return torch.where((x > 0) & (x < 1), x, x.detach().clamp(0, 1))


def binary(x: torch.Tensor) -> torch.Tensor:
    """1 above 0, else -1. The gradient passes where the operand is between -1 and 1, bounds included."""
    passed = torch.where(x.abs() <= 1, x, x.detach())
    return torch.where(x > 0, 1.0, -1.0).to(x.dtype) + (passed - passed.detach())


def truth(x: torch.Tensor) -> torch.Tensor:
    """Truth values: everything above 0 is true."""
    return x > 0


class _Power(torch.autograd.Function):
    """``base ** exponent`` for equal shapes, 0 for a base of 0 and a negative exponent.

    The gradient for the exponent is 0 wherever the base has no logarithm.
    """

    @staticmethod
    def forward(context: Any, base: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(base, exponent)
        return _power(base, exponent)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        base, exponent = context.saved_tensors
        for_base = for_exponent = None
        if context.needs_input_grad[0]:
            for_base = gradient * exponent * _power(base, exponent - 1)
        if context.needs_input_grad[1]:
            slope = _power(base, exponent) * torch.log(torch.where(base > 0, base, 1.0))
            for_exponent = gradient * torch.where(base > 0, slope, 0.0)
        return for_base, for_exponent


def _power(base: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    return torch.where((base == 0) & (exponent < 0), 0.0, torch.pow(base, exponent))


def power(base: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """``base ** exponent``, 0 for a base of 0 and a negative exponent."""
    return _Power.apply(*torch.broadcast_tensors(base, exponent))


class _Extreme(torch.autograd.Function):
    """The largest or smallest elements along axes. Every one of them gets the whole gradient."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, dims: tuple[int, ...], keepdim: bool, largest: bool) -> torch.Tensor:
        extreme = (torch.amax if largest else torch.amin)(x, dims, True)
        context.save_for_backward(x, extreme)
        return extreme if keepdim else extreme.squeeze(dims)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        x, extreme = context.saved_tensors
        return torch.where(x == extreme, gradient.reshape(extreme.shape), 0.0), None, None, None


def largest(x: torch.Tensor, dims: tuple[int, ...], keepdim: bool = False) -> torch.Tensor:
    """Maximum along axes. See `_Extreme`."""
    return _Extreme.apply(x, dims, keepdim, True)


def smallest(x: torch.Tensor, dims: tuple[int, ...], keepdim: bool = False) -> torch.Tensor:
    """Minimum along axes. See `_Extreme`."""
    return _Extreme.apply(x, dims, keepdim, False)


def first_largest(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """Maximum over the last axes, kept with length 1. Of equal elements the first gets the gradient, as in pooling."""
    extreme = x.flatten(min(dims)).max(-1).values
    return extreme.reshape(*extreme.shape, *(1,) * len(dims))
