"""Names of frames: in every format where no arrow runs, as far as there is room; in front in any case."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import graphviz
import pytest
from torch import nn

import feedline as fl
from feedline.graph.frame_names import with_names_apart
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


def test_no_arrow_runs_through_a_name_that_has_room():
    found, count = crossed(drawn_as_json(fl.plot_network(known.resnet18(), (1, 3, 224, 224))))
    assert count == 11
    source = fl.plot_network(known.resnet18(), (1, 3, 224, 224)).source  # as dot alone has them
    laid_out = json.loads(graphviz.pipe("dot", "json", source.encode()))
    labels = [
        o | {"name": "name of it", "pos": o["lp"], "width": o["lwidth"], "height": o["lheight"]}
        for o in laid_out["objects"]
        if "lwidth" in o
    ]
    before, _ = crossed(laid_out | {"objects": labels})
    assert len(before) > len(found)
    assert "layer4: Sequential" in set(before) - set(found)


def test_names_are_in_front_once_and_in_every_format(tmp_path):
    picture = fl.plot_network(nn.Sequential(nn.Sequential(nn.Linear(2, 2))), (1, 2))
    svg = picture.pipe("svg", encoding="utf-8")
    assert svg.count(">0: Sequential<") == 1
    assert svg.index(">0: Sequential<") > svg.rindex('class="edge"')
    assert picture.pipe("svg").decode() == svg
    assert Path(picture.render(tmp_path / "net")).read_text("utf-8") == svg
    assert Path(picture.render(outfile=tmp_path / "net.png")).read_bytes() == picture.pipe("png")
    assert picture.pipe("png").startswith(b"\x89PNG")


def test_names_of_any_letters():
    name = 'a"b\\n<&>};] é'
    layer = type(name, (nn.Sequential,), {})
    picture = fl.plot_network(nn.Sequential(layer(nn.Linear(2, 2), nn.ReLU())), (1, 2), title=name)
    text = re.sub(r"&#45;", "-", picture.pipe("svg", encoding="utf-8"))
    assert text.count("a&quot;b\\n&lt;&amp;&gt;};] é") >= 2


def test_graphs_without_frames_are_left_as_they_are():
    laid_out = subprocess.run(["dot"], input="digraph { a -> b }", capture_output=True, text=True, check=True).stdout
    assert with_names_apart(laid_out, {"objects": [{"_gvid": 0, "name": "a"}]}) == laid_out
