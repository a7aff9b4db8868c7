"""`cntk.misc`: exchange functions of a graph."""

from __future__ import annotations

from feedline.cntk._names import names_of
from feedline.cntk.misc.converter import *
from feedline.cntk.misc.optimized_rnnstack_converter import *

__all__, __getattr__ = names_of(__name__)
