"""The names of CNTK 2.7, translated onto feedline: one file for each of its modules, nothing new inside.

``feedline.cntk.install()``, or ``feedline run --as cntk SCRIPT``, makes ``import cntk`` mean this package, in that
process only. What is there, what is approximated and what is absent stands in docs/compat/cntk.md, made from `_names`.
Importing it needs NumPy alone; torch comes when a device is asked for, or a name that has to do with training.
"""

from __future__ import annotations

import importlib
from typing import Any

from feedline import _facades
from feedline.cntk import (
    axis,
    cntk_py,
    core,
    debugging,
    device,
    initializer,
    io,
    layers,
    logging,
    losses,
    metrics,
    ops,
    random,
)
from feedline.cntk import variables as variables
from feedline.cntk._names import NAMES, explain
from feedline.cntk._nodes import FreeDimension, InferredDimension
from feedline.cntk._operand import register
from feedline.cntk.axis import Axis
from feedline.cntk.core import *
from feedline.cntk.default_options import *
from feedline.cntk.default_options import __all__ as _options
from feedline.cntk.device import *
from feedline.cntk.initializer import *
from feedline.cntk.io import INFINITELY_REPEAT, MinibatchData
from feedline.cntk.ops import *
from feedline.cntk.ops import eval as eval
from feedline.cntk.ops import sequence
from feedline.cntk.variables import Constant, Parameter, Variable

__version__ = "2.7"

# What variables and functions call, though it is made of them.
register("feedline.cntk.ops._function", "operand_of")
register(
    "feedline.cntk.ops",
    *("abs", "element_divide", "element_times", "greater", "greater_equal", "less", "less_equal", "minus", "negate"),
    *("plus", "pow", "slice", "times"),
)
register("feedline.cntk.layers.higher_order_layers", "Sequential", "then")
register("feedline.cntk.train._quick", "test", "train")

# Modules that import torch: the package offers what they do, and imports them when a name is first asked for.
_WITH_TORCH = {
    "train._evaluator": ["Evaluator"],
    "learners": NAMES["cntk.learners"].importable,
    "train": NAMES["cntk.train"].importable,
}

__all__ = [
    "FreeDimension",
    "INFINITELY_REPEAT",
    "InferredDimension",
    "MinibatchData",
    "Axis",
    "Constant",
    "Parameter",
    "Variable",
    "axis",
    "cntk_py",
    "core",
    "debugging",
    "device",
    "eval",
    "initializer",
    "install",
    "io",
    "layers",
    "learners",
    "logging",
    "losses",
    "metrics",
    "ops",
    "random",
    "sequence",
    "train",
    "variables",
    *_options,
    *core.__all__,
    *(name for name in device.__all__ if name != "intended_device"),
    *initializer.__all__,
    *ops.__all__,
    *(name for names in _WITH_TORCH.values() for name in names),
]


def install() -> None:
    """Register the façade as ``cntk`` in this process. Idempotent.

    Raises:
        CompatError: another package was already imported as ``cntk``.
    """
    _facades.install("cntk")


def __getattr__(name: str) -> Any:
    for module, names in _WITH_TORCH.items():
        if name == module or name in names:
            found = importlib.import_module(f"{__name__}.{module}")
            return found if name == module else getattr(found, name)
    raise explain("cntk", name)
