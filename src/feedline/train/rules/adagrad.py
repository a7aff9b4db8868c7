"""AdaGrad: each element's rate falls with the squares of its gradients so far."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from feedline.train.learner import Learner, Step
from feedline.train.parameters import ParameterGroup
from feedline.train.schedules import Schedule, Values

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

    def _apply(self, batch: ParameterGroup, step: Step) -> tuple[float, ...]:
        (squares,) = batch.state
        torch._foreach_addcmul_(squares, batch.gradients, batch.gradients, value=step.scale**2)
        root = torch._foreach_add(squares, FLOOR)
        torch._foreach_sqrt_(root)
        if self._average:
            torch._foreach_reciprocal_(root)
            descend_on_average(batch, root, step.rate * step.scale)
        else:
            torch._foreach_addcdiv_(batch.parameters, batch.gradients, root, value=-step.rate * step.scale)
        return batch.numbers


def descend_on_average(batch: ParameterGroup, factors: list[torch.Tensor], rate: float) -> None:
    """``w -= rate * gradient * factor / mean(factor)``, the mean over each parameter; ``factors`` are used up."""
    means = torch._foreach_norm(factors, 1)  # factors are positive
    torch._foreach_div_(means, [float(max(factor.numel(), 1)) for factor in factors])
    torch._foreach_mul_(factors, batch.gradients)
    torch._foreach_div_(factors, means)
    torch._foreach_add_(batch.parameters, factors, alpha=-rate)
