"""Formats that installed packages add: distributions in a folder on sys.path, as pip writes them."""

from __future__ import annotations

import gzip
import sys

import numpy as np
import pytest

import feedline as fl
from feedline.feed.formats.detect import format_name

MODULE = """
import numpy as np
import feedline as fl

class Steps(fl.UserDeserializer):
    schema = fl.Schema({"x": fl.Stream(shape=())})
    def __init__(self, paths):
        self.files = paths
    def num_chunks(self):
        return len(self.files)
    def get_chunk(self, chunk):
        return {"x": np.arange(4, dtype=np.float32)}

def open_files(paths, streams, memory):
    return Steps(paths)

def described(**how):
    return fl.Format("%(name)s", "a file of %(name)s", "%(module)s:open_files", **how)

"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """A function that installs a package with one entry point, the variable FORMAT of its module."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def installs(package, code, name="steps"):
        module = package.replace("-", "_")
        (site / f"{module}.py").write_text(MODULE % {"name": name, "module": module} + code)
        about = site / f"{module}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[feedline.formats]\n{name} = {module}:FORMAT\n")

    yield installs
    for path in site.glob("*.py"):
        sys.modules.pop(path.stem, None)


BY_BYTES = """
FORMAT = described(
    matches_file=lambda path, head: head.startswith(b'STEPS'), multiple_files=True, may_be_compressed=True
)
"""


def write(path, data=b"STEPS"):
    path.write_bytes(data)
    return path


def test_files_are_recognised_by_their_bytes(tmp_path, install):
    path = write(tmp_path / "a.steps")
    with pytest.raises(fl.DataError, match="of a known format"):
        fl.open_corpus(path)
    install("feedline-steps", BY_BYTES)
    sys.path.append("")  # packages are looked up again when the path changes
    source = fl.MinibatchSource(fl.open_corpus(path, streams={"x": fl.Stream(())}), shuffle=False, max_sweeps=1)
    assert source.next_minibatch(9)["x"].tolist() == [0, 1, 2, 3]
    assert format_name(path) == "steps"


def test_lists_patterns_folders_and_compressed_files(tmp_path, install):
    install("feedline-steps", BY_BYTES)
    folder = tmp_path / "data"
    folder.mkdir()
    paths = [write(folder / f"{i}.steps") for i in range(2)]
    paths.append(write(folder / "2.steps.gz", gzip.compress(b"STEPS")))
    for what in (paths, folder, folder / "*"):
        assert fl.open_corpus(what).files == [str(path) for path in paths]


def test_folders_and_suffixes(tmp_path, install):
    install("feedline-steps", "FORMAT = described(matches_folder=lambda p: (p / 'steps').exists(), suffixes=('.s',))")
    folder = tmp_path / "data"
    folder.mkdir()
    write(folder / "steps")
    assert format_name(folder) == "steps"
    assert format_name(write(tmp_path / "a.S", b"?")) == "steps"
    with pytest.raises(fl.DataError, match=r"expected a file of steps, got 2"):
        fl.open_corpus([tmp_path / "a.S", tmp_path / "a.S"])
    (tmp_path / "parent").mkdir()
    folder.rename(tmp_path / "parent" / "train")
    with pytest.raises(fl.DataError, match=r"name a folder in it, or a list of them: train$"):
        fl.open_corpus(tmp_path / "parent")


def test_a_package_reads_what_feedline_refuses(tmp_path, install):
    path = write(tmp_path / "a.db", b"SQLite format 3\0")
    with pytest.raises(fl.DataError, match="SQLite"):
        fl.open_corpus(path)
    install("feedline-sqlite", "FORMAT = described(matches_file=lambda p, head: head.startswith(b'SQLite'))", "sqlite")
    sys.path.append("")
    assert format_name(path) == "sqlite"


def test_built_in_formats_come_first_and_ask_no_package(tmp_path, install):
    np.save(tmp_path / "a.npy", np.zeros(3))
    (tmp_path / "a.csv").write_text("x\n1\n")
    (tmp_path / "folder").mkdir()
    np.save(tmp_path / "folder" / "a.npy", np.zeros(3))
    install("feedline-greedy", "raise RuntimeError('imported')")
    assert [format_name(tmp_path / name) for name in ("a.npy", "a.csv", "folder")] == ["npy", "csv", "npy folder"]


@pytest.mark.parametrize(
    ("code", "name", "message"),
    [
        ("FORMAT = 7", "steps", "expected a feedline.Format, got int"),
        ("", "steps", "expected a feedline.Format, got AttributeError: .*FORMAT.*"),
        ("import nowhere_at_all", "steps", "expected a feedline.Format, got ModuleNotFoundError: .*nowhere_at_all.*"),
        ("FORMAT = described()", "csv", "expected one format `csv`, got another one in addition to that of feedline"),
    ],
)
def test_entries_that_are_no_formats(tmp_path, install, code, name, message):
    install("feedline-wrong", code, name)
    where = rf"\n  at entry point `{name} = feedline_wrong:FORMAT` of package feedline-wrong\n"
    with pytest.raises(fl.FeedlineError, match=message + where):
        fl.open_corpus(write(tmp_path / "a.steps"))


def test_two_packages_with_one_name(tmp_path, install):
    install("steps-a", BY_BYTES)
    install("steps-b", BY_BYTES)
    with pytest.raises(fl.FeedlineError, match=r"one format `steps`.*package steps-[ab](.|\n)*package steps-[ab]"):
        fl.open_corpus(write(tmp_path / "a.steps"))


def test_two_formats_that_recognise_one_file(tmp_path, install):
    install("steps-a", BY_BYTES, "a")
    install("steps-b", BY_BYTES, "b")
    with pytest.raises(fl.DataError, match="expected one format that recognises this, got `a` and `b`"):
        fl.open_corpus(write(tmp_path / "a.steps"))
