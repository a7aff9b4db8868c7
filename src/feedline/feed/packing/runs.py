"""Runs and lanes: the sequences that truncated BPTT keeps between minibatches.

A lane is a queue of runs. A run is a number of sequences of one segment that entered a lane together. Lanes are
immutable. The content of a run is read once, when the run enters a lane. All runs that enter in one minibatch are read
and kept as one, so that a sequence that outlives its window is not read again.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline._native import recycled
from feedline.data import Schema, Value
from feedline.data.value import DenseValue
from feedline.feed.joined_values import copy_value, in_sequences, join_values
from feedline.feed.timeline import Segment

Ints = NDArray[np.int64]


class Content(NamedTuple):
    """The content of a run, once read.

    Attributes:
        values: one value per stream, all with the same rows, of the readable sequences of this run and of others.
        ends: row of ``values`` at which each sequence of the run begins, and the end of the last. Unreadable
            sequences have no rows.
    """

    values: dict[str, Value]
    ends: list[int]


class LaneRun:
    """The sequences a..b-1 of a segment, in a lane.

    Attributes:
        segment, a, b: the sequences.
        ends: samples before each sequence, and in total.
        content: their data. None: not read yet.
    """

    __slots__ = ("a", "b", "content", "ends", "segment")

    def __init__(self, segment: Segment, a: int, b: int) -> None:
        self.segment, self.a, self.b = segment, a, b
        self.ends: list[int] = (
            list(range(b - a + 1)) if segment.ends is None else (segment.ends[a : b + 1] - segment.ends[a]).tolist()
        )
        self.content: Content | None = None

    @property
    def place(self) -> tuple[Segment, int, int]:
        """The segment, and the range of sequences in it."""
        return self.segment, self.a, self.b

    @property
    def ends_sweep(self) -> bool:
        """Whether the run holds the last sequence of a sweep."""
        segment = self.segment
        return segment.ends_sweep(int(segment.places(self.b - 1, self.b)[0]) + 1)


class RunPiece(NamedTuple):
    """The samples start..stop-1 of a run, delivered by lane number ``lane``."""

    run: LaneRun
    start: int
    stop: int
    lane: int


class Lane(NamedTuple):
    """A queue of runs.

    Attributes:
        runs: runs, front first.
        done: number of samples of the first run that were delivered.
    """

    runs: tuple[LaneRun, ...] = ()
    done: int = 0

    @property
    def samples(self) -> int:
        """Number of samples not yet delivered."""
        return sum(run.ends[-1] for run in self.runs) - self.done

    def take(self, most: int, number: int) -> tuple[list[RunPiece], Lane, bool]:
        """Take up to ``most`` samples from the front, for lane ``number``.

        Returns:
            The pieces, the remaining lane, and whether the pieces complete the last sequence of a sweep.
        """
        pieces: list[RunPiece] = []
        done, sweep_end = self.done, False
        for i, run in enumerate(self.runs):
            stop = min(done + most, run.ends[-1])
            if stop > done:
                pieces.append(RunPiece(run, done, stop, number))
                most -= stop - done
            if stop < run.ends[-1]:
                return pieces, Lane(self.runs[i:], stop), sweep_end
            sweep_end, done = sweep_end or run.ends_sweep, 0
        return pieces, Lane(), sweep_end


class LaneStreams(NamedTuple):
    """Pieces as the streams of a minibatch, with one entry per piece of a sequence.

    Attributes:
        values: one value per stream.
        ids: int64 (n,), ordinal of the sequence.
        lanes: int64 (n,), the lane.
        begins: bool (n,), whether the piece starts its sequence.
        samples: number of rows of every stream.
    """

    values: dict[str, Value]
    ids: Ints
    lanes: Ints
    begins: NDArray[np.bool_]
    samples: int


def copy_pieces(schema: Schema, pieces: tuple[RunPiece, ...]) -> LaneStreams:
    """Copy ``pieces`` out of their runs, which have been read. Skips unreadable sequences."""
    ids: list[int] = []
    lanes: list[int] = []
    begins: list[bool] = []
    offsets = [0]
    ranges: list[tuple[dict[str, Value], int, int]] = []
    for run, start, stop, lane in pieces:
        assert run.content is not None
        ends, rows = run.ends, run.content.ends
        ordinals = run.segment.ordinals
        i = bisect_right(ends, start) - 1
        first = last = -1
        while i < len(ends) - 1 and ends[i] < stop:
            low, high = max(ends[i], start), min(ends[i + 1], stop)
            if high > low and rows[i + 1] > rows[i]:
                row = rows[i] - ends[i]
                first, last = row + low if first < 0 else first, row + high
                ids.append(int(ordinals[run.a + i]))
                lanes.append(lane)
                begins.append(low == ends[i])
                offsets.append(offsets[-1] + high - low)
            i += 1
        if first >= 0:
            # The rows in between belong to the pieces: unreadable sequences have none.
            ranges.append((run.content.values, first, last))
    # Ragged even if all pieces have one sample: the layout of a minibatch must not depend on where it was split.
    bounds = np.array(offsets, np.int64)
    values = {name: Value.empty(stream, ragged=True) for name, stream in schema.items()}
    if ranges:
        values = {name: _concatenate([(v[name], a, b) for v, a, b in ranges], bounds) for name in schema}
    return LaneStreams(
        values, np.array(ids, np.int64), np.array(lanes, np.int64), np.array(begins, np.bool_), offsets[-1]
    )


def _concatenate(ranges: list[tuple[Value, int, int]], offsets: Ints) -> Value:
    """Concatenate the rows a..b-1 of each value, split by ``offsets``."""
    dense = [value.rows[a:b] for value, a, b in ranges if isinstance(value, DenseValue)]
    if dense:
        return DenseValue(recycled.concatenate(dense), offsets)
    parts = [in_sequences(value, None).slice(a, b) for value, a, b in ranges]
    return in_sequences(copy_value(parts[0]) if len(parts) == 1 else join_values(parts), offsets)
