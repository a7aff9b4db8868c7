"""The interface of a packing rule: from a cursor and a size to a plan, without reading and without side effects."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from feedline.feed.packing.axis import Axis, Cursor, SegmentSlice
from feedline.feed.packing.runs import LaneRun, RunPiece
from feedline.feed.timeline import Segment


class Plan(NamedTuple):
    """One minibatch, before anything is read.

    Attributes:
        start: cursor before it.
        parts: whole sequences of this reader's part, in order.
        samples: samples of the global minibatch on the axis.
        sweep_end: whether it holds the last sequence of a sweep.
        after: cursor after it.
        ended: whether there is no minibatch: the source has ended at ``after``.
        entered: runs that enter this reader's lanes here and must be read now.
        pieces: pieces of runs of this reader's part, in lane order. None if sequences stay whole.
        held: segment that this reader needs in memory although its part is empty. None: the segment of ``start``.
        share_sizes: function that returns the number of sequences of each part, int64 (count,). None if this reader
            does not plan the other parts, or there are none.
    """

    start: Cursor
    parts: tuple[SegmentSlice, ...]
    samples: int
    sweep_end: bool
    after: Cursor
    ended: bool = False
    entered: tuple[LaneRun, ...] = ()
    pieces: tuple[RunPiece, ...] | None = None
    held: Segment | None = None
    share_sizes: Callable[[], NDArray[np.int64]] | None = None


class Packer(Protocol):
    """A rule that cuts the axis into minibatches."""

    def plan(self, axis: Axis, cursor: Cursor, size: int, index: int, count: int) -> Plan:
        """Return the plan of the minibatch that begins at ``cursor``.

        Args:
            axis: axis to take sequences from.
            cursor: cursor at the end of the minibatch before.
            size: budget of the global minibatch in samples, at least 1.
            index, count: part to plan, and number of parts.
        """


def nothing_left(cursor: Cursor) -> Plan:
    """Return the plan for a source that has ended."""
    return Plan(cursor, (), 0, False, cursor, ended=True)
