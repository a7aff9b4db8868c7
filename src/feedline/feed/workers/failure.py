"""Exceptions on their way from a worker to the parent, with their type kept.

What is raised in the parent is of the type that was raised in the worker, its text says in which worker and ends with
the original traceback, and its cause is the original exception where that could be pickled. One whose type cannot be
built from a text is raised itself, with that text as a note; one that cannot be pickled becomes a ``RuntimeError``.
"""

from __future__ import annotations

import contextlib
import pickle
import traceback
from typing import NoReturn


class _Text(str):
    """A text that shows its line breaks also where its ``repr`` is shown, as ``KeyError`` does."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Failure:
    """An exception that can be pickled whatever it holds.

    Args:
        error: what was raised.
        where: completes "Caught ValueError ...", for instance "in DataLoader worker process 0".
    """

    def __init__(self, error: BaseException, where: str) -> None:
        self.name, self.where = type(error).__name__, where
        self.text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        self.error = self.type = b""
        # Classes of functions have no address, and exceptions may hold anything.
        with contextlib.suppress(Exception):
            self.type = pickle.dumps(type(error), 5)
        with contextlib.suppress(Exception):
            self.error = pickle.dumps(error, 5)

    def throw(self) -> NoReturn:
        """Raise it here."""
        original: BaseException | None = None
        if self.error:
            with contextlib.suppress(Exception):
                original = pickle.loads(self.error)
        if isinstance(original, StopIteration | StopAsyncIteration):
            raise original  # these say that something has ended, and their value is part of that
        text = f"Caught {self.name} {self.where}.\nOriginal {self.text}"
        error = self._rebuilt(text, original)
        if error is not None:
            raise error from original
        if original is not None:
            original.add_note(text)
            raise original
        raise RuntimeError(text)

    def _rebuilt(self, text: str, original: BaseException | None) -> BaseException | None:
        error = self._built(text)
        if error is None or original is None:
            return error
        # What else it says about itself, such as a file and a line, stays with it, but never hides the text.
        full = self._built(text)
        with contextlib.suppress(Exception):
            for name, value in original.__dict__.items():
                setattr(full, name, value)
            if text in str(full):
                return full
        return error

    def _built(self, text: str) -> BaseException | None:
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
