"""The clock: the position of a feed, and spans along its axis.

The axis is the delivered order of sequences, sweep after sweep, without end. A position names the next sequence and
carries two counters that grow along the axis: samples (the unit of minibatch budgets) and label samples (the unit of
epochs, schedules and reports, summed over all ranks).
"""

from __future__ import annotations

import enum
import operator
from dataclasses import dataclass
from typing import NamedTuple


class Position(NamedTuple):
    """A place on the axis: the next sequence, and the counters up to it.

    After the last sequence of sweep k the position is (k + 1, 0), never (k, N).

    Attributes:
        sweep: pass over the data, from 0.
        sequence: place of the sequence in the order of its sweep (or of its window, see ``window``).
        samples: samples delivered since the start of the axis, over all ranks. -1 after a seek to a place
            whose count is not known without reading.
        label_samples: label samples counted since the start of the axis, over all ranks.
        window: number of the shuffle window within the sweep, for corpora whose chunk sizes are unknown
            before reading. None otherwise.
    """

    sweep: int = 0
    sequence: int = 0
    samples: int = 0
    label_samples: int = 0
    window: int | None = None

    def __repr__(self) -> str:
        where = f"sweep {self.sweep}, "
        where += f"window {self.window}, " if self.window is not None else ""
        return f"Position({where}sequence {self.sequence}, {self.samples} samples)"


class Unit(enum.Enum):
    """The unit of a span."""

    SAMPLE = "sample"
    MINIBATCH = "minibatch"
    SWEEP = "sweep"


_PLURALS = {Unit.SAMPLE: "samples", Unit.MINIBATCH: "minibatches", Unit.SWEEP: "sweeps"}


@dataclass(frozen=True, slots=True)
class Span:
    """A number of samples, minibatches or sweeps, created by `samples`, `minibatches` and `sweeps`."""

    count: int
    unit: Unit

    def __post_init__(self) -> None:
        if type(self.count) is not int:
            try:
                if isinstance(self.count, bool):
                    raise TypeError
                object.__setattr__(self, "count", operator.index(self.count))
            except TypeError:
                raise TypeError(f"expected a count of {_PLURALS[self.unit]} as an int, got {self.count!r}") from None
        if self.count < 0:
            raise ValueError(f"expected a count of at least 0, got {self.count} {_PLURALS[self.unit]}")

    def __repr__(self) -> str:
        return f"{_PLURALS[self.unit]}({self.count})"


def samples(count: int) -> Span:
    """Return a span of ``count`` samples."""
    return Span(count, Unit.SAMPLE)


def minibatches(count: int) -> Span:
    """Return a span of ``count`` minibatches."""
    return Span(count, Unit.MINIBATCH)


def sweeps(count: int) -> Span:
    """Return a span of ``count`` sweeps."""
    return Span(count, Unit.SWEEP)
