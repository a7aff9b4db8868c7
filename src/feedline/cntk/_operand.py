"""`Operand`, the base class of variables and functions, and late binding of functions that import them.

Operations, layers and trainers import variables and functions, which import none of them. Yet ``x + y`` is an
operation, ``f >> g`` a layer, and ``f.train(...)`` a training session. `feedline.cntk` registers such functions in this
module by name. A function's module is imported at the first call, since the module of trainers imports torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from feedline.cntk._settings import plain
from feedline.networks import Node

_REGISTERED: dict[str, str | Callable[..., Any]] = {}


def register(module: str, *names: str) -> None:
    """Make functions of a module available to `registered_operation`."""
    _REGISTERED.update(dict.fromkeys(names, module))


def registered_operation(name: str) -> Callable[..., Any]:
    """Return the function registered under a name."""
    function = _REGISTERED[name]
    if isinstance(function, str):
        function = _REGISTERED[name] = getattr(importlib.import_module(function), name)
    return function


def _unary(name: str) -> Callable[[Any], Any]:
    return lambda self: registered_operation(name)(self)


def _binary(name: str) -> Callable[[Any, Any], Any]:
    return lambda self, other: registered_operation(name)(self, other)


def _reflect(name: str) -> Callable[[Any, Any], Any]:
    return lambda self, other: registered_operation(name)(other, self)


def _range(part: slice) -> tuple[int, int, int]:
    """Return begin, end (0: the end) and stride as in CNTK, where begin is below end even for a negative stride."""
    step = part.step or 1
    if step > 0:
        return part.start or 0, part.stop or 0, step
    return (0 if part.stop is None else part.stop + 1, 0 if part.start is None else part.start + 1, step)


class Operand:
    """Arithmetic, comparison and slicing of variables and functions."""

    @property
    def node(self) -> Node:
        """Node in the graph."""
        raise NotImplementedError

    # Makes NumPy arrays on the left defer to these operators.
    __array_ufunc__ = None

    __add__, __radd__ = _binary("plus"), _reflect("plus")
    __sub__, __rsub__ = _binary("minus"), _reflect("minus")
    __mul__, __rmul__ = _binary("element_times"), _reflect("element_times")
    __truediv__, __rtruediv__ = _binary("element_divide"), _reflect("element_divide")
    __matmul__, __rmatmul__ = _binary("times"), _reflect("times")
    __pow__ = _binary("pow")
    __neg__, __abs__ = _unary("negate"), _unary("abs")
    __lt__, __le__ = _binary("less"), _binary("less_equal")
    __gt__, __ge__ = _binary("greater"), _binary("greater_equal")

    def __getitem__(self, key: Any) -> Any:
        """Return a part of a sample: per axis an index (which keeps the axis), a list of indices, or a slice."""
        keys = tuple(map(plain, key)) if isinstance(key, tuple) else (plain(key),)
        # After an ellipsis, axes are counted from the last, as their number may be unknown.
        at = keys.index(Ellipsis) if Ellipsis in keys else len(keys)
        numbered = [*enumerate(keys[:at]), *((i - len(keys), keys[i]) for i in range(at + 1, len(keys)))]
        parts: list[tuple[int, int, int, int]] = []
        picked: list[tuple[int, Any]] = []
        for axis, part in numbered:
            if isinstance(part, (list, tuple)) and part and all(isinstance(i, int) for i in part):
                picked.append((axis, part))
            elif isinstance(part, int):
                parts.append((axis, part, 0 if part == -1 else part + 1, 1))
            elif isinstance(part, slice):
                if part != slice(None):
                    parts.append((axis, *_range(part)))
            else:
                raise TypeError(f"expected numbers, lists of them and slices, got {part!r}")
        result = registered_operation("slice")(self, *map(list, zip(*parts, strict=True))) if parts else self
        for axis, indices in picked:
            rows = [registered_operation("slice")(result, axis, i, 0 if i == -1 else i + 1) for i in indices]
            result = registered_operation("splice")(*rows, axis=axis)
        return result

    # With only __getitem__, iteration would never end.
    __iter__ = None
