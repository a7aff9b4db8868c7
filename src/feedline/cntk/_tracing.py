"""Trace Python functions to graphs, and create blocks, which are named parts of graphs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from feedline.cntk._nodes import dims, node_of
from feedline.cntk.axis import Axis
from feedline.cntk.variables import Variable, placeholder
from feedline.networks import Node, apply


def is_number_type(kind: Any) -> bool:
    """Return whether an annotation is a type of single numbers."""
    return any(kind is number for number in (float, np.float16, np.float32, np.float64))


def parameters_of(f: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in inspect.signature(f).parameters.values() if p.kind in kinds and p.default is p.empty]


def types_of(f: Callable[..., Any]) -> list[Any]:
    """Return the type of each parameter in annotations, or None if it is not one of `cntk.layers.typing`."""
    annotations = getattr(f, "__annotations__", {})
    kinds = [annotations.get(name) for name in parameters_of(f)]
    return [kind if isinstance(kind, Mapping) or is_number_type(kind) else None for kind in kinds]


def typed_placeholder(kind: Any, name: str) -> Variable:
    """Return a placeholder for an argument, or an input if its type has a shape.

    Args:
        kind: None, the shape of one sample, the element type of single numbers, or a mapping with ``shape`` and
            optionally ``dynamic_axes``, ``is_sparse``, ``dtype``.
        name: name of the argument.
    """
    if kind is None:
        return placeholder(name=name)
    if is_number_type(kind):
        kind = {"shape": (), "dtype": kind, "dynamic_axes": [Axis.default_batch_axis()]}
    if not isinstance(kind, Mapping):
        kind = {"shape": kind, "dynamic_axes": [Axis.default_batch_axis()]}
    shape, axes = kind.get("shape"), kind.get("dynamic_axes")
    if shape is None or axes is None:
        return placeholder(shape, axes, name)
    return Variable(dims(shape), kind.get("dtype"), False, kind.get("is_sparse", False), axes, name)


def trace(
    f: Callable[..., Any], types: Sequence[Any], block: bool, op_name: str, name: str
) -> tuple[list[Node], list[Node]]:
    """Call ``f`` with placeholders, and return the nodes of its result, and of the placeholders."""
    names = parameters_of(f)
    arguments = [typed_placeholder(kind, label) for kind, label in zip(types, names, strict=True)]
    result = f(*arguments)
    roots: list[Node] = []
    for output in result if isinstance(result, (tuple, list)) else [result]:
        label, operand = output if isinstance(output, tuple) else ("", output)
        roots += [apply("alias", [node], {}, label) if label else node for node in roots_of(operand)]
    order = [a.node for a in arguments]
    return block_of(roots, order, op_name or f.__name__, name) if block else roots, order


def roots_of(operand: Any) -> list[Node]:
    """Return the nodes of all outputs of a function, or of any other operand."""
    return [v.node for v in operand.outputs] if hasattr(operand, "outputs") else [node_of(operand)]


def has_name(node: Node, name: str) -> bool:
    """Return whether a node has a name. An unnamed block's output has the name of the node inside."""
    return node.name == name and node.attributes.get("instance", name) == name


def block_of(roots: Sequence[Node], arguments: Sequence[Node], op_name: str, name: str) -> list[Node]:
    """Return the outputs of a block: names for the nodes inside, and for its inputs."""
    single = len(roots) == 1
    return [
        apply("alias", [root, *arguments], {"block": op_name, "instance": name}, name if single and name else root.name)
        for root in roots
    ]
