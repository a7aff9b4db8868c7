"""Reproducible orders and random numbers: both torch's DataLoader and ours.

The orders themselves differ between the two, the promises do not.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.feed.loader.swapped import Function, Numbers, both, draw, flat, torch, workers

pytestmark = [both, workers]


def shuffled(Loader, workers, **options):
    return Loader(Numbers(40), batch_size=8, shuffle=True, num_workers=workers, **options)


def epochs(loader, n=2):
    return [flat(loader) for _ in range(n)]


def test_manual_seed_decides_the_order(Loader, workers):
    orders = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        orders.append(epochs(shuffled(Loader, workers)))
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


def test_a_generator_decides_the_order_not_the_global_one(Loader, workers):
    orders = []
    for seed in (1, 1, 2):
        torch.manual_seed(random.getrandbits(32))
        orders.append(epochs(shuffled(Loader, workers, generator=torch.Generator().manual_seed(seed))))
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


def test_without_a_seed_two_loaders_differ(Loader, workers):
    assert epochs(shuffled(Loader, workers)) != epochs(shuffled(Loader, workers))


def initial_seed(index):
    return torch.initial_seed()


def test_the_seed_of_a_sample_can_be_collated(Loader, workers):
    """Seeds have 64 bits, and numbers are collated to signed ones."""
    for seed in range(4):  # half of all seeds would not fit
        torch.manual_seed(seed)
        assert min(flat(Loader(Function(initial_seed, 6), batch_size=2, num_workers=workers))) >= 0


def test_a_generator_leaves_the_global_one_alone(Loader, workers):
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    read = epochs(shuffled(Loader, workers, generator=torch.Generator().manual_seed(1)))
    assert [len(epoch) for epoch in read] == [40, 40]
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("size", [1, 5])
def test_random_numbers_in_samples_repeat_under_a_seed(Loader, workers, size):
    def drawn(seed):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        loader = Loader(Function(draw, 12), batch_size=size, num_workers=workers)
        return [torch.stack(batch).T.tolist() for _ in range(2) for batch in loader]

    first, again, other = drawn(1), drawn(1), drawn(2)
    assert first == again
    assert first != other
    for column in range(3):
        seen = [sample[column] for batch in first for sample in batch]
        assert len(set(seen)) == 24, "no two samples, and no two epochs, draw the same"


def test_shuffling_leaves_numpy_and_random_alone(Loader, workers):
    """Draws of samples in workers do not affect this process either."""
    np.random.seed(1)
    random.seed(1)
    expected = np.random.random(), random.random()
    np.random.seed(1)
    random.seed(1)
    data = Function(draw, 6) if workers else Numbers(6)
    assert len(list(Loader(data, shuffle=True, num_workers=workers))) == 6
    assert (np.random.random(), random.random()) == expected
