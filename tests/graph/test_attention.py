"""Attention, sequences of other lengths, and recurrences that are part of another one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from feedline.networks import BATCH, apply
from feedline.networks.compile import Network
from feedline.networks.loop_outputs import remember
from feedline.networks.node import input_node, placeholder_node
from feedline.networks.packed_minibatch import PackedRows, Sequences
from feedline.networks.traverse import close, find_all
from tests.graph import worlds
from tests.graph.test_recurrence import CELLS, INPUTS, looped_lstm, lstm_weights, number, on, sequences
from tests.graph.worlds import draw, given, packed, run, weights
from tests.oracles import network as oracle

ENCODED = (2, 4, 1, 3)  # lengths of the sequences attended to


def encoder(shape, name="encoded"):
    return input_node(shape, (BATCH, "encoder"), name, False, "float64")


def along_encoder(tensor):
    return PackedRows(tensor, Sequences(worlds.offsets(ENCODED), torch.device("cpu")))


def attention(keys, values, query, v, whole=False):
    """The mean in two operations, or in the one that older files have."""
    padded = [apply("sequence_padded", [node]) for node in (keys, values)]
    valid = apply("sequence_valid", [values])
    if whole:
        return apply("attend", [*padded, valid, query, v])
    return apply("attention_mean", [apply("attention_weights", [padded[0], valid, query, v], {}, "shares"), padded[1]])


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("kind", ["s", "b"])
def test_attention_is_a_weighted_mean_of_each_sequence(kind, whole):
    rng = np.random.default_rng(0)
    keys, values, query = encoder((3,), "keys"), encoder((2,), "values"), given((3,), kind)
    v = rng.uniform(-1, 1, (3, 1))
    root = attention(keys, values, query, weights(v), whole)
    assert (root.shape, root.axes) == ((2,), query.axes)
    tensors = [draw(rng, (n,), "s", lengths=ENCODED) for n in (3, 2)] + [draw(rng, (3,), kind)]

    def network(k, e, q):
        fed = {keys: along_encoder(k), values: along_encoder(e), query: packed(q, kind)}
        return run([root], fed)[0].data

    k, e, q = (t.numpy() for t in tensors)
    parts = zip(sequences(k, ENCODED), sequences(e, ENCODED), sequences(q) if kind == "s" else q[:, None], strict=True)
    expected = [oracle.softmax(np.tanh(ks + d) @ v[:, 0]) @ es for ks, es, steps in parts for d in steps]
    np.testing.assert_allclose(network(*tensors).detach(), expected, rtol=1e-12)
    assert torch.autograd.gradcheck(network, [t.requires_grad_() for t in tensors])


@pytest.mark.parametrize("whole", [True, False])
def test_what_attention_takes(whole):
    query, v = given((3,), "s"), weights(np.zeros((3, 1)))
    with pytest.raises(ValueError, match="a query as wide as the keys"):
        attention(encoder((4,)), encoder((2,)), query, v, whole)
    with pytest.raises(ValueError, match="for each of its steps"):
        attention(encoder((3,)), encoder((2,)), number(0.0, (3,)), v, whole)
    with pytest.raises(ValueError, match="an input with a sequence axis"):
        attention(given((3,), "b"), encoder((2,)), query, v, whole)


def test_a_recurrence_may_attend_at_each_step():
    """``h = tanh(x + attended(h before))``, with as many sequences, of other lengths, to attend to."""
    rng = np.random.default_rng(1)
    x, keys, h = given((3,), "s"), encoder((3,)), placeholder_node(name="h")
    before = apply("delay", [h, number(0.5)], {"steps": 1})
    after = on("tanh")(on("plus")(x, attention(keys, keys, before, weights(np.ones((3, 1))))))
    named = apply("alias", [after, before, keys], {"block": "Step", "instance": ""})
    (root, _) = close([named], {h: named})
    tensors = [draw(rng, (3,), "s"), draw(rng, (3,), "s", lengths=ENCODED)]

    def network(a, b):
        return run([root], {x: packed(a, "s"), keys: along_encoder(b)})[0].data

    expected = []
    for steps, e in zip(sequences(tensors[0].numpy()), sequences(tensors[1].numpy(), ENCODED), strict=True):
        state = np.full(3, 0.5)
        for step in steps:
            state = np.tanh(step + oracle.softmax(np.tanh(e + state).sum(1)) @ e)
            expected.append(state)
    np.testing.assert_allclose(network(*tensors).detach(), expected, rtol=1e-12)
    assert torch.autograd.gradcheck(network, [t.requires_grad_() for t in tensors])


def test_nodes_inside_a_recurrence_can_be_evaluated():
    """The weights of attention at each step, by their node in the step, alone and together with the recurrence."""
    rng = np.random.default_rng(2)
    x, keys, h = given((3,), "s"), encoder((3,)), placeholder_node(name="h")
    before = apply("delay", [h, number(0.5)], {"steps": 1})
    after = on("tanh")(on("plus")(x, attention(keys, keys, before, weights(np.ones((3, 1))))))
    (root, _) = close([after], {h: after})
    (shares,) = find_all([root], lambda node: node.op == "attention_weights")
    assert shares.shape == (-3, 1)
    tensors = [draw(rng, (3,), "s").detach(), draw(rng, (3,), "s", lengths=ENCODED).detach()]
    fed = {x: packed(tensors[0], "s"), keys: along_encoder(tensors[1])}
    expected = []
    for steps, e in zip(sequences(tensors[0].numpy()), sequences(tensors[1].numpy(), ENCODED), strict=True):
        state = np.full(3, 0.5)
        for step in steps:
            share = oracle.softmax(np.tanh(e + state).sum(1))
            expected.append(np.pad(share, (0, max(ENCODED) - len(share)))[:, None])
            state = np.tanh(step + share @ e)
    beside = run([root, shares], fed)
    np.testing.assert_allclose(beside[1].data.detach(), expected, rtol=1e-12)
    with pytest.raises(ValueError, match="placeholders to be replaced"):
        run([shares], fed)
    remember([root], [shares])
    (alone,) = run([shares], fed)
    assert torch.equal(alone.data, beside[1].data)
    assert alone.sequences.lengths.tolist() == beside[0].sequences.lengths.tolist()


def test_a_state_may_be_the_delayed_value_itself():
    """``h = select(first, start, delay(tanh(h + x)))``: the state's end reads the step by a delay, as seq2seq does."""
    rng = np.random.default_rng(3)
    x, h = given((2,), "s"), placeholder_node((2,), given((2,), "s").axes, "h")
    step = on("tanh")(on("plus")(h, x))
    first = apply("sequence_is_first", [x])
    end = apply("element_select", [first, number(0.25, (2,)), apply("delay", [step, number(0.0)], {"steps": 1})])
    (root, _) = close([step], {h: end})
    data = draw(rng, (2,), "s")

    def network(a):
        return run([root], {x: packed(a, "s")})[0].data

    expected = []
    for steps in sequences(data.detach().numpy()):
        state = np.full(2, 0.25)
        for row in steps:
            state = np.tanh(state + row)
            expected.append(state)
    np.testing.assert_allclose(network(data).detach(), expected, rtol=1e-12)
    assert torch.autograd.gradcheck(network, [data.requires_grad_()])
    circle = placeholder_node((2,), given((2,), "s").axes, "c")
    (never, _) = close(
        [on("plus")(circle, apply("delay", [circle, number(0.0)], {"steps": 1}))],
        {circle: on("tanh")(on("plus")(circle, apply("delay", [circle, number(0.0)], {"steps": 1})))},
    )
    with pytest.raises(ValueError, match="state placeholder `c` of the same step"):
        run([never], {})


@pytest.mark.parametrize(
    ("factor", "lengths"), [(1, [3, 1, 4, 2]), (1.5, [5, 2, 6, 3]), (1 / 3, [1, 1, 2, 1]), (2.3333, [7, 3, 10, 5])]
)
def test_ones_for_sequences_of_other_lengths(factor, lengths):
    node = given((2,), "s")
    root = apply("sequence_ones", [node], {"factor": factor})
    assert root.shape == ()
    (found,) = run([root], {node: packed(draw(np.random.default_rng(0), (2,), "s"), "s")})
    assert found.sequences.lengths.tolist() == lengths
    assert found.data.tolist() == [1] * sum(lengths)


def cell(op, x, parameters, backwards=False):
    initial = [number(0.1), number(0.2)][: 2 if op == "lstm" else 1]
    settings = {"backwards": backwards} | ({} if op == "lstm" else {"activation": "tanh"})
    return apply(op, [x, *parameters, *initial], settings)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("op", ["lstm", "rnn", "loop"])
def test_recurrences_within_a_recurrence(op, backwards):
    """``s = inner(x + s before) A``: a fused or looped recurrence along the steps of another one."""
    rng = np.random.default_rng(2)
    gates = 1 if op == "rnn" else 4
    W, H, b, A = (rng.uniform(-1, 1, s) for s in (
        (INPUTS, gates * CELLS), (CELLS, gates * CELLS), (gates * CELLS,), (CELLS, INPUTS)))  # fmt: skip
    x, state = given((INPUTS,), "s"), placeholder_node(name="s")
    steps = -1 if backwards else 1
    before = apply("delay", [state, number(0.3)], {"steps": steps})
    parameters = [weights(w) for w in (W, H, b)]
    fed = on("plus")(x, before)
    if op == "loop":
        inner = looped_lstm(fed, *parameters, number(0.1), number(0.2), steps)[0]
    else:
        inner = cell(op, fed, parameters, backwards)
    root = close([inner], {state: on("times")(inner, weights(A))})[0]
    assert len(find_all([root], lambda node: node.op == "loop")) == 1
    assert not find_all([root], lambda node: node.op in ("lstm", "rnn"))
    tensor = draw(rng, (INPUTS,), "s")

    def network(rows):
        return run([root], {x: packed(rows, "s")})[0].data

    def twin(rows):
        """Each step by all steps before it."""
        fed, found = [], []
        for row in rows:
            fed.append(row + (found[-1] @ A if found else 0.3))
            if op == "rnn":
                h = np.full(CELLS, 0.1)
                for one in fed:
                    h = np.tanh(one @ W + h @ H + b)
                found.append(h)
            else:
                found.append(oracle.lstm(np.array(fed), W, H, b, 0.1, 0.2)[-1])
        return found

    back = slice(None, None, steps)
    expected = np.concatenate([np.array(twin(s[back]))[back] for s in sequences(tensor.numpy())])
    np.testing.assert_allclose(network(tensor).detach(), expected, rtol=1e-10)
    assert torch.autograd.gradcheck(network, [tensor.requires_grad_()])


def test_a_recurrence_that_goes_the_other_way_is_refused():
    rng = np.random.default_rng(0)
    x, state = given((INPUTS,), "s"), placeholder_node(name="s")
    before = apply("delay", [state, number(0.0)], {"steps": 1})
    inner = cell("lstm", on("plus")(x, before), [weights(w) for w in lstm_weights(rng)], backwards=True)
    root = close([inner], {state: on("times")(inner, weights(np.ones((CELLS, INPUTS))))})[0]
    with pytest.raises(ValueError, match="both past and future values"):
        Network([root])
