"""The page of CNTK's examples is what its command makes of the records, which name versions that are pinned."""

from __future__ import annotations

import json
import re

import pytest

from tests.docs import examples_table
from tests.docs.examples_table import page, read, without_folders, write

PINS = dict(re.findall(r"^([\w.-]+)==(\S+)$", (examples_table.ROOT / "constraints.txt").read_text("utf-8"), re.M))
RECORD = {
    "job": "Tutorials/CNTK_101.ipynb",
    "arguments": [],
    "shortened": False,
    "rc": 0,
    "cpu": 1.24,
    "limit_s": 60,
    "last": "loss = 1 | /a/b/c",
    "error": [],
    "versions": {"numpy": PINS["numpy"]},
}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that writes a run of changed records."""
    monkeypatch.setattr(examples_table, "PAGE", tmp_path / "examples.md")
    monkeypatch.setattr(examples_table, "RECORDS", tmp_path / "records.jsonl")

    def make(name, *changes):
        path = tmp_path / name
        path.write_text("".join(json.dumps(RECORD | change) + "\n" for change in changes))
        return path

    return make


def test_the_page_is_generated():
    assert examples_table.PAGE.read_text("utf-8") == page(), "run: python -m tests.docs.examples_table RUN"


def test_the_records_name_no_folder_of_a_machine():
    text = examples_table.RECORDS.read_text("utf-8")
    assert without_folders(text) == text


def test_folders_are_left_out_of_records(run):
    write([run("1", {"arguments": ["-d", "/home/me/data/CIFAR"], "error": ["at '/a/b.py' of http://site/x/y"]})])
    record = json.loads(examples_table.RECORDS.read_text("utf-8"))
    assert (record["arguments"], record["error"]) == (["-d", "…/CIFAR"], ["at '…/b.py' of http://site/x/y"])


def test_later_runs_replace_earlier_ones(run):
    first = run("1", {"rc": 1, "error": ["ValueError: x"]}, {"job": "Examples/a/b.py", "rc": -24, "arguments": ["-e"]})
    write([first, run("2", {})])
    ended, stopped = examples_table.PAGE.read_text("utf-8").split("## Stopped by a limit")
    assert "| `CNTK_101` | as published | 1.2 | `loss = 1   …/c` |" in ended
    assert "| `b.py` | shortened | 1.2 |" in stopped
    assert "End with an error" not in stopped
    assert f"numpy {PINS['numpy']}" in ended


def test_versions_are_pinned(run):
    with pytest.raises(ValueError, match=r"pins in .*, line 2, got \{'numpy': '1.0'\}: install these"):
        read(run("1", {}, {"versions": {"numpy": "1.0"}}))
    with pytest.raises(ValueError, match="expected versions that constraints"):
        read(run("1", {"versions": {}}))


def test_a_run_without_records_replaces_nothing(run):
    for runs in ([], [run("1")]):
        with pytest.raises(ValueError, match=r"expected records in .*, got none"):
            write(runs)
    assert not examples_table.RECORDS.exists()


def test_records_are_whole(tmp_path):
    (tmp_path / "1").write_text(json.dumps({key: value for key, value in RECORD.items() if key != "cpu"}) + "\n")
    with pytest.raises(ValueError, match=r"expected cpu in .*, line 1: run that script again"):
        read(tmp_path / "1")
