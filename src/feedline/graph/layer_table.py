"""Tables of networks: `summary` lists layers with their outputs, parameters and costs.

Every number is in one row, so that columns add up. A parameter is in the row of the first layer that uses it. Work and
memory are in the row of their operation, or of a scope that is not expanded. `COLUMNS` lists the available
columns.
"""

from __future__ import annotations

import html
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from feedline.graph.folding import collapse
from feedline.graph.graph import Graph, Operation, Parameter, Setting, display_name, name_by_parameters, number, total
from feedline.graph.importers import graph_of
from feedline.graph.settings import NAMES, brief

DEFAULT = ("settings", "output", "parameters", "multiply-adds", "activations")


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """Row of a layer, operation or module.

    Attributes:
        depth: number of modules around it.
        name: name within its module.
        kind: class or function.
        shapes: shapes of its outputs, as text.
        inputs: shapes of its sources, as text.
        settings: settings, such as kernel, stride and units.
        parameters: number of elements of the parameters that it is the first to use. None if unknown.
        parameter_bytes: their size in bytes. None if unknown.
        trainable: number of these elements that learners update. None if unknown.
        multiply_adds: number of multiply-adds of one run. None if unknown.
        activations: bytes allocated for its outputs. None if unknown.
        shared: whether it uses parameters of an earlier row.
        heading: whether it is a module whose content follows, so that its row has no numbers.
    """

    depth: int
    name: str
    kind: str
    shapes: str = ""
    inputs: str = ""
    settings: tuple[Setting, ...] = ()
    parameters: int | None = 0
    parameter_bytes: int | None = 0
    trainable: int | None = 0
    multiply_adds: int | None = 0
    activations: int | None = 0
    shared: bool = False
    heading: bool = False


@dataclass(frozen=True)
class Summary:
    """Table of a network: text by ``print``, HTML in notebooks, a table in rich's consoles.

    Attributes:
        graph: graph of the network.
        rows: rows in the order of computation.
        columns: names of the columns after the column of layers.
    """

    graph: Graph
    rows: tuple[SummaryRow, ...]
    columns: tuple[str, ...] = DEFAULT

    @property
    def head(self) -> tuple[str, ...]:
        """Titles of the columns."""
        return ("Layer", *(COLUMNS[name].title for name in self.columns))

    @property
    def parameters(self) -> int | None:
        """Number of elements of all parameters, each counted once. None if unknown."""
        return self.graph.num_parameters()

    @property
    def trainable(self) -> int | None:
        """Number of elements of the trainable parameters."""
        return self.graph.num_parameters(trains=True)

    @property
    def multiply_adds(self) -> int | None:
        """Number of multiply-adds of one run: products, convolutions, recurrent layers, attention."""
        return total([row.multiply_adds for row in self.rows])

    @property
    def activations(self) -> int | None:
        """Bytes that one run allocates for outputs, if none are freed or reused."""
        return total([row.activations for row in self.rows])

    @property
    def parameter_bytes(self) -> int | None:
        """Bytes of all parameters, each counted once. None if unknown."""
        return total([0 if p.buffer else p.type.bytes for p in self.graph.parameters.values()])

    @property
    def both_directions(self) -> int | None:
        """Bytes of the outputs of a run and of their gradients, as a training step has them if none are freed."""
        return None if self.activations is None else 2 * self.activations

    def __str__(self) -> str:
        cells = [list(self.head), *(self._cells(row) for row in self.rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.head))]
        line = "─" * (sum(widths) + 2 * (len(widths) - 1))
        lines = [self._line(row, widths) for row in cells]
        return "\n".join([lines[0], line, *lines[1:], line, *self._totals()])

    def _totals(self) -> list[str]:
        frozen = None if self.parameters is None or self.trainable is None else self.parameters - self.trainable
        importer = self.graph.importer
        how = self.graph.origin.removesuffix(importer).strip()
        return [
            f"parameters     {number(self.parameters)} (trainable {number(self.trainable)}, frozen {number(frozen)}), "
            f"{as_bytes(self.parameter_bytes)}",
            f"multiply-adds  {number(self.multiply_adds)}",
            f"activations    {as_bytes(self.activations)}, with their gradients {as_bytes(self.both_directions)}",
            *([f"{how:<13}  {importer}"] if importer else []),
            *self.graph.notes,
        ]

    def _repr_html_(self) -> str:
        """Return the table for notebooks."""
        styles = [' style="text-align: right"' if right else "" for right in self._right()]
        head = "".join(f'<th scope="col"{style}>{name}</th>' for name, style in zip(self.head, styles, strict=True))
        body = []
        for row in self.rows:
            first, *values = [html.escape(cell.strip()) for cell in self._cells(row)]
            cells = f'<th scope="row" style="text-align: left; padding-left: {1 + row.depth}em">{first}</th>'
            cells += "".join(f"<td{style}>{cell}</td>" for cell, style in zip(values, styles[1:], strict=True))
            body.append(f"<tr>{cells}</tr>")
        foot = "<br>".join(html.escape(line) for line in self._totals())
        return (
            f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody>"
            f'<tfoot><tr><td colspan="{len(self.head)}" style="text-align: left">{foot}</td></tr></tfoot></table>'
        )

    def __rich__(self) -> Any:
        """Return the table for rich's consoles."""
        text, table = importlib.import_module("rich.text").Text, importlib.import_module("rich.table").Table(box=None)
        for name, right in zip(self.head, self._right(), strict=True):
            table.add_column(name, justify="right" if right else "left", no_wrap=right)
        for row in self.rows:
            # As Text, so that brackets in names are not markup.
            table.add_row(*map(text, self._cells(row)), style="bold" if row.heading else None)
        table.add_section()
        table.caption, table.caption_justify = text("\n".join(self._totals())), "left"
        return table

    def _right(self) -> list[bool]:
        """Return whether each column is right-aligned."""
        return [False, *(COLUMNS[name].right for name in self.columns)]

    def _cells(self, row: SummaryRow) -> list[str]:
        name = "  " * row.depth + display_name(row.name) + (f" ({row.kind})" if row.kind != row.name else "")
        return [name, *("" if row.heading else COLUMNS[column].cell(row) for column in self.columns)]

    def _line(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        parts = [c.rjust(w) if right else c.ljust(w) for c, w, right in zip(cells, widths, self._right(), strict=True)]
        return "  ".join(parts).rstrip()


def summary(
    model: Any,
    inputs: Any = None,
    *,
    depth: int | None = None,
    expand: bool = False,
    columns: Sequence[str] | None = None,
) -> Summary:
    """Return a table of the layers of a network: output shapes, parameters, multiply-adds and memory of activations.

    Args:
        model: `torch.nn.Module`, network of the CNTK façade, symbol of MXNet or its JSON, model of ONNX or the
            path of its file (``.onnx``), or `feedline.graph.graph.Graph`.
        inputs: inputs of the model, for shapes and costs. See `plot_network`.
        depth: largest number of modules around a row. Deeper ones become one row. None means no limit.
        expand: whether to list the operations inside layers of the library, too.
        columns: columns after the layer's name, in order: ``"settings"`` (all in a line), or one of them, ``"kind"``,
            ``"kernel"``, ``"size"`` (of a pooling's result), ``"stride"``, ``"padding"``, ``"dilation"``, ``"groups"``,
            ``"units"``, ``"heads"``, ``"layers"``, ``"directions"``, ``"rate"``, ``"input"`` and ``"output"`` (shapes),
            ``"parameters"``, ``"multiply-adds"`` (numbers), ``"parameter bytes"``, ``"activations"`` (bytes),
            ``"trainable"`` (yes, no or partly). None means settings, if there are any, output, parameters,
            multiply-adds, activations.

    Returns:
        The table. Networks of the CNTK façade are counted for one sample of one sequence.

    Raises:
        TypeError: a model of another type.
        ValueError: inputs that do not fit, a negative depth, or an unknown column.
    """
    unknown = [columns] if isinstance(columns, str) else [name for name in columns or () if name not in COLUMNS]
    if unknown:
        got = f"the text {columns!r}" if isinstance(columns, str) else ", ".join(map(repr, unknown))
        raise ValueError(f"expected a sequence of columns {', '.join(map(repr, COLUMNS))}, got {got}")
    graph = graph_of(model, inputs)
    shown = name_by_parameters(collapse(graph, depth, expand))
    rows = tuple(_rows(graph, shown))
    if columns is None:
        columns = DEFAULT if any(brief(row.settings) for row in rows) else DEFAULT[1:]
    return Summary(graph, rows, tuple(columns))


def _rows(graph: Graph, shown: Graph) -> Iterator[SummaryRow]:
    used: set[str] = set()
    around: tuple[str, ...] = ()
    for operation in shown.operations:
        if operation.role == "output":
            continue
        new = [name for name in operation.parameters if name not in used]
        used.update(new)
        parameters = total([graph.parameters[name].count for name in new])
        if not (operation.whole or parameters != 0 or operation.multiply_adds != 0 or operation.activations != 0):
            if operation.role == "input":
                yield SummaryRow(0, operation.name or operation.key, "input", _shapes(operation))
            continue
        outer = operation.frames
        for n, path in ((n, outer[: n + 1]) for n in range(len(outer))):
            if path != around[: n + 1]:
                yield SummaryRow(n, path[-1], shown.scopes[path].kind, heading=True)
        around = outer
        yield SummaryRow(
            len(outer),
            operation.name or operation.key,
            operation.kind,
            _shapes(operation),
            ", ".join(str(shown[source.key].outputs[source.index]) for source in operation.inputs),
            operation.settings,
            *_sizes([graph.parameters[name] for name in new]),
            operation.multiply_adds,
            operation.activations,
            shared=any(graph.parameters[n].count != 0 for n in operation.parameters if n not in new),
        )
    unused = [p for name, p in graph.parameters.items() if name not in used]
    if total([p.count for p in unused]) != 0:
        count, size, trainable = _sizes(unused)
        yield SummaryRow(
            0, "(used by no operation)", "parameters", parameters=count, parameter_bytes=size, trainable=trainable
        )


def _sizes(parameters: Sequence[Parameter]) -> tuple[int | None, int | None, int | None]:
    """Return the number of elements of parameters, their bytes, and the number of trainable elements."""
    counted = [p for p in parameters if not p.buffer]
    trainable = [p.count for p in counted if p.trains]
    return total([p.count for p in counted]), total([p.type.bytes for p in counted]), total(trainable)


def _shapes(operation: Operation) -> str:
    return ", ".join(str(t) for t in operation.outputs)


class SummaryColumn(NamedTuple):
    """A column: its title, whether it is right-aligned, and a function that returns the text of its cell in a row."""

    title: str
    right: bool
    cell: Callable[[SummaryRow], str]


def _setting(name: str) -> SummaryColumn:
    def cell(row: SummaryRow) -> str:
        return next((setting.value for setting in row.settings if setting.name == name), "")

    return SummaryColumn(name.capitalize(), False, cell)


def _parameters(row: SummaryRow, count: Callable[[int | None], str], value: int | None) -> str:
    text = count(value) if row.parameters != 0 else ""
    return f"{text} + shared" if row.shared and text else "shared" if row.shared else text


def _trainable(row: SummaryRow) -> str:
    if row.parameters == 0:
        return ""
    if row.parameters is None or row.trainable is None:
        return "?"
    return "yes" if row.trainable == row.parameters else "partly" if row.trainable else "no"


COLUMNS = {
    "settings": SummaryColumn("Settings", False, lambda row: brief(row.settings)),
    **{name: _setting(name) for name in NAMES},
    "input": SummaryColumn("Input shape", False, lambda row: row.inputs),
    "output": SummaryColumn("Output shape", False, lambda row: row.shapes),
    "parameters": SummaryColumn("Parameters", True, lambda row: _parameters(row, number, row.parameters)),
    "parameter bytes": SummaryColumn(
        "Parameter bytes", True, lambda row: _parameters(row, as_bytes, row.parameter_bytes)
    ),
    "trainable": SummaryColumn("Trainable", False, _trainable),
    "multiply-adds": SummaryColumn(
        "Multiply-adds", True, lambda row: number(row.multiply_adds) if row.multiply_adds != 0 else ""
    ),
    "activations": SummaryColumn(
        "Activations", True, lambda row: as_bytes(row.activations) if row.activations != 0 else ""
    ),
}


def as_bytes(n: int | None) -> str:
    """Format bytes in the largest unit of which there is at least one."""
    if n is None:
        return "?"
    amount, unit = float(n), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{n} B" if unit == "B" else f"{amount:.1f} {unit}"
