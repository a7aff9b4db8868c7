"""Tables on the command line: nulls that files count, and files whose schemas differ, in every command."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline.cli.console import use_option_names
from tests.cli.shell import feedline

ROWS = 1000


def document(*args):
    return json.loads(feedline(*args, "--json").stdout)


def table_of_nulls():
    return pa.table(
        {
            "x": pa.array([None if i % 4 == 0 else float(i) for i in range(ROWS)]),
            "n": pa.array(range(ROWS), pa.int32()),
            "text": pa.array([None if i == 7 else "a" for i in range(ROWS)]),
            "when": pa.array([None if i % 2 else i for i in range(ROWS)], pa.timestamp("ms")),
            "list": pa.array([[1, None], None] * (ROWS // 2)),
            "pair": pa.array([{"a": None}, {"a": 1}, None, {"a": 2}] * (ROWS // 4)),
        }
    )


@pytest.mark.parametrize("form", ["parquet", "bare parquet", "arrow", "zstd", "dictionary"])
def test_inspect_shows_nulls_that_files_count(tmp_path, form):
    table, path = table_of_nulls(), tmp_path / "rows"
    if form == "dictionary":
        table = table.set_column(2, "text", table["text"].dictionary_encode())
    if "parquet" in form:
        pq.write_table(table, path, row_group_size=300, write_statistics=form == "parquet")
    else:
        options = pa.ipc.IpcWriteOptions(compression="zstd" if form == "zstd" else None)
        with pa.ipc.new_file(path, table.schema, options=options) as file:
            file.write_table(table, max_chunksize=300)
    counted = {"x": 250, "n": 0, "text": 1, "when": 500, "list": None}
    if form in ("bare parquet", "dictionary"):
        counted = dict.fromkeys(counted)
    shown = document("inspect", path)
    assert {stream["name"]: stream["nulls"] for stream in shown["streams"]} == counted
    declared = ("--stream", "a=scalar:field=pair.a:int64", "--stream", "x=scalar:float64:missing=0:mask")
    within = {"a": ROWS // 2 if form == "parquet" else None, "x": counted["x"], "x_present": None}
    assert {s["name"]: s["nulls"] for s in document("inspect", path, *declared)["streams"]} == within
    lines = [line.split() for line in feedline("inspect", path).stdout.splitlines()]
    if counted["x"] is None:
        assert ["name", "dtype", "shape", "kind"] in lines
    else:
        assert ["name", "dtype", "shape", "kind", "nulls"] in lines
        assert ["x", "float64", "()", "dense", "25.00%"] in lines
        assert ["text", "str", "()", "any", "length", "0.10%"] in lines
        assert ["list", "int64", "()", "dense"] in lines


def test_files_that_lack_a_column_count_as_nulls(tmp_path):
    for form in ("parquet", "arrow"):
        folder = tmp_path / form
        folder.mkdir()
        for name, table in (("a", pa.table({"n": [1, None]})), ("b", pa.table({"n": [None], "t": ["x"]}))):
            if form == "parquet":
                pq.write_table(table, folder / f"{name}.parquet")
            else:
                with pa.ipc.new_file(folder / f"{name}.arrow", table.schema) as file:
                    file.write_table(table)
        declared = ("--stream", "n=scalar:int64:mask", "--stream", "t=scalar:str:missing=none")
        streams = document("inspect", folder, "--schema", "union", *declared)["streams"]
        assert [(s["name"], s["nulls"]) for s in streams] == [("n", 2), ("n_present", None), ("t", 2)]


@pytest.fixture
def drifting(tmp_path):
    """A folder with int32 and int64, and a column that the first file lacks."""
    folder = tmp_path / "rows"
    folder.mkdir()
    pq.write_table(pa.table({"n": pa.array([1, 2], pa.int32())}), folder / "2024.parquet")
    pq.write_table(pa.table({"tag": ["new"], "n": pa.array([2**40], pa.int64())}), folder / "2025.parquet")
    return folder


COMMANDS = {
    "inspect": [],
    "validate": [],
    "plan": ["--size", 2],
    "bench": ["--seconds", 0.1],
}


@pytest.mark.parametrize("command", [*COMMANDS, "convert"])
def test_every_command_takes_files_whose_schemas_differ(drifting, tmp_path, command):
    places = [drifting, tmp_path / "store"] if command == "convert" else [drifting]
    options = [*COMMANDS.get(command, []), "--stream", "n=scalar:int64"]
    strict = feedline(command, *places, *options[:-2], "--stream", "n=scalar:int32", code=1)
    assert "pass --schema union to widen numbers" in strict.stderr
    lacks = feedline(command, *places, *options, "--stream", "tag=scalar:str", "--schema", "union", code=1)
    assert "pass --stream tag=scalar:str:missing= to fill them, with :mask also" in lacks.stderr
    filled = [*options, "--stream", "tag=scalar:str:missing=", "--schema", "union"]
    shown = document(command, *places, *filled)
    if command == "inspect":
        rows = [{name: head["first"] for name, head in row["streams"].items()} for row in shown["preview"]]
        assert [row["n"] for row in rows] == [[[1]], [[2]], [[2**40]]]
        counted = document("inspect", *places, "--statistics", *filled)["streams"]
        assert dict(counted["tag"]["values"]) == {"": 2, "new": 1}
    elif command in ("validate", "convert"):
        assert shown["sequences"] == 3
    else:
        assert shown["steps" if command == "plan" else "minibatches"]


def test_statistics_of_files_whose_schemas_differ(drifting):
    (drifting / "2024.parquet").unlink()
    pq.write_table(pa.table({"n": pa.array([1, None], pa.int32()), "tag": ["a", None]}), drifting / "2024.parquet")
    shown = document("inspect", drifting, "--statistics", "--schema", "union")["streams"]
    assert {name: stream["nulls"] for name, stream in shown.items()} == {"n": 1, "tag": 1}
    assert shown["n"]["high"] == 2**40


def test_formats_without_schemas_and_unknown_rules_are_refused(tmp_path):
    (tmp_path / "a.ctf").write_text("0 |x 1\n")
    refused = feedline("inspect", tmp_path / "a.ctf", "--schema", "union", code=1).stderr
    assert "expected a format whose files have schemas for --schema union, got a CTF" in refused
    wrong = feedline("inspect", tmp_path / "a.ctf", "--schema", "loose", code=2).stderr
    assert "expected --schema strict or union, got 'loose'" in wrong
    wrong = feedline("inspect", tmp_path / "a.ctf", "--stream", "x=1:missing=none", code=2).stderr
    assert "missing=none" in wrong


@pytest.mark.parametrize(
    ("shape", "declared", "typed"),
    [
        ("()", '"float32", missing=0', "scalar:float32:missing=0"),
        ("(3,)", '"int64", missing=0', "3:int64:missing=0"),
        ("(2, 3)", '"int8", missing=0', "2x3:int8:missing=0"),
        ("(9,)", '"float32", sparse=True, missing=0', "9:sparse:float32:missing=0"),
        ("()", '"bytes", missing=b""', "scalar:bytes:missing="),
    ],
)
def test_advice_to_fill_names_the_option(shape, declared, typed):
    advice = (
        f"declare fl.Stream({shape}, {declared}) for `x` to fill them, with mask=True also to get a stream `x_present`"
    )
    expected = f"pass --stream x={typed} to fill them, with :mask also to get a stream `x_present`"
    assert use_option_names(f"expected numbers; {advice}") == f"expected numbers; {expected}"
