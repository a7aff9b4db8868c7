"""Values as CNTK's bindings have them, and as user functions without ``as_numpy`` get them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feedline.cntk.core import NDArrayView, Value


class BoundValue:
    """A `Value`, or the array of one, whose properties are methods: ``value.shape()``, ``value.device()``.

    What these return is bound as well.

    Args:
        data: a `Value`, an `NDArrayView`, or either of them bound already.
    """

    def __init__(self, data: Any) -> None:
        self._data = unbound(data)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):  # of a copy that has no data yet
            raise AttributeError(f"a bound value has no attribute {name!r}")
        attribute = getattr(self._data, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            result = attribute(*args, **kwargs) if callable(attribute) else attribute
            return BoundValue(result) if isinstance(result, (Value, NDArrayView)) else result

        return call

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self._data.__array__(dtype, copy)

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return repr(self._data)


def unbound(data: Any) -> Any:
    """Return the `Value` or `NDArrayView` of bound data, and other data unchanged."""
    return data._data if isinstance(data, BoundValue) else data
