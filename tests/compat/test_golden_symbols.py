"""MXNet's own symbols as graphs: nodes, edges and parameters of the JSON that MXNet 1.9.1 wrote, with its shapes."""

from __future__ import annotations

import json
import math

import pytest

import feedline as fl
from feedline.graph.importers import graph_of
from tests.compat import golden


class Symbol:
    """A symbol that answers the importer with recorded answers of MXNet 1.9.1."""

    def __init__(self, case):
        self.case = case

    def tojson(self):
        return json.dumps(self.case["symbol"])

    def get_internals(self):
        return self

    def list_outputs(self):
        return [*self.case["inferred_shapes"]["arguments"], *self.case["inferred_shapes"]["outputs"]]

    def infer_shape(self, **given):
        assert given == {name: tuple(shape) for name, shape in self.case["inferred_shapes"]["inputs"].items()}
        known = {**self.case["inferred_shapes"]["arguments"], **self.case["inferred_shapes"]["outputs"]}
        return [], list(known.values()), []


@pytest.mark.parametrize("case", golden.cases("viz.json"))
def test_symbols_have_their_nodes(case):
    graph = graph_of(json.dumps(case["symbol"]))
    nodes = case["symbol"]["nodes"]
    weights = [
        n for n in nodes if n["op"] == "null" and n["name"].endswith(("weight", "bias", "gamma", "beta", "var", "mean"))
    ]
    assert len(graph.parameters) == len(weights)
    # In a frame an operation is called by the rest of its name.
    known = {n["name"] for n in nodes}
    whole = {o: "_".join((*o.scope, o.name)) for o in graph.operations if o.role != "output"}
    assert sorted(name if name in known else o.name for o, name in whole.items()) == sorted(
        n["name"] for n in nodes if n not in weights
    )
    assert sum(o.role == "output" for o in graph.operations) == len(case["symbol"]["heads"])
    inner = sum(nodes[part[0]] not in weights for n in nodes for part in n["inputs"])
    assert sum(1 for _ in graph.edges()) == inner + len(case["symbol"]["heads"])
    assert fl.plot_network(graph, hide_weights=False).source


@pytest.mark.parametrize("case", golden.cases("viz.json"))
def test_symbols_with_shapes_count(case):
    graph = graph_of(Symbol(case), case["inferred_shapes"]["inputs"])
    shapes = case["inferred_shapes"]["arguments"]
    trained = [shapes[name.partition("@")[0]] for name, p in graph.parameters.items() if not p.buffer]
    assert graph.num_parameters() == sum(map(math.prod, trained))
    assert fl.summary(graph).parameters == graph.num_parameters()
