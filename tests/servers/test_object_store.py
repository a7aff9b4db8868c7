"""The object store of tests itself: S3 and HTTP as they should be, each fault, counters, the link, and its end."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.servers.contents import page
from tests.servers.faults import KINDS, Fault
from tests.servers.link import LARGEST, SLACK_S, SMALLEST, Link
from tests.servers.object_store import ObjectStore, ObjectStoreProcess, Settings

DATA = os.urandom(300_007)


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    """One process for all tests, and its folder."""
    root = tmp_path_factory.mktemp("process")
    with ObjectStoreProcess(root) as store:
        yield store, root


@pytest.fixture(params=["memory", "folder", "process"])
def store(request, tmp_path):
    """Each kind of server, with `DATA` at ``b/x``."""
    if request.param == "process":
        store, root = request.getfixturevalue("process")
        for bucket in root.iterdir():
            shutil.rmtree(bucket)
        store.heal()
        store.reset()
        store.set(**asdict(Settings()))
        store.put("b/x", DATA)
        yield store
        return
    with ObjectStore(None if request.param == "memory" else tmp_path) as store:
        store.put("b/x", DATA)
        yield store


@pytest.fixture
def memory():
    """A store in this process, for behaviour that all share."""
    with ObjectStore() as store:
        store.put("b/x", DATA)
        yield store


class Client:
    """A connection that is kept."""

    def __init__(self, store):
        self.connection = http.client.HTTPConnection(store.address, store.port, timeout=150)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()

    def __call__(self, method, path, body=None, **headers):
        """Status, headers, body."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request(method, path, body, names)
        answer = self.connection.getresponse()
        return answer.status, answer.headers, answer.read()


def ask(store, method, path, body=None, **headers):
    with Client(store) as client:
        return client(method, path, body, **headers)


def received(store, path="/b/x", **headers):
    """All bytes of an answer until the other side closes, and the error if it resets."""
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    found, error = b"", None
    with socket.create_connection((store.address, store.port), timeout=30) as sock:
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode())
        try:
            while data := sock.recv(1 << 16):
                found += data
        except ConnectionResetError as caught:
            error = caught
    head, _, body = found.partition(b"\r\n\r\n")
    return head.decode(), body, error


# ---- objects


@pytest.mark.parametrize(
    ("given", "span"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=5-99", (5, 100)),
        ("bytes=300000-", (300_000, 300_007)),
        ("bytes=300000-999999", (300_000, 300_007)),
        ("bytes=-7", (300_000, 300_007)),
        ("bytes=-999999", (0, 300_007)),
        ("bytes=100000-250000", (100_000, 250_001)),
    ],
)
def test_a_range_is_answered_by_its_bytes(store, given, span):
    status, headers, body = ask(store, "GET", "/b/x", Range=given)
    assert status == 206
    assert headers["Content-Range"] == f"bytes {span[0]}-{span[1] - 1}/300007"
    assert body == DATA[span[0] : span[1]]
    status, headers, body = ask(store, "HEAD", "/b/x", Range=given)
    assert (status, int(headers["Content-Length"]), body) == (206, span[1] - span[0], b"")
    assert [entry.span for entry in store.log()] == [span, span]


@pytest.mark.parametrize("given", ["bytes=300007-", "bytes=300007-300010", "bytes=-0"])
def test_a_range_beyond_the_object_is_refused(store, given):
    status, headers, _ = ask(store, "GET", "/b/x", Range=given)
    assert (status, headers["Content-Range"]) == (416, "bytes */300007")


@pytest.mark.parametrize("given", ["bytes=5-2", "bytes=1-2,5-6", "bytes=a-b", "lines=1-2", "bytes=-", "bytes=--1"])
def test_what_is_no_range_is_the_whole_object(memory, given):
    status, _, body = ask(memory, "GET", "/b/x", Range=given)
    assert (status, body) == (200, DATA)


def test_a_head_matches_a_get(store):
    _, head, nothing = ask(store, "HEAD", "/b/x")
    _, got, body = ask(store, "GET", "/b/x")
    assert (nothing, body) == (b"", DATA)
    for name in ("Content-Length", "ETag", "Last-Modified", "Accept-Ranges"):
        assert head[name] == got[name]
    assert (head["Content-Length"], head["Accept-Ranges"]) == ("300007", "bytes")
    assert re.fullmatch(r'"[^"]+"', head["ETag"])


def test_a_replaced_object_has_another_etag(store):
    etags = [ask(store, "HEAD", "/b/x")[1]["ETag"]]
    for data in (b"1", b"2", b"3", b"1"):  # of one size, in one tick of the clock
        status, headers, _ = ask(store, "PUT", "/b/x", data)
        etags.append(ask(store, "HEAD", "/b/x")[1]["ETag"])
        assert (status, headers["ETag"]) == (200, etags[-1])
        assert ask(store, "GET", "/b/x")[2] == data
    assert all(a != b for a, b in itertools.pairwise(etags))


def test_conditions(store):
    etag = ask(store, "HEAD", "/b/x")[1]["ETag"]
    for method in ("GET", "HEAD"):
        assert ask(store, method, "/b/x", If_Match=etag, Range="bytes=0-9")[0] == 206
        assert ask(store, method, "/b/x", If_Match="*")[0] == 200
        assert ask(store, method, "/b/x", If_Match=f'"other", {etag}')[0] == 200
        assert ask(store, method, "/b/x", If_Match='"other"', Range="bytes=0-9")[0] == 412
        assert ask(store, method, "/b/x", If_None_Match=etag)[::2] == (304, b"")
        assert ask(store, method, "/b/x", If_None_Match='"other"')[0] == 200
    assert ask(store, "GET", "/b/x", If_Range='"other"', Range="bytes=0-9")[::2] == (200, DATA)
    assert ask(store, "PUT", "/b/x", b"no", If_None_Match="*")[0] == 412
    assert ask(store, "PUT", "/b/x", b"no", If_Match='"other"')[0] == 412
    assert ask(store, "PUT", "/b/none", b"no", If_Match="*")[0] == 412
    assert ask(store, "GET", "/b/x")[2] == DATA
    assert ask(store, "PUT", "/b/x", b"yes", If_Match=etag)[0] == 200
    assert ask(store, "PUT", "/b/new", b"yes", If_None_Match="*")[0] == 200
    assert ask(store, "GET", "/b/x")[2] == ask(store, "GET", "/b/new")[2] == b"yes"


@pytest.mark.parametrize("key", ["a b", "ä/ö", "a+b", "a%2Fb", "d/e.f/g", "&<>'"])
def test_keys_of_all_kinds(store, key):
    assert ask(store, "PUT", f"/b/{quote(key)}", key.encode())[0] == 200
    assert ask(store, "GET", f"/b/{quote(key)}")[2] == key.encode()
    assert key in listed(store, "b")[0]
    assert ask(store, "DELETE", f"/b/{quote(key)}")[0] == 204
    assert ask(store, "GET", f"/b/{quote(key)}")[0] == 404
    assert listed(store, "b")[0] == ["x"]


def test_keys_come_and_go(store):
    for key in ("q/r/s", "q", "q/r"):  # a file and a folder of one name, one after the other
        assert listed(store, "b")[0] == ["x"]
        assert ask(store, "PUT", f"/b/{key}", b"")[0] == 200
        assert listed(store, "b")[0] == [key, "x"]
        assert ask(store, "DELETE", f"/b/{key}")[0] == 204


def test_a_replaced_file_is_later_than_its_predecessor(tmp_path):
    with ObjectStore(tmp_path) as store:
        store.put("b/x", b"1")
        coming = time.time_ns() + 10**12  # a clock that ticks very slowly
        os.utime(tmp_path / "b" / "x", ns=(coming, coming))
        store.put("b/x", b"2")
    assert (tmp_path / "b" / "x").stat().st_mtime_ns == coming + 1


@pytest.mark.parametrize("key", ["../../etc/passwd", "a/../../b", "/etc/passwd", "a//b", "."])
def test_keys_do_not_leave_the_folder(tmp_path, key):
    (tmp_path / "b").write_text("outside")
    (tmp_path / "root" / "b").mkdir(parents=True)
    with ObjectStore(tmp_path / "root") as store:
        for method in ("GET", "PUT", "DELETE"):
            assert ask(store, method, "/b/" + quote(key, safe=""), b"!")[0] == 400
        assert ask(store, "PUT", "/../x", b"!")[0] in (400, 404)
    assert (tmp_path / "b").read_text() == "outside"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["b", "b", "root"]


def test_what_is_not_there(store):
    assert ask(store, "GET", "/b/none")[0] == ask(store, "HEAD", "/b/none")[0] == 404
    assert b"<Code>NoSuchKey</Code>" in ask(store, "GET", "/b/none")[2]
    assert b"<Code>NoSuchBucket</Code>" in ask(store, "GET", "/none/x")[2]
    assert b"<Code>NoSuchBucket</Code>" in ask(store, "PUT", "/none/x", b"")[2]
    assert ask(store, "GET", "/none?list-type=2")[0] == ask(store, "HEAD", "/none")[0] == 404
    assert ask(store, "PUT", "/none")[0] == ask(store, "HEAD", "/none")[0] == 200
    assert ask(store, "PROPFIND", "/b/x")[0] == 501


def test_copies_and_bulk_deletes(store):
    assert ask(store, "PUT", "/b/y", x_amz_copy_source="/b/x")[0] == 200
    assert ask(store, "GET", "/b/y")[2] == DATA
    assert ask(store, "PUT", "/b/z", x_amz_copy_source="b/none")[0] == 404
    keys = "".join(f"<Object><Key>{key}</Key></Object>" for key in ("x", "y", "none"))
    status, _, body = ask(store, "POST", "/b?delete", f'<Delete xmlns="http://s3.amazonaws.com/">{keys}</Delete>')
    assert (status, body.count(b"<Deleted>")) == (200, 3)
    assert listed(store, "b") == ([], [])


def test_a_multipart_upload(store):
    upload = begun(store, "/b/big")
    parts = [os.urandom(1000 + n) for n in range(4)]
    etags = {}
    for n in (3, 1, 2, 4):
        status, headers, _ = ask(store, "PUT", f"/b/big?partNumber={n}&uploadId={upload}", parts[n - 1])
        etags[n] = headers["ETag"]
        assert (status, etags[n]) == (200, f'"{hashlib.md5(parts[n - 1]).hexdigest()}"')
    assert store.unfinished() == ["b/big"]
    assert ask(store, "GET", "/b/big")[0] == 404
    completed = f"/b/big?uploadId={upload}"
    for wrong in ({2: etags[2], 1: etags[1]}, {1: etags[2]}, {5: etags[1]}, {}):
        assert ask(store, "POST", completed, chosen(wrong))[0] == 400
    assert ask(store, "POST", completed, "<not xml")[0] == 400
    status, _, _ = ask(store, "POST", completed, chosen({n: etags[n] for n in (1, 2, 4)}))
    assert status == 200
    assert ask(store, "GET", "/b/big")[2] == parts[0] + parts[1] + parts[3]
    assert store.unfinished() == []
    assert ask(store, "POST", completed, chosen(etags))[0] == 404


def test_an_aborted_upload_leaves_nothing(store):
    upload = begun(store, "/b/big")
    ask(store, "PUT", f"/b/big?partNumber=1&uploadId={upload}", b"part")
    assert ask(store, "DELETE", f"/b/other?uploadId={upload}")[0] == 404
    assert ask(store, "DELETE", f"/b/big?uploadId={upload}")[0] == 204
    assert store.unfinished() == []
    assert listed(store, "b") == (["x"], [])
    assert ask(store, "PUT", f"/b/big?partNumber=1&uploadId={upload}", b"part")[0] == 404


def test_unfinished_uploads_and_bodies_are_bounded():
    with ObjectStore(most_bytes=1000) as store:
        store.put("b/x", b"")
        uploads = [begun(store, "/b/big"), begun(store, "/b/big")]
        part = "/b/big?partNumber=1&uploadId="
        assert ask(store, "PUT", part + uploads[0], bytes(600))[0] == 200
        assert ask(store, "PUT", part + uploads[1], bytes(600))[0] == 400
        assert ask(store, "PUT", part + uploads[0], bytes(1000))[0] == 200
        assert ask(store, "DELETE", f"/b/big?uploadId={uploads[0]}")[0] == 204
        assert ask(store, "PUT", part + uploads[1], bytes(1000))[0] == 200
        assert answer(store, b"PUT /b/y HTTP/1.1\r\nContent-Length: 1001\r\n\r\n").startswith(b"HTTP/1.1 413 ")


def begun(store, path):
    status, _, body = ask(store, "POST", f"{path}?uploads")
    assert status == 200
    return re.search(r"<UploadId>(.*)</UploadId>", body.decode())[1]


def chosen(etags):
    parts = "".join(
        f"<Part><ETag>{etag.replace(chr(34), '&quot;')}</ETag><PartNumber>{n}</PartNumber></Part>"
        for n, etag in etags.items()
    )
    return f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>"


# ---- listings


def listed(store, bucket, **query):
    """Keys and common prefixes of all pages."""
    keys, prefixes, token = [], [], ""
    with Client(store) as client:
        for _ in range(1000):
            asked = {"list-type": "2", **query} | ({"continuation-token": token} if token else {})
            status, _, body = client("GET", f"/{bucket}?" + "&".join(f"{k}={quote(v)}" for k, v in asked.items()))
            assert status == 200
            text = body.decode()
            unescaped = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
            keys += re.findall(r"<Key>(.*?)</Key>", unescaped)
            prefixes += re.findall(r"<CommonPrefixes><Prefix>(.*?)</Prefix></CommonPrefixes>", unescaped)
            if "<IsTruncated>false</IsTruncated>" in text:
                return keys, prefixes
            token = re.search(r"<NextContinuationToken>(.*)</NextContinuationToken>", text)[1]
    raise AssertionError("a listing without end")


NAMES = ["a", "d/", "d/a", "d/e/f", "d/e/g", "d/h/i", "d0", "d/ü", "e", "é/x", "z"]


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize("delimiter", ["", "/"])
@pytest.mark.parametrize("prefix", ["", "d", "d/", "d/e", "none", "é/"])
def test_pages_together_are_the_whole_listing(prefix, delimiter, size):
    names = sorted(name.encode() for name in NAMES)
    keys, prefixes, after, pages = [], [], b"", 0
    while True:
        found = page(names, prefix, delimiter, after, size)
        assert len(found.keys) + len(found.prefixes) <= size
        keys, prefixes, pages = keys + found.keys, prefixes + found.prefixes, pages + 1
        if found.rest is None:
            break
        assert found.rest > after
        after = found.rest
    expected_keys, expected_prefixes = [], []
    for name in (name.decode() for name in names):
        if not name.startswith(prefix):
            continue
        first, cut, _ = name.removeprefix(prefix).partition(delimiter or "\0")
        if not cut:
            expected_keys.append(name)
        elif prefix + first + cut not in expected_prefixes:
            expected_prefixes.append(prefix + first + cut)
    assert (keys, prefixes) == (expected_keys, expected_prefixes)
    assert pages == max(1, -(-(len(keys) + len(prefixes)) // size))


def test_listings_come_in_pages_of_the_size_that_is_set(store):
    for n in range(7):
        store.put(f"c/d{n % 2}/k{n}", bytes(n))
    store.set(page=2)
    assert listed(store, "c") == ([f"d{n % 2}/k{n}" for n in (0, 2, 4, 6, 1, 3, 5)], [])
    assert store.counters().requests["LIST"] == 4
    assert listed(store, "c", delimiter="/") == ([], ["d0/", "d1/"])
    assert listed(store, "c", prefix="d1/") == (["d1/k1", "d1/k3", "d1/k5"], [])
    assert listed(store, "c", **{"start-after": "d1/k1"}) == (["d1/k3", "d1/k5"], [])
    store.reset()
    assert len(listed(store, "c", **{"max-keys": "1"})[0]) == 7
    assert store.counters().requests["LIST"] == 7
    assert ask(store, "GET", "/c?list-type=2&continuation-token=x")[0] == 400
    status, _, body = ask(store, "GET", "/c?list-type=2&prefix=d0/k4")
    assert (status, re.findall(rb"<Size>(\d+)</Size>", body)) == (200, [b"4"])
    etag = re.search(r"<ETag>(.*?)</ETag>", body.decode())[1].replace("&quot;", '"')
    assert etag == ask(store, "HEAD", "/c/d0/k4")[1]["ETag"]
    assert store.log()[-2].name == "c/d0/k4"


# ---- HTTP


def answer(store, sent):
    """The answer to bytes, until the other side closes."""
    with socket.create_connection((store.address, store.port), timeout=30) as sock:
        sock.sendall(sent)
        sock.shutdown(socket.SHUT_WR)
        found = b""
        while data := sock.recv(1 << 16):
            found += data
    return found


def test_connections_are_kept(memory):
    with Client(memory) as client:
        for n in range(5):
            assert client("GET", "/b/x", Range=f"bytes={n}-{n}")[2] == DATA[n : n + 1]
        assert client("GET", "/b/none")[0] == 404
        assert client("PUT", "/b/y", b"y")[0] == 200
        assert client("DELETE", "/b/y")[0] == 204
    assert memory.counters().connections == 1


def test_requests_in_one_packet_are_answered_in_order(memory):
    found = answer(memory, b"".join(b"GET /b/x HTTP/1.1\r\nRange: bytes=%d-%d\r\n\r\n" % (n, n) for n in range(5)))
    assert re.findall(rb"\r\n\r\n(.)(?=HTTP|$)", found, re.S) == [DATA[n : n + 1] for n in range(5)]


@pytest.mark.parametrize(
    "sent",
    [
        b"GET\r\n\r\n",
        b"GET /b/x HTTP/2\r\n\r\n",
        b"GET /b/x HTTP/1.1\r\nno colon\r\n\r\n",
        b"PUT /b/x HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"PUT /b/x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /b/x HTTP/1.1\r\nlong: " + b"x" * (1 << 17) + b"\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused(memory, sent):
    with contextlib.suppress(OSError):  # it does not read on
        assert answer(memory, sent).startswith(b"HTTP/1.1 400 ")
    assert ask(memory, "GET", "/b/x")[2] == DATA


def test_bodies_in_chunks_and_with_expectations(memory):
    head = b"PUT /b/y HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert answer(memory, head + b"3;a=b\r\nabc\r\n10\r\n" + bytes(16) + b"\r\n0\r\nt: r\r\n\r\n").startswith(
        b"HTTP/1.1 200"
    )
    assert ask(memory, "GET", "/b/y")[2] == b"abc" + bytes(16)
    found = answer(memory, b"PUT /b/y HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nz")
    assert found.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
    signed = b"3;chunk-signature=ab\r\nabc\r\n0;chunk-signature=cd\r\n\r\n"
    assert ask(memory, "PUT", "/b/y", signed, x_amz_content_sha256="STREAMING-AWS4-HMAC-SHA256-PAYLOAD")[0] == 200
    assert ask(memory, "GET", "/b/y")[2] == b"abc"


def test_http_1_0_and_close_end_the_connection(memory):
    for head in (b"GET /b/x HTTP/1.0\r\n\r\n", b"GET /b/x HTTP/1.1\r\nConnection: close\r\n\r\n"):
        with socket.create_connection((memory.address, memory.port), timeout=30) as sock:
            sock.sendall(head)
            found = b""
            while data := sock.recv(1 << 16):
                found += data
        assert b"Connection: close\r\n" in found
        assert found.endswith(DATA)


# ---- faults


def test_a_status_as_often_as_it_is_set(store):
    store.fail("status", status=503, retry_after=2, times=2)
    store.fail("status", status=429, retry_after="Wed, 21 Oct 2015 07:28:00 GMT")
    store.fail("status", status=403)
    with Client(store) as client:
        found = [client("GET", "/b/x") for _ in range(6)]
    assert [status for status, _, _ in found] == [503, 503, 429, 403, 200, 200]
    assert [headers["Retry-After"] for _, headers, _ in found[:4]] == ["2", "2", "Wed, 21 Oct 2015 07:28:00 GMT", None]
    assert [b"<Code>SlowDown</Code>" in body for _, _, body in found[:4]] == [True, True, False, False]
    assert [fault.hits for fault in store.faults()] == [2, 1, 1]
    assert [entry.fault for entry in store.log()] == ["status"] * 4 + [None] * 2
    assert store.counters().statuses == {503: 2, 429: 1, 403: 1, 200: 2}


def test_faults_choose_their_requests(memory):
    memory.put("b/y.tar", DATA)
    fault = memory.fail("status", status=404, key="b/*.tar", skip=2, every=2, times=2)
    statuses = [ask(memory, "GET", "/b/y.tar")[0] for _ in range(8)]
    assert statuses == [200, 200, 200, 404, 200, 404, 200, 200]
    assert ask(memory, "GET", "/b/x")[0] == ask(memory, "HEAD", "/b/y.tar")[0] == 200
    assert (fault.seen, fault.hits) == (8, 2)
    memory.heal()
    memory.fail("status", byte=500, times=None)
    spans = ["0-499", "500-500", "400-", "501-", "-10"]
    assert [ask(memory, "GET", "/b/x", Range=f"bytes={span}")[0] for span in spans] == [206, 503, 503, 206, 206]
    memory.heal()
    memory.fail("status", request=None, status=500, times=None)
    asked = [("GET", "/b/x"), ("HEAD", "/b/x"), ("PUT", "/b/x"), ("GET", "/b?list-type=2"), ("DELETE", "/b/x")]
    assert [ask(memory, *each)[0] for each in asked] == [500] * 5
    memory.heal()
    assert ask(memory, "GET", "/b/x")[2] == DATA  # nothing was done


def test_a_listing_fails_by_its_prefix(memory):
    memory.fail("status", request="LIST", key="b/train/*", status=500)
    assert ask(memory, "GET", "/b?list-type=2&prefix=test/")[0] == 200
    assert ask(memory, "GET", "/b?list-type=2&prefix=train/")[0] == 500


@pytest.mark.parametrize("at", [0, 1, 70_000, 299_999, None])
@pytest.mark.parametrize("kind", ["short", "reset"])
def test_a_body_that_ends_early(store, kind, at):
    store.fail(kind, at=at)
    head, body, error = received(store, Range="bytes=7-")
    assert head.startswith("HTTP/1.1 206 ")
    assert "Content-Length: 300000" in head
    assert body == DATA[7 : 7 + (150_000 if at is None else at)]
    assert (error is not None) == (kind == "reset")
    assert store.counters().sent_bytes["GET"] == len(body)
    assert ask(store, "GET", "/b/x")[2] == DATA


def test_a_connection_without_an_answer(store):
    for kind, stored in (("drop", DATA), ("lost", b"new")):
        store.fail(kind, request="PUT")
        with pytest.raises(ConnectionError):
            ask(store, "PUT", "/b/x", b"new")
        assert ask(store, "GET", "/b/x")[2] == stored
    assert [entry.status for entry in store.log()] == [None, 200, None, 200]


def test_a_range_shorter_than_asked_for(store):
    store.fail("narrow", at=10)
    status, headers, body = ask(store, "GET", "/b/x", Range="bytes=100-199")
    assert (status, headers["Content-Range"], body) == (206, "bytes 100-109/300007", DATA[100:110])
    store.fail("narrow")
    status, headers, body = ask(store, "GET", "/b/x")
    assert (status, headers["Content-Length"], body) == (200, "150003", DATA[:150_003])


def test_a_server_without_ranges(store):
    store.fail("whole")
    status, headers, body = ask(store, "GET", "/b/x", Range="bytes=100-199")
    assert (status, headers["Content-Range"], body) == (200, None, DATA)


@pytest.mark.parametrize("at", [0, 1, 70_000, 299_999, None])
def test_one_wrong_byte(store, at):
    store.fail("wrong", at=at)
    place = 150_000 if at is None else at
    expected = bytearray(DATA[7:])
    expected[place] ^= 0xFF
    assert ask(store, "GET", "/b/x", Range="bytes=7-")[2] == bytes(expected)
    assert ask(store, "GET", "/b/x")[2] == DATA
    assert store.counters().sent_bytes["GET"] == 300_000 + len(DATA)


def test_an_object_that_changes(store):
    etag = ask(store, "HEAD", "/b/x")[1]["ETag"]
    store.fail("changed", skip=1)
    store.fail("changed", skip=1, replacement=bytes(range(256)))
    assert ask(store, "GET", "/b/x", If_Match=etag)[0] == 200
    assert ask(store, "GET", "/b/x", If_Match=etag)[0] == 412
    changed = ask(store, "HEAD", "/b/x")[1]["ETag"]
    assert changed != etag
    assert ask(store, "GET", "/b/x", If_Match=changed)[0] == 412
    status, headers, body = ask(store, "GET", "/b/x")
    assert (status, body) == (200, bytes(range(256)))
    assert headers["ETag"] not in (etag, changed)


@pytest.mark.parametrize("at", [0, 100_000, 300_007])
def test_a_stall_sends_the_rest_later(memory, at):
    memory.fail("stall", at=at, seconds=0.01)
    assert ask(memory, "GET", "/b/x")[2] == DATA


@pytest.mark.parametrize("at", [0, 100_000, 300_006])
def test_a_stall_sends_no_more_than_declared(store, at):
    store.fail("stall", at=at)
    with socket.create_connection((store.address, store.port), timeout=30) as sock:
        sock.sendall(b"GET /b/x HTTP/1.1\r\n\r\n")
        found = b""
        while b"\r\n\r\n" not in found or len(found.partition(b"\r\n\r\n")[2]) < at:
            found += sock.recv(1 << 16)
        sock.settimeout(0.1)
        with pytest.raises(TimeoutError):
            sock.recv(1)
        assert found.partition(b"\r\n\r\n")[2] == DATA[:at]
        assert ask(store, "GET", "/b/x")[2] == DATA  # others go on


def test_a_slow_answer(store):
    store.fail("slow")
    with socket.create_connection((store.address, store.port), timeout=0.1) as sock:
        sock.sendall(b"GET /b/x HTTP/1.1\r\n\r\n")
        with pytest.raises(TimeoutError):
            sock.recv(1)


def test_faults_of_nonsense_are_refused(store):
    for how in ({"kind": "none"}, {"times": 0}, {"every": 0}, {"skip": -1}, {"at": -1}, {"seconds": -1.0}):
        with pytest.raises(ValueError, match="expected"):
            store.fail(**{"kind": "status"} | how)
    for settings in ({"latency_s": -1}, {"page": 0}, {"bytes_per_second": 0}):
        with pytest.raises(ValueError, match="expected"):
            store.set(**settings)
    assert store.faults() == []


@pytest.mark.parametrize("kind", KINDS)
def test_faults_survive_json(kind):
    fault = Fault(kind, key="a*", retry_after=1.5, at=3, replacement=bytes(range(256)))
    assert Fault.of(json.loads(json.dumps(fault.described()))) == fault


# ---- counters


def test_counters_and_log(store):
    ask(store, "GET", "/b/x", Range="bytes=0-99")
    ask(store, "GET", "/b/x")
    ask(store, "HEAD", "/b/x")
    ask(store, "PUT", "/b/new/y", b"12345")
    ask(store, "GET", "/b?list-type=2&prefix=new/")
    found = store.counters()
    assert found.requests == {"GET": 2, "HEAD": 1, "PUT": 1, "LIST": 1}
    assert found.methods == {"GET": 3, "HEAD": 1, "PUT": 1}
    assert found.statuses == {200: 4, 206: 1}
    assert (found.sent_bytes["GET"], found.sent_bytes["HEAD"]) == (100 + len(DATA), 0)
    assert found.received_bytes == {"PUT": 5} | dict.fromkeys(["GET", "HEAD", "LIST"], 0)
    assert [(e.kind, e.name, e.range, e.status, e.sent_bytes) for e in store.log()[:4]] == [
        ("GET", "b/x", "bytes=0-99", 206, 100),
        ("GET", "b/x", None, 200, len(DATA)),
        ("HEAD", "b/x", None, 200, 0),
        ("PUT", "b/new/y", None, 200, 0),
    ]
    assert (store.log()[4].kind, store.log()[4].name) == ("LIST", "b/new/")
    store.reset()
    assert store.counters().requests == {}
    assert store.log() == []


@pytest.mark.parametrize("size", [1, 1 << 16, (1 << 16) + 1, 3 << 20])
def test_an_answer_is_counted_before_it_arrives(memory, size):
    memory.put("b/y", bytes(size))
    with Client(memory) as client:
        for n in range(50):
            client("GET", "/b/y")
            found = memory.counters()
            assert (found.sent_bytes["GET"], found.most_at_once) == (size * (n + 1), 1)


def test_requests_at_once_are_counted(memory):
    memory.fail("stall", times=None)
    socks = [socket.create_connection((memory.address, memory.port), timeout=30) for _ in range(5)]
    for sock in socks:
        sock.sendall(b"GET /b/x HTTP/1.1\r\n\r\n")
        assert sock.recv(1)
    assert memory.counters().most_at_once == 5
    for sock in socks:
        sock.close()


def test_connections_beyond_the_limit_are_closed():
    with ObjectStore(most_connections=2) as store:
        store.put("b/x", DATA)
        with Client(store) as a, Client(store) as b:
            assert a("GET", "/b/x")[0] == b("GET", "/b/x")[0] == 200
            with pytest.raises(ConnectionError):
                ask(store, "GET", "/b/x")
            assert (store.counters().connections, store.counters().refused) == (3, 1)


# ---- the link


def test_a_link_has_its_declared_speed():
    link = Link(1000.0)
    assert link.crosses(100, now=50.0) == pytest.approx(50.1)
    assert link.crosses(100, now=50.0) == pytest.approx(50.2)  # another sender queues
    assert link.crosses(100, now=50.1, since=50.1) == pytest.approx(50.3)
    assert link.crosses(100, now=60.0) == pytest.approx(60.1)  # an idle link saves nothing up


def test_a_sender_that_wakes_late_catches_up_to_the_slack():
    link = Link(1000.0)
    since = link.crosses(100, now=0.0)
    since = link.crosses(100, now=since + SLACK_S / 2, since=since)
    assert since == pytest.approx(0.2)
    since = link.crosses(100, now=since + 1, since=since)
    assert since == pytest.approx(0.2 + 1 - SLACK_S + 0.1)
    assert link.crosses(100, now=10.0) == pytest.approx(10.1)  # but not a new body


def test_many_senders_share_a_link():
    link, at, sent = Link(1e6), [0.0] * 4, [0] * 4
    while min(at) < 1:
        i = at.index(min(at))
        at[i] = link.crosses(1000, now=at[i], since=at[i])
        sent[i] += 1000
    assert sum(sent) == pytest.approx(1e6, rel=0.01)
    assert max(sent) - min(sent) <= 1000


def test_pieces_and_no_limit():
    assert Link(None).crosses(1 << 40, now=7.0) == 7.0
    assert [Link(rate).piece for rate in (1.0, 100e6, 1e12)] == [SMALLEST, 100_000, LARGEST]


class Recording(Link):
    """Records what crosses it, and delays nobody."""

    def __init__(self, rate):
        super().__init__(rate)
        self.pieces = []

    def crosses(self, size, now, since=None):
        self.pieces.append((size, since))
        super().crosses(size, now, since)
        return now


def test_bodies_cross_the_link_in_pieces(memory):
    memory.link, memory.uplink = Recording(1e6), Recording(1e6)
    assert ask(memory, "GET", "/b/x")[2] == DATA
    sizes = [size for size, _ in memory.link.pieces]
    assert (sum(sizes), max(sizes)) == (len(DATA), SMALLEST)
    assert [since is None for _, since in memory.link.pieces] == [True] + [False] * (len(sizes) - 1)
    ask(memory, "PUT", "/b/y", DATA)
    assert sum(size for size, _ in memory.uplink.pieces) == len(DATA)
    assert max(size for size, _ in memory.uplink.pieces) <= LARGEST


def test_every_answer_waits_for_the_latency_and_every_piece_for_the_link(memory, monkeypatch):
    waits = []
    monkeypatch.setattr(memory, "_wait", waits.append)
    memory.set(latency_s=5.0)
    assert ask(memory, "GET", "/b/x")[2] == DATA
    assert ask(memory, "GET", "/b/none")[0] == 404
    assert waits == [5.0, 5.0]
    waits.clear()
    memory.set(latency_s=0, bytes_per_second=1000.0)
    assert ask(memory, "GET", "/b/x")[2] == DATA
    assert waits[-1] == pytest.approx(len(DATA) / 1000, rel=0.01)  # nobody has waited, so the last piece is due then
    assert len(waits) >= len(DATA) // LARGEST


# ---- its end


@pytest.mark.parametrize("state", ["idle", "stall", "slow", "link", "unread", "half a request", "latency"])
def test_closing_ends_threads_and_sockets_at_once(state):
    store = ObjectStore()
    store.put("b/x", bytes(64 << 20) if state == "unread" else DATA)
    if state in ("stall", "slow"):
        store.fail(state)
    store.set(bytes_per_second=1.0 if state == "link" else None, latency_s=3600 if state == "latency" else 0)
    with socket.create_connection((store.address, store.port), timeout=30) as sock:
        sock.sendall(b"GET /b/x HTTP/1.1\r\n" + (b"" if state == "half a request" else b"\r\n"))
        while state != "half a request" and not store.log():
            time.sleep(0.001)
        store.close()  # fails unless all threads end
        with contextlib.suppress(ConnectionResetError):
            while sock.recv(1 << 20):
                pass
    assert [thread for thread in threading.enumerate() if thread.name == "object store"] == []
    with pytest.raises(ConnectionError):
        socket.create_connection((store.address, store.port), timeout=30)


def test_closing_leaves_no_descriptor(tmp_path):
    before = sorted(os.listdir("/proc/self/fd"))
    with ObjectStore(tmp_path) as store:
        store.put("b/x", DATA)
        for kind in KINDS:
            store.fail(kind, seconds=0.0)
            with contextlib.suppress(ConnectionError, http.client.IncompleteRead):
                ask(store, "GET", "/b/x", Range="bytes=5-")
        assert sorted(entry.fault for entry in store.log()) == sorted(KINDS)
        assert ask(store, "GET", "/b/x", If_Match='"other"')[0] == 412
        assert ask(store, "GET", "/b/x", Range="bytes=999999-")[0] == 416
        assert ask(store, "HEAD", "/b/x")[0] == 200
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert [path.name for path in tmp_path.rglob("*")] == ["b", "x"]


def test_a_file_that_shrinks_while_it_is_sent_resets_the_connection(tmp_path, monkeypatch):
    with ObjectStore(tmp_path) as store:
        store.put("b/x", DATA)
        store.fail("stall", at=1000)
        monkeypatch.setattr(store, "_wait", lambda _: os.truncate(tmp_path / "b" / "x", 1000))
        _, body, error = received(store)
    assert body == DATA[:1000]
    assert error is not None


PROGRAM = [sys.executable, "-m", "tests.servers.object_store"]
HERE = Path(__file__).parents[2]


def test_the_program_ends_when_standard_input_does():
    with subprocess.Popen(PROGRAM, cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        told = json.loads(program.stdout.readline())
        assert told["url"] == f"http://127.0.0.1:{told['port']}"
        program.stdin.close()
        assert program.wait(60) == 0


def test_the_program_ends_when_its_parent_does():
    code = (
        "import os, subprocess, sys\n"
        "made = subprocess.Popen(sys.argv[1:], stdin=0, stdout=subprocess.PIPE)\n"
        "made.stdout.readline()\nprint(made.pid, flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    reading, writing = os.pipe()  # standard input stays open
    try:
        run = subprocess.run([sys.executable, "-c", code, *PROGRAM], cwd=HERE, stdin=reading, stdout=subprocess.PIPE)
        pid = int(run.stdout)
        for _ in range(3000):
            if not _runs(pid):
                return
            time.sleep(0.02)
        os.kill(pid, signal.SIGKILL)
        pytest.fail("it is still there")
    finally:
        os.close(reading)
        os.close(writing)


def _runs(pid):
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def test_a_program_that_cannot_start_is_an_error(memory):
    with pytest.raises(RuntimeError, match="did not start"):
        ObjectStoreProcess(port=memory.port)


# ---- obstore


def test_obstore_speaks_with_it(store):
    obstore = pytest.importorskip("obstore", reason="needs the package obstore")
    from obstore.exceptions import PreconditionError
    from obstore.store import HTTPStore, S3Store

    s3 = S3Store("b", **store.s3())
    assert obstore.head(s3, "x")["size"] == len(DATA)
    assert bytes(obstore.get(s3, "x").bytes()) == DATA
    assert bytes(obstore.get_range(s3, "x", start=5, end=50)) == DATA[5:50]
    assert bytes(obstore.get(s3, "x", options={"range": {"suffix": 7}}).bytes()) == DATA[-7:]
    with pytest.raises(PreconditionError):
        obstore.get(s3, "x", options={"if_match": '"other"'})
    store.set(page=2)
    for n in range(5):
        obstore.put(s3, f"d/{n}", b"%d" % n)
    assert sorted(found["path"] for page in obstore.list(s3) for found in page) == [*(f"d/{n}" for n in range(5)), "x"]
    assert obstore.list_with_delimiter(s3)["common_prefixes"] == ["d"]
    obstore.put(s3, "big", DATA * 40, use_multipart=True, chunk_size=5 << 20)
    obstore.copy(s3, "big", "copy")
    obstore.delete(s3, ["big", *(f"d/{n}" for n in range(5))])
    assert bytes(obstore.get(s3, "copy").bytes()) == DATA * 40
    assert store.counters().requests["PART"] == 3
    over_http = HTTPStore(store.url, client_options={"allow_http": True})
    assert bytes(obstore.get_range(over_http, "b/x", start=5, end=50)) == DATA[5:50]


@pytest.mark.parametrize("kind", ["status", "short", "reset", "drop"])
def test_obstore_tries_again_after(store, kind):
    obstore = pytest.importorskip("obstore", reason="needs the package obstore")
    from obstore.store import S3Store

    store.fail(kind, times=2)
    s3 = S3Store("b", **store.s3())
    assert bytes(obstore.get_range(s3, "x", start=0, end=len(DATA))) == DATA
    assert store.faults()[0].hits == 2
    assert store.counters().requests["GET"] == 3
