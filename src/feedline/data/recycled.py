"""Memory for large arrays that is reused once no reference to it is left.

A fresh array of tens of megabytes costs more than many kernels that fill it: the operating system clears every page at
first use. Arrays of `Recycled` behave like any array. When the last reference to one is gone, with all views and
tensors over it, its memory becomes the next array of that size.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

#: Arrays of fewer bytes are fresh: the allocator reuses their memory by itself.
MIN_BYTES = 1 << 20


class _Lent:
    """One use of a piece of memory. An array over it, and so every view of that array, refers to this object."""

    __slots__ = ("__array_interface__", "__weakref__", "_memory")

    def __init__(self, memory: NDArray[np.uint8], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._memory = memory
        address = memory.__array_interface__["data"][0]
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": dtype.str, "data": (address, False)}


class Recycled:
    """A source of arrays of undefined content, as `numpy.empty`. Threads may share it.

    Args:
        spares: number of unused pieces of memory to keep. These are the latest ones.
    """

    def __init__(self, spares: int = 3) -> None:
        self._most = spares
        self._spares: list[NDArray[np.uint8]] = []
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return an array of this shape, C-contiguous and writable."""
        kind = np.dtype(dtype)
        nbytes = math.prod(shape) * kind.itemsize
        if nbytes < MIN_BYTES:
            return np.empty(shape, kind)
        memory = self._spare(nbytes)
        if memory is None:
            memory = np.empty(nbytes, np.uint8)
        use = _Lent(memory, shape, kind)
        weakref.finalize(use, self._take_back, memory).atexit = False
        return np.asarray(use)

    def _spare(self, nbytes: int) -> NDArray[np.uint8] | None:
        if self._pid != os.getpid():  # a thread of the parent may have held the lock
            self._lock, self._pid = threading.Lock(), os.getpid()
        with self._lock:
            for i, memory in enumerate(list(self._spares)):
                if memory.nbytes == nbytes:
                    # A finaliser may have removed the first one meanwhile.
                    taken = self._spares.pop(i) if i < len(self._spares) else None
                    return taken if taken is memory else None
        return None

    def _take_back(self, memory: NDArray[np.uint8]) -> None:
        # Without the lock: a finaliser may run at any time, even while this thread holds it. Both are atomic.
        self._spares.append(memory)
        if len(self._spares) > self._most:
            del self._spares[0]

    def __reduce__(self) -> Any:
        return Recycled, (self._most,)
