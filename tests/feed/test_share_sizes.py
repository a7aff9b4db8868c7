"""Every rank knows how many sequences each share of a minibatch has."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import feedline as fl

LENGTHS = np.random.default_rng(0).integers(0, 9, 300)
RAGGED = fl.ArrayDeserializer(word=[np.full(n, i, np.int32) for i, n in enumerate(LENGTHS)])
ROWS = fl.ArrayDeserializer(x=np.arange(300.0))


def source(corpus, partition, **options):
    return fl.MinibatchSource(corpus, seed=5, max_sweeps=2, partition=partition, **options)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize(
    ("corpus", "balance", "options"),
    [
        (ROWS, "samples", {}),
        (ROWS, "samples", {"order": fl.Arcs(12)}),
        (ROWS, "squares", {}),
        (RAGGED, "samples", {}),
        (RAGGED, "samples", {"order": fl.Arcs(12)}),
        (RAGGED, "squares", {}),
        (fl.Packed(RAGGED, row=16), "samples", {}),
        (fl.Bucketed(RAGGED, boundaries=[4], budget=64), "samples", {}),
    ],
    ids=["rows", "rows-arcs", "rows-squares", "ragged", "ragged-arcs", "ragged-squares", "packed", "bucketed"],
)
def test_every_rank_knows_the_sizes_of_all_shares(corpus, balance, options, count):
    shares = [source(corpus, fl.Partition((rank, count), balance=balance), **options) for rank in range(count)]
    steps = 0
    while all(minibatches := [share.next_minibatch(64) for share in shares]):
        sizes = [minibatch.num_sequences for minibatch in minibatches]
        assert [minibatch.share_sizes.tolist() for minibatch in minibatches] == [sizes] * count
        assert pickle.loads(pickle.dumps(minibatches[-1])).share_sizes.tolist() == sizes
        assert minibatches[0].to("cpu").share_sizes.tolist() == sizes
        steps += 1
    assert not any(minibatches)
    assert steps > 5


@pytest.mark.parametrize("options", [{"truncation_length": 4}, {"filling": "cntk"}])
def test_sizes_that_a_rank_does_not_know_are_none(options):
    assert source(RAGGED, (0, 2), **options).next_minibatch(64).share_sizes is None
    alone = source(RAGGED, (0, 1), **options).next_minibatch(64)
    assert alone.share_sizes.tolist() == [alone.num_sequences]


def test_a_part_of_a_share_does_not_know_the_parts_of_others():
    whole = source(ROWS, (0, 2)).next_minibatch(64)
    assert whole.share_sizes.tolist() == [32, 32]
    assert [part.share_sizes for part in whole.parts(20)] == [None, None]
    assert [part.share_sizes.tolist() for part in source(ROWS, (0, 1)).next_minibatch(64).parts(40)] == [[40], [24]]
