"""`cntk.ops`: operations on variables and functions. Each makes one node of a graph, or a few."""

from __future__ import annotations

from typing import Any

from feedline.cntk._names import explain
from feedline.cntk.ops import _criteria, _elementwise, _graphs, _images, _leaves, _reductions, _shape, functions
from feedline.cntk.ops._criteria import *
from feedline.cntk.ops._elementwise import *
from feedline.cntk.ops._graphs import *
from feedline.cntk.ops._graphs import eval as eval
from feedline.cntk.ops._images import *
from feedline.cntk.ops._leaves import *
from feedline.cntk.ops._reductions import *
from feedline.cntk.ops._shape import *
from feedline.cntk.ops.functions import *
from feedline.cntk.variables import placeholder

input = input_variable  # its former name

__all__ = [
    *_criteria.__all__,
    *_elementwise.__all__,
    *_graphs.__all__,
    *_images.__all__,
    *_leaves.__all__,
    *_reductions.__all__,
    *_shape.__all__,
    *functions.__all__,
    "input",
    "placeholder",
]


def __getattr__(name: str) -> Any:
    raise explain("cntk.ops", name)
