"""Files of writers on which feedline does not depend, and of older versions. See tests/fixtures/foreign/make.py."""

import json
import os
import pickle
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

import feedline as fl
from tests.oracles.tfrecord import example, tfrecords

FOLDER = Path(__file__).parents[2] / "fixtures" / "foreign"
FILES = sorted(path.name for path in FOLDER.iterdir() if path.suffix in (".parquet", ".arrow", ".arrows"))


def values(corpus):
    chunks = [corpus.read(i) for i in range(len(corpus.chunks()))]
    assert not any(chunk.errors for chunk in chunks)
    return {name: [one for chunk in chunks for one in chunk[name].tolist()] for name in corpus.schema}


@pytest.mark.parametrize("name", FILES)
def test_they_are_read_as_pyarrow_reads_them(name):
    path = FOLDER / name
    readers = {".parquet": pq.read_table, ".arrows": lambda path: ipc.open_stream(path).read_all()}
    table = readers.get(path.suffix, lambda path: ipc.open_file(path).read_all())(path)
    corpus = fl.open_corpus(path)
    assert list(corpus.schema) == table.column_names
    if name == "fastparquet-nulls.parquet":
        chunk = corpus.read(0)
        assert list(chunk.errors) == [3]
        assert chunk["i"].tolist() == table["i"].to_pylist()
        return
    assert values(corpus) == table.to_pydict()


@pytest.mark.parametrize(("version", "compression"), [("V4", None), ("V5", None), ("V5", "zstd")])
@pytest.mark.parametrize("new", [ipc.new_file, ipc.new_stream])
def test_arrow_before_its_messages_had_markers(tmp_path, new, compression, version):
    """Before Arrow 0.15, and with use_legacy_format. Dictionaries are messages, too."""
    texts = pa.array(["a", "bc", None, "a"]).dictionary_encode()
    tables = [pa.table({"x": [1, 2, 3, 4], "c": texts}), pa.table({"x": [1, 2, 3, 4], "t": ["", "é", "f", "g"]})]
    for k, table in enumerate(tables):
        path = tmp_path / f"{k}.arrow"
        options = ipc.IpcWriteOptions(
            use_legacy_format=True, metadata_version=ipc.MetadataVersion[version], compression=compression
        )
        with new(path, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=3)
            writer.write_table(table)
        corpus = fl.open_corpus(path)
        assert [corpus.read(i)["x"].tolist() for i in range(3)] == [[1, 2, 3], [4], [1, 2, 3, 4]]
        other = corpus.read(2)
        assert list(other.errors) == ([2] if k == 0 else [])
        assert other["c" if k == 0 else "t"].tolist()[:2] == table[1].to_pylist()[:2]


def test_a_compressed_batch_of_an_older_version_is_damage(tmp_path):
    """Arrow writes such a file, and reads other numbers from it."""
    path = tmp_path / "a.arrow"
    table = pa.table({"x": [1, 2, 3, 4]})
    options = ipc.IpcWriteOptions(metadata_version=ipc.MetadataVersion.V4, compression="zstd")
    with ipc.new_file(path, table.schema, options=options) as writer:
        writer.write_table(table)
    chunk = fl.open_corpus(path).read(0)
    assert len(chunk.errors) == 4
    assert "version 5" in str(chunk.errors[0])


def test_zeros_in_a_stream_are_not_its_end(tmp_path):
    table = pa.table({"x": np.arange(4)})
    path = tmp_path / "a.arrow"
    with ipc.new_stream(path, table.schema) as writer:
        for _ in range(3):
            writer.write_table(table)
    data = bytearray(path.read_bytes())
    at = [i for i in range(0, len(data), 8) if data[i : i + 4] == b"\xff\xff\xff\xff"][2]
    data[at : at + 8] = bytes(8)
    path.write_bytes(data)
    with pytest.raises(fl.DataError, match="no message where one should begin"):
        fl.open_corpus(path)


def test_a_footer_that_points_elsewhere_is_damage(tmp_path):
    data = bytearray((FOLDER / "polars.arrow").read_bytes())
    footer = len(data) - 10 - int.from_bytes(data[-10:-6], "little")
    path = tmp_path / "a.arrow"
    refused = 0
    for at in range(footer, len(data) - 6):
        for byte in (0, 0x7F, 0xFF):
            path.write_bytes(data[:at] + bytes([byte]) + data[at + 1 :])
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    corpus = fl.open_corpus(path)
                for i in range(len(corpus.chunks())):
                    corpus.read(i)
            except fl.FeedlineError:
                refused += 1
    assert refused > 100


def test_a_footer_with_another_length_of_a_message_is_damage(tmp_path):
    data = (FOLDER / "polars.arrow").read_bytes()
    with ipc.open_file(FOLDER / "polars.arrow") as reader:
        assert reader.num_record_batches == 1
    footer = len(data) - 10 - int.from_bytes(data[-10:-6], "little")
    start = data.rindex(b"\xff\xff\xff\xff", 0, footer - 8)
    head = data.index(start.to_bytes(8, "little"), footer) + 8
    body = head + 8
    path = tmp_path / "a.arrow"
    for at, length in ((head, 0), (head, 1 << 20), (body, 1 << 40), (body, (1 << 64) - 1)):
        size = 4 if at == head else 8
        path.write_bytes(data[:at] + length.to_bytes(size, "little") + data[at + size :])
        with pytest.raises(fl.DataError, match="a footer with a message of"):
            fl.open_corpus(path)


@pytest.mark.parametrize("suffix", ["arrow", "parquet"])
def test_tensors_of_arrow_keep_their_shape(tmp_path, suffix):
    numbers = np.arange(12, dtype="f4").reshape(2, 2, 3)
    plain = pa.FixedShapeTensorArray.from_numpy_ndarray(numbers)
    kind = pa.fixed_shape_tensor(pa.float32(), (2, 3), permutation=[1, 0])
    turned = pa.ExtensionArray.from_storage(kind, plain.storage)
    path = tmp_path / f"a.{suffix}"
    table = pa.table({"t": plain, "turned": turned})
    if suffix == "parquet":
        pq.write_table(table, path)
    else:
        with ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    with pytest.warns(UserWarning, match="'turned'"):
        corpus = fl.open_corpus(path)
    assert dict(corpus.schema) == {"t": fl.Stream((2, 3))}
    np.testing.assert_array_equal(corpus.read(0)["t"].rows, numbers)


@pytest.mark.parametrize("suffix", ["arrow", "parquet"])
def test_categories_that_are_numbers(tmp_path, suffix):
    column = pa.array([300, None, 7, 300], pa.int64()).dictionary_encode()
    floats = pa.DictionaryArray.from_arrays(pa.array([1, 0, 0, 1], pa.int8()), pa.array([0.5, 2.5]))
    path = tmp_path / f"a.{suffix}"
    table = pa.table({"c": column, "f": floats})
    if suffix == "parquet":
        pq.write_table(table, path)
    else:
        with ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    corpus = fl.open_corpus(path)
    assert dict(corpus.schema) == {"c": fl.Stream((), "int64"), "f": fl.Stream((), "float64")}
    chunk = corpus.read(0)
    assert list(chunk.errors) == [1]
    assert chunk["c"].rows[[0, 2, 3]].tolist() == [300, 7, 300]
    assert chunk["f"].rows.tolist() == [2.5, 0.5, 0.5, 2.5]


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_stream_of_another_writer_is_recognised(tmp_path, compression):
    """The root of polars' messages is directly after its offset."""
    path = tmp_path / "a.data"
    path.write_bytes((FOLDER / ("polars.arrows" if compression is None else "polars-zstd.arrows")).read_bytes())
    assert values(fl.open_corpus(path)) == ipc.open_stream(path).read_all().to_pydict()


@pytest.mark.parametrize("name", ["polars-int128.arrow", "polars-int128.parquet"])
def test_types_that_pyarrow_lacks_are_no_damage(name):
    with pytest.raises(fl.SchemaError, match=rf"more than 64 bits.*{name}; cast these columns"):
        fl.open_corpus(FOLDER / "unread" / name)


# ---- columns that are names of folders ----------------------------------------------------------------------


def partitioned(folder, **columns):
    table = pa.table({"x": range(4), **columns})
    pq.write_to_dataset(table, folder, partition_cols=list(columns))
    return str(folder)


@pytest.mark.parametrize(
    ("column", "dtype"),
    [(["a", "a", "é/ü", "x=y %"], "str"), ([10, 10, -3, 0], "int64"), (["1", "1", "b", "01"], "str")],
)
def test_folders_of_hive_are_a_column(tmp_path, column, dtype):
    folder = partitioned(tmp_path / "hive", label=column)
    corpus = fl.open_corpus(folder)
    assert list(corpus.schema) == ["x", "label"]
    assert corpus.schema["label"] == (fl.Stream(dtype="str") if dtype == "str" else fl.Stream((), "int64"))
    found = values(corpus)
    assert dict(zip(found["x"], found["label"], strict=True)) == dict(enumerate(column))
    source = fl.MinibatchSource(fl.open_corpus(folder), seed=1, max_sweeps=1)
    batch = source.next_minibatch(4)
    assert [column[x] for x in batch["x"].rows.tolist()] == batch["label"].tolist()


def test_hive_in_several_levels_and_by_name(tmp_path):
    folder = partitioned(tmp_path / "hive", year=[2024, 2024, 2025, 2025], label=["a", "b", "a", "b"])
    assert list(fl.open_corpus(folder).schema) == ["x", "year", "label"]
    assert list(fl.ParquetDeserializer(folder, ["label"]).schema) == ["label"]
    labels = values(fl.ParquetDeserializer(folder, ["label"]))["label"]
    assert sorted(labels) == ["a", "a", "b", "b"]
    declared = fl.ParquetDeserializer(folder, {"y": fl.Stream((), "int64", field="year")})
    assert sorted(values(declared)["y"]) == [2024, 2024, 2025, 2025]
    files = sorted(map(str, Path(folder).rglob("*.parquet")))
    assert list(fl.open_corpus(files).schema) == ["x", "year", "label"]
    assert list(fl.open_corpus(os.path.join(folder, "*", "*", "*.parquet")).schema) == ["x", "year", "label"]
    assert list(fl.open_corpus(files[0]).schema) == ["x"]
    assert list(fl.open_corpus(os.path.join(folder, "year=2024")).schema) == ["x", "label"]


def test_a_null_of_hive_is_damage_of_its_rows(tmp_path):
    folder = partitioned(tmp_path / "hive", label=["a", None, "b", "b"])
    corpus = fl.open_corpus(folder)
    errors = [str(error) for i in range(len(corpus.chunks())) for error in corpus.read(i).errors.values()]
    assert len(errors) == 1
    assert "expected text, got a null" in errors[0]
    assert "__HIVE_DEFAULT_PARTITION__" in errors[0]


# ---- damage that is larger than its file --------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["arrow", "parquet"])
def test_a_million_nulls_take_little_memory(tmp_path, suffix):
    table = pa.table({"i": pa.nulls(1_000_000, pa.int64())})
    path = tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        pq.write_table(table, path)
    else:
        with ipc.new_file(path, table.schema, options=ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(table)
    corpus = fl.open_corpus(path)
    made = []
    original = fl.DataError.__init__
    fl.DataError.__init__ = lambda self, *args, **named: (made.append(1), original(self, *args, **named))[1]
    try:
        chunk = corpus.read(0)
        assert len(chunk.errors) == 1_000_000
        part = chunk.slice(10, 20)
        assert not made
        assert list(part.errors) == list(range(10))
        assert part.errors[3].sequence == 13
        assert 999_999 in chunk.errors
        assert 1_000_000 not in chunk.errors
        assert len(made) == 1
        with pytest.raises(fl.DataError, match="got a null"):
            fl.MinibatchSource(fl.open_corpus(path), shuffle=False, max_sweeps=1)
        assert len(made) < 20
    finally:
        fl.DataError.__init__ = original


def test_categories_that_are_numbers_are_no_more_than_memory(tmp_path):
    numbers = pa.DictionaryArray.from_arrays(pa.array(np.zeros(100_000, np.int8)), pa.array([7]))
    table = pa.table({"x": numbers})
    with ipc.new_file(tmp_path / "x.arrow", table.schema, options=ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    assert os.path.getsize(tmp_path / "x.arrow") < 2000
    with pytest.raises(fl.DataError, match=r"at most 400000 bytes .* got 800000"):
        fl.ArrowDeserializer(tmp_path / "x.arrow", memory=400_000).read(0)
    assert fl.ArrowDeserializer(tmp_path / "x.arrow", memory=800_000).read(0)["x"].tolist() == [7] * 100_000
    for year in (1, 2):
        (tmp_path / f"year={year}").mkdir()
        pq.write_table(pa.table({"x": pa.nulls(1000, pa.int8())}), tmp_path / f"year={year}" / "x.parquet")
    (tmp_path / "x.arrow").unlink()
    with pytest.raises(fl.DataError, match=r"at most 4000 bytes .* got 8000"):
        fl.ParquetDeserializer(tmp_path, ["year"], memory=4000).read(0)


def _arrow(path, values):
    table = pa.table(values)
    with ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


def _csv(path, values):
    path.write_text(
        "\n".join([",".join(values), *(",".join(map(str, row)) for row in zip(*values.values(), strict=True))])
    )


def _lines(path, values):
    rows = zip(*values.values(), strict=True)
    path.write_text("".join(json.dumps(dict(zip(values, row, strict=True))) + "\n" for row in rows))


def _records(path, values):
    path.write_bytes(tfrecords(example(**{name: row[i] for name, row in values.items()}) for i in range(2)))


@pytest.mark.parametrize(
    ("suffix", "write"), [(".arrow", _arrow), (".csv", _csv), (".jsonl", _lines), (".tfrecord", _records)]
)
def test_folders_of_hive_are_named_where_they_are_no_column(tmp_path, suffix, write):
    for label in "ab":
        (tmp_path / f"label={label}" / "year=1").mkdir(parents=True)
        write(tmp_path / f"label={label}" / "year=1" / f"p{suffix}", {"x": [1, 2], "year": [1, 1]})
    pattern = str(tmp_path / "*" / "*" / f"*{suffix}")
    with pytest.warns(UserWarning, match=r"names of folders .*: label\. Write"):
        corpus = fl.open_corpus(pattern)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pickle.loads(pickle.dumps(corpus))
        fl.open_corpus(pattern, streams={"x": corpus.schema["x"]})


@pytest.mark.parametrize("folder", [b"label=\xff", b"label=%FF", b"\xff=a"])
def test_folders_of_hive_that_are_not_named_in_utf_8_are_refused(tmp_path, folder):
    place = os.path.join(os.fsencode(tmp_path), folder)
    os.mkdir(place)
    pq.write_table(pa.table({"x": [1]}), tmp_path / "p.parquet")
    os.rename(tmp_path / "p.parquet", place + b"/p.parquet")
    with pytest.raises(fl.DataError, match=r"named in UTF-8.*xff(.|\n)*rename"):
        fl.open_corpus(tmp_path)
