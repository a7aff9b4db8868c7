"""Samplers, their generators and batch samplers that a program changes between `iter`, `next` and `len`."""

from __future__ import annotations

import operator

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.data import BatchSampler, RandomSampler

import feedline as fl
from tests.programs.comparing import TORCH, as_torch, torch, workers


def as_list(items):
    return items


def shuffled(generator):
    return RandomSampler(range(9), generator=generator)


@workers
def test_the_generator_is_set_between_iter_and_the_first_batch(workers):
    def program(loader_class):
        generator = torch.Generator().manual_seed(1)
        loader = loader_class(range(9), batch_size=2, sampler=shuffled(generator), num_workers=workers)
        fed = []
        for epoch in range(3):
            iterator = iter(loader)
            generator.manual_seed(10 + epoch)
            fed += [list(iterator), torch.rand(2, generator=generator)]
        return fed

    as_torch(program)


@workers
def test_the_iterator_that_is_read_first_draws_first(workers):
    def program(loader_class):
        generator = torch.Generator().manual_seed(1)
        batches = BatchSampler(shuffled(generator), 4, drop_last=False)
        loader = loader_class(range(9), batch_sampler=batches, num_workers=workers)
        first, second = iter(loader), iter(loader)
        return [next(second), list(first), list(second), torch.rand(2, generator=generator)]

    as_torch(program)


def test_a_state_before_the_first_batch_names_the_generator():
    def loader_of(seed):
        generator = torch.Generator().manual_seed(seed)
        return fl.DataLoader(range(9), batch_size=2, sampler=shuffled(generator)), generator

    loader, generator = loader_of(1)
    iterator = iter(loader)
    generator.manual_seed(2)
    state = loader.state_dict()
    expected = [[batch.tolist() for batch in each] for each in (iterator, loader)]
    again, _ = loader_of(3)
    again.load_state_dict(state)
    assert [[batch.tolist() for batch in again] for _ in range(2)] == expected


@workers
def test_a_generator_set_after_a_state_was_loaded_decides(workers):
    def loader_of(seed):
        generator = torch.Generator().manual_seed(seed)
        loader = fl.DataLoader(range(9), batch_size=2, sampler=shuffled(generator), num_workers=workers)
        return loader, generator

    expected = [batch.tolist() for batch in loader_of(2)[0]]
    loader, generator = loader_of(1)
    list(loader)
    loader.load_state_dict(loader.state_dict())
    iterator = None if workers else iter(loader)
    generator.manual_seed(2)
    assert [batch.tolist() for batch in iterator or loader] == expected


def test_a_state_after_a_failed_first_batch_begins_the_same_order():
    failing = [True]

    def collated(items):
        if failing:
            raise ValueError("planted")
        return list(items)

    def loader_of(seed):
        generator = torch.Generator().manual_seed(seed)
        return fl.DataLoader(range(9), batch_size=2, sampler=shuffled(generator), collate_fn=collated)

    loader = loader_of(1)
    with pytest.raises(ValueError, match="planted"):
        next(iter(loader))
    state = loader.state_dict()
    failing.clear()
    expected = list(loader_of(1))
    again = loader_of(2)
    again.load_state_dict(state)
    assert list(again) == expected


@workers
def test_an_attribute_of_the_loader_leaves_the_batch_sampler_s_alone(workers):
    def program(loader_class):
        loader = loader_class(range(9), batch_size=2, drop_last=True, num_workers=workers)
        loader.batch_sampler.drop_last = False
        loader.batch_sampler.batch_size = 4
        loader.collate_fn = as_list
        return [len(loader), *loader, loader.batch_sampler.drop_last]

    as_torch(program)


@workers
def test_length_by_another_sampler_in_the_batch_sampler(workers):
    def program(loader_class):
        loader = loader_class(range(9), batch_size=2, num_workers=workers)
        fed = [len(loader)]
        for count in (3, 6, 0):
            loader.batch_sampler.sampler = list(range(count))
            fed += [len(loader), *loader, len(loader)]
        return fed

    as_torch(program)


@pytest.mark.parametrize("Loader", [TORCH, fl.DataLoader], ids=["torch", "feedline"])
def test_workers_stay_when_batches_get_another_size(Loader):
    loader = Loader(range(9), batch_size=2, num_workers=2, persistent_workers=True, collate_fn=as_list)
    processes, fed = [], []
    for size in (2, 4, 3):
        loader.batch_sampler.batch_size = size
        iterator = iter(loader)
        processes.append([process.pid for process in operator.attrgetter("_workers")(iterator)])
        fed.append([len(batch) for batch in iterator])
    assert processes == processes[:1] * 3
    assert fed == [[2, 2, 2, 2, 1], [4, 4, 1], [3, 3, 3]]
