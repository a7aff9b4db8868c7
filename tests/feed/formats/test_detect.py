"""Guessing formats and streams."""

import gzip
import importlib
import io
import os
import pickle
import re
import shutil
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import feedline as fl
from feedline.data import Stream
from feedline.errors import DataError
from feedline.feed.files.paths import expand_braces
from feedline.feed.formats.cntk.ctf_streams import infer_ctf_streams
from feedline.feed.formats.detect import FORMATS, format_name, recognise
from tests.feed.formats.corpora import everything
from tests.oracles.cntk_files import htk, mlf


def ctf(tmp_path, text):
    (tmp_path / "t.ctf").write_bytes(text.encode() if isinstance(text, str) else text)
    return tmp_path / "t.ctf"


def test_streams_of_ctf_text(tmp_path):
    text = "﻿0 |x 1 2 3 |y 3:1 |# a comment | z 1\n0\t|x\t4 5\n1 |x 1|y 7:1 0:2\r\n2 |w 1 |y\n"
    assert infer_ctf_streams(ctf(tmp_path, text)) == {
        "x": Stream(3),
        "y": Stream(8, sparse=True),
        "w": Stream(1),
    }


def test_a_cut_last_line_is_left_out(tmp_path):
    path = ctf(tmp_path, "|x 1 2\n|x 1 2 3\n|x 1 2 3 4\n")
    assert infer_ctf_streams(path, scan_bytes=20)["x"].shape == (3,)
    assert infer_ctf_streams(path, scan_bytes=5)["x"].shape == (1,)
    assert infer_ctf_streams(path)["x"].shape == (4,)
    # The cut line alone would look dense.
    assert infer_ctf_streams(ctf(tmp_path, "|x 1:1\n|x 123:1\n"), scan_bytes=12)["x"] == Stream(2, sparse=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "samples such as"),
        ("a,b\n1,2\n", "samples such as(.*\n)*.*deserializer"),
        ("|x 1\n|x 1:2\n", "got both(.*\n)*.*:2"),
        ("|x 1 1:2\n", "got both"),
        ("|x 1:1 a:2\n", "index:value pairs, got `a:2`(.*\n)*.*declare"),
        (f"|x {'9' * 5000}:2\n", "index:value pairs, got `9{80}`"),
        ("|x 1 |y\n", "values of `y`"),
    ],
)
def test_text_without_information(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        infer_ctf_streams(ctf(tmp_path, text))


def test_formats_by_content_then_by_name(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3))
    np.savez(tmp_path / "b.npz", x=np.zeros(3))
    (tmp_path / "a.npy").rename(tmp_path / "a.bin")
    (tmp_path / "c.TXT").write_text("|x 1\n")
    (tmp_path / "d.csv").write_text("a\n1\n")
    (tmp_path / "e.parquet").write_bytes(b"PAR1")
    (tmp_path / "f.xyz").write_bytes(b"hello")
    found = {p.name: format_name(p) for p in tmp_path.iterdir() if p.suffix != ".xyz"}
    assert found == {"a.bin": "npy", "b.npz": "npz", "c.TXT": "ctf", "d.csv": "csv", "e.parquet": "parquet"}
    with pytest.raises(DataError, match="b'hello'"):
        format_name(tmp_path / "f.xyz")
    with pytest.raises(DataError, match="No such file"):
        format_name(tmp_path / "none")


def test_folders(tmp_path):
    with pytest.raises(DataError, match="a folder with"):
        format_name(tmp_path)
    np.save(tmp_path / "a.npy", np.zeros(3))
    assert format_name(tmp_path) == "npy folder"
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "e.parquet").write_bytes(b"PAR1")
    assert format_name(tmp_path) == "parquet"
    (tmp_path / "feedline.json").write_text("{}")
    assert format_name(tmp_path) == "store"


def test_folders_of_folders_name_the_ones_that_can_be_opened(tmp_path):
    for name in ("train", "val"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.json").write_text('{"version": 2, "shards": []}')
    (tmp_path / "logs").mkdir()
    with pytest.raises(fl.DataError, match=r"name a folder in it, or a list of them: train, val$"):
        fl.open_corpus(tmp_path)


# ---- content before names -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.parquet", "a.csv", "a", "a.txt"])
def test_content_goes_before_the_name(tmp_path, name):
    with open(tmp_path / name, "wb") as file:
        np.save(file, np.arange(4))
    assert format_name(tmp_path / name) == "npy"
    pq.write_table(pa.table({"x": [1]}), tmp_path / name)
    assert format_name(tmp_path / name) == "parquet"
    for text in ("|x 1\n", "17 |x 1 2\n", "\ufeff0\t|x 1:2\n"):
        (tmp_path / name).write_text(text, "utf-8")
        assert format_name(tmp_path / name) == "ctf"


FOREIGN = {
    "gzip": gzip.compress(b"|x 1\n"),
    "Zstandard": b"\x28\xb5\x2f\xfd" + bytes(20),
    "a Feather file (version 1)": b"FEA1" + bytes(20),
    "a Python pickle": pickle.dumps([1, 2]),
    "a JPEG picture": b"\xff\xd8\xff\xe0" + bytes(20),
    "a JSON document": b'{\n  "x": 1\n}\n',
}


@pytest.mark.parametrize("what", FOREIGN)
@pytest.mark.parametrize("suffix", ["", ".txt", ".parquet"])
def test_what_is_not_read_is_named_with_the_next_step(tmp_path, what, suffix):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(FOREIGN[what])
    with pytest.raises(DataError, match=f"reads, got {re.escape(what)}") as caught:
        fl.open_corpus(path)
    assert (caught.value.path, bool(caught.value.hint)) == (str(path), True)


@pytest.mark.parametrize("first", [0x7B, 640, 1152, 1408, 0x8B1F, 0x5A42])
def test_the_first_token_of_a_file_does_not_decide_its_format(tmp_path, first):
    """Its two bytes may be the first ones of JSON, pickles, gzip or bzip2."""
    np.array([65535, 65535, first, 0, 3, 0], "<u2").tofile(tmp_path / "pad.bin")  # or streams of Arrow's
    assert fl.open_corpus(tmp_path / "pad.bin", streams={"tokens": fl.Stream(2, "uint16")}).tokens == 6
    np.array([first, 1, 2, 3], "<u2").tofile(tmp_path / "train.bin")
    corpus = fl.open_corpus(tmp_path / "train.bin", streams={"tokens": fl.Stream(4, "uint16")})
    assert corpus.read(0)["tokens"].rows.tolist() == [[first, 1, 2, 3]]


@pytest.mark.parametrize("what", ["Zstandard"])
def test_a_bin_file_that_is_surely_something_else(tmp_path, what):
    (tmp_path / "a.bin").write_bytes(FOREIGN[what])
    with pytest.raises(DataError, match=f"reads, got {what}"):
        fl.open_corpus(tmp_path / "a.bin", streams={"tokens": fl.Stream(4, "uint16")})
    with zipfile.ZipFile(tmp_path / "a.bin", "w") as archive:
        archive.writestr("archive/data.pkl", b"")
    with pytest.raises(DataError, match="a PyTorch checkpoint"):
        fl.open_corpus(tmp_path / "a.bin", streams={"tokens": fl.Stream(4, "uint16")})
    (tmp_path / "a.bin").write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")  # as torch.save once began
    with pytest.raises(DataError, match="a PyTorch checkpoint"):
        fl.open_corpus(tmp_path / "a.bin", streams={"tokens": fl.Stream(4, "uint16")})


def test_archives_are_looked_into(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.arange(3))
    os.rename(tmp_path / "x.npz", tmp_path / "x")
    assert fl.open_corpus(tmp_path / "x").schema["x"].dtype == np.int64
    for name, what in (("archive/data.pkl", "a PyTorch checkpoint"), ("a.txt", "a zip archive")):
        with zipfile.ZipFile(tmp_path / "y", "w") as archive:
            archive.writestr(name, b"")
        with pytest.raises(DataError, match=what):
            fl.open_corpus(tmp_path / "y")
    (tmp_path / "z").write_bytes(b"PK\x03\x04 damaged")
    with pytest.raises(DataError, match="a zip archive"):
        fl.open_corpus(tmp_path / "z")


def test_every_format_has_its_own_name():
    assert len({form.name for form in FORMATS}) == len(FORMATS)
    suffixes = [suffix for form in FORMATS for suffix in form.suffixes]
    assert len(set(suffixes)) == len(suffixes)


# ---- several files --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a", ["a"]),
        ("a{}b{x}", ["a{}b{x}"]),
        ("a{x,y}", ["ax", "ay"]),
        ("{x,}b", ["xb", "b"]),
        ("{8..11}", ["8", "9", "10", "11"]),
        ("{08..11}", ["08", "09", "10", "11"]),
        ("{3..1}", ["3", "2", "1"]),
        ("{-1..1}", ["-1", "0", "1"]),
        ("{0..0}", ["0"]),
        ("{a,b}/{0..1}.x", ["a/0.x", "a/1.x", "b/0.x", "b/1.x"]),
    ],
)
def test_braces(pattern, names):
    assert expand_braces(pattern) == names


@pytest.mark.parametrize("pattern", ["{0..9999999}", "{0..1999}{0..1999}"])
def test_too_many_names_are_refused(pattern):
    with pytest.raises(ValueError, match="at most 1048576 names"):
        expand_braces(pattern)


@pytest.fixture
def shards(tmp_path):
    """Twelve CTF and twelve Parquet files, of 3 sequences each that count on."""
    for i in range(12):
        rows = range(3 * i, 3 * i + 3)
        (tmp_path / f"t-{i:02d}.ctf").write_text("".join(f"|x {k}\n" for k in rows))
        pq.write_table(pa.table({"x": pa.array(rows, pa.float32())}), tmp_path / f"t-{i:02d}.parquet")
    return tmp_path


def numbers(corpus):
    return np.concatenate([corpus.read(i)["x"].rows.ravel() for i in range(len(corpus.chunks()))]).astype(int).tolist()


@pytest.mark.parametrize("kind", ["ctf", "parquet"])
def test_patterns_and_lists(shards, kind):
    whole = list(range(36))
    path = str(shards / "t-")
    assert numbers(fl.open_corpus(f"{path}*.{kind}")) == whole
    assert numbers(fl.open_corpus(f"{path}{{00..11}}.{kind}")) == whole
    assert numbers(fl.open_corpus(f"{path}{{01,00}}.{kind}")) == [3, 4, 5, 0, 1, 2]
    assert numbers(fl.open_corpus([f"{path}1?.{kind}", f"{path}00.{kind}"])) == [*range(30, 36), 0, 1, 2]
    loader = fl.DataLoader(f"{path}{{00..02}}.{kind}", batch_size=9)
    assert next(iter(loader))["x"].ravel().tolist() == list(range(9))
    fl.convert(f"{path}{{00..11}}.{kind}", shards / "store")
    assert numbers(fl.open_corpus(shards / "store")) == whole


def test_folders_of_several_files(shards):
    assert numbers(fl.open_corpus(shards)) == list(range(36))  # the Parquet in it, as ever
    for path in shards.glob("*.parquet"):
        path.unlink()
    assert numbers(fl.open_corpus(shards)) == list(range(36))


def write_mds(folder, rows):
    source = Path(__file__).parents[2] / "fixtures" / "mds" / "raw"
    shutil.copytree(source, folder)


def write_parquet(folder, rows):
    folder.mkdir()
    pq.write_table(pa.table({"x": pa.array(rows, pa.float32())}), folder / "a.parquet")


def write_arrow(folder, rows):
    folder.mkdir()
    table = pa.table({"x": pa.array(rows, pa.float32())})
    with pa.ipc.new_stream(str(folder / "a.arrow"), table.schema) as stream:
        stream.write_table(table)


def write_tar(folder, rows):
    folder.mkdir()
    (folder / "notes.txt").write_text("|x 1\n")
    with tarfile.open(folder / "a.tar", "w") as archive:
        for row in rows:
            member = tarfile.TarInfo(f"{row}.cls")
            member.size = len(str(row))
            archive.addfile(member, io.BytesIO(str(row).encode()))


def write_texts(folder, rows):
    folder.mkdir()
    (folder / "a.ctf").write_text("".join(f"|x {row}\n" for row in rows))


def write_zarr(folder, rows):
    pytest.importorskip("zarr")
    from tests.feed.formats import zarr_files

    zarr_files.write(folder, {"x": (np.array(rows, np.float32), {"chunks": (2,)})})


FOLDERS = {
    "arrow": write_arrow,
    "ctf": write_texts,
    "mds": write_mds,
    "parquet": write_parquet,
    "tar": write_tar,
    "zarr": write_zarr,
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_patterns_and_braces_may_match_folders(tmp_path, kind):
    """A pattern that matched only folders was refused, and braces were taken for the files in them."""
    for i in range(3):
        FOLDERS[kind](tmp_path / f"f-{i}", range(3 * i, 3 * i + 3))
    listed = fl.open_corpus([tmp_path / f"f-{i}" for i in range(3)])
    expected = everything(listed)
    assert len(fl.open_corpus(tmp_path / "f-1").chunks()) < len(listed.chunks())
    for pattern in ("f-*", "f-?", "f-{0..2}", "f-{0,1,2}"):
        found = fl.open_corpus(str(tmp_path / pattern))
        assert (everything(found), type(found)) == (expected, type(listed)), pattern
    backwards = recognise(str(tmp_path / "f-{2,1}")).paths
    assert [part for path in backwards for part in Path(path).parts if part.startswith("f-")] == ["f-2", "f-1"]
    with pytest.raises(DataError, match="No such file"):
        fl.open_corpus(str(tmp_path / "f-{0..5}"))
    with pytest.raises(DataError, match="got none"):
        fl.open_corpus(str(tmp_path / "g-*"))


def test_a_pattern_that_matches_files_means_these_files_alone(shards):
    (shards / "t-12.ctf").mkdir()
    assert numbers(fl.open_corpus(str(shards / "t-*.ctf"))) == list(range(36))


@pytest.mark.parametrize("kind", ["store", "npy"])
def test_folders_that_cannot_be_one_corpus(tmp_path, kind):
    for i in range(2):
        if kind == "store":
            fl.convert(fl.ArrayDeserializer(x=np.arange(3)), tmp_path / f"f-{i}")
        else:
            (tmp_path / f"f-{i}").mkdir()
            np.save(tmp_path / f"f-{i}" / "x.npy", np.arange(3))
    for pattern in ("f-*", "f-{0..1}"):
        with pytest.raises(DataError, match="got 2, which cannot be read as one corpus"):
            fl.open_corpus(str(tmp_path / pattern))


@pytest.mark.parametrize("name", ["a.parquet", "a.npy", "a.tar", "a.arrow"])
def test_other_files_of_a_folder_are_reported(tmp_path, caplog, name):
    """Once, and only of files that another format would read."""
    for other in (name, "README.md", "notes.txt", "more.JSONL", "table.csv", "tokens.bin"):
        (tmp_path / other).touch()
    form = format_name(tmp_path)
    assert form.startswith(name.removeprefix("a."))
    recognise(tmp_path)
    (told,) = caplog.messages
    assert "are read, not more.JSONL and 1 more" in told
    assert str(tmp_path) in told


def test_files_that_do_not_go_together(shards):
    with pytest.raises(DataError, match=r"expected files of one format, got a CTF file .*t-00\.ctf.* and a Parquet"):
        fl.open_corpus(str(shards / "t-*"))
    with pytest.raises(DataError, match=r"expected a file \(and 1 more of 14\): No such file"):
        fl.open_corpus(str(shards / "t-{00..13}.ctf"))
    with pytest.raises(DataError, match=r"expected files at .*got none"):
        fl.open_corpus(str(shards / "u-*.ctf"))
    with pytest.raises(ValueError, match="at least one path"):
        fl.open_corpus([])
    for name in "ab":
        np.save(shards / f"{name}.npy", np.arange(3))
    with pytest.raises(DataError, match="expected a NumPy file, got 2"):
        fl.open_corpus(str(shards / "?.npy"))
    with pytest.raises(DataError, match="local path, got an address"):
        recognise("s3://bucket/a.parquet")


@pytest.mark.parametrize("what", [None, 3, b"a.ctf", {"a.ctf"}])
def test_what_is_neither_a_path_nor_a_list_of_them(what):
    with pytest.raises(TypeError, match=f"a pattern or a list of these, got {type(what).__name__}"):
        fl.open_corpus(what)


def test_a_name_with_braces_is_a_name(tmp_path):
    (tmp_path / "{a,b}.ctf").write_text("|x 1\n")
    assert recognise(tmp_path / "{a,b}.ctf").paths == [str(tmp_path / "{a,b}.ctf")]


def test_formats_of_cntk_and_htk(tmp_path):
    """By content first, as ctf2bin's files have any name. Each opens as with its deserializer."""
    fl.write_cbf(tmp_path / "a.bin", x=np.arange(3.0))
    (tmp_path / "b.lab").write_text(mlf({"u": [(2, "x 1")]}))
    (tmp_path / "u.mfc").write_bytes(htk(np.ones((4, 2))))
    (tmp_path / "c.scp").write_text("u=.../u.mfc[0,3]\n")
    found = {name: format_name(tmp_path / name) for name in ("a.bin", "b.lab", "c.scp")}
    assert found == {"a.bin": "cbf", "b.lab": "mlf", "c.scp": "htk"}
    assert isinstance(fl.open_corpus(tmp_path / "a.bin"), fl.CBFDeserializer)
    assert isinstance(fl.open_corpus(tmp_path / "c.scp"), fl.HTKFeatureDeserializer)
    assert isinstance(fl.open_corpus(tmp_path / "b.lab", streams={"y": Stream(2, sparse=True)}), fl.MLFDeserializer)
    with pytest.raises(DataError, match="declared stream for labels"):
        fl.open_corpus(tmp_path / "b.lab")
    with pytest.raises(ValueError, match="a CBF"):
        fl.convert(tmp_path / "a.bin", tmp_path / "b.cbf")
    fl.convert(tmp_path / "a.bin", tmp_path / "store")
    assert fl.StoreDeserializer(tmp_path / "store").read(0)["x"].rows.tolist() == [[0], [1], [2]]


@pytest.mark.parametrize(
    "array",
    [np.zeros(3, [("a", "i4")]), np.arange(3).astype("M8[s]"), np.array(3.0)],
    ids=["records", "dates", "scalar"],
)
def test_arrays_that_are_no_streams_name_their_file(tmp_path, array):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(fl.SchemaError, match=r"a\.npy"):
        fl.open_corpus(tmp_path / "a.npy")


@pytest.mark.parametrize("dtype", ["S0", "U0", "V0", "int64"])
def test_rows_without_values_are_no_more_than_bytes_of_their_file(tmp_path, dtype):
    shape = (10**12, 0) if dtype == "int64" else (10**12,)
    with open(tmp_path / "a.npy", "wb") as file:
        descr = np.dtype(dtype).str
        np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    with pytest.raises(fl.DataError, match=r"1000000000000 rows without values[\s\S]*a\.npy"):
        fl.open_corpus(tmp_path / "a.npy")


def test_a_member_of_npz_that_is_no_array_is_refused_by_name(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(3))
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("readme.txt", "text")
    with pytest.raises(fl.SchemaError, match=r"got bytes[\s\S]*readme\.txt[\s\S]*a\.npz"):
        fl.open_corpus(tmp_path / "a.npz")


def test_an_array_without_rows_is_named(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((0, 3)))
    with pytest.raises(fl.DataError, match=r"got none in `x`[\s\S]*a\.npy"):
        fl.open_corpus(tmp_path / "a.npy")


def test_what_a_schema_refuses_names_the_file(tmp_path):
    np.savez(tmp_path / "a.npz", **{"": np.arange(3)})
    with pytest.raises(fl.SchemaError, match=r"expected a non-empty string[\s\S]*a.npz"):
        fl.open_corpus(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.json", b'[{"a": 1}, {"a": 2}]', "a JSON list"),
        ("a.safetensors", (80).to_bytes(8, "little") + b'{"x":{"dtype":"F32"', "a file of safetensors"),
    ],
)
def test_what_else_is_known_is_named(tmp_path, name, content, told):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(fl.DataError, match=told):
        fl.open_corpus(tmp_path / name)


def test_names_that_are_not_utf_8(tmp_path):
    """Each format that is mapped, read or fetched."""
    name = os.path.join(os.fsencode(tmp_path), b"caf\xe9")
    table = pa.table({"i": np.arange(50)})
    with pa.OSFile(str(tmp_path / "t"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    os.rename(tmp_path / "t", name + b".arrow")
    pq.write_table(table, tmp_path / "t")
    os.rename(tmp_path / "t", name + b".parquet")
    fl.convert(fl.ArrayDeserializer(i=np.arange(50)), str(tmp_path / "t"))
    os.rename(tmp_path / "t", name + b".store")
    with open(name + b".jsonl", "w") as text:
        text.write("".join(f'{{"i": {i}}}\n' for i in range(50)))
    with open(name + b".npy", "wb") as file:
        np.save(file, np.arange(50))
    for suffix in ("arrow", "parquet", "store", "jsonl", "npy"):
        path = os.fsdecode(name) + f".{suffix}"
        source = fl.MinibatchSource(fl.open_corpus(path), shuffle=False, seed=1)
        (value,) = source.next_minibatch(5).values()
        assert value.rows.tolist() == list(range(5)), suffix


def test_every_function_that_a_format_names_is_there():
    """Openers are text, so that nothing is imported before it is needed: no tool sees what a rename forgot."""
    named = [text for fmt in FORMATS for text in fmt if isinstance(text, str) and re.fullmatch(r"[\w.]+:\w+", text)]
    assert len(named) >= len(FORMATS)
    for module, name in (text.split(":") for text in named):
        assert callable(getattr(importlib.import_module(module), name)), f"{module}:{name}"
