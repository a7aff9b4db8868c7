"""What holds between a façade's table of names and its modules, for any façade."""

from __future__ import annotations

import enum
import importlib
import inspect
import json

import pytest

import feedline as fl
from feedline._facades import defined_in
from tests.docs.pages import ROOT

# Public names of CNTK 2.7 and MXNet 1.9.1, by module.
ORIGINAL = json.loads((ROOT / "tests" / "fixtures" / "names_of_the_originals.json").read_text("utf-8"))


def module_of(name):
    return importlib.import_module("feedline." + name)


def there(names):
    return [*names.provided.split(), *names.corrected, *names.approximated, *names.added]


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
        top, _, member = entry.partition(".")
        with pytest.raises(fl.CompatError, match=f"{name}.{entry} is not provided"):
            if member:
                getattr(class_of(module, top), member)
            function = getattr(module, entry)
            function(*[None] * required(function))  # readers can be imported, and raise when they are called


def class_of(module, name):
    """The class, which a module may list only the members of."""
    found = getattr(module, name)
    assert inspect.isclass(found), name
    return found


def check_original(name, names):
    """Every public name of the original's module is one of ours, or in the table."""
    module = module_of(name)
    known = {*there(names), *names.absent}
    missing = [n for n in ORIGINAL[name] if "." not in n and n not in known and not hasattr(module, n)]
    assert missing == []


def missing_members(tables):
    """Return ``module Class.member`` of the original that are in no table of their class or a base class."""
    known = {entry for names in tables.values() for entry in (*there(names), *names.absent)}
    found = []
    for name in sorted(set(ORIGINAL) & set(tables)):
        for entry in ORIGINAL[name]:
            top, _, member = entry.partition(".")
            cls = getattr(module_of(name), top, None)
            above = [c.__name__ for c in cls.__mro__] if inspect.isclass(cls) else []
            # What is absent as a whole has no members.
            if member and cls is not None and not {f"{c}.{member}" for c in [top, *above]} & known:
                found.append(f"{name} {entry}")
    return found


def check_no_attribute(name, names):
    """`hasattr` and `getattr` with a default work, even for names that raise only when called."""
    module, other = module_of(name), object()
    for entry in names.absent:
        top, _, member = entry.partition(".")
        if member:
            assert not hasattr(class_of(module, top), member)
        found = getattr(module, entry, other)
        assert found is other or not hasattr(module, entry) or callable(found)


def required(function):
    return sum(p.default is p.empty for p in inspect.signature(function).parameters.values())


# What modules define for each other, without an underscore, and no script is to use.
INTERNAL = {
    "cntk.cntk_py": {"FULL_DATA_SWEEP", "INFINITELY_REPEAT", "WINDOW_IN_CHUNKS"},
    "cntk.default_options": {"overridable"},
    "cntk.initializer": {"Initializer", "fans"},
    "cntk.layers.blocks": {"FusedStep"},
    "cntk.layers.higher_order_layers": {"as_function", "then"},
    "cntk.train.trainer": {"check_whole", "saved_samples", "saved_state"},
    "cntk.train.training_session": {"from_arrays"},
    "cntk.variables": {"array_dtype", "placeholder", "variable_of"},
    "mxnet.base": {"MXNetStateError", "MXNetStoreError", "as_mxnet"},
    "mxnet.ndarray.sparse": {"from_dense", "from_tensor"},
    "mxnet.recordio": {"decoded"},
    "mxnet.optimizer": {"ScriptOptimizer"},
}


def check_complete(name, names):
    """Check that the table contains the names that a module defines or lists. Most modules list exactly these."""
    module = module_of(name)
    known = {*there(names), *names.absent, *names.handed.split()}
    missing = ({*defined_in(vars(module)), *module.__all__} - known) - INTERNAL.get(name, set())
    for top in names.importable:
        item = getattr(module, top)
        # Packages repeat classes of their modules, and modules the classes of a private namesake.
        own = f"feedline.{name}"
        made = item.__module__ if inspect.isclass(item) else ""
        if made == own or made.startswith(f"{own}._") or made.endswith(f"._{name.rpartition('.')[2]}"):
            missing |= {f"{top}.{member}" for member in members(item)} - known
    assert missing == set()
    assert {entry for entry in there(names) if "." not in entry} <= set(module.__all__)
