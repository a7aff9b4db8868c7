"""Anonymous shared memory: segments that a worker fills and the parent hands out as they are.

A segment is one memfd, mapped by the worker that made it and by the parent. It belongs to one of them at a time: the
worker takes a free one for the results of a unit, the parent gives it back when the last array over it has died. Who
has it stands in one byte of a table that both map, so that giving back is a store: no message, no lock, from any
thread and from the garbage collector too. A descriptor exists only while a segment travels, so the number of results
alive is bounded by memory, not by ``RLIMIT_NOFILE``.

Mappings and loans are native objects outside of garbage collection (`_native.SharedMemory`, `_native.Loan`): each view
counts as a reference, and memory goes with the last of them. A finaliser in Python would not do: of a cycle that has
become garbage the collector runs all finalisers first, in any order, and one of them may still read what another one
has unmapped.

Memory is allocated before it is mapped (``posix_fallocate``), after a look at what is free: too little is a
`MemoryError` with the figures, never a SIGBUS.

Cost: a segment that is used again costs nothing but the bytes written into it; a new one its page faults on both sides.
"""

from __future__ import annotations

import mmap
import os
import threading
from typing import NamedTuple

from feedline import _native
from feedline.feed.workers import limits

FREE, TAKEN, FORGOTTEN = 0, 1, 2
"""States of a segment: the worker's to take; in use by a unit or a result; never to be used again."""

SEGMENTS = 4096
"""Segments that can be reused for each worker; further ones are used once."""

ALIGNMENT = 64
_PAGE = mmap.PAGESIZE


def create(size: int, name: str = "feedline") -> int:
    """The descriptor of ``size`` bytes of allocated anonymous shared memory.

    Raises:
        MemoryError: not so much is free, with the figures.
        OSError: out of descriptors, and the like.
    """
    limits.require_memory(size)
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
    except OSError as error:
        raise limits.descriptors_short(error) from error
    try:
        os.posix_fallocate(fd, 0, size)
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
    """``nbytes`` at ``offset`` of segment ``number``: how a result is named in a message."""

    number: int
    offset: int
    nbytes: int


# ---- the worker's side ------------------------------------------------------------------------------------------


class _Own:
    """A segment of this worker."""

    __slots__ = ("bytes", "fd", "mapping", "number", "unit", "used")

    def __init__(self, number: int, fd: int, size: int) -> None:
        self.number, self.fd = number, fd
        self.mapping = _native.SharedMemory(fd, size)
        self.bytes = memoryview(self.mapping)
        self.used = self.unit = 0


class Arena:
    """Where a worker puts the results of one unit after the other.

    Args:
        flags: the worker's part of the table of states, a byte a segment.
        keep: units after which a segment that was not needed goes.
    """

    def __init__(self, flags: memoryview, keep: int) -> None:
        self._flags, self._keep = flags, keep
        self._segments: dict[int, _Own] = {}
        self._unit: list[_Own] = []
        self._fresh: list[_Own] = []
        self._retired: list[int] = []
        self._expected = self._units = 0
        self._once = SEGMENTS
        self.thread = threading.get_ident()

    def take(self, nbytes: int) -> tuple[SharedSpan, memoryview]:
        """``nbytes`` of the current unit's memory: their name and a writable view of them.

        Raises:
            MemoryError: not so much is free.
        """
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        own = self._unit[-1] if self._unit else None
        if own is None or own.used + size > own.mapping.size:
            # A unit that outgrows what was seen doubles, so that however many arrays it has, its segments are few.
            own = self._segment(max(size, self._expected, sum(o.used for o in self._unit)))
            self._unit.append(own)
        offset = own.used
        own.used += size
        return SharedSpan(own.number, offset, nbytes), own.bytes[offset : offset + nbytes]

    def find(self, address: int, nbytes: int) -> SharedSpan | None:
        """The name of memory that was taken for the current unit, or None if it was not."""
        for own in self._unit:
            offset = address - own.mapping.address
            if offset >= 0 and offset + nbytes <= own.used:
                return SharedSpan(own.number, offset, nbytes)
        return None

    def announce(self) -> tuple[list[tuple[int, int]], list[int], list[int]]:
        """Number and size of the segments that the parent has not seen, their descriptors, and the retired numbers."""
        fresh = [(own.number, own.mapping.size) for own in self._fresh]
        return fresh, [own.fd for own in self._fresh], self._retired

    def taken(self) -> list[int]:
        """The segments of the current unit."""
        return [own.number for own in self._unit]

    def sent(self) -> None:
        """The unit's result and what `announce` said have gone to the parent; begin the next unit."""
        for own in self._fresh:
            os.close(own.fd)
            own.fd = -1
        self._fresh, self._retired = [], []
        self._units += 1
        if self._unit:
            self._expected = max(self._expected, sum(own.used for own in self._unit))
            for own in self._unit:
                if own.number >= SEGMENTS:
                    del self._segments[own.number]
            self._unit = []

    def drop(self) -> None:
        """Take back all memory of the current unit: it failed."""
        for own in self._unit:
            own.used = 0
            if own.number < SEGMENTS:
                self._flags[own.number] = FREE
            else:
                del self._segments[own.number]
                self._fresh.remove(own)
                os.close(own.fd)
        self._unit = []

    def _segment(self, size: int) -> _Own:
        flags, free = self._flags, []
        for number, own in list(self._segments.items()):
            state = flags[number]
            if state == FREE:
                free.append(own)
            elif state == FORGOTTEN:
                # The parent has let go of it for good; only the memory of this side is left.
                del self._segments[number]
                flags[number] = FREE
        fitting = [own for own in free if own.mapping.size >= size]
        # The latest of equals, so that what is not needed any more grows old.
        chosen = min(fitting, key=lambda own: (own.mapping.size, -own.unit), default=None)
        for own in free:
            old = self._units - own.unit > self._keep or own.mapping.size < self._expected
            if own is not chosen and old and own.fd < 0:  # one that is still to be announced cannot be retired yet
                del self._segments[own.number]
                self._retired.append(own.number)
        if chosen is None:
            number = self._number()
            size = -(-size // _PAGE) * _PAGE
            chosen = _Own(number, create(size), size)
            self._segments[number] = chosen
            self._fresh.append(chosen)
        if chosen.number < SEGMENTS:
            flags[chosen.number] = TAKEN
        chosen.used, chosen.unit = 0, self._units
        return chosen

    def _number(self) -> int:
        # A retired number is not given again before the parent has heard of it.
        for number in range(SEGMENTS):
            if number not in self._segments and number not in self._retired:
                return number
        self._once += 1
        return self._once - 1


# ---- the parent's side ------------------------------------------------------------------------------------------


class SharedSegment:
    """A segment of a worker, as the parent sees it.

    Args:
        number: of the segment.
        fd, size: its memory; the descriptor may be closed then.
        table: the mapping in which the states of the worker's segments stand.
        at: where in it they begin.
    """

    __slots__ = ("_at", "_number", "_pid", "_table", "mapping")

    def __init__(self, number: int, fd: int, size: int, table: _native.SharedMemory, at: int) -> None:
        self._number, self._table, self._at, self._pid = number, table, at + number, os.getpid()
        self.mapping = _native.SharedMemory(fd, size)

    def window(self) -> memoryview:
        """The segment's memory, to be lent."""
        if self._number >= SEGMENTS:
            return memoryview(self.mapping)
        return memoryview(_native.Loan(self.mapping, self._table, self._at, FREE, FORGOTTEN))

    def lend(self, window: memoryview) -> None:
        """When this window and all views made of it have died, the worker has the memory back."""
        if self._number < SEGMENTS:
            loan = window.obj
            assert isinstance(loan, _native.Loan)
            loan.begin()

    def give_back(self) -> None:
        """Nobody in this process has looked at the memory."""
        # A forked child has a copy of this object; the memory is not its to give.
        if self._number < SEGMENTS and os.getpid() == self._pid:
            memoryview(self._table)[self._at] = FREE


# A child may look at the results it has inherited for ever: their memory must not be filled again. On both sides of
# the fork, as another thread may lend something in between.
os.register_at_fork(before=_native.Loan.forking, after_in_parent=_native.Loan.forking)
