"""Validation and test of a session: their sources, sizes, checks and passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from feedline.data import Minibatch, Position, Span
from feedline.feed.protocol import whole_number
from feedline.train.schedules import Schedule
from feedline.train.strategy import ExchangesInBackward
from feedline.train.summary import NO_SHARE, NOTHING, Summary, plus, sum_over_ranks
from feedline.train.trainer import Trainer

Size = int | Schedule


class SessionSource(Protocol):
    """Source of a session: a `MinibatchSource`, or a user-defined one."""

    @property
    def is_infinite(self) -> bool:
        """Whether the source never ends."""

    def next_minibatch(self, size: int, partition: tuple[int, int] | None = None) -> Minibatch:
        """Read the next minibatch, false at the end: this rank's part, or the part of ``partition``."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Result of a validation or test.

    Attributes:
        number: index of the evaluation, from 0.
        summary: sums over its label samples, empty without a source.
        minibatches: number of minibatches.
    """

    number: int
    summary: Summary
    minibatches: int


@dataclass(slots=True)
class Evaluation:
    """Settings of a validation or test.

    Args:
        source: finite source, read from its position and reset to it afterwards. None means that there is only a
            callback.
        every: span between validations. None means at the end only. Not for tests.
        size: minibatch size, or a schedule of it over the samples of one pass.
        max_samples: largest number of samples to evaluate on. None means all.
        callback: function called with `Evaluated`. If it returns False, the training ends. Not for tests.
    """

    source: SessionSource | None = None
    every: Span | None = None
    size: Size = 32
    max_samples: int | None = None
    callback: Callable[[Evaluated], bool | None] | None = None


def evaluate(trainer: Trainer, evaluation: Evaluation, number: int) -> Evaluated:
    """Evaluate the model of a trainer on the source of an evaluation, and reset the source. A collective call."""
    source, strategy = evaluation.source, trainer.strategy
    if source is None:
        return Evaluated(number, NOTHING, 0)
    strategy.sync_models()
    state = source.state_dict()
    total, minibatches, partition = NOTHING, 0, NO_SHARE
    try:
        with strategy.evaluating() if isinstance(strategy, ExchangesInBackward) else nullcontext():
            for minibatch in _minibatches(source, evaluation):
                total = plus(total, trainer.test_minibatch(minibatch))
                minibatches += 1
                partition = minibatch.partition
    finally:
        source.load_state_dict(state)
    return Evaluated(number, sum_over_ranks(strategy.session_ranks(), total, partition), minibatches)


def _minibatches(source: SessionSource, evaluation: Evaluation) -> Iterator[Minibatch]:
    samples, sizes, limit = 0, sizes_schedule(evaluation.size), evaluation.max_samples
    while limit is None or samples < limit:
        size = int(sizes[Position(0, 0, samples, samples)])
        if limit is not None:
            size = min(size, limit - samples)
        minibatch = source.next_minibatch(size) if size else None
        if not minibatch:
            return
        samples += minibatch.global_samples
        yield minibatch


def check_evaluation(name: str, evaluation: Evaluation | None, training: SessionSource) -> None:
    """Check an evaluation before the run. `TrainingSession` lists the errors."""
    if evaluation is None:
        return
    check_kind(name, evaluation, Evaluation, "such as Evaluation(source)")
    if evaluation.max_samples is not None:
        whole_number(f"max_samples of the {name}", evaluation.max_samples, 0)
    sizes_schedule(evaluation.size)
    if evaluation.source is None:
        if evaluation.callback is None:
            raise ValueError(f"expected a source or a callback for the {name}, got neither")
    elif evaluation.source is training:
        raise ValueError(f"expected a separate source for the {name}, got the training source")
    elif evaluation.source.is_infinite and evaluation.max_samples is None:
        raise ValueError(f"expected a {name} source that ends, or max_samples, got neither")
    else:
        check_resumes(name, evaluation.source, "otherwise it could not be reset afterwards")


def check_resumes(name: str, source: SessionSource, otherwise: str) -> None:
    """Raise ValueError for a source that cannot be resumed."""
    if not getattr(source, "resumes", True):
        raise ValueError(
            f"expected a {name} source that can be resumed, got {type(source).__name__}, which cannot: define "
            f"get_checkpoint_state and restore_from_checkpoint; {otherwise}"
        )


def check_kind(name: str, value: Any, kind: type | tuple[str, ...], expected: str) -> None:
    """Raise TypeError for an argument that is not an instance of ``kind``, or lacks attributes. None is accepted."""
    fits = isinstance(value, kind) if isinstance(kind, type) else all(hasattr(value, method) for method in kind)
    if not fits and (value is not None or not isinstance(kind, type)):
        raise TypeError(f"expected {name} to be {expected}, got {value!r:.80}")


def sizes_schedule(size: Size) -> Schedule:
    """Return minibatch sizes as a schedule."""
    if not isinstance(size, Schedule):
        return Schedule.sizes(size)
    single = len(size.steps) == 1
    return Schedule.sizes(size.steps[0][1] if single else size.steps, epoch_size=None if single else size.epoch_size)
