"""Stores to which more is appended: as if all had been converted at once, and never a part of it."""

import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import feedline as fl
from tests.cli.shell import feedline
from tests.feed.formats.corpora import everything

#: Appends to the store at argv[1], and is killed at the call with number argv[2] that changes a folder.
KILLED = """
import os, sys
import numpy as np
import feedline as fl

left = int(sys.argv[2])

def counted(call):
    def wrapper(*arguments, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
        return call(*arguments, **options)
    return wrapper

for name in ("rename", "replace", "link", "unlink", "rmdir", "mkdir"):
    setattr(os, name, counted(getattr(os, name)))
fl.convert(fl.ArrayDeserializer(x=np.arange(5, 9)), sys.argv[1], append=True)
"""


def ragged(low, high):
    return fl.ArrayDeserializer(
        x=np.arange(low, high), words=[np.full((1 + i % 3,), i, "float32") for i in range(low, high)]
    )


@pytest.mark.parametrize("options", [{}, {"compression": "lz4"}, {"chunk_bytes": 30, "part_bytes": 200}])
def test_an_appended_store_has_the_sequences_of_both(tmp_path, options):
    store, bounds = tmp_path / "store", [0, 10, 17, 30]
    for a, b in pairwise(bounds):
        before = None if a == 0 else fl.open_corpus(str(store)).digest()
        summary = fl.convert(ragged(a, b), store, append=True, **options)
        assert summary.sequences == b
        corpus = fl.StoreDeserializer(store, verify=True)
        got, expected = everything(corpus), everything(ragged(0, b))
        assert got["x"].tolist() == expected["x"].tolist()
        assert got["words"] == expected["words"]
        assert corpus.lengths(np.arange(b)).tolist() == [1 + i % 3 for i in range(b)]
        assert before != corpus.digest()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


def test_a_stream_may_become_ragged(tmp_path):
    fl.convert(fl.ArrayDeserializer(x=np.arange(3.0)), tmp_path / "store")
    fl.convert(fl.ArrayDeserializer(x=[np.arange(2.0), np.arange(3.0)]), tmp_path / "store", append=True)
    corpus = fl.open_corpus(str(tmp_path / "store"))
    assert corpus.lengths(np.arange(5)).tolist() == [1, 1, 1, 2, 3]
    assert everything(corpus)["x"].rows.tolist() == [0, 1, 2, 0, 1, 0, 1, 2]


def test_what_cannot_be_appended_is_refused(tmp_path):
    numbers = fl.ArrayDeserializer(x=np.arange(5))
    fl.convert(numbers, tmp_path / "store")
    digest = fl.open_corpus(str(tmp_path / "store")).digest()
    with pytest.raises(fl.SchemaError, match="expected the streams of the store"):
        fl.convert(fl.ArrayDeserializer(x=np.arange(5.0)), tmp_path / "store", append=True)
    with pytest.raises(fl.SchemaError, match="expected the streams and compression"):
        fl.convert([{"y": 1}, {"y": 2}], tmp_path / "store", append=True)
    with pytest.raises(ValueError, match="expected the compression of the store, None, got 'lz4'"):
        fl.convert(numbers, tmp_path / "store", append=True, compression="lz4")
    with pytest.raises(ValueError, match="no overwrite with append=True"):
        fl.convert(numbers, tmp_path / "store", append=True, overwrite=True)
    with pytest.raises(ValueError, match="expected a path with append=True, got the address 's3://b/c'"):
        fl.convert(numbers, "s3://b/c", append=True)
    assert fl.open_corpus(str(tmp_path / "store")).digest() == digest


@pytest.mark.parametrize("call", [0, 3, 6, 9, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 24])
def test_a_killed_append_is_done_once(tmp_path, call):
    store = tmp_path / "store"
    fl.convert(fl.ArrayDeserializer(x=np.arange(5)), store)
    done = subprocess.run([sys.executable, "-c", KILLED, str(store), str(call)], check=False, cwd=Path.cwd())
    assert done.returncode in (0, -9)
    if store.exists():  # else the next writer restores it
        assert everything(fl.open_corpus(str(store)))["x"].tolist() in (list(range(5)), list(range(9)))
    if done.returncode == -9:
        fl.convert(fl.ArrayDeserializer(x=np.arange(5, 9)), store, append=True)
    assert everything(fl.open_corpus(str(store)))["x"].tolist() == list(range(9))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


def test_a_state_of_the_shorter_store_is_loaded(tmp_path):
    store = tmp_path / "store"
    fl.convert(fl.ArrayDeserializer(x=np.arange(50)), store, chunk_bytes=64)
    source = fl.MinibatchSource(fl.open_corpus(str(store)), seed=3)
    first = source.next_minibatch(20).ids.tolist()
    state = source.state_dict()
    rest = source.next_minibatch(30).ids.tolist()
    fl.convert(fl.ArrayDeserializer(x=np.arange(50, 70)), store, append=True, chunk_bytes=64)
    source = fl.MinibatchSource(fl.open_corpus(str(store)), seed=3)
    source.load_state_dict(state)
    assert source.next_minibatch(30).ids.tolist() == rest
    assert sorted(first + rest) == list(range(50))
    assert sorted(source.next_minibatch(70)["x"].tolist()) == list(range(70))


def test_the_command_appends(tmp_path):
    """Files of one day behind those of another. The first time there is no store yet."""
    for day, numbers in (("mon", range(5)), ("tue", range(5, 8))):
        (tmp_path / f"{day}.jsonl").write_text("".join(f'{{"x": {n}}}\n' for n in numbers))
        feedline("convert", tmp_path / f"{day}.jsonl", tmp_path / "days.store", "--append")
    assert everything(fl.open_corpus(tmp_path / "days.store"))["x"].tolist() == list(range(8))
    again = feedline("convert", tmp_path / "mon.jsonl", tmp_path / "days.store", "--append", "--overwrite", code=1)
    assert "no overwrite with append=True" in again.stderr


def test_nobody_else_appends_while_a_call_cleans_up(tmp_path, monkeypatch):
    """The store has been replaced by then, so a lock on its folder would be one on the old folder."""
    path, errors = tmp_path / "s", []
    fl.convert(fl.ArrayDeserializer(x=np.arange(3)), path)
    rmtree = shutil.rmtree

    def meanwhile(folder, *arguments, **options):
        if not errors and Path(folder).name == ".s.appending":
            errors.append(None)
            with pytest.raises(fl.DataError, match="no other process to append") as caught:
                fl.convert(fl.ArrayDeserializer(x=np.arange(5, 7)), path, append=True)
            errors[0] = caught.value
        rmtree(folder, *arguments, **options)

    monkeypatch.setattr(shutil, "rmtree", meanwhile)
    fl.convert(fl.ArrayDeserializer(x=np.arange(3, 5)), path, append=True)
    assert errors[0] is not None
    fl.convert(fl.ArrayDeserializer(x=np.arange(5, 7)), path, append=True)
    with fl.MinibatchSource(fl.open_corpus(path), shuffle=False, max_sweeps=1) as source:
        assert source.next_minibatch(99)["x"].rows.tolist() == list(range(7))
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]
