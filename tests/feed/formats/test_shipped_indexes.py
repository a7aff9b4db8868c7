"""Indexes that are written beside files: copied with them they are used, and stale or damaged ones are not."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

import feedline as fl
from feedline.testing import sequences_of
from tests.cli.shell import feedline
from tests.feed.formats.test_tar import member
from tests.oracles import recordio
from tests.oracles.tfrecord import example, tfrecords

SUFFIX = ".feedline-index"


def write_tar(path, mode="w"):
    with tarfile.open(path, mode) as archive:
        for i in range(20):
            member(archive, f"{i:03}.bin", bytes([i]) * 5000)


WRITERS = {
    "tar": write_tar,
    "tar.gz": lambda path: write_tar(path, "w:gz"),
    "jsonl": lambda path: path.write_text("".join(json.dumps({"i": i, "x": [1] * (i % 3)}) + "\n" for i in range(20))),
    "csv": lambda path: path.write_text("i\n" + "".join(f"{i}\n" for i in range(20))),
    "ctf": lambda path: path.write_text("".join(f"{i // 2} |i {i}\n" for i in range(20))),
    "tfrecord": lambda path: path.write_bytes(tfrecords([example(y=[i]) for i in range(20)])),
    "rec": lambda path: path.write_bytes(b"".join(recordio.record(recordio.packed(float(i))) for i in range(20))),
    "mlf": lambda path: path.write_text(
        "#!MLF!#\n" + "".join(f'"*/{i}.lab"\n0 {100_000 * (1 + i % 3)} s {i % 4}\n.\n' for i in range(20))
    ),
}


def opened(path):
    streams = {"labels": fl.Stream(4, sparse=True)} if path.suffix == ".mlf" else {}
    return fl.open_corpus(path, streams=streams)


def indexed(path):
    streams = {"labels": fl.Stream(4, sparse=True)} if path.suffix == ".mlf" else {}
    return fl.index(path, streams=streams)


def delivered(corpus):
    return sequences_of(fl.MinibatchSource(corpus, seed=2, max_sweeps=1).minibatches(3))


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("form", WRITERS)
def test_a_copied_index_is_used(tmp_path, form):
    """Opening writes an index only where it had to scan."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    path = one / f"data.{form}"
    WRITERS[form](path)
    expected, digest = delivered(opened(path)), opened(path).digest()
    assert indexed(path) == [f"{path}{SUFFIX}"]
    for name in (path.name, f"{path.name}{SUFFIX}"):
        shutil.copyfile(one / name, two / name)
        os.utime(two / name, (1, 1))
    copied = opened(two / path.name)
    assert names_in(two) == sorted([path.name, f"{path.name}{SUFFIX}"])
    assert copied.digest() == digest
    assert delivered(copied) == expected


@pytest.mark.parametrize(
    "change", ["another size", "the head", "the tail", "cut index", "damaged index", "damaged entries"]
)
def test_a_stale_or_damaged_index_is_reported_and_not_used(tmp_path, caplog, change):
    path = tmp_path / "a.tar"
    write_tar(path)
    (index,) = fl.index(path)
    for cached in tmp_path.glob(f"*.*.*{SUFFIX}"):
        cached.unlink()
    content, indexed = bytearray(path.read_bytes()), bytearray((tmp_path / f"a.tar{SUFFIX}").read_bytes())
    if change == "another size":
        content[11264:11264] = bytes(512)  # between two samples
    elif change == "the head":
        content[512] ^= 1
    elif change == "the tail":
        content[-1] = 1
    elif change == "cut index":
        del indexed[-10:]
    elif change == "damaged index":
        indexed[50] ^= 1
    else:
        indexed[128 + 30] ^= 1
    path.write_bytes(content)
    (tmp_path / f"a.tar{SUFFIX}").write_bytes(indexed)
    assert index == f"{path}{SUFFIX}"
    caplog.clear()
    if change == "the tail":
        with pytest.raises(fl.DataError, match="expected"):
            list(fl.MinibatchSource(fl.open_corpus(path), max_sweeps=1).minibatches(5))
        assert "shipped index" in caplog.text
        return
    corpus = fl.open_corpus(path)
    rows = [i for m in fl.MinibatchSource(corpus, max_sweeps=1).minibatches(5) for i in m.ids.tolist()]
    assert sorted(rows) == list(range(20))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    reason = {"another size": "bytes, and the file has", "the head": "another content"}.get(change, "index")
    assert reason in caplog.text


def test_an_index_that_is_written_again_is_of_the_file_as_it_is(tmp_path):
    """A change between head, middle and tail that keeps the size does not show in the shipped index."""
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"t": "x" * (i % 90)}) + "\n" for i in range(10_000)]
    path.write_text("".join(lines))
    (index,) = fl.index(path)
    before = Path(index).read_bytes()
    lines[2500], lines[2501] = lines[2501], lines[2500]
    path.write_text("".join(lines))
    fl.index(path)
    assert Path(index).read_bytes() != before
    minibatch = fl.MinibatchSource(fl.open_corpus(path), shuffle=False).next_minibatch(10_000)
    assert minibatch["t"].tolist() == [json.loads(line)["t"] for line in lines]


def test_other_streams_need_another_index(tmp_path, caplog):
    path = tmp_path / "a.jsonl"
    WRITERS["jsonl"](path)
    fl.index(path)
    for cached in tmp_path.glob(f"*.*.*{SUFFIX}"):
        cached.unlink()
    fl.open_corpus(path)
    assert not caplog.records
    corpus = fl.open_corpus(path, streams={"i": fl.Stream((), "int64")})
    assert "it was made for other streams" in caplog.text
    assert corpus.chunks()[0].samples == 20


def test_a_change_of_a_file_in_use_is_still_noticed(tmp_path):
    path = tmp_path / "a.tar"
    write_tar(path)
    fl.index(path)
    os.utime(path, (5, 5))
    corpus = fl.open_corpus(path)
    corpus.read(0)
    os.utime(path, (6, 6))
    with pytest.raises(fl.DataError, match="has changed since"):
        corpus.read(0)


def test_indexes_in_another_folder_keep_their_paths(tmp_path):
    for name in ("a/x.tar", "b/x.tar"):
        (tmp_path / "data" / name).parent.mkdir(parents=True)
        write_tar(tmp_path / "data" / name)
    paths = [tmp_path / "data" / "a" / "x.tar", tmp_path / "data" / "b" / "x.tar"]
    written = fl.index(paths, to=tmp_path / "out")
    assert written == [str(tmp_path / "out" / name) for name in (f"a/x.tar{SUFFIX}", f"b/x.tar{SUFFIX}")]
    shown = feedline("index", *paths, "--to", tmp_path / "again", "--json")
    assert json.loads(shown.stdout) == {"indexes": [place.replace("/out/", "/again/") for place in written]}
    for place in written:
        assert Path(place).read_bytes() == Path(place.replace("/out/", "/again/")).read_bytes()
    assert feedline("index", paths[0]).stdout.strip() == f"{paths[0]}{SUFFIX}"


def test_formats_without_an_index_and_folders_that_are_not_writable_are_named(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(5))
    with pytest.raises(fl.DataError, match="expected files that are scanned when they are first opened"):
        fl.index(tmp_path / "a.npy")
    write_tar(tmp_path / "a.tar")
    (tmp_path / "file").touch()
    with pytest.raises(fl.DataError, match="expected to write an index, got"):
        fl.index(tmp_path / "a.tar", to=tmp_path / "file")


def test_a_large_frame_has_no_index_that_is_of_use(tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "a.csv.zst").write_bytes(pa.compress(b"i\n" + b"1\n" * (17 << 20), "zstd", asbytes=True))
    with pytest.raises(fl.DataError, match="expected Zstandard with access points"):
        fl.index(tmp_path / "a.csv.zst")
