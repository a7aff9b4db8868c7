"""Statistics against NumPy over all rows: exact ones equal, sketches within their stated error, on any threads."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline as fl
from tests.cli.shell import feedline

RNG = np.random.default_rng(5)
ROWS = 70_000


def column(dtype, rows=ROWS):
    if np.dtype(dtype).kind == "f":
        return RNG.normal(3, 20, rows).astype(dtype)
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max, rows, dtype, endpoint=True)


DTYPES = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint8"]
ARRAYS = {dtype: column(dtype) for dtype in DTYPES}
ARRAYS["bool"] = RNG.random(ROWS) < 0.3
ARRAYS["vectors"] = RNG.normal(size=(ROWS, 3)).astype("float32") * [1, 10, 100]
ARRAYS["normal_with_nan"] = np.where(RNG.random(ROWS) < 0.1, np.nan, RNG.normal(size=ROWS))
ARRAYS["skewed"] = RNG.zipf(1.3, ROWS).clip(0, 10**9)


@pytest.fixture(scope="module")
def corpus():
    return fl.ArrayDeserializer(**ARRAYS, chunk_sequences=9000)


@pytest.fixture(scope="module")
def statistics(corpus):
    return fl.statistics(corpus, jobs=2)


@pytest.mark.parametrize("name", ARRAYS)
def test_moments_and_limits_are_those_of_all_rows(statistics, name):
    array, stream = ARRAYS[name], statistics[name]
    wide = array.astype(np.longdouble)
    assert np.allclose(stream.mean, np.nanmean(wide, axis=0).astype(float), rtol=1e-12)
    assert np.allclose(stream.deviation, np.nanstd(wide, axis=0).astype(float), rtol=1e-12)
    assert stream.low == np.nanmin(array, axis=0).tolist()
    assert stream.high == np.nanmax(array, axis=0).tolist()
    assert (stream.samples, stream.nulls, stream.nan) == (ROWS, 0, int(np.isnan(wide).sum()))
    assert stream.lengths is None


@pytest.mark.parametrize("name", [name for name, array in ARRAYS.items() if array.ndim == 1])
def test_percentiles_are_within_the_stated_error(statistics, name):
    stream = statistics[name]
    ordered = np.sort(ARRAYS[name][~np.isnan(ARRAYS[name])].astype(float))
    assert 0 < stream.rank_error < 0.01
    for i, number in enumerate(stream.percentiles):
        low, high = (np.searchsorted(ordered, number, side) / len(ordered) for side in ("left", "right"))
        assert low - stream.rank_error - 1e-4 <= i / 100 <= high + stream.rank_error + 1e-4
    assert stream.quantile(0.5) == stream.percentiles[50]
    assert (stream.quantile(0), stream.quantile(1)) == (float(stream.low), float(stream.high))


def test_few_numbers_have_exact_percentiles_and_values():
    numbers = RNG.integers(-50, 50, 30_000)
    stream = fl.statistics(fl.ArrayDeserializer(x=numbers, chunk_sequences=999))["x"]
    assert stream.percentiles == tuple(np.quantile(numbers, np.linspace(0, 1, 101)).tolist())
    assert stream.rank_error == stream.distinct_error == stream.count_error == 0
    counted = sorted(Counter(numbers.tolist()).items(), key=lambda item: (-item[1], item[0]))
    assert stream.values == tuple(counted)
    assert stream.distinct == len(counted)


def test_many_values_are_counted_within_the_stated_error(statistics):
    rows = 400_000
    frequent = np.repeat(np.arange(50), 1000)
    rare = RNG.integers(10**6, 2 * 10**8, rows)
    numbers = RNG.permutation(np.concatenate([frequent, rare]))
    stream = fl.statistics(fl.ArrayDeserializer(x=numbers, chunk_sequences=70_000), jobs=2)["x"]
    exact = Counter(numbers.tolist())
    assert 0 < stream.count_error <= len(numbers) // 32768
    assert all(exact[value] - stream.count_error <= count <= exact[value] for value, count in stream.values)
    assert {value for value, _ in stream.values[:50]} == set(range(50))
    assert 0 < stream.distinct_error < 0.01
    assert abs(stream.distinct / len(exact) - 1) < 4 * stream.distinct_error


ITEMS = st.one_of(st.none(), st.integers(-3, 3))


@given(st.lists(st.tuples(ITEMS, st.one_of(st.none(), st.text(max_size=3)), st.lists(st.floats(width=32), max_size=3))))
def test_rows_of_any_kind_against_an_oracle(tmp_path_factory, rows):
    rows.append((1, "a", [0.5]))
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text("".join(json.dumps({"n": n, "t": t, "r": r}) + "\n" for n, t, r in rows))
    streams = {"n": fl.Stream((), "int8", mask=True), "t": fl.Stream((), "str", mask=True), "r": fl.Stream()}
    corpus = fl.JSONLinesDeserializer(path, streams, sequences=["r"], cache=False)
    found = fl.statistics(corpus)
    assert list(found) == ["n", "t", "r"]
    numbers, texts = ([row[k] for row in rows if row[k] is not None] for k in (0, 1))
    assert found["n"].nulls == len(rows) - len(numbers)
    assert found["t"].nulls == len(rows) - len(texts)
    assert dict(found["n"].values) == Counter(numbers)
    assert dict(found["t"].values) == Counter(texts)
    assert found["t"].distinct == len(set(texts))
    assert found["t"].high == max(len(text.encode()) for text in texts)
    ragged = [x for row in rows for x in row[2]]
    there = [x for x in ragged if x == x]
    assert (found["r"].samples, found["r"].nan) == (len(ragged), len(ragged) - len(there))
    assert (found["r"].low, found["r"].high) == (min(there), max(there))
    assert found["r"].lengths[2:] == (min(len(r) for *_, r in rows), max(len(r) for *_, r in rows))


def mixed(path):
    rows = 60_000
    words = np.array([f"word {i}" for i in range(3000)])
    table = pa.table(
        {
            "x": pa.array(RNG.normal(size=rows), mask=RNG.random(rows) < 0.05),
            "id": RNG.integers(0, 10**9, rows),
            "word": words[RNG.zipf(1.4, rows).clip(0, 2999)],
        }
    )
    pq.write_table(table, path, row_group_size=5000)
    streams = {"x": fl.Stream((), "float64", mask=True), "id": fl.Stream((), "int64"), "word": fl.Stream((), "str")}
    return fl.ParquetDeserializer(path, streams)


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("stop", [1, 5, 11])
def test_the_same_file_for_any_threads_and_after_an_interruption(tmp_path, stop):
    corpus = mixed(tmp_path / "rows.parquet")
    for jobs in (1, 4):
        fl.statistics(corpus, save=tmp_path / f"{jobs}.json", jobs=jobs)

    def interrupt(done, total):
        assert total == 12
        if done == stop:
            raise Interrupted

    with pytest.raises(Interrupted):
        fl.statistics(corpus, save=tmp_path / "0.json", jobs=2, progress=interrupt)
    assert not (tmp_path / "0.json").exists()
    seen = []
    fl.statistics(corpus, save=tmp_path / "0.json", jobs=2, progress=lambda done, _: seen.append(done))
    assert seen == list(range(stop + 1, 13))
    assert sorted(path.name for path in tmp_path.glob("0.json*")) == ["0.json"]
    assert len({(tmp_path / f"{name}.json").read_bytes() for name in (0, 1, 4)}) == 1


def test_a_saved_file_is_read_instead_of_the_same_corpus(tmp_path):
    corpus = fl.ArrayDeserializer(x=np.arange(9.0), t=[b"a", b"\xff"] * 4 + [b""])
    path = tmp_path / "statistics.json"
    first = fl.statistics(corpus, save=path)
    assert fl.statistics(corpus, save=path, progress=refuse) == first == fl.CorpusStatistics.load(path)
    assert first["t"].values == ((b"a", 4), (b"\xff", 4), (b"", 1))
    assert list(fl.statistics(corpus, save=path, streams=["x"])) == ["x"]
    other = fl.ArrayDeserializer(x=np.arange(10.0), t=[b"a"] * 10)
    assert fl.statistics(other, save=path).sequences == 10
    path.write_text("{}")
    with pytest.raises(fl.DataError, match="expected statistics of format 1"):
        fl.statistics(corpus, save=path)


def refuse(done, total):
    raise AssertionError("expected nothing to be read")


def test_what_has_no_statistics():
    corpus = fl.ArrayDeserializer(x=np.arange(9.0), c=np.ones(9, "complex64"))
    with pytest.raises(fl.SchemaError, match="got complex64 in stream `c`"):
        fl.statistics(corpus)
    with pytest.raises(fl.SchemaError, match="expected streams as a list of x, c"):
        fl.statistics(corpus, streams=["y"])
    assert fl.statistics(corpus, streams=["x"])["x"].mean == 4
    with pytest.raises(ValueError, match="of a stream of scalars"):
        fl.statistics(fl.ArrayDeserializer(v=np.ones((3, 2))))["v"].quantile(0.5)


def test_an_unreadable_sequence_is_an_error(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"x": 1}\n{"x": "a"}\n')
    with pytest.raises(fl.DataError, match="sequence 1"):
        fl.statistics(fl.JSONLinesDeserializer(path, x=fl.Stream((), "int64"), cache=False))


@pytest.mark.parametrize("chunk", [3, 100])
def test_a_text_that_is_not_utf8_is_an_error(tmp_path, chunk):
    table = pa.table({"t": pa.array([b"a", b"\xff", b"b"] * 10)})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=chunk)
    corpus = fl.ParquetDeserializer(tmp_path / "rows.parquet", {"t": fl.Stream((), "bytes")})
    assert fl.statistics(corpus)["t"].values == ((b"a", 10), (b"b", 10), (b"\xff", 10))


def test_the_command_prints_a_row_for_each_stream(tmp_path):
    corpus = fl.ArrayDeserializer(x=np.arange(8.0), t=["a", "b", "b", "c"] * 2)
    fl.convert(corpus, tmp_path / "store")
    shown = json.loads(feedline("inspect", tmp_path / "store", "--statistics", "--json").stdout)
    assert shown["sequences"] == 8
    assert shown["streams"]["x"]["mean"] == 3.5
    assert shown["streams"]["t"]["values"] == [["b", 4], ["a", 2], ["c", 2]]
    lines = feedline("inspect", tmp_path / "store", "--statistics").stdout.splitlines()
    assert lines[2].split()[:5] == ["name", "nulls", "mean", "deviation", "least"]
    assert lines[3].split() == ["x", "0.00%", "3.5", "2.291", "0", "3.5", "7"]


def test_nulls_are_counted_by_path(tmp_path):
    """Without declarations. Other formats, and streams that are in the way of masks, are read as they are."""
    numbers = [None if i % 4 == 0 else float(i) for i in range(40)]
    pq.write_table(pa.table({"x": numbers, "t": ["a", None] * 20}), tmp_path / "a.parquet")
    counted = fl.statistics(tmp_path / "a.parquet")
    assert {name: stream.nulls for name, stream in counted.items()} == {"x": 10, "t": 20}
    assert counted["x"].mean == np.mean([n for n in numbers if n is not None])
    fl.convert(fl.ArrayDeserializer(x=np.arange(9)), tmp_path / "store")
    assert fl.statistics(tmp_path / "store")["x"].nulls == 0
    pq.write_table(pa.table({"x": [1, 2], "x_present": [True, False]}), tmp_path / "b.parquet")
    assert fl.statistics(tmp_path / "b.parquet")["x"].nulls == 1
