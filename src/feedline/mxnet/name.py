"""`mxnet.name`: names of symbols without one, from a counter for each operator, and a stack of managers."""

from __future__ import annotations

import threading

from feedline.mxnet._names import names_of

__all__, __getattr__ = names_of(__name__)


class NameManager:
    """Generator of names. ``with`` makes it the current one in this thread."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def get(self, name: str | None, hint: str) -> str:
        """Return ``name``, or ``hint`` with a number that counts from 0."""
        if name:
            return name
        count = self._counts.get(hint, 0)
        self._counts[hint] = count + 1
        return f"{hint}{count}"

    @classmethod
    def current(cls) -> NameManager:
        """Return the manager of the innermost ``with``, or this thread's default."""
        return _current.managers[-1]

    def __enter__(self) -> NameManager:
        _current.managers.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _current.managers.pop()


class _Current(threading.local):
    """Managers of a thread, the innermost last."""

    def __init__(self) -> None:
        self.managers = [NameManager()]


_current = _Current()


class Prefix(NameManager):
    """Prefix all names, also explicit ones, except the names of variables."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def get(self, name: str | None, hint: str) -> str:
        """See `NameManager.get`."""
        return self._prefix + super().get(name, hint)
