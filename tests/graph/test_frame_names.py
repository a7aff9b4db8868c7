"""Names of frames: in every format where no arrow runs, in shorter lines or in wider frames if need be."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections import OrderedDict
from pathlib import Path

import graphviz
import pytest
from torch import nn

import feedline as fl
from feedline.graph.frame_names import FrameNames
from tests.graph import known_networks as known

pytestmark = pytest.mark.skipif(shutil.which("dot") is None, reason="the program dot is not installed")


def drawn_as_json(picture):
    return json.loads(picture.pipe("json", encoding="utf-8"))


def points(edge):
    """Points of an arrow's curves, denser than a letter is wide."""
    found = []
    for spline in edge["pos"].split(";"):
        control = [tuple(map(float, p.split(","))) for p in spline.split() if p[0] not in "se"]
        for n in range(0, len(control) - 3, 3):
            for k in range(41):
                t = k / 40
                weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
                found.append(
                    tuple(sum(w * p[i] for w, p in zip(weights, control[n : n + 4], strict=True)) for i in (0, 1))
                )
    return found


def crossed(document):
    """Names of frames through which an arrow runs, and the number of all."""
    names = [o for o in document["objects"] if o["name"].startswith("name of ")]
    arrows = [point for edge in document["edges"] if "pos" in edge for point in points(edge)]
    found = []
    for name in names:
        x, y = map(float, name["pos"].split(","))
        wide, high = float(name["width"]) * 36, float(name["height"]) * 36
        if any(abs(a - x) < wide and abs(b - y) < high for a, b in arrows):
            found.append(name["label"])
    return found, len(names)


def laid_out_once(picture):
    """A picture as dot alone has it, with the names of frames as objects."""
    laid_out = json.loads(graphviz.pipe("dot", "json", picture.source.encode()))
    labels = [
        o | {"name": "name of it", "pos": o["lp"], "width": o["lwidth"], "height": o["lheight"]}
        for o in laid_out["objects"]
        if "lwidth" in o
    ]
    return laid_out | {"objects": labels}


NARROW = nn.Sequential(OrderedDict(descriptive=nn.Sequential(nn.Tanh(), nn.Tanh()), other=nn.Tanh()))


@pytest.mark.parametrize(
    ("make", "inputs", "frames"),
    [
        (known.resnet18, (1, 3, 224, 224), 7),
        (known.resnet50, (1, 3, 224, 224), 8),
        (known.vit_b_16, (1, 3, 224, 224), 3),
        (lambda: nn.Transformer(512, 8, 2, 2, batch_first=True), [(1, 10, 512), (1, 12, 512)], 4),
        (lambda: known.UNet(), (1, 1, 64, 64), 9),
        (lambda: NARROW, (1, 4), 1),
    ],
)
def test_no_arrow_runs_through_a_name(make, inputs, frames):
    picture = fl.plot_network(make(), inputs)
    found, count = crossed(drawn_as_json(picture))
    assert (found, count) == ([], frames)
    assert crossed(laid_out_once(picture))[0]


def test_names_without_room_are_broken_into_shorter_lines():
    picture = fl.plot_network(known.resnet18(), (1, 3, 224, 224))
    names = {o["label"] for o in drawn_as_json(picture)["objects"] if o["name"].startswith("name of ")}
    words = {" ".join(name.replace("\\l", " ").split()) for name in names}
    assert {"layer2: Sequential 0 … 1: BasicBlock ×2 only 0: downsample, stride 2", "downsample: Sequential"} <= words
    assert max(len(line) for name in names for line in name.split("\\l")) < len("only 0: downsample, stride 2")


def test_a_word_without_room_has_a_wider_frame():
    def width(name):
        source = fl.plot_network(nn.Sequential(OrderedDict({name: NARROW.descriptive, "other": nn.Tanh()})), (1, 4))
        (frame,) = [o for o in drawn_as_json(source)["objects"] if o["name"].startswith("cluster_")]
        left, _, right, _ = map(float, frame["bb"].split(","))
        return right - left

    assert width("descriptive_words_in_one") > width("a") + 50


def shown(svg):
    """Words of a picture, in the order in which they are drawn."""
    return " ".join(html.unescape(" ".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg))).split())


def test_names_are_in_front_once_and_in_every_format(tmp_path):
    picture = fl.plot_network(nn.Sequential(nn.Sequential(nn.Linear(2, 2))), (1, 2))
    svg = picture.pipe("svg", encoding="utf-8")
    assert shown(svg).count("0: Sequential") == 1
    assert svg.index("Sequential<") > svg.rindex('class="edge"')
    assert picture.pipe("svg").decode() == svg
    assert Path(picture.render(tmp_path / "net")).read_text("utf-8") == svg
    assert Path(picture.render(outfile=tmp_path / "net.png")).read_bytes() == picture.pipe("png")
    assert picture.pipe("png").startswith(b"\x89PNG")


def test_names_of_any_letters():
    name = 'a"b\\n<&>};] é'
    layer = type(name, (nn.Sequential,), {})
    picture = fl.plot_network(nn.Sequential(layer(nn.Linear(2, 2), nn.ReLU())), (1, 2), title=name)
    assert shown(picture.pipe("svg", encoding="utf-8")).count(name) >= 2


def test_graphs_without_frames_are_left_as_they_are():
    laid_out = subprocess.run(["dot"], input="digraph { a -> b }", capture_output=True, text=True, check=True).stdout
    assert FrameNames(laid_out, {"objects": [{"_gvid": 0, "name": "a"}]}, {}).draw() == laid_out


def test_graphviz_warns_of_no_name(capfd):
    """One line of the frame's name is wider than it is estimated to be from the other."""
    inner = nn.Sequential(OrderedDict([("名前" * 12, nn.Sequential(nn.Linear(4, 4), nn.ReLU()))]))
    model = nn.Sequential(OrderedDict([("a" * 40, inner), ("x", nn.Linear(4, 2))]))
    assert fl.plot_network(model, (1, 4)).pipe(format="svg")
    assert capfd.readouterr().err == ""


def shapes(document):
    """Boxes of the shapes next to arrows: left, bottom, right, top. Each text begins and ends with a space."""
    for edge in document["edges"]:
        for drawn in edge.get("_ldraw_", ()):
            if drawn["op"] == "T" and drawn["text"].strip():
                (x, y), half = drawn["pt"], drawn["width"] / 2
                yield drawn["text"].strip(), (x - half + 3, y - 1, x + half - 3, y + 7)


@pytest.mark.parametrize("direction", ["TB", "LR"])
@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (known.resnet18, (1, 3, 224, 224)),
        (lambda: nn.Transformer(64, 4, 2, 2, 128, batch_first=True), [(1, 10, 64), (1, 12, 64)]),
        (lambda: known.UNet(width=8, depth=2), (1, 1, 64, 64)),
        (lambda: known.UNet(width=8, depth=3), (1, 1, 64, 64)),
    ],
)
def test_no_arrow_runs_through_a_shape(make, inputs, direction):
    document = drawn_as_json(fl.plot_network(make(), inputs, direction=direction))
    arrows = [point for edge in document["edges"] if "pos" in edge for point in points(edge)]
    boxes = list(shapes(document))
    assert len(boxes) > 20
    wrong = [text for text, (a, b, c, d) in boxes if any(a < x < c and b < y < d for x, y in arrows)]
    assert wrong == []
