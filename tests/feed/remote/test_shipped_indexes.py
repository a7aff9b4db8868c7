"""Indexes that were shipped with objects: with them, opening reads no byte of a shard."""

from __future__ import annotations

import gzip
import io
import json
import tarfile

import pytest

import feedline as fl
from tests.feed.remote.conftest import delivered
from tests.servers.web import WebServer

ROWS = {"i": fl.Stream((), "int64")}
LABELS = {"y": fl.Stream((), "int64", field="cls")}
SUFFIX = ".feedline-index"
COUNT = 4


def shard(number, rows=5):
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for i in range(rows):
            info = tarfile.TarInfo(f"{number}-{i}.cls")
            info.size = 3
            archive.addfile(info, io.BytesIO(b"%03d" % (rows * number + i)))
    return sink.getvalue()


def read_of(store):
    """The objects of which bytes were read."""
    return {entry.name for entry in store.log() if entry.kind == "GET"}


@pytest.fixture(params=["tar", "tar.gz"])
def shards(request, store, options):
    """The names of shards in the store, with an index beside each."""
    names = [f"train/{k}.{request.param}" for k in range(COUNT)]
    for k, name in enumerate(names):
        store.put(f"b/{name}", gzip.compress(shard(k)) if name.endswith("gz") else shard(k))
    written = fl.index("s3://b/train", streams=LABELS, remote=fl.Remote(**options))
    assert written == [f"s3://b/{name}{SUFFIX}" for name in names]
    store.reset()
    return names


def test_opening_a_folder_reads_no_byte_of_a_shard(store, opened, shards):
    corpus = opened("train", **LABELS)
    assert read_of(store) == {f"b/{name}{SUFFIX}" for name in shards}
    assert store.counters().requests["GET"] == COUNT
    labels = [y for _, values in delivered(corpus, max_sweeps=1) for (y,) in values["y"]]
    assert sorted(labels) == list(range(5 * COUNT))


def test_of_a_pattern_or_a_list_the_first_shard_shows_the_format(store, opened, shards, tmp_path):
    suffix = shards[0].partition(".")[2]
    for k, what in enumerate((f"train/*.{suffix}", f"train/{{0..{COUNT - 1}}}.{suffix}", shards)):
        store.reset()
        corpus = opened(what, cache=tmp_path / f"cache {k}", **LABELS)
        assert read_of(store) == {f"b/{shards[0]}", *(f"b/{name}{SUFFIX}" for name in shards)}
        assert len(corpus.paths()) == COUNT


def test_the_same_sequences_and_state_as_from_scanned_shards(store, opened, shards, tmp_path):
    shipped = opened("train", cache=tmp_path / "one", **LABELS)
    for name in shards:
        store.put(f"b/scanned/{name}", store_bytes(store, name))
    scanned = opened("scanned/train", cache=tmp_path / "two", **LABELS)
    assert shipped.digest() == scanned.digest()
    assert delivered(shipped) == delivered(scanned)


def store_bytes(store, name):
    import urllib.request

    with urllib.request.urlopen(store.http(f"b/{name}")) as answer:
        return answer.read()


def test_a_replaced_shard_is_scanned_with_a_warning(store, opened, shards, caplog):
    changed = shard(7)
    store.put(f"b/{shards[2]}", gzip.compress(changed) if shards[2].endswith("gz") else changed)
    corpus = opened("train", **LABELS)
    assert [record.levelname for record in caplog.records if "shipped index" in record.message] == ["WARNING"]
    assert f"s3://b/{shards[2]}" in caplog.text
    labels = [y for _, values in delivered(corpus, max_sweeps=1) for (y,) in values["y"]]
    assert sorted(labels) == sorted([*range(10), *range(15, 20), *range(35, 40)])


@pytest.mark.parametrize("damage", ["cut", "a byte", "empty"])
def test_a_damaged_index_is_reported_and_not_used(store, opened, shards, caplog, damage):
    name = f"{shards[1]}{SUFFIX}"
    content = bytearray(store_bytes(store, name))
    if damage == "a byte":
        content[20] ^= 1
    store.put(f"b/{name}", bytes(content[: {"cut": 150, "empty": 0}.get(damage)]))
    corpus = opened("train", **LABELS)
    assert "is not usable" in caplog.text
    labels = [y for _, values in delivered(corpus, max_sweeps=1) for (y,) in values["y"]]
    assert sorted(labels) == list(range(5 * COUNT))


def test_indexes_of_a_disk_serve_an_object_store_and_a_web_server(store, opened, tmp_path):
    """They have no ETag, so three blocks of each shard are compared."""
    folder = tmp_path / "disk"
    folder.mkdir()
    for k in range(COUNT):
        (folder / f"{k}.jsonl").write_text("".join(json.dumps({"i": 10 * k + i}) + "\n" for i in range(10)))
    fl.index(folder, to=tmp_path / "indexes", streams=ROWS)
    contents = {f"/{k}.jsonl": (folder / f"{k}.jsonl").read_bytes() for k in range(COUNT)}
    contents |= {f"/{file.name}": file.read_bytes() for file in (tmp_path / "indexes").iterdir()}
    assert len(contents) == 2 * COUNT
    for name, content in contents.items():
        store.put(f"b/rows{name}", content)
    corpora = [opened("rows", **ROWS)]
    with WebServer(contents) as web:
        address, remote = f"{web.url}/{{0..{COUNT - 1}}}.jsonl", fl.Remote(cache=tmp_path / "web")
        corpora.append(fl.open_corpus(address, streams=ROWS, remote=remote))
        assert {f"/{k}.jsonl{SUFFIX}" for k in range(COUNT)} <= {
            asked.path for asked in web.log if asked.method == "GET"
        }
        for corpus in corpora:
            labels = [i for _, values in delivered(corpus, max_sweeps=1) for (i,) in values["i"]]
            assert sorted(labels) == list(range(10 * COUNT))
        with pytest.raises(ValueError, match="a web server; pass to="):
            fl.index(address, streams=ROWS, remote=remote)


def test_indexes_are_written_to_an_address(store, options, tmp_path):
    (tmp_path / "deep").mkdir()
    for k, name in enumerate(("0.tar", "deep/1.tar")):
        (tmp_path / name).write_bytes(shard(k))
    paths = [tmp_path / "0.tar", tmp_path / "deep" / "1.tar"]
    store.put("b/other.tar", shard(0))
    store.reset()
    written = fl.index(paths, to="s3://b/there", streams=LABELS, remote=fl.Remote(**options))
    assert written == [f"s3://b/there/{name}{SUFFIX}" for name in ("0.tar", "deep/1.tar")]
    assert sorted(entry.name for entry in store.log() if entry.kind == "PUT") == [
        f"b/there/{name}{SUFFIX}" for name in ("0.tar", "deep/1.tar")
    ]
