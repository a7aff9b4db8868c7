"""Zarr stores written by zarr have the values that zarr reads. Damage, wrong sizes, forks and interrupts."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import feedline as fl
from feedline.feed.files import disk
from feedline.feed.formats.hdf5_zarr.zarr import ZarrDeserializer
from tests.feed.formats.corpora import everything
from tests.warm import Python

pytest.importorskip("zarr")
import numcodecs
import numcodecs.pickles
import zarr.codecs
import zarr.dtype

from feedline.feed.formats.hdf5_zarr import zarr_library
from tests.feed.formats import zarr_files

COUNT = 300
DRAW = random.Random(5)
TEXTS = np.array([f"{i}é" * (i % 4) for i in range(COUNT)], object)
BLOBS = np.array([DRAW.randbytes(i % 7) for i in range(COUNT)], object)
ROWS = np.arange(COUNT * 6, dtype="f4").reshape(COUNT, 2, 3)
NUMBERS = np.arange(COUNT)


def kinds(zarr_format, part=slice(None)):
    """Every kind of array, as `zarr_files.write` takes them."""
    rows, numbers = ROWS[part], NUMBERS[part]
    gzip = zarr.codecs.GzipCodec() if zarr_format == 3 else {"id": "gzip", "level": 1}
    found = {
        "rows": (rows, {"chunks": (7, 2, 2)}),
        "transposed": (rows, {"chunks": (7, 2, 2), "order": "F"} if zarr_format == 2 else {"chunks": (9, 1, 3)}),
        "number": (numbers, {"chunks": (64,), "compressors": None}),
        "gzip": (numbers, {"chunks": (50,), "compressors": gzip}),
        "text": (TEXTS[part], {"chunks": (11,), "dtype": str}),
        "blob": (BLOBS[part], {"chunks": (13,), "dtype": zarr.dtype.VariableLengthBytes()}),
        "fixed": (np.array([b"a" * (i % 4) for i in numbers], "S3"), {"chunks": (50,)}),
        "wide": (np.array(["é" * (i % 4) for i in numbers], "U3"), {"chunks": (50,)}),
        "flag": (numbers % 3 == 0, {"chunks": (40,)}),
        "big": (numbers.astype(">i4"), {"chunks": (100,)}),
        "imaginary": (numbers * 1j, {"chunks": (100,)}),
        "never": (np.zeros(len(numbers)), {"chunks": (30,), "fill_value": 7}),
        "holes": (numbers // 50 % 2, {"chunks": (50,)}),
        "below/deeper/rows": (rows * 2, {"chunks": (10, 2, 3)}),
    }
    if zarr_format == 3:
        found["shards"] = (rows, {"chunks": (5, 2, 3), "shards": (50, 2, 3)})
        checked = {"compressors": [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()]}
        found["checked"] = (rows, {"chunks": (5, 1, 3), "shards": (35, 2, 3), **checked})
        found["texts"] = (TEXTS[part], {"chunks": (10,), "shards": (70,), "dtype": str})
    return found


def write(path, zarr_format=3, part=slice(None), names=None, **options):
    arrays = {name: array for name, array in kinds(zarr_format, part).items() if names is None or name in names}
    return zarr_files.write(path, arrays, zarr_format, **options)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("zarr") / "a.zarr")


SOME = ("rows", "shards", "text")
STORES = {"2": {"zarr_format": 2}, "3": {}, "2.zip": {"zarr_format": 2, "zipped": True}, "3.zip": {"zipped": True}}


@pytest.mark.parametrize("form", STORES)
def test_equal_to_what_zarr_reads_back(tmp_path, form):
    path = write(tmp_path / f"a.{form}", **STORES[form])
    names = [name for name in kinds(STORES[form].get("zarr_format", 3)) if "/" not in name]
    plain = path
    if form.endswith("zip"):
        plain = str(tmp_path / "plain")
        with zipfile.ZipFile(path) as archive:
            archive.extractall(plain)
    expected = {name: zarr_files.read(plain, name) for name in names}
    for chunk_sequences in (None, 37):
        corpus = fl.open_corpus(path) if chunk_sequences is None else ZarrDeserializer(path, chunk_sequences=37)
        assert isinstance(corpus, ZarrDeserializer)
        assert sorted(corpus.schema) == sorted(names)
        found = everything(corpus)
        for name, rows in expected.items():
            assert found[name].tolist() == rows.tolist(), name
        assert sum(info.sequences for info in corpus.chunks()) == COUNT
        corpus.close()
    assert found["text"].tolist() == TEXTS.tolist()
    assert found["blob"].tolist() == BLOBS.tolist()
    shapes = {name: (stream.shape, stream.dtype.name) for name, stream in corpus.schema.items()}
    assert shapes["rows"] == ((2, 3), "float32")
    dtypes = {"text": "str", "wide": "str", "blob": "bytes", "fixed": "bytes", "big": "int32", "flag": "bool"}
    assert {name: shapes[name][1] for name in dtypes} == dtypes
    assert corpus.lengths(NUMBERS) is None


def test_declarations_select_and_go_down(path):
    corpus = ZarrDeserializer(
        path, b=fl.Stream(dtype="bytes", field="text"), d=fl.Stream((2, 3), field="below/deeper/rows")
    )
    found = everything(corpus)
    assert found["b"].tolist() == [text.encode() for text in TEXTS]
    assert found["d"].rows.tolist() == (ROWS * 2).tolist()
    assert everything(ZarrDeserializer(path, group="below/deeper"))["rows"].rows.tolist() == (ROWS * 2).tolist()
    inner = fl.open_corpus(os.path.join(path, "rows"))
    assert everything(inner)["x"].rows.tolist() == ROWS.tolist()
    assert list(fl.open_corpus(os.path.join(path, "rows"), streams={"image": fl.Stream((2, 3), field="x")}).schema) == [
        "image"
    ]
    for wrong in (fl.Stream((3, 2)), fl.Stream((2, 3), "f8"), fl.Stream(6, sparse=True), fl.Stream(dtype="str")):
        with pytest.raises(fl.SchemaError, match="for stream `rows`, got"):
            ZarrDeserializer(path, rows=wrong)
    with pytest.raises(fl.SchemaError, match=r"got nothing there.*; there are: .*below/deeper/rows \(300, 2, 3\)"):
        ZarrDeserializer(path, missing=fl.Stream(2))
    with pytest.raises(fl.SchemaError, match="expected an array, got a group"):
        ZarrDeserializer(path, below=fl.Stream(2))
    with pytest.raises(fl.SchemaError, match="expected arrays in `/below`"):
        ZarrDeserializer(path, group="below")
    with pytest.raises(fl.SchemaError, match="got nothing there"):
        ZarrDeserializer(os.path.join(path, "rows"), rows=fl.Stream((2, 3), field="../rows"))


def test_arrays_of_different_lengths_are_named(tmp_path):
    """As xarray writes them, with their coordinates."""
    arrays = {"x": (ROWS, {"chunks": (50, 2, 3)}), "lat": (np.arange(7), {"chunks": (7,)})}
    path = zarr_files.write(tmp_path / "a", arrays)
    with pytest.raises(fl.SchemaError, match=r"`lat` has 7, `x` has 300 \(.*declare the streams that belong together"):
        fl.open_corpus(path)
    assert everything(fl.open_corpus(path, streams={"x": fl.Stream((2, 3))}))["x"].rows.tolist() == ROWS.tolist()


def test_missing_chunks_are_fill_values(path):
    """They are data: zarr writes no chunk that holds nothing else."""
    assert not os.path.exists(os.path.join(path, "never", "c"))
    assert sorted(os.listdir(os.path.join(path, "holes", "c"))) == ["1", "3", "5"]
    found = everything(ZarrDeserializer(path, never=fl.Stream((), "f8"), holes=fl.Stream((), "i8")))
    assert set(found["never"].rows.tolist()) == {7.0}
    assert found["holes"].rows.tolist() == (NUMBERS // 50 % 2).tolist()


@pytest.mark.parametrize("zipped", [False, True])
def test_the_files_of_the_arrays_that_are_read(tmp_path, zipped):
    """As `feedline bench --cold` and `inspect --cost` request them, and no other files."""
    path = write(tmp_path / "a", names=SOME, zipped=zipped)
    paths = ZarrDeserializer(path, rows=fl.Stream((2, 3)), shards=fl.Stream((2, 3))).paths()
    if zipped:
        assert list(paths) == [path]
    else:
        assert paths[0] == os.path.join(path, "rows", "zarr.json")
        folders = [Path(path) / name for name in ("rows", "shards")]
        assert sorted(paths) == sorted(str(one) for folder in folders for one in folder.rglob("*") if one.is_file())
        assert len(paths) == len(set(paths))
    assert disk.survey(paths, 100, 0.01).bytes == sum(os.path.getsize(one) for one in paths)


# ---- several stores -------------------------------------------------------------------------------------


def test_several_stores_are_one_corpus(tmp_path, path):
    bounds = [0, 1, 80, 200, COUNT]
    for i, (a, b) in enumerate(itertools.pairwise(bounds)):
        write(tmp_path / f"part-{i}.zarr", part=slice(a, b), names=SOME)
    expected = everything(fl.open_corpus(path, streams={name: fl.open_corpus(path).schema[name] for name in SOME}))
    for what in ("part-{0..3}.zarr", "part-*.zarr", "part-?.zarr", ""):
        assert everything(fl.open_corpus(os.path.join(tmp_path, what))) == expected, what
    for what in ("part-{0..3}.zarr", "part-*.zarr", ""):
        assert everything(ZarrDeserializer(os.path.join(tmp_path, what))) == expected, what
    write(tmp_path / "part-9.zarr", part=slice(0, 5), names=SOME[1:])
    with pytest.raises(fl.SchemaError, match=r"part-9\.zarr"):
        fl.open_corpus([tmp_path / "part-0.zarr", tmp_path / "part-9.zarr"])
    with pytest.raises(fl.DataError, match=r"expected a folder with zarr\.json"):
        ZarrDeserializer(os.path.join(path, "below", "deeper", "rows", "c"))
    with pytest.raises(ValueError, match="at least one store"):
        ZarrDeserializer([])


def test_archives_of_a_folder(tmp_path, path):
    """Packed with `zip -r`, whose names begin with the folder's, compressed."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in Path(path).rglob("*"):
            archive.write(file, file.relative_to(Path(path).parent))
    assert everything(fl.open_corpus(tmp_path / "a.zip")) == everything(fl.open_corpus(path))


# ---- damage ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "chunk", "rows"),
    [("rows", "10/0/1", range(70, 77)), ("text", "3", range(33, 44)), ("checked", "2/0/0", range(70, 105))],
)
def test_a_damaged_chunk_costs_its_rows_and_names_its_file(tmp_path, path, name, chunk, rows):
    copy = shutil.copytree(path, tmp_path / "a.zarr")
    file = copy / name / "c" / chunk
    file.write_bytes(b"\xff" * file.stat().st_size)
    stream = fl.open_corpus(path).schema[name]
    x, n = fl.Stream(stream.shape, stream.dtype, field=name), fl.Stream((), "int64", field="number")
    corpus = ZarrDeserializer(copy, x=x, n=n)
    chunk = corpus.read(0)
    assert sorted(chunk.errors) == list(rows)
    error = chunk.errors[rows[2]]
    assert (error.path, error.sequence, error.stream) == (str(file), rows[2], "x")
    source = fl.MinibatchSource(corpus, max_sweeps=1, on_error=fl.Quarantine(str(tmp_path / "q")))
    seen = sorted(i for minibatch in source.minibatches(30) for i in minibatch["n"].rows.tolist())
    assert seen == [i for i in range(COUNT) if i not in rows]
    listed = [json.loads(line) for line in (tmp_path / "q").read_text().splitlines()]
    assert {line["path"] for line in listed} == {str(file)}
    file.unlink()
    assert not corpus.read(0).errors  # no chunk there is a chunk of the fill value
    os.mkfifo(file)
    assert "it is a FIFO" in str(corpus.read(0).errors[rows[0]])


CODECS = ("gzip", "zlib", "bz2", "lzma", "zstd", "lz4", "blosc")


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("codec", CODECS)
def test_a_chunk_that_expands_beyond_its_size_is_damage(tmp_path, codec, version):
    """A small chunk can expand to any number of bytes: no more are made than the array can have."""
    bomb = numcodecs.get_codec({"id": codec}).encode(bytes(40 << 20))
    compressor = {"id": codec} if version == 2 else {"name": f"numcodecs.{codec}", "configuration": {}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of codecs that Zarr's version 3 does not know
        zarr_files.write(tmp_path / "a", {"x": (np.arange(64), {"chunks": (32,), "compressors": compressor})}, version)
        corpus = ZarrDeserializer(tmp_path / "a")
        assert corpus.read(0)["x"].tolist() == list(range(64))
        (tmp_path / "a" / "x" / ("1" if version == 2 else "c/1")).write_bytes(bytes(bomb))
        tracemalloc.start()
        try:
            chunk = corpus.read(0)
            assert tracemalloc.get_traced_memory()[1] < 32 << 20
        finally:
            tracemalloc.stop()
    assert list(chunk.errors) == list(range(32, 64))
    assert "decodes to at most" in str(chunk.errors[32])


def test_zstandard_without_its_size(tmp_path):
    """As streams are packed."""
    data = {"x": (np.arange(64), {"chunks": (32,), "compressors": {"id": "zstd"}})}
    zarr_files.write(tmp_path / "a", data, 2)
    for k, content in enumerate((np.arange(32).tobytes(), bytes(20 << 20))):
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "zstd") as stream:
            stream.write(content)
        (tmp_path / "a" / "x" / str(k)).write_bytes(sink.getvalue())
    chunk = ZarrDeserializer(tmp_path / "a").read(0)
    assert list(chunk.errors) == list(range(32, 64))
    assert chunk["x"].rows[:32].tolist() == list(range(32))


BLOSC = {
    "2": (2, {"compressors": {"id": "blosc"}}, "x/1"),
    "2 filter": (2, {"compressors": None, "filters": [numcodecs.Blosc()]}, "x/1"),
    "3": (3, {"compressors": zarr.codecs.BloscCodec()}, "x/c/1"),
    "3 numcodecs": (3, {"compressors": {"name": "numcodecs.blosc", "configuration": {}}}, "x/c/1"),
    "3 shards": (3, {"compressors": zarr.codecs.BloscCodec(), "shards": (64,)}, "x/c/1"),
}


@pytest.mark.parametrize("form", BLOSC)
@pytest.mark.parametrize(
    ("at", "told"),
    [(12, "expected a Blosc frame of 2147483647 bytes"), (4, "decodes to at most {} bytes")],
)
def test_blosc_frames_that_claim_too_much(tmp_path, form, at, told):
    version, options, file = BLOSC[form]
    data = np.arange(128)
    zarr_files.write(tmp_path / "a", {"x": (data, {"chunks": (32,), **options})}, version)
    corpus = ZarrDeserializer(tmp_path / "a", memory=1_000_000)
    assert corpus.read(0).values["x"].tolist() == data.tolist()
    chunk = tmp_path / "a" / file
    whole = bytearray(chunk.read_bytes())
    at += whole.index(b"\x02\x01")  # the versions that a frame's header begins with
    whole[at : at + 4] = b"\xff\xff\xff\x7f"
    chunk.write_bytes(whole)
    errors = corpus.read(0).errors
    rows = 64 if "shards" in form else 32  # of a file
    assert sorted(errors) == list(range(rows, rows + 32))
    assert told.format(8 * 8 * (64 if "shards" in form else 32) + (1 << 16)) in str(errors[rows])
    assert errors[rows].path == str(chunk)
    chunk.write_bytes(whole[:7])
    assert sorted(corpus.read(0).errors) == list(range(rows, 2 * rows))


@pytest.mark.parametrize("dtype", ["str", "bytes"])
@pytest.mark.parametrize("version", [2, 3])
def test_strings_that_claim_to_be_many(tmp_path, version, dtype):
    """As many as the bytes of a chunk can hold are still more than the chunk can have."""
    text = [f"row {k}" if dtype == "str" else b"row %d" % k for k in range(8)]
    data = np.array(text, np.dtypes.StringDType() if dtype == "str" else object)
    kind = str if dtype == "str" else zarr.dtype.VariableLengthBytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"chunks": (4,), "compressors": None, "dtype": kind}
        zarr_files.write(tmp_path / "a", {"x": (data, options)}, version)
        corpus = ZarrDeserializer(tmp_path / "a")
    assert corpus.read(0)["x"].tolist() == text
    chunk = tmp_path / "a" / "x" / ("1" if version == 2 else "c/1")
    for count, content in ((1 << 18, bytes(4 << 18)), (2**32 - 1, chunk.read_bytes()[4:])):
        chunk.write_bytes(count.to_bytes(4, "little") + content)
        tracemalloc.start()
        try:
            found = corpus.read(0)
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()
        assert list(found.errors) == [4, 5, 6, 7]
        assert f"at most 4 strings, got one of {count}" in str(found.errors[4])


def test_cut_files(tmp_path, path):
    """Of an uncompressed chunk, of a shard, whose index is at its end, and of an archive."""
    copy = shutil.copytree(path, tmp_path / "a.zarr")
    for file in ("number/c/1", "shards/c/2/0/0"):
        os.truncate(copy / file, (copy / file).stat().st_size - 3)
    number = ZarrDeserializer(copy, number=fl.Stream((), "i8")).read(0)
    assert sorted(number.errors) == list(range(64, 128))
    shards = ZarrDeserializer(copy, shards=fl.Stream((2, 3))).read(0)
    assert sorted(shards.errors) == list(range(100, 150))
    assert shards.errors[100].path == str(copy / "shards/c/2/0/0")
    zipped = Path(write(tmp_path / "a.zip", zipped=True))
    corpus = ZarrDeserializer(zipped, number=fl.Stream((), "i8"))
    whole = bytearray(zipped.read_bytes())
    with zipfile.ZipFile(zipped) as archive:
        at = archive.getinfo("number/c/2").header_offset
    whole[at + 100] ^= 1
    zipped.write_bytes(whole)
    errors = ZarrDeserializer(zipped, number=fl.Stream((), "i8")).read(0).errors
    assert sorted(errors) == list(range(128, 192))
    assert errors[128].path == f"{zipped}@/number/c/2"
    assert "CRC-32" in str(errors[128])
    corpus.close()
    zipped.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(fl.DataError, match="expected a zip archive"):
        ZarrDeserializer(zipped)


@contextlib.contextmanager
def described(path, name, change):
    """A context in which the document of an array is another."""
    file = next(one for one in (Path(path) / name / "zarr.json", Path(path) / name / ".zarray") if one.exists())
    before = file.read_text()
    about = json.loads(before)
    change(about)
    file.write_text(json.dumps(about))
    try:
        yield
    finally:
        file.write_text(before)


@pytest.fixture(scope="module", params=[2, 3])
def small(request, tmp_path_factory):
    """A store of few arrays, after its version."""
    path = tmp_path_factory.mktemp("small") / "a"
    return request.param, write(path, request.param, names=("rows", "number", "text"))


def test_missing_chunks_of_texts(small):
    """They have zarr's values. Older libraries wrote 0 or null."""
    version, path = small
    chunk = Path(path, "text", "3" if version == 2 else "c/3")
    before = chunk.read_bytes()
    chunk.unlink()
    try:
        for fill in (0, None, "", "é") if version == 2 else ("", "é"):
            with described(path, "text", lambda about, fill=fill: about.update(fill_value=fill)):
                found = everything(ZarrDeserializer(path, text=fl.Stream(dtype="str")))["text"].tolist()
                assert found == zarr_files.read(path, "text").tolist()
                assert found[33:44] == [str(fill or found[33])] * 11
    finally:
        chunk.write_bytes(before)


def test_without_the_library(path, monkeypatch):
    """The error names the package to install. Other formats do not need it."""
    monkeypatch.delitem(sys.modules, "feedline.feed.formats.hdf5_zarr.zarr_library")
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(ModuleNotFoundError, match=r"run: pip install .*\[zarr\]'"):
        fl.open_corpus(path)


PICKLED = {"id": "pickle", "protocol": 5}
PICKLES = {
    2: [
        lambda about: about.update(dtype="|O", filters=[PICKLED], compressor=None),
        lambda about: about.update(filters=[PICKLED]),
        lambda about: about.update(compressor=PICKLED),
    ],
    3: [
        lambda about: about.update(codecs=[{"name": "numcodecs.pickle"}]),
        lambda about: about["codecs"].insert(0, {"name": "sharding_indexed", "configuration": [PICKLED]}),
    ],
}


def test_nothing_is_unpickled(small, monkeypatch):
    """Wherever the codec is named: as filter, compressor or codec of version 3."""

    def decode(*_):
        raise AssertionError("unpickled")

    monkeypatch.setattr(numcodecs.pickles.Pickle, "decode", decode)
    version, path = small
    for change in PICKLES[version]:
        with described(path, "number", change):
            with pytest.raises(fl.SchemaError, match=r"got the codec `.*pickle`: .*number.*never unpickles"):
                ZarrDeserializer(path)
            assert list(ZarrDeserializer(path, rows=fl.Stream((2, 3))).schema) == ["rows"]


RAGGED = {"dtype": "|O", "filters": [{"id": "vlen-array", "dtype": "<i4"}]}
REFUSED = {
    2: [
        ("number", RAGGED, "objects with the codec `vlen-array`"),
        ("number", {"dtype": "|O", "filters": None}, "objects without a codec"),
        ("number", {"dtype": [["a", "<i4"], ["b", "<f4"]], "fill_value": None}, "compound records"),
        ("number", {"dtype": "<M8[s]", "fill_value": None}, r"dtype datetime64\[s\]"),
        ("number", {"compressor": {"id": "nobodys"}}, "got .*nobodys"),
    ],
    3: [
        ("number", {"codecs": [{"name": "nobodys"}]}, "got .*nobodys"),
        ("number", {"data_type": "raw"}, "raw"),
        ("text", {"shape": []}, "zarr library reads: ValueError"),
        ("number", {"shape": [10**20]}, "at most 9223372036854775807 rows"),
        ("number", {"chunk_grid": None}, "zarr library reads"),
        ("number", {"node_type": "thing"}, "nothing there|got a group"),
    ],
}


def test_what_is_refused_is_refused_by_name(small):
    version, path = small
    for name, change, message in REFUSED[version]:
        stream = fl.open_corpus(path).schema[name]
        refused = pytest.raises((fl.SchemaError, fl.DataError), match=message)
        with described(path, name, lambda about, change=change: about.update(change)), refused:
            ZarrDeserializer(path, {name: stream})


def test_scalars_and_tables_of_strings_are_refused(tmp_path):
    path = zarr_files.write(tmp_path / "s", {"scalar": (np.array(3), {}), "words": (np.array([["a", "b"]]), {})})
    for name, message in (("scalar", "got a scalar"), ("words", "expected one string per sequence")):
        with pytest.raises(fl.SchemaError, match=message):
            ZarrDeserializer(path, {name: fl.Stream()})


def grid(*chunks):
    return {"name": "regular", "configuration": {"chunk_shape": chunks}}


CLAIMS = [
    ("number", {"shape": [1 << 60]}, "at most 4194304 chunks"),
    ("number", {"shape": [1 << 40], "chunk_grid": grid(1 << 33)}, "chunks of at most 2147483648 bytes"),
    ("rows", {"shape": [10, 1 << 20, 1 << 20], "chunk_grid": grid(1, 1, 1)}, "at most 16384 of them across a row"),
]


def test_what_a_document_claims_is_bounded(tmp_path, path):
    for name, claim, message in CLAIMS:
        stream = fl.Stream(tuple(claim["shape"][1:]), "i8" if name == "number" else "f4")
        refused = pytest.raises(fl.DataError, match=message)
        with described(path, name, lambda about, claim=claim: about.update(claim)), refused:
            ZarrDeserializer(path, {name: stream})
    (tmp_path / "x").mkdir()
    for text in (b"", b"[]", b"{", b"[" * 100_000, b'{"zarr_format": 3}', b"\xff"):
        (tmp_path / "x" / "zarr.json").write_bytes(text)
        with pytest.raises((fl.DataError, fl.SchemaError)):
            ZarrDeserializer(tmp_path / "x")
    with pytest.raises(fl.DataError, match="expected chunks of at most 400 bytes"):
        ZarrDeserializer(path, number=fl.Stream((), "i8"), memory=400)


# ---- threads, forks, interrupts -------------------------------------------------------------------------


def test_nothing_runs_afterwards_and_event_loops_are_no_obstacle(path):
    """As in a notebook, whose thread runs one."""
    before = {thread.name for thread in threading.enumerate()}
    expected = everything(fl.open_corpus(path))

    async def reading():
        return everything(fl.open_corpus(path))

    assert asyncio.run(reading()) == expected
    started = {thread.name for thread in threading.enumerate()} - before
    assert not any(name.startswith(("zarr", "asyncio", "ThreadPool")) for name in started), started


FORKS = """
import sys, warnings
import zarr
import feedline as fl
warnings.simplefilter("ignore")  # of kinds of strings that version 3 does not specify
path = sys.argv[1]
rows = zarr.open_group(path, mode="r")["rows"][:]  # zarr's own loop and threads run from now on
corpus = fl.open_corpus(path)
corpus.read(0)
one = None
for workers in ({}, {"num_workers": 2, "multiprocessing_context": "fork"}, {"num_workers": 2, "workers": "thread"}):
    loader = fl.DataLoader(corpus, batch_size=50, shuffle=True, seed=1, collate_fn=list, **workers)
    found = [(int(item["number"]), str(item["text"])) for batch in loader for item in batch]
    one = one or found
    assert found == one and len(one) == len(rows), workers
print("well")
"""


def program(code, path):
    with Python(["-c", code, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as started:
        return started.communicate(timeout=120)


def test_workers_after_zarr_itself_has_read(path):
    """A forked child has none of the threads that zarr has started."""
    assert program(FORKS, path) == (b"well\n", b"")


INTERRUPTED = """
import asyncio, signal, sys, threading
import feedline as fl
from feedline.feed.formats.hdf5_zarr import zarr_library
corpus = fl.open_corpus(sys.argv[1])
expected = corpus.read(0)["rows"].rows.tolist()
reads, get = [0], zarr_library._Store.get
async def interrupted(self, key, prototype, byte_range=None):
    reads[0] += 1
    if reads[0] == at:
        signal.raise_signal(signal.SIGINT)
    return await get(self, key, prototype, byte_range)
zarr_library._Store.get = interrupted
before = threading.active_count()
for at in (1, 2, 7, 30):
    reads[0] = 0
    try:
        corpus.read(0)
        print("not interrupted")
    except KeyboardInterrupt:
        pass
    assert corpus.read(0)["rows"].rows.tolist() == expected
assert threading.active_count() == before
print("well")
"""


def test_an_interrupt_within_a_read(path):
    """It is a KeyboardInterrupt, without bad rows or warnings about pending tasks, and the next read is right."""
    assert program(INTERRUPTED, path) == (b"well\n", b"")


def test_functions_that_zarr_hands_over_run_here():
    """Their results and exceptions are returned. Tasks that are pending after another's error are cancelled."""
    left = []

    async def waits():
        try:
            await asyncio.sleep(1000)
        finally:
            left.append("cancelled")

    async def fails(error):
        task = asyncio.ensure_future(waits())
        await asyncio.sleep(0)
        assert await asyncio.to_thread(threading.get_ident) == threading.get_ident()
        await asyncio.to_thread(raises, error)
        await task

    def raises(error):
        raise error

    for error in (ValueError("damaged"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            zarr_library.run(lambda error=error: fails(error))
    assert left == ["cancelled"] * 2


def test_an_interrupt_waits_for_no_task():
    """Ctrl-C may cost a task the step that its end depends on. Here is one that is not ended by being cancelled."""
    waited = []

    async def patient():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.get_running_loop().create_future()
        waited.append(await asyncio.sleep(0.5))

    async def interrupted():
        task = asyncio.ensure_future(patient())
        await asyncio.sleep(0)
        raise KeyboardInterrupt
        await task

    with pytest.raises(KeyboardInterrupt):
        zarr_library.run(interrupted)
    assert not waited
