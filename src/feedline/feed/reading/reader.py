"""The interface of readers, which bring chunks into memory ahead of need, hold them, and release them.

A reader returns slots of a `ChunkSet` and indices in their chunks, from which sequences can be copied. Some readers
also implement `Staging` or `Selecting`, which are found with ``isinstance``.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.errors import DataError
from feedline.feed.packing.axis import SegmentSlice
from feedline.feed.protocol import Ints
from feedline.feed.timeline import WindowPlan

Slots = NDArray[np.uint32]

MIN_AHEAD_BYTES = 64 << 20
"""Bytes read ahead by default, or the next window if it is larger. Less if memory is short."""


class Upcoming:
    """The chunks of the windows that follow, one at a time in order of need. A reader stops when it runs out of room.

    There is one for each current window, and the code that walks the windows owns it. The windows of a corpus of
    unknown chunk sizes refer to the reader, so the reader must not refer to them.

    Attributes:
        window: number of the window of the last chunk that was looked at. 0 is the first window that follows.
        passed: number of chunks before that chunk.
        again: function that returns all these windows, from the first one on.
    """

    __slots__ = ("_chunks", "_next", "_windows", "again", "passed", "window")

    def __init__(self, again: Callable[[], Iterator[Ints]]) -> None:
        self.again = again
        self._windows = again()
        self._chunks: Iterator[int] = iter(())
        self._next: int | None = None
        self.window, self.passed = -1, 0

    def look(self) -> int | None:
        """Return the next chunk, or None at the end of the axis."""
        while self._next is None:
            self._next = next(self._chunks, None)
            if self._next is None:
                ids = next(self._windows, None)
                if ids is None:
                    return None
                self._chunks, self.window = iter(ids.tolist()), self.window + 1
        return self._next

    def advance(self) -> None:
        """Move past the chunk returned by `look`."""
        self._next, self.passed = None, self.passed + 1


class Reader(abc.ABC):
    """Brings sequences into memory. See the module, and `Staging` and `Selecting` for readers that do more.

    Attributes:
        shared: whether other processes of this machine read the same data at the same time, for their parts of it.
    """

    shared = False

    @property
    def asked_bytes(self) -> int:
        """Bytes of local files that were requested so far, see `Stats`. 0 if unknown."""
        return 0

    @abc.abstractmethod
    def ready(self, parts: Sequence[SegmentSlice]) -> bool:
        """Return whether `take` would not block."""

    @abc.abstractmethod
    def take(self, parts: Sequence[SegmentSlice]) -> tuple[Slots, Ints]:
        """Read the chunks that ``parts`` need, and return slot and index of each of their sequences.

        For a part without sequences at least one chunk is read, as only a chunk shows the layout of its streams.
        """

    @abc.abstractmethod
    def holds(self, plan: WindowPlan) -> bool:
        """Return whether all chunks of a window are in memory, or need not be."""

    @abc.abstractmethod
    def keep(self, plans: list[WindowPlan], upcoming: Upcoming | None) -> None:
        """Release all windows except ``plans``, and read ahead in ``upcoming``."""

    @abc.abstractmethod
    def read_on(self, upcoming: Upcoming) -> None:
        """Continue to read ahead if there is more room than before."""

    @abc.abstractmethod
    def reset(self) -> None:
        """Discard all chunks that were read ahead: the position has jumped."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release everything and stop the threads."""


class Staging(abc.ABC):
    """A reader that can read single sequences into private memory, from which they are copied."""

    @property
    @abc.abstractmethod
    def stages(self) -> bool:
        """Whether sequences should be staged before they are copied."""

    @abc.abstractmethod
    def watch(self, slots: Slots, index: Ints) -> None:
        """Notice now and then whether sequences that were taken some time ago have to be staged by now."""

    @abc.abstractmethod
    def stage(self, slots: Slots, index: Ints) -> _native.Staged:
        """Begin to read sequences."""

    @abc.abstractmethod
    def wait(self, staged: _native.Staged, ids: Ints) -> dict[int, DataError]:
        """Wait for staged sequences, with ordinals ``ids``. Return the errors of unreadable ones, by index."""

    @abc.abstractmethod
    def stage_again(self, slots: Slots, index: Ints) -> _native.Staged | None:
        """Begin to read sequences that could not be copied, because a mapped file was truncated or its disk fails.
        Return None if that would not help.
        """


class Selecting(abc.ABC):
    """A reader whose first window takes long, so that the first minibatches are read sequence by sequence."""

    @abc.abstractmethod
    def selects(self, parts: Sequence[SegmentSlice]) -> bool:
        """Return whether to select the sequences of ``parts`` from the corpus one by one, because their window is still
        being read. Begins to read the window."""


def upcoming(reader: Reader, window: WindowPlan, following: Callable[[], Iterator[Ints]]) -> Upcoming:
    """Return the chunks to read ahead while ``window`` is the current one: the chunks of the windows that ``following``
    yields. If the window is not held yet, its own chunks come first: a minibatch may end in a window of which this rank
    takes nothing yet."""
    if reader.holds(window):
        return Upcoming(following)
    return Upcoming(lambda: itertools.chain((window.chunks,), following()))


def concatenate_slots(parts: Sequence[tuple[Slots, Ints]]) -> tuple[Slots, Ints]:
    """Concatenate slots and indices of several parts."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return np.empty(0, np.uint32), np.empty(0, np.int64)
    slots, index = zip(*parts, strict=True)
    return np.concatenate(slots), np.concatenate(index)
