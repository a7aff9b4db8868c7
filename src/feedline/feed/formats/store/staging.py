"""The hidden folder in which a store is written, next to its destination, and the removal of leftovers.

A writer locks its folder, and the system releases the lock however the writer ends. So the next writer of that name can
distinguish the folders of live writers from the leftovers of killed ones, which it removes. On a file system that
cannot lock folders (NFS) nothing is removed. Nor is a folder removed that another machine may still be writing, as some
file systems lock only within one machine.

``.NAME.writing-TAG`` is a store that is being written, ``.NAME.old-TAG`` one that is being replaced. A writer that was
killed between the two renames of a replacement leaves no store of that name. The next writer first restores the old
one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

from feedline import system
from feedline.errors import DataError

_ATTEMPTS = 100


class StagingFolder:
    """A new hidden folder next to ``path``, locked.

    Args:
        path: destination of the store.
        publish: function that makes the store appear, called with the folder.

    Attributes:
        folder: folder to write in.

    Raises:
        OSError: it cannot be created.
    """

    def __init__(self, path: Path, publish: Callable[[Path], None]) -> None:
        self._publish = publish
        self._lock: int | None = None
        for _ in range(_ATTEMPTS):
            self.folder = path.parent / f".{path.name}.writing-{_tag()}"
            self.folder.mkdir()
            # An unlocked folder looks like a leftover. While another writer removes it, that writer has the lock.
            self._lock = _lock(self.folder)
            if self._lock is not None:
                return
        raise OSError(f"cannot create a folder next to {path}: other processes remove it")

    def publish(self) -> None:
        """Make the store appear."""
        self._publish(self.folder)
        self._unlock()

    def drop(self) -> None:
        """Remove the folder and its content."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def publish(folder: Path, path: Path) -> None:
    """Rename a finished store to its destination, replacing an earlier store."""
    sync_folder(folder)
    old = lock = None
    if path.exists():
        old = path.parent / f".{path.name}.old-{_tag()}"
        lock = _lock(path)
    try:
        if old is not None:
            os.rename(path, old)
        try:
            os.rename(folder, path)
        except BaseException:
            if old is not None:
                os.rename(old, path)
            raise
        sync_folder(path.parent)
        if old is not None:
            shutil.rmtree(old)
    finally:
        if lock is not None:
            os.close(lock)


def discard(folder: Path, path: Path) -> None:
    """Remove a folder next to ``path`` atomically.

    An interrupted removal leaves the name of an unfinished store, which the next writer of ``path`` removes.
    """
    doomed = path.parent / f".{path.name}.writing-{_tag()}"
    os.rename(folder, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _lock(folder: Path) -> int | None:
    """Return a descriptor that locks ``folder`` while it is open, or None if it is locked already or has been
    removed."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            pass  # this file system has no locks, so no writer will remove it as a leftover
        if os.path.samestat(os.fstat(descriptor), os.stat(folder)):
            return descriptor
    except FileNotFoundError:
        pass
    os.close(descriptor)
    return None


def clear_leftovers(path: Path) -> None:
    """Remove the leftovers of dead writers of ``path``, or restore the store that one of them was replacing."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.(writing|old)-([0-9a-f]{{6}})([0-9a-f]{{6}})[0-9a-f]{{8}}")
    boot, host = _machine()[:6], _machine()[6:]
    with contextlib.suppress(OSError):  # writing to the folder will report errors
        for entry in sorted(os.scandir(path.parent), key=lambda entry: entry.name):
            match = pattern.fullmatch(entry.name)
            # A restarted machine keeps its name. Containers on it share its boot.
            if match and (match[2] == boot or match[3] == host):
                _clear(Path(entry.path), match[1] == "old", path)


def _clear(leftover: Path, old: bool, path: Path) -> None:
    from feedline.feed.formats.store.manifest import Manifest

    try:
        descriptor = os.open(leftover, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if old and not os.path.lexists(path):
            with contextlib.suppress(DataError):  # it is incomplete
                Manifest.load(leftover)
                os.rename(leftover, path)
                return
        shutil.rmtree(leftover)
    except OSError:
        pass  # its writer is alive, or this process may not remove it
    finally:
        os.close(descriptor)


def _tag() -> str:
    return _machine() + secrets.token_hex(4)


def _machine() -> str:
    """Return 12 hex digits: six for the machine's last boot, six for its name."""
    host = socket.gethostname()
    names = (system.boot_id() or host, host)
    return "".join(hashlib.blake2b(name.encode(), digest_size=3).hexdigest() for name in names)


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
