"""Parquet: data written by pyarrow is delivered, damage is reported, nulls keep their place."""

import os
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline.data import Stream, Value
from feedline.errors import DataError, SchemaError
from feedline.feed.formats.arrays import ArrayDeserializer
from feedline.feed.formats.arrow.columns import Column, decode
from feedline.feed.formats.arrow.parquet import ParquetDeserializer
from feedline.feed.formats.store import stream_columns
from feedline.feed.open_corpus import open_corpus
from feedline.feed.protocol import can
from tests.feed.formats.corpora import assert_same, corpora, everything
from tests.inside import files_of


def as_table(data):
    """The values as a table with the store's columns."""
    schema = ArrayDeserializer(data).schema
    fields = [stream_columns.field(name, stream, not data[name].one_sample_each) for name, stream in schema.items()]
    arrays = [
        stream_columns.encode(data[field.name], field.type, not data[field.name].one_sample_each) for field in fields
    ]
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


TAGS = pa.map_(pa.string(), pa.int8())  # a type that is no stream


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
            "tags": pa.array([[("a", 1)], [], [("b", 2)]], TAGS),
            "nested": pa.array([[[1]], [[2]], [[3]]], pa.list_(pa.list_(pa.int8()))),
            "pairs": pa.array(
                [[{"index": 4, "value": 2.0}], [], [{"index": 0, "value": 1.0}]],
                pa.list_(pa.struct({"index": pa.int64(), "value": pa.float32()})),
            ),
        }
    )
    pq.write_table(table, tmp_path / "mixed.parquet", row_group_size=2)
    return tmp_path / "mixed.parquet"


NAMES = [
    "i",
    "f",
    "flag",
    "vector",
    "matrix",
    "words",
    "frames",
    "name",
]  # of the columns of `mixed` that can be streams


def test_streams_are_inferred_from_columns(mixed):
    """What cannot be a stream by itself is named."""
    left_out = r"not read from .*'tags' \(map<string, int8.*>\), 'nested' \(list<.*'pairs' \("
    with pytest.warns(UserWarning, match=left_out):
        corpus = ParquetDeserializer(mixed)
    assert list(corpus.schema) == NAMES
    again = pickle.loads(pickle.dumps(corpus))  # without another warning
    assert (again.schema, again.digest()) == (corpus.schema, corpus.digest())
    assert dict(corpus.schema) == {
        "i": Stream((), "int16"),
        "f": Stream((), "float64"),
        "flag": Stream((), "bool"),
        "vector": Stream(2),
        "matrix": Stream((2, 3), "uint8"),
        "words": Stream((), "int64"),
        "frames": Stream(2),
        "name": Stream(dtype="str"),
    }
    assert can(corpus, fl.RandomAccess) is False
    got = everything(corpus)
    assert got["flag"].rows.tolist() == [True, False, True]
    assert got["matrix"].rows[2].tolist() == [[1, 2, 3], [1, 2, 3]]
    assert [s.tolist() for s in got["words"]] == [[1], [], [2, 3]]
    assert [s.tolist() for s in got["frames"]] == [[[1, 2]], [[3, 4], [5, 6]], []]
    # The longest stream of each. Plain columns have one sample.
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
        (["tags"], SchemaError, "got map<"),
        (["nested"], SchemaError, "numbers, bytes or text in column 'nested'"),
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
        ParquetDeserializer(mixed, NAMES).read(2)


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
    value, bad, _ = decode(pa.chunked_array([array]), Column("x", Stream(2), True))
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
    pq.write_table(pa.table({"x": pa.array([[("a", 1)]], TAGS)}), tmp_path / "empty.parquet")
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
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    corpus = ParquetDeserializer(path)
    with pytest.raises(DataError, match="row group 0 cannot be read") as caught:
        corpus.read(0)
    assert caught.value.path == str(path)


@pytest.mark.parametrize("size", ["another size", "the same size"])
def test_a_file_that_changed_since_it_was_opened(tmp_path, size):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [1, 2, 3]}), path)
    corpus = ParquetDeserializer(path)
    before = path.stat()
    pq.write_table(pa.table({"x": [4, 5, 6] if size == "the same size" else [4, 5, 6, 7]}), path)
    assert (path.stat().st_size == before.st_size) == (size == "the same size")
    os.utime(path, ns=(0, before.st_mtime_ns + 1_000_000))  # clocks of file systems may be coarse
    with pytest.raises(DataError, match="as it was when it was opened, got one that has changed since"):
        corpus.read(0)


def test_lengths_are_scanned_once(mixed, monkeypatch):
    corpus = ParquetDeserializer(mixed, NAMES)
    decoded = []
    (file,) = files_of(corpus)
    real = file.decode
    monkeypatch.setattr(file, "decode", lambda *given: decoded.append(given[2]) or real(*given))
    corpus.chunks()
    corpus.lengths(np.arange(3))
    assert [[path.column for path in paths] for paths in decoded] == [["words", "frames"]] * 2


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
    note = stream_columns.field("x", Stream(3), False).metadata
    field = pa.field("x", pa.int64(), metadata=note)
    pq.write_table(pa.table([[1]], schema=pa.schema([field])), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="metadata declares"):
        ParquetDeserializer(tmp_path / "a.parquet")


def test_value_types_in_memory(mixed):
    value = everything(ParquetDeserializer(mixed, NAMES))["frames"]
    assert isinstance(value, Value)
    assert value.rows.flags.c_contiguous


# ---- bytes and text -------------------------------------------------------------------------------------


def strings_table(count=90):
    """Every kind of column that holds byte strings, as a table and as Python's lists."""
    blobs = [bytes([i]) * (i % 40) for i in range(count)]
    words = [f"w{i % 3}é" for i in range(count)]
    lists = [words[: i % 4] for i in range(count)]
    columns = {
        "b": pa.array(blobs, pa.binary()),
        "large": pa.array(blobs, pa.large_binary()),
        "s": pa.array(words),
        "dictionary": pa.array(words).dictionary_encode(),
        "view": pa.array(words, pa.string_view()),
        "struct": pa.array([{"bytes": blob, "path": None} for blob in blobs]),
        "l": pa.array(lists),
        "y": pa.array(range(count)),
    }
    expected = {"b": blobs, "large": blobs, "struct": blobs, "s": words, "dictionary": words, "view": words, "l": lists}
    return pa.table(columns), expected


@pytest.mark.parametrize("memory", [1 << 30, 60_000])
def test_columns_of_byte_strings(tmp_path, memory):
    """With little memory they are decoded some rows at a time."""
    table, expected = strings_table()
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=40)
    corpus = ParquetDeserializer(tmp_path / "a.parquet", list(expected), memory=memory)
    kinds = {name: stream.kind for name, stream in corpus.schema.items()}
    assert {name for name, kind in kinds.items() if kind == "bytes"} == {"b", "large", "struct"}
    chunks = [corpus.read(i) for i in range(len(corpus.chunks()))]
    assert not any(chunk.errors for chunk in chunks)
    assert {name: [x for chunk in chunks for x in chunk[name].tolist()] for name in expected} == expected


def test_every_column_that_can_be_a_stream_is_one(tmp_path):
    table, _ = strings_table()
    pq.write_table(table, tmp_path / "a.parquet")
    assert list(ParquetDeserializer(tmp_path / "a.parquet").schema) == table.column_names
    declared = {"text": Stream(dtype="str", field="s"), "y": Stream((), "int64")}
    assert dict(ParquetDeserializer(tmp_path / "a.parquet", declared).schema) == declared
    for wrong in (Stream(dtype="bytes"), Stream((), "int64"), Stream(4)):
        with pytest.raises(SchemaError, match="for stream `s`"):
            ParquetDeserializer(tmp_path / "a.parquet", {"s": wrong})


@pytest.mark.parametrize("kind", [pa.list_(pa.list_(pa.float32())), pa.large_list(pa.list_(pa.float32(), 3))])
def test_lists_of_equal_lengths_are_dense_if_declared(tmp_path, kind):
    rows = [[[1, 2, 3], [4, 5, 6]], [[7, 8, 9], [1, 2, 3]], [[1, 2, 3]], None]
    pq.write_table(pa.table({"m": pa.array(rows, kind)}), tmp_path / "a.parquet")
    chunk = ParquetDeserializer(tmp_path / "a.parquet", {"m": Stream((2, 3))}).read(0)
    assert (chunk["m"].shape, chunk["m"].one_sample_each) == ((2, 3), True)
    assert chunk["m"].rows[:2].tolist() == rows[:2]
    assert {i: error.stream for i, error in chunk.errors.items()} == {2: "m", 3: "m"}
    assert "lists of 2" in str(chunk.errors[2])
    chunk = ParquetDeserializer(tmp_path / "a.parquet", {"m": Stream(3)}).read(0)
    assert [s.tolist() for s in chunk["m"]][:3] == rows[:3]
    assert list(chunk.errors) == [3]


def test_a_null_among_byte_strings_is_an_unreadable_sequence(tmp_path):
    """Also in a list, and in a struct whose bytes are elsewhere."""
    columns = {
        "s": ["a", None, "c", "d"],
        "l": [["a"], ["b"], ["c", None], []],
        "i": [
            {"bytes": b"x", "path": "p"},
            {"bytes": b"", "path": None},
            {"bytes": b"z", "path": "p"},
            {"bytes": None, "path": "p"},
        ],
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    chunk = ParquetDeserializer(tmp_path / "a.parquet").read(0)
    assert {i: error.stream for i, error in chunk.errors.items()} == {1: "s", 2: "l", 3: "i"}
    assert "the file that it names is not in the data" in str(chunk.errors[3])
    assert chunk.take(np.array([0])).values["i"].tolist() == [b"x"]


@pytest.mark.parametrize("as_dictionary", [True, False])
def test_a_small_file_of_long_strings_is_refused(tmp_path, as_dictionary):
    """A kilobyte that becomes 10 GB: refused before it is decoded, whether Arrow keeps the dictionary or not."""
    column = pa.DictionaryArray.from_arrays(np.zeros(100_000, np.int32), ["x" * 100_000])
    pq.write_table(pa.table({"s": column}), tmp_path / "a.parquet", store_schema=as_dictionary)
    assert (tmp_path / "a.parquet").stat().st_size < 1 << 15
    with pytest.raises(DataError, match=r"at most 33554432 bytes in a decoded row group \(memory\)"):
        ParquetDeserializer(tmp_path / "a.parquet", memory=32 << 20).read(0)


# ---- folders of datasets on Hugging Face's Hub ----------------------------------------------------------


def hub(folder, names, readme=None):
    """Files of one row each, which names its file."""
    for i, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"x": [i]}), folder / name)
    if readme is not None:
        (folder / "README.md").write_text(readme)
    return folder


def rows_of(corpus):
    return everything(corpus)["x"].rows.tolist()


SHARDS = ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "data/test-00000-of-00001.parquet"]
README = """---
license: mit
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*
  - split: held_out
    path:
    - data/test-*
---
# A dataset

configs:
"""


@pytest.mark.parametrize("readme", [None, "# no front matter\n", README, "---\nlicense: mit\n---\n"])
def test_splits_of_a_folder(tmp_path, readme):
    folder = hub(tmp_path, SHARDS, readme)
    other = "held_out" if readme == README else "test"
    with pytest.raises(DataError, match=f"expected one split, got 2: .*{other}") as caught:
        ParquetDeserializer(folder)
    assert f"train: '{folder}/data/train-*-of-00002.parquet'" in str(caught.value)
    assert f"'{folder}/**/*.parquet'" in str(caught.value)
    assert rows_of(ParquetDeserializer(folder, split="train")) == [0, 1]
    assert rows_of(ParquetDeserializer(folder, split=other)) == [2]
    assert rows_of(open_corpus(f"{folder}/data/train-*-of-00002.parquet")) == [0, 1]
    assert rows_of(open_corpus(f"{folder}/**/*.parquet")) == [2, 0, 1]
    assert rows_of(pickle.loads(pickle.dumps(ParquetDeserializer(folder, split=other)))) == [2]
    with pytest.raises(DataError, match=r"one of the splits .*got 'dev'"):
        ParquetDeserializer(folder, split="dev")
    with pytest.raises(DataError, match="one split"):
        open_corpus(folder)


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["train.parquet", "test.parquet"], ["train", "test"]),
        (["default/train/0000.parquet", "default/validation/0000.parquet"], ["default/train", "default/validation"]),
        (["en/train-00000-of-00001.parquet", "fr/train-00000-of-00001.parquet"], ["en/train", "fr/train"]),
        (["dev-1.parquet", "my_training_2.parquet"], ["validation", "train"]),
        (["train-0.parquet", "train-1.parquet"], None),
        (["a.parquet", "test.parquet"], None),
        (["b.parquet", "c/d.parquet"], None),
    ],
)
def test_splits_by_the_names_of_files(tmp_path, names, splits):
    folder = hub(tmp_path, names)
    if splits is None:
        assert rows_of(ParquetDeserializer(folder)) == [0, 1]
        return
    assert [rows_of(ParquetDeserializer(folder, split=split)) for split in splits] == [[0], [1]]
    with pytest.raises(DataError, match="expected one split, got 2"):
        ParquetDeserializer(folder)


@pytest.mark.parametrize(
    "configs",
    [
        "configs: [{config_name: default}]",
        "configs:\n- config_name: a\n  data_files: [a, b]",
        "configs:\n- {config_name: a}",
        "configs:\n  - config_name: a\n    data_files: |\n      x",
        "configs:\n- path: x",
        "configs:\n- config_name: a\n  data_files:\n  - split: train",
        "configs:\n- config_name: a\n  data_files: none-*",
    ],
)
def test_a_readme_that_is_not_understood_is_an_error(tmp_path, configs):
    folder = hub(tmp_path, SHARDS, f"---\n{configs}\n---\n")
    with pytest.raises(DataError) as caught:
        ParquetDeserializer(folder)
    assert caught.value.path == str(folder / "README.md")


@pytest.mark.parametrize("pattern", ["/**/*.parquet", "../**", "data/../../**"])
def test_a_readme_that_names_files_elsewhere_is_refused_before_they_are_looked_for(tmp_path, monkeypatch, pattern):
    folder = hub(tmp_path, SHARDS, f"---\nconfigs:\n- config_name: a\n  data_files: {pattern}\n---\n")
    monkeypatch.setattr("glob.glob", lambda *_, **__: pytest.fail("looked for them"))
    with pytest.raises(DataError, match="patterns within the folder"):
        ParquetDeserializer(folder)


def test_one_config_with_one_pattern(tmp_path):
    folder = hub(tmp_path, SHARDS, "---\nconfigs:\n- config_name: default\n  data_files: 'data/train-*'\n---\n")
    assert rows_of(ParquetDeserializer(folder)) == [0, 1]
    listed = "---\nconfigs:\n- config_name: default\n  data_files:\n  - data/test-*\n  - data/train-*\n---\n"
    assert rows_of(ParquetDeserializer(hub(tmp_path, SHARDS, listed))) == [2, 0, 1]


def test_the_cache_of_the_hub(tmp_path):
    """One revision, or the one that main names."""
    place = tmp_path / "datasets--me--mine"
    hub(place / "snapshots" / "aaa", ["data/train-00000-of-00001.parquet"])
    assert rows_of(ParquetDeserializer(place)) == [0]
    hub(place / "snapshots" / "bbb", ["data/train-00000-of-00001.parquet"] * 2)
    with pytest.raises(DataError, match="one revision in snapshots/, got aaa, bbb"):
        ParquetDeserializer(place)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("bbb")
    assert rows_of(open_corpus(place)) == [1]


@pytest.mark.parametrize(
    ("log", "kind", "remedy"),
    [
        ("_delta_log/00000000000000000000.json", "Delta", r"file_uris\(\)"),
        ("metadata/00001-5f.metadata.json", "Iceberg", "plan_files"),
        (".hoodie/hoodie.properties", "Hudi", "HudiTable"),
    ],
)
@pytest.mark.parametrize("inside", [".", "tables/day=1"])
def test_folders_of_tables_with_a_log_are_refused(tmp_path, log, kind, remedy, inside):
    """Their folders have files that are no longer part of the table. A list of files is read."""
    table = tmp_path / inside
    (table / log).parent.mkdir(parents=True)
    (table / log).write_text("{}")
    data = table / "data" / "a.parquet" if kind == "Iceberg" else table / "day=1" / "a.parquet"
    data.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"x": [1, 2]}), data)
    for open_it in (fl.open_corpus, fl.ParquetDeserializer):
        with pytest.raises(fl.DataError, match=rf"got an? {kind} table[\s\S]*{remedy}") as caught:
            open_it(tmp_path)
        assert caught.value.path == str(table)
    with pytest.raises(fl.DataError, match=f"{kind} table"):
        fl.ParquetDeserializer(data.parent)
    assert fl.open_corpus([data]).chunks()[0].sequences == 2
