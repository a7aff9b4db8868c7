"""`cntk.eval`: the package of `Evaluator`, which scripts also call as ``cntk.eval(function, arguments)``."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from feedline.cntk._names import NAMES, look_up

__all__ = NAMES["cntk.eval"].exported


class _Callable(ModuleType):
    """The module's class. Calling the module runs a function. See `feedline.cntk.ops.eval`."""

    def __call__(self, op: Any, arguments: Any = None) -> Any:
        return op.eval(arguments)


sys.modules[__name__].__class__ = _Callable


def __getattr__(name: str) -> Any:
    if name in ("Evaluator", "evaluator"):  # imports torch
        module = importlib.import_module("feedline.cntk.eval.evaluator")
        return module if name == "evaluator" else module.Evaluator
    return look_up("cntk.eval", name)
