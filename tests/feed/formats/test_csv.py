"""CSV into chunks."""

import numpy as np
import pytest

from feedline.errors import DataError, SchemaError
from feedline.feed.formats.csv import read_csv_chunks


@pytest.fixture
def table(tmp_path):
    """A table of 1000 rows: three features, a label, a name."""
    rows = [f"{i}.5,{i * 2},{-i}.25,{i % 3},row {i}" for i in range(1000)]
    (tmp_path / "t.csv").write_text("a,b,c,label,name\n" + "\n".join(rows) + "\n")
    return tmp_path / "t.csv"


def test_columns_become_streams(table):
    seen = []
    streams = {"x": ["c", "a", "b"], "y": "label"}
    chunks = list(read_csv_chunks(table, streams, dtype={"x": "float32"}, block_bytes=4096, on_block=seen.append))
    assert len(chunks) > 3
    assert chunks[0].schema["x"].shape == (3,)
    assert chunks[0].schema["x"].dtype == np.float32
    assert chunks[0].schema["y"].shape == ()
    assert chunks[0].schema["y"].dtype == np.int64
    x = np.concatenate([chunk["x"].rows for chunk in chunks])
    assert x[10].tolist() == [-10.25, 10.5, 20]
    assert len(x) == 1000
    assert np.concatenate([chunk["y"].rows for chunk in chunks]).tolist() == [i % 3 for i in range(1000)]
    assert seen == sorted(seen)
    assert seen[-1] == table.stat().st_size


def test_one_stream_a_column_by_default(tmp_path):
    (tmp_path / "t.csv").write_text("a;b\n1;true\n2;false\n")
    (chunk,) = read_csv_chunks(tmp_path / "t.csv", delimiter=";")
    assert chunk["a"].rows.tolist() == [1, 2]
    assert chunk["b"].rows.tolist() == [True, False]


def test_a_list_of_one_column_gives_vectors(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    (chunk,) = read_csv_chunks(tmp_path / "t.csv", {"x": ["a"], "y": "b"})
    assert chunk["x"].shape == (1,)
    assert chunk["y"].shape == ()


def test_an_empty_cell_makes_its_row_unreadable(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n,3\n4,\n5,6\n")
    (chunk,) = read_csv_chunks(tmp_path / "t.csv", {"x": ["a", "b"]})
    assert sorted(chunk.errors) == [1, 2]
    assert "column 'a'" in str(chunk.errors[1])
    assert chunk.errors[2].sequence == 2
    assert chunk["x"].rows[3].tolist() == [5, 6]


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("", DataError, "header"),
        ("a,b\n", DataError, "at least one row"),
        ("a,a\n1,2\n", DataError, "got twice: a"),
        ("a,b\n1,2\n1,2,3\n", DataError, r"Expected 2 columns, got 3"),
        ("a,b\n1,2\n1\n", DataError, r"Expected 2 columns, got 1"),
        ("a,b\n1,x\n", SchemaError, "numbers in column 'b'"),
    ],
)
def test_impossible_text(tmp_path, text, error, message):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(error, match=message):
        list(read_csv_chunks(tmp_path / "t.csv"))


def test_numbers_of_another_kind_later_on(tmp_path):
    rows = ["1"] * 5000 + ["2.5"]
    (tmp_path / "t.csv").write_text("a\n" + "\n".join(rows))
    with pytest.raises(DataError, match=r"2\.5.*(\n.*)*dtype='float32'"):
        list(read_csv_chunks(tmp_path / "t.csv", block_bytes=1000))
    chunks = list(read_csv_chunks(tmp_path / "t.csv", dtype="float32", block_bytes=1000))
    assert sum(len(chunk) for chunk in chunks) == 5001
    assert chunks[-1]["a"].rows[-1] == 2.5


def test_wrong_arguments(table):
    with pytest.raises(SchemaError, match="columns z for stream `x`"):
        list(read_csv_chunks(table, {"x": ["a", "z"]}))
    with pytest.raises(SchemaError, match="got one of q"):
        list(read_csv_chunks(table, {"x": "a"}, dtype={"q": "float32"}))
    with pytest.raises(DataError, match="No such file"):
        list(read_csv_chunks(table.parent / "none.csv"))
