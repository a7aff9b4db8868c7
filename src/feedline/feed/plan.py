"""Plan minibatches without reading: the sequences of the next one, and of those after it.

A plan walks the axis with the source's own packer, so that plan and delivery cannot disagree. The source stays where it
is, and no chunk is read. Cost: a few microseconds per minibatch.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.data import Position, Span, Unit
from feedline.feed.packing.axis import Axis, Cursor
from feedline.feed.packing.packer import Packer, Plan
from feedline.feed.packing.runs import RunPiece
from feedline.feed.packing.unevenness import ByBalance, Unevenness
from feedline.feed.packing.whole import Whole
from feedline.feed.timeline import Segment

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PlannedMinibatch:
    """A minibatch that `MinibatchSource.next_minibatch` would deliver to this rank if every sequence is readable.

    Attributes:
        step: number of the minibatch, counted from 0 at the start of the plan.
        position: position of the first sequence of the global minibatch.
        ids: int64 (n,), index of each sequence in the corpus, in delivered order. With ``truncation_length``, of each
            piece.
        chunks: int64 (n,), number of the chunk of each, with its sweep, see `protocol.CHUNK_BITS`. None if sequences
            are the same in every sweep.
        num_samples: samples of this rank's part.
        global_samples: samples of the global minibatch on the axis.
        sweep_end: the global minibatch contains the last sequence of a sweep.
    """

    step: int
    position: Position
    ids: Ints
    chunks: Ints | None
    num_samples: int
    global_samples: int
    sweep_end: bool
    _unevenness: Callable[[], ByBalance] = field(repr=False)

    @property
    def num_sequences(self) -> int:
        """Sequences (or pieces) of this rank's part."""
        return len(self.ids)

    def unevenness(self) -> ByBalance:
        """Return how uneven the work of the ranks is, under each balance that `Partition` could have.

        Computed at each call, in about 0.1 ms per 1,000 sequences of the global minibatch.

        Returns:
            ``result[balance][measure]``: the largest work of a rank over the mean of all ranks, 1 if all have the same.
            A balance is "samples", "squares", or "function" if the source has one. So is a measure: number of samples,
            squares of lengths, or work by the function. Empty if ranks cannot be balanced: with `Arcs`,
            ``filling="cntk"`` or ``truncation_length``.
        """
        return self._unevenness()

    def to_json(self) -> dict[str, Any]:
        """Return all figures by name, in JSON types."""
        place = {"sweep": self.position.sweep, "sequence": self.position.sequence, "samples": self.position.samples}
        return {
            "step": self.step,
            "position": place,
            "ids": self.ids.tolist(),
            "num_sequences": self.num_sequences,
            "num_samples": self.num_samples,
            "global_samples": self.global_samples,
            "sweep_end": self.sweep_end,
        }

    def __repr__(self) -> str:
        p = self.position
        return (
            f"PlannedMinibatch(step {self.step}: {self.num_sequences} sequences, {self.num_samples} samples, "
            f"from sweep {p.sweep} sequence {p.sequence}{', sweep end' if self.sweep_end else ''})"
        )


def plan_minibatches(
    axis: Axis,
    packer: Packer,
    cursor: Cursor,
    *,
    size: int,
    index: int,
    count: int,
    unevenness: Unevenness | None = None,
) -> Iterator[PlannedMinibatch]:
    """Yield the minibatches from ``cursor`` to the end of the axis, as part ``index`` of ``count``."""
    step, now = 0, copy.copy(axis)
    while True:
        plan = packer.plan(axis, cursor, size, index, count)
        if plan.ended:
            return
        ids, chunks, samples = _content(plan, axis.timeline.swept)
        position = axis.position(plan.start)
        yield PlannedMinibatch(
            step,
            position,
            ids=ids,
            chunks=chunks,
            num_samples=samples,
            global_samples=plan.samples,
            sweep_end=plan.sweep_end,
            _unevenness=partial(_uneven, unevenness, now, position=position, size=size, count=count),
        )
        step, cursor = step + 1, plan.after


def _uneven(unevenness: Unevenness | None, axis: Axis, *, position: Position, size: int, count: int) -> ByBalance:
    # From the position, as a cursor would keep thousands of sequences in memory for each planned minibatch.
    return {} if unevenness is None else unevenness.of(axis, axis.at(position, None), size, count)


def count_left(
    axis: Axis, packer: Packer, cursor: Cursor | None, until: Span | None, *, size: int, index: int, count: int
) -> int:
    """Return the number of minibatches from ``cursor`` to the end of the axis, or up to the end of ``until``.

    With one sample per sequence and no span this is arithmetic, otherwise the minibatches are planned.

    Args:
        axis, packer: see `plan_minibatches`. An endless axis needs ``until``.
        cursor: cursor to count from. None: the end.
        until: span from here.
        size, index, count: see `plan_minibatches`.
    """
    if cursor is None:
        return 0
    even = cursor.segment.ends is None and cursor.segment.breaks is None
    if until is None and isinstance(packer, Whole) and even:
        return max(0, -(-_sequences_left(axis, cursor) // size))
    number = taken = 0
    while until is None or taken < until.count:
        plan = packer.plan(axis, cursor, size, index, count)
        if plan.ended:
            break
        number, cursor = number + 1, plan.after
        if until is not None:
            taken += _units(until.unit, plan)
    return number


def _units(unit: Unit, plan: Plan) -> int:
    if unit is Unit.SAMPLE:
        return plan.samples
    return 1 if unit is Unit.MINIBATCH else int(plan.sweep_end)


def _sequences_left(axis: Axis, cursor: Cursor) -> int:
    """Return the sequences of one sample each from ``cursor`` to the end of the axis."""
    limits = []
    if axis.max_sweeps is not None:
        position = axis.position(cursor)
        place, end = axis.place(position.sweep, position.sequence), axis.place(axis.max_sweeps, 0)
        limits.append(end - place - axis.jumps.between(place, end))
    if axis.max_samples is not None:
        limits.append(axis.max_samples - axis.samples(cursor))
    return min(limits)


def _content(plan: Plan, swept: bool) -> tuple[Ints, Ints | None, int]:
    """Return the ordinals of the delivered sequences, the chunk of each if chunk numbers carry sweeps, and the
    samples."""
    places: list[tuple[Segment, list[int] | slice]]
    if plan.pieces is not None:
        places = [_places(piece) for piece in plan.pieces]
        samples = sum(piece.stop - piece.start for piece in plan.pieces)
    else:
        places = [(part.segment, slice(part.a, part.b)) for part in plan.parts]
        samples = sum(part.samples for part in plan.parts)
    ids = [segment.ordinals[at] for segment, at in places]
    chunks = [segment.plan.chunks[segment.place[at]] for segment, at in places] if swept else None
    return _concatenate(ids), None if chunks is None else _concatenate(chunks), samples


def _concatenate(parts: list[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _places(piece: RunPiece) -> tuple[Segment, list[int] | slice]:
    """Return the segment of a piece, and the indices in it of the sequences that the piece has samples of."""
    run = piece.run
    first = bisect_right(run.ends, piece.start) - 1
    covered = [i for i in range(first, len(run.ends) - 1) if run.ends[i] < piece.stop and run.ends[i + 1] > run.ends[i]]
    return run.segment, [run.a + i for i in covered]
