"""Façades of old frameworks: the table of their names, and importing them under the old name.

A façade is a package `feedline.OLD` with the module paths of the original. Its table lists for every name whether it is
provided, approximated or absent. Modules look up the error for a missing name in it, docs/compat/OLD.md is generated
from it, and tests compare it with the modules.

`install` makes ``import OLD`` mean the façade, in this process only. A finder ahead of all other finders answers for
``OLD`` and its submodules with the façade's own modules, so that a class has one identity under both names. Nothing is
written to disk.

Looking up an absent name raises an AttributeError, for `hasattr`. For ``from OLD import NAME`` Python would drop its
message. But it first asks finders for a module of that name, and ours raises an ImportError with the message.
"""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from feedline.errors import CompatError

_Class = TypeVar("_Class", bound=type)


@dataclass(frozen=True)
class Names:
    """The names of one module, with members of classes as ``Class.member``.

    Attributes:
        provided: names that behave as in the original, separated by spaces.
        corrected: names without a defect of the original, with a description of it.
        approximated: names that differ from the original, with the difference.
        absent: names that are missing, with a replacement.
        added: names that the original lacks, with a description.
        handed: names that the original's module imports for itself and passes on by ``from module import *``, separated
            by spaces: standard modules and NumPy, or names of the package.
    """

    provided: str = ""
    corrected: dict[str, str] = field(default_factory=dict)
    approximated: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    added: dict[str, str] = field(default_factory=dict)
    handed: str = field(default="", kw_only=True)

    @property
    def exported(self) -> list[str]:
        """``__all__`` of the module: the importable names, and the names that it passes on."""
        return list(dict.fromkeys([*self.importable, *self.handed.split()]))

    @property
    def importable(self) -> list[str]:
        """Names that can be imported from the module, without members of classes."""
        names = [*self.provided.split(), *self.corrected, *self.approximated, *self.added]
        return [name for name in names if "." not in name]


def explain(tables: Mapping[str, Names], module: str, name: str) -> Exception:
    """Return the error for a missing name: CompatError with a replacement, or AttributeError if it is unknown."""
    absent = tables[module].absent
    if name in absent:
        return CompatError(f"{module}.{name} is not provided: {absent[name]}")
    old = module.partition(".")[0]
    return AttributeError(f"module '{module}' has no attribute '{name}'; docs/compat/{old}.md lists what is provided")


# Modules that old packages import under these names, and pass on.
_HANDED_MODULES = {"np": "numpy", "os": "os", "sys": "sys"}


def look_up(tables: Mapping[str, Names], module: str, name: str) -> Any:
    """Return an object that a module passes on, under a name that it does not define.

    Raises:
        CompatError: the name is absent on purpose. The message has a replacement.
        AttributeError: the original has no such name.
    """
    if name not in tables[module].handed.split():
        raise explain(tables, module, name)
    if name in _HANDED_MODULES:
        return importlib.import_module(_HANDED_MODULES[name])
    return getattr(importlib.import_module(f"feedline.{module.partition('.')[0]}"), name)


def names_of(tables: Mapping[str, Names], module: str) -> tuple[list[str], Callable[[str], Any]]:
    """Return ``__all__`` and ``__getattr__`` of a façade's module. The table is the only list of its names.

    Args:
        tables: names by module, of one façade.
        module: ``__name__`` of the module, below `feedline`.
    """
    old = module.removeprefix("feedline.")
    return tables[old].exported, partial(look_up, tables, old)


class _Absent:
    """Absent member of a class of the original. Looking it up raises CompatError, on the class and its instances."""

    def __init__(self, message: str) -> None:
        self._message = message

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        raise CompatError(self._message)


def absent_members(tables: Mapping[str, Names], module: str) -> Callable[[_Class], _Class]:
    """Return a decorator of a class: looking up members that its module's table lists as absent raises CompatError.

    `hasattr` is False for them, as for all absent names.
    """

    def decorate(cls: _Class) -> _Class:
        for entry, sentence in tables[module].absent.items():
            top, _, member = entry.partition(".")
            if member and top == cls.__name__:
                setattr(cls, member, _Absent(f"{module}.{entry} is not provided: {sentence}"))
        return cls

    return decorate


def defined_in(namespace: Mapping[str, Any]) -> list[str]:
    """Return the public functions, classes and ints that a module itself defines, from its ``globals()``."""
    home = namespace["__name__"]
    public = {name: value for name, value in namespace.items() if not name.startswith("_")}
    return [name for name, value in public.items() if type(value) is int or getattr(value, "__module__", None) == home]


_SENTENCES = ("corrected", "approximated", "absent", "added")


def read_names(path: Path) -> dict[str, Names]:
    """Read the names of a façade's modules.

    The file has a table for each module: ``provided``, names separated by spaces, tables ``corrected``,
    ``approximated``, ``absent`` and ``added`` from names, separated by spaces, to the sentence that they share,
    ``repeats``, modules whose names the package re-exports, except members of classes, and ``handed``.
    """
    with path.open("rb") as file:
        tables = tomllib.load(file)
    result = {
        module: Names(
            table.get("provided", ""),
            *(
                {name: sentence for names, sentence in table.get(key, {}).items() for name in names.split()}
                for key in _SENTENCES
            ),
            handed=table.get("handed", ""),
        )
        for module, table in tables.items()
    }
    for module, table in tables.items():
        if "repeats" in table:
            result[module] = _repeating(result[module], [result[name] for name in table["repeats"]])
    return result


def _repeating(table: Names, parts: Sequence[Names]) -> Names:
    provided = {*table.provided.split(), *(name for part in parts for name in part.provided.split() if "." not in name)}
    return Names(
        " ".join(sorted(provided)),
        *(
            {
                **{name: text for part in parts for name, text in getattr(part, key).items() if "." not in name},
                **getattr(table, key),
            }
            for key in _SENTENCES
        ),
        handed=table.handed,
    )


class _Finder(MetaPathFinder, Loader):
    """Finder that gives modules of a façade other names. ``loader_state`` of a spec is the original name."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the façade's module."""
        module = importlib.import_module(spec.loader_state)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's spec, which the import system has replaced. Its code has run already."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


class Alias(_Finder):
    """Finder that resolves ``old.x`` to the module ``feedline.old.x``.

    Args:
        old: name of the original package.
        tables: its tables of names, by module.
    """

    def __init__(self, old: str, tables: Mapping[str, Names]) -> None:
        self.old, self.tables = old, tables

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`.

        Raises:
            ImportError: an absent name was imported from a module. The message has a replacement.
            ModuleNotFoundError: no such module.
        """
        module, _, name = fullname.removeprefix("feedline.").rpartition(".")
        absent = module in self.tables and name in self.tables[module].absent
        if absent and fullname.startswith("feedline."):
            raise ImportError(str(explain(self.tables, module, name)), name=fullname)
        if fullname != self.old and not fullname.startswith(f"{self.old}."):
            return None
        if absent or find_spec(f"feedline.{fullname}") is None:
            instead = f": {self.tables[module].absent[name]}" if absent else ""
            message = f"feedline has no {fullname}{instead}; docs/compat/{self.old}.md lists what is provided"
            raise ModuleNotFoundError(message, name=fullname)
        return ModuleSpec(fullname, self, loader_state=f"feedline.{fullname}", is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's spec.

        Loaded submodules are registered under their old names here. If they were imported instead, Python would set
        them as attributes of the package, and `cntk.train.training_session` would no longer be the function.
        """
        super().exec_module(module)
        below = f"{module.__name__}."
        for name in [name for name in sys.modules if name.startswith(below)]:
            sys.modules.setdefault(name.removeprefix("feedline."), sys.modules[name])
            _searched(sys.modules[name])
        _searched(module)


def _searched(module: ModuleType) -> None:
    """Make Python use finders for names that are imported from the module and missing."""
    if not hasattr(module, "__path__"):
        module.__path__ = []


class Beside(_Finder):
    """Finds modules that an original package had next to it, unless their names are in use.

    Args:
        modules: mapping from their names to modules of the façade.
    """

    def __init__(self, modules: Mapping[str, str]) -> None:
        self.modules = dict(modules)

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if fullname not in self.modules:
            return None
        return ModuleSpec(fullname, self, loader_state=self.modules[fullname])


def install(old: str, beside: Mapping[str, str] | None = None) -> None:
    """Register the façade ``feedline.old`` as ``old`` in this process. Idempotent.

    Args:
        old: name of the original package.
        beside: modules that it had next to it, and their replacements in the façade. A script's own modules take
            precedence.

    Raises:
        CompatError: another package was already imported as ``old``.
    """
    loaded = sys.modules.get(old)
    if loaded is not None and loaded is not sys.modules[f"feedline.{old}"]:
        raise CompatError(
            f"expected install() before {old} is imported, got {old} imported already, from "
            f"{getattr(loaded, '__file__', 'elsewhere')}; call feedline.{old}.install() first"
        )
    if not any(isinstance(finder, Alias) and finder.old == old for finder in sys.meta_path):
        tables = importlib.import_module(f"feedline.{old}._names").NAMES
        sys.meta_path.insert(0, Alias(old, tables))
        if beside:
            sys.meta_path.append(Beside(beside))
    importlib.import_module(old)
