"""Objects that a forked child recreates, as it cannot use its parent's."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")


class PerProcess(Generic[Item]):
    """An object that a forked child, or a process that unpickles it, creates for itself.

    A lock held by a thread of the parent would stay locked forever in the child, which does not have that thread.
    """

    def __init__(self, make: Callable[[], Item]) -> None:
        self._make, self._made = make, (os.getpid(), make())

    def get(self) -> Item:
        """Return this process's object."""
        pid, item = self._made
        if pid != os.getpid():
            item = self._make()
            self._made = (os.getpid(), item)
        return item

    def __reduce__(self) -> tuple[Any, ...]:
        return (PerProcess, (self._make,))
