"""How is it learned from? Numbers over the clock, and rules that update parameters by them.

Needs torch (the extra ``torch``).
"""

from feedline.train.learners import (
    SGD,
    AdaDelta,
    AdaGrad,
    Adam,
    FSAdaGrad,
    Learner,
    MomentumSGD,
    Nesterov,
    RMSProp,
    Step,
    TorchLearner,
    Universal,
)
from feedline.train.schedules import Schedule

__all__ = [
    "SGD",
    "AdaDelta",
    "AdaGrad",
    "Adam",
    "FSAdaGrad",
    "Learner",
    "MomentumSGD",
    "Nesterov",
    "RMSProp",
    "Schedule",
    "Step",
    "TorchLearner",
    "Universal",
]
