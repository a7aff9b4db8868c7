"""AdaGrad: each element's rate falls with the squares of its gradients so far."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from feedline.train.learner import Learner, Step
from feedline.train.schedules import Schedule, Values
from feedline.updates import Formula, formulas

FLOOR = 1e-16


class AdaGrad(Learner):
    """AdaGrad: ``a += gradient²``, then ``w -= rate / k * gradient / sqrt(a + 1e-16)``.

    Args:
        parameters: as of `Learner`.
        lr: as of `Learner`.
        average: k is the mean of ``1 / sqrt(a + 1e-16)`` over each parameter, so that the rate means what it does in
            gradient descent; otherwise k = 1, as in `torch.optim.Adagrad`.
        options: further arguments of `Learner`.

    Raises:
        ValueError: what `Learner` raises.
    """

    rule = "adagrad"
    tensors = ("squares",)

    def __init__(
        self, parameters: Iterable[Any], lr: Schedule | Values, *, average: bool = True, **options: Any
    ) -> None:
        super().__init__(parameters, lr, **options)
        self._average = bool(average)

    def _formula(self, numbers: tuple[float, ...], step: Step, dtype: torch.dtype) -> tuple[Formula, tuple[float, ...]]:
        fresh, along = step.scale**2, -step.rate * step.scale
        if self._average:
            return formulas.AveragedAdaGradFormula(fresh, FLOOR, along), numbers
        return formulas.AdaGradFormula(1.0, fresh, FLOOR, 1.0, along), numbers
