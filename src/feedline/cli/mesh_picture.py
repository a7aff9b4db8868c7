"""A picture of a mesh as an SVG: machines, their ranks, and what each rank reads. Every text is escaped."""

from __future__ import annotations

from html import escape
from typing import NamedTuple

from feedline.cli.console import show_bytes
from feedline.cli.mesh_plan import MeshMachine, MeshPlan, count_of, show_ranks

# Light fills, on which black text is readable. Ranks with the same share have the same one, and shares repeat them.
_FILLS = ("#9fd3f2", "#f7cf8b", "#a8dfb5", "#e8b8dc", "#f2ec8f", "#c9c4f0", "#f5b5a3", "#cfd6dc")
_HIGH, _GAP, _PAD, _LINE = 70, 8, 14, 17
_LETTER = 7  # width of a letter, about
_ACROSS = 8  # ranks side by side in a machine, at most
_WIDTH = 1100  # of machines side by side, unless one is wider


class _MeshLayout(NamedTuple):
    """Sizes in pixels: of a rank's cell, and of a machine. And numbers: of cells and machines side by side."""

    cell: int
    wide: int
    high: int
    per_row: int
    columns: int


def svg(plan: MeshPlan) -> str:
    """Return the picture."""
    mesh, layout = plan.mesh, _lay_out(plan)
    top = _PAD + 2 * _LINE + _GAP
    boxes = []
    for number, machine in enumerate(plan.machines):
        row, column = divmod(number, layout.columns)
        x, y = _PAD + column * (layout.wide + _GAP), top + row * (layout.high + _GAP)
        boxes.append(_machine(plan, machine, number, layout=layout, x=x, y=y))
    dimensions = zip(mesh.names, mesh.sizes, mesh.roles, strict=True)
    described = ", ".join(f"{name} = {size} ({role})" for name, size, role in dimensions)
    parts = count_of(plan.groups[0].share.parts, "share")
    lead = f"{count_of(mesh.ranks, 'rank')}, {parts} of each minibatch; ranks with the same share read the same"
    width = max(layout.columns * (layout.wide + _GAP) - _GAP, len(lead) * _LETTER, len(described) * _LETTER) + 2 * _PAD
    height = top - (-len(plan.machines) // layout.columns) * (layout.high + _GAP) - _GAP + _PAD
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"
 font-family="Helvetica,Arial,sans-serif" font-size="13" role="img">
<title>{escape(f"Mesh {described}: {lead}")}</title>
<rect width="{width}" height="{height}" fill="#ffffff"/>
{_text(_PAD, _PAD + 12, described, bold=True)}
{_text(_PAD, _PAD + 12 + _LINE, lead)}
{"".join(boxes)}</svg>
"""


def _lay_out(plan: MeshPlan) -> _MeshLayout:
    mesh = plan.mesh
    longest = max(len(text) for rank in range(mesh.ranks) for text in _texts(plan, rank))
    cell = longest * _LETTER + 16
    per_row = min(mesh.ranks_per_machine, max(mesh.sizes[-1], 2), _ACROSS)
    heading = max(len(_heading(plan, machine, number)) for number, machine in enumerate(plan.machines))
    wide = max(per_row * (cell + _GAP) - _GAP, (heading + 2) * _LETTER) + 2 * _PAD
    high = -(-mesh.ranks_per_machine // per_row) * (_HIGH + _GAP) - _GAP + 2 * _PAD + 2 * _LINE
    columns = max(1, min(len(plan.machines), (_WIDTH + _GAP) // (wide + _GAP)))
    return _MeshLayout(cell, wide, high, per_row, columns)


def _machine(plan: MeshPlan, machine: MeshMachine, number: int, *, layout: _MeshLayout, x: int, y: int) -> str:
    shares = f"share{'' if len(machine.parts) == 1 else 's'} {show_ranks(machine.parts)}"
    cells = []
    for i, rank in enumerate(machine.ranks):
        row, column = divmod(i, layout.per_row)
        left, top = x + _PAD + column * (layout.cell + _GAP), y + _PAD + 2 * _LINE + row * (_HIGH + _GAP)
        fill = _FILLS[plan.mesh.share(rank).part % len(_FILLS)]
        cells.append(f'<rect x="{left}" y="{top}" width="{layout.cell}" height="{_HIGH}" rx="5" fill="{fill}"/>\n')
        texts = enumerate(_texts(plan, rank))
        cells += [_text(left + 8, top + 16 + 16 * k, text, bold=k == 0) + "\n" for k, text in texts]
    return f"""<rect x="{x}" y="{y}" width="{layout.wide}" height="{layout.high}" rx="8" fill="none" stroke="#5a6570"/>
{_text(x + _PAD, y + _PAD + 10, _heading(plan, machine, number), bold=True)}
{_text(x + _PAD, y + _PAD + 10 + _LINE, shares)}
{"".join(cells)}"""


def _heading(plan: MeshPlan, machine: MeshMachine, number: int) -> str:
    return f"machine {number} reads {show_bytes(machine.nbytes)} of {show_bytes(plan.nbytes)}"


def _texts(plan: MeshPlan, rank: int) -> list[str]:
    mesh = plan.mesh
    share = mesh.share(rank)
    place = ", ".join(f"{name} {i}" for name, i in zip(mesh.names, mesh.place(rank), strict=True))
    texts = [f"rank {rank}", place, f"share {share.part} of {share.parts}"]
    return [*texts, f"cut {share.cut} of {share.cuts}"] if share.cuts > 1 else texts


def _text(x: int, y: int, text: str, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x}" y="{y}" fill="#1c2127"{weight}>{escape(text)}</text>'
