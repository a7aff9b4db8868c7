"""The interface of strategies, by which learners of several ranks train together, and the strategy of a single rank.

In a step, each rank computes gradients of its part of the minibatch, `Strategy.reduce` sums them in place and returns a
`Total`, which is the same on every rank, and each rank makes the same update from it. The strategies for several ranks
are in `feedline.train.distributed`.
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
from feedline.errors import StoreError
from feedline.train.summary import NOTHING, Summary


class Contribution(NamedTuple):
    """Numbers of a rank's part of a step, sent to the other ranks.

    Attributes:
        samples: number of label samples, over which its gradients are summed.
        loss_sum: sum of the loss over these samples.
        metric_sum: sum of the metric over these samples. None without a metric.
        sweeps: number of sweeps whose end the rank has reached, infinite once it has run out of data.
        ended: whether its source has ended.
        share, shares: the partition of its minibatch, an index of -1 at the end of its source.
    """

    samples: float
    loss_sum: Any
    metric_sum: Any
    sweeps: float
    ended: float
    share: float
    shares: float

    def numbers(self) -> list[float]:
        """Return the fields as floats, in their order. Waits for the device."""
        return [0.0 if number is None else float(number) for number in self]


class Total(NamedTuple):
    """Sums from which all ranks update.

    Attributes:
        counted: label samples of all ranks, by which clocks advance.
        learned: label samples over which this rank's gradients are now summed.
        averaged: whether these gradients are means over the samples instead of sums.
        sweeps: smallest number of sweeps whose end a rank has reached.
        ended: whether every rank's source has ended.
        summary: sums that this rank reports.
    """

    counted: int
    learned: int
    averaged: bool
    sweeps: float
    ended: bool
    summary: Summary

    @classmethod
    def of(cls, contribution: Contribution, rows: Sequence[Sequence[float]], learned: int | None = None) -> Total:
        """Sum contributions.

        Args:
            contribution: contribution of this rank.
            rows: `Contribution.numbers` of every rank, by rank.
            learned: label samples in this rank's gradients. None means the samples of all ranks.

        Raises:
            StoreError: ranks have the same share of a divided minibatch, so their gradients would count twice.
        """
        parts = [Contribution(*row) for row in rows]
        _check_own_shares(parts)
        counted = round(sum(part.samples for part in parts))
        metric = None if contribution.metric_sum is None else sum(part.metric_sum for part in parts)
        summary = Summary(sum(part.loss_sum for part in parts), metric, counted) if counted else NOTHING
        return cls(
            counted,
            counted if learned is None else learned,
            False,
            min(part.sweeps for part in parts),
            all(part.ended for part in parts),
            summary,
        )


def _check_own_shares(parts: Sequence[Contribution]) -> None:
    # Minibatches of partition (0, 1) may be of data that each rank has by itself.
    divided = [(part.share, part.shares) for part in parts if part.share >= 0 and part.shares > 1]
    if len(set(divided)) < len(divided):
        got = ", ".join(f"rank {r}: ({p.share:.0f}, {p.shares:.0f})" for r, p in enumerate(parts) if p.share >= 0)
        raise StoreError(
            f"expected a share of its own for each rank of the strategy, got {got}\n  pass the ranks that read "
            'different data, such as data_parallel(learner, group=mesh["dp"].get_group())'
        )


class Decision(enum.Enum):
    """Decision about the minibatches that the ranks have read, one each.

    Attributes:
        LEARN: train on them.
        PASS: skip them, as none has any sequence.
        SKIP: skip them, as a rank without sequences cannot take part.
        END: end the run.
    """

    LEARN = enum.auto()
    PASS = enum.auto()
    SKIP = enum.auto()
    END = enum.auto()


class Strategy:
    """How the ranks of a job train together. The defaults are for a trainer on a single rank.

    Some strategies have further features. They also derive from the classes of these features below, such as
    `ExchangesInBackward`.
    """

    def session_ranks(self) -> Ranks:
        """Return the ranks that run a session of this trainer."""
        return Ranks()

    def join(self, model: torch.nn.Module, learners: Sequence[Any]) -> None:
        """Receive the model and its learners. Called once, by the trainer.

        Raises:
            ValueError: the learners do not all have this strategy with the same settings.
        """

    def trains_on_parts(self, samples: int) -> bool:
        """Return whether, after ``samples`` label samples, each rank trains on its part of a minibatch alone."""
        return True

    def scale(self, samples: int) -> int:
        """Return the factor of the minibatch size after ``samples`` label samples."""
        return 1

    def decide(self, minibatch: Minibatch) -> Decision:
        """Decide what all ranks do with the minibatches that they have read. A false one is the end of its source."""
        return Decision.LEARN

    def prepare(self, minibatch: Minibatch) -> bool:
        """Prepare an update, before the forward pass. Return whether all ranks learn from the minibatch. Otherwise all
        skip it."""
        return True

    def step(self) -> AbstractContextManager[None]:
        """Open a block with `reduce` and the update. Either all ranks complete it, or none does."""
        return contextlib.nullcontext()

    def reduce(self, part: Contribution) -> Total:
        """Sum gradients over ranks, in the parameters' ``.grad``. Called within a `step`."""
        counted = int(part.samples)
        summary = Summary(part.loss_sum, part.metric_sum, counted) if counted else NOTHING
        return Total(counted, counted, False, part.sweeps, bool(part.ended), summary)

    def sync_models(self, saving: bool = False) -> None:
        """Make the models of all ranks equal. With ``saving``, also drop state that checkpoints do not contain."""


class Alone(Strategy):
    """Strategy of the only rank that learns, which skips empty minibatches."""


# ---- features of some strategies, checked with `isinstance` ---------------------------------------------------------


class ExchangesInBackward:
    """A strategy of a model that exchanges gradients in its backward pass, which every rank therefore has to make.

    The summary in its `Total` covers this rank's part alone.
    """

    def accumulating(self) -> AbstractContextManager[None]:
        """Open a block with a backward pass before the last one of a minibatch."""
        raise NotImplementedError

    def backward_without_data(self) -> None:
        """Take part in the exchange of gradients without any sample."""
        raise NotImplementedError

    def evaluating(self) -> AbstractContextManager[None]:
        """Open a block in which this rank runs the model without other ranks."""
        raise NotImplementedError


class HoldsParts:
    """A strategy of ranks that each hold a part of the model: forward passes and checkpoints need all of them."""

    def announce_pieces(self, count: int) -> None:
        """Announce the number of pieces in which this rank processes its part of a minibatch.

        Raises:
            ValueError: other ranks announce a number with which they cannot learn together.
        """
        raise NotImplementedError


class KeepsState:
    """A strategy that has a state itself, besides the states of model and learners."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint: JSON types, and ``"tensors"``."""
        return {}

    def checked(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """Check a state and return a function that loads it.

        Raises:
            StateError: the state does not fit. Nothing has changed.
        """
        raise NotImplementedError


class Overlapping:
    """A strategy that exchanges gradients while backward still runs: its `step` begins with the last backward pass."""

    def advice(self) -> dict[str, Any]:
        """Return data that makes a resumed run the same to the last bit: JSON types, and ``"tensors"``."""
        raise NotImplementedError

    def take_advice(self, advice: Mapping[str, Any]) -> None:
        """Adopt the `advice` of a checkpoint as far as it fits. It may be of another strategy.

        Raises:
            StateError: it is damaged.
        """
        raise NotImplementedError
