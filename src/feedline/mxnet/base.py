"""`mxnet.base`: exceptions, and type names that scripts import from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from feedline.errors import StateError, StoreError
from feedline.kvstore import RefusedError
from feedline.mxnet._names import names_of

__all__, __getattr__ = names_of(__name__)

string_types = (str,)
integer_types = (int, np.int32, np.int64)
numeric_types = (float, int, np.generic)
#: Default element type.
mx_real_t = np.float32


class MXNetError(RuntimeError):
    """MXNet's base exception. Its cause is feedline's error."""


class NotImplementedForSymbol(MXNetError):  # noqa: N818 - MXNet's name
    """Operation on arrays that symbols do not support."""


class MXNetStoreError(StoreError, MXNetError):
    """Failure of a store: a peer is gone or disagrees."""


class MXNetStateError(StateError, MXNetError):
    """File of states that does not fit."""


@contextmanager
def as_mxnet() -> Iterator[None]:
    """Convert errors of the store to MXNet's. Exceptions of a user's updater are not converted."""
    try:
        yield
    except RefusedError as error:
        raise MXNetError(str(error)) from error
    except StoreError as error:
        raise MXNetStoreError(str(error)) from error
    except StateError as error:
        raise MXNetStateError(error.what, saved=error.saved, current=error.current, hint=error.hint) from error


def py_str(x: bytes) -> str:
    """Decode bytes."""
    return x.decode("utf-8")
