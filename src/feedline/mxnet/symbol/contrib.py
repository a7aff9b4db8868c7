"""`mxnet.symbol.contrib` (`mx.sym.contrib`): operators outside MXNet's core."""

from __future__ import annotations

from feedline.mxnet._names import names_of
from feedline.mxnet.symbol._make import FUNCTIONS
from feedline.mxnet.symbol._operator import CONTRIB

_OPERATORS = {name.removeprefix(CONTRIB): function for name, function in FUNCTIONS.items() if name.startswith(CONTRIB)}
globals().update(_OPERATORS)

__all__, __getattr__ = names_of(__name__)
