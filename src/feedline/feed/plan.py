"""Minibatches before anything is read: which sequences stand in the next one, and the one after it.

Walks the axis with the source's own packer, so that a plan and a delivery cannot disagree. Pure: the source stays
where it is, no chunk is read. Costs what planning costs, some microseconds a minibatch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.data import Position
from feedline.feed.packing.axis import Axis, Cursor
from feedline.feed.packing.packer import Packer, Plan
from feedline.feed.packing.runs import RunPiece


@dataclass(frozen=True, slots=True, eq=False)
class PlannedMinibatch:
    """What `MinibatchSource.next_minibatch` would deliver to this rank, were every sequence readable.

    Attributes:
        step: number of the minibatch, from 0 where the planning began.
        position: of the first sequence of the global minibatch.
        ids: int64 (n,), index of each sequence in the corpus, in delivered order; with ``truncation_length`` of
            each piece of one.
        num_samples: samples of this rank's part.
        global_samples: samples of the global minibatch on the axis.
        sweep_end: the global minibatch contains the last sequence of a sweep.
    """

    step: int
    position: Position
    ids: NDArray[np.int64]
    num_samples: int
    global_samples: int
    sweep_end: bool

    @property
    def num_sequences(self) -> int:
        """Sequences (or pieces) of this rank's part."""
        return len(self.ids)

    def to_json(self) -> dict[str, Any]:
        """All figures by name, in JSON types."""
        place = {"sweep": self.position.sweep, "sequence": self.position.ordinal, "samples": self.position.samples}
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
            f"from sweep {p.sweep} sequence {p.ordinal}{', sweep end' if self.sweep_end else ''})"
        )


def planned(
    axis: Axis, packer: Packer, cursor: Cursor, size: int, index: int, count: int
) -> Iterator[PlannedMinibatch]:
    """The minibatches from ``cursor`` to the end of the axis, as part ``index`` of ``count``."""
    step = 0
    while True:
        plan = packer.plan(axis, cursor, size, index, count)
        if plan.ended:
            return
        ids, samples = _content(plan)
        yield PlannedMinibatch(step, axis.position(plan.start), ids, samples, plan.samples, plan.sweep_end)
        step, cursor = step + 1, plan.after


def _content(plan: Plan) -> tuple[NDArray[np.int64], int]:
    if plan.pieces is not None:
        ids = [ordinal for piece in plan.pieces for ordinal in _ordinals(piece)]
        return np.array(ids, np.int64), sum(piece.stop - piece.start for piece in plan.pieces)
    runs = [part.segment.ordinals[part.a : part.b] for part in plan.parts]
    return (np.concatenate(runs) if runs else np.empty(0, np.int64)), sum(part.samples for part in plan.parts)


def _ordinals(piece: RunPiece) -> list[int]:
    """Sequences that the piece holds samples of."""
    run = piece.run
    first = bisect_right(run.ends, piece.start) - 1
    covered = [i for i in range(first, len(run.ends) - 1) if run.ends[i] < piece.stop and run.ends[i + 1] > run.ends[i]]
    return [int(run.segment.ordinals[run.a + i]) for i in covered]
