"""A loader on several ranks of torch.distributed: nothing is lost or read twice without a word."""

from __future__ import annotations

import warnings

import pytest

import feedline as fl
from tests import ranks
from tests.laws.items import Plain

torch = pytest.importorskip("torch")


def flat(batches):
    return [int(i) for batch in batches for i in batch.flatten()]


def grouped(rank):
    torch.distributed.init_process_group("gloo")
    torch.distributed.barrier()  # a rank that ends at once would break the connections that others still make
    torch.manual_seed(rank)  # each rank would draw another seed


def sweeps_without_a_seed(rank, options):
    grouped(rank)
    loader = fl.DataLoader(Plain(23), batch_size=2, partition="auto", **options)
    told = [flat(loader), list(loader.sampler)]
    state = loader.state_dict()
    fresh = fl.DataLoader(Plain(23), batch_size=2, partition="auto", **options)
    fresh.load_state_dict(state)
    return [*told, flat(loader), flat(fresh)]


@pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": fl.Weighted(list(range(1, 24)))}])
def test_ranks_that_draw_seeds_agree_on_one(options):
    told = ranks.run(sweeps_without_a_seed, 3, options=options)
    for sweep in range(3):
        together = [i for rank in told for i in rank[sweep]]
        assert len(together) == 23
        if "shuffle" in options:
            assert sorted(together) == list(range(23))
    assert all(rank[2] == rank[3] for rank in told)
    assert told[0][0] != told[0][1]


def warned(rank, options):
    grouped(rank)
    loader = fl.DataLoader(Plain(8), **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        iter(loader)
    return [str(each.message) for each in caught]


@pytest.mark.parametrize("world", [1, 2])
def test_ranks_that_each_shuffle_everything_are_warned(world):
    for said in ranks.run(warned, world, options={"shuffle": True}):
        assert len(said) == (world > 1)
        assert all("every rank will read all of the data" in text and 'partition="auto"' in text for text in said)


@pytest.mark.parametrize(
    "options", [{}, {"shuffle": True, "partition": (0, 1)}, {"shuffle": True, "partition": "auto"}]
)
def test_an_explicit_partition_is_not_warned_about(options):
    assert ranks.run(warned, 2, options=options) == [[], []]


@pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": fl.Weighted([1.0] * 8)}])
def test_a_share_of_a_random_order_needs_a_seed(options):
    with pytest.raises(ValueError, match=r"expected a seed with partition=\(0, 2\)"):
        fl.DataLoader(Plain(8), partition=(0, 2), **options)
