"""Products, and operations that rearrange a sample."""

from __future__ import annotations

import builtins
import itertools
import math
from typing import TYPE_CHECKING, Any

from feedline._facades import defined_in
from feedline.cntk._nodes import dims, node_of
from feedline.cntk._settings import take_plain_settings
from feedline.cntk.ops._function import Function
from feedline.cntk.ops._graphs import alias
from feedline.cntk.ops._operation_helpers import (
    as_list,
    at_least,
    axis_number,
    axis_numbers,
    build,
    choice,
    late,
    leading,
    longest_shape,
)
from feedline.networks import apply

TIMES_NO_INFERRED_INPUT_RANK = -1
TIMES_REDUCE_SEQUENCE_AXIS_WITHOUT_INFERRED_INPUT_RANK = -2
CONSTANT_PAD, REFLECT_PAD, SYMMETRIC_PAD = 0, 1, 2


def times(left: Any, right: Any, output_rank: int = 1, infer_input_rank_to_map: int = -1, name: str = "") -> Function:
    """Contract the last axes of left with the first axes of right, whose last ``output_rank`` axes remain.

    Args:
        left: dense or sparse samples.
        right: usually a parameter. It takes unknown dimensions from left.
        output_rank: number of axes of right in the result.
        infer_input_rank_to_map: number of leading axes of left to keep if right is a parameter of unknown shape. -1:
            determined by its number of axes. -2: add up the products of the steps of both sequences.
        name: name of the operation.
    """
    if infer_input_rank_to_map == TIMES_REDUCE_SEQUENCE_AXIS_WITHOUT_INFERRED_INPUT_RANK:
        products = build("times", [left, right], {"output_rank": output_rank, "map_rank": None}, "")
        return build("sequence_reduce_sum", [products], None, name)
    map_rank = None if infer_input_rank_to_map == TIMES_NO_INFERRED_INPUT_RANK else infer_input_rank_to_map
    return build("times", [left, right], {"output_rank": output_rank, "map_rank": map_rank}, name)


def times_transpose(left: Any, right: Any, name: str = "") -> Function:
    """Return ``left`` times the transpose of ``right``, a matrix or a vector."""
    return build("times_transpose", [left, right], None, name)


def reshape(x: Any, shape: Any, begin_axis: Any = None, end_axis: Any = None, name: str = "") -> Function:
    """Reshape the axes from ``begin_axis`` to before ``end_axis``. A length of -1 is inferred.

    `Axis.new_leading_axis` means the end of the axes.
    """
    if leading(begin_axis):
        return _ending(x, shape, name=name)
    begin, end = (None if a is None or leading(a) else axis_number(a) for a in (begin_axis, end_axis))
    return build("reshape", [x], {"shape": dims(shape), "begin": begin, "end": end}, name)


@late(1)
def _ending(x: Any, shape: Any, name: str = "") -> Function:
    """Add axes of length 1 at the end."""
    end = len(node_of(x).shape)
    return reshape(x, shape, end, end, name)


@late(1)
def squeeze(x: Any, axes: Any = None, name: str = "") -> Function:
    """Remove the given axes of length 1, by default all."""
    shape = node_of(x).shape
    drop = {i for i, n in enumerate(shape) if n == 1} if axes is None else {a % len(shape) for a in axis_numbers(axes)}
    if any(shape[i] != 1 for i in drop):
        raise ValueError(f"expected axes of length 1, got {sorted(drop)} of the shape {shape}")
    return reshape(x, [n for i, n in enumerate(shape) if i not in drop], name=name)


@late(1)
def expand_dims(x: Any, axis: Any, name: str = "") -> Function:
    """Insert an axis of length 1 after ``axis`` of the operand, or at a negative ``axis`` of the result.

    Raises:
        ValueError: the operand has no such axis.
    """
    shape = list(node_of(x).shape)
    at = -1 if leading(axis) else axis_number(axis)
    if not leading(axis) and not -len(shape) - 1 <= at < len(shape):
        raise ValueError(f"expected an axis from {-len(shape) - 1} to {len(shape) - 1}, got {at}")
    # As in CNTK, whose documentation shows it: axis 0 of (2, 3) gives (2, 1, 3).
    shape.insert(at + 1 if at >= 0 or leading(axis) else at + len(shape) + 1, 1)
    return reshape(x, shape, name=name)


@late(1)
def flatten(x: Any, axis: Any = None, name: str = "") -> Function:
    """Reshape to a matrix: the axes before ``axis`` (None means 0) by the axes from it on. -1 is the end, -2 the last
    axis.

    Raises:
        ValueError: the operand has no such axis.
    """
    shape = node_of(x).shape
    at = 0 if axis is None else axis_number(axis)
    at = at + len(shape) + 1 if at < 0 else at
    if not 0 <= at <= len(shape):
        raise ValueError(f"expected an axis from {-len(shape) - 1} to {len(shape)}, got {axis}")
    return reshape(x, (math.prod(shape[:at]), math.prod(shape[at:])), name=name)


def transpose(x: Any, perm: Any, name: str = "") -> Function:
    """Permute axes: axis i of the result is axis ``perm[i]`` of the operand.

    Raises:
        TypeError: not a list of axes.
        ValueError: an axis is missing or twice.
    """
    if not isinstance(perm, (list, tuple)):
        raise TypeError(f"expected a permutation of axes, got {perm!r}; exchange two axes with swapaxes")
    order = [a + len(perm) if a < 0 else a for a in map(axis_number, perm)]
    if sorted(order) != list(range(len(order))):
        raise ValueError(f"expected each of {len(order)} axes once, got {perm}")
    return build("transpose", [x], {"perm": tuple(order)}, name)


@late(1)
def swapaxes(x: Any, axis1: Any = 0, axis2: Any = 1, name: str = "") -> Function:
    """Exchange two axes.

    Raises:
        ValueError: the operand has no such axis.
    """
    order = list(range(len(node_of(x).shape)))
    a, b = axis_number(axis1), axis_number(axis2)
    if not all(-len(order) <= i < len(order) for i in (a, b)):
        raise ValueError(f"expected two axes of the operand's {len(order)}, got {a} and {b}: give axis1 and axis2")
    order[a], order[b] = order[b], order[a]
    return transpose(x, order, name)


def slice(x: Any, axis: Any, begin_index: Any, end_index: Any, strides: Any = None, name: str = "") -> Function:
    """Return part of a sample along one or several axes. An ``end_index`` of 0 means the end.

    A negative stride goes through the range from its end.

    Raises:
        ValueError: a range beyond an axis, or another number of begins, ends or strides than axes.
    """
    axes = axis_numbers(axis)
    starts, ends = as_list(begin_index), as_list(end_index)
    steps = [1] * len(axes) if strides is None else as_list(strides)
    if not len(axes) == len(starts) == len(ends) == len(steps):
        raise ValueError(f"expected as many begins, ends and strides as the {len(axes)} axes")
    shape = node_of(x).type.shape or ()
    for axis_at, begin, end in zip(axes, starts, ends, strict=True):
        size = shape[axis_at] if -len(shape) <= axis_at < len(shape) else -1
        if size >= 0 and not (-size <= begin < size and -size < end <= size):
            raise ValueError(f"expected a range within axis {axis_at} of {size} elements, got {begin} to {end}")
    attributes = {"axis": tuple(axes), "begin": tuple(starts), "end": tuple(ends), "strides": tuple(steps)}
    return build("slice", [x], attributes, name)


def splice(*inputs: Any, axis: Any = -1, name: str = "") -> Function:
    """Concatenate operands along an axis."""
    operands = list(inputs[0]) if len(inputs) == 1 and isinstance(inputs[0], (list, tuple)) else list(inputs)
    if len(operands) == 1:
        return alias(operands[0], name)
    return build(
        "splice", operands, {"axis": -len(longest_shape(operands)) - 1 if leading(axis) else axis_number(axis)}, name
    )


def one_hot(x: Any, num_classes: int, sparse_output: bool = False, axis: Any = -1, name: str = "") -> Function:
    """Return one-hot vectors of the operand's elements, along a new axis."""
    at_least(1, num_classes=num_classes)
    attributes = {"classes": int(num_classes), "axis": axis_number(axis), "sparse": builtins.bool(sparse_output)}
    return build("one_hot", [x], attributes, name)


def gather(reference: Any, indices: Any, axis: Any = None, name: str = "") -> Function:
    """Return slices of ``reference`` along its first axis, or ``axis``, by index."""
    number = None if axis is None else axis_number(axis)
    return build("gather", [indices, reference], {"axis": number}, name)


def pad(x: Any, pattern: Any, mode: int = CONSTANT_PAD, constant_value: float = 0, name: str = "") -> Function:
    """Pad each axis by ``pattern``, a pair (before, after) per axis. ValueError: other than pairs, or another mode."""
    if any(not isinstance(p, (list, tuple)) or len(p) != 2 for p in pattern):
        raise ValueError(f"expected a pair (before, after) for each axis, got {pattern}")
    kind = choice("mode", mode, {CONSTANT_PAD: "constant", REFLECT_PAD: "reflect", SYMMETRIC_PAD: "symmetric"})
    for pair, size in itertools.zip_longest(pattern, node_of(x).type.shape or ()):
        at_least(0, pattern=pair or ())
        if mode == REFLECT_PAD and pair and size and 0 < size <= max(pair):
            raise ValueError(f"expected a pattern below {size}, for an axis of {size} that is reflected, got {pair}")
    attributes = {"pattern": tuple(tuple(p) for p in pattern), "mode": kind, "value": float(constant_value)}
    return build("pad", [x], attributes, name)


def to_batch(x: Any, name: str = "") -> Function:
    """Return an operand without a batch axis with its first axis as the batch."""
    return build("to_batch", [x], None, name)


def unpack_batch(x: Any, name: str = "") -> Function:
    """Return an operand with its batch as the first axis of a sample, whose length is a `FreeDimension`."""
    return build("unpack_batch", [x], None, name)


def to_sequence(
    x: Any, sequence_lengths: Any = None, sequence_axis_name_prefix: str = "toSequence_", name: str = ""
) -> Function:
    """Return sequences whose steps are along the first axis of samples (steps, *shape).

    Args:
        x: operand with only a batch axis.
        sequence_lengths: number of steps of each sample. None means all.
        sequence_axis_name_prefix: accepted, without effect on the axis's name.
        name: name of the operation.

    Raises:
        ValueError: samples of one axis, or, when it runs, lengths that samples do not have.
    """
    return build("to_sequence", [x] if sequence_lengths is None else [x, sequence_lengths], None, name)


def to_sequence_like(x: Any, dynamic_axes_like: Any, name: str = "") -> Function:
    """Return sequences along another operand's, whose steps are along the first axis of samples (steps, *shape).

    Raises:
        ValueError: samples of one axis, or, when it runs, of more or fewer steps than the longest sequence.
    """
    return build("to_sequence_like", [x, dynamic_axes_like], None, name)


@late(1)
def depth_to_space(operand: Any, block_size: int, name: str = "") -> Function:
    """Rearrange (block * block * channels, height, width) to (channels, block * height, block * width)."""
    channels, height, width = _image(operand)
    b = _block(block_size)
    if channels % (b * b):
        raise ValueError(f"expected a multiple of {b * b} channels, got {channels}")
    blocks = reshape(operand, (b, b, channels // (b * b), height, width))
    return reshape(transpose(blocks, (2, 3, 0, 4, 1)), (channels // (b * b), height * b, width * b), name=name)


@late(1)
def space_to_depth(operand: Any, block_size: int, name: str = "") -> Function:
    """Rearrange blocks of cells into channels: the inverse of `depth_to_space`."""
    channels, height, width = _image(operand)
    b = _block(block_size)
    if height % b or width % b:
        raise ValueError(f"expected a height and a width that {b} divides, got {height} and {width}")
    blocks = reshape(operand, (channels, height // b, b, width // b, b))
    return reshape(transpose(blocks, (2, 4, 0, 1, 3)), (channels * b * b, height // b, width // b), name=name)


def _block(block_size: Any) -> int:
    if block_size < 1 or block_size != int(block_size):
        raise ValueError(f"expected a block_size of a whole number above 0, got {block_size}")
    return int(block_size)


def top_k(x: Any, k: int, axis: Any = -1, name: str = "") -> Function:
    """Return the k largest elements along an axis, largest first, and their indices: two outputs."""
    at_least(1, k=k)
    node, number = node_of(x), axis_number(axis)
    parts = [apply("top_k", [node], {"k": int(k), "axis": number, "indices": part}, name) for part in (False, True)]
    return Function.of(parts)


def _image(operand: Any) -> tuple[int, ...]:
    shape = node_of(operand).shape
    if len(shape) != 3:
        raise ValueError(f"expected an operand (channels, height, width), got {shape}")
    return shape


if not TYPE_CHECKING:  # type checkers find out themselves
    take_plain_settings(globals())
    __all__ = defined_in(globals())
