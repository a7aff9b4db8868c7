"""`Learner` and `UserLearner`, over `feedline.train.Learner`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from feedline.cntk._criterion import tensors_of
from feedline.cntk.core import NDArrayView
from feedline.cntk.learners._schedules import IGNORE, TrainingParameterSchedule, taken_over
from feedline.cntk.variables import Parameter
from feedline.train.learner import Learner as Modern
from feedline.train.learner import Step
from feedline.train.parameters import ParameterGroup


class Learner:
    """Updates parameters; made by the functions of this module.

    Args:
        modern: the feedline learner beneath.
        minibatch_size: as given to the function, after older options; None: not given.
        momentum: reported with the learning rate; None: not reported.
        reports: whether it reports numbers at all.
        parameters: as the script gave them; None: the tensors.

    Attributes:
        modern: see above.
    """

    def __init__(
        self,
        modern: Modern,
        minibatch_size: int | None = None,
        momentum: TrainingParameterSchedule | None = None,
        reports: bool = True,
        parameters: Iterable[Any] | None = None,
    ) -> None:
        self.modern = modern
        tensors = modern.parameters.values()
        given = tensors if parameters is None else parameters
        self._parameters = tuple(p if isinstance(p, Parameter) else t for p, t in zip(given, tensors, strict=True))
        # From now on the schedule is in the state, and a checkpoint's takes the place of the one in the script.
        modern.reset_learning_rate(modern.lr)
        self._size, self._momentum, self._reports = minibatch_size, momentum, reports
        self._reported: dict[str, float] = {}

    @property
    def parameters(self) -> tuple[Any, ...]:
        """What it updates: parameters of functions, or tensors."""
        return self._parameters

    @property
    def minibatch_size(self) -> int:
        """The reference size given to it, in samples; `IGNORE`: none."""
        return self._size or IGNORE

    def is_compatible_mode(self) -> bool:
        """Whether the rule sees mean gradients: ``minibatch_size=IGNORE`` was given, or ``use_mean_gradient``."""
        return self._size == IGNORE

    def learning_rate(self) -> float:
        """The number that the schedule says for the next update."""
        return self.modern.learning_rate()

    @property
    def _learning_rate_schedule(self) -> TrainingParameterSchedule:
        return TrainingParameterSchedule(self.modern.lr, True)

    def reset_learning_rate(self, learning_rate: TrainingParameterSchedule) -> None:
        """Go on with another schedule, whose count 0 is the present.

        Raises:
            ValueError: not a schedule, or a negative rate.
        """
        if not isinstance(learning_rate, TrainingParameterSchedule):
            raise ValueError(
                f"expected a schedule, got {type(learning_rate).__name__}; see learning_parameter_schedule"
            )
        self.modern.reset_learning_rate(taken_over(learning_rate, self._size, None).modern)

    def total_number_of_samples_seen(self) -> int:
        """Samples that it has learned from."""
        return self.modern.samples

    def update(
        self, gradient_values: Mapping[Any, Any], training_sample_count: int, is_sweep_end: bool = False
    ) -> bool:
        """One update.

        Args:
            gradient_values: for each parameter the sum of the gradients over the samples: an array, tensor or
                `NDArrayView` of its shape.
            training_sample_count: samples in the minibatch.
            is_sweep_end: whether the minibatch touches or crosses the end of a sweep.

        Returns:
            False, with nothing changed, if the learning rate is 0.

        Raises:
            ValueError: no sample, no gradient for a parameter, or one of another shape.
        """
        missing = sum(parameter not in gradient_values for parameter in self.parameters)
        if missing:
            raise ValueError(f"expected a gradient for each of {len(self.parameters)} parameters, {missing} have none")
        pairs = zip(self.parameters, self.modern.parameters.values(), strict=True)
        gradients = [_tensor(gradient_values[parameter], tensor) for parameter, tensor in pairs]
        return self.modern.update(training_sample_count, gradients, sweep_end=is_sweep_end)

    def changed(self) -> list[tuple[str, float]]:
        """Numbers of the next update that were not told yet, under CNTK's names, such as rate and momentum."""
        if not self._reports:
            return []
        now = [("Learning rate", self.learning_rate(), self.modern.lr.reference)]
        if self._momentum is not None:
            schedule = self._momentum.modern
            now.append(("Momentum", schedule[self.modern.position], schedule.reference))
        found = []
        for name, value, reference in now:
            if self._reported.get(name) != value:
                self._reported[name] = value
                found.append((f"{name} per {'minibatch' if reference is None else f'{reference} samples'}", value))
        return found


class UserLearner(Learner):
    """Base class of learners in Python: override `update`.

    Args:
        parameters: of a function, tensors, or (name, tensor) pairs.
        lr_schedule: kept for `learning_rate`; the update uses it or not. If it says 0, there is no update.
        as_numpy: gradients come as NumPy arrays; otherwise as tensors.

    Raises:
        ValueError: no parameter, or the same twice.
    """

    def __init__(
        self, parameters: Iterable[Any], lr_schedule: TrainingParameterSchedule, as_numpy: bool = True
    ) -> None:
        self.as_numpy = as_numpy
        given = list(parameters)
        rule = _OwnRule(self, tensors_of(given), taken_over(lr_schedule, None, None).modern)
        super().__init__(rule, reports=False, parameters=given)
        self._by_tensor = dict(zip(rule.parameters.values(), self.parameters, strict=True))

    def update(self, gradient_values: Mapping[Any, Any], training_sample_count: int, sweep_end: bool = False) -> bool:
        """Update the parameters, in place; called without autograd.

        Args:
            gradient_values: for each parameter that has one the sum of the gradients over the samples.
            training_sample_count: samples in the minibatch.
            sweep_end: whether the minibatch touches or crosses the end of a sweep.

        Returns:
            False to end the learning.
        """
        raise NotImplementedError("define update(gradient_values, training_sample_count, sweep_end)")


class _OwnRule(Modern):
    """Hands gradients to a `UserLearner`, and counts what it has learned from."""

    rule = "user"
    whole = True

    def __init__(self, owner: UserLearner, parameters: Iterable[Any], lr: Any) -> None:
        super().__init__(parameters, lr, gradients="sum")
        self._owner, self._sweep_end, self._went_on = owner, False, True

    def update(self, samples: int, gradients: Any = None, *, sweep_end: bool = False, averaged: bool = False) -> bool:
        counts = self.samples, self.minibatches, self.sweeps
        self._sweep_end = sweep_end
        if not super().update(samples, gradients, sweep_end=sweep_end, averaged=averaged):
            return False
        if not self._went_on:
            self.samples, self.minibatches, self.sweeps = counts
        return self._went_on

    def _apply(self, batch: ParameterGroup, step: Step) -> tuple[float, ...]:
        summed = batch.gradients if step.scale == 1.0 else torch._foreach_mul(batch.gradients, step.scale)
        given = [gradient.cpu().numpy() for gradient in summed] if self._owner.as_numpy else summed
        named = [self._owner._by_tensor[tensor] for tensor in batch.parameters]
        values = dict(zip(named, given, strict=True))
        self._went_on = self._owner.update(values, step.samples, self._sweep_end) is not False
        return batch.numbers


def _tensor(value: Any, like: torch.Tensor) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    array = value.asarray() if isinstance(value, NDArrayView) else value
    return torch.as_tensor(np.asarray(array), dtype=like.dtype, device=like.device)
