"""Pictures of networks: `plot_network` writes a graph as DOT, the language of Graphviz, or as a page for browsers.

A box is an operation or layer, an arrow is a tensor with its shape, and a frame is a module. Families of operations
differ in colour and shape, which a legend explains. The background is white, so that a picture is legible on any page.
Writing DOT takes linear time. The layout by dot takes longer.
"""

from __future__ import annotations

import html
import importlib
import os
import textwrap
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path as FilePath
from typing import Any

from feedline.graph.fold_levels import Levels, levels
from feedline.graph.fold_to_fit import fit
from feedline.graph.folding import collapse, fold_repeats
from feedline.graph.graph import Edge, Graph, Operation, Path, name_by_parameters, number
from feedline.graph.importers import graph_of
from feedline.graph.labels import box_lines, frame_label, printable
from feedline.graph.network_page import PageLook, network_page
from feedline.graph.op_families import family
from feedline.graph.picture_columns import columns
from feedline.graph.styles import GREY, INK, STYLES

MAX_TOOLTIP_PARAMETERS = 20  # in a box, as dot reads no text of more than 16 KiB
WORDS = 70  # characters in a line of a note
# Number of operations above which dot gets a lower effort, and shapes become head labels, which, unlike edge labels,
# add no nodes to its layout.
MANY = 300


def plot_network(
    model: Any,
    inputs: Any = None,
    *,
    to: str | os.PathLike[str] | None = None,
    title: str = "network",
    save_format: str = "svg",
    depth: int | None = None,
    expand: bool = False,
    fold: bool = True,
    hide_weights: bool = True,
    node_attrs: Mapping[str, str] | None = None,
    legend: bool = True,
    direction: str = "TB",
    height: float | None = 1600,
) -> Any:
    """Draw a network as a picture.

    Args:
        model: a `torch.nn.Module`, a network under CNTK's names, a symbol of MXNet or its JSON, a model of ONNX
            or the path of its file (``.onnx``), or a `feedline.graph.graph.Graph`.
        inputs: inputs of the model, for shapes: one input, a sequence of them, or a mapping by keyword, each a tensor,
            an array, or a shape, which is a tuple of ints and means zeros. For symbols and ONNX shapes by name.
        to: path of a file to write. The ending decides: ``.html`` is a page for browsers that needs neither Graphviz
            nor a network, with frames that open and close, a search, and the shapes and costs of the box under the
            pointer. Other endings are formats of Graphviz. None means that nothing is written.
        title: title of the picture, and name of the file that `render` writes.
        save_format: format of that file: ``"svg"``, ``"pdf"``, ``"png"`` or another of Graphviz.
        depth: largest number of modules around an operation. Deeper ones become a box, which opens in a page. None
            means as many as show at most 60 boxes and fit the window, or in a picture the width of a screen. Its
            caption names the depth if modules are hidden. Without `fold` a picture has no limit.
        expand: whether to show the operations inside layers of the library, too.
        fold: whether to draw runs of equal modules once, with their number. In a picture that would be too large, this
            includes alike modules, which differ only in widths.
        hide_weights: whether to show only numbers of parameters, instead of drawing each. A page has them on demand.
        node_attrs: Graphviz attributes of all operations, which override the attributes of their family. Not for pages.
        legend: whether to explain the shapes and colours that occur.
        direction: direction of the data flow: ``"TB"`` (down), ``"LR"``, ``"BT"`` or ``"RL"``.
        height: points (1/72 inch) at which a picture continues in another column, at a place that a single tensor
            crosses, or a few. In direction ``"LR"``, it continues in another row. A network that goes down and up again
            (a U-Net) has its way up next to its way down, level by level. None means one column. Pages scroll instead.

    Returns:
        A `graphviz.Digraph`: a picture in notebooks. ``.source`` is the DOT, ``.render(path)`` writes a file, which
        requires the program ``dot``. With ``to``, the `pathlib.Path` of the file.

    Raises:
        ModuleNotFoundError: the package graphviz is not installed (``pip install 'feedline[viz]'``).
        OSError: the file cannot be written.
        RuntimeError: the file needs the program ``dot``, which is not installed.
        TypeError: a model of another type, or a title or attribute that is not a str.
        ValueError: inputs that do not fit, an ending of no known format, or another argument out of range.
    """
    if direction not in ("TB", "LR", "BT", "RL"):
        raise ValueError(f"expected direction 'TB', 'LR', 'BT' or 'RL', got {direction!r}")
    if height is not None and not height > 0:
        raise ValueError(f"expected a height in points above 0, or None, got {height}")
    if not isinstance(title, str):
        raise TypeError(f"expected a title of text, got {title!r}")
    wrong = {name: value for name, value in (node_attrs or {}).items() if not isinstance(value, str)}
    if wrong:
        raise TypeError(f"expected node_attrs of text, as Graphviz has them, got {wrong}")
    if depth is not None and depth < 0:
        raise ValueError(f"expected depth=None or a number of scopes from 0, got {depth}")
    as_page = to is not None and FilePath(to).suffix.lower() in (".html", ".htm")
    if as_page and node_attrs:
        raise ValueError(f"expected no node_attrs for a page, which Graphviz does not style, got {dict(node_attrs)}")
    graph = graph_of(model, inputs)
    remark = ""
    if fold and depth is None and not as_page:
        shown, remark = fit(graph, expand, height)
    else:
        shown = collapse(graph, None if as_page else depth, expand)
        shown = fold_repeats(shown) if fold else shown
    shown = name_by_parameters(shown)
    if as_page:
        look = PageLook(title, direction, depth, hide_weights, legend)
        path = FilePath(to)  # type: ignore[arg-type]
        path.write_text(network_page(graph, shown, look), encoding="utf-8")
        return path
    digraph = importlib.import_module("feedline.graph.digraph")  # the only module that needs the package graphviz
    picture = digraph.Picture(name=digraph.quote(title), filename=f"{title}.gv", format=save_format)
    drawing = _Drawing(shown, picture, digraph.quote, dict(node_attrs or {}), hide_weights)
    parts = columns(shown, height) if height is not None else []
    u_shape = levels(shown) if parts else None
    wide = direction in ("LR", "RL") or (len(parts) > 1 and u_shape is None)
    drawing.settings(_caption(title, graph, remark), direction, (4 if wide else 2) if legend else 0)
    drawing.content(parts if u_shape is None and parts else [shown.operations])
    if u_shape is None:
        drawing.edges(parts)
    else:
        drawing.levels(u_shape)
    return picture if to is None else picture.write(FilePath(to))


def _caption(title: str, graph: Graph, remark: str) -> str:
    counted = f"{number(graph.num_parameters())} parameters" + (f", {graph.origin}" if graph.origin else "")
    notes = [line for note in graph.notes for line in textwrap.wrap(note, WORDS)]
    return "\n".join([title, counted, *([remark] if remark else []), *notes])


class _Column:
    """Operations of a column by the frame around them, and frames by the frame around them."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.inside: dict[Path, list[Operation]] = {}
        self.scopes: dict[Path, dict[Path, None]] = {}
        for operation in operations:
            around = operation.frames
            self.inside.setdefault(around, []).append(operation)
            for n in range(len(around)):
                self.scopes.setdefault(around[:n], {})[around[: n + 1]] = None

    def nested(self, path: Path) -> list[Path]:
        """Return a scope and the nested scopes with the same operations, which one frame represents."""
        nested = [path]
        while len(inner := self.scopes.get(nested[-1], {})) == 1 and not self.inside.get(nested[-1]):
            nested += inner
        return nested


class _Drawing:
    """Writes one graph into one picture."""

    def __init__(
        self, graph: Graph, picture: Any, quote: Any, node_attrs: Mapping[str, str], hide_weights: bool
    ) -> None:
        self.graph, self.picture, self.quote = graph, picture, quote
        self.node_attrs, self.hide_weights = node_attrs, hide_weights
        self._many = len(graph.operations) > MANY
        self._users = Counter(name for operation in graph.operations for name in operation.parameters)
        named: list[Path | str] = [*graph.scopes, *graph.parameters]
        self._number = {name: i for i, name in enumerate(named)}

    def settings(self, caption: str, direction: str, in_a_row: int) -> None:
        """Set the attributes of the picture, with ``in_a_row`` families in a row of its legend, or no legend if that is
        0."""
        fonts = {"fontname": "Helvetica,Arial,sans-serif"}
        many = {"splines": "line", "nslimit": "0.1", "nslimit1": "1", "mclimit": "0.1"}
        self.picture.attr(
            "graph",
            label=self._with_legend(caption, in_a_row) if in_a_row else self.quote(caption),
            labelloc="t",
            rankdir=direction,
            bgcolor="#ffffff",
            pad="0.15",
            fontcolor=GREY,
            color=GREY,
            ranksep="0.2",
            nodesep="0.2",
            **fonts,
            **(many if self._many else {}),
        )
        self.picture.attr("node", style="filled", color=GREY, fontcolor=INK, fontsize="11", margin="0.08,0.05", **fonts)
        self.picture.attr("edge", color=GREY, fontcolor=GREY, fontsize="10", arrowsize="0.7", **fonts)

    def _with_legend(self, caption: str, in_a_row: int) -> str:
        """Return a caption, in the HTML of Graphviz, with a table of the families that occur."""
        occur = {family(operation.kind) for operation in self.graph.operations}
        occur |= {"parameter"} if self._users and not self.hide_weights else set()
        cells = [
            f'<td border="1" bgcolor="{STYLES[op_family].fill}" width="18"></td>'
            f'<td align="left"><font point-size="9">{op_family}: {STYLES[op_family].words}</font></td>'
            for op_family in STYLES
            if op_family in occur
        ]
        rows = ["".join(cells[n : n + in_a_row]) for n in range(0, len(cells), in_a_row)]
        table = "".join(f"<tr>{row}</tr>" for row in rows)
        words = html.escape(printable(caption))
        lines = "".join(f"<tr><td>{line}</td></tr>" for line in words.split("\n"))
        legend = f'<table border="0" cellborder="0" cellspacing="3" cellpadding="1">{table}</table>'
        legend = f"<tr><td>{legend}</td></tr>" if cells else ""
        return f'<<table border="0" cellspacing="0" cellpadding="1" color="{GREY}">{lines}{legend}</table>>'

    def content(self, parts: Sequence[Sequence[Operation]]) -> None:
        """Draw all operations, and a frame for each scope in each column that has operations of it."""
        begun: set[Path] = set()
        for i, operations in enumerate(parts):
            column = _Column(operations)
            self._scope(column, (), self.picture, f"_{i}" if i else "", begun)
            begun |= {path for inner in column.scopes.values() for path in inner}

    def _scope(self, column: _Column, path: Path, into: Any, suffix: str, before: Collection[Path]) -> None:
        """Draw the operations directly in a scope, and a frame for each subscope, with the names of all scopes that it
        represents."""
        for operation in column.inside.get(path, ()):
            self.operation(operation, into)
        for inner in column.scopes.get(path, ()):
            frame = type(self.picture)(name=f"cluster_{self._number[inner]}{suffix}")
            nested = column.nested(inner)
            titles = [frame_label(p, self.graph.scopes[p], p in before) for p in nested]
            label = self.quote("\n".join(titles))
            frame.attr("graph", label=label, style="rounded,dashed", color=GREY, fontcolor=GREY, fontsize="11")
            frame.attr("graph", labeljust="l", margin="6")
            self._scope(column, nested[-1], frame, suffix, before)
            into.subgraph(frame)

    def operation(self, operation: Operation, into: Any) -> None:
        """Draw a box, and cylinders for its parameters if weights are shown."""
        label = self.quote("\n".join(box_lines(self.graph, operation)))
        style = {"label": label, "tooltip": self.quote(self._tooltip(operation)), **_style(family(operation.kind))}
        into.node(operation.key, **{**style, **self.node_attrs})
        if self.hide_weights:
            return
        for name in operation.parameters:
            # A shared parameter is one node, outside all frames.
            shared = self._users[name] > 1
            parameter = self.graph.parameters[name]
            note = "\nbuffer" if parameter.buffer else "" if parameter.trains else "\nfrozen"
            label = self.quote(f"{name}\n{parameter.type}{note}")
            key = f"parameter {self._number[name]}"
            (self.picture if shared else into).node(key, label=label, **_style("parameter"))
            self.picture.edge(key, operation.key, style="dashed", arrowhead="none")

    def _tooltip(self, operation: Operation) -> str:
        lines = [".".join(operation.scope) or operation.key, operation.detail]
        shown = operation.parameters[:MAX_TOOLTIP_PARAMETERS]
        lines += [f"{name}: {self.graph.parameters[name].type}" for name in shown]
        hidden = len(operation.parameters) - len(shown)
        lines += [f"and {hidden} more parameters"] if hidden > 0 else []
        if operation.multiply_adds:
            lines.append(f"{number(operation.multiply_adds)} multiply-adds")
        return "\n".join(line for line in lines if line)

    def edges(self, parts: Sequence[Sequence[Operation]]) -> None:
        """Draw an arrow for every edge, with the shape, and between columns two arrows, to and from a circle with a
        number."""
        column = {operation.key: i for i, operations in enumerate(parts) for operation in operations}
        joints: dict[tuple[str, int], list[Edge]] = {}
        for edge in self.graph.edges():
            if column.get(edge.tail) != column.get(edge.head):
                joints.setdefault((edge.tail, edge.index), []).append(edge)
            else:
                self._edge(edge, edge.tail, edge.head)
        for n, edges in enumerate(joints.values(), 1):
            self._joint(n, edges)
        if len(parts) > 1:
            self._align_tops([operations[0].key for operations in parts], len(joints))

    def levels(self, u_shape: Levels) -> None:
        """Draw an arrow for every edge. Edges of the way up start from below, and edges across do not influence
        heights. Their shape is next to where the tensor goes down, as a label on them would be on the borders of
        frames."""
        # Each arrow has one line of text next to it, and none has to go around a box.
        self.picture.attr("graph", ranksep="0.12")
        edges = list(self.graph.edges())
        labelled = {(edge.tail, edge.index) for edge in edges if (edge.tail, edge.head) not in u_shape.across}
        for edge in edges:
            ends = edge.tail, edge.head
            if ends in u_shape.across:
                no_label = {"label": ""} if (edge.tail, edge.index) in labelled else {}
                self._edge(edge, *ends, constraint="false", **no_label)
            elif edge.head in u_shape.up:
                self._edge(edge, *ends[::-1], dir="back", minlen=str(u_shape.lengths.get(ends, 1)))
            else:
                self._edge(edge, *ends, minlen=str(u_shape.lengths.get(ends, 1)))

    def _edge(self, edge: Edge, tail: str, head: str, **extra: str) -> None:
        label = "" if edge.type.shape is None else str(edge.type)
        if edge.feedback:
            extra |= {"style": "dashed", "constraint": "false"}
        extra.setdefault("headlabel" if self._many else "label", self.quote(f" {label} "))
        self.picture.edge(tail, head, **extra)

    def _joint(self, n: int, edges: Sequence[Edge]) -> None:
        """Draw a circle where a tensor leaves a column, and another with the same number where it continues."""
        circle = {"shape": "circle", "margin": "0.02", "width": "0.3", "fillcolor": "#ffffff", "label": str(n)}
        self.picture.node(f"to {n}", tooltip=f"goes on at the other {n}", **circle)
        self.picture.node(f"from {n}", tooltip=f"comes from the other {n}", **circle)
        self._edge(edges[0], edges[0].tail, f"to {n}")
        for edge in edges:
            self._edge(edge, f"from {n}", edge.head)

    def _align_tops(self, firsts: Sequence[str], joints: int) -> None:
        """Put the tops of all columns at one height, in order."""
        tops = [firsts[0], *(f"from {n}" for n in range(1, joints + 1))]
        with self.picture.subgraph(name="tops") as heads:
            heads.attr("graph", rank="same")
            for top in tops:
                heads.node(top)
        for a, b in pairwise(tops):
            self.picture.edge(a, b, style="invis")


def _style(op_family: str) -> dict[str, str]:
    style = STYLES[op_family]
    # dot adds room for slanted sides by itself.
    slanted = ("invtrapezium", "parallelogram", "hexagon", "octagon", "doubleoctagon")
    narrow = {"margin": "0,0"} if style.shape in slanted else {}
    return {"shape": style.shape, "fillcolor": style.fill, "style": style.style, **narrow}
