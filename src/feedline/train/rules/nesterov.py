"""Nesterov's accelerated gradient: momentum, applied one step ahead."""

from __future__ import annotations

import torch

from feedline.train.learner import Step
from feedline.train.parameters import ParameterGroup
from feedline.train.rules.momentum_sgd import MomentumSGD


class Nesterov(MomentumSGD):
    """Nesterov's momentum: ``s = M s + rate u gradient``, then ``w -= M s + rate u gradient``.

    Arguments: `MomentumSGD`.
    """

    rule = "nesterov"

    def _apply(self, batch: ParameterGroup, step: Step) -> tuple[float, ...]:
        (mean,) = batch.state
        weight, momentum, gain = self._smooth(mean, batch, step)
        torch._foreach_add_(batch.parameters, mean, alpha=-momentum * weight)
        torch._foreach_add_(batch.parameters, batch.gradients, alpha=-gain)
        return (weight,)
