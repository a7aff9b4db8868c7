"""Notes about old names, one for each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Frames of these files are not the script's.
_SKIPPED = (str(Path(__file__).parent), "<frozen importlib")


class Notes:
    """Notes about old names, one for each.

    Args:
        write: called with a note.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._names: set[str] = set()

    def used(self, name: str, instead: str) -> None:
        """Write that ``instead`` is used for ``name``, at the line outside of this module, unless it is known."""
        if name in self._names:
            return
        self._names.add(name)
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename.startswith(_SKIPPED):
            frame = frame.f_back
        package = name.partition(".")[0].partition(" ")[0]
        self._write(
            f"{frame.f_code.co_filename}:{frame.f_lineno}: {name} is not in {package} "
            f"{sys.modules[package].__version__}: used {instead}"
        )

    def wrap(self, name: str, function: Callable[..., Any], instead: str) -> Callable[..., Any]:
        """Return a function that notes its first call."""

        def noted(*args: Any, **options: Any) -> Any:
            self.used(name, instead)
            return function(*args, **options)

        return noted
