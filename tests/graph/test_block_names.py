"""Frames of networks whose libraries have names in place of modules: MXNet's symbols, and CNTK's blocks."""

from __future__ import annotations

import re
import shutil

import pytest

import feedline as fl
import feedline.cntk as C
import feedline.mxnet as mx
from feedline.graph.folding import collapse, fold_repeats
from feedline.graph.importers import graph_of
from tests.graph import known_symbols as known

PICTURE = {"data": (1, 3, 224, 224)}


def scopes(symbol):
    """Scope of each operation by its name in the symbol, joined by points."""
    graph = graph_of(symbol)
    keys = [node.name for node in graph.operations]
    return {name: ".".join(o.scope) for name, o in zip(keys, graph.operations, strict=True)}


def relu(x, name=None):
    return mx.sym.Activation(x, act_type="relu", **({"name": name} if name else {}))


def dense(x, name):
    return mx.sym.FullyConnected(x, num_hidden=4, name=name)


@known.named_anew
def test_words_are_frames():
    x = mx.sym.Variable("x")
    for unit in ("enc_unit1", "enc_unit2", "dec_unit1"):
        x = relu(dense(relu(dense(x, f"{unit}_fc1")), f"{unit}_fc2"))
    assert scopes(dense(x, "last")) == {
        "x": "",
        "fc1": "dec_unit1",
        "activation0": "enc.unit1",
        "fc2": "dec_unit1",
        "activation1": "",
        "activation2": "enc.unit2",
        "activation3": "",
        "activation4": "dec_unit1",
        "activation5": "",
        "last": "",
        "last_output": "",
    }


def test_what_is_no_part_is_no_frame():
    """Names that begin alike in several places, one operation alone, and names that MXNet made."""
    x = mx.sym.Variable("data")
    for i in range(3):
        x = mx.sym.Pooling(dense_picture(x, f"layer_{i}"), kernel=(2, 2), pool_type="max", name=f"max_pool_{i}_p")
    assert set(scopes(x).values()) == {""}
    assert set(scopes(known.lenet()).values()) == {""}


def dense_picture(x, name):
    return mx.sym.Convolution(x, num_filter=4, kernel=(1, 1), name=name)


def test_a_residual_unit_has_its_sum_and_a_stage_its_first_unit():
    graph = graph_of(known.resnet50(), PICTURE)
    assert {o.scope for o in graph.operations if o.kind == "elemwise_add"} == {
        (f"stage{stage}", f"unit{unit}") for stage, count in enumerate((3, 4, 6, 3), 1) for unit in range(1, count + 1)
    }
    small = fold_repeats(collapse(graph))
    frames = {".".join(path): scope for path, scope in small.scopes.items() if scope.repeats > 1}
    assert {name: (scope.repeats, scope.last, scope.first_only) for name, scope in frames.items()} == {
        "stage1.unit1": (3, "unit3", ("sc",)),
        "stage2.unit1": (4, "unit4", ("sc", "stride 2")),
        "stage3.unit1": (6, "unit6", ("sc", "stride 2")),
        "stage4.unit1": (3, "unit3", ("sc", "stride 2")),
    }
    assert len(small.operations) == 58
    assert [o.name for o in small.operations if o.scope == ("stage2", "unit1")][:3] == ["bn1", "relu1", "conv1"]
    assert graph.num_parameters() == 25_549_486


def test_a_convolution_and_what_follows_is_one_layer():
    x = mx.sym.Variable("data")
    x = known.conv(known.conv(x, 4, (3, 3), name="stem"), 8, name="block_tower")
    assert [o.kind for o in graph_of(x).operations] == [
        "input",
        *["Convolution", "BatchNorm", "Activation"] * 2,
        "output",
    ]
    small = collapse(graph_of(x, {"data": (1, 3, 8, 8)}))
    assert [(o.kind, o.name) for o in small.operations[1:-1]] == [
        ("Convolution", "stem"),
        ("Convolution", "block_tower"),
    ]
    text = str(fl.summary(x, {"data": (1, 3, 8, 8)}))
    assert "stem (Convolution)         3×3, 4 filters, then BatchNorm, relu  1×4×6×6" in text
    assert len(collapse(graph_of(x), expand=True).operations) == 8


def inception():
    return graph_of(known.inception_v3(), {"data": (1, 3, 299, 299)})


def test_inceptions_blocks_are_frames():
    """Also names that only mention them (``ch_concat_mixed_3_chconcat``). Two equal ones are drawn once."""
    graph = inception()
    blocks = ["mixed", *(f"mixed_{i}" for i in range(1, 11))]
    inside = {name: [o for o in graph.operations if o.scope[:1] == (name,)] for name in blocks}
    assert [len(inside[name]) for name in blocks] == [23, 23, 23, 14, 32, 32, 32, 32, 20, 29, 29]
    assert all([o.kind for o in found].count("Concat") == 1 for found in inside.values())
    assert all([o.kind for o in found].count("Pooling") == 1 for found in inside.values())
    assert all(o.scope == (f"conv{end}",) for end, o in [("", graph.operations[1]), ("_1", graph.operations[4])])
    small = fold_repeats(collapse(graph))
    assert [(p, s.last) for p, s in small.scopes.items() if s.repeats > 1] == [(("mixed_5",), "mixed_6")]
    assert (len(graph.operations), len(small.operations)) == (313, 113)
    assert graph.num_parameters() == 23_834_568


@pytest.mark.skipif(shutil.which("dot") is None, reason="the program dot is not installed")
def test_inceptions_picture_fits_on_a_screen():
    svg = fl.plot_network(inception()).pipe("svg", encoding="utf-8")
    width, height = map(int, re.search(r'width="(\d+)pt" height="(\d+)pt"', svg).groups())
    assert width <= 1200
    assert height <= 1600
    assert svg.count('class="node"') == 20 + 2  # boxes, and the two ends where it goes on
    assert "mixed_10" in svg


def test_cntks_blocks_are_numbered_as_they_run():
    """Layers are boxes, containers frames, and blocks of one's own that repeat are drawn once."""

    def block():
        @C.BlockFunction("Residual", "residual")
        def residual(x):
            return C.relu(C.layers.Dense(4)(C.layers.Dense(4, activation=C.relu)(x)) + x)

        return residual

    model = C.layers.Sequential([C.layers.Dense(4), C.layers.For(range(3), block), C.layers.Dense(2, name="scores")])
    graph = graph_of(model(C.input_variable(4, name="x")))
    small = fold_repeats(collapse(graph))
    assert [(o.kind, ".".join(o.scope)) for o in small.operations] == [
        ("input", ""),
        ("Dense", "Sequential.Dense"),
        ("Dense", "Sequential.Sequential.residual.Dense"),
        ("Dense", "Sequential.Sequential.residual.Dense_2"),
        ("plus", "Sequential.Sequential.residual"),
        ("relu", "Sequential.Sequential.residual"),
        ("Dense", "Sequential.scores"),
        ("output", ""),
    ]
    scope = small.scopes["Sequential", "Sequential", "residual"]
    assert (scope.kind, scope.repeats, scope.last) == ("Residual", 3, "residual_3")


def plain(width=4):
    layer = C.layers.Dense(width)
    return lambda x: C.relu(layer(x)) + x


@pytest.mark.parametrize("compose", ["Sequential", ">>"])
def test_what_plain_functions_repeat_is_drawn_once(compose):
    """Also without blocks of one's own: at least three equal stretches with parameters, each fed by the one before."""
    layers = [C.layers.Dense(4), *[plain() for _ in range(5)], C.layers.Dense(2)]
    model = layers[0]
    for layer in layers[1:]:
        model = model >> layer
    model = C.layers.Sequential(layers) if compose == "Sequential" else model
    graph = graph_of(model(C.input_variable(4, name="x")))
    small = fold_repeats(collapse(graph))
    ((path, scope),) = [(path, scope) for path, scope in small.scopes.items() if scope.repeats > 1]
    assert (path[-1], scope.kind, scope.repeats, scope.last) == ("repeated 1", "repeated", 5, "repeated 5")
    assert [o.kind for o in small.operations] == ["input", "Dense", "Dense", "relu", "plus", "Dense", "output"]
    assert fl.summary(graph).parameters == graph.num_parameters() == 20 + 5 * 20 + 10


@pytest.mark.parametrize(
    "layers",
    [
        lambda: [plain() for _ in range(2)],  # too few
        lambda: [C.relu, C.tanh] * 4,  # nothing is learned
        lambda: [f for n in (4, 5, 6) for f in (C.layers.Dense(n), C.relu)],  # not equal
    ],
)
def test_what_does_not_repeat_has_no_frames(layers):
    graph = graph_of(C.layers.Sequential([C.layers.Dense(4), *layers()])(C.input_variable(4)))
    assert not any(scope.kind == "repeated" for scope in graph.scopes.values())


def test_repeats_that_others_use_stay_apart():
    """Each stretch has its frame, but what uses one in the middle keeps them from being drawn once."""
    x = C.input_variable(4)
    results = [x]
    for _ in range(4):
        results.append(plain()(results[-1]))
    graph = graph_of(results[-1] * results[2])
    assert max(scope.repeats for scope in fold_repeats(collapse(graph)).scopes.values()) <= 2
