"""Keys to which rows are pushed, and from which rows are pulled."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feedline.kvstore import RefusedError, create

ROWS, WIDTH = 6, 2
IDS = st.lists(st.integers(0, ROWS - 1), max_size=8)


def rows(ids, values=None, shape=(ROWS, WIDTH), checked=True):
    ids = torch.tensor(ids, dtype=torch.int64)
    values = torch.ones(len(ids), *shape[1:]) if values is None else values
    return torch.sparse_coo_tensor(ids[None], values, shape, check_invariants=checked)


def stored(store, key="w", shape=(ROWS, WIDTH)):
    out = torch.empty(shape)
    store.pull(key, out)
    return out


def filled(type="local"):
    store = create(type)
    store.init("w", torch.arange(ROWS * WIDTH, dtype=torch.float32).view(ROWS, WIDTH))
    return store


@given(st.lists(IDS | st.none(), min_size=1, max_size=4), st.booleans(), st.integers(0, 1000))
def test_rows_equal_dense_pushes(pushes, with_updater, seed):
    """A push of rows equals a push of the dense tensors. None: a dense value among them."""
    generator = torch.Generator().manual_seed(seed)
    values = []
    for ids in pushes:
        random = torch.randint(-8, 8, (ROWS if ids is None else len(ids), WIDTH), generator=generator).float()
        values.append(random if ids is None else rows(ids, random))
    sparse, dense = filled(), filled()
    for store, pushed in ((sparse, values), (dense, [value.to_dense() for value in values])):
        if with_updater:
            store.set_updater(lambda key, merged, stored: stored.add_(merged, alpha=0.5))
        store.push("w", pushed)
    assert torch.equal(stored(sparse), stored(dense))


def test_an_updater_sees_each_row_once():
    store, updates = filled(), []
    store.set_updater(lambda key, merged, stored: updates.append(merged))
    store.push("w", [rows([4, 1, 4]), rows([1])])
    (merged,) = updates
    assert merged.is_coalesced()
    assert merged.indices().tolist() == [[1, 4]]
    assert merged.values().tolist() == [[2, 2], [2, 2]]


def test_embeddings():
    table = torch.nn.Embedding(ROWS, WIDTH, sparse=True)
    store = create()
    store.init("w", table.weight)
    store.set_optimizer("sgd", learning_rate=1.0)
    before = table.weight.detach().clone()
    table(torch.tensor([2, 5, 2])).sum().backward()
    store.push("w", table.weight.grad)
    store.pull("w", table.weight)
    expected = torch.zeros(ROWS, WIDTH)
    expected[2], expected[5] = -2, -1
    assert torch.allclose(table.weight - before, expected)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("type", ["local", "device"])
def test_rows_come_in_the_order_asked_for(dtype, type):
    store = filled(type)
    ids = torch.tensor([[3, 0, 3], [5, 1, 0]], dtype=dtype)
    out = torch.empty(2, 3, WIDTH)
    store.row_sparse_pull("w", out, ids)
    assert torch.equal(out, stored(store)[ids.long()])
    wide = torch.zeros(2, 3, WIDTH + 1)
    store.row_sparse_pull("w", wide[..., 1:], ids)
    assert torch.equal(wide[..., 1:], out)


def test_a_sparse_out_gets_each_row_once():
    store = filled()
    out = rows([0])
    store.row_sparse_pull("w", out, torch.tensor([3, 0, 3]))
    assert out.coalesce().indices().tolist() == [[0, 3]]
    assert out.coalesce().values().tolist() == [[0, 1], [6, 7]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int32])
def test_rows_are_cast_to_the_dtype_of_outs(dtype):
    store = filled()
    out, sparse, wide = torch.empty(3, WIDTH, dtype=dtype), rows([0]).to(dtype), torch.zeros(3, WIDTH + 1, dtype=dtype)
    ids = torch.tensor([3, 0, 3])
    store.row_sparse_pull("w", [out, wide[:, 1:], sparse], ids)
    assert torch.equal(out, stored(store)[ids].to(dtype))
    assert torch.equal(wide[:, 1:], out)
    assert (sparse.dtype, sparse.coalesce().values().tolist()) == (dtype, [[0, 1], [6, 7]])


def test_several_keys_and_outs():
    store = create()
    store.init(["v", "w"], [torch.arange(4.0).view(4, 1), torch.arange(4.0).view(4, 1) * 10])
    outs = [[torch.empty(1, 1), torch.empty(2, 1)], torch.empty(1, 1)]
    store.row_sparse_pull(["w", "v"], outs, [[np.array([1]), torch.tensor([2, 3])], torch.tensor([2])])
    assert [outs[0][0].tolist(), outs[0][1].tolist(), outs[1].tolist()] == [[[10]], [[20], [30]], [[2]]]
    same = [torch.empty(2, 1), torch.empty(2, 1)]
    store.row_sparse_pull("v", same, np.array([1, 0]))
    assert same[0].tolist() == same[1].tolist() == [[1], [0]]
    nothing = torch.empty(0, 1)
    store.row_sparse_pull("v", nothing, torch.empty(0, dtype=torch.int64))


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda s, o: s.row_sparse_pull("w", o, torch.tensor([0, ROWS])), RefusedError, "rows 0 to 5 .*got 6"),
        (lambda s, o: s.row_sparse_pull("w", o, torch.tensor([0, -1])), RefusedError, "got -1"),
        (lambda s, o: s.row_sparse_pull("w", o, torch.tensor([0.0, 1.0])), TypeError, "int64 or int32"),
        (lambda s, o: s.row_sparse_pull("w", o, [0, 1]), TypeError, "got int"),
        (lambda s, o: s.row_sparse_pull("w", o, torch.tensor([0])), RefusedError, r"shape \(1, 2\)"),
        (lambda s, o: s.row_sparse_pull("w", [o, o], [torch.tensor([0, 1])] * 3), RefusedError, "2 outs.* got 3"),
        (lambda s, o: s.row_sparse_pull(["w"], [o], []), RefusedError, "list of 1 row_ids"),
        (
            lambda s, o: s.row_sparse_pull("w", [o, torch.empty(1, WIDTH).expand(2, WIDTH)], torch.tensor([0, 1])),
            RefusedError,
            "share no memory",
        ),
        (lambda s, o: s.row_sparse_pull("v", o, torch.tensor([0, 1])), RefusedError, "'v'; call init"),
        (
            lambda s, o: s.row_sparse_pull("w", [o, rows([0], shape=(3, WIDTH))], torch.tensor([0, 1])),
            RefusedError,
            "3",
        ),
        (lambda s, o: s.pull("w", [torch.zeros(ROWS, WIDTH), rows([0])]), RefusedError, "row_sparse_pull fills"),
        (lambda s, o: s.push("w", torch.eye(ROWS)[:, :WIDTH].to_sparse()), RefusedError, "2 sparse"),
        (lambda s, o: s.push("w", torch.zeros(ROWS, WIDTH).to_sparse_csr()), RefusedError, "sparse_csr"),
        (
            lambda s, o: s.push("w", [rows([0]), rows([0, ROWS], checked=False)]),
            RefusedError,
            "rows 0 to 5 .*got 6",
        ),
        (lambda s, o: s.init("v", rows([ROWS], checked=False)), RefusedError, "got 6"),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_what_is_refused_changes_nothing(call, error, says):
    store, out = filled(), torch.full((2, WIDTH), 7.0)
    with pytest.raises(error, match=says):
        call(store, out)
    assert torch.equal(out, torch.full((2, WIDTH), 7.0))
    assert torch.equal(stored(store), stored(filled()))


@pytest.mark.parametrize("ids", [np.array([0, 1])[::-1], np.broadcast_to(np.array([2]), 2)])
@pytest.mark.filterwarnings("error")
def test_row_ids_may_be_any_array_of_numpy(ids):
    out = torch.empty(2, WIDTH)
    store = filled()
    store.row_sparse_pull("w", out, ids)
    assert torch.equal(out, stored(store)[ids.copy()])


def test_one_number_has_no_rows():
    store = create()
    store.init("s", torch.tensor(1.0))
    with pytest.raises(RefusedError, match="scalar"):
        store.row_sparse_pull("s", torch.empty(1), torch.tensor([0]))


def test_init_of_rows_is_dense():
    store = create()
    store.init("w", rows([4, 1, 4]))
    assert stored(store).tolist() == rows([4, 1, 4]).to_dense().tolist()
