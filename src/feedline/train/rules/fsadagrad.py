"""FSAdaGrad: momentum over gradients that are brought to a common size, element by element.

Momentum is kept as weighted mean and weight, as in `momentum_sgd`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from feedline.train.learner import Learner, Step
from feedline.train.rules.adam import VARIANCE_MOMENTUM, smoothing_squares
from feedline.train.rules.momentum_sgd import smoothing
from feedline.train.schedules import Schedule, Values, momentum_schedule
from feedline.updates import Formula, formulas

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

    def _formula(self, numbers: tuple[float, ...], step: Step, dtype: torch.dtype) -> tuple[Formula, tuple[float, ...]]:
        count, weight = numbers
        momentum = self._momentum.momentum(step.position, step.samples)
        decay = self._variance.momentum(step.position, step.samples)
        count = decay * count + (1.0 - decay) * step.samples
        if momentum > 0:
            gain = step.scale * (1.0 - momentum if self._unit_gain else 1.0)
            weight, keep, fresh = smoothing(weight, momentum, gain, dtype)
            along, ahead = -step.rate * weight, 0.0
        else:
            keep, fresh, along, ahead = 1.0, 0.0, 0.0, -step.rate * step.scale
        squares = smoothing_squares(decay, step, dtype)
        formula = formulas.FSAdaGradFormula(*squares, math.sqrt(count), LIMIT, keep, fresh, along, ahead)
        return formula, (count, weight)
