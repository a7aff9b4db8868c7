"""Symbols, pictures and tables as the real MXNet 1.9.1 gives them."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest

import feedline.mxnet as mx
from feedline.mxnet.symbol._make import FUNCTIONS
from tests.compat.golden import cases

CASES = cases("viz.json")


def symbol_of(case):
    return mx.sym.load_json(json.dumps(case["symbol"]))


def arguments(given):
    """Keyword arguments as Python has them."""
    given = dict(given)
    if "shape" in given:
        given["shape"] = {name: tuple(shape) for name, shape in given["shape"].items()}
    if "dtype" in given:
        given["dtype"] = {name: np.dtype(dtype).type for name, dtype in given["dtype"].items()}
    return given


@pytest.mark.parametrize("case", CASES)
def test_text(case):
    assert json.loads(symbol_of(case).tojson()) == case["symbol"]


def replayed(graph):
    """The symbol, made again by calls: a variable named after a node and its input is left to the call."""
    made = []
    for node in graph["nodes"]:
        attributes = node.get("attrs", {})
        if node["op"] == "null":
            made.append(mx.sym.var(node["name"]))
            continue
        below = [made[number][output] for number, output, _ in node["inputs"]]
        kept = [symbol for symbol in below if not symbol.name.startswith(f"{node['name']}_")]
        made.append(FUNCTIONS[node["op"]](*kept, name=node["name"], **attributes))
    return mx.sym.Group([made[number][output] for number, output, _ in graph["heads"]])


@pytest.mark.parametrize("case", CASES)
def test_calls_give_the_same_text(case):
    assert json.loads(replayed(case["symbol"]).tojson()) == case["symbol"]


@pytest.mark.parametrize("case", CASES)
def test_names_and_shapes(case):
    symbol, told = symbol_of(case), case["inferred_shapes"]
    lists = [symbol.list_arguments(), symbol.list_outputs(), symbol.list_auxiliary_states()]
    assert lists == [case["list_arguments"], case["list_outputs"], case["list_auxiliary_states"]]
    found = symbol.infer_shape(**arguments({"shape": told["inputs"]})["shape"])
    for names, shapes, key in zip(lists, found, ("arguments", "outputs", "auxiliary"), strict=True):
        assert dict(zip(names, map(list, shapes), strict=True)) == told[key]


@pytest.mark.parametrize("case", CASES)
def test_pictures(case):
    symbol = symbol_of(case)
    for plot in case["plots"]:
        expected = plot["expect"]
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            if "error" in expected:
                with pytest.raises(Exception) as caught:  # noqa: PT011 - the type is compared below
                    mx.viz.plot_network(symbol, **arguments(plot["args"]))
                assert type(caught.value).__name__ == expected["error"]["type"]
                # Newer versions of graphviz list the formats they know.
                assert str(caught.value).startswith(expected["error"]["message"])
            else:
                dot = mx.viz.plot_network(symbol, **arguments(plot["args"]))
                assert dot.source.strip() == expected["dot"].strip()
                assert [dot.name, dot.filename, dot.format] == [
                    expected[key] for key in ("graph_name", "filename", "format")
                ]
        assert [said(w.category.__name__, str(w.message)) for w in seen] == [
            said(w["category"], w["message"]) for w in expected.get("warnings", [])
        ]


def said(category, message):
    """Normalise a warning, as MXNet lists repeated names in the order of a set."""
    text, _, names = message.partition("Repeated names: ")
    return category, text, set(names.split(","))


@pytest.mark.parametrize("case", CASES)
def test_tables(case, capsys):
    symbol = symbol_of(case)
    for summary in case["summaries"]:
        expected = summary["expect"]
        given = arguments(summary["args"])
        if "error" in expected:
            kind = {"IndexError": IndexError, "ValueError": ValueError}[expected["error"]["type"]]
            with warnings.catch_warnings(), pytest.raises(kind, match=expected["error"]["message"]):
                warnings.simplefilter("ignore")
                mx.viz.print_summary(symbol, **given, exact_mxnet=True)
        else:
            mx.viz.print_summary(symbol, **given, exact_mxnet=True)
        assert capsys.readouterr().out.splitlines() == expected["printed"]


# Networks whose every count MXNet has right, once shapes are known.
RIGHT = {"mlp", "lenet", "residual blocks", "duplicate names", "branches with concat", "names with colon and blanks"}


@pytest.mark.parametrize("case", CASES)
def test_tables_are_the_same_where_mxnet_is_right(case, capsys):
    if case["label"] not in RIGHT:
        pytest.skip("MXNet fails, or leaves something out")
    symbol = symbol_of(case)
    for summary in case["summaries"]:
        if summary["args"].get("shape"):
            mx.viz.print_summary(symbol, **arguments(summary["args"]))
            assert capsys.readouterr().out.splitlines() == summary["expect"]["printed"]
