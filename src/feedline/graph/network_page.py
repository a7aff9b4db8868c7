"""A network as one HTML page with a layout by its script. Frames open and close, boxes show their shapes and costs.

The page contains the graph as JSON, its style and its script, and loads nothing else, which a content security policy
enforces. Every text from the network is escaped. Below the picture is the table of `summary`, which needs no script.
The size of the page is linear in operations and edges.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any, NamedTuple

from feedline.graph.fold_to_fit import MAX_BOXES
from feedline.graph.graph import Edge, Graph, Operation, Path, number, total
from feedline.graph.labels import box_lines, frame_label
from feedline.graph.layer_table import as_bytes, summary
from feedline.graph.op_families import family
from feedline.graph.settings import brief
from feedline.graph.styles import STYLES, dark

Facts = list[tuple[str, str]]
Tensor = tuple[str, int]  # key of an operation, and index of its output


class PageLook(NamedTuple):
    """The look of a page.

    Attributes:
        title: title of the page.
        direction: direction of the data flow: ``"TB"``, ``"LR"``, ``"BT"`` or ``"RL"``.
        depth: number of frames around a box that are open at first. None means as many as show `MAX_BOXES` boxes, and
            of these as many as can be read in the window.
        hide_weights: whether the panel lists parameters, and boxes do not.
        legend: whether the colours are explained.
    """

    title: str
    direction: str
    depth: int | None
    hide_weights: bool
    legend: bool


def network_page(graph: Graph, picture: Graph, look: PageLook) -> str:
    """Return the page.

    Args:
        graph: graph of the network, for the table and the totals.
        picture: collapsed and folded graph that the page draws.
        look: title, direction and open frames.
    """
    content = _Content(picture, look)
    # Without "<", no text of a network can end the HTML element around it.
    data = json.dumps(content.document(), ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    style, script = (files(__package__).joinpath(f"network_page.{end}").read_text("utf-8") for end in ("css", "js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    table = summary(graph)
    totals = [
        (number(table.parameters), "parameters"),
        (number(table.multiply_adds), "multiply-adds"),
        (as_bytes(table.activations), "activations"),
        (number(len(picture.operations)), "boxes" if len(picture.operations) != 1 else "box"),
    ]
    tiles = "".join(f"<li><b>{escape(value)}</b> {name}</li>" for value, name in totals)
    notes = "".join(f"<p>{escape(note)}</p>" for note in graph.notes)
    read_by = f"{escape(graph.origin.capitalize())}." if graph.origin else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
script-src 'sha256-{digest}'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(look.title)}</title>
<style>
{style}{_colours(content.families)}</style>
</head>
<body>
<header>
<h1>{escape(look.title)}</h1>
<ul class="totals">{tiles}</ul>
<div class="soft">{read_by}{notes}</div>
</header>
<main>
<div class="tools" role="toolbar" aria-label="Picture">
<label>Search <input type="search" id="search" autocomplete="off" spellcheck="false" aria-describedby="found"></label>
<output id="found" aria-live="polite"></output>
<span class="buttons"><button id="open">Open all</button><button id="close">Close all</button>
<button id="smaller" aria-label="Smaller">−</button><button id="larger" aria-label="Larger">+</button>
<button id="fit">Fit</button></span>
</div>
<div class="both">
<div class="picture">
<svg id="picture" role="tree" aria-label="{escape(look.title)}: boxes in the order of computation"></svg>
<noscript><p>The picture needs JavaScript; the table below has the same layers.</p></noscript></div>
<aside id="told" aria-label="Shapes and costs"></aside>
</div>
<p class="soft keys">Keys: <kbd>↑</kbd> <kbd>↓</kbd> go through the boxes, <kbd>→</kbd> opens a frame, <kbd>←</kbd>
closes it or goes out, <kbd>Enter</kbd> does either, <kbd>/</kbd> searches, <kbd>+</kbd> <kbd>−</kbd> zoom.</p>
{_legend(content.families) if look.legend else ""}
<section class="table" aria-label="Table of layers"><h2>Layers</h2><div class="scroll" tabindex="0" role="region"
aria-label="Layers, with shapes and costs">{table._repr_html_()}</div></section>
</main>
<script type="application/json" id="network">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def _colours(families: Sequence[str]) -> str:
    """Return the colours of families as CSS: fill and border in light mode, in dark mode, and on paper."""
    fills = {op_family: STYLES[op_family].fill for op_family in families}
    light = "".join(f".f-{name} {{ --fill: {fill}; --edge: var(--soft) }}\n" for name, fill in fills.items())
    night = "".join(f"  .f-{name} {{ --fill: {dark(fill)}; --edge: {fill} }}\n" for name, fill in fills.items())
    return f"{light}@media screen and (prefers-color-scheme: dark) {{\n{night}}}\n"


def _legend(families: Sequence[str]) -> str:
    items = "".join(f'<li><i class="f-{op_family}"></i>{op_family}</li>' for op_family in families)
    return f'<ul class="legend" aria-label="Colours of the families of operations">{items}</ul>'


class _Content:
    """The data for the script of a page."""

    def __init__(self, picture: Graph, look: PageLook) -> None:
        self._graph, self._look = picture, look
        self._members: dict[Path, list[Operation]] = {}
        self._into: dict[str, list[Edge]] = {}  # by operation
        for operation in picture.operations:
            for n in range(1, len(operation.frames) + 1):
                self._members.setdefault(operation.scope[:n], []).append(operation)
        # By frame: tensors that enter and leave it.
        self._across: dict[Path, tuple[dict[Tensor, Edge], dict[Tensor, Edge]]] = {p: ({}, {}) for p in self._members}
        for edge in picture.edges():
            self._into.setdefault(edge.head, []).append(edge)
            ends = [picture[key].frames for key in (edge.head, edge.tail)]
            for side, (near, far) in enumerate((ends, ends[::-1])):
                for n in range(1, len(near) + 1):
                    if near[:n] != far[:n]:
                        self._across[near[:n]][side].setdefault((edge.tail, edge.index), edge)
        kinds = {family(operation.kind) for operation in picture.operations}
        self.families = [op_family for op_family in STYLES if op_family in kinds]

    def document(self) -> dict[str, Any]:
        """Return the direction, whether frames close to fit the window, boxes, frames and edges, in JSON types."""
        depth = self._depth()
        frames = {path: i for i, path in enumerate(self._members)}
        boxes = {operation.key: i for i, operation in enumerate(self._graph.operations)}
        return {
            "direction": self._look.direction,
            "fit": self._look.depth is None,
            "boxes": [self._box(operation, frames) for operation in self._graph.operations],
            "frames": [self._frame(path, frames, len(path) <= depth) for path in self._members],
            "edges": [
                [boxes[e.tail], e.index, boxes[e.head], "" if e.type.shape is None else str(e.type), int(e.feedback)]
                for e in self._graph.edges()
            ],
        }

    def _depth(self) -> int:
        """Return the number of frames around a box that are open at first."""
        if self._look.depth is not None:
            return self._look.depth
        deepest = max(map(len, self._members), default=0)
        around = [(o.frames, o.key) for o in self._graph.operations]
        for depth in range(deepest, 0, -1):
            shown = {path[: depth + 1] if len(path) > depth else key for path, key in around}
            if len(shown) <= MAX_BOXES:
                return depth
        return 0

    def _box(self, operation: Operation, frames: Mapping[Path, int]) -> dict[str, Any]:
        lines = box_lines(self._graph, operation)
        parameters = [self._graph.parameters[name] for name in operation.parameters]
        weights = [
            f"{p.name}: {p.type}" + (" (buffer)" if p.buffer else "" if p.trains else " (frozen)") for p in parameters
        ]
        if not self._look.hide_weights:
            lines += weights
        facts: Facts = [("module", ".".join(operation.scope))]
        facts += [("settings", brief(operation.settings) if operation.settings else operation.detail)]
        facts += [("input", self._source(e)) for e in self._into.get(operation.key, ())]
        facts += [("output", str(t)) for t in operation.outputs if t.shape is not None]
        facts += [("parameter", text) for text in weights]
        facts += _costs([operation])
        facts += self._repeats(operation.scope)
        return {
            "frame": frames.get(operation.frames, -1),
            "family": family(operation.kind),
            "lines": lines,
            "facts": [fact for fact in facts if fact[1]],
            "names": " ".join([operation.key, operation.name, *operation.scope, *operation.parameters]),
        }

    def _frame(self, path: Path, frames: Mapping[Path, int], is_open: bool) -> dict[str, Any]:
        scope, inside = self._graph.scopes[path], self._members[path]
        going_in, out = self._across[path]
        names = dict.fromkeys(name for operation in inside for name in operation.parameters)
        count = total([self._graph.parameters[name].count for name in names])
        settings = brief(scope.settings) if scope.settings else scope.detail
        facts: Facts = [("module", ".".join(path)), ("class", scope.kind), ("settings", settings)]
        facts += [("input", self._source(edge)) for edge in going_in.values()]
        facts += [("output", str(edge.type)) for edge in out.values() if edge.type.shape is not None]
        facts += [("parameters", number(count))] if count != 0 else []
        facts += _costs(inside)
        facts += self._repeats(path)
        each = "" if scope.repeats == 1 else " in the first" if scope.first_only or scope.alike else " in each"
        boxes = f"{len(inside)} boxes" if len(inside) > 1 else "1 box"
        return {
            "frame": frames.get(path[:-1], -1),
            "open": is_open,
            "lines": frame_label(path, scope).split("\n"),
            "closed": [boxes, *([f"{number(count)} parameters{each}"] if count != 0 else [])],
            "facts": [fact for fact in facts if fact[1]],
            "names": " ".join(path),
        }

    def _source(self, edge: Edge) -> str:
        name = self._graph[edge.tail].name or self._graph[edge.tail].kind
        text = name if edge.type.shape is None else f"{edge.type} from {name}"
        return f"{text}, of the step before" if edge.feedback else text

    def _repeats(self, path: Path) -> Iterator[tuple[str, str]]:
        """Yield a note about the meaning of the numbers for each folded frame around a box."""
        for n in range(1, len(path) + 1):
            scope = self._graph.scopes[path[:n]]
            if scope.repeats > 1:
                subject = "the first" if scope.first_only or scope.alike else "one"
                modules = f"{path[n - 1]} to {scope.last}, {scope.repeats} modules"
                yield "drawn once", f"{modules}; numbers are those of {subject}"


def _costs(operations: Sequence[Operation]) -> Iterator[tuple[str, str]]:
    work, memory = total([o.multiply_adds for o in operations]), total([o.activations for o in operations])
    if work != 0:
        yield "multiply-adds", number(work)
    if memory != 0:
        yield "activations", as_bytes(memory)
