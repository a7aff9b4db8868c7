"""What `import feedline` offers is what it lists, what the pages list, and costs what it should."""

from __future__ import annotations

import re
import subprocess
import sys
from types import ModuleType

import feedline
from tests.docs import reference
from tests.docs.pages import IMPORTED_FROM, ROOT

HEAVY = ("torch", "pyarrow", "PIL", "simplejpeg", "typer", "rich", "scipy", "jax", "sklearn", "matplotlib", "graphviz")


def public(module):
    """Names of a module that are neither private nor modules."""
    return {n for n in dir(module) if not n.startswith("_") and not isinstance(getattr(module, n), ModuleType)}


def test_importable_is_listed():
    assert public(feedline) == set(feedline.__all__)
    assert len(feedline.__all__) == len(set(feedline.__all__))


def test_a_name_that_is_not_listed_is_noticed(monkeypatch):
    monkeypatch.setattr(feedline, "planted", 1, raising=False)
    assert public(feedline) - set(feedline.__all__) == {"planted"}


def test_every_name_is_described():
    undescribed = [name for name in feedline.__all__ if not getattr(feedline, name).__doc__]
    assert undescribed == []


def test_the_index_lists_all_names_in_order():
    text = (ROOT / "docs" / "index.md").read_text("utf-8")
    box = text.split("## Names by question\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.split("|")[2] for line in box.splitlines() if line.startswith("|")]
    assert re.findall(r"`(\w+)`", " ".join(rows)) == feedline.__all__


def test_reference_is_made_from_the_docstrings():
    assert reference.PAGE.read_text("utf-8") == reference.page(), "run: python -m tests.docs.reference"


def imported_by(statement):
    """The heavy packages that a fresh interpreter has loaded after a statement."""
    code = f"{statement}\nimport sys\nprint(*[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        timeout=100,
        env={"PYTHONPATH": IMPORTED_FROM},
    )
    return done.stdout.split()


def test_import_loads_numpy_alone():
    assert imported_by("import feedline") == []


def test_a_framework_is_loaded_when_it_is_used():
    assert "torch" in imported_by("import feedline as fl; fl.Value.from_dense([1.0]).torch()")
