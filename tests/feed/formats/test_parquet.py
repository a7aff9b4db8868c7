"""Parquet: what pyarrow wrote is delivered; damage is told, nulls keep their place."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.data import Stream, Value
from feedline.errors import DataError, SchemaError
from feedline.feed.formats.arrays import ArrayDeserializer
from feedline.feed.formats.parquet import ParquetDeserializer, _Column, _decode
from feedline.feed.formats.store import columns
from tests.feed.formats.corpora import assert_same, corpora, everything


def as_table(data):
    """The values as a table with the store's columns."""
    schema = ArrayDeserializer(data).schema
    fields = [columns.field(name, stream, not data[name].one_sample_each) for name, stream in schema.items()]
    arrays = [columns.encode(data[field.name], field.type, not data[field.name].one_sample_each) for field in fields]
    return pa.table(arrays, schema=pa.schema(fields))


# ---- laws -----------------------------------------------------------------------------------------------


@given(corpora(smallest=1), st.integers(1, 30), st.booleans())
@settings(deadline=None)
def test_round_trip(tmp_path_factory, data, rows, split):
    folder = tmp_path_factory.mktemp("parquet")
    table = as_table(data)
    if split:
        half = len(table) // 2
        pq.write_table(table.slice(0, half), folder / "a.parquet", row_group_size=rows)
        pq.write_table(table.slice(half), folder / "b.parquet", row_group_size=rows)
    else:
        pq.write_table(table, folder / "a.parquet", row_group_size=rows)
    corpus = ParquetDeserializer(folder)
    memory = ArrayDeserializer(data)
    assert corpus.schema == memory.schema
    assert_same(everything(corpus), data)
    ordinals = np.arange(len(table))
    got, expected = corpus.lengths(ordinals), memory.lengths(ordinals)
    assert (got is None) == (expected is None)
    if got is not None:
        assert got.dtype == np.int64
        assert np.array_equal(got, expected)
    start = 0
    for i, info in enumerate(corpus.chunks()):
        chunk = corpus.read(i)
        assert info.sequences == chunk.num_sequences <= rows
        samples = np.ones(info.sequences) if got is None else got[start : start + info.sequences]
        assert info.samples == samples.sum()
        assert info.bytes > 0
        start += info.sequences
    assert start == len(table)


# ---- columns --------------------------------------------------------------------------------------------


@pytest.fixture
def mixed(tmp_path):
    """A file with all kinds of columns that pyarrow users write, in row groups of 2."""
    table = pa.table(
        {
            "i": pa.array([1, 2, 3], pa.int16()),
            "f": pa.array([0.5, 1.5, 2.5], pa.float64()),
            "flag": pa.array([True, False, True]),
            "vector": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.float32(), 2)),
            "matrix": pa.array([[[1, 2, 3]] * 2] * 3, pa.list_(pa.list_(pa.uint8(), 3), 2)),
            "words": pa.array([[1], [], [2, 3]], pa.list_(pa.int64())),
            "frames": pa.array([[[1, 2]], [[3, 4], [5, 6]], []], pa.large_list(pa.list_(pa.float32(), 2))),
            "name": ["a", "b", "c"],
            "day": pa.array([1, 2, 3], pa.date32()),
            "nested": pa.array([[[1]], [[2]], [[3]]], pa.list_(pa.list_(pa.int8()))),
            "pairs": pa.array(
                [[{"index": 4, "value": 2.0}], [], [{"index": 0, "value": 1.0}]],
                pa.list_(pa.struct({"index": pa.int64(), "value": pa.float32()})),
            ),
        }
    )
    pq.write_table(table, tmp_path / "mixed.parquet", row_group_size=2)
    return tmp_path / "mixed.parquet"


def test_streams_are_inferred_from_columns(mixed):
    corpus = ParquetDeserializer(mixed)
    assert dict(corpus.schema) == {
        "i": Stream((), "int16"),
        "f": Stream((), "float64"),
        "flag": Stream((), "bool"),
        "vector": Stream(2),
        "matrix": Stream((2, 3), "uint8"),
        "words": Stream((), "int64"),
        "frames": Stream(2),
    }
    assert corpus.random_access is False
    got = everything(corpus)
    assert got["flag"].rows.tolist() == [True, False, True]
    assert got["matrix"].rows[2].tolist() == [[1, 2, 3], [1, 2, 3]]
    assert [s.tolist() for s in got["words"]] == [[1], [], [2, 3]]
    assert [s.tolist() for s in got["frames"]] == [[[1, 2]], [[3, 4], [5, 6]], []]
    # The longest stream of each; plain columns have one sample.
    assert corpus.lengths(np.arange(3)).tolist() == [1, 2, 2]
    assert [info.samples for info in corpus.chunks()] == [3, 2]


def test_columns_are_chosen_by_name_and_by_declaration(mixed):
    corpus = ParquetDeserializer(mixed, ["words", "i"], defines_size="i")
    assert list(corpus.schema) == ["words", "i"]
    assert corpus.lengths(np.arange(3)) is None
    assert [info.samples for info in corpus.chunks()] == [2, 1]
    corpus = ParquetDeserializer(mixed, ["words", "i"], defines_size="words")
    assert corpus.lengths(np.array([2, 1])).tolist() == [2, 0]
    declared = {
        "image": Stream((3, 2), "uint8", field="matrix"),
        "y": Stream(5, sparse=True, field="pairs"),
    }
    corpus = ParquetDeserializer(mixed, declared)
    got = everything(corpus)
    assert got["image"].shape == (3, 2)
    assert got["y"].dense().rows.tolist() == [[0, 0, 0, 0, 2], [0] * 5, [1, 0, 0, 0, 0]]
    only = ParquetDeserializer(mixed, ["i"]).chunks()
    assert only[0].bytes < corpus.chunks()[0].bytes


@pytest.mark.parametrize(
    ("streams", "error", "message"),
    [
        (["nothing"], SchemaError, "column 'nothing' in .*which has 'i', 'f'"),
        (["name"], SchemaError, "numbers in column 'name' .*got string"),
        (["day"], SchemaError, "got date32"),
        (["nested"], SchemaError, "numbers in column 'nested'"),
        (["pairs"], SchemaError, "sparse=True"),
        (
            {"f": Stream((), "float32")},
            SchemaError,
            "expected Stream.*float32.*for stream `f`, got Stream.*float64",
        ),
        ({"vector": Stream(3)}, SchemaError, "for stream `vector`"),
        ({"i": Stream(4, "int16", sparse=True)}, SchemaError, "for stream `i`"),
        ("i", TypeError, r"write \['i'\]"),
    ],
)
def test_columns_that_cannot_be_streams(mixed, streams, error, message):
    with pytest.raises(error, match=message):
        ParquetDeserializer(mixed, streams)


def test_a_name_that_does_not_define_size(mixed):
    with pytest.raises(SchemaError, match="one of i, got 'q'"):
        ParquetDeserializer(mixed, ["i"], defines_size="q")
    with pytest.raises(IndexError, match="from 0 to 1, got 2"):
        ParquetDeserializer(mixed).read(2)


def test_nulls_make_their_sequences_unreadable_and_keep_their_place(tmp_path):
    entry = pa.struct({"index": pa.int32(), "value": pa.float32()})
    table = pa.table(
        {
            "a": pa.array([1, None, 3, 4, 5, 6, 7, 8], pa.int32()),
            "v": pa.array([[1, 2], [1, 2], None, [1, None], [1, 2], [1, 2], [1, 2], [1, 2]], pa.list_(pa.float32(), 2)),
            "s": pa.array([[True], [], [], [], None, [False, None], [True], []], pa.list_(pa.bool_())),
            "p": pa.array([[]] * 6 + [[{"index": 9, "value": 1}], [{"index": 2, "value": 3}]], pa.list_(entry)),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    streams = {
        "a": Stream((), "int32"),
        "v": Stream(2),
        "s": Stream((), "bool"),
        "p": Stream(9, sparse=True),
    }
    corpus = ParquetDeserializer(tmp_path / "a.parquet", streams)
    chunks = [corpus.read(i) for i in range(3)]
    assert [sorted(chunk.errors) for chunk in chunks] == [[1, 2], [0, 1, 2], [0]]
    found = [(e.sequence, e.stream) for chunk in chunks for _, e in sorted(chunk.errors.items())]
    assert found == [(1, "a"), (2, "v"), (3, "v"), (4, "s"), (5, "s"), (6, "p")]
    assert str(tmp_path) in str(chunks[0].errors[1])
    last = chunks[2]
    assert last["a"].rows[1] == 8
    assert last["p"].dense().rows[1].tolist() == [0, 0, 3, 0, 0, 0, 0, 0, 0]
    assert corpus.lengths(np.arange(8)).tolist() == [1, 1, 1, 1, 1, 2, 1, 1]


def test_a_null_list_makes_its_row_unreadable_even_over_numbers():
    inner = pa.FixedSizeListArray.from_arrays(pa.array([1.0] * 6, pa.float32()), 2, mask=pa.array([False, True, False]))
    array = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), inner)
    value, bad = _decode(pa.chunked_array([array]), _Column("x", Stream(2), True))
    assert bad.tolist() == [False, True, False]
    assert value.rows.shape == (3, 2)


# ---- files ----------------------------------------------------------------------------------------------


def test_a_folder_is_sorted_by_bytes_of_relative_paths(tmp_path):
    names = ["b/0.parquet", "a.parquet", "a/1.parquet", "B.parquet", "ä.parquet", "a-1.parquet"]
    for i, name in enumerate(names):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"x": [i]}), tmp_path / name)
    for name in ("_metadata.parquet", ".hidden.parquet", "_tmp/0.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"not Parquet")
    (tmp_path / "readme.txt").write_text("x")
    got = everything(ParquetDeserializer(tmp_path))["x"].rows.tolist()
    assert [names[i] for i in got] == sorted(names, key=str.encode)
    listed = ParquetDeserializer([tmp_path / names[0], tmp_path / names[1]])
    assert everything(listed)["x"].rows.tolist() == [0, 1]


def test_files_must_agree(tmp_path):
    pq.write_table(pa.table({"x": pa.array([1], pa.int64()), "y": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": pa.array([1], pa.int32())}), tmp_path / "b.parquet")
    with pytest.raises(SchemaError, match=r"column 'x' .*int64 in .*a.parquet and int32 in .*b.parquet"):
        ParquetDeserializer(tmp_path, ["x"])
    with pytest.raises(SchemaError, match=r"column 'y' .* and none in"):
        ParquetDeserializer(tmp_path, ["y"])


def test_nothing_there(tmp_path):
    with pytest.raises(DataError, match="got none"):
        ParquetDeserializer(tmp_path)
    with pytest.raises(DataError, match="No such file"):
        ParquetDeserializer(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="empty list"):
        ParquetDeserializer([])
    pq.write_table(pa.table({"x": pa.array([], pa.int64())}), tmp_path / "empty.parquet")
    with pytest.raises(DataError, match="at least one row"):
        ParquetDeserializer(tmp_path)
    pq.write_table(pa.table({"x": ["a"]}), tmp_path / "empty.parquet")
    with pytest.raises(SchemaError, match="a column of numbers"):
        ParquetDeserializer(tmp_path)


def test_a_cut_file_is_noticed_at_every_byte(mixed):
    good = mixed.read_bytes()
    for size in range(0, len(good), 11):
        mixed.write_bytes(good[:size])
        with pytest.raises(DataError, match="Parquet"):
            ParquetDeserializer(mixed)


def test_damaged_pages_are_noticed(tmp_path):
    path = tmp_path / "a.parquet"
    rows = np.random.default_rng(0).random(2000)
    pq.write_table(pa.table({"x": rows}), path, use_dictionary=False, write_page_checksum=True)
    corpus = ParquetDeserializer(path)
    corpus.read(0)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(DataError, match="row group 0 cannot be read") as caught:
        corpus.read(0)
    assert caught.value.path == str(path)


def test_a_file_that_changed_since_it_was_opened(mixed):
    corpus = ParquetDeserializer(mixed)
    mixed.write_bytes(mixed.read_bytes() + b"\0")
    with pytest.raises(DataError, match="as when it was opened"):
        corpus.read(0)


def test_lengths_are_scanned_once(mixed, monkeypatch):
    corpus = ParquetDeserializer(mixed)
    decoded = []
    real = corpus._files[0].decode
    monkeypatch.setattr(corpus._files[0], "decode", lambda *given: decoded.append(given[2]) or real(*given))
    corpus.chunks()
    corpus.lengths(np.arange(3))
    assert decoded == [["words", "frames"]] * 2


def test_digest_follows_content_and_not_names(tmp_path):
    rows = np.arange(10_000)

    def digest(name, values, **options):
        pq.write_table(pa.table({"x": values}), tmp_path / name, **options)
        return ParquetDeserializer(tmp_path / name).digest()

    first = digest("a.parquet", rows)
    assert first == digest("b.parquet", rows)
    assert first != digest("c.parquet", rows + 1)
    assert first != digest("d.parquet", rows, row_group_size=100)


def test_damaged_declaration(tmp_path):
    field = pa.field("x", pa.int64(), metadata={b"feedline": b"{"})
    pq.write_table(pa.table([[1]], schema=pa.schema([field])), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="damaged declaration"):
        ParquetDeserializer(tmp_path / "a.parquet")
    note = columns.field("x", Stream(3), False).metadata
    field = pa.field("x", pa.int64(), metadata=note)
    pq.write_table(pa.table([[1]], schema=pa.schema([field])), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="declared as"):
        ParquetDeserializer(tmp_path / "a.parquet")


def test_value_types_in_memory(mixed):
    value = everything(ParquetDeserializer(mixed))["frames"]
    assert isinstance(value, Value)
    assert value.rows.flags.c_contiguous
