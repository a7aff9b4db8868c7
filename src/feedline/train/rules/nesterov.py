"""Nesterov's accelerated gradient: momentum, applied one step ahead."""

from __future__ import annotations

import torch

from feedline.train.learner import Step
from feedline.train.rules.momentum_sgd import MomentumSGD, smoothing
from feedline.updates import Formula, formulas


class Nesterov(MomentumSGD):
    """Nesterov's momentum: ``s = M s + rate u gradient``, then ``w -= M s + rate u gradient``.

    Arguments: `MomentumSGD`.
    """

    rule = "nesterov"

    def _formula(self, numbers: tuple[float, ...], step: Step, dtype: torch.dtype) -> tuple[Formula, tuple[float, ...]]:
        momentum, gain = self._momentum_and_gain(step)
        weight, keep, fresh = smoothing(numbers[0], momentum, gain, dtype)
        return formulas.MomentumFormula(keep, fresh, -momentum * weight, -gain), (weight,)
