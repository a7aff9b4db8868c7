"""Statistics at the limits of each dtype against NumPy and dictionaries: extremes, NaN, infinities, nulls, nothing."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import feedline as fl
from tests.effort import examples

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
PERCENTS = np.linspace(0, 1, 101)


def any_integers(dtype):
    info = np.iinfo(dtype)
    near = st.sampled_from([info.min, info.min + 1, info.max - 1, info.max, max(info.min, -1), 0, 1])
    middle = st.integers(int(info.min) // 2, int(info.max) // 2)
    ranges = middle.flatmap(lambda base: st.integers(base, min(base + 9000, int(info.max))))
    return st.one_of(near, st.integers(int(info.min), int(info.max)), ranges)


def nearly(got, expected, scale):
    return got == expected or abs(got - float(expected)) <= 1e-9 * max(scale, 1e-300)


def check_moments(stream, numbers):
    """Compare with exact integers, or with the sums of floats that are exact."""
    assert (stream.low, stream.high) == (min(numbers), max(numbers))
    mean = math.fsum(numbers) / len(numbers) if isinstance(numbers[0], float) else sum(numbers) / len(numbers)
    scale = max(abs(n) for n in numbers)
    assert nearly(stream.mean, mean, scale)
    deviation = math.sqrt(math.fsum((float(n) - mean) ** 2 for n in numbers) / len(numbers))
    assert nearly(stream.deviation, deviation, scale)


@pytest.mark.parametrize("dtype", INTEGERS)
@settings(max_examples=examples(12), deadline=None)
@given(data=st.data())
def test_integers(dtype, data):
    numbers = data.draw(st.lists(any_integers(dtype), min_size=1, max_size=60))
    stream = fl.statistics(fl.ArrayDeserializer(x=np.array(numbers, dtype), chunk_sequences=7), jobs=1)["x"]
    check_moments(stream, numbers)
    counted = Counter(numbers)
    assert dict(stream.values) == counted
    assert (stream.distinct, stream.count_error, stream.rank_error) == (len(counted), 0, 0)
    assert [count for _, count in stream.values] == sorted(counted.values(), reverse=True)
    expected = np.quantile(np.array(numbers, dtype).astype("float64"), PERCENTS)
    assert np.allclose(stream.percentiles, expected, rtol=1e-12, atol=0)


FLOATS = st.one_of(st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf]), st.floats(-60000, 60000, width=16))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
def test_floats_with_nan_and_infinities(dtype, data):
    numbers = data.draw(st.lists(FLOATS, min_size=1, max_size=60))
    array = np.array(numbers, dtype)
    stream = fl.statistics(fl.ArrayDeserializer(x=array, chunk_sequences=9), jobs=1)["x"]
    there = array[~np.isnan(array)].astype("float64")
    assert (stream.samples, stream.nan) == (len(numbers), len(numbers) - len(there))
    if not len(there):
        assert (stream.low, stream.high, stream.percentiles) == (None, None, ())
        assert math.isnan(stream.mean)
        assert math.isnan(stream.deviation)
        return
    assert (stream.low, stream.high) == (there.min(), there.max())
    if np.isinf(there).any():
        with np.errstate(invalid="ignore"):
            mean = there.mean()
        assert stream.mean == mean or (math.isnan(stream.mean) and math.isnan(mean))
        assert math.isnan(stream.deviation)
        assert set(stream.percentiles) <= {*there.tolist(), *stream.percentiles} - {math.nan}
        assert not any(math.isnan(number) for number in stream.percentiles)
    else:
        check_moments(stream, there.tolist())
        assert np.allclose(stream.percentiles, np.quantile(there, PERCENTS), rtol=1e-9, atol=1e-12)


KINDS = {
    "bool": (pa.bool_(), st.booleans(), "bool", int),
    "decimal": (pa.decimal128(12, 2), st.decimals(-(10**6), 10**6, places=2), "float64", float),
    "cents": (pa.decimal128(12, 2), st.decimals(-(10**6), 10**6, places=2), "int64", lambda d: int(d.scaleb(2))),
    "time": (pa.timestamp("us", "UTC"), st.integers(-(2**62), 2**62), "int64", int),
    "day": (pa.date32(), st.integers(-(2**31), 2**31 - 1), "int64", int),
    "text": (pa.string(), st.text(max_size=12), "str", lambda text: len(text.encode())),
    "bytes": (pa.binary(), st.binary(max_size=20), "bytes", len),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(12), deadline=None)
@given(data=st.data())
def test_nulls_and_every_kind_of_column(tmp_path_factory, kind, data):
    """Of texts, moments are of the lengths in bytes."""
    arrow, values, dtype, number = KINDS[kind]
    rows = data.draw(st.lists(st.one_of(st.none(), values), min_size=1, max_size=30))
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    stored = pa.array(rows, pa.int64()).cast(arrow) if kind == "time" else None
    stored = pa.array(rows, pa.int32()).cast(arrow) if kind == "day" else stored
    pq.write_table(pa.table({"x": pa.array(rows, arrow) if stored is None else stored}), path, row_group_size=7)
    stream = fl.statistics(fl.ParquetDeserializer(path, {"x": fl.Stream((), dtype, mask=True)}), jobs=1)["x"]
    there = [row for row in rows if row is not None]
    assert (stream.samples, stream.nulls, stream.nan) == (len(rows), len(rows) - len(there), 0)
    if not there:
        assert (stream.low, stream.high, stream.values) == (None, None, ())
        assert math.isnan(stream.mean)
        return
    check_moments(stream, [number(row) for row in there])
    if kind in ("decimal", "bool"):
        assert stream.distinct is None
    else:
        counted = Counter(there if kind in ("text", "bytes") else [number(row) for row in there])
        assert dict(stream.values) == counted
        assert stream.distinct == len(counted)


@example(rows=[[]])
@settings(max_examples=examples(25), deadline=None)
@given(rows=st.lists(st.lists(st.one_of(st.none(), st.integers(-9, 9)), max_size=5), min_size=1, max_size=20))
def test_ragged_sequences_with_nulls(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    pq.write_table(pa.table({"x": pa.array(rows, pa.list_(pa.int16()))}), path, row_group_size=6)
    stream = fl.statistics(fl.ParquetDeserializer(path, {"x": fl.Stream((), "int16", mask=True)}), jobs=1)["x"]
    flat = [n for row in rows for n in row]
    there = [n for n in flat if n is not None]
    assert (stream.samples, stream.nulls) == (len(flat), len(flat) - len(there))
    assert dict(stream.values) == Counter(there)
    lengths = [len(row) for row in rows]
    mean, deviation, least, most = stream.lengths
    assert (least, most) == (min(lengths), max(lengths))
    assert np.allclose([mean, deviation], [np.mean(lengths), np.std(lengths)], rtol=1e-12, atol=1e-12)
    if there:
        check_moments(stream, there)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.95])
def test_percentiles_of_many_numbers_with_nulls_keep_to_their_error(tmp_path, share):
    rng = np.random.default_rng(3)
    rows = 300_000
    numbers = rng.lognormal(0, 3, rows)
    lost = rng.random(rows) < share
    pq.write_table(pa.table({"x": pa.array(numbers, mask=lost)}), tmp_path / "rows.parquet", row_group_size=40_000)
    stream = fl.statistics(
        fl.ParquetDeserializer(tmp_path / "rows.parquet", {"x": fl.Stream((), "float64", mask=True)})
    )
    ordered = np.sort(numbers[~lost])
    error = stream["x"].rank_error
    assert error < 0.03
    for percent, number in zip(PERCENTS, stream["x"].percentiles, strict=True):
        rank = np.searchsorted(ordered, number) / len(ordered)
        assert abs(rank - percent) <= error + 1 / len(ordered)
