"""One word, one meaning: no class and no module has the name of another. Words: tests/docs/test_glossary.py."""

import ast
from collections import Counter
from pathlib import Path

import feedline

ROOT = Path(feedline.__file__).parent
FACADES = ("cntk", "mxnet")  # their names are the originals' names

#: Names that still occur twice. A name leaves this list for good when its second class is renamed.
TWICE = {
    "Summary",  # graph (public), train (public)
    "Decode",  # of each kind of media (public)
    # Learners, and MXNet's optimizers in stores, whose names its scripts and pickles hold.
    "SGD", "Adam", "RMSProp", "AdaGrad",
}  # fmt: skip


def module_classes():
    """Names of the classes at the level of modules, outside the façades."""
    for path in ROOT.rglob("*.py"):
        if path.relative_to(ROOT).parts[0] not in FACADES:
            yield from (node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef))


def test_no_class_name_occurs_twice():
    twice = {name for name, count in Counter(module_classes()).items() if count > 1}
    assert twice - TWICE == set(), "give the newer class a name that says how it differs"
    assert TWICE - twice == set(), "these occur once now: take them off the list"


#: Modules of a command have its name. `base` is the interface of its folder.
COMMANDS = "cli"
INTERFACE = "base"


def test_no_module_name_occurs_twice():
    paths = [path for path in ROOT.rglob("*.py") if not path.stem.startswith("__") and path.stem != INTERFACE]
    outside = [path for path in paths if path.relative_to(ROOT).parts[0] not in (*FACADES, COMMANDS)]
    counts = Counter(path.stem for path in outside)
    assert counts.total() > 400
    assert {name for name, count in counts.items() if count > 1} == set(), "name the newer module for how it differs"
