"""The axis that packers walk: the segments of the order, one after the other, with the lengths of their sequences.

A cursor is a place on the axis: a segment, an index in it, and two running values (samples, fingerprint) at the start
of the segment. Cursors are immutable, so that looking ahead needs no undo.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.data import Position
from feedline.feed.packing.jumps import Jumps
from feedline.feed.packing.runs import Lane
from feedline.feed.timeline import Segment, Timeline, WindowPlan
from feedline.feed.timeline.elements import SEGMENT

Ints = NDArray[np.int64]


class Cursor(NamedTuple):
    """A place on the axis, and the lanes with the sequences that were taken from it but not completely delivered.

    Attributes:
        segment: segment that it is in.
        k: index of the next sequence in it, ``segment.n`` at its end.
        samples: samples on the axis before the segment.
        fingerprint: fingerprint of all sequences before the segment. None: after a bare seek.
        lanes: lanes of truncated BPTT, empty for other packing rules.
    """

    segment: Segment
    k: int
    samples: int
    fingerprint: int | None
    lanes: tuple[Lane, ...] = ()


class SegmentSlice(NamedTuple):
    """The sequences a..b-1 of a segment."""

    segment: Segment
    a: int
    b: int

    @property
    def samples(self) -> int:
        """Number of samples of its sequences."""
        return self.segment.before(self.b) - self.segment.before(self.a)


def sweeps_of(parts: Sequence[SegmentSlice]) -> NDArray[np.int64]:
    """Return the sweep of each sequence of ``parts``."""
    if all(part.segment.sweeps is None for part in parts):
        sweeps = [part.segment.plan.sweep for part in parts]
        return np.repeat(np.array(sweeps, np.int64), [part.b - part.a for part in parts])
    return np.concatenate([part.segment.own_sweeps()[part.a : part.b] for part in parts])


class Axis:
    """The order of all sweeps up to the limits.

    Args:
        timeline: the order.
        lengths: function that returns the samples of each sequence of a segment, int64 (n,). None: one each.
        max_sweeps, max_samples: end of the axis, counted from its start and checked before each sequence. None:
            endless.

    Attributes:
        jumps: places that are passed over.
        step: sequences planned at a time, which does not affect the minibatches.
    """

    def __init__(
        self,
        timeline: Timeline,
        lengths: Callable[[Segment], Ints | None],
        max_sweeps: int | None = None,
        max_samples: int | None = None,
        jumps: Jumps | None = None,
    ) -> None:
        self.jumps = jumps or Jumps()
        self.timeline = timeline
        self.lengths = lengths
        self.max_sweeps = max_sweeps
        self.max_samples = max_samples
        self.step = SEGMENT

    def at(self, position: Position, fingerprint: int | None) -> Cursor:
        """Return the cursor at a position. Its count of samples is not checked. Reads no data if chunk sizes are
        known."""
        sweep, place = self.skip_jumps(position.sweep, position.sequence)
        plan = self.timeline.window_at(sweep, place, position.window)
        start = place - plan.first
        if not 0 <= start < plan.count:
            raise IndexError(f"expected 0 <= sequence < {plan.count} in window {plan.number}, got {start}")
        return Cursor(self.segment(plan, start), 0, position.samples, fingerprint)

    def advance_if_at_end(self, cursor: Cursor) -> Cursor | None:
        """Return the cursor. At the end of a segment, return the start of the next segment, and at the end of the axis
        None."""
        segment = cursor.segment
        if self.max_samples is not None and self.samples(cursor) >= self.max_samples:
            return None
        if cursor.k < segment.n:
            beyond = self.max_sweeps is not None and segment.plan.sweep >= self.max_sweeps
            return None if beyond else cursor
        following = self._following(segment.plan, segment.start + segment.n, self.max_sweeps)
        if following is None:
            return None
        return Cursor(self.segment(*following), 0, self.samples(cursor), self.fingerprint(cursor))

    def _following(self, plan: WindowPlan, start: int, max_sweeps: int | None) -> tuple[WindowPlan, int] | None:
        """Return the window of the next sequence at or after place ``start``, and its place there, or None at the
        end."""
        if self.jumps:
            before = self.timeline.position_of(plan, start)[:2]
            sweep, place = self.skip_jumps(*before)
            if (sweep, place) != before:
                if max_sweeps is not None and sweep >= max_sweeps:
                    return None
                if sweep != plan.sweep or not 0 <= place - plan.first < plan.count:
                    plan = self.timeline.window_at(sweep, place)
                return plan, place - plan.first
        if start < plan.count:
            return plan, start
        if max_sweeps is not None and plan.sweep + 1 >= max_sweeps and plan.last:
            return None
        return self.timeline.window_after(plan), 0

    def skip_jumps(self, sweep: int, place: int) -> tuple[int, int]:
        """Return the first place at or after one that is not jumped over, as sweep and place in it."""
        if not self.jumps:
            return sweep, place
        length = self.timeline.sweep_length
        landed = self.jumps.skip(self.place(sweep, place))
        return (0, landed) if length is None else divmod(landed, length)

    def place(self, sweep: int, place: int) -> int:
        """Return the number of sequences on the axis before a place of a sweep, jumped over or not."""
        return self.timeline.before(sweep) + place

    def chunks_after(self, plan: WindowPlan) -> Iterator[Ints]:
        """Yield the chunks of the windows that follow, window by window, to the end. Reads and permutes nothing."""
        if not self.jumps:
            yield from self.timeline.chunks_after(plan, self.max_sweeps)
            return
        while (following := self._following(plan, plan.count, self.max_sweeps)) is not None:
            plan = following[0]
            yield plan.chunks

    def limit(self, cursor: Cursor) -> int:
        """Return the end of the indices at which sequences may start in the segment: its end, or the end of the axis.

        A sequence may start while fewer than ``max_samples`` samples precede it. So the last one may exceed the limit.
        """
        segment = cursor.segment
        if self.max_samples is None:
            return segment.n
        remaining = self.max_samples - cursor.samples
        if segment.ends is None:
            return max(cursor.k, min(segment.n, remaining))
        return max(cursor.k, int(np.searchsorted(segment.ends[:-1], remaining, side="left")))

    def samples(self, cursor: Cursor) -> int:
        """Return the samples on the axis before the cursor."""
        return cursor.samples + cursor.segment.before(cursor.k)

    def fingerprint(self, cursor: Cursor) -> int | None:
        """Return the fingerprint of all sequences before the cursor, or None if unknown."""
        if cursor.fingerprint is None or cursor.k == 0:
            return cursor.fingerprint
        return int(_native.fingerprint(cursor.fingerprint, cursor.segment.ordinals[: cursor.k])[-1])

    def position(self, cursor: Cursor, label_samples: int = 0) -> Position:
        """Return the position of the cursor."""
        segment = cursor.segment
        k = cursor.k
        sweep, place, window = self.timeline.position_of(segment.plan, segment.start + k)
        return Position(sweep, place, cursor.samples + segment.before(k), label_samples, window)

    def ends_sweep(self, part: SegmentSlice) -> bool:
        """Return whether the part holds the last sequence of a sweep."""
        return part.segment.ends_sweep(part.segment.start + part.b)

    def first_whole_sweep(self, cursor: Cursor) -> int:
        """Return the first sweep that is wholly after the cursor."""
        sweep, place, _, _, window = self.position(cursor)
        return sweep if place == 0 and not window else sweep + 1

    def seek_samples(self, samples: int) -> Cursor:
        """Return the cursor at the first sequence that starts ``samples`` samples or more from the start of the axis.

        If a sweep ends there, the cursor is at the first sequence of the next sweep. The lengths of its sweep are
        looked up in the index. Reads no data if chunk sizes are known.

        Raises:
            IndexError: no sequence has any samples.
        """
        total = self.timeline.sweep_samples
        if samples and total == 0:
            raise IndexError(f"expected 0 samples on an axis where no sequence has any, got {samples}")
        sweep, before = self.timeline.sweep_of_samples(samples)
        if self.jumps:  # from there on, samples are counted one by one
            sweep = min(sweep, self.jumps.ranges[0][0] // (self.timeline.sweep_length or 1) if total else 0)
            before = sweep * (total or 0)
        cursor: Cursor | None = self.at(Position(sweep, 0, before), None)
        while cursor is not None and cursor.samples + cursor.segment.samples < samples:
            segment = cursor.segment
            following = self._following(segment.plan, segment.start + segment.n, None)
            assert following is not None  # without limits there is no end
            cursor = Cursor(self.segment(*following), 0, cursor.samples + segment.samples, None)
        assert cursor is not None
        ends, target = cursor.segment.ends, samples - cursor.samples
        k = target if ends is None else int(np.searchsorted(ends, target, side="left"))
        return cursor._replace(k=k)

    def segment(self, plan: WindowPlan, start: int, most: int | None = None) -> Segment:
        """Return the segment of ``plan`` from its place ``start``, with lengths. It has at most ``most`` sequences, by
        default `step`."""
        if most is None:
            most = self.step
            if self.jumps:
                most = self.jumps.room(self.place(plan.sweep, plan.first + start), most)
        segment = self.timeline.segment(plan, start, most)
        if self.jumps:
            end = segment.start + segment.n
            at = self.timeline.position_of(plan, end)[:2]
            if self.skip_jumps(*at)[0] > plan.sweep:
                segment.closing = end
        lengths = self.lengths(segment)
        if lengths is not None:
            segment.set_lengths(lengths)
        return segment
