"""Finalisers that do nothing once the interpreter has begun to end."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TypeVar

_Owner = TypeVar("_Owner")


def unless_exiting(
    finalizer: Callable[[_Owner], None], exiting: Callable[[], bool] = sys.is_finalizing
) -> Callable[[_Owner], None]:
    """Decorate a ``__del__`` that uses its module's globals or calls code that does.

    The interpreter sets the globals of modules to None at its end, and may delete objects only after that. By then the
    handlers of `atexit` have run, and the system takes back descriptors and memory.

    Args:
        exiting: an argument, as the global of that name may be None.
    """

    @functools.wraps(finalizer)
    def finalize(owner: _Owner) -> None:
        if not exiting():
            finalizer(owner)

    return finalize
