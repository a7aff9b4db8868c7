"""Laws of mixtures: each place has the sequence of the specification, whatever happens before it."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline import _native
from feedline.feed.composed.mixture import PART
from feedline.feed.transforms import Transform, Transformed
from tests.effort import examples
from tests.oracles import mixture as slow

SEED = 11


@st.composite
def mixtures(draw):
    """Sizes of the parts, quotas of stages at ascending places, and how a mixture ends."""
    count = draw(st.integers(1, 5))
    sizes = draw(st.lists(st.integers(1, 90), min_size=count, max_size=count))
    quotas = st.lists(st.integers(0, 6), min_size=count, max_size=count).filter(any)
    starts = [0, *sorted(draw(st.sets(st.integers(1, 400), max_size=3)))]
    stages = [(start, draw(quotas)) for start in starts]
    when_empty = draw(st.sampled_from(["repeat", "stop", "drop"]))
    sweeps = None if when_empty == "repeat" else draw(st.sampled_from([1, 2, 3]))
    block = draw(st.sampled_from([1, 2, 7, 64, 256]))
    return sizes, stages, when_empty, sweeps, block


def corpora(sizes, kind="array"):
    """One corpus for each size. Sample i of corpus k is 1000 k + i."""
    parts = {}
    for k, size in enumerate(sizes):
        values = np.arange(size, dtype=np.int64) + 1000 * k
        parts[f"c{k}"] = fl.ArrayDeserializer(x=values) if kind == "array" else Chunked(values)
    return parts


class Chunked(fl.Deserializer):
    """A corpus whose chunks are read, so that it is shuffled in windows."""

    def __init__(self, values, size=7):
        self.schema = fl.Schema({"x": fl.Stream((), "int64")})
        self.pieces = [values[a : a + size] for a in range(0, len(values), size)]
        self.reads = 0

    def chunks(self):
        return [fl.ChunkInfo(len(piece), len(piece), piece.nbytes) for piece in self.pieces]

    def read(self, chunk):
        self.reads += 1
        return fl.Chunk(self.schema, {"x": fl.Value.from_dense(self.pieces[chunk])})

    def digest(self):
        return "00"


def weights_of(quotas):
    return {f"c{k}": quota for k, quota in enumerate(quotas)}


def mixed(sizes, stages, when_empty, sweeps, block, kind="array"):
    return fl.Mixture(
        corpora(sizes, kind),
        weights_of(stages[0][1]),
        stages=[(start, weights_of(quotas)) for start, quotas in stages[1:]],
        when_empty=when_empty,
        max_sweeps=sweeps,
        block=block,
    )


def ending(world):
    """The option of a source that ends with the mixture, if that has an end."""
    return {} if world[2] == "repeat" else {"max_sweeps": 1}


def parts_in_order(sizes, items, kind, window):
    """The sequences that each part delivers by itself, with its own seed and share of the window."""
    orders = []
    for k, part in enumerate(corpora(sizes, kind).values()):
        if not items[k]:
            orders.append([])
            continue
        seed = _native.hash_key([SEED, k, PART])
        shuffle = True if window is None else fl.Window(chunks=max(1, window[k]))
        with fl.MinibatchSource(part, seed=seed, max_samples=items[k], shuffle=shuffle) as source:
            orders.append([x for m in source.minibatches(500) for x in m["x"].rows.tolist()])
    return orders


def expected(world, most, kind="array", window=None):
    """The samples of a mixture, computed by the slow oracle."""
    sizes, stages, when_empty, sweeps, block = world
    limits = [None if sweeps is None else sweeps * size for size in sizes]
    row = slow.places(SEED, stages, limits, dropping=when_empty == "drop", block=block, most=most)
    given_items = [sum(k == source for source, _ in row) for k in range(len(sizes))]
    parts = parts_in_order(sizes, given_items, kind, window)
    return [parts[k][item] for k, item in row]


def delivered(source, sizes, most):
    """The next ``most`` samples, in minibatches of these sizes in turn."""
    out = []
    while len(out) < most:
        for size in sizes:
            minibatch = source.next_minibatch(min(size, most - len(out)) or 1)
            if not minibatch:
                return out
            assert (minibatch["x"].rows // 1000 == minibatch.source).all()
            out += minibatch["x"].rows.tolist()
            if len(out) >= most:
                break
    return out


@given(mixtures(), st.lists(st.integers(1, 300), min_size=1, max_size=4))
def test_places_match_the_specification(world, batches):
    most = 600
    with fl.MinibatchSource(mixed(*world), seed=SEED, **ending(world)) as source:
        assert delivered(source, batches, most) == expected(world, most)


@given(mixtures(), st.integers(2, 12), st.data())
def test_windows_of_the_parts_are_their_own(world, chunks, data):
    """With chunks that have to be read, each part is shuffled in its own windows, and few chunks are in memory."""
    _sizes, stages, _when_empty, _, _ = world
    most = 400
    mixture = mixed(*world, kind="read")
    first = stages[0][1]
    first = [quota or min(q for q in first if q) for quota in first]
    window = [chunks * quota // sum(first) for quota in first]
    with fl.MinibatchSource(mixture, seed=SEED, shuffle=fl.Window(chunks=chunks), **ending(world)) as source:
        order = delivered(source, data.draw(st.lists(st.integers(1, 200), min_size=1, max_size=3)), most)
    assert order == expected(world, most, "read", window)


@given(mixtures(), st.data())
def test_from_any_point_under_any_sizes_and_ranks(world, data):
    """Restored from JSON again and again, with other batch sizes and world sizes, into another source."""
    kind = data.draw(st.sampled_from(["array", "read"]))
    most = 250
    with fl.MinibatchSource(mixed(*world, kind=kind), seed=SEED, **ending(world)) as source:
        uninterrupted = delivered(source, [64], most)
    out, state = [], None
    while len(out) < len(uninterrupted):
        with fl.MinibatchSource(mixed(*world, kind=kind), seed=SEED, **ending(world)) as source:
            if state is not None:
                source.load_state_dict(json.loads(state), verify=data.draw(st.booleans()))
            for _ in range(data.draw(st.integers(1, 4))):
                size, count = data.draw(st.integers(30, 150)), data.draw(st.integers(1, 3))
                state = source.state_dict()
                parts = []
                for rank in range(count):
                    source.load_state_dict(state)
                    minibatch = source.next_minibatch(size, (rank, count))
                    parts += minibatch["x"].rows.tolist() if minibatch else []
                out += parts
                state = json.dumps(source.state_dict())
    assert out[: len(uninterrupted)] == uninterrupted


@given(mixtures(), st.data())
def test_weights_changed_in_the_run_are_a_stage_that_the_state_carries(world, data):
    sizes, stages, when_empty, sweeps, block = world
    most = 500
    quotas = st.lists(st.integers(0, 6), min_size=len(sizes), max_size=len(sizes)).filter(any)
    changes = []
    out, state = [], None
    while len(out) < most:
        with fl.MinibatchSource(mixed(*world), seed=SEED, **ending(world)) as source:
            if state is not None:
                source.load_state_dict(json.loads(state))
            if data.draw(st.booleans()):
                new = data.draw(quotas)
                try:
                    changes.append((source.change_weights(weights_of(new)), new))
                except ValueError:  # it has ended, or would end at this place
                    pass
            minibatch = source.next_minibatch(data.draw(st.integers(40, 200)))
            if not minibatch:
                break
            out += minibatch["x"].rows.tolist()
            state = json.dumps(source.state_dict())
    now = dict(stages) | dict(changes)
    assert out[:most] == expected((sizes, sorted(now.items()), when_empty, sweeps, block), min(most, len(out)))


@given(mixtures(), st.integers(1, 200), st.data())
def test_stages_that_have_not_begun_may_be_replaced(world, place, data):
    """The places before the new stage and the windows of the parts stay, and only places after it change. Only a stage
    that would cut a block that has begun is refused."""
    sizes, stages, when_empty, sweeps, block = world
    kind, chunks = data.draw(st.sampled_from(["array", "read"])), 6
    options = {} if kind == "array" else {"shuffle": fl.Window(chunks=chunks)}
    quotas = st.lists(st.integers(0, 6), min_size=len(sizes), max_size=len(sizes)).filter(any)
    with fl.MinibatchSource(mixed(*world, kind=kind), seed=SEED, **options, **ending(world)) as source:
        out = delivered(source, [place], place)
        state, ended = json.dumps(source.state_dict()), source.position.sweep > 0
    reached = [stage for stage in stages if stage[0] < max(len(out), 1)]
    starts = st.integers(1, 90) | st.integers(1, 9).map(lambda n: n * block - (len(out) - reached[-1][0]) % block)
    later = [
        (len(out) + more, data.draw(quotas)) for more in sorted(data.draw(st.sets(starts, max_size=2))) if more > 0
    ]
    world = sizes, [*reached, *later], when_empty, sweeps, block
    if ended:
        return
    with fl.MinibatchSource(mixed(*world, kind=kind), seed=SEED, **options, **ending(world)) as source:
        try:
            source.load_state_dict(json.loads(state))
        except fl.StateError:
            changed_starts = {start for start, _ in stages} ^ {start for start, _ in world[1]}
            assert min(changed_starts) < len(out) + block
            return
        out += delivered(source, [50], 200)
    first = [quota or min(q for q in stages[0][1] if q) for quota in stages[0][1]]
    window = None if kind == "array" else [chunks * quota // sum(first) for quota in first]
    assert out == expected(world, len(out), kind, window)


@given(st.lists(st.integers(0, 9), min_size=3, max_size=3).filter(any), st.integers(0, 500), st.integers(1, 20))
def test_a_ramp_leads_from_weights_to_weights(after, start, steps):
    before = [3, 1, 0]
    stages = fl.Mixture.ramp((start, weights_of(before)), (start + 200, weights_of(after)), steps=steps)
    assert [place for place, _ in stages] == [start + 200 * i // steps for i in range(1, steps + 1)]
    for i, (_, weights) in enumerate(stages, 1):
        assert sum(weights.values()) == 1
        for k in range(3):
            a, b = Fraction(before[k], 4), Fraction(after[k], sum(after))
            assert weights[f"c{k}"] == a * (steps - i) / steps + b * i / steps
    mixture = fl.Mixture(corpora([50, 40, 30]), weights_of(before), stages=stages)
    with fl.MinibatchSource(mixture, seed=SEED, max_samples=start + 2000) as source:
        counts = sum(np.bincount(m.source, minlength=3) for m in source.minibatches(100))
        assert counts.sum() == start + 2000
    with pytest.raises(ValueError, match="at least 20 places"):
        fl.Mixture.ramp((0, {"a": 1}), (19, {"b": 1}), steps=20)
    with pytest.raises(ValueError, match="weight"):
        fl.Mixture.ramp((0, {"a": 0}), (100, {"b": 1}))


@settings(max_examples=examples(12))  # each one starts a hundred times from a state
@given(mixtures(), st.integers(1, 9), st.lists(st.integers(3, 40), min_size=2, max_size=4), st.data())
def test_batches_of_one_source(world, batch, sizes, data):
    """Places of the specification are batches. A minibatch is a batch, or a piece if a smaller size is requested."""
    counts, stages, when_empty, sweeps, block = world
    counts = [max(size, batch) for size in counts]
    kind = data.draw(st.sampled_from(["array", "read"]))
    limits = [None if sweeps is None else sweeps * size // batch for size in counts]
    row = slow.places(SEED, stages, limits, dropping=when_empty == "drop", block=block, most=60)
    row = row[: 120 // batch]
    items = [batch * sum(k == source for source, _ in row) for k in range(len(counts))]
    first = [quota or min(q for q in stages[0][1] if q) for quota in stages[0][1]]
    window = None if kind == "array" else [6 * quota // sum(first) for quota in first]
    parts = parts_in_order(counts, items, kind, window)
    batches = [(k, parts[k][batch * item : batch * item + batch]) for k, item in row]

    def opened():
        mixture = fl.Mixture(
            corpora(counts, kind),
            weights_of(stages[0][1]),
            stages=[(start * batch, weights_of(quotas)) for start, quotas in stages[1:]],
            when_empty=when_empty,
            max_sweeps=sweeps,
            batches="one source",
            batch_size=batch,
            block=block,
        )
        options = {} if kind == "array" else {"shuffle": fl.Window(chunks=6)}
        return fl.MinibatchSource(mixture, seed=SEED, **options, **ending(world))

    with opened() as source:
        for k, expected_batch in batches:
            minibatch = source.next_minibatch(batch + data.draw(st.integers(0, 50)))
            assert minibatch["x"].rows.tolist() == expected_batch
            assert set(minibatch.source) == {k}
        if len(row) < min(60, 120 // batch):
            assert not source.next_minibatch(1)
    whole, out, state = [x for _, some in batches for x in some], [], None
    while len(out) < len(whole):
        with opened() as source:
            if state is not None:
                source.load_state_dict(json.loads(state))
            for size in sizes:
                begun, parts = source.state_dict(), []
                for rank in range(2):
                    source.load_state_dict(begun)
                    minibatch = source.next_minibatch(size, (rank, 2))
                    parts += minibatch["x"].rows.tolist() if minibatch else []
                assert len(out) // batch == (len(out) + len(parts) - 1) // batch
                out += parts
                if len(out) >= len(whole):
                    break
            state = json.dumps(source.state_dict())
    assert out[: len(whole)] == whole


def test_batches_of_one_source_are_declared_whole():
    parts = corpora([9, 5])
    for options, message in [
        ({"batches": "one source"}, "expected batch_size with"),
        ({"batch_size": 4}, "only, got"),
        ({"batches": "each"}, "one of 'mixed', 'one source'"),
        ({"batches": "one source", "batch_size": 0}, "at least 1"),
        ({"batches": "one source", "batch_size": 6, "when_empty": "stop"}, "expected at least 6 sequences, a batch"),
        ({"batches": "one source", "batch_size": 4, "stages": [(6, {"c0": 1})]}, "at multiples of 4"),
    ]:
        with pytest.raises(ValueError, match=message):
            fl.Mixture(parts, **options)
    mixture = fl.Mixture(parts, {"c0": 1, "c1": 1}, batches="one source", batch_size=4, block=2)
    with pytest.raises(ValueError, match="decide where minibatches end"):
        fl.Mixture({"inner": mixture})
    with fl.MinibatchSource(mixture, seed=SEED) as source:
        source.next_minibatch(4)
        with pytest.raises(ValueError, match="at multiples of 4"):
            source.change_weights({"c0": 1}, at=13)
        assert source.change_weights({"c0": 1}) == 8
        state = source.state_dict()
        state["stages"][-1][0] = 9
        with pytest.raises(fl.StateError, match="at multiples of 4"):
            source.load_state_dict(state)
        sources = [source.next_minibatch(4).source.tolist() for _ in range(4)]
    assert sources[1:] == [[0] * 4] * 3
    loader = fl.DataLoader(mixture, batch_size=None, shuffle=True, seed=SEED)
    with fl.MinibatchSource(mixture, seed=SEED, max_samples=40) as source:
        expected = [minibatch["x"].rows.tolist() for minibatch in source.minibatches(4)]
    assert [batch["x"].tolist() for batch, _ in zip(loader, expected, strict=False)] == expected


BAD_STAGES = [None, [], "x", [[0, ["1"]]], [[0, ["1", "1"], 0]], [[1, ["1", "1"], False]], [[0, ["1", "x"], False]]]
BAD_STAGES += [[[0, ["0", "0"], False]], [[0, ["1", "-1"], False]], [[0, ["1e999999999", "1"], False]]]
BAD_STAGES += [[[0, ["1/0", "1"], False]], [[0, ["1"], False]], [[0, ["1", "1"], False], [2**70, ["1", "1"], False]]]
BAD_STAGES += [[[0, [1, 1], False]], [[0, ["1", "1"], False], [0, ["1", "1"], False]], [[True, ["1", "1"], False]]]


@pytest.mark.parametrize("stages", BAD_STAGES, ids=lambda stages: json.dumps(stages)[:40])
def test_a_state_with_damaged_stages_is_refused(stages):
    with fl.MinibatchSource(fl.Mixture(corpora([9, 5]), {"c0": 1, "c1": 1}), seed=SEED) as source:
        source.next_minibatch(4)
        state = source.state_dict()
        with pytest.raises(fl.StateError):
            source.load_state_dict({**state, "stages": stages})
        with pytest.raises(fl.StateError):
            source.load_state_dict({**state, "windows": ["1/3", "2/3"]})
        with pytest.raises(fl.StateError, match="got none"):
            source.load_state_dict({key: value for key, value in state.items() if key != "stages"})
        assert source.state_dict() == state


def test_a_state_under_other_first_weights_is_refused():
    with fl.MinibatchSource(fl.Mixture(corpora([9, 5]), {"c0": 1, "c1": 1}), seed=SEED) as source:
        source.change_weights({"c0": 1, "c1": 3})
        source.next_minibatch(4)
        state = source.state_dict()
    other = fl.MinibatchSource(fl.Mixture(corpora([9, 5]), {"c0": 1, "c1": 2}), seed=SEED)
    with other, pytest.raises(fl.StateError, match="follow the first weights"):
        other.load_state_dict(state)


@pytest.mark.parametrize("place", [2**62 + 1, 2**70])
def test_places_beyond_what_can_be_counted_are_refused(place):
    with pytest.raises(ValueError, match=r"2\*\*62"):
        fl.Mixture(corpora([9, 5]), {"c0": 1}, stages=[(place, {"c1": 1})])
    with (
        fl.MinibatchSource(fl.Mixture(corpora([9, 5])), seed=SEED) as source,
        pytest.raises(ValueError, match=r"2\*\*62"),
    ):
        source.change_weights({"c0": 1}, at=place)


@pytest.mark.parametrize("block", [1, 256])
def test_every_prefix_of_blocks_is_within_the_bound(block):
    quotas = [1, 2, 3, 10, 48, 193]
    mixture = fl.Mixture(corpora([40] * 6), weights_of(quotas), block=block)
    with fl.MinibatchSource(mixture, seed=SEED) as source:
        sources = np.concatenate([source.next_minibatch(1000).source for _ in range(60)])
    total, two = sum(quotas), 2 * len(quotas) - 2
    n = np.arange(block, len(sources) + 1, block)
    for k, quota in enumerate(quotas):
        counts = np.cumsum(sources == k)[n - 1]
        assert (np.abs(counts * total - n * quota) * two <= total * (two - 1)).all()


def test_no_sequence_comes_twice_before_all_came_once():
    sizes = [100, 37, 5]
    with fl.MinibatchSource(fl.Mixture(corpora(sizes), {"c0": 5, "c1": 3, "c2": 2}), seed=SEED) as source:
        rows = np.concatenate([source.next_minibatch(1000)["x"].rows for _ in range(5)])
    for k, size in enumerate(sizes):
        mine = rows[rows // 1000 == k] - 1000 * k
        for a in range(0, len(mine) - size + 1, size):
            assert sorted(mine[a : a + size]) == list(range(size))


class Recording(Transform):
    """Records the keys of the draws of transforms."""

    name = "recording"

    def __init__(self):
        self.keys = []

    def schema(self, before):
        return before

    def run_all(self, before, values, keys):
        self.keys += zip(keys.ordinals.tolist(), np.asarray(keys.sweeps).tolist(), strict=True)
        return Transformed(dict(values), seconds=0.0)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", ["array", "read"])
def test_draws_are_keyed_by_the_sweep_of_the_corpus(kind, nested):
    """A sequence that comes for the m-th time is in sweep m of its corpus, however deep the corpus is nested."""
    parts = corpora([20, 33, 7], kind)
    mixture = fl.Mixture(parts, {"c0": 5, "c1": 3, "c2": 2}, block=8)
    if nested:
        mixture = fl.Mixture(
            {"inner": mixture, "other": fl.ArrayDeserializer(x=np.arange(11))}, {"inner": 2, "other": 1}
        )
    recording, ends = Recording(), []
    shuffle = fl.Window(chunks=6) if kind == "read" else True
    with fl.MinibatchSource(mixture, seed=SEED, transforms=[recording], shuffle=shuffle) as source:
        for _ in range(20):
            ends += source.next_minibatch(25).sweep_ends
    times = dict.fromkeys(range(100), 0)
    for ordinal, sweep in recording.keys:
        assert sweep == times[ordinal]
        times[ordinal] += 1
    assert len(recording.keys) >= 500
    if not nested:
        for name, first, size in (("c0", 0, 20), ("c1", 20, 33), ("c2", 53, 7)):
            delivered = sum(times[i] for i in range(first, first + size))
            assert ends.count(name) == delivered // size


@pytest.mark.parametrize("kind", ["array", "read"])
def test_draws_of_workers_that_fill_their_own_minibatches_equal_one_workers(kind):
    """Each takes a part of every segment, in which sequences of the short corpora occur in several sweeps."""
    mixture = fl.Mixture(corpora([20, 33, 7], kind), {"c0": 5, "c1": 3, "c2": 2}, block=8)

    def drawn(count):
        recording = Recording()
        for rank in range(count):
            how = {"filling": "cntk", "partition": (rank, count), "max_samples": 200, "transforms": [recording]}
            with fl.MinibatchSource(mixture, seed=SEED, **how) as source:
                assert list(source.minibatches(20))
        return sorted(recording.keys)

    assert drawn(2) == drawn(1)


@given(mixtures(), st.integers(1, 40), st.integers(0, 1), st.integers(1, 700))
def test_stats_have_delivered_and_declared_weights(world, size, rank, most):
    """`stats` counts the sequences of all minibatches, over all ranks and sweeps, on any rank, also after a seek."""
    sizes, stages, when_empty, sweeps, block = world
    limits = [None if sweeps is None else sweeps * size for size in sizes]
    ends = len(slow.places(SEED, stages, limits, dropping=when_empty == "drop", block=block, most=2000))
    unpartitioned = fl.MinibatchSource(mixed(*world), seed=SEED)
    source = fl.MinibatchSource(mixed(*world), seed=SEED, partition=(rank, 2))
    counts, declared = np.zeros(len(sizes), np.int64), [Fraction(0)] * len(sizes)
    with unpartitioned, source:
        while counts.sum() < most:
            place = unpartitioned.position.sequence
            minibatch = unpartitioned.next_minibatch(size)
            counts += np.bincount(minibatch.source, minlength=len(sizes))
            source.next_minibatch(size)
            for n in range(place, place + minibatch.num_sequences):
                quotas = next(quotas for start, quotas in reversed(stages) if start <= n % ends)
                declared = [total + Fraction(q, sum(quotas)) for total, q in zip(declared, quotas, strict=True)]
        total = int(counts.sum())
        for feed in (source, unpartitioned):
            corpus_stats = feed.stats().corpora
            assert [share.sequences for share in corpus_stats.values()] == counts.tolist()
            assert [share.delivered for share in corpus_stats.values()] == [count / total for count in counts.tolist()]
            assert [share.declared for share in corpus_stats.values()] == [float(share / total) for share in declared]
        assert list(corpus_stats) == list(source.corpus.names)
        assert json.loads(json.dumps(source.stats().to_json()))["corpora"].keys() == corpus_stats.keys()
