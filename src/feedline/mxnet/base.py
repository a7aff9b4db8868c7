"""`mxnet.base`: the exceptions, and what scripts take from it to know types."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from feedline.errors import StateError, StoreError
from feedline.kvstore import RefusedError
from feedline.mxnet._names import explain

__all__ = ["MXNetError", "NotImplementedForSymbol", "integer_types", "numeric_types", "py_str", "string_types"]

string_types = (str,)
integer_types = (int, np.int32, np.int64)
numeric_types = (float, int, np.generic)


class MXNetError(RuntimeError):
    """What MXNet raises; the error of feedline beneath is the cause."""


class NotImplementedForSymbol(MXNetError):  # noqa: N818 - MXNet's name
    """What an array does and a symbol does not."""


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


def py_str(x: bytes) -> str:
    """Text of bytes."""
    return x.decode("utf-8")


def __getattr__(name: str) -> Any:
    raise explain("mxnet.base", name)
