"""torch's own datasets: both torch's DataLoader and ours."""

from __future__ import annotations

import numpy as np
import pytest

from tests.feed.loader.swapped import Function, Numbers, both, flat, torch, workers

pytestmark = [both, workers]

from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset, random_split  # noqa: E402


def test_tensor_dataset(Loader, workers):
    x, y = torch.arange(21.0).reshape(7, 3), torch.arange(7)
    loader = Loader(TensorDataset(x, y), batch_size=3, num_workers=workers)
    batches = list(loader)
    assert all(type(batch) is list for batch in batches)
    assert [len(batch[1]) for batch in batches] == [3, 3, 1]
    assert torch.equal(torch.cat([batch[0] for batch in batches]), x)
    assert torch.equal(torch.cat([batch[1] for batch in batches]), y)


def test_tensor_dataset_shuffled(Loader, workers):
    x, y = torch.arange(100.0).reshape(50, 2), torch.arange(50)
    torch.manual_seed(0)
    batches = list(Loader(TensorDataset(x, y), batch_size=8, shuffle=True, num_workers=workers))
    labels = torch.cat([batch[1] for batch in batches])
    assert sorted(labels.tolist()) == list(range(50))
    assert labels.tolist() != list(range(50))
    assert torch.equal(torch.cat([batch[0] for batch in batches]), x[labels])


def test_tensor_dataset_gives_copies(Loader, workers):
    """Writing into a batch does not change the data."""
    x = torch.zeros(6, 2)
    written = 0
    for (batch,) in Loader(TensorDataset(x), batch_size=2, num_workers=workers):
        batch += 1
        written += 1
    assert written == 3
    assert torch.equal(x, torch.zeros(6, 2))


def test_one_tensor_alone(Loader, workers):
    (only,) = [batch for (batch,) in Loader(TensorDataset(torch.arange(3)), batch_size=3, num_workers=workers)]
    assert only.tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.complex64, torch.uint8, torch.float64])
def test_tensor_dataset_of_any_type(Loader, workers, dtype):
    x = torch.tensor([[0, 1], [1, 0], [1, 1]]).to(dtype)
    ((batch,),) = list(Loader(TensorDataset(x), batch_size=3, num_workers=workers))
    assert batch.dtype == dtype
    assert torch.equal(batch, x)


def test_tensor_dataset_of_a_view(Loader, workers):
    x = torch.arange(24).reshape(4, 6)[:, ::2].t()
    ((batch,),) = list(Loader(TensorDataset(x), batch_size=3, num_workers=workers))
    assert torch.equal(batch, x)


def test_a_tensor_and_an_array_are_datasets(Loader, workers):
    x = torch.arange(10).reshape(5, 2)
    assert torch.equal(torch.cat(list(Loader(x, batch_size=2, num_workers=workers))), x)
    batches = list(Loader(x.numpy().astype(np.float32), batch_size=2, num_workers=workers))
    assert torch.equal(torch.cat(batches), x.float())
    assert flat(Loader(np.arange(5, dtype=np.int32), batch_size=2, num_workers=workers)) == [0, 1, 2, 3, 4]


def test_subset(Loader, workers):
    subset = Subset(Numbers(10), [7, 1, 1, 4])
    assert flat(Loader(subset, batch_size=3, num_workers=workers)) == [7, 1, 1, 4]
    assert len(Loader(subset, batch_size=3)) == 2


class Counted(Numbers):
    """Only whole batches."""

    def __getitem__(self, index):
        raise AssertionError("one by one")

    def __getitems__(self, indices):
        return [10 * index for index in indices]


def test_subset_asks_for_whole_batches_too(Loader, workers):
    loader = Loader(Subset(Counted(10), [7, 1, 4]), batch_size=2, num_workers=workers)
    assert [batch.tolist() for batch in loader] == [[70, 10], [40]]


def test_subset_of_tensors(Loader, workers):
    x = torch.arange(20).reshape(10, 2)
    batches = list(Loader(Subset(TensorDataset(x, x[:, 0]), [9, 3, 5]), batch_size=2, num_workers=workers))
    assert torch.equal(torch.cat([batch[0] for batch in batches]), x[[9, 3, 5]])
    assert torch.cat([batch[1] for batch in batches]).tolist() == [18, 6, 10]


def test_concat(Loader, workers):
    joined = ConcatDataset([Numbers(3), Function(hundreds, 2)]) + Numbers(2)
    assert flat(Loader(joined, batch_size=4, num_workers=workers)) == [0, 1, 2, 0, 100, 0, 1]
    assert flat(Loader(joined, sampler=[-1, 4, 0], num_workers=workers)) == [1, 100, 0]


def hundreds(index):
    return 100 * index


def test_stack(Loader, workers):
    (batch,) = list(Loader(StackDataset(Numbers(3), Function(hundreds, 3)), batch_size=3, num_workers=workers))
    assert [part.tolist() for part in batch] == [[0, 1, 2], [0, 100, 200]]
    (batch,) = list(Loader(StackDataset(a=Numbers(3), b=Function(hundreds, 3)), batch_size=3, num_workers=workers))
    assert {name: part.tolist() for name, part in batch.items()} == {"a": [0, 1, 2], "b": [0, 100, 200]}


def test_random_split(Loader, workers):
    parts = random_split(Numbers(10), [7, 3], generator=torch.Generator().manual_seed(1))
    again = random_split(Numbers(10), [0.7, 0.3], generator=torch.Generator().manual_seed(1))
    read = [flat(Loader(part, batch_size=2, num_workers=workers)) for part in parts]
    assert [len(part) for part in read] == [7, 3]
    assert sorted(read[0] + read[1]) == list(range(10))
    assert read == [list(part.indices) for part in again]
