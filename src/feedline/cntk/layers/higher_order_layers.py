"""`cntk.layers.higher_order_layers`: layers composed of layers."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from feedline.cntk import ops
from feedline.cntk._names import names_of
from feedline.cntk._tracing import parameters_of
from feedline.cntk.layers._layer_helpers import layer
from feedline.cntk.ops.functions import Function

__all__, __getattr__ = names_of(__name__)


def as_function(f: Any) -> Function:
    """Convert a Python function to a `Function`. A `Function` is returned unchanged."""
    return f if isinstance(f, Function) else Function(f)


def Sequential(layers: Any, name: str = "") -> Any:
    """Apply layers one after another. The layers of a tuple run in parallel.

    Each layer gets all results of the previous item. Parallel layers each get a single result, in order, if there are
    as many results as layers and each layer takes one argument.

    Args:
        layers: functions, tuples or lists of them.
        name: name of the function.

    Raises:
        TypeError: neither a list nor a function.
    """
    if not isinstance(layers, (list, tuple)):
        return as_function(layers)

    def compose(*args: Any) -> Any:
        results: tuple[Any, ...] = args
        for item in layers:
            results = then(item, results)
        return results if len(results) > 1 else results[0]

    return layer(compose, "Sequential", name, inputs=_names(layers))


def then(item: Any, results: tuple[Any, ...]) -> tuple[Any, ...]:
    """Apply a layer, or parallel layers, to the results of the previous item. See `Sequential`."""
    if isinstance(item, tuple):
        return tuple(_apply(side, arguments) for side, arguments in zip(item, _one_each(item, results), strict=True))
    result = _apply(item, results)
    return result.outputs if isinstance(result, Function) and len(result.outputs) > 1 else (result,)


def _one_each(sides: tuple[Any, ...], results: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Return the arguments of each parallel layer: all results, or a single result if the numbers match."""
    paired = len(sides) == len(results) and all(isinstance(f, Function) and len(f.arguments) == 1 for f in sides)
    return [(x,) for x in results] if paired else [results] * len(sides)


def _apply(item: Any, arguments: tuple[Any, ...]) -> Any:
    if isinstance(item, list):
        item = Sequential(item)
    if not callable(item):
        raise TypeError(f"expected functions, or tuples or lists of them, in Sequential, got {type(item).__name__}")
    return item(*arguments)


def _names(layers: Any) -> tuple[str, ...]:
    """Return the argument names of the first layer that declares them."""
    first = layers[0] if layers else None
    while isinstance(first, (list, tuple)) and first:
        first = first[0]
    if isinstance(first, Function):
        return tuple(v.name or f"x{i}" for i, v in enumerate(first.arguments)) or ("x",)
    # Code that a script runs by `exec` has no module.
    if first is None or not callable(first) or (first.__module__ or "").startswith("feedline.cntk.ops"):
        return ("x",)
    return tuple(parameters_of(first)) or ("x",)


def For(what_range: Iterable[Any], constructor: Any, name: str = "") -> Any:
    """Apply `Sequential` to the layers that ``constructor()`` or ``constructor(item)`` returns for a range.

    Raises:
        ValueError: ``constructor`` is not a Python function.
    """
    if not inspect.isroutine(constructor):
        raise ValueError(f"expected a Python function that constructs a layer, got {constructor!r}; pass lambda: layer")
    takes = len(inspect.signature(constructor).parameters) > 0
    return Sequential([constructor(i) if takes else constructor() for i in what_range], name)


def SequentialClique(functions: Any, name: str = "") -> Function:
    """Apply layers one after another, each to the sum of the input and all previous results."""

    def clique(x: Any) -> Any:
        total = x
        for f in functions:
            out = f(total)
            total = total + out
        return out

    return layer(clique, "SequentialClique", name)


def ResNetBlock(f: Any, name: str = "") -> Function:
    """Return a layer that computes ``x + f(x)``."""
    return layer(lambda x: ops.plus(f(x), x), "ResNetBlock", name)
