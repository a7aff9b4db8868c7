"""Functions from functions: names, blocks, what is like another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from feedline.cntk._nodes import node_of
from feedline.cntk._tracing import block_of, roots_of
from feedline.cntk.ops._elementwise import element_times, minus, plus, stop_gradient
from feedline.cntk.ops._function import Function
from feedline.cntk.ops._making import made
from feedline.cntk.ops._user_function import UserFunction
from feedline.cntk.variables import variable_of

__all__ = [
    "alias",
    "as_block",
    "as_composite",
    "assign",
    "combine",
    "eye_like",
    "image_scaler",
    "ones_like",
    "per_dim_mean_variance_normalize",
    "reconcile_dynamic_axes",
    "user_function",
    "zeros_like",
]


def combine(*operands: Any, name: str = "") -> Function:
    """One function with the outputs of all."""
    items = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else list(operands)
    roots = [root for item in items for root in roots_of(item)]
    if name and len(roots) == 1:
        return alias(variable_of(roots[0]), name)
    return Function.of(roots)


def alias(x: Any, name: str = "") -> Function:
    """The same under another name."""
    return made("alias", [x], None, name)


def as_block(
    composite: Any,
    block_arguments_map: Sequence[tuple[Any, Any]],
    block_op_name: str,
    block_instance_name: str = "",
) -> Function:
    """A function as one block, its placeholders replaced."""
    changes = {node_of(a): node_of(b) for a, b in block_arguments_map}
    inside = (
        Function.of(composite._roots)({variable_of(a): variable_of(b) for a, b in changes.items()})
        if changes
        else composite
    )
    return Function.of(block_of(inside._roots, list(changes.values()), block_op_name, block_instance_name))


def as_composite(root_function: Function, name: str = "") -> Function:
    """The function itself."""
    return root_function


def user_function(user_func: UserFunction) -> Function:
    """A function that calls a `UserFunction`."""
    return Function.of(user_func._roots, members=user_func._members)


def reconcile_dynamic_axes(x: Any, dynamic_axes_as: Any, name: str = "") -> Function:
    """The operand along the sequences of another one."""
    return made("sequence_broadcast_as", [x, dynamic_axes_as], None, name)


def per_dim_mean_variance_normalize(operand: Any, mean: Any, inv_stddev: Any, name: str = "") -> Function:
    """``(operand - mean) * inv_stddev``."""
    return element_times(minus(operand, mean), inv_stddev, name=name)


def image_scaler(x: Any, scalar: float, biases: Any, name: str = "") -> Function:
    """``x * scalar + bias``, one bias a channel."""
    shift = np.asarray(biases, np.float32).reshape(-1, 1, 1)
    return plus(element_times(x, scalar), shift, name=name)


def eye_like(x: Any, sparse_output: bool = True, name: str = "") -> Function:
    """An identity matrix of the operand's shape."""
    shape = node_of(x).shape
    if len(shape) != 2:
        raise ValueError(f"expected a matrix, got the shape {shape}")
    return plus(zeros_like(x), np.eye(*shape), name=name)


def zeros_like(x: Any, name: str = "") -> Function:
    """0 in the shape and along the axes of the operand."""
    return element_times(stop_gradient(x), 0, name=name)


def ones_like(x: Any, name: str = "") -> Function:
    """1 in the shape and along the axes of the operand."""
    return plus(zeros_like(x), 1, name=name)


def eval(op: Any, arguments: Any = None) -> Any:
    """Run a function: see `Function.eval`."""
    return op.eval(arguments)


def assign(ref: Any, input: Any, name: str = "") -> Function:
    """Sets a parameter or constant whenever it is run; gives the new value, through which no gradient flows.

    What else reads the parameter or constant in the same run reads the value from before.

    Raises:
        ValueError: no parameter, or a value along the batch.
    """
    return made("assign", [ref, input], None, name)
