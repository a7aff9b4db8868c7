"""Networks that go down and up again: their levels, and the picture with both ways next to each other."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
import torch
from torch import nn

import feedline as fl
from feedline.graph.fold_levels import levels
from feedline.graph.folding import collapse, fold_repeats
from feedline.graph.importers import graph_of
from tests.graph import known_networks as known


class Down(nn.Module):
    """Levels of a number of layers down and up. The input from the left is added."""

    def __init__(self, down, up, joined=True):
        super().__init__()
        self.left = nn.ModuleList(nn.Sequential(*[nn.Linear(4, 4) for _ in range(n)]) for n in down)
        self.right = nn.ModuleList(nn.Sequential(*[nn.Linear(4, 4) for _ in range(n)]) for n in up)
        self.middle, self.joined = nn.Tanh(), joined

    def forward(self, x):
        kept = []
        for left in self.left:
            x = left(x)
            kept.append(x)
        x = self.middle(x)
        for right in self.right:
            x = right(x)
            x = torch.cat([kept.pop(), x]) if self.joined else x + 1
        return x


def read(model, inputs=(1, 4)):
    return fold_repeats(collapse(graph_of(model, inputs)))


def heights(picture):
    """Place of each node from the top, as dot has it."""
    done = subprocess.run(
        ["dot", "-Tjson"], input=picture.source, capture_output=True, text=True, check=True, timeout=60
    )
    return {o["name"]: -float(o["pos"].split(",")[1]) for o in json.loads(done.stdout)["objects"] if "pos" in o}


def test_a_unet_turns_at_its_lowest_level():
    graph = read(known.UNet(), (1, 1, 256, 256))
    found = levels(graph)
    assert len(found.across) == 4
    assert {graph[key].scope[0] for key in found.up if graph[key].scope} == {
        *("down.4", "join.0", "join.1", "join.2", "join.3"),
        *("up.0", "up.1", "up.2", "up.3", "last"),
    }
    assert all(graph[head].kind == "cat" for _, head in found.across)


@pytest.mark.skipif(shutil.which("dot") is None, reason="the program dot is not installed")
@pytest.mark.parametrize(("down", "up"), [((1, 1, 1, 1), (1, 1, 1, 1)), ((3, 1, 2, 1), (1, 4, 1, 2))])
def test_both_ends_of_a_way_across_are_at_one_height(down, up):
    graph = read(Down(down, up))
    found = levels(graph)
    assert len(found.across) == 4
    place = heights(fl.plot_network(graph, height=300))
    for tail, head in found.across:
        assert place[tail] == pytest.approx(place[head], abs=1)
    for edge in graph.edges():
        if (edge.tail, edge.head) not in found.across:
            assert (place[edge.head] < place[edge.tail]) == (edge.head in found.up)


@pytest.mark.skipif(shutil.which("dot") is None, reason="the program dot is not installed")
@pytest.mark.parametrize("depth", [2, 3])
def test_a_small_unet_has_levels(depth):
    """Also one that would fit into one column. Its shapes are where the tensors go down, and on no line or border."""
    graph = read(known.UNet(width=4, depth=depth), (1, 1, 32, 32))
    picture = fl.plot_network(graph, height=9000)
    place = heights(picture)
    across = levels(graph).across
    assert len(across) == depth
    assert all(place[tail] == pytest.approx(place[head], abs=1) for tail, head in across)
    shapes = [edge["label"].strip() for edge in json.loads(picture.pipe("json"))["edges"]]
    assert shapes.count("") == depth
    assert set(shapes) - {""} == {str(edge.type) for edge in graph.edges()}


def test_others_have_no_levels():
    """Two ways across of one shape are too few. Ways one after the other, or a short one inside a long network, are
    none."""
    assert levels(read(Down((1, 1), (1, 1)))) is None
    assert levels(read(Down((1, 1, 1), (1, 1, 1), joined=False))) is None
    assert levels(read(known.resnet18(), (1, 3, 64, 64))) is None
    assert levels(read(nn.Transformer(8, 2, 2, 2, 16, batch_first=True), [(1, 3, 8), (1, 5, 8)])) is None
    long = nn.Sequential(*[nn.Linear(4, 4) for _ in range(40)], Down((1, 1, 1), (1, 1, 1)))
    assert levels(collapse(graph_of(long, (1, 4)))) is None


def test_one_column_has_no_levels():
    graph = read(Down((1, 1, 1, 1), (1, 1, 1, 1)))
    assert "dir=back" in fl.plot_network(graph).source
    assert "dir=back" not in fl.plot_network(graph, height=None).source
