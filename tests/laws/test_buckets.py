"""Laws of `Bucketed`: batches agree with the specification, for any sizes, ranks and restarts."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline as fl
from feedline.feed.composed.bucket_boundaries import count_lengths, least_padding
from tests.oracles import buckets as slow

SEED = 5
ALL = 1 << 30  # samples: more than any batch has


class Ragged(fl.Deserializer):
    """Sequences of these lengths in chunks of seven, read from a corpus. Sample i of sequence k is 100 k + i."""

    def __init__(self, lengths, name="data"):
        self.schema, self.name = fl.Schema({"x": fl.Stream((), "int64")}), name
        self.all = np.array(lengths, np.int64)
        self.pieces = [(a, self.all[a : a + 7]) for a in range(0, len(lengths), 7)]

    def chunks(self):
        return [fl.ChunkInfo(len(piece), int(piece.sum()), 8 * int(piece.sum())) for _, piece in self.pieces]

    def lengths(self, ordinals):
        return self.all[ordinals]

    def read(self, chunk):
        first, piece = self.pieces[chunk]
        rows = [np.arange(n) + 100 * (first + k) for k, n in enumerate(piece.tolist())]
        return fl.Chunk(self.schema, {"x": fl.Value.from_sequences(rows, dtype="int64")})

    def digest(self):
        return self.name


def arrays(lengths):
    """The same in memory."""
    rows = [np.arange(n) + 100 * k for k, n in enumerate(lengths)]
    return fl.ArrayDeserializer(x=fl.Value.from_sequences(rows, dtype="int64"))


@st.composite
def worlds(draw):
    """Lengths, boundaries, budget, maximum number, and chunks of a window, None: all in memory."""
    count = draw(st.sampled_from([1, 5, 14, 40, 80]))
    lengths = draw(st.lists(st.integers(0, 40), min_size=count, max_size=count))
    boundaries = sorted(draw(st.sets(st.integers(1, 45), min_size=1, max_size=5)))
    return (
        *(lengths, boundaries, draw(st.integers(1, 150)), draw(st.none() | st.integers(1, 6))),
        draw(st.none() | st.integers(1, 5)),
    )


def opened(world, **options):
    """A source of a world."""
    lengths, boundaries, budget, most, chunks = world
    if chunks is None:
        inner, shuffle = arrays(lengths), True
    else:
        inner, shuffle = Ragged(lengths), fl.Window(chunks=chunks)
    corpus = fl.Bucketed(inner, boundaries, budget=budget, most=most)
    return fl.MinibatchSource(corpus, **{"seed": SEED, "shuffle": shuffle, "max_sweeps": 2, **options})


def windows(world, sweeps=2):
    """Ordinals window by window, from the order of the corpus by itself. A window ends with its last chunk."""
    lengths, *_, chunks = world
    corpus = arrays(lengths) if chunks is None else Ragged(lengths)
    shuffle = True if chunks is None else fl.Window(chunks=chunks)
    with fl.MinibatchSource(corpus, seed=SEED, shuffle=shuffle, max_sweeps=sweeps) as source:
        row = np.concatenate([planned.ids for planned in source.plan(ALL)]).tolist()
    for sweep in range(sweeps):
        remaining, number = row[sweep * len(lengths) : (sweep + 1) * len(lengths)], 0
        while remaining:
            count = len(remaining)
            if chunks is not None:
                window_chunks = list(dict.fromkeys(ordinal // 7 for ordinal in remaining))[:chunks]
                count = sum(len(lengths[7 * chunk : 7 * chunk + 7]) for chunk in window_chunks)
            yield sweep, number, remaining[:count]
            remaining, number = remaining[count:], number + 1


def expected(world, sweeps=2):
    """Batches of ordinals."""
    lengths, boundaries, budget, most, _ = world
    for sweep, number, ordinals in windows(world, sweeps):
        key = slow.key_of(SEED, sweep, number)
        for batch in slow.batches([lengths[i] for i in ordinals], boundaries, budget, most, key):
            yield [ordinals[place] for place in batch]


@given(worlds())
def test_batches_match_the_specification(world):
    """Batches without a sample are minibatches, too."""
    lengths = world[0]
    with opened(world) as source:
        batches = [minibatch.ids.tolist() for minibatch in source.minibatches(ALL)]
    assert batches == list(expected(world))
    with opened(world) as source:
        for minibatch, batch in zip(source.minibatches(ALL), expected(world), strict=True):
            rows = np.concatenate([np.arange(lengths[i]) + 100 * i for i in batch] or [np.empty(0)])
            assert minibatch["x"].rows.tolist() == rows.tolist()


@given(worlds(), st.integers(0, 2**64 - 1))
def test_a_batch_is_of_one_bucket_and_within_the_budget_and_their_number_is_fixed(world, seed):
    lengths, boundaries, budget, most, chunks = world
    counts = []
    for order_seed in (SEED, seed):
        with opened(world, seed=order_seed, max_sweeps=1) as source:
            batches = [minibatch.ids.tolist() for minibatch in source.minibatches(ALL)]
        assert sorted(itertools.chain.from_iterable(batches)) == list(range(len(lengths)))
        for batch in batches:
            sizes = [lengths[i] for i in batch]
            assert len({int(np.searchsorted(boundaries, n)) for n in sizes}) == 1
            assert len(batch) == 1 or len(batch) * max(sizes) <= budget
            assert most is None or len(batch) <= most
        counts.append(len(batches))
    if chunks is None:
        assert counts[0] == counts[1]


@given(worlds(), st.lists(st.integers(1, 200), min_size=1, max_size=4), st.data())
def test_from_any_point_under_any_sizes_and_ranks(world, sizes, data):
    expected_ids = [i for batch in expected(world) for i in batch]
    borders = set(np.cumsum([len(batch) for batch in expected(world)]).tolist())
    out, state = [], None
    while len(out) < len(expected_ids):
        with opened(world) as source:
            if state is not None:
                source.load_state_dict(json.loads(state))
            for size in sizes[: data.draw(st.integers(1, len(sizes)))]:
                begun, count = source.state_dict(), data.draw(st.integers(1, 3))
                place = len(out)
                for rank in range(count):
                    source.load_state_dict(begun)
                    out += source.next_minibatch(size, (rank, count)).ids.tolist()
                assert not any(place < border < len(out) for border in borders)
            state = json.dumps(source.state_dict())
    assert out == expected_ids


@given(worlds(), st.integers(1, 60), st.integers(1, 400), st.integers(0, 300))
def test_lengths_limits_and_plans(world, size, samples, label):
    """`num_minibatches` and `plan` agree with the delivered minibatches. A limit in the middle of a batch ends it."""
    with opened(world, max_sweeps=None, max_samples=samples + label) as source:
        if sum(world[0]) == 0:
            return
        planned = [minibatch.ids.tolist() for minibatch in source.plan(size)]
        count = source.num_minibatches(size) if hasattr(source, "num_minibatches") else len(planned)
        batches = [minibatch.ids.tolist() for minibatch in source.minibatches(size)]
    assert planned == batches
    assert count == len(batches)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=60), st.integers(1, 5))
def test_boundaries_leave_the_least_padding(lengths, buckets):
    different, counts = count_lengths([np.array(lengths[::2], np.int64), np.array(lengths[1::2], np.int64)])
    assert np.repeat(different, counts).tolist() == sorted(lengths)
    result = least_padding(different, counts, buckets)

    def padded(boundaries):
        return sum(min(b for b in boundaries if b >= n) for n in lengths)

    assert len(result) <= buckets
    assert result == sorted(set(result))
    assert result[-1] == max(lengths)
    inner = sorted(set(lengths))[:-1]
    if len(inner) <= 12:
        every = itertools.chain.from_iterable(itertools.combinations(inner, k) for k in range(buckets))
        assert padded(result) == min(padded([*some, max(lengths)]) for some in every)


def test_many_different_lengths():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 100_000, 20_000)
    result = least_padding(*count_lengths([lengths]), 8)
    even = np.quantile(lengths, np.arange(1, 9) / 8, method="higher").astype(np.int64)

    def padded(boundaries):
        return int(np.asarray(boundaries)[np.searchsorted(boundaries, lengths)].sum())

    assert len(result) == 8
    assert padded(result) < padded(even)


def test_a_number_of_buckets():
    corpus = fl.Bucketed(arrays([3, 3, 4, 9, 10, 10]), 2, budget=20)
    assert corpus.boundaries == (4, 10)
    with fl.MinibatchSource(corpus, seed=1, max_sweeps=1) as source:
        assert sorted(len(minibatch.ids) for minibatch in source.minibatches(ALL)) == [1, 2, 3]


def test_ranks_take_parts_of_one_bucket():
    lengths = [5, 50] * 200
    corpus = fl.Bucketed(arrays(lengths), [5, 50], budget=400)
    with fl.MinibatchSource(corpus, seed=1, max_sweeps=1) as source:
        state = source.state_dict()
        while True:
            ranks = []
            for rank in range(4):
                source.load_state_dict(state)
                minibatch = source.next_minibatch(400, (rank, 4))
                ranks.append([lengths[i] for i in minibatch.ids])
            if not minibatch:
                break
            state = source.state_dict()
            assert len(set(itertools.chain.from_iterable(ranks))) == 1
            assert len({len(rank) for rank in ranks}) == 1


def test_without_shuffle_batches_come_by_their_first_sequence():
    corpus = fl.Bucketed(arrays([9, 1, 1, 9, 1, 9]), [1, 9], budget=18)
    with fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1) as source:
        batches = [minibatch.ids.tolist() for minibatch in source.minibatches(ALL)]
    assert batches == [[0, 3], [1, 2, 4], [5]]


def mixture(weights=(3, 1), **options):
    """A mixture of two corpora."""
    parts = {"a": Ragged([2, 9] * 40, "a"), "b": Ragged([3, 8] * 40, "b")}
    return fl.Mixture(parts, dict(zip(parts, weights, strict=True)), block=16, **options)


def mixed(*weights, **options):
    """The same in buckets."""
    return fl.Bucketed(mixture(*weights, **options), [4, 9], budget=36)


@pytest.mark.parametrize("options", [{}, {"when_empty": "stop"}, {"stages": [(100, {"a": 1, "b": 1})]}])
def test_a_mixture_in_buckets(options):
    limit = {"max_sweeps": 2} if options.get("when_empty") else {"max_samples": 1500}
    window = fl.Window(chunks=8)
    with fl.MinibatchSource(mixture(**options), seed=SEED, shuffle=window, **limit) as source:
        plain = [(m.ids.tolist(), m.source.tolist(), m.sweep_ends) for m in source.minibatches(1)]
    with fl.MinibatchSource(mixed(**options), seed=SEED, shuffle=window, **limit) as source:
        minibatches = list(source.minibatches(36))
    for minibatch in minibatches:
        assert ((minibatch["x"].lengths <= 4).all()) or ((minibatch["x"].lengths > 4).all())
        assert minibatch.source.tolist() == (minibatch.ids >= 80).astype(int).tolist()
    out, whole = ([i for ids, *_ in row for i in ids] for row in (((m.ids.tolist(),) for m in minibatches), plain))
    if options.get("when_empty"):
        assert sorted(out) == sorted(whole)
        assert sum((m.sweep_ends for m in minibatches), ()) == sum((ends for *_, ends in plain), ())
    states = []
    with fl.MinibatchSource(mixed(**options), seed=SEED, shuffle=window, **limit) as source:
        for _ in range(5):
            states.append(json.dumps(source.state_dict()))
            source.next_minibatch(36)
    for k, state in enumerate(states):
        with fl.MinibatchSource(mixed(**options), seed=SEED, shuffle=window, **limit) as source:
            source.load_state_dict(json.loads(state))
            assert source.next_minibatch(36).ids.tolist() == minibatches[k].ids.tolist()
    other = fl.MinibatchSource(mixed((2, 1), **options), seed=SEED, shuffle=window, **limit)
    with other, pytest.raises(fl.StateError, match="weights"):
        other.load_state_dict(json.loads(states[1]))


def test_what_is_refused():
    corpus = arrays([3, 4])
    bucketed = fl.Bucketed(corpus, [4], budget=8)
    for arguments, message in [
        (([4, 4],), "ascending"),
        (([],), "ascending"),
        (([0, 4],), "at least 1"),
        ((0,), "at least 1"),
        (([2**62],), "below 2"),
    ]:
        with pytest.raises(ValueError, match=message):
            fl.Bucketed(corpus, *arguments, budget=8)
    with pytest.raises(TypeError, match="boundaries"):
        fl.Bucketed(corpus, "12", budget=8)
    for wrapped in (lambda: fl.Mixture({"a": bucketed}), lambda: fl.Bucketed(bucketed, [4], budget=8)):
        with pytest.raises(ValueError, match="decide where minibatches end"):
            wrapped()
    for options in ({"filling": "cntk"}, {"truncation_length": 2}):
        with pytest.raises(ValueError, match="expected whole sequences of global minibatches"):
            fl.MinibatchSource(bucketed, **options)
    with fl.MinibatchSource(bucketed, max_samples=100) as source, pytest.raises(TypeError, match="expected a Mixture"):
        source.change_weights({"a": 1})


def test_a_state_under_other_buckets_is_refused():
    with fl.MinibatchSource(fl.Bucketed(arrays([3, 4, 9]), [4, 9], budget=8)) as source:
        state = source.state_dict()
    for boundaries, options in [([3, 9], {"budget": 8}), ([4, 9], {"budget": 9}), ([4, 9], {"budget": 8, "most": 1})]:
        other = fl.MinibatchSource(fl.Bucketed(arrays([3, 4, 9]), boundaries, **options))
        with other, pytest.raises(fl.StateError, match="other data"):
            other.load_state_dict(state)


@pytest.mark.parametrize("options", [{"batch_size": None}, {"batch_sampler": fl.BatchByLength(60)}])
def test_batches_of_a_data_loader(options):
    lengths = [int(n) for n in np.random.default_rng(1).integers(1, 30, 200)]
    corpus = fl.Bucketed(arrays(lengths), 4, budget=60)
    with fl.MinibatchSource(corpus, seed=3, max_sweeps=1) as source:
        batches = [minibatch["x"].lengths.tolist() for minibatch in source.minibatches(60)]
    loader = fl.DataLoader(corpus, shuffle=True, seed=3, **options)
    assert len(loader) == len(batches)
    assert [batch["lengths"]["x"].tolist() for batch in loader] == batches
    loader = fl.DataLoader(corpus, shuffle=True, seed=3, **options)
    remaining = iter(loader)
    first = [next(remaining)["lengths"]["x"].tolist() for _ in range(3)]
    state = loader.state_dict()
    again = fl.DataLoader(corpus, shuffle=True, seed=3, **options)
    again.load_state_dict(state)
    assert first + [batch["lengths"]["x"].tolist() for batch in again] == batches
    two = [fl.DataLoader(corpus, shuffle=True, seed=3, partition=(rank, 2), **options) for rank in range(2)]
    ranks = [a["lengths"]["x"].tolist() + b["lengths"]["x"].tolist() for a, b in zip(*two, strict=True)]
    if "batch_size" in options:
        assert ranks == batches
    for bad in ({"batch_size": 8}, {**options, "drop_last": True}):
        with pytest.raises(ValueError, match=r"batch_size=None|drop_last"):
            fl.DataLoader(corpus, **bad)
