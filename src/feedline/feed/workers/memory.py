"""Anonymous shared memory: segments that a worker fills and the parent hands out without copying.

A segment is an anonymous file, mapped by the worker that created it and by the parent. One of them owns it at a time:
the worker takes a free one for the results of a unit, and the parent returns it when the last array over it is gone.
One byte in a table that both map records the owner, so returning it is a single store: no message, no lock, from any
thread and from the garbage collector too. A descriptor exists only while a segment travels, so the number of live
results is bounded by memory, not by ``RLIMIT_NOFILE``.

Mappings and loans are native objects that the garbage collector does not track (`_native.SharedMemory`,
`_native.Loan`): each view is a reference, and the last one frees the memory. A Python finaliser would not do: when a
cycle becomes garbage, the collector runs all its finalisers first, in any order, so one could read what another has
unmapped.

Memory is allocated before it is mapped, after checking how much is free: a shortage is a
`MemoryError` with figures, never a SIGBUS.

Cost: a reused segment costs only the writing of its bytes. A new one also costs its page faults on both sides.
"""

from __future__ import annotations

import mmap
import os
import threading
from typing import NamedTuple

from feedline import _native, system
from feedline.feed.workers import limits

FREE, TAKEN, FORGOTTEN = 0, 1, 2
"""States of a segment: free for the worker to take, in use by a unit or a result, never to be reused."""

SEGMENTS = 4096
"""Reusable segments per worker. Any more are used once."""

ALIGNMENT = 64
_PAGE_BYTES = mmap.PAGESIZE


def create(size: int, name: str = "feedline") -> int:
    """Allocate ``size`` bytes of anonymous shared memory and return the descriptor.

    Raises:
        MemoryError: not enough memory is free. The message has figures.
        OSError: no descriptor is left, for example.
    """
    limits.require_memory(size)
    try:
        fd = system.anonymous_file(name)
    except OSError as error:
        raise limits.descriptors_short(error) from error
    try:
        system.allocate(fd, size)
    except OSError as error:
        os.close(fd)
        raise MemoryError(
            f"{error.strerror} while allocating {limits.figure(size)} of shared memory; {limits.situation()}"
        ) from error
    except BaseException:
        os.close(fd)
        raise
    return fd


class SharedSpan(NamedTuple):
    """``nbytes`` at ``offset`` of segment ``number``: a reference to shared memory in a message."""

    number: int
    offset: int
    nbytes: int


# ---- the worker's side ------------------------------------------------------------------------------------------


class _Segment:
    """One of this worker's segments."""

    __slots__ = ("bytes", "fd", "mapping", "number", "unit", "used")

    def __init__(self, number: int, fd: int, size: int) -> None:
        self.number, self.fd = number, fd
        self.mapping = _native.SharedMemory(fd, size)
        self.bytes = memoryview(self.mapping)
        self.used = self.unit = 0


class Arena:
    """Allocates memory for the results of one unit after the other, in a worker.

    Args:
        flags: this worker's part of the table of states, one byte per segment.
        keep: number of units after which an unused segment is retired.
    """

    def __init__(self, flags: memoryview, keep: int) -> None:
        self._flags, self._keep = flags, keep
        self._segments: dict[int, _Segment] = {}
        self._unit: list[_Segment] = []
        self._fresh: list[_Segment] = []
        self._retired: list[int] = []
        self._expected = self._units = 0
        self._once = SEGMENTS
        self.thread = threading.get_ident()

    def take(self, nbytes: int) -> tuple[SharedSpan, memoryview]:
        """Allocate ``nbytes`` for the current unit. Return a reference and a writable view.

        Raises:
            MemoryError: not enough memory is free.
        """
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        segment = self._unit[-1] if self._unit else None
        if segment is None or segment.used + size > segment.mapping.size:
            # A unit that outgrows its predecessors doubles its memory, so that it has few segments, however many
            # arrays.
            segment = self._segment(max(size, self._expected, sum(o.used for o in self._unit)))
            self._unit.append(segment)
        offset = segment.used
        segment.used += size
        return SharedSpan(segment.number, offset, nbytes), segment.bytes[offset : offset + nbytes]

    def find(self, address: int, nbytes: int) -> SharedSpan | None:
        """Return the reference to memory that was allocated for the current unit, or None for other memory."""
        for segment in self._unit:
            offset = address - segment.mapping.address
            if offset >= 0 and offset + nbytes <= segment.used:
                return SharedSpan(segment.number, offset, nbytes)
        return None

    def announce(self) -> tuple[list[tuple[int, int]], list[int], list[int]]:
        """Return number and size of segments that the parent does not know yet, their descriptors, and retired
        numbers."""
        fresh = [(segment.number, segment.mapping.size) for segment in self._fresh]
        return fresh, [segment.fd for segment in self._fresh], self._retired

    def taken(self) -> list[int]:
        """Return the numbers of the current unit's segments."""
        return [segment.number for segment in self._unit]

    def sent(self) -> None:
        """Begin the next unit: the result and the segments from `announce` have been sent to the parent."""
        for segment in self._fresh:
            os.close(segment.fd)
            segment.fd = -1
        self._fresh, self._retired = [], []
        self._units += 1
        if self._unit:
            self._expected = max(self._expected, sum(segment.used for segment in self._unit))
            for segment in self._unit:
                if segment.number >= SEGMENTS:
                    del self._segments[segment.number]
            self._unit = []

    def drop(self) -> None:
        """Reclaim all memory of the current unit, which failed."""
        for segment in self._unit:
            segment.used = 0
            if segment.number < SEGMENTS:
                self._flags[segment.number] = FREE
            else:
                del self._segments[segment.number]
                self._fresh.remove(segment)
                os.close(segment.fd)
        self._unit = []

    def _segment(self, size: int) -> _Segment:
        flags, free = self._flags, []
        for number, segment in list(self._segments.items()):
            state = flags[number]
            if state == FREE:
                free.append(segment)
            elif state == FORGOTTEN:
                # The parent will never return it, so this side's mapping can be dropped.
                del self._segments[number]
                flags[number] = FREE
        fitting = [segment for segment in free if segment.mapping.size >= size]
        # Among equals the most recently used, so that surplus ones age.
        best = min(fitting, key=lambda each: (each.mapping.size, -each.unit), default=None)
        for segment in free:
            old = self._units - segment.unit > self._keep or segment.mapping.size < self._expected
            if segment is not best and old and segment.fd < 0:  # an unannounced one cannot be retired yet
                del self._segments[segment.number]
                self._retired.append(segment.number)
        if best is None:
            number = self._number()
            size = -(-size // _PAGE_BYTES) * _PAGE_BYTES
            best = _Segment(number, create(size), size)
            self._segments[number] = best
            self._fresh.append(best)
        if best.number < SEGMENTS:
            flags[best.number] = TAKEN
        best.used, best.unit = 0, self._units
        return best

    def _number(self) -> int:
        # A retired number is not reused before the parent knows that it is retired.
        for number in range(SEGMENTS):
            if number not in self._segments and number not in self._retired:
                return number
        self._once += 1
        return self._once - 1


# ---- the parent's side ------------------------------------------------------------------------------------------


class SharedSegment:
    """The parent's side of a worker's segment.

    Args:
        number: number of the segment.
        fd, size: descriptor of its memory, which may be closed afterwards, and its size in bytes.
        table: mapping that holds the states of the worker's segments.
        at: offset of these states.
    """

    __slots__ = ("_at", "_number", "_pid", "_table", "mapping")

    def __init__(self, number: int, fd: int, size: int, table: _native.SharedMemory, at: int) -> None:
        self._number, self._table, self._at, self._pid = number, table, at + number, os.getpid()
        self.mapping = _native.SharedMemory(fd, size)

    def window(self) -> memoryview:
        """Return a view of the segment, to be lent."""
        if self._number >= SEGMENTS:
            return memoryview(self.mapping)
        return memoryview(_native.Loan(self.mapping, self._table, self._at, FREE, FORGOTTEN))

    def lend(self, window: memoryview) -> None:
        """Lend ``window``: the worker gets the memory back when it and all views of it are gone."""
        if self._number < SEGMENTS:
            loan = window.obj
            assert isinstance(loan, _native.Loan)
            loan.begin()

    def give_back(self) -> None:
        """Return the memory, which has not been lent, to the worker."""
        # A forked child holds a copy of this object, but does not own the memory.
        if self._number < SEGMENTS and os.getpid() == self._pid:
            memoryview(self._table)[self._at] = FREE


# A forked child may keep the results it inherited, so their memory must never be refilled. Marked before and after the
# fork, as another thread may lend a segment in between.
os.register_at_fork(before=_native.Loan.forking, after_in_parent=_native.Loan.forking)
