"""AdaDelta: steps measured in units of the steps before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from feedline.train.learner import Learner, Step
from feedline.train.parameters import ParameterGroup
from feedline.train.schedules import Schedule, Values


class AdaDelta(Learner):
    """AdaDelta: ``a = rho a + (1 - rho) gradient²``, ``d = sqrt(x + epsilon) / sqrt(a + epsilon) * gradient``,
    ``x = rho x + (1 - rho) d²``, then ``w -= rate d``.

    Args:
        parameters: as of `Learner`.
        lr: as of `Learner`; 1 is the rule as published.
        rho: decay of both averages a minibatch, 0 to 1.
        epsilon: above 0.
        options: further arguments of `Learner`.

    Raises:
        ValueError: an argument out of its range; what `Learner` raises.
    """

    rule = "adadelta"
    tensors = ("squares", "steps")

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: Schedule | Values = 1.0,
        *,
        rho: float = 0.95,
        epsilon: float = 1e-8,
        **options: Any,
    ) -> None:
        super().__init__(parameters, lr, **options)
        if not epsilon > 0:
            raise ValueError(f"expected epsilon to be above 0, got {epsilon}")
        if not 0 <= rho <= 1:
            raise ValueError(f"expected rho to be between 0 and 1, got {rho}")
        self._rho, self._epsilon = float(rho), float(epsilon)

    def _apply(self, batch: ParameterGroup, step: Step) -> tuple[float, ...]:
        squares, steps = batch.state
        torch._foreach_mul_(squares, self._rho)
        new = (1.0 - self._rho) * step.scale**2
        torch._foreach_addcmul_(squares, batch.gradients, batch.gradients, value=new)
        root = torch._foreach_add(squares, self._epsilon)
        torch._foreach_sqrt_(root)
        delta = torch._foreach_add(steps, self._epsilon)
        torch._foreach_sqrt_(delta)
        torch._foreach_div_(delta, root)
        torch._foreach_mul_(delta, batch.gradients)
        # The scale of `delta` is left to the scalars of its two uses.
        torch._foreach_mul_(steps, self._rho)
        torch._foreach_addcmul_(steps, delta, delta, value=new)
        torch._foreach_add_(batch.parameters, delta, alpha=-step.rate * step.scale)
        return batch.numbers
