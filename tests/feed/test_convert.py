"""Conversion: any corpus into a store, sequence by sequence the same."""

import mmap

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline.data import Chunk, Schema, Stream, Value
from feedline.errors import DataError, SchemaError
from feedline.feed.conversion.convert import convert, open_corpus
from feedline.feed.formats.arrays import ArrayDeserializer
from feedline.feed.formats.arrow.parquet import ParquetDeserializer
from feedline.feed.formats.cntk.ctf_write import write_ctf
from feedline.feed.formats.store.store_reader import StoreDeserializer
from feedline.feed.protocol import ChunkInfo, Deserializer, Unsized
from tests.effort import examples
from tests.feed.formats.corpora import assert_same, corpora, everything


class Torn(Deserializer):
    """Three chunks of four sequences, of which 1 and 6 are unreadable."""

    schema = Schema({"x": Stream((), "int64")})

    def chunks(self):
        return [ChunkInfo(4, 4, 32)] * 3

    def read(self, chunk):
        rows = np.arange(4 * chunk, 4 * chunk + 4)
        bad = {i: DataError(f"torn {rows[i]}") for i in range(4) if rows[i] in (1, 6)}
        return Chunk(self.schema, {"x": Value.from_dense(rows)}, bad)

    def digest(self):
        return "00"


class Counted(Torn, Unsized):
    """The same, its chunk sizes unknown."""

    def chunks(self):
        raise AssertionError("never called")

    def num_chunks(self):
        return 3


@given(corpora(), st.integers(1, 6))
@settings(deadline=None, max_examples=examples(20))
def test_a_converted_corpus_is_the_same(tmp_path_factory, data, chunk_sequences):
    folder = tmp_path_factory.mktemp("convert")
    source = ArrayDeserializer(data, chunk_sequences=chunk_sequences)
    seen = []
    summary = convert(source, folder / "a", chunk_bytes=100, progress=lambda *at: seen.append(at))
    store = StoreDeserializer(folder / "a", verify=True)
    assert_same(everything(store), data)
    infos = source.chunks()
    assert summary.sequences == sum(info.sequences for info in infos)
    assert summary.samples == sum(info.samples for info in infos)
    assert summary.skipped == 0
    assert summary.schema == store.schema
    assert summary.bytes == sum(f.stat().st_size for f in (folder / "a").iterdir() if f.suffix != ".json")
    total = sum(info.bytes for info in infos)
    assert [at[0] for at in seen] == np.cumsum([info.bytes for info in infos]).tolist()
    assert all(at[1] == total for at in seen)


@pytest.mark.parametrize("source", [Torn(), Counted()])
def test_unreadable_sequences(tmp_path, source):
    with pytest.raises(DataError, match="torn 1"):
        convert(source, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
    summary = convert(source, tmp_path / "a", on_error="skip")
    assert (summary.sequences, summary.skipped) == (10, 2)
    assert everything(StoreDeserializer(tmp_path / "a"))["x"].rows.tolist() == [
        0,
        2,
        3,
        4,
        5,
        7,
        8,
        9,
        10,
        11,
    ]


def test_an_existing_destination(tmp_path):
    source = ArrayDeserializer(x=np.arange(3))
    convert(source, tmp_path / "a")
    with pytest.raises(FileExistsError):
        convert(source, tmp_path / "a")
    convert(ArrayDeserializer(x=np.arange(5)), tmp_path / "a", overwrite=True)
    assert len(everything(open_corpus(tmp_path / "a"))["x"]) == 5


@pytest.mark.parametrize("name", ["a.ctf", "a.parquet", "a.CSV", "a.npz"])
def test_a_destination_named_like_a_file_is_refused(tmp_path, name):
    """Only stores are written, and a folder called a.ctf would be no CTF file."""
    with pytest.raises(ValueError, match=f"folder.*{name}"):
        convert(ArrayDeserializer(x=np.arange(10)), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_the_result_of_a_conversion_is_printed_on_a_line(tmp_path):
    """The repr of corpora and summaries describes them."""
    done = convert(ArrayDeserializer(x=np.arange(10), y=np.arange(10)), tmp_path / "a")
    assert repr(done).startswith(f"ConversionSummary({str(tmp_path / 'a')!r}: x, y; 10 sequences, 10 samples, ")
    assert repr(open_corpus(tmp_path / "a")) == f"StoreDeserializer({tmp_path / 'a'})"


@pytest.mark.parametrize("shuffle", [None, 3])
def test_the_summary_names_the_store_as_it_was_given(tmp_path, monkeypatch, shuffle):
    monkeypatch.chdir(tmp_path)
    assert convert(ArrayDeserializer(x=np.arange(10)), "a.store", shuffle=shuffle).path == "a.store"


def test_a_store_over_itself(tmp_path):
    convert(ArrayDeserializer(x=np.arange(1000)), tmp_path / "a")
    convert(tmp_path / "a", tmp_path / "a", overwrite=True, chunk_bytes=80)
    store = open_corpus(tmp_path / "a")
    assert len(store.chunks()) > 10
    assert everything(store)["x"].rows.tolist() == list(range(1000))


def test_csv(tmp_path):
    (tmp_path / "t.csv").write_text("a,b,y\n" + "".join(f"{i},{i}.5,{i % 2}\n" for i in range(100)))
    seen = []
    convert(
        tmp_path / "t.csv",
        tmp_path / "a",
        streams={"x": ["a", "b"], "y": "y"},
        progress=lambda *at: seen.append(at),
    )
    got = everything(open_corpus(tmp_path / "a"))
    assert got["x"].rows[7].tolist() == [7, 7.5]
    assert got["y"].rows[7] == 1
    assert seen[-1][1] == (tmp_path / "t.csv").stat().st_size - len("a,b,y\n")
    assert everything(open_corpus(tmp_path / "t.csv", streams={"z": ["b", "a"]}))["z"].rows[7].tolist() == [7.5, 7]


def test_paths_of_every_format(tmp_path):
    x, y = np.arange(12.0).reshape(6, 2), np.arange(6)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "both.npz", x=x, y=y)
    (tmp_path / "folder").mkdir()
    np.save(tmp_path / "folder" / "y.npy", y)
    np.save(tmp_path / "folder" / "x.npy", x)
    pq.write_table(pa.table({"y": y}), tmp_path / "y.parquet")
    convert(tmp_path / "both.npz", tmp_path / "store")
    for name, streams in (
        ("x.npy", "x"),
        ("both.npz", "xy"),
        ("folder", "xy"),
        ("store", "xy"),
        ("y.parquet", "y"),
    ):
        corpus = open_corpus(tmp_path / name)
        assert list(corpus.schema) == list(streams), name
        assert corpus.name == str(tmp_path / name)
        got = everything(corpus)
        for stream in streams:
            assert np.array_equal(got[stream].rows, {"x": x, "y": y}[stream]), name
    array = open_corpus(tmp_path / "x.npy").read(0)["x"].rows
    while isinstance(array, np.ndarray):
        array = array.base
    assert isinstance(array, mmap.mmap)
    assert isinstance(open_corpus(tmp_path / "y.parquet"), ParquetDeserializer)


def test_declared_streams_choose_and_are_checked(tmp_path):
    np.savez(tmp_path / "both.npz", x=np.zeros((3, 2)), y=np.arange(3))
    convert(tmp_path / "both.npz", tmp_path / "store")
    for name in ("both.npz", "store"):
        corpus = open_corpus(tmp_path / name, streams={"y": Stream((), "int64")})
        assert list(corpus.schema) == ["y"]
        with pytest.raises(SchemaError, match="for stream `x`, got"):
            open_corpus(tmp_path / name, streams={"x": Stream(3, "float64")})
        with pytest.raises(SchemaError, match="z"):
            open_corpus(tmp_path / name, streams={"z": Stream(3)})


def test_damaged_arrays(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(1000))
    good = (tmp_path / "x.npy").read_bytes()
    for size in (6, 10, 50, 200):
        (tmp_path / "x.npy").write_bytes(good[:size])
        with pytest.raises(DataError, match=r"x\.npy"):
            open_corpus(tmp_path / "x.npy")
    np.savez(tmp_path / "x.npz", x=np.zeros(10))
    good = (tmp_path / "x.npz").read_bytes()
    for size in (10, 100, len(good) - 1):
        (tmp_path / "x.npz").write_bytes(good[:size])
        with pytest.raises(DataError, match=r"x\.npz"):
            open_corpus(tmp_path / "x.npz")
    np.save(tmp_path / "o.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(DataError, match=r"o\.npy"):
        open_corpus(tmp_path / "o.npy")


def test_wrong_arguments(tmp_path):
    with pytest.raises(ValueError, match="'raise' or 'skip'"):
        convert(Torn(), tmp_path / "a", on_error="ignore")
    with pytest.raises(ValueError, match="streams= only with a path"):
        convert(Torn(), tmp_path / "a", streams={"x": Stream()})


def test_ctf_text_with_guessed_and_with_declared_streams(tmp_path):
    x = [np.arange(2 * n, dtype=np.float32).reshape(n, 2) for n in (1, 3, 2)]
    y = Value.one_hot([4, 0, 2], 5)
    write_ctf(tmp_path / "t.ctf", x=x, y=y)
    guessed = open_corpus(tmp_path / "t.ctf")
    assert dict(guessed.schema) == {"x": Stream(2), "y": Stream(5, sparse=True)}
    declared = {"x": Stream(2), "label": Stream(9, sparse=True, field="y")}
    summary = convert(tmp_path / "t.ctf", tmp_path / "a", streams=declared)
    assert (summary.sequences, summary.samples) == (3, 6)
    got = everything(open_corpus(tmp_path / "a"))
    assert [s.tolist() for s in got["x"]] == [s.tolist() for s in x]
    assert got["label"].indices.tolist() == [4, 0, 2]
    assert got["label"].classes == 9
    with (tmp_path / "t.ctf").open("a") as file:
        file.write("9 |x 1 2 3 |y 1:1\n")
    with pytest.raises(DataError, match=r"t\.ctf"):
        convert(tmp_path / "t.ctf", tmp_path / "b", streams=declared)
    assert convert(tmp_path / "t.ctf", tmp_path / "b", streams=declared, on_error="skip").skipped == 1


@pytest.mark.parametrize("shuffle", [None, 1])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_destination_within_what_is_read_is_refused(tmp_path, shuffle, overwrite):
    rows = np.arange(8, dtype="f4").reshape(4, 2)
    (tmp_path / "arrays").mkdir()
    np.save(tmp_path / "arrays" / "x.npy", rows)
    convert(tmp_path / "arrays", tmp_path / "store")
    (tmp_path / "parquet").mkdir()
    pq.write_table(pa.table({"x": [1.0, 2.0]}), tmp_path / "parquet" / "a.parquet")
    (tmp_path / "link").symlink_to(tmp_path / "store")
    for source, within in (
        (tmp_path / "arrays", tmp_path / "arrays" / "sub"),
        (tmp_path / "store", tmp_path / "store" / "deep" / "sub"),
        (StoreDeserializer(tmp_path / "store"), tmp_path / "link" / "sub"),
        (tmp_path / "parquet", tmp_path / "arrays" / ".." / "parquet" / "sub"),
    ):
        with pytest.raises(ValueError, match="destination outside the data to read"):
            convert(source, within, shuffle=shuffle, overwrite=overwrite)
    assert not any("sub" in str(path) for path in tmp_path.rglob("*"))
    # The folder of the file, and a folder next to it, are not read.
    convert(tmp_path / "arrays" / "x.npy", tmp_path / "arrays" / "beside", shuffle=shuffle)
    convert(tmp_path / "store", tmp_path / "store2", shuffle=shuffle)


def test_corpora_with_their_own_order_are_refused(tmp_path):
    """A store has no proportions, rows of a sweep or batches: none of them is dropped silently."""
    documents = fl.ArrayDeserializer(tokens=[np.arange(n) for n in (3, 9, 4)])
    for corpus in (fl.Mixture({"a": documents}), fl.Packed(documents, 16), fl.Bucketed(documents, [4, 9], budget=9)):
        with pytest.raises(ValueError, match="order of its own to convert"):
            fl.convert(corpus, tmp_path / "store")
        assert not list(tmp_path.iterdir())
    fl.convert(fl.Concat(documents, fl.Take(documents, 2)), tmp_path / "store")
    assert fl.open_corpus(tmp_path / "store").chunks()[0].sequences == 5
