"""`mxnet.attribute`: attributes for all symbols created within a block."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from feedline.mxnet._names import names_of

__all__, __getattr__ = names_of(__name__)


class AttrScope:
    """Attributes for symbols created within ``with``. Inner scopes override outer ones, and a symbol overrides both.

    Raises:
        ValueError: an attribute that is not text.
    """

    def __init__(self, **kwargs: str) -> None:
        for key, value in kwargs.items():
            if not isinstance(value, str):
                raise ValueError(f"Attributes need to be string, got {value!r} for {key}")
        self._attributes = dict(kwargs)

    def get(self, attr: Mapping[str, str] | None) -> dict[str, str]:
        """Return these attributes, overridden by ``attr``."""
        return {**self._attributes, **(attr or {})}

    @classmethod
    def current(cls) -> AttrScope:
        """Return the scope of the innermost ``with``, which includes the outer scopes."""
        return _current.scopes[-1]

    def __enter__(self) -> AttrScope:
        _current.scopes.append(AttrScope(**self.current().get(self._attributes)))
        return self

    def __exit__(self, *_: object) -> None:
        _current.scopes.pop()


class _Current(threading.local):
    """Scopes of a thread, the innermost last."""

    def __init__(self) -> None:
        self.scopes = [AttrScope()]


_current = _Current()
