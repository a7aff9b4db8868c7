"""HDF5 files written by h5py have the values that h5py reads. Damage, links and wrong sizes."""

from __future__ import annotations

import itertools
import os
import random
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest

import feedline as fl
from feedline.feed.formats.hdf5_zarr import hdf5
from feedline.feed.formats.hdf5_zarr.hdf5 import HDF5Deserializer
from feedline.feed.protocol import can

h5py = pytest.importorskip("h5py")

COUNT = 300
DRAW = random.Random(5)
TEXTS = [f"{i}é" * (i % 4) for i in range(COUNT)]
BLOBS = [bytes(DRAW.randrange(1, 256) for _ in range(i % 7)) for i in range(COUNT)]
PICTURES = [np.frombuffer(DRAW.randbytes(i % 50), "u1") for i in range(COUNT)]
RAGGED = [np.arange(i % 5, dtype="i4") + i for i in range(COUNT)]
ROWS = np.arange(COUNT * 6, dtype="f4").reshape(COUNT, 2, 3)
NUMBERS = np.arange(COUNT)


def write(path, part=slice(None), **options):
    """Every kind of dataset, in one file."""
    size = len(NUMBERS[part])
    vectors = (("ragged", RAGGED, "i4"), ("picture", PICTURES, "u1"))
    with h5py.File(path, "w", **options) as file:
        file["rows"] = ROWS[part]
        file["number"] = NUMBERS[part]
        file.create_dataset("blocks", data=ROWS[part], chunks=(min(7, size), 2, 2), compression="gzip", shuffle=True)
        file.create_dataset("text", data=TEXTS[part], chunks=(min(11, size),))
        file["blob"] = BLOBS[part]
        file["fixed"] = np.array([b"a" * (i % 4) for i in NUMBERS[part]], "S3")
        file["flag"] = NUMBERS[part] % 3 == 0
        file["big"] = NUMBERS[part].astype(">i4")
        file["imaginary"] = NUMBERS[part] * 1j
        file.create_dataset("never", shape=(size,), dtype="f8", fillvalue=7)
        for name, rows, dtype in vectors:
            made = file.create_dataset(
                name, (len(rows[part]),), h5py.vlen_dtype(np.dtype(dtype)), chunks=(min(13, size),)
            )
            for i, row in enumerate(rows[part]):
                made[i] = row
        file["below/deeper/rows"] = ROWS[part] * 2
    return str(path)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("hdf5") / "a.h5")


def everything(corpus):
    chunks = [corpus.read(i) for i in range(len(corpus.chunks()))]
    assert [chunk.num_sequences for chunk in chunks] == [info.sequences for info in corpus.chunks()]
    assert not any(chunk.errors for chunk in chunks)
    return {name: [one for chunk in chunks for one in chunk[name].tolist()] for name in corpus.schema}


@pytest.mark.parametrize("userblock", [0, 512])
@pytest.mark.parametrize("chunk_sequences", [None, 1, 37])
def test_equal_to_what_h5py_reads_back(tmp_path, userblock, chunk_sequences):
    path = write(tmp_path / "a.h5", userblock_size=userblock)
    corpus = HDF5Deserializer(path, chunk_sequences=chunk_sequences)
    found = everything(corpus)
    with h5py.File(path) as file:
        assert set(found) == set(file) - {"below"}
        for name in ("rows", "number", "blocks", "fixed", "flag", "big", "imaginary", "never"):
            assert found[name] == file[name][:].tolist(), name
        assert found["text"] == file["text"].asstr()[:].tolist() == TEXTS
        assert found["blob"] == file["blob"][:].tolist() == BLOBS
        for name in ("ragged", "picture"):
            assert [list(row) for row in found[name]] == [row.tolist() for row in file[name][:]], name
    kinds = {name: (stream.shape, stream.dtype.name) for name, stream in corpus.schema.items()}
    assert kinds["rows"] == ((2, 3), "float32")
    assert (kinds["text"][1], kinds["blob"][1], kinds["big"][1], kinds["flag"][1]) == ("str", "bytes", "int32", "bool")
    assert corpus.lengths(np.arange(60)).tolist() == [max(1, i % 50, i % 5) for i in range(60)]


def test_contiguous_numbers_are_views_and_nothing_else_is(path):
    corpus = HDF5Deserializer(path, rows=fl.Stream((2, 3)), n=fl.Stream((), "int64", field="number"))
    assert can(corpus, fl.RandomAccess, fl.Sliceable)
    assert corpus.in_runs
    assert not corpus.in_memory
    chunk = corpus.read(0)
    assert not chunk["rows"].rows.flags.owndata
    assert not chunk["rows"].rows.flags.writeable
    assert chunk.seals
    for name in ("blocks", "text", "flag", "big", "never", "ragged"):
        stream = HDF5Deserializer(path).schema[name]
        assert not can(HDF5Deserializer(path, {name: stream}), fl.RandomAccess), name


def test_declarations_select_convert_nothing_and_go_down(path):
    corpus = HDF5Deserializer(
        path,
        p=fl.Stream(dtype="bytes", field="picture"),
        t=fl.Stream(dtype="bytes", field="text"),
        d=fl.Stream((2, 3), field="below/deeper/rows"),
    )
    found = everything(corpus)
    assert found["p"] == [picture.tobytes() for picture in PICTURES]
    assert found["t"] == [text.encode() for text in TEXTS]
    assert found["d"] == (ROWS * 2).tolist()
    assert corpus.lengths(np.arange(3)) is None
    assert everything(HDF5Deserializer(path, group="below/deeper"))["rows"] == (ROWS * 2).tolist()
    for wrong in (fl.Stream((3, 2)), fl.Stream((2, 3), "f8"), fl.Stream(6, sparse=True), fl.Stream(dtype="str")):
        with pytest.raises(fl.SchemaError, match="for stream `rows`, got"):
            HDF5Deserializer(path, rows=wrong)
    with pytest.raises(fl.SchemaError, match=r"got nothing there; there are: .*below/deeper/rows \(300, 2, 3\)"):
        HDF5Deserializer(path, missing=fl.Stream(2))
    with pytest.raises(fl.SchemaError, match="expected a dataset, got a group"):
        HDF5Deserializer(path, below=fl.Stream(2))
    with pytest.raises(fl.SchemaError, match="expected datasets in `/below`"):
        HDF5Deserializer(path, group="below")


def test_several_files_are_one_corpus(tmp_path, path, monkeypatch):
    monkeypatch.setattr(hdf5, "_MAX_OPEN", 2)
    bounds = [0, 1, 80, 200, COUNT]
    for i, (a, b) in enumerate(itertools.pairwise(bounds)):
        write(tmp_path / f"part-{i}.h5", slice(a, b))
    corpus = fl.open_corpus(tmp_path / "part-{0..3}.h5")
    assert everything(corpus) == everything(HDF5Deserializer(path))
    ordinals = np.array([299, 0, 79, 80, 80, 1])
    assert corpus.lengths(ordinals).tolist() == HDF5Deserializer(path).lengths(ordinals).tolist()
    assert corpus.select(ordinals)["text"].tolist() == [TEXTS[i] for i in ordinals]
    with h5py.File(tmp_path / "part-9.h5", "w") as file:
        file["rows"] = ROWS
    with pytest.raises(fl.SchemaError, match=r"part-9\.h5"):
        fl.open_corpus([tmp_path / "part-0.h5", tmp_path / "part-9.h5"])


def test_a_damaged_block_costs_its_rows_and_no_others(tmp_path):
    path = write(tmp_path / "a.h5")
    with h5py.File(path) as file:
        infos = []
        file["blocks"].id.chunk_iter(infos.append)
    for info in infos:
        if info.chunk_offset == (70, 0, 0):
            with open(path, "r+b") as file:
                file.seek(info.byte_offset)
                file.write(b"\0" * info.size)
    corpus = HDF5Deserializer(path, blocks=fl.Stream((2, 3)), number=fl.Stream((), "int64"))
    chunk = corpus.read(0)
    assert sorted(chunk.errors) == list(range(70, 77))
    error = chunk.errors[72]
    assert (error.path, error.sequence, error.stream) == (path, 72, "blocks")
    source = fl.MinibatchSource(corpus, max_sweeps=1, on_error=fl.Quarantine(str(tmp_path / "q")))
    seen = sorted(i for minibatch in source.minibatches(30) for i in minibatch["number"].rows.tolist())
    assert seen == [i for i in range(COUNT) if not 70 <= i < 77]


@pytest.mark.parametrize("options", [{}, {"chunks": (10,)}, {"chunks": (10,), "compression": "gzip", "shuffle": True}])
@pytest.mark.parametrize("userblock", [0, 512])
def test_a_damaged_heap_is_an_error_and_no_endless_loop(tmp_path, options, userblock):
    """The HDF5 library would walk its objects forever if one has no size."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", userblock_size=userblock) as file:
        file.create_dataset("text", data=["x" * 100] * 2000, **options)
        file["number"] = np.arange(2000)
    text = bytearray(path.read_bytes())
    heap = text.index(b"GCOL")
    text[heap + 16 : heap + 32] = bytes(16)
    path.write_bytes(text)
    corpus = HDF5Deserializer(path)
    chunk = corpus.read(0)
    assert 0 < len(chunk.errors) < 2000
    assert "heap" in str(next(iter(chunk.errors.values())))


def test_cut_files(tmp_path):
    text = Path(write(tmp_path / "whole.h5")).read_bytes()
    path = tmp_path / "cut.h5"
    for size in (0, 7, 100, 600, len(text) // 2, len(text) - 1):
        path.write_bytes(text[:size])
        with pytest.raises(fl.DataError, match="HDF5"):
            HDF5Deserializer(path)
    path.write_bytes(text)
    corpus = HDF5Deserializer(path, rows=fl.Stream((2, 3)))
    lazily = HDF5Deserializer(path, blocks=fl.Stream((2, 3)))
    lazily.close()
    os.truncate(path, 3000)
    with pytest.raises(fl.DataError):
        corpus.read(0).take(np.arange(COUNT))
    with pytest.raises(fl.DataError, match="has changed"):
        next(iter(fl.MinibatchSource(lazily)))


def test_a_file_written_again_with_the_same_size_is_another(tmp_path):
    path = write(tmp_path / "a.h5")
    corpus = HDF5Deserializer(path, blocks=fl.Stream((2, 3)))
    corpus.close()
    status = os.stat(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(fl.DataError, match="has changed"):
        next(iter(fl.MinibatchSource(corpus)))


def test_what_is_refused_is_refused_by_name(tmp_path):
    path = str(tmp_path / "a.h5")
    other = write(tmp_path / "b.h5")
    layout = h5py.VirtualLayout((COUNT,), "i8")
    layout[:] = h5py.VirtualSource(other, "number", (COUNT,))
    with h5py.File(path, "w") as file:
        file["scalar"] = 1
        file["record"] = np.zeros(3, [("a", "i4"), ("b", "f4")])
        file["words"] = [["a", "b"]]
        file["link"] = h5py.ExternalLink(other, "rows")
        file["soft"] = h5py.SoftLink("/link")
        file["loop"] = h5py.SoftLink("/loop")
        file["reference"] = np.array([file["record"].ref], h5py.ref_dtype)
        file.create_virtual_dataset("virtual", layout)
        file.create_dataset("outside", (5,), "i4", external=[(str(tmp_path / "raw"), 0, 20)])
        file.create_dataset("none", data=h5py.Empty("f4"))
    refusals = {
        "scalar": "got a scalar",
        "record": "got compound records",
        "words": "one string or vector per sequence",
        "link": "got a link to .*b.h5",
        "soft": "got a link to .*b.h5",
        "loop": "at most 16 links",
        "reference": "dtype object",
        "virtual": "a virtual dataset",
        "outside": "stored in another file",
        "none": "an empty dataset",
    }
    for name, message in refusals.items():
        with pytest.raises(fl.SchemaError, match=message):
            HDF5Deserializer(path, {name: fl.Stream()})


def test_what_a_file_claims_is_bounded(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("many", (1 << 60,), "u1", chunks=(1 << 10,))
        file.create_dataset("block", (1 << 32,), "u1", chunks=(1 << 31,), compression="gzip")
        file.create_dataset("vectors", (1 << 40,), h5py.vlen_dtype(np.int32), chunks=(1 << 10,))
        file["x"] = np.arange(1000)
        file["texts"] = ["x" * 1000] * 100
    for name, stream, memory, message in (
        ("many", fl.Stream((), "u1"), 1 << 30, "at most 4194304 chunks"),
        ("block", fl.Stream((), "u1"), 1 << 30, "blocks of at most 1073741824 bytes"),
        ("vectors", fl.Stream((), "i4"), 1 << 30, "rows"),
    ):
        with pytest.raises(fl.DataError, match=message):
            HDF5Deserializer(path, {name: stream}, memory=memory)
    chunk = HDF5Deserializer(path, texts=fl.Stream(dtype="str"), memory=5000, chunk_sequences=100).read(0)
    assert len(chunk.errors) == 100
    assert "raise memory=" in str(chunk.errors[3])


@pytest.mark.parametrize("kind", ["text", "dense", "vectors"])
def test_a_chunk_takes_no_more_than_memory_though_its_blocks_do_not(tmp_path, kind):
    """Damage is found by bisection, and each half fits. The limit is for the delivered chunk."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        if kind == "text":
            file.create_dataset("x", data=["x" * 600] * 64, chunks=(4,))
        elif kind == "dense":
            file.create_dataset("x", data=np.ones((64, 600), "u1"), chunks=(4, 600))
        else:
            made = file.create_dataset("x", (64,), h5py.vlen_dtype(np.int32), chunks=(4,))
            made[:] = [np.arange(150)] * 64
    stream = {"text": fl.Stream(dtype="str"), "dense": fl.Stream((600,), "u1"), "vectors": fl.Stream((), "i4")}[kind]
    chunk = HDF5Deserializer(path, x=stream, memory=10000, chunk_sequences=64).read(0)
    assert (len(chunk.errors), chunk["x"].num_sequences) == (64, 64)
    assert "at most 10000 bytes" in str(chunk.errors[63])
    assert chunk.errors[63].sequence == 63
    fits = HDF5Deserializer(path, x=stream, memory=10000, chunk_sequences=8)
    assert not any(fits.read(i).errors for i in range(8))
    if kind == "vectors":
        assert fits.lengths(np.arange(64)).tolist() == [150] * 64


def test_lengths_equal_the_counted_ones(path, monkeypatch):
    corpus = HDF5Deserializer(path, ragged=fl.Stream((), "i4"), chunk_sequences=100)
    column = corpus._parts[0]._columns["ragged"]
    column.offsets = column.offsets.copy()
    column.offsets[150:] += 1
    assert not corpus.read(0).errors
    assert 149 - 100 in corpus.read(1).errors


def test_recognised_by_content(tmp_path, path):
    renamed = tmp_path / "data.unknown"
    renamed.write_bytes(Path(path).read_bytes())
    assert isinstance(fl.open_corpus(renamed, streams={"number": fl.Stream((), "int64")}), HDF5Deserializer)
    names = ("text", "ragged", "blocks", "picture")
    streams = {name: HDF5Deserializer(path).schema[name] for name in names}
    store = fl.convert(HDF5Deserializer(path, streams), tmp_path / "store")
    assert store.sequences == COUNT
    copy = fl.StoreDeserializer(tmp_path / "store").select(NUMBERS)
    assert copy["text"].tolist() == TEXTS
    assert [list(row) for row in copy["ragged"].sequences()] == [row.tolist() for row in RAGGED]
    renamed.write_text("no HDF5")
    with pytest.raises(fl.DataError, match="HDF5"):
        HDF5Deserializer(renamed)


def test_links_are_followed_or_named(tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = np.arange(4.0)
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["y"] = np.arange(4)
        file["below/z"] = np.arange(4.0)
        file["z"] = h5py.SoftLink("/below/z")
        file["elsewhere"] = h5py.ExternalLink("other.h5", "x")
        file["nowhere"] = h5py.SoftLink("/gone")
    with pytest.warns(UserWarning, match="links .*'elsewhere' .*other.h5.*'nowhere'"):
        corpus = HDF5Deserializer(path)
    assert sorted(corpus.schema) == ["y", "z"]
    assert corpus.read(0)["z"].tolist() == [0, 1, 2, 3]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        HDF5Deserializer(path, y=fl.Stream((), "int64"))
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["z"] = h5py.SoftLink("/below/z")
        file["below/z"] = np.arange(4.0)
        file["here"] = h5py.SoftLink(".")
        file["again"] = h5py.SoftLink("./here/./z")
    assert sorted(HDF5Deserializer(tmp_path / "b.h5").schema) == ["again", "z"]
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["elsewhere"] = h5py.ExternalLink("other.h5", "x")
    with pytest.raises(fl.SchemaError, match=r"link to other\.h5"):
        HDF5Deserializer(tmp_path / "c.h5")


def test_links_over_links_are_followed_only_so_often(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(4)
        file["l0"] = h5py.SoftLink("/")
        for i in range(1, 9):
            file[f"l{i}"] = h5py.SoftLink(f"/l{i - 1}" * 50)
    with pytest.warns(UserWarning, match=r"'l1' \(expected at most 16 links"):
        assert list(HDF5Deserializer(tmp_path / "a.h5").schema) == ["x"]


def test_names_that_are_not_utf_8_are_left_out_with_a_warning(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(4)
        file[b"\xff"] = np.arange(4)
    with pytest.warns(UserWarning, match=r"not UTF-8.*b'\\xff'"):
        corpus = HDF5Deserializer(tmp_path / "a.h5")
    assert list(corpus.schema) == ["x"]


def test_a_dimension_of_netcdf_without_a_variable_is_no_stream(tmp_path):
    path = tmp_path / "a.nc"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(4.0)
        file["time"] = np.arange(4)
        file["time"].make_scale("time")
        file["n"] = np.zeros(4, ">f4")
        file["n"].make_scale("This is a netCDF dimension but not a netCDF variable.         4")
    assert sorted(HDF5Deserializer(path).schema) == ["time", "x"]


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"fletcher32": True}])
def test_a_stored_block_that_expands_beyond_its_size_is_damage(tmp_path, options):
    """A small block can become any number of bytes, and the library makes them all."""
    packer = zlib.compressobj(9)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(200)) + packer.flush()
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("x", (20,), "<i8", chunks=(10,), compression="gzip", **options)
        dataset[:10] = np.arange(10)
        dataset.id.write_direct_chunk((10,), bomb, filter_mask=2 if "fletcher32" in options else 0)
    chunk = fl.HDF5Deserializer(tmp_path / "a.h5").read(0)
    assert list(chunk.errors) == list(range(10, 20))
    assert chunk["x"].tolist()[:10] == list(range(10))
    assert "block of at most" in str(chunk.errors[10])
