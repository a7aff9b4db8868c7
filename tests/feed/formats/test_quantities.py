"""Timestamps, dates, times, durations and decimals as streams, compared with Arrow's casts and Python's decimals."""

from __future__ import annotations

import decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow.parquet as pq  # noqa: E402

import feedline as fl  # noqa: E402
from tests.effort import examples  # noqa: E402
from tests.feed.formats.corpora import everything  # noqa: E402

INT32, INT64 = (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1)
DAY_MS = 86_400_000
#: Types with their unit, and the range of integers that they may store.
TEMPORAL = [
    *((pa.timestamp(unit), f"timestamp[{unit}]", INT64) for unit in ("s", "ms", "us", "ns")),
    (pa.timestamp("us", "Europe/Berlin"), "timestamp[us, Europe/Berlin]", INT64),
    (pa.timestamp("ns", "+05:30"), "timestamp[ns, +05:30]", INT64),
    *((pa.duration(unit), f"duration[{unit}]", INT64) for unit in ("s", "ms", "us", "ns")),
    (pa.date32(), "date[D]", INT32),
    (pa.date64(), "date[ms]", INT64),
    (pa.time32("s"), "time[s]", (0, 86_399)),
    (pa.time32("ms"), "time[ms]", (0, DAY_MS - 1)),
    (pa.time64("us"), "time[us]", (0, DAY_MS * 10**3 - 1)),
    (pa.time64("ns"), "time[ns]", (0, DAY_MS * 10**6 - 1)),
]
DECIMALS = [pa.decimal32, pa.decimal64, pa.decimal128, pa.decimal256]
DIGITS = {pa.decimal32: 9, pa.decimal64: 18, pa.decimal128: 38, pa.decimal256: 76}


def write(path, table, form, rows):
    """Write a table in batches or row groups of so many rows. Return a function that opens it."""
    if form == "parquet":
        pq.write_table(table, path, row_group_size=rows)
        return lambda streams=None: fl.ParquetDeserializer(path, streams)
    options = pa.ipc.IpcWriteOptions(compression="zstd" if form == "compressed" else None)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return lambda streams=None: fl.ArrowDeserializer(path, streams)


def wrapped(array, shape):
    """Return values as a column of this shape: plain, `pairs` of fixed size, `ragged` lists, or a `dictionary`."""
    if shape == "pairs":
        return pa.FixedSizeListArray.from_arrays(array, 2)
    if shape == "ragged":
        return pa.ListArray.from_arrays(
            pa.array([0, 1, 1, *range(3, len(array) + 1, 2), len(array)], pa.int32()), array
        )
    return array.dictionary_encode() if shape == "dictionary" else array


@pytest.mark.parametrize("form", ["mapped", "compressed", "parquet"])
@pytest.mark.parametrize("shape", ["plain", "pairs", "ragged", "dictionary"])
@settings(max_examples=examples(4), deadline=None)
@given(data=st.data())
def test_times_are_the_integers_that_arrow_stores(tmp_path_factory, form, shape, data):
    kind, unit, (low, high) = data.draw(st.sampled_from(TEMPORAL))
    step = DAY_MS if kind == pa.date64() else 1
    count = 2 * data.draw(st.integers(2, 12))
    numbers = data.draw(st.lists(st.integers(-(-low // step), high // step), min_size=count, max_size=count))
    stored = pa.array([step * n for n in numbers], pa.int32() if kind.bit_width == 32 else pa.int64())
    column = wrapped(stored.view(kind), shape)
    first = data.draw(st.integers(0, len(column) - 1))
    chunked = pa.chunked_array([column.slice(first), column])
    path = tmp_path_factory.mktemp("times") / "data"
    if form == "parquet" and (kind in (pa.timestamp("s"), pa.date64(), pa.time32("s")) or shape == "dictionary"):
        return  # Parquet has no such types, and stores others, or loses zones in dictionaries
    corpus = write(path, pa.table({"t": chunked}), form, data.draw(st.integers(1, 9)))()
    stream = corpus.schema["t"]
    assert (stream.dtype.name, stream.unit) == ("int64", unit)
    expected = pa.concat_arrays(
        [chunk.dictionary_decode() if shape == "dictionary" else chunk for chunk in chunked.chunks]
    )
    if shape in ("pairs", "ragged"):
        expected = expected.flatten()
    integers = expected.view(pa.int32()).cast(pa.int64()) if kind.bit_width == 32 else expected.view(pa.int64())
    assert everything(corpus)["t"].rows.ravel().tolist() == integers.to_pylist()


def test_parquet_has_days_and_no_times_in_seconds(tmp_path):
    """Arrow keeps a date64 in milliseconds. Writers of Parquet change it, and times in seconds."""
    kinds = {"day": pa.date64(), "time": pa.time32("s"), "moment": pa.timestamp("s")}
    stored = {"day": 3 * DAY_MS, "time": 7, "moment": 9}
    integers = {name: pa.array([n], pa.int32() if name == "time" else pa.int64()) for name, n in stored.items()}
    table = pa.table({name: integers[name].view(kind) for name, kind in kinds.items()})
    for form, expected in (
        ("mapped", {"day": ("date[ms]", 3 * DAY_MS), "time": ("time[s]", 7), "moment": ("timestamp[s]", 9)}),
        ("parquet", {"day": ("date[D]", 3), "time": ("time[ms]", 7000), "moment": ("timestamp[ms]", 9000)}),
    ):
        corpus = write(tmp_path / form, table, form, 1)()
        got = everything(corpus)
        assert {name: (corpus.schema[name].unit, got[name].rows.item()) for name in kinds} == expected


@pytest.mark.parametrize("form", ["mapped", "compressed", "parquet"])
@settings(max_examples=examples(12), deadline=None)
@given(data=st.data())
def test_decimals_are_the_nearest_floats_and_their_integers(tmp_path_factory, form, data):
    make = data.draw(st.sampled_from(DECIMALS[2:] if form == "parquet" else DECIMALS))
    digits = data.draw(st.integers(1, DIGITS[make]))
    scale = data.draw(st.integers(0, digits))
    shape = data.draw(st.sampled_from(["plain", "pairs", "ragged", "dictionary"]))
    largest = st.integers(1, digits).flatmap(lambda n: st.integers(1 - 10**n, 10**n - 1))
    count = 2 * data.draw(st.integers(2, 12))
    integers = data.draw(st.lists(largest, min_size=count, max_size=count))
    with decimal.localcontext() as context:
        context.prec = 100
        column = pa.array([decimal.Decimal(n).scaleb(-scale) for n in integers], make(digits, scale))
    if shape == "dictionary" and make in (pa.decimal32, pa.decimal64):
        shape = "plain"  # Arrow has no such dictionaries
    path = tmp_path_factory.mktemp("decimals") / "data"
    wide = wrapped(column, shape)
    opened = write(path, pa.table({"d": pa.chunked_array([wide.slice(1), wide])}), form, data.draw(st.integers(1, 9)))
    got = everything(opened())["d"].rows.ravel()
    after = {"pairs": 2, "ragged": 1}.get(shape, 1)
    assert got.tolist() == [n / 10**scale for n in [*integers[after:], *integers]]
    arrow = column.cast(pa.float64()).to_numpy()
    assert (np.abs(got[-count:] - arrow) <= 2 * np.spacing(np.abs(arrow))).all()

    corpus = opened({"d": fl.Stream(2 if shape == "pairs" else (), "int64")})
    assert corpus.schema["d"].unit == f"decimal[1e{-scale}]"
    fits = [-(2**63) <= n < 2**63 for n in integers]
    errors = [error for chunk in range(len(corpus.chunks())) for error in corpus.read(chunk).errors.values()]
    assert bool(errors) == (not all(fits))
    assert all("decimals that int64 can count" in str(error) for error in errors)
    scaled = everything(corpus)["d"].rows.ravel()[-count:].tolist()
    assert scaled == [n if fit else 0 for n, fit in zip(integers, fits, strict=True)]


@pytest.mark.parametrize("form", ["mapped", "compressed", "parquet"])
def test_missing_quantities_are_filled(tmp_path, form):
    table = pa.table(
        {
            "day": pa.array([None, 5, 6], pa.int32()).cast(pa.date32()),
            "price": pa.array([decimal.Decimal("0.29"), None, decimal.Decimal("1e20")], pa.decimal128(38, 2)),
        }
    )
    opened = write(tmp_path / "data", table, form, 2)
    streams = {
        "day": fl.Stream((), "int64", missing=-1, mask=True),
        "price": fl.Stream((), "float64", missing=float("inf")),
    }
    corpus = opened(streams)
    got = everything(corpus)
    assert got["day"].rows.tolist() == [-1, 5, 6]
    assert got["day_present"].rows.tolist() == [False, True, True]
    assert got["price"].rows.tolist() == [0.29, float("inf"), 1e20]
    assert str(corpus.schema).endswith("day  int64 () date[D]\n  day_present  bool ()\n  price  float64 ()")
    cents = opened({"price": fl.Stream((), "int64", missing=0)})
    errors = {(chunk, i) for chunk in range(2) for i in cents.read(chunk).errors}
    assert errors == {(1, 0)}  # 1e22 cents
    assert set(opened().read(0).errors) == {0, 1}


def test_units_are_kept_in_stores_and_states(tmp_path):
    days = pa.table({"day": pa.array([3, 4, 5], pa.int32()).cast(pa.date32()), "n": [1, 2, 3]})
    corpus = write(tmp_path / "data", days, "parquet", 2)()
    fl.convert(corpus, str(tmp_path / "store"))
    store = fl.open_corpus(str(tmp_path / "store"))
    assert dict(store.schema) == {"day": fl.Stream((), "int64", unit="date[D]"), "n": fl.Stream((), "int64")}
    assert dict(fl.ArrowDeserializer(list((tmp_path / "store").glob("*.arrow"))).schema) == dict(store.schema)
    plain = fl.ArrayDeserializer(day=np.array([3, 4, 5]), n=np.array([1, 2, 3]))
    assert plain.schema.digest != store.schema.digest
    with pytest.raises(fl.SchemaError, match=r"unit='date\[D\]'.* and Stream\(shape=\(\), dtype='int64'\)"):
        fl.Concat(store, plain)


def test_declared_units_are_checked(tmp_path):
    table = pa.table({"t": pa.array([1], pa.timestamp("ms")), "n": [7]})
    opened = write(tmp_path / "data", table, "mapped", 1)
    n = fl.Stream((), "int64", unit="duration[s]")
    assert opened({"n": n}).schema["n"].unit == "duration[s]"
    assert opened({"t": fl.Stream((), "int64", unit="timestamp[ms]")}).read(0)["t"].tolist() == [1]
    with pytest.raises(fl.SchemaError, match=r"unit='timestamp\[s\]'.*got .*unit='timestamp\[ms\]'"):
        opened({"t": fl.Stream((), "int64", unit="timestamp[s]")})
    with pytest.raises(TypeError, match="a unit such as"):
        fl.Stream((), "int64", unit=5)
    for dtype, unit in (("int64", ""), ("str", "duration[s]"), ("int64", "\ud800")):
        with pytest.raises(ValueError, match="a unit such as"):
            fl.Stream((), dtype, unit=unit)
