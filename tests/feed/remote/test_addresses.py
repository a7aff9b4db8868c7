"""An address means the object it names, and no other, and secrets in it stay secret."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline.feed.remote.address_text import without_credentials
from feedline.feed.remote.addresses import open_store
from feedline.feed.remote.object_cache import CachedObject
from feedline.feed.remote.requests import Patience
from feedline.feed.remote.stores import ObjectInfo, fault_of
from tests.effort import examples
from tests.feed.remote.conftest import delivered
from tests.servers.web import WebServer

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
from fsspec.utils import infer_storage_options  # noqa: E402

ROWS = {"i": fl.Stream((), "int64")}
SECRET = "HUSH77hush"


def rows(first: int, count: int = 50) -> bytes:
    return "".join(json.dumps({"i": first + k}) + "\n" for k in range(count)).encode()


def read(corpus) -> list[int]:
    return sorted(i for _, values in delivered(corpus, max_sweeps=1) for (i,) in values["i"])


@pytest.fixture
def web():
    with WebServer({}) as server:
        yield server


# ---- places -------------------------------------------------------------------------------------------

NAMES = st.text("ab_-.~ é", min_size=1, max_size=4).filter(lambda name: name.strip(". ") == name)
PLACES = st.tuples(
    st.sampled_from(["memory", "http", "https", "s3", "gs", "abfss"]),
    st.sampled_from(["", "me", "you", "m_e"]),
    NAMES,
    st.sampled_from(["", "v=1", "v=2"]),
    NAMES,
)


def address_of(place, secret=SECRET) -> str:
    scheme, user, host, query, key = place
    account = {
        "http": f"{user}:{secret}@",
        "https": f"{user}:{secret}@",
        "memory": f"{user}:{secret}@",
        "abfss": f"{user}@",
    }
    query = f"{query}&X-Amz-Date=1&X-Amz-Signature={secret}" if scheme in ("http", "https") else ""
    return f"{scheme}://{account.get(scheme, '') if user else ''}{host}/{key}" + (f"?{query}" if query else "")


def distinct_of(place):
    """What of a place its address has."""
    scheme, user, host, query, key = place
    return (
        scheme,
        user if scheme in ("http", "https", "memory", "abfss") else "",
        host,
        query if scheme in ("http", "https") else "",
        key,
    )


class Place:
    """A cache that is none: a key needs nothing of it."""


def key_of(address, options=()) -> tuple[str, str]:
    store, key = open_store(address, dict(options))
    info = ObjectInfo(key, 100, '"etag"', 7)
    return store.place, CachedObject(Place(), store, info, Patience()).key


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(PLACES, min_size=2, max_size=6, unique_by=distinct_of))
def test_no_two_places_share_a_key(places):
    """Different addresses have different folders in a cache, also if their names cannot be names of folders."""
    keys = []
    for place in places:
        try:
            folder, key = key_of(address_of(place))
        except fl.DataError:
            continue  # such as an address without a bucket
        assert SECRET not in folder + key
        assert (folder, key) == key_of(address_of(place, "an0ther"))  # new credentials find what old ones fetched
        keys.append((distinct_of(place), folder, key))
    for (one, folder, key), (other, others, another) in itertools.combinations(keys, 2):
        assert key != another
        assert folder != others or one[:4] == other[:4]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"endpoint": "http://a:9000"}, {"endpoint": "http://b:9000"}, False),
        ({"access_key_id": "a", "secret_access_key": SECRET}, {"access_key_id": "b", "secret_access_key": "x"}, True),
        ({"client_options": {"default_headers": {"X-Tenant": "a"}}}, {}, False),
        ({"client_options": {"default_headers": {"X-Api-Key": "a"}}}, {"client_options": {"timeout": "3s"}}, False),
    ],
)
def test_options_that_name_another_place_are_another_place(one, other, same):
    found = [key_of("s3://bucket/x", options) for options in (one, other)]
    assert (found[0] == found[1]) is same


def test_an_endpoint_of_the_environment_is_another_place(monkeypatch):
    before = key_of("s3://bucket/x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert key_of("s3://bucket/x") != before


@pytest.mark.parametrize(
    "hosts", [("data_1", "data__1"), ("größe", "grüße"), ("me:a@b", "you:a@b"), ("a b", "a+b"), ("a-b", "a_b")]
)
def test_places_whose_names_differ_in_any_character_are_both_read(tmp_path, hosts):
    system = fsspec.filesystem("memory")
    for number, host in enumerate(hosts):
        system.pipe(f"/{host}/x.jsonl", rows(1000 * number))
    corpus = fl.open_corpus(
        [f"memory://{host}/x.jsonl" for host in hosts], streams=ROWS, remote=fl.Remote(cache=tmp_path / "cache")
    )
    assert read(corpus) == [*range(50), *range(1000, 1050)]


# ---- names, queries, credentials ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("a%20b.jsonl", "/a%20b.jsonl"),
        ("a%2Bb.jsonl", "/a%2Bb.jsonl"),
        ("a b.jsonl", "/a%20b.jsonl"),
        ("100%.jsonl", "/100%25.jsonl"),
        ("größe.jsonl", "/gr%C3%B6%C3%9Fe.jsonl"),
        ("x.jsonl?v=1&sig=a%2Fb%3D", "/x.jsonl?v=1&sig=a%2Fb%3D"),
        ("x.jsonl?a=*&b={1,2}", "/x.jsonl?a=*&b={1,2}"),
        ("x.jsonl?q=a b ü", "/x.jsonl?q=a%20b%20%C3%BC"),
        ("x.jsonl#part", "/x.jsonl"),
    ],
)
def test_a_web_server_is_asked_for_the_address_that_was_given(web, tmp_path, given, asked):
    web.objects[asked] = rows(0)
    assert read(
        fl.open_corpus(f"{web.url}/{given}", streams=ROWS, remote=fl.Remote(cache=tmp_path / "cache", deadline_s=5))
    ) == [*range(50)]
    assert {one.path for one in web.log} == {asked} if "?" in asked else {asked, f"{asked}.feedline-index"}


def test_what_differs_in_its_query_alone_is_read_twice(web, tmp_path):
    web.objects = {"/get?id=1": rows(0), "/get?id=2": rows(1000)}
    addresses = [f"{web.url}/get?id={k}" for k in (1, 2)]
    assert read(fl.open_corpus(addresses, streams=ROWS, remote=fl.Remote(cache=tmp_path / "cache", deadline_s=5))) == [
        *range(50),
        *range(1000, 1050),
    ]


def test_what_is_signed_for_reading_alone_is_read(web, tmp_path):
    """As presigned addresses are: HEAD has another signature."""
    web.objects["/x.jsonl?X-Amz-Signature=1"] = web.objects["/y.jsonl"] = rows(0)
    web.before = lambda asked: (403, {}) if asked.method == "HEAD" else None
    for name in ("x.jsonl?X-Amz-Signature=1", "y.jsonl"):
        assert (
            len(
                read(
                    fl.open_corpus(
                        f"{web.url}/{name}", streams=ROWS, remote=fl.Remote(cache=tmp_path / name[0], deadline_s=5)
                    )
                )
            )
            == 50
        )


def everything_in(folder) -> str:
    """Names and contents of all files of a folder."""
    found = [str(path) + (path.read_bytes().decode("latin-1") if path.is_file() else "") for path in folder.rglob("*")]
    return "\n".join(found)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("address", ["http://me:{}@{}/x.jsonl", "http://{1}/x.jsonl?X-Amz-Signature={0}"])
def test_what_is_secret_in_an_address_is_asked_with_and_never_shown(web, tmp_path, caplog, address, missing):
    caplog.set_level("DEBUG")
    host = web.url.removeprefix("http://")
    path = "/x.jsonl" + (f"?X-Amz-Signature={SECRET}" if "?" in address else "")
    if not missing:
        web.objects[path] = rows(0)
    try:
        corpus = fl.open_corpus(
            address.format(SECRET, host), streams=ROWS, remote=fl.Remote(cache=tmp_path / "cache", deadline_s=3)
        )
        source = fl.MinibatchSource(corpus, seed=1)
        source.next_minibatch(5)
        told = repr(corpus) + repr(source) + json.dumps(source.state_dict()) + corpus.name
        assert len(read(pickle.loads(pickle.dumps(corpus)))) == 50  # as a worker opens it
    except fl.DataError as error:
        assert missing
        told = repr(error) + str(error) + str(error.__cause__) + str(error.__dict__)
    assert SECRET not in told + caplog.text + everything_in(tmp_path)
    assert all(one.path in (path, "/x.jsonl.feedline-index") for one in web.log)
    assert "?" not in path or all("feedline-index" not in one.path for one in web.log)
    if "me:" in address:
        assert all(one.headers["authorization"] == "Basic bWU6SFVTSDc3aHVzaA==" for one in web.log)


def test_the_container_of_an_account_stays_in_an_address_and_its_user_does_not():
    assert without_credentials("abfss://train:pw@acct.dfs.core.windows.net/x") == (
        "abfss://train@acct.dfs.core.windows.net/x"
    )
    assert without_credentials("sftp://me@corp:p@ss@host/x") == "sftp://host/x"
    assert without_credentials("zip://a.csv::https://me:pw@host/x.zip") == "zip://a.csv::https://host/x.zip"
    assert without_credentials("s3://bucket/shard-?.tar") == "s3://bucket/shard-?.tar"


def test_an_address_in_a_long_message_of_a_library_is_cleaned_before_the_message_is_cut():
    error = OSError("x" * 280 + f" HTTP://me:{SECRET}@host/x")
    assert SECRET[:2] not in fault_of(error).answer


def test_an_account_may_be_named_by_address_and_option(web, tmp_path):
    options = {"endpoint": web.url, "skip_signature": True}
    address = "abfss://train@acct.dfs.core.windows.net/x.jsonl"
    with pytest.raises(fl.DataError, match="404"):
        fl.open_corpus(
            address, remote=fl.Remote(cache=tmp_path, storage_options={**options, "account_name": "acct"}, deadline_s=3)
        )
    assert {one.path.partition("?")[0] for one in web.log} <= {"/train/x.jsonl", "/train"}
    with pytest.raises(ValueError, match="account_name to name the account of the address"):
        fl.open_corpus(
            address,
            remote=fl.Remote(cache=tmp_path, storage_options={**options, "account_name": "other"}, deadline_s=3),
        )


@pytest.mark.parametrize("header", ["X-Api-Key", "Authorization", "Cookie", "X-Anything"])
def test_nothing_of_the_users_follows_a_redirect_to_another_host(web, tmp_path, header):
    with WebServer({"/x.jsonl": rows(0)}) as other:
        web.before = lambda asked: (302, {"Location": other.url.replace("127.0.0.1", "localhost") + asked.path})
        options = {"client_options": {"default_headers": {header: SECRET}}}
        address = web.url.replace("http://", f"http://me:{SECRET}@") + "/x.jsonl"
        corpus = fl.open_corpus(
            address, streams=ROWS, remote=fl.Remote(cache=tmp_path / "cache", storage_options=options, deadline_s=5)
        )
        assert read(corpus) == [*range(50)]
        assert all(SECRET in asked.headers[header.lower()] for asked in web.log)
        assert other.log
        assert SECRET not in repr(other.log)
        assert not any("authorization" in asked.headers for asked in other.log)


def test_headers_follow_a_redirect_within_the_host(web, tmp_path):
    web.objects["/there.jsonl"] = rows(0)
    web.before = lambda asked: (301, {"Location": "/there.jsonl"}) if asked.path == "/x.jsonl" else None
    options = {"client_options": {"default_headers": {"X-Api-Key": SECRET}}}
    corpus = fl.open_corpus(
        f"{web.url}/x.jsonl",
        streams=ROWS,
        remote=fl.Remote(cache=tmp_path / "c", storage_options=options, deadline_s=5),
    )
    assert read(corpus) == [*range(50)]
    assert {asked.headers.get("x-api-key") for asked in web.log} == {SECRET}


def test_a_redirect_may_be_written_without_escapes(web, tmp_path):
    web.objects["/a%20b.jsonl"] = rows(0)
    web.before = lambda asked: (302, {"Location": "/a b.jsonl"}) if asked.path == "/x.jsonl" else None
    corpus = fl.open_corpus(
        f"{web.url}/x.jsonl", streams=ROWS, remote=fl.Remote(cache=tmp_path / "cache", deadline_s=5)
    )
    assert read(corpus) == [*range(50)]


def test_a_redirect_may_be_written_in_utf8(web, tmp_path):
    web.objects["/gr%C3%B6%C3%9Fe.jsonl"] = rows(0)
    place = "/größe.jsonl".encode().decode("latin-1")  # in which the server writes
    web.before = lambda asked: (302, {"Location": place}) if asked.path == "/x.jsonl" else None
    corpus = fl.open_corpus(
        f"{web.url}/x.jsonl", streams=ROWS, remote=fl.Remote(cache=tmp_path / "cache", deadline_s=5)
    )
    assert read(corpus) == [*range(50)]


def test_a_user_without_a_password_is_one(web, tmp_path):
    """As with a token. The header always has a colon after it."""
    web.objects["/x.jsonl"] = rows(0)
    address = web.url.replace("http://", "http://token@") + "/x.jsonl"
    assert read(fl.open_corpus(address, streams=ROWS, remote=fl.Remote(cache=tmp_path / "cache", deadline_s=5))) == [
        *range(50)
    ]
    assert {one.headers["authorization"] for one in web.log} == {"Basic dG9rZW46"}


@pytest.mark.parametrize(
    "host",
    ["me:{}@127.0.0.1:port", "me:{}@[::1", "me:{}@", "me:{}/x@127.0.0.1", "me:{}?x@127.0.0.1", "me:{}#x@127.0.0.1"],
)
def test_an_address_without_a_host_or_with_another_port_than_a_number_is_refused(tmp_path, host):
    with pytest.raises(fl.DataError, match="expected an address with") as caught:
        fl.open_corpus(
            f"http://{host.format(SECRET)}/x.jsonl", streams=ROWS, remote=fl.Remote(cache=tmp_path, deadline_s=1)
        )
    assert SECRET not in str(caught.value)


def test_a_file_system_connects_in_a_separate_thread(tmp_path, monkeypatch):
    """Those of some kinds connect when they are made: that may fail, or never end."""
    kind, stuck, made = type(fsspec.filesystem("memory")), threading.Event(), []

    def connect(self, *_, **__):
        made.append(threading.current_thread())
        stuck.wait()

    monkeypatch.setattr(kind, "__init__", connect)
    try:
        with pytest.raises(fl.DataError, match="no answer in"):
            fl.open_corpus("memory://connects/x.jsonl", streams=ROWS, remote=fl.Remote(cache=tmp_path, deadline_s=1))
    finally:
        stuck.set()
    assert made
    monkeypatch.setattr(kind, "__init__", lambda *_, **__: (_ for _ in ()).throw(ConnectionRefusedError("refused")))
    with pytest.raises(fl.DataError, match="refused"):
        fl.open_corpus("memory://refuses/x.jsonl", streams=ROWS, remote=fl.Remote(cache=tmp_path, deadline_s=1))


@pytest.mark.parametrize("what", ["d/x.jsonl", "d", "d/*.jsonl", "x.jsonl"])
def test_a_path_after_a_host_begins_with_a_slash(tmp_path, monkeypatch, what):
    """As file systems over SFTP, FTP and HDFS have it. Without it, it would be relative to the user's folder."""

    class Hosts(type(fsspec.filesystem("memory"))):
        protocol = "hosts"

        @classmethod
        def _strip_protocol(cls, path):
            return infer_storage_options(path)["path"]

    monkeypatch.setattr(Hosts, "store", {})
    monkeypatch.setattr(Hosts, "pseudo_dirs", [""])
    fsspec.register_implementation("hosts", Hosts, clobber=True)
    Hosts().pipe("/d/x.jsonl" if what.startswith("d") else "/x.jsonl", rows(0))
    assert read(
        fl.open_corpus(
            f"hosts://me@host/{what}", streams=ROWS, remote=fl.Remote(cache=tmp_path / "cache", deadline_s=1)
        )
    ) == [*range(50)]


# ---- options ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["s3", "gs", "az", "http"])
@pytest.mark.parametrize("name", ["allow_http", "AWS_ALLOW_HTTP", "proxy_url", "endpont", "anon", "default_headers"])
def test_an_option_that_is_not_known_is_named(capfd, scheme, name):
    pytest.importorskip("obstore", reason="obstore is not installed")
    with pytest.raises(ValueError, match=name) as caught:
        fl.open_corpus(f"{scheme}://bucket/x.jsonl", remote=fl.Remote(storage_options={name: SECRET}, deadline_s=1))
    assert isinstance(caught.value, fl.DataError)  # as it was before
    assert SECRET not in str(caught.value)
    assert capfd.readouterr().err == ""  # no panic of a library


@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_an_option_of_the_client_that_is_not_known_is_named(scheme):
    with pytest.raises(ValueError, match="time_out"):
        fl.open_corpus(
            f"{scheme}://b/x", remote=fl.Remote(storage_options={"client_options": {"time_out": SECRET}}, deadline_s=1)
        )


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("skip_signature", {"skip_signature": SECRET, "region": "x"}),
        ("timeout", {"client_options": {"timeout": SECRET}}),
    ],
)
def test_the_value_of_an_option_is_in_no_message(name, options):
    with pytest.raises(ValueError, match=name) as caught:
        fl.open_corpus("s3://bucket/x", remote=fl.Remote(storage_options=options, deadline_s=1))
    assert SECRET not in repr(caught.value)


def test_new_credentials_in_the_environment_are_used_by_the_next_opening(web, monkeypatch, tmp_path):
    pytest.importorskip("obstore", reason="obstore is not installed")
    monkeypatch.setenv("AWS_ENDPOINT_URL", web.url)
    monkeypatch.setenv("AWS_REGION", "here")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    web.before = lambda asked: (403, {})
    for key in ("OLDKEY", "NEWKEY"):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        with pytest.raises(fl.DataError, match="403"):
            fl.open_corpus("s3://bucket/x.jsonl", remote=fl.Remote(cache=tmp_path, deadline_s=3))
        assert f"Credential={key}/" in web.log[-1].headers["authorization"]


def test_a_proxy_is_asked_for_the_whole_address(web, tmp_path):
    """As environments with proxies require. The proxy here has the object itself."""
    web.objects["http://nowhere.invalid/x.jsonl"] = rows(0)
    options = {"client_options": {"proxy_url": web.url.replace("http://", "http://me:pw@")}}
    address = "http://nowhere.invalid/x.jsonl"
    corpus = fl.open_corpus(
        address, streams=ROWS, remote=fl.Remote(cache=tmp_path / "c", storage_options=options, deadline_s=5)
    )
    assert read(corpus) == [*range(50)]
    assert {one.headers["proxy-authorization"] for one in web.log} == {"Basic bWU6cHc="}


def test_a_proxy_may_be_named_without_a_scheme(web, tmp_path, monkeypatch):
    web.objects["http://nowhere.invalid/x.jsonl"] = rows(0)
    monkeypatch.setenv("http_proxy", web.url.removeprefix("http://"))
    corpus = fl.open_corpus(
        "http://nowhere.invalid/x.jsonl", streams=ROWS, remote=fl.Remote(cache=tmp_path / "cache", deadline_s=5)
    )
    assert read(corpus) == [*range(50)]


def test_places_are_the_same_in_every_process():
    """Otherwise ranks would not find pages that others have fetched."""
    assert key_of("s3://bucket/x", {"endpoint": "http://a:9000"}) == key_of(
        "s3://bucket/x", {"endpoint": "http://a:9000"}
    )
    assert len(key_of("memory://bucket/x")[0]) == 32
    assert os.path.basename(key_of("memory://bucket/x")[0]) == key_of("memory://bucket/x")[0]
