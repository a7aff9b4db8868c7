"""The same functions as in `linux`, with what POSIX and Python offer. `linux` documents arguments and errors."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
import time
import weakref
from array import array
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

LOOK_S: float | None = 0.5
"""Seconds between looks at processes whose ends no descriptor shows. None: descriptors show them all."""

KNOWS_PAGE_CACHE: bool = False
"""Whether the page cache tells what it holds, and can be asked to drop it."""

_FAR = 1 << 62  # a byte beyond every file, which is locked while a file grows
_BLOCK_BYTES = 1 << 20
_PUNCH = 0x01 | 0x02  # Linux: FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
_MACOS_PUNCH = 99  # macOS: F_PUNCHHOLE
_MACOS_HOLE = struct.Struct("=IIqq")  # struct fpunchhole: flags, reserved, offset, length
_INT_BYTES = array("i").itemsize
_CONTROL_BYTES = socket.CMSG_SPACE(250 * _INT_BYTES)

# ---- memory and files -------------------------------------------------------------------------------------------


def anonymous_file(name: str) -> int:
    """Return the descriptor of a new, empty file without a path: one in the temporary folder, whose path is removed at
    once."""
    descriptor, path = tempfile.mkstemp(prefix=f"{name}-")
    try:
        os.unlink(path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def seal(descriptor: int) -> None:
    """Do nothing: only Linux refuses changes. No other program has the file."""


def allocate(descriptor: int, size: int) -> None:
    """Give a file of at most ``size`` bytes this size, and room for all of its bytes, by writing zeros behind it."""
    if os.fstat(descriptor).st_size >= size:
        return
    # Another process that makes the same file grow may write to it at once. Its bytes are not zeros.
    with contextlib.suppress(OSError):  # this file system has no locks
        fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, _FAR)
    try:
        zeros = bytes(_BLOCK_BYTES)
        while (end := os.fstat(descriptor).st_size) < size:
            os.pwrite(descriptor, zeros[: size - end], end)
    finally:
        with contextlib.suppress(OSError):
            fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, _FAR)


def free_range(descriptor: int, byte: int, count: int) -> bool:
    """Free the room of bytes of a file, as the system can: POSIX has no call for that."""
    try:
        if sys.platform == "darwin":
            fcntl.fcntl(descriptor, _MACOS_PUNCH, _MACOS_HOLE.pack(0, 0, byte, count))
            return True
        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "fallocate"):
            return False
        arguments = (descriptor, _PUNCH, ctypes.c_int64(byte), ctypes.c_int64(count))
        if libc.fallocate(*arguments) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS):
            return False
        raise
    return True


def map_private(descriptor: int, size: int, present: bool) -> mmap.mmap:
    """Return a private, read-only map of a file. Pages are mapped when they are read."""
    return mmap.mmap(descriptor, size, mmap.MAP_PRIVATE, mmap.PROT_READ)


def populate(mapped: mmap.mmap, begin: int, end: int) -> None:
    """Do nothing: pages are mapped when they are read."""


class _FileMap(NamedTuple):
    """A map of a file.

    Attributes:
        address: its first address.
        size: its bytes.
        first: offset in the file.
        shared: whether it shares memory with the file.
        path: absolute path of the file.
        identity: device and inode. None: unknown.
    """

    address: int
    size: int
    first: int
    shared: bool
    path: str
    identity: tuple[int, int] | None


_file_maps: weakref.WeakKeyDictionary[mmap.mmap, _FileMap] = weakref.WeakKeyDictionary()


def note_map(mapped: mmap.mmap, path: str | os.PathLike[str] | None, first: int = 0, shared: bool = True) -> None:
    """Note the file of a map, for `file_maps`: no call tells which file is mapped where."""
    if path is not None and mapped not in _file_maps:
        place = os.path.realpath(path)
        address = int(np.frombuffer(mapped, np.uint8).__array_interface__["data"][0])
        _file_maps[mapped] = _FileMap(address, len(mapped), first, shared, place, _identity(place))


def file_maps(shared: bool) -> Iterator[tuple[int, int, bool, int, str]]:
    """Yield the files of maps that were noted."""
    for entry in list(_file_maps.values()):
        if entry.shared or not shared:
            gone = entry.identity is None or _identity(entry.path) != entry.identity
            end = entry.address + -(-entry.size // mmap.PAGESIZE) * mmap.PAGESIZE
            yield entry.address, end, entry.shared, entry.first, entry.path + (" (deleted)" if gone else "")


def _identity(path: str) -> tuple[int, int] | None:
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_dev, about.st_ino


def open_direct(path: str) -> int:
    """Raise `OSError`: POSIX has no reads past the page cache."""
    raise OSError(errno.ENOTSUP, "this system reads through its page cache only", path)


def drop_cached(descriptor: int) -> None:
    """Raise `OSError`: the page cache cannot be asked."""
    raise OSError(errno.ENOTSUP, "this system's page cache cannot be asked to drop a file")


def reopen(descriptor: int, path: str) -> int:
    """Return another descriptor of an open file, read-only, by its path.

    Raises:
        FileNotFoundError: another file is at the path, or none.
    """
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if not os.path.samestat(os.fstat(opened), os.fstat(descriptor)):
        os.close(opened)
        raise FileNotFoundError(errno.ENOENT, "expected the open file at its path, got another one", path)
    return opened


def lock_range(descriptor: int, first: int, count: int) -> bool:
    """Lock bytes of a file against other processes, and return whether none of them has locked any."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, count, first)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def unlock_range(descriptor: int, first: int, count: int) -> None:
    """Release a lock of `lock_range`."""
    fcntl.lockf(descriptor, fcntl.LOCK_UN, count, first)


def open_descriptors() -> int:
    """Return the number of descriptors that this process has open."""
    return len(os.listdir("/dev/fd"))


def boot_id() -> str:
    """Return an empty name: there is no name of a start of the machine."""
    return ""


# ---- processes and their messages -------------------------------------------------------------------------------


def name_thread(name: str) -> None:
    """Do nothing: names of threads are Python's alone."""


def started_at(process: int) -> int | None:
    """Return when a process of this host has started, in seconds since 1970, as ``ps`` tells it."""
    command = ["ps", "-o", "lstart=", "-p", str(process)]
    try:
        text = subprocess.run(
            command, env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True, check=True
        ).stdout
        return int(time.mktime(time.strptime(text.strip())))
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def end_of_process(process: Any) -> int:
    """Return a new descriptor that becomes readable when a process of `multiprocessing` has ended: its sentinel.

    It does not as long as a process lives that the process has forked, so users look every `LOOK_S` seconds.
    """
    return os.dup(process.sentinel)


def end_of_parent(parent: int) -> int | None:
    """Return None: no descriptor shows the end of a parent, so users look every `LOOK_S` seconds."""


def forwarder(reading: int, count: int) -> Callable[[Callable[[bytes], None]], bool]:
    """Return a function that takes the text out of a pipe, and then hands it on. It returns False at the end.

    A crash in between loses text. One could look into a socket first, but crashes write more than sockets hold.
    """

    def forward(take: Callable[[bytes], None]) -> bool:
        text = os.read(reading, count)
        if text:
            take(text)
        return bool(text)

    return forward


def receive(channel: socket.socket, into: memoryview) -> tuple[int, list[int]]:
    """Receive bytes and descriptors from a socket. Return the number of bytes, 0 at its end, and the descriptors."""
    size, control, _, _ = channel.recvmsg_into([into], _CONTROL_BYTES)
    descriptors = array("i")
    for _, _, data in control:
        descriptors.frombytes(data[: len(data) - len(data) % _INT_BYTES])
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return size, descriptors.tolist()


def work_poller(channel: int, queue: int) -> select.epoll | select.poll:
    """Return an object whose ``poll()`` waits until a worker's channel or the queue of all workers is readable."""
    poller = select.poll()
    poller.register(channel, select.POLLIN)
    poller.register(queue, select.POLLIN)
    return poller


def group_socket() -> socket.socket:
    """Raise `OSError`: a name would be a file, and stay when a process is killed."""
    raise OSError(errno.ENOTSUP, "this system has no sockets with names without files")


def peer_of(channel: socket.socket) -> tuple[int, int]:
    """Raise `OSError`: there is no `group_socket`."""
    raise OSError(errno.ENOTSUP, "this system has no sockets with names without files")
