"""Stores written in random order: the same sequences, the same bytes whatever interrupts it, bounded memory."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline import _native
from feedline.feed.conversion import shuffling
from feedline.feed.formats.arrays import ArrayDeserializer
from feedline.feed.formats.store.combine import combine
from feedline.feed.formats.store.manifest import Manifest
from feedline.feed.formats.store.store_reader import StoreDeserializer
from tests.effort import examples
from tests.feed.formats.corpora import assert_same, corpora, everything
from tests.feed.test_convert import Counted, Torn
from tests.oracles.order import mix64
from tests.warm import Python


def contents(folder):
    """Bytes of all files of a store."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def expected_order(seed, count):
    """By the recipe: sequences sorted by their keys."""
    start = _native.hash_key([seed, 0, 9])
    keys = [mix64((start + (i + 1) * 0x9E3779B97F4A7C15) % 2**64) for i in range(count)]
    return sorted(range(count), key=keys.__getitem__)


@given(corpora(), st.integers(1, 6), st.integers(0, 2**64 - 1), st.sampled_from([1, 60, 400, 1 << 20]))
@settings(deadline=None, max_examples=examples(20))
def test_it_holds_the_same_sequences_in_the_order_of_their_keys(tmp_path_factory, data, step, seed, memory):
    """Whatever the memory and the chunks of the source are."""
    folder = tmp_path_factory.mktemp("shuffle")
    source = ArrayDeserializer(data, chunk_sequences=step)
    seen = []
    fl.convert(source, folder / "a", chunk_bytes=100, shuffle=seed, memory=memory, progress=lambda *at: seen.append(at))
    whole = everything(source)
    order = np.array(expected_order(seed, next(iter(whole.values())).num_sequences))
    store = StoreDeserializer(folder / "a", verify=True)
    assert_same(everything(store), {name: value.select(order) for name, value in whole.items()})
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1]
    assert sorted(os.listdir(folder)) == ["a"]


def numbers(count=2000, step=100):
    return ArrayDeserializer(x=np.arange(count), y=np.random.default_rng(0).random((count, 3)), chunk_sequences=step)


PROGRAM = """
import sys, time
import numpy as np, feedline as fl
rng = np.random.default_rng(0)
corpus = fl.ArrayDeserializer(x=np.arange(30000), y=rng.random((30000, 3)), chunk_sequences=100)
print("begun", flush=True)
fl.convert(corpus, sys.argv[1], shuffle=3, memory=100_000, chunk_bytes=4000)
print("done", flush=True)
"""


def test_killed_again_and_again_it_ends_with_the_same_bytes(tmp_path):
    """kill -9 at random instants until one call gets through."""
    rng = np.random.default_rng(5)

    def run(name, seconds):
        with Python(["-c", PROGRAM, tmp_path / name], stdout=subprocess.PIPE, text=True) as p:
            assert p.stdout.readline() == "begun\n"
            began = time.monotonic()
            if seconds is None:
                assert p.wait() == 0
                return time.monotonic() - began
            try:
                return p.wait(seconds)
            except subprocess.TimeoutExpired:
                p.send_signal(signal.SIGKILL)
                return p.wait()

    took = run("whole", None)
    killed = sum(run("s", took * rng.uniform(0.05, 0.4)) == -9 for _ in range(5))
    if (tmp_path / "s").exists():  # killed after that, or not at all: the next call tidies up
        with pytest.raises(FileExistsError):
            fl.convert(numbers(), tmp_path / "s", shuffle=3)
    else:
        run("s", None)
    assert killed >= 1
    assert contents(tmp_path / "s") == contents(tmp_path / "whole")
    assert sorted(os.listdir(tmp_path)) == ["s", "whole"]


def test_work_under_other_settings_is_begun_again(tmp_path, monkeypatch):
    """Another seed, or other data, does not continue from existing work."""
    real = shuffling.combine
    monkeypatch.setattr(shuffling, "combine", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fl.convert(numbers(), tmp_path / "s", shuffle=3)
    monkeypatch.setattr(shuffling, "combine", real)
    fl.convert(numbers(), tmp_path / "s", shuffle=4)
    fl.convert(numbers(), tmp_path / "t", shuffle=4)
    assert contents(tmp_path / "s") == contents(tmp_path / "t")


def test_unreadable_sequences_and_unknown_sizes(tmp_path):
    """Skipped sequences are counted, even by a call that resumes. Corpora need not know their sizes."""
    with pytest.raises(fl.DataError, match="torn 1"):
        fl.convert(Torn(), tmp_path / "s", shuffle=0)
    for corpus, name in ((Torn(), "s"), (Counted(), "t")):
        summary = fl.convert(corpus, tmp_path / name, shuffle=0, on_error="skip", memory=100)
        assert (summary.sequences, summary.skipped) == (10, 2)
        x = everything(StoreDeserializer(tmp_path / name))["x"].rows.ravel().tolist()
        kept = [i for i in range(12) if i not in (1, 6)]
        assert x == [kept[i] for i in expected_order(0, 10)]


def test_csv_and_an_existing_destination(tmp_path):
    """A path is opened as without shuffling. A store is replaced only on request."""
    (tmp_path / "a.csv").write_text("x\n" + "\n".join(map(str, range(50))) + "\n")
    fl.convert(tmp_path / "a.csv", tmp_path / "s", shuffle=9)
    x = everything(StoreDeserializer(tmp_path / "s"))["x"].rows.ravel().astype(int).tolist()
    assert x == expected_order(9, 50)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        fl.convert(tmp_path / "s", tmp_path / "s", shuffle=1)
    fl.convert(numbers(), tmp_path / "s", shuffle=1, overwrite=True)
    assert StoreDeserializer(tmp_path / "s").schema.keys() == {"x", "y"}
    for wrong in (-1, 2**64):
        with pytest.raises(ValueError, match=r"shuffle|seed"):
            fl.convert(numbers(), tmp_path / "u", shuffle=wrong)


class Mixed(fl.Deserializer):
    """Chunks of sequences of one sample, of which only one, in the last chunk, is longer."""

    schema = fl.Schema({"x": fl.Stream((), "int64")})

    def chunks(self):
        return [fl.ChunkInfo(10, 10, 80)] * 30 + [fl.ChunkInfo(1, 2, 16)]

    def read(self, chunk):
        if chunk == 30:
            return fl.Chunk(self.schema, {"x": fl.Value.from_sequences([np.array([300, 300])])})
        return fl.Chunk(self.schema, {"x": fl.Value.from_dense(np.arange(10 * chunk, 10 * chunk + 10))})

    def digest(self):
        return "00"


def test_streams_ragged_in_some_parts_only(tmp_path):
    """The parts differ in their columns, but the store has one layout."""
    fl.convert(Mixed(), tmp_path / "s", shuffle=1, memory=600, chunk_bytes=80)
    store = StoreDeserializer(tmp_path / "s", verify=True)
    assert len({part.ragged for part in Manifest.load(tmp_path / "s").parts}) == 2
    found = [int(sequence[0]) for sequence in everything(store)["x"].sequences()]
    assert found == expected_order(1, 301)
    assert store.lengths(np.arange(301)).sum() == 302


def test_combining_takes_no_memory_for_each_sequence(tmp_path):
    """Lengths of sequences are copied block by block."""
    count = 5_000_000
    offsets = np.arange(count + 1)
    offsets[-1] += 1
    x = fl.Value.from_dense(np.zeros(count + 1, np.uint8), offsets)
    fl.convert(fl.ArrayDeserializer(x=x), tmp_path / "s")
    (tmp_path / "t").mkdir()
    tracemalloc.start()
    try:
        combine([tmp_path / "s"], tmp_path / "t")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16_000_000  # four copies of a block, and not 20 MB of lengths
    assert StoreDeserializer(tmp_path / "t").lengths(np.arange(count)).sum() == count + 1
