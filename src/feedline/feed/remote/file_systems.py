"""The file systems of fsspec, called in separate threads, as their calls block."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import email.utils
import functools
import hashlib
import math
import threading
import time
import weakref
from collections.abc import AsyncIterator, Mapping
from typing import Any

from feedline.errors import DataError, install_line
from feedline.feed.remote.address_text import scheme_of
from feedline.feed.remote.blocking_calls import in_own_thread
from feedline.feed.remote.stores import Body, ObjectInfo, Store, StoreFault, fault_of, faults

_ETAGS = ("ETag", "etag", "blob_id", "sha", "checksum", "md5", "content_md5", "md5Hash")
_TIMES = (
    "LastModified",
    "last_modified",
    "mtime",
    "modified",
    "modify",
    "updated",
    "modificationTime",
    "last_write_time",
    "created",
)
_MIN_PIECE, _FIRST_PIECE, _MAX_PIECE = 4 << 10, 256 << 10, 8 << 20
_MAX_SECONDS = 1 << 36  # a time that is larger is in milliseconds


class FileSystemStore(Store):
    """A file system of fsspec."""

    blocks = True

    def __init__(self, root: str, options: Mapping[str, Any]) -> None:
        super().__init__(root, options)
        try:
            import fsspec

            kind = fsspec.get_filesystem_class(scheme_of(root))
        except (ImportError, ValueError) as error:
            raise DataError(
                f"expected a kind of address that obstore or fsspec reads, got {scheme_of(root)}://: "
                f"{fault_of(error).answer}",
                path=self.address,
                hint=f"{install_line('remote')}, and the package that the message names, if it names one",
            ) from error
        # A new instance: fsspec's cached instances have the credentials and listings of earlier openings.
        self._connect = functools.partial(fsspec.core.url_to_fs, root, skip_instance_cache=True, **options)
        self._connected: Any = None
        self._renewed_s = -math.inf
        self._connecting = threading.Lock()
        # With a leading slash if paths have one. Without it, a path could be relative to a folder of the user.
        self._base = kind._strip_protocol(f"{root}/x").removesuffix("x")
        self._piece = _FIRST_PIECE
        # By path: the next request for the object's properties, and the lock that it waits for.
        self._next: dict[str, asyncio.Task[ObjectInfo | None]] = {}
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    @property
    def _system(self) -> Any:
        """The file system. Only for separate threads, as some file systems connect in their constructor."""
        with self._connecting:
            system = self._connected
            if system is None:
                system, _ = self._connect()
                self._connected = system
            return system

    async def renew(self, since: float) -> bool:
        """See `Store.renew`. The next request connects again."""
        if self._renewed_s < since:
            self._renewed_s = time.monotonic()
            self._connected = None
        return True

    def _path(self, key: str) -> str:
        return f"{self._base}{key}"

    def _info_of(self, path: str, about: Mapping[str, Any]) -> ObjectInfo:
        name = str(about["name"]).removeprefix("/")
        key = name.removeprefix(self._base.strip("/")).removeprefix("/")
        etag = next((str(about[k]) for k in _ETAGS if about.get(k)), "")
        when = next((about[k] for k in _TIMES if about.get(k)), 0)
        return ObjectInfo(key, int(about["size"] or 0), self._etag(path, etag), _nanoseconds(when))

    def _etag(self, path: str, etag: str) -> str:
        """Return the ETag of the file at a path, of which the file system says ``etag``."""
        return etag

    async def _info(self, path: str) -> Mapping[str, Any] | None:
        """Return the properties of the file at a path now, or None if there is no file."""

        def ask() -> Mapping[str, Any]:
            self._forget(path)
            about: Mapping[str, Any] = self._system.info(path)
            return about

        with faults():
            try:
                return await in_own_thread(ask)
            except (FileNotFoundError, NotADirectoryError):
                return None

    def _forget(self, path: str) -> None:
        """Make the file system ask the store again instead of using cached listings."""
        self._system.invalidate_cache(self._system._parent(path))

    def _cat(self, path: str, begin: int, end: int) -> bytes:
        data: bytes = self._system.cat_file(path, start=begin, end=end)
        return data

    async def head(self, key: str) -> ObjectInfo | None:
        """See `Store.head`."""
        path = self._path(key)
        about = await self._info(path)
        return self._info_of(path, about) if about is not None and about.get("type", "file") == "file" else None

    async def list_objects(self, folder: str, *, deep: bool = True) -> AsyncIterator[list[ObjectInfo]]:
        """See `Store.list_objects`."""
        path = self._path(folder.rstrip("/"))

        def ask() -> list[tuple[str, Mapping[str, Any]]]:
            self._system.invalidate_cache()
            if deep:
                return list(self._system.find(path, detail=True).items())
            return [(str(about["name"]), about) for about in self._system.ls(path, detail=True)]

        with faults():
            try:
                entries = await in_own_thread(ask)
            except (FileNotFoundError, NotADirectoryError):
                return
        page = []
        for name, about in entries:
            info = self._info_of(name, about)
            if about.get("type", "file") == "file":
                page.append(info)
            elif not deep:
                page.append(ObjectInfo(f"{info.key.rstrip('/')}/", 0, "", 0))
        yield page

    async def read(self, info: ObjectInfo, begin: int, end: int) -> AsyncIterator[Any]:
        """See `Store.read`."""
        path = self._path(info.key)
        while begin < end:
            # In pieces of about a second, as no byte of a piece arrives before it is complete.
            size = min(self._piece, end - begin)
            began = time.monotonic()
            call = functools.partial(self._cat, path, begin, begin + size)
            try:
                with faults():
                    piece = await in_own_thread(call)
            except asyncio.CancelledError:  # the piece did not arrive in time
                self._piece = max(_MIN_PIECE, size // 4)
                raise
            fitting = int(size / max(time.monotonic() - began, 1e-3))
            # A small range that comes in time does not tell that a large piece would not.
            least = self._piece if size < self._piece and size <= fitting else _MIN_PIECE
            self._piece = max(least, min(_MAX_PIECE, 4 * size, fitting))
            # Checked after the piece has arrived: if the object has not changed, the piece is right.
            await self._check_unchanged(info, path)
            if not piece:
                return
            yield piece
            begin += len(piece)

    async def _check_unchanged(self, info: ObjectInfo, path: str) -> None:
        """Check that an object is still the one that was opened.

        Raises:
            StoreFault: it was replaced or removed.
        """
        now = await self._current_info(path)
        if now is None or not info.is_same(now):
            raise StoreFault("no object" if now is None else f"an object of {now}", kind="changed")

    async def _current_info(self, path: str) -> ObjectInfo | None:
        """Return the properties of the object at a path, as they are after this call. Calls during a request share the
        next request."""
        request = self._next.get(path)
        if request is None or request.done():
            request = self._next[path] = asyncio.ensure_future(self._ask_in_turn(path))
        return await asyncio.shield(request)

    async def _ask_in_turn(self, path: str) -> ObjectInfo | None:
        async with self._turns.setdefault(path, asyncio.Lock()):
            del self._next[path]  # the request starts now: a later call needs a new one
            about = await self._info(path)
            return None if about is None else self._info_of(path, about)

    async def write(self, key: str, body: Body, *, new: bool = False) -> str:
        """See `Store.write`."""
        path = self._path(key)
        with faults():
            if new and await in_own_thread(lambda: self._system.exists(path)):
                raise StoreFault("an object of that name", kind="exists")
            with contextlib.suppress(FileExistsError):
                await in_own_thread(lambda: self._system.makedirs(path.rpartition("/")[0], exist_ok=True))
            if body.whole is not None:
                await in_own_thread(lambda: self._system.pipe_file(path, body.whole))
            else:
                # A file that cannot be discarded stays incomplete, and has no record.
                file = await in_own_thread(lambda: self._system.open(path, "wb"))
                try:
                    async for part in body.parts():
                        await in_own_thread(functools.partial(file.write, part))
                except BaseException:
                    with contextlib.suppress(Exception):
                        await in_own_thread(file.discard)
                    raise
                await in_own_thread(file.close)
            about = await in_own_thread(lambda: self._system.info(path))
        return self._info_of(path, about).etag

    async def delete(self, key: str) -> None:
        """See `Store.delete`."""
        with faults(), contextlib.suppress(FileNotFoundError):
            await in_own_thread(lambda: self._system.rm_file(self._path(key)))


def _nanoseconds(when: Any) -> int:
    """Return a time of a file system in nanoseconds since 1970, or 0 if it is not a time."""
    if isinstance(when, str):
        try:
            when = datetime.datetime.fromisoformat(when)
        except ValueError:
            try:
                when = email.utils.parsedate_to_datetime(when)
            except ValueError:
                # Text that cannot be parsed still changes with the object.
                return int.from_bytes(hashlib.blake2b(when.encode(), digest_size=6).digest(), "big")
    if isinstance(when, datetime.datetime):
        when = when.timestamp()
    if not isinstance(when, (int, float)):
        return 0
    return int(when * 1e6) if when > _MAX_SECONDS else int(when * 1e9)
