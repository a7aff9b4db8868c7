"""What a worker and the parent know of each other without a message: one small shared mapping for each worker.

The ticket that the worker is running, so that the parent knows what a dead one was doing; the states of its memory
segments; the last lines that it wrote to its stderr.
"""

from __future__ import annotations

from feedline import _native
from feedline.feed.workers.memory import SEGMENTS

TAIL = 4096
"""Bytes of stderr that are kept."""

_HEAD = 64
FLAGS = _HEAD + TAIL
"""Where the states of the segments begin, a byte each."""

SIZE = FLAGS + SEGMENTS


class Control:
    """One side's view of the mapping in the memfd ``fd``, which may be closed then."""

    def __init__(self, fd: int) -> None:
        self.mapping = _native.SharedMemory(fd, SIZE)
        whole = memoryview(self.mapping)
        self._words = whole[:_HEAD].cast("q")
        self._tail = whole[_HEAD:FLAGS]
        self.flags = whole[FLAGS:]

    @property
    def running(self) -> int | None:
        """The ticket of the unit that the worker has in hand."""
        return self._words[0] - 1 if self._words[0] else None

    @running.setter
    def running(self, ticket: int | None) -> None:
        self._words[0] = 0 if ticket is None else ticket + 1

    def write(self, text: bytes) -> None:
        """Keep the end of what went to stderr."""
        text = text[-TAIL:]
        at = self._words[1] % TAIL
        first = min(len(text), TAIL - at)
        self._tail[at : at + first] = text[:first]
        self._tail[: len(text) - first] = text[first:]
        self._words[1] += len(text)

    @property
    def tail(self) -> str:
        """The last lines of stderr, whole ones where there are several."""
        end = self._words[1]
        at = end % TAIL
        text = bytes(self._tail[:at]) if end <= TAIL else bytes(self._tail[at:]) + bytes(self._tail[:at])
        if end == TAIL:
            text = bytes(self._tail)
        if end > TAIL:
            text = text.partition(b"\n")[2] or text
        return text.decode(errors="replace").rstrip()
