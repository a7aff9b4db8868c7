"""`mxnet.symbol.contrib` (`mx.sym.contrib`): operators that MXNet never made part of its core."""

from __future__ import annotations

from typing import Any

from feedline.mxnet._names import explain
from feedline.mxnet.symbol._make import FUNCTIONS
from feedline.mxnet.symbol._operator import CONTRIB

_OPERATORS = {name.removeprefix(CONTRIB): made for name, made in FUNCTIONS.items() if name.startswith(CONTRIB)}
globals().update(_OPERATORS)

__all__ = sorted(_OPERATORS)


def __getattr__(name: str) -> Any:
    raise explain("mxnet.symbol.contrib", name)
