"""Laws of arcs: the order depends on their number alone, and each rank reads only its own arcs."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline.feed.timeline import block_order
from feedline.testing import assert_resumes, sequences_of
from tests.effort import examples
from tests.inside import chunks_held, copy_ahead_of, lay_out, timeline_of
from tests.laws import test_jumps, test_one_order, test_partition, test_resume
from tests.laws.corpora import CountedCorpus, worlds
from tests.laws.test_damaged_states import Unsized
from tests.oracles import arcs as slow


@st.composite
def arc_worlds(draw, unit=None):
    """A world whose order has arcs: from one to the number of sequences, at most nine."""
    world = draw(worlds(unit=unit, order="feedline"))
    arcs = draw(st.integers(1, min(9, world.total)))
    return dataclasses.replace(world, settings={**world.settings, "order": fl.Arcs(arcs)})


def units_of(world):
    """The units of windows, as `CountedCorpus.reads` names them, with the sequences and cost of each."""
    infos = world.corpus().chunks()
    shuffle = world.settings["shuffle"]
    in_blocks = (
        world.block is not None
        and shuffle is not False
        and (not world.random_access if shuffle is True else shuffle.chunks is None)
    )
    if not in_blocks:
        names = list(range(len(infos)))
        sizes = [(info.sequences, info.samples, info.bytes) for info in infos]
    else:
        with mock.patch.object(block_order, "BLOCK_BYTES", world.block):
            cut = block_order.Blocks(timeline_of(fl.MinibatchSource(world.corpus())).chunk_table)
        table = cut.table
        sizes = list(zip(table.sequences.tolist(), table.samples.tolist(), table.bytes.tolist(), strict=True))
        starts = zip(cut.chunk.tolist(), cut.first.tolist(), sizes, strict=True)
        names = [(chunk, first, first + size[0]) for chunk, first, size in starts]
    return names, sizes


def oracle(world, sweep):
    """The windows of each arc of a sweep, by the slow twin."""
    shuffle, seed, arcs = world.settings["shuffle"], world.settings["seed"], world.settings["order"].count
    _, sizes = units_of(world)
    budget, costs = None, [1] * len(sizes)
    if shuffle is False:
        budget = None if world.random_access else 1
    elif isinstance(shuffle, fl.Window):
        ((unit, budget),) = shuffle.to_json().items()
        if unit != "chunks":
            costs = [size[("sequences", "samples", "bytes").index(unit)] for size in sizes]
    return slow.arcs(seed, sweep, [size[0] for size in sizes], costs, budget, arcs, shuffle=shuffle is not False)


def own(world, rank, count):
    return range(rank, world.settings["order"].count, count)


@given(arc_worlds(), st.integers(1, 40))
def test_the_order_equals_the_oracle(world, size):
    """Arcs of the chunk order, with windows in each, and one sequence of every arc in turn."""
    order = [i for m in world.source(max_sweeps=2).minibatches(size) for i in m.ids.tolist()]
    assert order == [ordinal for sweep in (0, 1) for ordinal, _, _ in slow.interleaved(oracle(world, sweep))]


@given(arc_worlds(), st.integers(1, 60), st.integers(1, 9), st.sampled_from([0, 1 << 60]))
def test_a_rank_takes_the_places_of_its_arcs(world, size, count, ahead):
    """Parts are disjoint, complete and in order. All ranks step equally often, with one position and one state."""
    count = min(count, world.settings["order"].count)
    unpartitioned = world.source(max_sweeps=2)
    ranks = [world.source(max_sweeps=2, partition=(i, count)) for i in range(count)]
    for rank in ranks:
        copy_ahead_of(rank).threshold = ahead  # minimum bytes of minibatches that are copied ahead
    at = 0
    while True:
        expected = unpartitioned.next_minibatch(size)
        parts = [rank.next_minibatch(size) for rank in ranks]
        assert [bool(part) for part in parts] == [bool(expected)] * count
        if not expected:
            break
        sequences = sequences_of([expected])
        owners = [(at + k) % world.total % world.settings["order"].count % count for k in range(len(sequences))]
        for rank, part in enumerate(parts):
            assert sequences_of([part]) == [s for s, owner in zip(sequences, owners, strict=True) if owner == rank]
            assert (part.position, part.sweep_end) == (expected.position, expected.sweep_end)
            assert part.global_samples == expected.num_samples
        at += len(sequences)
        assert [rank.state_dict() for rank in ranks] == [unpartitioned.state_dict()] * count
    assert at == 2 * world.total


@settings(max_examples=examples(15))
@given(
    arc_worlds(), st.lists(st.tuples(st.integers(1, 30), st.integers(1, 9), st.integers(1, 4)), min_size=1, max_size=5)
)
def test_world_size_changed_in_mid_run(world, legs):
    """Each part of the run restores the state with another world size and minibatch size. They equal one run."""
    plain = world.source()
    state = plain.state_dict()
    for size, count, steps in legs:
        count = min(count, world.settings["order"].count)
        ranks = [world.source(partition=(i, count)) for i in range(count)]
        for rank in ranks:
            rank.load_state_dict(json.loads(json.dumps(state)), verify=True)
        for _ in range(steps):
            got = [sequence for rank in ranks for sequence in sequences_of([rank.next_minibatch(size)])]
            expected = sequences_of([plain.next_minibatch(size)])
            assert sorted(got, key=repr) == sorted(expected, key=repr)
        states = [rank.state_dict() for rank in ranks]
        assert states == [plain.state_dict()] * count
        state = states[0]


@given(arc_worlds(), st.integers(1, 12), st.integers(0, 10), st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_the_partition_may_change_at_every_call(world, size, stop, counts):
    """One source gives the parts of all ranks in turn, then the parts of another number of ranks."""
    source, plain = world.source(), world.source(read_ahead=0, threads=1)
    list(itertools.islice(zip(source.minibatches(size), plain.minibatches(size), strict=False), stop))
    for count in counts:
        count = min(count, world.settings["order"].count)
        state, parts = source.state_dict(), []
        for rank in range(count):
            source.load_state_dict(state)
            parts += sequences_of([source.next_minibatch(size, partition=(rank, count))])
        assert sorted(parts, key=repr) == sorted(sequences_of([plain.next_minibatch(size)]), key=repr)
    for step in range(2 * count):  # without a seek in between, which would release the windows
        at, arcs = source.position.sequence, world.settings["order"].count
        part, expected = source.next_minibatch(size, partition=(step % count, count)), plain.next_minibatch(size)
        mine = [(at + k) % world.total % arcs % count == step % count for k in range(expected.num_sequences)]
        assert sequences_of([part]) == list(itertools.compress(sequences_of([expected]), mine))


@given(arc_worlds(), st.integers(1, 40), st.integers(1, 9), st.sampled_from([0, 1 << 60]))
def test_a_rank_reads_only_its_own_arcs(world, size, count, ahead):
    """In a sweep a rank reads only its units, in the order of need. Over all ranks, at most arcs - 1 are read twice."""
    count = min(count, world.settings["order"].count)
    names, sizes = units_of(world)
    windows, reads = oracle(world, 0), 0
    for rank in range(count):
        with world.source(max_sweeps=1, partition=(rank, count), threads=1) as source:
            copy_ahead_of(source).threshold = ahead
            for _ in source.minibatches(size):
                pass
            chunks_read = source.corpus.reads
        needed = [names[unit] for unit in slow.units_in_order_of_need(windows, own(world, rank, count))]
        if world.random_access:
            assert set(chunks_read) == set(needed)
        else:
            assert list(dict.fromkeys(chunks_read)) == list(dict.fromkeys(needed))
        assert len(chunks_read) <= len(needed)
        reads += len(chunks_read)
    assert reads <= sum(size[0] > 0 for size in sizes) + world.settings["order"].count - 1


@given(arc_worlds(unit=True), st.integers(1, 25), st.integers(0, 20), st.integers(1, 9), st.data())
def test_restoring_reads_one_window_of_each_own_lane(world, size, stop, count, data):
    """At any position, and whether or not the rank takes part in the first minibatch."""
    count = min(count, world.settings["order"].count)
    rank = data.draw(st.integers(0, count - 1))
    source = world.source()
    list(itertools.islice(source.minibatches(size), stop))
    restored = world.source(read_ahead=0, partition=(rank, count))
    restored.load_state_dict(source.state_dict())
    assert restored.corpus.reads == []
    minibatch = restored.next_minibatch(1)
    sweep, place = source.position[:2]
    windows = oracle(world, sweep)
    arcs = world.settings["order"].count
    so_far = slow.interleaved(windows)[: (place // arcs + 1) * arcs]  # to the end of the round
    entered = {arc: number for _, arc, number in so_far}
    names, _ = units_of(world)
    expected_reads = {names[unit] for arc in own(world, rank, count) for unit in windows[arc][entered[arc]].units}
    reads = restored.corpus.reads
    assert len(reads) == len(set(reads))
    if world.random_access:
        assert set(reads) <= expected_reads
        assert reads  # a view shows the layout, even if no sequence is taken
    else:
        assert set(reads) == expected_reads
    assert minibatch.num_sequences == (place % world.settings["order"].count % count == rank)
    assert [value.num_samples for value in minibatch.values()] == [minibatch.num_samples] * 3


@given(arc_worlds(), st.integers(1, 200), st.integers(1, 9))
def test_shares_are_about_equal(world, size, count):
    """They differ by one sequence if the ranks divide the arcs, else by one arc's share and one. Twice as much is
    allowed if a sweep ends in the minibatch.
    """
    arcs = world.settings["order"].count
    count = min(count, arcs)
    ranks = [world.source(max_sweeps=2, partition=(i, count)).plan(size) for i in range(count)]
    for parts in zip(*ranks, strict=True):
        shares = [part.num_sequences for part in parts]
        sweeps = 1 + (parts[0].position.sequence + sum(shares) > world.total)
        if sweeps == 2 and sum(shares) > world.total:
            continue  # parts of three sweeps
        per_lane = -(-sum(shares) // arcs)
        assert max(shares) - min(shares) <= sweeps * (1 if arcs % count == 0 else per_lane + 1)


@settings(max_examples=examples(15))
@given(arc_worlds(), st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(1, 4), st.integers(1, 9))
def test_order_depends_on_the_arcs_alone(world, sizes, threads, count):
    """It does not depend on sizes, threads, reading ahead or the world size."""
    law = test_one_order.test_order_depends_on_the_seed_alone.hypothesis.inner_test
    law(world, sizes, [7], threads, 150)
    count = min(count, world.settings["order"].count)
    ranks = [world.source(partition=(i, count)) for i in range(count)]
    order = [i for m in itertools.islice(world.source().minibatches(11), 6) for i in m.ids.tolist()]
    dealt = [itertools.chain.from_iterable(m.ids.tolist() for m in rank.minibatches(sizes[0])) for rank in ranks]
    dealt_order = [next(dealt[k % world.total % world.settings["order"].count % count]) for k in range(len(order))]
    assert dealt_order == order


@settings(max_examples=examples(15))
@given(arc_worlds(), st.integers(1, 30))
def test_every_sweep_delivers_each_sequence_once(world, size):
    """For any arcs, a sweep is a permutation of the corpus."""
    ids = [i for m in world.source(max_sweeps=2).minibatches(size) for i in m.ids.tolist()]
    n = world.total
    assert len(ids) == 2 * n
    assert sorted(ids[:n]) == sorted(ids[n:]) == list(range(n))


@settings(max_examples=examples(15))
@given(arc_worlds(), st.integers(1, 40))
def test_plan_equals_the_delivered_order(world, size):
    """The plan reads nothing."""
    test_one_order.test_plan_equals_the_delivered_order.hypothesis.inner_test(world, size)
    test_one_order.test_values_equal_the_corpus.hypothesis.inner_test(world, size)


@settings(max_examples=examples(15))
@given(arc_worlds(), st.integers(1, 25), st.integers(0, 30), st.integers(1, 25))
def test_resumes_from_every_point(world, size, stop, other):
    """The laws of resuming and seeking hold as for any order."""
    test_resume.test_resumes_from_every_point.hypothesis.inner_test(world, size, stop, other)
    test_resume.test_seeking_backwards_and_forwards.hypothesis.inner_test(world, size, stop % 7 + 1, other % 3)


@settings(max_examples=examples(4))
@given(arc_worlds())
def test_public_assert(world):
    assert_resumes(lambda: world.source(), sizes=(1, 5, 30), minibatches=2)


@settings(max_examples=examples(15))
@given(arc_worlds(), st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_budget(world, sizes):
    """As many whole sequences as fit."""
    test_partition.test_budget.hypothesis.inner_test(world, sizes)


@settings(max_examples=examples(15))
@given(arc_worlds(), st.integers(1, 20), st.integers(1, 150))
def test_max_samples(world, size, limit):
    test_partition.test_max_samples_is_checked_before_each_sequence.hypothesis.inner_test(world, size, limit)


@settings(max_examples=examples(20))
@given(
    arc_worlds(),
    st.lists(st.tuples(st.integers(0, 99), st.integers(1, 70)), max_size=3),
    st.integers(1, 20),
    st.integers(1, 9),
)
def test_places_jumped_over(world, bounds, size, count):
    """They are left out, and arcs keep their places: a rank takes the remaining places of its own arcs."""
    case = world, [(a, a + n) for a, n in bounds]
    test_jumps.test_what_is_jumped_over_is_as_if_it_were_not_there.hypothesis.inner_test(case, size)
    test_jumps.test_a_state_holds_its_jumps.hypothesis.inner_test(case, size, 3, False)
    arcs = world.settings["order"].count
    count = min(count, arcs)
    order = [pair[0] for sweep in (0, 1) for pair in slow.interleaved(oracle(world, sweep))]
    delivered_places = [k for k in range(len(order)) if not any(a <= k < b for a, b in case[1])]
    for rank in range(count):
        with world.source(max_sweeps=2, jumps=case[1], partition=(rank, count)) as source:
            ids = [i for m in source.minibatches(size) for i in m.ids.tolist()]
        assert ids == [order[k] for k in delivered_places if k % world.total % arcs % count == rank]


@settings(max_examples=examples(20))
@given(arc_worlds(), st.integers(1, 30), st.integers(1, 4), st.data())
def test_a_skipped_sequence_shifts_nothing(tmp_path_factory, world, size, count, data):
    """Bad sequences keep their ticks: every rank gets the same sequences as without damage, except these."""
    count = min(count, world.settings["order"].count)
    bad = tuple(data.draw(st.sets(st.integers(0, world.total - 1), max_size=5)))
    folder = tmp_path_factory.mktemp("q")
    damaged = dataclasses.replace(world, bad=bad, step=16384)
    for rank in range(count):
        unpartitioned = world.source(max_sweeps=2, partition=(rank, count))
        source = damaged.source(max_sweeps=2, partition=(rank, count), on_error=fl.Quarantine(folder / f"{rank}.jsonl"))
        for expected in unpartitioned.minibatches(size):
            part = source.next_minibatch(size)
            assert sequences_of([part]) == [s for s in sequences_of([expected]) if s[0] not in bad]
            assert part.global_samples == expected.global_samples
            assert source.state_dict() == unpartitioned.state_dict()
    listed = [json.loads(line)["sequence"] for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    assert set(listed) == set(bad)


@pytest.mark.parametrize("rank", [None, 0, 2])
def test_minibatches_are_copied_ahead_across_windows(rank):
    """Lanes enter new windows every few minibatches, without a wait if these have been read."""
    sizes = [7 + i % 5 for i in range(40)]
    corpus = CountedCorpus([1] * sum(sizes), sizes)
    partition = (0, 1) if rank is None else (rank, 3)
    with fl.MinibatchSource(
        corpus, seed=7, order=fl.Arcs(5), shuffle=fl.Window(chunks=5), partition=partition, max_sweeps=1
    ) as source:
        copy_ahead_of(source).threshold, count = 0, 0
        for _ in source.minibatches(16):
            for entry in chunks_held(source):
                entry.job.result()
            count += 1
        assert copy_ahead_of(source).used >= count - 3
        assert sorted(set(corpus.reads)) == sorted(corpus.reads) or rank is None


def test_a_window_of_which_nothing_is_taken_yet_is_read_first():
    """A minibatch may end in a round before the places of the rank's arcs."""
    corpus = CountedCorpus([1] * 48, [5, 11, 9, 3, 3, 6, 6, 3, 2])
    with fl.MinibatchSource(
        corpus, shuffle=False, order=fl.Arcs(3), partition=(2, 3), max_sweeps=1, threads=1
    ) as source:
        lay_out(source, 1)  # segments of one sequence
        for _ in source.minibatches(17):
            pass
    assert corpus.reads == [5, 6, 7, 8]


def open_source(**how):
    return fl.MinibatchSource(CountedCorpus([1, 2, 3] * 20, [20, 20, 20]), **{"seed": 3, "order": fl.Arcs(4), **how})


@pytest.mark.parametrize(
    ("other", "saved", "current", "advice"),
    [
        ({"order": fl.Arcs(8)}, {"arcs": 4}, {"arcs": 8}, r"pass order=fl\.Arcs\(count=4, version=1\)"),
        (
            {"order": "feedline"},
            {"order": "arcs-1", "arcs": 4},
            {"order": "feedline-1", "arcs": None},
            r"pass order=fl\.Arcs\(count=4, version=1\)",
        ),
        ({"seed": 4}, {"seed": f"{3:016x}"}, {"seed": f"{4:016x}"}, "seed=3"),
    ],
)
def test_a_state_of_other_arcs_is_refused(other, saved, current, advice):
    """The number of arcs is part of the state. The error has both numbers, and the argument to pass."""
    source = open_source()
    source.next_minibatch(10)
    state = source.state_dict()
    assert state["arcs"] == 4
    another = open_source(**other)
    with pytest.raises(fl.StateError) as caught:
        another.load_state_dict(state)
    assert (caught.value.saved, caught.value.current) == (saved, current)
    assert re.search(advice, caught.value.hint)
    assert another.position == fl.Position()


def test_a_state_without_arcs_is_refused():
    plain = open_source(order="feedline")
    plain.next_minibatch(10)
    assert "arcs" not in plain.state_dict()
    with pytest.raises(fl.StateError, match=r"feedline-1[\s\S]*arcs-1[\s\S]*pass order='feedline-1'"):
        open_source().load_state_dict(plain.state_dict())


@pytest.mark.parametrize(
    "damage", [{"arcs": "4"}, {"arcs": []}, {"arcs": 4.5}, {"arcs": None}, {"lanes": [[[0, 1, 1, 0]]]}]
)
def test_a_damaged_state_is_refused(damage):
    source = open_source()
    with pytest.raises(fl.StateError):
        source.load_state_dict({**source.state_dict(), **damage})


def test_a_state_names_its_order():
    """A run may be continued by the name of its order, if the default has changed."""
    source = open_source()
    source.next_minibatch(10)
    assert source.state_dict()["order"] == "arcs-1"
    restored = open_source(order=fl.Arcs(4, version=1))
    restored.load_state_dict(source.state_dict(), verify=True)
    assert sequences_of([restored.next_minibatch(9)]) == sequences_of([source.next_minibatch(9)])


def test_more_ranks_than_arcs():
    """They are refused wherever the partition comes from, with both numbers."""
    message = r"at most 4 ranks, one for each of fl\.Arcs\(4\), got 5; use fewer ranks, or as many arcs as"
    with pytest.raises(ValueError, match=message):
        open_source(partition=(0, 5))
    source = open_source()
    for ask in (source.next_minibatch, source.plan):
        with pytest.raises(ValueError, match=message):
            ask(8, partition=(4, 5))
    with mock.patch("feedline.feed.partition.ranks", return_value=(1, 5)):
        for _ in range(2):
            with pytest.raises(ValueError, match=message):
                source.next_minibatch(8)
    assert source.next_minibatch(8, partition=(3, 4))


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ({"order": fl.Arcs(4, version=2)}, "`read_slice`"),
        ({"filling": "cntk"}, 'got filling="cntk"; leave it out'),
        ({"truncation_length": 3}, r"got truncation_length; leave out fl\.Arcs"),
        ({"order": fl.Arcs(61)}, r"got fl\.Arcs\(61\) for 60 sequences"),
        ({"order": "arcs-1"}, r"expected order=fl\.Arcs\(count, version=1\), got 'arcs-1'"),
        ({"order": "some"}, r"expected order to be an fl\.Arcs, or one of 'feedline', 'feedline-1'"),
    ],
)
def test_what_arcs_do_not_go_with(how, what):
    with pytest.raises(ValueError, match=what):
        open_source(**how)


def test_corpora_that_cannot_have_arcs():
    """These have a special order, or unknown chunk sizes. The error has advice."""
    mixture = fl.Mixture({name: CountedCorpus([1] * 20, [10, 10]) for name in "ab"}, {"a": 1, "b": 1})
    with pytest.raises(ValueError, match=r"an order of its own for Arcs\(count=4.*fl\.convert"):
        fl.MinibatchSource(mixture, order=fl.Arcs(4))
    with pytest.raises(ValueError, match=r"sizes of its chunks before reading for Arcs\(count=4.*chunk_info"):
        fl.MinibatchSource(Unsized(), order=fl.Arcs(4))


@pytest.mark.parametrize("count", [0, -1, "4", 4.0, True, None])
def test_a_number_of_arcs_is_a_whole_number(count):
    with pytest.raises((TypeError, ValueError), match="count"):
        open_source(order=fl.Arcs(count))
