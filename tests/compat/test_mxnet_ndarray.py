"""`mx.nd` has MXNet's manners, as far as stores and updaters need them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline as fl
import feedline.mxnet as mx

NUMBERS = st.floats(-8, 8, width=32).filter(lambda x: abs(x) > 0.125)
OPERATIONS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}


@pytest.mark.parametrize("sign", OPERATIONS)
@pytest.mark.parametrize("form", ["arrays", "number right", "number left", "numpy"])
@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=4))
def test_arithmetic_is_numpys_in_the_arrays_dtype(sign, form, pairs):
    a, b = np.array(pairs, "f4").T.copy()
    left, right = mx.nd.array(a), mx.nd.array(b)
    if form == "number right":
        right = b = float(b[0])
    elif form == "number left":
        left = a = float(a[0])
    elif form == "numpy":
        right = b
    found = OPERATIONS[sign](left, right)
    assert isinstance(found, mx.nd.NDArray)
    assert found.dtype is np.float32
    np.testing.assert_allclose(found.asnumpy(), OPERATIONS[sign](a, b).astype("f4"), rtol=1e-6)


def test_in_place_keeps_the_memory():
    a = mx.nd.ones((2, 2))
    row = a[1]
    a += 1
    a *= mx.nd.array([[1, 2], [3, 4]])
    a -= 1
    a /= 2
    assert row.asnumpy().tolist() == [2.5, 3.5]
    row[:] = 7
    a[0] = mx.nd.array([1, 2])
    assert a.asnumpy().tolist() == [[1, 2], [7, 7]]
    a[0, 1] = np.float64(5)
    a[1] = [3, 4]
    assert a.asnumpy().tolist() == [[1, 5], [3, 4]]
    a[mx.nd.array([0, 1])] = 9
    assert a.asnumpy().tolist() == [[9, 9], [9, 9]]
    a[:] = (a + a) / 4
    assert a.asnumpy().tolist() == [[4.5, 4.5], [4.5, 4.5]]


def test_integers_stay_integers():
    a = mx.nd.array([7, -7], dtype="int32")
    assert (a / 2).asnumpy().tolist() == [3, -3]
    assert (a * 2).dtype is np.int32
    assert (mx.nd.array([2**24 + 1], dtype="int32") / 1).asscalar() == 2**24 + 1  # no float32 in between
    a += 2.0
    a /= mx.nd.array([2, 2], dtype="int32")
    assert a.asnumpy().tolist() == [4, -2]
    with pytest.raises(fl.CompatError, match="an integer with an integer array"):
        a * 0.5


def test_reprs_of_arrays():
    a = mx.nd.zeros((2, 3), mx.cpu(1), "float64")
    assert (a.shape, a.dtype, a.size, a.ndim, len(a)) == ((2, 3), np.float64, 6, 2, 2)
    assert (a.context, a.ctx, a.stype) == (mx.cpu(1), mx.cpu(1), "default")
    assert repr(mx.nd.ones((1, 2))) == "\n[[1. 1.]]\n<NDArray 1x2 @cpu(0)>"
    assert mx.nd.array([3.0]).asscalar() == float(mx.nd.array([3])) == int(mx.nd.array([3])) == 3
    assert bool(mx.nd.ones(1))
    with pytest.raises(ValueError, match="ambiguous"):
        bool(a)
    with pytest.raises(ValueError, match="one element"):
        a.asscalar()
    with pytest.raises(TypeError):
        a + "x"


def test_making():
    assert mx.nd.array(np.arange(3)).dtype is np.float32
    assert mx.nd.array(mx.nd.ones(2, dtype="int32")).dtype is np.int32
    assert mx.nd.full(2, 5).asnumpy().tolist() == [5, 5]
    assert mx.nd.arange(3).asnumpy().tolist() == [0, 1, 2]
    assert mx.nd.arange(1, 3, 0.5).asnumpy().tolist() == [1, 1.5, 2, 2.5]
    assert mx.nd.ones_like(mx.nd.empty((1, 2), dtype="float16")).dtype is np.float16
    assert mx.nd.zeros_like(mx.nd.ones(2)).asnumpy().tolist() == [0, 0]
    with pytest.raises(TypeError, match="dtype"):
        mx.nd.ones(2, dtype="S4")
    mx.nd.waitall()


def test_copies():
    a = mx.nd.ones((2,))
    a.asnumpy()[:] = 5
    a.copy()[:] = 5
    a.copyto(mx.cpu(2))[:] = 5
    a.astype("float32")[:] = 5
    mx.nd.array(a)[:] = 5
    assert a.asnumpy().tolist() == [1, 1]
    assert a.as_in_context(mx.cpu(0)) is a
    assert a.as_in_context(mx.cpu(3)).context == mx.cpu(3)
    assert a.astype("float32", copy=False) is a
    b = mx.nd.zeros((2,), dtype="int32")
    assert a.copyto(b) is b
    assert b.asnumpy().tolist() == [1, 1]
    with pytest.raises(ValueError, match="shape"):
        a.copyto(mx.nd.ones((3,)))
    with pytest.raises(TypeError, match="Context"):
        a.copyto("cpu")
    assert a.reshape((1, -1)).shape == a.reshape(1, 2).shape == (1, 2)
    with pytest.raises(fl.CompatError, match="codes"):
        a.reshape((0, -1))
    assert (-a + abs(-a)).sum().asscalar() == 0


class Own(mx.Context):
    """A script's own."""


def test_contexts():
    assert mx.current_context() == mx.cpu()
    with mx.cpu(2):
        assert mx.nd.ones(1).context == mx.current_context() == mx.cpu(2) != mx.cpu_pinned(2)
    assert len({mx.cpu(1), mx.Context("cpu", 1), mx.Context(mx.cpu(1)), Own("cpu", 1)}) == 1
    with pytest.raises(ValueError, match="tpu"):
        mx.Context("tpu")
    with pytest.raises(mx.MXNetError, match="GPU"):
        mx.nd.ones(1, mx.gpu(mx.num_gpus()))


# ---- row_sparse -----------------------------------------------------------------------------------


def sparse(ids, rows, shape=(4, 2)):
    return mx.nd.sparse.row_sparse_array((np.array(rows, "f4").reshape(len(ids), *shape[1:]), ids), shape)


def test_rows():
    a = sparse([0, 2], [[1, 2], [3, 4]])
    dense = [[1, 2], [0, 0], [3, 4], [0, 0]]
    assert (a.stype, a.shape, a.dtype, a.size) == ("row_sparse", (4, 2), np.float32, 8)
    assert a.asnumpy().tolist() == a.tostype("default").asnumpy().tolist() == dense
    assert mx.nd.array(dense).tostype("row_sparse").indices.asnumpy().tolist() == [0, 2]
    b = sparse([2, 3], [[1, 1], [1, 1]])
    assert (a + b).indices.asnumpy().tolist() == [0, 2, 3]
    assert (a - b * 2).asnumpy().tolist() == [[1, 2], [0, 0], [1, 2], [-2, -2]]
    assert (a / 2 + mx.nd.ones((4, 2))).asnumpy().tolist() == [[1.5, 2], [1, 1], [2.5, 3], [1, 1]]
    assert (mx.nd.ones((4, 2)) + a).asnumpy()[0].tolist() == [2, 3]
    c = a.copyto(mx.cpu(1))
    c += b
    c -= b
    c *= 3
    assert c.asnumpy().tolist() == (np.array(dense) * 3).tolist()
    empty = mx.nd.zeros((4, 2), stype="row_sparse")
    a.copyto(empty)
    a *= 0
    assert empty.asnumpy().tolist() == dense
    for ids in ([2, 0], [1, 1], [3, 4], [-1, 0]):
        with pytest.raises(mx.MXNetError, match="ascending indices"):
            sparse(ids, [[1, 1], [1, 1]])
    with pytest.raises(mx.MXNetError, match="rows of shape"):
        mx.nd.sparse.row_sparse_array((np.ones((1, 3)), [0]), (4, 2))


@pytest.mark.parametrize("kind", ["add", "mean", "scale"])
def test_updaters_of_rows_change_what_is_stored(kind):
    kv = mx.kv.create()
    kv.init("w", sparse([0, 1, 2, 3], [[1, 1]] * 4))

    def update(key, received, stored):
        if kind == "add":
            stored += received * 2
        elif kind == "mean":
            stored[:] = (received + stored) / 2
        else:
            stored *= 3

    kv.set_updater(update)
    kv.push("w", sparse([1], [[4, 4]]))
    out = mx.nd.zeros((4, 2))
    kv.pull("w", out)
    assert out.asnumpy()[:, 0].tolist() == {"add": [1, 9, 1, 1], "mean": [0.5, 2.5, 0.5, 0.5], "scale": [3] * 4}[kind]


# ---- what stores refuse, as MXNet's types ---------------------------------------------------------


def test_errors_are_mxnets():
    kv = mx.kv.create("device")
    kv.init(3, mx.nd.ones(2))
    for call, error in [
        (lambda: kv.pull(4, mx.nd.ones(2)), mx.MXNetError),
        (lambda: kv.push(3, mx.nd.ones(3)), mx.MXNetError),
        (lambda: kv.push(3, np.ones(2)), AssertionError),
        (lambda: kv.pull(3), AssertionError),
        (lambda: kv.row_sparse_pull(3, mx.nd.sparse.zeros("row_sparse", (2,))), AssertionError),
        (lambda: kv.init(["a"], [mx.nd.ones(2)]), mx.MXNetError),
        (lambda: mx.kv.create("foo"), mx.MXNetError),
        (lambda: mx.kv.create(5), TypeError),
        (lambda: mx.optimizer.create("nothing"), mx.MXNetError),
        (lambda: kv.load_optimizer_states("nothing"), AssertionError),
    ]:
        with pytest.raises(error):
            call()
    kv.set_optimizer(mx.optimizer.SGD())
    with pytest.raises(mx.MXNetError) as caught:
        kv.load_optimizer_states("nothing")
    assert isinstance(caught.value, fl.StateError)


def test_rows_out_of_range_are_an_error():
    kv = mx.kv.create()
    kv.init("w", sparse([0], [[1, 1]]))
    out = mx.nd.sparse.zeros("row_sparse", (4, 2))
    with pytest.raises(mx.MXNetError, match="rows 0 to 3"):
        kv.row_sparse_pull("w", out, row_ids=mx.nd.array([9]))
    assert out.indices.size == 0


def test_rows_of_half_precision_into_single():
    kv = mx.kv.create()
    kv.init("w", mx.nd.sparse.row_sparse_array((np.array([[1.5], [2.5]]), [0, 2]), shape=(4, 1), dtype="float16"))
    out = mx.nd.sparse.zeros("row_sparse", (4, 1))
    kv.row_sparse_pull("w", out, row_ids=mx.nd.array([2, 1, 2]))
    assert (out.dtype, out.indices.asnumpy().tolist(), out.data.asnumpy().tolist()) == (
        np.float32,
        [1, 2],
        [[0], [2.5]],
    )


def test_an_updater_of_an_optimizer():
    weight, gradient = mx.nd.ones(2), mx.nd.full(2, 0.5)
    update = mx.optimizer.get_updater(mx.optimizer.create("SGD", learning_rate=1.0))
    update(0, gradient, weight)
    assert weight.asnumpy().tolist() == [0.5, 0.5]
    kv = mx.kv.create()
    kv.set_updater(update)
    kv.init(0, weight)
    kv.pushpull(0, gradient, out=weight)
    assert weight.asnumpy().tolist() == [0, 0]
    assert kv.is_capable("optimizer")


@pytest.mark.parametrize(
    "name", ["local_allreduce_cpu", "local_update_cpu", "local_allreduce_device", "Local", "device"]
)
def test_names_are_kept(name):
    assert mx.kv.create(name).type == name.lower()


@pytest.mark.parametrize("name", ["SGD", "AdaGrad", "Adam", "RMSProp"])
def test_optimizers_have_mxnets_names_wherever_names_are_seen(name):
    """In scripts that look at classes, in logs, and in pickles, which have always had these names."""
    rule, made = getattr(mx.optimizer, name), mx.optimizer.create(name, learning_rate=0.5)
    assert type(made) is rule
    assert rule.__name__ == rule.__qualname__ == name
    assert repr(made).startswith(f"{name}(learning_rate=0.5, ")
    text = pickle.dumps(made, 0)
    assert f"cfeedline.mxnet.optimizer\n{name}\n".encode() in text
    assert pickle.loads(text) == made
    older = pickle.loads(text.replace(b"feedline.mxnet.optimizer", b"feedline.kvstore.optimizers"))
    assert (type(older).__name__, older.parameters()) == (name, made.parameters())
