"""FSAdaGrad: momentum over gradients that are brought to a common size, element by element.

Momentum is kept as weighted mean and weight, as in `momentum_sgd`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from feedline.train.learner import Learner, Step
from feedline.train.parameters import ParameterGroup
from feedline.train.rules.adam import VARIANCE_MOMENTUM, smooth_squares
from feedline.train.rules.momentum_sgd import smooth
from feedline.train.schedules import Schedule, Values, momentum_schedule

#: Gradients are made larger by this much at most.
LIMIT = 10.0


class FSAdaGrad(Learner):
    """FSAdaGrad: ``v = V v + (1 - V) gradient²``, ``c = V c + (1 - V) samples``,
    ``s = M s + u gradient * min(sqrt(c) / sqrt(v), 10)``, then ``w -= rate s``.

    Args:
        parameters: as of `Learner`.
        lr: as of `Learner`.
        momentum: M, 0 to 1; 0: no momentum, and u = 1.
        variance_momentum: V, 0 to 1, but not 1. The default counts samples, as `Schedule.time_constant` does.
        unit_gain: u = 1 - M; otherwise u = 1.
        options: further arguments of `Learner`.

    Raises:
        ValueError: an argument out of its range; what `Learner` raises.
    """

    rule = "fsadagrad"
    tensors = ("mean", "variance")
    numbers = ("count", "weight")

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: Schedule | Values,
        momentum: Schedule | Values = 0.9,
        variance_momentum: Schedule | Values = VARIANCE_MOMENTUM,
        *,
        unit_gain: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(parameters, lr, **options)
        self._momentum = momentum_schedule("momentum", momentum)
        self._variance = momentum_schedule("variance_momentum", variance_momentum, below_one=True)
        self._unit_gain = bool(unit_gain)

    def _apply(self, batch: ParameterGroup, step: Step) -> tuple[float, ...]:
        count, weight = batch.numbers
        mean, variance = batch.state
        momentum = self._momentum.momentum(step.position, step.samples)
        decay = self._variance.momentum(step.position, step.samples)
        count = decay * count + (1.0 - decay) * step.samples
        smooth_squares(variance, decay, batch, step)
        scaled = torch._foreach_sqrt(variance)
        torch._foreach_reciprocal_(scaled)  # infinite where there never was a gradient: clamped, times 0
        torch._foreach_mul_(scaled, math.sqrt(count))
        torch._foreach_clamp_max_(scaled, LIMIT)
        torch._foreach_mul_(scaled, batch.gradients)
        if momentum > 0:
            gain = step.scale * (1.0 - momentum if self._unit_gain else 1.0)
            weight = smooth(mean, weight, momentum, scaled, gain)
            torch._foreach_add_(batch.parameters, mean, alpha=-step.rate * weight)
        else:
            torch._foreach_add_(batch.parameters, scaled, alpha=-step.rate * step.scale)
        return count, weight
