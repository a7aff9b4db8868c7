"""Objects that a forked child makes anew, as it cannot use those of its parent."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")


class PerProcess(Generic[Item]):
    """An object that a forked child, or one that unpickles it, makes for itself.

    A lock that a thread of the parent holds is locked for ever in a child, as the thread stayed behind.
    """

    def __init__(self, make: Callable[[], Item]) -> None:
        self._make, self._made = make, (os.getpid(), make())

    def get(self) -> Item:
        """This process's object."""
        pid, item = self._made
        if pid != os.getpid():
            item = self._make()
            self._made = (os.getpid(), item)
        return item

    def __reduce__(self) -> tuple[Any, ...]:
        return (PerProcess, (self._make,))
