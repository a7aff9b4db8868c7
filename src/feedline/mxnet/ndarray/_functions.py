"""Functions of arrays and numbers that are no operators of symbols: arithmetic by name, joining, constructors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from feedline._facades import defined_in
from feedline.mxnet.context import Context, current_context
from feedline.mxnet.ndarray._dense import NDArray, torch_dtype


def _two(
    name: str, method: Callable[[Any, Any], Any], numbers: Callable[[Any, Any], Any], what: str
) -> Callable[[Any, Any], Any]:
    def function(lhs: Any, rhs: Any) -> Any:
        arrays = isinstance(lhs, NDArray) or isinstance(rhs, NDArray)
        return method(lhs, rhs) if arrays else numbers(lhs, rhs)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Return {what}, element by element, of two arrays that broadcast, or an array and a number."
    return function


def _on_tensors(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def method(lhs: Any, rhs: Any) -> Any:
        like = lhs if isinstance(lhs, NDArray) else rhs
        a, b = (x.tensor if isinstance(x, NDArray) else torch.as_tensor(x, dtype=like.tensor.dtype) for x in (lhs, rhs))
        return NDArray(function(a.to(like.tensor.device), b.to(like.tensor.device)), like.context)

    return method


add = _two("add", operator.add, operator.add, "sums")
subtract = _two("subtract", operator.sub, operator.sub, "differences")
multiply = _two("multiply", operator.mul, operator.mul, "products")
divide = _two("divide", operator.truediv, operator.truediv, "quotients")
true_divide = _two("true_divide", operator.truediv, operator.truediv, "quotients")
modulo = _two("modulo", _on_tensors(torch.remainder), operator.mod, "remainders with the divisor's sign")
power = _two("power", _on_tensors(torch.pow), operator.pow, "powers")
maximum = _two("maximum", _on_tensors(torch.maximum), max, "the larger numbers")
minimum = _two("minimum", _on_tensors(torch.minimum), min, "the smaller numbers")
equal = _two("equal", operator.eq, operator.eq, "1 where equal, else 0,")
not_equal = _two("not_equal", operator.ne, operator.ne, "1 where not equal, else 0,")
greater = _two("greater", operator.gt, operator.gt, "1 where greater, else 0,")
greater_equal = _two("greater_equal", operator.ge, operator.ge, "1 where not less, else 0,")
lesser = _two("lesser", operator.lt, operator.lt, "1 where less, else 0,")
lesser_equal = _two("lesser_equal", operator.le, operator.le, "1 where not greater, else 0,")


def concatenate(arrays: Sequence[NDArray], axis: int = 0, always_copy: bool = True) -> NDArray:
    """Join arrays along an axis. A single one is copied only if ``always_copy``."""
    if not arrays:
        raise ValueError("expected at least one array, got none")
    if len(arrays) == 1 and not always_copy:
        return arrays[0]
    return NDArray(torch.cat([array.tensor for array in arrays], axis), arrays[0].context)


def moveaxis(tensor: NDArray, source: Any, destination: Any) -> NDArray:
    """Move axes to other positions."""
    return NDArray(torch.movedim(tensor.tensor, source, destination), tensor.context)


def eye(
    N: int,  # noqa: N803 - MXNet's name
    M: int = 0,  # noqa: N803
    k: int = 0,
    ctx: Context | None = None,
    dtype: Any = None,
) -> NDArray:
    """Return a matrix (N, M) with ones on its k-th diagonal. An M of 0 is N."""
    ctx = current_context() if ctx is None else ctx
    return NDArray(torch.from_numpy(np.eye(N, M or N, k)).to(ctx.device, torch_dtype(dtype)), ctx)


def linspace(
    start: float, stop: float, num: int, endpoint: bool = True, ctx: Context | None = None, dtype: Any = None
) -> NDArray:
    """Return ``num`` evenly spaced numbers from ``start`` to ``stop``, which is excluded without ``endpoint``."""
    ctx = current_context() if ctx is None else ctx
    numbers = np.linspace(start, stop, num, endpoint=endpoint)
    return NDArray(torch.from_numpy(numbers).to(ctx.device, torch_dtype(dtype)), ctx)


def from_numpy(ndarray: Any, zero_copy: bool = True) -> NDArray:
    """Return an array over a NumPy array, or with ``zero_copy=False`` a copy of it."""
    tensor = torch.from_numpy(ndarray)
    return NDArray(tensor if zero_copy else tensor.clone(), current_context())


__all__ = defined_in(globals())
