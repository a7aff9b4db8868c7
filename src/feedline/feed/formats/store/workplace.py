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
        self._locks: list[int] = []
        for _ in range(_ATTEMPTS):
            self._tag = _machine() + secrets.token_hex(4)
            self.folder = path.parent / f".{path.name}.writing-{self._tag}"
            self.folder.mkdir()
            # Before it is locked it looks like one that was left; whoever removes it has it locked meanwhile.
            if self._lock(self.folder):
                return
        raise OSError(f"cannot make a folder beside {path}: others remove it")

    def take_place(self) -> None:
        """Give the folder the name of the destination; what has that name now is removed afterwards."""
        old = None
        if self._path.exists():
            old = self._path.parent / f".{self._path.name}.old-{self._tag}"
            self._lock(self._path)
            os.rename(self._path, old)
        try:
            os.rename(self.folder, self._path)
        except BaseException:
            if old is not None:
                os.rename(old, self._path)
            raise
        sync_folder(self._path.parent)
        if old is not None:
            shutil.rmtree(old)
        self._unlock()

    def drop(self) -> None:
        """Remove the folder and all in it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._unlock()

    def _lock(self, folder: Path) -> bool:
        """Keep ``folder`` locked; False if somebody else has locked or removed it."""
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._locks.append(descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            except OSError:
                pass  # nobody can lock it here, so nobody will take it for one that was left
            return os.path.samestat(os.fstat(descriptor), os.stat(folder))
        return False

    def _unlock(self) -> None:
        while self._locks:
            os.close(self._locks.pop())


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
