"""Names of frames where no arrow crosses them: dot has them all in a corner, under the arrows.

Works on a graph that dot has laid out. A name stands as far left in its frame as no arrow runs through it, on white and
in front of everything, for a frame without room for that. Linear in frames times points of arrows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

Box = tuple[float, float, float, float]  # left, bottom, right, top, in points
Place = tuple[float, float]

_STEP, _AROUND = 6.0, 3.0  # points: between the places that are tried, and free space beside a name
_PIECES = 12  # of a curve, in straight lines
_LETTER, _LINE = 5.5, 12.0  # points: of an arrow's label


def with_names_apart(laid_out: str, places: Mapping[str, Any]) -> str:
    """Return a graph in which the names of frames are boxes in front, where nothing runs through them.

    Args:
        laid_out: the graph in DOT, with places.
        places: the same graph as Graphviz' JSON.
    """
    objects: Sequence[Mapping[str, Any]] = places.get("objects", ())
    frames = {o["_gvid"]: o for o in objects if str(o["name"]).startswith("cluster_") and o.get("label")}
    if not frames:
        return laid_out
    parents = {inner: o["_gvid"] for o in objects for inner in o.get("subgraphs", ())}
    arrows = [curve for edge in places.get("edges", ()) for curve in _curves(edge.get("pos", ""))]
    labels = [_label_box(edge) for edge in places.get("edges", ()) if edge.get("lp")]
    added = ["outputorder=edgesfirst"]
    for number, frame in frames.items():
        added.append(_without_label(number, frames, parents))
        x, y = _free_place(frame, arrows, labels)
        width, height = float(frame["lwidth"]), float(frame["lheight"])
        name, label = (str(frame[key]).replace('"', '\\"') for key in ("name", "label"))
        added.append(
            f'"name of {name}" [label="{label}", pos="{x:.2f},{y:.2f}", width={width:.3f}, height={height:.3f}, '
            f'shape=box, style=filled, color="#ffffff", fillcolor="#ffffff", fontcolor="{frame["fontcolor"]}", '
            f"fontsize={frame['fontsize']}, margin=0, fixedsize=true, penwidth=0]"
        )
    end = laid_out.rindex("}")
    return laid_out[:end] + "\n".join(added) + "\n}\n"


def _without_label(number: int, frames: Mapping[int, Mapping[str, Any]], parents: Mapping[int, int]) -> str:
    """Return the statement that removes a frame's label: the frame again, in those around it."""
    text = 'graph [label=""]'
    inner: int | None = number
    while inner is not None and inner in frames:
        text = f"subgraph {frames[inner]['name']} {{ {text} }}"
        inner = parents.get(inner)
    return text


def _free_place(frame: Mapping[str, Any], arrows: Sequence[Sequence[Place]], labels: Sequence[Box]) -> Place:
    """Return the middle of a name: the leftmost one without an arrow or a label of one, else dot's own."""
    x, y = _numbers(frame["lp"])
    right = _numbers(frame["bb"])[2]
    wide, high = (float(frame[key]) * 72 / 2 for key in ("lwidth", "lheight"))
    band = y - high - 1, y + high + 1
    taken = [*_crossings(arrows, band), *((a, c) for a, b, c, d in labels if b < band[1] and d > band[0])]
    at = x
    while at + wide <= right - _AROUND:
        if all(end <= at - wide - _AROUND or start >= at + wide + _AROUND for start, end in taken):
            return at, y
        at += _STEP
    return x, y


def _crossings(arrows: Sequence[Sequence[Place]], band: tuple[float, float]) -> Iterator[tuple[float, float]]:
    """Iterate over the parts of arrows within a horizontal band, as intervals of x."""
    low, high = band
    for points in arrows:
        for (x1, y1), (x2, y2) in pairwise(points):
            if min(y1, y2) <= high and max(y1, y2) >= low:
                yield min(x1, x2), max(x1, x2)


def _curves(pos: str) -> Iterator[list[Place]]:
    """Iterate over the curves of an arrow, each as points of a line."""
    for spline in filter(None, pos.split(";")):
        ends = {end: (x, y) for end, x, y in re.findall(r"([se]),(\S+?),(\S+)", spline)}
        points = [_pair(text) for text in spline.split() if not text.startswith(("s,", "e,"))]
        line = [_pair(",".join(ends["s"]))] if "s" in ends else []
        for n in range(0, len(points) - 3, 3):
            line += [_on_curve(points[n : n + 4], k / _PIECES) for k in range(_PIECES + 1)]
        if "e" in ends:
            line.append(_pair(",".join(ends["e"])))
        yield line


def _on_curve(control: Sequence[Place], t: float) -> Place:
    weights = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3
    x, y = (sum(w * point[axis] for w, point in zip(weights, control, strict=True)) for axis in (0, 1))
    return x, y


def _label_box(edge: Mapping[str, Any]) -> Box:
    x, y = _numbers(edge["lp"])
    wide, high = _LETTER * len(str(edge.get("label", ""))) / 2, _LINE / 2
    return x - wide, y - high, x + wide, y + high


def _numbers(text: str) -> list[float]:
    return [float(n) for n in str(text).split(",")]


def _pair(text: str) -> Place:
    x, y = _numbers(text)[:2]
    return x, y
