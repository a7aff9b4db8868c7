"""The hidden folder that a store is written in, beside its destination; and what killed writers left of theirs.

A writer holds a lock on its folder for as long as it lives, which the system lets go of however it ends. So the next
writer of that name tells the folders of living ones, which it leaves alone, from those of dead ones, which it removes.
On a file system that does not lock folders (NFS) nothing is removed; nor is what another machine may still be
writing, as some file systems lock for one machine alone.

``.NAME.writing-TAG`` is a store being written; ``.NAME.old-TAG`` one that is being replaced. A writer that was killed
between the two renames of a replacement has left no store of that name: the next one puts the old one back first.
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
from pathlib import Path

from feedline.errors import DataError

_ATTEMPTS = 100


class Workplace:
    """A new hidden folder beside ``path``, locked.

    Attributes:
        folder: where to write.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock: int | None = None
        for _ in range(_ATTEMPTS):
            self.folder = path.parent / f".{path.name}.writing-{_tag()}"
            self.folder.mkdir()
            # Before it is locked it looks like one that was left; whoever removes it has it locked meanwhile.
            self._lock = _lock(self.folder)
            if self._lock is not None:
                return
        raise OSError(f"cannot make a folder beside {path}: others remove it")

    def publish(self) -> None:
        """Give the folder the name of the destination; what has it is replaced."""
        publish(self.folder, self._path)
        self._unlock()

    def drop(self) -> None:
        """Remove the folder and all in it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def publish(folder: Path, path: Path) -> None:
    """Give a finished store its name; what has it is replaced."""
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
    """Remove a folder beside ``path`` as a whole: it is gone at once, even if the removal is interrupted.

    What is left then is an unfinished store by its name, which the next writer of ``path`` clears.
    """
    doomed = path.parent / f".{path.name}.writing-{_tag()}"
    os.rename(folder, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _lock(folder: Path) -> int | None:
    """A descriptor that keeps ``folder`` locked while it is open; None if somebody else has locked or removed it."""
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
            pass  # nobody can lock it here, so nobody will take it for one that was left
        if os.path.samestat(os.fstat(descriptor), os.stat(folder)):
            return descriptor
    except FileNotFoundError:
        pass
    os.close(descriptor)
    return None


def clear_leftovers(path: Path) -> None:
    """Remove what dead writers of ``path`` have left beside it, or put back the store that one was replacing."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.(writing|old)-([0-9a-f]{{6}})([0-9a-f]{{6}})[0-9a-f]{{8}}")
    boot, host = _machine()[:6], _machine()[6:]
    with contextlib.suppress(OSError):  # an error of the folder itself is told by those who write there
        for entry in sorted(os.scandir(path.parent), key=lambda entry: entry.name):
            match = pattern.fullmatch(entry.name)
            # A machine that was started again has the same name; containers on it have one start.
            if match and (match[2] == boot or match[3] == host):
                _clear(Path(entry.path), match[1] == "old", path)


def _clear(left: Path, old: bool, path: Path) -> None:
    from feedline.feed.formats.store.manifest import Manifest

    try:
        descriptor = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if old and not os.path.lexists(path):
            with contextlib.suppress(DataError):  # it is not whole any more
                Manifest.load(left)
                os.rename(left, path)
                return
        shutil.rmtree(left)
    except OSError:
        pass  # somebody lives there, or it is not ours to remove
    finally:
        os.close(descriptor)


def _tag() -> str:
    return _machine() + secrets.token_hex(4)


def _machine() -> str:
    """12 hex digits: six for the machine's last start, six for its name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        boot = ""
    names = (boot, socket.gethostname())
    return "".join(hashlib.blake2b(name.encode(), digest_size=3).hexdigest() for name in names)


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
