"""Optimizers, stores and initializers that users write as subclasses of MXNet's."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
import torch

import feedline as fl
import feedline.mxnet as mx
from feedline.mxnet import util
from feedline.mxnet._user_rules import as_rule


class Written(mx.optimizer.Optimizer):
    """Shows what user optimizers call on themselves."""

    def rates(self, indices):
        return self._get_lrs(indices), self._get_wds(indices)

    def count(self, index):
        self._update_count(index)

    def counts(self):
        return self._index_update_count


class Momentum(Written):
    """SGD with momentum, in the way of MXNet's documentation."""

    def __init__(self, momentum=0.5, **kwargs):
        super().__init__(**kwargs)
        self.momentum = momentum

    def create_state(self, index, weight):
        return mx.nd.zeros(weight.shape, weight.context, dtype=weight.dtype)

    def update(self, index, weight, grad, state):
        self._update_count(index)
        lr, wd = self._get_lr(index), self._get_wd(index)
        state[:] = self.momentum * state - lr * (grad * self.rescale_grad + wd * weight)
        weight += state


class Counting(Written):
    """Adds the number of the key's update, and keeps a tree of states."""

    def create_state(self, index, weight):
        return {"sum": mx.nd.zeros((1,)), "parts": [(None, weight.copy()), 3]}

    def update(self, index, weight, grad, state):
        self._update_count(index)
        state["sum"] += 1
        weight += self._index_update_count[index]


class Scaled(mx.optimizer.SGD):
    """One of MXNet's rules with another update."""

    def update(self, index, weight, grad, state):
        super().update(index, weight, grad * 10, state)


class Failing(Momentum):
    def update(self, index, weight, grad, state):
        super().update(index, weight, grad, state)
        if self.momentum == 0.25:
            raise ZeroDivisionError


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(mx.optimizer.Optimizer, "opt_registry", dict(mx.optimizer.Optimizer.opt_registry))


def store_of(optimizer, values, kind="local"):
    store = mx.kv.create(kind)
    for key, value in values.items():
        store.init(key, mx.nd.array(value))
    store.set_optimizer(optimizer)
    return store


def pulled(store, key, shape):
    out = mx.nd.zeros(shape)
    store.pull(key, out)
    return out.asnumpy()


# ---- optimizers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["local", "device"])
@pytest.mark.parametrize("settings", [{}, {"wd": 0.25, "rescale_grad": 0.5, "begin_num_update": 3}])
def test_a_user_optimizer_equals_ours(kind, settings):
    rng = np.random.default_rng(1)
    start, gradients = rng.normal(size=(2, 3)).astype("f4"), rng.normal(size=(4, 2, 3)).astype("f4")
    stores = [
        store_of(optimizer, {"w": start}, kind)
        for optimizer in (Momentum(0.5, learning_rate=0.1, **settings), mx.optimizer.SGD(0.1, momentum=0.5, **settings))
    ]
    weight, update = mx.nd.array(start), mx.optimizer.get_updater(Momentum(0.5, learning_rate=0.1, **settings))
    for gradient in gradients:
        for store in stores:
            store.push("w", mx.nd.array(gradient))
        update(0, mx.nd.array(gradient), weight)
    theirs, ours = [pulled(store, "w", (2, 3)) for store in stores]
    np.testing.assert_allclose(theirs, ours, rtol=1e-5)
    assert theirs.tolist() == weight.asnumpy().tolist()
    assert list(update.states) == [0]


def test_rates_of_a_user_optimizer():
    schedule = mx.lr_scheduler.FactorScheduler(step=1, factor=0.5, base_lr=4.0)
    made = Momentum(0.0, lr_scheduler=schedule, param_idx2name={0: "w_weight", 1: "b_bias"}, wd=1.0)
    made.set_lr_mult({"w_weight": 0.5})
    assert (made.learning_rate, made.lr, made.rates([0, 1])) == (4, 4, ([2, 4], [1, 0]))
    with pytest.raises(UserWarning, match="already been defined"):
        made.set_learning_rate(1)
    made.count([0, 1])
    made.count(1)
    assert (made.num_update, made.counts()) == (2, {0: 1, 1: 2})
    assert mx.optimizer.SGD(lr_scheduler=mx.lr_scheduler.FactorScheduler(1, base_lr=4.0)).learning_rate == 4
    assert mx.optimizer.Adam(lr_scheduler=mx.lr_scheduler.FactorScheduler(1, base_lr=4.0)).learning_rate == 0.001
    assert Momentum().lr == 0.01
    with pytest.raises(NotImplementedError, match="Optimizer to define update"):
        mx.optimizer.Optimizer().update(0, mx.nd.ones(1), mx.nd.ones(1), None)


def test_created_by_name_after_registration(registry):
    @mx.optimizer.register
    class Halves(Momentum):
        pass

    made = mx.optimizer.create("HALVES", momentum=0.25, learning_rate=2.0)
    assert (type(made), made.momentum, made.lr) == (Halves, 0.25, 2.0)
    assert type(mx.optimizer.Optimizer.create_optimizer("halves")) is Halves
    with pytest.warns(UserWarning, match=r"replaces .*Halves as 'halves'"):

        @mx.optimizer.Optimizer.register
        class halves(Halves):
            pass

    store = store_of("halves", {0: [1.0]})
    store.push(0, mx.nd.ones(1))
    assert pulled(store, 0, (1,)) == pytest.approx(0.99)
    with pytest.raises(mx.MXNetError, match="got 'unheard'"):
        mx.optimizer.create("unheard")


@pytest.mark.parametrize("name", ["SGD", "NAG", "Adam", "LAMB", "Ftrl", "RMSProp", "Nadam", "AdaGrad"])
def test_states_of_our_rules_are_arguments(name):
    """`update` with a state makes the step that a store makes."""
    rng = np.random.default_rng(2)
    start, gradients = rng.normal(size=3).astype("f4"), rng.normal(size=(3, 3)).astype("f4")
    settings = {"momentum": 0.5} if name in ("SGD", "NAG") else {}
    kind = getattr(mx.optimizer, name)
    optimizer, store = kind(learning_rate=0.1, **settings), store_of(kind(learning_rate=0.1, **settings), {0: start})
    weight = mx.nd.array(start)
    state = optimizer.create_state(0, weight)
    assert isinstance(state, mx.nd.NDArray) == (name in ("SGD", "NAG", "AdaGrad"))
    for gradient in gradients:
        store.push(0, mx.nd.array(gradient))
        optimizer.update(0, weight, mx.nd.array(gradient), state)
    assert weight.asnumpy().tolist() == pulled(store, 0, (3,)).tolist()
    several = [[mx.nd.array(start), mx.nd.array(start)] for _ in range(2)]
    states = [optimizer.create_state_multi_precision(i, w) for i, w in enumerate(several[0])]
    optimizer.update_multi_precision([5, 6], several[0], [mx.nd.array(gradients[0])] * 2, states)
    assert several[0][0].asnumpy().tolist() == several[0][1].asnumpy().tolist() != start.tolist()


def test_a_subclass_of_one_of_our_rules_is_called():
    store = store_of(Scaled(learning_rate=0.5), {0: [1.0, 1.0]})
    store.push(0, mx.nd.array([0.1, 0.2]))
    assert pulled(store, 0, (2,)) == pytest.approx([0.5, 0.0])


@pytest.mark.parametrize("kind", [Momentum, mx.optimizer.SGD])
def test_half_precision(kind):
    weight, gradient = mx.nd.ones(1, dtype="float16"), mx.nd.full(1, 1.0, dtype="float16")
    plain = kind(learning_rate=2.0**-13, momentum=0.0)
    with pytest.warns(UserWarning, match="multi_precision=True"):
        plain.create_state_multi_precision(0, weight)
    optimizer = kind(learning_rate=2.0**-13, momentum=0.0, multi_precision=True)
    update = mx.optimizer.get_updater(optimizer)
    for _ in range(64):
        update(0, gradient, weight)
    assert weight.asscalar() == 1 - 2.0**-7
    place = 0 if kind is Momentum else 1
    assert update.states[0][place].dtype is np.float32


def test_a_pickled_optimizer_goes_on():
    made = Counting()
    made.count(0)
    copy = pickle.loads(pickle.dumps(made))
    store = store_of(copy, {0: [0.0]})
    store.push(0, mx.nd.ones(1))
    assert pulled(store, 0, (1,)).tolist() == [2.0]
    assert made.counts() == {0: 1}


def test_a_failed_update_changes_nothing():
    made = Failing(learning_rate=1.0)
    store = store_of(made, {0: [1.0], 1: [1.0]})
    store.push([0, 1], [mx.nd.ones(1)] * 2)
    made.momentum = 0.25
    with pytest.raises(ZeroDivisionError):
        store.push([0, 1], [mx.nd.ones(1)] * 2)
    assert [pulled(store, key, (1,)).tolist() for key in (0, 1)] == [[0.0], [0.0]]
    made.momentum = 0.5
    store.push([0, 1], [mx.nd.ones(1)] * 2)  # the momentum is that of one update
    assert [pulled(store, key, (1,)).tolist() for key in (0, 1)] == [[-1.5], [-1.5]]
    assert made.counts() == {0: 2, 1: 2}


def test_sparse_gradients_reach_a_user_optimizer():
    received = []

    class Rows(mx.optimizer.Optimizer):
        def update(self, index, weight, grad, state):
            received.append((type(grad).__name__, grad.indices.asnumpy().tolist()))
            weight -= grad.tostype("default")

    store = store_of(Rows(), {"w": np.ones((3, 2), "f4")})
    store.push("w", mx.nd.sparse.row_sparse_array((np.ones((1, 2), "f4"), [1]), shape=(3, 2)))
    assert received == [("RowSparseNDArray", [1])]
    assert pulled(store, "w", (3, 2)).tolist() == [[1, 1], [0, 0], [1, 1]]


@pytest.mark.parametrize("dump", [False, True])
def test_states_of_a_user_optimizer_are_saved(tmp_path, dump):
    path = str(tmp_path / "states")
    whole, parts = (store_of(Counting(), {0: [0.0, 0.0]}) for _ in range(2))
    for store in (whole, parts):
        store.push(0, mx.nd.ones(2))
    parts.save_optimizer_states(path, dump_optimizer=dump)
    parts = store_of(Counting(), {0: pulled(parts, 0, (2,))})
    parts.load_optimizer_states(path)
    for store in (whole, parts):
        store.push(0, mx.nd.ones(2))
    assert pulled(whole, 0, (2,)).tolist() == pulled(parts, 0, (2,)).tolist() == [3.0, 3.0]
    again = tmp_path / "again"
    parts.save_optimizer_states(str(again))
    whole.save_optimizer_states(path)
    assert again.read_bytes() == (tmp_path / "states").read_bytes()
    other = store_of(Counting(), {0: [0.0, 0.0, 0.0]})
    other.load_optimizer_states(path)
    with pytest.raises(mx.MXNetError, match="states of counting for key 0"):
        other.push(0, mx.nd.ones(3))
    with pytest.raises(mx.MXNetError, match="of this store's optimizer"):
        store_of(Momentum(), {0: [0.0, 0.0]}).load_optimizer_states(path)


def test_stores_hear_of_changes_but_not_of_updates():
    heard = []

    class Store:
        def _before_numbers_change(self):
            heard.append((made.lr, made.momentum))

    made, store = Momentum(learning_rate=1.0), Store()
    rule = as_rule(made)
    rule.hold(store)
    made.set_learning_rate(0.5)
    made.momentum = 0.25
    assert heard == [(1.0, 0.5), (0.5, 0.5)]
    weight = torch.ones(2)
    rule.prepare(0, weight)
    rule(0, torch.ones(2), weight)
    assert (weight.tolist(), made.num_update, len(heard)) == ([0.5, 0.5], 1, 2)
    copy = pickle.loads(pickle.dumps(rule))
    copy(0, torch.ones(2), weight)
    assert (weight.tolist(), copy.optimizer.num_update, made.num_update) == ([-0.125, -0.125], 2, 1)


def test_workers_agree_on_numbers_of_a_user_optimizer():
    text = as_rule(Momentum(learning_rate=1.0)).agreed()
    assert as_rule(Momentum(learning_rate=1.0)).agreed() == text
    for other in (Momentum(learning_rate=2.0), Momentum(0.25, learning_rate=1.0)):
        assert as_rule(other).agreed() != text
    changed = Momentum(learning_rate=1.0)
    changed.set_lr_mult({"w": 2})
    assert as_rule(changed).agreed() != text
    changed.set_lr_mult({})
    changed.count(0)
    assert as_rule(changed).agreed() == text


def test_a_trainer_takes_a_user_optimizer():
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    made = [Momentum(0.5, learning_rate=0.5), mx.optimizer.SGD(0.5, momentum=0.5)]
    for weight, optimizer in zip(weights, made, strict=True):
        trainer = mx.gluon.Trainer([weight], optimizer)
        for _ in range(2):
            (weight**2).sum().backward()
            trainer.step(2)
        trainer.set_learning_rate(0.25)
        assert trainer.learning_rate == 0.25
    assert weights[0].tolist() == weights[1].tolist() != [1, 1]


# ---- stores -------------------------------------------------------------------------------------------------


class Doubling(mx.kv.KVStoreBase):
    """A store of one worker that returns twice the sum."""

    type, rank, num_workers = "doubling", 0, 1

    def broadcast(self, key, value, out, priority=0):
        for item in out:
            value.copyto(item)

    def pushpull(self, key, value, out=None, priority=0):
        total = sum(value[1:], value[0]) * 2
        for item in out or value:
            total.copyto(item)

    @staticmethod
    def is_capable(capability):
        return False


def test_a_registered_store_is_created_by_name(monkeypatch):
    monkeypatch.setattr(fl.kvstore.base, "_FACTORIES", dict(fl.kvstore.base._FACTORIES))
    assert mx.kv.KVStoreBase.register(Doubling) is Doubling
    assert type(mx.kv.create("Doubling")) is type(fl.kvstore.create("doubling")) is Doubling
    with pytest.raises(ValueError, match="registered already"):
        mx.kv.KVStoreBase.register(Doubling)
    copies = [torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.zeros(1))]
    trainer = mx.gluon.Trainer([copies], "sgd", {"learning_rate": 1.0}, "doubling")
    for copy in copies:
        copy.grad = torch.full((1,), 0.25)
    trainer.step(1)
    assert [copy.item() for copy in copies] == [0.0, 0.0]
    with pytest.raises(ValueError, match="no compression_params"):
        mx.gluon.Trainer(copies[:1], "sgd", kvstore=Doubling(), compression_params={"type": "2bit"})._begin()


def test_a_store_says_which_methods_it_lacks():
    store = mx.kv.KVStoreBase()
    for call in (
        lambda: store.type,
        lambda: store.rank,
        lambda: store.num_workers,
        lambda: store.is_capable("optimizer"),
        lambda: store.broadcast(0, None, None),
        lambda: store.pushpull(0, None),
        lambda: store.set_optimizer(None),
        lambda: store.save_optimizer_states("f"),
        lambda: store.load_optimizer_states("f"),
    ):
        with pytest.raises(NotImplementedError, match="expected KVStoreBase to define"):
            call()
    assert isinstance(mx.kv.create(), mx.kv.KVStoreBase)


def test_the_store_for_tests():
    store = mx.kv.create("teststore")
    arrays = [mx.nd.full(2, 3), mx.nd.full(2, 4)]
    out = mx.nd.zeros(2)
    store.broadcast(0, arrays[0], out)
    assert out.asnumpy().tolist() == [3, 3]
    store.pushpull(0, arrays, out=out)
    assert (out.asnumpy().tolist(), arrays[0].asnumpy().tolist()) == ([7, 7], [3, 3])
    store.pushpull(0, arrays)
    assert [a.asnumpy().tolist() for a in arrays] == [[7, 7], [7, 7]]
    assert (store.type, store.rank, store.num_workers, store.is_capable("optimizer")) == ("teststore", 0, 1, False)
    with pytest.raises(ValueError, match="capability 'optimizer', got 'speed'"):
        store.is_capable("speed")


# ---- initializers, environment, shapes of NumPy -------------------------------------------------------------


def test_bilinear_weights():
    weight = mx.nd.zeros((2, 1, 4, 4))
    mx.init.create("bilinear")("up_weight", weight)
    line = np.array([0.25, 0.75, 0.75, 0.25])
    assert weight.asnumpy().tolist() == [[np.outer(line, line).tolist()]] * 2
    odd = mx.nd.zeros((1, 1, 1, 3))
    mx.init.Bilinear()("up_weight", odd)
    assert odd.asnumpy().reshape(-1) == pytest.approx([1 / 16, 3 / 16, 3 / 16])
    with pytest.raises(ValueError, match=r"four axes for Bilinear, got shape \(3,\)"):
        mx.init.Bilinear()("w_weight", mx.nd.zeros(3))


def test_a_user_initializer():
    class Sevens(mx.init.Initializer):
        def _init_weight(self, name, arr):
            arr[:] = 7

    weight = mx.nd.zeros(2)
    Sevens()("fc_weight", weight)
    assert weight.asnumpy().tolist() == [7, 7]


def test_a_constant_of_an_array():
    constant = mx.init.Constant(mx.nd.array([[1, 2]]))
    assert constant.dumps() == '["constant", {"value": [[1.0, 2.0]]}]'
    weight = mx.nd.zeros((1, 2))
    mx.init.create(constant.dumps())("w_weight", weight)
    assert weight.asnumpy().tolist() == [[1, 2]]


def test_environment(monkeypatch):
    monkeypatch.setenv("FEEDLINE_OLD", "old")
    monkeypatch.delenv("FEEDLINE_NEW", raising=False)
    with mx.test_utils.environment({"FEEDLINE_OLD": None, "FEEDLINE_NEW": 1}):
        assert ("FEEDLINE_OLD" in os.environ, os.environ["FEEDLINE_NEW"]) == (False, "1")
        with mx.test_utils.environment("FEEDLINE_NEW", "2"):
            assert os.environ["FEEDLINE_NEW"] == "2"
        assert os.environ["FEEDLINE_NEW"] == "1"
    assert (os.environ["FEEDLINE_OLD"], "FEEDLINE_NEW" in os.environ) == ("old", False)
    with pytest.raises(TypeError, match="a name and a value"), mx.test_utils.environment("FEEDLINE_NEW"):
        pass


def test_unknown_lengths_under_np_shape():
    x, y = mx.sym.var("x"), mx.sym.var("y")
    with mx.np_shape():
        assert util.is_np_shape()
        assert mx.sym.dot(x, y).infer_shape_partial(x=(-1, 3), y=(3, 5))[1] == [(-1, 5)]
        assert mx.sym.sin(x).infer_shape_partial() == ([None], [None], [])
        assert mx.sym.var("z", shape=(-1, 2)).infer_shape_partial()[0] == [(-1, 2)]
        assert '"is_np_shape"' in x.tojson()
        with mx.np_shape(False):
            assert mx.sym.sin(x).infer_shape_partial(x=(0, 3))[1] == [(0, 3)]
        with pytest.raises(fl.CompatError, match=r"lengths from 1, or -1 .*got \(0, 3\)"):
            mx.sym.sin(x).infer_shape_partial(x=(0, 3))
    assert not mx.is_np_shape()
    assert "is_np_shape" not in x.tojson()
    assert (mx.set_np_shape(True), mx.set_np_shape(False)) == (False, True)

    @mx.np_shape(True)
    def inside():
        return mx.is_np_shape()

    assert (inside(), mx.is_np_shape()) == (True, False)
