"""What CNTK's operands are as nodes of a graph: variables, functions, numbers and arrays; axes and shapes."""

from __future__ import annotations

import numbers
from collections.abc import Iterable
from typing import Any

import numpy as np

from feedline.cntk.axis import Axis
from feedline.graph import BATCH, Node, Weights
from feedline.graph.node import parameter_node

_BATCH_NAME = Axis.default_batch_axis().name


def dims(shape: Any) -> tuple[int, ...]:
    """A shape given as a number or a sequence of numbers.

    Raises:
        TypeError: neither.
    """
    if isinstance(shape, numbers.Integral):
        return (int(shape),)
    try:
        return tuple(int(n) for n in shape)
    except TypeError:
        raise TypeError(f"expected a shape as a number or a tuple of numbers, got {shape!r}") from None


def dtype_name(dtype: Any) -> str:
    """Name of a NumPy type or of Python's float, which is float32 here as in CNTK."""
    return "float32" if dtype is float else np.dtype(dtype).name


def axis_names(axes: Iterable[Axis]) -> tuple[str, ...]:
    """Dynamic axes as the graph has them; the batch comes first.

    Raises:
        ValueError: a static axis, or more than one axis of sequences.
    """
    names = tuple(BATCH if axis.is_batch_axis else axis.name for axis in axes)
    if any(axis.is_static_axis for axis in axes) or len(names) > 2 or (names and BATCH not in names):
        raise ValueError(f"expected the batch axis and at most one axis of sequences, got {list(axes)}")
    return tuple(sorted(names, key=lambda name: name != BATCH))


def axes_of(node: Node) -> tuple[Axis, ...]:
    """Dynamic axes of a node as CNTK has them."""
    if node.type.axes is None:
        return Axis.unknown_dynamic_axes()
    return tuple(Axis.default_batch_axis() if name == BATCH else Axis(name) for name in node.type.axes)


def constant_node(value: Any, dtype: Any = None, name: str = "") -> Node:
    """A leaf that never changes."""
    array = np.asarray(value)
    kind = dtype_name(dtype) if dtype is not None else array.dtype.name if array.dtype.kind == "f" else "float32"
    if not isinstance(value, np.ndarray) and dtype is None:
        kind = "float32"
    array = array.astype(kind)
    return parameter_node(Weights(array.shape, lambda shape: array, kind, trains=False), name)


def node_of(operand: Any, dtype: Any = None) -> Node:
    """The node of a variable, or of a function with one output; a constant of anything else.

    Raises:
        ValueError: a function with several outputs.
        TypeError: nothing that could be a constant.
    """
    if isinstance(operand, Node):
        return operand
    found = getattr(operand, "node", None)
    if isinstance(found, Node):
        return found
    try:
        return constant_node(operand, dtype)
    except (TypeError, ValueError):
        raise TypeError(
            f"expected a variable, a function, a number or an array, got {type(operand).__name__}"
        ) from None


def nodes_of(*operands: Any) -> list[Node]:
    """As `node_of`; constants take the type of the first operand that is none."""
    own = (o if isinstance(o, Node) else getattr(o, "node", None) for o in operands)
    dtype = next((element_type(node) for node in own if node is not None), None)
    return [node_of(operand, dtype) for operand in operands]


def element_type(node: Node) -> str:
    """Type of a node's elements: that of the first leaf below it."""
    while node.inputs:
        node = node.inputs[0]
    return node.dtype
