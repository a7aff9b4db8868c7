"""Stored bytes of chunks, fetched ahead so that reading and decoding overlap.

A chunk of text, of Parquet or of a compressed store is read whole, so its parts of files are known
(`Fetchable.extents`). If the page cache holds them, the deserializer reads them as usual. If not, native threads
read them ahead of the decoding threads, in large pieces, many at a time, bypassing the page cache: the decoders find
their bytes in memory, and no other pages are evicted. Processes of one machine that read the same data go through the
page cache, so that it is read from disk once. So does a process that waits for a slow disk, if all of the data fits.
Objects in stores are fetched from the store, or from the cache of this node (`feedline.feed.remote`), in the same order
and within the same room.

Cost: memory for the chunks being decoded, and for `ROOM_BYTES` bytes or one chunk ahead of them.
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
from feedline.feed.reading.cache_policy import KeepDecision, Keeping, Range
from feedline.feed.reading.next_uses import NextUses
from feedline.feed.remote.object_cache import Arrival, Cache, CachedObject, together
from feedline.feed.remote.pages import PAGE_BYTES

ROOM_BYTES = 64 << 20
"""Stored bytes fetched before a thread is ready to decode them."""

_DEPTH = 64
_FILES = 32  # open files, besides those in use
_LOOK_AT = 64  # pages of an extent checked for residency

_STAYS = KeepDecision(missing=[], keeps=True, drops=[])  # of objects of which nothing is dropped

_log = logging.getLogger("feedline")


class _RangeFile:
    """A file known to the fetcher; mapped to query its residency, never to be read."""

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
    """A chunk to fetch; begun if it has a fetch, or its bytes are arriving from stores."""

    __slots__ = ("arrival", "chunk", "extents", "fetch", "files", "remote", "size")

    def __init__(self, chunk: int, extents: Sequence[Extent]) -> None:
        self.chunk, self.extents = chunk, extents
        self.size = sum(extent.size for extent in extents)
        self.fetch: _native.Fetch | None = None
        objects = [object_at(extent.path) for extent in extents]
        self.remote = [cached for cached in objects if isinstance(cached, CachedObject)]
        self.arrival: Arrival | None = None
        self.files: list[_RangeFile] = []

    @property
    def known(self) -> dict[str, CachedObject]:
        """The objects of a chunk that is in objects only, by path."""
        return {extent.path: cached for cached, extent in zip(self.remote, self.extents, strict=True)}

    def spans(self) -> Iterator[tuple[CachedObject, tuple[int, int]]]:
        """Yield the objects of a chunk that is in objects only, each with the first and last byte of its part."""
        for cached, extent in zip(self.remote, self.extents, strict=False):
            yield cached, (extent.offset, extent.offset + extent.size)


class RangeFetcher:
    """Fetches the extents of chunks ahead; thread-safe.

    Args:
        corpus: corpus whose chunks are fetched.
        chunks: number of them.
        room: bytes that may be fetched ahead; one chunk is always allowed.

    Attributes:
        backend, direct, forced: as in `FetchingReader`.
        shared: whether other processes of this machine read the same data.
        keeps: whether data read from now on stays in the page cache.
        wait_seconds: seconds that threads waited for the disk, summed.
        asked_bytes: bytes of local files in the chunks that were taken.
        disk_bytes: bytes read from the disk.
        fetched_bytes, cached_bytes: bytes of objects that came from stores, and that the cache had.
        uses: when chunks are needed next.
    """

    def __init__(self, corpus: Deserializer, chunks: int, room: int = ROOM_BYTES) -> None:
        self._corpus, self._room = corpus, room
        self.backend, self.direct, self.forced, self.shared, self.keeps = "any", True, False, False, False
        self.wait_seconds, self.asked_bytes, self.disk_bytes = 0.0, 0, 0
        self.fetched_bytes = self.cached_bytes = 0
        self.uses = NextUses(chunks)
        self._lock = threading.Lock()
        self._fetcher: _native.Fetcher | None = None
        self._files: OrderedDict[tuple[str, bool], _RangeFile] = OrderedDict()  # by path, and whether it is kept
        self._jobs: dict[Hashable, _RangeJob] = {}
        self._queue: deque[Hashable] = deque()
        self._used = 0  # bytes of jobs that were begun and not taken
        self._failing: list[tuple[str, int, int, int]] = []
        self._keeping: tuple[Cache, Keeping] | None = None
        self._before: list[Arrival] = []  # may still be under way

    def fail(self, path: str, begin: int, end: int, error: int) -> None:
        """Make reads of these bytes fail, as a failing disk would; for tests, before anything is read."""
        self._failing.append((path, begin, end, error))

    @property
    def used_bytes(self) -> int:
        """Bytes that were fetched, or are being fetched, and not taken."""
        return self._used

    def want(self, key: Hashable, chunk: int) -> None:
        """Fetch a chunk when there is room, after those requested before; ``key`` identifies it."""
        extents = chunk_extents(self._corpus, chunk)
        if not extents:
            return
        with self._lock:
            self._jobs[key] = _RangeJob(chunk, extents)
            self._queue.append(key)
            self._begin()

    def take(self, key: Hashable) -> list[Piece] | None:
        """Return the bytes of the extents of a chunk, waiting for them; None: read the chunk as usual."""
        with self._lock:
            job = self._jobs.pop(key, None)
            if job is None:
                return None
            if job.fetch is None and job.arrival is None:  # still queued, but needed now
                self._begin_before(key)
                fetch = self._start(job)
            else:
                fetch = job.fetch
                self._used -= job.size
            self._begin()
        if job.remote:
            if job.arrival is None and not all(cached.has(*span) for cached, span in job.spans()):
                with self._lock:
                    job.arrival = self._begin_arrival(job)
            if job.arrival is not None:
                return self._arrived(job, job.arrival)
            with self._lock:
                self.cached_bytes += job.size
        with self._lock:
            self.asked_bytes += job.size
        return None if fetch is None else self._result(job, fetch)

    def _arrived(self, job: _RangeJob, arrival: Arrival) -> list[Piece]:
        began = time.perf_counter()
        try:
            return arrival.result()
        finally:
            with self._lock:
                self.wait_seconds += time.perf_counter() - began
                self.fetched_bytes += arrival.fetched_bytes
                self.cached_bytes += arrival.cached_bytes
                self._let_go(job)

    def _begin_arrival(self, job: _RangeJob) -> Arrival:
        caches = {cached.cache for cached in job.remote}
        if self.shared or len(caches) > 1:
            self.uses.begin(job.chunk)
            later = self.uses.needed_later_than(job.chunk, all_of_them=self.shared)
            victims = (chunk_extents(self._corpus, chunk) for chunk in later)
            return Arrival(job.extents, victims, must_keep=self.shared, known=job.known)
        if any(arrival.drifted for arrival in self._before):
            self._keeping = None
        if all(cached.stays for cached in job.remote):
            self.uses.begin(job.chunk)
            fate = _STAYS
        else:
            fate = self._decided(job, caches.pop())
        # Each begins after those before it, or which of two neighbours fetches the page that they share, and in how
        # many requests, would depend on threads.
        self._before = [arrival for arrival in self._before if not arrival.ended]
        arrival = Arrival(job.extents, fate=fate, before=tuple(self._before), known=job.known)
        self._before.append(arrival)
        return arrival

    def _decided(self, job: _RangeJob, cache: Cache) -> KeepDecision:
        """Decide whether a chunk is kept, in the order of need."""
        if self._keeping is None or self._keeping[0] is not cache:
            budget = cache.budget_bytes // PAGE_BYTES
            self._keeping = cache, Keeping(budget, self._together, cache.tables(), cache.held())
        return self._keeping[1].begin(job.chunk, self.uses)

    def _together(self, chunk: int) -> list[Range]:
        return together(chunk_extents(self._corpus, chunk))

    def _result(self, job: _RangeJob, fetch: _native.Fetch) -> list[Piece]:
        began = time.perf_counter()
        try:
            pieces = fetch.result()
        finally:
            with self._lock:
                self.wait_seconds += time.perf_counter() - began
                self._let_go(job)
        assert self._fetcher is not None
        self.disk_bytes = self._fetcher.disk_bytes
        return [Unread(*piece) if isinstance(piece, tuple) else memoryview(piece) for piece in pieces]

    def forget(self, key: Hashable) -> None:
        """Cancel the fetch of a chunk."""
        with self._lock:
            job = self._jobs.pop(key, None)
            if job is None:
                return
            if job.fetch is not None or job.arrival is not None:
                self._used -= job.size
            if job.arrival is not None:
                job.arrival.cancel()
                self._keeping = None  # its decision was not carried out
            self._let_go(job)
            job.fetch = None

    def close(self) -> None:
        """Stop the threads and close the files."""
        with self._lock:
            for job in self._jobs.values():
                if job.arrival is not None:
                    job.arrival.cancel()
            self._jobs.clear()
            self._queue.clear()
            self._files.clear()
            self._used = 0
            self._fetcher = None

    # ---- called with the lock held ----------------------------------------------------------------

    def _begin(self) -> None:
        while self._queue:
            job = self._jobs.get(self._queue[0])
            if job is not None and job.fetch is None and job.arrival is None:
                if self._used and self._used + job.size > self._room:
                    return
                if self._start(job) is not None or job.arrival is not None:
                    self._used += job.size
            self._queue.popleft()

    def _begin_before(self, key: Hashable) -> None:
        """Begin the chunks that are queued before one that a thread needs now. A bounded cache decides in the order of
        need, whichever thread comes first."""
        if key not in self._queue:
            return
        while (first := self._queue.popleft()) != key:
            job = self._jobs.get(first)
            if job is None or job.fetch is not None or job.arrival is not None:
                continue
            if self._start(job) is not None or job.arrival is not None:
                self._used += job.size

    def _start(self, job: _RangeJob) -> _native.Fetch | None:
        """Begin to fetch a chunk, unless the page cache holds it or its files cannot be opened."""
        if job.remote:
            if len(job.remote) < len(job.extents):
                return None  # a chunk of local files and of objects is read part by part
            if not all(cached.stays_there(*span) for cached, span in job.spans()):
                job.arrival = self._begin_arrival(job)
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
        self._let_go(job)
        return None

    def _open(self, path: str) -> _RangeFile:
        if self._fetcher is None:
            # Pieces are freed once decoded. Page faults cost little compared with decoding.
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

    def _let_go(self, job: _RangeJob) -> None:
        for file in job.files:
            file.users -= 1
        job.files = []
