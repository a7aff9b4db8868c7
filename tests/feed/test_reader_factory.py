"""The order of a corpus depends on its data and the arguments, never on the machine."""

from __future__ import annotations

import numpy as np
import pytest

import feedline as fl
from feedline.feed.reading import reader_factory


class Sized(fl.Deserializer, fl.RandomAccess, fl.Sliceable):
    """A corpus that declares its size, and is never read."""

    schema = fl.Schema({"x": fl.Stream(4)})

    def __init__(self, gigabytes, random_access=True, in_memory=False, sliceable=True):
        self._can, self.in_memory = {fl.RandomAccess: random_access, fl.Sliceable: sliceable}, in_memory
        self._gigabytes = gigabytes

    def capability(self, kind):
        return super().capability(kind) if self._can.get(kind, True) else None

    def chunks(self):
        return [fl.ChunkInfo(1 << 20, 1 << 20, 1 << 30)] * self._gigabytes

    def read(self, chunk):
        raise AssertionError("nothing is read to lay out an order")

    def digest(self):
        return "00"


MIB256 = {"bytes": 256 << 20}


@pytest.mark.parametrize(
    ("corpus", "shuffle", "order", "state"),
    [
        (Sized(4), True, "feedline-1", "all"),
        (Sized(5), True, "feedline-2", MIB256),
        (Sized(5, sliceable=False), True, "feedline-1", MIB256),
        (Sized(5, in_memory=True), True, "feedline-1", "all"),
        (Sized(5), "whole", "feedline-1", "all"),
        (Sized(1, random_access=False, sliceable=False), True, "feedline-1", MIB256),
        (Sized(1), fl.Window(bytes=1 << 20), "feedline-2", {"bytes": 1 << 20}),
        (Sized(1), fl.Window(samples=1000), "feedline-2", {"samples": 1000}),
        (Sized(1), fl.Window(chunks=2), "feedline-1", {"chunks": 2}),
        (Sized(1, sliceable=False), fl.Window(bytes=1 << 20), "feedline-1", {"bytes": 1 << 20}),
        (Sized(5), False, "feedline-1", False),
    ],
)
def test_the_default_order(corpus, shuffle, order, state):
    """Small corpora and those in memory are shuffled whole, large ones in windows, of blocks if slices can be read."""
    source = fl.MinibatchSource(corpus, shuffle=shuffle)
    found = source.state_dict()
    assert (found["order"], found["shuffle"]) == (order, state)
    planned = next(source.plan(1000))
    assert len(planned.ids) == 1000


def test_a_version_of_the_order_can_be_requested():
    """States of feedline-1 continue with any default."""
    old = fl.MinibatchSource(Sized(5), order="feedline-1")
    assert old.state_dict()["shuffle"] == "all"
    new = fl.MinibatchSource(Sized(5))
    with pytest.raises(fl.StateError, match="order='feedline-1', shuffle=\"whole\""):
        new.load_state_dict(old.state_dict())
    fl.MinibatchSource(Sized(5), order="feedline-1", shuffle="whole").load_state_dict(old.state_dict())
    blocks = fl.MinibatchSource(Sized(1), order="feedline-2", shuffle=fl.Window(bytes=1 << 20))
    assert blocks.state_dict()["order"] == "feedline-2"


def test_corpora_that_cannot_be_shuffled_whole_raise():
    """Chunks that are decoded whole would all have to be in memory."""
    with pytest.raises(ValueError, match=r'random access for shuffle="whole".*fl.Window.*convert'):
        fl.MinibatchSource(Sized(1, random_access=False), shuffle="whole")
    with pytest.raises(TypeError, match=r'True, False, "whole" or an fl\.Window'):
        fl.MinibatchSource(Sized(1), shuffle="all")


def test_what_cannot_be_sliced_has_no_blocks():
    """feedline-2 requested by name for a corpus that reads whole chunks."""
    with pytest.raises(ValueError, match="read_slice"):
        fl.MinibatchSource(Sized(1, sliceable=False), order="feedline-2")


def test_mapped_arrays_are_on_disk_and_others_in_memory(tmp_path):
    """A view of a map, a NumPy map and arrays over a buffer are distinguished."""
    np.save(tmp_path / "x.npy", np.zeros((10, 3)))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert fl.ArrayDeserializer(x=np.zeros((10, 3))).in_memory
    assert fl.ArrayDeserializer(x=np.frombuffer(bytes(80))).in_memory
    assert not fl.ArrayDeserializer(x=mapped).in_memory
    assert not fl.ArrayDeserializer(x=np.asarray(mapped)[2:]).in_memory
    assert not fl.ArrayDeserializer(x=np.zeros(10), y=mapped).in_memory


def test_windows_of_a_store_draw_from_all_over_it(tmp_path, monkeypatch):
    """Two windows over four sorted chunks: with blocks, each window holds sequences of all four."""
    monkeypatch.setattr("feedline.feed.timeline.block_order.BLOCK_BYTES", 64)
    x = np.arange(400, dtype=np.float32)
    with fl.StoreWriter(tmp_path / "s", fl.Schema({"x": fl.Stream(1)}), chunk_bytes=400) as writer:
        writer.write({"x": fl.Value.from_dense(x[:, None])})
    corpus = fl.StoreDeserializer(tmp_path / "s")
    half = sum(info.bytes for info in corpus.chunks()) // 2
    source = fl.MinibatchSource(corpus, seed=1, shuffle=fl.Window(bytes=half), max_sweeps=1)
    got = np.concatenate([m["x"].rows[:, 0] for m in source.minibatches(7)])
    np.testing.assert_array_equal(np.sort(got), x)
    assert set((got[:190] // 100).tolist()) == set((got[-190:] // 100).tolist()) == {0, 1, 2, 3}
    np.testing.assert_array_equal(got, np.concatenate([p.ids for p in _again(corpus, half).plan(7)]))


def _again(corpus, size):
    return fl.MinibatchSource(corpus, seed=1, shuffle=fl.Window(bytes=size), max_sweeps=1)


def test_the_limit_is_a_constant_of_the_format():
    """Orders are forever: these numbers are part of them."""
    assert reader_factory.WHOLE_BYTES == 4 << 30
    assert reader_factory.DEFAULT_WINDOW.to_json() == MIB256
