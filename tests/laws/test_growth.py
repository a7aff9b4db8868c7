"""Data that grows behind its end: a sweep ends over what it began with, in the order it had, and later ones have all.

Each sweep is compared with that of a source over its version alone, which knows of no other.
"""

from __future__ import annotations

import json
import random
from itertools import pairwise

import numpy as np
import pytest

import feedline as fl
from feedline.feed.formats.detect import FORMATS
from tests.effort import examples
from tests.laws.growing_files import FIXED, FORMS, Growth, numbers_of

SEEDS = range(examples(2))
ORDERS = [{"shuffle": fl.Window(chunks=2)}, {"shuffle": True}, {"shuffle": False}, {"shuffle": fl.Window(bytes=100)}]


def test_no_format_is_forgotten():
    assert {form.split(".")[0] for form in FORMS} | FIXED.keys() == {form.name for form in FORMATS}


def sweep_of(corpus, sweep, options):
    """The ids of a sweep, by a source that has this corpus only."""
    source = fl.MinibatchSource(corpus, max_sweeps=sweep + 1, **{"seed": 5, **options})
    source.seek(fl.Position(sweep, 0))
    return [i for planned in source.plan(1000) for i in planned.ids.tolist()]


def as_saved_before(state):
    """The state as it was saved when states did not name the number of sequences."""
    old = {key: value for key, value in state.items() if key != "sequences"}
    return old | ({"versions": [row[:2] for row in state["versions"]]} if "versions" in state else {})


def deliver(growth, state, options, chance):
    """Continue a state on any number of ranks, for some minibatches. Return the state then, and the ids."""
    ranks = chance.randint(1, 3)
    sources = [fl.MinibatchSource(growth.corpus(), seed=5, partition=(i, ranks), **options) for i in range(ranks)]
    ids = []
    for source in sources if state is not None else ():
        source.load_state_dict(state, verify=True)
    for _ in range(chance.randint(0, 4)):
        size = chance.randint(1, 9)
        for source in sources:
            minibatch = source.next_minibatch(size)
            assert numbers_of(minibatch) == minibatch.ids.tolist()
            ids += minibatch.ids.tolist()
    states = [source.state_dict() for source in sources]
    assert states == states[:1] * ranks
    for source in sources:
        source.close()
    return json.loads(json.dumps(states[0])), ids


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", SEEDS)
def test_each_sequence_comes_once_a_sweep_from_its_version_on(tmp_path, form, seed):
    chance = random.Random(f"{form} {seed}")
    growth, options = Growth(tmp_path, form), chance.choice(ORDERS)
    growth.append(chance.randint(4, 20))
    state, delivered = deliver(growth, None, options, chance)
    versions, states = [(0, 1)], [(state, len(delivered))]
    for _ in range(9):
        for _ in range(chance.choice([0, 1, 1, 2])):
            growth.append(chance.randint(1, 9))
        if chance.random() < 0.2:  # a step is taken back
            earlier, count = chance.choice(states[-3:])
            if earlier["corpus"] == state["corpus"]:
                del delivered[count:]
                state = earlier
                versions = [row for row in versions if row[0] <= state["sweep"]] or versions[:1]
        begins = state["sweep"] + (state["sequence"] > 0)
        if versions[-1][1] != len(growth.counts):
            versions = [row for row in versions if row[0] < begins] + [(begins, len(growth.counts))]
        old = as_saved_before(state) if chance.random() < 0.3 and not FORMS[form].in_place else state
        state, ids = deliver(growth, old, options, chance)
        assert state.get("versions", [[0]])[-1][0] <= state["sweep"] + 1
        delivered += ids
        states.append((state, len(delivered)))
    expected, sweep = [], 0
    while len(expected) < len(delivered):
        version = next(version for first, version in reversed(versions) if first <= sweep)
        ids = sweep_of(growth.corpus(version), sweep, options)
        assert sorted(ids) == list(range(sum(growth.counts[:version])))
        expected, sweep = expected + ids, sweep + 1
    assert delivered == expected[: len(delivered)]


@pytest.mark.parametrize("order", ["feedline-1", "feedline-2"])
@pytest.mark.parametrize("seed", range(examples(3)))
def test_chunks_and_blocks_that_end_elsewhere_change_no_order(order, seed):
    """Rows of 100 kB: ten to a block, and chunks of 25 rows, of which the last one becomes longer."""
    chance = random.Random(seed)
    counts = [chance.randint(5, 60)]

    def corpus(rows):
        return fl.ArrayDeserializer(x=np.arange(rows * 12_500.0).reshape(rows, 12_500), chunk_sequences=25)

    options = {"seed": seed, "order": order, "shuffle": fl.Window(bytes=chance.randint(1, 4) << 20)}
    state, delivered = None, []
    for _ in range(5):
        source = fl.MinibatchSource(corpus(counts[-1]), **options)
        if state is not None:
            source.load_state_dict(state, verify=True)
        left = counts[-1] + chance.randint(1, 40)
        while left > 0:
            minibatch = source.next_minibatch(7)
            assert minibatch["x"].rows[:, 0].tolist() == (12_500.0 * minibatch.ids).tolist()
            delivered += minibatch.ids.tolist()
            left -= minibatch.num_sequences
        state = source.state_dict()
        counts.append(counts[-1] + chance.randint(1, 60))
    expected = []
    versions = state["versions"]
    for (first, _, rows), (stop, *_) in pairwise([*versions, [state["sweep"] + 1]]):
        for sweep in range(first, stop):
            expected += sweep_of(corpus(rows), sweep, options)
    assert delivered == expected[: len(delivered)]


def test_a_concatenation_grows_within_its_last_part(tmp_path):
    rows, folder = Growth(tmp_path, "csv"), Growth(tmp_path, "npy folder")
    rows.append(11)
    folder.append(6)

    def source():
        return fl.MinibatchSource(fl.Concat(rows.corpus(), folder.corpus()), seed=5)

    before = source()
    first = before.next_minibatch(9).ids.tolist()
    rest = before.next_minibatch(8).ids.tolist()
    before.seek(samples=9)
    state = before.state_dict()
    folder.append(4)
    after = source()
    after.load_state_dict(state)
    assert after.next_minibatch(8).ids.tolist() == rest
    assert sorted(first + rest) == list(range(17))
    assert sorted(after.next_minibatch(21).ids.tolist()) == list(range(21))
    rows.append(1)  # in front of the folder's rows
    with pytest.raises(fl.StateError, match="Rows that were replaced or removed do not fit"):
        source().load_state_dict(state)


def test_a_state_names_its_versions(tmp_path):
    growth = Growth(tmp_path, "jsonl")
    growth.append(10)
    source = fl.MinibatchSource(growth.corpus(), seed=5, max_sweeps=3)
    source.next_minibatch(8)
    first = source.state_dict()
    assert "versions" not in first
    growth.append(5)
    source = fl.MinibatchSource(growth.corpus(), seed=5, max_sweeps=3)
    source.load_state_dict(first)
    state = source.state_dict()
    assert state["versions"] == [[0, first["corpus"], 10], [1, state["corpus"], 15]]
    changed = {"corpus": 0, "sequences": 0, "versions": 0}
    assert {**state, **changed} == {**first, **changed}
    assert source.num_sequences == 15
    ids = [i for minibatch in source.minibatches(7) for i in minibatch.ids.tolist()]
    assert len(ids) == 10 - first["sequence"] + 15 + 15
    assert source.share_done == 1.0
    again = fl.MinibatchSource(growth.corpus(), seed=5)
    again.load_state_dict(state)
    assert again.state_dict() == state


def test_counting_and_seeking_know_of_versions(tmp_path):
    growth = Growth(tmp_path, "csv")
    growth.append(10)
    source = fl.MinibatchSource(growth.corpus(), seed=5, max_sweeps=3)
    source.next_minibatch(4)
    state = source.state_dict()
    growth.append(6)
    source = fl.MinibatchSource(growth.corpus(), seed=5, max_sweeps=3)
    source.load_state_dict(state)
    assert len(source) == 1  # 6 + 16 + 16 sequences in minibatches of 256
    assert sum(planned.ids.size for planned in source.plan(5)) == 6 + 16 + 16
    assert source.share_done == 4 / (10 + 16 + 16)
    for samples, position in ((9, (0, 9)), (10, (1, 0)), (25, (1, 15)), (26, (2, 0)), (41, (2, 15))):
        source.seek(samples=samples)
        assert source.position[:3] == (*position, samples)
    with pytest.raises(IndexError, match="sequence < 10 in a sweep"):
        source.seek(fl.Position(0, 12))
    source.seek(fl.Position(1, 12))


@pytest.mark.parametrize("form", FORMS)
def test_rows_that_were_replaced_or_removed_are_an_error(tmp_path, form):
    growth = Growth(tmp_path, form)
    growth.append(10)
    growth.append(4)
    source = fl.MinibatchSource(growth.corpus(), seed=5)
    source.next_minibatch(4)
    state = source.state_dict()
    growth.append(3)
    fl.MinibatchSource(growth.corpus(), seed=5).load_state_dict(state)
    others = [([10], {}), ([10, 4, 3], {3: 903}), ([10, 4, 3], {12: 903})]
    if not FORMS[form].in_place:  # there files end elsewhere
        others += [([10, 3, 4], {}), ([9, 4, 3], {}), ([4, 10], {})]
    for number, (counts, replaced) in enumerate(others):
        other = Growth(tmp_path / str(number), form, replaced)
        for count in counts:
            other.append(count)
        with pytest.raises(
            fl.StateError, match="Rows that were replaced or removed do not fit: restore them"
        ) as caught:
            fl.MinibatchSource(other.corpus(), seed=5).load_state_dict(state)
        assert list(caught.value.saved) == ["corpus"]


def test_orders_that_cannot_grow_say_so(tmp_path):
    growth = Growth(tmp_path, "jsonl")
    growth.append(10)
    source = fl.MinibatchSource(growth.corpus(), seed=5, order=fl.Arcs(2))
    source.next_minibatch(4)
    state = source.state_dict()
    growth.append(3)
    with pytest.raises(fl.StateError, match='which needs order="feedline" over a plain corpus'):
        fl.MinibatchSource(growth.corpus(), seed=5, order=fl.Arcs(2)).load_state_dict(state)


@pytest.mark.parametrize(
    "versions",
    [5, [], [[0]], [[1, "a"]], [[0, 5]], [[0, "a"], [0, "b"]], [[0, "a"], [1, "b"]], [["0", "a"]], [[0, "a", "5"]]],
)
def test_damaged_versions_are_refused(tmp_path, versions):
    growth = Growth(tmp_path, "jsonl")
    growth.append(10)
    source = fl.MinibatchSource(growth.corpus(), seed=5)
    state = source.state_dict()
    with pytest.raises(fl.StateError, match="damaged"):
        source.load_state_dict({**state, "versions": versions})
    with pytest.raises(fl.StateError, match="names a version of the data that its first chunks are not"):
        source.load_state_dict({**state, "versions": [[0, "a"], [1, state["corpus"]]]})
    assert source.state_dict() == state


def test_a_file_without_rows_adds_nothing(tmp_path):
    growth = Growth(tmp_path, "csv")
    growth.append(9)
    source = fl.MinibatchSource(growth.corpus(), seed=5)
    source.next_minibatch(4)
    state, rest = source.state_dict(), [source.next_minibatch(5).ids.tolist() for _ in range(3)]
    growth.append(0)
    again = fl.MinibatchSource(growth.corpus(), seed=5)
    again.load_state_dict(state)
    assert sorted(again.next_minibatch(5).ids.tolist()) == sorted(rest[0])
    growth.append(3)
    last = fl.MinibatchSource(growth.corpus(), seed=5)
    last.load_state_dict(again.state_dict())
    assert last.next_minibatch(99).num_sequences > 0


@pytest.mark.parametrize("grows_last", [False, True])
def test_a_run_over_growing_data_is_audited(tmp_path, grows_last):
    from feedline.feed.audit import LoggedFeed, audit_steps

    growth = Growth(tmp_path, "jsonl")
    growth.append(9)
    records, delivered, state = [], [], None
    for run in range(3):
        source = fl.MinibatchSource(growth.corpus(), seed=5)
        if state is not None:
            source.load_state_dict(state)
        for _ in range(12):
            records.append(LoggedFeed(len(delivered), 5, source.state_dict()))
            delivered.append(source.next_minibatch(5).ids.tolist())
        state = source.state_dict()
        if grows_last or run < 2:
            growth.append(4)
    records.append(LoggedFeed(len(delivered), 5, state))
    for chosen in (records, records[::7] + records[-1:], [records[0], records[-1]]):
        steps = list(audit_steps(growth.corpus(), chosen))
        assert [step.ids.tolist() for step in steps] == delivered[chosen[0].step : chosen[-1].step]
