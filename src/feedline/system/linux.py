"""Calls to Linux. `feedline.system` says what each of them is for."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import select
import socket
import struct
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

LOOK_S: float | None = None
"""Seconds between looks at processes whose ends no descriptor shows. None: descriptors show them all."""

KNOWS_PAGE_CACHE: bool = True
"""Whether the page cache tells what it holds, and can be asked to drop it."""

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_POPULATE_READ = 22  # MADV_POPULATE_READ
_PUNCH = 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
_FLOCK = "hhqqi4x"  # struct flock of 64-bit Linux: type, whence, start, length, pid
_PEER = struct.Struct("3i")  # struct ucred: process, user and group
_INT_BYTES = array("i").itemsize
_CONTROL_BYTES = socket.CMSG_SPACE(250 * _INT_BYTES)  # of at most 250 descriptors
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]

# ---- memory and files -------------------------------------------------------------------------------------------


def anonymous_file(name: str) -> int:
    """Return the descriptor of a new, empty file without a path, which ends with its last descriptor and map.

    Raises:
        OSError: no descriptor is left.
    """
    return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def seal(descriptor: int) -> None:
    """Have the system refuse any further change of an anonymous file."""
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)


def allocate(descriptor: int, size: int) -> None:
    """Give a file of at most ``size`` bytes this size, and room for all of its bytes. What it holds stays.

    A map of a file without room ends the process when the room is missing.

    Raises:
        OSError: there is no room.
    """
    if size and os.fstat(descriptor).st_blocks * 512 < size:
        os.posix_fallocate(descriptor, 0, size)
    elif os.fstat(descriptor).st_size < size:
        os.ftruncate(descriptor, size)


def free_range(descriptor: int, byte: int, count: int) -> bool:
    """Free the room of ``count`` bytes from ``byte`` on, which read as zeros then. Return whether the file system can.

    Raises:
        OSError: the disk fails.
    """
    if _LIBC.fallocate(descriptor, _PUNCH, byte, count) != 0:
        number = ctypes.get_errno()
        if number in (errno.EOPNOTSUPP, errno.ENOSYS):
            return False
        raise OSError(number, os.strerror(number))
    return True


def map_private(descriptor: int, size: int, present: bool) -> mmap.mmap:
    """Return a private, read-only map of a file.

    Args:
        descriptor: the file.
        size: its bytes.
        present: whether all pages are mapped at once.
    """
    flags = mmap.MAP_PRIVATE | (mmap.MAP_POPULATE if present else 0)
    return mmap.mmap(descriptor, size, flags, mmap.PROT_READ)


def populate(mapped: mmap.mmap, begin: int, end: int) -> None:
    """Map the pages of a range of bytes in one call, as copying would cause a page fault every few pages.

    Raises:
        OSError: a page cannot be read.
    """
    page = begin // mmap.PAGESIZE * mmap.PAGESIZE
    try:
        if end > begin:
            mapped.madvise(_POPULATE_READ, page, end - page)
    except OSError as error:
        if error.errno != errno.EINVAL:  # older kernels lack this advice
            raise


def note_map(mapped: mmap.mmap, path: str | os.PathLike[str] | None, first: int = 0, shared: bool = True) -> None:
    """Note the file of a map, for `file_maps`. None: it has no path. The kernel has a table of all maps."""


def open_direct(path: str) -> int:
    """Return the descriptor of a file that is read past the page cache.

    Raises:
        OSError: the file cannot be opened, or its file system cannot do that.
    """
    return os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_NONBLOCK)


def drop_cached(descriptor: int) -> None:
    """Have the page cache drop a file, but for mapped pages. Call it if `KNOWS_PAGE_CACHE`."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def reopen(descriptor: int, path: str) -> int:
    """Return another descriptor of an open file, read-only, with a position of its own.

    Args:
        descriptor: the open file.
        path: its path, where it may no longer be.

    Raises:
        OSError: no descriptor is left.
    """
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)


def lock_range(descriptor: int, first: int, count: int) -> bool:
    """Lock bytes of a file against other open files, and return whether nobody has locked any of them.

    The lock ends with the process, or with the open file.

    Raises:
        OSError: the file system has no locks.
    """
    try:
        _lock(descriptor, fcntl.F_WRLCK, first, count)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def unlock_range(descriptor: int, first: int, count: int) -> None:
    """Release a lock of `lock_range`."""
    _lock(descriptor, fcntl.F_UNLCK, first, count)


def _lock(descriptor: int, kind: int, first: int, count: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, kind, os.SEEK_SET, first, count, 0))


def open_descriptors() -> int:
    """Return the number of descriptors that this process has open."""
    return len(os.listdir("/proc/self/fd"))


def boot_id() -> str:
    """Return a name that this machine has until it restarts. Empty if it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return ""


# ---- processes and their messages -------------------------------------------------------------------------------


def name_thread(name: str) -> None:
    """Name this thread in the system, which shows 15 bytes of it."""
    try:
        with open("/proc/thread-self/comm", "wb") as file:
            file.write(name.encode())
    except OSError:
        pass


def started_at(process: int) -> int | None:
    """Return when a process of this host has started, as a number. None if it is unknown, or the process has ended."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            # The name, in parentheses, may contain any character. The time is the 20th field after it.
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def end_of_process(process: Any) -> int:
    """Return a new descriptor that becomes readable when a process of `multiprocessing` has ended.

    Its sentinel is a pipe, which stays open as long as any process that the process has forked. A pidfd concerns the
    process only.
    """
    try:
        return os.pidfd_open(process.pid)
    except ProcessLookupError:
        return os.dup(process.sentinel)  # it has ended already
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):  # an old kernel, or a sandbox
            return os.dup(process.sentinel)
        raise


def end_of_parent(parent: int) -> int | None:
    """Return a new descriptor that becomes readable when a process has ended. None: the system has none.

    Raises:
        ProcessLookupError: the process has ended.
    """
    try:
        return os.pidfd_open(parent)
    except ProcessLookupError:
        raise
    except OSError:  # an old kernel
        return None


def forwarder(reading: int, count: int) -> Callable[[Callable[[bytes], None]], bool]:
    """Return a function that hands the text in a pipe on, and then takes it out. It returns False at the end.

    The text stays in the pipe until it is handed on, so a crash in between loses none, and repeats some.

    Args:
        reading: the end to read from, readable whenever the returned function is called.
        count: most bytes that are handed on at a time.
    """
    copied, copying = os.pipe()
    duplicate = _LIBC.tee

    def forward(take: Callable[[bytes], None]) -> bool:
        size = duplicate(reading, copying, count, 0)
        if size <= 0:
            return False
        take(os.read(copied, size))
        os.read(reading, size)
        return True

    return forward


def receive(channel: socket.socket, into: memoryview) -> tuple[int, list[int]]:
    """Receive bytes and descriptors from a socket. Return the number of bytes, 0 at its end, and the descriptors.

    Raises:
        BlockingIOError: nothing has come, and the socket does not wait.
        OSError: the connection is broken.
    """
    size, control, _, _ = channel.recvmsg_into([into], _CONTROL_BYTES, socket.MSG_CMSG_CLOEXEC)
    descriptors = array("i")
    for _, _, data in control:
        descriptors.frombytes(data[: len(data) - len(data) % _INT_BYTES])
    return size, descriptors.tolist()


def work_poller(channel: int, queue: int) -> select.epoll | select.poll:
    """Return an object whose ``poll()`` waits until a worker's channel or the queue of all workers is readable."""
    poller = select.epoll()
    poller.register(channel, select.EPOLLIN)
    # Exclusive: a record wakes one idle worker, not all of them.
    poller.register(queue, select.EPOLLIN | select.EPOLLEXCLUSIVE)
    return poller


def group_socket() -> socket.socket:
    """Return a socket that can have a name without a file, starting with a zero byte."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def peer_of(channel: socket.socket) -> tuple[int, int]:
    """Return process and user of the process that a `group_socket` is connected to."""
    process, user, _ = _PEER.unpack(channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return process, user
