"""Training: schedules, learners, the trainer, the session and its reporters.

Requires torch (the extra ``torch``).
"""

from feedline.train.controllers import GrowMinibatch, KeepBest, ReduceOnPlateau
from feedline.train.distributed import block_momentum, data_parallel, quantized, through_store
from feedline.train.evaluation import Evaluation
from feedline.train.learner import Learner, Step
from feedline.train.report import Console, JsonLines, Metrics, ProgressPrinter, TensorBoard, plot_losses
from feedline.train.rules import SGD, AdaDelta, AdaGrad, Adam, FSAdaGrad, MomentumSGD, Nesterov, RMSProp, Universal
from feedline.train.saving import Saving
from feedline.train.schedules import Schedule
from feedline.train.session import TrainingSession
from feedline.train.summary import Summary
from feedline.train.torch_learner import TorchLearner
from feedline.train.trainer import Trainer

__all__ = [
    "SGD",
    "AdaDelta",
    "AdaGrad",
    "Adam",
    "Console",
    "Evaluation",
    "FSAdaGrad",
    "GrowMinibatch",
    "JsonLines",
    "KeepBest",
    "Learner",
    "Metrics",
    "MomentumSGD",
    "Nesterov",
    "ProgressPrinter",
    "RMSProp",
    "ReduceOnPlateau",
    "Saving",
    "Schedule",
    "Step",
    "Summary",
    "TensorBoard",
    "TorchLearner",
    "Trainer",
    "TrainingSession",
    "Universal",
    "block_momentum",
    "data_parallel",
    "plot_losses",
    "quantized",
    "through_store",
]
