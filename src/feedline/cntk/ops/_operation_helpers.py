"""Helpers of operations: creating nodes, and reading axes and lists."""

from __future__ import annotations

import functools
import inspect
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from feedline.cntk._nodes import nodes_of
from feedline.cntk.axis import Axis
from feedline.cntk.ops._function import Function
from feedline.cntk.variables import variable_of
from feedline.networks import Node, apply
from feedline.networks.deferred import add_recipe, is_known, later


def build(op: str, operands: Sequence[Any], attributes: Mapping[str, Any] | None, name: str) -> Function:
    return Function.of([apply(op, nodes_of(*operands), attributes, name)])


def with_name(function: Callable[..., Function], name: str, doc: str) -> Callable[..., Function]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def kind(x: Any) -> Any:
    return x.dtype if hasattr(x, "node") else np.float32


def late(operands: int) -> Callable[[Callable[..., Function]], Callable[..., Function]]:
    """Return a decorator of a function that asks its first ``operands`` arguments for their shapes.

    If the shapes are unknown, the function is called later. See `feedline.networks.deferred`.
    """

    def decorate(function: Callable[..., Function]) -> Callable[..., Function]:
        signature = inspect.signature(function)

        def make(*nodes: Node, label: str, **settings: Any) -> Node:
            return function(*map(variable_of, nodes), **settings, name=label).node

        add_recipe(function.__name__, make)

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Function:
            bound = signature.bind(*args, **kwargs).arguments
            names = list(signature.parameters)[:operands]
            nodes = nodes_of(*(bound[name] for name in names))
            if is_known(nodes):
                return function(*args, **kwargs)
            settings = {name: _setting(value) for name, value in bound.items() if name not in (*names, "name")}
            return Function.of([later(function.__name__, nodes, settings, bound.get("name", ""))])

        return wrapped

    return decorate


def _setting(value: Any) -> Any:
    if isinstance(value, Axis) and value.is_static_axis:
        return value.static_axis_index()
    return tuple(map(_setting, value)) if isinstance(value, (list, tuple)) else value


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


def longest_shape(operands: Sequence[Any]) -> tuple[int, ...]:
    return max((n.shape for n in nodes_of(*operands)), key=len)


def as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def at_least(minimum: float, **settings: Any) -> None:
    """Raise ValueError for a setting, or an item of it, that is less than a minimum."""
    for name, value in settings.items():
        if any(item < minimum for item in as_list(value)):
            raise ValueError(f"expected {name} of at least {minimum}, got {value}")


def choice(name: str, value: Any, choices: Mapping[Any, str]) -> str:
    """Return the graph's name for one of CNTK's numbers. ValueError: another value."""
    if value not in choices:
        known = ", ".join(f"{number} ({text})" for number, text in choices.items())
        raise ValueError(f"expected {name} of {known}, got {value!r}")
    return choices[value]


def spatial(value: Any, rank: int, otherwise: Any) -> tuple[Any, ...]:
    """Return a value per spatial axis, from a value for all, for channels and for each, or for the last axes.

    Axes without a value get ``otherwise``.
    """
    items = as_list(value)
    if len(items) == 1:
        return tuple(items * rank)
    if not 1 <= len(items) <= rank + 1:
        raise ValueError(f"expected 1 to {rank + 1} items, got {items}")
    return tuple([otherwise] * (rank - len(items)) + items[max(0, len(items) - rank) :])
