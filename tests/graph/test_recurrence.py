"""Recurrences: torch's kernels and the step loop against NumPy, one sequence at a time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from feedline.data import Value
from feedline.networks import apply, clone
from feedline.networks.compile import Network
from feedline.networks.node import placeholder_node
from feedline.networks.packed_minibatch import Sequences
from feedline.networks.traverse import close, leaves
from tests.graph import worlds
from tests.graph.worlds import AXES, draw, given, packed, run, weights
from tests.oracles import network as oracle

INPUTS, CELLS = 3, 2


def sequences(x, lengths=worlds.LENGTHS):
    return [x[b:e] for b, e in itertools.pairwise(worlds.offsets(lengths))]


def lstm_weights(rng, inputs=INPUTS, cells=CELLS):
    return [rng.uniform(-1, 1, s) for s in ((inputs, 4 * cells), (cells, 4 * cells), (4 * cells,))]


def number(value, shape=()):
    return weights(np.full(shape, value), trains=False)


def part(node, i, cells=CELLS):
    at = {"axis": (-1,), "begin": (i * cells,), "end": ((i + 1) * cells,), "strides": (1,)}
    return apply("slice", [node], at)


def on(op):
    return lambda *nodes: apply(op, nodes)


plus, times_each, sigmoid, tanh, matmul = (on(o) for o in ("plus", "element_times", "sigmoid", "tanh", "times"))


def looped_lstm(x, W, H, b, h0, c0, steps=1):
    """The same from single operations, tied by delays."""
    h, c = placeholder_node(name="h"), placeholder_node(name="c")
    before_h, before_c = (apply("delay", [s, i], {"steps": steps}) for s, i in ((h, h0), (c, c0)))
    gates = plus(plus(b, matmul(x, W)), matmul(before_h, H))
    i, g, f, o = (part(gates, k) for k in range(4))
    c1 = plus(times_each(sigmoid(f), before_c), times_each(sigmoid(i), tanh(g)))
    h1 = times_each(sigmoid(o), tanh(c1))
    return close([h1], {h: h1, c: c1})


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("initial", [0.0, 0.5])
def test_lstm_matches_cntk(backwards, initial):
    rng = np.random.default_rng(0)
    x, (W, H, b) = draw(rng, (INPUTS,), "s"), lstm_weights(rng)
    node, held = given((INPUTS,), "s"), [given(a.shape, "") for a in (W, H, b)]
    state = number(initial)
    fused = apply("lstm", [node, *held, state, state], {"backwards": backwards})
    loop = looped_lstm(node, *held, state, state, -1 if backwards else 1)[0]
    expected = np.concatenate([oracle.lstm(s, W, H, b, initial, initial, backwards) for s in sequences(x.numpy())])
    tensors = [torch.from_numpy(a) for a in (W, H, b)]
    for root in (fused, loop):
        network = Network([root])

        def function(x, *ws, network=network):
            feeds = {node: packed(x, "s"), **{n: packed(w, "") for n, w in zip(held, ws, strict=True)}}
            return network(feeds)[0].data

        np.testing.assert_allclose(function(x, *tensors), expected, rtol=1e-10)
        wanted = [t.clone().requires_grad_() for t in (x, *tensors)]
        assert torch.autograd.gradcheck(function, wanted)


def test_initial_states_of_each_sequence():
    rng = np.random.default_rng(0)
    x, (W, H, b) = draw(rng, (INPUTS,), "s"), lstm_weights(rng)
    h0, c0 = draw(rng, (CELLS,), "b"), draw(rng, (CELLS,), "b")
    node, h, c = given((INPUTS,), "s"), given((CELLS,), "b"), given((CELLS,), "b")
    held = [weights(a) for a in (W, H, b)]
    roots = [apply("lstm", [node, *held, h, c]), looped_lstm(node, *held, h, c)[0]]
    expected = np.concatenate(
        [oracle.lstm(s, W, H, b, h0[i].numpy(), c0[i].numpy()) for i, s in enumerate(sequences(x.numpy()))]
    )
    network = Network(roots)

    def function(x, h0, c0):
        return [r.data for r in network({node: packed(x, "s"), h: packed(h0, "b"), c: packed(c0, "b")})]

    for found in function(x, h0, c0):
        np.testing.assert_allclose(found.detach(), expected, rtol=1e-10)
    for i in (0, 1):
        wanted = [t.clone().requires_grad_() for t in (x, h0, c0)]
        assert torch.autograd.gradcheck(lambda *t, i=i: function(*t)[i], wanted)


@pytest.mark.parametrize("make", [worlds.one_hot, worlds.sparse])
def test_sparse_input(make):
    rng = np.random.default_rng(0)
    value, (W, H, b) = make(rng, INPUTS), lstm_weights(rng)
    node, held = given((INPUTS,), "s", sparse=True), [given(a.shape, "") for a in (W, H, b)]
    network = Network([apply("lstm", [node, *held, number(0), number(0)])])
    tensors = [torch.from_numpy(a) for a in (W, H, b)]

    def function(*ws):
        return network({node: value, **{n: packed(w, "") for n, w in zip(held, ws, strict=True)}})[0].data

    expected = [oracle.lstm(s, W, H, b, 0, 0) for s in sequences(worlds.dense(value))]
    np.testing.assert_allclose(function(*tensors), np.concatenate(expected), rtol=1e-10)
    assert torch.autograd.gradcheck(function, [t.requires_grad_() for t in tensors])


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("backwards", [False, True])
def test_plain_recurrence(activation, backwards):
    rng = np.random.default_rng(0)
    x = draw(rng, (INPUTS,), "s")
    W, H, b = (rng.uniform(-1, 1, s) for s in ((INPUTS, CELLS), (CELLS, CELLS), (CELLS,)))
    twin = {"tanh": np.tanh, "relu": lambda v: np.maximum(v, 0)}[activation]
    node, held = given((INPUTS,), "s"), [given(a.shape, "") for a in (W, H, b)]
    settings = {"activation": activation, "backwards": backwards}
    network = Network([apply("rnn", [node, *held, number(0)], settings)])
    tensors = [torch.from_numpy(a) for a in (W, H, b)]

    def function(x, *ws):
        return network({node: packed(x, "s"), **{n: packed(w, "") for n, w in zip(held, ws, strict=True)}})[0].data

    expected = [oracle.rnn(s, W, H, b, twin, backwards) for s in sequences(x.numpy())]
    np.testing.assert_allclose(function(x, *tensors), np.concatenate(expected), rtol=1e-10)
    assert torch.autograd.gradcheck(function, [t.requires_grad_() for t in (x, *tensors)])


@pytest.mark.parametrize("steps", [1, 2, 3, -2])
def test_a_state_of_several_steps_before(steps):
    """A sum that skips: s[t] = x[t] + s[t - steps], with a state of the batch and one of the sample before it."""
    x, node = draw(np.random.default_rng(0), (2,), "s"), given((2,), "s")
    initial, first = given((), "b"), torch.arange(4.0, dtype=torch.float64)
    s = placeholder_node()
    total = plus(node, apply("delay", [s, initial], {"steps": steps}))
    root = close([total], {s: total})[0]
    (result,) = run([root], {node: packed(x, "s"), initial: packed(first, "b")})
    expected = []
    for i, seq in enumerate(sequences(x.numpy())):
        order = range(len(seq)) if steps > 0 else reversed(range(len(seq)))
        out = np.zeros_like(seq)
        for t in order:
            out[t] = seq[t] + (out[t - steps] if 0 <= t - steps < len(seq) else first[i].item())
        expected.append(out)
    np.testing.assert_allclose(result.data, np.concatenate(expected), rtol=1e-12)


def test_a_delay_of_something_inside_a_recurrence():
    """Fibonacci-like: f[t] = x[t] + f[t-1] + g[t-1] with g[t] = 2 f[t-1]: a delay of a delayed and scaled state."""
    x, node = draw(np.random.default_rng(0), (), "s"), given((), "s")
    f = placeholder_node()
    before = apply("delay", [f, number(0)], {"steps": 1})
    g = times_each(before, number(2))
    total = plus(plus(node, before), apply("delay", [g, number(0.5)], {"steps": 1}))
    outputs = close([total, g], {f: total})
    results = run(outputs[:2], {node: packed(x, "s")})
    fs, gs = [], []
    for seq in sequences(x.numpy()):
        before_f, before_g = 0.0, 0.5
        for value in seq:
            before_f, before_g = value + before_f + before_g, 2 * before_f
            fs.append(before_f)
            gs.append(before_g)
    np.testing.assert_allclose(results[0].data, fs, rtol=1e-12)
    np.testing.assert_allclose(results[1].data, gs, rtol=1e-12)


def test_a_recurrence_over_a_recurrence_and_its_clones():
    rng = np.random.default_rng(0)
    x, node = draw(rng, (INPUTS,), "s"), given((INPUTS,), "s")
    first, second = lstm_weights(rng), lstm_weights(rng, CELLS)
    outer = looped_lstm(
        looped_lstm(node, *map(weights, first), number(0), number(0))[0],
        *map(weights, second),
        number(0),
        number(0),
        -1,
    )[0]
    between = [oracle.lstm(s, *first, 0, 0) for s in sequences(x.numpy())]
    expected = np.concatenate([oracle.lstm(s, *second, 0, 0, True) for s in between])
    other = given((INPUTS,), "s")
    for method in ("share", "clone", "freeze"):
        (copy,) = clone([outer], method, {node: other})
        np.testing.assert_allclose(run([copy], {other: packed(x, "s")})[0].data.detach(), expected, rtol=1e-10)
    assert leaves([outer], "placeholder") == []


def test_states_get_their_shape_when_placeholders_are_replaced():
    rng = np.random.default_rng(0)
    x = placeholder_node(name="x")
    held = [weights(a) for a in lstm_weights(rng)]
    open_one = looped_lstm(x, *held, number(0), number(0))[0]
    assert not open_one.type.is_known
    (root,) = clone([open_one], "share", {x: given((INPUTS,), "s")})
    assert (root.shape, root.axes) == ((CELLS,), AXES["s"])


def test_what_no_recurrence_can_be():
    x, zero = given((2,), "s"), number(0)
    s = placeholder_node(name="state")

    def tied(body):
        return run([close([body], {s: body})[0]], {x: packed(draw(np.random.default_rng(0), (2,), "s"), "s")})

    def delayed(steps):
        return apply("delay", [s, zero], {"steps": steps})

    with pytest.raises(ValueError, match=r"uses the state .*`state` of the same step"):
        tied(plus(plus(x, s), delayed(1)))
    with pytest.raises(ValueError, match="in one direction, got both past and future"):
        tied(plus(plus(x, delayed(1)), delayed(-1)))
    with pytest.raises(ValueError, match="needs whole sequences"):
        tied(plus(x, apply("sequence_softmax", [plus(x, delayed(1))])))
    with pytest.raises(ValueError, match=r"expected a type for the state .*`state`, which the recurrence"):
        tied(tanh(delayed(1)))
    stated = placeholder_node((3,), AXES["s"], "state")
    with pytest.raises(ValueError, match=r"to stay \[batch, steps\] \(3,\), got \[batch, steps\] \(1,\)"):
        body = apply("reduce_sum", [apply("delay", [stated, zero], {"steps": 1})], {"axis": 0})
        close([body], {stated: body})


# ---- how much of it is Python's -------------------------------------------------------------------


class Dispatches(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


class Calls(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def lstm_network(backwards):
    rng = np.random.default_rng(0)
    node = worlds.input_node((50,), AXES["s"], sparse=True)
    embed = matmul(node, single(rng.uniform(size=(50, INPUTS))))
    held = [single(a) for a in lstm_weights(rng)]
    h = apply("lstm", [embed, *held, single(0.0, False), single(0.0, False)], {"backwards": backwards})
    return node, Network([h])


def single(array, trains=True):
    array = np.asarray(array, np.float32)
    return worlds.parameter_node(worlds.Weights(array.shape, lambda shape: array, trains=trains), "w")


def one_step(node, network, lengths):
    rng = np.random.default_rng(0)
    value = Value.one_hot([rng.integers(0, 50, n) for n in lengths], 50)
    network({node: value})[0].data.sum().backward()


@pytest.mark.parametrize("counter", [Dispatches, Calls])
@pytest.mark.parametrize("backwards", [False, True])
def test_no_python_per_step(counter, backwards):
    """The number of torch calls, forward and backward, is independent of the number and lengths of sequences."""
    node, network = lstm_network(backwards)

    def calls(lengths):
        for parameter in network.parameters():
            parameter.grad = None  # as trainers do: torch adds to gradients otherwise than it makes them
        with counter() as mode:
            one_step(node, network, lengths)
        return mode.count

    alike = [calls(lengths) for lengths in ((2, 1), (40, 13), (170, 300, 200, 150, 160))]
    assert len(set(alike)) == 1, alike
    ragged = [calls(lengths) for lengths in ((7, 30, 2, 4, 1), (70, 300, 20, 40, 10))]
    assert ragged[0] == ragged[1] <= 4 * alike[0]


@drawn(st.lists(st.integers(0, 60), min_size=1, max_size=12), st.booleans())
@settings(deadline=None)
def test_padding_is_bounded_and_loses_nothing(lengths, backwards):
    """No more than twice the samples are computed, however ragged a minibatch is, in few groups."""
    rows = torch.arange(sum(lengths), dtype=torch.float64)[:, None]
    groups = Sequences(worlds.offsets(lengths), torch.device("cpu")).padded(backwards)
    assert sum(group.longest * group.count for group in groups) <= 2 * sum(lengths)
    assert len(groups) <= max(max(lengths), 1).bit_length()
    found = rows.new_full(rows.shape, -1)
    for group in groups:
        steps = group.padded(rows)
        assert steps.shape == (group.longest, group.count, 1)
        found[slice(None) if group.rows is None else group.rows] = group.packed(steps)
        for column, sequence in enumerate(range(len(lengths)) if group.which is None else group.which.tolist()):
            own = rows[worlds.offsets(lengths)[sequence] :][: lengths[sequence]]
            assert torch.equal(steps[: len(own), column], own.flip(0) if backwards else own)
    assert torch.equal(found, rows)


@pytest.mark.parametrize("backwards", [False, True])
def test_ragged_minibatches_are_computed_in_groups(backwards):
    lengths = (2, 9, 0, 1, 1, 2)
    rng = np.random.default_rng(0)
    x, (W, H, b) = draw(rng, (INPUTS,), "s", lengths=lengths), lstm_weights(rng)
    node, held = given((INPUTS,), "s"), [given(a.shape, "") for a in (W, H, b)]
    h0 = draw(rng, (CELLS,), "b", lengths=lengths)
    state = given((CELLS,), "b")
    network = Network([apply("lstm", [node, *held, state, state], {"backwards": backwards})])
    tensors = [x, h0, *(torch.from_numpy(a) for a in (W, H, b))]

    def function(x, h0, *ws):
        fed = {node: packed(x, "s", lengths), state: packed(h0, "b")}
        return network({**fed, **{n: packed(w, "") for n, w in zip(held, ws, strict=True)}})[0].data

    begun = zip(sequences(x.numpy(), lengths), h0.numpy(), strict=True)
    expected = [oracle.lstm(s, W, H, b, h, h, backwards) for s, h in begun if len(s)]
    np.testing.assert_allclose(function(*tensors), np.concatenate(expected), rtol=1e-10)
    assert torch.autograd.gradcheck(function, [t.clone().requires_grad_() for t in tensors])


def test_a_loop_visits_steps_and_not_sequences():
    node = worlds.input_node((INPUTS,), AXES["s"])
    held = [single(a) for a in lstm_weights(np.random.default_rng(0))]
    network = Network([looped_lstm(node, *held, single(0.0, False), single(0.0, False))[0]])
    counts = []
    for lengths in ((5, 1), (5, 3, 3, 1, 4, 5, 5), (10, 1)):
        x = torch.zeros(sum(lengths), INPUTS)
        with Calls() as mode:
            network({node: packed(x, "s", lengths)})
        counts.append(mode.count)
    assert counts[0] == counts[1]
    assert counts[2] > counts[0] + 5 * 10
