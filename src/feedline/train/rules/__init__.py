"""How are parameters updated? One file per rule; what they share is in `feedline.train.learner`."""

from feedline.train.rules.adadelta import AdaDelta
from feedline.train.rules.adagrad import AdaGrad
from feedline.train.rules.adam import Adam
from feedline.train.rules.fsadagrad import FSAdaGrad
from feedline.train.rules.momentum_sgd import MomentumSGD
from feedline.train.rules.nesterov import Nesterov
from feedline.train.rules.rmsprop import RMSProp
from feedline.train.rules.sgd import SGD
from feedline.train.rules.torch_optimizer import TorchLearner
from feedline.train.rules.universal import Universal

__all__ = [
    "SGD",
    "AdaDelta",
    "AdaGrad",
    "Adam",
    "FSAdaGrad",
    "MomentumSGD",
    "Nesterov",
    "RMSProp",
    "TorchLearner",
    "Universal",
]
