"""Ctrl-C while a store is silent: it is raised at once, whatever is being fetched, in any threads."""

from __future__ import annotations

import numpy as np
import pytest

import feedline as fl
from tests.feed.remote.test_object_cache import rows


def numbers(store, folder):
    path = folder / "x.npy"
    np.save(path, np.zeros((4 << 10, 64), np.float32))
    store.put("b/x.npy", path.read_bytes())
    return "x.npy"


def mapped_store(store, folder):
    data = fl.ArrayDeserializer(x=np.zeros((4000, 64), np.float32), t=[b"x" * (i % 90) for i in range(4000)])
    fl.convert(data, folder / "s", chunk_bytes=50_000, part_bytes=300_000)
    for file in (folder / "s").iterdir():
        store.put(f"b/s/{file.name}", file.read_bytes())
    return "s"


def arrow(store, folder):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    table = pa.table({"t": [b"x" * (i % 900) for i in range(4000)], "i": range(4000)})
    with pa.ipc.new_stream(str(folder / "x.arrow"), table.schema) as stream:
        stream.write_table(table, max_chunksize=200)
    store.put("b/x.arrow", (folder / "x.arrow").read_bytes())
    return "x.arrow"


def parquet(store, folder):
    store.put("b/x.parquet", rows(1))
    return "x.parquet"


def lines(store, folder):
    store.put("b/x.jsonl", b'{"i": 1}\n' * 100_000)
    return "x.jsonl"


def shuffle(corpus):
    with fl.MinibatchSource(corpus, seed=1) as source:
        source.next_minibatch(10)


@pytest.mark.parametrize("make", [numbers, mapped_store, arrow, parquet, lines])
@pytest.mark.parametrize("use", [lambda corpus: None, shuffle, fl.validate], ids=["open", "shuffle", "validate"])
def test_ctrl_c_comes_while_a_store_is_silent(store, opened, interrupted, tmp_path, make, use):
    """The store falls silent after a number of requests: whatever waits then is interrupted, and leaves nothing."""
    streams = {"i": fl.Stream((), "int64")} if make is lines else {}
    what = make(store, tmp_path)
    waits = 0
    for spared in (0, 1, 2, 4, 8):
        store.heal()
        silent = store.fail("slow", key="b/*", request="GET", skip=spared, seconds=3600, times=None)
        try:
            with interrupted(lambda silent=silent: silent.hits > 0):
                corpus = opened(what, cache=tmp_path / f"cache-{spared}", deadline_s=4000.0, **streams)
                use(corpus)
        except KeyboardInterrupt:
            waits += 1
            continue
        break  # it needs no more requests
    assert waits
