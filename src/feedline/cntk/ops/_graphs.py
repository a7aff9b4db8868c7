"""Functions derived from functions: combinations, names, blocks, constants of an operand's shape."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from feedline._facades import defined_in
from feedline.cntk._nodes import node_of
from feedline.cntk._operand import Operand
from feedline.cntk._settings import take_plain_settings
from feedline.cntk._tracing import block_of, roots_of
from feedline.cntk.ops._elementwise import element_times, minus, plus, stop_gradient
from feedline.cntk.ops._function import Function
from feedline.cntk.ops._operation_helpers import build, late
from feedline.cntk.ops._user_function import UserFunction
from feedline.cntk.variables import variable_of
from feedline.networks import BATCH


def combine(*operands: Any, name: str = "") -> Function:
    """Return one function with the outputs of all operands.

    Raises:
        ValueError: no operands.
        TypeError: an operand is neither a variable nor a function.
    """
    items = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else list(operands)
    if not items:
        raise ValueError("expected variables or functions to combine, got none")
    for item in items:
        if not isinstance(item, Operand):
            raise TypeError(f"expected variables or functions to combine, got {type(item).__name__}")
    roots = [root for item in items for root in roots_of(item)]
    if len(roots) == 1:
        return alias(variable_of(roots[0]), name) if name else Function.of(roots)
    function = Function.of(roots)
    function._combination = name
    return function


def alias(x: Any, name: str = "") -> Function:
    """Return the operand under another name."""
    return build("alias", [x], None, name)


def as_block(
    composite: Any,
    block_arguments_map: Sequence[tuple[Any, Any]],
    block_op_name: str,
    block_instance_name: str = "",
) -> Function:
    """Return a function as one block, with placeholders replaced."""
    changes = {node_of(a): node_of(b) for a, b in block_arguments_map}
    inside = composite
    if changes:
        inside = Function.of(composite._roots)({variable_of(a): variable_of(b) for a, b in changes.items()})
    return Function.of(block_of(inside._roots, list(changes.values()), block_op_name, block_instance_name))


def as_composite(root_function: Function, name: str = "") -> Function:
    """Return the function itself."""
    return root_function


def user_function(user_func: UserFunction) -> Function:
    """Return a function that calls a `UserFunction`."""
    return Function.of(user_func._roots, members=user_func._members)


def reconcile_dynamic_axes(x: Any, dynamic_axes_as: Any, name: str = "") -> Function:
    """Return the operand with the dynamic axes of another operand.

    Raises:
        ValueError: when it runs, sequences of other lengths.
    """
    return build("sequence_broadcast_as", [x, dynamic_axes_as], None, name)


def per_dim_mean_variance_normalize(operand: Any, mean: Any, inv_stddev: Any, name: str = "") -> Function:
    """Return ``(operand - mean) * inv_stddev``."""
    return element_times(minus(operand, mean), inv_stddev, name=name)


def image_scaler(x: Any, scalar: float, biases: Any, name: str = "") -> Function:
    """Return ``x * scalar + bias``, with one bias per channel."""
    shift = np.asarray(biases, np.float32).reshape(-1, 1, 1)
    return plus(element_times(x, scalar), shift, name=name)


@late(1)
def eye_like(x: Any, sparse_output: bool = True, name: str = "") -> Function:
    """Return an identity matrix of the operand's shape. A batch axis counts as rows.

    Raises:
        ValueError: the operand is not a matrix.
    """
    node = node_of(x)
    if node.axes == (BATCH,) and len(node.shape) == 1:
        return build("eye_rows", [x], {"sparse": builtins.bool(sparse_output)}, name)
    shape = node_of(x).shape
    if len(shape) != 2:
        raise ValueError(f"expected a matrix, got the shape {shape}")
    return plus(zeros_like(x), np.eye(*shape), name=name)


def zeros_like(x: Any, name: str = "") -> Function:
    """Return zeros in the shape and along the dynamic axes of the operand."""
    return element_times(stop_gradient(x), 0, name=name)


def ones_like(x: Any, name: str = "") -> Function:
    """Return ones in the shape and along the dynamic axes of the operand."""
    return plus(zeros_like(x), 1, name=name)


def eval(op: Any, arguments: Any = None) -> Any:
    """Run a function. See `Function.eval`."""
    return op.eval(arguments)


def assign(ref: Any, input: Any, name: str = "") -> Function:
    """Return an operation that sets a parameter or constant when run. Its result, the new value, has no gradient.

    Other operations in the same run read the previous value. If gradients follow, it is set after these: see
    `Function.forward`.

    Raises:
        ValueError: ``ref`` is neither a parameter nor a constant, or the value has a batch axis.
    """
    return build("assign", [ref, input], None, name)


if not TYPE_CHECKING:  # type checkers find out themselves
    take_plain_settings(globals())
    __all__ = defined_in(globals())
