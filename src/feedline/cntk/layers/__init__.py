"""`cntk.layers`: factories of functions that own parameters.

A layer is a function of a placeholder. Applied twice, it shares its parameters. The first application settles what is
unknown before: the size of its input.
"""

from __future__ import annotations

from typing import Any

from feedline.cntk._names import explain
from feedline.cntk.default_options import default_options, default_options_for
from feedline.cntk.layers import blocks, higher_order_layers, layers, models, sequence, typing
from feedline.cntk.layers.blocks import *
from feedline.cntk.layers.higher_order_layers import *
from feedline.cntk.layers.layers import *
from feedline.cntk.layers.models import *
from feedline.cntk.layers.sequence import *
from feedline.cntk.layers.typing import *
from feedline.cntk.ops.functions import BlockFunction

__all__ = [
    *blocks.__all__,
    *higher_order_layers.__all__,
    *layers.__all__,
    *models.__all__,
    *sequence.__all__,
    *typing.__all__,
    "BlockFunction",
    "default_options",
    "default_options_for",
]


def __getattr__(name: str) -> Any:
    raise explain("cntk.layers", name)
