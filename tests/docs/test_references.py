"""Modules and names of feedline that docstrings, comments and pages name in full exist."""

from __future__ import annotations

import importlib
import re
from functools import cache

import pytest

from tests.docs.pages import ROOT, pages
from tests.docs.test_architecture import SOURCE

pytest.importorskip("torch", reason="torch is not installed")

#: Not names: a file of a store, the group of entry points, and the general name of façades.
OTHERS = {"feedline.json", "feedline.formats", "feedline.OLD", "feedline.old", "feedline.old.x"}


def names(text):
    """Names in code quotes that begin with the package."""
    return {name for name in re.findall(r"`(feedline(?:\.\w+)+)", text) if name not in OTHERS}


@cache
def is_there(name):
    """Return the object of this name, or False. Attributes that instances may create are assumed to exist."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        parent, _, last = name.rpartition(".")
        around = is_there(parent)
        return getattr(around, last, isinstance(around, type))


def missing(text):
    return sorted(name for name in names(text) if is_there(name) is False)


def test_every_name_is_there():
    files = [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.md"), *pages()]
    texts = {str(file.relative_to(ROOT)): file.read_text("utf-8") for file in files}
    assert sum(len(names(text)) for text in texts.values()) > 50
    assert {file: missing(text) for file, text in texts.items() if missing(text)} == {}


def test_a_name_that_is_not_there_is_noticed():
    text = "`feedline.graph.Nowhere` `feedline.train.Trainer.ended` `feedline.kvstore.link` `feedline.train.learner`"
    assert missing(text) == ["feedline.graph.Nowhere", "feedline.kvstore.link"]
