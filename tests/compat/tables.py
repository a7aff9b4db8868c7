"""What holds between a façade's table of names and its modules, for any façade."""

from __future__ import annotations

import enum
import importlib
import inspect
import json

import pytest

import feedline as fl
from tests.docs.pages import ROOT

# Public names of CNTK 2.7 and MXNet 1.9.1, by module.
ORIGINAL = json.loads((ROOT / "tests" / "fixtures" / "names_of_the_originals.json").read_text("utf-8"))


def module_of(name):
    return importlib.import_module("feedline." + name)


def there(names):
    return [*names.provided.split(), *names.mended, *names.approximated, *names.added]


def members(cls):
    """Public members that a class defines itself."""
    if issubclass(cls, enum.Enum):
        return []
    return [name for name in vars(cls) if not name.startswith("_")]


def check_listed_once(names):
    listed = [*there(names), *names.absent]
    assert len(listed) == len(set(listed))


def check_there(name, names):
    module = module_of(name)
    for entry in there(names):
        top, _, member = entry.partition(".")
        item = getattr(module, top)
        source = inspect.getsource(item) if member and not hasattr(item, member) else ""
        assert not member or hasattr(item, member) or f"self.{member}" in source, entry


def check_absent(name, names):
    module = module_of(name)
    for entry in names.absent:
        with pytest.raises(fl.CompatError, match=f"{name}.{entry} is not there"):
            function = getattr(module, entry)
            function(*[None] * required(function))  # readers can be imported, and say so when they are called


def check_original(name, names):
    """Every public name of the original's module is one of ours, or in the table."""
    module = module_of(name)
    known = {*there(names), *names.absent}
    assert [n for n in ORIGINAL[name] if n not in known and not hasattr(module, n)] == []


def check_no_attribute(name, names):
    """`hasattr` and `getattr`'s default work, also for what can be imported and says so when it is called."""
    module, other = module_of(name), object()
    for entry in names.absent:
        found = getattr(module, entry, other)
        assert found is other or not hasattr(module, entry) or callable(found)


def required(function):
    return sum(p.default is p.empty for p in inspect.signature(function).parameters.values())


def check_complete(name, names):
    module = module_of(name)
    known = {*there(names), *names.absent}
    missing = set(module.__all__) - known
    for top in module.__all__:
        item = getattr(module, top)
        # Packages repeat classes of their modules.
        own = f"feedline.{name}"
        if inspect.isclass(item) and (item.__module__ == own or item.__module__.startswith(f"{own}._")):
            missing |= {f"{top}.{member}" for member in members(item)} - known
    assert missing == set()
    assert {entry for entry in there(names) if "." not in entry} <= set(module.__all__)
