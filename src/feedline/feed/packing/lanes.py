"""Truncated BPTT: sequences queue in lanes, and every minibatch takes a fixed number of samples from each lane.

A minibatch of S samples has ``max(1, S // length)`` lanes. Each lane in turn takes whole sequences from the axis while
it holds at most ``length`` samples. Then it delivers up to ``length`` samples, continuing with its next sequence when
one ends. So a learner that keeps one BPTT state per lane sees every sequence whole and in order. The lanes are part of
the cursor and of the state: a restart loses none of their content.

If the number of lanes falls, the surplus lanes get no more sequences, and are served first until they are empty.
Meanwhile as many other lanes wait. Lanes keep their numbers. If the number rises, the new lanes start empty. In both
cases no sample is lost, repeated or reordered within its sequence.

``filling="global"``: all ranks plan all lanes, and lane l of L belongs to rank ``l * count // L``. The parts in rank
order are the minibatch of a single process. A change of L or of the number of ranks moves lanes between ranks.
``filling="cntk"``: each rank has its own lanes, an equal share of L, and fills them with the sequences that it owns.

Cost: a few microseconds per piece. Memory: per lane, ``length`` samples and one sequence.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from feedline.data import Position
from feedline.errors import StateError, shown
from feedline.feed.packing.axis import Axis, Cursor
from feedline.feed.packing.ownership import Owned, Ownership
from feedline.feed.packing.packer import Plan
from feedline.feed.packing.runs import Lane, LaneRun, RunPiece
from feedline.feed.timeline import Timeline, WindowPlan


class Lanes:
    """The `Packer` of ``truncation_length``.

    Args:
        length: samples that a lane delivers at a time.
        local: whether each rank fills its own lanes (``filling="cntk"``).
    """

    def __init__(self, length: int, local: bool) -> None:
        self._length, self._local = length, local
        self._ownership = Ownership()

    def plan(self, axis: Axis, cursor: Cursor, size: int, index: int, count: int) -> Plan:
        """See `Packer`.

        Raises:
            ValueError: ``filling="cntk"``, and fewer lanes than ranks.
        """
        width = max(1, size // self._length)
        owner = (0, 1)
        if self._local:
            if count > width:
                raise ValueError(
                    f"expected at least one lane for each of {count} ranks, got {width} lanes of {self._length} "
                    f"samples in {size}; raise the minibatch size to {count * self._length} or use fewer ranks"
                )
            width = width // count + (index < width % count)
            owner, index, count = (index, count), 0, 1
        lanes = list(cursor.lanes)
        lanes += [Lane()] * (width - len(lanes))
        served = range(len(lanes) - width, len(lanes))
        mine = {lane for i, lane in enumerate(served) if i * count // width == index}
        walk = _LaneWalk(axis, cursor, self._ownership, owner)
        entered: list[LaneRun] = []
        for number in served:
            if number < width:
                runs, done = lanes[number]
                added = walk.draw(self._length - lanes[number].samples)
                lanes[number] = Lane((*runs, *added), done)
                if number in mine:
                    entered += added
        if walk.ended and not any(lane.runs for lane in lanes):
            return Plan(cursor, (), 0, False, walk.cursor._replace(lanes=()), ended=True)
        pieces: list[RunPiece] = []
        total, sweep_end = 0, walk.passed_end
        for number in served:
            taken, lanes[number], completed = lanes[number].take(self._length, number)
            total += sum(piece.stop - piece.start for piece in taken)
            sweep_end = sweep_end or completed
            if number in mine:
                pieces += taken
        while lanes and not lanes[-1].runs:
            lanes.pop()
        after = walk.cursor._replace(lanes=tuple(lanes))
        return Plan(cursor, (), total, sweep_end, after, entered=tuple(entered), pieces=tuple(pieces))


class _LaneWalk:
    """Takes the sequences of one rank from the axis, run by run.

    Attributes:
        cursor: cursor after the last sequence taken.
        ended: whether the axis has ended.
        passed_end: whether a sweep has ended with a sequence of another rank.
    """

    def __init__(self, axis: Axis, cursor: Cursor, ownership: Ownership, owner: tuple[int, int]) -> None:
        self._axis, self.cursor = axis, cursor
        self._ownership, self._owner = ownership, owner
        self._barren: int | None = None
        self.ended = self.passed_end = False

    def draw(self, missing: int) -> list[LaneRun]:
        """Take sequences until they exceed ``missing`` samples, none are left, or a whole sweep had no sample."""
        runs: list[LaneRun] = []
        while missing >= 0 and not self.ended:
            current = self._axis.advance_if_at_end(self.cursor)
            if current is None:
                self.ended = True
                break
            self.cursor = current
            segment = current.segment
            if self._barren is None:
                self._barren = self._axis.first_whole_sweep(current)
            if segment.plan.sweep > self._barren:
                break
            owned = self._ownership.of(segment, *self._owner, by_chunk=self._axis.timeline.shuffle)
            limit = self._axis.limit(current)
            a, b = owned.before(current.k), owned.before(limit)
            stop = min(b, _beyond(owned, a, missing))
            if stop > a:
                runs.append(LaneRun(owned.segment, a, stop))
                missing -= runs[-1].ends[-1]
                if runs[-1].ends[-1]:
                    self._barren = segment.plan.sweep + 1
            k = limit if missing >= 0 else owned.whole(stop - 1) + 1
            self.cursor = current._replace(k=k)
            if k == segment.n and segment.ends_sweep(segment.start + k):
                self.passed_end = self.passed_end or stop == 0 or owned.whole(stop - 1) + 1 < k
        return runs


def _beyond(owned: Owned, a: int, samples: int) -> int:
    """Return the index at which the sequences from ``a`` on exceed ``samples`` samples, or one past the end if they
    never do."""
    ends = owned.segment.ends
    return a + samples + 1 if ends is None else int(np.searchsorted(ends, int(ends[a]) + samples, side="right"))


# ---- lanes in a state -----------------------------------------------------------------------------


def to_json(timeline: Timeline, lanes: Iterable[Lane]) -> list[list[list[int]]]:
    """Return lanes as lists of ``[sweep, sequence, count, done]``, with ``window`` fifth if positions have one.

    An entry is ``count`` consecutive sequences. ``done`` samples of the first of them were delivered.
    """
    return [_lane_to_json(timeline, lane) for lane in lanes]


def _lane_to_json(timeline: Timeline, lane: Lane) -> list[list[int]]:
    entries: list[list[int]] = []
    done = lane.done
    for run in lane.runs:
        segment = run.segment
        at = min(bisect_right(run.ends, done), len(run.ends) - 1) - 1
        places = segment.places(run.a + at, run.b)
        for group in np.split(places, np.flatnonzero(np.diff(places) != 1) + 1):
            sweep, place, window = timeline.position_of(segment.plan, int(group[0]))
            entry = [sweep, place, len(group), done - run.ends[at] if done else 0]
            entries.append(entry if window is None else [*entry, window])
            done = 0
    return entries


def check_json(lanes: Any, position: Position, windows: Callable[[int], int] | None) -> list[list[list[int]]]:
    """Check that lanes are in the format of `to_json`, lists of lists of numbers, and return them.

    Args:
        lanes: entry of the state.
        position: position of the state.
        windows: function from a sweep to its number of windows, if positions have one, else None.

    Raises:
        TypeError, ValueError: they are invalid.
    """
    if not isinstance(lanes, list) or not all(isinstance(lane, list) for lane in lanes):
        raise TypeError(f"expected lanes to be lists of entries, got {shown(lanes, 80)}")
    width = 4 if windows is None else 5
    for entry in (entry for lane in lanes for entry in lane):
        if not isinstance(entry, list) or len(entry) != width or not all(type(n) is int for n in entry):
            raise TypeError(f"expected {width} numbers for an entry of a lane, got {shown(entry, 80)}")
        if min(entry) < 0 or max(entry) >= 2**63 or entry[2] < 1:
            raise ValueError(
                f"expected numbers from 0 to 2**63 - 1 and a count of at least 1 in a lane, got {shown(entry, 80)}"
            )
        if entry[0] > position.sweep:
            raise ValueError(f"expected sweeps up to {position.sweep} in a lane, got {entry[0]}")
        if windows is not None and entry[4] >= windows(entry[0]):
            raise ValueError(f"expected windows below {windows(entry[0])} in a lane, got {entry[4]}")
    for lane in lanes:
        if any(entry[3] for entry in lane[1:]):
            raise ValueError(f"expected samples done for only the first sequence of a lane, got {shown(lane, 80)}")
    return lanes


def from_json(axis: Axis, cursor: Cursor, lanes: Sequence[Sequence[Sequence[int]]]) -> tuple[Lane, ...]:
    """Rebuild lanes from a state through the order. Reads no data if chunk sizes are known.

    Raises:
        StateError: the order does not have these sequences.
    """
    # Entries of one window share its plan, so that its permutation is computed once.
    plans: dict[tuple[int, int], WindowPlan] = {}
    current = cursor.segment.plan
    plans[current.sweep, current.number] = current
    out = []
    for lane in lanes:
        runs = []
        for sweep, place, count, done, *window in lane:
            try:
                plan = axis.timeline.window_at(sweep, place, *window)
            except IndexError as error:
                raise StateError(f"a lane of this state is damaged: {error}", saved={"lanes": lanes}) from error
            plan = plans.setdefault((plan.sweep, plan.number), plan)
            start = place - plan.first
            if start + count > plan.count:
                raise StateError("a lane of this state goes beyond its window", saved={"lanes": lanes})
            runs.append(LaneRun(axis.segment(plan, start, count), 0, count))
            if done and (len(runs) > 1 or done >= runs[0].ends[1]):
                raise StateError(
                    "a lane of this state has more samples done than in its sequence", saved={"lanes": lanes}
                )
        out.append(Lane(tuple(runs), lane[0][3] if lane else 0))
    return tuple(out)
