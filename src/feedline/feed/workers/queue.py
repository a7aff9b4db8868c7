"""The queue of units: filled by the parent, emptied by whichever worker is idle, without anybody in between.

A unit lies in a memfd that all workers read; a pipe, from which all workers read too, holds a record of 32 bytes for
each. The kernel gives every record to exactly one worker, the first that asks, so one slow unit holds up no other, and
the parent need not be awake. Writes of a record never mix and never tear, as they divide the pipe's pages.

Cost: a write of each into the memfd and the pipe here, a read of each there.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from feedline.feed.workers import limits

RECORD = struct.Struct("=qqq8x")
_HEADER = struct.Struct("=q")
_ERASED = _HEADER.pack(-1)
_SMALLEST = 8  # log2 of the smallest block


class Record(NamedTuple):
    """Where a unit lies: ``size`` bytes at ``offset``, the ticket in front."""

    ticket: int
    offset: int
    size: int

    def pack(self) -> bytes:
        """For the pipe."""
        return RECORD.pack(*self)


class UnitQueue:
    """The parent's side.

    Attributes:
        reader: the descriptor that workers read records from.
        store: the descriptor that they read units from.
    """

    def __init__(self) -> None:
        try:
            self.store = os.memfd_create("feedline-units", os.MFD_CLOEXEC)
            self.reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise limits.descriptors_short(error) from error
        self._end = 0
        self._free: dict[int, list[int]] = {}

    def write(self, ticket: int, unit: bytes) -> Record:
        """Store a pickled unit.

        Raises:
            OSError: no memory.
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
        """The unit is done or cancelled: a worker that finds its record will pass it over."""
        os.pwrite(self.store, _ERASED, record.offset)
        self._free.setdefault(_level(record.size), []).append(record.offset)

    def push(self, record: Record) -> bool:
        """Queue a record; False: the pipe is full."""
        try:
            os.write(self._writer, record.pack())
        except BlockingIOError:
            return False
        return True

    def drain(self) -> set[int]:
        """Take back all records that no worker has taken; their tickets."""
        found = set()
        while True:
            try:
                found.add(RECORD.unpack(os.read(self.reader, RECORD.size))[0])
            except BlockingIOError:
                return found

    def close(self) -> None:
        """Let the descriptors go; in this process."""
        for fd in (self.reader, self._writer, self.store):
            os.close(fd)


def read(store: int, record: bytes) -> tuple[int, bytes | None]:
    """The ticket of a packed record and its pickled unit, or None if that is done or cancelled."""
    ticket, offset, size = RECORD.unpack(record)
    block = os.pread(store, size, offset)
    if len(block) != size or _HEADER.unpack_from(block)[0] != ticket:
        return ticket, None
    return ticket, block[_HEADER.size :]


def _level(size: int) -> int:
    return max((size - 1).bit_length(), _SMALLEST)
