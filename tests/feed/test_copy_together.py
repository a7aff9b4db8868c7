"""Minibatches that are planned together equal others, for any requests, however they are copied."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline as fl
from feedline.feed.assembly import ChunkSet
from feedline.feed.reading import copy_together as together
from tests.feed.test_copy_ahead import content, partitions, sizes, steps
from tests.inside import (
    copy_together_of,
    interrupt_taking,
    look_at_once,
    never_together,
    next_finished,
    reader_of,
)
from tests.laws.corpora import CountedCorpus, worlds


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    """However few there are."""
    monkeypatch.setattr(together, "_MIN_COUNT", 1)


@pytest.fixture(params=["together", "singly", "ahead"])
def copies(request, monkeypatch):
    """Copied together, when they are requested, or ahead by a thread, whatever their size."""
    if request.param != "together":
        monkeypatch.setattr(together, "MAX_BYTES", 0)
    if request.param == "ahead":
        monkeypatch.setattr(together, "AHEAD_BYTES", 0)


def alone(source):
    """Every minibatch by itself."""
    never_together(source)
    return source


def told(minibatch):
    """The content of a minibatch, the origin of its sequences, and the layout of its arrays."""
    layout = [(name, value.one_sample_each) for name, value in minibatch.items()]
    source = None if minibatch.source is None else minibatch.source.tolist()
    return content(minibatch), layout, minibatch.num_sequences, source, minibatch.sweep_ends


# ---- minibatches ----------------------------------------------------------------------------------------------


def compare(on, off, size, asked):
    """Same minibatches, positions and states, at every step."""
    partition, saved = None, off.state_dict()
    for what, value in [("same", 3), *asked, ("same", 3)]:
        if what == "size":
            size = value
        elif what == "partition":
            partition = value
        elif what == "restore":
            on.load_state_dict(saved)
            off.load_state_dict(saved)
        elif what == "seek":
            on.seek(samples=value)
            off.seek(samples=value)
        for step in range(value if what == "same" else 1):
            on.count_label_samples(step)
            off.count_label_samples(step)
            assert told(on.next_minibatch(size, partition)) == told(off.next_minibatch(size, partition))
            assert on.position == off.position
            assert on.state_dict() == off.state_dict()
        if what == "same":
            saved = off.state_dict()
    for name in ("minibatches", "sequences", "samples", "skipped"):
        assert getattr(on.stats(), name) == getattr(off.stats(), name)


@pytest.mark.usefixtures("copies")
@pytest.mark.filterwarnings("ignore:a minibatch of .* leaves none:RuntimeWarning")
@given(worlds(), sizes, steps, st.sampled_from(["global", "cntk"]), st.one_of(st.none(), st.integers(1, 150)))
def test_together_is_alone(world, size, asked, filling, limit):
    changes = {"filling": filling, "max_samples": limit}
    compare(world.source(**changes), alone(world.source(**changes)), size, asked)


@pytest.mark.usefixtures("copies")
@given(st.integers(1, 9), steps, st.sampled_from(["repeat", "stop", "drop"]), st.integers(0, 30))
def test_mixtures_with_jumps(size, asked, when_empty, jump):
    def source():
        parts = {
            "a": fl.ArrayDeserializer(x=np.arange(40)),
            "b": fl.ArrayDeserializer(x=np.arange(100, 125)),
        }
        mixture = fl.Mixture(parts, weights={"a": 2, "b": 1}, when_empty=when_empty)
        limit = {} if when_empty == "repeat" else {"max_sweeps": 2}
        return fl.MinibatchSource(mixture, seed=3, jumps=[(jump, jump + 7)], **limit)

    compare(source(), alone(source()), size, asked)


@pytest.mark.usefixtures("copies")
@given(st.integers(1, 12), st.lists(partitions, min_size=1, max_size=8))
def test_parts_of_ranks_in_turn(size, shares):
    def source():
        return fl.MinibatchSource(CountedCorpus([2, 1, 3] * 80, [30] * 8, True), seed=1, max_sweeps=2)

    on, off = source(), alone(source())
    for share in shares * 12:
        assert told(on.next_minibatch(size, share)) == told(off.next_minibatch(size, share))


@pytest.mark.usefixtures("copies")
@given(worlds(order="feedline"), sizes, st.data())
def test_unreadable_sequences_keep_their_meaning(world, size, data):
    world.bad = tuple(data.draw(st.sets(st.integers(0, world.total - 1), max_size=4)))
    outcomes = []
    for source in (world.source(max_sweeps=2), alone(world.source(max_sweeps=2))):
        out = []
        for _ in range(2 * world.total + 2):
            try:
                minibatch = source.next_minibatch(size)
            except fl.DataError as error:
                out.append((str(error), source.position))
                break
            out.append(told(minibatch))
        outcomes.append(out)
    assert outcomes[0] == outcomes[1]


@pytest.mark.usefixtures("copies")
def test_a_damaged_text_is_an_error_of_its_minibatch():
    """Only the copy sees it, and others were copied with it."""
    data = np.frombuffer(b"abc\xffefghijklmnopqrstuvwx", np.uint8)
    texts = fl.Value.from_buffer(data, np.arange(len(data) + 1), "str")
    source = fl.MinibatchSource(fl.ArrayDeserializer(t=texts), shuffle=False, max_sweeps=1)
    got = []
    with pytest.raises(fl.DataError, match="sequence 3"):
        while True:
            got.append(source.next_minibatch(1)["t"].tolist())
    assert got == [["a"], ["b"], ["c"]]
    assert source.position.sequence == 3


@pytest.mark.usefixtures("copies")
def test_layouts_do_not_depend_on_neighbours():
    """With a chunk of single samples among longer ones, a minibatch has offsets only if its own sequences need them."""

    class Mixed(CountedCorpus):
        def made(self, a, b):
            chunk = super().made(a, b)
            if a:
                return chunk
            values = {name: fl.Value.from_dense(value.rows) for name, value in chunk.values.items() if name == "x"}
            return fl.Chunk(self.schema, chunk.values | values)

    def source():
        return fl.MinibatchSource(Mixed([1] * 40 + [2] * 40, [40, 40], True), seed=4)

    on, off = source(), alone(source())
    for _ in range(60):
        assert told(on.next_minibatch(2)) == told(off.next_minibatch(2))


# ---- memory -----------------------------------------------------------------------------------------------------


def tiny(**settings):
    return fl.MinibatchSource(fl.ArrayDeserializer(x=np.zeros((4000, 16), np.float32)), **settings)


def test_most_minibatches_are_copied_together():
    source = tiny()
    for _ in range(700):
        source.next_minibatch(8)
    assert copy_together_of(source).used > 650


@pytest.mark.parametrize("settings", [{"transforms": [lambda s: s]}, {"frame_mode": True}])
def test_where_it_must_not_be(settings):
    assert copy_together_of(tiny(**settings)) is None


@pytest.mark.parametrize("shape", [(), (6,), (16,), (3, 2)])
@pytest.mark.parametrize("size", [7, 10, 16])
@pytest.mark.parametrize("kind", ["alone", "together"])
@pytest.mark.parametrize("lengths", [1, 2])
def test_floating_point_numbers_are_aligned(monkeypatch, shape, size, kind, lengths):
    """Otherwise results would depend on where a run began, in their last bits."""
    monkeypatch.undo()
    rows = np.zeros((4000, *shape), np.float32)
    value = fl.Value.from_dense(rows, None if lengths == 1 else np.arange(0, 4001, lengths))
    source = fl.MinibatchSource(fl.ArrayDeserializer(x=value, c=fl.Value.one_hot([[1, 2]] * len(value), 5)))
    if kind == "alone":
        source = alone(source)
    for _ in range(40):
        minibatch = source.next_minibatch(size)
        assert minibatch["x"].rows.ctypes.data % 64 == 0
        assert minibatch["c"].values.ctypes.data % 64 == 0
    assert kind == "alone" or copy_together_of(source).used > 0


def test_what_others_ask_for_is_not_copied_in_vain():
    source = tiny()
    for step in range(40):
        source.next_minibatch(8 + step % 2)
        assert copy_together_of(source).cursor is None


@pytest.mark.parametrize("settings", [{}, {"read_ahead": 0}])
@pytest.mark.parametrize("size", [8, 600])
def test_minibatches_copied_one_by_one_share_no_memory(monkeypatch, size, settings):
    monkeypatch.undo()
    source = tiny(**settings)
    before, shared = source.next_minibatch(size), 0
    for _ in range(40):
        minibatch = source.next_minibatch(size)
        shared += owner_of(minibatch) is owner_of(before)
        before = minibatch
    assert copy_together_of(source).used > 20
    assert (shared > 0) == (size == 8 and not settings)


def owner_of(minibatch):
    """The array that the rows of a minibatch are a view of, or these rows."""
    owner = minibatch["x"].rows
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return owner


@pytest.mark.parametrize("settings", [{}, {"read_ahead": 0}])
def test_data_that_leaves_the_page_cache_is_noticed(monkeypatch, tmp_path, settings):
    monkeypatch.setattr(together, "MAX_BYTES", 0)
    monkeypatch.setattr(together, "AHEAD_BYTES", 0)
    rows = np.arange(4000, dtype=np.float32)[:, None]
    fl.convert(fl.ArrayDeserializer(x=rows), tmp_path / "store")
    source, other = fl.MinibatchSource(fl.StoreDeserializer(tmp_path / "store"), **settings), alone(tiny_of(rows))
    for step in range(12):
        if step == 6:
            assert copy_together_of(source).cursor is not None
            monkeypatch.setattr(ChunkSet, "lacking", lambda *_, **__: 1)
            look_at_once(source)
        assert told(source.next_minibatch(8))[0] == told(other.next_minibatch(8))[0]
        assert reader_of(source).stages == (step >= 6)


def tiny_of(rows):
    return fl.MinibatchSource(fl.ArrayDeserializer(x=rows))


def test_huge_minibatches_are_planned_one_by_one(monkeypatch):
    monkeypatch.undo()
    source = fl.MinibatchSource(fl.ArrayDeserializer(x=np.zeros((32, 1 << 20), np.float32)))
    for _ in range(8):
        source.next_minibatch(2)
    assert copy_together_of(source).used == 0


@pytest.mark.parametrize("change", ["seek", "load", "close"])
def test_a_jump_drops_what_waits(change):
    source = tiny()
    for _ in range(3):
        source.next_minibatch(8)
    assert copy_together_of(source).cursor is not None
    if change == "seek":
        source.seek(samples=80)
    elif change == "load":
        source.load_state_dict(source.state_dict())
    else:
        source.close()
    assert copy_together_of(source).cursor is None


def test_a_minibatch_that_is_kept_keeps_little():
    source, kept = tiny(), []
    for step in range(1000):
        minibatch = source.next_minibatch(8)
        if step % 100 == 50:
            kept.append(minibatch)
    for minibatch in kept:
        assert owner_of(minibatch).nbytes <= 1.1 * together.MAX_BYTES


def test_arrays_are_their_minibatch_s_own():
    source, other = tiny(), alone(tiny())
    for _ in range(30):
        minibatch = source.next_minibatch(8)
        assert minibatch["x"].rows.flags.writeable
        assert minibatch["x"].rows.flags.c_contiguous
        minibatch["x"].rows[...] = 7  # of this one only
        assert not other.next_minibatch(8)["x"].rows.any()
    source.seek(samples=0)
    assert not source.next_minibatch(8)["x"].rows.any()


def test_a_source_dropped_lets_its_chunks_go():
    rows = np.zeros((4000, 16), np.float32)[:]
    alive = weakref.ref(rows)
    source = fl.MinibatchSource(fl.ArrayDeserializer(x=rows))
    for _ in range(4):
        source.next_minibatch(8)
    assert copy_together_of(source).cursor is not None
    del source, rows
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("where", ["take", "finish"])
def test_an_interrupted_minibatch_is_delivered_next(monkeypatch, where):
    """Ctrl-C in the middle of a delivery: the position has not moved."""
    source, other = tiny(shuffle=False), alone(tiny(shuffle=False))
    for _ in range(5):
        assert told(source.next_minibatch(8)) == told(other.next_minibatch(8))
    before = source.position
    if where == "take":
        take = copy_together_of(source).take

        def interrupted(labels):
            take(labels)
            raise KeyboardInterrupt

        monkeypatch.setattr(copy_together_of(source), "take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            source.next_minibatch(8)
        monkeypatch.undo()
    else:

        def failing(_):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            next_finished(source, 8, failing)
    assert source.position == before
    for _ in range(20):
        assert told(source.next_minibatch(8)) == told(other.next_minibatch(8))


class InterruptedBehind:
    """An iterator whose next item is taken when the interrupt comes: signals are handled after a call into C."""

    def __init__(self, items):
        self.items, self.interrupts = items, True

    def __iter__(self):
        return self

    def __next__(self):
        found = next(self.items)
        if self.interrupts:
            self.interrupts = False
            raise KeyboardInterrupt
        return found


def test_an_interrupt_after_a_minibatch_loses_none():
    """Taken, but not handed over: it is delivered by the next call."""

    def source():
        corpus = fl.ArrayDeserializer(x=np.arange(2000, dtype=np.float32)[:, None])
        return fl.MinibatchSource(corpus, shuffle=True, seed=3, max_sweeps=1)

    with source() as plain, source() as interrupted:
        expected = [minibatch["x"].rows.tolist() for minibatch in plain.minibatches(5)]
        found = [interrupted.next_minibatch(5)["x"].rows.tolist() for _ in range(20)]
        assert copy_together_of(interrupted).cursor is not None
        interrupt_taking(interrupted, InterruptedBehind)
        with pytest.raises(KeyboardInterrupt):
            interrupted.next_minibatch(5)
        found += [minibatch["x"].rows.tolist() for minibatch in interrupted.minibatches(5)]
        assert found == expected
