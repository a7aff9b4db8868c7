"""Helpers of layer factories: activations, parameters, blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from feedline.cntk._nodes import node_of
from feedline.cntk._tracing import block_of
from feedline.cntk.initializer import initializer_with_rank
from feedline.cntk.ops.functions import Function
from feedline.cntk.variables import Parameter, placeholder

INFERRED = (-1,)


def parameter(shape: tuple[int, ...], init: Any, name: str, **ranks: int) -> Parameter:
    """Return a parameter; ``ranks``: ranks for an initializer that has none."""
    if init is None:
        raise ValueError(f"expected an initial value for {name}, got None")
    return Parameter(shape, initializer_with_rank(init, **ranks), name=name)


def for_each_axis(window: tuple[int, ...], value: Any, setting: str) -> tuple[Any, ...]:
    """Return a setting for each axis of a window, from a value for all or for each. ValueError: another number."""
    items = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if len(items) == 1:
        return items * len(window)
    if len(items) != len(window):
        raise ValueError(f"expected {setting} of 1 or {len(window)} items, for the window {window}, got {items}")
    return items


def activate(x: Any, activation: Any) -> Any:
    """Apply an activation, or return ``x`` unchanged if it is None."""
    return x if activation is None else activation(x)


def layer(
    body: Callable[..., Any], op_name: str, name: str, members: Mapping[str, Any] | None = None, inputs: Any = ("x",)
) -> Function:
    """Return a function of placeholders whose graph is a single block."""
    arguments = [placeholder(name=label) for label in inputs]
    result = body(*arguments)
    outputs = result if isinstance(result, tuple) else (result,)
    roots = [node_of(o) for o in outputs]
    nodes = [a.node for a in arguments]
    blocks = block_of(roots, nodes, op_name, name)
    return Function.of(blocks, nodes, {k: v for k, v in (members or {}).items() if v is not None})
