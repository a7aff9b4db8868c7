"""Caches of other nodes of a Ray cluster: pages are fetched from them before they are fetched from a store.

An actor on each node serves the pages of its cache by ranges, as an array with the checksums of the pages, which Ray
moves between the nodes; it compares them with their checksums before it sends them, and who gets them does so again.
One more actor, the directory, says which nodes have anything of a part of an object. Both end by themselves when nobody
uses the caches any more.

A peer that does not answer within `PEER_S`, or is gone, is not asked again for `SHUNNED_S`; nor is a directory. So the
worst that peers do is to save nothing. Cost: one question to the directory, 1 to 2 ms, for each range that is not in
the node's own cache.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import random
import re
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.feed.distinct import distinct
from feedline.feed.remote.holders import any_alive
from feedline.feed.remote.pages import PAGE_BYTES, checksums
from feedline.feed.remote.requests import PART_BYTES, TRAFFIC
from feedline.interop import ray_session

DIRECTORY_S = 2.0
"""Seconds within which the directory has to answer."""

PEER_S = 5.0
"""Seconds within which a peer has to deliver."""

SHUNNED_S = 60.0
"""Seconds for which a peer that did not is not asked again."""

_ASKED = 2  # peers, for one range
_AT_ONCE = 8  # ranges
_STARTS, _STARTS_S = 3, 120.0  # attempts to start an actor, and seconds that Ray may take for one
_BEAT_S, _ALONE_S = 5.0, 60.0  # between signs of life of a peer; without any, until the directory ends
_UNUSED_S = 10.0  # without a user of the cache, until its actor ends
_NAMESPACE, _DIRECTORY = "feedline", "feedline-cache-directory"
_KEY = re.compile(r"[0-9a-f]{32}")
_PART = PART_BYTES // PAGE_BYTES

_log = logging.getLogger("feedline")

PeerPages = tuple[NDArray[np.uint8], NDArray[np.uint32]]
"""Bytes of pages, and their checksums."""


class Directory:
    """Which nodes have anything of which part of an object; an actor."""

    def __init__(self) -> None:
        self._peers: dict[tuple[str, int], set[str]] = defaultdict(set)
        self._known: set[str] = set()
        self._heard = time.monotonic()
        threading.Thread(target=_end_when, args=(self._is_alone, _BEAT_S), daemon=True).start()

    def _is_alone(self) -> bool:
        return time.monotonic() - self._heard > _ALONE_S

    def pid(self) -> int:
        """Return the process id."""
        return os.getpid()

    def beat(self, peer: str) -> bool:
        """Take a sign of life; return whether the peer has announced what it has."""
        self._heard = time.monotonic()
        return peer in self._known

    def note(self, peer: str, parts: list[tuple[str, int]]) -> None:
        """Note that a peer has something of parts, given by key and number."""
        self._known.add(peer)
        for part in parts:
            self._peers[part].add(peer)

    def forget(self, peer: str) -> None:
        """Note that a peer is gone."""
        self._known.discard(peer)
        for there in self._peers.values():
            there.discard(peer)

    def who(self, key: str, part: int) -> list[str]:
        """Return the peers that have something of a part."""
        return list(self._peers.get((key, part), ()))


class NodeCache:
    """The cache of a node, for others to read; an actor on that node.

    Args:
        name: its name.
        folder: folder of the cache.
    """

    def __init__(self, name: str, folder: str) -> None:
        self._name, self._folder = name, Path(folder)
        self._used = time.monotonic()
        self._directory = _actor(ray_session.join().ray, _DIRECTORY, Directory)
        threading.Thread(target=_end_when, args=(self._is_unused, _BEAT_S), daemon=True).start()

    def _is_unused(self) -> bool:
        ray = ray_session.join().ray
        try:
            if not ray.get(self._directory.beat.remote(self._name), timeout=DIRECTORY_S):
                self.announce()
        except Exception:  # it ended, as does everything that runs on Ray at some time: it is started anew
            self._directory = _actor(ray, _DIRECTORY, Directory)
        if any_alive(self._folder / "holders"):
            self._used = time.monotonic()
        return time.monotonic() - self._used > _UNUSED_S

    def announce(self) -> None:
        """Tell the directory what is in the cache."""
        parts = []
        for place in (self._folder / "objects").iterdir():
            try:
                table = np.fromfile(place / "pages", np.uint32)
            except OSError:
                continue
            parts += [(place.name, int(number)) for number in distinct(np.flatnonzero(table) // _PART)]
        ray_session.join().ray.get(self._directory.note.remote(self._name, parts))

    def pid(self) -> int:
        """Return the process id."""
        return os.getpid()

    def pages(self, key: str, first: int, end: int) -> PeerPages | None:
        """Return the pages ``first:end`` of an object; None: not all of them are there, as they were written."""
        if not _KEY.fullmatch(key) or not 0 <= first < end <= first + _PART:
            return None
        place = self._folder / "objects" / key
        try:
            # Others may drop pages at any moment: the checksum tells.
            sums = np.fromfile(place / "pages", np.uint32, end - first, offset=4 * first)
            if len(sums) < end - first or not sums.all():
                return None
            data = np.fromfile(place / "data", np.uint8, (end - first) * PAGE_BYTES, offset=first * PAGE_BYTES)
        except OSError:
            return None
        return (data, sums) if _are_whole(data, sums) else None


class RayPeers:
    """The caches of a Ray cluster, as a node sees them; see `cache.Peers`.

    Args:
        folder: folder of the node's own cache.
        address: the cluster; None: that of this process, or the user's.

    Attributes:
        address: the cluster.
        name: name of the node's own actor.

    Raises:
        ModuleNotFoundError: Ray is not installed.
        ConnectionError: there is no cluster, or it does not start an actor.
    """

    def __init__(self, folder: Path, address: str | None = None) -> None:
        ray_session.check()
        if not ray_session.is_there():
            if address is None:
                raise ConnectionError(
                    'expected a Ray cluster for cache_peers="ray", got none: start one with `ray start --head` and, on '
                    "the other nodes, `ray start --address=HEAD:6379`, and set RAY_ADDRESS or call ray.init()"
                )
            os.environ["RAY_ADDRESS"] = address  # this process is a worker of one that knows it
        self._ray = ray = ray_session.join().ray
        context = ray.get_runtime_context()
        self.address: str = context.gcs_address
        node = context.get_node_id()
        self.name = f"feedline-cache-{node[:16]}-{hashlib.blake2b(str(folder).encode(), digest_size=6).hexdigest()}"
        self._directory = _actor(ray, _DIRECTORY, Directory)
        for left in range(_STARTS, 0, -1):
            self._own = _actor(ray, self.name, NodeCache, self.name, str(folder), node=node)
            try:
                ray.get(self._own.announce.remote(), timeout=_STARTS_S)
                break
            except ray.exceptions.RayError as error:  # one that was found may just be ending
                if left == 1 or isinstance(error, ray.exceptions.GetTimeoutError):
                    raise ConnectionError(
                        f"expected Ray to start an actor for the cache in {folder}, got {error}"
                    ) from error
                time.sleep(1)
        self._handles: dict[str, Any] = {}
        self._shunned: dict[str, float] = {}
        self._noted: set[tuple[str, int]] = set()
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def fetch(self, key: str, first: int, end: int, size: int) -> NDArray[np.uint8] | None:
        """See `Peers.fetch`."""
        if self._is_shunned(_DIRECTORY):
            return None
        async with self._room:
            try:
                names = await self._answer(self._directory.who.remote(key, first // _PART), DIRECTORY_S)
            except Exception as error:
                self._shun(_DIRECTORY, error)
                self._directory = await asyncio.to_thread(_actor, self._ray, _DIRECTORY, Directory)
                return None
            names = [name for name in names if name != self.name and not self._is_shunned(name)]
            for name in random.sample(names, min(_ASKED, len(names))):
                found = await self._pages(name, key, first, end)
                if found is not None and len(found[0]) == size and _are_whole(*found):
                    TRAFFIC.peer_bytes += size
                    return found[0]
        return None

    def keeps(self, key: str, first: int) -> None:
        """See `Peers.keeps`."""
        part = (key, first // _PART)
        if part not in self._noted and not self._is_shunned(_DIRECTORY):
            self._noted.add(part)
            try:
                self._directory.note.remote(self.name, [part])
            except Exception as error:  # Ray was shut down
                self._shun(_DIRECTORY, error)

    async def _pages(self, name: str, key: str, first: int, end: int) -> PeerPages | None:
        try:
            if name not in self._handles:
                get = self._ray.get_actor
                self._handles[name] = await asyncio.to_thread(get, name, namespace=_NAMESPACE)
            found: PeerPages | None = await self._answer(self._handles[name].pages.remote(key, first, end), PEER_S)
        except Exception as error:
            self._handles.pop(name, None)
            self._shun(name, error)
            self._directory.forget.remote(name)
            return None
        return found

    async def _answer(self, reference: Any, limit_s: float) -> Any:
        return await asyncio.wait_for(asyncio.wrap_future(reference.future()), limit_s)

    def _is_shunned(self, name: str) -> bool:
        return time.monotonic() < self._shunned.get(name, 0.0)

    def _shun(self, name: str, error: Exception) -> None:
        self._shunned[name] = time.monotonic() + SHUNNED_S
        why = str(error).strip().partition("\n")[0]
        _log.warning("%s does not answer, and is not asked for %g s: %s %s", name, SHUNNED_S, type(error).__name__, why)


def _are_whole(data: NDArray[np.uint8], sums: NDArray[np.uint32]) -> bool:
    return -(-len(data) // PAGE_BYTES) == len(sums) and bool((checksums(data.data) == sums).all())


def _actor(ray: Any, name: str, kind: type, *arguments: Any, node: str | None = None) -> Any:
    """Return the actor of that name, which is started if need be."""
    options: dict[str, Any] = {
        "name": name,
        "namespace": _NAMESPACE,
        "get_if_exists": True,
        "lifetime": "detached",  # it ends by itself, as whoever started it may end before others do
        "num_cpus": 0,
        "max_restarts": 0,
        "max_concurrency": 1 if node is None else _AT_ONCE,
    }
    if node is not None:
        options["scheduling_strategy"] = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(kind).options(**options).remote(*arguments)


def _end_when(over: Any, every_s: float) -> None:
    """Within an actor: end it when it is over."""
    ray = ray_session.join().ray
    while not over():
        time.sleep(every_s)
    ray.kill(ray.get_runtime_context().current_actor)
