"""Mapped files that all who know them replace and never change: whether somebody has changed one all the same."""

from __future__ import annotations

import mmap
import os
from pathlib import Path


class Watched:
    """A file under a map.

    Args:
        mapped: the map.
        status: of the file, from before its content was checked.
        place: where it is, if others can get at it.
    """

    def __init__(self, mapped: mmap.mmap, status: os.stat_result, place: Path | None) -> None:
        self._map, self._size, self._state, self._place = mapped, status.st_size, _state(status), place

    def size(self) -> int:
        """Bytes that it has now."""
        return self._map.size()

    @property
    def cut(self) -> bool:
        """Whether it has another size: what is read where it has lost its end kills the process."""
        return self._map.size() != self._size

    def changed(self) -> bool:
        """Whether it was written to since this was last asked."""
        if self._place is None:
            return False
        try:
            state = _state(os.stat(self._place))
        except OSError:
            return False  # it was removed, and the map has it for itself
        if state == self._state or state[:2] != self._state[:2]:
            return False
        self._state = state
        return True


def _state(status: os.stat_result) -> tuple[int, ...]:
    """Which file it is, and which state of it."""
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns
