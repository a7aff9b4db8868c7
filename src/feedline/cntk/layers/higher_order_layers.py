"""`cntk.layers.higher_order_layers`: layers made of layers."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from feedline.cntk import ops
from feedline.cntk._names import explain
from feedline.cntk.layers._making import layer
from feedline.cntk.ops.functions import Function

__all__ = ["For", "ResNetBlock", "Sequential", "SequentialClique"]


def as_function(f: Any) -> Function:
    """A Python function as a `Function`; a `Function` stays itself."""
    return f if isinstance(f, Function) else Function(f)


def Sequential(layers: Any, name: str = "") -> Any:
    """One layer after the other; a tuple stands for layers side by side, whose results the next one gets all.

    Layers side by side get all results of the one before, or one each if they are as many and take one.

    Args:
        layers: functions, tuples or lists of them.
        name: its name.

    Raises:
        TypeError: neither a list nor a function.
    """
    if not isinstance(layers, (list, tuple)):
        return as_function(layers)

    def compose(*args: Any) -> Any:
        given: tuple[Any, ...] = args
        for item in layers:
            given = then(item, given)
        return given if len(given) > 1 else given[0]

    return layer(compose, "Sequential", name, inputs=_names(layers))


def then(item: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a layer, or layers side by side, give for the results of the one before; see `Sequential`."""
    if isinstance(item, tuple):
        return tuple(_applied(side, mine) for side, mine in zip(item, _one_each(item, given), strict=True))
    result = _applied(item, given)
    return result.outputs if isinstance(result, Function) and len(result.outputs) > 1 else (result,)


def _one_each(sides: tuple[Any, ...], given: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """What each side gets: all results; or the one in its place, if as many sides take one each."""
    paired = len(sides) == len(given) and all(isinstance(f, Function) and len(f.arguments) == 1 for f in sides)
    return [(x,) for x in given] if paired else [given] * len(sides)


def _applied(item: Any, given: tuple[Any, ...]) -> Any:
    if isinstance(item, list):
        item = Sequential(item)
    if not callable(item):
        raise TypeError(f"expected functions, or tuples or lists of them, in Sequential, got {type(item).__name__}")
    return item(*given)


def _names(layers: Any) -> tuple[str, ...]:
    """Names of the arguments of the first layer that says."""
    first = layers[0] if layers else None
    while isinstance(first, (list, tuple)) and first:
        first = first[0]
    if isinstance(first, Function):
        return tuple(v.name or f"x{i}" for i, v in enumerate(first.arguments)) or ("x",)
    if first is None or not callable(first) or first.__module__.startswith("feedline.cntk.ops"):
        return ("x",)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = [p.name for p in inspect.signature(first).parameters.values() if p.kind in kinds and p.default is p.empty]
    return tuple(found) or ("x",)


def For(what_range: Iterable[Any], constructor: Any, name: str = "") -> Any:
    """`Sequential` over what ``constructor`` makes for each item of a range; it may take the item or nothing."""
    takes = len(inspect.signature(constructor).parameters) > 0
    return Sequential([constructor(i) if takes else constructor() for i in what_range], name)


def SequentialClique(functions: Any, name: str = "") -> Function:
    """Layers of which each gets the sum of the input and all results before."""

    def clique(x: Any) -> Any:
        total = x
        for f in functions:
            out = f(total)
            total = total + out
        return out

    return layer(clique, "SequentialClique", name)


def ResNetBlock(f: Any, name: str = "") -> Function:
    """``x + f(x)``."""
    return layer(lambda x: ops.plus(f(x), x), "ResNetBlock", name)


def __getattr__(name: str) -> Any:
    raise explain("cntk.layers.higher_order_layers", name)
