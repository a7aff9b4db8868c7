"""`cntk.ops`: operations on variables and functions. Each creates a node of a graph, or a few."""

from __future__ import annotations

from feedline.cntk._names import names_of
from feedline.cntk.ops._criteria import *
from feedline.cntk.ops._crops import *
from feedline.cntk.ops._elementwise import *
from feedline.cntk.ops._graphs import *
from feedline.cntk.ops._images import *
from feedline.cntk.ops._leaves import *
from feedline.cntk.ops._reductions import *
from feedline.cntk.ops._shape import *
from feedline.cntk.ops._stacks import *
from feedline.cntk.ops.functions import *
from feedline.cntk.variables import placeholder

input = input_variable  # former name

__all__, __getattr__ = names_of(__name__)
