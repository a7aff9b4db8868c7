"""`cntk.train`: the public names of its modules, and `distributed`."""

from feedline.cntk._names import names_of
from feedline.cntk.train import distributed
from feedline.cntk.train.distributed import *
from feedline.cntk.train.trainer import Trainer
from feedline.cntk.train.training_session import *

__all__, __getattr__ = names_of(__name__)
