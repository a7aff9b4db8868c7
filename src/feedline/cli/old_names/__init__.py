"""Names and arguments that scripts of CNTK's and MXNet's time use, and that newer packages removed.

`restore_old_names` adds them to the modules of this process, for ``feedline run``. The first use of each prints a note
with the line of the script and the replacement. NumPy is patched at once, the others when they are imported. Names
that the installed version has stay as they are. Methods of arrays, which are compiled, cannot be added.
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
from feedline.cli.old_names.scipy_names import restore_distances
from feedline.cli.old_names.seaborn_names import restore_seaborn

#: Modules that are patched when they are imported.
_LATER: dict[str, Callable[[Any, Notes], None]] = {
    "pandas": restore_pandas,
    "scipy.spatial.distance": restore_distances,
    "seaborn": restore_seaborn,
}


def restore_old_names(write: Callable[[str], None]) -> None:
    """Add the old names, in this process. Idempotent.

    Args:
        write: called with a note when a name is used for the first time.
    """
    if any(isinstance(finder, _LaterFinder) for finder in sys.meta_path):
        return
    notes = Notes(write)
    restore_numpy(notes)
    sys.meta_path.insert(0, _LaterFinder(notes))
    for name, restore in _LATER.items():
        if name in sys.modules:
            restore(sys.modules[name], notes)


class _LaterFinder(MetaPathFinder):
    """Finder that restores the old names of a module after its import."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._busy: set[str] = set()

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if fullname not in _LATER or fullname in self._busy:
            return None
        self._busy.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._busy.remove(fullname)
        loader = None if spec is None else spec.loader
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _LATER[fullname](module, self._notes)

            loader.exec_module = exec_module  # type: ignore[method-assign]  # of this loader, made for this import
        return spec
