"""Files whose bytes are in an object store: a registry of them, and access to their bytes through open files.

A corpus of remote objects is opened by the paths of placeholders: empty files with the names of the objects, so that
folders, patterns and suffixes work as for local files. `open_object` returns a file that reads the bytes of the object.
Code that reads from the descriptor of that file, as native code does, must call `within_reach` first: the file on disk
is sparse, and bytes that were not fetched read as zeros.

Fetching and storing the bytes are left to `feedline.feed.remote`.
"""

from __future__ import annotations

import contextlib
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
        """Release the bytes. Call this once."""


class RemoteObject(Protocol):
    """An object in a store.

    Attributes:
        url: address of the object without credentials, for errors.
        size: size of the object in bytes.
        modified_ns: time of the last modification, in nanoseconds since 1970.
        etag: text of the store that changes with the content, or empty.
        whole: whether all bytes of the object are in its file, and stay there.
        room_bytes: limit of the cache for the bytes of all objects.
        mapped: whether an array is a map of its file.
    """

    url: str
    size: int
    modified_ns: int
    etag: str
    mapped: bool

    @property
    def whole(self) -> bool: ...  # noqa: D102  # see the class
    @property
    def room_bytes(self) -> int: ...  # noqa: D102

    def descriptor(self) -> int:
        """Return a new descriptor of the file with the bytes that were fetched."""

    def place(self) -> str:
        """Return a path that opens the same file, as long as this object lives."""

    def hold(self, begin: int, end: int, ahead: tuple[int, int] | None = None) -> Held:
        """Fetch the bytes ``begin:end`` that are not in the file, and begin to fetch the range ``ahead``.

        Raises:
            DataError: the bytes cannot be fetched, or the disk has no room for them.
        """

    def has_pinned(self, begin: int, end: int) -> bool:
        """Return whether the bytes ``begin:end`` are in the file, and stay there as long as this object is used."""

    def materialize(self, path: str) -> None:
        """Fetch all bytes, pin them as long as this object is used, and replace ``path`` with the file.

        Raises:
            DataError: the bytes cannot be fetched, or the cache has no room for them.
        """

    def read(self, begin: int, into: memoryview, ahead: tuple[int, int] | None = None) -> None:
        """Fill memory with the bytes from ``begin`` on, and begin to fetch the range ``ahead``.

        Raises:
            DataError: the bytes cannot be fetched.
        """


# Objects by the paths of their placeholder and of their file. Several corpora may register the same object.
_objects: dict[str, tuple[RemoteObject, ...]] = {}
_lock = threading.Lock()


def register(objects: Mapping[str, RemoteObject]) -> None:
    """Register objects by the absolute paths of their placeholders."""
    with _lock:
        for path, remote_object in objects.items():
            _objects[path] = (*_objects.get(path, ()), remote_object)


def unregister(objects: Mapping[str, RemoteObject]) -> None:
    """Forget objects that were registered. Other objects of the same paths remain."""
    with _lock:
        for path, remote_object in objects.items():
            remaining = tuple(registered for registered in _objects.get(path, ()) if registered is not remote_object)
            if remaining:
                _objects[path] = remaining
            else:
                _objects.pop(path, None)


def check_room(paths: Sequence[str], what: str, instead: str) -> None:
    """Check that the cache has room for all ``paths`` that are objects.

    Args:
        paths: paths of files and placeholders.
        what: name of the data, for the error.
        instead: remedy other than a larger cache.

    Raises:
        DataError: the cache is too small.
    """
    objects = [remote_object for path in paths if (remote_object := object_at(path)) is not None]
    total = sum(remote_object.size for remote_object in objects)
    if objects and total > objects[0].room_bytes:
        raise DataError(
            f"expected a cache with room for all {total} bytes of {what}, got one of {objects[0].room_bytes} bytes",
            path=objects[0].url,
            hint=f"raise the cache_bytes of fl.Remote to {total * 101 // 100 + (1 << 20)}, or {instead}",
        )


def materialize(paths: Sequence[str]) -> None:
    """Replace all ``paths`` that are objects with local files that hold all bytes. See `check_room`.

    Raises:
        DataError: bytes cannot be fetched, or the cache has no room for them.
    """
    remote_paths = [path for path in paths if object_at(path) is not None]
    if not remote_paths:
        return
    _log.info("%s and %d more objects are fetched whole", _objects[remote_paths[0]][0].url, len(remote_paths) - 1)

    def materialize_all(path: str) -> None:
        # Every registered object pins the bytes, as any of them may be the last one in use.
        for remote_object in _objects.get(path, ()):
            remote_object.materialize(path)
            unregister({path: remote_object})

    call_each(materialize_all, remote_paths, _AT_ONCE)


def fetch_parts(parts: Sequence[tuple[str, int, int]]) -> None:
    """Fetch parts of the objects among files, many at a time, for a caller that reads one file after the other.

    A part that cannot be fetched is an error once it is read.

    Args:
        parts: path, first byte and end of each. A negative first byte counts from the end of the file, and an end
            behind it is the end.
    """
    objects = [
        (remote_object, begin, end) for path, begin, end in parts if (remote_object := object_at(path)) is not None
    ]

    def fetch(part: tuple[RemoteObject, int, int]) -> None:
        remote_object, begin, end = part
        begin = begin if begin >= 0 else max(0, remote_object.size + begin)
        with contextlib.suppress(DataError):
            remote_object.hold(begin, min(end, remote_object.size)).release()

    if len(objects) > 1:
        call_each(fetch, objects, _AT_ONCE)


def object_at(path: str | os.PathLike[str]) -> RemoteObject | None:
    """Return the object at the path of a placeholder, or None for a local file."""
    if not _objects:
        return None
    path = os.fspath(path)
    registered = _objects.get(path)
    if registered is None and ("/." in path or "//" in path):
        # Normalised as the system does it. Otherwise another spelling of the path would open the empty placeholder.
        registered = _objects.get(os.path.normpath(path))
    return None if registered is None else registered[-1]


def by_ranges(path: str | os.PathLike[str]) -> bool:
    """Return whether a file must be read through the functions of this module, as parts of it may be missing."""
    remote_object = object_at(path)
    return remote_object is not None and not remote_object.whole


def open_object(remote_object: RemoteObject, path: str | os.PathLike[str], buffering: int) -> BinaryIO:
    """Open the file of an object. Reading fetches missing bytes."""
    raw = _RemoteFile(remote_object, os.fspath(path))
    if buffering == 0:
        return raw
    return io.BufferedReader(raw, io.DEFAULT_BUFFER_SIZE if buffering < 2 else buffering)


class _RemoteFile(io.FileIO):
    """The file of an object. Reading fetches missing bytes, but reading from the descriptor does not."""

    def __init__(self, remote_object: RemoteObject, path: str) -> None:
        super().__init__(remote_object.descriptor(), "rb", closefd=True)
        self.name = path
        self.remote = remote_object
        self._end = 0  # end of the last read
        self._in_turn = 0  # bytes read sequentially
        self._ahead = 0  # end of the range that is fetched ahead

    def _next_ahead(self, begin: int, end: int) -> tuple[int, int] | None:
        """Return the range to fetch while ``begin:end`` is read: the next bytes, if reads are sequential, else None."""
        follows = -_NEARBY <= begin - self._end <= _NEARBY
        self._in_turn = self._in_turn + end - begin if follows else 0
        self._end = end
        ahead = None
        if self._in_turn > _NEARBY // 8:
            target = min(self.remote.size, (end + min(8 * self._in_turn, _MAX_AHEAD)) // _STEP * _STEP + _STEP)
            start = max(end, self._ahead) if follows else end
            if target - start >= _STEP // 2 or (target == self.remote.size and start < target):
                ahead, self._ahead = (start, target), target
        elif not follows:
            self._ahead = 0
        return ahead

    def hold(self, begin: int, end: int) -> Held:
        """Hold bytes as `RemoteObject.hold` does, and read ahead if reads are sequential."""
        return self.remote.hold(begin, end, self._next_ahead(begin, end))

    def read_at(self, begin: int, into: memoryview) -> int:
        """Fill memory with the bytes from ``begin`` on, and return their number."""
        size = max(0, min(len(into), self.remote.size - begin))
        if size:
            self.remote.read(begin, into[:size], self._next_ahead(begin, begin + size))
        return size

    def readinto(self, buffer: Any, /) -> int:
        begin = self.tell()
        size = self.read_at(begin, memoryview(buffer).cast("B"))
        self.seek(begin + size)
        return size

    def read(self, size: int | None = -1, /) -> bytes:
        begin = self.tell()
        remaining = max(0, self.remote.size - begin)
        data = bytearray(remaining if size is None or size < 0 else min(size, remaining))
        done = self.readinto(data)
        return bytes(data[:done])

    def readall(self) -> bytes:
        return self.read()


_AT_ONCE = 16
_MAX_AHEAD = 64 << 20
_STEP = 8 << 20  # fetched ahead at a time
_NEARBY = 1 << 20  # minimum of bytes that are fetched for a random read of native code


def _raw(file: BinaryIO) -> _RemoteFile | None:
    raw = getattr(file, "raw", file)
    return raw if type(raw) is _RemoteFile else None


def within_reach(file: BinaryIO) -> Callable[[int, int], tuple[int, int]] | None:
    """Return a function that native code must call before it reads from the descriptor of an open file.

    Returns:
        A function of begin and end (exclusive) that fetches these bytes, and returns the range that may be read until
        the next call. None if the file is local.
    """
    remote_file = _raw(file)
    if remote_file is None:
        return None
    raw = remote_file
    lease: list[Held] = []

    def reach(begin: int, end: int) -> tuple[int, int]:
        end = min(max(end, begin + _NEARBY), raw.remote.size)
        lease.append(raw.hold(begin, end))
        if len(lease) > 1:
            lease.pop(0).release()
        return begin, end

    weakref.finalize(reach, _release_all, lease)
    return reach


def _release_all(leases: Sequence[Held]) -> None:
    for lease in leases:
        lease.release()


def remote_of(file: BinaryIO) -> RemoteObject | None:
    """Return the object that an open file reads, or None for a local file."""
    remote_file = _raw(file)
    return None if remote_file is None else remote_file.remote


def pread(file: BinaryIO, size: int, byte: int) -> bytes:
    """Return at most ``size`` bytes of an open file from ``byte`` on, as `os.pread` does."""
    remote_file = _raw(file)
    if remote_file is None:
        return os.pread(file.fileno(), size, byte)
    data = bytearray(max(0, min(size, remote_file.remote.size - byte)))
    remote_file.read_at(byte, memoryview(data))
    return bytes(data)


def preadv(file: BinaryIO, into: memoryview, byte: int) -> int:
    """Fill memory from an open file from ``byte`` on, as `os.preadv` does, and return the number of bytes."""
    remote_file = _raw(file)
    return os.preadv(file.fileno(), [into], byte) if remote_file is None else remote_file.read_at(byte, into)
