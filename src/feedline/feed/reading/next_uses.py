"""The next uses of chunks. A bounded cache drops the pages whose next use is furthest away.

The order is known, so the windows that follow can be listed without reading anything, until every chunk has occurred
once, which takes a sweep. That costs a look-up per chunk and sweep, and is done only when room is needed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_NEVER = 1 << 62


class NextUses:
    """Looks through the windows that follow the current one. Thread-safe.

    Args:
        total: number of chunks of the corpus.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._lock = threading.Lock()
        self._windows: Iterator[Ints] | None = None
        self._uses: dict[int, deque[int]] = {}  # numbers of the windows that need each chunk
        self._now = 0  # number of the window whose chunks are being read
        self._next = 0  # number of the window that is looked at next
        self._looked = 0  # chunks of windows after the one whose chunks are being read
        self._sizes: deque[int] = deque()  # chunks of each of these windows
        self._last: list[int] | None = None  # chunks in order of need

    def start(self, windows: Callable[[], Iterator[Ints]]) -> None:
        """Begin with the windows that follow, as the numbers of their chunks, unless this has begun already."""
        if self._windows is None:
            with self._lock:
                self._windows = windows()

    def forget(self) -> None:
        """Start over: the position has jumped."""
        with self._lock:
            self._windows, self._last = None, None
            self._uses.clear()
            self._sizes.clear()
            self._now = self._next = self._looked = 0

    def begin(self, chunk: int) -> None:
        """Count the next use of a chunk as past: the chunk is being read into memory, and stays there until it is
        used."""
        with self._lock:
            self._look()
            uses = self._uses.get(chunk)
            if not uses:
                return
            window = uses.popleft()
            if not uses:
                del self._uses[chunk]
            if window > self._now:  # the windows before it have been read, or are held
                for _ in range(window - self._now):
                    self._looked -= self._sizes.popleft()
                self._now, self._last = window, None

    def needed_later_than(self, chunk: int, *, all_of_them: bool = False) -> Iterator[int]:
        """Yield the chunks whose next use is later than the next use of ``chunk``, the latest first.

        Args:
            chunk: a chunk that is being read.
            all_of_them: whether to continue with chunks that are needed sooner.
        """
        with self._lock:
            self._look()
            if self._last is None:
                self._last = self._sorted()
            uses = self._uses.get(chunk)
            mine = 0 if all_of_them else uses[0] if uses else _NEVER
            last = self._last
        while True:
            with self._lock:
                if last is not self._last or not last:
                    return
                uses = self._uses.get(last[-1])
                if uses is not None and uses[0] <= mine:
                    return
                latest = last.pop()
            if uses is not None:
                yield latest

    def put_back(self, chunks: list[int]) -> None:
        """Let `needed_later_than` yield chunks again that were not dropped."""
        with self._lock:
            if self._last is not None:
                self._last += reversed(chunks)

    def _sorted(self) -> list[int]:
        for chunk, uses in list(self._uses.items()):
            while uses and uses[0] < self._now:  # the chunk was held from an earlier window on
                uses.popleft()
            if not uses:
                del self._uses[chunk]
        return sorted(self._uses, key=lambda chunk: self._uses[chunk][0])

    def _look(self) -> None:
        """Look at windows until every chunk has occurred, or they have twice as many entries as there are chunks."""
        while self._windows is not None and len(self._uses) < self._total and self._looked < 2 * self._total:
            window = next(self._windows, None)
            if window is None:
                return
            chunks = window.tolist()
            self._next += 1
            self._sizes.append(len(chunks))
            self._looked += len(chunks)
            for chunk in chunks:
                self._uses.setdefault(chunk, deque()).append(self._next)
