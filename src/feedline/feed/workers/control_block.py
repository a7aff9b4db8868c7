"""State that a worker and the parent share without messages, in one small shared mapping per worker.

It holds the ticket of the running unit, so that the parent knows which unit a dead worker was running, the states of
the worker's memory segments, and the last lines of its stderr.
"""

from __future__ import annotations

from feedline import _native
from feedline.feed.workers.memory import SEGMENTS

TAIL_BYTES = 1 << 14
"""Bytes of stderr kept. The traceback of a forked worker includes the parent's calls."""

_HEAD_BYTES = 64
FLAGS = _HEAD_BYTES + TAIL_BYTES
"""Offset of the states of the segments, one byte each."""

SIZE = FLAGS + SEGMENTS


class Control:
    """A mapping of the shared memory ``fd``, which may be closed afterwards."""

    def __init__(self, fd: int) -> None:
        self.mapping = _native.SharedMemory(fd, SIZE)
        block = memoryview(self.mapping)
        self._words = block[:_HEAD_BYTES].cast("q")
        self._tail = block[_HEAD_BYTES:FLAGS]
        self.flags = block[FLAGS:]

    @property
    def running(self) -> int | None:
        """The ticket of the unit that the worker is running."""
        return self._words[0] - 1 if self._words[0] else None

    @running.setter
    def running(self, ticket: int | None) -> None:
        self._words[0] = 0 if ticket is None else ticket + 1

    def write(self, text: bytes) -> None:
        """Append to the ring buffer of stderr."""
        text = text[-TAIL_BYTES:]
        at = self._words[1] % TAIL_BYTES
        first = min(len(text), TAIL_BYTES - at)
        self._tail[at : at + first] = text[:first]
        self._tail[: len(text) - first] = text[first:]
        self._words[1] += len(text)

    @property
    def tail(self) -> str:
        """The last lines of stderr, complete ones if there are several."""
        end = self._words[1]
        at = end % TAIL_BYTES
        text = (bytes(self._tail[at:]) + bytes(self._tail[:at]))[max(TAIL_BYTES - end, 0) :]
        if end > TAIL_BYTES:
            text = text.partition(b"\n")[2] or text
        return text.decode(errors="replace").rstrip()
