"""Stored bytes of chunks, fetched ahead so that reading and decoding overlap.

A chunk of text, of Parquet or of a compressed store is read whole, so the parts of files that it consists of are known
(`Fetchable.extents`). If the page cache holds them, the deserializer reads them as usual. If not, native threads read
them ahead of the decoding threads, in large pieces, many at a time, bypassing the page cache: the decoders find their
bytes in memory, and no other pages are evicted. Processes of one machine that read the same data use the page cache, so
that the data is read from disk once. So does a process that waits for a slow disk, if all of the data fits. Objects in
stores are fetched from the store, or from the cache of this node (`feedline.feed.remote`), in the same order and within
the same room.

Cost: memory for the chunks that are being decoded, and for `ROOM_BYTES` bytes or one chunk ahead of them.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from feedline import _native
from feedline.feed.files.paths import open_regular
from feedline.feed.files.remote import object_at
from feedline.feed.protocol import Deserializer, Extent, Piece, Unread, chunk_extents
from feedline.feed.reading.cache_policy import CachePolicy
from feedline.feed.reading.next_uses import NextUses
from feedline.feed.remote.object_cache import (
    Cache,
    CachedObject,
    KeepDecision,
    ObjectFetch,
    PageRange,
    coalesce_extents,
)
from feedline.feed.remote.pages import PAGE_BYTES

ROOM_BYTES = 64 << 20
"""Stored bytes fetched before a thread is ready to decode them."""

_DEPTH = 64
_FILES = 32  # open files, apart from files in use
_LOOK_AT = 64  # pages of an extent checked for residency

_KEEP_ALL = KeepDecision(missing=[], keeps=True, drops=[])  # for pinned objects

_log = logging.getLogger("feedline")


class _RangeFile:
    """A file that the fetcher reads. It is mapped only to find out which pages are in memory."""

    __slots__ = ("map", "number", "users")

    def __init__(self, fetcher: _native.Fetcher, path: str, direct: bool, ask: bool, share: bool) -> None:
        with open_regular(path, 0) as file:
            about = os.fstat(file.fileno())
            self.map = mmap.mmap(file.fileno(), about.st_size, access=mmap.ACCESS_READ)
        address = np.frombuffer(self.map, np.uint8).ctypes.data
        identity = (about.st_dev, about.st_ino)
        cached = object_at(path)
        place = path if cached is None else cached.place()
        self.number = fetcher.add(place, about.st_size, address, identity, direct=direct, ask=ask, share=share)
        self.users = 0


class _RangeJob:
    """A chunk to fetch. It has begun if it has a native fetch, or a fetch from stores."""

    __slots__ = ("chunk", "extents", "fetch", "files", "object_fetch", "remote", "size")

    def __init__(self, chunk: int, extents: Sequence[Extent]) -> None:
        self.chunk, self.extents = chunk, extents
        self.size = sum(extent.size for extent in extents)
        self.fetch: _native.Fetch | None = None
        objects = [object_at(extent.path) for extent in extents]
        self.remote = [cached for cached in objects if isinstance(cached, CachedObject)]
        self.object_fetch: ObjectFetch | None = None
        self.files: list[_RangeFile] = []

    @property
    def known(self) -> dict[str, CachedObject]:
        """The objects by path, for a chunk that consists of parts of objects only."""
        return {extent.path: cached for cached, extent in zip(self.remote, self.extents, strict=True)}

    def spans(self) -> Iterator[tuple[CachedObject, tuple[int, int]]]:
        """Yield each object, with the begin and end of its part, for a chunk that consists of parts of objects only."""
        for cached, extent in zip(self.remote, self.extents, strict=False):
            yield cached, (extent.offset, extent.offset + extent.size)


class RangeFetcher:
    """Fetches the extents of chunks ahead. Thread-safe.

    Args:
        corpus: corpus whose chunks are fetched.
        chunks: number of chunks.
        room: bytes that may be fetched ahead. One chunk always may.

    Attributes:
        backend, direct, forced: as in `FetchingReader`.
        shared: whether other processes of this machine read the same data.
        keeps: whether data read from now on stays in the page cache.
        wait_seconds: seconds that threads waited for the disk, summed over threads.
        asked_bytes: bytes of local files in the chunks that were taken.
        disk_bytes: bytes read from the disk.
        fetched_bytes, cached_bytes: bytes of objects that came from stores, and that the cache had.
        uses: the next uses of chunks.
    """

    def __init__(self, corpus: Deserializer, chunks: int, room: int = ROOM_BYTES) -> None:
        self._corpus, self._room = corpus, room
        self.backend, self.direct, self.forced, self.shared, self.keeps = "any", True, False, False, False
        self.wait_seconds, self.asked_bytes, self.disk_bytes = 0.0, 0, 0
        self.fetched_bytes = self.cached_bytes = 0
        self.uses = NextUses(chunks)
        self._lock = threading.Lock()
        self._fetcher: _native.Fetcher | None = None
        self._files: OrderedDict[tuple[str, bool], _RangeFile] = OrderedDict()  # by path and `keeps`
        self._jobs: dict[Hashable, _RangeJob] = {}
        self._queue: deque[Hashable] = deque()
        self._used = 0  # bytes of jobs that have begun and were not taken yet
        self._failing: list[tuple[str, int, int, int]] = []
        self._policy: tuple[Cache, CachePolicy] | None = None
        self._earlier: list[ObjectFetch] = []  # may not have ended yet

    def fail(self, path: str, begin: int, end: int, error: int) -> None:
        """Make reads of these bytes fail, as a failing disk would. For tests, before anything is read."""
        self._failing.append((path, begin, end, error))

    @property
    def used_bytes(self) -> int:
        """Bytes that were fetched, or are being fetched, and were not taken yet."""
        return self._used

    def want(self, key: Hashable, chunk: int) -> None:
        """Fetch a chunk when there is room, after the chunks that were requested before. ``key`` identifies it."""
        extents = chunk_extents(self._corpus, chunk)
        if not extents:
            return
        with self._lock:
            self._jobs[key] = _RangeJob(chunk, extents)
            self._queue.append(key)
            self._begin_queued()

    def take(self, key: Hashable) -> list[Piece] | None:
        """Wait for the bytes of the extents of a chunk, and return them. None: read the chunk as usual."""
        with self._lock:
            job = self._jobs.pop(key, None)
            if job is None:
                return None
            if job.fetch is None and job.object_fetch is None:  # still queued, but needed now
                self._begin_earlier(key)
                fetch = self._start(job)
            else:
                fetch = job.fetch
                self._used -= job.size
            self._begin_queued()
        if job.remote:
            if job.object_fetch is None and not all(cached.has(*span) for cached, span in job.spans()):
                with self._lock:
                    job.object_fetch = self._begin_object_fetch(job)
            if job.object_fetch is not None:
                return self._wait_for_objects(job, job.object_fetch)
            with self._lock:
                self.cached_bytes += job.size
        with self._lock:
            self.asked_bytes += job.size
        return None if fetch is None else self._wait_for_fetch(job, fetch)

    def _wait_for_objects(self, job: _RangeJob, object_fetch: ObjectFetch) -> list[Piece]:
        began = time.perf_counter()
        try:
            return object_fetch.result()
        finally:
            with self._lock:
                self.wait_seconds += time.perf_counter() - began
                self.fetched_bytes += object_fetch.fetched_bytes
                self.cached_bytes += object_fetch.cached_bytes
                self._release_files(job)

    def _begin_object_fetch(self, job: _RangeJob) -> ObjectFetch:
        caches = {cached.cache for cached in job.remote}
        if self.shared or len(caches) > 1:
            self.uses.begin(job.chunk)
            later = self.uses.needed_later_than(job.chunk, all_of_them=self.shared)
            victims = (chunk_extents(self._corpus, chunk) for chunk in later)
            return ObjectFetch(job.extents, victims, must_keep=self.shared, known=job.known)
        if any(object_fetch.missed_decision for object_fetch in self._earlier):
            self._policy = None
        if all(cached.pinned for cached in job.remote):
            self.uses.begin(job.chunk)
            decision = _KEEP_ALL
        else:
            decision = self._decide(job, caches.pop())
        # A fetch begins after all earlier ones. Otherwise threads would determine which of two neighbours fetches the
        # page that they share, and in how many requests.
        self._earlier = [object_fetch for object_fetch in self._earlier if not object_fetch.ended]
        object_fetch = ObjectFetch(job.extents, decision=decision, before=tuple(self._earlier), known=job.known)
        self._earlier.append(object_fetch)
        return object_fetch

    def _decide(self, job: _RangeJob, cache: Cache) -> KeepDecision:
        """Decide whether a chunk is kept, in the order of need."""
        if self._policy is None or self._policy[0] is not cache:
            budget = cache.budget_bytes // PAGE_BYTES
            self._policy = cache, CachePolicy(budget, self._ranges_of, cache.kept_pages(), cache.held_pages())
        return self._policy[1].decide(job.chunk, self.uses)

    def _ranges_of(self, chunk: int) -> list[PageRange]:
        return coalesce_extents(chunk_extents(self._corpus, chunk))

    def _wait_for_fetch(self, job: _RangeJob, fetch: _native.Fetch) -> list[Piece]:
        began = time.perf_counter()
        try:
            pieces = fetch.result()
        finally:
            with self._lock:
                self.wait_seconds += time.perf_counter() - began
                self._release_files(job)
        assert self._fetcher is not None
        self.disk_bytes = self._fetcher.disk_bytes
        return [Unread(*piece) if isinstance(piece, tuple) else memoryview(piece) for piece in pieces]

    def forget(self, key: Hashable) -> None:
        """Cancel the fetch of a chunk."""
        with self._lock:
            job = self._jobs.pop(key, None)
            if job is None:
                return
            if job.fetch is not None or job.object_fetch is not None:
                self._used -= job.size
            if job.object_fetch is not None:
                job.object_fetch.cancel()
                self._policy = None  # its decision was not carried out
            self._release_files(job)
            job.fetch = None

    def close(self) -> None:
        """Stop the threads and close the files."""
        with self._lock:
            for job in self._jobs.values():
                if job.object_fetch is not None:
                    job.object_fetch.cancel()
            self._jobs.clear()
            self._queue.clear()
            self._files.clear()
            self._used = 0
            self._fetcher = None

    # ---- called with the lock held ----------------------------------------------------------------

    def _begin_queued(self) -> None:
        while self._queue:
            job = self._jobs.get(self._queue[0])
            if job is not None and job.fetch is None and job.object_fetch is None:
                if self._used and self._used + job.size > self._room:
                    return
                if self._start(job) is not None or job.object_fetch is not None:
                    self._used += job.size
            self._queue.popleft()

    def _begin_earlier(self, key: Hashable) -> None:
        """Begin to fetch the chunks that are queued before one that a thread needs now. A bounded cache decides in the
        order of need, whichever thread comes first."""
        if key not in self._queue:
            return
        while (first := self._queue.popleft()) != key:
            job = self._jobs.get(first)
            if job is None or job.fetch is not None or job.object_fetch is not None:
                continue
            if self._start(job) is not None or job.object_fetch is not None:
                self._used += job.size

    def _start(self, job: _RangeJob) -> _native.Fetch | None:
        """Begin to fetch a chunk, unless the page cache holds it or its files cannot be opened."""
        if job.remote:
            if len(job.remote) < len(job.extents):
                return None  # a chunk of both local files and objects is read part by part
            if not all(cached.has_pinned(*span) for cached, span in job.spans()):
                job.object_fetch = self._begin_object_fetch(job)
                return None
        try:
            ranges, lacking = [], self.forced
            for path, offset, size in job.extents:
                file = self._open(path)
                job.files.append(file)
                file.users += 1
                ranges.append((file.number, offset, size))
            assert self._fetcher is not None
            for number, offset, size in ranges:
                if lacking or not size:
                    break
                pages = (offset + size - 1) // mmap.PAGESIZE - offset // mmap.PAGESIZE + 1
                lacking = self._fetcher.held(number, offset, size, _LOOK_AT) < min(pages, _LOOK_AT)
            if lacking:
                job.fetch = self._fetcher.read(ranges)
                return job.fetch
        except (OSError, ValueError) as error:
            # Reading the chunk raises this again, with context.
            _log.debug("%s: not fetched ahead: %s", self._corpus.name, error)
        self._release_files(job)
        return None

    def _open(self, path: str) -> _RangeFile:
        if self._fetcher is None:
            # Memory is not reused: page faults cost little compared with decoding.
            self._fetcher = _native.Fetcher(self.backend, _DEPTH, 0)
        key = path, self.keeps
        file = self._files.get(key)
        if file is None:
            share = (self.shared or self.keeps) and not self.forced
            file = self._files[key] = _RangeFile(self._fetcher, path, self.direct, not self.forced, share)
            for name, begin, end, error in self._failing:
                if name == path:
                    self._fetcher.fail(file.number, begin, end, error)
            for old in [name for name, unused in self._files.items() if not unused.users and unused is not file]:
                if len(self._files) <= _FILES:
                    break
                self._fetcher.close(self._files.pop(old).number)
        self._files.move_to_end(key)
        return file

    def _release_files(self, job: _RangeJob) -> None:
        for file in job.files:
            file.users -= 1
        job.files = []
