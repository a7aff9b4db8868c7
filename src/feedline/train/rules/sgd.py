"""Plain stochastic gradient descent: ``w -= rate * gradient``. One pass over memory; a sparse one costs its rows."""

from __future__ import annotations

import torch

from feedline.train.learner import Learner, Step
from feedline.updates import Formula, formulas


class SGD(Learner):
    """Stochastic gradient descent without state; takes sparse gradients too. Arguments: `Learner`."""

    rule = "sgd"
    takes_sparse = True

    def _formula(self, numbers: tuple[float, ...], step: Step, dtype: torch.dtype) -> tuple[Formula, tuple[float, ...]]:
        return formulas.StepFormula(-step.rate * step.scale), numbers
