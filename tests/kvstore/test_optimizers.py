"""Optimizers in a store: MXNet's rules compared with slow ones, states in files, users' optimizers."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feedline import mxnet
from feedline.errors import StateError
from feedline.interop.tensor_file import load_tensors, replace_tensors
from feedline.kvstore import Optimizer, RefusedError, create, optimizer, register_optimizer
from feedline.kvstore import optimizers as rules
from feedline.kvstore.optimizers import in_every_process
from feedline.mxnet._rarer_rules import LAMBOptimizer, drawn_by
from feedline.updates import formulas
from tests.inside import updater_of
from tests.oracles.update_rules import follow

RULES = [
    ("sgd", {"learning_rate": 0.1}),
    ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.1, "rescale_grad": 0.5}),
    ("sgd", {"wd": 0.1, "clip_gradient": 0.3}),
    ("momentum", {"learning_rate": 0.1}),
    ("adam", {"learning_rate": 0.1, "wd": 0.1, "clip_gradient": 0.5}),
    ("rmsprop", {"learning_rate": 0.1, "gamma1": 0.7, "wd": 0.1}),
    ("adagrad", {"learning_rate": 0.1, "wd": 0.1, "rescale_grad": 2.0}),
    ("test", {"rescale_grad": 0.5}),
]
MORE_RULES = [
    ("rmsprop", {"learning_rate": 0.1, "gamma2": 0.5, "centered": True, "wd": 0.1, "clip_weights": 1.5}),
    ("adadelta", {"rho": 0.7, "wd": 0.1, "rescale_grad": 0.5}),
    ("adamax", {"learning_rate": 0.1, "wd": 0.1, "clip_gradient": 0.5}),
    ("adamax", {"learning_rate": 0.1}),
    ("nadam", {"learning_rate": 0.1, "wd": 0.1, "schedule_decay": 0.1}),
    ("ftml", {"learning_rate": 0.1, "wd": 0.1, "clip_gradient": 0.5}),
    ("ftrl", {"lamda1": 0.2, "wd": 0.1, "rescale_grad": 0.5}),
    ("signum", {"wd": 0.1, "wd_lh": 0.1, "clip_gradient": 0.5}),
    ("signum", {"momentum": 0.0, "wd": 0.1}),
    ("dcasgd", {"learning_rate": 0.1, "lamda": 0.5, "wd": 0.1}),
    ("dcasgd", {"learning_rate": 0.1, "lamda": 0.5, "momentum": 0.9}),
    ("sgld", {"wd": 0.1, "seed": 3}),
    ("lamb", {"learning_rate": 0.1, "wd": 0.1, "lower_bound": 0.5, "upper_bound": 1.5}),
    ("lamb", {"learning_rate": 0.1, "bias_correction": False}),
    ("lars", {"learning_rate": 0.5, "wd": 0.1, "momentum": 0.9, "eta": 0.5, "eps": 0.1, "rescale_grad": 0.5}),
    ("lbsgd", {"learning_rate": 0.1, "wd": 0.1, "momentum": 0.9, "batch_scale": 2, "begin_epoch": 1}),
    ("lbsgd", {"learning_rate": 0.1, "batch_scale": 3, "warmup_strategy": "power2", "warmup_epochs": 1}),
    ("lbsgd", {"learning_rate": 0.1, "batch_scale": 2, "warmup_strategy": "sqrt", "updates_per_epoch": 1}),
    ("lbsgd", {"learning_rate": 0.1, "warmup_strategy": "lars", "wd": 0.1}),
]


def slow(name, p, w, gradients):
    """One weight, one number, step by step, from the formulas."""
    lr, wd, momentum = p["learning_rate"], p["wd"], p.get("momentum", 0)
    m = n = 0.0
    for t, g in enumerate(gradients, 1):
        g *= p["rescale_grad"]
        if name in ("adam", "rmsprop"):
            g += wd * w
        if p["clip_gradient"] is not None:
            g = max(-p["clip_gradient"], min(p["clip_gradient"], g))
        if name in ("sgd", "momentum"):
            m = momentum * m - lr * (g + wd * w)
            w += m
        elif name == "adam":
            m = p["beta1"] * m + (1 - p["beta1"]) * g
            n = p["beta2"] * n + (1 - p["beta2"]) * g * g
            w -= lr * math.sqrt(1 - p["beta2"] ** t) / (1 - p["beta1"] ** t) * m / (math.sqrt(n) + p["epsilon"])
        elif name == "rmsprop":
            n = p["gamma1"] * n + (1 - p["gamma1"]) * g * g
            w -= lr * g / math.sqrt(n + p["epsilon"])
        elif name == "adagrad":
            n += g * g
            w -= lr * (g / math.sqrt(n + p["eps"]) + wd * w)
        else:
            w += g
    return w


@pytest.mark.parametrize(("name", "given_"), RULES)
@given(st.floats(-2, 2), st.lists(st.floats(-2, 2), min_size=1, max_size=5))
def test_rules(name, given_, start, gradients):
    rule = optimizer(name, **given_)
    store = create()
    store.init("w", torch.tensor([start, 1.0], dtype=torch.float64))
    store.set_optimizer(rule)
    for gradient in gradients:
        store.push("w", torch.tensor([gradient, 0.0], dtype=torch.float64))
    out = torch.empty(2, dtype=torch.float64)
    store.pull("w", out)
    # Betas are single precision, as in MXNet.
    assert out[0].item() == pytest.approx(slow(name, rule.parameters(), start, gradients), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(("name", "given_"), MORE_RULES)
@pytest.mark.parametrize("still", [False, True])
def test_more_rules(name, given_, still):
    """Arrays in double precision, compared with NumPy. ``still``: the first gradients of one element are zero."""
    rng = np.random.default_rng(len(name))
    start, gradients = rng.normal(size=(2, 3)), rng.normal(size=(7, 2, 3))
    gradients[: 3 if still else 0, 0, 0] = 0
    rule = optimizer(name, **given_)
    store = create()
    store.init("w", torch.tensor(start))
    store.set_optimizer(rule)
    for gradient in gradients:
        store.push("w", torch.tensor(gradient))

    def noise(t):
        return torch.randn(2, 3, generator=drawn_by(rule.seed, "w", t), dtype=torch.float64).numpy()

    out = torch.empty(2, 3, dtype=torch.float64)
    store.pull("w", out)
    np.testing.assert_allclose(out.numpy(), follow(name, rule.parameters(), start, gradients, noise), rtol=1e-9)


def test_draws_are_normal_and_differ_by_key_and_update():
    store = create()
    store.init(["a", "b"], [torch.zeros(40000)] * 2)
    store.set_optimizer("sgld", learning_rate=0.25)
    out = [torch.empty(40000), torch.empty(40000)]
    store.pushpull(["a", "b"], [torch.zeros(40000)] * 2, out)
    first = out[0].clone()
    assert (abs(first.mean()) < 0.02, abs(first.std() - 0.5) < 0.02) == (True, True)
    assert abs(torch.dot(first, out[1])) / 40000 < 0.01
    store.pushpull("a", torch.zeros(40000), out[0])
    assert abs(torch.dot(first, out[0] - first)) / 40000 < 0.01


def test_momentum_is_corrected_after_a_change_of_the_rate():
    rule = optimizer("lars", learning_rate=1.0, momentum=0.5, eta=1.0)
    store = create()
    store.init(["w", "bias"], [torch.full((1,), 8.0)] * 2)
    store.set_optimizer(rule)
    for rate in (1.0, 0.25, 0.25):
        rule.learning_rate = rate
        store.push(["w", "bias"], [torch.full((1,), 2.0)] * 2)
    # A step of a bias is the rate times its gradient. For others, it is also times the weight, unless that is zero.
    assert pulled(store, "bias") == [8 - 2 + (-0.125 * 2 - 0.5) + (0.5 * -0.75 - 0.5)]
    assert pulled(store, "w") == [8 - 8 + (-0.125 * 8 - 0.5) + (0.5 * -1.5 - 0.25 * 1.5)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("sparse", [False, True])
def test_half_precision_is_kept_in_single(dtype, sparse, tmp_path):
    """Steps too small for the weight's dtype add up, also across files."""
    value = torch.sparse_coo_tensor([[0, 1]], torch.ones(2, 1, dtype=dtype), (2, 1), check_invariants=True)
    value = value if sparse else value.to_dense()

    def trained(wide, restart):
        store, rate = create(), 2.0**-13
        store.init("w", torch.ones(2, 1, dtype=dtype))
        for i in range(64):
            if i == 0 or (restart and i == 30):
                store.set_optimizer("sgd", learning_rate=rate, momentum=0.5, multi_precision=wide)
            if restart and i == 30:
                store.load_optimizer_states(tmp_path / "s")
            store.push("w", value)
            if i == 29:
                store.save_optimizer_states(tmp_path / "s")
        return pulled(store, "w", (2, 1)), updater_of(store).states()["w"]

    assert trained(False, False)[0] == [[1], [1]]
    weights, (states, count) = trained(True, False)
    assert (sorted(states), count) == (["master", "momentum"], 64)
    assert states["master"].flatten().tolist() == pytest.approx([1 - 2.0**-12 * 63] * 2, abs=1e-6)
    assert weights == states["master"].to(dtype).tolist()
    for name, state in trained(True, True)[1][0].items():
        assert state.dtype is torch.float32
        assert torch.equal(state, states[name])


@pytest.mark.parametrize(("name", "given_"), [*RULES, *MORE_RULES])
def test_gradients_of_rows(name, given_):
    """Lazy rules do not change other rows. Other rules behave as with zero gradients there."""
    rule = optimizer(name, **given_)
    start, ids = torch.randn(5, 2), torch.tensor([3, 1])
    values = [torch.randn(2, 2) for _ in range(3)]

    def run(shape, sparse):
        store = create()
        store.init("w", start if shape == "whole" else start[ids])
        store.set_optimizer(name, **given_)
        for value in values:
            rows = torch.sparse_coo_tensor(ids[None], value, (5, 2), check_invariants=True)
            store.push("w", rows if sparse else rows.to_dense() if shape == "whole" else value)
        out = torch.empty(5 if shape == "whole" else 2, 2)
        store.pull("w", out)
        return out

    actual = run("whole", sparse=True)
    if getattr(rule, "lazy_update", False):
        expected = start.clone()
        expected[ids] = run("rows", sparse=False)
    else:
        expected = run("whole", sparse=False)
    torch.testing.assert_close(actual, expected)


def test_a_single_gradient_is_checked_like_several():
    """It takes a faster path."""
    single, listed = create(), create()
    for store in (single, listed):
        store.init("w", torch.ones(3))
        store.set_optimizer("adam", learning_rate=0.1)
    for gradient in torch.randn(4, 3):
        single.push("w", gradient)
        listed.push(["w"], [[gradient]])
    assert pulled(single, "w", (3,)) == pulled(listed, "w", (3,))
    assert updater_of(single).states()["w"][1] == 4
    for wrong in (
        torch.ones(3, dtype=torch.float64),
        torch.ones(3, dtype=torch.float16),
        torch.ones(1),
        torch.ones(3, 1),
    ):
        with pytest.raises(RefusedError, match=r"value of shape \(3,\) and torch.float32 for key 'w'"):
            single.push("w", wrong)
    single.push("w", np.ones(3, "f4"))
    assert pulled(single, "w", (3,)) != pulled(listed, "w", (3,))


def pushed(name, given_, apart, dtypes, alone):
    """Return the weights after pushes of all keys, together or one by one. Key 2 had one before, key 3 gets rows."""
    rng = np.random.default_rng(5)
    shapes = [(3,), (70_001,), (2, 5), (40, 3), (1,), (4, 4)]
    store = create("local")
    store.set_optimizer(optimizer(name, **given_))
    keys = list(range(len(shapes)))
    draw = [lambda s=s, d=d: torch.tensor(rng.normal(size=s)).to(d) for s, d in zip(shapes, dtypes, strict=True)]
    store.init(keys, [make() for make in draw])
    store.push(2, draw[2]())
    outs = [make() for make in draw]
    for _ in range(3):
        gradients = [make() for make in draw]
        if not apart:
            gradients[3] = torch.sparse_coo_tensor(
                torch.tensor([[1, 7]]), gradients[3][:2], shapes[3], check_invariants=True
            ).coalesce()
        if alone:
            for key, gradient in zip(keys, gradients, strict=True):
                store.push(key, gradient)
        else:
            store.push(keys, gradients)
    store.pull(keys, outs)
    return outs


@pytest.mark.parametrize(("name", "given_"), [*RULES, *MORE_RULES])
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("wide", [False, True])
def test_many_keys_of_a_push_are_updated_as_each_alone(name, given_, rows, wide):
    """Bit for bit, with any counts, shapes, dtypes and layouts."""
    types = [torch.float32, torch.float32, torch.float64, torch.float32, torch.bfloat16, torch.float16]
    options = {**given_, "multi_precision": wide}
    together, alone = (pushed(name, options, not rows, types, each) for each in (False, True))
    assert all(map(torch.equal, together, alone))


@pytest.mark.parametrize("overridden", ["rule", "__call__"])
def test_a_rule_that_continues_after_a_formula_is_not_deferred(overridden):
    """A subclass that changes the weight after its parent's update sees the updated weight."""

    class Bounded(rules.SGD):
        pass

    def bounded(self, *arguments):
        getattr(super(Bounded, self), overridden)(*arguments)
        arguments[2 if overridden == "__call__" else 0].clamp_(-1, 1)

    setattr(Bounded, overridden, bounded)
    store = create("local")
    store.set_updater(Bounded(learning_rate=1.0))
    store.init([0, 1], [torch.zeros(3), torch.zeros(2)])
    outs = [torch.empty(3), torch.empty(2)]
    for _ in range(2):
        store.push([0, 1], [torch.full((3,), -5.0), torch.full((2,), 0.5)])
        store.push(0, torch.full((3,), -5.0))
    store.pull([0, 1], outs)
    assert [out.tolist() for out in outs] == [[1.0] * 3, [-1.0] * 2]


def test_a_push_that_fails_half_way_counts_its_updates():
    """Weights and counts agree: keys before the failed one are updated."""
    store, rule = create("local"), optimizer("adam", learning_rate=0.1)
    store.set_optimizer(rule)
    store.init([0, 1, 2], [torch.zeros(2) for _ in range(3)])
    updater, usual = updater_of(store), type(rule).at

    def failing(self, key, count):
        if key == 1:
            raise RuntimeError("no rate for 1")
        return usual(self, key, count)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(updater), "at", failing)
        with pytest.raises(RuntimeError, match="no rate for 1"):
            store.push([0, 1, 2], [torch.ones(2) for _ in range(3)])
    outs = [torch.empty(2) for _ in range(3)]
    store.pull([0, 1, 2], outs)
    counted = [updater.states()[key][1] for key in range(3)]
    assert counted == [1, 0, 0]
    assert [bool(out.any()) for out in outs] == [count > 0 for count in counted]


def test_threads_share_an_optimizer_without_states(monkeypatch):
    """Updates that one store defers do not reach another, however their threads take turns."""
    rule = optimizer("sgd", learning_rate=1.0)
    stores = {name: create("local") for name in ("first", "second")}
    for store in stores.values():
        store.set_updater(rule)
        store.init([0, 1], [torch.zeros(3), torch.zeros(2)])
    second_began, first_reads, second_ended = (threading.Event() for _ in range(3))
    at, numbers = type(rule).at, formulas.StepFormula.numbers

    def paused_at(self, key, count):
        if threading.current_thread().name == "second":
            second_began.set()
            first_reads.wait(5)
        else:
            second_began.wait(5)
        return at(self, key, count)

    def paused_numbers(self):
        if threading.current_thread().name == "first":
            first_reads.set()
            second_ended.wait(5)
        return numbers(self)

    monkeypatch.setattr(type(rule), "at", paused_at)
    monkeypatch.setattr(formulas.StepFormula, "numbers", paused_numbers)

    def work(name):
        stores[name].push([0, 1], [torch.full((3,), -1.0), torch.full((2,), -1.0)])
        if name == "second":
            second_ended.set()

    threads = [threading.Thread(target=work, args=(name,), name=name) for name in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for store in stores.values():
        outs = [torch.empty(3), torch.empty(2)]
        store.pull([0, 1], outs)
        assert [out.tolist() for out in outs] == [[1.0] * 3, [1.0] * 2]


def test_sums_over_devices_are_rescaled():
    store = create()
    store.init("w", torch.zeros(1))
    store.set_optimizer("sgd", learning_rate=1.0, rescale_grad=0.25)
    store.push("w", [torch.ones(1)] * 4)
    assert pulled(store) == [-1]


def test_numbers_may_change():
    store = create()
    rule = optimizer("sgd", learning_rate=1.0)
    store.init("w", torch.zeros(1))
    store.set_optimizer(rule)
    store.push("w", torch.ones(1))
    rule.learning_rate = 0.5
    store.push("w", torch.ones(1))
    assert pulled(store) == [-1.5]


@pytest.mark.parametrize("value", [None, "0.1", float("nan"), torch.tensor(0.1), 10**400])
def test_numbers_are_checked_when_they_change(value):
    rule = optimizer("adam")
    with pytest.raises(RefusedError, match=r"number of at most 1e\+30 as learning_rate"):
        rule.learning_rate = value
    rule.learning_rate = np.float32(0.5)
    assert rule.parameters()["learning_rate"] == 0.5
    json.dumps(rule.parameters())


def test_a_momentum_may_come_and_go(tmp_path):
    store, rule = create(), optimizer("sgd", learning_rate=1.0)
    store.init("w", torch.zeros(1))
    store.set_optimizer(rule)
    store.push("w", torch.ones(1))
    rule.momentum = 0.5
    store.save_optimizer_states(tmp_path / "s")
    store.load_optimizer_states(tmp_path / "s")
    for _ in range(2):
        store.push("w", torch.ones(1))
    assert pulled(store) == [-3.5]
    rule.momentum = 0.0
    store.push("w", torch.ones(1))
    store.save_optimizer_states(tmp_path / "s")
    store.load_optimizer_states(tmp_path / "s")
    assert pulled(store) == [-4.5]


def test_stores_do_not_share_states():
    first, second, rule = create(), create(), optimizer("momentum")
    first.init("w", torch.zeros(1))
    first.set_optimizer(rule)
    first.push("w", torch.ones(1))
    with pytest.raises(RefusedError, match="one optimizer per store"):
        second.set_optimizer(rule)
    assert rule.states()["w"][1] == 1  # not forgotten
    first.set_optimizer("sgd")
    second.set_optimizer(rule)
    plain = optimizer("sgd")
    for store in (first, second):
        store.set_optimizer(plain)
    second.close()
    first.close()
    create().set_optimizer(rule)


def test_a_new_optimizer_starts_from_zero():
    store = create()
    store.init("w", torch.zeros(1))
    rule = optimizer("momentum", learning_rate=1.0)
    store.set_optimizer(rule)
    store.push("w", torch.ones(1))
    store.set_optimizer(rule)
    store.push("w", torch.ones(1))
    assert pulled(store) == [-2]  # with the old momentum it would be -2.9


def pulled(store, key="w", shape=(1,)):
    out = torch.empty(shape)
    store.pull(key, out)
    return out.tolist()


@pytest.mark.parametrize(
    ("name", "given_"),
    [
        ("sgd", {"learning_rate": "0.1"}),
        ("sgd", {"learning_rate": float("inf")}),
        ("sgd", {"momentum": True}),
        ("sgd", {"lazy_update": 1.5, "momentum": None}),
        ("adam", {"momentum": 0.9}),
        ("adam", {"beta1": 1.0}),
        ("adam", {"beta2": 1.5}),
        ("nothing", {}),
        ("adadelta", {"rho": 1.0}),
        ("lamb", {"bias_correction": 1}),
        ("lamb", {"beta1": 1.0}),
        ("lars", {"lazy_update": True}),
        ("lbsgd", {"batch_scale": 0}),
        ("lbsgd", {"batch_scale": 1.5}),
        ("lbsgd", {"warmup_strategy": "cubic"}),
        ("sgd", {"multi_precision": 1}),
    ],
)
def test_parameters_are_checked(name, given_):
    with pytest.raises(RefusedError):
        optimizer(name, **given_)


def test_integers_are_no_weights():
    store = create()
    store.init(["w", "n"], [torch.zeros(1), torch.zeros(1, dtype=torch.int32)])
    store.set_optimizer("test")
    with pytest.raises(RefusedError, match="floating point for key 'n'"):
        store.push(["w", "n"], [torch.ones(1), torch.ones(1, dtype=torch.int32)])
    assert pulled(store) == [0]


# ---- states ---------------------------------------------------------------------------------------


def trained(name, given_, keys, pushes, store=None):
    if store is None:
        store = create()
        store.init(keys, [torch.ones(2) for _ in keys])
        store.set_optimizer(name, **given_)
    for i in pushes:
        store.push(keys, [torch.full((2,), 0.5 + i) for _ in keys])
    return store


@pytest.mark.parametrize(("name", "given_"), [*RULES, *MORE_RULES])
@pytest.mark.parametrize("keys", [[3, 1], ["b", "a"]])
def test_a_loaded_store_goes_on_as_the_one_that_never_stopped(name, given_, keys, tmp_path):
    uninterrupted = trained(name, given_, keys, range(5))
    first = trained(name, given_, keys, range(3))
    first.save_optimizer_states(tmp_path / "s")
    second = create()
    for key in keys:
        second.init(key, torch.tensor(pulled(first, key, (2,))))
    second.set_optimizer(name, **given_)
    second.load_optimizer_states(tmp_path / "s")
    trained(name, given_, keys, range(3, 5), second)
    assert [pulled(second, key, (2,)) for key in keys] == [pulled(uninterrupted, key, (2,)) for key in keys]


def test_loading_forgets_what_the_file_does_not_have(tmp_path):
    trained("momentum", {}, ["w"], range(1)).save_optimizer_states(tmp_path / "s")
    store = trained("momentum", {}, ["w", "v"], range(2))
    store.load_optimizer_states(tmp_path / "s")
    assert list(updater_of(store).states()) == ["w"]
    assert updater_of(store).states()["w"][1] == 1


def test_numbers_go_along_if_asked(tmp_path):
    store = trained("adam", {"learning_rate": 0.25}, ["w"], range(1))
    for dump in (False, True):
        store.save_optimizer_states(tmp_path / "s", dump_optimizer=dump)  # replaces the existing file
        restored = trained("adam", {"learning_rate": 0.5}, ["w"], [])
        restored.load_optimizer_states(tmp_path / "s")
        assert updater_of(restored).learning_rate == (0.25 if dump else 0.5)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


@register_optimizer
@dataclass
class Averaged(rules.Test):
    """A rule with a parameter that depends on the number of workers."""

    name: ClassVar[str] = "averaged"
    of_the_run: ClassVar[tuple[str, ...]] = ("rescale_grad", "workers")
    workers: float = 1.0


@pytest.mark.parametrize(
    ("name", "numbers"), [(name, {}) for name in ("sgd", "adam", "rmsprop", "adagrad")] + [("averaged", {"workers": 4})]
)
def test_what_depends_on_the_number_of_workers_is_in_no_file(name, numbers, tmp_path):
    numbers = {"rescale_grad": 0.5, "learning_rate": 0.25, **numbers}
    trained(name, numbers, ["w"], range(1)).save_optimizer_states(tmp_path / "s", dump_optimizer=True)
    _, about = load_tensors(tmp_path / "s")
    assert not {"rescale_grad", "workers"} & set(about["parameters"])
    restored = trained(name, {"rescale_grad": 0.125}, ["w"], [])
    restored.load_optimizer_states(tmp_path / "s")
    assert (updater_of(restored).learning_rate, updater_of(restored).rescale_grad) == (0.25, 0.125)


def test_obsolete_settings_of_older_files_are_ignored(tmp_path):
    trained("adam", {"learning_rate": 0.25}, ["w"], range(1)).save_optimizer_states(tmp_path / "s", dump_optimizer=True)
    tensors, about = load_tensors(tmp_path / "s")
    replace_tensors(tmp_path / "s", tensors, about | {"parameters": about["parameters"] | {"rescale_grad": 7.0}})
    restored = trained("adam", {"rescale_grad": 0.125}, ["w"], [])
    restored.load_optimizer_states(tmp_path / "s")
    assert (updater_of(restored).learning_rate, updater_of(restored).rescale_grad) == (0.25, 0.125)


def test_states_that_are_no_floating_point_are_refused(tmp_path):
    trained("momentum", {}, ["w"], range(1)).save_optimizer_states(tmp_path / "s")
    tensors, about = load_tensors(tmp_path / "s")
    replace_tensors(tmp_path / "s", {name: t.to(torch.int64) for name, t in tensors.items()}, about)
    with pytest.raises(StateError, match="floating point"):
        trained("momentum", {}, ["w"], []).load_optimizer_states(tmp_path / "s")


def test_a_number_that_a_rule_does_not_have_is_refused():
    with pytest.raises(RefusedError, match="rule"):
        optimizer("sgd").set_parameters({"rule": 1.0})


@pytest.mark.parametrize("name", ["learning_rate", "wd", "clip_gradient", "rescale_grad"])
@pytest.mark.parametrize("value", [2**63 - 1, 2**63, 2**70, -(2**70)])
def test_integers_beyond_64_bits_are_numbers_too(name, value):
    rule, weight, gradient = optimizer("sgd", momentum=0.5, **{name: value}), torch.zeros(2), torch.ones(2)
    same, other = optimizer("sgd", momentum=0.5, **{name: float(value)}), torch.zeros(2)
    for _ in range(2):
        rule("w", weight, gradient.clone())
        same("w", other, gradient.clone())
    assert torch.equal(weight, other)


def test_the_file_is_safetensors_and_json(tmp_path):
    from safetensors import safe_open

    trained("momentum", {}, ["w"], range(1)).save_optimizer_states(tmp_path / "s", dump_optimizer=True)
    with safe_open(tmp_path / "s", "pt") as file:
        assert list(file.keys()) == ["0.momentum"]
        about = json.loads(file.metadata()["state"])
    assert (about["optimizer"], about["keys"], about["counts"]) == ("momentum", ["w"], [1])


TAMPERED = {
    "more keys": {"keys": ["w", "v"], "counts": [1, 1]},
    "fewer counts": {"counts": []},
    "a list for a key": {"keys": [["w"]]},
    "counts of words": {"counts": ["x"]},
    "counts without end": {"counts": [float("inf")]},
    "counts below 0": {"counts": [-1]},
    "parameters that are none": {"parameters": [1]},
    "parameters out of range": {"parameters": {"beta1": 2}},
}


@pytest.mark.parametrize(
    "what", ["other rule", "other states", "other shape", "damaged", "foreign", "missing", "pickle", *TAMPERED]
)
def test_states_that_do_not_fit_change_nothing(what, tmp_path):
    path = tmp_path / "s"
    if what == "foreign":
        from feedline.interop.tensor_file import save_tensors

        save_tensors(path, {"x": torch.ones(1)}, {"hello": 1})
    elif what in TAMPERED:
        trained("adam", {}, ["w"], range(2)).save_optimizer_states(path, dump_optimizer=True)
        tensors, about = load_tensors(path)
        path.unlink()
        replace_tensors(path, tensors, about | TAMPERED[what])
    elif what == "pickle":
        path.write_bytes(b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00K\x01.")
    elif what != "missing":
        trained("adam", {}, ["w"], range(2)).save_optimizer_states(path)
    if what == "damaged":
        content = bytearray(path.read_bytes())
        content[-3] ^= 1
        path.write_bytes(content)
    name = {"other rule": "adagrad", "other states": "sgd"}.get(what, "adam")
    size = 3 if what == "other shape" else 2
    store = create()
    store.init("w", torch.ones(size))
    store.set_optimizer(name)
    store.push("w", torch.ones(size))
    before = {k: ({n: t.clone() for n, t in s.items()}, c) for k, (s, c) in updater_of(store).states().items()}
    with pytest.raises(StateError):
        store.load_optimizer_states(path)
    after = updater_of(store).states()
    assert {k: c for k, (_, c) in before.items()} == {k: c for k, (_, c) in after.items()}
    for key, (states, _) in before.items():
        assert all(torch.equal(state, after[key][0][name]) for name, state in states.items())


def test_shapes_are_looked_at_when_the_key_is_made_later(tmp_path):
    trained("adam", {}, ["w"], range(1)).save_optimizer_states(tmp_path / "s")
    store = create()
    store.set_optimizer("adam")
    store.load_optimizer_states(tmp_path / "s")
    store.init("w", torch.ones(3))
    with pytest.raises(StateError, match="shape"):
        store.push("w", torch.ones(3))


def test_no_optimizer_no_states(tmp_path):
    store = create()
    for call in (store.save_optimizer_states, store.load_optimizer_states):
        with pytest.raises(RefusedError, match="set_optimizer first"):
            call(tmp_path / "s")


# ---- users' optimizers ----------------------------------------------------------------------------


@pytest.fixture
def halving(monkeypatch):
    monkeypatch.setattr(rules, "_RULES", dict(rules._RULES))

    @register_optimizer
    class Halving(Optimizer):
        """Fails at its third update of a key."""

        name = "halving"
        keeps = ("seen",)

        def rule(self, weight, gradient, states, count):
            weight.mul_(0.5)
            states["seen"].add_(gradient)
            if count == 3:
                raise RuntimeError("at three")

    return Halving


def test_a_failed_optimizer_leaves_everything_as_it_was(halving):
    store = create()
    store.init(["a", "b"], [torch.full((1,), 8.0)] * 2)
    store.set_optimizer("halving")
    store.push(["a", "b"], [torch.ones(1)] * 2)
    store.push("b", torch.ones(1))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="at three"):
            store.push(["a", "b"], [torch.ones(1)] * 2)
        assert [pulled(store, key) for key in "ab"] == [[4], [2]]
        states = updater_of(store).states()
        assert [(states[k][0]["seen"].item(), states[k][1]) for k in "ab"] == [(1, 1), (2, 2)]


def test_names_are_taken_once(halving):
    for rule in (halving, rules.SGD, LAMBOptimizer):
        with pytest.raises(ValueError, match=f"'{rule.name}'"):
            register_optimizer(rule)
    assert np.isclose(optimizer("halving").learning_rate, 0.01)


BY_NAME = """
import sys
from feedline import kvstore
assert not any(module.startswith("feedline.mxnet") for module in sys.modules)
try:
    kvstore.optimizer("nothing")
except kvstore.RefusedError as error:
    known = str(error)
assert "feedline.mxnet" not in sys.modules
for name in sys.argv[1:]:
    assert repr(name) in known
    assert kvstore.optimizer(name).name == name
"""


def test_every_rule_is_known_by_name_from_the_start():
    """Also the rules of MXNet, whose module has not been imported."""
    names = sorted({name for name, _ in (*RULES, *MORE_RULES)} | {"nag"})
    subprocess.run([sys.executable, "-c", BY_NAME, *names], check=True)


@pytest.mark.parametrize("name", ["sgd", "lamb", "nadam", "sgld"])
def test_servers_make_rules_of_feedline_by_name(name, halving):
    """Other rules are sent to them as objects: those of users, and MXNet's, which have a scheduler."""
    assert in_every_process(optimizer(name))
    assert not in_every_process(mxnet.optimizer.create(name))
    assert not in_every_process(optimizer("halving"))
