"""Masks and units through everything that is made of a corpus: the schema and the samples stay what they are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow.parquet as pq  # noqa: E402

import feedline as fl  # noqa: E402
from tests.effort import examples  # noqa: E402

STREAMS = {
    "row": fl.Stream((), "int64"),
    "when": fl.Stream((), "int64", missing=-1, mask=True),
    "price": fl.Stream((), "int64", missing=0),
    "day": fl.Stream((), "int64", mask=True),
    "x": fl.Stream((), "float32", missing=0.5, mask=True),
    "text": fl.Stream((), "str", missing="none", mask=True),
    "list": fl.Stream((), "float32", mask=True),
}
UNITS = {"when": "timestamp[us, Europe/Berlin]", "price": "decimal[1e-2]", "day": "date[D]"}
NAMES = ["row", "when", "when_present", "price", "day", "day_present", "x", "x_present", "text", "text_present"]
NAMES += ["list", "list_present"]


def optional(strategy):
    return st.one_of(st.none(), strategy)


ROWS = st.lists(
    st.tuples(
        optional(st.integers(0, 2**50)),
        optional(st.integers(-(10**6), 10**6)),
        optional(st.integers(-1000, 1000)),
        optional(st.integers(-8, 8)),
        optional(st.sampled_from(["", "a", "日本", "none"])),
        st.lists(optional(st.integers(0, 3)), max_size=3),
    ),
    min_size=1,
    max_size=12,
)


def written(path, rows):
    """Write the rows as Parquet, and open them with masks."""
    when, price, day, x, text, numbers = zip(*rows, strict=True)
    table = pa.table(
        {
            "row": pa.array(range(len(rows)), pa.int64()),
            "when": pa.array(when, pa.int64()).cast(pa.timestamp("us", "Europe/Berlin")),
            "price": pa.array(price, pa.int64()).cast(pa.decimal128(20, 0)).cast(pa.decimal128(22, 2)),
            "day": pa.array(day, pa.int32()).cast(pa.date32()),
            "x": pa.array(x, pa.float32()),
            "text": pa.array(text, pa.string()),
            "list": pa.array(numbers, pa.list_(pa.float32())),
        }
    )
    pq.write_table(table, path, row_group_size=5)
    return fl.ParquetDeserializer(path, STREAMS)


def delivered(corpus, size=7):
    """The samples of every sequence in one sweep, by its row."""
    found = {}
    with fl.MinibatchSource(corpus, shuffle=fl.Window(chunks=2), seed=4, max_sweeps=1) as source:
        assert dict(source.schema) == dict(corpus.schema)
        for minibatch in source.minibatches(size):
            sequences = {name: minibatch[name].sequences() for name in corpus.schema}
            for i, row in enumerate(minibatch["row"].rows.tolist()):
                found.setdefault(row, []).append({name: listed(part[i]) for name, part in sequences.items()})
    return found


def listed(sample):
    return sample.tolist() if isinstance(sample, np.ndarray) else sample


def converted(corpus, folder, **options):
    fl.convert(corpus, folder / "store", **options)
    return fl.StoreDeserializer(folder / "store")


def appended(corpus, folder):
    count = sum(info.sequences for info in corpus.chunks())
    half = (count + 1) // 2
    fl.convert(fl.Take(corpus, half), folder / "store")
    if half < count:
        fl.convert(fl.Take(corpus, half, count), folder / "store", append=True)
    return fl.StoreDeserializer(folder / "store")


WAYS = {
    "convert": converted,
    "compressed": lambda corpus, folder: converted(corpus, folder, compression="zstd"),
    "shuffled": lambda corpus, folder: converted(corpus, folder, shuffle=3),
    "appended": appended,
    "concat": lambda corpus, _: fl.Concat(corpus, corpus),
    "mixture": lambda corpus, _: fl.Mixture(
        {"a": corpus, "b": corpus}, {"a": 1, "b": 1}, max_sweeps=1, when_empty="drop"
    ),
    "join": lambda corpus, _: fl.Join(
        corpus, fl.ArrayDeserializer(other=np.arange(sum(info.sequences for info in corpus.chunks()))), cache=False
    ),
    "bucketed": lambda corpus, _: fl.Bucketed(corpus, 2, budget=6),
}


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=examples(6), deadline=None)
@given(rows=ROWS)
def test_masks_and_units_are_carried(tmp_path_factory, way, rows):
    folder = tmp_path_factory.mktemp("rows")
    corpus = written(folder / "rows.parquet", rows)
    assert list(corpus.schema) == NAMES
    assert {name: s.unit for name, s in corpus.schema.items() if s.unit is not None} == UNITS
    made = WAYS[way](corpus, folder)
    assert {name: stream for name, stream in made.schema.items() if name != "other"} == dict(corpus.schema)
    expected = delivered(corpus)
    assert len(expected) == len(rows)
    got = delivered(made)
    for row, (sequence,) in expected.items():
        assert len(got[row]) == 2 if way == "concat" else got[row]
        for other in got[row]:
            assert {name: sample for name, sample in other.items() if name != "other"} == sequence


DOCUMENTS = st.lists(
    st.lists(st.tuples(optional(st.integers(1, 99)), optional(st.integers(0, 9))), min_size=1, max_size=8),
    min_size=1,
    max_size=9,
)


@pytest.mark.parametrize("method", ["best-fit", "first-fit"])
@settings(max_examples=examples(15), deadline=None)
@given(documents=DOCUMENTS)
def test_packed_rows_have_the_masks_and_units_of_their_documents(tmp_path_factory, method, documents):
    path = tmp_path_factory.mktemp("documents") / "rows.parquet"
    ids, times = ([[token[k] for token in document] for document in documents] for k in (0, 1))
    table = {"ids": pa.array(ids, pa.list_(pa.int32())), "when": pa.array(times, pa.list_(pa.timestamp("ms")))}
    pq.write_table(pa.table(table), path, row_group_size=4)
    streams = {"ids": fl.Stream((), "int32", mask=True), "when": fl.Stream((), "int64", missing=-1, mask=True)}
    corpus = fl.ParquetDeserializer(path, streams)
    packed = fl.Packed(corpus, 12, method=method, tokens="ids")
    names, found = ["ids", "ids_present", "when", "when_present"], {}
    with fl.MinibatchSource(packed, shuffle=False, max_sweeps=1) as source:
        for name in names:
            stream, declared = source.schema[name], corpus.schema[name]
            assert (stream.shape, stream.dtype, stream.unit) == ((), declared.dtype, declared.unit)
        assert source.schema["when"].unit == "timestamp[ms]"
        for minibatch in source.minibatches(24):
            segments, of_rows = minibatch["segment"].sequences(), minibatch["document"].sequences()
            parts = {name: minibatch[name].sequences() for name in names}
            for row, (segment, ordinals) in enumerate(zip(segments, of_rows, strict=True)):
                for number, ordinal in enumerate(ordinals.tolist(), 1):
                    found[ordinal] = {name: parts[name][row][segment == number].tolist() for name in names}
                assert not parts["when_present"][row][segment == 0].any()
    assert found == {
        i: {
            "ids": [n or 0 for n in ids[i]],
            "ids_present": [n is not None for n in ids[i]],
            "when": [-1 if n is None else n for n in times[i]],
            "when_present": [n is not None for n in times[i]],
        }
        for i in range(len(documents))
    }
