"""Listings are only of named folders: other folders are not listed, taken for data, or an obstacle."""

from __future__ import annotations

import json

import pytest

import feedline as fl
from feedline.feed.remote.addresses import open_store
from feedline.feed.remote.requests import Patience, listing, wait_for
from feedline.feed.remote.stores import StoreFault
from tests.feed.remote.conftest import delivered

ROWS = {"i": fl.Stream((), "int64")}


def rows(first: int) -> bytes:
    return "".join(json.dumps({"i": first + k}) + "\n" for k in range(10)).encode()


@pytest.fixture
def bucket(store):
    """A folder of two files among folders of many, with keys that are no paths, and pages of three names."""
    for name in ("small/a", "small/b"):
        store.put(f"b/{name}.jsonl", rows(0))
    for number in range(12):
        store.put(f"b/other/{number:02}.jsonl", rows(0))
        store.put(f"b/small-{number:02}/x.jsonl", rows(0))
    store.put("b/logs//x.txt", b"no data")
    store.put("b/smallest//x.txt", b"no data")
    store.set(page=3)
    store.reset()
    return store


@pytest.mark.parametrize(
    ("what", "count", "lists"),
    [
        ("small", 20, ["b/small/"]),
        ("small/", 20, ["b/small/"]),
        ("small/*.jsonl", 20, ["b/small/"]),
        ("small/**", 20, ["b/small/"]),
        ("small/a.jsonl", 10, []),
        ("small/{a,b}.jsonl", 20, []),
        (["small/a.jsonl", "small/b.jsonl"], 20, []),
    ],
)
def test_other_folders_are_not_listed(bucket, opened, what, count, lists):
    assert sum(info.sequences for info in opened(what, **ROWS).chunks()) == count
    assert [entry.name for entry in bucket.log() if entry.kind == "LIST"] == lists


def test_a_pattern_of_folders_lists_matching_folders(bucket, opened):
    corpus = opened("small-*", **ROWS)
    assert sum(info.sequences for info in corpus.chunks()) == 120
    prefixes = {entry.name for entry in bucket.log() if entry.kind == "LIST"}
    assert prefixes == {"b/", *(f"b/small-{number:02}/" for number in range(12))}


def test_folders_that_are_all_there_is_are_listed_together(store, opened):
    for number in range(5):
        store.put(f"b/all/{number}/x.jsonl", rows(0))
    assert sum(info.sequences for info in opened("all/*", **ROWS).chunks()) == 50
    assert [entry.name for entry in store.log() if entry.kind == "LIST"] == ["b/all/", "b/all/"]


@pytest.mark.parametrize("refused", [False, True])
def test_an_index_is_requested_for_tokens_and_for_the_first_object(store, opened, refused):
    """Without the right to list, a missing object is a refusal."""
    for name in ("x.jsonl", "y.bin", "z.bin"):
        store.put(f"b/{name}", rows(0))
    if refused:
        store.fail("status", key="b/*.idx", request="HEAD", status=403, times=None)
    for what, asked in (
        ("x.jsonl", ["b/x.jsonl", "b/x.jsonl.feedline-index"]),
        ("{y,z}.bin", ["b/y.bin", "b/y.bin.feedline-index", "b/y.idx", "b/z.bin", "b/z.idx"]),
    ):
        store.reset()
        opened(what, **(ROWS if what == "x.jsonl" else {}))
        assert sorted(entry.name for entry in store.log() if entry.kind in ("HEAD", "LIST")) == asked


def test_a_slash_at_the_end_marks_a_folder(store, opened):
    store.put("b/small/a.jsonl", rows(0))
    opened("small/", **ROWS)
    assert store.counters().requests["HEAD"] == 0


def test_a_pattern_of_several_levels_lists_the_folders_that_match(bucket, opened):
    """Whatever other folders have, such as keys with empty parts."""
    for number in range(3):
        bucket.put(f"b/deep-{number}/x/a.jsonl", rows(0))
        bucket.put(f"b/deep-{number}/y/a.jsonl", rows(0))
    bucket.put("b/deep-9", b"no folder")
    bucket.reset()
    corpus = opened("deep-[012]/x/*.jsonl", **ROWS)
    assert sum(info.sequences for info in corpus.chunks()) == 30
    prefixes = {entry.name for entry in bucket.log() if entry.kind == "LIST"}
    assert prefixes == {"b/", *(f"b/deep-{number}/{inside}" for number in range(3) for inside in ("", "x/"))}
    with pytest.raises(fl.DataError, match="got none"):
        opened("deep-[012]/z/*.jsonl", **ROWS)


def test_a_pattern_at_the_root_lists_no_folder(bucket, opened):
    for name in ("x-1.jsonl", "x-2.jsonl", "y.jsonl"):
        bucket.put(f"b/{name}", rows(0))
    assert sum(info.sequences for info in opened("x-*.jsonl", **ROWS).chunks()) == 20
    assert {entry.name for entry in bucket.log() if entry.kind == "LIST"} == {"b/"}


@pytest.mark.parametrize("what", ["m", "m/", "m/*.jsonl", "m/**", "n/**", "e/**"])
def test_an_object_without_bytes_that_shows_a_folder_is_no_data(store, opened, what):
    for name in ("m", "n", "e"):
        store.put(f"b/{name}/a.jsonl", rows(0))
    store.put("b/m/", b"")  # as the console of AWS, s3fs and rclone leave them
    store.put("b/n/sub/", b"")
    store.put("b/n/sub/b.jsonl", rows(100))
    store.put("b/e/none/", b"")  # of a folder with nothing in it
    store.put("b/e/old_$folder$", b"")  # as EMR leaves them
    found = delivered(opened(what, **ROWS), max_sweeps=1, shuffle=False)
    values = [i for _, minibatch in found for (i,) in minibatch["i"]]
    assert values == [*range(10), *(range(100, 110) if what == "n/**" else ())]


def test_an_object_without_bytes_stays_one(store, opened):
    store.put("b/z/a.jsonl", rows(0))
    store.put("b/z/empty.jsonl", b"")
    assert [one.info.key for one in opened("z", **ROWS).placeholders.objects.values()] == ["z/a.jsonl", "z/empty.jsonl"]


def test_a_folder_may_have_the_name_of_an_object(store, opened):
    store.put("b/x.jsonl", rows(0))
    store.put("b/x.jsonl/a.jsonl", rows(100))
    assert sum(info.sequences for info in opened("x.jsonl", **ROWS).chunks()) == 10


def test_what_cannot_succeed_is_asked_for_once(store, opened):
    store.put("b/bad/a.jsonl", rows(0))
    store.put("b/bad//b.jsonl", rows(0))
    with pytest.raises(fl.DataError, match=r"bad//b(.|\n)*name other folders, or single objects"):
        opened("bad", **ROWS)
    assert store.counters().requests["LIST"] == 1


def test_who_may_list_a_folder_but_not_ask_for_its_name_opens_it(store, opened):
    store.put("b/small/a.jsonl", rows(0))
    store.fail("status", key="b/small", request="HEAD", status=403, times=None)
    assert sum(info.sequences for info in opened("small", **ROWS).chunks()) == 10


def test_a_store_that_does_not_answer_is_not_given_its_time_twice(store, opened):
    store.put("b/small/a.jsonl", rows(0))
    store.fail("status", key="b/small", request="HEAD", status=500, times=None)
    with pytest.raises(fl.DataError, match="500"):
        opened("small", deadline_s=0.5, **ROWS)
    assert store.counters().requests["LIST"] == 0


def test_a_listing_may_take_longer_than_a_request_may_be_silent(store, monkeypatch):
    """Each page is a sign of life."""
    for number in range(12):
        store.put(f"b/many/{number}", b"x")
    store.set(page=1)
    monkeypatch.setattr("obstore.list", _pages_of_one(__import__("obstore").list))
    folder, _ = open_store("s3://b", store.s3())
    store.set(latency_s=0.1)
    assert len(wait_for(listing(folder, "many/", Patience(deadline_s=60.0, stall_s=0.7)))) == 12


def _pages_of_one(plain):
    return lambda *arguments, **more: plain(*arguments, **{**more, "chunk_size": 1})


@pytest.mark.parametrize("error", [ValueError("x"), TypeError("x"), KeyError("x"), NotImplementedError("x")])
def test_errors_of_a_library_itself_are_not_met_with_patience(monkeypatch, tmp_path, error):
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    asked = []

    def info(*_, **__):
        asked.append(1)
        raise error

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "info", info)
    with pytest.raises(fl.DataError, match="after one attempt"):
        fl.open_corpus("memory://bucket/x.jsonl", streams=ROWS, remote=fl.Remote(cache=tmp_path))
    assert len(asked) <= 2  # as an object, and as a folder
    assert not StoreFault("x").again
