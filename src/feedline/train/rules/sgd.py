"""Plain stochastic gradient descent: ``w -= rate * gradient``. One pass over memory; a sparse one costs its rows."""

from __future__ import annotations

import torch

from feedline.train.learner import Learner, Step
from feedline.train.parameters import ParameterGroup


class SGD(Learner):
    """Stochastic gradient descent without state; takes sparse gradients too. Arguments: `Learner`."""

    rule = "sgd"
    takes_sparse = True

    def _apply(self, batch: ParameterGroup, step: Step) -> tuple[float, ...]:
        torch._foreach_add_(batch.parameters, batch.gradients, alpha=-step.rate * step.scale)
        return batch.numbers
