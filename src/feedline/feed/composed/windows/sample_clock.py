"""Timestamps of samples: which samples are a time away from others?"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.data import Chunk, Schema
from feedline.errors import DataError, SchemaError
from feedline.feed.protocol import Ints

_UNIT = re.compile(r"(?:timestamp|duration|time)\[(s|ms|us|ns)\b")
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}

Times = NDArray[np.float64]


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

    def times(self, chunk: Chunk) -> Times:
        """Return when the samples of a chunk were taken, in seconds from its first one, float64 (samples,)."""
        rows = np.asarray(chunk[self.stream].rows)
        rows = rows.astype(np.float64 if rows.dtype.kind == "f" else np.int64)  # unsigned ones have no differences
        times: Times = (rows - rows[:1]).astype(np.float64) * self._second
        return times

    def places(self, times: Times, rows: Ints, firsts: Ints, ends: Ints, offsets: Times) -> Ints:
        """Return the samples that are some seconds away from others.

        Args:
            times: of all samples, in seconds.
            rows: the others, int64 (n,).
            firsts, ends: bounds of their sequences, int64 (n,).
            offsets: seconds, float64 (k,).

        Returns:
            int64 (k,), distances in samples, if these are the same for all. Else int64 (n, k): rows, ``firsts - 1`` or
            ``ends`` beyond the sequence, and ``firsts - 2`` if no sample is near enough.
        """
        steps = self._even_steps(times, rows, firsts, ends, offsets)
        return self._nearest(times, rows, firsts, ends, offsets) if steps is None else steps

    def _even_steps(self, times: Times, rows: Ints, firsts: Ints, ends: Ints, offsets: Times) -> Ints | None:
        """Return distances in samples if the clock ticks evenly enough for all windows."""
        following = rows[rows + 1 < ends]
        tick = float(np.median(times[following + 1] - times[following])) if len(following) else 1.0
        if not 0 < tick < np.inf or np.abs(offsets / tick).max() > 2**31:
            return None
        steps = np.rint(offsets / tick).astype(np.int64)
        for step, offset in zip(steps.tolist(), offsets.tolist(), strict=True):
            at, goal = rows + step, times[rows] + offset
            inside = (firsts <= at) & (at < ends)
            early, late = at < firsts, at >= ends
            if (
                (np.abs(times[at[inside]] - goal[inside]) > self.tolerance).any()
                or (goal[early] >= times[firsts[early]] - self.tolerance).any()
                or (goal[late] <= times[ends[late] - 1] + self.tolerance).any()
            ):
                return None
        return steps

    def _nearest(self, times: Times, rows: Ints, firsts: Ints, ends: Ints, offsets: Times) -> Ints:
        places = np.empty((len(rows), len(offsets)), np.int64)
        edges = np.flatnonzero(np.diff(firsts, prepend=-1, append=-1))
        for begin, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            first, end = int(firsts[begin]), int(ends[begin])
            moments = times[first:end]
            goals = moments[rows[begin:stop] - first, None] + offsets
            after = np.clip(np.searchsorted(moments, goals), 0, len(moments) - 1)
            before = np.maximum(after - 1, 0)
            nearest = np.where(np.abs(moments[before] - goals) <= np.abs(moments[after] - goals), before, after)
            near = np.abs(moments[nearest] - goals) <= self.tolerance
            beyond = np.where(goals < moments[0], first - 1, np.where(goals > moments[-1], end, first - 2))
            places[begin:stop] = np.where(near, first + nearest, beyond)
        return places

    def disorder(self, times: Times, firsts: Ints, ends: Ints) -> dict[int, DataError]:
        """Return the errors of sequences whose timestamps do not ascend, by index.

        Args:
            times: of all samples.
            firsts, ends: bounds of each sequence, int64 (sequences,).
        """
        descends = np.flatnonzero(~(np.diff(times) > 0))
        sequence = np.searchsorted(ends, descends, side="right")
        inside = descends + 1 < ends[np.minimum(sequence, len(ends) - 1)]
        return {
            i: DataError("expected timestamps that ascend within the sequence, got others", stream=self.stream)
            for i in np.unique(sequence[inside]).tolist()
        }
