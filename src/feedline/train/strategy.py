"""Who learns together? What a trainer and a session ask of a strategy, and the strategy of a trainer on its own.

A step of all ranks: each computes gradients of its part of the minibatch, `Strategy.reduce` sums them in place and
returns a `Total`, which is the same on every rank, and each makes the same update from it. The strategies for several
ranks are in `feedline.train.distributed`.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch

from feedline.collective.ranks import Ranks
from feedline.data import Minibatch
from feedline.errors import StateError
from feedline.train.summary import NOTHING, Summary


class Contribution(NamedTuple):
    """What one rank tells the others about its part of a step; numbers all, so that they travel as they are.

    Attributes:
        samples: label samples, which its gradients are a sum over.
        loss_sum: over these samples.
        metric_sum: over these samples; None without a metric.
        sweeps: sweeps whose end the rank has seen; infinite once it has run out of data, as it holds nobody up.
        ended: whether its source has ended.
        shared: whether it has all of the global minibatch.
    """

    samples: float
    loss_sum: Any
    metric_sum: Any
    sweeps: float
    ended: float
    shared: float

    def numbers(self) -> list[float]:
        """Return the fields as floats, in their order; waits for the device."""
        return [0.0 if number is None else float(number) for number in self]


class Total(NamedTuple):
    """What all ranks update from.

    Attributes:
        counted: label samples of all ranks, which clocks advance by.
        learned: label samples that this rank's gradients are now a sum over.
        averaged: whether these gradients are means over the samples instead of sums.
        sweeps: the fewest sweeps that any rank has seen the end of.
        ended: whether every rank's source has ended.
        summary: what this rank reports.
    """

    counted: int
    learned: int
    averaged: bool
    sweeps: float
    ended: bool
    summary: Summary

    @classmethod
    def of(cls, own: Contribution, rows: Sequence[Sequence[float]], learned: int | None = None) -> Total:
        """Add up contributions.

        Args:
            own: of this rank.
            rows: `Contribution.numbers` of every rank, by rank.
            learned: label samples in this rank's gradients; None: those of all ranks.
        """
        parts = [Contribution(*row) for row in rows]
        counted = round(sum(part.samples for part in parts))
        metric = None if own.metric_sum is None else sum(part.metric_sum for part in parts)
        summary = Summary(sum(part.loss_sum for part in parts), metric, counted) if counted else NOTHING
        return cls(
            counted,
            counted if learned is None else learned,
            False,
            min(part.sweeps for part in parts),
            all(part.ended for part in parts),
            summary,
        )


class Decision(enum.Enum):
    """What becomes of the minibatches that the ranks have read, one each."""

    LEARN = enum.auto()
    PASS = enum.auto()
    END = enum.auto()


class Strategy:
    """How the ranks of a job learn together. The defaults are those of a trainer that learns alone.

    Attributes:
        solo: nobody else learns: empty minibatches can be skipped.
        exchanges_in_backward: the model exchanges gradients during its backward pass, so every rank has to make one.
        splits_sums: a session's running sums are of this rank's part; `summed` adds up those of all.
    """

    solo = False
    exchanges_in_backward = False
    splits_sums = False

    def session_ranks(self) -> Ranks:
        """Return the ranks that run a session of this trainer."""
        return Ranks()

    def join(self, model: torch.nn.Module, learners: Sequence[Any]) -> None:
        """Take over the model and its `Learner`s; called once, by the trainer.

        Raises:
            ValueError: the learners do not all learn together in one way.
        """

    def partition(self, samples: int) -> tuple[int, int] | None:
        """Return the part of a minibatch that this rank reads after so many label samples; None: as sources do."""
        return None

    def scale(self, samples: int) -> int:
        """Return the factor on the size of a minibatch after so many label samples."""
        return 1

    def decide(self, minibatch: Minibatch) -> Decision:
        """Decide what all ranks do with the minibatches that they have read."""
        return Decision.LEARN if minibatch else Decision.END

    def step(self) -> AbstractContextManager[None]:
        """Open a block with `reduce` and the update, which all ranks make or none."""
        return contextlib.nullcontext()

    def reduce(self, own: Contribution) -> Total:
        """Sum gradients over ranks, in the parameters' ``.grad``; call it within a `step`."""
        counted = int(own.samples)
        summary = Summary(own.loss_sum, own.metric_sum, counted) if counted else NOTHING
        return Total(counted, counted, False, own.sweeps, bool(own.ended), summary)

    def settle(self, saving: bool = False) -> None:
        """Make the models of all ranks equal; before ``saving``, forget what a checkpoint does not keep."""

    def summed(self, summary: Summary) -> Summary:
        """Return the sums of all ranks, given a session's running sums on this one."""
        return summary

    def accumulating(self) -> AbstractContextManager[None]:
        """Open a block with a backward pass before the last one of a minibatch."""
        return contextlib.nullcontext()

    def backward_of_nothing(self) -> None:
        """Take part in the exchange of gradients without a sample."""

    def evaluating(self) -> AbstractContextManager[None]:
        """Open a block in which this rank runs the model without the others."""
        return contextlib.nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps in addition to model and learners: JSON types, and ``"tensors"``."""
        return {}

    def checked(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """Check a state and return a function that loads it.

        Raises:
            StateError: the state does not fit; nothing has changed.
        """
        if state:
            raise StateError(
                "expected the state of a trainer that learns alone", saved={"workers": state.get("way")}, current={}
            )
        return _nothing


class Alone(Strategy):
    """The strategy of a trainer whose learners learn with nobody else."""

    solo = True


def _nothing() -> None:
    """Load nothing."""
