"""One session a folder: a lock that says who holds it, and that ends with its process.

The lock is a file, ``.lock``, on which the operating system holds a lock (``flock``) for as long as the holder's
process lives, however it ends; in it stand the holder's host, process and the time that process began. Whoever finds
it held is told by whom.

- A file that a dead process has left is taken over: nobody has a lock on it. Its text alone keeps nobody out, unless it
  names a process of this host that is alive and began when the text says; a process number that was given out again
  is therefore not believed.
- Between machines that share a folder, it works where the file system passes these locks on, as NFS version 4 and
  version 3 with its lock service do. Mounted with ``local_lock`` or ``nolock``, NFS keeps out sessions of the same
  machine alone.
- Where there are no such locks, the text decides: a holder on this host that is dead is replaced, one on another host
  is believed to be alive until somebody removes the file. Two that begin in the same instant are not told apart.

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

from feedline.errors import StateError

NAME = ".lock"
_LARGEST = 4096
#: What a file system without locks answers.
_WITHOUT_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})

_log = logging.getLogger("feedline")


class Holder(NamedTuple):
    """Who has a lock.

    Attributes:
        host: its name.
        process: its number.
        began: when the process began, in the host's clock ticks since it was started; None where that is not told.
    """

    host: str
    process: int
    began: int | None

    @classmethod
    def this(cls) -> Holder:
        """This process."""
        return cls(socket.gethostname(), os.getpid(), _began(os.getpid()))

    @property
    def alive(self) -> bool:
        """Whether it may still run; on another host it may."""
        if self.host != socket.gethostname():
            return True
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return None in (self.began, _began(self.process)) or self.began == _began(self.process)

    def __str__(self) -> str:
        here = " (this one)" if self == Holder.this() else ""
        return f"process {self.process}{here} on host {self.host}"


class FolderLock:
    """A folder that no other session writes to, until `release`.

    Args:
        folder: made if it is not there.

    Raises:
        StateError: another session has it; names its host and process.
        OSError: no permission, or no folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        folder.mkdir(parents=True, exist_ok=True)
        self._handle: int | None = self._taken()
        _held.add(self)

    def release(self) -> None:
        """Let others in; again is as once."""
        handle = self._forget()
        if handle is not None:
            # Removed while it is held: whoever has opened it meanwhile finds that it is no longer the folder's.
            if _is_at(handle, self._path):
                with contextlib.suppress(OSError):
                    self._path.unlink()
            os.close(handle)

    def _taken(self) -> int:
        while True:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
            try:
                handle = os.open(self._path, flags, 0o666)
            except OSError as error:
                if error.errno not in (errno.EISDIR, errno.ELOOP, errno.ENXIO):
                    raise
                raise self._no_file() from error
            try:
                taken = self._lock(handle)
            except BaseException:
                os.close(handle)
                raise
            if taken:
                return handle
            os.close(handle)  # its holder removed it while we opened it

    def _lock(self, handle: int) -> bool:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise self._no_file()
        locks = True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._refusal(_read(handle), "") from None
        except OSError as error:
            if error.errno not in _WITHOUT_LOCKS:
                raise
            locks = False
        if not _is_at(handle, self._path):
            return False
        holder, this = _read(handle), Holder.this()
        if holder is not None:
            # With the lock in our hand, of others only a living process of this host is believed, not its text alone.
            if holder.alive and (not locks or (holder.host == this.host and holder != this)):
                raise self._refusal(holder, f"; if that one is no more, remove {self._path}")
            say = _log.info if holder.host == this.host else _log.warning
            say("taking over %s from %s, which did not give it back", self._path, holder)
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(this._asdict()).encode(), 0)
        return True

    def _no_file(self) -> StateError:
        return StateError(f"expected a regular file at {self._path}, got something else: remove it")

    def _refusal(self, holder: Holder | None, otherwise: str) -> StateError:
        who = "one that does not say which it is" if holder is None else str(holder)
        return StateError(
            f"expected a folder that no other session writes to, got {self._path.parent}, which is held by {who}",
            hint=f"give each session a folder of its own, or wait until that one has ended{otherwise}",
        )

    def _forget(self) -> int | None:
        handle, self._handle = self._handle, None
        _held.discard(self)
        return handle


def lock_folders(folders: Iterable[Path]) -> contextlib.ExitStack:
    """Locks on all of the folders, until what is returned is closed; none of them where one is refused, see there."""
    with contextlib.ExitStack() as taken:
        for folder in folders:
            taken.callback(FolderLock(folder).release)
        return taken.pop_all()


def _read(handle: int) -> Holder | None:
    """Who has written itself there."""
    try:
        told = json.loads(os.pread(handle, _LARGEST, 0))
        holder = Holder(told["host"], told["process"], told["began"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    fits = isinstance(holder.host, str) and type(holder.process) is int and 0 < holder.process < 1 << 31
    return holder if fits else None


def _is_at(handle: int, path: Path) -> bool:
    """Whether the open file is the one of that name."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _began(process: int) -> int | None:
    """When a process of this host began."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            # The name, in parentheses, may hold anything; the time is the 20th field behind it.
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


_held: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _in_a_child() -> None:
    """A forked child has the same open files, and the lock would last as long as the child."""
    for lock in list(_held):
        handle = lock._forget()
        if handle is not None:
            os.close(handle)


os.register_at_fork(after_in_child=_in_a_child)
