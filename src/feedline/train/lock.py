"""Locks of folders, so that at most one session writes to a folder. A lock names its holder and ends with its process.

It is a file, ``.lock``, on which the operating system holds a lock (``flock``) until the holder's process ends however
it ends. The file contains the holder's host, process id and start time, which the error of a second session reports.

- A lock file of a dead process is reused, since no process has a lock on it. Its text alone excludes others only if
  it names a live process of this host with that start time, so a reused process id does not count.
- Machines that share a folder exclude each other if the file system forwards locks, as NFS version 4, and version 3
  with its lock service, do. Mounted with ``local_lock`` or ``nolock``, NFS only excludes sessions of the same machine.
- Without such locks, the text decides: a dead holder on this host is replaced, and a holder on another host is presumed
  alive until the file is removed. Two sessions that start at the same instant may both get the lock.

A forked child does not hold the lock. Cost: a millisecond a run.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import stat
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from feedline import system
from feedline.concurrency.processes import is_running
from feedline.errors import StateError
from feedline.interop.tensor_file import is_file_at

NAME = ".lock"
_LARGEST_BYTES = 4096
#: Errors of a file system without locks.
_WITHOUT_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})

_log = logging.getLogger("feedline")


class Holder(NamedTuple):
    """Holder of a lock.

    Attributes:
        host: name of the host.
        process: process id.
        began: start time of the process, in clock ticks since the host's boot. None if unknown.
    """

    host: str
    process: int
    began: int | None

    @classmethod
    def this(cls) -> Holder:
        """This process."""
        return cls(socket.gethostname(), os.getpid(), system.started_at(os.getpid()))

    @property
    def alive(self) -> bool:
        """Whether the process may still run, always true for another host."""
        if self.host != socket.gethostname():
            return True
        if not is_running(self.process):
            return False
        return None in (self.began, system.started_at(self.process)) or self.began == system.started_at(self.process)

    def __str__(self) -> str:
        suffix = " (this one)" if self == Holder.this() else ""
        return f"process {self.process}{suffix} on host {self.host}"


class FolderLock:
    """Lock on a folder, held until `release`.

    Args:
        folder: folder, created if missing.

    Raises:
        StateError: another session holds the lock. The message names its host and process.
        OSError: no permission, or not a folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        folder.mkdir(parents=True, exist_ok=True)
        self._handle: int | None = self._open_and_lock()
        _locks.add(self)

    def release(self) -> None:
        """Release the lock. Idempotent."""
        handle = self._forget()
        if handle is not None:
            # Removed while held, so that a process that has just opened it notices that the file was replaced.
            if is_file_at(handle, self._path):
                with contextlib.suppress(OSError):
                    self._path.unlink()
            os.close(handle)

    def _open_and_lock(self) -> int:
        while True:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
            try:
                handle = os.open(self._path, flags, 0o666)
            except OSError as error:
                if error.errno not in (errno.EISDIR, errno.ELOOP, errno.ENXIO):
                    raise
                raise self._not_a_file() from error
            with contextlib.ExitStack() as undo:
                undo.callback(os.close, handle)
                if self._lock(handle):  # otherwise its holder removed the file while it was opened here
                    undo.pop_all()
                    return handle

    def _lock(self, handle: int) -> bool:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise self._not_a_file()
        supports_locks = True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._refusal(_read(handle), "") from None
        except OSError as error:
            if error.errno not in _WITHOUT_LOCKS:
                raise
            supports_locks = False
        if not is_file_at(handle, self._path):
            return False
        holder, this = _read(handle), Holder.this()
        if holder is not None:
            # We hold the lock, so of other holders only a live process of this host counts, not the text alone.
            if holder.alive and (not supports_locks or (holder.host == this.host and holder != this)):
                raise self._refusal(holder, f"; if that one has ended, remove {self._path}")
            log = _log.info if holder.host == this.host else _log.warning
            log("taking over %s from %s, which did not release it", self._path, holder)
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(this._asdict()).encode(), 0)
        return True

    def _not_a_file(self) -> StateError:
        return StateError(f"expected a regular file at {self._path}, got something else: remove it")

    def _refusal(self, holder: Holder | None, otherwise: str) -> StateError:
        name = "an unknown one" if holder is None else str(holder)
        return StateError(
            f"expected a folder that no other session writes to, got {self._path.parent}, which is held by {name}",
            hint=f"give each session its own folder, or wait until that one has ended{otherwise}",
        )

    def _forget(self) -> int | None:
        handle, self._handle = self._handle, None
        _locks.discard(self)
        return handle


def lock_folders(folders: Iterable[Path]) -> contextlib.ExitStack:
    """Lock all folders, or none if one is refused (see `FolderLock`). Closing the returned stack releases them."""
    with contextlib.ExitStack() as locks:
        for folder in folders:
            locks.callback(FolderLock(folder).release)
        return locks.pop_all()


def _read(handle: int) -> Holder | None:
    """Return the holder that the file names."""
    try:
        data = json.loads(os.pread(handle, _LARGEST_BYTES, 0))
        holder = Holder(data["host"], data["process"], data["began"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    valid = isinstance(holder.host, str) and type(holder.process) is int and 0 < holder.process < 1 << 31
    return holder if valid else None


_locks: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _close_in_child() -> None:
    """Close a forked child's copies of the lock files, which would keep the locks as long as the child lives."""
    for lock in list(_locks):
        handle = lock._forget()
        if handle is not None:
            os.close(handle)


os.register_at_fork(after_in_child=_close_in_child)
