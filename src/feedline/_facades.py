"""What façades of old frameworks have in common: the table of their names, and the way under the old name.

A façade is a package `feedline.OLD` with the module paths of the original. Its table says of every name whether it is
provided, approximated or absent; modules ask it what to say of a name they lack, docs/compat/OLD.md is made from it,
and tests hold it against the modules.

`install` makes ``import OLD`` mean the façade, in this process only. A finder stands before all others and answers for
``OLD`` and what is below it with the façade's modules themselves, so that a class has one identity under both names.
Nothing is written anywhere.

A name that is absent is an AttributeError, for `hasattr`; of ``from OLD import NAME`` Python would keep no more than
that there is none. So it asks the finder, as for any name that might be a module, and the finder has the sentence.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

from feedline.errors import CompatError


@dataclass(frozen=True)
class Names:
    """Names of one module; members of classes as ``Class.member``.

    Attributes:
        provided: as in the original; names, parted by blanks.
        mended: as in the original but for a defect, which the sentence names.
        approximated: with a difference, which the sentence names.
        absent: what to use instead.
        added: of ours, not of the original.
    """

    provided: str = ""
    mended: dict[str, str] = field(default_factory=dict)
    approximated: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    added: dict[str, str] = field(default_factory=dict)

    @property
    def importable(self) -> list[str]:
        """Names that can be imported from the module, without members of classes."""
        there = [*self.provided.split(), *self.mended, *self.approximated, *self.added]
        return [name for name in there if "." not in name]


def explain(tables: Mapping[str, Names], module: str, name: str) -> Exception:
    """The error for a name that ``module`` lacks: CompatError with what to use, or AttributeError if it is unknown."""
    known = tables[module].absent
    if name in known:
        return CompatError(f"{module}.{name} is not there: {known[name]}")
    old = module.partition(".")[0]
    return AttributeError(f"module '{module}' has no attribute '{name}'; docs/compat/{old}.md lists what is there")


def alike(names: str, sentence: str) -> dict[str, str]:
    """The same sentence for several names, parted by blanks."""
    return dict.fromkeys(names.split(), sentence)


class Alias(MetaPathFinder, Loader):
    """Finds ``old.x`` where ``feedline.old.x`` is.

    Args:
        old: name of the package.
        tables: what of it is absent, by module.
    """

    def __init__(self, old: str, tables: Mapping[str, Names]) -> None:
        self.old, self.tables = old, tables

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`.

        Raises:
            ImportError: a name that is absent was imported from a module, with what to use.
            ModuleNotFoundError: there is no such module.
        """
        module, _, name = fullname.removeprefix("feedline.").rpartition(".")
        absent = module in self.tables and name in self.tables[module].absent
        if absent and fullname.startswith("feedline."):
            raise ImportError(str(explain(self.tables, module, name)), name=fullname)
        if fullname != self.old and not fullname.startswith(f"{self.old}."):
            return None
        if absent or find_spec(f"feedline.{fullname}") is None:
            instead = f": {self.tables[module].absent[name]}" if absent else ""
            raise ModuleNotFoundError(
                f"feedline has no {fullname}{instead}; docs/compat/{self.old}.md lists what is there", name=fullname
            )
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The façade's module."""
        module = importlib.import_module(f"feedline.{spec.name}")
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
            sys.modules.setdefault(name.removeprefix("feedline."), sys.modules[name])
            _searched(sys.modules[name])
        _searched(module)


def _searched(module: ModuleType) -> None:
    """Names that are imported from it, and are not there, are looked for by finders, too."""
    if not hasattr(module, "__path__"):
        module.__path__ = []


def install(old: str) -> None:
    """Register the façade ``feedline.old`` under the name ``old``, for this process; again is as once.

    Raises:
        CompatError: another package has been imported as ``old`` already.
    """
    loaded = sys.modules.get(old)
    if loaded is not None and loaded is not sys.modules[f"feedline.{old}"]:
        raise CompatError(
            f"expected install() before {old} is imported, got {old} already, from "
            f"{getattr(loaded, '__file__', 'elsewhere')}; call feedline.{old}.install() first"
        )
    if not any(isinstance(finder, Alias) and finder.old == old for finder in sys.meta_path):
        tables = importlib.import_module(f"feedline.{old}._names").NAMES
        sys.meta_path.insert(0, Alias(old, tables))
    importlib.import_module(old)
