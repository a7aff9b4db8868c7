"""The users of a cache: one file per process, locked for as long as the process lives.

The file lists the pages in use, which must not be dropped, and the room that is reserved for pages that are being
fetched. The lock ends with the process, even if the process is killed, and its pages are free again.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feedline.feed.files.atomic import try_lock
from feedline.feed.remote.pages import allocate

_SLOT = np.dtype([("object", "<u8"), ("first", "<u4"), ("end", "<u4")])
_HEAD = 64
_SLOTS = 4096
_CLAIMS = ".claims"


class CacheHolder:
    """The entry of this process in the folder of holders. Callers lock the cache.

    Args:
        folder: the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._path = folder / name
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        claims = os.open(folder / (name + _CLAIMS), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._claims = open(claims, "a", encoding="utf-8")  # noqa: SIM115  # closed with this object
        self._free: list[int] = []
        self._map(_SLOTS)

    def _map(self, slots: int) -> None:
        before = 0 if not hasattr(self, "_slots") else len(self._slots)
        allocate(self._descriptor, _HEAD + slots * _SLOT.itemsize)
        mapped = mmap.mmap(self._descriptor, _HEAD + slots * _SLOT.itemsize)
        self._reserved: NDArray[np.int64] = np.frombuffer(mapped, np.int64, 1)
        self._slots: NDArray[np.void] = np.frombuffer(mapped, _SLOT, slots, _HEAD)
        self._free += range(slots - 1, before - 1, -1)

    def lease(self, number: int, first: int, end: int) -> int:
        """Enter pages of an object as pages in use, and return their slot."""
        if not self._free:
            self._map(2 * len(self._slots))
        slot = self._free.pop()
        self._slots[slot] = (number, first, end)
        return slot

    def release(self, slot: int) -> None:
        """Clear the slot of pages that are no longer in use."""
        self._slots[slot] = (0, 0, 0)
        self._free.append(slot)

    def reserve(self, pages: int) -> None:
        """Add to the number of reserved pages, or subtract from it if ``pages`` is negative."""
        self._reserved[0] += pages

    def claim(self, keys: Sequence[str]) -> None:
        """Enter objects whose pages other processes should not drop to make room for other objects."""
        self._claims.write("".join(f"{key}\n" for key in keys))
        self._claims.flush()

    def close(self) -> None:
        """Remove this process from the holders."""
        _remove(self._path)
        self._claims.close()
        self._reserved, self._slots = self._reserved.copy(), self._slots.copy()  # unmaps them
        os.close(self._descriptor)

    @property
    def own(self) -> HolderView:
        """The pages that this process holds."""
        return HolderView(int(self._reserved[0]), self._slots)

    def others(self) -> Iterator[tuple[Path, HolderView]]:
        """Yield the other living processes, and remove the files of dead processes."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return  # the cache was deleted
        for name in names:
            path = self._folder / name
            if name.endswith(_CLAIMS) or path == self._path:
                continue
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                if try_lock(descriptor):  # the process is dead
                    _remove(path)
                    continue
                size = os.fstat(descriptor).st_size
                if size < _HEAD:
                    continue
                data = np.frombuffer(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ), np.uint8)
            finally:
                os.close(descriptor)
            slots = data[_HEAD:].view(_SLOT)
            yield path, HolderView(int(data[:8].view(np.int64)[0]), slots)


def claims_of(holder: Path) -> set[str]:
    """Return the keys that another process claims."""
    try:
        return set(holder.with_name(holder.name + _CLAIMS).read_text(encoding="utf-8").split())
    except OSError:
        return set()


def _remove(holder: Path) -> None:
    """Remove the files of a process, its claims first: claims without the main file would never be found."""
    for path in (holder.with_name(holder.name + _CLAIMS), holder):
        with contextlib.suppress(OSError):
            path.unlink()


class HolderView:
    """The pages that a process holds.

    Attributes:
        reserved: number of reserved pages.
    """

    def __init__(self, reserved: int, slots: NDArray[np.void]) -> None:
        self.reserved, self._slots = reserved, slots

    def pages_in_use(self, number: int) -> NDArray[np.int64]:
        """Return the pages of an object that are in use, int64 (n, 2): first and end."""
        mine = self._slots[self._slots["object"] == number]
        return np.stack([mine["first"], mine["end"]], axis=1).astype(np.int64)
