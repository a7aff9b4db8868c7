"""Networks that everybody knows, in full size: what their pictures have, and that they fit on a screen."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from torch import nn

import feedline as fl
import feedline.cntk as C
from feedline.graph.folding import collapse, fold_repeats
from feedline.graph.importers import graph_of
from feedline.graph.picture_columns import columns
from tests.graph import known_networks as known
from tests.graph import known_symbols as symbols
from tests.graph.dot import parsed

PICTURE = (1, 3, 224, 224)


def tagger():
    words = C.sequence.input_variable(943, is_sparse=True, name="words")
    layers = [C.layers.Embedding(150), C.layers.Recurrence(C.layers.LSTM(300)), C.layers.Dense(127)]
    return C.layers.Sequential(layers)(words)


class Known(NamedTuple):
    """A network and its picture: number of boxes, some texts, the largest width and height in points."""

    make: Callable[[], Any]
    inputs: Any
    boxes: int
    texts: str
    most: tuple[int, int]


NETWORKS = {
    "resnet18": Known(
        known.resnet18,
        PICTURE,
        43,  # 5 + 7 + 3 * 9 + 4
        "7×7, stride 2, padding 3, 64 filters | 0 … 1: BasicBlock ×2 | only 0: downsample, stride 2 | 512 filters",
        (1300, 2100),
    ),
    "resnet50": Known(
        known.resnet50,
        PICTURE,
        57,  # 5 + 4 * 12 + 4
        "0 … 5: Bottleneck ×6 | only 0: downsample | 2048 filters | to 1×1 | 1000 units",
        (1700, 2100),
    ),
    "vit_b_16": Known(
        known.vit_b_16,
        PICTURE,
        23,  # 8 + 11 + 4
        "16×16, stride 16, 768 filters | 0 … 11: EncoderBlock ×12 | 12 heads | rate 0.1 | class_token | pos_embedding",
        (900, 2100),
    ),
    "unet": Known(
        known.UNet, (1, 1, 256, 256), 51, "2×2, stride 2, 512 filters | 3×3, padding 1, 1024 filters", (600, 2900)
    ),
    "transformer": Known(
        lambda: nn.Transformer(512, 8, 6, 6, 2048, batch_first=True),
        [(1, 10, 512), (1, 12, 512)],
        31,  # 2 + 11 + 1 + 15 + 1 + 1
        "TransformerEncoderLayer ×6 | TransformerDecoderLayer ×6 | 8 heads | 2048 units",
        (1200, 2100),
    ),
    "lstm": Known(
        lambda: nn.Sequential(nn.LSTM(64, 128, 2, bidirectional=True)),
        (10, 1, 64),
        5,
        "128 units, 2 layers, both directions",
        (900, 900),
    ),
    "lenet": Known(
        symbols.lenet,
        {"data": (64, 1, 28, 28)},
        14,
        "5×5, 20 filters | max, 2×2, stride 2 | tanh | 500 units",
        (700, 2100),
    ),
    "tagger": Known(tagger, None, 5, "300 units | 150 units | batch×steps×943", (700, 1200)),
}
DRAWN = {}


@functools.cache
def has_helvetica():
    """Whether boxes are as wide as with the font that pictures ask for, which others are wider than."""
    match = subprocess.run(["fc-match", "Helvetica", "family"], capture_output=True, text=True).stdout
    return re.search("Helvetica|Arial|Liberation Sans|Nimbus Sans", match) is not None


@pytest.fixture(params=NETWORKS)
def network(request):
    found = NETWORKS[request.param]
    if request.param not in DRAWN:
        graph = graph_of(found.make(), found.inputs)
        DRAWN[request.param] = graph, fl.plot_network(graph)
    return (*DRAWN[request.param], found)


def test_boxes_and_settings(network):
    _, picture, expected = network
    nodes, _ = parsed(picture.source)
    drawn = [name for name in nodes if not re.match(r"(to|from) \d+$|legend", name)]
    assert len(drawn) == expected.boxes
    words = " ".join(picture.source.split())
    assert [text for text in expected.texts.split(" | ") if text not in words] == []


def test_it_fits_on_a_screen(network):
    if shutil.which("dot") is None:
        pytest.skip("the program dot is not installed")
    if not has_helvetica():
        pytest.skip("no font as wide as Helvetica is installed (Debian: fonts-liberation)")
    _, picture, expected = network
    width, height = map(
        int, re.search(r'width="(\d+)pt" height="(\d+)pt"', picture.pipe("svg", encoding="utf-8")).groups()
    )
    assert width <= expected.most[0]
    assert height <= expected.most[1]


def test_columns_hold_every_operation_once_and_in_order(network):
    graph = fold_repeats(collapse(network[0]))
    order = {o.key: n for n, o in enumerate(graph.operations)}
    for height in (100.0, 700.0, 1600.0, 1e9):
        parts = columns(graph, height)
        assert sorted(order[o.key] for part in parts for o in part) == list(range(len(order)))
        assert all(part == sorted(part, key=lambda o: order[o.key]) for part in parts)
        place = {o.key: i for i, part in enumerate(parts) for o in part}
        first = {}
        for edge in graph.edges():
            assert edge.feedback or place[edge.tail] <= place[edge.head]
            first[edge.tail] = min(first.get(edge.tail, 99), place[edge.head])
        assert all(place[o.key] == first[o.key] for o in graph.operations if o.role == "input")
        for i in range(1, len(parts)):
            assert 1 <= len({(e.tail, e.index) for e in graph.edges() if place[e.tail] < i <= place[e.head]}) <= 6
    assert len(columns(graph, 1e9)) == 1


def test_a_single_tensor_goes_on_where_that_is_possible():
    graph = fold_repeats(collapse(graph_of(known.resnet50(), PICTURE)))
    parts = columns(graph, 1600.0)
    place = {o.key: i for i, part in enumerate(parts) for o in part}
    assert len(parts) == 4
    crossing = [{(e.tail, e.index) for e in graph.edges() if place[e.tail] < i <= place[e.head]} for i in range(1, 4)]
    assert [len(tensors) for tensors in crossing] == [1, 1, 1]


def test_a_transformers_stacks_are_next_to_each_other():
    graph = fold_repeats(
        collapse(graph_of(nn.Transformer(512, 8, 6, 6, 2048, batch_first=True), [(1, 10, 512), (1, 12, 512)]))
    )
    left, right = columns(graph, 1600.0)
    assert {o.scope[0] for o in left if o.scope} == {"encoder"}
    assert {o.scope[0] for o in right if o.scope} == {"decoder"}
    assert [o.name for part in (left, right) for o in part if o.role == "input"] == ["src", "tgt"]


def test_joints_have_both_ends(network):
    nodes, edges = parsed(network[1].source)
    out = sorted(name.split()[1] for name in nodes if name.startswith("to "))
    back = sorted(name.split()[1] for name in nodes if name.startswith("from "))
    assert out == back
    for number in out:
        assert sum(head == f"to {number}" for _, head, _ in edges) == 1
        assert any(tail == f"from {number}" for tail, _, _ in edges)


def test_tables_have_the_numbers_that_everybody_knows():
    assert fl.summary(known.resnet18(), PICTURE).parameters == 11_689_512
    table = fl.summary(known.resnet50(), PICTURE)
    assert (table.parameters, table.multiply_adds) == (25_557_032, 4_089_184_256)
    assert fl.summary(known.vit_b_16(), PICTURE).parameters == 86_567_656


class Stage(nn.Module):
    """Blocks of which the first has more."""

    class Unit(nn.Module):
        def __init__(self, i, o, first):
            super().__init__()
            self.conv = nn.Conv2d(i, o, 3, 2 if first else 1, 1)
            self.skip = nn.Conv2d(i, o, 1, 2) if first else None

        def forward(self, x):
            return self.conv(x) + (x if self.skip is None else self.skip(x))

    def __init__(self, count, uses_middle=False):
        super().__init__()
        self.blocks = nn.ModuleList(Stage.Unit(4 if i == 0 else 8, 8, i == 0) for i in range(count))
        self.uses_middle = uses_middle

    def forward(self, x):
        results = []
        for block in self.blocks:
            x = block(x)
            results.append(x)
        return x + results[0] if self.uses_middle else x


def test_a_stage_is_its_first_block():
    graph = fold_repeats(collapse(graph_of(Stage(4), (1, 4, 8, 8))))
    (scope,) = [scope for scope in graph.scopes.values() if scope.repeats > 1]
    assert (scope.repeats, scope.last, scope.first_only) == (4, "blocks.3", ("skip", "stride 2"))
    assert [o.kind for o in graph.operations] == ["input", "Conv2d", "Conv2d", "add", "output"]
    assert graph[graph.operations[-1].inputs[0].key].outputs[0].shape == (1, 8, 4, 4)
    pair = fold_repeats(collapse(graph_of(Stage(2), (1, 4, 8, 8))))
    assert [scope.repeats for scope in pair.scopes.values() if scope.first_only] == [2]


def test_what_is_no_stage_stays():
    """A result in the middle that something else uses, or blocks that differ in shapes alone."""
    used = fold_repeats(collapse(graph_of(Stage(3, uses_middle=True), (1, 4, 8, 8))))
    assert not any(scope.first_only for scope in used.scopes.values())
    levels = nn.Sequential(*[nn.Sequential(nn.Linear(8 >> i, 4 >> i), nn.ReLU()) for i in range(3)])
    graph = fold_repeats(collapse(graph_of(levels, (1, 8))))
    assert not any(scope.first_only or scope.repeats > 1 for scope in graph.scopes.values())


def test_without_a_height_there_is_one_column():
    source = fl.plot_network(known.resnet50(), PICTURE, height=None).source
    assert '"to 1"' not in source
    for wrong in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="expected a height in points above 0, or None"):
            fl.plot_network(nn.ReLU(), (1,), height=wrong)
