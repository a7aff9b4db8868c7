"""Detect changes of mapped files, which should be replaced and never modified."""

from __future__ import annotations

import mmap
import os
from pathlib import Path


class Watched:
    """A mapped file.

    Args:
        mapped: mapping of the file.
        status: status of the file from before its content was checked.
        place: path of the file, if others can modify it.
    """

    def __init__(self, mapped: mmap.mmap, status: os.stat_result, place: Path | None) -> None:
        self._map, self._size, self._state, self._place = mapped, status.st_size, _state(status), place

    def size(self) -> int:
        """Return the current size of the file in bytes."""
        return self._map.size()

    @property
    def resized(self) -> bool:
        """Whether the size of the file has changed. Reading a lost end through the mapping would kill the process."""
        return self._map.size() != self._size

    def modified_in_place(self) -> bool:
        """Return whether the file was modified in place since the last call."""
        if self._place is None:
            return False
        try:
            state = _state(os.stat(self._place))
        except OSError:
            return False  # the file was removed, and only the mapping refers to it
        if state == self._state or state[:2] != self._state[:2]:
            return False
        self._state = state
        return True


def _state(status: os.stat_result) -> tuple[int, ...]:
    """Return the identity of the file and of its version."""
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns
