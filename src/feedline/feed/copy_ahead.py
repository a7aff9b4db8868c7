"""Large minibatches copied ahead of need, by a native thread that never wants the GIL.

When a minibatch has been delivered, the ones that follow it under the same size and partition are known: planning
is a pure function of the cursor, so there is nothing to undo. `CopyAhead` plans them, starts their copies and hands one
out if it is exactly what is asked for next; anything else (another size, another partition, a jump) drops them.
Nothing is read for them: a minibatch that needs a chunk not yet in memory, or holds an unreadable sequence, is left
to its turn. Where the reader stages sequences one by one (whole shuffles of data that the page cache does not hold),
that is begun here instead, for as many minibatches as keep the disk busy. What it costs: up to `DEPTH` minibatches of
memory, or `STAGED` sequences, within the read-ahead budget; for small minibatches a comparison each.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.data import Value
from feedline.feed.assembly import ChunkSet
from feedline.feed.packing.axis import Axis, Cursor, SegmentSlice
from feedline.feed.packing.packer import Packer, Plan
from feedline.feed.prefetch import Reader, errors_among

# From this size on a minibatch is copied ahead. Starting a copy and waking the thread costs the consumer 8 to 20 us,
# whatever the size, and copying costs it about 80 us a megabyte, so small copies are cheaper done than handed over.
# CPU time of one next_minibatch() in the consumer's thread, median, in a slow loop on a busy 2-core server, copied in
# the call -> ahead: 64 KiB 48 -> 60 us, 256 KiB 79 -> 73, 512 KiB 102 -> 78, 800 KB (256 x 784 float32) 120 -> 85,
# 3.2 MB 361 -> 131. Wall time of a step gains only where a core is free (3.2 MB: 283 -> 86 us for the fastest tenth of
# steps); where none is, the median step is 5 to 20 % slower, and more on a crowded machine: read_ahead=0 turns it off.
AHEAD_BYTES = 512 << 10

# A second waiting copy evens out a thread that comes late (3.2 MB, a core free: 107 -> 86 us a step); four did no
# better.
DEPTH = 2

# Sequences that are staged ahead, at least: many times what a disk works on at once, so that it has work while the
# consumer has none or gets no core. In two minibatches, at least.
STAGED = 4096
# Memory for one that is staged, beyond its own bytes: the rest of the pages it begins and ends in.
STAGED_BYTES = 8 << 10


class _PlannedCopy(NamedTuple):
    """A minibatch planned ahead; ``copy`` is None where it is left to its turn."""

    cursor: Cursor
    asked: tuple[int, int, int]
    plan: Plan
    copy: _native.Copy | _native.Staged | None


class CopyAhead:
    """The minibatches that wait, oldest first, each beginning where the one before ends.

    Args:
        packer, axis: what plans a minibatch; planning must read nothing.
        chunks, reader: what it is copied from.
        budget: bytes that may wait; 0: nothing is copied ahead.

    Attributes:
        threshold: bytes from which on minibatches are copied ahead.
        used: minibatches delivered that were copied ahead.
    """

    def __init__(self, packer: Packer, axis: Axis, chunks: ChunkSet, reader: Reader, budget: int) -> None:
        self._packer, self._axis, self._chunks, self._reader, self._budget = packer, axis, chunks, reader, budget
        self._waiting: deque[_PlannedCopy] = deque()
        self._asked: tuple[int, int, int] | None = None
        self.threshold = AHEAD_BYTES
        self.used = 0

    def plan(self, cursor: Cursor, size: int, index: int, count: int) -> Plan:
        """The minibatch at ``cursor``: as it waits, or planned now."""
        waiting = self._waiting
        if waiting:
            head = waiting[0]
            # The very cursor: it is the end of the minibatch delivered last, or the position has jumped.
            if head.cursor is cursor and head.asked == (size, index, count):
                return head.plan
            self.drop()
        return self._packer.plan(self._axis, cursor, size, index, count)

    def gather(
        self, parts: tuple[SegmentSlice, ...], slots: NDArray[np.uint32], index: NDArray[np.int64]
    ) -> dict[str, Value]:
        """The values of ``parts``, whose sequences are ``index`` of ``slots``: as they wait, or copied now."""
        waiting = self._waiting
        if waiting and waiting[0].plan.parts is parts:
            copy = waiting.popleft().copy
            if copy is not None:
                assert isinstance(copy, _native.Copy)
                self.used += 1
                return self._chunks.finish(copy)
        return self._chunks.gather(slots, index)

    def staged(
        self, parts: tuple[SegmentSlice, ...], slots: NDArray[np.uint32], index: NDArray[np.int64]
    ) -> _native.Staged | None:
        """The sequences of ``parts`` on their way into memory, as they wait, or begun now; None if none is needed."""
        waiting = self._waiting
        if waiting and waiting[0].plan.parts is parts:
            copy = waiting[0].copy
            if isinstance(copy, _native.Copy):
                return None
            waiting.popleft()
            if copy is not None:
                self.used += 1
                return copy
        return self._reader.stage(slots, index) if self._reader.stages and len(index) else None

    def unstage(self, staged: _native.Staged, which: NDArray[np.int64] | None) -> dict[str, Value]:
        """The values of sequences that were staged, or of those at the places ``which``."""
        return self._chunks.unstage(staged, which)

    def refill(self, cursor: Cursor, size: int, index: int, count: int, sequences: int) -> None:
        """Look beyond ``cursor``, the end of a minibatch of ``sequences`` sequences that is about to be delivered."""
        nbytes = sequences * self._chunks.sequence_bytes
        stages = self._reader.stages
        if nbytes < self.threshold and not stages:
            return
        asked = (size, index, count)
        if asked != self._asked:
            # Callers that ask for something else each time (the parts of all ranks in turn) would only drop copies.
            self._asked = asked
            return
        waiting = self._waiting
        if stages:
            depth = max(DEPTH, -(-STAGED // max(sequences, 1)))
            nbytes += sequences * STAGED_BYTES
        else:
            depth = DEPTH
        depth = min(depth, int(self._budget / max(nbytes, 1)))
        while len(waiting) < depth:
            if waiting:
                last = waiting[-1]
                if last.copy is None:
                    return
                cursor = last.plan.after
            try:
                plan = self._packer.plan(self._axis, cursor, size, index, count)
                if plan.ended:
                    return
                waiting.append(_PlannedCopy(cursor, asked, plan, self._start(plan.parts)))
            except Exception:
                # Planned again when it is asked for, and raised there: what comes before it is still good.
                return

    def drop(self) -> None:
        """Forget what waits: the position has jumped, or something else is asked for."""
        self._waiting.clear()
        self._asked = None

    def _start(self, parts: tuple[SegmentSlice, ...]) -> _native.Copy | _native.Staged | None:
        reader = self._reader
        if not parts or not reader.ready(parts):
            return None
        slots, index = reader.take(parts)
        if reader.stages:
            return reader.stage(slots, index)
        if reader.has_errors and errors_among(reader, slots, index):
            return None
        try:
            return self._chunks.start(slots, index)
        except Exception:
            # A file that was cut, say. Raised when its turn comes: the one before it is still to be delivered.
            return None
