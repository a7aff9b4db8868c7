"""Operations on every element: arithmetic, comparisons, activations. Inputs broadcast."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from feedline.networks.node import Node
from feedline.networks.ops import edges
from feedline.networks.ops.align import broadcasting, rowwise
from feedline.networks.ops.convolution import fuse_bias_of_filters
from feedline.networks.ops.linear import fuse_bias
from feedline.networks.packed_minibatch import Run
from feedline.networks.registry import Shape, Site, declare, first_axes
from feedline.networks.shapes import axes_of, broadcast, from_end, same


def _truth(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a comparison whose result is 1 or 0 in the operands' dtype."""
    return lambda a, b: function(a, b).to(torch.promote_types(a.dtype, b.dtype))


def _logic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a logical operation whose result is 1 or 0 in the operands' dtype."""
    return _truth(lambda a, b: function(edges.truth(a), edges.truth(b)))


def _select(flag: torch.Tensor, if_true: torch.Tensor, if_false: torch.Tensor) -> torch.Tensor:
    return torch.where(flag != 0, if_true, if_false)


BROADCASTING = {
    "plus": torch.add,
    "minus": torch.sub,
    "element_times": torch.mul,
    "element_divide": edges.quotient,
    "pow": edges.power,
    "log_add_exp": torch.logaddexp,
    "element_max": edges.larger,
    "element_min": edges.smaller,
    "equal": _truth(torch.eq),
    "not_equal": _truth(torch.ne),
    "less": _truth(torch.lt),
    "less_equal": _truth(torch.le),
    "greater": _truth(torch.gt),
    "greater_equal": _truth(torch.ge),
    "element_and": _logic(torch.logical_and),
    "element_or": _logic(torch.logical_or),
    "element_xor": _logic(torch.logical_xor),
    "element_select": _select,
    "clip": edges.clip,
    "param_relu": lambda slope, x: edges.rectify(x, slope * x),
}

UNARY = {
    "negate": torch.neg,
    "reciprocal": edges.inverse,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "exp": torch.exp,
    "log": edges.logarithm,
    "sqrt": edges.square_root,
    "square": torch.square,
    "abs": torch.abs,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": lambda x: torch.floor(x + 0.5),
    "sign": torch.sign,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "asin": torch.asin,
    "acos": torch.acos,
    "atan": torch.atan,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "asinh": torch.asinh,
    "atanh": torch.atanh,
    "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "softsign": functional.softsign,
    "selu": functional.selu,
    "element_not": lambda x: torch.logical_not(edges.truth(x)).to(x.dtype),
    "stop_gradient": torch.detach,
    "straight_through": edges.binary,
}

SETTINGS: dict[str, dict[str, Any]] = {
    "plus": {"fuse": lambda node, below: fuse_bias(node, below) or fuse_bias_of_filters(node, below), "fresh": True},
    "relu": {"in_place": torch.relu_},
}

for _name, _function in BROADCASTING.items():
    declare(_name, broadcast, broadcasting(_function), **SETTINGS.get(_name, {}))
for _name, _function in UNARY.items():
    declare(_name, same, broadcasting(_function), **SETTINGS.get(_name, {}))


def _cast(node: Node) -> Callable[..., Any]:
    kind = getattr(torch, node.attributes["dtype"])
    return lambda x: x.to(kind)


declare("cast", same, rowwise(_cast))

# The attributes of the node are keyword arguments of these functions.
_WITH_SETTINGS: dict[str, Callable[..., Any]] = {
    "elu": edges.elu,
    "leaky_relu": lambda x, alpha=0.01: edges.rectify(x, alpha * x),
    "hard_sigmoid": lambda x, alpha, beta: edges.ramp(alpha * x + beta),
}


def _set(function: Callable[..., Any]) -> Callable[[Node], Run]:
    return rowwise(lambda node: partial(function, **node.attributes))


for _name, _function in _WITH_SETTINGS.items():
    declare(_name, same, _set(_function))
# Names and blocks pass data through, including sparse data.
declare("alias", same, lambda node: lambda batch, x, *_: x, axes=first_axes)


def _along(function: Callable[..., Any]) -> Callable[[Node], Run]:
    def make(node: Node) -> Callable[..., Any]:
        axis = node.attributes.get("axis", -1)
        if axis is None:
            # Over all axes of a sample together.
            rank = len(node.shape)
            return lambda x: function(x.flatten(x.ndim - rank) if rank else x[..., None], -1).reshape(x.shape)
        dim = from_end(axis, len(node.shape))
        return lambda x: function(x, dim)

    return rowwise(make)


def _hardmax(x: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.zeros_like(x).scatter_(dim, x.argmax(dim, keepdim=True), 1.0)


def _same_along(site: Site) -> Shape:
    """Return the shape of the operand, which has the axis."""
    shape = site.shape(0)
    if shape:
        axes_of(site.attributes["axis"], len(shape), site)
    return shape


declare("softmax", _same_along, _along(torch.softmax))
declare("log_softmax", _same_along, _along(torch.log_softmax))
declare("hardmax", same, _along(_hardmax))
