"""How are parameters updated? A file a rule; what they share is in `base`."""

from feedline.train.learners.adadelta import AdaDelta
from feedline.train.learners.adagrad import AdaGrad
from feedline.train.learners.adam import Adam
from feedline.train.learners.base import Learner, Step
from feedline.train.learners.block_momentum import block_momentum
from feedline.train.learners.data_parallel import data_parallel
from feedline.train.learners.fsadagrad import FSAdaGrad
from feedline.train.learners.momentum_sgd import MomentumSGD
from feedline.train.learners.nesterov import Nesterov
from feedline.train.learners.quantized import quantized
from feedline.train.learners.rmsprop import RMSProp
from feedline.train.learners.sgd import SGD
from feedline.train.learners.through_store import through_store
from feedline.train.learners.torch_learner import TorchLearner
from feedline.train.learners.universal import Universal

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
    "Step",
    "TorchLearner",
    "Universal",
    "block_momentum",
    "data_parallel",
    "quantized",
    "through_store",
]
