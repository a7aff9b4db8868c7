"""A bounded folder with parts of objects, shared by the processes of a node.

What is wanted is looked for here first, and fetched by one process where others want it too. What was fetched is kept
while there is room, and where room has to be made, what is needed last goes first. Never more than ``budget_bytes``
of objects are kept, and nothing that others are using is dropped.

::

    lock                    taken for each decision about room
    state                   magic, bytes of a page, number of pages that are kept
    holders/                see `holders`
    objects/KEY/            see `pages`; KEY is a hash of the whole address, without credentials, and the version
    names/                  see `mirror`

What cannot be kept (no room, a full disk) still reaches those who fetch it into memory.
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
from typing import Any, Protocol, TypeVar, Union

import numpy as np
from numpy.typing import NDArray

from feedline.concurrency.thread_pool import ended_by
from feedline.errors import DataError
from feedline.feed.files.cache import own_folder
from feedline.feed.files.remote import object_at
from feedline.feed.protocol import Extent, Piece
from feedline.feed.remote.holders import CacheHolder, HolderView, claims_of
from feedline.feed.remote.pages import PAGE_BYTES, ObjectPages, allocate, checksums, open_own, pages_of
from feedline.feed.remote.requests import (
    PART_BYTES,
    Patience,
    fetched,
    in_thread,
    kept_running,
    loop,
    rest,
    wait_for,
)
from feedline.feed.remote.stores import ObjectInfo, Store

LEAST_BYTES = 64 << 20
"""The smallest cache: what is read while a corpus is opened has to be somewhere."""

_MAGIC = b"feedcch1"
_OPEN_FILES = 256
_TOGETHER_BYTES = 64 << 10  # between extents that are fetched with one request
_OTHERS_S = 0.01  # between looks at whether another process has fetched
_ORDER_S = 0.002  # between looks at whether what was decided before is done
_ROOM_S, _ROOM_TRIES = 5.0, 20  # that others are given to make room
_PART = PART_BYTES // PAGE_BYTES
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}

_log = logging.getLogger("feedline")

Result = TypeVar("Result")

Coming = Union["asyncio.Future[Room | None]", None]
"""What makes room for pages that are to be kept, or has made it; None: they are not kept."""


class CachedObject:
    """An object of which parts are in a cache; see `files.remote.RemoteObject`.

    Attributes:
        cache: the cache.
        key: name of its folder there.
        number: the first 8 bytes of ``key``, as holders name it.
        pages: number of its pages.
        stays: whether nothing of it is dropped while this process lives.
        mapped: whether an array is a map of its file.
        following: the object that is read next where all of them are read; None: it is the last one.
        held: pages that are held, by lease.
    """

    def __init__(self, cache: Cache, store: Store, info: ObjectInfo, patience: Patience) -> None:
        self.cache, self.store, self.info, self.patience = cache, store, info, patience
        self.url, self.size, self.modified_ns = store.url(info.key), info.size, info.modified_ns
        about = json.dumps([store.place, info.key, info.version])
        self.key = hashlib.blake2b(about.encode(), digest_size=16).hexdigest()
        self.number = int(self.key[:16], 16)
        self.pages = -(-self.size // PAGE_BYTES)
        self.stays = self.mapped = False
        self.following: CachedObject | None = None
        self._stay: Lease | None = None
        self.held: dict[Lease, tuple[int, int]] = {}
        self.turns: dict[int, asyncio.Lock] = {}

    def descriptor(self) -> int:
        """See `RemoteObject.descriptor`."""
        with self.cache.opened(self) as pages:
            # By the descriptor, not by the path: the cache may have been deleted.
            return os.open(f"/proc/self/fd/{pages.descriptor}", os.O_RDONLY | os.O_CLOEXEC)

    def place(self) -> str:
        """See `RemoteObject.place`."""
        return str(self.cache.folder / "objects" / self.key / "data")

    def link(self, path: Path) -> None:
        """Put the file in the place of a placeholder; of an object that is whole."""
        temporary = path.with_name(f".{secrets.token_hex(8)}")  # which nobody has left, and which is not too long
        os.link(self.place(), temporary)
        os.utime(temporary, ns=(self.modified_ns, self.modified_ns))
        os.replace(temporary, path)
        # A rename of two links to one file does nothing, and leaves both.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)

    @property
    def whole(self) -> bool:
        """See `RemoteObject.whole`."""
        return self.stays and self.has(0, self.size)

    @property
    def room_bytes(self) -> int:
        """See `RemoteObject.room_bytes`."""
        return self.cache.budget_bytes

    def has(self, begin: int, end: int) -> bool:
        """Return whether bytes are in the file, as they were written."""
        first, last = pages_of(begin, end)
        with self.cache.opened(self) as pages:
            return pages.has(first, last) and not pages.damaged(first, last)

    def read(self, begin: int, into: memoryview, ahead: tuple[int, int] | None = None) -> None:
        """See `RemoteObject.read`."""
        first, last = pages_of(begin, begin + len(into))
        lease = self.cache.lease(self, first, last)
        try:
            self._begin(ahead)
            wait_for(self.cache.copied(self, first, last, begin - first * PAGE_BYTES, into))
        finally:
            lease.release()

    def _begin(self, ahead: tuple[int, int] | None) -> None:
        """Begin to fetch what is likely to be read, and what follows it in the next object."""
        if ahead is None or self.seems_whole(*ahead):
            return
        start, stop = ahead
        most = min(stop - start, self.cache.budget_bytes // 8)
        loop().begin(self.cache.bring_ahead(self, *pages_of(start, min(start + most, self.size))))
        if stop >= self.size and self.following is not None and self.following.size:
            rest = min(self.following.size, PART_BYTES, self.cache.budget_bytes // 8)
            loop().begin(self.cache.bring_ahead(self.following, *pages_of(0, rest)))

    def seems_whole(self, begin: int, end: int) -> bool:
        """Return whether bytes are in the file, unless it is damaged."""
        with self.cache.opened(self) as pages:
            return pages.has(*pages_of(begin, end))

    def stays_there(self, begin: int, end: int) -> bool:
        """See `RemoteObject.stays_there`."""
        return self.stays and self.seems_whole(begin, end)

    def stay(self) -> None:
        """Drop nothing of it while it is used."""
        if not self.stays and self.size:
            self._stay = self.cache.lease(self, *pages_of(0, self.size))
            self.stays = True

    def go(self) -> None:
        """Let it be dropped again."""
        if self._stay is not None:
            self._stay.release()
        self.stays = False

    def settle(self, path: str) -> None:
        """See `RemoteObject.settle`."""
        if not self.size:
            return
        self.stay()
        try:
            self.hold(0, self.size).release()
        except BaseException:
            self.go()
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
                wait_for(_Transfer(self).all(first, last))
        except BaseException:
            lease.release()
            raise
        return lease


class Lease:
    """Pages that are not dropped until this is released.

    Attributes:
        of: the object, if they are held as it is read.
    """

    __slots__ = ("_cache", "_slot", "of")

    def __init__(self, cache: Cache, slot: int) -> None:
        self._cache, self._slot = cache, slot
        self.of: CachedObject | None = None

    def release(self) -> None:
        """Let go of them; once."""
        slot, self._slot = self._slot, -1
        if self.of is not None:
            self.of.held.pop(self, None)
        if slot >= 0:
            with self._cache._mutex:
                self._cache._holder.release(slot)


class Cache:
    """A folder; see the module. One per folder and process: `cache_at`.

    Attributes:
        folder: its path.
        budget_bytes: the most that is kept.
        pid: the process.
    """

    def __init__(self, folder: Path, budget_bytes: int) -> None:
        self.folder, self.budget_bytes = folder, budget_bytes
        self.pid = os.getpid()
        self._mutex = threading.RLock()
        self._depth = 0
        self._open: OrderedDict[str, ObjectPages] = OrderedDict()
        self._objects: dict[str, list[CachedObject]] = {}  # in use, by key
        self._told = False
        self._opening = 0  # callers of `cache_at` that have not entered their objects yet
        hint = "pass cache=<a folder of yours with room>"
        try:
            own_folder(folder, hint)
            for name in ("objects", "holders", "names"):
                place = folder / name
                if place.is_symlink():
                    raise NotADirectoryError(errno.ENOTDIR, f"a link in the place of its folder {name}")
                place.mkdir(mode=0o700, exist_ok=True)
            self._lock = open_own(folder / "lock")
            with self._locked():
                self._state = self._mapped_state()
                self._holder = CacheHolder(folder / "holders")
                self._count(alone=not any(True for _ in self._holder.others()))
        except OSError as error:
            raise DataError(
                f"expected a folder to keep parts of objects in, got: {error.strerror}", path=str(folder), hint=hint
            ) from error
        self._running = contextlib.ExitStack()
        self._running.enter_context(kept_running())

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

    def _mapped_state(self) -> NDArray[np.int64]:
        descriptor = open_own(self.folder / "state")
        try:
            head = np.frombuffer(_MAGIC, np.int64)
            allocate(descriptor, 24)
            state: NDArray[np.int64] = np.frombuffer(mmap.mmap(descriptor, 24), np.int64)
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
        """Count the pages that are kept; if no other process is writing any, free what killed ones have left."""
        total = 0
        for name in os.listdir(self.folder / "objects"):
            place = self.folder / "objects" / name
            try:
                size = os.lstat(place / "data").st_size
                pages = ObjectPages(place, size, {})
            except OSError:
                # Killed while it was made, or a link, which is no file of the cache.
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
    def opened(self, found: CachedObject) -> Iterator[ObjectPages]:
        """A context in which file and table of an object are open."""
        with self._mutex:
            pages = self._open.get(found.key)
            if pages is None:
                about = {"url": found.url, "etag": found.info.etag, "size": found.size}
                place = self.folder / "objects" / found.key
                try:
                    pages = ObjectPages(place, found.size, about)
                except OSError as error:
                    if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                        raise
                    raise DataError(
                        "expected files of the cache, got a link", path=str(place), hint=f"remove {place}"
                    ) from error
                self._open[found.key] = pages
            self._open.move_to_end(found.key)
            pages.users += 1
        try:
            yield pages
        finally:
            with self._mutex:
                pages.users -= 1
                if len(self._open) > _OPEN_FILES:
                    idle = next((key for key, one in self._open.items() if not one.users), None)
                    if idle is not None:
                        self._open.pop(idle).close()

    def enter(self, objects: Sequence[CachedObject]) -> None:
        """Begin to use objects: pages of those that nobody uses are dropped first."""
        with self._locked():
            for one in objects:
                self._objects.setdefault(one.key, []).append(one)
            self._holder.claim([one.key for one in objects])

    @contextlib.contextmanager
    def opening(self) -> Iterator[bool]:
        """A context in which the cache is not forgotten, though no object of it is used yet; false: it is already."""
        with self._mutex:
            self._opening += 1
            there = self._lock >= 0
        try:
            yield there
        finally:
            with self._mutex:
                self._opening -= 1
            self.leave(())

    def leave(self, objects: Sequence[CachedObject]) -> None:
        """End using objects, also those that were to stay; when this process uses no others, forget the cache."""
        with self._mutex:
            for one in objects:
                one.go()
                users = self._objects.get(one.key, [])
                if one in users:
                    users.remove(one)
                if not users:
                    self._objects.pop(one.key, None)
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
        rest()

    # ---- room -------------------------------------------------------------------------------------

    def lease(self, found: CachedObject, first: int, end: int) -> Lease:
        """Return a lease of pages, whether they are there or not."""
        with self._locked():
            return Lease(self, self._holder.lease(found.number, first, end))

    def tables(self) -> dict[str, NDArray[np.bool_]]:
        """Return which pages are kept of the objects that this process uses, by key."""
        found = {}
        for one, *_ in list(self._objects.values()):
            if one.size and (self.folder / "objects" / one.key).exists():
                with self.opened(one) as pages:
                    found[one.key] = pages.table != 0
        return found

    def held(self) -> dict[str, NDArray[np.bool_]]:
        """Return which pages this process holds of the objects that it uses, by key; none of most of them."""
        found: dict[str, NDArray[np.bool_]] = {}
        for one in [one for users in list(self._objects.values()) for one in users]:
            for first, end in list(one.held.values()):
                found.setdefault(one.key, np.zeros(one.pages, np.bool_))[first:end] = True
        return found

    @property
    def kept_bytes(self) -> int:
        """Bytes that are kept, rounded up to pages."""
        return int(self._state[2]) * PAGE_BYTES

    def reserve(self, pages: int, victims: Iterable[Sequence[Extent]], must: bool) -> Room | None:
        """Reserve room for pages that are to be fetched, by dropping others if need be; None: there is none.

        Args:
            pages: number of pages.
            victims: parts of objects that may be dropped, in this order, after objects that nobody uses.
            must: whether to drop anything else, too, that is not being used.
        """
        if pages * PAGE_BYTES > self.budget_bytes:
            return None
        room = self._reserved(pages)
        if room is None:
            with self._locked():
                self._drop_unclaimed(pages)
            room = self._reserved(pages)
        if room is None:
            # Where parts lie may have to be read first, so that is asked without the lock.
            for extents in victims:
                with self._locked():
                    dropped = self._drop(extents, self._views())
                if dropped and (room := self._reserved(pages)) is not None:
                    break
        if room is None and must:
            with self._locked():
                self._drop_any(pages)
            room = self._reserved(pages)
        return room

    async def room(self, pages: int, victims: Iterable[Sequence[Extent]] = (), *, must: bool = False) -> Room | None:
        """Reserve room as `reserve` does, in a thread; whoever is cancelled meanwhile has reserved nothing."""
        made = asyncio.ensure_future(in_thread(functools.partial(self.reserve, pages, victims, must)))
        try:
            return await asyncio.shield(made)
        except asyncio.CancelledError:
            made.add_done_callback(_given_back)
            raise

    def _reserved(self, pages: int) -> Room | None:
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
        """Drop objects that no living process uses, those first that were written long ago."""
        views = self._views()
        short = self._short(pages_wanted, views)
        claimed = set(self._objects).union(*(claims_of(path) for path, _ in self._holder.others()))
        found = []
        with contextlib.suppress(FileNotFoundError):  # the cache was deleted
            for name in os.listdir(self.folder / "objects"):
                if name not in claimed:
                    with contextlib.suppress(OSError):
                        about = os.stat(self.folder / "objects" / name / "data")
                        if not any(len(view.used(int(name[:16], 16))) for view in views):
                            found.append((about.st_mtime_ns, name, about.st_size))
        for _, name, size in sorted(found):
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
        """Drop what lies in parts of objects of this cache and is not being used; return the number of pages."""
        dropped = 0
        for extent in extents:
            found = object_at(extent.path)
            if not isinstance(found, CachedObject) or found.cache is not self:
                continue
            first, end = pages_of(extent.offset, extent.offset + extent.size)
            with self.opened(found) as pages:
                # Pages at both ends may belong to neighbours, too: they stay as long as those do.
                if first < end - 1 and first > 0 and pages.has(first - 1, first):
                    first += 1
                if first < end - 1 and end < pages.count and pages.has(end, end + 1):
                    end -= 1
                dropped += self._drop_pages(found, pages, first, end, views=views)
        return dropped

    def drop(self, ranges: Iterable[tuple[CachedObject, int, int]]) -> None:
        """Drop pages that are not being used."""
        with self._locked():
            views = self._views()
            for found, first, end in ranges:
                with self.opened(found) as pages:
                    self._drop_pages(found, pages, first, end, views=views)

    def _drop_pages(
        self, found: CachedObject, pages: ObjectPages, first: int, end: int, *, views: Sequence[HolderView]
    ) -> int:
        dropped = 0
        for a, b in _without(first, end, np.concatenate([view.used(found.number) for view in views])):
            if pages.table[a:b].any():
                dropped += pages.drop(a, b)
        self._state[2] -= dropped
        return dropped

    def _drop_any(self, pages_wanted: int) -> None:
        views = self._views()
        short = self._short(pages_wanted, views)
        for found, *_ in list(self._objects.values()):
            with self.opened(found) as pages:
                for a, b in pages.runs():
                    for at in range(a, b, _PART):
                        if short <= 0:
                            return
                        short -= self._drop_pages(found, pages, at, min(at + _PART, b), views=views)

    # ---- fetching ---------------------------------------------------------------------------------

    async def bring_ahead(self, found: CachedObject, first: int, end: int) -> None:
        """Fetch pages into the file if they can be had: whoever needs them asks again, and is told why not."""
        with contextlib.suppress(DataError, OSError):
            await _Transfer(found, patient=False).all(first, end)

    async def copied(self, found: CachedObject, first: int, end: int, skip: int, into: memoryview) -> None:
        """Fill memory with what lies ``skip`` bytes behind the beginning of pages."""
        with self.opened(found) as pages:
            missing = sum(b - a for a, b in pages.missing(first, end))
            data = np.empty(pages.bytes_of(first, end), np.uint8).data
        room = asyncio.ensure_future(self.room(missing)) if missing else None
        try:
            if room is not None:
                await room
            await _Transfer(found, room).all(first, end, data)
        finally:
            if room is not None:
                await _closed(room)
        into[:] = data[skip : skip + len(into)]

    def _keep_at_last(self, pages: ObjectPages, first: int, data: memoryview) -> None:
        """Write pages in the place of others, after the disk turned out to be full.

        Raises:
            DataError: there is no room for them.
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
            # From now on, what is kept makes room.
            self.budget_bytes = min(self.budget_bytes, self.kept_bytes)
            if not self._told:
                self._told = True
                _log.warning("%s: no more than %d bytes are kept: %s", self.folder, self.budget_bytes, error.strerror)
            return False
        sums = checksums(data)
        with self._locked():
            # Counted before they are there: whoever is killed in between has counted too many, rather than too few.
            self._state[2] += sum(b - a for a, b in pages.missing(first, end))
            pages.mark(first, sums)
            room.take(end - first)
        return True

    def too_small(self, pages: int) -> DataError:
        """Return the error that there is no room."""
        return DataError(
            f"expected room for {pages * PAGE_BYTES} bytes in a cache of {self.budget_bytes} bytes, "
            "got none: all else is in use",
            path=str(self.folder),
            hint="raise the cache_bytes of fl.Remote",
        )


class _Transfer:
    """Pages of one object on their way into memory, into its file, or both.

    Args:
        found: the object.
        room: room that was reserved for the pages; what is wanted in the file alone gets room of its own.
        patient: whether to wait for room that others are using.
    """

    def __init__(self, found: CachedObject, room: Coming = None, *, patient: bool = True) -> None:
        self._cache, self._found, self._room, self._patient = found.cache, found, room, patient

    async def all(self, first: int, end: int, into: memoryview | None = None) -> int:
        """Have pages in memory, and in the file if there is room; without memory, in the file alone.

        Returns:
            The bytes that came from the store.

        Raises:
            DataError: they cannot be had, or there is no room for them in the file.
        """
        parts = parts_of(first, end)
        with self._cache.opened(self._found) as self._pages:
            return sum(await _all(self._part(a, b, self._pages.part_of(into, first, a, b)) for a, b in parts))

    async def _part(self, first: int, end: int, into: memoryview | None) -> int:
        """Do the same for pages within one multiple of `PART_BYTES`."""
        pages = self._pages
        async with self._found.turns.setdefault(first // _PART, asyncio.Lock()):
            while not pages.has(first, end) or not await self._from_file(first, end, into):
                if not pages.try_lock(first, end):
                    await asyncio.sleep(_OTHERS_S)
                    continue
                try:
                    came = await self._from_store(first, end, into)
                    if came is not None:
                        return came
                finally:
                    pages.unlock(first, end)
        return 0

    async def _from_store(self, first: int, end: int, into: memoryview | None) -> int | None:
        """Fetch the pages that are missing, while nobody else does; return their bytes, or None if others are
        damaged."""
        cache, pages = self._cache, self._pages
        missing = pages.missing(first, end)
        for a, b in _without(first, end, np.array(missing, np.int64).reshape(-1, 2)):
            if not await self._from_file(a, b, pages.part_of(into, first, a, b)):
                return None
        for a, b in missing:
            data = pages.part_of(into, first, a, b)
            if data is None:
                data = np.empty(pages.bytes_of(a, b), np.uint8).data
            own = await self._own_room(b - a) if into is None else None
            try:
                await self._fetch(a, data, own or self._room)
                given = own or (None if self._room is None else await asyncio.shield(self._room))
                if given is not None:
                    kept = await in_thread(functools.partial(cache._keep, pages, a, data, given))
                    if not kept and into is None:
                        await in_thread(functools.partial(cache._keep_at_last, pages, a, data))
            finally:
                if own is not None:
                    own.close()
        return sum(pages.bytes_of(a, b) for a, b in missing)

    async def _own_room(self, pages: int) -> Room:
        """Reserve room for pages that have to be in the file; what others are using may be free in a moment.

        Raises:
            DataError: there is none.
        """
        for left in range(_ROOM_TRIES if self._patient else 1, 0, -1):
            room = await self._cache.room(pages, must=True)
            if room is not None:
                return room
            if left > 1:
                await asyncio.sleep(_ROOM_S / _ROOM_TRIES)
        raise self._cache.too_small(pages)

    async def _fetch(self, first: int, data: memoryview, room: Room | Coming) -> None:
        """Fetch pages into memory; of what is given up, also by Ctrl-C, the whole pages that have come are kept.

        Raises:
            DataError: they cannot be had.
        """
        found = self._found
        come = [0]  # bytes, after each piece
        try:
            await fetched(found.store, found.info, first * PAGE_BYTES, data, found.patience, come.append)
        except BaseException:
            if isinstance(room, asyncio.Future):
                room = room.result() if room.done() and not room.cancelled() and not room.exception() else None
            whole = come[-1] // PAGE_BYTES
            if room is not None and whole:
                self._cache._keep(self._pages, first, data[: whole * PAGE_BYTES], room)
            raise

    async def _from_file(self, first: int, end: int, into: memoryview | None) -> bool:
        """Read pages that are in the file into memory; return whether they are there, and what was written."""
        if first == end:
            return True
        cache, pages = self._cache, self._pages
        wrong = await in_thread(functools.partial(pages.read, first, end, into))
        if not wrong:
            return pages.has(first, end)
        _log.warning("%s: %d damaged pages in the cache are fetched again", self._found.url, len(wrong))
        with cache._locked():
            for page in wrong:
                cache._state[2] -= pages.drop(page, page + 1)
        return False


class Fate(Protocol):
    """What was decided about pages that are fetched; see `feedline.feed.reading.cache_policy`."""

    @property
    def keeps(self) -> bool: ...  # noqa: D102  # see the class
    @property
    def drops(self) -> Sequence[tuple[CachedObject, int, int]]: ...  # noqa: D102


class Room:
    """Pages that may be written."""

    def __init__(self, cache: Cache, pages: int) -> None:
        self._cache, self._left = cache, pages

    def take(self, pages: int) -> None:
        """Use up some of it."""
        pages, cache = min(pages, self._left), self._cache
        self._left -= pages
        with cache._mutex:
            if cache._lock >= 0:  # else the cache has been left meanwhile, and all that was reserved with it
                with cache._locked():
                    cache._holder.reserve(-pages)

    def close(self) -> None:
        """Give back what is left."""
        self.take(self._left)


class Arrival:
    """Parts of objects of one cache on their way into memory; see `files.remote.Coming`.

    Args:
        extents: the parts.
        victims: what may be dropped to keep them.
        must_keep: whether to drop anything that is not being used, as others on this machine will want them, too.
        fate: whether they are kept, and what is dropped for them, if that has been decided; instead of ``victims``.
        before: arrivals about which was decided before.
        known: the objects by the paths in ``extents``: these may be settled, or forgotten, while their bytes come.

    Attributes:
        fetched_bytes: bytes that came from stores.
        cached_bytes: bytes that were in the cache.
        drifted: whether what was decided could not be done.
    """

    def __init__(
        self,
        extents: Sequence[Extent],
        victims: Iterable[Sequence[Extent]] = (),
        *,
        must_keep: bool = False,
        fate: Fate | None = None,
        before: Sequence[Arrival] = (),
        known: Mapping[str, CachedObject],
    ) -> None:
        self.fetched_bytes = self.cached_bytes = 0
        self.drifted = False
        self._extents, self._victims, self._must = extents, victims, must_keep
        self._fate, self._before = fate, before
        self._objects, self._ranges = known, together(extents, known)
        self._leases: list[Lease] = []
        self._rooms: list[asyncio.Future[Room | None]] = []
        self._started = self._dropped = False
        try:
            if fate is None:
                self._take_leases()
            elif not any(one.overlaps(fate.drops) for one in before if not one.ended):
                self._drop_now()
            self._outcome, self._cancel = loop().begin(self._run())
        except BaseException:
            self._release()
            raise

    def _take_leases(self) -> None:
        for found, first, end in self._ranges:
            self._leases.append(found.cache.lease(found, first, end))

    def _drop_now(self) -> None:
        """Drop what was decided to be dropped."""
        if self._fate is not None and self._fate.drops:
            self._fate.drops[0][0].cache.drop(self._fate.drops)
        self._dropped = True

    async def _after(self, ready: Callable[[Arrival], bool]) -> None:
        """Wait until all about which was decided before have ended, or are ready."""
        for one in self._before:
            while not one.ended and not ready(one):
                await asyncio.sleep(_ORDER_S)

    async def _run(self) -> list[Piece]:
        buffers, work = [], []
        try:
            decided: Coming = None
            if self._fate is not None:
                # All that was decided before has begun, and is dropped if it is wanted here.
                await self._after(lambda one: one._started and (one._dropped or not self.overlaps(one.drops)))
                self._take_leases()
                if self._fate.keeps and self._missing():
                    decided = asyncio.ensure_future(self._decided_room())  # the bytes come meanwhile
                    self._rooms.append(decided)
            for one in self._ranges:
                found, first, end = one
                with found.cache.opened(found) as pages:
                    buffers.append(np.empty(pages.bytes_of(first, end), np.uint8).data)
                room = decided
                if self._fate is None and (missing := self._missing(one)):
                    room = asyncio.ensure_future(found.cache.room(missing, self._victims, must=self._must))
                    self._rooms.append(room)
                    await room
                work.append(_Transfer(found, room).all(first, end, buffers[-1]))
            self._started = True
            self.fetched_bytes = sum(await _all(work))
            self.cached_bytes = sum(map(len, buffers)) - self.fetched_bytes
        finally:
            for given in self._rooms:
                await _closed(given)
            if self._fate is not None:
                self._release()  # what is in memory need not be in the file, as nobody else reads it
        return self._pieces(buffers)

    def _missing(self, *ranges: tuple[CachedObject, int, int]) -> int:
        """Return how many pages of these ranges, or of all, are not in the files."""
        missing = 0
        for found, first, end in ranges or self._ranges:
            with found.cache.opened(found) as pages:
                missing += sum(b - a for a, b in pages.missing(first, end))
        return missing

    async def _decided_room(self) -> Room | None:
        """Make room for all pages that are not in the files, as was decided; None: there is none."""
        # What was decided before this has to be done before: all arrivals only wait for earlier ones.
        await self._after(lambda one: self._dropped or not one.overlaps(self.drops))
        if not self._dropped:
            await in_thread(self._drop_now)
        # What later ones drop was counted on by still later ones: whoever took room out of turn would take an earlier
        # one's, for which none would be left.
        await self._after(lambda one: one.has_room)
        while True:
            # Asked first: one that ends while room is looked for gives back what it had too much of, a shared page.
            last = all(one.ended for one in self._before)
            room = await self._ranges[0][0].cache.room(self._missing())
            if room is not None or last:
                self.drifted = room is None
                return room
            await asyncio.sleep(_ORDER_S)

    @property
    def drops(self) -> Sequence[tuple[CachedObject, int, int]]:
        """Pages that it was decided to drop."""
        return () if self._fate is None else self._fate.drops

    def overlaps(self, ranges: Sequence[tuple[CachedObject, int, int]]) -> bool:
        """Return whether any of these pages are on their way."""
        return any(one is other and first < b and a < end for one, first, end in self._ranges for other, a, b in ranges)

    @property
    def has_room(self) -> bool:
        """Whether it needs no room, or has got it, or has found that there is none."""
        return self._started and all(room.done() for room in self._rooms)

    @property
    def ended(self) -> bool:
        """Whether nothing of it is being fetched or written any more."""
        return self._outcome.done

    def _pieces(self, buffers: Sequence[memoryview]) -> list[Piece]:
        pieces: list[Piece] = []
        for extent in self._extents:
            for (found, first, _), buffer in zip(self._ranges, buffers, strict=True):
                at = extent.offset - first * PAGE_BYTES
                if found is self._objects.get(extent.path) and at >= 0 and at + extent.size <= len(buffer):
                    pieces.append(buffer[at : at + extent.size])
                    break
            else:
                assert not extent.size, f"expected bytes for {extent}"
                pieces.append(memoryview(b""))
        return pieces

    def result(self) -> list[Piece]:
        """See `Coming.result`."""
        try:
            with ended_by(self._cancel):
                return self._outcome.result()
        finally:
            self._release()

    def cancel(self) -> None:
        """See `Coming.cancel`."""
        self._cancel()
        self._release()

    def _release(self) -> None:
        with contextlib.suppress(IndexError):  # another thread does it, too
            while True:
                self._leases.pop().release()


def _given_back(made: asyncio.Future[Room | None]) -> None:
    """Give back room that nobody waits for any more."""
    if not made.cancelled() and made.exception() is None and (room := made.result()) is not None:
        room.close()


async def _closed(room: asyncio.Future[Room | None]) -> None:
    """Give back what is left of room, also if it is being made."""
    room.cancel()
    (made,) = await asyncio.gather(room, return_exceptions=True)
    if isinstance(made, Room):
        made.close()


_caches: dict[Path, Cache] = {}
_caches_lock = threading.Lock()


@contextlib.contextmanager
def cache_at(folder: Path, budget_bytes: int) -> Iterator[Cache]:
    """A context with this process's cache in a folder; other threads do not end it before objects are entered.

    Raises:
        DataError: the folder is not writable, others can write to it, or it is too small.
    """
    if budget_bytes < LEAST_BYTES:
        raise ValueError(f"expected cache_bytes of at least {LEAST_BYTES}, got {budget_bytes}")
    folder = Path(os.path.realpath(folder))
    while True:
        with _caches_lock:
            cache = _caches.get(folder)
            if cache is None or cache.pid != os.getpid():
                cache = _caches[folder] = Cache(folder, budget_bytes)
        with cache.opening() as there:
            if there:
                cache.budget_bytes = budget_bytes
                yield cache
                return


async def _all(work: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Do everything, and end all of it when a part fails or this is cancelled; return the results."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def parts_of(first: int, end: int) -> list[tuple[int, int]]:
    """Cut pages at multiples of `PART_BYTES` of the object."""
    cuts = [first, *range((first // _PART + 1) * _PART, end, _PART), end]
    return [(a, b) for a, b in itertools.pairwise(cuts) if b > a]


def _without(first: int, end: int, used: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield what is left of pages without the runs in ``used``, int64 (n, 2)."""
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


def together(
    extents: Sequence[Extent], known: Mapping[str, CachedObject] | None = None
) -> list[tuple[CachedObject, int, int]]:
    """Return the pages to fetch for extents: those that lie close to each other with one request.

    Args:
        extents: parts of files; nothing is fetched of those that are no objects any more.
        known: the objects by path; None: those that are known now.
    """
    found: list[tuple[CachedObject, int, int]] = []
    for extent in sorted(extents, key=lambda one: (one.path, one.offset)):
        if not extent.size:
            continue
        one = object_at(extent.path) if known is None else known.get(extent.path)
        if not isinstance(one, CachedObject):
            continue
        first, end = pages_of(extent.offset, extent.offset + extent.size)
        if found and found[-1][0] is one and first - found[-1][2] <= _TOGETHER_BYTES // PAGE_BYTES:
            found[-1] = (one, found[-1][1], max(end, found[-1][2]))
        else:
            found.append((one, first, end))
    return found
