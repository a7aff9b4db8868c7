"""Timestamps of samples: which samples are a time away from others?"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.data import Chunk, Schema
from feedline.errors import DataError, SchemaError
from feedline.feed.protocol import Ints

_UNIT = re.compile(r"(?:timestamp|duration|time)\[(s|ms|us|ns)\b")
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}

Times = NDArray[np.float64]


class Origin(NamedTuple):
    """A moment from which times are counted: a number in units of ``second`` seconds."""

    number: float
    second: float


class SampleClock:
    """The stream that says when the samples of a sequence were taken.

    Args:
        schema: streams of the corpus.
        stream: its name.
        tolerance: seconds by which samples may be taken early or late.

    Raises:
        SchemaError: it does not exist, or is not of plain numbers.
        ValueError: a negative tolerance.
    """

    def __init__(self, schema: Schema, stream: Any, tolerance: float) -> None:
        declared = schema.get(stream)
        if declared is None or declared.sparse or declared.shape or declared.dtype.kind not in "iuf":
            raise SchemaError(
                f"expected seconds to name a stream of timestamps of shape (), got {declared or 'none'} as {stream!r}"
            )
        if not 0 <= tolerance < np.inf:
            raise ValueError(f"expected a tolerance of at least 0 seconds, got {tolerance}")
        unit = None if declared.unit is None else _UNIT.match(declared.unit)
        if declared.unit is not None and unit is None:
            raise SchemaError(
                f"expected timestamps in seconds, or in a unit of time, got {declared.unit} in `{stream}`"
            )
        self.stream, self.tolerance = stream, float(tolerance)
        self._second = 1.0 if unit is None else _SECONDS[unit[1]]

    def times(self, chunk: Chunk, origin: Origin, unreadable: Ints) -> Times:
        """Return when the samples of a chunk were taken, in seconds from an origin, float64 (samples,).

        Args:
            chunk: the sequences.
            origin: the moment 0.
            unreadable: rows that are unreadable, ascending int64 (n,). Between readable rows of their sequence they get
                a time between them, before the first one -inf, and behind the last one inf.
        """
        raw = self._numbers(chunk)
        if origin.second == self._second and isinstance(origin.number, int) == (raw.dtype.kind == "i"):
            times: Times = (raw - origin.number).astype(np.float64) * self._second
        else:
            times = raw * self._second - origin.number * origin.second
        offsets = chunk[self.stream].offsets
        for i in np.unique(np.searchsorted(offsets, unreadable, side="right")).tolist():
            first, end = int(offsets[i - 1]), int(offsets[i])
            readable = np.setdiff1d(np.arange(first, end), unreadable)
            if len(readable):
                times[first:end] = np.interp(np.arange(first, end), readable, times[readable], -np.inf, np.inf)
        return times

    def origin(self, chunk: Chunk, unreadable: Ints) -> Origin:
        """Return the first time of a chunk."""
        readable = np.delete(self._numbers(chunk), unreadable)
        readable = readable[np.isfinite(readable)]
        return Origin(readable[0].item() if len(readable) else 0, self._second)

    def _numbers(self, chunk: Chunk) -> NDArray[Any]:
        rows = np.asarray(chunk[self.stream].rows)
        # Unsigned ones have no differences.
        return rows.astype(np.float64 if rows.dtype.kind == "f" else np.int64)

    def steps(self, times: Times, rows: Ints, firsts: Ints, ends: Ints, offsets: Times) -> Ints | None:
        """Return the distances in samples of the samples that are some seconds away from others.

        Args:
            times: of all samples, in seconds.
            rows: the others, int64 (n,).
            firsts, ends: bounds of their sequences, int64 (n,).
            offsets: seconds, float64 (k,).

        Returns:
            int64 (k,), or None if the distances are not the same for all.
        """
        following = rows[rows + 1 < ends]
        tick = float(np.median(times[following + 1] - times[following])) if len(following) else 1.0
        if not 0 < tick < np.inf or np.abs(offsets / tick).max() > 2**31:
            return None
        steps = np.rint(offsets / tick).astype(np.int64)
        for step, offset in zip(steps.tolist(), offsets.tolist(), strict=True):
            at, goal = rows + step, times[rows] + offset
            inside = (firsts <= at) & (at < ends)
            early, late = at < firsts, at >= ends
            distance = np.abs(times[at[inside]] - goal[inside])
            before, after = np.maximum(at - 1, firsts)[inside], np.minimum(at + 1, ends - 1)[inside]
            if (
                (distance > self.tolerance).any()
                # Other samples that are as near would be in the window if the chunk had other sequences, too.
                or ((np.abs(times[before] - goal[inside]) <= distance) & (before != at[inside])).any()
                or ((np.abs(times[after] - goal[inside]) < distance) & (after != at[inside])).any()
                or (goal[early] >= times[firsts[early]] - self.tolerance).any()
                or (goal[late] <= times[ends[late] - 1] + self.tolerance).any()
            ):
                return None
        return steps

    def nearest(self, times: Times, goals: Times, firsts: Ints, ends: Ints) -> Ints:
        """Return the samples that were taken at some times.

        Args:
            times: of all samples, in seconds.
            goals: seconds from the same origin, float64 (n, k).
            firsts, ends: bounds of the sequences in which to look, int64 (n,), firsts < ends.

        Returns:
            int64 (n, k): rows, ``firsts - 1`` or ``ends`` beyond the sequence, and ``firsts - 2`` if no sample is near
            enough.
        """
        places = np.empty(goals.shape, np.int64)
        edges = np.flatnonzero(np.diff(firsts, prepend=-1, append=-1))
        for begin, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            first, end = int(firsts[begin]), int(ends[begin])
            moments, goals_within = times[first:end], goals[begin:stop]
            after = np.clip(np.searchsorted(moments, goals_within), 0, len(moments) - 1)
            before = np.maximum(after - 1, 0)
            nearest = np.where(
                np.abs(moments[before] - goals_within) <= np.abs(moments[after] - goals_within), before, after
            )
            near = np.abs(moments[nearest] - goals_within) <= self.tolerance
            beyond = np.where(
                goals_within < moments[0], first - 1, np.where(goals_within > moments[-1], end, first - 2)
            )
            places[begin:stop] = np.where(near, first + nearest, beyond)
        return places

    def disorder(self, times: Times, offsets: Ints, unreadable: Ints) -> dict[int, DataError]:
        """Return the errors of sequences whose timestamps do not ascend, by index.

        Args:
            times: of all samples.
            offsets: of the sequences, int64 (sequences + 1,).
            unreadable: rows without a known time, int64 (n,).
        """
        rows = np.delete(np.arange(len(times)), unreadable)
        sequences = np.searchsorted(offsets, rows, side="right") - 1
        with np.errstate(invalid="ignore"):
            descends = ~(np.diff(times[rows]) > 0) & (np.diff(sequences) == 0)
        wrong = np.append(sequences[1:][descends], sequences[~np.isfinite(times[rows])])
        return {
            i: DataError("expected finite timestamps that ascend within the sequence, got others", stream=self.stream)
            for i in np.unique(wrong).tolist()
        }
