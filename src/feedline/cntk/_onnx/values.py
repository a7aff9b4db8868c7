"""Values of an ONNX graph while it is read: nodes, whose dynamic axes come first, and arrays.

The layout of a value lists the kinds of its first axes. The axes after them belong to a sample. Numbers, and the
lengths of axes, are NumPy arrays. In arrays of lengths, a `Length` represents one that differs between minibatches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.errors import CompatError
from feedline.networks import Node, apply
from feedline.networks.node import FREE

# Kinds of leading axes: the batch, steps of sequences, both merged, an axis of length 1, directions of a recurrence.
BATCHES, STEPS, MERGED, SINGLE, DIRECTIONS = "batch", "steps", "merged", "single", "directions"
# All elements of the minibatch in one axis.
EVERYTHING = "everything"


@dataclass(frozen=True, slots=True)
class Length:
    """Length of a dynamic axis.

    Attributes:
        kind: kind of the axis.
        node: a node that has the axis.
    """

    kind: str
    node: Node


class Value(NamedTuple):
    """A tensor.

    Attributes:
        node: node that computes it. It repeats along axes of the layout that it lacks.
        layout: kinds of the axes before the axes of a sample. A number repeats the tensor that many times.
    """

    node: Node
    layout: tuple[str | int, ...] = ()

    @property
    def rank(self) -> int:
        """Number of axes."""
        # Directions are also the first axis of the samples.
        return len(self.layout) + len(self.node.shape) - self.layout.count(DIRECTIONS)


class Joined(NamedTuple):
    """Steps of sequences, with further steps before or after them.

    Attributes:
        steps: the sequences.
        extra: value of the further steps.
        further: number of the further steps.
        before: whether the further steps come before the sequences.
    """

    steps: Value
    extra: Value
    further: int
    before: bool


class Moved(NamedTuple):
    """A tensor whose dynamic axes are not in front, until a transpose puts them there.

    Attributes:
        node: node that computes it.
        layout: kinds of its dynamic axes.
        at: place of the first dynamic axis.
    """

    node: Node
    layout: tuple[str | int, ...]
    at: int


Array = NDArray[Any]


def is_lengths(array: Array) -> bool:
    """Whether an array has lengths of dynamic axes."""
    return array.dtype == object


def lengths_of(value: Value) -> Array:
    """Return the lengths of a value's axes."""
    lengths: list[Any] = [
        Length(kind, value.node) if isinstance(kind, str) and kind != SINGLE else 1 for kind in value.layout
    ]
    lengths = [kind if isinstance(kind, int) else length for kind, length in zip(value.layout, lengths, strict=True)]
    array = np.empty(value.rank, object)
    array[:] = [*lengths, *value.node.shape]
    return array if any(isinstance(n, Length) for n in lengths) else array.astype(np.int64)


def same_layout(values: Sequence[Value], label: str) -> tuple[list[Node], tuple[str | int, ...]]:
    """Bring tensors that broadcast into one layout.

    Args:
        values: tensors.
        label: node of the graph, for messages.

    Returns:
        Nodes whose samples broadcast, and the layout of the result.

    Raises:
        CompatError: an axis of samples meets the batch or steps.
    """
    rank = max(value.rank for value in values)
    fronts = [(SINGLE,) * (rank - value.rank) + value.layout if value.layout else () for value in values]
    count = max(map(len, fronts))
    layout: list[str | int] = []
    for place in range(count):
        kinds = {front[place] for front in fronts if place < len(front)} - {SINGLE}
        if len(kinds) > 1:
            raise CompatError(f"{label}: expected tensors along the same axes, got {sorted(map(str, kinds))}")
        layout.append(kinds.pop() if kinds else SINGLE)
    nodes = []
    for value, front in zip(values, fronts, strict=True):
        node = value.node
        # Axes of a sample at the places of the batch or steps of another value.
        extra = max(0, len(node.shape) - (rank - count)) if len(front) < count else 0
        if extra:
            if any(n != 1 for n in node.shape[:extra]):
                raise CompatError(
                    f"{label}: expected axes of length 1 where others have {layout[:count]}, got the shape {node.shape}"
                )
            node = reshape(node, node.shape[extra:])
        nodes.append(node)
    return nodes, tuple(layout)


def reshape(node: Node, shape: Sequence[int]) -> Node:
    """Return a node with another shape of samples."""
    if tuple(shape) == node.type.shape:
        return node
    return apply("reshape", [node], {"shape": tuple(shape), "begin": None, "end": None})


def static_axis(value: Value, axis: int, label: str) -> int:
    """Return an axis of a sample as a negative number.

    Raises:
        CompatError: the axis is the batch, or steps.
    """
    place = axis % value.rank
    if place < len(value.layout):
        raise CompatError(f"{label}: expected an axis of samples, got axis {axis}, which is {value.layout[place]}")
    return place - value.rank


def size_of(shape: Sequence[int]) -> int:
    """Return the number of elements of a sample."""
    if FREE in shape:
        raise CompatError(f"expected a shape without free dimensions, got {tuple(shape)}")
    return int(np.prod(shape, dtype=np.int64))
