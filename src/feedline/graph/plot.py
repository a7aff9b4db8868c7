"""Pictures of networks: `plot_network` writes a graph as DOT, the language of Graphviz.

A box is an operation or layer, an arrow a tensor with its shape, a frame a module. Families of operations differ in
colour and shape, explained in a legend. The colours follow Okabe and Ito's palette for colour-blind readers; the
background is white, so that a picture is legible wherever it is shown. dot takes the time; writing DOT is linear.
"""

from __future__ import annotations

import importlib
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from feedline.graph.columns import columns
from feedline.graph.folding import collapsed, folded
from feedline.graph.graph import (
    Edge,
    Graph,
    Operation,
    Parameter,
    Path,
    Scope,
    called,
    named_after_parameters,
    number,
    total,
)
from feedline.graph.importers import graph_of
from feedline.graph.op_families import family
from feedline.graph.settings import brief


class Style(NamedTuple):
    """Style of a family: Graphviz' shape, fill, the shape in words, and Graphviz' style."""

    shape: str
    fill: str
    words: str
    style: str = "filled"


GREY = "#767676"  # 4.5:1 on white as on black
INK = "#000000"
# Shape and fill of each family: Okabe and Ito's colours, lightened for a contrast of at least 7:1 with black text.
STYLES = {
    "input": Style("oval", "#ffffff", "oval"),
    "parameter": Style("cylinder", "#dddddd", "cylinder"),
    "attention": Style("octagon", "#d9a3c2", "octagon"),
    "recurrent": Style("component", "#e69f00", "box with tabs"),
    "normalisation": Style("box", "#f0e442", "round corners", "rounded,filled"),
    "dropout": Style("box", "#e8e3b0", "dashed round corners", "rounded,filled,dashed"),
    "convolution": Style("box3d", "#f0a06a", "block"),
    "pooling": Style("invtrapezium", "#9fd3f0", "funnel"),
    "activation": Style("hexagon", "#7fd0b4", "hexagon"),
    "loss": Style("doubleoctagon", "#f6c3a0", "double octagon"),
    "product": Style("box", "#8cbce0", "box"),
    "shape": Style("parallelogram", "#eeeeee", "slanted"),
    "other": Style("note", "#ffffff", "folded corner"),
}
SETTINGS = 36  # characters in a line of settings
WORDS = 70  # characters in a line of a note
# Number of operations above which dot gets a lower effort, and shapes become head labels, which, unlike edge labels,
# add no nodes to its layout.
MANY = 300


def plot_network(
    model: Any,
    inputs: Any = None,
    *,
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
    """A network as a picture.

    Args:
        model: a `torch.nn.Module`, a network under CNTK's names, a symbol of MXNet or its JSON, a model of ONNX
            or the path of its file (``.onnx``), or a `feedline.graph.graph.Graph`.
        inputs: what the model is applied to, for shapes: one input, a sequence of them, or a mapping by keyword; each a
            tensor, an array, or a shape, a tuple of ints that stands for zeros. For symbols and ONNX shapes by name.
        title: of the picture, and of the file that `render` writes.
        save_format: of that file: ``"svg"``, ``"pdf"``, ``"png"`` or another of Graphviz.
        depth: largest number of modules around an operation; deeper ones become a box. None: no limit.
        expand: whether to show the operations inside the library's layers, too.
        fold: whether to draw runs of equal modules once, with their number.
        hide_weights: whether to show only numbers of parameters, instead of drawing each.
        node_attrs: Graphviz attributes of all operations, which override those of their family.
        legend: whether to explain the shapes and colours that occur.
        direction: direction of the data flow: ``"TB"`` (down), ``"LR"``, ``"BT"`` or ``"RL"``.
        height: points (1/72 inch) at which a picture continues in another column, where a single tensor goes on, or a
            few; in direction ``"LR"``, in another row. None: never.

    Returns:
        A `graphviz.Digraph`: a picture in notebooks; ``.source`` is the DOT, ``.render(path)`` writes a file, which
        requires the program ``dot``.

    Raises:
        ModuleNotFoundError: the package graphviz is not installed (``pip install 'feedline[viz]'``).
        TypeError: a model of another type, or a title or attribute that is not a str.
        ValueError: inputs that do not fit, or another argument out of range.
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
    digraph = importlib.import_module("feedline.graph.digraph")  # the only one that needs the package graphviz
    graph = graph_of(model, inputs)
    drawn = collapsed(graph, depth, expand)
    drawn = named_after_parameters(folded(drawn) if fold else drawn)
    picture = digraph.Picture(name=digraph.quoted(title), filename=f"{title}.gv", format=save_format)
    drawing = _Drawing(drawn, picture, digraph.quoted, dict(node_attrs or {}), hide_weights)
    drawing.settings(_caption(title, graph), direction)
    drawing.scope(())
    drawing.edges(columns(drawn, height) if height is not None else [])
    if legend:
        drawing.legend()
    return picture


def _caption(title: str, graph: Graph) -> str:
    by = f", read by {graph.importer}" if graph.importer else ""
    lines = [title, f"{number(graph.num_parameters())} parameters{by}"]
    return "\n".join([*lines, *(line for note in graph.notes for line in textwrap.wrap(note, WORDS))])


class _Drawing:
    """Writes one graph into one picture."""

    def __init__(
        self, graph: Graph, picture: Any, quoted: Any, node_attrs: Mapping[str, str], hide_weights: bool
    ) -> None:
        self.graph, self.picture, self.quoted = graph, picture, quoted
        self.node_attrs, self.hide_weights = node_attrs, hide_weights
        self._many = len(graph.operations) > MANY
        self._families: dict[str, None] = {}
        self._users = Counter(name for operation in graph.operations for name in operation.parameters)
        named: list[Path | str] = [*graph.scopes, *graph.parameters]
        self._number = {name: i for i, name in enumerate(named)}
        self._inside: dict[Path, list[Operation]] = {}
        self._scopes: dict[Path, dict[Path, None]] = {}
        for operation in graph.operations:
            around = operation.scope[:-1] if operation.whole else operation.scope
            self._inside.setdefault(around, []).append(operation)
            for n in range(len(around)):
                self._scopes.setdefault(around[:n], {})[around[: n + 1]] = None

    def settings(self, caption: str, direction: str) -> None:
        """Set the attributes of the picture."""
        fonts = {"fontname": "Helvetica,Arial,sans-serif"}
        many = {"splines": "line", "nslimit": "0.1", "nslimit1": "1", "mclimit": "0.1"}
        self.picture.attr(
            "graph",
            label=self.quoted(caption),
            labelloc="t",
            rankdir=direction,
            bgcolor="#ffffff",
            pad="0.15",
            fontcolor=GREY,
            color=GREY,
            ranksep="0.3",
            nodesep="0.3",
            **fonts,
            **(many if self._many else {}),
        )
        self.picture.attr("node", style="filled", color=GREY, fontcolor=INK, fontsize="11", margin="0.12,0.06", **fonts)
        self.picture.attr("edge", color=GREY, fontcolor=GREY, fontsize="10", arrowsize="0.7", **fonts)

    def scope(self, path: Path, into: Any = None) -> None:
        """Draw the operations directly in a scope, and a frame for each subscope."""
        into = into or self.picture
        for operation in self._inside.get(path, ()):
            self.operation(operation, into)
        for inner in self._scopes.get(path, ()):
            frame = type(self.picture)(name=f"cluster_{self._number[inner]}")
            label = self.quoted(_frame_label(inner, self.graph.scopes[inner]))
            frame.attr("graph", label=label, style="rounded,dashed", color=GREY, fontcolor=GREY, fontsize="11")
            frame.attr("graph", labeljust="l")
            self.scope(inner, frame)
            into.subgraph(frame)

    def operation(self, operation: Operation, into: Any) -> None:
        """Draw a box, and cylinders for its parameters if weights are shown."""
        kin = family(operation.kind)
        self._families.setdefault(kin)
        into.node(
            operation.key,
            **{
                "label": self.quoted(self._label(operation)),
                "tooltip": self.quoted(self._tooltip(operation)),
                **_style(kin),
                **self.node_attrs,
            },
        )
        if self.hide_weights:
            return
        for name in operation.parameters:
            self._families.setdefault("parameter")
            # A shared parameter is one node, outside all frames.
            shared = self._users[name] > 1
            parameter = self.graph.parameters[name]
            label = self.quoted(f"{name}\n{parameter.type}{_remark(parameter)}")
            key = f"parameter {self._number[name]}"
            (self.picture if shared else into).node(key, label=label, **_style("parameter"))
            self.picture.edge(key, operation.key, style="dashed", arrowhead="none")

    def _label(self, operation: Operation) -> str:
        count = total([self.graph.parameters[name].count for name in operation.parameters])
        lines = [operation.kind]
        if operation.whole:
            scope = self.graph.scopes[operation.scope]
            lines = [f"{scope.kind}{_times(scope)}", _names(operation.scope, scope)]
            lines += [only] if (only := _first_only(operation.scope, scope)) else []
        elif operation.name:
            lines.append(operation.name)
        if operation.role == "input":
            lines = [operation.name or operation.kind, *[str(t) for t in operation.outputs[:1] if t.shape is not None]]
        told = brief(operation.settings)
        if told:
            lines += textwrap.wrap(told, SETTINGS)
        if count != 0:
            lines.append(f"{number(count)} parameters")
        return "\n".join(lines)

    def _tooltip(self, operation: Operation) -> str:
        lines = [".".join(operation.scope) or operation.key, operation.detail]
        lines += [f"{name}: {self.graph.parameters[name].type}" for name in operation.parameters]
        if operation.multiply_adds:
            lines.append(f"{number(operation.multiply_adds)} multiply-adds")
        return "\n".join(line for line in lines if line)

    def edges(self, parts: Sequence[Sequence[Operation]]) -> None:
        """Draw an arrow for every edge, with the shape; between columns two, to and from a circle with a number."""
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
            self._beside([operations[0].key for operations in parts], len(joints))

    def _edge(self, edge: Edge, tail: str, head: str, **extra: str) -> None:
        label = "" if edge.type.shape is None else str(edge.type)
        if edge.feedback:
            extra |= {"style": "dashed", "constraint": "false"}
        extra["headlabel" if self._many else "label"] = self.quoted(f" {label} ")
        self.picture.edge(tail, head, **extra)

    def _joint(self, n: int, edges: Sequence[Edge]) -> None:
        """Draw a circle where a tensor leaves a column, and another with the same number where it goes on."""
        circle = {"shape": "circle", "margin": "0.02", "width": "0.3", "fillcolor": "#ffffff", "label": str(n)}
        self.picture.node(f"to {n}", tooltip=f"goes on at the other {n}", **circle)
        self.picture.node(f"from {n}", tooltip=f"comes from the other {n}", **circle)
        self._edge(edges[0], edges[0].tail, f"to {n}")
        for edge in edges:
            self._edge(edge, f"from {n}", edge.head)

    def _beside(self, firsts: Sequence[str], joints: int) -> None:
        """Put the tops of all columns at one height, in order."""
        tops = [firsts[0], *(f"from {n}" for n in range(1, joints + 1))]
        with self.picture.subgraph(name="tops") as heads:
            heads.attr("graph", rank="same")
            for top in tops:
                heads.node(top)
        for left, right in pairwise(tops):
            self.picture.edge(left, right, style="invis")

    def legend(self) -> None:
        """Draw a table of the families that occur."""
        rows = "".join(
            f'<tr><td border="1" color="{GREY}" bgcolor="{STYLES[kin].fill}" width="18"></td>'
            f'<td align="left"><font color="{GREY}">{kin}: {STYLES[kin].words}</font></td></tr>'
            for kin in STYLES
            if kin in self._families
        )
        table = f'<<table border="0" cellborder="0" cellspacing="3" cellpadding="1">{rows}</table>>'
        self.picture.node("legend of families", label=table, shape="plain", style="", fontsize="9", tooltip="legend")


def _style(kin: str) -> dict[str, str]:
    style = STYLES[kin]
    return {"shape": style.shape, "fillcolor": style.fill, "style": style.style}


def _remark(parameter: Parameter) -> str:
    return "\nbuffer" if parameter.buffer else "" if parameter.trains else "\nfrozen"


def _times(scope: Scope) -> str:
    if scope.repeats == 1:
        return ""
    return f" ×{scope.repeats}" + (" (same weights)" if scope.tied else "")


def _first_only(path: Path, scope: Scope) -> str:
    return f"only {called(path[-1])}: {', '.join(scope.first_only)}" if scope.first_only else ""


def _names(path: Path, scope: Scope) -> str:
    """Return the module's name in its parent, with the number of the call unless it is the first."""
    around = path[-2].partition("@")[2] if len(path) > 1 else ""
    name = called(path[-1].removesuffix(f"@{around}") if around else path[-1])
    return f"{name} … {called(scope.last)}" if scope.repeats > 1 else name


def _frame_label(path: Path, scope: Scope) -> str:
    name = _names(path, scope)
    label = f"{scope.kind}{_times(scope)}" if name == scope.kind else f"{name}: {scope.kind}{_times(scope)}"
    only = _first_only(path, scope)
    return f"{label}\n{only}" if only else label
