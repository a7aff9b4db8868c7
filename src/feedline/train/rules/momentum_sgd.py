"""Gradient descent with momentum, the rate inside the momentum: a changed rate acts on new gradients alone.

What is kept is not the momentum s itself but the weighted mean of past gradients, and the sum of the weights: s is
their product. So it is brought up to date in one pass over memory, whatever rate, gain and scale are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from feedline.train.learner import Learner, Step
from feedline.train.schedules import Schedule, Values, momentum_schedule
from feedline.updates import Formula, complement, formulas


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

    def _formula(self, numbers: tuple[float, ...], step: Step, dtype: torch.dtype) -> tuple[Formula, tuple[float, ...]]:
        weight, keep, fresh = smoothing(numbers[0], *self._momentum_and_gain(step), dtype)
        return formulas.MomentumFormula(keep, fresh, -weight), (weight,)

    def _momentum_and_gain(self, step: Step) -> tuple[float, float]:
        """Return M, and what the gradients are multiplied by."""
        momentum = self._momentum.momentum(step.position, step.samples)
        return momentum, step.rate * step.scale * (1.0 - momentum if self._unit_gain else 1.0)


def smoothing(weight: float, momentum: float, gain: float, dtype: torch.dtype) -> tuple[float, float, float]:
    """``s = M s + gain gradient``, for an s that is kept as ``weight * mean``.

    Returns:
        The new weight; and what of the mean is kept, and how much of the gradient comes to it.
    """
    weight = momentum * weight + gain
    return weight, *complement(gain / weight if gain else 0.0, dtype)
