"""Adam and AdaMax: momentum, each element divided by the size of its own recent gradients.

Momentum is kept as weighted mean and weight, as in `momentum_sgd`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from feedline.train.learner import Learner, Step
from feedline.train.rules.momentum_sgd import smoothing
from feedline.train.schedules import Schedule, Values, at_least_zero, momentum_schedule
from feedline.updates import Formula, complement, formulas

#: CNTK's default for Adam and FSAdaGrad: a time constant of 720,000 samples.
VARIANCE_MOMENTUM = Schedule.time_constant(720_000)


class Adam(Learner):
    """Adam: ``v = V v + (1 - V) gradient²``, ``s = M s + u gradient``, then
    ``w -= rate * b * s / (sqrt(v) + epsilon)``, where b undoes the zeros that v and s start from.

    M and V are those of the minibatch: with a reference size they follow its size.

    Args:
        parameters: as of `Learner`.
        lr: as of `Learner`.
        momentum: M, 0 to 1, but not 1.
        variance_momentum: V, 0 to 1. The default counts samples, as `Schedule.time_constant` does.
        epsilon: at least 0.
        adamax: v is the decayed maximum of ``|gradient|``, and takes the place of the root.
        unit_gain: u = 1 - M, as published; otherwise u = 1.
        options: further arguments of `Learner`.

    Raises:
        ValueError: an argument out of its range; what `Learner` raises.
    """

    rule = "adam"
    tensors = ("mean", "variance")
    numbers = ("updates", "weight")

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: Schedule | Values,
        momentum: Schedule | Values = 0.9,
        variance_momentum: Schedule | Values = VARIANCE_MOMENTUM,
        *,
        epsilon: float = 1e-8,
        adamax: bool = False,
        unit_gain: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(parameters, lr, **options)
        self._momentum = momentum_schedule("momentum", momentum, below_one=True)
        self._variance = momentum_schedule("variance_momentum", variance_momentum)
        at_least_zero("epsilon", epsilon)
        self._epsilon, self._adamax, self._unit_gain = float(epsilon), bool(adamax), bool(unit_gain)

    def _formula(self, numbers: tuple[float, ...], step: Step, dtype: torch.dtype) -> tuple[Formula, tuple[float, ...]]:
        updates, weight = numbers
        updates += 1
        momentum = self._momentum.momentum(step.position, step.samples)
        decay = self._variance.momentum(step.position, step.samples)
        gain = step.scale * (1.0 - momentum if self._unit_gain else 1.0)
        weight, keep, fresh = smoothing(weight, momentum, gain, dtype)
        along = -step.rate * weight / (1.0 - momentum**updates)
        if self._adamax:
            return formulas.AdaMaxFormula(keep, fresh, decay, step.scale, self._epsilon, along), (updates, weight)
        along *= (1.0 - decay**updates) ** 0.5
        squares = smoothing_squares(decay, step, dtype)
        return formulas.AdamFormula(keep, fresh, *squares, 1.0, self._epsilon, along), (updates, weight)


def smoothing_squares(decay: float, step: Step, dtype: torch.dtype) -> tuple[float, float]:
    """``v = V v + (1 - V) gradient²``: what is kept of v, and how much of the given gradients' squares comes to it."""
    keep, fresh = complement(1.0 - decay, dtype)
    return keep, fresh * step.scale**2
