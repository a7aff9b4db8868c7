"""Whatever a store does, the bytes are right or an error lists the attempts. Nothing hangs."""

from __future__ import annotations

import contextlib
import datetime
import gc
import io
import json
import re
import socket
import tarfile
import time
import warnings
from email.utils import formatdate

import numpy as np
import pytest

import feedline as fl
from feedline.errors import install_line
from feedline.feed.remote import object_store, requests
from tests.feed.remote.conftest import delivered
from tests.servers.web import WebServer

COUNT = 300


def lines(count: int = COUNT) -> bytes:
    rng = np.random.default_rng(2)
    rows = [{"x": rng.normal(size=3).round(3).tolist(), "y": i, "t": "w" * (i % 50)} for i in range(count)]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def archive(count: int, size: int, seed: int = 1) -> bytes:
    """A tar archive of samples with random bytes."""
    rng, file = np.random.default_rng(seed), io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for i in range(count):
            member = tarfile.TarInfo(f"{seed}-{i:05}.bin")
            member.size = size
            tar.addfile(member, io.BytesIO(rng.bytes(size)))
    return file.getvalue()


def rows(seed: int) -> bytes:
    """A Parquet file of 4 groups of 10 rows of random bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng, file = np.random.default_rng(seed), io.BytesIO()
    pq.write_table(pa.table({"x": [rng.bytes(20_000) for _ in range(40)]}), file, row_group_size=10)
    return file.getvalue()


STREAMS = {"x": fl.Stream(3), "y": fl.Stream((), "int64"), "t": fl.Stream(dtype="str")}

HARMLESS = {
    "unavailable": {"kind": "status", "status": 503, "times": 3},
    "unavailable for now": {"kind": "status", "status": 503, "retry_after": 1, "times": 1},
    "too many": {"kind": "status", "status": 429, "times": 2},
    "internal": {"kind": "status", "status": 500, "times": 2},
    "reset": {"kind": "reset", "at": 1000, "times": 3},
    "dropped": {"kind": "drop", "times": 3},
    "lost": {"kind": "lost", "times": 2},
    "short": {"kind": "short", "at": 3000, "times": 3},
    "narrow": {"kind": "narrow", "at": 5000, "times": 2},
    "stalled": {"kind": "stall", "at": 100, "seconds": 60, "times": 1},
    "slow": {"kind": "slow", "seconds": 1, "times": 2},
}


@pytest.mark.parametrize("name", HARMLESS)
def test_a_fault_that_passes_changes_nothing(store, opened, tmp_path, name):
    store.put("b/a.jsonl", lines())
    (tmp_path / "a.jsonl").write_bytes(lines())
    expected = delivered(fl.open_corpus(tmp_path / "a.jsonl", streams=STREAMS))
    fault = store.fail(**HARMLESS[name], key="b/a.jsonl", request="GET")
    assert delivered(opened("a.jsonl", deadline_s=8.0, **STREAMS)) == expected
    assert fault.hits == HARMLESS[name]["times"]


def test_a_broken_range_is_gone_on_with_from_the_byte_it_had_reached(store, opened):
    store.put("b/a.tar", archive(200, 20_000))
    store.fail("reset", key="b/a.tar", request="GET", at=1_500_000, times=2)
    delivered(opened("a.tar"))
    sent = store.counters().sent_bytes["GET"]
    assert sent <= len(archive(200, 20_000)) + 2 * (1 << 20)


def test_a_stores_time_to_wait_is_respected(store, opened, monkeypatch):
    monkeypatch.setattr(requests, "TRAFFIC", requests.Traffic())  # nothing is slow enough to be asked for twice
    store.put("b/a.jsonl", lines())
    store.fail("status", key="b/a.jsonl", request="GET", status=503, retry_after=2, times=2)
    began = time.monotonic()
    delivered(opened("a.jsonl", **STREAMS))
    assert time.monotonic() - began >= 1.9
    refused = [entry for entry in store.log() if entry.status == 503]
    assert len(refused) == 2  # a request, and the one that asked how long to wait


def test_a_store_that_never_answers_is_an_error_with_all_that_was_tried(store, opened):
    store.put("b/a.jsonl", lines())
    fault = store.fail("status", key="b/a.jsonl", request="GET", status=500, times=None)
    with pytest.raises(fl.DataError) as caught:
        opened("a.jsonl", deadline_s=1.5, **STREAMS)
    text = str(caught.value)
    assert caught.value.path == "s3://b/a.jsonl"
    assert "bytes 0 to" in text
    assert f"{fault.hits} attempts in" in text
    assert "500" in text


@pytest.mark.parametrize(("status", "said", "attempts"), [(403, "credentials", 2), (404, "removed", 1)])
def test_a_refusal_is_not_repeated(store, opened, status, said, attempts):
    """Only once, with new credentials, if the request was denied."""
    store.put("b/a.jsonl", lines())
    fault = store.fail("status", key="b/a.jsonl", request="GET", status=status, times=None)
    with pytest.raises(fl.DataError, match=said):
        opened("a.jsonl", **STREAMS)
    assert fault.hits == attempts


class Keys:
    """The access key that a server accepts. As a credential provider: the key of now, said to hold for an hour."""

    def __init__(self, store):
        self._store, self.renewals = store, 0
        self.rotate(0)

    def rotate(self, number):
        self.key = f"KEY{number}"
        self._store.set(access_key=self.key)

    def __call__(self):
        self.renewals += 1
        hour = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
        return {"access_key_id": self.key, "secret_access_key": "secret", "token": None, "expires_at": hour}


@pytest.mark.parametrize("how", ["provider", "environment"])
def test_keys_that_are_replaced_while_data_is_read_and_written(store, tmp_path, monkeypatch, how):
    for i in range(8):
        store.put(f"b/{i}.jsonl", lines(20))
    keys = Keys(store)
    options = {name: value for name, value in store.s3().items() if "key" not in name}
    if how == "provider":
        options["credential_provider"] = keys
    remote = fl.Remote(tmp_path / "cache", storage_options=options, deadline_s=20.0)

    def rotate(number):
        keys.rotate(number)
        if how == "environment":
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", keys.key)
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

    rotate(1)
    corpus = fl.open_corpus("s3://b/{0..7}.jsonl", streams=STREAMS, remote=remote)
    rotate(2)
    fl.convert(corpus, "s3://b/out", remote=remote)
    for number in (3, 4):
        rotate(number)
        with contextlib.closing(fl.open_corpus("s3://b/out", remote=remote)) as copy:
            rotate(number + 10)
            assert sum(copy.read(i).num_sequences for i in range(len(copy.chunks()))) == 160
    corpus.close()
    assert how == "environment" or keys.renewals > 3


def test_many_requests_that_are_denied_at_once_renew_once(store, tmp_path):
    for i in range(30):
        store.put(f"b/{i:02}.parquet", rows(i))
    keys = Keys(store)
    options = {name: value for name, value in store.s3().items() if "key" not in name}
    remote = fl.Remote(tmp_path / "cache", storage_options={**options, "credential_provider": keys})
    corpus = fl.open_corpus("s3://b/", remote=remote)
    before = keys.renewals
    keys.rotate(1)
    source = fl.MinibatchSource(corpus, max_sweeps=1, shuffle=False)
    assert sum(m.num_samples for m in source.minibatches(64)) == sum(info.sequences for info in corpus.chunks())
    assert keys.renewals - before <= 2  # for reading, and for writing
    corpus.close()


def test_an_object_that_changes_while_it_is_read_is_an_error_that_names_it(store, opened):
    store.put("b/1.parquet", rows(1))
    store.put("b/2.parquet", rows(2))
    corpus = opened(["1.parquet", "2.parquet"])
    source = fl.MinibatchSource(corpus, max_sweeps=1, shuffle=False, read_ahead=0)
    before = source.next_minibatch(5)
    store.put("b/2.parquet", rows(3))
    with pytest.raises(fl.DataError, match="expected the object as it was") as caught:
        for _ in source.minibatches(5):
            pass
    assert caught.value.path == "s3://b/2.parquet"
    assert before.ids.tolist() == [0, 1, 2, 3, 4]
    assert source.position.sequence == 40  # no delivered byte is lost or repeated


def test_what_is_not_there_is_an_error_at_once(store, opened):
    store.put("b/there.jsonl", lines(3))
    for what in ("nothing.jsonl", "folder", "*.tar", ["there.jsonl", "nothing.jsonl"], "x-{0..3}.jsonl"):
        with pytest.raises(fl.DataError, match="got none"):
            opened(what, **STREAMS)


def test_secrets_are_in_no_message(store):
    options = {**store.s3(), "secret_access_key": "hush-hush", "access_key_id": "AKIAWHO"}
    store.put("b/a.jsonl", lines())
    store.fail("status", key="b/a.jsonl", status=403, times=None)
    with pytest.raises(fl.DataError) as caught:
        fl.open_corpus("s3://b/a.jsonl", remote=fl.Remote(storage_options=options, deadline_s=1.0))
    everything = repr(caught.value) + str(caught.value.__cause__) + str(caught.value.__dict__)
    assert "hush" not in everything
    with pytest.raises(fl.DataError) as caught:
        fl.open_corpus("http://me:hush@127.0.0.1:9/b/a.jsonl", remote=fl.Remote(deadline_s=0.5))
    assert "hush" not in str(caught.value)


def test_plain_http_is_read_by_ranges_and_not_listed(store, tmp_path, options):
    store.put("b/0.jsonl", lines(100))
    store.put("b/1.jsonl", lines(100))
    remote = fl.Remote(tmp_path / "cache", deadline_s=5.0)
    corpus = fl.open_corpus(store.http("b/") + "{0,1}.jsonl", streams=STREAMS, remote=remote)
    assert sum(info.sequences for info in corpus.chunks()) == 200
    corpus.close()
    assert store.counters().requests["HEAD"] == 3  # the last one for an index of the first
    with pytest.raises(fl.DataError, match="a web server does not list"):
        fl.open_corpus(store.http("b/") + "*.jsonl", streams=STREAMS, remote=remote)


def test_a_server_without_ranges_is_refused(store, tmp_path):
    store.put("b/0.jsonl", lines())
    store.fail("whole", key="b/0.jsonl", request="GET", times=None)
    with pytest.raises(fl.DataError, match=r"[Rr]ange request not supported"):
        fl.open_corpus(
            store.http("b/0.jsonl"), streams=STREAMS, remote=fl.Remote(cache=tmp_path / "cache", deadline_s=2.0)
        )


def test_a_slow_first_byte_is_asked_for_again(store, opened, monkeypatch):
    monkeypatch.setattr(requests, "TRAFFIC", requests.Traffic())
    requests.TRAFFIC.first_bytes.extend([0.01] * 100)
    store.put("b/a.jsonl", lines())
    store.fail("slow", key="b/a.jsonl", request="GET", seconds=600, times=1)
    delivered(opened("a.jsonl", **STREAMS))
    assert requests.TRAFFIC.hedged == 1


def test_fsspec_reads_what_obstore_does_not(tmp_path):
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    system = fsspec.filesystem("memory")
    system.pipe("/bucket/data/a.jsonl", lines())
    (tmp_path / "a.jsonl").write_bytes(lines())
    expected = delivered(fl.open_corpus(tmp_path / "a.jsonl", streams=STREAMS))
    for address in ("memory://bucket/data/a.jsonl", "memory://bucket/data", "memory://bucket/data/*.jsonl"):
        corpus = fl.open_corpus(address, streams=STREAMS, remote=fl.Remote(cache=tmp_path / "cache"))
        assert delivered(corpus) == expected
        corpus.close()
    with pytest.raises(fl.DataError, match=re.escape(install_line("remote"))):
        fl.open_corpus("nosuchthing://bucket/a.jsonl")


def test_paths_and_file_addresses_stay_local(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(lines())
    expected = delivered(fl.open_corpus(tmp_path / "a.jsonl", streams=STREAMS))
    assert delivered(fl.open_corpus(f"file://{tmp_path}/a.jsonl", streams=STREAMS)) == expected
    with pytest.raises(ValueError, match="expected an address for remote="):
        fl.open_corpus(tmp_path / "a.jsonl", streams=STREAMS, remote=fl.Remote(cache=tmp_path / "cache"))


@pytest.mark.parametrize(
    ("told", "etag"), [('"a1"', '"a1"'), ("0x8D", '"0x8D"'), ('W/"a1"', 'W/"a1"'), (None, ""), ("", "")]
)
def test_an_etag_is_the_same_from_listings_and_answers(told, etag):
    assert object_store.etag_of({"e_tag": told}) == etag


def test_a_part_without_its_number_is_refused(tmp_path):
    """As of servers that answer with several parts, or with any bytes at all."""
    with WebServer({"/x.jsonl": lines()}) as web:
        web.content_range = ""
        with pytest.raises(fl.DataError, match=r"after one attempt(.|\n)*without Content-Range"):
            fl.open_corpus(f"{web.url}/x.jsonl", streams=STREAMS, remote=fl.Remote(cache=tmp_path, deadline_s=5))


class Clock:
    """A clock that is an hour slower than the server's."""

    @staticmethod
    def time():
        return time.time() - 3600


def test_a_date_until_which_to_wait_is_one_of_the_server_s_clock(tmp_path, monkeypatch):
    monkeypatch.setattr("feedline.feed.remote.web.time", Clock)
    refused = []
    with WebServer({"/x.jsonl": lines()}) as web:

        def refuse(_):
            refused.append(1)
            return (503, {"Retry-After": formatdate(time.time() + 1, usegmt=True)}) if len(refused) == 1 else None

        web.before = refuse
        assert fl.open_corpus(
            f"{web.url}/x.jsonl", streams=STREAMS, remote=fl.Remote(cache=tmp_path, deadline_s=20)
        ).chunks()


def headers(number):
    return {"client_options": {"default_headers": {"X-Number": str(number)}}}


def test_the_question_how_long_to_wait_is_asked_as_all_others_are(tmp_path):
    """With the headers, the certificates and the proxy that the user gave."""
    with WebServer({}) as web:
        web.before = lambda asked: (503, {"Retry-After": "60"})
        options = {
            "endpoint": web.url,
            "access_key_id": "key",
            "secret_access_key": "secret",
            "region": "x",
            "client_options": {"default_headers": {"X-Tenant": "a"}, "timeout": "9s"},
        }
        with pytest.raises(fl.DataError, match="503"):
            fl.open_corpus(
                "s3://b/x.jsonl",
                streams=STREAMS,
                remote=fl.Remote(cache=tmp_path, storage_options=options, deadline_s=9),
            )
        assert [asked.method for asked in web.log[:2]] == ["HEAD", "GET"]
        assert all(asked.headers.get("x-tenant") == "a" for asked in web.log)


def test_a_host_with_an_address_that_does_not_answer_is_reached_by_another(tmp_path, monkeypatch):
    """Such as an IPv6 address without a route. A server that accepts no connection simulates it."""
    monkeypatch.setattr("feedline.feed.remote.web._CONNECT_S", 0.2)
    with WebServer({"/x.jsonl": lines()}) as web, socket.socket() as full, contextlib.ExitStack() as waiting:
        port = int(web.url.rpartition(":")[2])
        full.bind(("127.0.0.2", port))
        full.listen(0)
        for _ in range(4):  # later connections get no answer
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(("127.0.0.2", port))
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        places = [(*kind, (host, port)) for host in ("127.0.0.2", "127.0.0.1")]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: places)
        corpus = fl.open_corpus(
            f"http://two.test:{port}/x.jsonl", streams=STREAMS, remote=fl.Remote(cache=tmp_path, deadline_s=4)
        )
        assert corpus.chunks()


@pytest.mark.parametrize("closed", ["by the server", "by the client"])
def test_connections_that_are_not_used_again_make_no_noise(tmp_path, closed):
    """Python would warn about connections that are only collected. The loop goes on, as it does for other corpora."""
    requests.stop_if_idle()
    gc.collect()  # connections of other tests
    with (
        WebServer({"/x.jsonl": lines()}) as web,
        requests.keep_running(),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        web.closes = closed == "by the server"
        for number in range(80):  # more servers than are remembered
            remote = fl.Remote(cache=tmp_path, deadline_s=5, storage_options=headers(number))
            fl.MinibatchSource(fl.open_corpus(f"{web.url}/x.jsonl", streams=STREAMS, remote=remote)).close()
        gc.collect()
        assert [str(warning.message) for warning in caught if "StreamWriter" in str(warning.message)] == []
