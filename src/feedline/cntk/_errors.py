"""feedline's errors as CNTK's types, for scripts that catch `RuntimeError` or `ValueError`.

Every error about data, states and workers that leaves the façade is an instance of its feedline class and of the
built-in class that CNTK raised in its place, with the same text and fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from feedline.errors import DataError, FeedlineError, SchemaError, StateError, WorkerError


class _Both:
    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__))  # type: ignore[attr-defined]


class CntkDataError(_Both, DataError, RuntimeError):
    """Data that cannot be read, where CNTK raises RuntimeError."""


class CntkSchemaError(_Both, SchemaError, RuntimeError):
    """Streams that contradict each other, where CNTK raises RuntimeError."""


class CntkStateError(_Both, StateError, ValueError):
    """A checkpoint that does not fit, where CNTK raises ValueError."""


class CntkCheckpointError(_Both, StateError, RuntimeError):
    """A checkpoint file that cannot be used, where CNTK raises RuntimeError."""


class CntkWorkerError(_Both, WorkerError, RuntimeError):
    """A user's deserializer raised, where CNTK raises RuntimeError."""


_KINDS: tuple[type[FeedlineError], ...] = (CntkDataError, CntkSchemaError, CntkStateError, CntkWorkerError)


@contextmanager
def as_cntk() -> Iterator[None]:
    """Convert errors of the block to CNTK's types. The cause is the original's cause, or the original."""
    try:
        yield
    except FeedlineError as error:
        raise convert_error(error) from (error.__cause__ or error)
    except FileNotFoundError as error:
        # CNTK tries five times and raises RuntimeError.
        raise convert_error(DataError("expected an input file, got none", path=error.filename or str(error))) from error


@contextmanager
def checkpoint_errors() -> Iterator[None]:
    """Convert errors about a checkpoint's file to CNTK's RuntimeError, with the original as cause."""
    try:
        yield
    except StateError as error:
        raise _rebuild(CntkCheckpointError, error.args, error.__dict__) from error


def convert_error(error: FeedlineError) -> FeedlineError:
    """Return the error as CNTK's type, or unchanged if it has none."""
    for kind in _KINDS:
        if isinstance(error, kind.__mro__[2]) and not isinstance(error, kind):
            return _rebuild(kind, error.args, error.__dict__)
    return error


def _rebuild(kind: type[FeedlineError], args: tuple[Any, ...], fields: dict[str, Any]) -> FeedlineError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error
