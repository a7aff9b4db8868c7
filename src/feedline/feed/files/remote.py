"""Files whose bytes lie in an object store: which there are, and how their bytes come within reach of an open file.

A corpus of remote objects is opened by the paths of placeholders: empty files with the objects' names, so that folders,
patterns and suffixes mean what they mean for local files. `opened` gives a file that reads the object's bytes instead.
Whoever reads by its descriptor, as native code does, has to ask `within_reach` first: the file behind it is sparse, and
what was not fetched reads as zeros.

What fetches the bytes, and where they are kept, is not known here; see `feedline.feed.remote`.
"""

from __future__ import annotations

import io
import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, Protocol

from feedline.concurrency.thread_pool import call_each
from feedline.errors import DataError

_log = logging.getLogger("feedline")


class Held(Protocol):
    """Bytes of an object that are in its file until they are released."""

    def release(self) -> None:
        """Let go of them; once."""


class RemoteObject(Protocol):
    """An object in a store.

    Attributes:
        url: its address, for errors; without credentials.
        size: its size in bytes.
        modified_ns: when it was last modified, in nanoseconds since 1970.
        whole: whether all of its bytes are in its file, and stay there.
        room_bytes: the most that is kept of this and other objects.
        mapped: whether an array is a map of its file.
    """

    url: str
    size: int
    modified_ns: int
    mapped: bool

    @property
    def whole(self) -> bool: ...  # noqa: D102  # see the class
    @property
    def room_bytes(self) -> int: ...  # noqa: D102

    def descriptor(self) -> int:
        """Return a new descriptor of the file with the bytes that were fetched."""

    def place(self) -> str:
        """Return a path that opens the same file, for as long as this object lives."""

    def hold(self, begin: int, end: int, ahead: tuple[int, int] | None = None) -> Held:
        """Fetch the bytes ``begin:end`` that are not in the file, and begin to fetch others that are likely to be read.

        Raises:
            DataError: they cannot be had, or the disk has no room for them.
        """

    def stays_there(self, begin: int, end: int) -> bool:
        """Return whether the bytes ``begin:end`` are in the file, and stay there for as long as this object is used."""

    def settle(self, path: str) -> None:
        """Fetch all bytes, keep them for as long as this object is used, and put the file in the place of ``path``.

        Raises:
            DataError: they cannot be had, or the cache has no room for them.
        """

    def read(self, begin: int, into: memoryview, ahead: tuple[int, int] | None = None) -> None:
        """Fill memory with the bytes from ``begin`` on, and begin to fetch others that are likely to be read.

        Raises:
            DataError: they cannot be had.
        """


# By the path of their placeholder, and of their file; several corpora may know the same object as one of their own.
_objects: dict[str, tuple[RemoteObject, ...]] = {}
_lock = threading.Lock()


def register(objects: Mapping[str, RemoteObject]) -> None:
    """Make objects known by the absolute paths of their placeholders."""
    with _lock:
        for path, one in objects.items():
            _objects[path] = (*_objects.get(path, ()), one)


def unregister(objects: Mapping[str, RemoteObject]) -> None:
    """Forget objects that were registered; a path stands for others as before."""
    with _lock:
        for path, one in objects.items():
            left = tuple(other for other in _objects.get(path, ()) if other is not one)
            if left:
                _objects[path] = left
            else:
                _objects.pop(path, None)


def check_room(paths: Sequence[str], why: str, instead: str) -> None:
    """Check that the cache has room for all of those of ``paths`` that are objects.

    Args:
        paths: paths of files and placeholders.
        why: why all of them are needed.
        instead: what else than a larger cache helps.

    Raises:
        DataError: it has not.
    """
    found = [one for path in paths if (one := object_at(path)) is not None]
    total = sum(one.size for one in found)
    if found and total > found[0].room_bytes:
        raise DataError(
            f"expected a cache with room for all {total} bytes of {why}, got one of {found[0].room_bytes} bytes",
            path=found[0].url,
            hint=f"raise the cache_bytes of fl.Remote to {total * 101 // 100 + (1 << 20)}, or {instead}",
        )


def settle(paths: Sequence[str]) -> None:
    """Make those of ``paths`` that are objects local files, which may be read in any way; see `check_room`.

    Raises:
        DataError: their bytes cannot be had, or the cache has no room for them.
    """
    found = [path for path in paths if object_at(path) is not None]
    if not found:
        return
    _log.info("%s and %d more objects are fetched whole", _objects[found[0]][0].url, len(found) - 1)

    def whole(path: str) -> None:
        # Each of those who know it keeps it, as any of them may be the last one.
        for one in _objects.get(path, ()):
            one.settle(path)
            unregister({path: one})

    call_each(whole, found, _SETTLED_AT_ONCE)


def object_at(path: str | os.PathLike[str]) -> RemoteObject | None:
    """Return the object that a path stands for; None: it is a local file."""
    if not _objects:
        return None
    path = os.fspath(path)
    found = _objects.get(path)
    if found is None and ("/." in path or "//" in path):
        # As the system would; else what a list names in another way would be the empty placeholder.
        found = _objects.get(os.path.normpath(path))
    return None if found is None else found[-1]


def by_ranges(path: str | os.PathLike[str]) -> bool:
    """Return whether a file must not be read but by the functions of this package, as parts of it may be missing."""
    found = object_at(path)
    return found is not None and not found.whole


def opened(found: RemoteObject, path: str | os.PathLike[str], buffering: int) -> BinaryIO:
    """Open the file of an object, which fetches what is read."""
    raw = _RemoteFile(found, os.fspath(path))
    if buffering == 0:
        return raw
    return io.BufferedReader(raw, io.DEFAULT_BUFFER_SIZE if buffering < 2 else buffering)


class _RemoteFile(io.FileIO):
    """The file of an object. Reading from it fetches; its descriptor does not."""

    def __init__(self, found: RemoteObject, path: str) -> None:
        super().__init__(found.descriptor(), "rb", closefd=True)
        self.name = path
        self.remote = found
        self._end = 0  # of what was read last
        self._in_turn = 0  # bytes read one after the other
        self._ahead = 0  # end of what is being fetched ahead

    def _next(self, begin: int, end: int) -> tuple[int, int] | None:
        """Return what is worth fetching while ``begin:end`` is read: what follows, if reads follow each other."""
        follows = -_NEARBY <= begin - self._end <= _NEARBY
        self._in_turn = self._in_turn + end - begin if follows else 0
        self._end = end
        ahead = None
        if self._in_turn > _NEARBY // 8:
            target = min(self.remote.size, (end + min(8 * self._in_turn, _MOST_AHEAD)) // _STEP * _STEP + _STEP)
            start = max(end, self._ahead) if follows else end
            if target - start >= _STEP // 2 or (target == self.remote.size and start < target):
                ahead, self._ahead = (start, target), target
        elif not follows:
            self._ahead = 0
        return ahead

    def held(self, begin: int, end: int) -> Held:
        """Hold bytes as `RemoteObject.hold` does, with more behind them if reads follow each other."""
        return self.remote.hold(begin, end, self._next(begin, end))

    def read_at(self, begin: int, into: memoryview) -> int:
        """Fill memory with the bytes from ``begin`` on; return how many there are."""
        size = max(0, min(len(into), self.remote.size - begin))
        if size:
            self.remote.read(begin, into[:size], self._next(begin, begin + size))
        return size

    def readinto(self, buffer: Any, /) -> int:
        begin = self.tell()
        size = self.read_at(begin, memoryview(buffer).cast("B"))
        self.seek(begin + size)
        return size

    def read(self, size: int | None = -1, /) -> bytes:
        begin = self.tell()
        left = max(0, self.remote.size - begin)
        data = bytearray(left if size is None or size < 0 else min(size, left))
        done = self.readinto(data)
        return bytes(data[:done])

    def readall(self) -> bytes:
        return self.read()


_SETTLED_AT_ONCE = 16
_MOST_AHEAD = 64 << 20
_STEP = 8 << 20  # fetched ahead at a time
_NEARBY = 1 << 20  # bytes fetched around what native code reads here and there


def _raw(file: BinaryIO) -> _RemoteFile | None:
    raw = getattr(file, "raw", file)
    return raw if type(raw) is _RemoteFile else None


def within_reach(file: BinaryIO) -> Callable[[int, int], tuple[int, int]] | None:
    """Return what native code has to call before it reads from the descriptor of an open file; None: nothing.

    Returns:
        A function of first and last byte, exclusive, that fetches them, and returns between which bytes it may read
        until the next call.
    """
    found = _raw(file)
    if found is None:
        return None
    raw = found
    lease: list[Held] = []

    def reach(begin: int, end: int) -> tuple[int, int]:
        end = min(max(end, begin + _NEARBY), raw.remote.size)
        lease.append(raw.held(begin, end))
        if len(lease) > 1:
            lease.pop(0).release()
        return begin, end

    weakref.finalize(reach, _release_all, lease)
    return reach


def _release_all(leases: Sequence[Held]) -> None:
    for lease in leases:
        lease.release()


def remote_of(file: BinaryIO) -> RemoteObject | None:
    """Return the object that an open file has the bytes of; None: it is a local file."""
    found = _raw(file)
    return None if found is None else found.remote


def pread(file: BinaryIO, size: int, byte: int) -> bytes:
    """Return at most ``size`` bytes of an open file from ``byte`` on, as `os.pread` does."""
    found = _raw(file)
    if found is None:
        return os.pread(file.fileno(), size, byte)
    data = bytearray(max(0, min(size, found.remote.size - byte)))
    found.read_at(byte, memoryview(data))
    return bytes(data)


def preadv(file: BinaryIO, into: memoryview, byte: int) -> int:
    """Fill memory from an open file from ``byte`` on, as `os.preadv` does; return the number of bytes."""
    found = _raw(file)
    return os.preadv(file.fileno(), [into], byte) if found is None else found.read_at(byte, into)
