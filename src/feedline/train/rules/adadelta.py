"""AdaDelta: steps measured in units of the steps before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from feedline.train.learner import Learner, Step
from feedline.train.schedules import Schedule, Values
from feedline.updates import Formula, formulas


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

    def _formula(self, numbers: tuple[float, ...], step: Step, dtype: torch.dtype) -> tuple[Formula, tuple[float, ...]]:
        fresh = (1.0 - self._rho) * step.scale**2
        return formulas.AdaDeltaFormula(self._rho, fresh, self._epsilon, 1.0, -step.rate * step.scale), numbers
