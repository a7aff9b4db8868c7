"""The queue of units: filled by the parent, emptied by any idle worker, without an intermediary.

An anonymous file that all workers read holds the units. A pipe that they read holds a record of 32 bytes per unit. The
kernel hands each record to exactly one worker, the first that reads, so a slow unit holds up no other and the parent
need not run. Records are written and read atomically, since their size divides the page size.

Cost: per unit one write to the file and one to the pipe, and one read of each in the worker.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from feedline import system
from feedline.feed.workers import limits

RECORD = struct.Struct("=qqq8x")
_HEADER = struct.Struct("=q")
_ERASED = _HEADER.pack(-1)
_SMALLEST = 8  # log2 of the smallest block in bytes


class Record(NamedTuple):
    """The location of a unit: ``size`` bytes at ``offset``, its ticket first."""

    ticket: int
    offset: int
    size: int

    def pack(self) -> bytes:
        """Return the bytes to write to the pipe."""
        return RECORD.pack(*self)


class UnitQueue:
    """The parent's side of the queue.

    Attributes:
        reader: descriptor that workers read records from.
        store: descriptor that workers read units from.
    """

    def __init__(self) -> None:
        try:
            self.store = system.anonymous_file("feedline-units")
            self.reader, self._writer = os.pipe()
            for end in (self.reader, self._writer):
                os.set_blocking(end, False)
        except OSError as error:
            raise limits.descriptors_short(error) from error
        self._end = 0
        self._free: dict[int, list[int]] = {}

    def write(self, ticket: int, unit: bytes) -> Record:
        """Store a pickled unit.

        Raises:
            OSError: out of memory.
        """
        size = _HEADER.size + len(unit)
        level = _level(size)
        blocks = self._free.get(level)
        if blocks:
            offset = blocks.pop()
        else:
            offset = self._end
            self._end += 1 << level
        os.pwrite(self.store, _HEADER.pack(ticket) + unit, offset)
        return Record(ticket, offset, size)

    def erase(self, record: Record) -> None:
        """Erase a finished or cancelled unit: a worker that reads its record skips it."""
        os.pwrite(self.store, _ERASED, record.offset)
        self._free.setdefault(_level(record.size), []).append(record.offset)

    def push(self, record: Record) -> bool:
        """Queue a record. Return False if the pipe is full."""
        try:
            os.write(self._writer, record.pack())
        except BlockingIOError:
            return False
        return True

    def drain(self) -> set[int]:
        """Remove all records that no worker has taken. Return their tickets."""
        tickets = set()
        while True:
            try:
                tickets.add(RECORD.unpack(os.read(self.reader, RECORD.size))[0])
            except BlockingIOError:
                return tickets

    def close(self) -> None:
        """Close the descriptors, in this process only."""
        for fd in (self.reader, self._writer, self.store):
            os.close(fd)


def read(store: int, record: bytes) -> tuple[int, bytes | None]:
    """Return the ticket of a packed record and its pickled unit, or None if the unit was erased."""
    ticket, offset, size = RECORD.unpack(record)
    block = os.pread(store, size, offset)
    if len(block) != size or _HEADER.unpack_from(block)[0] != ticket:
        return ticket, None
    return ticket, block[_HEADER.size :]


def _level(size: int) -> int:
    return max((size - 1).bit_length(), _SMALLEST)
