"""Notice that the program has changed a dataset of which workers hold copies.

torch starts new workers for each epoch (unless they are persistent), and they see what the loop has set since: the
epoch, a transform, the next stage of a curriculum. Our workers stay, so the dataset is compared with what it was when
they started: its attributes, those of objects that they hold, and the elements of short lists and dictionaries. Numbers
and strings count by value, all else by identity. None of the user's code runs. Arrays and long lists that are changed
in place, classes and global variables go unnoticed.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

_OBJECTS = 2000  # compared at most; a microsecond for a few of them
_LONG = 64  # a longer list or dictionary counts by identity and length

_VALUES = frozenset({int, float, complex, bool, str, bytes, type(None)})
_OPAQUE = (type, types.ModuleType, types.FunctionType)


def snapshot(*roots: Any) -> list[Any]:
    """Return what can be seen of some objects; equal to an earlier list if nothing was changed since."""
    found: list[Any] = []
    waiting, known = list(roots), set()
    while waiting and len(found) < _OBJECTS:
        thing = waiting.pop()
        kind = type(thing)
        if kind in _VALUES:
            found.append((kind, thing))
            continue
        found.append(_Same(thing))
        if id(thing) in known:
            continue
        known.add(id(thing))
        if kind in (list, tuple, set, frozenset, dict):
            found.append(len(thing))
            if len(thing) <= _LONG:
                waiting.extend(thing)
                waiting.extend(thing.values() if kind is dict else ())
        elif kind is types.MethodType:
            waiting.append(thing.__self__)
        elif not issubclass(kind, _OPAQUE):
            attributes = _attributes(thing)
            waiting.extend(attributes)
            waiting.extend(attributes.values())
    return found


def _attributes(thing: Any) -> dict[str, Any]:
    try:
        attributes = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return attributes if type(attributes) is dict else {}


class _Same:
    """Equal only to the same object, which is kept alive only if it cannot be referenced weakly."""

    __slots__ = ("_thing",)

    def __init__(self, thing: Any) -> None:
        self._thing: Callable[[], Any]
        try:
            self._thing = weakref.ref(thing)
        except TypeError:
            self._thing = lambda: thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._thing() is not None and self._thing() is other._thing()

    __hash__ = None  # type: ignore[assignment]
