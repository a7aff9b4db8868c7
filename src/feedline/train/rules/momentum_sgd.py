"""Gradient descent with momentum, the rate inside the momentum: a changed rate acts on new gradients alone.

What is kept is not the momentum s itself but the weighted mean of past gradients, and the sum of the weights: s is
their product. So it is brought up to date in one pass over memory, whatever rate, gain and scale are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from feedline.train.learner import Learner, Step
from feedline.train.parameters import ParameterGroup, Tensors
from feedline.train.schedules import Schedule, Values, momentum_schedule


class MomentumSGD(Learner):
    """Gradient descent with momentum: ``s = M s + rate u gradient``, then ``w -= s``.

    Args:
        parameters: as of `Learner`.
        lr: as of `Learner`.
        momentum: M, 0 to 1; with a reference size it is carried over to each minibatch's size
            (`Schedule.momentum`), as `Schedule.time_constant` is.
        unit_gain: u = 1 - M, so that momentum smooths a constant gradient without making it larger; otherwise u = 1,
            as in `torch.optim.SGD`.
        options: further arguments of `Learner`.

    Raises:
        ValueError: a momentum outside 0 to 1; what `Learner` raises.
    """

    rule = "momentum_sgd"
    tensors = ("mean",)
    numbers = ("weight",)

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: Schedule | Values,
        momentum: Schedule | Values,
        *,
        unit_gain: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(parameters, lr, **options)
        self._momentum, self._unit_gain = momentum_schedule("momentum", momentum), bool(unit_gain)

    def _apply(self, batch: ParameterGroup, step: Step) -> tuple[float, ...]:
        (mean,) = batch.state
        weight, _, _ = self._smooth(mean, batch, step)
        torch._foreach_add_(batch.parameters, mean, alpha=-weight)
        return (weight,)

    def _smooth(self, mean: Tensors, batch: ParameterGroup, step: Step) -> tuple[float, float, float]:
        """Brings the mean up to date; returns its weight, M, and what the gradients are multiplied by."""
        (weight,) = batch.numbers
        momentum = self._momentum.momentum(step.position, step.samples)
        gain = step.rate * step.scale * (1.0 - momentum if self._unit_gain else 1.0)
        return smooth(mean, weight, momentum, batch.gradients, gain), momentum, gain


def smooth(mean: Tensors, weight: float, momentum: float, gradients: Tensors, gain: float) -> float:
    """``s = M s + gain gradient``, for an s that is kept as ``weight * mean``; returns the new weight."""
    weight = momentum * weight + gain
    torch._foreach_lerp_(mean, gradients, gain / weight if gain else 0.0)
    return weight
