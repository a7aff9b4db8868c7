"""`import feedline` offers the names in its list and in the pages, within its time limit."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest

import feedline
import feedline as fl
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


def names_by_question():
    """Names in the order of docs/reference/questions.md."""
    text = (ROOT / "docs" / "reference" / "questions.md").read_text("utf-8")
    rows = [line.split("|")[2] for line in text.splitlines() if line.startswith("|")]
    return re.findall(r"`(\w+)`", " ".join(rows))


def test_names_by_question_are_all_names():
    assert sorted(names_by_question()) == sorted(feedline.__all__)


def test_the_reference_has_all_names_in_the_order_of_the_index():
    """Its pages name their content, and the index lists the names."""
    folder = ROOT / "docs" / "reference"
    index = (folder / "index.md").read_text("utf-8")
    shown = {}
    for page in re.findall(r"\]\((\w+\.md)\)", index):
        if page == "json.md":  # has fields of documents, which tests/cli/test_json.py compares
            continue
        text = (folder / page).read_text("utf-8")
        found = re.findall(r"^## (\w+)\n\n::: (feedline[\w.]*)\.(\w+)$", text, re.MULTILINE)
        assert len(found) == text.count("\n:::") == text.count("\n## "), page
        assert all(heading == name for heading, _, name in found), page
        for _, module, name in found:
            shown.setdefault(module, []).append(name)
    assert {path.name for path in folder.glob("*.md")} == {"index.md", *re.findall(r"\]\((\w+\.md)\)", index)}
    assert shown["feedline"] == names_by_question()
    assert re.findall(r"`(\w+)`", index.split("\n\n", 2)[2]) == [name for names in shown.values() for name in names]


def test_the_reference_has_all_names_of_the_other_modules():
    pytest.importorskip("torch", reason="torch is not installed")
    for module in ("train", "kvstore", "audio", "images", "video", "testing"):
        text = (ROOT / "docs" / "reference" / f"{module}.md").read_text("utf-8")
        names = importlib.import_module(f"feedline.{module}").__all__
        assert sorted(re.findall(rf"^::: feedline\.{module}\.(\w+)$", text, re.MULTILINE)) == sorted(names)


def modules_after(statement):
    """The modules that a fresh interpreter has loaded after a statement."""
    done = subprocess.run(
        [sys.executable, "-c", f"{statement}\nimport sys\nprint(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
        timeout=100,
        env={"PYTHONPATH": IMPORTED_FROM},
    )
    return set(done.stdout.split())


def imported_by(statement):
    """The heavy packages among them."""
    return sorted(modules_after(statement).intersection(HEAVY))


def test_import_loads_numpy_alone():
    assert imported_by("import feedline") == []


def test_a_framework_is_loaded_when_it_is_used():
    assert "torch" in imported_by("import feedline as fl; fl.Value.from_dense([1.0]).torch()")


def test_a_store_opens_without_other_formats_and_object_stores(tmp_path):
    """The first minibatch of a small store is mostly imports."""
    np.save(tmp_path / "x.npy", np.zeros((4, 2), np.float32))
    fl.convert(tmp_path / "x.npy", tmp_path / "store")
    opened = f"fl.MinibatchSource(fl.open_corpus({str(tmp_path / 'store')!r}))"
    loaded = modules_after(f"import feedline as fl\n{opened}.next_minibatch(2)")
    assert "feedline.feed.formats.store.store_reader" in loaded
    readers = ("arrow.file", "arrow.columns", "cntk.cbf", "indexed", "remote_corpus", "store.writer", "store.journal")
    assert not {f"feedline.feed.formats.{reader}" for reader in readers}.intersection(loaded)
    absent = ("remote.addresses", "remote.stores", "remote.object_cache", "sharing.group", "plan")
    absent += tuple(f"composed.{part}" for part in ("join", "mixture_order", "packed", "document_cuts", "texts"))
    absent += tuple(f"formats.{part}" for part in ("arrow", "speech", "hdf5_zarr", "detect_images"))
    assert not {f"feedline.feed.{part}" for part in absent}.intersection(loaded)


def test_a_loader_comes_without_what_only_corpora_and_workers_need():
    """Its import is to be short, and to make so few objects that Python need not look at all of torch's for garbage."""
    loaded = modules_after("from feedline import DataLoader")
    assert "feedline.feed.loader.loader" in loaded
    absent = (
        "data",
        "interop.ray_session",
        "feed.corpora",
        "feed.source",
        "feed.formats",
        "feed.remote",
        "feed.reading.reader",
    )
    absent += (
        "feed.transforms",
        "feed.files.digest",
        "feed.workers.pool",
        "feed.workers.process_pool",
        "audio",
        "images",
        "video",
        "graph",
    )
    names = [f"feedline.{name}" for name in absent]
    assert [m for m in loaded if any(m == name or m.startswith(f"{name}.") for name in names)] == []
