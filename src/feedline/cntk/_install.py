"""Makes `import cntk` mean this façade, in this process only.

A finder stands before all others and answers for `cntk` and what is below it with the modules of `feedline.cntk`
themselves, so that a class has one identity under both names. Nothing is written anywhere.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

from feedline.errors import CompatError

OLD, NEW = "cntk", "feedline.cntk"


class Alias(MetaPathFinder, Loader):
    """Finds ``cntk.x`` where ``feedline.cntk.x`` is."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if fullname != OLD and not fullname.startswith(f"{OLD}."):
            return None
        if find_spec(_new_name(fullname)) is None:
            raise ModuleNotFoundError(
                f"feedline has no {fullname}; docs/compat/cntk.md lists what is there", name=fullname
            )
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The façade's module."""
        module = importlib.import_module(_new_name(spec.name))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing, as it has run already, but giving it back its spec, which the import system has replaced.

        Its submodules that are loaded get their old names here: importing one under it would set it as an attribute
        of the package, over `cntk.train.training_session`, the function.
        """
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state
        below = f"{module.__name__}."
        for name in [name for name in sys.modules if name.startswith(below)]:
            sys.modules.setdefault(OLD + name.removeprefix(NEW), sys.modules[name])


def install() -> None:
    """Register the façade under the name ``cntk``, for this process; again is as once.

    Raises:
        CompatError: another package has been imported as ``cntk`` already.
    """
    loaded = sys.modules.get(OLD)
    if loaded is not None and loaded is not sys.modules[NEW]:
        raise CompatError(
            "expected install() before cntk is imported, got cntk already, from "
            f"{getattr(loaded, '__file__', 'elsewhere')}; call feedline.cntk.install() first"
        )
    if not any(isinstance(finder, Alias) for finder in sys.meta_path):
        sys.meta_path.insert(0, Alias())
    importlib.import_module(OLD)


def _new_name(name: str) -> str:
    return NEW + name.removeprefix(OLD)
