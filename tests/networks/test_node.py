"""Nodes, traversal of graphs, and errors about shapes that do not fit."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from feedline.data import Value
from feedline.networks import BATCH, apply, clone, find_all, leaves, replace, topological
from feedline.networks.compile import Network
from feedline.networks.node import UNKNOWN, Weights, input_node, parameter_node, placeholder_node
from tests.effort import examples
from tests.graph.worlds import given, packed, run, weights


def new(shape, name=""):
    return parameter_node(Weights(shape, np.zeros, "float64"), name)


def test_nodes_never_change_and_can_be_printed():
    x, w = given((3,), "s", "x"), weights(np.eye(3), "W")
    node = apply("times", [x, w], {"output_rank": 1}, "z")
    assert repr(node) == "times `z`(x, W) -> [batch, steps] (3,)"
    assert repr(w) == "parameter `W`() -> [] (3, 3)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        node.name = "other"
    with pytest.raises(TypeError):
        node.attributes["output_rank"] = 2
    assert node != apply("times", [x, w], {"output_rank": 1}, "z")


WRONG = [
    (
        "plus",
        [(3,), (4,)],
        {},
        r"plus `h`: expected shapes that broadcast, got \(3,\) of input `a` and \(4,\) of input `b`",
    ),
    (
        "times",
        [(3,), (4, 2)],
        {},
        r"times `h`: expected the last axes .* got \(3,\) of input `a` and \(4, 2\) of input",
    ),
    ("reshape", [(3, 4)], {"shape": (5, -1)}, r"reshape `h`: .* \(5, -1\), got \(3, 4\) of input `a`"),
    ("transpose", [(3, 4)], {"perm": (0, 1, 2)}, r"transpose `h`: expected a shape of 3 axes"),
    ("splice", [(3, 4), (2, 5)], {"axis": 0}, r"splice `h`: expected shapes that broadcast"),
    (
        "slice",
        [(3,)],
        {"axis": (0,), "begin": (3,), "end": (5,), "strides": (1,)},
        r"slice `h`: expected a non-empty slice",
    ),
    ("reduce_sum", [(3,)], {"axis": 1}, r"reduce_sum `h`: expected an axis from -1 to 0 for axis=1"),
    ("cosine_distance", [(3,), (4,)], {}, r"cosine_distance `h`: expected two samples of one shape"),
]


@pytest.mark.parametrize(("op", "shapes", "attributes", "message"), WRONG, ids=[w[0] for w in WRONG])
def test_errors_name_the_node_and_the_shapes(op, shapes, attributes, message):
    inputs = [given(shape, "s", name) for shape, name in zip(shapes, "ab", strict=False)]
    with pytest.raises(ValueError, match=message):
        apply(op, inputs, attributes, "h")


def test_sequences_of_two_kinds_do_not_mix():
    a, b = input_node((3,), (BATCH, "words")), input_node((3,), (BATCH, "phones"))
    with pytest.raises(ValueError, match=r"along the same sequences, not .*words.* and .*phones.*broadcast_as"):
        apply("plus", [a, b])
    total = apply("plus", [a, apply("sequence_broadcast_as", [apply("sequence_last", [b]), a])])
    assert total.axes == (BATCH, "words")


def test_an_unknown_operation_and_an_open_placeholder():
    with pytest.raises(ValueError, match="expected an operation that torch can run here, got 'divide_by_cucumber'"):
        apply("divide_by_cucumber", [])
    p = placeholder_node(name="p")
    node = apply("tanh", [p], {}, "t")
    with pytest.raises(ValueError, match="tanh `t` has no shape yet"):
        _ = node.shape
    with pytest.raises(ValueError, match=r"all placeholders to be replaced, got placeholder `p`"):
        Network([node])


# ---- parameters whose shape follows from their use-----------------------------------------------


def test_unknown_dimensions_settle_at_the_first_use():
    w, p = new((UNKNOWN, 4), "W"), placeholder_node()
    open_one = apply("times", [p, w])
    assert w.shape == (UNKNOWN, 4)
    (node,) = replace([open_one], {p: given((3,), "b")})
    assert (w.shape, node.shape) == ((3, 4), (4,))
    with pytest.raises(ValueError, match="last axes of the left operand"):
        replace([open_one], {p: given((5,), "b")})
    assert replace([open_one], {p: given((3,), "s")})[0].inputs[1] is w


def test_one_unknown_axis_may_be_all_of_the_input():
    w = new((UNKNOWN, 5))
    assert apply("times", [given((2, 3, 4), "b"), w], {"map_rank": 0}).shape == (5,)
    assert w.shape == (2, 3, 4, 5)
    w = new((UNKNOWN, 5))
    assert apply("times", [given((2, 3, 4), "b"), w], {"map_rank": 1}).shape == (2, 5)
    assert w.shape == (3, 4, 5)
    w = new((UNKNOWN, 5))
    assert apply("times", [given((2, 3, 4), "b"), w]).shape == (2, 3, 5)
    assert w.shape == (4, 5)
    scale = new((UNKNOWN,))
    assert apply("element_times", [given((2, 3), "b"), scale]).shape == (2, 3)
    assert scale.shape == (3,)  # as in CNTK, the last one
    number = new((UNKNOWN,))
    assert apply("element_times", [given((), "b"), number]).shape == ()


def test_a_parameter_without_a_shape_cannot_be_run():
    with pytest.raises(ValueError, match=r"expected a parameter of known shape, got \(-1,\)"):
        Network([new((UNKNOWN,))])


# ---- ways through ---------------------------------------------------------------------------------


@st.composite
def graphs(draw):
    """Draw nodes over two inputs and two parameters, each from earlier ones."""
    nodes = [given((2,), "s", "x0"), given((2,), "b", "x1"), weights([1.0, 2.0], "w0"), weights([0.5, -1.0], "w1")]
    for i in range(draw(st.integers(1, 12))):
        op = draw(st.sampled_from(["plus", "element_times", "minus", "tanh"]))
        count = 1 if op == "tanh" else 2
        nodes.append(apply(op, [draw(st.sampled_from(nodes)) for _ in range(count)], {}, f"n{i}"))
    return nodes


@drawn(graphs())
@settings(deadline=None, max_examples=examples(30))
def test_inputs_come_before_their_users(nodes):
    order = topological(nodes[-1:])
    place = {node: i for i, node in enumerate(order)}
    assert len(place) == len(order)
    assert all(place[child] < place[node] for node in order for child in node.inputs)
    assert order == topological(nodes[-1:])
    assert set(order) == set(find_all(nodes[-1:], lambda n: True))
    assert set(leaves(nodes[-1:], "input", "parameter")) == {n for n in order if n.is_leaf}


@drawn(graphs(), st.sampled_from(["share", "clone", "freeze"]))
@settings(deadline=None, max_examples=examples(30))
def test_clones_compute_the_same(nodes, method):
    (copy,) = clone(nodes[-1:], method)
    feeds = {
        nodes[0]: packed(torch.arange(20, dtype=torch.float64).reshape(10, 2) / 20, "s"),
        nodes[1]: packed(torch.arange(8, dtype=torch.float64).reshape(4, 2) / 8, "b"),
    }
    mine, theirs = run([nodes[-1], copy], feeds)
    torch.testing.assert_close(mine.data, theirs.data, rtol=0, atol=0)
    old, new_ones = set(leaves(nodes[-1:], "parameter")), set(leaves([copy], "parameter"))
    assert {"share": new_ones == old, "clone": not new_ones & old, "freeze": not new_ones}[method]
    assert len(new_ones) == (0 if method == "freeze" else len(old))


@drawn(graphs())
@settings(deadline=None, max_examples=examples(30))
def test_what_does_not_depend_on_a_replacement_is_shared(nodes):
    other = given((2,), "s", "other")
    (root,) = replace(nodes[-1:], {nodes[0]: other})
    depends = {nodes[0]}
    for node in topological(nodes[-1:]):
        if any(child in depends for child in node.inputs):
            depends.add(node)
    assert (root is nodes[-1]) == (nodes[-1] not in depends)
    kept = {n for n in topological(nodes[-1:]) if n not in depends}
    assert kept <= set(topological([root]))
    assert not depends & set(topological([root]))


def test_finding_by_name():
    x = given((2,), "s", "x")
    a = apply("tanh", [x], {}, "a")
    b = apply("plus", [a, apply("tanh", [a], {}, "twice")], {}, "twice")
    for name, number in (("a", 1), ("none", 0), ("twice", 2)):
        assert len(find_all([b], lambda node, name=name: node.name == name)) == number
    assert find_all([b], lambda node: node.name == "a") == [a]
    with pytest.raises(ValueError, match="expected one of 'share', 'clone', 'freeze', got 'steal'"):
        clone([b], "steal")


# ---- feeding --------------------------------------------------------------------------------------


def test_what_is_fed_must_fit():
    x, y = input_node((2,), (BATCH, "steps"), "x"), input_node((2,), (BATCH, "steps"), "y")
    flat = input_node((2,), (BATCH,), "flat")
    network = Network([apply("plus", [apply("plus", [x, y]), flat])])
    steps = [np.zeros((n, 2), np.float32) for n in (3, 1)]
    good = {
        x: Value.from_sequences(steps),
        y: Value.from_sequences(steps),
        flat: Value.from_dense(np.zeros((2, 2), "f4")),
    }
    assert network(good)[0].data.shape == (4, 2)

    def refused(message, **changes):
        with pytest.raises(ValueError, match=message):
            network({**good, **{{"x": x, "y": y, "flat": flat}[k]: v for k, v in changes.items()}})

    with pytest.raises(ValueError, match="expected data for input `flat`, got it for input `x`, input `y`"):
        network({x: good[x], y: good[y]})
    refused(
        r"input `flat`: expected samples of shape \(2,\), got \(3,\)", flat=Value.from_dense(np.zeros((2, 3), "f4"))
    )
    refused("input `flat`: expected one sample per sequence, got 4 in 2 sequences", flat=good[x])
    refused("expected 2 sequences, as .* has, got 3", flat=Value.from_dense(np.zeros((3, 2), "f4")))
    refused(
        "expected sequences of the same lengths as the other inputs along 'steps'", y=Value.from_sequences(steps[::-1])
    )


def test_networks_of_one_graph_share_parameters_and_free_what_is_used_up():
    w = weights(np.ones(2))
    x = given((2,), "b")
    root = apply("tanh", [apply("element_times", [x, w])])
    first, second = Network([root]), Network([root, w])
    assert next(iter(first.parameters())) is next(iter(second.parameters()))
    assert [name for name, _ in first.named_parameters()] == ["w"]
    assert set(first.state_dict()) == {"w"}
    data = torch.ones(4, 2, dtype=torch.float64)
    below, above = Network([root.inputs[0], root])({x: packed(data, "b")})
    torch.testing.assert_close(below.data.tanh(), above.data)
    torch.testing.assert_close(below.data.detach(), data)
