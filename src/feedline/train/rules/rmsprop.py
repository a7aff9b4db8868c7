"""RMSProp as CNTK has it: gradients over their root mean square, times a step that each element finds for itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from feedline.train.learner import Learner, Step
from feedline.train.schedules import Schedule, Values
from feedline.updates import Formula, formulas

FLOOR = 1e-6
FIRST_STEP = 0.02


class RMSProp(Learner):
    """RMSProp with a step an element: it grows while the gradient keeps its sign, and shrinks otherwise.

    ``v = gamma v + (1 - gamma) gradient²`` (from the first gradient's square on);
    ``step = min(step * inc, max)`` where the sign is that of the update before, ``max(step * dec, min)`` elsewhere
    (from 0.02 on); then ``w -= rate / k * gradient * step / sqrt(v + 1e-6)``.

    Args:
        parameters: as of `Learner`.
        lr: as of `Learner`.
        gamma: decay of v a minibatch, between 0 and 1.
        inc: above 1.
        dec: between 0 and 1.
        max: largest step, above ``min``.
        min: smallest step, above 0.
        average: k is the mean of ``step / sqrt(v + 1e-6)`` over each parameter, so that the rate means what it does
            in gradient descent; otherwise k = 1.
        options: further arguments of `Learner`.

    Raises:
        ValueError: an argument out of its range; what `Learner` raises.
    """

    rule = "rmsprop"
    tensors = ("variance", "steps", "signs")
    numbers = ("updates",)

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: Schedule | Values,
        *,
        gamma: float = 0.95,
        inc: float = 1.2,
        dec: float = 0.7,
        max: float = 10.0,
        min: float = 1e-8,
        average: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(parameters, lr, **options)
        if not 0 < gamma < 1:
            raise ValueError(f"expected gamma to be between 0 and 1, got {gamma}")
        if not inc > 1:
            raise ValueError(f"expected inc to be above 1, got {inc}")
        if not 0 < dec < 1:
            raise ValueError(f"expected dec to be between 0 and 1, got {dec}")
        if not 0 < min < max:
            raise ValueError(f"expected 0 < min < max, got min {min} and max {max}")
        self._gamma, self._inc, self._dec = float(gamma), float(inc), float(dec)
        self._max, self._min, self._average = float(max), float(min), bool(average)

    def _formula(self, numbers: tuple[float, ...], step: Step, dtype: torch.dtype) -> tuple[Formula, tuple[float, ...]]:
        (updates,) = numbers
        kind = formulas.AveragedRMSPropFormula if self._average else formulas.RMSPropFormula
        formula = kind(
            first=1.0 if updates == 0 else 0.0,
            start=step.scale**2,
            first_step=FIRST_STEP,
            keep=self._gamma,
            fresh=(1.0 - self._gamma) * step.scale**2,
            grow=self._inc,
            most=self._max,
            lessen=self._dec,
            least=self._min,
            floor=FLOOR,
            along=-step.rate * step.scale,
        )
        return formula, (updates + 1,)
