"""Arrays as datasets: gathered in one call, the very batches that reading item by item makes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline as fl
from feedline.feed.loader.gather import columns_of

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.data import Subset, TensorDataset  # noqa: E402

DTYPES = ["?", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16"]


def slowly(batch):
    """A `collate_fn` that equals the default one, but is another function."""
    return torch.utils.data.default_collate(batch)


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))


@st.composite
def columnar(draw):
    n = draw(st.integers(1, 30))
    columns = [
        np.random.default_rng(draw(st.integers(0, 99)))
        .integers(0, 2 if dtype == "?" else 100, (n, *draw(st.lists(st.integers(0, 3), max_size=2))))
        .astype(dtype)
        for dtype in draw(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=3))
    ]
    kind = draw(st.sampled_from(["tensors", "array", "tensor", "tuple", "dict"]))
    dataset = {
        "tensors": lambda: TensorDataset(*map(torch.from_numpy, columns)),
        "array": lambda: columns[0],
        "tensor": lambda: torch.from_numpy(columns[0]),
        "tuple": lambda: tuple(columns),
        "dict": lambda: {f"c{i}": column for i, column in enumerate(columns)},
    }[kind]()
    for _ in range(draw(st.integers(0, 2)) if kind in ("tensors", "array", "tensor") else 0):
        dataset = Subset(dataset, draw(st.lists(st.integers(-len(dataset), len(dataset) - 1), min_size=1, max_size=20)))
    return dataset


@given(columnar(), st.integers(1, 9), st.integers(0, 99))
def test_the_same_as_item_by_item(dataset, size, seed):
    assert columns_of(dataset) is not None
    fast = list(fl.DataLoader(dataset, batch_size=size, shuffle=True, seed=seed))
    slow = list(fl.DataLoader(dataset, batch_size=size, shuffle=True, seed=seed, collate_fn=slowly))
    assert equal(fast, slow)


def test_an_empty_part_keeps_its_shape():
    x = np.zeros((3, 4, 5), np.float32)
    parts = [list(fl.DataLoader(x, batch_size=1, partition=(i, 5))) for i in range(5)]
    assert sorted(part[0].shape for part in parts) == [(0, 4, 5)] * 2 + [(1, 4, 5)] * 3


def test_a_user_s_indices_too():
    x = torch.arange(10)
    assert [b.tolist() for b in fl.DataLoader(x, batch_size=2, sampler=[3, -1, 0])] == [[3, 9], [0]]
    with pytest.raises(IndexError, match="10"):
        list(fl.DataLoader(x, sampler=[10]))
    with pytest.raises(TypeError, match="integers"):
        list(fl.DataLoader(x, batch_size=2, sampler=["a", "b"]))


class Doubling(TensorDataset):
    def __getitem__(self, index):
        return tuple(2 * part for part in super().__getitem__(index))


def test_what_is_not_quite_an_array_is_read_item_by_item():
    """Subclasses, gradients, views that NumPy cannot look at, and other dtypes."""
    x = torch.arange(6.0)
    assert columns_of(Doubling(x)) is None
    assert torch.cat([b for (b,) in fl.DataLoader(Doubling(x), batch_size=4)]).tolist() == (2 * x).tolist()
    for odd in (x.clone().requires_grad_(), x.to(torch.bfloat16), torch.arange(12.0).reshape(6, 2).t(), x.to_sparse()):
        assert columns_of(odd) is None
    assert columns_of(np.array(["a", "b"])) is None
    assert columns_of([x, x]) is None


def test_columns_of_different_lengths_are_no_dataset():
    with pytest.raises(ValueError, match=r"equal length, got \[2, 3\]"):
        fl.DataLoader((np.zeros(2), np.zeros(3)))


def test_no_process_is_started_for_arrays():
    """Two processes would only carry them about."""
    loader = fl.DataLoader(np.arange(10), batch_size=5, num_workers=2)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert loader.pids == []
