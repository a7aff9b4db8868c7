"""Tables: the same numbers as text, HTML and in rich consoles. Names stay names."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser

import pytest
import torch
from rich.console import Console
from torch import nn

import feedline as fl
from feedline.graph.graph import Graph, Operation, Parameter, Scope, TensorType

SHARED = nn.Linear(3, 3)
MODEL = nn.Sequential(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), SHARED, SHARED)

TABLE = """\
Layer              Settings  Output shape  Parameters  Multiply-adds  Activations
─────────────────────────────────────────────────────────────────────────────────
input                        2×4
0 (Sequential)
  0 (Linear)       3 units   2×3                   15             24         24 B
  1 (ReLU)                   2×3                                             24 B
1 (Linear)         3 units   2×3                   12             18         24 B
1 call 2 (Linear)  3 units   2×3               shared             18         24 B
─────────────────────────────────────────────────────────────────────────────────
parameters     27 (trainable 27, frozen 0), 108 B
multiply-adds  60
activations    96 B, with their gradients 192 B
read by        a dry run"""


class Cells(HTMLParser):
    """Parser of the texts of a table's cells, row by row. Refuses unclosed tags."""

    def __init__(self):
        super().__init__()
        self.rows, self.open, self.tags = [], [], set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag != "br":
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.rows[-1][-1] += data


def read(html):
    cells = Cells()
    cells.feed(html)
    assert not cells.open
    return cells


def html_of(table):
    """What a notebook shows."""
    return table._repr_html_()


def test_text():
    assert str(fl.summary(MODEL, (2, 4))) == TABLE


def test_html_has_the_same_cells():
    table = fl.summary(MODEL, (2, 4))
    head, *rows = read(html_of(table)).rows
    lines = TABLE.splitlines()
    assert head == list(table.head)
    shown = [" ".join(cell for cell in row if cell) for row in rows[:-1]]
    assert shown == [" ".join(line.split()) for line in lines[2:8]]
    assert "multiply-adds  60" in rows[-1][0]


def test_rich_has_the_same_cells():
    out = io.StringIO()
    Console(file=out, width=200, color_system=None).print(fl.summary(MODEL, (2, 4)))
    words = out.getvalue().split()
    assert words == [word for word in TABLE.split() if "─" not in word]


def test_columns_are_chosen():
    names = ("kernel", "input", "output", "parameters", "parameter bytes", "multiply-adds", "trainable")
    model = nn.Sequential(nn.Conv2d(1, 2, (3, 5), bias=False), nn.Conv2d(2, 2, 1), nn.Flatten())
    model[0].weight.requires_grad_(False)
    model[1].bias.requires_grad_(False)
    table = fl.summary(model, (1, 1, 6, 6), columns=names)
    assert table.head == (
        *("Layer", "Kernel", "Input shape", "Output shape"),
        *("Parameters", "Parameter bytes", "Multiply-adds", "Trainable"),
    )
    cells = [line.split() for line in str(table).splitlines()[3:5]]
    assert cells == [
        ["0", "(Conv2d)", "3×5", "1×1×6×6", "1×2×4×2", "30", "120", "B", "240", "no"],
        ["1", "(Conv2d)", "1×1", "1×2×4×2", "1×2×4×2", "6", "24", "B", "32", "partly"],
    ]
    assert read(html_of(table)).rows[0] == list(table.head)
    assert fl.summary(model, (1, 1, 6, 6), columns=()).head == ("Layer",)
    for wrong, named in (
        (("kernels",), "'kernels'"),
        ("kernel", "the text 'kernel'"),
        (("kernel", "KERNEL"), "'KERNEL'"),
    ):
        with pytest.raises(ValueError, match=f"expected a sequence of columns 'settings', 'kernel', .*, got {named}$"):
            fl.summary(model, (1, 1, 6, 6), columns=wrong)


def test_sizes_are_in_bytes():
    table = fl.summary(nn.Linear(4, 3).double(), (2, 4))
    assert (table.parameter_bytes, table.activations, table.both_directions) == (15 * 8, 6 * 8, 2 * 6 * 8)
    assert fl.summary(nn.Linear(4, 3)).both_directions is None


def test_operations_are_named_after_their_parameters():
    class Token(nn.Module):
        def __init__(self):
            super().__init__()
            self.class_token = nn.Parameter(torch.zeros(1, 1, 4))

        def forward(self, x):
            return torch.cat([self.class_token.expand(len(x), -1, -1), x], 1)

    assert "class_token (expand)" in str(fl.summary(Token(), (2, 3, 4)))
    assert "class_token" in fl.plot_network(Token(), (2, 3, 4)).source


def test_names_are_no_markup():
    name = "<script>[bold]x[/bold]</script>"
    graph = Graph(
        (
            Operation(
                "x", name, name, scope=("s",), outputs=(TensorType((2,), "float32"),), parameters=("w",), whole=True
            ),
        ),
        {"w": Parameter("w", TensorType((2,), "float32"))},
        {("s",): Scope(name)},
    )
    table = fl.summary(graph)
    assert name in str(table)
    parsed = read(html_of(table))
    assert any(name in cell for row in parsed.rows for cell in row)
    assert "script" not in parsed.tags
    out = io.StringIO()
    Console(file=out, width=200).print(table)
    assert name in out.getvalue()


def test_depth_makes_rows_of_modules():
    table = fl.summary(MODEL, (2, 4), depth=0)
    assert [(row.name, row.parameters, row.multiply_adds) for row in table.rows] == [
        ("input", 0, 0),
        ("0", 15, 24),
        ("1", 12, 18),
        ("1@1", 0, 18),
    ]
    with pytest.raises(ValueError, match="got -1"):
        fl.summary(MODEL, (2, 4), depth=-1)


def test_what_nothing_uses_has_a_row():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(2, 2), nn.Linear(5, 5)
            self.unused.weight.requires_grad_(False)

        def forward(self, x):
            return self.used(x)

    table = fl.summary(Model(), (1, 2))
    assert (table.rows[-1].name, table.rows[-1].parameters) == ("(used by no operation)", 30)
    assert (table.parameters, table.trainable) == (36, 11)
    assert "36 (trainable 11, frozen 25)" in str(table)


def test_what_is_not_known_is_no_number():
    table = fl.summary(MODEL)
    assert table.parameters == 27
    assert table.multiply_adds is None
    assert re.search(r"multiply-adds +\?", str(table))


def test_calls_after_the_first_have_distinct_names():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            return self.layer(self.layer(x))

    rows = fl.summary(Twice(), torch.zeros(1, 2)).rows
    assert [(row.name, row.shared) for row in rows] == [("x", False), ("layer", False), ("layer@1", True)]
    assert "layer call 2 (Linear)" in str(fl.summary(Twice(), torch.zeros(1, 2)))


def test_large_memory_has_units():
    table = fl.summary(nn.ReLU(), (1024, 1024, 3))
    assert "12.0 MiB" in str(table)
    assert table.activations == 12 << 20
