"""Importers other than torch's: CNTK's networks and MXNet's symbols, with costs compared with counts by hand."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import feedline as fl
import feedline.cntk as C
import feedline.mxnet as mx
from feedline.graph.costs import activations, multiply_adds
from feedline.graph.graph import OutputReference, TensorType
from feedline.graph.importers import graph_of
from feedline.graph.importers.torch_parts import arguments


def operations(graph, role="operation"):
    return [o for o in graph.operations if o.role == role]


# ---- networks under CNTK's names ------------------------------------------------------------------


def test_a_function_with_blocks():
    x = C.input_variable(4, name="x")
    model = C.layers.Sequential([C.layers.Dense(3, activation=C.relu, name="hidden"), C.layers.Dense(2)])(x)
    graph = graph_of(model)
    assert graph.importer == "feedline.networks"
    assert graph.num_parameters() == 4 * 3 + 3 + 3 * 2 + 2
    assert sum(o.multiply_adds for o in graph.operations) == 12 + 6
    assert [o.kind for o in operations(graph)] == ["times", "plus", "relu", "times", "plus"]
    assert [str(e.type) for e in graph.edges()] == ["batch×4", *["batch×3"] * 3, *["batch×2"] * 2]
    kinds = {path: scope.kind for path, scope in graph.scopes.items()}
    assert list(kinds.values()).count("Dense") == 2
    assert ("Sequential", "hidden") in kinds
    assert [o.name for o in operations(graph, "input")] == ["x"]


def test_equal_networks_give_equal_graphs():
    def build():
        return graph_of(C.layers.Sequential([C.layers.Dense(3), C.layers.Recurrence(C.layers.GRU(2))])(x))

    x = C.sequence.input_variable(4, name="x")
    assert build() == build()


def test_recurrences_are_drawn_open():
    x = C.sequence.input_variable(4, name="x")
    step = C.layers.Recurrence(lambda h, a: C.tanh(C.times(a, C.parameter((4, 3), name="W")) + h))
    graph = graph_of(step(x))
    (state,) = [o for o in graph.operations if o.kind == "state"]
    (back,) = [e for e in graph.edges() if e.feedback]
    assert back.head == state.key
    assert graph[back.tail].kind == "tanh"
    source = fl.plot_network(graph).source
    assert "constraint=false" in source
    assert fl.summary(graph).parameters == 12


def test_shared_parameters_count_once():
    x, w = C.input_variable(3), C.parameter((3, 3), name="w")
    graph = graph_of(C.times(C.times(x, w), w))
    assert graph.num_parameters() == 9
    assert [o.parameters for o in operations(graph)] == [("w",), ("w",)]


def test_convolutions_of_cntk():
    image = C.input_variable((2, 6, 5))
    graph = graph_of(C.layers.Convolution2D((3, 3), 4, pad=False)(image))
    (layer,) = [o for o in graph.operations if o.kind == "convolution"]
    assert layer.outputs[0].shape == ("batch", 4, 4, 3)
    assert layer.multiply_adds == 4 * 4 * 3 * 2 * 9


def test_several_outputs_and_nodes():
    x = C.input_variable(3)
    a, b = C.relu(x), C.tanh(x)
    graph = graph_of(C.combine([a, b]))
    assert len(operations(graph, "output")) == 2
    assert len(operations(graph_of([a, b]), "output")) == 2
    assert [o.kind for o in operations(graph_of(a.output.node))] == ["relu"]


def test_own_networks_know_their_shapes():
    with pytest.raises(TypeError, match="expected no inputs, got tuple"):
        graph_of(C.relu(C.input_variable(3)), (2, 3))
    graph = graph_of(C.relu(C.input_variable(3)))
    assert graph_of(graph) is graph


# ---- MXNet's symbols ------------------------------------------------------------------------------


class Twins:
    """A symbol with two nodes of one name."""

    def tojson(self):
        nodes = [{"op": "null", "name": name, "inputs": []} for name in ("x", "w_weight", "w_weight")]
        nodes += [{"op": "FullyConnected", "name": "fc", "inputs": [[0, 0, 0], [1, 0, 0]]}]
        nodes += [{"op": "FullyConnected", "name": "fc", "inputs": [[3, 0, 0], [2, 0, 0]]}]
        return json.dumps({"nodes": nodes, "arg_nodes": [0, 1, 2], "heads": [[4, 0, 0]]})

    def get_internals(self):
        return self

    def list_outputs(self):
        return ["x", "w_weight", "w_weight", "fc_output", "fc_output"]

    def infer_shape(self, x):
        return [], [x, (5, 4), (3, 5), (x[0], 5), (x[0], 3)], []


def test_nodes_of_one_name_keep_their_shapes():
    graph = graph_of(Twins(), {"x": (2, 4)})
    assert [o.outputs[0].shape for o in operations(graph)] == [(2, 5), (2, 3)]
    assert graph.num_parameters() == 20 + 15
    assert [o.multiply_adds for o in operations(graph)] == [40, 30]


def test_older_keys_of_settings():
    node = {"op": "Activation", "name": "act", "inputs": [[0, 0]]}
    for key in ("attrs", "attr", "param"):
        nodes = [{"op": "null", "name": "x", "inputs": []}, {**node, key: {"act_type": "relu"}}]
        graph = graph_of(json.dumps({"nodes": nodes, "arg_nodes": [0], "heads": [[1, 0]]}))
        assert operations(graph)[0].detail == "act_type=relu"


@pytest.mark.parametrize(("how", "trains"), [({}, False), ({"fix_gamma": True}, False), ({"fix_gamma": False}, True)])
def test_gammas_that_are_fixed_do_not_train(how, trains):
    graph = graph_of(mx.sym.BatchNorm(mx.sym.Variable("data"), name="bn", **how), {"data": (2, 5, 3, 3)})
    assert {name: p.trains for name, p in graph.parameters.items() if not p.buffer} == {
        "bn_gamma": trains,
        "bn_beta": True,
    }
    assert (graph.num_parameters(), graph.num_parameters(trains=True)) == (10, 10 if trains else 5)
    source = fl.plot_network(graph).source
    assert "read from an MXNet symbol" in source


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected the JSON of a symbol"),
        ("[]", "expected the JSON of a symbol"),
        ('{"nodes": 3, "heads": []}', "lists"),
        ('{"nodes": [{"op": "null"}], "heads": []}', "op, name and inputs in node 0"),
        ('{"nodes": [{"op": "null", "name": "x", "inputs": [[0, 0]]}], "heads": []}', "nodes before it"),
        ('{"nodes": [{"op": "a", "name": "x", "inputs": ["a"]}], "heads": []}', "node 0"),
        ('{"nodes": [{"op": "null", "name": "x", "inputs": []}], "heads": [[4, 0, 0]]}', "head 0"),
        ('{"nodes": [], "heads": ["a"]}', "head 0"),
        ('{"nodes": [], "heads": [{}]}', "head 0"),
        ('{"nodes": [{"op": "null", "name": "x", "inputs": [{}]}], "heads": []}', "node 0"),
    ],
)
def test_json_that_is_no_symbol(text, message):
    with pytest.raises(ValueError, match=message):
        graph_of(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["nodes", "heads", "op", "name", "inputs", "attrs"]), inner, max_size=4)
        ),
    )
)
def test_any_json_is_read_or_refused(document):
    try:
        graph_of(json.dumps(document))
    except ValueError:
        pass


# ---- modules --------------------------------------------------------------------------------------


def test_inputs_become_arguments():
    model = nn.Linear(2, 2).double()
    (zeros,), empty = arguments(model, (3, 2))
    assert (zeros.dtype, tuple(zeros.shape), empty) == (torch.float64, (3, 2), {})
    (array, deep), _ = arguments(model, [np.ones(3, np.float32), {"a": [(2, 1)]}])
    assert array.dtype == torch.float32
    assert tuple(deep["a"][0].shape) == (2, 1)
    given, named = arguments(model, {"input": (3, 2), "flag": True})
    assert (given, named["flag"]) == ((), True)


def test_settings_of_layers_are_shown():
    graph = graph_of(nn.Sequential(nn.Conv2d(1, 2, 3, stride=2)), (1, 1, 8, 8))
    assert graph.scopes[("0",)].detail == "1, 2, kernel_size=(3, 3), stride=(2, 2)"


def test_operations_in_place_and_views_allocate_nothing():
    wide = [TensorType((2, 3), "float32")]
    assert activations("relu", wide) == 24
    assert activations("relu_", wide) == activations("view", wide) == activations("Flatten", wide) == 0
    assert activations("relu", [TensorType()]) is None


def counted(*, out, summed):
    """Multiply-adds by going through all of them."""
    return sum(1 for _ in itertools.product(*(range(n) for n in (*out, *summed))))


sizes = st.integers(1, 4)


@given(st.lists(sizes, min_size=1, max_size=3), sizes, sizes)
def test_products(rows, inner, columns):
    out = (*rows, columns)
    expected = counted(out=out, summed=(inner,))
    assert multiply_adds("linear", [(*rows, inner), (columns, inner)], [], out) == expected
    assert multiply_adds("matmul", [(*rows, inner), (inner, columns)], [], out) == expected
    assert multiply_adds("FullyConnected", [(*rows, inner), (columns, inner), (columns,)], [], out) == expected
    assert multiply_adds("times", [("batch", *rows, inner), (inner, columns)], [], ("batch", *out)) == expected
    letters = "abc"[: len(rows)]
    equation = f"{letters}i,io->{letters}o"
    assert multiply_adds("einsum", [(*rows, inner), (inner, columns)], [], out, equation) == expected
    turned = f"io,{letters}i->{letters}o"
    assert multiply_adds("einsum", [(inner, columns), (*rows, inner)], [], out, turned) == expected


@given(sizes, sizes, sizes, st.lists(sizes, min_size=1, max_size=2), st.lists(sizes, min_size=1, max_size=2))
def test_convolutions(batch, i, o, size, kernel):
    kernel = (kernel * 2)[: len(size)]
    weight, out = (o, i, *kernel), (batch, o, *size)
    whole = (batch, i, *[n + k - 1 for n, k in zip(size, kernel, strict=True)])
    for kind in ("conv2d", "Conv1d", "Convolution", "convolution"):
        assert multiply_adds(kind, [whole, weight], [weight], out) == counted(out=out, summed=weight[1:])
    back = (i, o, *kernel)
    small = (batch, i, *size)
    assert multiply_adds("conv_transpose2d", [small, back], [back], whole) == counted(out=small, summed=back[1:])


def test_recurrent_weights_in_one_vector_are_not_guessed():
    assert multiply_adds("RNN", [(5, 2, 3), (100,)], [(100,)], (5, 2, 4)) is None
    assert multiply_adds("linear", [None, (2, 2)], [(2, 2)], (1, 2)) is None
    assert multiply_adds("Unheard", [(2, 2), (2, 2)], [(2, 2)], (2, 2), layer=True) is None
    assert multiply_adds("relu", [(2, 2)], [], (2, 2)) == 0


def test_outputs_by_number():
    graph = graph_of(nn.LSTM(3, 2), (4, 1, 3))
    (lstm,) = [o for o in graph.operations if o.kind == "lstm"]
    outputs = [o.inputs[0] for o in operations(graph, "output")]
    assert outputs == [OutputReference(lstm.key, i) for i in range(3)]
