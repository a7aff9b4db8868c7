"""Nodes of a cluster fetch from each other's caches; a peer that is gone or wrong costs requests, and nothing else.

Nodes are processes with caches of their own, in one local Ray: their actors know nothing of being on one machine.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

import feedline as fl
from feedline.feed.remote import peers
from feedline.feed.remote.pages import PAGE_BYTES
from feedline.interop.private_ray import PrivateRay
from tests.docs.pages import IMPORTED_FROM, ROOT
from tests.feed.remote.conftest import delivered
from tests.feed.remote.test_cache import FILES, TOTAL, rows

PROGRAM = """
    import hashlib, json, sys
    import ray
    import feedline as fl
    from feedline.feed.remote import peers, requests
    from tests.feed.remote.conftest import delivered

    how = json.loads(sys.argv[1])
    peers.PEER_S, peers.DIRECTORY_S = how.pop("peer_s"), 60
    corpus = fl.open_corpus("s3://b/*.parquet", cache_peers="ray", **how)
    got = delivered(corpus, max_sweeps=1, shuffle=fl.Window(chunks=4))
    own = corpus.mirror.cache.peers
    said = {
        "delivered": hashlib.sha256(repr(got).encode()).hexdigest(),
        "fetched": requests.TRAFFIC.fetched_bytes,
        "from_peers": requests.TRAFFIC.peer_bytes,
        "actor": ray.get(own._own.pid.remote()),
        "directory": ray.get(own._directory.pid.remote()),
        "shunned": sorted(own._shunned),
    }
    print(json.dumps(said), flush=True)
    sys.stdin.read()
"""


class Node:
    """A process that has read everything, and stays.

    Others have a minute to answer, as a busy machine must not look like a dead one.
    """

    def __init__(self, cluster, options, folder, peer_s=60):
        how = {**options, "cache": str(folder), "cache_bytes": 1 << 30, "peer_s": peer_s}
        path = os.pathsep.join([IMPORTED_FROM, str(ROOT)])
        environment = {**os.environ, **cluster.settings, "RAY_ADDRESS": cluster.address, "PYTHONPATH": path}
        self._process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PROGRAM), json.dumps(how)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.folder = folder
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(self._process.communicate()[1])
        self.said = json.loads(line)

    def close(self):
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def cluster():
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed (pip install 'feedline[ray]')")
    ray = PrivateRay(cpus=2)
    yield ray
    ray.close()


@pytest.fixture
def node(cluster, store, options, tmp_path):
    """Start a node."""
    nodes = []

    def start(**how):
        nodes.append(Node(cluster, options, tmp_path / f"node-{len(nodes)}", **how))
        return nodes[-1]

    yield start
    for one in nodes:
        one.close()


@pytest.fixture
def expected(store, tmp_path):
    (tmp_path / "local").mkdir()
    for seed in range(FILES):
        store.put(f"b/{seed}.parquet", rows(seed))
        (tmp_path / "local" / f"{seed}.parquet").write_bytes(rows(seed))
    got = delivered(fl.open_corpus(tmp_path / "local"), max_sweeps=1, shuffle=fl.Window(chunks=4))
    return hashlib.sha256(repr(got).encode()).hexdigest()


@pytest.mark.slow
def test_a_node_fetches_from_others_and_a_dead_one_costs_requests(store, node, expected, cluster):
    first = node()
    assert first.said["delivered"] == expected
    assert first.said["from_peers"] == 0
    assert first.said["fetched"] >= TOTAL
    store.reset()
    second = node()
    assert second.said["delivered"] == expected
    assert second.said["from_peers"] >= 0.9 * TOTAL
    assert second.said["fetched"] == store.counters().sent_bytes["GET"] <= 0.1 * TOTAL
    # One is killed, one stands still, and one has lost a page.
    os.kill(first.said["actor"], signal.SIGKILL)
    os.kill(second.said["actor"], signal.SIGSTOP)
    store.reset()
    third = node(peer_s=0.5)
    os.kill(second.said["actor"], signal.SIGCONT)
    assert third.said["delivered"] == expected
    assert third.said["fetched"] >= TOTAL
    assert third.said["from_peers"] == 0
    assert len(third.said["shunned"]) == 2
    for one in (second, third):
        # Of one object alone: all of it may be asked for at once, and then come from the store.
        with open(min(one.folder.glob("objects/*/data")), "r+b") as file:
            file.seek(3 * PAGE_BYTES)
            file.write(b"x" * 100)
    store.reset()
    fourth = node()
    assert fourth.said["delivered"] == expected
    assert 0 < fourth.said["fetched"] == store.counters().sent_bytes["GET"] < TOTAL
    # Nor is it more when the directory is gone: another is started, and hears from the others what they have.
    os.kill(fourth.said["directory"], signal.SIGKILL)
    fifth = node()
    assert fifth.said["delivered"] == expected
    assert fifth.said["directory"] != fourth.said["directory"]


@pytest.mark.slow
def test_actors_end_when_nobody_uses_the_caches(node, expected):
    one = node()
    actor = one.said["actor"]
    one.close()
    for _ in range(700):
        if not os.path.exists(f"/proc/{actor}"):
            break
        time.sleep(0.1)
    assert not os.path.exists(f"/proc/{actor}")


class Friendly:
    """A peer that has every second range."""

    address = "nowhere"

    def __init__(self, data):
        self.data, self.asked, self.kept, self.given = data, 0, [], 0

    async def fetch(self, key, first, end, size):
        self.asked += 1
        if self.asked % 2:
            return None
        self.given += size
        return self.data[first * PAGE_BYTES :][:size]

    def keeps(self, key, first):
        self.kept.append((key, first))


def test_a_cache_asks_its_peers_before_the_store(store, opened, tmp_path):
    data = rows(1)
    store.put("b/1.parquet", data)
    (tmp_path / "1.parquet").write_bytes(data)
    corpus = opened("1.parquet")
    friend = corpus.mirror.cache.peers = Friendly(data)
    store.reset()
    got = delivered(corpus, max_sweeps=1, shuffle=fl.Window(chunks=4))
    assert got == delivered(fl.open_corpus(tmp_path / "1.parquet"), max_sweeps=1, shuffle=fl.Window(chunks=4))
    assert friend.given > 0.2 * len(data)
    assert store.counters().sent_bytes["GET"] <= len(data) - friend.given
    assert len(friend.kept) == friend.asked


# ---- actors, without Ray ------------------------------------------------------------------------------


@pytest.fixture
def served(store, opened, tmp_path):
    """The actor of a node that has the first pages of an object, and the object."""
    data = rows(1)
    store.put("b/1.parquet", data)
    corpus = opened("1.parquet")
    (found,) = corpus.mirror.objects.values()
    into = bytearray(20 * PAGE_BYTES)
    found.read(0, memoryview(into))
    actor = peers.NodeCache.__new__(peers.NodeCache)
    actor._folder = corpus.mirror.cache.folder
    return actor, found, data


def test_a_peer_sends_what_is_whole(served):
    actor, found, data = served
    got, sums = actor.pages(found.key, 2, 9)
    assert got.tobytes() == data[2 * PAGE_BYTES : 9 * PAGE_BYTES]
    assert peers._are_whole(got, sums)
    assert not peers._are_whole(got[:-1], sums[:-1])
    assert not peers._are_whole(got, sums[:-1])
    last = found.size // PAGE_BYTES
    end = actor.pages(found.key, last, last + 1)  # Parquet begins to be read at its end
    assert end is not None
    assert end[0].tobytes() == data[last * PAGE_BYTES :]
    for first, stop in ((100, 101), (18, 30), (5, 5), (-1, 3), (0, 10**6), (last, last + 2)):
        assert actor.pages(found.key, first, stop) is None
    evil = actor._folder / "evil"
    evil.mkdir()
    for name in ("pages", "data"):
        (evil / name).write_bytes((actor._folder / "objects" / found.key / name).read_bytes())
    for key in ("../evil", "", found.key[:-1], "0" * 32):
        assert actor.pages(key, 0, 1) is None


def test_a_peer_does_not_send_what_was_dropped_or_damaged(served):
    actor, found, _ = served
    with open(found.place(), "r+b") as file:
        file.seek(4 * PAGE_BYTES + 17)
        file.write(b"?")
    assert actor.pages(found.key, 0, 4) is not None
    assert actor.pages(found.key, 0, 5) is None
    with found.cache.opened(found) as pages:
        pages.drop(1, 2)
    assert actor.pages(found.key, 0, 4) is None
    assert actor.pages(found.key, 2, 4) is not None


def test_the_directory(monkeypatch):
    monkeypatch.setattr(peers, "_end_when", lambda *_: None)
    directory = peers.Directory()
    assert not directory.beat("a")
    directory.note("a", [("k", 0), ("k", 1)])
    directory.note("b", [("k", 1)])
    assert directory.beat("a")
    assert sorted(directory.who("k", 1)) == ["a", "b"]
    assert directory.who("k", 2) == directory.who("x", 1) == []
    directory.forget("a")
    assert directory.who("k", 0) == []
    assert directory.who("k", 1) == ["b"]
    assert not directory.beat("a")


def test_arguments(store, tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.arange(3.0))
    store.put("b/x.npy", (tmp_path / "x.npy").read_bytes())
    how = {"cache": tmp_path / "cache", "storage_options": store.s3()}
    with pytest.raises(ValueError, match="expected cache_peers 'ray' or None, got 'dask'"):
        fl.open_corpus("s3://b/x.npy", cache_peers="dask", **how)
    with pytest.raises(ValueError, match="expected an address for cache=, cache_bytes=, cache_peers="):
        fl.open_corpus(tmp_path / "x.npy", cache_peers="ray")
    monkeypatch.setenv("RAY_ADDRESS", "local")
    with pytest.raises(ConnectionError, match="ray start --head"):
        fl.open_corpus("s3://b/x.npy", cache_peers="ray", **how)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "ray" else find(name, *rest))
    with pytest.raises(ModuleNotFoundError, match=re.escape("pip install 'feedline[ray]'")):
        fl.open_corpus("s3://b/x.npy", cache_peers="ray", **how)
