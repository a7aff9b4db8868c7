"""Uploads of files to an object store, in the background. A file is recorded once it has arrived, and then removed
here.

A record has the name, the size and the checksum of a file, and its ETag in the store. So after a process was killed,
the next one knows the files that were stored, compares them with the listing of the store, and does not send them
again. A failed upload is repeated as requests are (see `requests`): first one part, twice, then the whole file. An
upload that is given up, also by Ctrl-C, is aborted in the store. Only the upload of a killed process stays, until the
rules of the bucket remove it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from feedline import _native
from feedline.concurrency.thread_pool import Job
from feedline.errors import DataError
from feedline.feed.files.records import read_record, write_record
from feedline.feed.remote.requests import (
    Patience,
    Tries,
    fetch_range,
    in_thread,
    keep_running,
    listing,
    loop,
    request_lookup,
    wait_for,
)
from feedline.feed.remote.stores import Body, EndedError, ObjectInfo, Store, StoreFault

AT_ONCE = 2
"""Limit of simultaneous uploads. Other files wait on the disk."""

ABORT_S = 30.0
"""Seconds that a store may take to abort an upload."""

_SLOWEST = 1 << 20  # bytes a second: larger files get a longer deadline

_log = logging.getLogger("feedline")


class Stored(NamedTuple):
    """A file that has arrived.

    Attributes:
        name: name of the file.
        size: size in bytes.
        crc32c: checksum.
        etag: ETag in the store.
    """

    name: str
    size: int
    crc32c: int
    etag: str

    def is_at(self, info: ObjectInfo | None) -> bool:
        """Return whether the store has this object."""
        # Some stores quote ETags in one answer, but not in another.
        return info is not None and info.size == self.size and info.etag.strip('"') == self.etag.strip('"')


class Uploads:
    """The files of one folder of an object store.

    Args:
        store: the store.
        prefix: prefix of the keys, empty or with a slash at the end.
        work: folder of the records.
        patience: limits for waiting.

    Attributes:
        stored: files that have arrived and still exist, by name.
    """

    def __init__(self, store: Store, prefix: str, work: Path, patience: Patience) -> None:
        self._store, self._prefix, self._work, self._patience = store, prefix, work, patience
        self._held = contextlib.ExitStack()
        self._pending: dict[str, Job[None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._records = 0
        self.stored: dict[str, Stored] = {}
        listed = self.list_stored()
        while (fields := read_record(self._path(self._records))) is not None:
            self._records += 1
            stored = Stored(*fields)
            if stored.is_at(listed.get(stored.name)):
                self.stored[stored.name] = stored
        self._held.enter_context(keep_running())

    def _path(self, number: int) -> Path:
        return self._work / f"upload-{number:06d}.json"

    def list_stored(self) -> dict[str, ObjectInfo]:
        """Return the objects in the store, by name."""
        return list_stored(self._store, self._prefix, self._patience)

    def begin(self, path: Path) -> None:
        """Begin to send a file, which is removed once it has arrived. Waits for earlier files if there are many.

        Raises:
            DataError: an earlier file could not be sent.
        """
        while len(self._pending) >= AT_ONCE:
            self._wait(next(iter(self._pending)))
        if not self._is_stored(path):
            self._pending[path.name], _ = loop().begin(self._send(path))

    def _is_stored(self, path: Path) -> bool:
        stored = self.stored.get(path.name)
        if stored is None or stored.size != path.stat().st_size:
            return False
        crc = 0
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                crc = _native.crc32c(block, crc)
        if crc != stored.crc32c:
            return False
        path.unlink()
        return True

    def _wait(self, name: str) -> None:
        self._pending[name].result()
        del self._pending[name]

    def drain(self) -> None:
        """Wait for the files that are being sent.

        Raises:
            DataError: a file could not be sent.
        """
        while self._pending:
            self._wait(next(iter(self._pending)))

    def check(self) -> None:
        """Compare the files that have arrived with the listing of the store.

        Raises:
            DataError: the store lists another object, or none.
        """
        listed = self.list_stored()
        for stored in self.stored.values():
            if not stored.is_at(listed.get(stored.name)):
                got = listed.get(stored.name)
                raise DataError(
                    f"expected the object as it was stored, of {stored.size} bytes with ETag {stored.etag}, got "
                    + ("none" if got is None else f"one of {got.size} bytes with ETag {got.etag}"),
                    path=self._store.url(self._prefix + stored.name),
                    hint="something else writes to or deletes from the same place; end it, and repeat the call",
                )

    def write(self, name: str, data: bytes, *, new: bool) -> bool:
        """Write a small object. Return False only if it has to be new, but the store has another object of that name.

        Raises:
            DataError: the store does not accept the object.
        """
        return wait_for(self._write_once(name, data, new))

    def delete(self, name: str) -> None:
        """Remove an object, if it exists.

        Raises:
            DataError: the request failed.
        """
        key = self._prefix + name
        wait_for(request_lookup(self._store, key, lambda: self._store.delete(key), self._patience))

    def abort(self) -> None:
        """End uploads in progress, and make the store drop their parts."""
        self._pending.clear()
        try:
            wait_for(self._cancel_all())
        finally:
            self._held.close()

    def close(self) -> None:
        """Release the loop. No upload may be in progress."""
        assert not self._pending
        self._held.close()

    # ---- on the loop ------------------------------------------------------------------------------

    async def _send(self, path: Path) -> None:
        body, etag = await self._write_with_retries(path.name, lambda: Body(path), new=False)
        done = Stored(path.name, body.size, body.crc32c, etag)
        number, self._records = self._records, self._records + 1
        await in_thread(lambda: write_record(self._path(number), list(done)))
        self.stored[path.name] = done
        await in_thread(path.unlink)

    async def _write_once(self, name: str, data: bytes, new: bool) -> bool:
        key = self._prefix + name
        try:
            await self._write_with_retries(name, lambda: Body(data), new=new)
        except StoreFault:
            # Perhaps an earlier attempt wrote it, and its answer was lost.
            info = await request_lookup(self._store, key, lambda: self._store.head(key), self._patience)
            if info is None or info.size != len(data):
                return False
            content = memoryview(bytearray(info.size))
            await fetch_range(self._store, info, 0, content, patience=self._patience, on_bytes=lambda done: None)
            return content == data
        return True

    async def _write_with_retries(self, name: str, make_body: Callable[[], Body], *, new: bool) -> tuple[Body, str]:
        """Write an object, and retry if that fails.

        Raises:
            DataError: the object cannot be written.
            StoreFault: the object has to be new, but exists.
        """
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        key = self._prefix + name
        body = await in_thread(make_body)
        patience = replace(self._patience, deadline_s=self._patience.deadline_s + body.size / _SLOWEST)
        tries = Tries(
            self._store.url(key),
            f"to store {body.size} bytes",
            patience,
            instead="no success",
            after="repeat the call: files that are stored already are not sent again",
        )
        while True:
            tries.begin()
            attempt = asyncio.ensure_future(self._store.write(key, body, new=new))
            try:
                return body, await asyncio.shield(attempt)
            except asyncio.CancelledError:
                body.end()
                await self._wait_for_abort(attempt, key)
                raise
            except StoreFault as fault:
                if fault.kind == "exists":
                    raise
                await tries.wait_after(fault, self._store, key)
            body = await in_thread(make_body)

    async def _cancel_all(self) -> None:
        for task in (tasks := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait_for_abort(self, attempt: asyncio.Future[str], key: str) -> None:
        """Wait until an attempt has ended and its upload was aborted in the store."""
        await asyncio.wait([attempt], timeout=ABORT_S)
        if not attempt.done():
            _log.warning("%s: parts of an upload may be left, as the store does not answer", self._store.url(key))
            attempt.cancel()
        with contextlib.suppress(StoreFault, EndedError, asyncio.CancelledError):
            await attempt


def list_stored(store: Store, prefix: str, patience: Patience) -> dict[str, ObjectInfo]:
    """Return the objects whose keys begin with ``prefix``, by name without the prefix.

    Raises:
        DataError: the store does not answer.
    """
    infos = wait_for(listing(store, prefix, patience))
    # Stores list folders as empty objects whose names end in a slash.
    return {info.key[len(prefix) :]: info for info in infos if not info.key.endswith("/") and info.key != prefix}
