"""Inputs, placeholders, parameters and constants."""

from __future__ import annotations

from typing import Any

from feedline.cntk._nodes import axis_names, default_dtype_name, dims, dtype_name
from feedline.cntk.axis import Axis
from feedline.cntk.variables import Constant, Parameter, Variable, own_dtype, placeholder, variable_of
from feedline.networks.node import input_node

__all__ = [
    "constant",
    "input_variable",
    "output_variable",
    "parameter",
    "placeholder_variable",
]


def input_variable(
    shape: Any,
    dtype: Any = None,
    needs_gradient: bool = False,
    is_sparse: bool = False,
    dynamic_axes: Any = None,
    name: str = "",
) -> Variable:
    """A variable that is fed: one sample a sequence, unless ``dynamic_axes`` says otherwise; see `Variable`."""
    axes = [Axis.default_batch_axis()] if dynamic_axes is None else dynamic_axes
    named = axis_names([axes] if isinstance(axes, Axis) else axes)
    return variable_of(input_node(dims(shape), named, name, is_sparse, default_dtype_name(dtype)), needs_gradient)


def output_variable(shape: Any, dtype: Any, dynamic_axes: Any, needs_gradient: bool = True, name: str = "") -> Variable:
    """What a `UserFunction` gives, for its ``infer_outputs``."""
    return variable_of(
        input_node(dims(shape), axis_names(dynamic_axes), name, False, dtype_name(dtype)), needs_gradient
    )


def placeholder_variable(shape: Any = None, dynamic_axes: Any = None, name: str = "") -> Variable:
    """Former name of `placeholder`."""
    return placeholder(shape, dynamic_axes, name)


def parameter(shape: Any = None, init: Any = None, dtype: Any = None, device: Any = None, name: str = "") -> Parameter:
    """As `Parameter`, of the type of an array."""
    return Parameter(shape, init, own_dtype(init, dtype), device, name)


def constant(value: Any = None, shape: Any = None, dtype: Any = None, device: Any = None, name: str = "") -> Constant:
    """As `Constant`, of the type of an array."""
    return Constant(value, shape, own_dtype(value, dtype), device, name)
