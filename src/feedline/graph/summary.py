"""Tables of networks: `summary` lists layers with their outputs, parameters and costs.

Every number is in one row, so that columns add up: a parameter in the row of the first layer that uses it, work and
memory where they arise, and those of a scope that is not expanded in its row.
"""

from __future__ import annotations

import html
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from feedline.graph.folding import collapsed
from feedline.graph.graph import Graph, Operation, Path, called, number, total
from feedline.graph.importers import graph_of

HEAD = ("Layer", "Output shape", "Parameters", "Multiply-adds", "Activations")


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """Row of a layer, operation or module.

    Attributes:
        depth: number of modules around it.
        name: name within its module.
        kind: class or function.
        shapes: shapes of its outputs, as text.
        parameters: number of elements of the parameters that it is the first to use; None: unknown.
        multiply_adds: number of multiply-adds of one run; None: unknown.
        activations: bytes allocated for its outputs; None: unknown.
        shared: whether it uses parameters of an earlier row.
        heading: whether it is a module whose content follows, so that its row has no numbers.
    """

    depth: int
    name: str
    kind: str
    shapes: str = ""
    parameters: int | None = 0
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
    """

    graph: Graph
    rows: tuple[SummaryRow, ...]

    @property
    def parameters(self) -> int | None:
        """Number of elements of all parameters, each counted once; None: unknown."""
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

    def __str__(self) -> str:
        cells = [list(HEAD), *(_cells(row) for row in self.rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(HEAD))]
        line = "─" * (sum(widths) + 2 * (len(widths) - 1))
        lines = [_line(row, widths) for row in cells]
        return "\n".join([lines[0], line, *lines[1:], line, *self._totals()])

    def _totals(self) -> list[str]:
        frozen = None if self.parameters is None or self.trainable is None else self.parameters - self.trainable
        return [
            f"parameters     {number(self.parameters)} (trainable {number(self.trainable)}, frozen {number(frozen)})",
            f"multiply-adds  {number(self.multiply_adds)}",
            f"activations    {_bytes(self.activations)}",
            f"read by        {self.graph.importer}",
            *self.graph.notes,
        ]

    def _repr_html_(self) -> str:
        """For notebooks."""
        right = ' style="text-align: right"'
        head = "".join(f'<th scope="col"{right if i > 1 else ""}>{name}</th>' for i, name in enumerate(HEAD))
        body = []
        for row in self.rows:
            first, *others = [html.escape(cell.strip()) for cell in _cells(row)]
            cells = f'<th scope="row" style="text-align: left; padding-left: {1 + row.depth}em">{first}</th>'
            cells += "".join(f"<td{right if i else ''}>{cell}</td>" for i, cell in enumerate(others))
            body.append(f"<tr>{cells}</tr>")
        foot = "<br>".join(html.escape(line) for line in self._totals())
        return (
            f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody>"
            f'<tfoot><tr><td colspan="{len(HEAD)}" style="text-align: left">{foot}</td></tr></tfoot></table>'
        )

    def __rich__(self) -> Any:
        """For consoles of rich."""
        text, table = importlib.import_module("rich.text").Text, importlib.import_module("rich.table").Table(box=None)
        for i, name in enumerate(HEAD):
            table.add_column(name, justify="right" if i > 1 else "left", no_wrap=i > 1)
        for row in self.rows:
            # As Text, for brackets in names are no markup.
            table.add_row(*map(text, _cells(row)), style="bold" if row.heading else None)
        table.add_section()
        table.caption, table.caption_justify = text("\n".join(self._totals())), "left"
        return table


def summary(model: Any, inputs: Any = None, *, depth: int | None = None, expand: bool = False) -> Summary:
    """Return a table of a network's layers, with output shapes, parameters, multiply-adds and memory of activations.

    Args:
        model: `torch.nn.Module`, network of the CNTK façade, symbol of MXNet or its JSON, or
            `feedline.graph.graph.Graph`.
        inputs: inputs of the model, for shapes and costs; see `plot_network`.
        depth: largest number of modules around a row; deeper ones become one row. None: no limit.
        expand: whether to list the operations inside the library's layers, too.

    Returns:
        The table. Networks of the CNTK façade are counted for one sample of one sequence.

    Raises:
        TypeError: a model of another type.
        ValueError: inputs that do not fit, or a negative depth.
    """
    graph = graph_of(model, inputs)
    return Summary(graph, tuple(_rows(graph, collapsed(graph, depth, expand))))


def _rows(graph: Graph, shown: Graph) -> Iterator[SummaryRow]:
    used: set[str] = set()
    around: Path = ()
    for operation in shown.operations:
        if operation.role == "output":
            continue
        new = [name for name in operation.parameters if name not in used]
        used.update(new)
        own = total([graph.parameters[name].count for name in new])
        if not (operation.whole or own != 0 or operation.multiply_adds != 0 or operation.activations != 0):
            if operation.role == "input":
                yield SummaryRow(0, operation.name or operation.key, "input", _shapes(operation))
            continue
        outer = operation.scope[:-1] if operation.whole else operation.scope
        for n, path in ((n, outer[: n + 1]) for n in range(len(outer))):
            if path != around[: n + 1]:
                yield SummaryRow(n, path[-1], shown.scopes[path].kind, heading=True)
        around = outer
        shared = any(graph.parameters[n].count != 0 for n in operation.parameters if n not in new)
        costs = (own, operation.multiply_adds, operation.activations)
        yield SummaryRow(
            len(outer), operation.name or operation.key, operation.kind, _shapes(operation), *costs, shared
        )
    unused = total([p.count for name, p in graph.parameters.items() if name not in used])
    if unused != 0:
        yield SummaryRow(0, "(used by no operation)", "parameters", parameters=unused)


def _shapes(operation: Operation) -> str:
    return ", ".join(str(t) for t in operation.outputs)


def _cells(row: SummaryRow) -> list[str]:
    name = "  " * row.depth + called(row.name) + (f" ({row.kind})" if row.kind != row.name else "")
    if row.heading:
        return [name, "", "", "", ""]
    parameters = number(row.parameters) if row.parameters != 0 else ""
    parameters = f"{parameters} + shared" if row.shared and parameters else "shared" if row.shared else parameters
    work = number(row.multiply_adds) if row.multiply_adds != 0 else ""
    return [name, row.shapes, parameters, work, _bytes(row.activations) if row.activations != 0 else ""]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    parts = [c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
    return "  ".join(parts).rstrip()


def _bytes(n: int | None) -> str:
    """Format bytes in the largest unit of which there is at least one."""
    if n is None:
        return "?"
    amount, unit = float(n), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{n} B" if unit == "B" else f"{amount:.1f} {unit}"
