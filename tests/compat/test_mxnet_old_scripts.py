"""Other features of MXNet's scripts: operators on arrays, files, random numbers, rates, checkpoints."""

from __future__ import annotations

import logging
import math
import struct
from types import SimpleNamespace

import numpy as np
import pytest

import feedline as fl
import feedline.mxnet as mx
from feedline.kvstore.optimizers import optimizer as core

A = np.arange(12, dtype="f4").reshape(3, 4) - 4
B = np.linspace(0.5, 2, 12, dtype="f4").reshape(3, 4)
a, b = mx.nd.array(A), mx.nd.array(B)
RULES = sorted({*mx.optimizer.Optimizer.opt_registry} - {"test"})

OPERATORS = {
    "concat": (lambda: mx.nd.concat(a, b, dim=0), np.concatenate([A, B])),
    "concatenate": (lambda: mx.nd.concatenate([a, b], axis=1), np.concatenate([A, B], 1)),
    "stack": (lambda: mx.nd.stack(a, b, axis=1), np.stack([A, B], 1)),
    "sum": (lambda: mx.nd.sum(a), A.sum().reshape(1)),
    "sum by position": (lambda: a.sum(1), A.sum(1)),
    "sum, kept": (lambda: a.sum(axis=(0,), keepdims=True), A.sum(0, keepdims=True)),
    "mean": (lambda: a.mean(axis=0), A.mean(0)),
    "max": (lambda: a.max(), A.max().reshape(1)),
    "norm": (lambda: mx.nd.norm(a), np.linalg.norm(A).reshape(1)),
    "transpose": (lambda: mx.nd.transpose(a), A.T),
    "axes as numpy's integers": (lambda: mx.nd.transpose(a, axes=(np.int64(1), np.int64(0))), A.T),
    "T": (lambda: a.T, A.T),
    "swapaxes": (lambda: mx.nd.swapaxes(a, 0, 1), A.T),
    "expand_dims": (lambda: mx.nd.expand_dims(a, axis=1), A[:, None]),
    "clip": (lambda: mx.nd.clip(a, -1, 2), A.clip(-1, 2)),
    "square": (lambda: a.square(), A**2),
    "dot": (lambda: mx.nd.dot(a, b, transpose_b=True), A @ B.T),
    "exp": (lambda: mx.nd.exp(a), np.exp(A)),
    "log": (lambda: b.log(), np.log(B)),
    "argmax": (lambda: a.argmax(axis=1), A.argmax(1)),
    "Activation": (lambda: mx.nd.Activation(a, act_type="relu"), A.clip(0)),
    "softmax": (lambda: mx.nd.softmax(a), np.exp(A) / np.exp(A).sum(1, keepdims=True)),
    "reshape": (lambda: mx.nd.reshape(a, shape=(-1, 2)), A.reshape(-1, 2)),
    "broadcast_add": (lambda: mx.nd.broadcast_add(a, mx.nd.array(B[:1])), A + B[:1]),
    "maximum": (lambda: mx.nd.maximum(a, 1), np.maximum(A, 1)),
    "maximum, turned": (lambda: mx.nd.maximum(1, a), np.maximum(A, 1)),
    "power": (lambda: mx.nd.power(b, a), B**A),
    "modulo": (lambda: mx.nd.modulo(a, 3), np.mod(A, 3)),
    "greater": (lambda: mx.nd.greater(a, b), (A > B).astype("f4")),
    "subtract": (lambda: mx.nd.subtract(2, a), 2 - A),
    "take": (lambda: mx.nd.take(a, mx.nd.array([2, 0])), A[[2, 0]]),
    "where": (lambda: mx.nd.where(a > 0, a, b), np.where(A > 0, A, B)),
    "one_hot": (lambda: mx.nd.one_hot(mx.nd.array([1, 0]), depth=3), np.eye(3)[[1, 0]]),
    "FullyConnected": (lambda: mx.nd.FullyConnected(a, b, num_hidden=3, no_bias=True), A @ B.T),
    "eye": (lambda: mx.nd.eye(2, 3, 1), np.eye(2, 3, 1)),
    "linspace": (lambda: mx.nd.linspace(0, 1, 5), np.linspace(0, 1, 5)),
    "moveaxis": (lambda: mx.nd.moveaxis(mx.nd.zeros((2, 3, 4)), 0, 2), np.zeros((3, 4, 2))),
    "numbers": (lambda: np.float64(mx.nd.power(2, 3)), np.float64(8)),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_are_numpys(name):
    make, expected = OPERATORS[name]
    found = make()
    found = found.asnumpy() if hasattr(found, "asnumpy") else found
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_several_outputs_and_an_array_to_write_to():
    parts = mx.nd.split(a, num_outputs=2, axis=1)
    assert [part.asnumpy().tolist() for part in parts] == [A[:, :2].tolist(), A[:, 2:].tolist()]
    out = mx.nd.zeros((3, 4))
    assert mx.nd.exp(a, out=out) is out
    np.testing.assert_allclose(out.asnumpy(), np.exp(A), rtol=1e-5)
    with pytest.raises(mx.MXNetError, match="expected arrays for lhs, rhs, got 1"):
        mx.nd.dot(a)
    with pytest.raises(mx.MXNetError):
        mx.nd.dot(a, b)
    with pytest.raises(TypeError, match="expected an NDArray for input, got str"):
        mx.nd.concat("a", "b")
    with pytest.raises(AttributeError):
        _ = mx.nd.no_such_operator
    with pytest.raises(fl.CompatError, match="use torch"):
        _ = mx.nd.linalg


def test_operators_take_no_part_in_autograd():
    assert not mx.nd.square(a).tensor.requires_grad
    assert mx.nd.square.__doc__.startswith("`square` of MXNet on arrays")


def test_copies_of_sparse_rows():
    rows = mx.nd.sparse.row_sparse_array((np.ones((1, 2), "f4"), [1]), shape=(3, 2))
    copied = rows.copy()
    rows.set(rows.indices.tensor, rows.data.tensor * 2)
    assert copied.asnumpy().tolist() == [[0, 0], [1, 1], [0, 0]]


# ---- files ----------------------------------------------------------------------------------------


def by_hand(arrays, names=(), old=False):
    """A file as MXNet's source writes it."""
    out = struct.pack("<QQQ", 0x112, 0, len(arrays))
    numbers = {"float32": 0, "float64": 1, "float16": 2, "uint8": 3, "int32": 4, "int8": 5, "int64": 6}
    for array in arrays:
        out += struct.pack("<I", 0xF993FAC8) if old else struct.pack("<Ii", 0xF993FAC9, 0)
        out += struct.pack("<I", array.ndim) + struct.pack(f"<{array.ndim}q", *array.shape)
        out += struct.pack("<iii", 1, 0, numbers[array.dtype.name]) + array.tobytes()
    out += struct.pack("<Q", len(names))
    for name in names:
        out += struct.pack("<Q", len(name)) + name.encode()
    return out


TYPES = [np.arange(6, dtype=t).reshape(2, 3) for t in ("f4", "f8", "f2", "u1", "i4", "i1", "i8")]


def test_files_of_arrays_are_mxnets(tmp_path):
    path = tmp_path / "a.params"
    named = {f"arg:{i}": mx.nd.array(x, dtype=x.dtype) for i, x in enumerate(TYPES)}
    mx.nd.save(str(path), named)
    assert path.read_bytes() == by_hand(TYPES, list(named))
    found = mx.nd.load(str(path))
    assert list(found) == list(named)
    for array, expected in zip(found.values(), TYPES, strict=True):
        assert array.dtype == expected.dtype
        assert array.asnumpy().tolist() == expected.tolist()
    mx.nd.save(path, [a, b])
    assert [x.asnumpy().tolist() for x in mx.nd.load(path)] == [A.tolist(), B.tolist()]
    mx.nd.save(path, a)
    assert path.read_bytes() == by_hand([A])
    path.write_bytes(by_hand([A], ["w"], old=True))
    assert mx.nd.load(path)["w"].asnumpy().tolist() == A.tolist()
    assert mx.nd.load_frombuffer(by_hand([B]))[0].asnumpy().tolist() == B.tolist()


def test_files_that_are_none(tmp_path):
    path, whole = tmp_path / "a.params", by_hand([A, B], ["a", "b"])
    for cut in range(0, len(whole), 7):
        path.write_bytes(whole[:cut])
        with pytest.raises(mx.MXNetError, match="expected"):
            mx.nd.load(path)
    rng = np.random.default_rng(0)
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[rng.integers(len(damaged))] = rng.integers(256)
        path.write_bytes(bytes(damaged))
        try:
            mx.nd.load(path)
        except (mx.MXNetError, fl.CompatError, UnicodeDecodeError):
            pass
    path.write_bytes(struct.pack("<QQQIi", 0x112, 0, 1, 0xF993FAC9, 1) + b"\0" * 40)
    with pytest.raises(fl.CompatError, match="storage type 1"):
        mx.nd.load(path)
    with pytest.raises(fl.CompatError, match="row_sparse"):
        mx.nd.save(path, mx.nd.zeros((2, 2), stype="row_sparse"))
    with pytest.raises(TypeError, match="a list of them"):
        mx.nd.save(path, 3)


def test_checkpoints(tmp_path):
    net = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc")
    arguments = {"fc_weight": b, "fc_bias": mx.nd.ones((3,))}
    mx.model.save_checkpoint(str(tmp_path / "net"), 7, net, arguments, {"mean": a})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net-0007.params", "net-symbol.json"]
    found, args, aux = mx.model.load_checkpoint(str(tmp_path / "net"), 7)
    assert found.tojson() == net.tojson()
    assert {n: x.asnumpy().tolist() for n, x in args.items()} == {n: x.asnumpy().tolist() for n, x in arguments.items()}
    assert aux["mean"].asnumpy().tolist() == A.tolist()
    bound = found.bind(mx.cpu(), {"data": a, **args})
    np.testing.assert_allclose(bound.forward()[0].asnumpy(), A @ B.T + 1, rtol=1e-5)
    mx.callback.do_checkpoint(str(tmp_path / "other"), 2)(0, net, arguments, {})
    assert not (tmp_path / "other-0001.params").exists()
    mx.callback.do_checkpoint(str(tmp_path / "other"), 2)(1, net, arguments, {})
    assert (tmp_path / "other-0002.params").exists()


# ---- random ---------------------------------------------------------------------------------------


def test_numbers_follow_the_seed():
    def drawn():
        return [
            mx.nd.random.uniform(-1, 3, shape=(1000,)),
            mx.random.normal(2, 0.5, shape=(1000,)),
            mx.random.randint(3, 6, shape=(1000,)),
            mx.random.exponential(2, shape=(1000,)),
            mx.random.gamma(2, 3, shape=(1000,)),
            mx.random.poisson(4, shape=(1000,)),
            mx.random.randn(10, 100),
            mx.random.shuffle(mx.nd.arange(1000)),
            mx.random.multinomial(mx.nd.array([0.25, 0.75]), shape=1000),
        ]

    mx.random.seed(5)
    first = [x.asnumpy() for x in drawn()]
    mx.random.seed(5)
    assert all((x == y.asnumpy()).all() for x, y in zip(first, drawn(), strict=True))
    assert any((x != y.asnumpy()).any() for x, y in zip(first, drawn(), strict=True))
    means = [1, 2, 4, 2, 6, 4, 0, 499.5, 0.75]
    for x, mean in zip(first, means, strict=True):
        assert abs(x.mean() - mean) < 5 * x.std() / math.sqrt(1000) + 1e-6
    assert set(first[2].tolist()) == {3, 4, 5}
    assert (first[2].dtype, first[8].dtype) == (np.int32, np.int32)
    out = mx.nd.zeros((3,))
    assert mx.random.uniform(1, 2, out=out) is out
    assert (out.asnumpy() >= 1).all()
    classes, logs = mx.random.multinomial(mx.nd.array([[1.0, 3.0]]), shape=(2, 2), get_prob=True)
    assert classes.shape == logs.shape == (1, 2, 2)
    np.testing.assert_allclose(np.exp(logs.asnumpy()), np.array([0.25, 0.75])[classes.asnumpy()], rtol=1e-5)
    with pytest.raises(ValueError, match="an int as seed, got float"):
        mx.random.seed(1.5)


# ---- optimizers -----------------------------------------------------------------------------------


def nesterov(weights, gradients, lr, momentum, wd, scale, clip):
    """``v = m v - lr g'``, ``w += m v - lr g'``, where g' is rescaled, clipped, and has the weight decay."""
    w, v = weights.astype("f8").copy(), np.zeros(weights.shape)
    for g in gradients:
        g = np.clip(g * scale, -clip, clip) + wd * w
        v = momentum * v - lr * g
        w += momentum * v - lr * g
    return w


def test_draws_by_their_moments():
    mx.random.seed(3)
    like = mx.nd.zeros((100, 400), dtype="float64")
    random = mx.random
    for draw, mean, variance in (
        (lambda: random.negative_binomial(4, 0.25, shape=(100, 400)), 12, 48),
        (lambda: random.generalized_negative_binomial(3, 0.5, shape=(100, 400)), 3, 7.5),
        (lambda: random.generalized_negative_binomial(3, 0, shape=(100, 400)), 3, 3),
        (lambda: random.uniform_like(like, 1, 3), 2, 1 / 3),
        (lambda: random.normal_like(like, 2, 3), 2, 9),
        (lambda: random.exponential_like(like, 4), 0.25, 0.0625),
        (lambda: random.gamma_like(like, 2, 3), 6, 18),
        (lambda: random.poisson_like(like, 4), 4, 4),
        (lambda: random.negative_binomial_like(like, 4, 0.25), 12, 48),
        (lambda: random.generalized_negative_binomial_like(like, 3, 0.5), 3, 7.5),
    ):
        found = draw()
        numbers = found.asnumpy()
        assert numbers.shape == (100, 400)
        assert numbers.mean() == pytest.approx(mean, rel=0.03)
        assert numbers.var() == pytest.approx(variance, rel=0.06)
    assert found.dtype == np.float64
    assert random.normal_like(like, out=like) is like


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_nag(momentum):
    rng = np.random.default_rng(1)
    gradients = rng.normal(size=(5, 3, 4)).astype("f4")
    given = {"learning_rate": 0.1, "wd": 0.01, "rescale_grad": 0.5, "clip_gradient": 0.4}
    weight = mx.nd.array(B)
    update = mx.optimizer.get_updater(mx.optimizer.NAG(momentum=momentum, **given))
    for g in gradients:
        update(0, mx.nd.array(g), weight)
    np.testing.assert_allclose(weight.asnumpy(), nesterov(B, gradients, 0.1, momentum, 0.01, 0.5, 0.4), rtol=1e-5)
    store = mx.kv.create("local")
    store.init(0, mx.nd.array(B))
    store.set_optimizer(mx.optimizer.create("nag", momentum=momentum, **given))
    for g in gradients:
        store.push(0, mx.nd.array(g))
    out = mx.nd.zeros((3, 4))
    store.pull(0, out)
    assert out.asnumpy().tolist() == weight.asnumpy().tolist()


@pytest.mark.parametrize("name", RULES)
def test_parameters_of_mxnet_at_their_defaults(name):
    left = {
        "multi_precision": False, "lr_scheduler": None, "param_idx2name": {0: "w_weight"}, "begin_num_update": 0,
        "param_dict": {}, "sym": None, "aggregate_num": 4,
    }  # fmt: skip
    made = mx.optimizer.create(name.upper(), learning_rate=0.5, wd=0.25, clip_gradient=-1, **left)
    assert isinstance(made, mx.optimizer.Optimizer)
    assert made.parameters() == core(name.replace("cc", ""), learning_rate=0.5, wd=0.25).parameters()
    assert (made.lr, type(made).__name__.lower(), made.clip_gradient) == (0.5, name, None)
    assert getattr(mx.optimizer, type(made).__name__) is type(made)
    made.set_learning_rate(0.125)
    assert made.lr == made.learning_rate == 0.125
    made.lr = 0.25
    assert made.learning_rate == made.parameters()["learning_rate"] == 0.25
    with pytest.raises(mx.MXNetError, match="got speed"):
        mx.optimizer.create(name, speed=1)


def updated(optimizer, key, pushes=1, dtype="float32", gradient=1.0):
    """How a weight of 1 changes in a store."""
    store, out = mx.kv.create("local"), mx.nd.zeros((1,), dtype=dtype)
    store.init(key, mx.nd.ones((1,), dtype=dtype))
    store.set_optimizer(optimizer)
    for _ in range(pushes):
        store.push(key, mx.nd.full((1,), gradient, dtype=dtype))
    store.pull(key, out)
    return float(out.asscalar()) - 1


def test_multipliers():
    """lr 1, wd 0.25, gradient 0: the weight loses lr wd times the multipliers."""

    def lost(key, lr_mult=(), wd_mult=(), **given):
        made = mx.optimizer.SGD(learning_rate=1.0, wd=0.25, **given)
        made.set_lr_mult(dict(lr_mult))
        if wd_mult:
            made.set_wd_mult(dict(wd_mult))
        return -updated(made, key, gradient=0.0)

    names = {0: "fc_weight", 1: "bn_gamma", 2: "fc_bias"}
    assert [lost(key, param_idx2name=names) for key in range(4)] == [0.25, 0.25, 0, 0.25]
    assert lost(0, {"fc_weight": 0.5}, param_idx2name=names) == 0.125
    assert lost(0, {"fc_weight": 0.5, 0: 0.25}, param_idx2name=names) == 0.0625  # a key before its name
    assert lost("w", {"w": 0.5}, {"w": 0.5}) == 0.0625
    assert lost(2, (), {"fc_bias": 2}, param_idx2name=names) == 0.5
    parameter = SimpleNamespace(lr_mult=0.5, wd_mult=0.5)
    assert lost(0, {0: 3}, param_dict={0: parameter}) == 0.0625
    net = mx.sym.FullyConnected(mx.sym.var("x"), mx.sym.var("w_weight", lr_mult=0.5, wd_mult=3), num_hidden=1)
    assert lost(0, (), param_idx2name={0: "w_weight"}, sym=net) == 0.375
    # Every rule takes them: without weight decay, a rate of 0 changes nothing.
    for name in set(RULES) - {"adadelta", "ftml", "ftrl"}:
        made = mx.optimizer.create(name, learning_rate=0.5)
        made.set_lr_mult({"w": 0.0})
        assert updated(made, "w") == 0, name
        assert updated(made, "v") != 0, name
    assert updated(made, "v") != 0
    # An array that LARS leaves alone is known by its name.
    plain, scaled = ({0: "fc_bias"}, -0.5), ({0: "fc_weight"}, -0.0005)
    for given, expected in (plain, scaled):
        assert updated(mx.optimizer.LARS(learning_rate=0.5, param_idx2name=given), 0) == pytest.approx(
            expected, rel=1e-3
        )


@pytest.mark.parametrize("where", ["store", "updater"])
def test_a_scheduler_gets_the_largest_count_of_all_keys(where):
    asked = []

    def schedule(num_update):
        asked.append(num_update)
        return 2.0**-num_update

    made = mx.optimizer.SGD(learning_rate=1.0, lr_scheduler=schedule, begin_num_update=2)
    weights = {key: mx.nd.zeros((1,)) for key in "ab"}
    store, update = mx.kv.create("local"), mx.optimizer.get_updater(made)
    store.init(list("ab"), list(weights.values()))
    if where == "store":
        store.set_optimizer(made)
    expected, counts, most = dict.fromkeys("ab", 0.0), dict.fromkeys("ab", 2), 2
    for key in "aabab":
        counts[key] += 1
        most = max(most, counts[key])
        expected[key] -= 2.0**-most
        if where == "store":
            store.push(key, mx.nd.ones((1,)))
            store.pull(key, weights[key])
        else:
            update(key, mx.nd.ones((1,)), weights[key])
    assert {key: weight.asscalar() for key, weight in weights.items()} == expected
    assert asked == [3, 4, 4, 5, 5]
    assert (made.num_update, made.learning_rate, made.lr) == (5, 2.0**-5, 1.0)
    with pytest.raises(UserWarning, match="already been defined"):
        made.set_learning_rate(3)


def test_lbsgd_asks_its_scheduler_before_it_counts():
    rates = mx.lr_scheduler.MultiFactorScheduler([1], 0.5)
    for kind, expected in ((mx.optimizer.SGD, 1.5), (mx.optimizer.LBSGD, 2.0)):
        rates = mx.lr_scheduler.MultiFactorScheduler([1], 0.5)
        assert updated(kind(learning_rate=1.0, lr_scheduler=rates), 0, pushes=2) == -expected


def test_counts_go_on_from_a_file(tmp_path):
    """Scheduler and bias correction go on where the saved store was."""

    def made():
        return mx.optimizer.Adam(learning_rate=1.0, lr_scheduler=mx.lr_scheduler.FactorScheduler(2, 0.5))

    def fresh(weights):
        store = mx.kv.create("local")
        store.init([0, 1], weights)
        store.set_optimizer(made())
        return store

    def pulled(store):
        out = [mx.nd.zeros((1,)), mx.nd.zeros((1,))]
        store.pull([0, 1], out)
        return out

    one = mx.nd.ones((1,))
    whole, parts = fresh([one, one]), fresh([one, one])
    for store in (whole, parts):
        store.push([0, 1], [one, one])
        for _ in range(4):
            store.push(0, one)
    parts.save_optimizer_states(str(tmp_path / "s"), dump_optimizer=True)
    parts = fresh(pulled(parts))
    parts.load_optimizer_states(str(tmp_path / "s"))
    for store in (whole, parts):
        store.push(1, one)  # at the rate of the other key
    assert [w.asscalar() for w in pulled(parts)] == [w.asscalar() for w in pulled(whole)]


def test_updates_before_the_first_count_for_adam():
    later = updated(mx.optimizer.Adam(learning_rate=0.5, begin_num_update=9), 0)
    rate = 0.5 * math.sqrt(1 - 0.999**10) / (1 - 0.9**10)
    assert later == pytest.approx(-rate * 0.1 / (math.sqrt(0.001) + 1e-8), rel=1e-4)


def test_half_precision_with_a_copy_in_single():
    small = {"learning_rate": 2.0**-13}
    assert updated(mx.optimizer.SGD(**small), 0, 64, "float16") == 0
    assert updated(mx.optimizer.SGD(multi_precision=True, **small), 0, 64, "float16") == -(2.0**-7)


def test_workers_have_to_agree_on_multipliers_and_schedulers():
    made = mx.optimizer.SGD()
    same = made.agreed()
    made.set_lr_mult({"w": 2})
    assert made.agreed() != same
    made.set_lr_mult({})
    assert made.agreed() == same
    made.lr_scheduler = mx.lr_scheduler.FactorScheduler(2, 0.5)
    assert made.agreed() != same


def test_a_trainer_with_a_scheduler():
    torch = pytest.importorskip("torch")
    weight = torch.zeros(1, requires_grad=True)
    rates = mx.lr_scheduler.FactorScheduler(1, 0.5)
    trainer = mx.gluon.Trainer([weight], "sgd", {"learning_rate": 1.0, "lr_scheduler": rates}, kvstore=None)
    for _ in range(3):
        weight.sum().backward()
        trainer.step(1)
    assert (weight.item(), trainer.learning_rate) == (-1.75, 0.25)
    with pytest.raises(UserWarning, match="set its base_lr"):
        trainer.set_learning_rate(1.0)


def test_schedulers():
    """By their formulas, for the updates 1 to 8."""
    schedulers = mx.lr_scheduler
    warm = {"base_lr": 1.0, "warmup_steps": 4, "warmup_begin_lr": 0.2}

    def rates(scheduler):
        return [scheduler(n) for n in range(1, 9)]

    assert rates(schedulers.FactorScheduler(3, 0.5, base_lr=1.0)) == [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25]
    assert rates(schedulers.FactorScheduler(1, 0.1, 0.01, base_lr=1.0))[-1] == 0.01
    assert rates(schedulers.MultiFactorScheduler([2, 5], 0.1, base_lr=1.0)) == pytest.approx(
        [1] * 2 + [0.1] * 3 + [0.01] * 3
    )
    assert rates(schedulers.PolyScheduler(4, 1.0, 2, 0.2)) == pytest.approx(
        [0.2 + 0.8 * (1 - min(n, 4) / 4) ** 2 for n in range(1, 9)]
    )
    assert rates(schedulers.CosineScheduler(8, **warm)) == pytest.approx(
        [0.2 + 0.8 * n / 4 if n < 4 else (1 + math.cos(math.pi * (n - 4) / 4)) / 2 for n in range(1, 9)]
    )
    assert schedulers.PolyScheduler(8, **warm, warmup_mode="constant")(3) == 0.2
    with pytest.raises(NotImplementedError, match="to be overridden"):
        schedulers.LRScheduler()(9)
    for wrong in (
        lambda: schedulers.FactorScheduler(0), lambda: schedulers.FactorScheduler(1, 2),
        lambda: schedulers.MultiFactorScheduler([3, 3]), lambda: schedulers.PolyScheduler(0),
        lambda: schedulers.LRScheduler(0.1, warmup_begin_lr=1), lambda: schedulers.LRScheduler(warmup_mode="cubic"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="expected"):
            wrong()


@pytest.mark.parametrize(("name", "instead"), [("nccl", "device"), ("horovod", "dist_device_sync")])
def test_stores_over_other_libraries_name_ours(name, instead):
    with pytest.raises(mx.MXNetError, match=f"without {name}: use '{instead}'"):
        mx.kv.create(name)


def test_small_things_that_scripts_ask_for():
    (batch, _) = mx.io.NDArrayIter(np.ones((4, 2)), [], 2)
    assert (batch.label, batch.data[0].shape) == ([], (2, 2))
    with pytest.raises(mx.base.NotImplementedForSymbol, match="no truth value"):
        bool(mx.sym.var("a"))
    metric = mx.metric.create("acc")
    metric.update([mx.nd.array([0])], [mx.nd.array([[1.0, 0.0]])])
    names = {"output_names": None, "label_names": None}
    assert metric.get_config() == {"metric": "Accuracy", "name": "accuracy", "axis": 1, **names}
    metric.reset_local()
    assert math.isnan(metric.get()[1])
    assert mx.init.Constant(mx.nd.ones((2,))).dumps() == '["constant", {"value": [1.0, 1.0]}]'
    assert mx.init.Constant(3.5).dumps() == '["constant", {"value": 3.5}]'


# ---- callbacks and test utilities -----------------------------------------------------------------


def test_lines_of_callbacks(caplog, monkeypatch):
    now = iter(range(0, 1000, 2))
    monkeypatch.setattr(mx.callback.time, "time", lambda: next(now))
    metric = mx.metric.create("acc")
    metric.update([mx.nd.array([0, 1])], [mx.nd.array([[0.9, 0.1], [0.9, 0.1]])])
    speed, log = mx.callback.Speedometer(10, 2, auto_reset=False), mx.callback.log_train_metric(3, True)
    with caplog.at_level(logging.INFO):
        for i in range(4):
            speed(mx.model.BatchEndParam(1, i, metric, None))
        speed(SimpleNamespace(epoch=2, nbatch=0, eval_metric=None))
        speed(SimpleNamespace(epoch=2, nbatch=2, eval_metric=None))
        log(SimpleNamespace(epoch=1, nbatch=3, eval_metric=metric))
    assert [record.getMessage() for record in caplog.records] == [
        "Epoch[1] Batch [0-2]\tSpeed: 10.00 samples/sec\taccuracy=0.500000",
        "Iter[2] Batch [2]\tSpeed: 10.00 samples/sec",
        "Iter[1] Batch[3] Train-accuracy=0.500000",
    ]
    assert math.isnan(metric.get()[1])


def test_test_utilities():
    utils = mx.test_utils
    assert utils.same(a, A)
    assert not utils.same(a, b)
    utils.assert_almost_equal(a, A + 1e-5)
    assert not utils.almost_equal(a, A + 0.1)
    assert utils.almost_equal(mx.nd.array(A, dtype="float16"), A + 0.05)
    with pytest.raises(AssertionError, match="x and y differ"):
        utils.assert_almost_equal(a, b, names=("x", "y"))
    utils.assert_exception(int, ValueError, "a")
    with pytest.raises(AssertionError, match="expected KeyError, got none"):
        utils.assert_exception(int, KeyError, "1")
    np.random.seed(0)
    assert utils.rand_ndarray((3, 4)).shape == (3, 4)
    made, (rows, ids) = utils.rand_sparse_ndarray((20, 2), "row_sparse", 0.5)
    assert (made.stype, rows.shape[0]) == ("row_sparse", ids.shape[0])
    assert 0 < rows.shape[0] < 20
    assert [len(utils.rand_shape_2d()), len(utils.rand_shape_3d()), len(utils.rand_shape_nd(5))] == [2, 3, 5]
    one, two = utils.random_arrays((2, 3), (4,))
    assert (one.shape, two.dtype, utils.random_arrays(()).shape) == ((2, 3), np.float32, ())
    assert utils.default_context() == mx.cpu()
    utils.set_default_context(mx.cpu(1))
    assert utils.default_context() == mx.cpu(1)
    utils._default.clear()
    assert utils.default_dtype() is np.float32
