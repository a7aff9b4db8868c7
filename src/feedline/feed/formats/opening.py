"""Settings of addresses and checks of streams while a corpus is opened."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from feedline.data import Stream
from feedline.errors import SchemaError
from feedline.feed.arguments import Remote


@dataclass
class Stores:
    """How addresses are opened, see `open_corpus`.

    Attributes:
        remote: see `open_corpus`.
        used: whether an address was opened.
    """

    remote: Remote
    used: bool = False


_stores: contextvars.ContextVar[Stores | None] = contextvars.ContextVar("_stores", default=None)


@contextlib.contextmanager
def through(stores: Stores) -> Iterator[None]:
    """Return a context in which addresses are opened through ``stores``, even addresses in the files of a mixture."""
    token = _stores.set(stores)
    try:
        yield
    finally:
        _stores.reset(token)


def remote_settings() -> Remote:
    """Return the settings to open an address with, and note that one was opened."""
    stores = _stores.get() or Stores(Remote())
    stores.used = True
    return stores.remote


def check_streams(declared: Mapping[str, Any]) -> None:
    """Check that streams are declared as `Stream`. Only CSV also takes names of columns.

    Raises:
        SchemaError: a stream is declared as something else.
    """
    if wrong := [name for name, what in declared.items() if not isinstance(what, Stream)]:
        raise SchemaError(f"expected a feedline.Stream for stream `{wrong[0]}`, got {declared[wrong[0]]!r}")
