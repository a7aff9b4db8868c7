"""Pictures: content, with any names, colour blindness, and a missing program."""

from __future__ import annotations

import re
import shutil
import sys
from xml.etree import ElementTree

import graphviz
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

import feedline as fl
from feedline.graph.graph import Graph, Operation, OutputReference, Parameter, Scope, TensorType
from feedline.graph.op_families import FAMILIES, family
from feedline.graph.plot import MANY
from feedline.graph.styles import GREY, INK, STYLES
from tests.contrast import contrast
from tests.effort import examples
from tests.graph.dot import parsed

needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="the program dot is not installed")
WIDE = TensorType((2, 3))
SHARED = nn.Linear(3, 3)
TWICE = nn.Sequential(SHARED, SHARED)


def test_text_can_be_read():
    assert all(contrast(style.fill, INK) >= 7 for style in STYLES.values())
    assert contrast(GREY, "#ffffff") >= 4.5
    assert contrast(GREY, "#000000") >= 4.5


def test_families_differ_in_form_too():
    forms = [(style.shape, style.style) for style in STYLES.values()]
    assert len(set(forms)) == len(forms) == len({style.words for style in STYLES.values()})
    assert set(STYLES) == set(FAMILIES)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ("conv2d Conv2d Convolution convolution conv_transpose2d Deconvolution", "convolution"),
        ("linear Linear FullyConnected times bmm Embedding einsum", "product"),
        ("lstm LSTM LSTMCell gru_cell RNN state", "recurrent"),
        ("relu relu_ ReLU LeakyReLU gelu sigmoid Activation log_softmax SiLU", "activation"),
        ("batch_norm BatchNorm2d LayerNorm batch_normalization", "normalisation"),
        ("dropout Dropout Dropout2d alpha_dropout", "dropout"),
        ("max_pool2d MaxPool2d Pooling AdaptiveAvgPool2d average_pooling", "pooling"),
        ("MultiheadAttention scaled_dot_product_attention TransformerEncoderLayer", "attention"),
        ("SoftmaxOutput LinearRegressionOutput cross_entropy_with_softmax CrossEntropyLoss squared_error", "loss"),
        ("view Reshape Flatten cat Concat splice SliceChannel transpose permute", "shape"),
        ("input placeholder output", "input"),
        ("add elemwise_mul sum Block", "other"),
    ],
)
def test_kinds_of_all_libraries_find_their_family(kinds, expected):
    assert {kind: family(kind) for kind in kinds.split()} == dict.fromkeys(kinds.split(), expected)


@needs_dot
@settings(max_examples=examples(15))
@given(st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1, max_size=12))
@example("s")
def test_any_name_is_shown_as_it_is(name):
    graph = Graph(
        (
            Operation("x", "input", name, "input", outputs=(WIDE,)),
            Operation(
                "y", name, name, scope=("s",), inputs=(OutputReference("x"),), outputs=(WIDE,), parameters=("w",)
            ),
        ),
        {"w": Parameter("w", WIDE)},
        {("s",): Scope(name)},
    )
    picture = fl.plot_network(graph, title=name, hide_weights=False)
    shown = [
        text.text for text in ElementTree.fromstring(picture.pipe(format="svg")).iter() if text.tag.endswith("}text")
    ]
    words = {" ".join((text or "").split()) for text in shown}
    wanted = " ".join(name.replace("\ufffe", "\ufffd").replace("\uffff", "\ufffd").split())
    assert wanted in words
    # A frame with the name of its class shows it once. The name may be broken into lines.
    said = " ".join(" ".join(text or "" for text in shown).split())
    assert (f"s: {wanted}".strip() in said) == (name != "s")


@pytest.mark.parametrize(
    "name", ['a"b', "a\\nb", "\\N", "<b>x</b>", "<", "a:b:c", "&amp;", "]; x -> y;", "{a|b}", "—é漢"]
)
def test_names_that_mean_something_in_dot(name):
    graph = Graph((Operation("x", "relu", name, outputs=(WIDE,)),))
    nodes, edges = parsed(fl.plot_network(graph, title=name, legend=False).source)
    assert set(nodes) == {"x"}
    assert not edges
    svg = fl.plot_network(graph, legend=False).pipe(format="svg", encoding="utf-8")
    assert name in [element.text for element in ElementTree.fromstring(svg).iter()]


def test_weights_are_shown_once():
    nodes, edges = parsed(fl.plot_network(TWICE, (2, 3), hide_weights=False, legend=False, fold=False).source)
    assert [n for n in nodes if n.startswith("parameter")] == ["parameter 2", "parameter 3"]  # after two scopes
    assert sum(tail.startswith("parameter") for tail, *_ in edges) == 4
    hidden, _ = parsed(fl.plot_network(TWICE, (2, 3), legend=False, fold=False).source)
    assert len(hidden) == len(nodes) - 2
    assert "12 parameters" in next(iter(n for k, n in hidden.items() if k == "0"))


class Twice(nn.Module):
    """One module, called twice, around a layer that is called in it."""

    def __init__(self):
        super().__init__()
        self.inner, self.last = nn.Sequential(nn.Sequential(nn.Linear(3, 3))), nn.Sequential(nn.Sequential(nn.Tanh()))

    def forward(self, x):
        return self.inner(self.last(self.inner(x)))


def test_shared_weights_are_in_no_frame():
    source = fl.plot_network(Twice(), (2, 3), hide_weights=False, fold=False).source
    places = re.findall(r'^(\t+)"parameter \d+" \[', source, re.MULTILINE)
    assert places == ["\t"] * 4  # two parameters, two calls
    alone = fl.plot_network(nn.Sequential(nn.Sequential(nn.Linear(3, 3))), (2, 3), hide_weights=False).source
    assert re.findall(r'^(\t+)"parameter \d+" \[', alone, re.MULTILINE) == ["\t\t"] * 2


def test_repeats_are_counted():
    towers = nn.Sequential(*[nn.Sequential(nn.Linear(3, 3), nn.ReLU()) for _ in range(12)])
    source = fl.plot_network(towers, (2, 3)).source
    assert "0 … 11: Sequential ×12" in source
    assert source.count("12 parameters") == 1
    assert "144 parameters" in source  # of the whole
    assert fl.plot_network(towers, (2, 3), fold=False).source.count("12 parameters") == 12
    assert "×2 (same weights)" in fl.plot_network(TWICE, (2, 3)).source


def test_depth_makes_boxes_of_modules():
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), nn.Linear(4, 2))
    nodes, _ = parsed(fl.plot_network(model, (2, 3), depth=0, legend=False).source)
    assert set(nodes) == {"input", "0", "1", "output.0"}
    assert re.search(r"subgraph", fl.plot_network(model, (2, 3), depth=0, legend=False).source) is None


def test_attributes_are_the_callers():
    picture = fl.plot_network(
        TWICE, (2, 3), title="net", save_format="pdf", node_attrs={"shape": "star"}, direction="LR"
    )
    assert isinstance(picture, graphviz.Digraph)
    assert (picture.name, picture.format, picture.filename) == ("net", "pdf", "net.gv")
    assert "shape=star" in picture.source
    assert "rankdir=LR" in picture.source
    with pytest.raises(ValueError, match="'TB', 'LR', 'BT' or 'RL', got 'UP'"):
        fl.plot_network(TWICE, (2, 3), direction="UP")
    with pytest.raises(ValueError, match="foo"):
        fl.plot_network(TWICE, (2, 3), save_format="foo")


def test_any_attribute_is_the_callers():
    """Labels and tooltips, too. Anything but text is an error."""
    source = fl.plot_network(nn.Linear(4, 3), (2, 4), node_attrs={"label": "same", "tooltip": ""}).source
    assert source.count("label=same") == 3
    for wrong in ({"node_attrs": {"width": 2}}, {"title": 3}):
        with pytest.raises(TypeError, match="of text"):
            fl.plot_network(nn.Linear(4, 3), (2, 4), **wrong)


def test_legend_names_what_occurs():
    source = fl.plot_network(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), (2, 3)).source
    named = {kin for kin in FAMILIES if f"{kin}: {STYLES[kin].words}" in source}
    assert named == {"input", "product", "activation"}


def test_notes_are_in_the_picture():
    class Branch(nn.Module):
        def forward(self, x):
            return x + 1 if x.sum() > 0 else x

    source = fl.plot_network(Branch(), torch.ones(2)).source
    assert "read by a run" in source
    assert "torch.fx: TraceError" in source


@needs_dot
def test_notebooks_get_svg():
    bundle = fl.plot_network(TWICE, (2, 3))._repr_mimebundle_()
    assert "</svg>" in bundle["image/svg+xml"]


def test_without_dot_notebooks_get_the_source(monkeypatch):
    monkeypatch.setenv("PATH", "")
    picture = fl.plot_network(TWICE, (2, 3))
    bundle = picture._repr_mimebundle_()
    assert list(bundle) == ["text/plain"]
    assert "`dot` is not installed" in bundle["text/plain"]
    assert picture.source in bundle["text/plain"]


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "graphviz", None)
    monkeypatch.delitem(sys.modules, "feedline.graph.digraph", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"pip install .*\[viz\]'"):
        fl.plot_network(TWICE, (2, 3))
    assert fl.summary(TWICE, (2, 3)).parameters == 12


@needs_dot
def test_a_thousand_operations_are_drawn():
    operations = [Operation("o0", "input", role="input", outputs=(WIDE,))]
    for i in range(1, 1000):
        sources = tuple({OutputReference(f"o{i - 1}"), OutputReference(f"o{max(0, i - 7)}")})
        operations.append(Operation(f"o{i}", "linear", inputs=sources, outputs=(WIDE,)))
    assert len(operations) > MANY
    svg = fl.plot_network(Graph(tuple(operations)), legend=False).pipe(format="svg", encoding="utf-8")
    assert svg.count('class="node"') == 1000
    assert svg.count("2×3") == 1 + sum(len(o.inputs) for o in operations)  # one in the input


@pytest.mark.parametrize("model", [3, object(), nn.Linear, [], ["a"]])
def test_anything_else_is_no_network(model):
    with pytest.raises(TypeError, match=r"expected a torch\.nn\.Module, .* or a Graph, got "):
        fl.plot_network(model)


def test_inputs_that_do_not_fit():
    with pytest.raises(ValueError, match="inputs that Sequential can be run on"):
        fl.plot_network(TWICE, (2, 4))


def vgg(deep):
    """Layers in one frame, or in one for each stage inside of that, and a head."""
    stages = [
        [layer for m in range(4) for layer in (nn.Conv2d(w if m else before, w, 3, padding=1), nn.ReLU())]
        for before, w in ((3, 8), (8, 12), (12, 16), (16, 20), (20, 24))
    ]
    inner = [nn.Sequential(*stage) for stage in stages] if deep else [layer for stage in stages for layer in stage]
    body = nn.Module()
    body.features, body.pool, body.fc = nn.Sequential(*inner), nn.AdaptiveAvgPool2d(1), nn.Linear(24, 10)
    body.forward = lambda x: body.fc(body.pool(body.features(x)).flatten(1))
    return body


@pytest.mark.skipif(shutil.which("dot") is None, reason="the program dot is not installed")
@pytest.mark.parametrize("deep", [False, True])
def test_a_long_frame_continues_in_another_column(deep, capfd):
    picture = fl.plot_network(vgg(deep), (1, 3, 8, 8))
    assert picture.source.count("features: Sequential") > 1
    assert picture.source.count("features: Sequential") == 1 + picture.source.count("features: Sequential, continued")
    svg = picture.pipe(format="svg", encoding="utf-8")
    assert capfd.readouterr().err == ""
    assert int(re.search(r'height="(\d+)pt"', svg)[1]) < 1700
    assert "continued" not in fl.plot_network(vgg(deep), (1, 3, 8, 8), height=None).source


def test_no_frame_of_several_is_cut():
    def block():
        return nn.Sequential(*[layer for _ in range(18) for layer in (nn.Linear(4, 4), nn.Tanh(), nn.Dropout())])

    source = fl.plot_network(nn.Sequential(block(), block(), block(), nn.Linear(4, 2)), (1, 4)).source
    assert "0 … 2: Sequential ×3" in source
    assert "continued" not in source


@pytest.mark.skipif(shutil.which("dot") is None, reason="the program dot is not installed")
def test_a_box_of_thousands_of_parameters_is_drawn():
    """Graphviz reads no text of more than 16 KiB."""
    model = nn.Sequential(nn.Sequential(*[nn.Linear(2, 2) for _ in range(400)]))
    picture = fl.plot_network(model, (1, 2), depth=0)
    assert "and 780 more parameters" in picture.source
    assert picture.pipe(format="svg")
