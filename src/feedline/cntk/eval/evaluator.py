"""`cntk.eval.evaluator`: `Evaluator` under the path of its module in CNTK."""

from feedline.cntk._names import names_of
from feedline.cntk.train._evaluator import Evaluator as Evaluator

__all__, __getattr__ = names_of(__name__)
