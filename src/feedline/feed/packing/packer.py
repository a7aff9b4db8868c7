"""What a packing rule promises: from a cursor and a size to a plan, without reading and without side effects."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from feedline.feed.packing.axis import Axis, Cursor, SegmentSlice
from feedline.feed.packing.runs import LaneRun, RunPiece


class Plan(NamedTuple):
    """One minibatch, before anything is read.

    Attributes:
        start: the cursor before it.
        parts: whole sequences of this reader's part, in order.
        samples: samples of the global minibatch on the axis.
        sweep_end: it holds the last sequence of a sweep.
        after: the cursor behind it.
        ended: there is none; the source has ended at ``after``.
        entered: runs that enter this reader's lanes here and must be read now.
        pieces: pieces of runs of this reader's part, in lane order; None where sequences stay whole.
    """

    start: Cursor
    parts: tuple[SegmentSlice, ...]
    samples: int
    sweep_end: bool
    after: Cursor
    ended: bool = False
    entered: tuple[LaneRun, ...] = ()
    pieces: tuple[RunPiece, ...] | None = None


class Packer(Protocol):
    """A rule that cuts the axis into minibatches."""

    def plan(self, axis: Axis, cursor: Cursor, size: int, index: int, count: int) -> Plan:
        """The minibatch that follows ``cursor``.

        Args:
            axis: where sequences come from.
            cursor: what was packed before.
            size: budget of the global minibatch in samples, at least 1.
            index, count: whose part, of how many.
        """


def nothing_left(cursor: Cursor) -> Plan:
    """The plan where the source has ended."""
    return Plan(cursor, (), 0, False, cursor, ended=True)
