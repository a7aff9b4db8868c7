"""A store written to a bucket equals the local one, byte for byte, after any failure. A reader sees all of it or
none."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import feedline as fl
from feedline import _native
from feedline.data import Chunk, Schema, Stream, Value
from feedline.feed.formats.cntk.ctf_write import write_ctf
from feedline.feed.protocol import ChunkInfo, Deserializer
from feedline.feed.remote import stores
from tests.cli import shell
from tests.docs.pages import IMPORTED_FROM, ROOT
from tests.feed.remote.conftest import delivered
from tests.inside import open_corpora

PART = 16 << 10  # parts of uploads are this small here


class Rows(Deserializer):
    """40 chunks of 50 sequences, ragged from the tenth on. With `SMALL`, a store has some twenty files."""

    schema = Schema({"x": Stream(64), "y": Stream((), "int64")})

    def __init__(self, seconds=0.0):
        self.seconds = seconds

    def chunks(self):
        return [ChunkInfo(50, 50, 1000)] * 40

    def read(self, chunk):
        time.sleep(self.seconds)
        numbers = np.arange(50 * chunk, 50 * chunk + 50)
        rng = np.random.default_rng(chunk)
        rows = [rng.random((int(n) % 4 if chunk > 9 else 1, 64), np.float32) for n in numbers]
        return Chunk(self.schema, {"x": Value.from_sequences(rows), "y": Value.from_dense(numbers)})

    def digest(self):
        return "00"


SMALL = {"chunk_bytes": 10_000, "part_bytes": 40_000}


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path):
    """Parts of uploads are small, and work files are in the test's folder."""
    monkeypatch.setattr(stores, "WRITE_BYTES", PART)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))


@pytest.fixture
def bucket(store):
    store.put("b/other", b"not ours")
    return store


@pytest.fixture
def to(options):
    return {"remote": fl.Remote(**options), **SMALL}


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def objects_of(store, folder="b/out/store"):
    bucket, _, prefix = folder.partition("/")
    found = {}
    for name in store.contents.names(bucket):
        if (key := name.decode()).startswith(f"{prefix}/"):
            with contextlib.closing(store.contents.open(bucket, key)) as opened:
                found[key[len(prefix) + 1 :]] = bytes(opened.data)
    return found


def written(store):
    """Names of objects in the order in which they appeared."""
    log = [entry for entry in store.log() if entry.kind in ("PUT", "COMPLETE") and entry.status == 200]
    return [entry.name.rpartition("/")[2] for entry in log]


def recorded(tmp_path, there):
    """Names of files that the program knows to have arrived. At most two others were in flight."""
    names = {json.loads(path.read_bytes())[0] for path in (tmp_path / "user").rglob("upload-*.json")}
    assert len(set(there) - names) <= 2
    return names


def left_over(tmp_path):
    folder = tmp_path / "user" / "feedline" / "converting"
    return sorted(path.name for path in folder.rglob("*")) if folder.exists() else []


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    folder = tmp_path_factory.mktemp("local")
    fl.convert(Rows(), folder / "store", **SMALL)
    return bytes_of(folder / "store")


@pytest.mark.parametrize(
    "more",
    [{}, {"jobs": 2}, {"compression": "lz4"}, {"shuffle": 4, "memory": 500_000}, {"part_bytes": 1 << 30}],
    ids=["one", "jobs", "compressed", "shuffled", "one file"],
)
def test_a_corpus_is_the_same_store(bucket, to, tmp_path, more):
    here = fl.convert(Rows(), tmp_path / "store", **SMALL | more)
    there = fl.convert(Rows(), "s3://b/out/store/", **to | more)
    assert objects_of(bucket) == bytes_of(tmp_path / "store")
    assert there == here._replace(path="s3://b/out/store/")
    assert bucket.unfinished() == left_over(tmp_path) == []
    assert bucket.counters().requests["UPLOAD"] >= 1
    corpus = fl.open_corpus(
        "s3://b/out/store", remote=fl.Remote(cache=tmp_path / "cache", storage_options=to["remote"].storage_options)
    )
    assert corpus.digest() == fl.open_corpus(tmp_path / "store").digest()
    assert delivered(corpus) == delivered(fl.open_corpus(tmp_path / "store"))
    corpus.close()


def test_a_dataset_and_a_path_are_the_same_stores(bucket, to, tmp_path):
    write_ctf(tmp_path / "t.ctf", x=[np.full((1 + i % 3, 2), i, np.float32) for i in range(3000)])
    items = [{"x": np.full(3, i), "text": "t" * i} for i in range(500)]
    for name, source in (("path", tmp_path / "t.ctf"), ("dataset", items)):
        fl.convert(source, tmp_path / name, **SMALL)
        fl.convert(source, f"s3://b/{name}", **to)
        assert objects_of(bucket, f"b/{name}") == bytes_of(tmp_path / name)


def test_from_one_bucket_to_another_folder(bucket, to, tmp_path):
    np.save(tmp_path / "x.npy", np.arange(3000.0).reshape(1000, 3))
    bucket.put("b/in/x.npy", (tmp_path / "x.npy").read_bytes())
    fl.convert(tmp_path / "x.npy", tmp_path / "store", **SMALL)
    fl.convert("s3://b/in/x.npy", "s3://b/out/store", **to)
    fl.convert("s3://b/in/x.npy", tmp_path / "again", **to)
    assert objects_of(bucket) == bytes_of(tmp_path / "store") == bytes_of(tmp_path / "again")
    with pytest.raises(ValueError, match="destination outside the data to read"):
        fl.convert("s3://b/in", "s3://b/in/store", **to)


def test_the_disk_holds_what_is_on_its_way_and_the_manifest_comes_last(bucket, to, tmp_path, local):
    most, seen, refused = 0, [], 0

    def look(done, total):
        nonlocal most, refused
        there = objects_of(bucket)
        most = max(most, len(list((tmp_path / "work").rglob("part-*.arrow"))))
        if there and not refused and done < total:
            refused += 1
            with pytest.raises(fl.DataError, match=r"expected a whole store, got .* without feedline\.json") as caught:
                fl.open_corpus(
                    "s3://b/out/store",
                    remote=fl.Remote(cache=tmp_path / "cache", storage_options=to["remote"].storage_options),
                )
            assert caught.value.path == "s3://b/out/store"
        seen.append(len(there))

    fl.convert(Rows(), "s3://b/out/store", progress=look, work=tmp_path / "work", **to)
    assert refused == 1
    assert most <= 3  # one that is written, two that are sent
    assert seen[-1] >= len(local) - 5
    names = written(bucket)
    assert names[-1] == "feedline.json"
    assert sorted(names) == sorted(local)


# ---- interrupted -------------------------------------------------------------------------------------

PROGRAM = """
    import json, os, signal, sys, time
    import feedline as fl
    from feedline.feed.remote import stores
    from tests.feed.remote.test_convert import PART, Rows

    stores.WRITE_BYTES = PART
    how = json.loads(sys.argv[1])
    after, remote = how.pop("kill_after", None), fl.Remote(**how.pop("remote"))

    def progress(done, total):
        print(done, flush=True)
        if after is not None and done >= after:
            os.kill(os.getpid(), signal.SIGKILL)

    fl.convert(Rows(0.02), "s3://b/out/store", progress=progress, remote=remote, **how)
"""


def started(how):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([IMPORTED_FROM, str(ROOT)])}
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(PROGRAM),
            json.dumps({**how, "remote": dataclasses.asdict(how["remote"])}),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


@pytest.mark.slow
@pytest.mark.parametrize("lost", [False, True])
def test_after_a_kill_whole_files_are_not_sent_again(bucket, to, tmp_path, local, lost):
    with started({**to, "kill_after": 25_000}) as program:
        _, said = program.communicate(timeout=60)
    assert program.returncode == -signal.SIGKILL, said
    assert "feedline.json" not in objects_of(bucket)
    recorded = [json.loads(path.read_bytes())[0] for path in (tmp_path / "user").rglob("upload-*.json")]
    assert len(recorded) >= 3
    if lost:  # somebody has removed one of them
        gone = sorted(recorded)[1]
        bucket.contents.delete("b", f"out/store/{gone}")
        recorded.remove(gone)
    bucket.reset()
    seen = []
    fl.convert(Rows(), "s3://b/out/store", progress=lambda done, total: seen.append(done), **to)
    assert objects_of(bucket) == local
    assert not set(written(bucket)) & set(recorded)
    assert min(seen) > (1000 if lost else 10_000)  # complete files are not read again
    assert left_over(tmp_path) == []


LARGE = {"part_bytes": 250_000}  # more parts than are sent at a time


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    fl.convert(Rows(), folder / "store", **SMALL | LARGE)
    return bytes_of(folder / "store")


@pytest.mark.slow
def test_ctrl_c_leaves_no_upload_and_the_same_call_goes_on(bucket, to, large, tmp_path):
    bucket.set(bytes_per_second=400_000)
    with started(to | LARGE) as program:
        for _ in range(1000):
            if bucket.unfinished() and objects_of(bucket):
                break
            time.sleep(0.02)
        program.send_signal(signal.SIGINT)
        _, said = program.communicate(timeout=60)
    assert "KeyboardInterrupt" in said
    assert "call again to continue" in said
    # Aborted, or, if all of it had been handed over, ended as it should.
    assert bucket.unfinished() == []
    there = objects_of(bucket)
    assert there
    assert "feedline.json" not in there
    known = recorded(tmp_path, there)
    bucket.reset()
    bucket.set(bytes_per_second=None)
    fl.convert(Rows(), "s3://b/out/store", **to | LARGE)
    assert objects_of(bucket) == large
    assert not set(written(bucket)) & known


def test_an_error_of_the_source_leaves_no_upload(bucket, to, large):
    class Stop(Exception):
        pass

    def stop(done, total):
        if bucket.unfinished():
            raise Stop

    bucket.set(bytes_per_second=400_000)
    with pytest.raises(Stop):
        fl.convert(Rows(0.01), "s3://b/out/store", progress=stop, **to | LARGE)
    assert bucket.counters().requests["ABORT"] >= 1
    assert bucket.unfinished() == []
    bucket.set(bytes_per_second=None)
    fl.convert(Rows(), "s3://b/out/store", **to | LARGE)
    assert objects_of(bucket) == large


# ---- faults ------------------------------------------------------------------------------------------

ONE = "*/part-00001.arrow"  # what fails more than three times is not sent by the first attempt
HARMLESS = {
    "unavailable": {"kind": "status", "request": "PART", "status": 503, "skip": 2, "times": 2},
    "unavailable for long": {"kind": "status", "request": "PART", "key": ONE, "status": 503, "times": 12},
    "unavailable for now": {"kind": "status", "request": None, "status": 503, "retry_after": 1, "skip": 9, "times": 6},
    "too many": {"kind": "status", "request": "UPLOAD", "status": 429, "times": 4},
    "internal": {"kind": "status", "request": "COMPLETE", "key": ONE, "status": 500, "times": 4},
    "dropped": {"kind": "drop", "request": "UPLOAD", "key": ONE, "times": 4},
    "reset": {"kind": "reset", "request": "PART", "at": 0, "skip": 1, "times": 4},
    "lost": {"kind": "lost", "request": "COMPLETE", "times": 1},
    "lost parts": {"kind": "lost", "request": "PART", "every": 3, "times": 9},
    "lost manifest": {"kind": "lost", "request": "PUT", "key": "*/feedline.json"},
    "manifest refused": {"kind": "status", "request": "PUT", "key": "*/feedline.json", "status": 500, "times": 3},
    "no conditions": {"kind": "status", "request": "PUT", "key": "*/feedline.json", "status": 501},
}


@pytest.mark.parametrize("name", HARMLESS)
def test_a_fault_that_passes_changes_nothing(bucket, to, tmp_path, local, name):
    fault = bucket.fail(**HARMLESS[name])
    fl.convert(Rows(), "s3://b/out/store", **to)
    assert objects_of(bucket) == local
    assert fault.hits == HARMLESS[name].get("times", 1)
    assert bucket.unfinished() == left_over(tmp_path) == []


def test_what_is_compared_after_an_answer_was_lost_is_asked_for_again(bucket, to, local):
    """The manifest: whether the one that is there is ours."""
    bucket.fail("lost", request="PUT", key="*/feedline.json")
    fault = bucket.fail("status", request="GET", key="*/feedline.json", status=503, times=2)
    fl.convert(Rows(), "s3://b/out/store", **to)
    assert fault.hits == 2
    assert objects_of(bucket) == local


def test_a_stores_time_to_wait_is_respected(bucket, to, local):
    bucket.fail("status", key="b/out/store/part-00001.arrow", request=None, retry_after=2, times=4)
    began = time.monotonic()
    fl.convert(Rows(), "s3://b/out/store", **to)
    assert time.monotonic() - began >= 1.9
    assert objects_of(bucket) == local
    refused = [entry for entry in bucket.log() if entry.status == 503]
    assert [entry.kind for entry in refused] == ["UPLOAD"] * 3 + ["GET"]  # the last one asks how long to wait


def test_a_refusal_names_the_object_and_is_repeated_once(bucket, to, tmp_path, local):
    again = bucket.fail("status", key="*/part-00000.arrow", request="COMPLETE", status=500, times=4)
    fault = bucket.fail("status", key="*/part-00003.arrow", request=None, status=403, times=None)
    with pytest.raises(fl.DataError, match=r"expected to store .* got no success after 2 attempts in") as caught:
        fl.convert(Rows(), "s3://b/out/store", **to)
    assert caught.value.path == "s3://b/out/store/part-00003.arrow"
    assert again.hits == 4
    assert "credentials" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert fault.hits == 2
    assert bucket.unfinished() == []
    bucket.heal()
    there = objects_of(bucket)
    for path in (tmp_path / "user").rglob("upload-*.json"):
        name, size, crc, _ = json.loads(path.read_bytes())
        assert (size, crc) == (len(there[name]), _native.crc32c(there[name]))
    known = recorded(tmp_path, there)
    bucket.reset()
    fl.convert(Rows(), "s3://b/out/store", **to)
    assert objects_of(bucket) == local
    assert not set(written(bucket)) & known


def test_a_part_that_is_refused_ends_the_upload(bucket, to):
    bucket.fail("status", key="*/part-00002.arrow", request="PART", status=403, skip=1, times=None)
    with pytest.raises(fl.DataError, match=r"part-00002\.arrow"):
        fl.convert(Rows(), "s3://b/out/store", **to)
    assert bucket.unfinished() == []


def test_a_store_that_never_takes_it_is_an_error_with_all_that_was_tried(bucket, to):
    bucket.fail("status", key="*/part-00001.arrow", request="COMPLETE", status=500, times=None)
    with pytest.raises(fl.DataError, match=r"got no success after \d+ attempts in .* 500") as caught:
        fl.convert(
            Rows(),
            "s3://b/out/store",
            **to | {"remote": fl.Remote(storage_options=to["remote"].storage_options, deadline_s=1.5)},
        )
    assert caught.value.path == "s3://b/out/store/part-00001.arrow"
    assert bucket.unfinished() == []


def test_no_bucket_is_an_error_at_once(store, to, tmp_path):
    with pytest.raises(fl.DataError, match="s3://none"):
        fl.convert(Rows(), "s3://none/store", **to)
    assert left_over(tmp_path) == []


def test_an_object_that_another_writer_changes_is_an_error(bucket, to):
    def change(done, total):
        if done == total:
            bucket.put("b/out/store/part-00000.arrow", b"something else")

    with pytest.raises(fl.DataError, match="something else writes to or deletes from the same place") as caught:
        fl.convert(Rows(), "s3://b/out/store", progress=change, **to)
    assert caught.value.path == "s3://b/out/store/part-00000.arrow"
    assert "feedline.json" not in objects_of(bucket)


# ---- existing objects --------------------------------------------------------------------------------


def test_what_is_there_is_refused_as_in_a_folder(bucket, to, tmp_path, local):
    np.save(tmp_path / "x.npy", np.arange(3000.0).reshape(1000, 3))
    fl.convert(Rows(), "s3://b/out/store", **to)
    before = objects_of(bucket)
    with pytest.raises(FileExistsError, match="s3://b/out/store exists; pass overwrite=True"):
        fl.convert(tmp_path / "x.npy", "s3://b/out/store", **to)
    assert objects_of(bucket) == before
    bucket.put("b/out/store/notes.txt", b"mine")
    bucket.reset()
    fl.convert(tmp_path / "x.npy", "s3://b/out/store", overwrite=True, **to)
    fl.convert(tmp_path / "x.npy", tmp_path / "store", **SMALL)
    assert objects_of(bucket) == bytes_of(tmp_path / "store") | {"notes.txt": b"mine"}
    first = next(i for i, entry in enumerate(bucket.log()) if entry.kind in ("PUT", "UPLOAD"))
    assert any(entry.kind.startswith("DELETE") for entry in bucket.log()[:first])  # of the old manifest
    for name in ("b/mixed/notes.txt", "b/single"):
        bucket.put(name, b"not ours")
        for overwrite in (False, True):
            with pytest.raises(FileExistsError, match="is not a feedline store, but has 1 objects such as"):
                fl.convert(Rows(), f"s3://{name.removesuffix('/notes.txt')}", overwrite=overwrite, **to)
    assert objects_of(bucket, "b/mixed") == {"notes.txt": b"not ours"}


def test_a_name_that_is_taken_meanwhile_stays(bucket, to):
    fault = bucket.fail("changed", key="*/feedline.json", request="PUT", replacement=b"another", times=1)
    with pytest.raises(FileExistsError, match="meanwhile"):
        fl.convert(Rows(), "s3://b/out/store", **to)
    assert fault.hits == 1
    assert objects_of(bucket)["feedline.json"] == b"another"


def test_leftovers_of_an_unfinished_store_are_replaced(bucket, to, local):
    bucket.put("b/out/store/part-00000.arrow", b"half")
    bucket.put("b/out/store/part-00099.arrow", b"half")
    fl.convert(Rows(), "s3://b/out/store", **to)
    assert objects_of(bucket) == local


def test_arguments(bucket, to, tmp_path):
    with pytest.raises(ValueError, match="a web server"):
        fl.convert(Rows(), bucket.http("b/store"), remote=fl.Remote(deadline_s=1.0))
    with pytest.raises(ValueError, match="expected work= only with an address, got"):
        fl.convert(Rows(), tmp_path / "store", work=tmp_path)
    with pytest.raises(ValueError, match="expected remote= only with an address as source or destination"):
        fl.convert(Rows(), tmp_path / "store", remote=fl.Remote(storage_options={}))
    with pytest.raises(ValueError, match=r"fl\.convert writes to object stores"):
        fl.StoreWriter("s3://b/store", Rows.schema)
    with pytest.raises(ValueError, match="names a Parquet file"):
        fl.convert(Rows(), "s3://b/store.parquet", **to)
    assert list(tmp_path.iterdir()) == []


def test_another_conversion_is_not_stopped_by_a_corpus_that_is_closed(bucket, to, tmp_path, local):
    np.save(tmp_path / "x.npy", np.arange(30.0))
    bucket.put("b/x.npy", (tmp_path / "x.npy").read_bytes())

    def look(done, total):
        fl.open_corpus(
            "s3://b/x.npy", remote=fl.Remote(cache=tmp_path / "cache", storage_options=to["remote"].storage_options)
        ).close()

    before = open_corpora()  # by corpora that other tests have open
    fl.convert(Rows(), "s3://b/out/store", progress=look, **to)
    assert objects_of(bucket) == local
    assert open_corpora() == before


def test_through_fsspec(to, tmp_path, local):
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    fl.convert(Rows(), "memory://bucket/out/store", **SMALL)
    system = fsspec.filesystem("memory")
    there = {path.rpartition("/")[2]: system.cat_file(path) for path in system.find("/bucket/out/store")}
    assert there == local
    corpus = fl.open_corpus("memory://bucket/out/store", remote=fl.Remote(cache=tmp_path / "cache"))
    assert sum(info.sequences for info in corpus.chunks()) == 2000
    corpus.close()
    with pytest.raises(FileExistsError):
        fl.convert(Rows(), "memory://bucket/out/store", **SMALL)


def test_the_command(bucket, tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.arange(30.0).reshape(10, 3))
    fl.convert(tmp_path / "x.npy", tmp_path / "one")
    for name, value in {
        "AWS_ENDPOINT_URL": bucket.url,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setitem(shell.ENV, name, value)
    done = shell.feedline("convert", tmp_path / "x.npy", "s3://b/out/store", "--work", tmp_path / "work", "--json")
    assert json.loads(done.stdout)["store"] == "s3://b/out/store"
    assert objects_of(bucket) == bytes_of(tmp_path / "one")
