"""Adam and AdaMax: momentum, each element divided by the size of its own recent gradients.

Momentum is kept as weighted mean and weight, as in `momentum_sgd`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from feedline.train.learner import Learner, Step
from feedline.train.parameters import ParameterGroup
from feedline.train.rules.momentum_sgd import smooth
from feedline.train.schedules import Schedule, Values, at_least_zero, momentum_schedule

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

    def _apply(self, batch: ParameterGroup, step: Step) -> tuple[float, ...]:
        updates, weight = batch.numbers
        updates += 1
        mean, variance = batch.state
        momentum = self._momentum.momentum(step.position, step.samples)
        decay = self._variance.momentum(step.position, step.samples)
        unbias = 1.0 / (1.0 - momentum**updates)
        if self._adamax:
            torch._foreach_mul_(variance, decay)
            size = torch._foreach_abs(batch.gradients)
            if step.scale != 1.0:
                torch._foreach_mul_(size, step.scale)
            torch._foreach_maximum_(variance, size)
            del size  # its memory is taken again for the next line's
            below = torch._foreach_add(variance, self._epsilon)
        else:
            unbias *= (1.0 - decay**updates) ** 0.5
            smooth_squares(variance, decay, batch, step)
            below = torch._foreach_sqrt(variance)
            torch._foreach_add_(below, self._epsilon)
        gain = step.scale * (1.0 - momentum if self._unit_gain else 1.0)
        weight = smooth(mean, weight, momentum, batch.gradients, gain)
        torch._foreach_addcdiv_(batch.parameters, mean, below, value=-step.rate * unbias * weight)
        return updates, weight


def smooth_squares(variance: list[torch.Tensor], decay: float, batch: ParameterGroup, step: Step) -> None:
    """``v = V v + (1 - V) gradient²``.

    V may be so near 1 that float32 keeps few digits of 1 - V. The multiplication rounds V to float32 in any case;
    1 - V is made of the same rounded V, so that what is added is what was taken away.
    """
    if batch.dtype is torch.float32:
        decay = float(np.float32(decay))
    torch._foreach_mul_(variance, decay)
    torch._foreach_addcmul_(variance, batch.gradients, batch.gradients, value=(1.0 - decay) * step.scale**2)
