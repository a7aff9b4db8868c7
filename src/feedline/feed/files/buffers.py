"""Reused buffers for text, as fresh pages are expensive."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

_MAX_IDLE = 2


class ReadBuffers:
    """Lends buffers for a context, or for the life of an array, and keeps two idle ones of each kind. Thread-safe.

    Args:
        padding_bytes: bytes of padding before the text, and again after it.
    """

    def __init__(self, padding_bytes: int) -> None:
        self._padding_bytes = padding_bytes
        self._idle: list[NDArray[np.uint8]] = []
        self._returned: list[NDArray[np.uint8]] = []

    @contextlib.contextmanager
    def lend(self, size: int) -> Iterator[NDArray[np.uint8]]:
        """Lend a buffer for ``size`` bytes of text and the padding."""
        buffer = self._take(self._idle, size)
        try:
            yield buffer
        finally:
            _take_back(self._idle, buffer)

    def give(self, size: int) -> NDArray[np.uint8]:
        """Return a buffer as `lend` does, for as long as anything refers to it or to views of it."""
        returned = self._returned
        buffer = self._take(returned, size)
        # In NumPy, views refer to the first array over a memoryview, not to the buffer under it. So this array dies
        # last. As the garbage collector does not track arrays, it dies only once nothing can reach it.
        array = np.frombuffer(buffer.data, np.uint8)
        weakref.finalize(array, _take_back, returned, buffer).atexit = False
        return array

    def _take(self, idle: list[NDArray[np.uint8]], size: int) -> NDArray[np.uint8]:
        needed = size + 2 * self._padding_bytes
        try:
            buffer = idle.pop()
        except IndexError:
            return np.empty(needed, np.uint8)
        return buffer if len(buffer) >= needed else np.empty(needed, np.uint8)

    def clear(self) -> None:
        """Release the buffers. The ones from `give` are released once nothing refers to them."""
        self._idle.clear()
        self._returned = []


def _take_back(returned: list[NDArray[np.uint8]], buffer: NDArray[np.uint8]) -> None:
    if len(returned) < _MAX_IDLE:
        returned.append(buffer)
