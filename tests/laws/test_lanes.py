"""Laws of truncated BPTT: lanes deliver every sample of every sequence once, in order, and survive a restart."""

from __future__ import annotations

import dataclasses
import itertools
import json

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline.feed.protocol import Unsized
from feedline.testing import sequences_of
from tests.effort import examples
from tests.inside import lay_out, timeline_of
from tests.laws.corpora import CountedCorpus, axis_of, whole_order, worlds
from tests.oracles.packing import lane_minibatches

lengths = st.integers(1, 7)
sizes = st.lists(st.integers(1, 40), min_size=1, max_size=5)


def told(minibatch):
    """(lane, ordinal, begins, steps) of every piece. Both streams must have the values of the corpus."""
    pieces = []
    columns = [minibatch["x"].sequences(), minibatch["y"].sequences()]
    rows = zip(minibatch.lanes.tolist(), minibatch.ids.tolist(), minibatch.begins.tolist(), *columns, strict=True)
    for lane, ordinal, begins, x, y in rows:
        assert (x[:, 0] == ordinal).all()
        assert y.class_indices().rows.tolist() == [ordinal % 7] * len(x)
        pieces.append((lane, ordinal, begins, x[:, 1].astype(int).tolist()))
    assert sum(len(p[3]) for p in pieces) == minibatch.num_samples == minibatch["y"].num_samples
    return pieces


def run(source, sizes):
    """Return the pieces of minibatches of ``sizes``, up to the end of the source or of the sizes."""
    out = []
    for size in sizes:
        minibatch = source.next_minibatch(size)
        if not minibatch:
            break
        out.append(told(minibatch))
    return out


def finish(source, sizes):
    return run(source, itertools.cycle(sizes))


@given(worlds(), lengths, sizes)
def test_every_sample_once_and_in_order(world, length, sizes):
    """For any sizes, a lane delivers all samples of each sequence in order, and begins it exactly once."""
    source = world.source(max_sweeps=2, truncation_length=length)
    open_sequence, count = {}, np.zeros(world.total, int)
    for size, pieces in zip(itertools.cycle(sizes), finish(source, sizes), strict=False):
        assert sum(len(p[3]) for p in pieces) <= max(size, length)
        assert [p[0] for p in pieces] == sorted(p[0] for p in pieces)
        for lane, ordinal, begins, steps in pieces:
            assert len(steps) <= length
            expected = open_sequence.pop(lane, None)
            assert begins is (expected is None)
            if expected is not None:
                assert (ordinal, steps[0]) == expected
            else:
                assert steps[0] == 0
            assert steps == list(range(steps[0], steps[-1] + 1))
            if steps[-1] + 1 < world.lengths[ordinal]:
                open_sequence[lane] = (ordinal, steps[-1] + 1)
            else:
                count[ordinal] += 1
    assert not open_sequence
    assert count.tolist() == [2 if n else 0 for n in world.lengths]


@given(worlds(), lengths, sizes)
def test_minibatches_equal_the_oracle(world, length, sizes):
    """Pieces, lanes and sweep ends of every minibatch, with sizes that change at every call."""
    source = world.source(max_sweeps=2, truncation_length=length)
    axis = axis_of(world, source, whole_order(world, 2), 0, 1)
    expected = list(lane_minibatches(axis, length, itertools.cycle(sizes)))
    assert with_sweep_ends(source, sizes) == without_sweeps(expected)


def with_sweep_ends(source, sizes):
    """Pieces and the sweep end of every minibatch, to the end of the source."""
    minibatches = itertools.takewhile(bool, (source.next_minibatch(size) for size in itertools.cycle(sizes)))
    return [([(lane, o, steps) for lane, o, _, steps in told(m)], m.sweep_end) for m in minibatches]


def without_sweeps(expected):
    return [([(lane, o, steps) for lane, o, _, steps in pieces], end) for pieces, end in expected]


@given(worlds(), lengths, sizes, st.integers(0, 30), sizes)
def test_resumes_from_every_minibatch(world, length, sizes, stop, others):
    """Also with other sizes, so with more or fewer lanes. The state is the same again."""
    source = world.source(truncation_length=length)
    run(source, itertools.islice(itertools.cycle(sizes), stop))
    state = json.loads(json.dumps(source.state_dict()))
    expected = run(source, others * 4)
    restored = world.source(truncation_length=length)
    restored.load_state_dict(state, verify=True)
    assert restored.state_dict() == state
    assert run(restored, others * 4) == expected
    assert restored.state_dict() == source.state_dict()


@given(worlds(), lengths, st.integers(1, 30), st.integers(0, 30))
def test_restoring_reads_the_chunks_in_the_lanes_and_a_window(world, length, size, stop):
    """Loading reads nothing. The next minibatch rereads the sequences in lanes and the current window."""
    source = world.source(truncation_length=length)
    run(source, [size] * stop)
    state = source.state_dict()
    queued = sum(state["lanes"], [])
    restored = world.source(truncation_length=length, read_ahead=0)
    restored.load_state_dict(state)
    assert restored.corpus.reads == []
    position = restored.position
    restored.next_minibatch(size)
    windows = windows_between(restored, position)
    assert len(restored.corpus.reads) <= sum(count for _, _, count, _ in queued) + windows


def test_a_restored_lane_and_the_next_window_read_this_window_once():
    """Restored one sequence before a window's end, it reads the window in use, then the next, each once."""
    how = {"shuffle": fl.Window(chunks=3), "seed": 0, "truncation_length": 1, "read_ahead": 0}
    source, restored = (fl.MinibatchSource(CountedCorpus([1] * 7, [0, 0, 5, 2]), **how) for _ in range(2))
    source.next_minibatch(2)
    restored.load_state_dict(source.state_dict())
    restored.next_minibatch(2)
    assert sorted(restored.corpus.reads) == [0, 1, 2, 3]


def test_a_sequence_of_an_old_window_costs_its_chunk():
    """With windows of four chunks, the first window costs one chunk, which has the sequence still in a lane."""
    corpora = [CountedCorpus([90] + [2] * 15, [2] * 8) for _ in range(2)]
    how = {"shuffle": fl.Window(chunks=4), "seed": 1, "truncation_length": 2, "read_ahead": 0}
    source, restored = (fl.MinibatchSource(corpus, **how) for corpus in corpora)
    while source.position.sequence < 12:
        minibatch = source.next_minibatch(4)
    state = source.state_dict()
    assert 0 in minibatch.ids
    assert 0 in timeline_of(source).window_at(0, 0).chunks
    restored.load_state_dict(state)
    assert 0 in restored.next_minibatch(4).ids
    assert sorted(restored.corpus.reads) == sorted([0, *timeline_of(source).window_at(0, 12).chunks.tolist()])


def windows_between(source, position):
    """Chunks of the windows from a position to the source's own."""
    total, place = 0, position
    while True:
        plan = timeline_of(source).window_at(place.sweep, place.sequence)
        total += len(plan.chunks)
        sweep, ordinal, _ = timeline_of(source).position_of(plan, plan.count)
        if (sweep, ordinal) > source.position[:2]:
            return total
        place = fl.Position(sweep, ordinal)


@settings(max_examples=examples(30))
@given(worlds(), lengths, sizes, st.integers(1, 4))
def test_parts_in_rank_order_are_the_global_minibatch(world, length, sizes, count):
    """Each lane belongs to one rank. All ranks step equally often and have one state."""
    unpartitioned = world.source(max_sweeps=2, truncation_length=length)
    ranks = [world.source(max_sweeps=2, truncation_length=length, partition=(i, count)) for i in range(count)]
    for size in itertools.cycle(sizes):
        expected = unpartitioned.next_minibatch(size)
        parts = [rank.next_minibatch(size) for rank in ranks]
        assert [bool(part) for part in parts] == [bool(expected)] * count
        assert all(rank.state_dict() == unpartitioned.state_dict() for rank in ranks)
        if not expected:
            break
        assert sum((told(part) for part in parts), []) == told(expected)
        width = max(1, size // length)
        for rank, part in enumerate(parts):
            if set(expected.lanes.tolist()) <= set(range(width)):
                assert {lane * count // width for lane in part.lanes.tolist()} <= {rank}
            assert (part.sweep_end, part.global_samples) == (expected.sweep_end, expected.num_samples)
            assert part.position == expected.position


@settings(max_examples=examples(30))
@given(worlds(), lengths, st.integers(1, 30), st.integers(0, 8), st.integers(1, 4))
def test_any_rank_may_be_requested_at_any_time(world, length, size, stop, count):
    """A part requested out of turn, or with another world size after a restart, is that rank's part."""
    unpartitioned = world.source(truncation_length=length)
    part = world.source(truncation_length=length, partition=(0, count))
    run(unpartitioned, [size] * stop)
    run(part, [size] * stop)
    state = part.state_dict()
    expected = told(unpartitioned.next_minibatch(size))
    parts = []
    for rank in range(count):
        parts += told(part.next_minibatch(size, partition=(rank, count)))
        part.load_state_dict(state)
    assert parts == expected
    # Lanes of other ranks were never read here, and are read when they are requested.
    assert run(part, []) == []
    run(part, [size])
    assert told(part.next_minibatch(size, partition=(0, 1))) == told(unpartitioned.next_minibatch(size))


@given(worlds(), lengths, st.integers(1, 40), st.integers(1, 4))
def test_own_lanes_of_workers_deliver_every_sample_once(world, length, size, count):
    """CNTK's filling: each worker has an equal share of the lanes and fills them with its own sequences."""
    width = max(1, size // length)
    samples = []
    for rank in range(count):
        source = world.source(max_sweeps=2, truncation_length=length, filling="cntk", partition=(rank, count))
        if count > width:
            with pytest.raises(ValueError, match=f"one lane for each of {count} ranks, got {width}"):
                source.next_minibatch(size)
            return
        lanes = width // count + (rank < width % count)
        for pieces in finish(source, [size]):
            assert all(lane < lanes for lane, *_ in pieces)
            samples += [(ordinal, step) for _, ordinal, _, steps in pieces for step in steps]
        assert source.position.samples == 2 * sum(world.lengths)
    assert sorted(samples) == sorted(2 * [(o, i) for o, n in enumerate(world.lengths) for i in range(n)])


@given(worlds(), lengths, st.integers(1, 40), st.data())
def test_own_lanes_of_workers_equal_the_oracle(world, length, size, data):
    """Pieces, lanes and sweep ends of a worker, whether the last sequence of a sweep is its own or another's."""
    count = data.draw(st.integers(1, min(4, max(1, size // length))))
    rank = data.draw(st.integers(0, count - 1))
    source = world.source(max_sweeps=3, truncation_length=length, filling="cntk", partition=(rank, count))
    axis = axis_of(world, source, whole_order(world, 3), rank, count)
    # A sweep without a sample of the worker gives an empty minibatch: see test_owning_nothing_ends_nothing.
    assume({step.sweep for step in axis if step.mine and step.length} == {0, 1, 2})
    width = max(1, size // length)
    own_samples = length * (width // count + (rank < width % count))
    expected = list(lane_minibatches(axis, length, itertools.repeat(own_samples)))
    assert with_sweep_ends(source, [size]) == without_sweeps(expected)


@settings(max_examples=examples(30))
@given(worlds(), lengths, st.integers(1, 40), st.integers(0, 12), st.data())
def test_own_lanes_of_workers_resume(world, length, size, stop, data):
    """Each worker from its own state."""
    count = data.draw(st.integers(1, max(1, size // length)))
    rank = data.draw(st.integers(0, count - 1))
    source, restored = (
        world.source(truncation_length=length, filling="cntk", partition=(rank, count)) for _ in range(2)
    )
    run(source, [size] * stop)
    restored.load_state_dict(json.loads(json.dumps(source.state_dict())))
    assert run(restored, [size] * 6) == run(source, [size] * 6)
    assert restored.state_dict() == source.state_dict()


def test_owning_nothing_ends_nothing():
    """With one chunk and two workers, one worker gets an empty minibatch per sweep and ends at the end of the axis."""

    def source(**limits):
        corpus = CountedCorpus([2, 3, 1], [3])
        return fl.MinibatchSource(corpus, partition=(1, 2), filling="cntk", order="cntk", truncation_length=2, **limits)

    endless = source()
    for sweep in range(1, 4):
        minibatch = endless.next_minibatch(6)
        assert minibatch
        assert (minibatch.num_sequences, minibatch.sweep_end) == (0, True)
        assert endless.position == fl.Position(sweep, 0, 6 * sweep)
    limited = source(max_sweeps=2)
    assert [bool(limited.next_minibatch(6)) for _ in range(3)] == [True, False, False]


# ---- fewer lanes, limits, errors -----------------------------------------------------------------


def test_surplus_lanes_drain_first():
    """With four lanes, then two, the upper two are emptied first, and the lower two wait with their sequences."""
    source = fl.MinibatchSource(CountedCorpus([5] * 8, [8]), shuffle=False, truncation_length=2, max_sweeps=1)
    assert [(p[0], p[1]) for p in run(source, [8])[0]] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    pieces = [[(lane, ordinal, steps) for lane, ordinal, _, steps in m] for m in run(source, [4] * 3)]
    assert pieces == [
        [(2, 2, [2, 3]), (3, 3, [2, 3])],
        [(2, 2, [4]), (3, 3, [4])],
        [(0, 0, [2, 3]), (1, 1, [2, 3])],
    ]


@given(worlds(), lengths, st.integers(1, 30), st.integers(1, 120))
def test_max_samples_is_checked_before_each_sequence(world, length, size, limit):
    """Sequences enter lanes until the limit of samples is reached. The sequences in lanes are delivered."""
    expected, total = [], 0
    endless = world.source()
    while total < limit:
        minibatch = endless.next_minibatch(1)
        expected += minibatch.ids.tolist()
        total += minibatch.num_samples
    source = world.source(max_samples=limit, truncation_length=length)
    begun = [ordinal for pieces in finish(source, [size]) for _, ordinal, begins, _ in pieces if begins]
    assert sorted(begun) == sorted(o for o in expected if world.lengths[o])
    assert source.position.samples == total
    assert not source.next_minibatch(size)


@settings(max_examples=examples(30))
@given(worlds(), lengths, st.integers(1, 30), st.integers(1, 3), st.data())
def test_a_skipped_sequence_shifts_nothing(tmp_path_factory, world, length, size, count, data):
    """Its pieces are skipped on every rank, and all other sequences keep their places, even after a restart."""
    bad = tuple(data.draw(st.sets(st.integers(0, world.total - 1), max_size=5)))
    assume(any(world.lengths[i] for i in range(world.total) if i not in bad))  # else it would be an error
    stop = data.draw(st.integers(0, 6))
    folder = tmp_path_factory.mktemp("q")
    damaged = dataclasses.replace(world, bad=bad, step=16384)

    def source(rank):
        path = folder / f"{rank}.jsonl"
        return damaged.source(truncation_length=length, partition=(rank, count), on_error=fl.Quarantine(path))

    unpartitioned, ranks = world.source(truncation_length=length), [source(i) for i in range(count)]
    for step in range(12):
        if step == stop:
            states = [rank.state_dict() for rank in ranks]
            ranks = [source(i) for i in range(count)]
            for rank, state in zip(ranks, states, strict=True):
                rank.load_state_dict(state)
        expected = told(unpartitioned.next_minibatch(size))
        parts = [rank.next_minibatch(size) for rank in ranks]
        assert sum(map(told, parts), []) == [p for p in expected if p[1] not in bad]
        assert all(part.global_samples == sum(len(p[3]) for p in expected) for part in parts)
        assert all(rank.state_dict() == unpartitioned.state_dict() for rank in ranks)


def test_a_bad_sequence_raises_and_loses_nothing():
    """Without skipping, the minibatch in which it would enter a lane raises each time. Nothing is delivered twice."""
    corpus = CountedCorpus([3] * 10, [5, 5], bad=[6])
    source = fl.MinibatchSource(corpus, shuffle=False, truncation_length=2)
    run(source, [4])
    while True:
        state = source.state_dict()
        try:
            source.next_minibatch(4)
        except fl.DataError:
            break
    with pytest.raises(fl.DataError, match="planted"):
        source.next_minibatch(4)
    assert source.state_dict() == state


class Uneven(CountedCorpus):
    """The sparse stream of sequence 3 has one sample less than the dense one."""

    def read(self, chunk):
        chunk_data = super().read(chunk)
        ys = [y.class_indices().rows for y in chunk_data["y"].sequences()]
        first = int(self._starts[chunk])
        ys = [y[:-1] if first + i == 3 else y for i, y in enumerate(ys)]
        return fl.Chunk(self.schema, {**chunk_data.values, "y": fl.Value.one_hot(ys, 7)}, chunk_data.errors)


def test_streams_of_unequal_length(tmp_path):
    """A sequence whose streams differ in length cannot be truncated: it is an error, or skipped as a bad one."""
    settings = {"shuffle": False, "truncation_length": 2, "max_sweeps": 1}
    source = fl.MinibatchSource(Uneven([3] * 6, [3, 3]), **settings)
    with pytest.raises(fl.DataError, match=r"expected 3 samples in every stream.*got 2") as caught:
        finish(source, [4])
    assert (caught.value.sequence, caught.value.stream) == (3, "y")
    skipping = fl.MinibatchSource(Uneven([3] * 6, [3, 3]), on_error=fl.Quarantine(tmp_path / "q"), **settings)
    pieces = sum(finish(skipping, [4]), [])
    plain = fl.MinibatchSource(CountedCorpus([3] * 6, [3, 3]), **settings)
    assert pieces == [p for p in sum(finish(plain, [4]), []) if p[1] != 3]
    assert json.loads((tmp_path / "q").read_text())["stream"] == "y"


def test_transforms_see_whole_sequences():
    """A transform runs before a sequence is truncated. If it changes the length, that is an error."""

    def total(sequence):
        return {"x": np.full_like(sequence["x"], sequence["x"][:, 1].sum())}

    corpus = CountedCorpus([4] * 3, [3])
    source = fl.MinibatchSource(corpus, shuffle=False, truncation_length=3, max_sweeps=1, transforms=[total])
    rows = np.concatenate([m["x"].rows for m in source.minibatches(3)])
    assert rows.tolist() == [[6, 6]] * 12

    def halve(sequence):
        return {"x": sequence["x"][::2]}

    source = fl.MinibatchSource(corpus, truncation_length=3, transforms=[halve])
    with pytest.raises(fl.DataError, match="expected 4 samples in every stream"):
        source.next_minibatch(3)


# ---- the state --------------------------------------------------------------------------------------


def make(**changes):
    return fl.MinibatchSource(CountedCorpus([1, 5, 3] * 20, [20, 20, 20]), **{"truncation_length": 3, **changes})


def test_lanes_in_the_state():
    """One list of [sweep, sequence, count, done] per lane, in which consecutive sequences are one entry."""
    source = make(shuffle=False)
    assert source.state_dict()["lanes"] == []
    source.next_minibatch(6)  # lane 0 has sequences 0 and 1, lane 1 has 2 and 3
    assert source.state_dict()["lanes"] == [[[0, 1, 1, 2]], [[0, 3, 1, 0]]]
    assert source.position == fl.Position(0, 4, 10)
    source.close()
    assert source.state_dict()["lanes"] == [[[0, 1, 1, 2]], [[0, 3, 1, 0]]]


def test_several_sequences_of_a_lane_in_a_state():
    """Minibatches leave at most one sequence in a lane. If a state has more, they are saved again, in order."""
    source = make(shuffle=False)
    source.next_minibatch(6)
    lanes = [[[0, 1, 2, 2], [0, 6, 1, 0]]]
    source.load_state_dict({**source.state_dict(), "lanes": lanes})
    assert source.state_dict()["lanes"] == lanes
    assert run(source, [3]) == [[(0, 1, False, [2, 3, 4])]]
    assert source.state_dict()["lanes"] == [[[0, 2, 1, 0], [0, 6, 1, 0]]]
    assert run(source, [3, 3]) == [[(0, 2, True, [0, 1, 2])], [(0, 6, True, [0]), (0, 4, True, [0, 1])]]


def test_a_state_with_lanes_needs_lanes():
    """Without truncation the lanes would be lost. Another truncation length, or a state without lanes, is accepted."""
    source = make()
    source.next_minibatch(9)
    plain = make(truncation_length=None)
    with pytest.raises(fl.StateError, match="truncation_length"):
        plain.load_state_dict(source.state_dict())
    remaining = [p for m in finish(make(max_sweeps=1), [9]) for p in m]
    begun = run(make(max_sweeps=1), [9])[0]
    longer = make(max_sweeps=1, truncation_length=5)
    longer.load_state_dict(source.state_dict())
    samples = [(o, i) for pieces in [begun, *finish(longer, [20])] for _, o, _, steps in pieces for i in steps]
    assert sorted(samples) == sorted((o, i) for _, o, _, steps in remaining for i in steps)
    plain.next_minibatch(9)
    source.load_state_dict(plain.state_dict())
    assert source.position == plain.position
    assert source.state_dict()["lanes"] == []


def test_seek_empties_the_lanes():
    """A seek moves to a position on the axis, and sequences in lanes are not delivered."""
    source = make(shuffle=False)
    run(source, [9, 9])
    source.seek(fl.Position())
    assert source.state_dict()["lanes"] == []
    assert run(source, [9]) == run(make(shuffle=False), [9])


@given(st.data())
def test_damaged_lanes_are_refused(data):
    """After any change of the lanes there is a StateError, or the lanes fit the order. No other exception is raised."""
    source = make(seed=3, shuffle=fl.Window(chunks=1))
    run(source, [9] * 7)
    state = json.loads(json.dumps(source.state_dict()))
    lane = data.draw(st.integers(0, len(state["lanes"]) - 1))
    wrong = st.one_of(st.none(), st.integers(-3, 70), st.just(10**30), st.text(max_size=2), st.lists(st.integers()))
    entry = data.draw(st.integers(0, len(state["lanes"][lane]) - 1))
    place = data.draw(st.integers(0, 3))
    state["lanes"][lane][entry][place] = data.draw(wrong)
    other = make(seed=3, shuffle=fl.Window(chunks=1))
    try:
        other.load_state_dict(state)
        minibatch = other.next_minibatch(9)
    except fl.StateError:
        return
    told(minibatch)


@pytest.mark.parametrize("lanes", [None, 3, [3], [[3]], [[[0, 1, 2]]], [[[0, 1, 0, 0]]], [[[0, 1, 2, True]]]])
def test_other_shapes_of_lanes_are_refused(lanes):
    source = make()
    with pytest.raises(fl.StateError, match="damaged"):
        source.load_state_dict({**source.state_dict(), "lanes": lanes})
    assert source.position == fl.Position()


def test_the_state_grows_with_the_lanes_alone():
    """After millions of sequences, a lane still takes tens of bytes."""
    source = make(truncation_length=4)
    run(source, [40] * 30)
    lanes = source.state_dict()["lanes"]
    assert len(lanes) <= 10
    assert len(json.dumps(lanes)) < 60 * 10


def test_minibatch_equality_sees_lanes():
    """The same sequences in other lanes make an unequal minibatch."""
    corpus = CountedCorpus([2] * 4, [4])
    cut = fl.MinibatchSource(corpus, shuffle=False, truncation_length=4, max_sweeps=1).next_minibatch(4)
    complete = fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1).next_minibatch(4)
    assert sequences_of([cut]) == sequences_of([complete])
    assert cut != complete
    assert complete.lanes is complete.begins is None


# ---- corpora whose sizes are known only after reading -----------------------------------------------


class UnknownSizes(CountedCorpus, Unsized, fl.Keyed):
    """A corpus whose chunks are unknown before they are read."""

    def num_chunks(self):
        return len(self._starts) - 1

    def chunks(self):
        raise AssertionError("asked for sizes of an unsized corpus")

    lengths = select = keys = chunks


def test_lanes_of_another_rank_are_read_from_released_windows():
    """If another rank's lane is requested, its sequences are read again, although their window was released."""

    def source():
        corpus = UnknownSizes([6] * 8, [2] * 4)
        return fl.MinibatchSource(corpus, shuffle=False, truncation_length=2, read_ahead=0)

    uninterrupted, one = source(), source()
    for _ in range(5):
        uninterrupted.next_minibatch(4, partition=(0, 1))
        one.next_minibatch(4, partition=(0, 2))
        got, expected = (s.next_minibatch(4, partition=p) for s, p in ((one, (1, 2)), (uninterrupted, (0, 1))))
        assert sequences_of([got]) == sequences_of([expected])[got.num_sequences * -1 :]


@settings(max_examples=examples(30))
@given(worlds(order="feedline", unit=False), lengths, sizes, st.integers(0, 12), st.booleans(), st.data())
def test_unsized_corpora_resume(world, length, sizes, stop, shuffle, data):
    """Entries name their window, and the remaining sequences are the same, whichever rank owns the lanes."""
    filling = data.draw(st.sampled_from(["global", "cntk"]))
    count = data.draw(st.integers(1, max(1, min(sizes) // length)))
    rank = data.draw(st.integers(0, count - 1))

    def source():
        corpus = UnknownSizes(world.lengths, world.chunk_sizes)
        window = fl.Window(chunks=2) if shuffle else False
        where = {"shuffle": window, "filling": filling, "partition": (rank, count), "read_ahead": 0}
        source = fl.MinibatchSource(corpus, truncation_length=length, max_sweeps=3, **where)
        lay_out(source, world.step)
        return source

    def told_without_ids(source, sizes):
        # The ordinal of a sequence consists of its chunk and place here, so the rows identify it.
        minibatches = [m for m in (source.next_minibatch(size) for size in sizes) if m]
        return [(m.lanes.tolist(), m.begins.tolist(), [x.tolist() for x in m["x"].sequences()]) for m in minibatches]

    original, restored = source(), source()
    told_without_ids(original, itertools.islice(itertools.cycle(sizes), stop))
    state = json.loads(json.dumps(original.state_dict()))
    assert all(len(entry) == 5 for lane in state["lanes"] for entry in lane)
    restored.load_state_dict(state)
    assert restored.corpus.reads == []
    assert told_without_ids(restored, sizes * 4) == told_without_ids(original, sizes * 4)
    # If a window turns out to be empty, the places before and after it are the same.
    assert restored.position.samples == original.position.samples
    assert restored.state_dict()["lanes"] == original.state_dict()["lanes"]
    assert restored.stats().held_bytes <= 2 * original.stats().peak_bytes
