"""Servers of other projects: the same bytes as from a disk."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import feedline as fl
from tests.feed.remote.conftest import delivered
from tests.feed.remote.test_faults import STREAMS, archive, lines, rows
from tests.servers import real

FILES = {"a.jsonl": lines(), "b.tar": archive(60, 20_000), "c.parquet": rows(4)}
DECLARED = {"a.jsonl": STREAMS, "b.tar": {}, "c.parquet": {}}


@pytest.fixture
def local(tmp_path):
    """The files on a disk."""
    folder = tmp_path / "root" / "bucket"
    folder.mkdir(parents=True)
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    return folder


def same(local, address, tmp_path, options, names=tuple(FILES)):
    for name in names:
        with contextlib.closing(
            fl.open_corpus(
                f"{address}/{name}",
                streams=DECLARED[name],
                remote=fl.Remote(cache=tmp_path / "cache", storage_options=options, deadline_s=30.0),
            )
        ) as corpus:
            assert delivered(corpus) == delivered(fl.open_corpus(local / name, streams=DECLARED[name]))


@pytest.mark.frameworks
def test_moto_checks_signatures(local, tmp_path):
    import obstore
    from obstore.store import S3Store

    with real.moto() as server:
        real.make_bucket(server, "bucket")
        store = S3Store("bucket", **server.s3())
        for name, data in FILES.items():
            obstore.put(store, name, data)
        same(local, "s3://bucket", tmp_path, server.s3())
        wrong = {**server.s3(), "secret_access_key": "wrong"}
        with pytest.raises(fl.DataError, match="credentials"):
            fl.open_corpus(
                "s3://bucket/a.jsonl",
                streams=STREAMS,
                remote=fl.Remote(cache=tmp_path / "other", storage_options=wrong),
            )


@pytest.mark.frameworks
def test_rclone_serves_http(local, tmp_path):
    with real.rclone_http(local.parent) as server:
        same(local, f"{server.url}/bucket", tmp_path, {})


@pytest.mark.frameworks
def test_azurite_has_azures_blobs(local, tmp_path):
    import obstore
    from obstore.store import AzureStore

    with real.azurite() as server:
        real.make_container(server, "bucket")
        store = AzureStore("bucket", **server.azure())
        for name, data in FILES.items():
            obstore.put(store, name, data)
        same(local, "az://bucket", tmp_path, server.azure())
        numbers = fl.ArrayDeserializer(x=np.arange(3000.0).reshape(300, 10))
        fl.convert(
            numbers,
            "az://bucket/out/store",
            chunk_bytes=4000,
            part_bytes=9000,
            remote=fl.Remote(storage_options=server.azure()),
        )
        there = fl.open_corpus(
            "az://bucket/out/store", remote=fl.Remote(cache=tmp_path / "c", storage_options=server.azure())
        )
        assert delivered(there, shuffle=False) == delivered(numbers, shuffle=False)


OPENS = """
import json, sys
import feedline as fl
print("begun", flush=True)
fl.open_corpus(sys.argv[1], remote=fl.Remote(sys.argv[2], storage_options=json.loads(sys.argv[3])))
"""


def test_ctrl_c_ends_what_waits_for_a_store(store, tmp_path):
    import json

    store.put("b/a.jsonl", lines())
    store.fail("stall", key="b/a.jsonl", request="GET", at=10, seconds=600, times=None)
    command = [sys.executable, "-c", OPENS, "s3://b/a.jsonl", str(tmp_path / "cache"), json.dumps(store.s3())]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.readline()
    while not store.counters().requests["GET"]:
        time.sleep(0.01)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=150)
    assert "KeyboardInterrupt" in errors
    assert os.listdir(tmp_path / "cache" / "holders") == []


def read_in_child(corpus, results):
    try:
        results.put(corpus.read(0).num_sequences)
    except BaseException as error:
        results.put(f"{type(error).__name__}: {error}")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_forked_child_gets_an_error_and_another_process_reads(store, opened, method):
    """A forked child has no threads for requests, so reading there is an error, and never waits forever."""
    import multiprocessing

    store.put("b/c.parquet", rows(4))
    corpus = opened("c.parquet")
    store.reset()
    context = multiprocessing.get_context(method)
    results = context.SimpleQueue()
    child = context.Process(target=read_in_child, args=(corpus, results))
    child.start()
    found = results.get()
    child.join(20)
    if method == "fork":
        assert found.startswith("RuntimeError: expected a new process to read remote data")
        assert corpus.read(0).num_sequences == 10
    else:
        assert found == 10
        assert store.counters().requests["LIST"] == 0
