"""A script's data for one variable as rows and offsets, or as an array whose axes the variable determines.

An array or a CSR matrix is a minibatch, and is taken as it is. The items of a list are sequences, so each has the shape
of a sample, or one axis more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from feedline.data import Value as Packed
from feedline.networks import Node
from feedline.networks.node import fits, shape_of_width
from feedline.networks.traverse import element_type


def pack_for(data: Any, node: Node, begins: Sequence[bool] | None = None) -> tuple[Packed | None, Any]:
    """Convert data for a variable to its element type. It is copied only where necessary.

    Args:
        data: an array, a SciPy sparse matrix, or a list with one of these, or nested lists of numbers, per sequence.
        node: node of the variable.
        begins: whether each sequence begins here. With it, an array has a sequence of one sample in each row.

    Returns:
        Rows and offsets of a list, or None, and an array or CSR matrix, or None.

    Raises:
        ValueError: another type, ragged lists, or sequences of other samples.
    """
    dtype = np.dtype(element_type(node))
    if not node.axes:
        return None, _numbers(data, dtype, node)
    if hasattr(data, "tocsr"):
        if begins is not None:
            raise ValueError(
                f"{node.label}: expected a list of matrices with marks of where sequences begin, got one matrix"
            )
        return None, _typed(data.tocsr(), dtype)
    if isinstance(data, (list, tuple)):
        items: list[Any] = list(data)
    elif hasattr(data, "__array__"):
        array = _numbers(data, dtype, node)
        if begins is None:
            return None, array
        items = list(np.atleast_1d(array))
    else:
        raise ValueError(
            f"{node.label}: expected an array, a CSR matrix, or a list with one of these per sequence, got "
            f"{type(data).__name__}"
        )
    if not items:
        raise ValueError(f"{node.label}: expected at least one sequence, got none")
    return Packed.from_sequences([_sequence(i, item, node, dtype) for i, item in enumerate(items)]), None


def rows_for(array: Any, dims: tuple[int, ...], node: Node) -> Packed:
    """Return the rows of an array, or of a CSR matrix, whose axes before a sample are those of the variable.

    Args:
        array: array or matrix.
        dims: its shape. A matrix may stand for data of several axes, of which its columns are the last, or have all
            numbers of a sample in a row.
        node: node of the variable. Without a sequence axis, the axes are the batch, or the batch and an axis of
            length 1. With a sequence axis they are batch and steps, or the steps of a single sequence.

    Raises:
        ValueError: another shape.
    """
    shape, has_steps = node.shape, len(node.axes) > 1
    if hasattr(array, "tocsr"):
        dims = _unflattened(dims, shape)
    lead = len(dims) - len(shape)
    if lead not in (0, 1, 2) or not fits(dims[lead:], shape) or (lead == 2 and not has_steps and dims[1] != 1):
        forms = f"(N, *{shape}) or (N, length, *{shape})" if has_steps else f"(N, *{shape})"
        raise ValueError(
            f"{node.label}: expected an array {forms}, got {dims}; pass sequences of different lengths as a list"
        )
    count, size = math.prod(dims[:lead]), math.prod(dims[lead:])
    offsets = np.arange(math.prod(dims[: lead - 1]) + 1) * dims[lead - 1] if has_steps and lead else None
    if hasattr(array, "tocsr"):
        return Packed.from_scipy(array if array.shape == (count, size) else array.reshape(count, size), offsets)
    return Packed.from_dense(array.reshape(count, *dims[lead:]), offsets)


def _numbers(data: Any, dtype: np.dtype[Any], node: Node) -> Any:
    """Return an array or CSR matrix of a type."""
    if hasattr(data, "tocsr"):
        return _typed(data.tocsr(), dtype)
    try:
        array = np.asarray(data)
        if array.dtype.kind in "fiub":
            return _typed(array, dtype)
    except ValueError:
        pass
    raise ValueError(f"{node.label}: expected numbers, got ragged lists or other objects; pass one array per sequence")


def _sequence(i: int, item: Any, node: Node, dtype: np.dtype[Any]) -> Any:
    """Return an item of a list as an array (length, *shape), or a CSR matrix (length, size)."""
    shape = node.shape
    array = _numbers(item, dtype, node)
    is_sparse = hasattr(array, "tocsr")
    if shape == (1,) and not is_sparse and array.ndim and array.shape[-1] != 1:
        array = array[..., None]
    dims = _unflattened(array.shape, shape) if is_sparse else array.shape
    lead = len(dims) - len(shape)
    if lead not in (0, 1) or not fits(dims[lead:], shape):
        raise ValueError(
            f"{node.label}: expected samples of shape {shape}, or sequences (length, *{shape}), got {dims} as item {i} "
            "of the list"
        )
    if is_sparse:
        return array if lead else array.reshape(1, math.prod(dims))
    return array if lead else array[None]


def _unflattened(dims: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a matrix, with the axes of a sample if each row has all numbers of one."""
    if len(dims) != 2 or len(shape) == 1:
        return dims
    filled = shape_of_width(shape, dims[1])
    return (dims[0], *filled) if dims[1] == math.prod(filled) else dims


def _typed(array: Any, dtype: np.dtype[Any]) -> Any:
    if array.dtype == dtype or (hasattr(array, "tocsr") and dtype == np.float16):  # SciPy has no float16
        return array
    return array.astype(dtype)
