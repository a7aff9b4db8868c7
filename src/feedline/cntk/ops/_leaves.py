"""Inputs, placeholders, parameters and constants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from feedline._facades import defined_in
from feedline.cntk._nodes import axis_names, dims, dtype_name, with_gradient
from feedline.cntk._settings import take_plain_settings
from feedline.cntk.axis import Axis
from feedline.cntk.variables import Constant, Parameter, Variable, array_dtype, placeholder, variable_of
from feedline.networks.node import input_node


def input_variable(
    shape: Any,
    dtype: Any = None,
    needs_gradient: bool = False,
    is_sparse: bool = False,
    dynamic_axes: Any = None,
    name: str = "",
) -> Variable:
    """Return an input, with one sample per sequence unless ``dynamic_axes`` has a sequence axis. See `Variable`."""
    axes = Axis.default_batch_axis() if dynamic_axes is None else dynamic_axes
    return Variable(dims(shape, free=True), dtype, needs_gradient, is_sparse, axes, name)


def output_variable(shape: Any, dtype: Any, dynamic_axes: Any, needs_gradient: bool = True, name: str = "") -> Variable:
    """Return a variable that describes an output of a `UserFunction`, for its ``infer_outputs``."""
    node = input_node(dims(shape, free=True), axis_names(dynamic_axes), name, False, dtype_name(dtype))
    return variable_of(with_gradient(node) if needs_gradient else node)


def placeholder_variable(shape: Any = None, dynamic_axes: Any = None, name: str = "") -> Variable:
    """Former name of `placeholder`."""
    return placeholder(shape, dynamic_axes, name)


def parameter(shape: Any = None, init: Any = None, dtype: Any = None, device: Any = None, name: str = "") -> Parameter:
    """Return a `Parameter` with the element type of its array."""
    return Parameter(shape, init, array_dtype(init, dtype), device, name)


def constant(value: Any = None, shape: Any = None, dtype: Any = None, device: Any = None, name: str = "") -> Constant:
    """Return a `Constant` with the element type of its array."""
    return Constant(value, shape, array_dtype(value, dtype), device, name)


if not TYPE_CHECKING:  # type checkers find out themselves
    take_plain_settings(globals())
    __all__ = defined_in(globals())
