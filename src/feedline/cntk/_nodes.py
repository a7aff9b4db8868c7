"""Conversion of CNTK's operands (variables, functions, numbers and arrays), axes and shapes for the graph."""

from __future__ import annotations

import numbers
from collections.abc import Iterable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from feedline.cntk._settings import plain
from feedline.cntk.axis import Axis
from feedline.cntk.default_options import default_override_or, get_default_override
from feedline.errors import CompatError
from feedline.networks import BATCH, Node, Weights
from feedline.networks.node import FREE, UNKNOWN, parameter_node
from feedline.networks.traverse import known_element_type, topological

# Unknown dimensions of a shape: fixed by its first use, or different in each minibatch.
InferredDimension, FreeDimension = UNKNOWN, FREE
_UNKNOWN_SHAPE = (-2,)

# Types that CNTK names differently from NumPy, including the numbers of its enumeration.
_TYPES: dict[Any, str] = {
    float: "float64",
    int: "float32",
    "float": "float32",
    "int": "int8",
    1: "float32",
    2: "float64",
    4: "float16",
    5: "int8",
    6: "int16",
}
_NEEDS_GRADIENT = "needs_gradient"  # attribute of an input's node
_SUPPORTED = ("float16", "float32", "float64", "int8", "int16")


def dims(shape: Any, free: bool = False) -> tuple[int, ...]:
    """Convert a shape given as a number or a sequence of numbers.

    Args:
        shape: shape.
        free: whether dimensions may differ between minibatches.

    Raises:
        TypeError: another type, or a fraction.
        ValueError: another negative dimension.
        CompatError: a dimension that differs between minibatches, unless ``free``.
    """
    shape = plain(shape)
    try:
        sizes = (shape,) if isinstance(shape, int) else tuple(map(whole, shape))
    except TypeError:
        raise TypeError(f"expected a shape as a whole number or a tuple of them, got {shape!r}") from None
    if min(sizes, default=0) < FreeDimension:
        raise ValueError(f"expected dimensions of at least 0, InferredDimension or FreeDimension, got {sizes}")
    if FreeDimension in sizes and not free:
        raise CompatError(
            f"expected a shape whose dimensions are known, got {sizes} with a FreeDimension: only inputs and "
            "placeholders may have some"
        )
    return sizes


def whole(number: Any) -> int:
    """Return a count as an int. TypeError: not a whole number."""
    if isinstance(number, numbers.Integral) or (isinstance(number, float) and number.is_integer()):
        return int(number)
    raise TypeError(f"expected a whole number, got {number!r}")


def shape_of(node: Node) -> tuple[int, ...]:
    """Return the shape of one sample. As in CNTK, it is (-2,) while it depends on a placeholder."""
    return _UNKNOWN_SHAPE if node.type.shape is None else node.type.shape


def dtype_name(dtype: Any) -> str:
    """Return NumPy's name of a script's element type: ``'float'`` is single precision, ``float`` double.

    Raises:
        ValueError: CNTK has no such type.
    """
    try:
        name = _TYPES.get(dtype) or np.dtype(dtype).name
    except TypeError:
        name = str(dtype)
    if isinstance(dtype, bool) or name not in _SUPPORTED:
        raise ValueError(f"expected a data type of {', '.join(_SUPPORTED)}, got {dtype!r}")
    return name


def default_dtype_name(dtype: Any) -> str:
    """Return NumPy's name of an element type, by default `default_options`' type, or single precision."""
    if dtype is None:
        dtype = get_default_override(None, dtype=default_override_or(np.float32))
    return dtype_name(dtype)


def axis_names(axes: Iterable[Axis]) -> tuple[str, ...]:
    """Return the graph's names of dynamic axes, the batch first.

    Raises:
        ValueError: a static axis, or more than one sequence axis.
        TypeError: not axes.
    """
    axes = list(axes)
    if not all(isinstance(axis, Axis) for axis in axes):
        raise TypeError(f"expected axes, got {axes}; see cntk.Axis")
    names = tuple(BATCH if axis.is_batch_axis else axis.name for axis in axes)
    if any(axis.is_static_axis for axis in axes) or len(names) > 2 or (names and BATCH not in names):
        raise ValueError(f"expected the batch axis and at most one sequence axis, got {list(axes)}")
    return tuple(sorted(names, key=lambda name: name != BATCH))


def axes_of(node: Node) -> tuple[Axis, ...]:
    """Return the dynamic axes of a node as CNTK's axes."""
    if node.type.axes is None:
        return Axis.unknown_dynamic_axes()
    return tuple(Axis.default_batch_axis() if name == BATCH else Axis(name) for name in node.type.axes)


def constant_node(value: Any, dtype: Any = None) -> Node:
    """Return a constant leaf."""
    array = np.asarray(value)
    if array.dtype.kind == "O":
        raise TypeError(f"expected a number or an array, got {value!r}")
    kind = dtype_name(dtype) if dtype is not None else array.dtype.name if array.dtype.kind == "f" else "float32"
    if not isinstance(value, np.ndarray) and dtype is None:
        kind = "float32"
    array = np.array(array, kind)  # a copy, as the script may change its array
    return parameter_node(Weights(array.shape, lambda shape: array, kind, trains=False))


def node_of(operand: Any, dtype: Any = None) -> Node:
    """Return the node of a variable, or of a function with one output, or a constant node for a number or array.

    Raises:
        ValueError: a function with several outputs.
        TypeError: another type.
    """
    if isinstance(operand, Node):
        return operand
    node = getattr(operand, "node", None)
    if isinstance(node, Node):
        return node
    try:
        return constant_node(operand, dtype)
    except (TypeError, ValueError):
        raise TypeError(
            f"expected a variable, a function, a number or an array, got {type(operand).__name__}"
        ) from None


def nodes_of(*operands: Any) -> list[Node]:
    """Return nodes as `node_of`. Constants get the known type of the first operand with a node, or single precision."""
    nodes = [o if isinstance(o, Node) else getattr(o, "node", None) for o in operands]
    types = (known_element_type(node) for node in nodes if node is not None)
    default = "float32" if len(operands) == 1 or any(node is not None for node in nodes) else None
    dtype = next((kind for kind in types if kind is not None), default)
    return [node_of(operand, dtype) for operand in operands]


def needs_gradient(node: Node) -> bool:
    """Return whether a node is a parameter, or an input from `with_gradient`."""
    return node.op == "parameter" or (node.op == "input" and bool(node.attributes.get(_NEEDS_GRADIENT)))


def with_gradient(node: Node) -> Node:
    """Return an input that `Function.grad` differentiates with respect to by default."""
    return replace(node, attributes=MappingProxyType({_NEEDS_GRADIENT: True}))


# Operations whose operands may be of different element types. A block is an alias of its result and its arguments.
_MIXING = {"alias", "batch_normalization", "crop", "user", "user_output"}


def check_element_types(roots: Iterable[Node]) -> None:
    """Check that the operands of each operation are of one element type. Constants of single precision fit any type.

    Raises:
        ValueError: they are of several types.
    """
    types: dict[Node, str | None] = {}
    for node in topological(roots):
        if node.op == "constant" and node.dtype == "float32":
            types[node] = None
        elif node.is_leaf or node.op == "cast":
            types[node] = known_element_type(node)
        else:
            known = {kind: child for child in node.inputs if (kind := types[child]) is not None}
            if len(known) > 1 and node.op not in _MIXING:
                each = " and ".join(f"{kind} of {child.label}" for kind, child in sorted(known.items()))
                raise ValueError(
                    f"{node.label}: expected operands of one element type, got {each}; convert with cntk.cast, or set "
                    "the dtype"
                )
            types[node] = next(iter(known), None)
