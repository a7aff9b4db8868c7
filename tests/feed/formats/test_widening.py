"""Files of one corpus whose schemas differ: the same values as one table with all columns has."""

from __future__ import annotations

import itertools
import logging
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow.parquet as pq  # noqa: E402

import feedline as fl  # noqa: E402
import feedline.testing  # noqa: E402
from feedline.feed.formats.widening import widened  # noqa: E402
from feedline.feed.protocol import can  # noqa: E402
from tests.effort import examples  # noqa: E402
from tests.feed.formats.corpora import everything  # noqa: E402

NUMBERS = [np.dtype(name) for kind in "iu" for name in (f"{kind}1", f"{kind}2", f"{kind}4", f"{kind}8")]
FLOATS = [np.dtype(name) for name in ("f2", "f4", "f8")]


def extremes(dtype):
    """The largest numbers of a dtype, as Python's."""
    info = np.iinfo(dtype) if dtype.kind in "iu" else np.finfo(dtype)
    values = [info.min, info.max, info.max - 1] if dtype.kind in "iu" else [info.min, info.max, info.tiny, info.eps]
    return [value if isinstance(value, int) else value.item() for value in values]


def holds(wide, dtype):
    return all(np.dtype(wide).type(value).item() == value for value in extremes(dtype))


@pytest.mark.parametrize(("a", "b"), [*itertools.product([*NUMBERS, *FLOATS], repeat=2)])
def test_the_widened_dtype_is_the_smallest_that_holds_all_values(a, b):
    wide = widened(a, b)
    assert wide == widened(b, a)
    with np.errstate(all="ignore"):
        fitting = []
        for dtype in [*NUMBERS, *FLOATS]:
            if a.kind == b.kind == "f" and dtype.kind != "f":
                continue
            try:
                fits = holds(dtype, a) and holds(dtype, b)
            except OverflowError:
                fits = False
            if fits and not (dtype.kind == "f" and a.kind in "iu" and b.kind in "iu"):
                fitting.append(dtype)
    assert (wide is None) == (not fitting)
    if fitting:
        assert wide.itemsize == min(dtype.itemsize for dtype in fitting)
        assert wide in fitting


def test_kinds_are_not_mixed():
    assert widened(np.dtype("?"), np.dtype("i1")) is None
    assert widened(np.dtype("S"), np.dtype("U")) is None


# ---- files of columns -----------------------------------------------------------------------------------

INTEGERS = {name: getattr(pa, name)() for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")}
#: By column: Arrow types of its files, values that all of them hold, and the declaration.
COLUMNS = {
    "number": ([*INTEGERS.values()], st.integers(0, 100), fl.Stream((), "int64", missing=-1, mask=True)),
    "ratio": ([pa.float16(), pa.float32(), pa.float64(), pa.int8()], st.integers(-64, 64), None),
    "text": ([pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())], st.text(max_size=3), None),
    "pair": (
        [pa.list_(pa.int8(), 2), pa.list_(pa.int64(), 2)],
        st.lists(st.integers(0, 9), min_size=2, max_size=2),
        fl.Stream(2, "int64", missing=7),
    ),
    "words": (
        [pa.list_(pa.int16()), pa.large_list(pa.int32())],
        st.lists(st.integers(0, 9), max_size=3),
        fl.Stream((), "int32", missing=7, mask=True),
    ),
    "sparse": (
        [pa.list_(pa.struct([("index", pa.int32()), ("value", kind())])) for kind in (pa.float32, pa.float64)],
        st.dictionaries(st.integers(0, 8), st.integers(1, 9), max_size=3).map(lambda d: sorted(d.items())),
        fl.Stream(9, "float64", sparse=True, missing=0),
    ),
}
DECLARED = {name: stream for name, (_, _, stream) in COLUMNS.items() if stream is not None} | {
    "ratio": fl.Stream((), "float64", missing=0.5, mask=True),
    "text": fl.Stream((), "str", missing="?", mask=True),
}


@st.composite
def tables(draw):
    """A table with some of the columns, of any of their types or of nulls, in any order."""
    rows = draw(st.integers(1, 4))
    columns = {}
    for name in draw(st.permutations(sorted(COLUMNS))):
        kinds, values, _ = COLUMNS[name]
        how = draw(st.sampled_from(["absent", "null", "there", "there", "there"]))
        if how == "null":
            columns[name] = pa.nulls(rows)
        elif how == "there":
            kind = draw(st.sampled_from(kinds))
            numbers = draw(st.lists(values, min_size=rows, max_size=rows))
            columns[name] = pa.array([np.float16(n) for n in numbers] if kind == pa.float16() else numbers, kind)
    columns["row"] = pa.array(range(rows), pa.int8())
    return pa.table(columns)


def write(path, table, form):
    if form == "parquet":
        pq.write_table(table, path, row_group_size=3)
        return
    options = pa.ipc.IpcWriteOptions(compression="zstd" if form == "compressed" else None)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=3)


def expected_rows(parts, name, filler):
    """The samples of a column in all tables, and which of them are present, by row."""
    for part in parts:
        kind = part.schema.field(name).type if name in part.column_names else pa.null()
        for row in range(part.num_rows):
            if not pa.types.is_null(kind):
                value = part[name][row].as_py()
                yield [{e["index"]: e["value"] for e in value}] if name == "sparse" else value, True
            else:
                yield {"pair": [filler, filler], "words": [], "sparse": [{}]}.get(name, filler), False


@pytest.mark.parametrize("form", ["mapped", "compressed", "parquet"])
@settings(max_examples=examples(8), deadline=None)
@given(data=st.data())
def test_columns_are_those_of_one_table(tmp_path_factory, form, data):
    parts = data.draw(st.lists(tables(), min_size=2, max_size=4))
    if form == "mapped":  # files with dictionaries cannot be mapped
        plain = pa.dictionary(pa.int8(), pa.string())
        parts = [
            part.set_column(part.column_names.index("text"), "text", part["text"].cast(pa.string()))
            if "text" in part.column_names and part.schema.field("text").type == plain
            else part
            for part in parts
        ]
    names = [
        name
        for name in COLUMNS
        if any(name in part.column_names and not pa.types.is_null(part.schema.field(name).type) for part in parts)
    ]
    folder = tmp_path_factory.mktemp("parts")
    paths = [folder / f"{i}.{'parquet' if form == 'parquet' else 'arrow'}" for i in range(len(parts))]
    for path, part in zip(paths, parts, strict=True):
        write(path, part, form)
    streams = {name: DECLARED[name] for name in names} | {"row": fl.Stream((), "int8")}
    corpus = fl.open_corpus([str(path) for path in paths], streams=streams, schema="union")
    assert can(corpus, fl.RandomAccess) == (form == "mapped")
    got = everything(corpus)
    for name in names:
        expected = list(expected_rows(parts, name, DECLARED[name].missing))
        value = got[name]
        if name == "sparse":
            rows = [
                dict(zip(value.indices[a:b].tolist(), value.values[a:b].tolist(), strict=True))
                for a, b in itertools.pairwise(value.indptr.tolist())
            ]
            assert [[row] for row in rows] == [row for row, _ in expected]
        elif name == "words":
            assert [value.slice(i, i + 1).rows.tolist() for i in range(value.num_sequences)] == [r for r, _ in expected]
        else:
            assert value.tolist() == [row for row, _ in expected]
        if DECLARED[name].mask and name != "words":
            assert got[name + "_present"].tolist() == [present for _, present in expected]
    if "words" in names:
        longest = [max(1, len(row)) for row, _ in expected_rows(parts, "words", 7)]
        assert corpus.lengths(np.arange(len(longest))).tolist() == longest
    again = pickle.loads(pickle.dumps(corpus))
    assert (again.digest(), again.schema) == (corpus.digest(), corpus.schema)


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_the_default_is_strict_and_names_both_files_and_the_way_out(tmp_path, form, caplog):
    kind = "parquet" if form == "parquet" else "mapped"
    write(tmp_path / f"a.{form}", pa.table({"x": pa.array([1, 2], pa.int32()), "y": ["a", "b"]}), kind)
    write(tmp_path / f"b.{form}", pa.table({"y": pa.nulls(1), "x": pa.array([2**40], pa.int64())}), kind)
    paths = [str(tmp_path / f"{name}.{form}") for name in "ab"]
    for what in (paths, str(tmp_path)):
        with pytest.raises(fl.SchemaError, match=r'int32 in .*a\..* and int64 in .*b\..*schema="union"'):
            fl.open_corpus(what)
    with pytest.raises(fl.SchemaError, match=r"'y' in all files, got none in .*b\..*, unlike .*a\..*missing=\"\""):
        fl.open_corpus(paths, schema="union")
    streams = {"x": fl.Stream((), "int64"), "y": fl.Stream((), "str", missing="-")}
    with caplog.at_level(logging.WARNING, "feedline"):
        corpus = fl.open_corpus(paths, streams=streams, schema="union")
    assert "`x` is int64 for int32, int64; `y` is filled in 1 of 2 files, which lack it" in caplog.text
    got = everything(corpus)
    assert (got["x"].tolist(), got["y"].tolist()) == ([1, 2, 2**40], ["a", "b", "-"])
    with pytest.raises(ValueError, match="'strict' or 'union', got 'both'"):
        fl.open_corpus(paths, schema="both")


def test_what_no_type_holds_is_refused(tmp_path):
    columns = [
        pa.array([1], pa.int64()),
        pa.array([1], pa.uint64()),
        pa.array([0.5], pa.float32()),
        pa.array(["a"]),
        pa.array([b"a"]),
        pa.array([[1]], pa.list_(pa.int64())),
        pa.array([[1, 2]], pa.list_(pa.int64(), 2)),
        pa.array([True]),
        pa.array([1], pa.timestamp("ms")),
        pa.array([1], pa.timestamp("us")),
    ]
    for i, column in enumerate(columns):
        pq.write_table(pa.table({"x": column}), tmp_path / f"{i}.parquet")
    for a, b in itertools.combinations(range(len(columns)), 2):
        with pytest.raises(fl.SchemaError, match=rf"one type holds exactly, got .*/{a}\.parquet and .*/{b}\.parquet"):
            fl.open_corpus([str(tmp_path / f"{k}.parquet") for k in (a, b)], schema="union")


def test_a_format_without_schemas_refuses_a_union(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(3))
    with pytest.raises(ValueError, match="whose files have schemas for schema='union', got a NumPy file"):
        fl.open_corpus(str(tmp_path / "x.npy"), schema="union")


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_a_union_resumes_and_has_the_digest_of_its_files(tmp_path, form):
    kind = "parquet" if form == "parquet" else "mapped"
    kinds = [pa.int8(), pa.int32(), pa.int64()]
    for i in range(6):
        table = pa.table({"x": pa.array(range(9 * i, 9 * i + 9), kinds[i % 3]), **({"y": ["a"] * 9} if i % 2 else {})})
        write(tmp_path / f"{i}.{form}", table, kind)
    streams = {"x": fl.Stream((), "int64"), "y": fl.Stream((), "str", mask=True)}

    def make_source():
        corpus = fl.open_corpus(str(tmp_path), streams=streams, schema="union")
        return fl.MinibatchSource(corpus, seed=3, shuffle=fl.Window(chunks=4), max_sweeps=2)

    fl.testing.assert_resumes(make_source)
    ids = [i for minibatch in make_source().minibatches(7) for i in minibatch.ids.tolist()]
    assert sorted(ids) == sorted([*range(54)] * 2)


# ---- files of rows --------------------------------------------------------------------------------------


def test_rows_of_csv_have_their_columns_in_any_order(tmp_path, caplog):
    (tmp_path / "a.csv").write_text("n,text,v0,v1\n1,x,1,2\n2,,3,4\n")
    (tmp_path / "b.csv").write_text("extra,v1,v0,n\n0,6,5,2.5\n")
    (tmp_path / "c.csv").write_text("text,n\ny,\n")
    paths = [str(tmp_path / f"{name}.csv") for name in "abc"]
    with pytest.raises(
        fl.DataError, match=r'expected the columns n, text, v0, v1, as in .*a\.csv(.|\n)*schema="union"'
    ):
        fl.open_corpus(paths)
    with pytest.raises(fl.SchemaError, match=r"'extra' in all files, got none in .*a\.csv, unlike .*b\.csv"):
        fl.open_corpus(paths, schema="union")
    with pytest.raises(fl.SchemaError, match=r"'v0' in all files, got none in .*c\.csv, unlike .*a\.csv"):
        fl.CSVDeserializer(paths, {"v": ["v0", "v1"]}, schema="union")
    assert fl.CSVDeserializer(paths, {"n": "n"}, schema="union").schema["n"] == fl.Stream((), "float64")
    streams = {
        "v": fl.Stream(2, missing=9, mask=True, field="v?"),
        "n": fl.Stream((), "float64", missing=-1),
        "text": fl.Stream((), "str", missing="-", mask=True),
    }
    with caplog.at_level(logging.WARNING, "feedline"):
        corpus = fl.CSVDeserializer(paths, streams, schema="union")
    assert "`v` is filled in 1 of 3 files, which lack it; `text` is filled in 1 of 3 files" in caplog.text
    for opened in (corpus, pickle.loads(pickle.dumps(corpus))):
        got = everything(opened)
        assert got["v"].tolist() == [[1, 2], [3, 4], [5, 6], [9, 9]]
        assert got["v_present"].tolist() == [True, True, True, False]
        assert got["n"].tolist() == [1, 2, 2.5, -1]
        assert got["text"].tolist() == ["x", "-", "-", "y"]
        assert got["text_present"].tolist() == [True, False, False, True]
        assert opened.digest() == corpus.digest()
    (tmp_path / "b.csv").write_text("extra,v0,v1,n\n0,6,5,2.5\n")  # the same bytes but in the header
    assert fl.CSVDeserializer(paths, streams, schema="union").digest() != corpus.digest()
    (tmp_path / "b.csv").write_text("extra,v0,v1,n\n0,6,z,2.5\n")
    error = fl.CSVDeserializer(paths, streams, schema="union").read(1).errors[0]
    assert "in column 'v1' (3), got `z`" in str(error)


def test_a_csv_file_without_any_column_in_use_is_refused(tmp_path):
    """It most likely has another delimiter, so filling its rows would lose them silently."""
    (tmp_path / "a.csv").write_text("n;text\n1;x\n")
    (tmp_path / "b.csv").write_text("text,n\ny,2\n")
    streams = {"n": fl.Stream((), "int64", missing=0), "text": fl.Stream(dtype="str", missing="")}
    expected = r"one of the columns n, text in .*b\.csv, which has text,n, cut at ';'"
    for names in ("a", "b"), ("a", "a", "b"):
        paths = [str(tmp_path / f"{name}.csv") for name in names]
        with pytest.raises(fl.SchemaError, match=expected):
            fl.open_corpus(paths, streams=streams, schema="union")


@settings(max_examples=examples(20), deadline=None)
@given(data=st.data())
def test_rows_of_csv_are_those_of_one_file(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("rows")
    cells = {
        "a": st.integers(-9, 9),
        "b": st.integers(2**60, 2**62),
        "c": st.text("xyz", min_size=1, max_size=2),
        "d": st.booleans(),
    }
    expected = {name: [] for name in cells}
    paths = []
    for i in range(data.draw(st.integers(1, 4))):
        names = data.draw(st.permutations(sorted(cells)))[: data.draw(st.integers(1, 4))]
        rows = data.draw(st.lists(st.tuples(*(cells[name] for name in names)), min_size=1, max_size=3))
        lines = [",".join(names), *(",".join(str(cell) for cell in row) for row in rows)]
        paths.append(folder / f"{i}.csv")
        paths[-1].write_text("\n".join(lines) + "\n")
        for name in cells:
            expected[name] += [row[names.index(name)] if name in names else None for row in rows]
    fills = {"a": fl.Stream((), "int8", missing=-100), "b": fl.Stream((), "int64", missing=5)}
    fills |= {"c": fl.Stream((), "str", missing="?"), "d": fl.Stream((), "bool", mask=True)}
    streams = {name: fills[name] for name in cells if any(value is not None for value in expected[name])}
    got = everything(fl.CSVDeserializer(paths, streams, schema="union", header=True, delimiter=","))
    for name in streams:
        fill = fills[name].missing or False
        assert got[name].tolist() == [fill if value is None else value for value in expected[name]]


def test_rows_of_json_are_inferred_from_all_files(tmp_path, caplog):
    (tmp_path / "a.jsonl").write_text('{"n": 1, "text": "x", "only": 1, "list": [1, 2]}\n' * 3)
    (tmp_path / "b.jsonl").write_text('{"text": "y", "n": 2.5, "list": [3]}\n' * 2)
    paths = [str(tmp_path / f"{name}.jsonl") for name in "ab"]
    error = fl.open_corpus(paths).read(1).errors[0]
    assert "b.jsonl" in str(error)
    assert f'streams are those of {paths[0]}: schema="union" infers them from all files' in str(error)
    with caplog.at_level(logging.WARNING, "feedline"):
        corpus = fl.open_corpus(paths, schema="union")
    assert "as some first rows lack them or have null: only" in caplog.text
    assert "`n` is float64 for int64" in caplog.text
    got = everything(corpus)
    assert got["n"].tolist() == [1, 1, 1, 2.5, 2.5]
    assert got["text"].tolist() == ["x"] * 3 + ["y"] * 2
    assert corpus.lengths(np.arange(5)).tolist() == [2, 2, 2, 1, 1]
    again = pickle.loads(pickle.dumps(corpus))
    assert (again.digest(), again.schema) == (corpus.digest(), corpus.schema)
    streams = {"n": fl.Stream((), "float64"), "only": fl.Stream((), "int64", missing=0, mask=True)}
    declared = everything(fl.open_corpus(paths, streams=streams, schema="union"))
    assert declared["only"].tolist() == [1, 1, 1, 0, 0]
    assert declared["only_present"].tolist() == [True] * 3 + [False] * 2
