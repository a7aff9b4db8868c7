"""Files whose bytes lie in an object store: which there are, and how their bytes come within reach of an open file.

A corpus of remote objects is opened by the paths of placeholders: empty files with the objects' names, so that folders,
patterns and suffixes mean what they mean for local files. `opened` gives the file with an object's bytes instead,
sparse at first. `held` fetches what is about to be read, and keeps it until it has been read: whoever reads an open
file by another way than the functions of this package has to call it, as bytes that were not fetched read as zeros.

What fetches the bytes, and where they are kept, is not known here; see `feedline.feed.remote`.
"""

from __future__ import annotations

import contextlib
import io
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, Protocol

from feedline.feed.protocol import Extent, Piece


class Held(Protocol):
    """Bytes of an object that are in its file until they are released."""

    def release(self) -> None:
        """Let go of them; once."""


class Coming(Protocol):
    """Bytes of an object that are being fetched into memory."""

    def result(self) -> list[Piece]:
        """Wait for them."""

    def cancel(self) -> None:
        """Give up fetching them."""


class RemoteObject(Protocol):
    """An object in a store.

    Attributes:
        url: its address, for errors; without credentials.
        size: its size in bytes.
        modified_ns: when it was last modified, in nanoseconds since 1970.
        whole: whether all of its bytes are in its file, and stay there.
    """

    url: str
    size: int
    modified_ns: int

    @property
    def whole(self) -> bool: ...  # noqa: D102  # see the class

    def descriptor(self) -> int:
        """Return a new descriptor of the file with the bytes that were fetched."""

    def place(self) -> str:
        """Return a path that opens the same file, for as long as this object lives."""

    def hold(self, begin: int, end: int, ahead: tuple[int, int] | None = None) -> Held:
        """Fetch the bytes ``begin:end`` that are not in the file, and begin to fetch others that are likely to be read.

        Raises:
            DataError: they cannot be had.
        """


class Fetches(Protocol):
    """What fetches parts of several objects into memory."""

    def fetch(self, extents: Sequence[Extent], unit: int | None = None) -> Coming:
        """Begin to fetch parts of objects, of the chunk number ``unit``."""


_objects: dict[str, RemoteObject] = {}  # by the path of their placeholder


def register(objects: dict[str, RemoteObject]) -> None:
    """Make objects known by the absolute paths of their placeholders."""
    _objects.update(objects)


def unregister(paths: Sequence[str]) -> None:
    """Forget objects."""
    for path in paths:
        _objects.pop(path, None)


def object_at(path: str | os.PathLike[str]) -> RemoteObject | None:
    """Return the object that a path stands for; None: it is a local file."""
    return _objects.get(os.fspath(path)) if _objects else None


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

    def held(self, begin: int, end: int) -> Held:
        """Hold bytes as `RemoteObject.hold` does, with more behind them if reads follow each other."""
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
        return self.remote.hold(begin, end, ahead)

    def readinto(self, buffer: Any, /) -> int:
        begin = self.tell()
        end = min(begin + memoryview(buffer).nbytes, self.remote.size)
        if end <= begin:
            return 0
        lease = self.held(begin, end)
        try:
            return super().readinto(buffer) or 0
        finally:
            lease.release()

    def read(self, size: int | None = -1, /) -> bytes:
        begin = self.tell()
        left = max(0, self.remote.size - begin)
        data = bytearray(left if size is None or size < 0 else min(size, left))
        done = self.readinto(data)
        return bytes(data[:done])

    def readall(self) -> bytes:
        return self.read()


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


@contextlib.contextmanager
def held(file: BinaryIO, begin: int, size: int) -> Iterator[None]:
    """A context in which bytes of an open file may be read by its descriptor, or through a mapping."""
    found = _raw(file)
    if found is None:
        yield
        return
    end = min(begin + size, found.remote.size)
    if end <= begin:
        yield
        return
    lease = found.held(begin, end)
    try:
        yield
    finally:
        lease.release()
