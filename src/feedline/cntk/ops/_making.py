"""Helpers of operations: creating nodes, and reading axes and lists."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from feedline.cntk._nodes import nodes_of
from feedline.cntk.axis import Axis
from feedline.cntk.ops._function import Function
from feedline.networks import apply


def made(op: str, operands: Sequence[Any], attributes: Mapping[str, Any] | None, name: str) -> Function:
    return Function.of([apply(op, nodes_of(*operands), attributes, name)])


def named(function: Callable[..., Function], name: str, what: str) -> Callable[..., Function]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = what
    return function


def kind(x: Any) -> Any:
    return x.dtype if hasattr(x, "node") else np.float32


def axis_number(axis: Any) -> int:
    if isinstance(axis, Axis):
        return axis.static_axis_index()
    if isinstance(axis, numbers.Integral):
        return int(axis)
    raise TypeError(f"expected a static axis, got {axis!r}")


def axis_numbers(axes: Any) -> list[int]:
    return [axis_number(a) for a in (axes if isinstance(axes, (list, tuple)) else [axes])]


def one_axis(axis: Any, otherwise: int | None = -1) -> int | None:
    return otherwise if axis is None else axis_number(axis)


def leading(axis: Any) -> bool:
    return isinstance(axis, Axis) and axis == Axis.new_leading_axis()


def known_rank(operands: Sequence[Any]) -> tuple[int, ...]:
    return max((n.shape for n in nodes_of(*operands)), key=len)


def as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def spatial(value: Any, rank: int) -> tuple[Any, ...]:
    """Return one value per spatial axis, from one for all, one for each, or one for channels and one for each."""
    items = as_list(value)
    if len(items) == 1:
        return tuple(items * rank)
    if len(items) not in (rank, rank + 1):
        raise ValueError(f"expected 1, {rank} or {rank + 1} items, got {items}")
    return tuple(items[len(items) - rank :])
