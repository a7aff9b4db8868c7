"""Stores within one process: laws, compared with a store that is a dictionary, then examples."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import feedline as fl
from feedline.kvstore import KVStore, RefusedError, create, register
from feedline.kvstore import base as registry
from tests.inside import entries_of
from tests.oracles.kvstore import DictStore

TYPES = ("local", "device")
#: Sums of a few of these are exact.
NUMBERS = st.integers(-64, 64).map(lambda n: n / 8)
SIZE = 3
VALUE = st.lists(NUMBERS, min_size=SIZE, max_size=SIZE)
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.int32, torch.int64])


def tensor(value, dtype):
    return torch.tensor(value, dtype=torch.float64).mul(8).to(dtype)


def values_of(store, keys, dtype):
    outs = [torch.full((SIZE,), 99, dtype=dtype) for _ in keys]
    store.pull(list(keys), outs)
    return [out.tolist() for out in outs]


@st.composite
def scripts(draw):
    keys = draw(st.sampled_from([[1, 5, -3], ["b", "a", "c"]]))
    some = st.lists(st.sampled_from([*keys, keys[0]]), max_size=4)
    steps = []
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["init", "push", "push", "pushpull", "updater", "no updater"]))
        selected = draw(some)
        counts = [draw(st.integers(1, 5)) for _ in selected]
        lists = [[draw(VALUE) for _ in range(1 if kind == "init" else n)] for n in counts]
        steps.append((kind, selected, lists))
    return draw(st.sampled_from(TYPES)), draw(DTYPES), keys, steps


@given(scripts())
def test_does_what_a_dictionary_does(script):
    kind_of_store, dtype, keys, steps = script
    store, slow = create(kind_of_store), DictStore()
    calls, expected_calls = [], []

    def update(key, merged, stored):
        calls.append(key)
        stored += 2 * merged

    def slow_update(key, merged, stored):
        expected_calls.append(key)
        return [s + 2 * m for s, m in zip(stored, merged, strict=True)]

    scale = 8
    for kind, selected, lists in steps:
        given_ = [[tensor(value, dtype) for value in values] for values in lists]
        scaled = [[[x * scale for x in value] for value in values] for values in lists]
        if kind == "updater":
            store.set_updater(update)
            slow.updater = slow_update
        elif kind == "no updater":
            store.set_updater(None)
            slow.updater = None
        else:
            try:
                if kind == "init":
                    slow.init(selected, [values[0] for values in scaled])
                else:
                    slow.push(selected, scaled)
            except ValueError:
                with pytest.raises(RefusedError):
                    (store.init if kind == "init" else store.push)(selected, given_)
            else:
                if kind == "pushpull":
                    store.pushpull(selected, given_)
                    for key, values in zip(selected, given_, strict=True):
                        assert all(value.tolist() == slow.values[key] for value in values)
                else:
                    (store.init if kind == "init" else store.push)(selected, given_)
        initialised = [key for key in keys if key in slow.values]
        assert values_of(store, initialised, dtype) == slow.pull(initialised)
        assert calls == expected_calls


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("size", [7, 40_000])
@pytest.mark.parametrize("aliased", ["in place", "apart", "first", "half"])
def test_pushpull_is_push_and_pull(type, count, size, aliased):
    rng = torch.Generator().manual_seed(0)
    memory = torch.randn(count, size + 4, generator=rng)
    values = [row[:size] for row in memory]
    total = values[0].clone()
    for value in values[1:]:
        total = total + value
    outs = {
        "in place": None,
        "apart": [torch.zeros(size) for _ in range(3)],
        "first": [values[0], torch.zeros(size)],
        "half": [memory[0][4:]],  # shares a part of a value's memory
    }[aliased]
    store = create(type)
    store.init(0, torch.zeros(size))
    store.pushpull(0, values, outs)
    for out in values if outs is None else outs:
        assert torch.equal(out, total)
    stored = torch.empty(size)
    store.pull(0, stored)
    assert torch.equal(stored, total)


def test_a_push_copies():
    for count in (1, 3):
        store = create()
        store.init(0, torch.zeros(2))
        values = [torch.ones(2) for _ in range(count)]
        store.push(0, values if count > 1 else values[0])
        for value in values:
            value.fill_(100)
        assert values_of_one(store, 0) == [count, count]
        sums = []
        store.set_updater(lambda key, merged, stored, kept=sums: (kept.append(merged.mul_(7)), stored.add_(1)))
        gradient = torch.ones(2)
        store.push(0, gradient)
        assert gradient.tolist() == [1, 1]  # an updater's changes to the sum do not reach pushed values
        assert values_of_one(store, 0) == [count + 1, count + 1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_values_are_added_from_the_first_to_the_last(dtype):
    values = [torch.randn(50).to(dtype) for _ in range(5)]
    total = values[0]
    for value in values[1:]:
        total = total + value
    store, out = create(), torch.empty(50, dtype=dtype)
    store.init("w", out)
    store.push("w", values)
    store.pull("w", out)
    assert torch.equal(out, total)


def test_init_and_pull_copy():
    store = create()
    first = torch.ones(2)
    store.init("a", first)
    first.fill_(5)
    out = torch.empty(2)
    store.pull("a", out)
    out.fill_(9)
    assert values_of_one(store, "a") == [1, 1]


def values_of_one(store, key, size=2):
    out = torch.empty(size)
    store.pull(key, out)
    return out.tolist()


# ---- failed calls change nothing ------------------------------------------------------------------

GOOD = torch.ones(2)


def filled():
    store = create("device")
    store.init([1, 2], [torch.zeros(2), torch.zeros(2)])
    return store


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda s: s.push([1, 3], [GOOD, GOOD]), RefusedError, "got 3; call init"),
        (lambda s: s.push([1, 2], [GOOD, torch.ones(3)]), RefusedError, r"shape \(2,\).*key 2, got \(3,\)"),
        (lambda s: s.push([1, 2], [GOOD, [GOOD, torch.ones(2, dtype=torch.float64)]]), RefusedError, "float64"),
        (lambda s: s.push(1, torch.ones(2, dtype=torch.float64)), RefusedError, "float32 for key 1"),
        (lambda s: s.push([1, 2], [GOOD]), RefusedError, "list of 2 values.* got 1"),
        (lambda s: s.push([1, 2], GOOD), RefusedError, "list of 2 values"),
        (lambda s: s.push(1, []), RefusedError, "at least one value"),
        (lambda s: s.push(1, [GOOD, 5]), TypeError, "as value, got int"),
        (lambda s: s.push(1.0, GOOD), TypeError, "int or str as key"),
        (lambda s: s.push([1, "a"], [GOOD, GOOD]), TypeError, "one kind"),
        (lambda s: s.push("a", GOOD), RefusedError, "key of type int"),
        (lambda s: s.push(1, GOOD, priority=0.5), TypeError, "int as priority"),
        (lambda s: s.init([3, 1], [GOOD, GOOD]), RefusedError, "1 is initialised already"),
        (lambda s: s.init([3, 3], [GOOD, GOOD]), RefusedError, "3 has 2 values"),
        (lambda s: s.init([3, 4], [GOOD, None]), TypeError, "NoneType"),
        (lambda s: s.init("a", GOOD), RefusedError, "key of type int"),
        (lambda s: s.broadcast([3, 4], [GOOD, GOOD], [GOOD, torch.ones(3)]), RefusedError, r"out of shape \(2,\)"),
        (lambda s: s.pushpull([1, 2], [GOOD, GOOD], [GOOD, torch.ones(3)]), RefusedError, "key 2"),
        (lambda s: s.pushpull(1, GOOD, torch.ones(3)), RefusedError, "key 1"),
        (lambda s: s.pushpull(1, GOOD, torch.empty(1).expand(2)), RefusedError, "share no memory"),
        (lambda s: s.set_gradient_compression({"type": "3bit"}), RefusedError, "3bit"),
        (lambda s: s.set_optimizer("sgd", rate=1), RefusedError, "got rate"),
        (lambda s: s.set_optimizer("sgdd"), RefusedError, "'adagrad', 'adam'"),
        (lambda s: s.set_optimizer(object()), TypeError, "name of an optimizer"),
        (lambda s: s.set_updater(5), TypeError, "function"),
        (lambda s: s.push(1, torch.eye(2).to_sparse()), RefusedError, "shape"),
        (lambda s: s.pull([1, 2], [GOOD, np.zeros(2, "float32")[::-1]]), RefusedError, "reversed"),
        (lambda s: s.set_gradient_compression({"type": "2bit", "threshold": 1e39}), RefusedError, "finite"),
    ],
)
def test_a_refused_call_changes_nothing(call, error, says):
    store = filled()
    with pytest.raises(error, match=says):
        call(store)
    assert [values_of_one(store, key) for key in (1, 2)] == [[0, 0], [0, 0]]
    assert GOOD.tolist() == [1, 1]
    # No key is partly initialised, and the store assigns as before.
    store.init([3, 4], [GOOD, GOOD])
    store.push([1, 3], [GOOD, GOOD * 5])
    assert [values_of_one(store, key) for key in (1, 2, 3, 4)] == [[1, 1], [0, 0], [5, 5], [1, 1]]


@pytest.mark.parametrize("outs", [[GOOD, torch.ones(3)], [GOOD, "out"]])
def test_a_refused_pull_writes_nothing(outs):
    store = filled()
    with pytest.raises((RefusedError, TypeError)):
        store.pull([1, 2], outs)
    assert GOOD.tolist() == [1, 1]


@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_a_failed_updater_leaves_the_store_as_it_was(fails_at):
    store = create()
    store.init([1, 2, 3], [torch.full((2,), float(k)) for k in (1, 2, 3)])

    def update(key, merged, stored):
        stored += merged
        if key == fails_at:
            raise KeyError("mine")

    store.set_updater(update)
    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            store.push([3, 1, 2], [GOOD] * 3)
        assert [values_of_one(store, key) for key in (1, 2, 3)] == [[1, 1], [2, 2], [3, 3]]
    fails_at = None
    store.push([3, 1, 2], [GOOD] * 3)
    assert [values_of_one(store, key) for key in (1, 2, 3)] == [[2, 2], [3, 3], [4, 4]]


def test_an_updater_may_pull_and_not_push():
    store = create()
    store.init(1, torch.ones(2))
    values_seen = []

    def update(key, merged, stored):
        values_seen.append(values_of_one(store, 1))
        store.push(1, torch.ones(2))

    store.set_updater(update)
    with pytest.raises(RefusedError, match="from within an updater"):
        store.push(1, GOOD)
    assert values_seen == [[1, 1]]
    store.set_updater(lambda key, merged, stored: stored.add_(merged))
    store.push(1, GOOD)
    assert values_of_one(store, 1) == [2, 2]


def test_what_is_stored_may_be_pushed():
    for dtype in (torch.float32, torch.int32):
        store, leaked = create(), []
        store.init(1, torch.tensor([1, 2], dtype=dtype))
        store.set_updater(lambda key, merged, stored, leaked=leaked: leaked.append(stored))
        store.push(1, torch.tensor([0, 0], dtype=dtype))
        store.set_updater(None)
        store.push(1, [torch.tensor([10, 10], dtype=dtype), leaked[0], leaked[0]])
        assert values_of_one(store, 1) == [12, 14]


# ---- forms of arguments ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_outs_may_be_values_of_other_keys(dtype):
    store = create()
    store.init([1, 2], [torch.zeros(2, dtype=dtype)] * 2)
    first, second = torch.full((2,), 1, dtype=dtype), torch.full((2,), 2, dtype=dtype)
    store.pushpull([1, 2], [first, second], [second, first])
    assert [first.tolist(), second.tolist()] == [[2, 2], [1, 1]]
    third = torch.full((2,), 3, dtype=dtype)
    store.pushpull([1, 2], [[first, third], [first, second]])
    out = torch.empty(2)
    store.pull(2, out)
    assert out.tolist() == [3, 3]


@pytest.mark.parametrize("dtype", [torch.uint16, torch.float8_e4m3fn])
def test_what_torch_cannot_add_up_is_assigned_or_refused(dtype):
    store = create()
    one, out = torch.ones(2).to(dtype), torch.empty(2)
    store.init("a", torch.zeros(2).to(dtype))
    with pytest.raises(RefusedError, match="cannot sum"):
        store.push("a", [one, one])
    store.pull("a", out)
    assert out.tolist() == [0, 0]
    store.push("a", one)
    store.pull("a", out)
    assert out.tolist() == [1, 1]


def test_both_names_of_the_updater():
    for name in ("set_updater", "_set_updater"):
        store, calls = create(), []
        store.init("w", torch.zeros(2))
        getattr(store, name)(lambda key, merged, stored, seen=calls: seen.append(key))
        store.push("w", GOOD)
        assert calls == ["w"]


def test_true_is_one():
    store = create()
    store.init(1, torch.ones(2))
    store.push(True, torch.full((2,), 4.0))
    assert values_of_one(store, True) == values_of_one(store, 1) == [4, 4]


def test_strs_of_numpy_are_strs():
    store = create()
    store.init(["a", np.str_("b")], [GOOD, GOOD])
    store.push(np.str_("a"), GOOD * 3)
    assert values_of_one(store, "a") == [3, 3]
    calls = []
    store.set_updater(lambda key, merged, stored: calls.append(type(key)))
    store.push(np.str_("b"), GOOD)
    assert calls == [str]


def test_reversed_and_read_only_arrays_of_numpy_are_values():
    store, array = create(), np.arange(2, dtype="float32")
    store.init("a", array[::-1])
    assert values_of_one(store, "a") == [1, 0]
    store.push("a", np.broadcast_to(array[1:], 2))
    assert values_of_one(store, "a") == [1, 1]


def test_numpy_goes_in_and_out():
    store = create()
    frozen = np.ones(2, "f4")
    frozen.flags.writeable = False
    store.init("w", frozen)
    store.push("w", [np.ones(2, "f4"), torch.ones(2)])
    out = np.zeros(2)
    store.pull("w", [out, np.zeros(2, "i4")])
    assert out.tolist() == [2, 2]
    with pytest.raises(RefusedError, match="read-only"):
        store.pull("w", frozen)
    with pytest.raises(TypeError, match="torch supports"):
        store.push("w", np.array(["a", "b"]))


def test_outs_are_cast_and_need_not_be_contiguous():
    store = create()
    store.init("w", torch.tensor([1.5, -2.5]))
    integers, wide = torch.empty(2, dtype=torch.int64), torch.zeros(2, 2)
    store.pull("w", [integers, wide[:, 1]])
    assert (integers.tolist(), wide.tolist()) == ([1, -2], [[0, 1.5], [0, -2.5]])


def test_parameters_and_their_gradients_stay_out_of_autograd():
    parameter = torch.nn.Parameter(torch.ones(2))
    store = create()
    store.init("w", parameter)
    (3 * parameter).sum().backward()
    store.set_optimizer("sgd", learning_rate=1.0)
    store.push("w", parameter.grad)
    store.pull("w", parameter)
    assert parameter.tolist() == [-2, -2]
    assert parameter.is_leaf
    store.pushpull("w", parameter, parameter)
    assert parameter.tolist() == [0, 0]


def test_empty_lists_and_empty_arrays_are_nothing():
    store = create()
    store.init([], [])
    store.push([], [])
    store.pull([], [])
    store.init("none", torch.empty(0, 3))
    store.push("none", [torch.empty(0, 3)] * 2)
    store.init("one", torch.tensor(2.0))
    store.push("one", [torch.tensor(2.0)] * 2)
    out = torch.empty(())
    store.pull("one", out)
    assert out.item() == 4


def test_priority_changes_nothing():
    for priority in (-5, 7):
        store = create()
        store.init(1, torch.zeros(2))
        store.push(1, GOOD, priority)
        store.pushpull(1, GOOD * 2, priority=priority)
        assert values_of_one(store, 1) == [2, 2]


def test_steps_allocate_nothing():
    """In the steady state, a repeated call reuses its memory."""
    store = create()
    store.init([1, 2], [torch.zeros(1000), torch.zeros(1000)])
    values = [[torch.ones(1000) for _ in range(4)] for _ in range(2)]
    store.set_updater(lambda key, merged, stored: stored.add_(merged))
    store.pushpull([1, 2], values)
    before = [(id(e.stored), e.stored.data_ptr(), e.merged.data_ptr(), e.spare.data_ptr()) for e in entries_of(store)]
    store.pushpull([1, 2], values)
    assert before == [
        (id(e.stored), e.stored.data_ptr(), e.merged.data_ptr(), e.spare.data_ptr()) for e in entries_of(store)
    ]


# ---- threads, kinds, ends -------------------------------------------------------------------------


def test_threads_lose_no_push():
    store = create()
    store.init([0, 1], [torch.zeros(5000), torch.zeros(5000)])
    store.set_updater(lambda key, merged, stored: stored.add_(merged))

    def work():
        for _ in range(50):
            store.push([0, 1], [torch.ones(5000)] * 2)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for key in (0, 1):
        assert set(values_of_one(store, key, 5000)) == {200.0}


def test_alone():
    store = create("local")
    assert (store.rank, store.num_workers, store.type, create("device").type) == (0, 1, "local", "device")
    assert store.barrier() is None
    assert store.is_capable("optimizer")
    assert store.is_capable("sum")
    store.set_updater(lambda key, merged, stored: None)
    assert not store.is_capable("sum")
    with pytest.raises(ValueError, match="'foo'"):
        store.is_capable("foo")
    assert repr(store) == "<LocalStore 'local': worker 0 of 1>"


def test_an_unknown_kind_lists_the_known():
    with pytest.raises(ValueError, match=r"'device', .*'local', .*got 'Local'"):
        create("Local")
    with pytest.raises(TypeError, match="as str"):
        create(3)
    with pytest.raises(TypeError):
        create("local", servers=3)


def test_kinds_of_your_own(monkeypatch):
    monkeypatch.setattr(registry, "_FACTORIES", dict(registry._FACTORIES))

    class Last(KVStore):
        """An updater that stores the last value."""

        type = "last"

        def __init__(self, fill=0.0):
            self.kept, self.fill = {}, fill

        def init(self, key, value):
            self.kept[key] = value + self.fill

        def push(self, key, value, priority=0):
            self.kept[key] = value.clone()

        def pull(self, key, out, priority=0):
            out.copy_(self.kept[key])

    register("last", Last)
    with pytest.raises(ValueError, match="registered already"):
        register("last", Last)
    with pytest.raises(ValueError, match="lower case"):
        register("Last", Last)
    store = create("last", fill=2.0)
    out = torch.empty(2)
    store.broadcast("w", torch.ones(2), out)
    assert out.tolist() == [3, 3]
    store.pushpull("w", GOOD, out)
    assert out.tolist() == [1, 1]
    assert not store.is_capable("optimizer")
    assert not store.is_capable("sum")
    for call in (
        lambda: store.set_updater(None),
        lambda: store.set_optimizer("sgd"),
        lambda: store.set_gradient_compression(None),
        lambda: store.row_sparse_pull("w", out, torch.zeros(1, dtype=torch.int64)),
        lambda: store.save_optimizer_states("x"),
        lambda: store.load_optimizer_states("x"),
    ):
        with pytest.raises(RefusedError, match="type 'last'"):
            call()


def test_closed():
    with create() as store:
        store.init("w", GOOD)
    store.close()
    for call in (
        lambda: store.init("v", GOOD),
        lambda: store.push("w", GOOD),
        lambda: store.pull("w", GOOD),
        lambda: store.set_updater(None),
    ):
        with pytest.raises(RefusedError, match="closed"):
            call()


def test_reached_from_the_package():
    assert fl.kvstore.create is create
    assert fl.train.SGD
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fl.nothing  # noqa: B018
