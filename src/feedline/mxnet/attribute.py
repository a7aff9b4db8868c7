"""`mxnet.attribute`: attributes for all symbols that are made within a block."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from feedline.mxnet._names import explain

__all__ = ["AttrScope"]


class AttrScope:
    """Attributes for symbols made within ``with``; inner ones win over outer ones, and a symbol's own over both.

    Raises:
        ValueError: an attribute that is not text.
    """

    _local = threading.local()

    def __init__(self, **kwargs: str) -> None:
        for key, value in kwargs.items():
            if not isinstance(value, str):
                raise ValueError(f"Attributes need to be string, got {value!r} for {key}")
        self._attributes = dict(kwargs)

    def get(self, attr: Mapping[str, str] | None) -> dict[str, str]:
        """These attributes, and ``attr`` over them."""
        return {**self._attributes, **(attr or {})}

    @classmethod
    def current(cls) -> AttrScope:
        """That of the innermost ``with``, with all around it."""
        return cls._stack()[-1]

    @classmethod
    def _stack(cls) -> list[AttrScope]:
        if not hasattr(AttrScope._local, "stack"):
            AttrScope._local.stack = [AttrScope()]
        found: list[AttrScope] = AttrScope._local.stack
        return found

    def __enter__(self) -> AttrScope:
        merged = AttrScope(**self.current().get(self._attributes))
        self._stack().append(merged)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack().pop()


def __getattr__(name: str) -> Any:
    raise explain("mxnet.attribute", name)
