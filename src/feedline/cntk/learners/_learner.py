"""`Learner` and `UserLearner`, over `feedline.train.Learner`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from feedline.cntk._criterion import tensors_of
from feedline.cntk._names import absent_members
from feedline.cntk.core import NDArrayView
from feedline.cntk.learners._schedules import IGNORE, TrainingParameterSchedule, as_schedule
from feedline.cntk.variables import Parameter
from feedline.train.learner import Learner as Modern
from feedline.train.learner import Step
from feedline.train.parameters import ParameterGroup


@absent_members("cntk.learners")
class Learner:
    """A learner, created by the functions of this module.

    Args:
        modern: underlying feedline learner.
        minibatch_size: reference size in samples, or None if the script did not set it.
        momentum: momentum to report with the learning rate, or None.
        reports: whether it reports numbers.
        parameters: parameters as the script passed them. None means the tensors.

    Attributes:
        modern: underlying feedline learner.
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
        originals = tensors if parameters is None else parameters
        self._parameters = tuple(p if isinstance(p, Parameter) else t for p, t in zip(originals, tensors, strict=True))
        # The schedule becomes a part of the state, so that a checkpoint's schedule replaces the script's.
        modern.reset_learning_rate(modern.lr)
        self._size, self._momentum, self._reports = minibatch_size, momentum, reports
        self._reported: dict[str, float] = {}

    ignored_minibatch_size = IGNORE

    parameters = property(attrgetter("_parameters"), doc="Parameters to update: parameters of functions, or tensors.")

    @property
    def minibatch_size(self) -> int:
        """Reference size in samples, or `IGNORE`. A new value counts for later schedules."""
        return self._size or IGNORE

    @minibatch_size.setter
    def minibatch_size(self, size: int | None) -> None:
        self._size = None if size is None else int(size)

    def create_checkpoint(self) -> dict[str, Any]:
        """Return a copy of the learner's state: its counts, its schedule, the seed of its noise, and tensors."""
        state = self.modern.state_dict()
        tensors = {name: tensor.detach().clone() for name, tensor in state["tensors"].items()}
        return {**state, "tensors": tensors, "noise_seed": self.modern.seed}

    def restore_from_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        """Restore a state from `create_checkpoint`.

        Raises:
            StateError: the state of another rule, or of other parameters.
        """
        state = dict(checkpoint)
        seed = state.pop("noise_seed", self.modern.seed)
        self.modern.load_state_dict(state)
        self.modern.seed = int(seed)

    def is_compatible_mode(self) -> bool:
        """Return whether the rule uses mean gradients: with ``minibatch_size=IGNORE`` or ``use_mean_gradient``."""
        return self._size == IGNORE

    def learning_rate(self) -> float:
        """Return the scheduled learning rate of the next update."""
        return self.modern.learning_rate()

    @property
    def _learning_rate_schedule(self) -> TrainingParameterSchedule:
        return TrainingParameterSchedule(self.modern.lr, True)

    def reset_learning_rate(self, learning_rate: TrainingParameterSchedule) -> None:
        """Replace the schedule. The new schedule starts at the present position.

        Raises:
            ValueError: not a schedule, or a negative rate.
        """
        if not isinstance(learning_rate, TrainingParameterSchedule):
            raise ValueError(
                f"expected a schedule, got {type(learning_rate).__name__}; see learning_parameter_schedule"
            )
        self.modern.reset_learning_rate(as_schedule(learning_rate, self._size, None).modern)

    def total_number_of_samples_seen(self) -> int:
        """Return the number of samples that it has learned from."""
        return self.modern.samples

    def total_number_of_minibatches_seen(self) -> int:
        """Return the number of minibatches that it has learned from."""
        return self.modern.minibatches

    def total_number_of_sweeps_seen(self) -> int:
        """Return the number of minibatches that touched the end of a sweep."""
        return self.modern.sweeps

    def update(
        self, gradient_values: Mapping[Any, Any], training_sample_count: int, is_sweep_end: bool = False
    ) -> bool:
        """Update the parameters.

        Args:
            gradient_values: sum of gradients over the samples for each parameter: an array, tensor or `NDArrayView` of
                its shape.
            training_sample_count: number of samples in the minibatch.
            is_sweep_end: whether the minibatch contains the end of a sweep.

        Returns:
            False, with nothing changed, if the learning rate is 0.

        Raises:
            ValueError: no samples, no gradient for a parameter, or a gradient of another shape.
        """
        missing = sum(parameter not in gradient_values for parameter in self.parameters)
        if missing:
            raise ValueError(
                f"expected a gradient for each of {len(self.parameters)} parameters, got none for {missing} of them"
            )
        pairs = zip(self.parameters, self.modern.parameters.values(), strict=True)
        gradients = [_tensor(gradient_values[parameter], tensor) for parameter, tensor in pairs]
        return self.modern.update(training_sample_count, gradients, sweep_end=is_sweep_end)

    def changed(self) -> list[tuple[str, float]]:
        """Return numbers of the next update that changed since the last report, under CNTK's names."""
        if not self._reports:
            return []
        now = [("Learning rate", self.learning_rate(), self.modern.lr.reference)]
        if self._momentum is not None:
            schedule = self._momentum.modern
            now.append(("Momentum", schedule[self.modern.position], schedule.reference))
        changes = []
        for name, value, reference in now:
            if self._reported.get(name) != value:
                self._reported[name] = value
                changes.append((f"{name} per {'minibatch' if reference is None else f'{reference} samples'}", value))
        return changes


class _Parameters(tuple[Any, ...]):
    """Parameters of a `UserLearner`, where CNTK has a method."""

    def __call__(self) -> _Parameters:
        return self


class UserLearner(Learner):
    """Base class of user-defined learners, which override `update`.

    Args:
        parameters: parameters of a function, tensors, or (name, tensor) pairs.
        lr_schedule: schedule of `learning_rate`, which the update may use. There is no update where it is 0.
        as_numpy: whether gradients are NumPy arrays, or tensors.

    Raises:
        ValueError: no parameters, or a repeated parameter.
    """

    def __init__(
        self, parameters: Iterable[Any], lr_schedule: TrainingParameterSchedule, as_numpy: bool = True
    ) -> None:
        self.as_numpy = as_numpy
        parameters = list(parameters)
        rule = _OwnRule(self, tensors_of(parameters), as_schedule(lr_schedule, None, None).modern)
        super().__init__(rule, reports=False, parameters=parameters)
        self._parameters = _Parameters(self._parameters)
        self._by_tensor = dict(zip(rule.parameters.values(), self.parameters, strict=True))

    def update(self, gradient_values: Mapping[Any, Any], training_sample_count: int, sweep_end: bool = False) -> bool:
        """Update the parameters in place. It is called without autograd.

        Args:
            gradient_values: sum of gradients over the samples, for each parameter that has a gradient.
            training_sample_count: number of samples in the minibatch.
            sweep_end: whether the minibatch contains the end of a sweep.

        Returns:
            False to end the training.
        """
        raise NotImplementedError("define update(gradient_values, training_sample_count, sweep_end)")


class _OwnRule(Modern):
    """Adapter that passes gradients to a `UserLearner`, and counts samples."""

    rule = "user"
    whole = True

    def __init__(self, owner: UserLearner, parameters: Iterable[Any], lr: Any) -> None:
        super().__init__(parameters, lr, gradients="sum")
        self._owner, self._sweep_end, self._continues = owner, False, True

    def update(self, samples: int, gradients: Any = None, *, sweep_end: bool = False, averaged: bool = False) -> bool:
        counts = self.samples, self.minibatches, self.sweeps
        self._sweep_end = sweep_end
        if not super().update(samples, gradients, sweep_end=sweep_end, averaged=averaged):
            return False
        if not self._continues:
            self.samples, self.minibatches, self.sweeps = counts
        return self._continues

    def _apply(self, batch: ParameterGroup, step: Step) -> tuple[float, ...]:
        arrays = [gradient.cpu().numpy() for gradient in batch.gradients] if self._owner.as_numpy else batch.gradients
        named = [self._owner._by_tensor[tensor] for tensor in batch.parameters]
        values = dict(zip(named, arrays, strict=True))
        self._continues = self._owner.update(values, step.samples, self._sweep_end) is not False
        return batch.numbers


def _tensor(value: Any, like: torch.Tensor) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    array = value.asarray() if isinstance(value, NDArrayView) else value
    tensor = torch.as_tensor(np.asarray(array), dtype=like.dtype, device=like.device)
    # As in CNTK, axes of length 1 are optional.
    same = tuple(n for n in tensor.shape if n != 1) == tuple(n for n in like.shape if n != 1)
    return tensor.reshape(like.shape) if same else tensor
