"""Carry an exception from a worker to the parent, preserving its type.

The parent raises an exception of the same type. Its text names the worker and ends with the original traceback. Its
cause is the original exception if that could be pickled. If the type cannot be constructed from a text, the original is
raised with that text as a note. If it cannot be pickled either, a ``RuntimeError`` is raised.
"""

from __future__ import annotations

import contextlib
import pickle
import traceback
from collections.abc import Callable
from typing import Any, NoReturn


def _dumps(value: Any) -> bytes:
    return pickle.dumps(value, 5)


class _Text(str):
    """A string whose ``repr`` keeps its line breaks, for ``KeyError``, which shows the ``repr``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Failure:
    """A picklable record of any exception.

    Args:
        error: exception that was raised.
        where: completion of "Caught ValueError ...", such as "in DataLoader worker process 0".
        dumps: function that pickles.
    """

    def __init__(self, error: BaseException, where: str, dumps: Callable[[Any], bytes] = _dumps) -> None:
        self.name, self.where = type(error).__name__, where
        self.text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        self.error = self.type = b""
        # Local classes cannot be pickled, and exceptions may hold anything.
        with contextlib.suppress(Exception):
            self.type = dumps(type(error))
        with contextlib.suppress(Exception):
            self.error = dumps(error)

    def throw(self) -> NoReturn:
        """Raise the exception in this process."""
        original: BaseException | None = None
        if self.error:
            with contextlib.suppress(Exception):
                original = pickle.loads(self.error)
        if isinstance(original, StopIteration | StopAsyncIteration):
            raise original  # these signal the end of an iterator, and carry its value
        text = f"Caught {self.name} {self.where}.\nOriginal {self.text}"
        error = self._rebuilt(text, original)
        if error is not None:
            raise error from original
        if original is not None:
            original.add_note(text)
            raise original
        raise RuntimeError(text)

    def _rebuilt(self, text: str, original: BaseException | None) -> BaseException | None:
        error = self._rebuild(text)
        if error is None or original is None:
            return error
        # Restore its other attributes, such as a file and a line, unless that hides the text.
        full = self._rebuild(text)
        with contextlib.suppress(Exception):
            for name, value in original.__dict__.items():
                setattr(full, name, value)
            if text in str(full):
                return full
        return error

    def _rebuild(self, text: str) -> BaseException | None:
        with contextlib.suppress(Exception):
            kind = pickle.loads(self.type)
            if issubclass(kind, KeyError):
                error = kind(_Text(text))
            elif getattr(kind, "message", None):
                error = kind(message=text)
            else:
                error = kind(text)
            if isinstance(error, BaseException) and text in str(error):
                return error
        return None
