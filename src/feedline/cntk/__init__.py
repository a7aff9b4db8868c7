"""CNTK 2.7's names, implemented on top of feedline: one file per CNTK module, without additional features.

``feedline.cntk.install()``, or ``feedline run --as cntk SCRIPT``, makes ``import cntk`` mean this package, in that
process only. docs/compat/cntk.md, generated from `_names`, lists the supported, approximated and absent names.
Importing the package requires only NumPy. torch is imported when a device, or a name that involves training, is first
used.
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
    eval,
    initializer,
    io,
    layers,
    logging,
    losses,
    metrics,
    misc,
    ops,
    random,
)
from feedline.cntk import variables as variables
from feedline.cntk._names import NAMES, look_up
from feedline.cntk._nodes import FreeDimension, InferredDimension
from feedline.cntk._operand import register
from feedline.cntk.axis import Axis
from feedline.cntk.cntk_py import INFINITELY_REPEAT
from feedline.cntk.core import *
from feedline.cntk.default_options import *
from feedline.cntk.device import *
from feedline.cntk.initializer import *
from feedline.cntk.io._minibatch import MinibatchData
from feedline.cntk.losses import fmeasure, hierarchical_softmax_layer, nce_loss
from feedline.cntk.ops import *
from feedline.cntk.ops import sequence
from feedline.cntk.variables import Constant, Parameter, Variable

__version__ = "2.7"

# Functions that variables and functions call, although their modules import variables and functions.
register("feedline.cntk.ops._function", "operand_of")
register(
    "feedline.cntk.ops",
    *("abs", "element_divide", "element_times", "greater", "greater_equal", "less", "less_equal", "minus", "negate"),
    *("plus", "pow", "slice", "splice", "times"),
)
register("feedline.cntk.ops._user_function", "create_user", "describe_user", "register_factory", "user_of")
register("feedline.cntk.layers.higher_order_layers", "Sequential", "then")
register("feedline.cntk.train._quick", "test", "train")

# Modules that import torch. The package re-exports their names, and imports each module at the first use of a name.
_WITH_TORCH = {
    "train._evaluator": ["Evaluator"],
    "learners": NAMES["cntk.learners"].importable,
    "train": NAMES["cntk.train"].importable,
}

__all__ = NAMES["cntk"].exported


def install() -> None:
    """Register the façade as ``cntk`` in this process. Idempotent.

    Raises:
        CompatError: another package was already imported as ``cntk``.
    """
    # The bindings, which many examples import, and the converter, which CNTK ships as a script.
    _facades.install("cntk", {"_cntk_py": "feedline.cntk.cntk_py", "ctf2bin": "feedline.cntk.ctf2bin"})


def __getattr__(name: str) -> Any:
    for module, names in _WITH_TORCH.items():
        if name == module or name in names:
            loaded = importlib.import_module(f"{__name__}.{module}")
            return loaded if name == module else getattr(loaded, name)
    return look_up("cntk", name)
