"""The exceptions of feedline.

::

    FeedlineError
    ├── SchemaError     a stream is missing, or has another shape or dtype
    ├── DataError       a file is damaged or inconsistent (file, byte offset, line, sequence, stream)
    ├── StateError      a saved state does not fit (saved and current, side by side)
    ├── WorkerError     the user's code failed in a worker, or the worker died
    ├── StoreError      a peer of a key-value store is gone or disagrees (ranks)
    └── CompatError     an old call has no equivalent (old and modern spelling); also an AttributeError

Every message has the expected and the actual value, the place, and the next step. A wrong argument is a ``ValueError``
or ``TypeError``, as usual in Python. These classes are for data, states and peers.
"""

from __future__ import annotations

import copyreg
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def shown(value: object, most: int | None = None) -> str:
    """Format a value for an error message, cut to ``most`` characters. Never fails, even on values of damaged files."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # deeply nested, or an int with thousands of digits
        text = f"<{type(value).__name__} that cannot be shown>"
    return text if most is None or len(text) <= most else text[: most - 3] + "..."


def install_line(extra: str) -> str:
    """Return the command that installs an extra of feedline: of a clone, if this is one."""
    clone = Path(__file__).parents[2]
    if (clone / "pyproject.toml").is_file() and clone.joinpath("src", "feedline") == Path(__file__).parent:
        return f"pip install -e '{clone}[{extra}]'"
    return f"pip install 'feedline[{extra}]'"


_shown_as: dict[str, str] = {}


def show_paths(names: Mapping[str, str]) -> None:
    """Show paths that begin with these folders in errors as addresses of their objects."""
    _shown_as.update(names)


def shown_path(path: str) -> str:
    """Return the form of a path in errors."""
    for folder, name in _shown_as.items():
        if path.startswith(folder) and path[len(folder) : len(folder) + 1] in ("", "/"):
            return name + path[len(folder) :]
    return path


class FeedlineError(Exception):
    """Base of all exceptions that feedline raises about data, states, workers and peers."""


class SchemaError(FeedlineError):
    """A stream is missing, or has another shape, dtype or kind than declared."""


class DataError(FeedlineError):
    """A file or a user's object is inconsistent.

    The location is also in attributes, each ``None`` if it does not apply: ``path``, ``byte`` (offset
    from the file's start), ``line`` (from 1), ``sequence`` (index in the corpus), ``stream``.
    """

    def __init__(
        self,
        what: str,
        *,
        path: str | None = None,
        byte: int | None = None,
        line: int | None = None,
        sequence: int | None = None,
        stream: str | None = None,
        hint: str | None = None,
    ) -> None:
        path = None if path is None else shown_path(str(path))
        self.what, self.path, self.byte, self.line = what, path, byte, line
        self.sequence, self.stream, self.hint = sequence, stream, hint
        place = path or ""
        if path and line is not None:
            place += f":{line}"
        if byte is not None:
            place += f" (byte {byte})" if place else f"byte {byte}"
        if sequence is not None:
            place += f", sequence {sequence}" if place else f"sequence {sequence}"
        lines = [what]
        if place:
            lines.append(f"  at {place}")
        if hint:
            lines.append(f"  {hint}")
        super().__init__("\n".join(lines))

    def located(self, *, path: str | None = None, sequence: int | None = None) -> DataError:
        """Return this error, or a copy with the missing parts of its location."""
        if (self.path is not None or path is None) and (self.sequence is not None or sequence is None):
            return self
        located = type(self)(
            self.what,
            path=path if self.path is None else self.path,
            byte=self.byte,
            line=self.line,
            sequence=sequence if self.sequence is None else self.sequence,
            stream=self.stream,
            hint=self.hint,
        )
        located.__cause__ = self.__cause__
        return located

    def __reduce__(self) -> tuple[Any, ...]:
        # Without a call of the constructor, as subclasses have other ones.
        return (copyreg.__newobj__, (type(self), *self.args), self.__dict__)  # type: ignore[attr-defined]


class StateError(FeedlineError):
    """A saved state does not fit. ``saved`` and ``current`` hold the differences, key by key."""

    def __init__(
        self,
        what: str,
        *,
        saved: Mapping[str, Any] | None = None,
        current: Mapping[str, Any] | None = None,
        hint: str | None = None,
    ) -> None:
        self.what, self.saved, self.current, self.hint = what, dict(saved or {}), dict(current or {}), hint
        lines = [what]
        if self.saved or self.current:
            keys = sorted(self.saved.keys() | self.current.keys())
            width = max(len(k) for k in keys)
            for key in keys:
                lines.append(f"  {key:<{width}}  saved:   {shown(self.saved.get(key))}")
                lines.append(f"  {'':<{width}}  current: {shown(self.current.get(key))}")
        if hint:
            lines.append(f"  {hint}")
        super().__init__("\n".join(lines))

    __reduce__ = DataError.__reduce__


class WorkerError(FeedlineError, RuntimeError):
    """A worker died. Also a ``RuntimeError``, like the error of PyTorch's loader.

    Attributes:
        unit: the work it was running, or None.
        exitcode: exit code of the process, or minus the signal that killed it.
        stderr: last lines of the process's stderr.
    """

    unit: Any = None
    exitcode: int | None = None
    stderr: str = ""


class StoreError(FeedlineError):
    """A peer of the key-value store is gone or disagrees. The message names the key and the rank.

    Attributes:
        ranks: ranks of the peers, if they are known.
    """

    def __init__(self, what: str, *, ranks: Sequence[int] = ()) -> None:
        super().__init__(what)
        self.ranks = tuple(ranks)


class CompatError(FeedlineError, AttributeError):
    """An old CNTK or MXNet call has no modern meaning. The message has the old and the modern spelling.

    Also an ``AttributeError``: old scripts call ``hasattr(cntk, name)``, or rely on ``getattr``'s default.
    """
