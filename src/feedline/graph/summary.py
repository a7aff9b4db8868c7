"""Networks as tables: `summary` lists layers with what they give, hold and cost.

Every number stands in one row, so that the columns add up: a parameter in the row of the first layer that uses it, work
and memory where they arise, and what the table does not open in the row that stands for it.
"""

from __future__ import annotations

import html
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from feedline.graph.folding import collapsed
from feedline.graph.graph import Graph, Operation, Path, called, total
from feedline.graph.importers import graph_of

HEAD = ("Layer", "Output shape", "Parameters", "Multiply-adds", "Activations")


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One layer, operation or module.

    Attributes:
        depth: how many modules stand around it.
        name: how it is called there.
        kind: its class or function.
        shapes: of what it gives, as text.
        parameters: numbers in the parameters that it is the first to use; None: not known.
        multiply_adds: of one run; None: not known.
        activations: bytes that it allocates for what it gives; None: not known.
        shared: it uses parameters that stand in a row above.
        heading: a module whose inside stands below, and in whose row no numbers are.
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
    """The table of a network: text by ``print``, HTML in notebooks, a table in rich's consoles.

    Attributes:
        graph: what it is the table of.
        rows: in the order of computation.
    """

    graph: Graph
    rows: tuple[SummaryRow, ...]

    @property
    def parameters(self) -> int | None:
        """Numbers in all parameters, each counted once; None: not known."""
        return self.graph.num_parameters()

    @property
    def trainable(self) -> int | None:
        """Numbers in the parameters that learners update."""
        return self.graph.num_parameters(trains=True)

    @property
    def multiply_adds(self) -> int | None:
        """Multiplications with an addition of one run: products, convolutions, recurrent layers, attention."""
        return total([row.multiply_adds for row in self.rows])

    @property
    def activations(self) -> int | None:
        """Bytes that one run allocates for outputs, if none is freed or used again."""
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
            f"parameters     {_count(self.parameters)} (trainable {_count(self.trainable)}, frozen {_count(frozen)})",
            f"multiply-adds  {_count(self.multiply_adds)}",
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
    """A network as a table of layers, with output shapes, parameters, multiply-adds and memory of activations.

    Args:
        model: a `torch.nn.Module`, a network under CNTK's names, a symbol of MXNet or its JSON, or a
            `feedline.graph.Graph`.
        inputs: what the model is applied to, for shapes and costs, as `plot_network` takes it.
        depth: how many modules may stand around a row; deeper ones become one. None: all.
        expand: list the operations inside the library's own layers, too.

    Returns:
        the table. Networks under CNTK's names are counted for one sample of one sequence.

    Raises:
        TypeError: the model is none of those.
        ValueError: the inputs do not fit, or the depth is negative.
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
        same = next(
            (n for n, (a, b) in enumerate(zip(outer, around, strict=False)) if a != b), min(len(outer), len(around))
        )
        for n in range(same, len(outer)):
            yield SummaryRow(n, outer[n], shown.scopes[outer[: n + 1]].kind, heading=True)
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
    parameters = _count(row.parameters) if row.parameters != 0 else ""
    parameters = f"{parameters} + shared" if row.shared and parameters else "shared" if row.shared else parameters
    work = _count(row.multiply_adds) if row.multiply_adds != 0 else ""
    return [name, row.shapes, parameters, work, _bytes(row.activations) if row.activations != 0 else ""]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    parts = [c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
    return "  ".join(parts).rstrip()


def _count(n: int | None) -> str:
    return "?" if n is None else f"{n:,}"


def _bytes(n: int | None) -> str:
    """Bytes in the largest unit of which there is at least one."""
    if n is None:
        return "?"
    amount, unit = float(n), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{n} B" if unit == "B" else f"{amount:.1f} {unit}"
