"""An object that is replaced: its old values, its new ones or an error, never both kinds, and never old ones later."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline.feed.remote import object_cache as caches
from feedline.feed.remote import placeholders
from feedline.feed.remote.stores import ObjectInfo
from tests.effort import examples
from tests.servers.web import WebServer

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")

MIB = 1 << 20
LATER = "Tue, 03 Nov 2026 10:00:00 GMT"


def numbers(version: int) -> bytes:
    """An array of 4 MiB. All versions have the same length."""
    file = io.BytesIO()
    np.save(file, np.full((2048, 512), version, np.float32))
    return file.getvalue()


OLD, NEW = numbers(1), numbers(2)


@pytest.fixture(autouse=True, scope="module")
def small():
    """Allow caches of a megabyte."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(caches, "MIN_CACHE_BYTES", MIB)
        yield


@pytest.fixture
def web():
    with WebServer({"/x.npy": OLD}) as server:
        yield server


def versions(address, cache, before=lambda number: None, cache_bytes=64 * MIB, **order) -> set[int]:
    """Return the versions that the values of a run are of."""
    order = {"max_sweeps": 1, "shuffle": fl.Window(bytes=MIB), "read_ahead": 0, **order}
    corpus = fl.open_corpus(address, remote=fl.Remote(cache=cache, cache_bytes=cache_bytes, deadline_s=10))
    try:
        with fl.MinibatchSource(corpus, **order) as source:
            found: set[int] = set()
            for number, minibatch in enumerate(source.minibatches(100)):
                found.update(np.unique(minibatch["x"].rows).astype(int).tolist())
                before(number)
            return found
    finally:
        corpus.close()


@pytest.mark.parametrize("etag", [True, False])
def test_later_runs_see_what_has_taken_its_place(web, tmp_path, etag):
    web.etag = etag
    assert versions(f"{web.url}/x.npy", tmp_path / "cache") == {1}
    web.objects["/x.npy"], web.modified = NEW, LATER
    assert versions(f"{web.url}/x.npy", tmp_path / "cache") == {2}


@pytest.mark.parametrize("etag", [True, False])
def test_what_has_taken_its_place_is_noticed_where_parts_do_not_say_how_large_it_is(web, tmp_path, etag):
    web.etag, web.content_range = etag, "bytes {}-{}/*"
    assert versions(f"{web.url}/x.npy", tmp_path / "cache") == {1}

    def replace(number):
        web.objects["/x.npy"], web.modified = NEW, LATER

    with pytest.raises(fl.DataError, match="expected the object as it was when it was opened"):
        versions(f"{web.url}/x.npy", tmp_path / "other", replace, MIB)


@pytest.mark.parametrize("etag", [True, False])
def test_what_is_still_there_is_not_fetched_again(web, tmp_path, etag):
    web.etag = etag
    assert versions(f"{web.url}/x.npy", tmp_path / "cache") == {1}
    sent = web.sent_bytes
    assert versions(f"{web.url}/x.npy", tmp_path / "cache") == {1}
    assert web.sent_bytes == sent


def test_objects_without_versions_are_not_kept_for_later_runs(web, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(placeholders, "_warned", set())
    web.etag, web.modified = False, None
    assert versions(f"{web.url}/x.npy", tmp_path / "cache") == {1}
    assert versions(f"{web.url}/x.npy", tmp_path / "cache") == {1}
    web.objects["/x.npy"] = NEW
    assert versions(f"{web.url}/x.npy", tmp_path / "cache") == {2}
    assert caplog.text.count("neither an ETag nor the time of the last change") == 1


@pytest.mark.parametrize("etag", [True, False])
def test_a_server_that_gives_versions_to_one_method_alone(web, tmp_path, etag):
    """Some leave the headers out of answers to HEAD."""
    web.etag, web.silent = etag, ("HEAD",)
    assert versions(f"{web.url}/x.npy", tmp_path / "cache") == {1}
    sent = web.sent_bytes
    assert versions(f"{web.url}/x.npy", tmp_path / "cache") == {1}
    assert web.sent_bytes - sent < MIB
    web.objects["/x.npy"], web.modified = NEW, LATER
    assert versions(f"{web.url}/x.npy", tmp_path / "cache") == {2}


@pytest.mark.parametrize(
    ("was", "now", "same"),
    [
        (("a", 5), ("a", 5), True),
        (("a", 5), ("b", 5), False),
        (("", 5 * 10**9), ("a", 5 * 10**9 + 1), True),  # a listing without ETags, in whole seconds
        (("a", 5 * 10**9), ("", 6 * 10**9), False),
        (("a", 0), ("", 0), False),  # no validator identifies it
        (("", 5), ("", 0), False),
        (("", 0), ("a", 5), True),  # as was said when it was opened
    ],
)
def test_versions_are_compared_by_what_both_answers_show(was, now, same):
    assert ObjectInfo("x", 1, *was).is_same(ObjectInfo("x", 1, *now)) == same
    assert not ObjectInfo("x", 1, *was).is_same(ObjectInfo("x", 2, *now))


def test_it_is_named_with_what_has_changed(web, tmp_path):
    web.etag = False

    def replace(number):
        web.objects["/x.npy"], web.modified = NEW[:-1], LATER

    with pytest.raises(fl.DataError) as caught:
        versions(f"{web.url}/x.npy", tmp_path / "cache", replace, cache_bytes=MIB)
    text = str(caught.value)
    assert f"of {len(OLD)} bytes, last modified 2026-11-02" in text
    assert f"one of {len(NEW) - 1} bytes, last modified 2026-11-03" in text


def test_a_file_system_is_queried_by_each_opening(tmp_path):
    """Whatever its library remembers."""
    system = fsspec.filesystem("memory")
    for content, version in ((OLD, 1), (NEW, 2)):
        system.pipe("/replaced/x.npy", content)
        assert versions("memory://replaced/x.npy", tmp_path / "cache") == {version}


@pytest.mark.parametrize("kind", ["etag", "modified", "file system"])
@settings(max_examples=examples(6), deadline=None)
@given(when=st.integers(0, 25), cache_bytes=st.sampled_from([MIB, 3 * MIB, 64 * MIB]), sweeps=st.integers(1, 2))
def test_values_of_two_versions_never_meet(kind, when, cache_bytes, sweeps):
    """Replaced at any request, in a cache that has none, some or all of it: all old, all new, or an error."""
    system = fsspec.filesystem("memory")
    with WebServer({"/x.npy": OLD}) as web, tempfile.TemporaryDirectory() as folder:
        web.etag = kind == "etag"
        system.pipe("/moment/x.npy", OLD)
        left = [when]

        def replace_in_time(_):
            left[0] -= 1
            if left[0] == 0:
                web.objects["/x.npy"], web.modified = NEW, LATER
                system.pipe("/moment/x.npy", NEW)

        web.before = replace_in_time
        address = "memory://moment/x.npy" if kind == "file system" else f"{web.url}/x.npy"
        # Of a file system, requests cannot be counted: minibatches are.
        between = replace_in_time if kind == "file system" else lambda _: None
        try:
            found = versions(address, Path(folder) / "cache", between, cache_bytes, max_sweeps=sweeps)
        except fl.DataError as error:
            if "expected the object as it was when it was opened" not in str(error):
                raise
        else:
            assert len(found) == 1
