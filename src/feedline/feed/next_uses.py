"""When chunks are needed again: what a bounded cache has to know to drop what is needed last.

The order is known, so the windows that follow can be looked through without reading anything: as far as it takes to
meet every chunk once, which is a sweep. That costs a look-up per chunk and sweep, and is done only when room is needed.
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
    """Looks through the windows after the one in use; thread-safe.

    Args:
        total: number of chunks of the corpus.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._lock = threading.Lock()
        self._again: Callable[[], Iterator[Ints]] | None = None
        self._windows: Iterator[Ints] | None = None
        self._seen: deque[list[int]] = deque()
        self._uses: dict[int, deque[int]] = {}
        self._now = 0  # number of the window in use, from an arbitrary one on
        self._next = 0  # number of the window that is looked at next
        self._looked = 0  # chunks, in windows after the one in use
        self._last: list[int] | None = None  # chunks, what is needed last at the end

    def follow(self, window: Ints, again: Callable[[], Iterator[Ints]]) -> None:
        """Go on to a window; ``again`` returns the windows that follow it, each the numbers of its chunks."""
        with self._lock:
            self._again, self._last = again, None
            if self._windows is not None and self._seen and self._seen[0] == window.tolist():
                self._now += 1
                chunks = self._seen.popleft()
                self._looked -= len(chunks)
                for chunk in chunks:
                    self._pass(chunk, self._now)
            else:
                self._windows, self._looked = None, 0
                self._seen.clear()
                self._uses.clear()

    def _pass(self, chunk: int, window: int) -> None:
        """Forget the uses of a chunk up to a window."""
        uses = self._uses.get(chunk)
        while uses and uses[0] <= window:
            uses.popleft()
        if uses is not None and not uses:
            del self._uses[chunk]

    def begin(self, chunk: int) -> None:
        """Count the coming use of a chunk as past: it is being read into memory, where it stays until it is used."""
        with self._lock:
            self._look()
            uses = self._uses.get(chunk)
            if uses:
                self._pass(chunk, uses[0])

    def needed_later_than(self, chunk: int, *, all_of_them: bool = False) -> Iterator[int]:
        """Yield the chunks that are needed later than ``chunk`` is again, the last one first.

        Args:
            chunk: a chunk that is being read.
            all_of_them: whether to go on with those that are needed sooner.
        """
        with self._lock:
            self._look()
            if self._last is None:
                self._last = sorted(self._uses, key=lambda one: self._uses[one][0])
            mine = 0 if all_of_them else self._uses.get(chunk, [_NEVER])[0]
            last = self._last
        while True:
            with self._lock:
                if last is not self._last or not last:
                    return
                uses = self._uses.get(last[-1])
                if uses is not None and uses[0] <= mine:
                    return
                found = last.pop()
            if uses is not None:
                yield found

    def _look(self) -> None:
        """Look at windows until every chunk was met, or as many as there are twice."""
        if self._windows is None:
            if self._again is None:
                return
            self._windows, self._next = self._again(), self._now + 1
        while len(self._uses) < self._total and self._looked < 2 * self._total:
            window = next(self._windows, None)
            if window is None:
                return
            chunks = window.tolist()
            self._seen.append(chunks)
            self._looked += len(chunks)
            for chunk in chunks:
                self._uses.setdefault(chunk, deque()).append(self._next)
            self._next += 1
