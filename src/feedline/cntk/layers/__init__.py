"""`cntk.layers`: factories of functions that own parameters.

A layer is a function of a placeholder. All applications of a layer share its parameters. The first application
determines the size of its input.
"""

from __future__ import annotations

from feedline.cntk._names import names_of
from feedline.cntk.default_options import default_options, default_options_for
from feedline.cntk.layers import blocks, higher_order_layers, layers, models, sequence, typing
from feedline.cntk.layers.blocks import *
from feedline.cntk.layers.higher_order_layers import *
from feedline.cntk.layers.layers import *
from feedline.cntk.layers.models import *
from feedline.cntk.layers.sequence import *
from feedline.cntk.layers.typing import *
from feedline.cntk.ops.functions import BlockFunction

__all__, __getattr__ = names_of(__name__)
