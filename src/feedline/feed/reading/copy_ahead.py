"""Large minibatches copied ahead by a native thread that never takes the GIL.

After a minibatch, the next ones under the same size and partition are known: planning is a pure function of the cursor,
so there is nothing to undo. `CopyAhead` plans them, starts to copy them, and returns one if the next request is exactly
the expected one. Any other request (another size, another partition, a seek) drops them.

It reads nothing: a minibatch that needs a chunk that is not in memory yet, or that holds an unreadable sequence, is
made when it is requested. If the reader stages sequences one by one (whole shuffles of data outside the page cache),
staging is begun here instead, for as many minibatches as keep the disk busy. A first transform that works in other
threads is begun here, too, as soon as a minibatch is copied.

Cost: memory for up to `DEPTH` minibatches, or `STAGED` sequences, within the budget for reading ahead. Only a single
transformed minibatch may exceed it. Small minibatches cost one comparison each.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from feedline import _native
from feedline.data import Schema, Value
from feedline.feed.assembly import ChunkSet
from feedline.feed.packing.axis import Axis, Cursor, SegmentSlice, sweeps_of
from feedline.feed.packing.packer import Packer, Plan
from feedline.feed.reading.reader import Reader, Staging
from feedline.feed.timeline import WindowPlan
from feedline.feed.transforms import Begun, DrawKeys, Transform

# Minimum size of a minibatch to be copied ahead. Starting a copy and waking the thread costs the consumer 8 to 20 µs,
# for any size, and copying costs it about 80 µs per megabyte, so small copies are cheaper to do than to hand over.
# CPU time of one next_minibatch() in the consumer's thread, median, in a slow loop on a busy 2-core server, copied in
# the call -> ahead: 64 KiB 48 -> 60 µs, 256 KiB 79 -> 73, 512 KiB 102 -> 78, 800 KB (256 x 784 float32) 120 -> 85, 3.2
# MB 361 -> 131. The wall time of a step improves only if a core is free (3.2 MB: 283 -> 86 µs for the fastest tenth of
# steps); otherwise the median step is 5 to 20 % slower, and more on a crowded machine: read_ahead=0 disables copying
# ahead.
AHEAD_BYTES = 512 << 10

# A second copy absorbs a thread that is scheduled late (3.2 MB, a core free: 107 -> 86 µs per step); four did no
# better.
DEPTH = 2

# Minimum number of sequences staged ahead: many times the reads that a disk works on at once, so that the disk stays
# busy while the consumer is idle or waits for a core. Never fewer than `DEPTH` minibatches.
STAGED = 4096
# Memory per staged sequence beyond its own bytes: the rest of its first and last page.
STAGED_BYTES = 8 << 10


class FirstStage(NamedTuple):
    """The first transform of a source, which works in other threads.

    Attributes:
        transform: the transform.
        schema: streams of the corpus.
        seed: seed of the source.
    """

    transform: Transform
    schema: Schema
    seed: int

    def begin(self, parts: tuple[SegmentSlice, ...], values: dict[str, Value]) -> Begun:
        """Begin to transform the ``values`` of all sequences of ``parts``."""
        ordinals = np.concatenate([part.segment.ordinals[part.a : part.b] for part in parts])
        return self.transform.start(self.schema, values, DrawKeys(self.seed, sweeps_of(parts), ordinals, stage=0))


BegunAhead = _native.Copy | _native.Staged | Begun | None
"""A copy of the sequences of a minibatch, their staging, or their first transform. None if the minibatch is made when
it is requested."""


class _PlannedAhead(NamedTuple):
    """A minibatch planned ahead for a request (size, index, count) at a cursor."""

    cursor: Cursor
    request: tuple[int, int, int]
    plan: Plan
    begun: BegunAhead


class CopyAhead:
    """The minibatches copied ahead, oldest first. Each begins where the one before ends.

    Args:
        packer, axis: rule and axis to plan minibatches with. Planning must read nothing.
        chunks, reader: chunks to copy from.
        budget_bytes: bytes that may be copied ahead. 0: nothing is.
        first: transform to begin ahead. None if there is none.

    Attributes:
        threshold: minimum bytes of a minibatch to be copied ahead.
        used: number of minibatches taken whose copy had begun.
    """

    def __init__(
        self,
        packer: Packer,
        axis: Axis,
        chunks: ChunkSet,
        reader: Reader,
        *,
        budget_bytes: int,
        first: FirstStage | None = None,
    ) -> None:
        self._packer, self._axis, self._chunks, self._reader = packer, axis, chunks, reader
        self._staging = reader if isinstance(reader, Staging) else None
        self._budget_bytes, self._first = budget_bytes, first
        self._waiting: deque[_PlannedAhead] = deque()
        self._asked: tuple[int, int, int] | None = None
        self.threshold = AHEAD_BYTES
        self.used = 0

    def take(self, cursor: Cursor, size: int, index: int, count: int) -> tuple[Plan, BegunAhead]:
        """Return the plan of the minibatch at ``cursor``, made ahead or now, and its copy if one was begun."""
        waiting = self._waiting
        if waiting:
            head = waiting[0]
            if head.cursor == cursor and head.request == (size, index, count):
                waiting.popleft()
                self.used += head.begun is not None
                return head.plan, head.begun
            self.drop()
        return self._packer.plan(self._axis, cursor, size, index, count), None

    def windows(self) -> list[WindowPlan]:
        """Return the windows of the minibatches that are planned ahead, which a reader may hold by now."""
        return [part.segment.plan for waiting in self._waiting for part in waiting.plan.parts]

    def refill(self, cursor: Cursor, size: int, index: int, count: int, sequences: int) -> None:
        """Plan beyond ``cursor``, the end of a minibatch of ``sequences`` sequences that is about to be delivered."""
        first, stages = self._first, self._staging is not None and self._staging.stages
        nbytes = sequences * self._chunks.sequence_bytes
        if nbytes < self.threshold and not stages and first is None:
            return
        request = (size, index, count)
        if request != self._asked:
            # If requests alternate (the parts of all ranks in turn), every copy would be dropped.
            self._asked = request
            return
        waiting = self._waiting
        if stages:
            depth = max(DEPTH, -(-STAGED // max(sequences, 1)))
            nbytes += sequences * STAGED_BYTES
        else:
            depth = DEPTH
        if first is not None and not stages:
            nbytes += first.transform.result_bytes(first.schema, sequences)
        most = int(self._budget_bytes / max(nbytes, 1))
        if first is not None and self._budget_bytes:
            most = max(most, 1)
        depth = min(depth, most)
        while len(waiting) < depth:
            if waiting:
                last = waiting[-1]
                if last.begun is None:
                    break
                cursor = last.plan.after
            try:
                plan = self._packer.plan(self._axis, cursor, size, index, count)
                if plan.ended:
                    break
                waiting.append(_PlannedAhead(cursor, request, plan, self._start(plan.parts)))
            except Exception:
                # It is planned again when it is requested, and raises then. The minibatches before it are valid.
                break
        if first is not None and stages and waiting:
            self._begin_staged(first)

    def _begin_staged(self, first: FirstStage) -> None:
        """Begin to transform the next minibatch if all of its sequences have been read."""
        head = self._waiting[0]
        if not isinstance(head.begun, _native.Staged) or not head.begun.done:
            return
        try:
            begun = first.begin(head.plan.parts, self._chunks.unstage(head.begun, None))
        except Exception:
            return  # the errors of unreadable sequences are handled when they are requested
        self._waiting[0] = head._replace(begun=begun)

    def drop(self) -> None:
        """Drop all copies: the position has jumped, or the request has changed."""
        self._waiting.clear()
        self._asked = None

    def repartition(self, index: int, count: int) -> None:
        """Drop all copies, and expect requests of the same size for another share."""
        asked = self._asked
        self.drop()
        self._asked = asked and (asked[0], index, count)

    def _start(self, parts: tuple[SegmentSlice, ...]) -> BegunAhead:
        reader = self._reader
        if not parts or not reader.ready(parts):
            return None
        slots, index = reader.take(parts)
        if self._chunks.errors(slots, index):
            return None  # the readable sequences are copied on request
        if self._staging is not None and self._staging.stages:
            return self._staging.stage(slots, index)
        try:
            if self._first is not None:
                return self._first.begin(parts, self._chunks.gather(slots, index))
            return self._chunks.start(slots, index)
        except Exception:
            # Such as a truncated file. It is raised on request, as the minibatch before is still to be delivered.
            return None
