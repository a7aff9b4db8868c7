"""Law 1, one order: the same seed and data give the same sequences, for any sizes, threads, prefetch and partitions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline as fl
from feedline.testing import sequences_of
from tests.laws.corpora import CountedCorpus, World, worlds

sizes = st.lists(st.integers(1, 40), min_size=1, max_size=6)


def delivered(source, sizes, count):
    """At least ``count`` sequences, requested with one size after the other."""
    out = []
    while len(out) < count:
        for size in sizes:
            minibatch = source.next_minibatch(size)
            if not minibatch:
                return out
            out += sequences_of([minibatch])
    return out


@given(worlds(), sizes, sizes, st.integers(1, 4), st.sampled_from([0, 150, 1 << 20]))
def test_order_depends_on_the_seed_alone(world, some, others, threads, read_ahead):
    """It does not depend on minibatch sizes, which change at every call, on threads or on reading ahead."""
    count = 2 * world.total + 3
    expected_order = delivered(world.source(), some, count)
    two = delivered(world.source(threads=threads, read_ahead=read_ahead), others, count)
    shared = min(len(expected_order), len(two))
    assert shared >= count
    assert expected_order[:shared] == two[:shared]


@given(worlds(), st.integers(1, 30))
def test_every_sweep_delivers_each_sequence_once(world, size):
    """Three sweeps are three permutations of the corpus, and shuffled ones differ."""
    ids = [o for o, _ in delivered(world.source(max_sweeps=3), [size], 10**9)]
    n = world.total
    assert len(ids) == 3 * n
    orders = [ids[i * n : (i + 1) * n] for i in range(3)]
    for order in orders:
        assert sorted(order) == list(range(n))
    if world.settings["shuffle"] is False:
        assert orders == [list(range(n))] * 3


def test_sweeps_and_seeds_differ():
    """Shuffled sweeps are all different. As keys are hashed, sweep 1 of seed s is not sweep 0 of seed s + 1."""

    def orders(seed, **how):
        corpus = CountedCorpus([1] * 500, [100] * 5)
        source = fl.MinibatchSource(corpus, seed=seed, max_sweeps=3, **how)
        ids = np.concatenate([m.ids for m in source.minibatches(64)])
        return [tuple(part) for part in ids.reshape(3, 500)]

    for how in ({}, {"shuffle": fl.Window(chunks=2)}):
        drawn_orders = orders(7, **how) + orders(8, **how)
        assert len(set(drawn_orders)) == 6


@given(worlds(), st.integers(1, 40))
def test_values_equal_the_corpus(world, size):
    """Each sequence is delivered with its own bytes in all streams."""
    corpus = world.corpus()
    source = world.source(max_sweeps=1)
    for minibatch in source.minibatches(size):
        xs, ys = minibatch["x"].sequences(), minibatch["y"].sequences()
        for ordinal, x, y in zip(minibatch.ids.tolist(), xs, ys, strict=True):
            np.testing.assert_array_equal(x, corpus.rows(ordinal))
            assert y.class_indices().rows.tolist() == [ordinal % 7] * world.lengths[ordinal]


@given(worlds(), st.integers(1, 40))
def test_plan_equals_the_delivered_order(world, size):
    """The order that is planned from the position, without reading, is the delivered one."""
    source = world.source(max_sweeps=2)
    corpus = source.corpus
    planned = [p.ids.tolist() for p in source.plan(size)]
    assert corpus.reads == []
    assert planned == [m.ids.tolist() for m in source.minibatches(size)]


@pytest.mark.parametrize("seed", range(8))
def test_a_sweep_that_ends_without_samples_cuts_nothing(seed):
    """A sequence without samples ends one sweep, and may begin the next. The minibatch continues."""
    world = World([2, 0], [2], False, {"order": "cntk", "seed": seed})

    def ids(step):
        world.step = step
        return [minibatch.ids.tolist() for minibatch in itertools.islice(world.source().minibatches(2), 9)]

    assert ids(1) == ids(2) == ids(16384)
