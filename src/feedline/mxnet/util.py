"""`mxnet.util`: which lengths of symbols' shapes are unknown."""

from __future__ import annotations

import threading
from contextlib import ContextDecorator

from feedline.mxnet._names import names_of

__all__, __getattr__ = names_of(__name__)


class _Local(threading.local):
    """Whether NumPy's shapes are on in this thread."""

    active = False


_local = _Local()


def is_np_shape() -> bool:
    """Return whether unknown lengths are -1 and unknown shapes None, instead of 0 and ``()``."""
    return _local.active


def set_np_shape(active: bool) -> bool:
    """Set whether unknown lengths are -1 in this thread, and return the old setting."""
    old, _local.active = _local.active, bool(active)
    return old


class np_shape(ContextDecorator):  # noqa: N801 - MXNet's name
    """A block, or a decorated function, in which unknown lengths are -1, or 0 with ``active=False``."""

    def __init__(self, active: bool = True) -> None:
        self._active = active
        self._old: list[bool] = []

    def __enter__(self) -> np_shape:
        self._old.append(set_np_shape(self._active))
        return self

    def __exit__(self, *_: object) -> None:
        set_np_shape(self._old.pop())
