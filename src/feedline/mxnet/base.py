"""`mxnet.base`: the exception."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from feedline.errors import StateError, StoreError
from feedline.kvstore import RefusedError
from feedline.mxnet._names import explain

__all__ = ["MXNetError"]


class MXNetError(RuntimeError):
    """What MXNet raises; the error of feedline beneath is the cause."""


class MXNetStoreError(StoreError, MXNetError):
    """A peer of a store is gone or disagrees."""


class MXNetStateError(StateError, MXNetError):
    """A file of states does not fit."""


@contextmanager
def as_mxnet() -> Iterator[None]:
    """Errors of the store as MXNet's; what a user's updater raises passes as it is."""
    try:
        yield
    except RefusedError as error:
        raise MXNetError(str(error)) from error
    except StoreError as error:
        raise MXNetStoreError(str(error)) from error
    except StateError as error:
        raise MXNetStateError(error.what, saved=error.saved, current=error.current, hint=error.hint) from error


def __getattr__(name: str) -> Any:
    raise explain("mxnet.base", name)
