"""The clock: the position of a feed, and spans along its axis.

The axis is the delivered order of sequences, sweep after sweep, without end. A position names the next
sequence and carries two counters that grow along the axis: samples (what minibatch budgets count) and label
samples (what epochs, schedules and reports count, summed over all ranks).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple


class Position(NamedTuple):
    """A place on the axis: the next sequence, and the counters up to it.

    After the last sequence of sweep k the position is (k + 1, 0), never (k, N).

    Attributes:
        sweep: pass over the data, from 0.
        ordinal: place of the sequence in the order of its sweep (or of its window, see ``window``).
        samples: samples delivered since the start of the axis, over all ranks; -1 after a seek to a place
            whose count is not known without reading.
        label_samples: label samples counted since the start of the axis, over all ranks.
        window: number of the shuffle window within the sweep, for corpora whose chunk sizes are unknown
            before reading; None otherwise.
    """

    sweep: int = 0
    ordinal: int = 0
    samples: int = 0
    label_samples: int = 0
    window: int | None = None

    def __repr__(self) -> str:
        where = f"sweep {self.sweep}, "
        where += f"window {self.window}, " if self.window is not None else ""
        return f"Position({where}sequence {self.ordinal}, {self.samples} samples)"


class Unit(enum.Enum):
    """What a span counts."""

    SAMPLE = "sample"
    MINIBATCH = "minibatch"
    SWEEP = "sweep"


@dataclass(frozen=True, slots=True)
class Span:
    """A number of samples, minibatches or sweeps; made by `samples`, `minibatches` and `sweeps`."""

    count: int
    unit: Unit

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"expected a count of at least 0, got {self.count} {self.unit.value}s")

    def __repr__(self) -> str:
        return f"{self.unit.value}s({self.count})" if self.unit is not Unit.MINIBATCH else f"minibatches({self.count})"


def samples(count: int) -> Span:
    """A span of ``count`` samples."""
    return Span(count, Unit.SAMPLE)


def minibatches(count: int) -> Span:
    """A span of ``count`` minibatches."""
    return Span(count, Unit.MINIBATCH)


def sweeps(count: int) -> Span:
    """A span of ``count`` passes over the data."""
    return Span(count, Unit.SWEEP)
