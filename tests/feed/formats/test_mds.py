"""MDS: folders that MosaicML Streaming wrote are read as it reads them. Damage costs only the damaged samples.

The laws: test_shard_folders.py.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

import feedline as fl
from tests.cli.shell import feedline
from tests.feed.formats.shard_writers import bounds_of, edit_bytes, edit_index, write_mds

HERE = Path(__file__).parents[2] / "fixtures" / "mds"
FORMS = ["raw", "zstd", "gz", "br", "bz2"]
READ = json.loads((HERE / "read.json").read_text())
COUNT = len(READ)
SHARD = "shard.00000.mds"
BYTES, TEXT = fl.Stream(dtype="bytes"), fl.Stream(dtype="str")
SCHEMA = fl.Schema(
    {
        "a": fl.Stream((2, 3)),
        "any": fl.Stream((1, 300), "uint8"),
        "b": BYTES,
        "count": TEXT,
        "f": fl.Stream(()),
        "i": fl.Stream((), "int64"),
        "j": TEXT,
        "picture": BYTES,
        "row": fl.Stream(4, "int16"),
        "s": TEXT,
        "small": fl.Stream((), "uint8"),
    }
)


def values(chunk):
    """Every sample as MosaicML Streaming's read.json has it."""
    columns = chunk.values.items()
    rows = {name: value.tolist() if chunk.schema[name].is_bytes else value.rows.tolist() for name, value in columns}
    found = [dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)]
    for one in found:
        one |= {name: one[name].hex() for name in ("b", "picture")}
        one["j"], one["count"] = json.loads(one["j"]), int(one["count"])
    return found


@pytest.fixture
def raw(tmp_path):
    """A folder of one's own."""
    return Path(shutil.copytree(HERE / "raw", tmp_path / "raw"))


# ---- what MosaicML Streaming reads ----------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("chunk_size", [1, 1500, 1 << 20])
def test_equal_to_what_the_library_reads(form, chunk_size):
    corpus = fl.MDSDeserializer(HERE / form, chunk_size=chunk_size, verify=True)
    assert corpus.schema == SCHEMA
    whole = corpus.select(np.arange(COUNT))
    assert not whole.errors
    assert values(whole) == READ
    assert sum(info.sequences for info in corpus.chunks()) == COUNT
    if form == "raw" and chunk_size == 1:
        assert len(corpus.chunks()) == COUNT
    if form != "raw" or chunk_size == 1 << 20:
        assert len(corpus.chunks()) == len(corpus.paths())


def test_the_library_itself(tmp_path):
    """Written and read now, shuffled or not."""
    streaming = pytest.importorskip("streaming", reason="mosaicml-streaming is not installed")
    columns = {"i": "int", "b": "bytes", "x": "ndarray:float32:5", "any": "ndarray"}
    with streaming.MDSWriter(columns=columns, out=str(tmp_path / "a"), compression="zstd", size_limit=3000) as out:
        for k in range(200):
            out.write({"i": k, "b": b"x" * k, "x": np.full(5, k, np.float32), "any": np.full((2, 2), k)})
    whole = fl.MDSDeserializer(tmp_path / "a").select(np.arange(200))
    theirs = sorted(streaming.StreamingDataset(local=str(tmp_path / "a"), batch_size=1), key=lambda one: one["i"])
    assert whole["b"].tolist() == [one["b"] for one in theirs]
    for name in ("i", "x", "any"):
        np.testing.assert_array_equal(whole[name].rows, [one[name] for one in theirs])


def test_every_way_to_name_a_folder(tmp_path, raw):
    twice = shutil.copytree(raw, tmp_path / "again")
    assert fl.open_corpus(raw).digest() == fl.open_corpus(raw / "index.json").digest()
    for what in ([raw, twice], str(tmp_path / "{raw,again}" / "index.json")):
        corpus = fl.open_corpus(what)
        assert corpus.select(np.arange(2 * COUNT))["small"].rows.tolist() == 2 * [*range(COUNT)]
    assert sum(len(batch["i"]) for batch in fl.DataLoader(str(raw), batch_size=3)) == COUNT
    told = json.loads(feedline("inspect", str(raw), "--json").stdout)
    assert (told["format"], told["sequences"]) == ("mds", COUNT)
    with pytest.raises(fl.DataError, match="the same fields"):
        fl.MDSDeserializer([raw, HERE / "pickled"], small=fl.Stream((), "uint8"))


def test_a_merged_index_names_files_in_folders(raw):
    (raw / "part").mkdir()
    (raw / "shard.00001.mds").rename(raw / "part" / "shard.00001.mds")
    edit_index(raw, lambda index: index["shards"][1]["raw_data"].update(basename="part/shard.00001.mds"))
    assert values(fl.MDSDeserializer(raw).select(np.arange(COUNT))) == READ
    for name in ("../raw/shard.00000.mds", "/etc/passwd", "", "a\0b"):
        edit_index(raw, lambda index, name=name: index["shards"][0]["raw_data"].update(basename=name))
        with pytest.raises(fl.DataError, match="within the folder"):
            fl.MDSDeserializer(raw)


def test_unpacked_shards_are_preferred(tmp_path):
    """The library leaves them next to the compressed ones."""
    folder = Path(shutil.copytree(HERE / "gz", tmp_path / "both"))
    for k in (0, 2):
        packed = folder / f"shard.0000{k}.mds.gz"
        packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
    corpus = fl.MDSDeserializer(folder)
    assert [Path(path).suffix for path in corpus.paths()] == [".mds", ".gz", ".mds"]
    assert values(corpus.select(np.arange(COUNT))) == READ


# ---- declarations ---------------------------------------------------------------------------------------


def test_columns_by_name():
    corpus = fl.MDSDeserializer(
        HERE / "raw",
        picture=fl.Stream(dtype="bytes", field="b"),
        number=fl.Stream((), "int64", field="count"),
        array=fl.Stream(dtype="bytes", field="row"),
        j=BYTES,
    )
    whole = corpus.select(np.arange(COUNT))
    assert whole["picture"].tolist() == [bytes.fromhex(one["b"]) for one in READ]
    assert whole["number"].rows.tolist() == [one["count"] for one in READ]
    assert whole["array"].tolist()[3] == b"\x04\x04" + np.array([0, 3, 6, 9], "<i2").tobytes()
    assert [json.loads(text) for text in whole["j"].tolist()] == [one["j"] for one in READ]


@pytest.mark.parametrize(
    "stream",
    [
        fl.Stream(5, field="a"),
        fl.Stream((2, 3), "float64", field="a"),
        fl.Stream((), "int32", field="i"),
        fl.Stream(4, "uint8", field="b"),
        fl.Stream(3, sparse=True, field="row"),
        fl.Stream(dtype="bytes", field="i"),
        fl.Stream(dtype="str", field="b"),
        fl.Stream((), field="none"),
    ],
    ids=repr,
)
def test_streams_that_no_column_fills(stream):
    with pytest.raises(fl.SchemaError):
        fl.MDSDeserializer(HERE / "raw", x=stream)


def test_a_stream_declared_twice():
    with pytest.raises(fl.SchemaError, match="each stream once, got i"):
        fl.MDSDeserializer(HERE / "raw", {"i": fl.Stream((), "int64")}, i=BYTES)


def test_pickles_are_refused():
    for streams in ({}, {"pickled": BYTES}):
        with pytest.raises(fl.SchemaError, match=r"`pickled` of encoding `pkl`.*never unpickles"):
            fl.MDSDeserializer(HERE / "pickled", streams)
    corpus = fl.MDSDeserializer(HERE / "pickled", i=fl.Stream((), "int64"))
    assert corpus.select(np.arange(COUNT))["i"].rows.tolist() == [one["i"] for one in READ]


def test_arrays_of_another_shape_keep_their_tick():
    corpus = fl.MDSDeserializer(HERE / "raw", any=fl.Stream((300, 1), "uint8"), row=fl.Stream(4, "int32"))
    chunk = corpus.read(0)
    assert list(chunk.errors) == list(range(chunk.num_sequences))
    assert "got shape (1, 300) and uint8" in str(chunk.errors[0])
    # One of them, as MosaicML Streaming writes it, in the place of another.
    whole = fl.MDSDeserializer(HERE / "raw", count=fl.Stream((), "uint8")).select(np.arange(COUNT))
    assert list(whole.errors) == list(range(1, COUNT))  # 10^12 is no uint8


@pytest.mark.parametrize(("length", "code", "layout"), [(255, 0, "B"), (256, 1, "<H"), (1 << 16, 2, "<I")])
def test_shapes_are_as_wide_as_their_longest_side_needs(tmp_path, length, code, layout):
    row = bytes([1 << 2 | code]) + struct.pack(layout, length) + bytes(length)
    write_mds(tmp_path / "a", {"x": ("ndarray:uint8", None)}, [(row,)], 1)
    chunk = fl.MDSDeserializer(tmp_path / "a").read(0)
    assert not chunk.errors
    assert chunk["x"].rows.shape == (1, length)


# ---- elsewhere ------------------------------------------------------------------------------------------


def test_converted(tmp_path):
    fl.convert(HERE / "zstd", tmp_path / "store")
    assert values(fl.StoreDeserializer(tmp_path / "store").select(np.arange(COUNT))) == READ


def test_moved_folders_resume_and_changed_ones_do_not(raw):
    digest = fl.MDSDeserializer(HERE / "raw").digest()
    assert fl.MDSDeserializer(raw).digest() == digest
    shard = raw / "shard.00001.mds"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\xff")
    assert fl.MDSDeserializer(raw).digest() != digest


# ---- damage ---------------------------------------------------------------------------------------------


def test_sizes_that_do_not_add_up_are_one_bad_sample(raw):
    bounds = bounds_of(raw / SHARD)
    for number in (0, 2):
        edit_bytes(raw / SHARD, int(bounds[number]), b"\xff\xff\xff\x7f")
    chunk = fl.MDSDeserializer(raw).read(0)
    assert list(chunk.errors) == [0, 2]
    error = chunk.errors[2]
    assert (error.byte, error.sequence) == (bounds[2], 2)
    assert Path(error.path) == raw / "shard.00000.mds"
    assert "expected fields of" in error.what
    assert values(chunk.slice(1, 2)) == READ[1:2]


def test_an_offset_beyond_the_shard_costs_two_samples(raw):
    edit_bytes(raw / SHARD, 4 + 4 * 2, b"\xff\xff\xff\xff")
    chunk = fl.MDSDeserializer(raw).read(0)
    assert list(chunk.errors) == [1, 2]
    skipping = fl.MinibatchSource(
        fl.MDSDeserializer(raw), max_sweeps=1, on_error=fl.Quarantine(raw / "q.jsonl"), shuffle=False
    )
    assert [n for m in skipping.minibatches(5) for n in m["small"].rows.tolist()] == [0, *range(3, COUNT)]


def test_offsets_that_overlap_are_refused(raw):
    """Or a small file would take any amount of memory."""
    size = (raw / "shard.00000.mds").stat().st_size
    count = int.from_bytes((raw / "shard.00000.mds").read_bytes()[:4], "little")
    edit_bytes(raw / SHARD, 4, np.array([0, size] * count, "<u4").tobytes()[: 4 * (count + 1)])
    with pytest.raises(fl.DataError, match="overlap"):
        fl.MDSDeserializer(raw, b=BYTES).read(0)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda index: index.update(version=1), "version 2"),
        (lambda index: index["shards"][1].update(format="json"), "format mds"),
        (lambda index: index["shards"][1].update(samples=-1), "a number `samples`"),
        (lambda index: index["shards"][1].update(samples=10**9), "room for"),
        (lambda index: index["shards"][1].update(column_names=["a"]), "columns"),
        (lambda index: index["shards"][1].update(column_sizes=[8] * 11), "columns of the earlier shards"),
        (lambda index: [shard.update(column_sizes=[8] * 11) for shard in index["shards"]], "size 24 of column `a`"),
        (lambda index: index["shards"][1].update(raw_data=None), "an object"),
        (lambda index: index["shards"][1]["raw_data"].update(bytes=7), "shard of 7 bytes"),
        (lambda index: index["shards"][1]["raw_data"].update(basename="none.mds"), "No such file"),
        (lambda index: index["shards"][1]["raw_data"].update(hashes=[1]), "hashes by algorithm"),
        (lambda index: index.update(shards=[]), "at least one sample"),
        (lambda index: index.update(shards=[1]), "a list `shards` of dict"),
    ],
)
def test_an_index_that_is_not_as_expected(raw, change, match):
    edit_index(raw, change)
    with pytest.raises(fl.DataError, match=match):
        fl.MDSDeserializer(raw)


def test_a_count_that_differs_from_the_index(raw):
    edit_bytes(raw / SHARD, 0, b"\x01")
    with pytest.raises(fl.DataError, match=r"offsets of .* samples, as index\.json says"):
        fl.MDSDeserializer(raw).read(0)


def test_a_cut_shard_is_an_error(raw):
    corpus = fl.MDSDeserializer(raw)
    with open(raw / "shard.00000.mds", "r+b") as file:
        file.truncate(500)
    with pytest.raises(fl.DataError, match="expected a shard of"):
        corpus.read(0)
    with pytest.raises(fl.DataError, match="expected a shard of"):
        fl.MDSDeserializer(raw)


@pytest.mark.parametrize("form", FORMS)
def test_hashes_are_compared(tmp_path, form):
    folder = Path(shutil.copytree(HERE / form, tmp_path / form))
    (shard,) = folder.glob("shard.00002.*")
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with pytest.raises(fl.DataError, match="expected a shard with sha1"):
        fl.MDSDeserializer(folder, verify=True).read(2)
    counts = [info.sequences for info in fl.open_corpus(folder).chunks()]
    assert fl.validate(folder).damaged == counts[2]
    edit_index(
        folder, lambda index: [(s["zip_data"] or s["raw_data"]).update(hashes={"xxh3": "1"}) for s in index["shards"]]
    )
    with pytest.raises(fl.DataError, match="digest that Python can compute"):
        fl.MDSDeserializer(folder, verify=True)
    assert fl.validate(folder).sequences == sum(counts)  # as far as it can


@pytest.mark.parametrize("form", FORMS[1:])
def test_compressed_shards_that_are_cut_or_larger_than_declared(tmp_path, form):
    folder = Path(shutil.copytree(HERE / form, tmp_path / form))
    sizes = [one["raw_data"]["bytes"] for one in json.loads((folder / "index.json").read_text())["shards"]]
    for size in (sizes[0] - 1, sizes[0] + 1):
        edit_index(folder, lambda index, size=size: index["shards"][0]["raw_data"].update(bytes=size))
        with pytest.raises(fl.DataError, match="expected a shard compressed by"):
            fl.MDSDeserializer(folder, i=fl.Stream((), "int64")).read(0)
    with pytest.raises(fl.DataError, match="memory"):
        fl.MDSDeserializer(folder, i=fl.Stream((), "int64"), memory=sizes[1] - 1).read(1)
    (shard,) = folder.glob("shard.00001.*")
    content = shard.read_bytes()[:-40]
    shard.write_bytes(content)
    edit_index(folder, lambda index: index["shards"][1]["zip_data"].update(bytes=len(content)))
    with pytest.raises(fl.DataError, match="expected a shard compressed by"):
        fl.MDSDeserializer(folder, i=fl.Stream((), "int64")).read(1)


def test_unknown_compression_is_named(tmp_path):
    folder = Path(shutil.copytree(HERE / "gz", tmp_path / "gz"))
    edit_index(folder, lambda index: index["shards"][0].update(compression="snappy"))
    with pytest.raises(fl.DataError, match="zstd, gz, br, bz2, got 'snappy'"):
        fl.MDSDeserializer(folder)


def test_digests_of_the_fixtures_match_the_writer():
    """Fixtures are as the script made them."""
    for form in FORMS:
        for one in json.loads((HERE / form / "index.json").read_text())["shards"]:
            data = one["zip_data"] or one["raw_data"]
            assert hashlib.sha1((HERE / form / data["basename"]).read_bytes()).hexdigest() == data["hashes"]["sha1"]


def test_an_index_is_read_within_its_size(raw):
    """Not within what an index may have at most: memory for that was asked for."""
    (raw / "index.json").write_text("[" * 100_000)
    with pytest.raises(fl.DataError, match="JSON that lists shards"):
        fl.MDSDeserializer(raw)
    (raw / "index.json").unlink()
    with pytest.raises(fl.DataError, match=r"readable index\.json"):
        fl.MDSDeserializer(raw)


def test_a_shard_that_ends_in_zeros_is_not_cut(tmp_path):
    """A page of them and more, as of an empty picture."""
    sample = (5000).to_bytes(4, "little") + bytes(5008)
    ends = np.arange(11) * len(sample) + 4 * 12
    shard = np.array([10, *ends], "<u4").tobytes() + 10 * sample
    about = {"format": "mds", "version": 2, "samples": 10, "compression": None, "zip_data": None}
    about |= {"column_names": ["b", "y"], "column_encodings": ["bytes", "int"], "column_sizes": [None, 8]}
    about["raw_data"] = {"basename": "shard.mds", "bytes": len(shard), "hashes": {}}
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": [about]}))
    (tmp_path / "shard.mds").write_bytes(shard)
    corpus = fl.MDSDeserializer(tmp_path)
    chunk = corpus.read(0)
    assert chunk.take(np.arange(10))["b"].tolist() == [bytes(5000)] * 10
    (tmp_path / "shard.mds").write_bytes(shard[:-4000])
    with pytest.raises(fl.DataError, match="truncated"):
        chunk.take(np.arange(10))
