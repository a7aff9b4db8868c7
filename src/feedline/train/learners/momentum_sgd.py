"""Gradient descent with momentum, the rate inside the momentum: a changed rate acts on new gradients alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from feedline.train.learners.base import Batch, Learner, Step, momentum_schedule
from feedline.train.schedules import Schedule, Values


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
    tensors = ("momentum",)

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

    def _apply(self, batch: Batch, step: Step) -> tuple[float, ...]:
        (smoothed,) = batch.state
        self._smooth(smoothed, batch, step)
        torch._foreach_sub_(batch.parameters, smoothed)
        return batch.numbers

    def _smooth(self, smoothed: list[torch.Tensor], batch: Batch, step: Step) -> tuple[float, float]:
        """Brings the state up to date; returns M and what gradients were multiplied by."""
        momentum = self._momentum.momentum(step.position, step.samples)
        gain = step.rate * step.scale * (1.0 - momentum if self._unit_gain else 1.0)
        torch._foreach_mul_(smoothed, momentum)
        torch._foreach_add_(smoothed, batch.gradients, alpha=gain)
        return momentum, gain
