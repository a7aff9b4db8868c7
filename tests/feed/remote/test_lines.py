"""Slow lines: bytes that come steadily are delivered, each once, by as many requests as help."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import pytest

import feedline as fl
from feedline.feed.remote import requests
from feedline.feed.remote.requests import IN_FLIGHT, Patience, RequestLimiter, fetch_range
from feedline.feed.remote.stores import ObjectInfo, Store
from tests.feed.remote.conftest import delivered
from tests.servers.web import WebServer

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")

ROWS = {"i": fl.Stream((), "int64"), "pad": fl.Stream(dtype="str")}


def rows(size: int) -> bytes:
    return b"".join(json.dumps({"i": i, "pad": "x" * 1000}).encode() + b"\n" for i in range(size // 1024))


def test_what_comes_steadily_is_delivered_however_slow(tmp_path):
    """A mebibyte takes longer than a stall may last."""
    content = rows(1 << 20)
    with WebServer({"/x.jsonl": content}) as web:
        web.piece, web.pause_s = 8 << 10, 0.015
        corpus = fl.open_corpus(
            f"{web.url}/x.jsonl", streams=ROWS, remote=fl.Remote(cache=tmp_path / "cache", deadline_s=8.0)
        )
        assert len(delivered(corpus, max_sweeps=1, size=100)) == 11
        assert web.sent_bytes <= 1.1 * len(content)


def test_what_has_come_before_a_line_broke_down_is_kept(store, opened):
    content = rows(1 << 20)
    store.put("b/x.jsonl", content)
    store.fail("stall", key="b/x.jsonl", request="GET", byte=900_000, at=700_000)
    fault = store.fail("stall", key="b/x.jsonl", request="GET", byte=900_000, at=0, times=None)
    with pytest.raises(fl.DataError, match="no byte in"):
        opened("x.jsonl", deadline_s=1.0, **ROWS)
    assert fault.hits > 1
    store.heal()
    store.reset()
    assert len(delivered(opened("x.jsonl", **ROWS), max_sweeps=1, size=100)) == 11
    assert store.counters().sent_bytes["GET"] <= len(content) - 700_000 + (16 << 10)


def test_what_has_come_before_an_interrupt_is_kept(store, opened, interrupted):
    content = rows(1 << 20)
    store.put("b/x.jsonl", content)
    store.fail("stall", key="b/x.jsonl", request="GET", byte=900_000, at=700_000, times=None)
    before = requests.TRAFFIC.fetched_bytes
    with interrupted(lambda: requests.TRAFFIC.fetched_bytes >= before + 700_000), pytest.raises(KeyboardInterrupt):
        opened("x.jsonl", deadline_s=400.0, **ROWS)
    store.heal()
    store.reset()
    assert len(delivered(opened("x.jsonl", **ROWS), max_sweeps=1, size=100)) == 11
    assert store.counters().sent_bytes["GET"] <= len(content) - 700_000 + (16 << 10)


def test_a_file_system_that_is_slow_is_read_in_smaller_pieces(tmp_path, monkeypatch):
    """Of a call that blocks nothing is heard before all of it has come."""
    content = rows(200 << 10)
    system = fsspec.filesystem("memory")
    system.pipe("/slow/x.jsonl", content)
    plain, sent = type(system).cat_file, []

    def cat_file(self, path, start=None, end=None, **more):
        time.sleep((end - start) / 80_000)
        sent.append(end - start)
        return plain(self, path, start=start, end=end, **more)

    monkeypatch.setattr(type(system), "cat_file", cat_file)
    corpus = fl.open_corpus(
        "memory://slow/x.jsonl", streams=ROWS, remote=fl.Remote(cache=tmp_path / "cache", deadline_s=8.0)
    )
    assert len(delivered(corpus, max_sweeps=1, size=100)) == 2


# ---- the deadline -------------------------------------------------------------------------------------


class Steady(Store):
    """A store whose clock moves on as it delivers, and that breaks off after each kilobyte."""

    def __init__(self, clock):
        super().__init__("test://steady", {})
        self.clock = clock

    async def head(self, key):
        raise NotImplementedError

    def list_objects(self, folder, *, deep=True):
        raise NotImplementedError

    async def read(self, info, begin, end):
        self.clock.now += 200.0
        yield bytes(min(1024, end - begin))


class Clock:
    """A clock that only a test moves."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(requests, "time", clock)
    return clock


def test_a_deadline_runs_while_nothing_is_heard(clock, monkeypatch):
    """Each attempt delivers something, 200 seconds after the last: ten times the deadline in all."""
    monkeypatch.setattr(requests, "_FIRST_DELAY_S", 0.0)
    into = memoryview(bytearray(10 * 1024))
    info = ObjectInfo("x", 10 * 1024, "e", 0)
    patience = Patience(deadline_s=250.0, stall_s=3600.0)
    requests.wait_for(fetch_range(Steady(clock), info, 0, into, patience=patience, on_bytes=lambda done: None))
    assert clock.now >= 1000.0 + 10 * 200


# ---- turns --------------------------------------------------------------------------------------------


def turns_on(clock, rate_of, bytes_of_request=8 << 20, rounds=400):
    """Return the turns of a line whose bytes a second are ``rate_of(turns)``, with requests always waiting."""

    async def run():
        limiter, found = RequestLimiter(), []
        waiting = [asyncio.ensure_future(limiter.__aenter__()) for _ in range(4 * IN_FLIGHT)]
        for _ in range(rounds):
            await asyncio.sleep(0)
            taken = limiter._taken
            # All requests under way share the line, for half a second or until they end.
            seconds = min(0.5, bytes_of_request * taken / rate_of(taken))
            ends = seconds < 0.5
            clock.now += seconds
            limiter.count_bytes(int(rate_of(taken) * seconds))
            if ends:
                for _ in range(taken):
                    limiter.count_request()
                    waiting.append(asyncio.ensure_future(limiter.__aenter__()))
                    await limiter.__aexit__()
            elif taken > limiter.turns:  # those under way end some time
                await limiter.__aexit__()
            found.append(limiter.turns)
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return found

    return asyncio.run(run())


def test_a_fast_line_gets_all_requests_soon(clock):
    found = turns_on(clock, lambda turns: 100e6 * turns, rounds=40)
    assert found[-1] == IN_FLIGHT


def test_a_line_that_each_request_has_to_itself_gets_all_requests(clock):
    """A server that gives every connection a quarter of a megabyte a second: more of them are of use."""
    found = turns_on(clock, lambda turns: 250e3 * turns)
    assert found[-1] == IN_FLIGHT


def test_a_slow_line_that_all_share_gets_few_requests(clock):
    found = turns_on(clock, lambda turns: 1e6)
    assert max(found[100:]) <= 8
    assert sorted(found[100:])[len(found[100:]) // 2] <= 2


def test_a_request_that_gives_up_while_it_waits_takes_no_turn():
    async def run():
        limiter = RequestLimiter()
        for _ in range(limiter.turns):
            await limiter.__aenter__()
        waiting = asyncio.ensure_future(limiter.__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await limiter.__aexit__()
        await asyncio.wait_for(limiter.__aenter__(), 5)

    asyncio.run(run())


def test_threads_of_calls_that_never_return_keep_no_process_alive(tmp_path, monkeypatch):
    """They are nobody's to wait for."""
    before = set(threading.enumerate())
    system = fsspec.filesystem("memory")
    system.pipe("/dead/x.jsonl", rows(10_000))
    monkeypatch.setattr(type(system), "cat_file", lambda *_, **__: threading.Event().wait(600))
    with pytest.raises(fl.DataError, match="no byte in"):
        fl.open_corpus(
            "memory://dead/x.jsonl", streams=ROWS, remote=fl.Remote(cache=tmp_path / "cache", deadline_s=8.0)
        )
    assert all(thread.daemon for thread in set(threading.enumerate()) - before)
