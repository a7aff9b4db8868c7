"""`mxnet.visualization` (`mx.viz`): pictures and tables of symbols.

`plot_network` makes the nodes, attributes and edges of MXNet 1.9. `print_summary` has MXNet's layout. Its numbers are
counted from the shapes of parameters, where MXNet guesses them from channels. ``exact_mxnet=True`` reproduces MXNet's
text, errors included. Both take time linear in nodes and edges.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from feedline.errors import install_line
from feedline.mxnet._names import names_of
from feedline.mxnet.symbol import Symbol
from feedline.mxnet.symbol._infer import by_variable, infer_shapes, lengths
from feedline.mxnet.symbol._node import Node, topological
from feedline.networks.importers.symbol import STATISTICS

__all__, __getattr__ = names_of(__name__)

_WEIGHTS = ("_weight", "_bias", "_beta", "_gamma", *STATISTICS)
_VARIABLE, _OTHER = "#8dd3c7", "#fccde5"
_COLOURS = {
    "Activation": "#ffffb3",
    "BatchNorm": "#bebada",
    "Concat": "#fdb462",
    "Convolution": "#fb8072",
    "Flatten": "#fdb462",
    "FullyConnected": "#fb8072",
    "LeakyReLU": "#ffffb3",
    "Pooling": "#80b1d3",
    "Reshape": "#fdb462",
    "Softmax": "#b3de69",
}
_BOX = {"shape": "box", "fixedsize": "true", "width": "1.3", "height": "0.8034", "style": "filled"}


def plot_network(
    symbol: Symbol,
    title: str = "plot",
    save_format: str = "pdf",
    shape: Mapping[str, Any] | None = None,
    dtype: Mapping[str, Any] | None = None,
    node_attrs: Mapping[str, str] | None = None,
    hide_weights: bool = True,
) -> Any:
    """Return the network as a ``graphviz.Digraph``. Drawing it requires the program ``dot``, its ``source`` does not.

    Args:
        symbol: symbol to draw.
        title: name of the graph.
        save_format: format of the file that ``render`` writes.
        shape: shapes of arguments by name, batch first. Edges then show shapes without the batch.
        dtype: element types of arguments by name. Edges then show them.
        node_attrs: Graphviz attributes of all nodes.
        hide_weights: whether to omit edges to parameters.

    Raises:
        ImportError: the package graphviz is not installed.
        TypeError: not a Symbol.
        ValueError: insufficient shapes or types, or an unknown format.
        MXNetError: contradictory shapes, or a name that is not an argument.
    """
    try:
        from graphviz import Digraph
    except ImportError as error:
        raise ImportError(f"Draw network requires graphviz library: {install_line('viz')}") from error
    if not isinstance(symbol, Symbol):
        raise TypeError(f"symbol must be a Symbol, got {type(symbol).__name__}")
    shapes = None if shape is None else _infer_shapes(symbol, "shape", shape)
    types = None if dtype is None else _infer_shapes(symbol, "type", dtype)
    nodes, order = json.loads(symbol.tojson())["nodes"], topological(symbol.entries)
    _warn_of_repeated([node["name"] for node in nodes])
    dot = Digraph(name=title, format=save_format)
    for node in nodes:
        if node["op"] == "null" and node["name"].endswith(_WEIGHTS):
            continue
        attributes = {**_BOX, **(node_attrs or {}), "fillcolor": _COLOURS.get(node["op"], _OTHER)}
        if node["op"] == "null":
            attributes.update(shape="oval", fillcolor=_VARIABLE)
        dot.node(name=node["name"], label=_label(node), **attributes)
    for node in nodes:
        # The second input of this operator, which only provides a size, is not drawn.
        joined = node["inputs"][:1] if node["op"] == "_contrib_BilinearResize2D" else node["inputs"]
        for number, output, _ in joined:
            below = nodes[number]
            if hide_weights and below["op"] == "null" and below["name"].endswith(_WEIGHTS):
                continue
            keys = (_key(below), order[number].output_name(output))
            dot.edge(tail_name=node["name"], head_name=below["name"], label=_edge(keys, shapes, types), **_ARROW)
    return dot


_ARROW = {"dir": "back", "arrowtail": "open"}


def _infer_shapes(symbol: Symbol, what: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return shapes or types of all outputs of all nodes, by name."""
    internals = symbol.get_internals()
    infer = internals.infer_shape if what == "shape" else internals.infer_type
    _, inferred, _ = infer(**values)
    if inferred is None:
        raise ValueError(f"Input {what} is incomplete")
    return dict(zip(internals.list_outputs(), inferred, strict=True))


def _warn_of_repeated(names: Sequence[str]) -> None:
    earlier: set[str] = set()
    repeated = dict.fromkeys(name for name in names if name in earlier or earlier.add(name))  # type: ignore[func-returns-value]
    if repeated:
        warnings.warn(
            "There are multiple variables with the same name in your graph, this may result in cyclic graph. "
            f"Repeated names: {','.join(repeated)}",
            RuntimeWarning,
            stacklevel=3,
        )


def _label(node: Mapping[str, Any]) -> str:
    op, get = node["op"], node.get("attrs", {})
    if op == "FullyConnected":
        return f"FullyConnected\n{get['num_hidden']}"
    if op == "Convolution":
        return f"Convolution\n{_by(get['kernel'])}/{_by(get.get('stride', '1'))}, {get['num_filter']}"
    if op == "Activation":
        return f"Activation\n{get['act_type']}"
    if op == "LeakyReLU":
        return f"LeakyReLU\n{get.get('act_type', 'Leaky')}"
    if op == "Pooling":
        kernel = _by(get["kernel"]) if "kernel" in get else "[]"
        return f"Pooling\n{get.get('pool_type', 'max')}, {kernel}/{_by(get.get('stride', '1'))}"
    return str(node["name"])


def _by(text: str) -> str:
    """Format ``(3, 3)`` as ``3x3``."""
    return "x".join(re.findall(r"\d+", text))


def _key(node: Mapping[str, Any]) -> str:
    """Return the name of a node's output, or of its last output if there are several, as in MXNet."""
    if node["op"] == "null":
        return str(node["name"])
    count = node.get("attrs", {}).get("num_outputs")
    return f"{node['name']}_output" if count is None else f"{node['name']}_output{int(count) - 1}"


def _edge(keys: Sequence[str], shapes: Mapping[str, Any] | None, types: Mapping[str, Any] | None) -> str:
    """Return shape and type of an output by MXNet's key, or by its name where MXNet fails."""
    outputs = types if shapes is None else shapes
    if outputs is None:
        return ""
    key = next(key for key in keys if key in outputs)
    label = "" if shapes is None else "x".join(map(str, shapes[key][1:]))
    return label if types is None else f"{label}({np.dtype(types[key]).name})"


# ---- tables -------------------------------------------------------------------------------------------------

_HEAD = ("Layer (type)", "Output Shape", "Param #", "Previous Layer")


def print_summary(
    symbol: Symbol,
    shape: Mapping[str, Any] | None = None,
    line_length: int = 120,
    positions: Sequence[float] = (0.44, 0.64, 0.74, 1.0),
    *,
    exact_mxnet: bool = False,
) -> None:
    """Print a table of layers: output shape without the batch, parameters, inputs.

    Parameters are counted from their shapes, each variable at the first layer that uses it. Numbers that are unknown
    without shapes are ``?``, and the total is then preceded by "at least".

    Args:
        symbol: symbol to print.
        shape: shapes of arguments by name, batch first.
        line_length: number of characters of a line.
        positions: ends of columns, in characters or as fractions of the line.
        exact_mxnet: whether to print the text of MXNet 1.9, with its wrong counts, and fail where it fails.

    Raises:
        TypeError: not a Symbol.
        ValueError: insufficient shapes, or positions of fewer than four columns.
        MXNetError: contradictory shapes, or a name that is not an argument.
        IndexError: with ``exact_mxnet``, where MXNet fails: an output of one axis below a layer.
    """
    if not isinstance(symbol, Symbol):
        raise TypeError(f"symbol must be Symbol, got {type(symbol).__name__}")
    table = _Table(line_length, positions)
    if exact_mxnet:
        from feedline.mxnet._old_summary import print_rows

        print_rows(symbol, None if shape is None else _infer_shapes(symbol, "shape", shape), table)
        return
    if shape is not None:
        _infer_shapes(symbol, "shape", shape)
    _print_rows(symbol, shape, table)


class _Table:
    """Printer of rows whose columns are cut and padded to fixed positions."""

    def __init__(self, length: int, positions: Sequence[float]) -> None:
        self.length = length
        if len(positions) < len(_HEAD):
            raise ValueError(f"expected positions of {len(_HEAD)} columns, got {list(positions)}")
        shares = positions[-1] <= 1
        self.ends = [int(length * p) if shares else int(p) for p in positions[: len(_HEAD)]]

    def head(self) -> None:
        """Print the header."""
        self.line("_")
        self.row(*_HEAD)
        self.line("=")

    def line(self, character: str) -> None:
        """Print a horizontal line."""
        print(character * self.length)

    def row(self, *fields: Any) -> None:
        """Print one row."""
        line = ""
        for field, end in zip(fields, self.ends, strict=True):
            line = (line + str(field))[:end].ljust(end)
        print(line)

    def layer(self, name: str, shape: str, count: Any, previous: Sequence[str]) -> None:
        """Print one layer. Each operand after the first has a separate row."""
        first, *operands = previous or [""]
        self.row(name, shape, count, first)
        for operand in operands:
            self.row("", "", "", operand)


def _print_rows(symbol: Symbol, shape: Mapping[str, Any] | None, table: _Table) -> None:
    order = topological(symbol.entries)
    inferred = infer_shapes(symbol.entries, by_variable(symbol.entries, (), shape or {}, lengths))
    parameters, aside = _roles(order)
    counted: set[Node] = set()
    total, complete = 0, True
    table.head()
    layers = [node for i, node in enumerate(order) if i == 0 or node.operator is not None]
    for node in layers:
        variables = [e.node for e in node.inputs if e.node in parameters and e.node not in counted]
        counted.update(variables)
        sizes = [math.prod(inferred.shape(v) or ()) if inferred.knows(v) else None for v in dict.fromkeys(variables)]
        count = None if None in sizes else sum(size for size in sizes if size is not None)
        total += sum(size for size in sizes if size is not None)
        complete = complete and count is not None
        previous = [e.node.name for e in node.inputs if e.node not in parameters | aside]
        out = inferred.shape(node) if shape is not None and inferred.knows(node) else None
        kind = "null" if node.operator is None else node.operator.name
        table.layer(
            f"{node.name}({kind})", "x".join(map(str, (out or ())[1:])), "?" if count is None else count, previous
        )
        table.line("=" if node is layers[-1] else "_")
    print(f"Total params: {'' if complete else 'at least '}{total}")
    table.line("_")


def _roles(order: Sequence[Node]) -> tuple[set[Node], set[Node]]:
    """Return the variables that are parameters, and the variables that are labels or states."""
    parameters: set[Node] = set()
    aside: set[Node] = set()
    for node in order:
        if node.operator is not None:
            parameters.update(n for n in node.slots(node.operator.weights) if n.operator is None)
            aside.update(n for n in node.slots(node.operator.labels + node.operator.states) if n.operator is None)
    return parameters, aside
