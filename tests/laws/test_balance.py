"""Laws of balanced shares: the same minibatches for all ranks together, divided by the work of their sequences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline as fl
from feedline.testing import sequences_of
from tests.laws.corpora import worlds
from tests.oracles.balance import balance as slow

RULES = {
    "squares": lambda length: length**2,
    "cubes": lambda length: length**3,
    "fractions": lambda length: length / 3 + 0.125,
    "even": lambda length: 0,
}


def rule(name):
    """Return the value of ``balance`` for a rule."""
    return "squares" if name == "squares" else lambda lengths: np.array([RULES[name](n) for n in lengths.tolist()])


def owners(name, lengths, count, counts=None):
    """Return the rank of each sequence by the twin, which compares fractions by 40 bits."""
    work = [RULES[name](n) for n in lengths]
    largest = max(work, default=0)
    if any(w != int(w) for w in work):
        work = [int(np.ldexp(w, 40 - np.frexp(largest)[1])) for w in work]
    return slow([int(w) for w in work], count, counts)


@given(worlds(), st.sampled_from(sorted(RULES)), st.integers(1, 60), st.integers(2, 5))
def test_ranks_share_each_minibatch_by_work(world, name, size, count):
    """Each sequence goes to the rank of the twin. Minibatches, positions and states are as without balance."""
    whole = world.source(max_sweeps=2)
    ranks = [world.source(max_sweeps=2, partition=fl.Partition((i, count), balance=rule(name))) for i in range(count)]
    plans = [world.source(max_sweeps=2, partition=fl.Partition((i, count), balance=rule(name))) for i in range(count)]
    planned = [list(plan.plan(size)) for plan in plans]
    step = 0
    while expected := whole.next_minibatch(size):
        owner = owners(name, [world.lengths[i] for i in expected.ids], count)
        every = sequences_of([expected])
        for i, rank in enumerate(ranks):
            part = rank.next_minibatch(size)
            assert (part.position, part.sweep_end) == (expected.position, expected.sweep_end)
            assert part.global_samples == expected.num_samples
            assert sequences_of([part]) == [one for one, at in zip(every, owner, strict=True) if at == i]
            assert planned[i][step].ids.tolist() == part.ids.tolist()
            assert planned[i][step].num_samples == part.num_samples
        step += 1
    assert not any(rank.next_minibatch(size) for rank in ranks)
    assert [rank.state_dict() for rank in ranks] == [whole.state_dict()] * count


@given(worlds(), st.integers(1, 30), st.integers(0, 4), st.integers(2, 4), st.integers(1, 4))
def test_a_state_continues_under_other_shares(world, size, steps, count, later):
    """A state of one balanced rank is that of the whole job: any number of ranks goes on from it, by any rule."""
    rank = world.source(partition=fl.Partition((count - 1, count), balance="squares"))
    plain = world.source()
    for _ in range(steps):
        rank.next_minibatch(size)
        plain.next_minibatch(size)
    assert rank.state_dict() == plain.state_dict()
    ranks = [world.source(partition=fl.Partition((i, later), balance=rule("cubes"))) for i in range(later)]
    for other in ranks:
        other.load_state_dict(rank.state_dict())
    together = sorted(one for other in ranks for one in sequences_of([other.next_minibatch(size)]))
    assert together == sorted(sequences_of([plain.next_minibatch(size)]))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=50), st.integers(0, 2**32), st.sampled_from([1, 3, 8]))
def test_rows_count_the_work_of_their_documents(lengths, seed, size):
    """A row of ``Packed`` has the sum of the squares of its documents, in the sweep that packs it."""
    ends = np.cumsum(lengths)
    tokens = np.split(np.arange(1, int(ends[-1]) + 1, dtype=np.int32), ends[:-1])
    row, count = 32, 3

    def source(partition=(0, 1)):
        corpus = fl.Packed(fl.ArrayDeserializer(tokens=tokens), row, seed=7)
        return fl.MinibatchSource(corpus, seed=seed, max_sweeps=2, partition=partition)

    whole = source()
    ranks = [source(fl.Partition((i, count), balance="squares")) for i in range(count)]
    while expected := whole.next_minibatch(size * row):
        segments = expected["segment"].sequences()
        work = [sum(int(n) ** 2 for n in np.bincount(segment)[1:]) for segment in segments]
        owner = np.array(slow(work, count))
        for i, rank in enumerate(ranks):
            part = rank.next_minibatch(size * row)
            assert part.ids.tolist() == expected.ids[owner == i].tolist()
            wanted = [segments[k].tolist() for k in np.flatnonzero(owner == i)]
            assert [segment.tolist() for segment in part["segment"].sequences()] == wanted


def numbers(n, count):
    """Return how many of ``n`` items each rank has by position."""
    return [sum(o * count // n == i for o in range(n)) for i in range(count)]


@pytest.mark.parametrize("drop_last", [False, True])
@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=40),
    st.sampled_from(sorted(RULES)),
    st.integers(1, 6),
    st.integers(2, 4),
    st.sampled_from([False, True, "weighted"]),
)
def test_ranks_share_each_batch_by_work_and_number(drop_last, lengths, name, size, count, shuffle):
    """Ranks of a loader get as many items as by position, and the samplers' order is the same."""
    by_length = fl.BatchByLength(lengths=lengths)
    sampler = fl.Weighted(np.arange(1, len(lengths) + 1)) if shuffle == "weighted" else None

    def loader(batch_size, partition):
        return fl.DataLoader(
            [np.full(n, i) for i, n in enumerate(lengths)],
            batch_size=batch_size,
            shuffle=None if sampler else shuffle,
            sampler=sampler,
            seed=5,
            batch_sampler=by_length if isinstance(partition, fl.Partition) else None,
            collate_fn=lambda items: [(len(item), item[:1].tolist()) for item in items],
            drop_last=drop_last,
            partition=partition,
        )

    whole = list(loader(size * count, (0, 1)))
    ranks = [list(loader(size, fl.Partition((i, count), balance=rule(name)))) for i in range(count)]
    assert [len(rank) for rank in ranks] == [len(whole)] * count
    assert len(loader(size, fl.Partition((0, count), balance=rule(name)))) == len(whole)
    for step, expected in enumerate(whole):
        owner = owners(name, [n for n, _ in expected], count, numbers(len(expected), count))
        for i, rank in enumerate(ranks):
            wanted = [item for item, at in zip(expected, owner, strict=True) if at == i]
            assert rank[step] == wanted or (not wanted and len(rank[step]) == 0)


@given(worlds(order="feedline"), st.integers(1, 6), st.integers(2, 4))
def test_ranks_share_each_batch_of_a_corpus_by_work_and_number(world, size, count):
    def loader(batch_size, partition):
        return fl.DataLoader(
            world.corpus(), batch_size=batch_size, shuffle=True, seed=3, partition=partition, collate_fn=list
        )

    def content(items):
        return [(np.reshape(item["x"], (-1, 2))[:, 0].tolist(), item["t"]) for item in items]

    whole = [content(items) for items in loader(size * count, (0, 1))]
    ranks = [list(loader(size, fl.Partition((i, count), balance="squares"))) for i in range(count)]
    assert [len(rank) for rank in ranks] == [len(whole)] * count
    for step, expected in enumerate(whole):
        owner = owners("squares", [len(x) for x, _ in expected], count, numbers(len(expected), count))
        for i, rank in enumerate(ranks):
            assert content(rank[step]) == [item for item, at in zip(expected, owner, strict=True) if at == i]


@given(st.lists(st.integers(1, 50), min_size=12, max_size=40), st.integers(0, 3), st.integers(2, 3))
def test_a_loader_resumes_with_other_balanced_ranks(lengths, steps, later):
    """The batches after a state are those of the whole job, whoever goes on."""

    def loader(size, partition):
        return fl.DataLoader(
            [np.full(n, i) for i, n in enumerate(lengths)],
            batch_size=size,
            shuffle=True,
            seed=5,
            batch_sampler=fl.BatchByLength(lengths=lengths),
            collate_fn=lambda items: [int(item[0]) for item in items],
            partition=partition,
        )

    first = loader(2, fl.Partition((1, 2), balance="squares"))
    batches = iter(first)
    for _ in range(steps):
        next(batches)
    state = first.state_dict()
    whole = loader(12 // later * later, fl.Partition((0, 1), balance="squares"))
    whole.load_state_dict(state)
    ranks = [loader(12 // later, fl.Partition((i, later), balance="squares")) for i in range(later)]
    for rank in ranks:
        rank.load_state_dict(state)
    for expected, *parts in zip(whole, *ranks, strict=True):
        assert sorted(item for part in parts for item in part) == sorted(expected)


def test_shares_are_as_even_as_longest_first_makes_them():
    lengths = np.random.default_rng(0).lognormal(6, 1, 20000).astype(int).clip(16, 8192)
    corpus = fl.ArrayDeserializer(t=[np.zeros(n, np.int8) for n in lengths])
    loads = {"samples": [], "squares": []}
    for name, found in loads.items():
        ranks = [fl.MinibatchSource(corpus, partition=fl.Partition((i, 64), balance=name)) for i in range(64)]
        for _ in range(2):
            parts = [next(rank.plan(64 * 65536)) for rank in ranks]
            work = [float((lengths[part.ids].astype(float) ** 2).sum()) for part in parts]
            found.append(max(work) / np.mean(work))
    assert max(loads["squares"]) < 1.05 < 1.5 < min(loads["samples"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"filling": "cntk"}, 'got filling="cntk": each worker fills its own minibatches'),
        ({"truncation_length": 4}, "got truncation_length: a lane stays with the rank that has its state"),
        ({"order": fl.Arcs(4)}, r"either fl.Arcs\(4\) or fl.Partition\(balance=...\), got both"),
    ],
)
def test_feeds_that_cannot_be_balanced_are_refused(settings, message):
    corpus = fl.ArrayDeserializer(x=[np.zeros(3), np.zeros(2)])
    with pytest.raises(ValueError, match=message):
        fl.MinibatchSource(corpus, partition=fl.Partition((0, 2), balance="squares"), **settings)


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda lengths: [1.0], r"expected work \(n,\) for n = 2 lengths from .*, got shape \(1,\)"),
        (lambda lengths: -lengths, "finite work of at least 0 from .*, got -3.0 for length 3"),
        (lambda lengths: lengths * np.nan, "got nan for length"),
        (lambda lengths: lengths * np.inf, "got inf for length"),
    ],
)
def test_work_that_is_no_number_is_refused(work, message):
    corpus = fl.ArrayDeserializer(x=[np.zeros(3), np.zeros(2)])
    source = fl.MinibatchSource(corpus, shuffle=False, partition=fl.Partition((0, 2), balance=work))
    with pytest.raises(ValueError, match=message):
        source.next_minibatch(5)
    assert source.position.samples == 0


def test_a_dataset_needs_lengths():
    with pytest.raises(ValueError, match=r"expected batch_sampler=fl.BatchByLength\(lengths=...\) with fl.Partition"):
        fl.DataLoader(range(9), partition=fl.Partition((0, 2), balance="squares"))


def test_arguments_of_a_balance_are_checked():
    with pytest.raises(TypeError, match='balance to be "samples", "squares" or a function, got \'squared\''):
        fl.Partition((0, 2), balance="squared")
    source = fl.MinibatchSource(fl.ArrayDeserializer(x=np.arange(8.0)), partition=(0, 2))
    with pytest.raises(ValueError, match=r"expected the balance of the feed, 'samples', got 'squares'"):
        source.next_minibatch(4, partition=fl.Partition((0, 2), balance="squares"))
