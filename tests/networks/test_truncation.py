"""Truncated sequences: run piece by piece, a network gives the same as for whole sequences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

import feedline as fl
from feedline.networks import apply
from feedline.networks.compile import Network
from feedline.networks.node import placeholder_node
from feedline.networks.traverse import close
from feedline.networks.truncation import BPTTState
from tests.effort import examples
from tests.graph import worlds
from tests.graph.test_recurrence import INPUTS, looped_lstm, lstm_weights, matmul, number, plus, tanh
from tests.graph.worlds import given, weights


def own_rnn(x, steps):
    """``h = tanh(x + h[t - steps] W + x[t - 2] W)``."""
    rng = np.random.default_rng(1)
    W, state = weights(rng.uniform(-1, 1, (INPUTS, INPUTS))), placeholder_node(name="h")
    before = apply("delay", [state, number(0.25, (INPUTS,))], {"steps": steps})
    older = apply("delay", [x, number(0.5)], {"steps": 2})
    after = tanh(plus(plus(x, matmul(before, W)), matmul(older, W)))
    return close([after], {state: after})[0]


def networks():
    rng = np.random.default_rng(0)
    x = given((INPUTS,), "s", "x")
    held = [weights(a) for a in lstm_weights(rng)]
    W, H, b = (weights(rng.uniform(-1, 1, s)) for s in ((INPUTS, 2), (2, 2), (2,)))
    upper = [weights(rng.uniform(-1, 1, s)) for s in ((2, 3), (3, 3), (3,))]
    lstm = apply("lstm", [x, *held, number(0.5), number(0.25)])
    made = {
        "lstm": lstm,
        "looped lstm": looped_lstm(x, *held, number(0.5), number(0.25))[0],
        "two lstms": apply("rnn", [lstm, *upper, number(0)], {"activation": "tanh"}),
        "rnn": apply("rnn", [x, W, H, b, number(0.5)], {"activation": "relu"}),
        "first": apply("sequence_is_first", [x]),
        **{f"delay {k}": apply("delay", [x, number(0.5)], {"steps": k}) for k in (1, 2, 5)},
        **{f"own {k}": own_rnn(x, k) for k in (1, 3)},
    }
    return x, made


NODE, ROOTS = networks()


def source(rows, **options):
    return fl.MinibatchSource(fl.ArrayDeserializer(x=rows), shuffle=False, max_sweeps=1, **options)


@pytest.mark.parametrize("name", ROOTS)
@drawn(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    length=st.integers(1, 4),
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4),
)
@settings(deadline=None, max_examples=examples(10))
def test_pieces_give_what_the_whole_gives(name, lengths, length, sizes):
    """Whatever the lengths, where they are cut, and how the number of lanes changes."""
    rng = np.random.default_rng(0)
    rows = [rng.uniform(-1, 1, (n, INPUTS)) for n in lengths]
    network = Network([ROOTS[name]])
    (whole,) = network({NODE: fl.Value.from_sequences(rows)})
    expected = np.split(whole.data.detach().numpy(), np.cumsum(lengths)[:-1])
    found = [[] for _ in rows]
    pieces, i = source(rows, truncation_length=length), 0
    while minibatch := pieces.next_minibatch(sizes[i % len(sizes)]):
        i += 1
        (result,) = network({NODE: minibatch["x"]}, minibatch.lanes, minibatch.begins)
        if result.data.requires_grad:
            result.data.sum().backward()  # gradients end with the minibatch: torch would refuse a second time
        parts = np.split(result.data.detach().numpy(), minibatch["x"].offsets[1:-1])
        for which, part in zip(minibatch.ids.tolist(), parts, strict=True):
            found[which].append(part)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.concatenate(mine), theirs, rtol=1e-10, atol=1e-12)


def test_evaluation_does_not_disturb_training():
    rows = [np.random.default_rng(i).uniform(-1, 1, (6, INPUTS)) for i in range(2)]
    network = Network([ROOTS["lstm"]])
    expected = network({NODE: fl.Value.from_sequences(rows)})[0].data
    first, second = list(source(rows, truncation_length=3).minibatches(6))
    network({NODE: first["x"]}, first.lanes, first.begins)
    network.eval()
    network({NODE: first["x"]}, first.lanes, first.begins)
    network.train()
    (result,) = network({NODE: second["x"]}, second.lanes, second.begins)
    torch.testing.assert_close(result.data, torch.cat([expected[3:6], expected[9:]]))


def test_a_memory_outlives_its_network():
    rows = [np.random.default_rng(i).uniform(-1, 1, (6, INPUTS)) for i in range(2)]
    first, second = list(source(rows, truncation_length=3).minibatches(6))
    old, new = Network([ROOTS["own 3"]]), Network([ROOTS["own 3"]])
    with pytest.raises(fl.StateError, match="restore the trainer together with the source"):
        new({NODE: second["x"]}, second.lanes, second.begins)
    old({NODE: first["x"]}, first.lanes, first.begins)
    names = {key: f"state{i}" for i, key in enumerate(old.memories[True])}
    tensors = old.memories[True].tensors(names)
    new.memories[True] = BPTTState.of(tensors, {name: key for key, name in names.items()})
    for mine, theirs in zip(*(n({NODE: second["x"]}, second.lanes, second.begins) for n in (new, old)), strict=True):
        assert torch.equal(mine.data, theirs.data)


@pytest.mark.parametrize(
    ("op", "settings", "message"),
    [
        ("sequence_last", {}, "whole sequences"),
        ("sequence_softmax", {}, "whole sequences"),
        ("delay", {"steps": -1}, "future value"),
        ("lstm", {"backwards": True}, "backward recurrence"),
    ],
)
def test_operations_that_need_whole_sequences_raise(op, settings, message):
    held = [weights(a) for a in lstm_weights(np.random.default_rng(0))] if op == "lstm" else []
    more = {"lstm": [*held, number(0), number(0)], "delay": [number(0)]}.get(op, [])
    minibatch = next(source([np.ones((4, INPUTS))], truncation_length=2).minibatches(2))
    with pytest.raises(ValueError, match=message):
        Network([apply(op, [NODE, *more], settings)])({NODE: minibatch["x"]}, minibatch.lanes, minibatch.begins)


def test_a_loop_into_the_future_needs_whole_sequences():
    minibatch = next(source([np.ones((4, INPUTS))], truncation_length=2).minibatches(2))
    with pytest.raises(ValueError, match="whole sequences for a future value"):
        Network([own_rnn(NODE, -1)])({NODE: minibatch["x"]}, minibatch.lanes, minibatch.begins)


def test_sparse_samples_are_not_carried():
    sparse = given((INPUTS,), "s", sparse=True)
    value = worlds.one_hot(np.random.default_rng(0), INPUTS)
    with pytest.raises(TypeError, match="sparse samples"):
        Network([apply("delay", [sparse, number(0)], {"steps": 1})])({sparse: value}, np.arange(4), np.ones(4, bool))
