"""Minibatches copied ahead equal others, whatever is requested, with the ring forced on or off."""

from __future__ import annotations

import gc
import os
import weakref

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import feedline as fl
from feedline.data.value import BytesValue
from feedline.feed.reading import copy_ahead as ahead
from tests.feed.elsewhere import Elsewhere
from tests.forked import Forked
from tests.inside import copies_waiting, copy_ahead_of, never_together
from tests.laws.corpora import CountedCorpus, World, worlds


def forced(source):
    """Copies ahead however small, one by one."""
    copy_ahead_of(source).threshold = 0
    never_together(source)
    return source


def pair(world, **changes):
    """The same source twice: the ring forced on, and off."""
    changes = {"read_ahead": 1 << 20, **changes}
    off = world.source(**changes)
    copy_ahead_of(off).threshold = 1 << 60
    never_together(off)
    return forced(world.source(**changes)), off


def content(minibatch):
    """The content of a minibatch, in a form that can be compared."""
    values = []
    for name, value in minibatch.items():
        if value.is_sparse:
            arrays = [value.indptr, value.indices, value.values]
        else:
            arrays = [value.bounds, value.data] if isinstance(value, BytesValue) else [value.rows]
        values.append((name, [(a.dtype.str, a.shape, a.tobytes()) for a in arrays], value.lengths.tolist()))
    figures = (minibatch.num_samples, minibatch.global_samples, minibatch.position, minibatch.sweep_end)
    return bool(minibatch), values, minibatch.ids.tolist(), figures


sizes = st.integers(1, 30)
partitions = st.one_of(st.none(), st.integers(1, 3).flatmap(lambda n: st.tuples(st.integers(0, n - 1), st.just(n))))
# Mostly the same request again, so that copies are waiting, sometimes another one.
steps = st.lists(
    st.one_of(
        st.tuples(st.just("same"), st.integers(1, 6)),
        st.tuples(st.just("size"), sizes),
        st.tuples(st.just("partition"), partitions),
        st.tuples(st.just("seek"), st.integers(0, 40)),
        st.tuples(st.just("restore"), st.none()),
    ),
    max_size=12,
)


@pytest.mark.filterwarnings("ignore:a minibatch of .* leaves none:RuntimeWarning")
@given(worlds(), sizes, steps, st.sampled_from(["global", "cntk"]), st.one_of(st.none(), st.integers(1, 150)))
@example(World([1] * 6, [1] * 6, True, {"seed": 0, "shuffle": True}), 1, [], "global", None)  # views, one by one
def test_on_is_off(world, size, asked, filling, limit):
    """Same minibatches, positions, states and figures, at every step."""
    on, off = pair(world, filling=filling, max_samples=limit)
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
        for _ in range(value if what == "same" else 1):
            assert content(on.next_minibatch(size, partition)) == content(off.next_minibatch(size, partition))
            assert on.position == off.position
            assert on.state_dict() == off.state_dict()
            if world.random_access:
                assert on.corpus.reads == off.corpus.reads  # nothing is read for waiting minibatches
        if what == "same":
            saved = off.state_dict()
    for name in ("minibatches", "sequences", "samples", "skipped"):
        assert getattr(on.stats(), name) == getattr(off.stats(), name)
    assert copy_ahead_of(off).used == 0


@given(worlds(order="feedline"), sizes, st.data())
def test_unreadable_sequences_keep_their_meaning(world, size, data):
    """Errors come at the same minibatch, and skipping lists the same sequences, ring or not."""
    bad = data.draw(st.sets(st.integers(0, world.total - 1), max_size=4))
    world.bad = tuple(bad)
    outcomes = []
    for source in pair(world, max_sweeps=2):
        out = []
        for _ in range(2 * world.total + 2):
            try:
                minibatch = source.next_minibatch(size)
            except fl.DataError as error:
                out.append((str(error), source.position))
                break
            out.append(content(minibatch))
        outcomes.append(out)
    assert outcomes[0] == outcomes[1]


def test_skipping_is_the_same(tmp_path):
    world = CountedCorpus([2] * 200, [40] * 5, bad=(3, 50, 51, 150, 199))
    skipped = []
    for number, threshold in enumerate((0, 1 << 60)):
        file = tmp_path / f"{number}.jsonl"
        source = fl.MinibatchSource(world, seed=5, on_error=fl.Quarantine(file), max_sweeps=2)
        copy_ahead_of(source).threshold = threshold
        got = [content(m) for m in source.minibatches(10)]
        skipped.append((got, file.read_text(), source.stats().skipped))
        assert (copy_ahead_of(source).used > 20) == (threshold == 0)
    assert skipped[0] == skipped[1]
    assert skipped[0][2] == 10


@pytest.mark.parametrize("random_access", [True, False])
def test_the_ring_is_used(random_access):
    """In steady state, all minibatches are copied ahead, except after changes and at new windows."""
    source = forced(fl.MinibatchSource(CountedCorpus([1] * 400, [100] * 4, random_access), seed=1))
    for _ in range(40):
        source.next_minibatch(10)
    assert 32 <= copy_ahead_of(source).used <= 38
    assert len(copies_waiting(source)) <= ahead.DEPTH


def test_transforms_see_the_same():
    """Only the copy is made ahead: random transforms draw as before."""

    def noise(sequence, rng):
        return {**sequence, "x": sequence["x"] + rng.random(sequence["x"].shape, dtype=np.float32)}

    world = CountedCorpus([3] * 100, [25] * 4, True)
    got = []
    for threshold in (0, 1 << 60):
        source = fl.MinibatchSource(world, seed=1, transforms=[fl.Map(noise)])
        copy_ahead_of(source).threshold = threshold
        got.append([content(source.next_minibatch(12)) for _ in range(30)])
    assert got[0] == got[1]


def test_a_minibatch_that_fails_is_delivered_again():
    """A transform that raises once costs an exception, not the minibatch, though its copy is used up."""
    fail = []

    def moody(sequence):
        if fail:
            raise RuntimeError(fail.pop())
        return sequence

    world = CountedCorpus([3] * 100, [25] * 4, True)
    source = forced(fl.MinibatchSource(world, seed=1, transforms=[moody]))
    plain = fl.MinibatchSource(world, seed=1, read_ahead=0)
    for step in range(12):
        if step == 6:
            assert copies_waiting(source)
            fail.append("once")
            with pytest.raises(RuntimeError, match="once"):
                source.next_minibatch(12)
        assert content(source.next_minibatch(12)) == content(plain.next_minibatch(12))


@pytest.mark.parametrize(("read_ahead", "used"), [(0, False), (1 << 20, True)])
def test_without_read_ahead_nothing_waits(read_ahead, used):
    source = forced(fl.MinibatchSource(CountedCorpus([1] * 100, [100], True), read_ahead=read_ahead))
    for _ in range(8):
        source.next_minibatch(5)
    assert (copy_ahead_of(source).used > 0) == used


def test_what_waits_stays_within_the_budget():
    """Read-ahead bytes bound it: of minibatches of 4.4 KB, one fits 6 KB and none 3 KB."""
    corpus = CountedCorpus([1] * 2000, [2000], True)
    for budget, most in ((3000, 0), (6000, 1), (1 << 20, ahead.DEPTH)):
        source = forced(fl.MinibatchSource(corpus, read_ahead=budget))
        waiting = []
        for _ in range(10):
            minibatch = source.next_minibatch(120)
            waiting.append(len(copies_waiting(source)))
        size = sum(value.nbytes for value in minibatch.values())
        assert 3000 < size < 6000
        assert max(waiting) == most


def test_small_minibatches_are_copied_in_the_call():
    """The threshold is in bytes, between a minibatch of tokens and one of images."""
    for width, used in ((16, False), (4096, True)):
        corpus = fl.MinibatchSource(fl.ArrayDeserializer(x=np.zeros((512, width), np.float32)))
        never_together(corpus)
        for _ in range(6):
            corpus.next_minibatch(64)
        assert (copy_ahead_of(corpus).used > 0) == used


def test_a_different_question_each_time_copies_nothing_in_vain():
    """Callers that take all ranks' parts in turn get no copies ahead, since none would be used."""
    source = forced(fl.MinibatchSource(CountedCorpus([1] * 300, [300], True)))
    for step in range(20):
        source.next_minibatch(10, partition=(step % 2, 2))
        assert not copies_waiting(source)


@pytest.mark.parametrize("change", ["seek", "load", "close"])
def test_a_jump_drops_what_waits(change):
    source = forced(fl.MinibatchSource(CountedCorpus([1] * 300, [300], True)))
    for _ in range(4):
        source.next_minibatch(10)
    assert copies_waiting(source)
    if change == "seek":
        source.seek(samples=30)
    elif change == "load":
        source.load_state_dict(source.state_dict())
    else:
        source.close()
    assert not copies_waiting(source)


def test_a_source_dropped_lets_its_chunks_go():
    """Copies that wait keep nothing alive after their source."""
    rows = np.random.default_rng(0).random((4000, 100))[:]
    alive = weakref.ref(rows)
    source = forced(fl.MinibatchSource(fl.ArrayDeserializer(x=rows)))
    for _ in range(4):
        source.next_minibatch(1000)
    assert copies_waiting(source)
    del source, rows
    gc.collect()
    assert alive() is None


def test_an_error_while_looking_ahead_waits_for_its_turn():
    """Planning may fail in a later segment. Earlier minibatches are delivered first."""

    class Broken(CountedCorpus):
        def lengths(self, ordinals):
            if ordinals.max() >= 200:
                raise fl.DataError("planted in the index")
            return super().lengths(ordinals)

    counts = []
    for threshold in (0, 1 << 60):
        corpus = Broken([2] * 300, [100] * 3, True)
        source = fl.MinibatchSource(corpus, shuffle=fl.Window(chunks=1), seed=2)
        copy_ahead_of(source).threshold = threshold
        count = 0
        with pytest.raises(fl.DataError, match="planted"):
            while True:
                count += source.next_minibatch(20).num_sequences
        counts.append(count)
    assert counts == [200, 200]


def test_a_forked_child_goes_on():
    """Both sides of a fork deliver the same as one source, even with copies in flight."""
    corpus = fl.ArrayDeserializer(x=np.random.default_rng(0).random((4000, 300)))
    plain = fl.MinibatchSource(corpus, seed=4, read_ahead=0)
    expected = [content(plain.next_minibatch(500)) for _ in range(12)]
    source = forced(fl.MinibatchSource(corpus, seed=4))
    for step in range(4):
        assert content(source.next_minibatch(500)) == expected[step]
    assert copies_waiting(source)

    def go_on():
        return all(content(source.next_minibatch(500)) == expected[step] for step in range(4, 12))

    child = Forked(go_on)
    assert go_on()
    assert child.status() == 0


def transformed(world, bad=(), **changes):
    """The same source twice, with its first transform begun ahead, and not. The second transform is a function."""

    def negative(sequence):
        return {"x": -sequence["x"]}

    stages = [[Elsewhere(bad, ahead), negative] for ahead in (True, False)]
    return [world.source(**{"read_ahead": 1 << 20, **changes, "transforms": stage}) for stage in stages]


@pytest.mark.filterwarnings("ignore:a minibatch of .* leaves none:RuntimeWarning")
@given(worlds(), sizes, steps, st.one_of(st.none(), st.integers(1, 150)))
def test_begun_ahead_is_run_when_requested(world, size, asked, limit):
    """The same minibatches, positions and states, with any requests in between."""
    on, off = transformed(world, max_samples=limit)
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
        for _ in range(value if what == "same" else 1):
            assert content(on.next_minibatch(size, partition)) == content(off.next_minibatch(size, partition))
            assert on.state_dict() == off.state_dict()
        if what == "same":
            saved = off.state_dict()
    for name in ("minibatches", "sequences", "samples"):
        assert getattr(on.stats(), name) == getattr(off.stats(), name)
    assert on.stats().transform_seconds >= 0.25 * on.stats().minibatches


@given(worlds(order="feedline"), sizes, st.data())
def test_what_a_transform_cannot_read_keeps_its_place(world, size, data):
    """Errors come at the same minibatch, and skipping shifts nothing, begun ahead or not."""
    bad = data.draw(st.sets(st.integers(0, world.total - 1), max_size=4))
    outcomes = []
    for source in transformed(world, bad, max_sweeps=2):
        out = []
        for _ in range(2 * world.total + 2):
            try:
                minibatch = source.next_minibatch(size)
            except fl.DataError as error:
                out.append((str(error), source.position))
                break
            out.append(content(minibatch))
        outcomes.append(out)
    assert outcomes[0] == outcomes[1]
    whole = [m.ids.tolist() for m in world.source(max_sweeps=2).minibatches(size)]
    for source in transformed(world, bad, max_sweeps=2, on_error=fl.Quarantine(os.devnull)):
        got = [m.ids.tolist() for m in source.minibatches(size)]
        assert got == [[i for i in ids if i not in bad] for ids in whole]
        assert source.stats().skipped == 2 * len(bad)


@pytest.mark.parametrize("shuffle", [True, "whole"])
def test_a_transform_is_begun_ahead(shuffle):
    """In steady state, for all minibatches, however small. Without a budget for none."""
    for read_ahead in (None, 0):
        stage = Elsewhere()
        corpus = CountedCorpus([1] * 400, [100] * 4, shuffle == "whole")
        source = fl.MinibatchSource(corpus, seed=1, shuffle=shuffle, transforms=[stage], read_ahead=read_ahead)
        for _ in range(40):
            source.next_minibatch(10)
        if read_ahead == 0:
            assert stage.begun == 0
        else:
            assert 32 <= stage.finished == copy_ahead_of(source).used <= 38
            assert len(copies_waiting(source)) <= ahead.DEPTH


@pytest.mark.parametrize("options", [{"frame_mode": True}, {"skip": [3]}, {"truncation_length": 2}])
def test_a_transform_that_waits_for_other_checks_is_not_begun_ahead(options, tmp_path):
    if "skip" in options:
        options = {"skip": tmp_path / "listed.jsonl"}
        options["skip"].write_text('{"sequence": 3}\n')
    stages = Elsewhere(), Elsewhere(ahead=False)
    on, off = (
        fl.MinibatchSource(CountedCorpus([1] * 40, [10] * 4), seed=1, transforms=[stage], max_sweeps=2, **options)
        for stage in stages
    )
    assert list(map(content, on.minibatches(3))) == list(map(content, off.minibatches(3)))
    assert stages[0].begun == 0
