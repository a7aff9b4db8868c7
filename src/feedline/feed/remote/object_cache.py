"""A bounded folder with parts of objects, shared by the processes of a node.

Readers look for bytes here first. If several processes need the same bytes, one of them fetches the bytes. Fetched
pages are kept while there is room. To make room, the pages that are needed last are dropped first. The cache never
holds more than ``budget_bytes``, and never drops pages that another process is using.

::

    lock                    locked for each decision about room
    state                   magic, bytes of a page, number of pages that are kept
    holders/                see `holders`
    objects/KEY/            see `pages`. KEY is a hash of the complete address, without credentials, and the version
    names/                  see `placeholders`

Bytes that cannot be kept (no room, a full disk) still reach readers that fetch them into memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import functools
import hashlib
import itertools
import json
import logging
import mmap
import os
import secrets
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, Union

import numpy as np
from numpy.typing import NDArray

from feedline import system
from feedline.concurrency.thread_pool import ended_by
from feedline.errors import DataError
from feedline.feed.files.cache_files import own_folder
from feedline.feed.files.remote import object_at
from feedline.feed.protocol import Extent, Ints, Piece
from feedline.feed.remote.holders import CacheHolder, HolderView, claims_of
from feedline.feed.remote.pages import MIN_CACHE_BYTES, PAGE_BYTES, ObjectPages, allocate, checksums, open_own, pages_of
from feedline.feed.remote.requests import (
    PART_BYTES,
    Patience,
    fetch_range,
    in_thread,
    keep_running,
    loop,
    stop_if_idle,
    wait_for,
)
from feedline.feed.remote.stores import ObjectInfo, Store

_MAGIC = b"feedcch1"
_OPEN_FILES = 256
_MAX_GAP_BYTES = 64 << 10  # gap between extents that one request fetches
_OTHERS_S = 0.01  # seconds between checks whether another process has fetched the pages
_ORDER_S = 0.002  # seconds between checks whether earlier decisions were carried out
_ROOM_S, _ROOM_TRIES = 5.0, 20  # time and attempts to wait for room
_PART = PART_BYTES // PAGE_BYTES
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}

_log = logging.getLogger("feedline")

Result = TypeVar("Result")

RoomReservation = Union["asyncio.Future[Room | None]", None]
"""The reservation of room for pages to keep. None if the pages are not kept."""

PageRange = tuple["CachedObject", int, int]
"""Pages of an object, as first and end."""


class CachedObject:
    """An object of which parts are in a cache. See `files.remote.RemoteObject`.

    Attributes:
        cache: the cache.
        key: name of the object's folder in the cache.
        number: the first 8 bytes of ``key``, which identify the object in files of holders.
        pages: number of pages of the object.
        pinned: whether no page of the object is dropped while this process lives.
        mapped: whether an array is a map of its file.
        following: the object that is read next if all objects are read in turn. None if this is the last one.
        held: pages that are held, by lease.
    """

    def __init__(self, cache: Cache, store: Store, info: ObjectInfo, patience: Patience) -> None:
        self.cache, self.store, self.info, self.patience = cache, store, info, patience
        self.url, self.size, self.modified_ns = store.url(info.key), info.size, info.modified_ns
        self.etag = info.etag
        about = json.dumps([store.place, info.key, info.version])
        self.key = hashlib.blake2b(about.encode(), digest_size=16).hexdigest()
        self.number = int(self.key[:16], 16)
        self.pages = -(-self.size // PAGE_BYTES)
        self.pinned = self.mapped = False
        self.following: CachedObject | None = None
        self._pin: Lease | None = None
        self.held: dict[Lease, tuple[int, int]] = {}
        self.turns: dict[int, asyncio.Lock] = {}

    def descriptor(self) -> int:
        """See `RemoteObject.descriptor`."""
        with self.cache.open_pages(self) as pages:
            # By the descriptor where the system can: the cache may have been deleted.
            return system.reopen(pages.descriptor, str(pages.path))

    def place(self) -> str:
        """See `RemoteObject.place`."""
        return str(self.cache.folder / "objects" / self.key / "data")

    def link(self, path: Path) -> None:
        """Replace a placeholder with the file of a complete object."""
        temporary = path.with_name(f".{secrets.token_hex(8)}")  # unused, and not too long
        os.link(self.place(), temporary)
        os.utime(temporary, ns=(self.modified_ns, self.modified_ns))
        os.replace(temporary, path)
        # A rename of two links to one file does nothing, and leaves both.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)

    @property
    def whole(self) -> bool:
        """See `RemoteObject.whole`."""
        return self.pinned and self.has(0, self.size)

    @property
    def room_bytes(self) -> int:
        """See `RemoteObject.room_bytes`."""
        return self.cache.budget_bytes

    def has(self, begin: int, end: int) -> bool:
        """Return whether bytes are in the file and undamaged."""
        first, last = pages_of(begin, end)
        with self.cache.open_pages(self) as pages:
            return pages.has(first, last) and not pages.damaged(first, last)

    def read(self, begin: int, into: memoryview, ahead: tuple[int, int] | None = None) -> None:
        """See `RemoteObject.read`."""
        first, last = pages_of(begin, begin + len(into))
        lease = self.cache.lease(self, first, last)
        try:
            self._begin(ahead)
            wait_for(self.cache.copy_into(self, first, last, begin - first * PAGE_BYTES, into))
        finally:
            lease.release()

    def _begin(self, ahead: tuple[int, int] | None) -> None:
        """Begin to fetch bytes that will probably be read, and the beginning of the next object."""
        if ahead is None or self.seems_whole(*ahead):
            return
        start, stop = ahead
        most = min(stop - start, self.cache.budget_bytes // 8)
        loop().begin(self.cache.bring_ahead(self, *pages_of(start, min(start + most, self.size))))
        if stop >= self.size and self.following is not None and self.following.size:
            size = min(self.following.size, PART_BYTES, self.cache.budget_bytes // 8)
            loop().begin(self.cache.bring_ahead(self.following, *pages_of(0, size)))

    def seems_whole(self, begin: int, end: int) -> bool:
        """Return whether bytes are in the file. They may be damaged."""
        with self.cache.open_pages(self) as pages:
            return pages.has(*pages_of(begin, end))

    def has_pinned(self, begin: int, end: int) -> bool:
        """See `RemoteObject.has_pinned`."""
        return self.pinned and self.seems_whole(begin, end)

    def pin(self) -> None:
        """Keep all pages in the cache while the object is used."""
        if not self.pinned and self.size:
            self._pin = self.cache.lease(self, *pages_of(0, self.size))
            self.pinned = True

    def unpin(self) -> None:
        """Allow pages to be dropped again."""
        if self._pin is not None:
            self._pin.release()
        self.pinned = False

    def materialize(self, path: str) -> None:
        """See `RemoteObject.materialize`."""
        if not self.size:
            return
        self.pin()
        try:
            self.hold(0, self.size).release()
        except BaseException:
            self.unpin()
            raise
        self.link(Path(path))

    def hold(self, begin: int, end: int, ahead: tuple[int, int] | None = None) -> Lease:
        """See `RemoteObject.hold`."""
        first, last = pages_of(begin, min(end, self.size))
        lease = self.cache.lease(self, first, last)
        lease.of, self.held[lease] = self, (first, last)
        try:
            self._begin(ahead)
            if not self.has(begin, min(end, self.size)):
                wait_for(_PageTransfer(self).all(first, last))
        except BaseException:
            lease.release()
            raise
        return lease


class Lease:
    """Pages that are not dropped until the lease is released.

    Attributes:
        of: the object, if its reader holds the pages.
    """

    __slots__ = ("_cache", "_slot", "of")

    def __init__(self, cache: Cache, slot: int) -> None:
        self._cache, self._slot = cache, slot
        self.of: CachedObject | None = None

    def release(self) -> None:
        """Release the pages. Call this once."""
        slot, self._slot = self._slot, -1
        if self.of is not None:
            self.of.held.pop(self, None)
        if slot >= 0:
            with self._cache._mutex:
                self._cache._holder.release(slot)


class Cache:
    """The cache in a folder: see the module. `cache_at` returns one per folder and process.

    Attributes:
        folder: path of the folder.
        budget_bytes: limit of the bytes that are kept.
        pid: process that opened the cache.
    """

    def __init__(self, folder: Path, budget_bytes: int) -> None:
        self.folder, self.budget_bytes = folder, budget_bytes
        self.pid = os.getpid()
        self._mutex = threading.RLock()
        self._depth = 0
        self._open: OrderedDict[str, ObjectPages] = OrderedDict()
        self._objects: dict[str, list[CachedObject]] = {}  # in use, by key
        self._warned = False
        self._opening = 0  # callers of `cache_at` that have not entered their objects yet
        hint = "pass cache=<a folder of yours with room>"
        try:
            own_folder(folder, hint)
            for name in ("objects", "holders", "names"):
                place = folder / name
                if place.is_symlink():
                    raise NotADirectoryError(errno.ENOTDIR, f"a link in place of its folder {name}")
                place.mkdir(mode=0o700, exist_ok=True)
            self._lock = open_own(folder / "lock")
            with self._locked():
                self._state = self._map_state()
                self._holder = CacheHolder(folder / "holders")
                self._count(alone=not any(True for _ in self._holder.others()))
        except OSError as error:
            raise DataError(
                f"expected a folder to keep parts of objects in, got: {error.strerror}", path=str(folder), hint=hint
            ) from error
        self._running = contextlib.ExitStack()
        self._running.enter_context(keep_running())

    # ---- the folder -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """A context in which no other thread or process decides about room."""
        with self._mutex:
            self._depth += 1
            if self._depth == 1:
                fcntl.flock(self._lock, fcntl.LOCK_EX)
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _map_state(self) -> Ints:
        descriptor = open_own(self.folder / "state")
        try:
            head = np.frombuffer(_MAGIC, np.int64)
            allocate(descriptor, 24)
            state: Ints = np.frombuffer(mmap.mmap(descriptor, 24), np.int64)
        finally:
            os.close(descriptor)
        if state[0] == 0:
            state[0], state[1] = head[0], PAGE_BYTES
        if state[0] != head[0] or state[1] != PAGE_BYTES:
            raise DataError(
                "expected a cache of this version of feedline, got one of another version",
                path=str(self.folder),
                hint="pass cache=<another folder>, or remove this one: it holds nothing but copies",
            )
        return state

    def _count(self, alone: bool) -> None:
        """Count the pages that are kept. If no other process is writing, free the remains of killed processes."""
        total = 0
        for name in os.listdir(self.folder / "objects"):
            place = self.folder / "objects" / name
            try:
                size = os.lstat(place / "data").st_size
                pages = ObjectPages(place, size, {})
            except OSError:
                # The remains of a killed process, or a link, which is no file of the cache.
                if alone and place.is_symlink():
                    place.unlink()
                elif alone:
                    shutil.rmtree(place, ignore_errors=True)
                continue
            try:
                total += pages.sweep() if alone else pages.kept
            finally:
                pages.close()
        self._state[2] = total

    @contextlib.contextmanager
    def open_pages(self, cached: CachedObject) -> Iterator[ObjectPages]:
        """A context in which file and table of an object are open."""
        with self._mutex:
            pages = self._open.get(cached.key)
            if pages is None:
                about = {"url": cached.url, "etag": cached.info.etag, "size": cached.size}
                place = self.folder / "objects" / cached.key
                try:
                    pages = ObjectPages(place, cached.size, about)
                except OSError as error:
                    if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                        raise
                    raise DataError("expected cache files, got a link", path=str(place), hint="remove it") from error
                self._open[cached.key] = pages
            self._open.move_to_end(cached.key)
            pages.users += 1
        try:
            yield pages
        finally:
            with self._mutex:
                pages.users -= 1
                if len(self._open) > _OPEN_FILES:
                    idle = next((key for key, open_pages in self._open.items() if not open_pages.users), None)
                    if idle is not None:
                        self._open.pop(idle).close()

    def enter(self, objects: Sequence[CachedObject]) -> None:
        """Begin to use objects. Their pages are dropped after the pages of unused objects."""
        with self._locked():
            for cached in objects:
                self._objects.setdefault(cached.key, []).append(cached)
            self._holder.claim([cached.key for cached in objects])

    @contextlib.contextmanager
    def opening(self) -> Iterator[bool]:
        """A context in which the cache stays open although no object is used yet. Yields False if the cache is closed
        already."""
        with self._mutex:
            self._opening += 1
            available = self._lock >= 0
        try:
            yield available
        finally:
            with self._mutex:
                self._opening -= 1
            self.leave(())

    def leave(self, objects: Sequence[CachedObject]) -> None:
        """End the use of objects, pinned ones included. If this process uses no other objects, close the cache."""
        with self._mutex:
            for cached in objects:
                cached.unpin()
                users = self._objects.get(cached.key, [])
                if cached in users:
                    users.remove(cached)
                if not users:
                    self._objects.pop(cached.key, None)
            if self._objects or self._opening or self.pid != os.getpid() or _caches.get(self.folder) is not self:
                return
            del _caches[self.folder]
            self._holder.close()
            self._state = self._state.copy()
            for pages in self._open.values():
                pages.close()
            self._open.clear()
            os.close(self._lock)
            self._lock = -1
        self._running.close()
        stop_if_idle()

    # ---- room -------------------------------------------------------------------------------------

    def lease(self, cached: CachedObject, first: int, end: int) -> Lease:
        """Return a lease of pages, which need not be in the file yet."""
        with self._locked():
            return Lease(self, self._holder.lease(cached.number, first, end))

    def kept_pages(self) -> dict[str, NDArray[np.bool_]]:
        """Return a mask of the kept pages of each object that this process uses, by key."""
        tables = {}
        for cached, *_ in list(self._objects.values()):
            if cached.size and (self.folder / "objects" / cached.key).exists():
                with self.open_pages(cached) as pages:
                    tables[cached.key] = pages.table != 0
        return tables

    def held_pages(self) -> dict[str, NDArray[np.bool_]]:
        """Return a mask of the held pages of each object of which this process holds some, by key."""
        masks: dict[str, NDArray[np.bool_]] = {}
        for cached in [cached for users in list(self._objects.values()) for cached in users]:
            for first, end in list(cached.held.values()):
                masks.setdefault(cached.key, np.zeros(cached.pages, np.bool_))[first:end] = True
        return masks

    @property
    def kept_bytes(self) -> int:
        """Bytes that are kept, rounded up to pages."""
        return int(self._state[2]) * PAGE_BYTES

    def reserve(self, pages: int, victims: Iterable[Sequence[Extent]], must: bool) -> Room | None:
        """Reserve room for pages to fetch, by dropping other pages if necessary. Return None if there is no room.

        Args:
            pages: number of pages.
            victims: parts of objects that may be dropped, in this order, after unused objects.
            must: whether any other page that is not in use may be dropped, too.
        """
        if pages * PAGE_BYTES > self.budget_bytes:
            return None
        room = self._try_reserve(pages)
        if room is None:
            with self._locked():
                self._drop_unclaimed(pages)
            room = self._try_reserve(pages)
        if room is None:
            # Without the lock, as computing the victims may read from the corpus.
            for extents in victims:
                with self._locked():
                    dropped = self._drop(extents, self._views())
                if dropped and (room := self._try_reserve(pages)) is not None:
                    break
        if room is None and must:
            with self._locked():
                self._drop_any(pages)
            room = self._try_reserve(pages)
        return room

    async def room(self, pages: int, victims: Iterable[Sequence[Extent]] = (), *, must: bool = False) -> Room | None:
        """Reserve room as `reserve` does, in a thread. A cancelled call reserves nothing."""
        reservation = asyncio.ensure_future(in_thread(functools.partial(self.reserve, pages, victims, must)))
        try:
            return await asyncio.shield(reservation)
        except asyncio.CancelledError:
            reservation.add_done_callback(_release_room)
            raise

    def _try_reserve(self, pages: int) -> Room | None:
        with self._locked():
            if self._short(pages, self._views()) > 0:
                return None
            self._holder.reserve(pages)
            return Room(self, pages)

    def _views(self) -> list[HolderView]:
        return [self._holder.own, *(view for _, view in self._holder.others())]

    def _short(self, pages: int, views: Sequence[HolderView]) -> int:
        coming = sum(view.reserved for view in views)
        return int(self._state[2]) + coming + pages - self.budget_bytes // PAGE_BYTES

    def _drop_unclaimed(self, pages_wanted: int) -> None:
        """Drop objects that no living process uses, starting with the least recently written."""
        views = self._views()
        short = self._short(pages_wanted, views)
        claimed = set(self._objects).union(*(claims_of(path) for path, _ in self._holder.others()))
        candidates = []
        with contextlib.suppress(FileNotFoundError):  # the cache was deleted
            for name in os.listdir(self.folder / "objects"):
                if name not in claimed:
                    with contextlib.suppress(OSError):
                        about = os.stat(self.folder / "objects" / name / "data")
                        if not any(len(view.pages_in_use(int(name[:16], 16))) for view in views):
                            candidates.append((about.st_mtime_ns, name, about.st_size))
        for _, name, size in sorted(candidates):
            if short <= 0:
                return
            place = self.folder / "objects" / name
            with contextlib.suppress(OSError):
                pages = ObjectPages(place, size, {})
                try:
                    dropped = pages.drop(0, pages.count)
                finally:
                    pages.close()
                self._state[2] -= dropped
                short -= dropped
            shutil.rmtree(place, ignore_errors=True)
            old = self._open.pop(name, None)
            if old is not None and not old.users:
                old.close()

    def _drop(self, extents: Iterable[Extent], views: Sequence[HolderView]) -> int:
        """Drop the unused pages in parts of objects of this cache, and return the number of pages."""
        dropped = 0
        for extent in extents:
            cached = object_at(extent.path)
            if not isinstance(cached, CachedObject) or cached.cache is not self:
                continue
            first, end = pages_of(extent.offset, extent.offset + extent.size)
            with self.open_pages(cached) as pages:
                # Neighbours may share the pages at both ends, which stay as long as the neighbours do.
                if first < end - 1 and first > 0 and pages.has(first - 1, first):
                    first += 1
                if first < end - 1 and end < pages.count and pages.has(end, end + 1):
                    end -= 1
                dropped += self._drop_pages(cached, pages, first, end, views=views)
        return dropped

    def drop(self, ranges: Iterable[PageRange]) -> None:
        """Drop pages that are not being used."""
        with self._locked():
            views = self._views()
            for cached, first, end in ranges:
                with self.open_pages(cached) as pages:
                    self._drop_pages(cached, pages, first, end, views=views)

    def _drop_pages(
        self, cached: CachedObject, pages: ObjectPages, first: int, end: int, *, views: Sequence[HolderView]
    ) -> int:
        dropped = 0
        for a, b in _without(first, end, np.concatenate([view.pages_in_use(cached.number) for view in views])):
            if pages.table[a:b].any():
                dropped += pages.drop(a, b)
        self._state[2] -= dropped
        return dropped

    def _drop_any(self, pages_wanted: int) -> None:
        views = self._views()
        short = self._short(pages_wanted, views)
        for cached, *_ in list(self._objects.values()):
            with self.open_pages(cached) as pages:
                for a, b in pages.runs():
                    for at in range(a, b, _PART):
                        if short <= 0:
                            return
                        short -= self._drop_pages(cached, pages, at, min(at + _PART, b), views=views)

    # ---- fetching ---------------------------------------------------------------------------------

    async def bring_ahead(self, cached: CachedObject, first: int, end: int) -> None:
        """Fetch pages into the file, and ignore errors: a reader that needs the pages tries again, and gets the
        error."""
        with contextlib.suppress(DataError, OSError):
            await _PageTransfer(cached, patient=False).all(first, end)

    async def copy_into(self, cached: CachedObject, first: int, end: int, skip: int, into: memoryview) -> None:
        """Fill memory with bytes of the pages, from byte ``skip`` of the first page on."""
        with self.open_pages(cached) as pages:
            missing = sum(b - a for a, b in pages.missing(first, end))
            data = np.empty(pages.bytes_of(first, end), np.uint8).data
        room = asyncio.ensure_future(self.room(missing)) if missing else None
        try:
            if room is not None:
                await room
            await _PageTransfer(cached, room).all(first, end, data)
        finally:
            if room is not None:
                await _close_room(room)
        into[:] = data[skip : skip + len(into)]

    def _keep_at_last(self, pages: ObjectPages, first: int, data: memoryview) -> None:
        """Write pages in place of other pages, after the disk turned out to be full.

        Raises:
            DataError: no pages could be dropped.
        """
        count = -(-len(data) // PAGE_BYTES)
        room = self.reserve(count, (), True)
        try:
            if room is None or not self._keep(pages, first, data, room):
                raise self.too_small(count)
        finally:
            if room is not None:
                room.close()

    def _keep(self, pages: ObjectPages, first: int, data: memoryview, room: Room) -> bool:
        """Write pages to the file, if the disk has room for them."""
        end = first - (-len(data) // PAGE_BYTES)
        try:
            pages.write(first, data)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            with contextlib.suppress(OSError, DataError):
                pages.punch(first, end)
            # From now on, new pages replace pages that are kept.
            self.budget_bytes = min(self.budget_bytes, self.kept_bytes)
            if not self._warned:
                self._warned = True
                _log.warning("%s: no more than %d bytes are kept: %s", self.folder, self.budget_bytes, error.strerror)
            return False
        sums = checksums(data)
        with self._locked():
            # Counted before they are marked: a process that is killed in between counts too many pages, not too few.
            self._state[2] += sum(b - a for a, b in pages.missing(first, end))
            pages.mark(first, sums)
            room.take(end - first)
        return True

    def too_small(self, pages: int) -> DataError:
        """Return the error for a lack of room."""
        return DataError(
            f"expected room for {pages * PAGE_BYTES} bytes in a cache of {self.budget_bytes} bytes, got none: the "
            "rest is in use",
            path=str(self.folder),
            hint="raise the cache_bytes of fl.Remote",
        )


class _PageTransfer:
    """Fetches pages of one object into memory, into its file, or both.

    Args:
        cached: the object.
        room: room that was reserved for the pages. If the pages are needed only in the file, room is reserved for them
            here.
        patient: whether to wait for room that others are using.
    """

    def __init__(self, cached: CachedObject, room: RoomReservation = None, *, patient: bool = True) -> None:
        self._cache, self._object, self._room, self._patient = cached.cache, cached, room, patient

    async def all(self, first: int, end: int, into: memoryview | None = None) -> int:
        """Fetch pages into memory, and into the file if there is room. Without memory, fetch them only into the file.

        Returns:
            The number of bytes that came from the store.

        Raises:
            DataError: the pages cannot be fetched, or there is no room for them in the file.
        """
        parts = parts_of(first, end)
        with self._cache.open_pages(self._object) as self._pages:
            return sum(await _all(self._part(a, b, self._pages.part_of(into, first, a, b)) for a, b in parts))

    async def _part(self, first: int, end: int, into: memoryview | None) -> int:
        """Fetch pages within one multiple of `PART_BYTES` as `all` does."""
        pages = self._pages
        async with self._object.turns.setdefault(first // _PART, asyncio.Lock()):
            while not pages.has(first, end) or not await self._from_file(first, end, into):
                if not pages.try_lock(first, end):
                    await asyncio.sleep(_OTHERS_S)
                    continue
                try:
                    count = await self._from_store(first, end, into)
                    if count is not None:
                        return count
                finally:
                    pages.unlock(first, end)
        return 0

    async def _from_store(self, first: int, end: int, into: memoryview | None) -> int | None:
        """Fetch the missing pages, while other processes are locked out. Return the number of their bytes, or None if
        pages in the file are damaged."""
        cache, pages = self._cache, self._pages
        missing = pages.missing(first, end)
        for a, b in _without(first, end, np.array(missing, np.int64).reshape(-1, 2)):
            if not await self._from_file(a, b, pages.part_of(into, first, a, b)):
                return None
        for a, b in missing:
            data = pages.part_of(into, first, a, b)
            if data is None:
                data = np.empty(pages.bytes_of(a, b), np.uint8).data
            reserved = await self._own_room(b - a) if into is None else None
            try:
                await self._fetch(a, data, reserved or self._room)
                room = reserved or (None if self._room is None else await asyncio.shield(self._room))
                if room is not None:
                    written = await in_thread(functools.partial(cache._keep, pages, a, data, room))
                    if not written and into is None:
                        await in_thread(functools.partial(cache._keep_at_last, pages, a, data))
            finally:
                if reserved is not None:
                    reserved.close()
        return sum(pages.bytes_of(a, b) for a, b in missing)

    async def _own_room(self, pages: int) -> Room:
        """Reserve room for pages that must be in the file. Wait until other users release some, if necessary.

        Raises:
            DataError: there is no room.
        """
        for tries in range(_ROOM_TRIES if self._patient else 1, 0, -1):
            room = await self._cache.room(pages, must=True)
            if room is not None:
                return room
            if tries > 1:
                await asyncio.sleep(_ROOM_S / _ROOM_TRIES)
        raise self._cache.too_small(pages)

    async def _fetch(self, first: int, data: memoryview, room: Room | RoomReservation) -> None:
        """Fetch pages into memory. If fetching is given up, also by Ctrl-C, keep the complete pages that have arrived.

        Raises:
            DataError: the pages cannot be fetched.
        """
        cached = self._object
        arrived = [0]  # bytes so far, after each piece
        try:
            await fetch_range(
                cached.store, cached.info, first * PAGE_BYTES, data, patience=cached.patience, on_bytes=arrived.append
            )
        except BaseException:
            if isinstance(room, asyncio.Future):
                room = room.result() if room.done() and not room.cancelled() and not room.exception() else None
            complete = arrived[-1] // PAGE_BYTES
            if room is not None and complete:
                self._cache._keep(self._pages, first, data[: complete * PAGE_BYTES], room)
            raise

    async def _from_file(self, first: int, end: int, into: memoryview | None) -> bool:
        """Read pages that are in the file into memory, and return whether all were present and undamaged."""
        if first == end:
            return True
        cache, pages = self._cache, self._pages
        wrong = await in_thread(functools.partial(pages.read, first, end, into))
        if not wrong:
            return pages.has(first, end)
        _log.warning("%s: %d damaged pages in the cache are fetched again", self._object.url, len(wrong))
        with cache._locked():
            for page in wrong:
                cache._state[2] -= pages.drop(page, page + 1)
        return False


class KeepDecision(NamedTuple):
    """The decision whether fetched pages are kept. See `feedline.feed.reading.cache_policy`.

    Attributes:
        missing: runs of pages that have to be fetched.
        keeps: whether these pages are kept.
        drops: runs of pages that are dropped to make room for them.
    """

    missing: list[PageRange]
    keeps: bool
    drops: list[PageRange]

    @property
    def pages(self) -> int:
        """Number of pages to fetch."""
        return sum(end - first for _, first, end in self.missing)


class Room:
    """Pages that may be written."""

    def __init__(self, cache: Cache, pages: int) -> None:
        self._cache, self._left = cache, pages

    def take(self, pages: int) -> None:
        """Use up room for some pages."""
        pages, cache = min(pages, self._left), self._cache
        self._left -= pages
        with cache._mutex:
            if cache._lock >= 0:  # otherwise the cache was closed meanwhile, which released all reservations
                with cache._locked():
                    cache._holder.reserve(-pages)

    def close(self) -> None:
        """Release the unused room."""
        self.take(self._left)


class ObjectFetch:
    """Fetches parts of objects of one cache into memory.

    Args:
        extents: the parts.
        victims: parts of objects that may be dropped to keep them.
        must_keep: whether any page that is not in use may be dropped, because other processes on this machine will need
            these parts, too.
        decision: decision whether the parts are kept, and which pages are dropped for them. It replaces ``victims``.
        before: fetches with earlier decisions.
        known: the objects by the paths in ``extents``. While bytes arrive, the paths may be unregistered, or become
            local files.

    Attributes:
        fetched_bytes: bytes that came from stores.
        cached_bytes: bytes that were in the cache.
        missed_decision: whether the decision could not be carried out.
    """

    def __init__(
        self,
        extents: Sequence[Extent],
        victims: Iterable[Sequence[Extent]] = (),
        *,
        must_keep: bool = False,
        decision: KeepDecision | None = None,
        before: Sequence[ObjectFetch] = (),
        known: Mapping[str, CachedObject],
    ) -> None:
        self.fetched_bytes = self.cached_bytes = 0
        self.missed_decision = False
        self._extents, self._victims, self._must = extents, victims, must_keep
        self._decision, self._before = decision, before
        self._objects, self._ranges = known, coalesce_extents(extents, known)
        self._leases: list[Lease] = []
        self._rooms: list[asyncio.Future[Room | None]] = []
        self._started = self._dropped = False
        try:
            if decision is None:
                self._take_leases()
            elif not any(fetch.overlaps(decision.drops) for fetch in before if not fetch.ended):
                self._drop_now()
            self._outcome, self._cancel = loop().begin(self._run())
        except BaseException:
            self._release()
            raise

    def _take_leases(self) -> None:
        for cached, first, end in self._ranges:
            self._leases.append(cached.cache.lease(cached, first, end))

    def _drop_now(self) -> None:
        """Drop the pages that the decision names."""
        if self._decision is not None and self._decision.drops:
            self._decision.drops[0][0].cache.drop(self._decision.drops)
        self._dropped = True

    async def _wait_for_earlier(self, ready: Callable[[ObjectFetch], bool]) -> None:
        """Wait until all fetches with earlier decisions have ended, or are ready."""
        for fetch in self._before:
            while not fetch.ended and not ready(fetch):
                await asyncio.sleep(_ORDER_S)

    async def _run(self) -> list[Piece]:
        buffers, work = [], []
        try:
            decided: RoomReservation = None
            if self._decision is not None:
                # All earlier fetches have begun, and have dropped the pages that are fetched here.
                await self._wait_for_earlier(lambda a: a._started and (a._dropped or not self.overlaps(a.drops)))
                self._take_leases()
                if self._decision.keeps and self._missing():
                    decided = asyncio.ensure_future(self._wait_for_room())  # bytes arrive meanwhile
                    self._rooms.append(decided)
            for page_range in self._ranges:
                cached, first, end = page_range
                with cached.cache.open_pages(cached) as pages:
                    buffers.append(np.empty(pages.bytes_of(first, end), np.uint8).data)
                room = decided
                if self._decision is None and (missing := self._missing(page_range)):
                    room = asyncio.ensure_future(cached.cache.room(missing, self._victims, must=self._must))
                    self._rooms.append(room)
                    await room
                work.append(_PageTransfer(cached, room).all(first, end, buffers[-1]))
            self._started = True
            self.fetched_bytes = sum(await _all(work))
            self.cached_bytes = sum(map(len, buffers)) - self.fetched_bytes
        finally:
            for reservation in self._rooms:
                await _close_room(reservation)
            if self._decision is not None:
                self._release()  # the pages are in memory, and no other reader needs them in the file
        return self._pieces(buffers)

    def _missing(self, *ranges: PageRange) -> int:
        """Return the number of pages of these ranges, by default of all ranges, that are not in the files."""
        missing = 0
        for cached, first, end in ranges or self._ranges:
            with cached.cache.open_pages(cached) as pages:
                missing += sum(b - a for a, b in pages.missing(first, end))
        return missing

    async def _wait_for_room(self) -> Room | None:
        """Make room for all missing pages as decided. Return None if there is no room."""
        # Earlier decisions must be carried out first. No deadlock is possible, as fetches wait only for earlier ones.
        await self._wait_for_earlier(lambda fetch: self._dropped or not fetch.overlaps(self.drops))
        if not self._dropped:
            await in_thread(self._drop_now)
        # Every decision relies on the room that earlier decisions made. A fetch that took room out of turn would leave
        # an earlier one without room.
        await self._wait_for_earlier(lambda fetch: fetch.has_room)
        while True:
            # Checked first: a fetch that ends during the search for room releases the room that it does not need, such
            # as the room for a shared page.
            last = all(fetch.ended for fetch in self._before)
            room = await self._ranges[0][0].cache.room(self._missing())
            if room is not None or last:
                self.missed_decision = room is None
                return room
            await asyncio.sleep(_ORDER_S)

    @property
    def drops(self) -> Sequence[PageRange]:
        """The pages that the decision drops."""
        return () if self._decision is None else self._decision.drops

    def overlaps(self, ranges: Sequence[PageRange]) -> bool:
        """Return whether any of these pages are being fetched."""
        return any(o is p and first < b and a < end for o, first, end in self._ranges for p, a, b in ranges)

    @property
    def has_room(self) -> bool:
        """Whether this fetch needs no room, has reserved it, or failed to."""
        return self._started and all(room.done() for room in self._rooms)

    @property
    def ended(self) -> bool:
        """Whether fetching and writing have ended."""
        return self._outcome.done

    def _pieces(self, buffers: Sequence[memoryview]) -> list[Piece]:
        pieces: list[Piece] = []
        for extent in self._extents:
            for (cached, first, _), buffer in zip(self._ranges, buffers, strict=True):
                at = extent.offset - first * PAGE_BYTES
                if cached is self._objects.get(extent.path) and at >= 0 and at + extent.size <= len(buffer):
                    pieces.append(buffer[at : at + extent.size])
                    break
            else:
                assert not extent.size, f"expected bytes for {extent}"
                pieces.append(memoryview(b""))
        return pieces

    def result(self) -> list[Piece]:
        """Wait for the bytes, and return one piece for each part.

        Raises:
            DataError: they cannot be fetched.
        """
        try:
            with ended_by(self._cancel):
                return self._outcome.result()
        finally:
            self._release()

    def cancel(self) -> None:
        """Stop fetching, and release the reserved room."""
        self._cancel()
        self._release()

    def _release(self) -> None:
        with contextlib.suppress(IndexError):  # another thread may do the same
            while True:
                self._leases.pop().release()


def _release_room(reservation: asyncio.Future[Room | None]) -> None:
    """Release room that nobody waits for any more."""
    if not reservation.cancelled() and reservation.exception() is None and (room := reservation.result()) is not None:
        room.close()


async def _close_room(room: asyncio.Future[Room | None]) -> None:
    """Release unused room, even if it is still being reserved."""
    room.cancel()
    (outcome,) = await asyncio.gather(room, return_exceptions=True)
    if isinstance(outcome, Room):
        outcome.close()


_caches: dict[Path, Cache] = {}
_caches_lock = threading.Lock()


@contextlib.contextmanager
def cache_at(folder: Path, budget_bytes: int) -> Iterator[Cache]:
    """A context with the cache of this process in a folder. Other threads do not close it before objects are entered.

    Raises:
        DataError: the folder is not writable, or others can write to it.
        ValueError: ``budget_bytes`` is below `MIN_CACHE_BYTES`.
    """
    if budget_bytes < MIN_CACHE_BYTES:
        raise ValueError(f"expected cache_bytes of at least {MIN_CACHE_BYTES}, got {budget_bytes}")
    folder = Path(os.path.realpath(folder))
    while True:
        with _caches_lock:
            cache = _caches.get(folder)
            if cache is None or cache.pid != os.getpid():
                cache = _caches[folder] = Cache(folder, budget_bytes)
        with cache.opening() as available:
            if available:
                cache.budget_bytes = budget_bytes
                yield cache
                return


async def _all(work: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Run all coroutines and return their results. Cancel all of them if one fails or this call is cancelled."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def parts_of(first: int, end: int) -> list[tuple[int, int]]:
    """Cut a range of pages at multiples of `PART_BYTES` of the object."""
    cuts = [first, *range((first // _PART + 1) * _PART, end, _PART), end]
    return [(a, b) for a, b in itertools.pairwise(cuts) if b > a]


def _without(first: int, end: int, used: Ints) -> Iterator[tuple[int, int]]:
    """Yield the runs of pages of a range that are not in ``used``, int64 (n, 2)."""
    at = first
    for a, b in sorted(used.tolist()):
        if b <= at:
            continue
        if a >= end:
            break
        if a > at:
            yield at, a
        at = b
    if at < end:
        yield at, end


def coalesce_extents(extents: Sequence[Extent], objects: Mapping[str, CachedObject] | None = None) -> list[PageRange]:
    """Return the pages to fetch for extents. Extents that are close are joined, so that one request fetches them.

    Args:
        extents: parts of files. Files that are not objects, or not any more, are left out.
        objects: the objects by path. None: the objects that are registered now.
    """
    ranges: list[PageRange] = []
    for extent in sorted(extents, key=lambda e: (e.path, e.offset)):
        if not extent.size:
            continue
        cached = object_at(extent.path) if objects is None else objects.get(extent.path)
        if not isinstance(cached, CachedObject):
            continue
        first, end = pages_of(extent.offset, extent.offset + extent.size)
        if ranges and ranges[-1][0] is cached and first - ranges[-1][2] <= _MAX_GAP_BYTES // PAGE_BYTES:
            ranges[-1] = (cached, ranges[-1][1], max(end, ranges[-1][2]))
        else:
            ranges.append((cached, first, end))
    return ranges
