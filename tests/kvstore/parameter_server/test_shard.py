"""A server applies each push once, however messages are repeated or lost, and servers killed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import StateError
from feedline.interop.tensor_file import load_tensors, replace_tensors
from feedline.kvstore import RefusedError, optimizer
from feedline.kvstore.aligned import ALIGNMENT, Layout
from feedline.kvstore.parameter_server.shard import Shard
from feedline.kvstore.parameter_server.wire_format import dtype_name, receive_buffer, to_buffer

SHAPES = {"a": (3,), "b": (), "c": (2, 4)}
TEST = {"name": "test", "parameters": optimizer("test").parameters()}


def made(shapes=SHAPES, dtype=torch.float32):
    shard = Shard()
    shard.create_keys([(k, s, dtype_name(dtype)) for k, s in shapes.items()], zeros(shapes, dtype))
    return shard


def zeros(shapes=SHAPES, dtype=torch.float32):
    return to_buffer([torch.zeros(shape, dtype=dtype) for shape in shapes.values()]).numpy()


def push(shard, worker, number, value, shapes=SHAPES, skip=False):
    """Push ``value`` to all keys of a server, and return the answer of `due`."""
    due = shard.due(worker, number, skip)
    if due:
        run = to_buffer([torch.full(shape, float(value)) for shape in shapes.values()]).numpy()
        shard.apply(worker, number, [(key, None) for key in shapes], run)
    return due


def stored(shard, shapes=SHAPES, dtype=torch.float32):
    run = receive_buffer(shard.read(list(shapes)))
    return dict(zip(shapes, Layout([(s, dtype) for s in shapes.values()]).views(run), strict=True))


STEPS = st.lists(
    st.sampled_from([("push", 0), ("push", 0), ("push", 1), ("repeat", 0), ("repeat", 1), ("snapshot", 0), ("die", 0)]),
    max_size=30,
)


@given(STEPS)
def test_each_push_is_applied_once_after_any_death(steps):
    """Workers resend pushes without a snapshot, and a server dies at any moment. The reference is plain sums."""
    shard = made()
    shard.set_rule(TEST, 1)
    snapshot = shard.snapshot()
    sent = {"w0": [], "w1": []}
    for what, who in steps:
        worker = f"w{who}"
        if what == "push":
            sent[worker].append(len(sent["w0"]) + 10 * len(sent["w1"]) + 1)
            assert push(shard, worker, len(sent[worker]), sent[worker][-1]) is True
        elif what == "repeat" and sent[worker]:
            assert push(shard, worker, len(sent[worker]), sent[worker][-1]) is False
        elif what == "snapshot":
            snapshot = shard.snapshot()
        elif what == "die":
            shard = Shard()
            shard.restore(*snapshot)
            for name, values in sent.items():
                applied = shard.applied.get(name, 0)
                if applied + 1 < len(values):  # out of turn: refused
                    assert push(shard, name, len(values), values[-1]) is None
                for number in range(1, len(values) + 1):  # more than are missing
                    assert push(shard, name, number, values[number - 1]) is (number > applied)
    total = sum(sum(values) for values in sent.values())
    for value in stored(shard).values():
        assert torch.equal(value, torch.full(value.shape, float(total)))


@given(
    st.sampled_from(["sgd", "momentum", "adam", "rmsprop", "adagrad"]),
    st.lists(st.integers(-8, 8), min_size=1, max_size=8),
    st.integers(0, 8),
)
def test_a_restored_shard_goes_on_as_one_that_never_died(name, values, when):
    rule = {"name": name, "parameters": optimizer(name, learning_rate=0.125).parameters()}
    shards = made(), made()
    for shard in shards:
        shard.set_rule(rule, 1)
    lives, dies = shards
    for number, value in enumerate(values, 1):
        if number - 1 == when:
            snapshot = dies.snapshot()
            dies = Shard()
            dies.restore(*snapshot)
        push(lives, "w", number, value)
        push(dies, "w", number, value)
    for one, other in zip(stored(lives).values(), stored(dies).values(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool])
def test_a_snapshot_survives_the_disk(tmp_path, dtype):
    shard = made(dtype=dtype)
    value = to_buffer([torch.ones(shape, dtype=dtype) for shape in SHAPES.values()]).numpy()
    shard.apply("w", 1, [(key, None) for key in SHAPES], value)
    replace_tensors(tmp_path / "s", *shard.snapshot())
    again = Shard()
    again.restore(*load_tensors(tmp_path / "s"))
    assert again.applied == {"w": 1}
    for array in stored(again, dtype=dtype).values():
        assert torch.equal(array, torch.ones_like(array))


def test_a_snapshot_of_another_version_is_refused():
    tensors, about = made().snapshot()
    with pytest.raises(StateError, match="version"):
        Shard().restore(tensors, {**about, "feedline": 99})


def test_lost_pushes_are_skipped_on_request_only():
    shard = made()
    shard.set_rule(TEST, 1)
    assert push(shard, "w", 3, 1) is None
    assert push(shard, "w", 3, 1, skip=True) is True
    assert push(shard, "w", 2, 1) is False
    assert shard.applied == {"w": 3}


def test_a_failed_updater_leaves_no_trace_but_its_number():
    def update(key, merged, stored):
        stored += merged
        if key == "c":
            raise ZeroDivisionError

    shard = made()
    shard.set_rule({"object": update}, 1)
    with pytest.raises(ZeroDivisionError):
        push(shard, "w", 1, 1)
    assert all(not value.any() for value in stored(shard).values())
    assert push(shard, "w", 1, 1) is False


def test_a_failure_is_kept_until_its_worker_has_heard_of_it():
    shard = made()
    shard.failures["w"] = {number: ZeroDivisionError() for number in (1, 2, 3)}
    shard.acknowledge("w", 2)
    assert list(shard.failures["w"]) == [3]
    shard.acknowledge("another", 3)
    assert list(shard.failures["w"]) == [3]


def test_a_function_is_asked_for_again():
    shard = made()
    shard.set_rule({"object": lambda key, merged, stored: stored.add_(merged)}, 4)
    push(shard, "w", 1, 2)
    again = Shard()
    again.restore(*shard.snapshot())
    assert again.lacks_rule
    assert push(again, "w", 2, 1) is None
    again.set_rule({"object": lambda key, merged, stored: stored.add_(10 * merged)}, 4)
    assert push(again, "w", 2, 1) is True
    assert stored(again)["b"] == 12


def test_an_optimizer_of_the_user_comes_back_with_its_states():
    shard, rule = made(), optimizer("momentum", learning_rate=1.0)
    shard.set_rule({"object": rule}, 1)
    push(shard, "w", 1, 1)
    again = Shard()
    again.restore(*shard.snapshot())
    again.set_rule({"object": optimizer("momentum", learning_rate=1.0)}, 1)
    for receiver in (shard, again):
        push(receiver, "w", 2, 1)
    assert torch.equal(stored(shard)["a"], stored(again)["a"])


def test_the_same_rule_again_keeps_states_and_another_drops_them():
    shard = made()
    rule = {"name": "momentum", "parameters": optimizer("momentum").parameters()}
    shard.set_rule(rule, 1)
    push(shard, "w", 1, 1)
    shard.set_rule(dict(rule), 2)
    assert shard.states()[2]["a"][0]["momentum"].all()
    shard.set_rule({"name": "momentum", "parameters": optimizer("momentum", wd=0.5).parameters()}, 3)
    assert not shard.states()[2]


def test_made_keys_stay_and_without_an_optimizer_there_are_no_states():
    shard = made()
    push(shard, "w", 1, 5)
    shard.create_keys([(k, s, "float32") for k, s in SHAPES.items()], zeros())
    assert stored(shard)["b"] == 5
    with pytest.raises(RefusedError, match="optimizer"):
        shard.states()


@pytest.mark.parametrize(
    ("keys", "kind", "said"),
    [
        ((1.5,), TypeError, "int or str as key, got 1.5"),
        ((None,), TypeError, "int or str as key, got None"),
        (("b", 1), TypeError, "keys of one kind"),
        (("b", "b"), RefusedError, "'b' has 2 values"),
        ((7,), RefusedError, "type str"),
    ],
)
def test_keys_that_no_store_has_are_not_made(keys, kind, said):
    shard = made({"a": (3,)})
    run = to_buffer([torch.zeros(2) for _ in keys]).numpy()
    with pytest.raises(kind, match=said):
        shard.create_keys([(key, (2,), "float32") for key in keys], run)
    assert shard.size == 1


def test_adjacent_memory_is_not_copied():
    shard = made()
    view, part = shard.read(["a", "b", "c"]), shard.read(["b", "c"])
    push(shard, "w", 1, 3)
    assert np.frombuffer(part.tobytes(), np.float32)[0] == 3
    assert view.nbytes == 3 * ALIGNMENT
    copied = shard.read(["c", "a"])
    push(shard, "w", 2, 4)
    assert receive_buffer(copied)[:4].view(torch.float32) == 3


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 5), max_size=3), st.sampled_from([torch.float32, torch.float64, torch.int8])),
        max_size=8,
    )
)
def test_layouts_write_what_they_read(fields):
    tensors = [torch.arange(float(torch.Size(shape).numel())).view(shape).to(dtype) for shape, dtype in fields]
    layout, run = Layout(fields), to_buffer(tensors)
    outs = [torch.zeros_like(tensor) for tensor in tensors]
    layout.read(run, [[out] for out in outs])
    assert all(torch.equal(a, b) for a, b in zip(outs, tensors, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(layout.views(run), tensors, strict=True))
    assert all(begin % ALIGNMENT == 0 for begin in layout.begins)
    layout.write(run, [[tensor, tensor] for tensor in tensors])
    layout.read(run, [[out] for out in outs])
    assert all(torch.equal(a, b + b) for a, b in zip(outs, tensors, strict=True))
