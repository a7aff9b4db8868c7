"""`mxnet.name`: how symbols without a name get one: a counter for each kind of operator, a stack of managers."""

from __future__ import annotations

import threading
from typing import Any

from feedline.mxnet._names import explain

__all__ = ["NameManager", "Prefix"]


class NameManager:
    """Gives names; ``with`` makes it the one that does, in this thread."""

    _local = threading.local()

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def get(self, name: str | None, hint: str) -> str:
        """``name`` itself, or ``hint`` and a number that counts from 0."""
        if name:
            return name
        count = self._counts.get(hint, 0)
        self._counts[hint] = count + 1
        return f"{hint}{count}"

    @classmethod
    def current(cls) -> NameManager:
        """The manager of the innermost ``with``, or this thread's own."""
        stack = cls._stack()
        return stack[-1]

    @classmethod
    def _stack(cls) -> list[NameManager]:
        if not hasattr(NameManager._local, "stack"):
            NameManager._local.stack = [NameManager()]
        found: list[NameManager] = NameManager._local.stack
        return found

    def __enter__(self) -> NameManager:
        self._stack().append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack().pop()


class Prefix(NameManager):
    """Puts a prefix before all names, given ones too; variables keep theirs."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def get(self, name: str | None, hint: str) -> str:
        """See `NameManager.get`."""
        return self._prefix + super().get(name, hint)


def __getattr__(name: str) -> Any:
    raise explain("mxnet.name", name)
