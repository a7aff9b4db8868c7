"""The samples of each batch: both torch's DataLoader and ours."""

from __future__ import annotations

import pytest

from tests.feed.loader.swapped import Function, Numbers, both, flat, same, torch, workers

pytestmark = both

from torch.utils.data import (  # noqa: E402
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler  # noqa: E402


@workers
@pytest.mark.parametrize("drop_last", [False, True])
def test_sequential(Loader, workers, drop_last):
    loader = Loader(Numbers(10), batch_size=4, drop_last=drop_last, num_workers=workers)
    expected = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]][: 2 if drop_last else 3]
    for _ in range(2):
        assert [batch.tolist() for batch in loader] == expected


@workers
def test_shuffled_is_each_sample_once(Loader, workers):
    torch.manual_seed(0)
    loader = Loader(Numbers(50), batch_size=7, shuffle=True, num_workers=workers)
    first, second = list(loader), list(loader)
    assert [len(batch) for batch in first] == [7] * 7 + [1]
    assert sorted(flat(first)) == sorted(flat(second)) == list(range(50))
    assert flat(first) != list(range(50))
    assert flat(first) != flat(second)


@workers
def test_a_sampler_decides_the_order(Loader, workers):
    loader = Loader(Numbers(10), batch_size=2, sampler=[9, 0, 0, 3, 5], num_workers=workers)
    for _ in range(2):
        assert [batch.tolist() for batch in loader] == [[9, 0], [0, 3], [5]]


@workers
def test_a_sampler_without_length(Loader, workers):
    class Endless(Sampler):
        def __iter__(self):
            return iter([3, 1, 2])

    loader = Loader(Numbers(10), batch_size=2, sampler=Endless(), num_workers=workers)
    assert [batch.tolist() for batch in loader] == [[3, 1], [2]]
    with pytest.raises(TypeError):
        len(loader)


@workers
def test_batches_of_any_size_by_a_batch_sampler(Loader, workers):
    batches = [[1], [2, 3, 4], [5, 5], [9, 8, 7, 6]]
    loader = Loader(Numbers(10), batch_sampler=batches, num_workers=workers)
    for _ in range(2):
        assert [batch.tolist() for batch in loader] == batches


@workers
def test_a_batch_sampler_that_is_a_generator_ends_once(Loader, workers):
    loader = Loader(Numbers(10), batch_sampler=([i, i + 1] for i in range(0, 6, 2)), num_workers=workers)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]


@workers
def test_indices_are_any_objects_of_the_sampler(Loader, workers):
    names = Function({"a": 1, "b": 2, "c": 3}.get)
    assert flat(Loader(names, sampler=["c", "a"], num_workers=workers)) == [3, 1]
    assert flat(Loader(names, batch_sampler=[["c", "a"], ["b"]], num_workers=workers)) == [3, 1, 2]


@workers
def test_without_batching_samples_come_one_by_one(Loader, workers):
    got = list(Loader(Numbers(5), batch_size=None, num_workers=workers))
    assert got == [0, 1, 2, 3, 4]
    assert all(type(sample) is int for sample in got)


@workers
def test_without_batching_arrays_become_tensors(Loader, workers):
    loader = Loader(Function(array_and_text, 2), batch_size=None, num_workers=workers)
    samples = list(loader)
    assert len(samples) == 2
    for index, (array, text) in enumerate(samples):
        assert torch.equal(array, torch.full((3,), index, dtype=torch.float32))
        assert text == f"text {index}"


def array_and_text(index):
    return torch.full((3,), index).numpy().astype("float32"), f"text {index}"


@workers
def test_without_batching_the_sampler_may_give_lists(Loader, workers):
    """Reading in bulk: the sampler's batches are the indices."""
    bulk = Function(doubled)
    sampler = BatchSampler(SequentialSampler(Numbers(10)), 4, False)
    loader = Loader(bulk, batch_size=None, sampler=sampler, num_workers=workers)
    assert [batch.tolist() for batch in loader] == [[0, 2, 4, 6], [8, 10, 12, 14], [16, 18]]


def doubled(indices):
    return torch.tensor(indices) * 2


@workers
def test_without_batching_collate_fn_gets_a_sample(Loader, workers):
    assert list(Loader(Numbers(3), batch_size=None, collate_fn=str, num_workers=workers)) == ["0", "1", "2"]


class AtOnce(Numbers):
    """A dataset that accepts whole batches only."""

    def __getitem__(self, index):
        raise AssertionError("one by one")

    def __getitems__(self, indices):
        assert isinstance(indices, list)
        return [index + 100 * len(indices) for index in indices]


@workers
def test_getitems_gets_the_batch(Loader, workers):
    loader = Loader(AtOnce(10), batch_size=4, num_workers=workers)
    assert [batch.tolist() for batch in loader] == [[400, 401, 402, 403], [404, 405, 406, 407], [208, 209]]
    loader = Loader(AtOnce(10), batch_sampler=[[5], [1, 1]], num_workers=workers)
    assert [batch.tolist() for batch in loader] == [[105], [201, 201]]


@workers
def test_getitems_is_not_for_single_samples(Loader, workers):
    with pytest.raises(AssertionError, match="one by one"):
        list(Loader(AtOnce(10), batch_size=None, num_workers=workers))


@workers
def test_fewer_batches_than_workers(Loader, workers):
    assert flat(Loader(Numbers(3), batch_size=3, num_workers=workers)) == [0, 1, 2]
    assert flat(Loader(Numbers(1), num_workers=workers)) == [0]


@workers
def test_samplers_of_torch(Loader, workers):
    data = Numbers(20)

    def read(sampler):
        return flat(Loader(data, batch_size=6, sampler=sampler, num_workers=workers))

    assert read(SequentialSampler(data)) == list(range(20))
    assert sorted(read(RandomSampler(data))) == list(range(20))
    assert len(read(RandomSampler(data, replacement=True, num_samples=33))) == 33
    assert sorted(read(SubsetRandomSampler([2, 3, 5, 7, 11]))) == [2, 3, 5, 7, 11]
    assert set(read(WeightedRandomSampler([0.0] * 18 + [1.0, 2.0], 30))) == {18, 19}


@workers
def test_a_seeded_sampler_gives_its_own_order(Loader, workers):
    def order(generator):
        return list(RandomSampler(range(20), generator=generator))

    sampler = RandomSampler(range(20), generator=torch.Generator().manual_seed(3))
    loader = Loader(Numbers(20), batch_size=6, sampler=sampler, num_workers=workers)
    expected = torch.Generator().manual_seed(3)
    for _ in range(2):
        assert flat(loader) == order(expected)


@workers
def test_ranks_by_a_distributed_sampler(Loader, workers):
    samplers = [DistributedSampler(Numbers(10), num_replicas=2, rank=rank, seed=5) for rank in range(2)]
    loaders = [Loader(Numbers(10), batch_size=2, sampler=sampler, num_workers=workers) for sampler in samplers]
    epochs = []
    for epoch in range(2):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        parts = [flat(loader) for loader in loaders]
        assert sorted(parts[0] + parts[1]) == list(range(10))
        epochs.append(parts)
    assert epochs[0] != epochs[1]


@workers
def test_a_list_is_a_dataset(Loader, workers):
    assert flat(Loader([5, 6, 7, 8], batch_size=3, num_workers=workers)) == [5, 6, 7, 8]
    assert list(Loader(["a", "b", "c"], batch_size=2, num_workers=workers)) == [["a", "b"], ["c"]]


def test_samples_are_what_the_dataset_gave(Loader):
    """In this process nothing is copied that `collate_fn` does not copy."""
    things = [object() for _ in range(4)]
    batches = list(Loader(things, batch_size=2, collate_fn=same))
    assert [thing for batch in batches for thing in batch] == things
