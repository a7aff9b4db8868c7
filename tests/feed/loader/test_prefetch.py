"""`DataLoader.prefetch`: an ``iter`` ahead of time, and nothing else."""

from __future__ import annotations

import copy
import os
import random
import time

import numpy as np
import pytest

import feedline as fl

torch = pytest.importorskip("torch", reason="torch is not installed")


class Offset:
    """Numbers plus an offset, which the program changes."""

    def __init__(self):
        self.offset = 0

    def __len__(self):
        return 24

    def __getitem__(self, i):
        return np.int64(i + self.offset)


def batches(loader):
    return [batch.tolist() for batch in loader]


def make(dataset, workers=2, **options):
    return fl.DataLoader(dataset, batch_size=5, shuffle=True, num_workers=workers, **options)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("options", [{"seed": 4}, {}, {"persistent_workers": True}], ids=str)
def test_it_changes_no_batch_and_no_draw(workers, options):
    if not workers:
        options = {key: value for key, value in options.items() if key != "persistent_workers"}

    def run(ahead):
        torch.manual_seed(1)
        loader, got = make(Offset(), workers, **options), []
        for _ in range(3):
            if ahead:
                loader.prefetch()
                loader.prefetch()
            got.append(batches(loader))
        return got, torch.rand(2).tolist()

    assert run(True) == run(False)


def test_what_changes_afterwards_belongs_to_the_next_sweep():
    dataset, reference = Offset(), batches(make(Offset(), seed=4))
    loader = make(dataset, seed=4)
    loader.prefetch()
    deadline = time.monotonic() + 60
    while not loader.pids and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(loader.pids) == 2
    dataset.offset = 100
    assert batches(loader) == reference
    assert min(min(batch) for batch in batches(loader)) >= 100


def test_a_loaded_state_drops_what_was_read():
    dataset = Offset()
    loader = make(dataset, seed=4)
    whole = [batches(loader) for _ in range(3)]
    first = make(dataset, seed=4)
    iterator = iter(first)
    next(iterator)
    next(iterator)
    state = first.state_dict()
    later = make(dataset, seed=4)
    later.prefetch()
    pids = later.pids
    later.load_state_dict(state)
    assert batches(later) == whole[0][2:]
    assert batches(later) == whole[1]
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    later.prefetch()
    assert later.state_dict() == make_state(dataset, 2)


def make_state(dataset, sweeps):
    loader = make(dataset, seed=4)
    for _ in range(sweeps):
        batches(loader)
    iter(loader)
    return loader.state_dict()


def test_after_close_and_in_copies_the_sweep_is_still_to_come():
    loader = make(Offset(), seed=4)
    whole = [batches(make(Offset(), seed=4))]
    loader.prefetch()
    loader.close()
    assert loader.pids == []
    assert batches(loader) == whole[0]
    fresh = make(Offset(), seed=4)
    fresh.prefetch()
    assert batches(copy.copy(fresh)) == whole[0]
    assert batches(fresh) == whole[0]


def test_random_programs_are_not_changed_by_it():
    rng = random.Random(7)
    for _ in range(6):
        plain, ahead, seed = Offset(), Offset(), rng.randrange(100)
        one, other = make(plain, seed=seed), make(ahead, rng.choice([0, 2]), seed=seed)
        for _ in range(5):
            match rng.randrange(4):
                case 0:
                    plain.offset = ahead.offset = rng.randrange(9)
                case 1:
                    other.prefetch()
                    assert batches(one) == batches(other)
                case 2:
                    state = other.state_dict()
                    one.load_state_dict(state)
                    other.load_state_dict(state)
                case 3:
                    one.sampler.set_epoch(3)
                    other.sampler.set_epoch(3)
        assert batches(one) == batches(other)
