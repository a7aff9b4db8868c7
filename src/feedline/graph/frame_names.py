"""Names of frames in places that no arrow crosses. dot would put them all into a corner, under the arrows.

This module works on a graph that dot has laid out. It puts a name in the leftmost place in its frame that no arrow
crosses, on white and in front of everything. If a frame has no such place, its name is broken into shorter lines, or
the frame is made wider, and the graph is laid out again. The time is linear in frames times points of arrows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

Box = tuple[float, float, float, float]  # left, bottom, right, top, in points
Place = tuple[float, float]

_MARGIN = 3.0  # points of free space next to a name
_PIECES = 12  # straight lines per curve
_LETTER, _LINE = 5.5, 12.0  # points: of a letter and a line in an arrow's label
# Narrow and wide letters in the font of the pictures, and the factor by which a line may exceed the estimate.
_NARROW, _WIDE, _WIDER = set(" \u00a0ijlt.,:;'!|I()[]fr-/"), set("mwMW…"), 1.04
_BLANK = "\u00a0"
_BLANK_WIDTH = 3.0  # points
_INDENT = 2 * _BLANK  # indent of continuation lines


class NameLayout(NamedTuple):
    """The lines of the name of a frame, and the width that they need.

    Attributes:
        lines: lines of the name.
        letter: width of a usual letter, in points.
        min_width: minimum width of the frame, in points.
    """

    lines: tuple[str, ...]
    letter: float
    min_width: float = 0.0

    @property
    def width(self) -> float:
        """Width of the lines, in points."""
        return _WIDER * self.letter * max(map(_letters, self.lines))

    @property
    def label(self) -> str:
        """Name for dot, padded to the minimum width of the frame."""
        first = self.lines[0]
        blanks = math.ceil((self.min_width - self.letter * _letters(first)) / _BLANK_WIDTH)
        return "\n".join([first + _BLANK * blanks, *self.lines[1:]])


class FrameNames:
    """The names of frames in a graph that dot has laid out.

    Args:
        laid_out: graph in DOT, with places.
        places: the same graph in the JSON of Graphviz.
        layouts: layouts of names with which dot laid it out, by the name of the frame.
    """

    def __init__(self, laid_out: str, places: Mapping[str, Any], layouts: Mapping[str, NameLayout]) -> None:
        self._laid_out, self._layouts = laid_out, dict(layouts)
        objects: Sequence[Mapping[str, Any]] = places.get("objects", ())
        self._frames = {o["_gvid"]: o for o in objects if str(o["name"]).startswith("cluster_") and o.get("label")}
        self._parents = {inner: o["_gvid"] for o in objects for inner in o.get("subgraphs", ())}
        edges = places.get("edges", ())
        self._arrows = [curve for edge in edges for curve in _curves(edge.get("pos", ""))]
        self._labels = [_label_box(edge) for edge in edges if edge.get("lp")]
        self._free = {number: self._free_place(frame) for number, frame in self._frames.items()}
        self.crossed = sum(place is None for place in self._free.values())  # number of names without a place

    def draw(self) -> str:
        """Return the graph with names as boxes in front of everything, in places that nothing crosses, if possible."""
        if not self._frames:
            return self._laid_out
        statements = ["outputorder=edgesfirst"]
        for number, frame in self._frames.items():
            statements.append(self._relabel(number, ""))
            name, lines = (text.replace('"', '\\"') for text in (frame["name"], "\\l".join(self._layout(frame).lines)))
            x, y = self._free[number] or self._corner(frame)
            width = self._layout(frame).width / 72
            statements.append(
                f'"name of {name}" [label="{lines}\\l", pos="{x:.2f},{y:.2f}", width={width:.3f}, '
                f'height={frame["lheight"]}, shape=box, style=filled, color="#ffffff", fillcolor="#ffffff", '
                f'fontcolor="{frame["fontcolor"]}", fontsize={frame["fontsize"]}, margin=0, penwidth=0, '
                # With fixedsize=true, Graphviz would warn of names that are wider than estimated.
                "fixedsize=shape]"
            )
        return _add_statements(self._laid_out, statements)

    def with_new_layouts(self, source: str) -> tuple[str, dict[str, NameLayout]]:
        """Return a graph in DOT with other lines for the names that have no place, and the layouts of all names."""
        new = {frame["name"]: self._next_layout(frame) for n, frame in self._frames.items() if self._free[n] is None}
        layouts = self._layouts | new
        labels = {n: layouts[frame["name"]].label for n, frame in self._frames.items() if frame["name"] in layouts}
        quoted = {number: label.replace('"', '\\"') for number, label in labels.items()}
        return _add_statements(source, [self._relabel(number, label) for number, label in quoted.items()]), layouts

    def _next_layout(self, frame: Mapping[str, Any]) -> NameLayout:
        """Return the next layout for a name that has no place, for the widest free place or for a wider frame."""
        layout = self._layout(frame)
        room = max((end - start for start, end in self._gaps(frame)), default=0.0) - 2 * _MARGIN
        broken = layout._replace(lines=_break_lines(layout.lines, room / layout.letter / _WIDER))
        if broken.width <= room and broken != layout:
            return broken
        longest = max(_letters(word) for line in layout.lines for word in line.split(" "))
        layout = layout._replace(lines=_break_lines(layout.lines, longest + _letters(_INDENT)))
        return layout._replace(min_width=max(1.1 * layout.min_width, 2 * (layout.width + 2 * _MARGIN)))

    def _layout(self, frame: Mapping[str, Any]) -> NameLayout:
        lines = tuple(str(frame["label"]).split("\n"))
        letter = float(frame["lwidth"]) * 72 / max(map(_letters, lines))
        return self._layouts.get(frame["name"]) or NameLayout(lines, letter)

    def _relabel(self, number: int, label: str) -> str:
        """Return the statement that changes the label of a frame. It repeats the frame, inside of the frames around
        it."""
        text = f'graph [label="{label}"]'
        inner: int | None = number
        while inner is not None and inner in self._frames:
            text = f"subgraph {self._frames[inner]['name']} {{ {text} }}"
            inner = self._parents.get(inner)
        return text

    def _corner(self, frame: Mapping[str, Any]) -> Place:
        """Return the middle of a name in the left corner of its frame."""
        (x, y), half = _numbers(frame["lp"]), float(frame["lwidth"]) * 36
        return x - half + self._layout(frame).width / 2, y

    def _free_place(self, frame: Mapping[str, Any]) -> Place | None:
        """Return the leftmost middle of a name that no arrow and no label of an arrow touches."""
        half = self._layout(frame).width / 2
        x, y = self._corner(frame)
        for start, end in self._gaps(frame):
            at = max(x, start + _MARGIN + half)
            if at + half + _MARGIN <= end:
                return at, y
        return None

    def _gaps(self, frame: Mapping[str, Any]) -> Iterator[tuple[float, float]]:
        """Iterate over the free places for a name, as intervals of x, from the left."""
        y, half = _numbers(frame["lp"])[1], float(frame["lheight"]) * 36
        band = y - half - 1, y + half + 1
        left, _, right, _ = _numbers(frame["bb"])
        labels = [(a, c) for a, b, c, d in self._labels if b < band[1] and d > band[0]]
        at = left
        for start, end in sorted([*_crossings(self._arrows, band), *labels]):
            if left < end and start < right:
                if start > at:
                    yield at, start
                at = max(at, end)
        if at < right:
            yield at, right


def _add_statements(graph: str, statements: Sequence[str]) -> str:
    """Return a graph in DOT with more statements at its end."""
    end = graph.rindex("}")
    return graph[:end] + "\n".join(statements) + "\n}\n"


def _letters(text: str) -> float:
    """Return the width of a text in usual letters."""
    return sum(0.5 if c in _NARROW else 1.6 if c in _WIDE else 1.2 if c.isupper() else 1.0 for c in text)


def _break_lines(lines: Sequence[str], letters: float) -> tuple[str, ...]:
    """Break lines after colons and commas, or else at spaces, so that each has at most ``letters`` letters, or one
    word."""
    letters -= _letters(_INDENT)
    broken: list[str] = []
    for line in lines:
        pieces: list[str] = []
        for part in re.split(r"(?<=[:,]) ", line):
            fresh = not pieces or _letters(f"{pieces[-1]} {part}") > letters
            for word in [part] if _letters(part) <= letters else part.split(" "):
                if fresh or _letters(f"{pieces[-1]} {word}") > letters:
                    pieces.append(_INDENT * bool(pieces) + word)
                else:
                    pieces[-1] += f" {word}"
                fresh = False
        broken += pieces
    return tuple(broken)


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
