"""Names of NumPy and pandas that scripts of CNTK's and MXNet's time use, and that newer versions removed.

`restore_old_names` adds them to the modules of this process, for ``feedline run``. The first use of each prints a note
with the line of the script and the replacement. pandas is patched when it is imported. Names that the installed version
has stay as they are. Methods of arrays, which are compiled, cannot be added.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from feedline.cli.old_names.notes import Notes
from feedline.cli.old_names.numpy_names import restore_numpy
from feedline.cli.old_names.pandas_names import restore_pandas


def restore_old_names(write: Callable[[str], None]) -> None:
    """Add the old names to NumPy and pandas, in this process. Idempotent.

    Args:
        write: called with a note when a name is used for the first time.
    """
    if any(isinstance(finder, _PandasFinder) for finder in sys.meta_path):
        return
    notes = Notes(write)
    restore_numpy(notes)
    sys.meta_path.insert(0, _PandasFinder(notes))
    if "pandas" in sys.modules:
        restore_pandas(sys.modules["pandas"], notes)


class _PandasFinder(MetaPathFinder):
    """Finder that restores the old names of pandas after its import."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._busy = False

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if fullname != "pandas" or self._busy:
            return None
        self._busy = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._busy = False
        loader = None if spec is None else spec.loader
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                restore_pandas(module, self._notes)

            loader.exec_module = exec_module  # type: ignore[method-assign]  # of this loader, made for this import
        return spec
